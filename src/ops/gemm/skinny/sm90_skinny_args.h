/* SPDX-License-Identifier: Apache-2.0
 * What the kernel of the engine sm90_skinny receives; host and device share this file. */
#ifndef MICA_OPS_GEMM_SKINNY_SM90_SKINNY_ARGS_H
#define MICA_OPS_GEMM_SKINNY_SM90_SKINNY_ARGS_H

#include "kernels/tensor_map.h"
#include "ops/gemm/skinny/skinny_args.h"

typedef struct gemm_sm90_skinny_args {
    mica_tensor_map wide; /* boxes of a stage: lines of the tile by 32 of K */
    gemm_skinny_args skinny;
    int tiles, fills; /* fills: of a stage, to go through K */
} gemm_sm90_skinny_args;

#endif
