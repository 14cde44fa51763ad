/* SPDX-License-Identifier: Apache-2.0
 * Weights in kernels: PIECE neighbours of a row as f32, from codes or from blocks, as dequantize and
 * dequantize_blocks have them. Macro WEIGHTS_BLOCKS: w holds blocks, whose function is CODER. Constants:
 * PIECE, SIDE_BY_SIDE (so do bytes, or codes), HAS_SCALES, HAS_ZEROS, HAS_BIAS; of blocks ELEMENTS and
 * BYTES; of codes CODE (of quantize_args.h) and ONE_GROUP (all of a piece have the same scale). Types x_t,
 * y_t, bias_t, code_t (u8 for four bits), scale_t, zero_t, real and value_t (f32). GROUPED: rows of x have
 * matrices of their groups, found as kernels/groups.cuh has it. */
#pragma once
#include "kernels/groups.cuh"
#include "kernels/layout.cuh"
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "kernels/vector.cuh"
#include "ops/quantize_blocks/quantize_blocks_args.h"
#include "ops/quantized_gemm/quantized_gemm_args.h"
#if WEIGHTS_BLOCKS
#include "ops/quantize_blocks/quantize_blocks.cuh"
#else
#include "ops/quantize/quantize.cuh"
#endif

#define QGEMM __device__ __forceinline__

/* ---- groups ---- */

/* Offset of the group at hand. */
QGEMM s64 of_group(s64 at) { return GROUPED ? at : 0; }

/* A tile's first row and column, of those that lie in the group. */
struct tile_at {
    s64 m, n;
    bool there;
};

/* Of tiles in turn, in ascending order; g becomes the group that it lies in. */
template <int TILE_M, int TILE_N>
QGEMM tile_at tile_of_group(groups_walk<s64, TILE_M> &walk, s64 tile, mica_qgemm_args &g)
{
    const auto found = walk.find(g.ends, tile, 0, (g.n - 1) / TILE_N + 1);
    if (!found.there) return tile_at{0, 0, false};
    const s64 down = (found.rows - 1) / TILE_M + 1;
    g.m = found.from + found.rows;
    g.w_at = found.group * g.w_each, g.bias_at = found.group * g.bias_each;
    g.scale_at = found.group * g.scale_each, g.zero_at = found.group * g.zero_each;
    return tile_at{found.from + found.tile % down * TILE_M, found.tile / down * TILE_N, true};
}

/* Rows of no group, from `first` on, are 0. */
QGEMM void clear_rows(const mica_qgemm_args &a, s64 first, int threads)
{
    for (s64 i = (s64)blockIdx.x * threads + threadIdx.x; i < (a.ends.limit - first) * a.n; i += (s64)gridDim.x * threads)
        ((y_t *)a.y)[(first + i / a.n) * a.y_m + i % a.n * a.y_n] = narrow<y_t>(0.0f);
}

/* ---- weights ---- */

#if WEIGHTS_BLOCKS
QGEMM float scale_of(const mica_qgemm_args &a, s64 n, s64 group)
{
    return HAS_SCALES ? ((const float *)a.scales)[of_group(a.scale_at) + n * a.scale_n + group * a.scale_g] : 1.0f;
}

/* k is a multiple of PIECE, which divides a block. */
QGEMM void weights_at(const mica_qgemm_args &a, s64 n, s64 k, float (&v)[PIECE])
{
    const s64 number = k / ELEMENTS;
    const block_t b = {(const u8 *)a.w + of_group(a.w_at) + n * a.w_n + number * BYTES * a.w_k, a.w_k};
    CODER(b, (int)(k - number * ELEMENTS), scale_of(a, n, number), v);
}
#else
constexpr bool NIBBLES = CODE == CODE_E2M1 || CODE == CODE_S4 || CODE == CODE_U4;

QGEMM float scale_of(const mica_qgemm_args &a, s64 n, s64 group)
{
    return widen<float>(((const scale_t *)a.scales)[of_group(a.scale_at) + n * a.scale_n + group * a.scale_g]);
}

template <typename T> QGEMM float code_of(const void *base, s64 i)
{
    if constexpr (NIBBLES) return value_of(CODE, (u32)((const u8 *)base)[i >> 1] >> (i & 1 ? 4 : 0) & 15);
    else return widen<float>(((const T *)base)[i]);
}

/* Of w's type, or of scales'. */
QGEMM float zero_of(const mica_qgemm_args &a, s64 n, s64 group)
{
    if constexpr (!HAS_ZEROS) return 0;
    const s64 i = of_group(a.zero_at) + n * a.zero_n + group * a.zero_g;
    if constexpr (ZERO_IS_CODE) return code_of<code_t>(a.zeros, i);
    else return widen<float>(((const zero_t *)a.zeros)[i]);
}

/* Past the end of the row there are zeros. */
QGEMM void weights_at(const mica_qgemm_args &a, s64 n, s64 k, float (&v)[PIECE])
{
    s64 group = k / a.group, next = (group + 1) * a.group;
    float scale = 0, zero = 0;
    if (k < a.k) scale = scale_of(a, n, group), zero = zero_of(a, n, group);
#pragma unroll
    for (int e = 0; e < PIECE; e++) {
        v[e] = 0;
        if (k + e >= a.k) continue;
        if (k + e == next) {
            group++, next += a.group;
            scale = scale_of(a, n, group), zero = zero_of(a, n, group);
        }
        v[e] = mul_of(sub_of(code_of<code_t>(a.w, of_group(a.w_at) + n * a.w_n + (k + e) * a.w_k), zero), scale);
    }
}
#endif

QGEMM void put_result(const mica_qgemm_args &a, s64 m, s64 n, float sum)
{
    float v = a.alpha * sum;
    if constexpr (HAS_BIAS) v += widen<float>(((const bias_t *)a.bias)[of_group(a.bias_at) + n * a.bias_n]);
    ((y_t *)a.y)[m * a.y_m + n * a.y_n] = narrow<y_t>(v);
}
