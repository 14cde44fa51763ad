/* SPDX-License-Identifier: Apache-2.0
 * Pooling in one, two and three dimensions: maximum (with the winner's index), average over the
 * window with padding counted (avg) or not (avg_valid), Lp norm of a window (lp); adaptive and
 * global windows.
 *
 *   fwd   y = alpha * pool(x) + beta * y, and for max the index of the winner within its N,C plane
 *         (row-major in D,H,W); of equal values the lowest index wins; a NaN wins, of several the
 *         first.
 *   bwd   x = alpha * gradient + beta * x; max reads indices, avg nothing but y (the incoming
 *         gradient). Each element gathers from the windows over it in a fixed order; an index that
 *         is none of its own window's elements is ignored.
 *
 * lp is (sum |x|^p)^(1/p): padding adds nothing, nothing overflows on the way. With `signed_powers`
 * it is (sum x^p)^(1/p), NaN where that is no number, and with `rescale` a window that ends outside
 * of x has its sum times taps / taps in x: both are what PyTorch's LPPool does. Its bwd reads
 * `input` and `output`, x and y of fwd with alpha 1 and beta 0: dx = dy |x / y|^(p - 1) with the
 * sign of x, 0 where x or y is 0 (PyTorch: NaN); of signed powers dy (x / y)^(p - 1), 0 where y is
 * 0, and dy where p is 1.
 *
 * Windows are counted as PyTorch does: with `ceil`, a last window that would start past x and the
 * padding before it is left out. An average with padding counted divides by the taps up to the end
 * of padding, not by those that `ceil` put past it; with `divisor` all averages divide by that. A
 * window without an element of x has the maximum -infinity (integers: their least value) with index
 * -1, and the average 0.
 *
 * Fractional pooling (mode=max): with `samples`, N x C x axes (in the order of x's axes; PyTorch's
 * fractional_max_pool2d has them the other way round), each plane's windows start at
 * floor((i + s) a) - floor(s a), a = (X - window) / (Y - 1), the last one at X - window: what
 * PyTorch does, in f64 with samples of f64, else in f32. y and window are given, for PyTorch's
 * ratio y = floor(X ratio). A sample that is NaN or below 0 counts as 0, above 1 as 1. bwd reads
 * samples, too.
 *
 * Types: f64 f32 f16 bf16; fwd also s8 u8 and, for max, s32; y's type is x's. Averages of integers
 * round to nearest even. Sums are f64 for f64 and integers, else f32; scaling is done in f64. */
#ifndef MICA_POOL_H
#define MICA_POOL_H

#include "mica/epilogue.h"
#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_pool_pass { MICA_POOL_FWD, MICA_POOL_BWD } mica_pool_pass;
typedef enum mica_pool_mode {
    MICA_POOL_MAX,
    MICA_POOL_AVG,
    MICA_POOL_AVG_VALID,
    MICA_POOL_LP
} mica_pool_mode;

/* bwd: X is dx (written), Y is dy (read). */
enum {
    MICA_POOL_X,
    MICA_POOL_Y,
    MICA_POOL_INDICES,
    MICA_POOL_INPUT,
    MICA_POOL_OUTPUT,
    MICA_POOL_SAMPLES
};
enum { MICA_POOL_ALPHA, MICA_POOL_BETA };

typedef struct mica_pool_desc {
    mica_pool_pass pass; /* 0 means fwd */
    mica_pool_mode mode; /* 0 means max */
    mica_tensor x;       /* N x C x spatial; needed */
    mica_tensor y;       /* 0 means inferred, for adaptive and with samples needed */
    mica_tensor indices; /* s32 or s64, as y: max only; 0 means none in fwd, inferred in bwd of max:
                            as s64 */
    int64_t window[3];   /* 0 means the whole axis (global) */
    int64_t stride[3];   /* 0 means window */
    int64_t pad[3];      /* before and after; less than the window spans; 0 means none */
    int64_t pad_extra[3]; /* added at the end of an axis: from -pad on (SAME_LOWER), and the sum is
                             less than the window spans, too; 0 means none */
    int64_t dilation[3];  /* 0 means 1 */
    bool ceil;            /* round the output size up; 0 means no */
    bool
        adaptive; /* windows [floor(i*X/Y), ceil((i+1)*X/Y)); the fields above stay 0; 0 means no */
    int64_t divisor;     /* averages: of every window's sum; 0 means the taps that count */
    double p;            /* lp: the norm's order, 0.01 to 1000; 0 means 2 */
    bool signed_powers;  /* lp: powers of x, not of |x|; p is whole; 0 means no */
    bool rescale;        /* lp: windows cut short count as if whole; 0 means no */
    mica_tensor input;   /* x of fwd; 0 means inferred in bwd of lp, else none */
    mica_tensor output;  /* y of fwd; 0 means inferred in bwd of lp, else none */
    mica_tensor samples; /* max: f64 f32 f16 bf16, N x C x axes: where windows start, window being
                            given and stride to adaptive left out; 0 means none */
} mica_pool_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_pool_plan(mica_context *context, const mica_pool_desc *desc,
                                         const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "pool", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
