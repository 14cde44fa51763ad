/* SPDX-License-Identifier: Apache-2.0
 * What attention's kernels for few queries share: from maximum and sum of a row to its results. Scores are
 * in units of log 2. Prologue: types q_t, and those of the kernel. */
#pragma once
#include "kernels/math.cuh"
#include "kernels/types.cuh"
#include "kernels/vector.cuh"
#include "ops/attention/decode/decode_args.h"

constexpr float LOG2E = 1.44269504088896341f, LN2 = 0.693147180559945309f;
#define NOTHING (-INFINITY_F)  /* the score of what is not seen */
constexpr float FOREIGN = -1;          /* the sum of a row that belongs to no sequence */

__device__ __forceinline__ float exp2_of(float v)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

/* What sums about `max` count for beside others about `top`. Not flushed to 0: bf16 has what is below
 * 2^-126. */
__device__ __forceinline__ float share_of(float max, float top) { return max == NOTHING ? 0 : exp2f(max - top); }

/* A finite number in units of log 2 is finite: LOG2E times a number near the end of f32 would not be. */
__device__ __forceinline__ float in_log2(float v)
{
    constexpr float MOST = 2.2e38f;
    v = v > MOST && v < INFINITY_F ? MOST : v;
    return LOG2E * (v < -MOST && v > -INFINITY_F ? -MOST : v);
}

struct finished {
    float factor, lse; /* of the sums of weights times values */
};

__device__ __forceinline__ float load_float(const attention_decode_tensor &t, s64 i)
{
    return ((const float *)t.data)[i * t.stride[0]];
}

__device__ __forceinline__ float load_sink(const attention_decode_args &a, int head)
{
    const s64 at = head * a.sinks.stride[0];
    if (a.sink_type == ATTENTION_DECODE_F32) return ((const float *)a.sinks.data)[at];
    if (a.sink_type == ATTENTION_DECODE_F16) return to_float(((const f16 *)a.sinks.data)[at]);
    return to_float(((const bf16 *)a.sinks.data)[at]);
}

__device__ __forceinline__ finished finish_row(const attention_decode_args &a, int head, int kv_head, float max, float sum)
{
    if (sum == FOREIGN) return {0, NOTHING};
    float share = 1;
    if (a.sinks.data) {
        const float sink = in_log2(load_sink(a, head)), top = fmaxf(max, sink);
        share = share_of(max, top);
        sum = sum * share + (sink == top && sink != NOTHING ? 1 : share_of(sink, top)); /* +inf takes all */
        max = top;
    }
    if (!(sum != 0)) return {0, NOTHING};
    const float scale = a.scale_v.data ? load_float(a.scale_v, kv_head) : 1;
    return {share * scale / sum, max * LN2 + log_of(sum)};
}

template <typename T>
__device__ __forceinline__ void store_as(const attention_decode_args &a, T *to, int c, float4 sums, float factor)
{
    const float from[4] = {sums.x, sums.y, sums.z, sums.w};
    T v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = narrow<T>(factor == 0 ? 0.0f : from[i] * factor);
    if (a.out_whole) {
        store_vector<4>(to + c, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (c + i < a.dv) to[(c + i) * a.out_stride[3]] = v[i];
}

/* Columns c to c + 3 of a row. Sums of a row without keys, of factor 0, are not looked at. */
__device__ __forceinline__ void store_columns(const attention_decode_args &a, int batch, int head, s64 row, int c,
                                              float4 sums, float factor)
{
    const s64 line = batch * a.out_stride[0] + head * a.out_stride[1] + row * a.out_stride[2];
    if (a.out_wide)
        store_as(a, (float *)a.out + line, c, sums, factor);
    else
        store_as(a, (q_t *)a.out + line, c, sums, factor);
}
