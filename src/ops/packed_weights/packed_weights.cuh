/* SPDX-License-Identifier: Apache-2.0
 * Codes in kernels. Constants: FORMAT and BITS (of packed_weights_args.h), SINGLE (scales are of one group),
 * HAS_ZEROS, HAS_INDEX, BLOCK; types scale_t, idx_t. */
#pragma once
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"

#define PACKED __device__ __forceinline__
#include "ops/packed_weights/packed_weights_body.h"

constexpr int PIECE = 8, MIDDLE = 1 << (BITS - 1), MASK = (1 << BITS) - 1;

/* next: the step to the word that a code of 3 bits may go on in. */
PACKED int code_at(const int *words, s64 at, int bit, s64 next)
{
    u32 word = (u32)words[at] >> bit;
    if constexpr (BITS == 3)
        if (bit + BITS > 32) word |= (u32)words[at + next] << (32 - bit);
    return (int)(word & MASK);
}

PACKED int weight_of(const mica_packed_args &a, s64 k, s64 n)
{
    const packed_place p = packed_weight(FORMAT, BITS, k, n);
    return code_at(a.qweight, p.row * a.qweight_r + p.col * a.qweight_c, p.bit, a.qweight_r);
}

PACKED int zero_of(const mica_packed_args &a, s64 g, s64 n)
{
    if constexpr (!HAS_ZEROS) return MIDDLE;
    const packed_place p = packed_zero(FORMAT, BITS, g, n);
    const int code = code_at(a.qzeros, p.row * a.qzeros_r + p.col * a.qzeros_c, p.bit, a.qzeros_c);
    return (code + packed_zero_offset(FORMAT)) & MASK;
}

PACKED scale_t scale_of(const mica_packed_args &a, s64 g, s64 n)
{
    return ((const scale_t *)a.scales)[g * a.scales_r + packed_scale_column(FORMAT, SINGLE, n) * a.scales_c];
}

/* The group or row that index i names, `i` or its group without indices; -1: none. */
PACKED s64 index_of(const mica_packed_args &a, s64 i, s64 below)
{
    if constexpr (!HAS_INDEX) return i / a.group;
    const s64 v = (s64)((const idx_t *)a.index)[i * a.index_r];
    return v >= 0 && v < below ? v : -1;
}
