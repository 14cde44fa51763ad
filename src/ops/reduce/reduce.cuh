/* SPDX-License-Identifier: Apache-2.0
 * The walk over slices on a GPU, any strides: THREADS share a slice, or a part of one, and their states
 * merge in a fixed order; or, where slices lie side by side, each thread of a group has BESIDE of them.
 * An operation's .cu includes this, then defines what a state is. Constants: those of kernels/slices.cuh
 * (never RAGGED), BESIDE, ROWS (slices have several rows), INDEXED (positions are asked for). Types x_t. */
#pragma once
#include "kernels/layout.cuh"
#include "kernels/overlap.cuh"
#include "kernels/slices.cuh"
#include "kernels/states.cuh"
#include "ops/reduce/reduce_args.h"

#define REDUCE __device__ __forceinline__

static_assert(BESIDE == 1 || VECTOR == 1, "accesses lie along the axis or across it");

/* Accesses in flight. */
constexpr int WIDTH = BESIDE > 1 ? BESIDE : VECTOR, AHEAD = WIDTH * (int)sizeof(x_t) >= 16 ? 4 : 8;

/* What an operation defines:
 *   state_begin(s)                   a struct of words of 32 bits
 *   state_add<N>(s, v, index)        N values, index[i] being the position of each
 *   state_merge(s, other)            `other` comes later */
template <typename S> REDUCE void state_begin(S &s);
template <int N, typename S, typename Index> REDUCE void state_add(S &s, const x_t *v, Index index);
template <typename S> REDUCE void state_merge(S &s, const S &other);

/* ---- merging ---- */

/* Of `lanes` neighbouring lanes, a power of two: in the first of them. */
template <typename S> REDUCE void state_merge_lanes(S &s, int lanes)
{
    for (int lane = lanes / 2; lane > 0; lane /= 2)
        state_merge(s, state_by_words(s, [&](u32 word) { return __shfl_down_sync(0xffffffffu, word, lane); }));
}

constexpr int BLOCK = THREADS * SLICES, GROUP_WARPS = ALONG ? (THREADS + 31) / 32 : THREADS;
constexpr int SCRATCH = GROUP_WARPS == 1 ? 1 : ALONG ? BLOCK / 32 : BLOCK * BESIDE;

/* Of all threads of a slice: in the first of them. */
template <typename S> REDUCE void state_merge_group(S (&s)[BESIDE], S *scratch)
{
    if constexpr (ALONG) {
        state_merge_lanes(s[0], THREADS < 32 ? THREADS : 32);
        if constexpr (GROUP_WARPS > 1) {
            if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = s[0];
            __syncthreads();
            if (thread_in_slice() == 0)
                for (int w = 1; w < GROUP_WARPS; w++) state_merge(s[0], scratch[threadIdx.x / 32 + w]);
            __syncthreads(); /* the scratch is used again */
        }
    } else if constexpr (GROUP_WARPS > 1) {
#pragma unroll
        for (int k = 0; k < BESIDE; k++) scratch[threadIdx.x * BESIDE + k] = s[k];
        for (int half = THREADS / 2; half > 0; half /= 2) {
            __syncthreads();
            if (thread_in_slice() >= half) continue;
#pragma unroll
            for (int k = 0; k < BESIDE; k++) {
                state_merge(s[k], scratch[(threadIdx.x + half * SLICES) * BESIDE + k]);
                scratch[threadIdx.x * BESIDE + k] = s[k];
            }
        }
        __syncthreads();
    }
}

/* ---- the walk ---- */

/* Where access q of a slice lies, from its first element, and the position of that. */
struct place {
    long long at, index;
};
REDUCE place find_place(const mica_reduce_args &a, long long q)
{
    place p = {q * VECTOR * (VECTOR > 1 ? 1 : a.along), 0};
    if constexpr (!ROWS) {
        if constexpr (INDEXED) p.index = q * VECTOR * a.index_along;
        return p;
    }
    const long long per_row = a.n / VECTOR, row = q / per_row, i = (q - row * per_row) * VECTOR;
    long long at[2];
    layout_offsets<INDEXED ? 2 : 1>(a.rows, row, at);
    p.at = at[0] + i * a.along;
    if constexpr (INDEXED) p.index = at[1] + i * a.index_along;
    return p;
}

/* Accesses [from, to) of a slice, every THREADS-th. */
template <typename S> REDUCE void walk(const mica_reduce_args &a, const x_t *x, long long from, long long to, S (&s)[BESIDE])
{
#pragma unroll 1
    for (long long first = from + thread_in_slice(); first < to; first += AHEAD * THREADS) {
        lanes<x_t, WIDTH> raw[AHEAD];
        long long index[AHEAD];
#pragma unroll
        for (int b = 0; b < AHEAD; b++) {
            if (first + b * THREADS >= to) continue;
            const place p = find_place(a, first + b * THREADS);
            raw[b] = fetch<WIDTH>(x + p.at, a.whole);
            index[b] = p.index;
        }
        x_t v[AHEAD][WIDTH];
#pragma unroll
        for (int b = 0; b < AHEAD; b++) memcpy(v[b], raw[b].words, sizeof v[b]);
        const bool all = first + (AHEAD - 1) * THREADS < to;
        if constexpr (BESIDE > 1) {
#pragma unroll
            for (int k = 0; k < BESIDE; k++) {
                x_t column[AHEAD];
#pragma unroll
                for (int b = 0; b < AHEAD; b++) column[b] = v[b][k];
                if (all) {
                    state_add<AHEAD>(s[k], column, [&](int i) { return index[i]; });
                    continue;
                }
#pragma unroll
                for (int b = 0; b < AHEAD; b++)
                    if (first + b * THREADS < to) state_add<1>(s[k], column + b, [&](int) { return index[b]; });
            }
        } else if (all) {
            state_add<AHEAD * WIDTH>(s[0], &v[0][0], [&](int i) { return index[i / WIDTH] + i % WIDTH * a.index_along; });
        } else {
#pragma unroll
            for (int b = 0; b < AHEAD; b++)
                if (first + b * THREADS < to)
                    state_add<WIDTH>(s[0], v[b], [&](int i) { return index[b] + i * a.index_along; });
        }
    }
}

/* Slices of a block and a part, or whole ones: done(slice, its offset in y, state) for each. */
template <typename S, typename Done> REDUCE void reduce_slices(const mica_reduce_args &a, Done done)
{
    __shared__ __align__(16) unsigned char memory[SCRATCH * sizeof(S)];
    const long long from = blockIdx.y * a.per_part, end = from + a.per_part, to = end < a.vectors ? end : a.vectors;
    for (long long first = (long long)blockIdx.x * SLICES * BESIDE; first < a.kept.count;
         first += (long long)gridDim.x * SLICES * BESIDE) {
        const long long slice = first + slice_in_block() * BESIDE;
        const bool inside = slice < a.kept.count;
        long long at[2] = {0, 0};
        S s[BESIDE];
#pragma unroll
        for (int k = 0; k < BESIDE; k++) state_begin(s[k]);
        if (inside) {
            layout_offsets<2>(a.kept, slice, at);
            walk(a, (const x_t *)a.x + at[0], from, to, s);
        }
        state_merge_group(s, (S *)memory);
        if (!inside || thread_in_slice() != 0) continue;
#pragma unroll
        for (int k = 0; k < BESIDE; k++)
            done(slice + k, BESIDE > 1 ? at[1] + k * a.kept.strides[1][a.kept.rank - 1] : at[1], s[k]);
    }
}
