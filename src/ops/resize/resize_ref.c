/* SPDX-License-Identifier: Apache-2.0
 * Resizing in plain loops over the elements that have a weight. */
#include "ops/resize/resize.h"
#include "cpu/cpu.h"
#include "ops/convert/integer.h"
#include "ops/resize/resize_host.h"

typedef struct job {
    const mica_resize_desc *d;
    const mica_view *in, *out;
    bool backward;
    mica_resize_axis axes[3];
    long long from[5], to[5];
} job;

typedef struct side {
    const mica_resize_axis *axis;
    long long from, to; /* elements of the other side that may have a weight */
    double rest;        /* integers: what the largest weight is more than its rounded own */
    long long largest;
    resize_taps taps; /* forward */
} side;

static double plain_weight(const job *j, const side *s, int64_t i, int64_t k)
{
    resize_taps taps = s->taps;
    if (j->backward) taps = resize_find(s->axis, k);
    if (taps.first > taps.last) return 0;
    const double w = resize_weight(s->axis, &taps, j->backward ? i : k);
    return s->axis->unit > 0 ? rint(w * s->axis->unit) / s->axis->unit : w;
}

static double weight_of(const job *j, const side *s, int64_t i, int64_t k)
{
    return plain_weight(j, s, i, k) + (k == s->largest ? s->rest : 0);
}

static side side_of(const job *j, int axis, int64_t i)
{
    side s = {.axis = &j->axes[axis], .largest = -1};
    resize_span(s.axis, j->backward, i, &s.from, &s.to);
    if (!j->backward) s.taps = resize_find(s.axis, i);
    if (s.axis->unit == 0) return s;
    double best = -INFINITY;
    s.rest = 1;
    for (int64_t k = s.from; k < s.to; k++) {
        const double w = plain_weight(j, &s, i, k);
        s.rest -= w;
        if (w > best) best = w, s.largest = k;
    }
    return s;
}

static void resize_element(const job *j, int64_t index)
{
    int64_t at[5], rest = index;
    const mica_tensor *t = &j->out->t;
    for (int i = 4; i >= 2; i--) {
        const int64_t size = j->backward ? j->axes[i - 2].x : j->axes[i - 2].y;
        at[i] = rest % size, rest /= size;
    }
    at[1] = rest % t->dims[1], at[0] = rest / t->dims[1];
    const int64_t base = at[0] * j->from[0] + at[1] * j->from[1];
    side s[3];
    bool none = false;
    for (int a = 0; a < 3; a++) {
        s[a] = side_of(j, a, at[a + 2]);
        none |= s[a].from >= s[a].to;
    }
    long double sum = 0, magnitude = 0; /* products of subnormals do not vanish */
    for (int64_t d = s[0].from; d < s[0].to && !none; d++) {
        const double wd = weight_of(j, &s[0], at[2], d);
        for (int64_t h = s[1].from; wd != 0 && h < s[1].to; h++) {
            const double wh = wd * weight_of(j, &s[1], at[3], h);
            for (int64_t w = s[2].from; wh != 0 && w < s[2].to; w++) {
                const double all = wh * weight_of(j, &s[2], at[4], w);
                if (all == 0) continue;
                const long double v =
                    (long double)all *
                    mica_get(j->in, base + d * j->from[2] + h * j->from[3] + w * j->from[4]);
                sum += v;
                magnitude += fabsl(v);
            }
        }
    }
    if (none && !j->backward) sum = j->d->extrapolation, magnitude = fabsl(sum);
    double size = (double)magnitude;
    if (magnitude > 0 && size == 0) size = 0x1p-1074;
    int64_t to = 0;
    for (int i = 0; i < 5; i++) to += at[i] * j->to[i];
    mica_put(j->out, to, mica_round_integer(j->d->x.dtype, (double)sum), size);
}

void mica_resize_reference(const void *desc, const mica_view *args, const double *scalars)
{
    (void)scalars;
    const mica_resize_desc *d = desc;
    job j = {.d = d, .backward = d->pass == MICA_RESIZE_BWD};
    j.in = &args[j.backward ? MICA_RESIZE_Y : MICA_RESIZE_X];
    j.out = &args[j.backward ? MICA_RESIZE_X : MICA_RESIZE_Y];
    mica_resize_axes(d, j.axes);
    mica_resize_strides(&j.in->t, j.from);
    mica_resize_strides(&j.out->t, j.to);
    const int64_t count = mica_tensor_count(&j.out->t);
#pragma omp parallel for num_threads(mica_cpu_threads_for((double)count * 256)) schedule(static)
    for (int64_t i = 0; i < count; i++) resize_element(&j, i);
}
