/* SPDX-License-Identifier: Apache-2.0
 * Where the bins of a region lie along one axis, and what elements weigh, in C and in CUDA. The
 * including file defines ROI (how functions are declared), real and, of real: add_of, mul_of and
 * div_of (each rounded by itself), floor_of, ceil_of, round_of (halves away from zero), abs_of. */
#include "ops/roi_align/roi_align_args.h"

typedef struct roi_axis {
    long long size, bins; /* elements of x, bins of the region */
    real start, bin;      /* where bins begin, and how long they are */
    real step, each;      /* from sample to sample; samples of an element */
    long long samples;    /* of a bin; 0: bins have no element */
    long long first;      /* pool: where bins begin */
} roi_axis;

/* Of an element: the sum of its weights, and their ends. */
typedef struct roi_weights {
    real sum, most, least;
} roi_weights;

/* Samples of adaptive bins end here. */
#define ROI_SAMPLES 1073741824
/* Rounded coordinates of pool end here, so that they are numbers. */
#define ROI_FAR 1e15

ROI long long roi_rounded(real v)
{
    const real r = round_of(v);
    return r > (real)-ROI_FAR ? r < (real)ROI_FAR ? (long long)r : (long long)ROI_FAR
                              : -(long long)ROI_FAR;
}

/* From coordinate low to high, which are multiplied by scale. */
ROI roi_axis roi_along(int mode, real low, real high, real scale, int aligned, long long sampling,
                       long long bins, long long size)
{
    roi_axis a;
    const real offset = aligned ? (real)0.5 : (real)0;
    real from = mul_of(low, scale), to = mul_of(high, scale), length;
    a.size = size, a.bins = bins, a.samples = 1, a.first = 0, a.start = 0;
    if (mode == ROI_POOL) {
        a.first = roi_rounded(from);
        const long long cells = roi_rounded(to) - a.first + 1;
        length = (real)(cells > 1 ? cells : 1);
    } else {
        from = add_of(from, -offset), to = add_of(to, -offset);
        a.start = from;
        length = add_of(to, -from);
        if (!aligned && length < 1) length = 1;
    }
    a.bin = div_of(length, (real)bins);
    if (mode != ROI_POOL && sampling > 0) a.samples = sampling;
    if (mode != ROI_POOL && sampling == 0) {
        const real wanted = ceil_of(a.bin);
        a.samples = wanted >= 1 && wanted <= (real)ROI_SAMPLES ? (long long)wanted : 0;
    }
    a.step = a.bin, a.each = 0;
    if (mode != ROI_POOL && a.samples > 1) {
        a.step = div_of(a.bin, (real)a.samples);
        a.each = div_of((real)a.samples, a.bin);
    }
    if (size == 0 || !(from - from == 0) || !(to - to == 0)) a.samples = 0;
    return a;
}

/* Samples of a bin, by which its sum is divided. */
ROI real roi_count(const roi_axis *h, const roi_axis *w)
{
    const real count = mul_of((real)h->samples, (real)w->samples);
    return count >= 1 ? count : (real)1;
}

/* Picture of a region, -1: none. */
ROI long long roi_picture(real v, long long n)
{
    return v >= 0 && v < (real)n ? (long long)v : -1;
}

ROI real roi_sample(const roi_axis *a, long long bin, long long i)
{
    const real part = mul_of(add_of((real)i, (real)0.5), a->step);
    return add_of(add_of(a->start, mul_of((real)bin, a->bin)), part);
}

ROI int roi_inside(const roi_axis *a, real u)
{
    return u >= -1 && u <= (real)a->size;
}

/* Elements that a bin may read, first to end; of pool those that it reads. */
ROI void roi_span(int mode, const roi_axis *a, long long bin, long long *first, long long *end)
{
    const real last = (real)(a->size - 1);
    *first = *end = 0;
    if (a->samples == 0) return;
    if (mode == ROI_POOL) {
        const long long from = a->first + (long long)floor_of(mul_of((real)bin, a->bin));
        const long long to = a->first + (long long)ceil_of(mul_of((real)(bin + 1), a->bin));
        *first = from < 0 ? 0 : from < a->size ? from : a->size;
        *end = to < *first ? *first : to < a->size ? to : a->size;
        return;
    }
    /* Samples are in order, whatever was rounded. */
    const real one = roi_sample(a, bin, 0), other = roi_sample(a, bin, a->samples - 1);
    const real low = one < other ? one : other, high = one < other ? other : one;
    if (!(high >= -1 && low <= (real)a->size)) return;
    *first = low > 0 ? low < last ? (long long)floor_of(low) : a->size - 1 : 0;
    *end = high < last ? high > 0 ? (long long)floor_of(high) + 2 : 2 : a->size;
    if (*end > a->size) *end = a->size;
}

/* Whether samples of a bin lie beside x. */
ROI int roi_beside(const roi_axis *a, long long bin)
{
    if (a->samples == 0) return 1;
    return !roi_inside(a, roi_sample(a, bin, 0)) ||
           !roi_inside(a, roi_sample(a, bin, a->samples - 1));
}

/* Samples that may read an element, from `from` to `to`: those within 1 of it, and some more for
 * what is rounded here and there. */
ROI void roi_near(const roi_axis *a, long long bin, long long at, long long *from, long long *to)
{
    *from = 0, *to = a->samples;
    if (a->samples <= 4 || !(a->bin > 0)) return;
    const real unit = sizeof(real) == 4 ? (real)0x1p-23 : (real)0x1p-52;
    const real base = a->start + (real)bin * a->bin;
    const real error = 3 + 8 * unit * (abs_of(a->start) + abs_of(base) + (real)at) * a->each;
    const real low = ((real)at - 1 - base) * a->each - error;
    const real high = ((real)at + 1 - base) * a->each + error;
    if (low > 0) *from = low < (real)a->samples ? (long long)low : a->samples;
    if (high < (real)a->samples) *to = high > 0 ? (long long)high + 1 : 0;
}

/* Whether any sample of the bin reads element `at`, and its weights. */
ROI int roi_weigh(const roi_axis *a, long long bin, long long at, roi_weights *w)
{
    long long i, end;
    int touched = 0;
    w->sum = w->most = w->least = 0;
    roi_near(a, bin, at, &i, &end);
    for (; i < end; i++) {
        real u = roi_sample(a, bin, i);
        if (!roi_inside(a, u)) continue;
        if (!(u > 0)) u = 0;
        const real f = floor_of(u);
        const int last = f >= (real)(a->size - 1);
        const long long low = last ? a->size - 1 : (long long)f;
        if (at != low && (last || at != low + 1)) continue;
        const real over = last ? (real)0 : add_of(u, -f);
        const real weight = at == low ? add_of(1, -over) : over;
        w->sum += weight;
        w->most = touched && w->most > weight ? w->most : weight;
        w->least = touched && w->least < weight ? w->least : weight;
        touched = 1;
    }
    return touched;
}

/* Weight of mode max: of the sign of v, from what both axes have. */
ROI real roi_product(const roi_weights *h, const roi_weights *w, real v)
{
    return (v < 0 ? mul_of(h->least, w->least) : mul_of(h->most, w->most)) * v;
}

/* NaN is greater than all numbers, and the first one stays. */
ROI int roi_greater(real v, real than)
{
    return v > than || (v != v && than == than);
}
