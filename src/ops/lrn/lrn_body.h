/* SPDX-License-Identifier: Apache-2.0
 * Local response normalisation of an element whose sums leave the range of ordinary numbers, in C
 * and in CUDA: every number is a fraction and an exponent, so that nothing on the way overflows or
 * vanishes. The file that includes it says what LRN, before a function, `real`, INFINITY, frexp_of,
 * ldexp_of, exp2_of, log2_of, rint_of, floor_of and fma_of are, and has lrn_get(a, data, offset).
 */
#include "ops/lrn/lrn_args.h"

/* m 2^e, |m| in [1/2, 1); or 0, an infinity or a NaN. */
typedef struct lrn_number {
    real m;
    int e;
} lrn_number;

LRN int lrn_is_finite(real v)
{
    return v - v == 0;
}

LRN lrn_number lrn_make(real v)
{
    lrn_number r = {v, 0};
    if (lrn_is_finite(v) && v != 0) r.m = frexp_of(v, &r.e);
    return r;
}

LRN lrn_number lrn_times(lrn_number a, lrn_number b)
{
    lrn_number r = lrn_make(a.m * b.m);
    r.e += a.e + b.e;
    return r;
}

LRN lrn_number lrn_plus(lrn_number a, lrn_number b)
{
    const lrn_number rest = a.e < b.e ? a : b;
    lrn_number r = a.e < b.e ? b : a;
    if (a.m == 0) return b;
    if (b.m == 0) return a;
    if (!lrn_is_finite(a.m) || !lrn_is_finite(b.m)) return lrn_make(a.m + b.m);
    if (r.e - rest.e > 2000) return r;
    const int e = r.e;
    r = lrn_make(r.m + ldexp_of(rest.m, rest.e - e));
    r.e += e;
    return r;
}

LRN lrn_number lrn_minus(lrn_number a, lrn_number b)
{
    b.m = -b.m;
    return lrn_plus(a, b);
}

/* s^-p */
LRN lrn_number lrn_power(lrn_number s, real p)
{
    if (p == 0) return lrn_make(1);
    if (s.m == 0 || !lrn_is_finite(s.m)) return lrn_make(s.m == 0 ? (real)INFINITY : 1 / s.m);
    /* log2 s = s.e + log2 m: both products are split into a whole number and a rest. */
    const real whole = rint_of(-p * (real)s.e), rest = fma_of(-p, (real)s.e, -whole);
    const real bits = -p * log2_of(s.m), low = floor_of(bits);
    lrn_number r = lrn_make(exp2_of(bits - low + rest));
    r.e += (int)(whole + low);
    return r;
}

LRN real lrn_value(lrn_number a)
{
    if (a.m == 0 || !lrn_is_finite(a.m)) return a.m;
    return ldexp_of(a.m, a.e > 5000 ? 5000 : a.e < -5000 ? -5000 : a.e);
}

LRN long long lrn_place(const mica_lrn_steps *s, const long long *at)
{
    long long place = 0;
    for (int i = 0; i < LRN_AXES; i++) place += at[i] * s->at[i];
    return place;
}

LRN lrn_number lrn_centred(const mica_lrn_args *a, const long long *at)
{
    const lrn_number x = lrn_make(lrn_get(a, a->x, lrn_place(&a->x_step, at)));
    if (!a->means) return x;
    return lrn_minus(x, lrn_make(lrn_get(a, a->means, lrn_place(&a->means_step, at))));
}

LRN long long lrn_first(long long at, long long before)
{
    return at > before ? at - before : 0;
}

LRN long long lrn_last(long long at, long long after, long long size)
{
    return size - at > after ? at + after : size - 1;
}

/* The sum behind element `at`. */
LRN lrn_number lrn_careful_sum(const mica_lrn_args *a, const long long *at)
{
    lrn_number sum = lrn_make(0);
    long long first[LRN_AXES], last[LRN_AXES], j[LRN_AXES];
    for (int i = 0; i < LRN_AXES; i++) {
        first[i] = lrn_first(at[i], a->before[i]);
        last[i] = lrn_last(at[i], a->after[i], a->sizes[i]);
    }
    j[0] = at[0];
    for (j[1] = first[1]; j[1] <= last[1]; j[1]++)
        for (j[2] = first[2]; j[2] <= last[2]; j[2]++)
            for (j[3] = first[3]; j[3] <= last[3]; j[3]++)
                for (j[4] = first[4]; j[4] <= last[4]; j[4]++) {
                    const lrn_number u = lrn_centred(a, j);
                    sum = lrn_plus(sum, lrn_times(u, u));
                }
    return lrn_plus(lrn_make((real)a->k), lrn_times(lrn_make((real)a->alpha), sum));
}

LRN real lrn_careful_forward(const mica_lrn_args *a, const long long *at)
{
    const lrn_number x = lrn_make(lrn_get(a, a->x, lrn_place(&a->x_step, at)));
    return lrn_value(lrn_times(x, lrn_power(lrn_careful_sum(a, at), (real)a->beta)));
}

/* Returns dx; *dmeans: its own. */
LRN real lrn_careful_backward(const mica_lrn_args *a, const long long *at, real *dmeans)
{
    lrn_number sum = lrn_make(0), own = sum;
    long long first[LRN_AXES], last[LRN_AXES], i[LRN_AXES];
    const real beta = (real)a->beta;
    for (int d = 0; d < LRN_AXES; d++) {
        first[d] = lrn_first(at[d], a->after[d]);
        last[d] = lrn_last(at[d], a->before[d], a->sizes[d]);
    }
    i[0] = at[0];
    for (i[1] = first[1]; i[1] <= last[1]; i[1]++)
        for (i[2] = first[2]; i[2] <= last[2]; i[2]++)
            for (i[3] = first[3]; i[3] <= last[3]; i[3]++)
                for (i[4] = first[4]; i[4] <= last[4]; i[4]++) {
                    const lrn_number s = lrn_careful_sum(a, i);
                    if (i[1] == at[1] && i[2] == at[2] && i[3] == at[3] && i[4] == at[4]) own = s;
                    const lrn_number x = lrn_make(lrn_get(a, a->x, lrn_place(&a->x_step, i)));
                    const lrn_number dy = lrn_make(lrn_get(a, a->dy, lrn_place(&a->dy_step, i)));
                    sum = lrn_plus(sum, lrn_times(lrn_times(dy, x), lrn_power(s, beta + 1)));
                }
    const lrn_number dy = lrn_make(lrn_get(a, a->dy, lrn_place(&a->dy_step, at)));
    const lrn_number by = lrn_times(lrn_make((real)a->alpha), lrn_make(2 * beta));
    const lrn_number t = lrn_times(by, lrn_times(lrn_centred(a, at), sum));
    *dmeans = lrn_value(t);
    return lrn_value(lrn_minus(lrn_times(dy, lrn_power(own, beta)), t));
}
