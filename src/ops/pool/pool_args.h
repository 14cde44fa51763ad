/* SPDX-License-Identifier: Apache-2.0
 * What the pooling kernels receive; host and device share this file. */
#ifndef MICA_OPS_POOL_POOL_ARGS_H
#define MICA_OPS_POOL_POOL_ARGS_H

#include "kernels/fastdiv.h"

typedef struct mica_pool_axis {
    long long x, y;                          /* elements, windows */
    long long window, stride, pad, dilation; /* not used by adaptive windows but dilation, 1 */
    long long end;                           /* where padding ends, counted from x's element 0 */
    long long divisor;                       /* this axis' factor of every average's; 0: counted */
    int adaptive;
} mica_pool_axis;

/* An axis' windows that a sample places. */
typedef struct mica_pool_steps {
    long long y, last; /* windows, start of the last one */
    double by, sample; /* from window to window; 0 to 1 */
    int wide;          /* f64, else f32 */
} mica_pool_steps;

static inline mica_pool_steps mica_pool_steps_of(const mica_pool_axis *a, double by, double sample,
                                                 int wide)
{
    const double s = !(sample >= 0) ? 0 : sample > 1 ? 1 : sample;
    const mica_pool_steps steps = {a->y, a->x - a->window, by, s, wide};
    return steps;
}

static inline long long mica_pool_start(const mica_pool_steps *s, long long o)
{
    const float by = (float)s->by, sample = (float)s->sample;
    long long at;
    if (o >= s->y - 1) return s->last;
    if (s->wide)
        at = (long long)(((double)o + s->sample) * s->by) - (long long)(s->sample * s->by);
    else
        at = (long long)(((float)o + sample) * by) - (long long)(sample * by);
    return at < s->last ? at : s->last;
}

/* The first window that starts behind element i, or s->y. */
static inline long long mica_pool_behind(const mica_pool_steps *s, long long i)
{
    if (i < 0 || s->y < 1) return 0;
    if (i >= s->last) return s->y;
    /* last > i: the step is above 0. Floats are near enough to begin at. */
    const float by = (float)s->by, sample = (float)s->sample;
    const float guess = ((float)(i + 1) + (float)(long long)(sample * by)) / by - sample;
    long long o = guess > 0 ? guess < (float)s->y ? (long long)guess : s->y - 1 : 0;
    while (o > 0 && mica_pool_start(s, o - 1) > i) o--;
    while (o < s->y && mica_pool_start(s, o) <= i) o++;
    return o;
}

typedef struct mica_pool_args {
    const void *in; /* x; backward: dy */
    void *out;      /* y; backward: dx */
    void *indices;  /* or NULL */
    double alpha, beta;
    int scaled;                 /* alpha is not 1 or beta not 0 */
    int aligned;                /* pointers allow vectors of channels */
    long long n, c;             /* images; channels, or vectors of channels */
    long long count;            /* work items */
    long long x[5], y[5], i[5]; /* strides of N C D H W, the channels' counting vectors */
    mica_pool_axis axes[3];
    long long sizes[4]; /* D, H, W, C of what the work items stand for */
    mica_fastdiv by_size[4];
    /* where each window is all of x's plane, else 0: its elements, x's, what averages divide by */
    long long plane, elements;
    mica_fastdiv by_plane; /* if all of x's numbers are below 2^31 */
    double divisor;
} mica_pool_args;

/* Of norms: backward x and y of forward, their strides as those above. */
typedef struct mica_pool_lp_args {
    mica_pool_args pool;
    const void *input, *output;
    long long input_strides[5], output_strides[5];
    double p;
} mica_pool_lp_args;

/* Of windows that samples place; strides of N, C and the axes, which begin at `first`. */
typedef struct mica_pool_fractional_args {
    mica_pool_args pool;
    const void *samples;
    long long samples_strides[3];
    double by[3];
    int first, wide;
} mica_pool_fractional_args;

#endif
