/* SPDX-License-Identifier: Apache-2.0
 * Rows of 8-bit numbers with scales behind a normalisation or a (gated) activation, which then need
 * not be written and read again: what stands in front of a product of quantised activations.
 *
 *   norm=none    v = act(x);   gated: x is two halves u, w of each row, v = act(u) * w
 *   norm=rms     v = weight * u / sqrt(mean(u^2) + eps) + bias,          u = x + residual
 *   norm=layer   v = weight * (u - mean(u)) / sqrt(var(u) + eps) + bias, u = x + residual
 *   y = saturate(round(v / scale))
 *
 * Rows lie along the last dimension; v has the dimensions of x, gated half as many columns. `group`
 * neighbours of a row share a scale, the last ones may be fewer; scale has the dimensions of v but
 * for the last, which is columns / group, rounded up:
 *
 *   group=0     one for each row (token)
 *   group=128   one for each 128 neighbours
 *
 * or, in pass given, is one element of any rank that stands for all. pass given takes scale, pass
 * amax makes it, as `quantize` (mica/quantize.h) does: a / top, a being the largest magnitude of v
 * in the group and top the type's largest number (448, 57344, 127, 255). A scale of the whole
 * tensor that is made of v needs a second pass over it, hence `norm` or `activation` and then
 * `quantize`; so do scales of other types than f32.
 *
 * v is never rounded to 16 bits: it is what norm or activation (mica/norm.h, mica/activation.h)
 * give in f32, within their accuracy, so that codes next to a boundary may differ by one between
 * devices. sum receives u, in its own type. Codes of v and its scale are exactly those of quantize:
 * division is division but for 0 / 0, which is 0; integers to nearest even, NaN becoming 0;
 * floating-point types saturate, infinities too, and keep NaN. A group of zeros has the scale 0 and
 * codes 0, one with a NaN a NaN as its scale. In place: sum on residual, with equal tensors. */
#ifndef MICA_QUANTIZE_ROWS_H
#define MICA_QUANTIZE_ROWS_H

#include "mica/epilogue.h"
#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_quantize_rows_pass {
    MICA_QUANTIZE_ROWS_GIVEN,
    MICA_QUANTIZE_ROWS_AMAX
} mica_quantize_rows_pass;

typedef enum mica_quantize_rows_norm {
    MICA_QUANTIZE_ROWS_NONE,
    MICA_QUANTIZE_ROWS_RMS,
    MICA_QUANTIZE_ROWS_LAYER
} mica_quantize_rows_norm;

enum {
    MICA_QUANTIZE_ROWS_X,
    MICA_QUANTIZE_ROWS_RESIDUAL,
    MICA_QUANTIZE_ROWS_WEIGHT,
    MICA_QUANTIZE_ROWS_BIAS,
    MICA_QUANTIZE_ROWS_Y,
    MICA_QUANTIZE_ROWS_SCALE,
    MICA_QUANTIZE_ROWS_SUM
};

typedef struct mica_quantize_rows_desc {
    mica_quantize_rows_pass pass; /* 0 means given */
    mica_quantize_rows_norm norm; /* 0 means none */
    mica_act act;                 /* without norm; 0 means identity */
    bool gated;                   /* without norm; 0 means no */
    mica_tensor x;                /* f32, f16, bf16, any strides; needed */
    mica_tensor residual;         /* with norm; dims of x; 0 means none */
    mica_tensor weight;  /* with norm; one element for each column; 0 means none, as if 1 */
    mica_tensor bias;    /* the same; 0 means none, as if 0 */
    mica_tensor y;       /* e4m3, e5m2, s8, u8; dims of v; needed, where a type alone suffices */
    mica_tensor scale;   /* f32; 0 means inferred: of the groups */
    mica_tensor sum;     /* u, dims of x; 0 means inferred with residual: as x */
    int64_t group;       /* columns that share a scale; 0 means all */
    double eps;          /* 0 means 1e-05 */
    double act_a, act_b; /* parameters, see MICA_ACTIVATIONS; 0 means the function's own */
} mica_quantize_rows_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_quantize_rows_plan(mica_context *context,
                                                  const mica_quantize_rows_desc *desc,
                                                  const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "quantize_rows", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
