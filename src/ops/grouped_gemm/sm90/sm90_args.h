/* SPDX-License-Identifier: Apache-2.0
 * What the kernel grouped_sm90 receives; host and device share this file. */
#ifndef MICA_OPS_GROUPED_GEMM_SM90_SM90_ARGS_H
#define MICA_OPS_GROUPED_GEMM_SM90_SM90_ARGS_H

#include "kernels/tensor_map.h"
#include "ops/grouped_gemm/grouped_gemm_args.h"

typedef struct grouped_sm90_args {
    mica_tensor_map a, b, c;
    grouped_args grouped;
    int across;       /* columns of c */
    int tiles_lines;  /* of a group with all rows */
    int tiles_across; /* of c */
    int band;         /* tiles along the rows that are computed side by side */
    int slices;       /* of 128 bytes of K, where all groups have all terms */
    int stage_bytes;  /* that TMA writes for each slice */
    int whole;        /* c may be accessed by vectors */
    int plain;        /* alpha is 1: what TMA stores may be the sums as they are */
    int light;        /* TMA may store c; beta is 0 */
} grouped_sm90_args;

#endif
