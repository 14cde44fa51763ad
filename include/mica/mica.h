/* SPDX-License-Identifier: Apache-2.0
 * mica: deep-learning primitives for CPUs and NVIDIA GPUs.
 *
 * Describe an operation in a plain struct, make a plan of it once, run the plan as often as you
 * like:
 *
 *     mica_context *ctx;
 *     mica_context_create("auto", &ctx);
 *     mica_conv_desc d = {.x = x, .w = w, .pad = {1, 1}};
 *     mica_plan *plan;
 *     if (mica_conv_plan(ctx, &d, NULL, &plan) != MICA_OK)
 *         fprintf(stderr, "%s\n", mica_error());
 *     mica_plan_run(plan, &(mica_run){.args = {[MICA_CONV_X] = px, [MICA_CONV_W] = pw,
 *                                              [MICA_CONV_Y] = py}, .workspace = p});
 *
 * Read next: types.h (tensors), plan.h (contexts, plans, runs), then the family you need. */
#ifndef MICA_H
#define MICA_H

#include "mica/types.h"
#include "mica/plan.h"
#include "mica/epilogue.h"

#include "mica/conv.h"
#include "mica/gemm.h"
#include "mica/grouped_gemm.h"
#include "mica/pool.h"
#include "mica/norm.h"
#include "mica/softmax.h"
#include "mica/attention.h"
#include "mica/attention_merge.h"
#include "mica/mha.h"
#include "mica/activation.h"
#include "mica/cross_entropy.h"
#include "mica/optim.h"
#include "mica/rope.h"
#include "mica/transform.h"

#endif
