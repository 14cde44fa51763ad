/* SPDX-License-Identifier: Apache-2.0
 * A matrix operand as Hopper's TMA fetches it and its tensor cores read it, for the engines
 * of gemm and grouped_gemm: slices of 128 bytes along K. */
#ifndef MICA_OPS_GEMM_SM90_SM90_OPERAND_H
#define MICA_OPS_GEMM_SM90_SM90_OPERAND_H

#include "ops/gemm/gemm_shape.h"

enum { GEMM_SM90_LINE_BYTES = 128 };

/* Lines are rows of a or columns of b; sizes and strides in elements. */
typedef struct gemm_sm90_operand {
    const char *name;
    mica_dtype dtype;
    long long lines, line_stride, k, k_stride;
    bool words;    /* f32 may be mn_major too: it comes through registers */
    bool mn_major; /* neighbours are of different lines; set by the check */
} gemm_sm90_operand;

bool gemm_sm90_along_k(const gemm_sm90_operand *operand);
/* 8-bit floats, whose sums leave the tensor core after every slice. */
bool gemm_sm90_promotes(mica_dtype t);
int gemm_sm90_bytes(mica_dtype t);

mica_status gemm_sm90_check_types(const mica_gemm_desc *desc, mica_why *why);
/* Whether TMA can step through `dim` parts of `least` elements each. */
mica_status gemm_sm90_check_stride(const gemm_sm90_operand *o, const char *what, long long dim,
                                   long long stride, long long least, mica_why *why);
mica_status gemm_sm90_check_operand(gemm_sm90_operand *o, mica_why *why);

/* The two dimensions of a map whose box is a slice of `tile` lines; returns its bytes. Lines past
 * the tensor's end are not fetched: what lies in their place in shared memory only enters results
 * that are not stored. */
int gemm_sm90_fill_map(const gemm_sm90_operand *o, int tile, mica_tensor_map_spec *map);
/* Tiles along lines that are computed together: as square as possible, so that a round of tiles
 * reads least of both operands. */
int gemm_sm90_band(int tile_m, int tile_n, int units);
/* What the tensor core does to sums. */
void gemm_sm90_contract(const mica_gemm_desc *desc, mica_contract *contract);

#endif
