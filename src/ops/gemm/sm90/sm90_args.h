/* SPDX-License-Identifier: Apache-2.0
 * What the kernel of the engine sm90 receives; host and device share this file. */
#ifndef MICA_OPS_GEMM_SM90_SM90_ARGS_H
#define MICA_OPS_GEMM_SM90_SM90_ARGS_H

#include "kernels/fastdiv.h"
#include "kernels/tensor_map.h"
#include "ops/gemm/gemm_args.h"

/* "Lines" are what the tile's rows run along: rows of c, or its columns where SWAPPED; "across" is
 * the other one. */
typedef struct gemm_sm90_args {
    mica_tensor_map a, b, c;  /* of the operand of the lines, of the operand across, of c */
    mica_tensor_map residual; /* where it comes as c goes */
    gemm_args gemm;
    long long lines, across;
    long long c_m, c_n; /* strides of c in elements */
    int tiles_lines, tiles;
    /* What a tile's place is found by: tiles of a batch item, of a band (the lines of tiles that
     * are computed side by side), along the lines in a band, and in the last band. */
    mica_fastdiv plane, band, high, last_high;
    int fills;       /* of a stage, to go through K */
    int stage_bytes; /* that TMA writes for each fill */
    int whole;       /* c may be accessed by vectors */
    int plain;       /* alpha is 1: what TMA stores may be the sums as they are */
    int light;       /* TMA may store c, and load the residual; beta is 0 */
    int partner;     /* line across where the second half of b begins; 0: there are no halves */
} gemm_sm90_args;

#endif
