/* SPDX-License-Identifier: Apache-2.0
 * What the generic attention kernels share: who attends to whom, scores, dropout. A warp has a row;
 * its lanes have the other side's rows while scores are formed, and columns while they are summed.
 * Types: q_t, k_t, v_t, out_t, bias_t, sinks_t, acc_t. Constants: COLUMNS (of a lane, at most), WARPS. */
#pragma once
#include "cuda/device/types.cuh"
#include "cuda/device/math.cuh"
#include "ops/attention/attention_args.h"

constexpr unsigned ALL = 0xffffffffu;
constexpr int MOST = COLUMNS * 32;

__device__ __forceinline__ acc_t minus_infinity() { return -(acc_t)INFINITY_F; }

template <typename A> __device__ __forceinline__ A warp_sum(A v)
{
    for (int step = 16; step; step /= 2) v += __shfl_xor_sync(ALL, v, step);
    return v;
}
template <typename A> __device__ __forceinline__ A warp_max(A v)
{
    for (int step = 16; step; step /= 2) {
        A other = __shfl_xor_sync(ALL, v, step);
        v = other > v ? other : v;
    }
    return v;
}

__device__ __forceinline__ bool has(const mica_attention_args &a, int t) { return a.has >> t & 1; }

template <typename T>
__device__ __forceinline__ const T *at(const mica_attention_args &a, int t, s64 i0, s64 i1, s64 i2)
{
    const long long *s = a.stride[t];
    return (const T *)a.data[t] + i0 * s[0] + i1 * s[1] + i2 * s[2];
}

__device__ __forceinline__ s64 clamp(s64 v, s64 low, s64 high) { return v < low ? low : v > high ? high : v; }

/* ---- sequences ---- */

struct place {
    s64 n, i; /* sequence, and row within it */
    bool none;
};
struct extent {
    s64 batch, first, count;
};

__device__ __forceinline__ s64 number(const mica_attention_args &a, int t, s64 i)
{
    return ((const s32 *)a.data[t])[i * a.stride[t][0]];
}

__device__ __forceinline__ extent extent_of(const mica_attention_args &a, int cu, int seq, s64 rows, s64 n)
{
    if (has(a, cu)) {
        s64 from = clamp(number(a, cu, n), 0, rows), to = clamp(number(a, cu, n + 1), from, rows);
        return {0, from, to - from};
    }
    return {n, 0, has(a, seq) ? clamp(number(a, seq, n), 0, rows) : rows};
}
__device__ __forceinline__ extent queries_of(const mica_attention_args &a, s64 n)
{
    return extent_of(a, ATTENTION_CU_Q, ATTENTION_SEQ_Q, a.rows, n);
}
__device__ __forceinline__ extent keys_of(const mica_attention_args &a, s64 n)
{
    return extent_of(a, ATTENTION_CU_K, ATTENTION_SEQ_K, a.keys, n);
}

/* Whose row `row` of batch item `batch` is. */
__device__ __forceinline__ place place_of(const mica_attention_args &a, int cu, int seq, s64 rows, s64 batch, s64 row)
{
    s64 low = batch;
    if (has(a, cu)) {
        /* The last sequence that does not begin behind the row. */
        s64 high = a.sequences;
        for (low = 0; high - low > 1;) {
            s64 middle = low + (high - low) / 2;
            if (number(a, cu, middle) <= row)
                low = middle;
            else
                high = middle;
        }
        if (a.sequences == 0) return {0, 0, true};
    }
    extent e = extent_of(a, cu, seq, rows, low);
    return {low, row - e.first, row < e.first || row >= e.first + e.count};
}

/* ---- keys ---- */

/* Offset of key j's row in k or v, or -1. */
__device__ __forceinline__ s64 key_offset(const mica_attention_args &a, int t, s64 n, const extent &keys, s64 h, s64 j)
{
    const long long *s = a.stride[t];
    if (!has(a, ATTENTION_PAGES)) return keys.batch * s[0] + h * s[1] + (keys.first + j) * s[2];
    const long long *p = a.stride[ATTENTION_PAGES];
    s64 page = ((const s32 *)a.data[ATTENTION_PAGES])[n * p[0] + j / a.key_rows * p[1]];
    if (page < 0 || page >= a.k_batches) return -1;
    return page * s[0] + h * s[1] + j % a.key_rows * s[2];
}

struct range {
    s64 from, to;
};
__device__ __forceinline__ range range_of(const mica_attention_args &a, s64 diagonal, s64 keys)
{
    s64 from = 0, to = keys;
    if (a.causal) to = diagonal + 1;
    if (a.window_left && a.window_left <= diagonal) from = diagonal - a.window_left + 1;
    if (a.window_right && a.window_right < keys - diagonal && diagonal + a.window_right < to) to = diagonal + a.window_right;
    to = clamp(to, 0, keys);
    return {clamp(from, 0, to), to};
}

__device__ __forceinline__ bool is_masked(const mica_attention_args &a, s64 n, s64 h, s64 i, s64 j)
{
    if (!has(a, ATTENTION_MASK)) return false;
    return at<u8>(a, ATTENTION_MASK, n, h, i)[j * a.stride[ATTENTION_MASK][3]] == 0;
}

/* ---- scores ---- */

__device__ __forceinline__ acc_t scale_of(const mica_attention_args &a, int t, s64 kv_head)
{
    return has(a, t) ? (acc_t)((const float *)a.data[t])[kv_head * a.stride[t][0]] : (acc_t)1;
}
__device__ __forceinline__ acc_t score_scale(const mica_attention_args &a, s64 kv_head)
{
    return (acc_t)a.scale * scale_of(a, ATTENTION_SCALE_Q, kv_head) * scale_of(a, ATTENTION_SCALE_K, kv_head);
}

/* x: scale q k. slope: of the soft cap. */
__device__ __forceinline__ acc_t finish_score(const mica_attention_args &a, acc_t x, s64 n, s64 h, s64 i, s64 j, s64 diagonal,
                                              acc_t &slope)
{
    slope = 1;
    if (a.soft_cap > 0) {
        acc_t tangent = tanh_of(x / (acc_t)a.soft_cap);
        slope = 1 - tangent * tangent;
        x = (acc_t)a.soft_cap * tangent;
    }
    if (has(a, ATTENTION_SLOPES)) {
        acc_t by = ((const acc_t *)a.data[ATTENTION_SLOPES])[h * a.stride[ATTENTION_SLOPES][0]];
        x -= by * (acc_t)(j > diagonal ? j - diagonal : diagonal - j);
    }
    if (has(a, ATTENTION_BIAS))
        x += widen<acc_t>(at<bias_t>(a, ATTENTION_BIAS, n, h, i)[j * a.stride[ATTENTION_BIAS][3]]);
    return x;
}

/* Philox4x32-10, word j % 4; see include/mica/attention.h. */
__device__ __forceinline__ acc_t kept(const mica_attention_args &a, s64 line, s64 i, s64 j)
{
    if (!a.drops) return 1;
    const s64 *rng = (const s64 *)a.data[ATTENTION_RNG];
    u64 seed = (u64)rng[0];
    u32 key0 = (u32)seed, key1 = (u32)(seed >> 32);
    u32 w0 = (u32)(u64)(j / 4), w1 = (u32)(u64)i, w2 = (u32)(u64)line, w3 = (u32)(u64)rng[a.stride[ATTENTION_RNG][0]];
    for (int round = 0; round < 10; round++) {
        u64 x = (u64)w0 * 0xD2511F53u, y = (u64)w2 * 0xCD9E8D57u;
        u32 old1 = w1, old3 = w3;
        w0 = (u32)(y >> 32) ^ old1 ^ key0;
        w1 = (u32)y;
        w2 = (u32)(x >> 32) ^ old3 ^ key1;
        w3 = (u32)x;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    int word = (int)(j % 4);
    u32 w = word == 0 ? w0 : word == 1 ? w1 : word == 2 ? w2 : w3;
    return w < a.drop_threshold ? (acc_t)0 : (acc_t)a.drop_scale;
}

/* ---- vectors ---- */

/* The warp's copy of a row in shared memory. */
template <typename T> __device__ __forceinline__ void load_row(const T *from, s64 step, int n, acc_t *to)
{
    for (int c = threadIdx.x % 32; c < n; c += 32) to[c] = widen<acc_t>(from[c * step]);
    __syncwarp();
}

template <typename T> __device__ __forceinline__ acc_t dot(const acc_t *x, const T *y, s64 step, int n)
{
    acc_t sum = 0;
    for (int c = 0; c < n; c++) sum += x[c] * widen<acc_t>(y[c * step]);
    return sum;
}

/* acc += weight * row, the lane's columns. */
template <typename T> __device__ __forceinline__ void add_row(acc_t (&acc)[COLUMNS], acc_t weight, const T *row, s64 step, int n)
{
#pragma unroll
    for (int t = 0; t < COLUMNS; t++) {
        int c = t * 32 + threadIdx.x % 32;
        if (c < n) acc[t] += weight * widen<acc_t>(row[c * step]);
    }
}

template <typename T> __device__ __forceinline__ void store_row(const acc_t (&acc)[COLUMNS], acc_t factor, acc_t divisor, T *row,
                                                               s64 step, int n)
{
#pragma unroll
    for (int t = 0; t < COLUMNS; t++) {
        int c = t * 32 + threadIdx.x % 32;
        if (c < n) row[c * step] = narrow<T>(factor * acc[t] / divisor);
    }
}
