/* SPDX-License-Identifier: Apache-2.0
 * Softmax, log-softmax, sparsemax and Gumbel-softmax over one axis, of logits
 *
 *     z = x scale + mask       gumbel: z = (x scale + mask + g) / tau
 *
 *   fwd   y = exp(z - max) / sum, or its logarithm
 *         sparsemax: y = max(z - t, 0), with the t for which they sum to 1 (Martins and Astudillo,
 *         "From softmax to sparsemax", 2016)
 *         gumbel: as softmax; hard: 1 where z is largest (the first of equal ones), 0 elsewhere
 *   bwd   dx = f y (dy - sum(y dy)), f = scale or scale / tau. Reads y, not x
 *         log: dx = f (dy - exp(y) sum(dy))
 *         sparsemax: dx = f (dy - mean of dy where y > 0) there, 0 elsewhere
 *         hard: its gradient is that of the softmax (straight-through), so y is what the same
 *         problem has without hard
 *
 * Types f64 f32 f16 bf16, which may differ between tensors; sums are in f32, or in f64 if any of
 * them is f64. In place is allowed: y on x, dx on dy, with equal tensors. A slice of -inf alone
 * gives NaN, as one with +inf or NaN in it does.
 *
 * mask says which elements there are: of bool or u8, those where it is not 0; of a floating-point
 * type it is added, and those where it is -inf are left out. What is left out counts as if the
 * slice were without it, whatever x is there: y is 0 (log: -inf), in bwd dy does not count and dx
 * is 0. So a slice that is masked throughout gives 0 and no NaN, on every engine; one whose
 * remaining elements are all -inf gives NaN in those, as without a mask. bwd of a softmax that was
 * not logarithmic needs no mask if dy is finite. A mask has the dimensions of x, and broadcasts by
 * strides of 0 (mask=u8:8x12x64x64:64x0x0x1); it has no gradient here: that of one that is added is
 * dx / scale (gumbel: dx tau / scale), summed where it is broadcast.
 *
 * gumbel draws as random does (mica/random.h), rng holding {seed, offset}: element i of x, in
 * logical order, takes W of lane i % 4 (if any tensor is f64: V of lane i % 2) and
 *
 *     g = -log(-log(1 - u)),    u = (W / 2 + 1/2) 2^-31, f64: (V / 4096 + 1/2) 2^-52
 *
 * from -2.9 to 22.2 (f64: -3.6 to 36.7), the same bits on CPUs and GPUs; z is rounded to f32 (f64)
 * at each step of product, sum, sum and product with 1 / tau, so that hard selects the same element
 * everywhere. Who draws again counts the offset up. */
#ifndef MICA_SOFTMAX_H
#define MICA_SOFTMAX_H

#include "mica/epilogue.h"
#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_softmax_pass { MICA_SOFTMAX_FWD, MICA_SOFTMAX_BWD } mica_softmax_pass;
typedef enum mica_softmax_kind {
    MICA_SOFTMAX_KIND_SOFTMAX,
    MICA_SOFTMAX_KIND_SPARSEMAX,
    MICA_SOFTMAX_KIND_GUMBEL
} mica_softmax_kind;
enum {
    MICA_SOFTMAX_X,
    MICA_SOFTMAX_Y,
    MICA_SOFTMAX_DY,
    MICA_SOFTMAX_DX,
    MICA_SOFTMAX_MASK,
    MICA_SOFTMAX_RNG
};

typedef struct mica_softmax_desc {
    mica_softmax_pass pass; /* 0 means fwd */
    mica_tensor x;          /* needed in fwd */
    mica_tensor y;          /* 0 means inferred in fwd, needed in bwd */
    mica_tensor dy;         /* bwd; 0 means inferred: as y */
    mica_tensor dx;         /* bwd; 0 means inferred: as y */
    int64_t axis; /* negative counts from the end; 0 means axis 0, which is rarely what you want */
    bool log;     /* not of sparsemax, nor with hard; 0 means no */
    mica_softmax_kind kind; /* 0 means softmax */
    double scale;           /* of x; 0 means 1 */
    mica_tensor mask;       /* bool, u8, or f64 f32 f16 bf16, dimensions of x; 0 means none */
    double tau;             /* gumbel: temperature, 1e-30 to 1e30; 0 means 1 */
    bool hard;              /* gumbel: one-hot; 0 means no */
    mica_tensor rng;        /* gumbel, fwd: s64, 2 elements; 0 means inferred where it is used */
} mica_softmax_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_softmax_plan(mica_context *context, const mica_softmax_desc *desc,
                                            const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "softmax", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
