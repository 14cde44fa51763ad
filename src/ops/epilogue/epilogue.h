/* SPDX-License-Identifier: Apache-2.0
 * Epilogues of conv and gemm: inference, checks, the reference, and the constants of kernels. */
#ifndef MICA_OPS_EPILOGUE_EPILOGUE_H
#define MICA_OPS_EPILOGUE_EPILOGUE_H

#include "ops/op.h"
#include "ops/epilogue/activation.h"
#include "kernels/epilogue_args.h"

/* By value of mica_step, NULL-terminated. */
extern const char *const mica_step_spellings[];

/* Where a descriptor keeps its epilogue. */
typedef struct mica_epilogue {
    const int32_t *steps; /* MICA_MAX_STEPS */
    mica_tensor *bias, *scale, *shift, *residual;
    double *act_a, *act_b;
} mica_epilogue;

bool mica_epilogue_has(const int32_t *steps, mica_step step);
/* Rows of the argument table: what the tensor of a step is as, and when there is one. */
#define MICA_EPILOGUE_STEP(NAME)   .when = "epilogue", .values = 1 << MICA_STEP_##NAME
#define MICA_EPILOGUE_CHANNELS(of) .like = "the output's channels", .shape = of
/* A vector of the output's channels: f32; f64 if the output is f64. */
mica_tensor mica_epilogue_vector(const mica_tensor *out, int64_t channels);
/* The residual lies as the output does where the steps use it and the caller left it zero; the
 * activation's parameters. */
void mica_epilogue_infer(const mica_epilogue *e, const mica_tensor *out);
/* At most one step of each vector, one residual and one activation. */
mica_status mica_epilogue_check(const mica_epilogue *e, mica_why *why);
/* Applies the steps to *value in double precision and carries *magnitude along. Views may be absent
 * (data NULL). channel: index of the vectors; offset: of the residual's element. */
void mica_epilogue_apply(const mica_epilogue *e, const mica_view *bias, const mica_view *scale,
                         const mica_view *shift, const mica_view *residual, int64_t channel,
                         int64_t residual_offset, double *value, double *magnitude);
/* Steps `from` to before `to` only. */
void mica_epilogue_apply_some(const mica_epilogue *e, int from, int to, const mica_view *bias,
                              const mica_view *scale, const mica_view *shift,
                              const mica_view *residual, int64_t channel, int64_t residual_offset,
                              double *value, double *magnitude);
/* Of the tensor that receives the values before the activation, if it is given: INVALID unless
 * there is an activation and the type goes with inputs of that type. */
mica_status mica_epilogue_check_aux(const int32_t *steps, const mica_tensor *aux, mica_dtype input,
                                    mica_why *why);
/* Number of steps, and which of them is the activation (their number if none is). */
int mica_epilogue_count(const int32_t *steps);
int mica_epilogue_act(const int32_t *steps);
/* Whether the vectors that are given have a stride of 1. */
bool mica_epilogue_is_packed(const mica_epilogue *e);
/* Run-time pointers; `bias` is the family's enumerator, those of scale, shift and residual follow.
 */
void mica_epilogue_bind(mica_epilogue_args *to, void *const *args, int bias);
/* Constants for kernels/epilogue.cuh: ACT_ names, STEP_ names, EPILOGUE[], EPILOGUE_STEPS, and
 * the types bias_t scale_t shift_t residual_t. */
void mica_prologue_epilogue(mica_text *prologue, const mica_epilogue *e);

#endif
