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
 *
 * A plan knows its arguments, those it inferred (y here) too, and so how much memory each takes:
 *
 *     mica_run run = {0};
 *     mica_arg_info a;
 *     for (int i = 0; mica_plan_arg(plan, i, &a) == MICA_OK; i++)
 *         if (a.dir != MICA_UNUSED)
 *             mica_malloc(ctx, mica_tensor_span(&a.tensor, NULL), &run.args[i]);
 *     mica_malloc(ctx, (int64_t)mica_plan_workspace(plan), &run.workspace);
 *
 *     mica_upload(ctx, run.args[MICA_CONV_X], pixels, bytes, NULL);
 *     mica_plan_run(plan, &run);
 *
 * mica_tensor_span is from the lowest element to the highest. Element 0, to which args point, is
 * the lowest but for negative strides: then it lies -first bytes further on (types.h).
 *
 * A field of a descriptor that is left zero, and a tensor without a type, mean what the comment of
 * the field says behind "0 means"; what is "needed" is refused without. `mica list` shows the same.
 *
 * Read next: types.h (tensors), plan.h (contexts, plans, runs), then the family you need; graph.h
 * makes one plan of a whole network. */
#ifndef MICA_H
#define MICA_H

#include "mica/types.h"
#include "mica/plan.h"
#include "mica/epilogue.h"
#include "mica/graph.h"

/* The families: which header has which operation. mica_NAME_desc describes it, mica_NAME_plan plans
 * it. */
#include "mica/conv.h"                 /* conv */
#include "mica/deform_conv.h"          /* deform_conv */
#include "mica/gemm.h"                 /* gemm */
#include "mica/grouped_gemm.h"         /* grouped_gemm */
#include "mica/moe_route.h"            /* moe_route */
#include "mica/moe_permute.h"          /* moe_permute, moe_unpermute */
#include "mica/moe.h"                  /* moe */
#include "mica/pool.h"                 /* pool */
#include "mica/resize.h"               /* resize */
#include "mica/pointwise.h"            /* pointwise */
#include "mica/norm.h"                 /* norm */
#include "mica/lrn.h"                  /* lrn */
#include "mica/softmax.h"              /* softmax */
#include "mica/attention.h"            /* attention */
#include "mica/attention_merge.h"      /* attention_merge */
#include "mica/mha.h"                  /* mha */
#include "mica/rnn.h"                  /* rnn */
#include "mica/activation.h"           /* activation */
#include "mica/linear_cross_entropy.h" /* linear_cross_entropy */
#include "mica/cross_entropy.h"        /* cross_entropy */
#include "mica/reduce.h"               /* reduce */
#include "mica/loss.h"                 /* loss */
#include "mica/ctc_loss.h"             /* ctc_loss */
#include "mica/scan.h"                 /* scan */
#include "mica/optim.h"                /* optim */
#include "mica/rope.h"                 /* rope, kv_append */
#include "mica/transform.h"            /* transform */
#include "mica/im2col.h"               /* im2col */
#include "mica/pad.h"                  /* pad */
#include "mica/gather.h"               /* gather */
#include "mica/scatter.h"              /* scatter */
#include "mica/max_unpool.h"           /* max_unpool */
#include "mica/concat.h"               /* concat */
#include "mica/slice.h"                /* slice */
#include "mica/tile.h"                 /* tile */
#include "mica/grid_sample.h"          /* grid_sample */
#include "mica/affine_grid.h"          /* affine_grid */
#include "mica/quantize.h"             /* quantize, dequantize, fake_quantize */
#include "mica/quantize_rows.h"        /* quantize_rows */
#include "mica/roi_align.h"            /* roi_align */
#include "mica/nms.h"                  /* nms */
#include "mica/quantize_blocks.h"      /* quantize_blocks, dequantize_blocks */
#include "mica/packed_weights.h"       /* dequantize_weights, repack_weights */
#include "mica/quantized_gemm.h"       /* quantized_gemm */
#include "mica/integer_gemm.h"         /* integer_gemm */
#include "mica/random.h"               /* random, dropout */
#include "mica/sample.h"               /* sample */
#include "mica/speculate.h"            /* speculate */

#endif
