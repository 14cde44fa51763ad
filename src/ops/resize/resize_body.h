/* SPDX-License-Identifier: Apache-2.0
 * Coordinates and weights of an axis, in C and in CUDA, to the bit alike: products that are added
 * to something are fma. The file that includes it says what RESIZE, before a function, and weight_t
 * are. */
#include "ops/resize/resize_args.h"

/* Where an element of y lies, and the elements of x that its filter covers, some of them perhaps
 * outside; none where it is extrapolated. */
typedef struct resize_taps {
    double at, part; /* the coordinate: a whole number and the rest, in [0, 1) */
    double total;    /* what weights are divided by */
    long long first, last;
} resize_taps;

RESIZE double resize_filter(const mica_resize_axis *a, double distance)
{
    const double d = fabs(distance), c = a->cubic;
    if (a->mode != RESIZE_CUBIC) return d < 1 ? 1 - d : 0;
    if (d < 1) return fma(fma(c + 2, d, -(c + 3)) * d, d, 1.0);
    return d < 2 ? fma(fma(fma(c, d, -5 * c), d, 8 * c), d, -4 * c) : 0;
}

RESIZE double resize_raw(const mica_resize_axis *a, const resize_taps *t, long long i)
{
    return resize_filter(a, (((double)i - t->at) - t->part) / a->stretch);
}

RESIZE long long resize_inside(const mica_resize_axis *a, long long i)
{
    return i < 0 ? 0 : i >= a->x ? a->x - 1 : i;
}

RESIZE long long resize_nearest(const mica_resize_axis *a, double at, double rest)
{
    const double twice = rest + rest;
    const int up = a->nearest == RESIZE_PREFER_FLOOR  ? twice > a->d
                   : a->nearest == RESIZE_PREFER_CEIL ? twice >= a->d
                                                      : a->nearest == RESIZE_CEIL && rest > 0;
    return resize_inside(a, (long long)at + up);
}

/* The sum of the weights that count. */
RESIZE double resize_total(const mica_resize_axis *a, const resize_taps *t)
{
    double total = 0;
    long long from = t->first, to = t->last;
    if (!a->normalised) return 1;
    if (a->exclude) from = from < 0 ? 0 : from, to = to >= a->x ? a->x - 1 : to;
    for (long long i = from; i <= to; i++) total += resize_raw(a, t, i);
    return total;
}

/* One quotient is rounded: of integers below 2^52 its floor is exact, and of a scale of 0.1 element
 * 1 lies over 10, though the f64 is a little more than 0.1. */
RESIZE resize_taps resize_find(const mica_resize_axis *a, long long o)
{
    resize_taps t = {0, 0, 1, 0, -1};
    if (a->mode == RESIZE_AREA) {
        t.first = o * a->x / a->y;
        t.last = ((o + 1) * a->x - 1) / a->y;
        t.total = (double)(t.last - t.first + 1);
        return t;
    }
    const double n = fma(a->a, (double)o, a->b);
    double at = floor(n / a->d), rest = fma(-at, a->d, n);
    if (rest < 0) rest = 0;
    const double end = (double)(a->x - 1), far = a->reach + 2;
    if (a->extrapolates && (at < 0 || at > end || (at == end && rest > 0))) return t;
    /* Beyond the last that touches x all are alike. */
    if (at < -far) at = floor(-far), rest = 0;
    if (at > end + far) at = ceil(end + far), rest = 0;
    t.at = at, t.part = rest / a->d;
    if (a->mode == RESIZE_NEAREST) {
        t.first = t.last = resize_nearest(a, at, rest);
        return t;
    }
    t.first = (long long)at + (long long)floor(t.part - a->reach) + 1;
    t.last = (long long)at + (long long)ceil(t.part + a->reach) - 1;
    t.total = resize_total(a, &t);
    if (t.total != 0) return t;
    /* All that counts lies outside: the edge. */
    t.first = t.last = resize_inside(a, (long long)at);
    t.at = (double)t.first, t.part = 0, t.total = 1;
    return t;
}

/* The weight of element i of x, with what lies outside if i is at the edge. */
RESIZE double resize_weight(const mica_resize_axis *a, const resize_taps *t, long long i)
{
    long long from = i, to = i;
    if (a->mode == RESIZE_NEAREST) return i == t->first ? 1 : 0;
    if (a->mode == RESIZE_AREA) return i >= t->first && i <= t->last ? 1 / t->total : 0;
    if (!a->exclude && i == 0) from = t->first;
    if (!a->exclude && i == a->x - 1) to = t->last;
    if (from < t->first) from = t->first;
    if (to > t->last) to = t->last;
    double w = 0;
    for (long long j = from; j <= to; j++) w += resize_raw(a, t, j);
    return w / t->total;
}

RESIZE long long resize_limited(double v, long long most)
{
    return v < 0 ? 0 : v > (double)most ? most : (long long)v;
}

/* Elements [*from, *to) of y, among them all with a weight for element i of x. */
RESIZE void resize_range(const mica_resize_axis *a, long long i, long long *from, long long *to)
{
    *from = 0, *to = a->y;
    if (a->mode == RESIZE_AREA) {
        *from = i * a->y / a->x;
        *to = ((i + 1) * a->y - 1) / a->x + 1;
        return;
    }
    if (a->a == 0) return;
    const double low = fma((double)i - a->reach, a->d, -a->b) / a->a;
    const double high = fma((double)i + a->reach, a->d, -a->b) / a->a;
    const int first = i == 0, last = i == a->x - 1;
    if (!(a->a > 0 ? first : last)) *from = resize_limited(floor(a->a > 0 ? low : high) - 1, a->y);
    if (!(a->a > 0 ? last : first)) *to = resize_limited(ceil(a->a > 0 ? high : low) + 2, a->y);
}

/* Elements [*from, *to) of the other side, among them all with a weight for element i of the
 * result: y, or backward x. */
RESIZE void resize_span(const mica_resize_axis *a, int backward, long long i, long long *from,
                        long long *to)
{
    if (backward) {
        resize_range(a, i, from, to);
        return;
    }
    const resize_taps t = resize_find(a, i);
    *from = *to = 0;
    if (t.first > t.last) return;
    *from = resize_inside(a, t.first);
    *to = resize_inside(a, t.last) + 1;
}

/* Integers: the weights to multiples of the unit whose sum is 1. */
RESIZE void resize_round(double unit, weight_t *w, long long count)
{
    double rest = 1;
    long long largest = 0;
    for (long long k = 0; k < count; k++) {
        w[k] = (weight_t)(rint((double)w[k] * unit) / unit);
        rest -= (double)w[k];
        if (w[k] > w[largest]) largest = k;
    }
    w[largest] = (weight_t)((double)w[largest] + rest);
}

/* Row i of the table: returns where it begins, -1 where there is nothing. At most `most` weights,
 * all written; *count, if not NULL, is how many there are. */
RESIZE long long resize_row(const mica_resize_axis *a, int backward, long long i, weight_t *w,
                            long long most, long long *count)
{
    long long from, to, first = -1, n = 0;
    resize_taps t;
    resize_span(a, backward, i, &from, &to);
    if (!backward) t = resize_find(a, i);
    for (long long k = from; k < to; k++) {
        if (backward) t = resize_find(a, k);
        if (t.first > t.last) continue;
        const weight_t v = (weight_t)resize_weight(a, &t, backward ? i : k);
        if (v == 0) continue;
        if (first < 0) first = k;
        if (k - first >= most) break;
        while (n < k - first) w[n++] = 0;
        w[n++] = v;
    }
    if (a->unit > 0 && n > 0) resize_round(a->unit, w, n);
    if (count) *count = n;
    while (n < most) w[n++] = 0;
    return first;
}
