/* SPDX-License-Identifier: Apache-2.0
 * How Hopper's forward and dgrad kernels finish and store sums: 16-bit results by way of shared memory,
 * for whole rows, others from registers. Constants: those of im2col.cuh; SLICE columns on the way at
 * once (VECTOR 8); VECTOR (results that begin at multiples of 16 bytes: 8 of 16 bits, 2 of f32, else 1);
 * RESIDUAL; RESIDUAL_WIDE (it is of 16 bits and lies as results of VECTOR 8 do); PACKED_VECTORS (of the
 * epilogue); out_t; those of the epilogue and of im2col_stats.cuh. */
#pragma once
#include "kernels/mma.cuh"
#include "kernels/vector.cuh"
#include "ops/conv/im2col/im2col.cuh"
#include "kernels/epilogue_terms.cuh"
#include "ops/conv/im2col/im2col_stats.cuh"

constexpr u32 PITCH = SLICE * 2 + 16; /* of staged rows: an odd number of 16 bytes, free of bank conflicts */
static_assert(BN % SLICE == 0 && (SLICE == 64 || SLICE == 128), "lanes that share a row");
static_assert(!RESIDUAL_WIDE || (RESIDUAL && VECTOR == 8 && sizeof(residual_t) == 2), "read as results are stored");
static_assert(!STATS || BN * 8 <= 16 * PITCH, "a warp's sums fit where it stages");

/* Where a warpgroup's first result is. */
struct corner {
    int index, row, col; /* of the class; in it; column */
};

/* Where a row of the tile goes: elements from the result's first, and from the residual's. */
struct target {
    long long out, residual;
    bool exists;
};

__device__ __forceinline__ target target_of(const mica_conv_sm90_args &a, const mica_conv_class &c, int row)
{
    int at[3];
    const long long n = position(c.count, row, at);
    target t;
    t.exists = row < c.pixels;
    t.out = c.out + n * a.to.n + at[0] * a.to.s[0] + at[1] * a.to.s[1] + at[2] * a.to.s[2];
    t.residual = 0;
    if constexpr (RESIDUAL)
        t.residual = c.residual + n * a.residual.n + at[0] * a.residual.s[0] + at[1] * a.residual.s[1] +
                     at[2] * a.residual.s[2];
    return t;
}

/* That of another lane. */
__device__ __forceinline__ target target_from(const target &t, int lane)
{
    target r;
    r.out = __shfl_sync(0xffffffffu, t.out, lane);
    r.residual = RESIDUAL ? __shfl_sync(0xffffffffu, t.residual, lane) : 0;
    r.exists = __shfl_sync(0xffffffffu, (int)t.exists, lane);
    return r;
}

/* One result; residual: where it is WIDE. */
template <reading OTHERS>
__device__ __forceinline__ float finish(const mica_conv_sm90_args &a, const target &t, int channel,
                                        const channel_terms &terms, float sum, float residual)
{
    float v = a.alpha * sum;
    if (OTHERS == SINGLE && t.exists && channel < a.cols) {
        if (a.beta != 0) v += a.beta * widen<float>(((const out_t *)a.out)[t.out + channel * a.to.c]);
        if constexpr (RESIDUAL)
            residual =
                widen<float>(((const residual_t *)a.epilogue.residual)[t.residual + channel * a.residual.c]);
    }
    return apply_terms(a.epilogue, terms, v, residual);
}

/* Columns past the last are computed with the terms of the last, and not stored. */
__device__ __forceinline__ void load_pair_terms(const mica_conv_sm90_args &a, int c, channel_terms (&terms)[2])
{
#pragma unroll
    for (int e = 0; e < 2; e++) load_terms<PACKED_VECTORS>(a.epilogue, (long long)min(c + e, a.cols - 1), terms[e]);
}

/* residual: a pair of it. */
template <reading OTHERS>
__device__ __forceinline__ u32 finish_pair(const mica_conv_sm90_args &a, const target &t, int c,
                                           const channel_terms (&terms)[2], const float *sum, u32 residual)
{
    float more[2] = {0, 0};
    if constexpr (OTHERS == WIDE) {
        residual_t read[2];
        memcpy(read, &residual, sizeof read);
        more[0] = widen<float>(read[0]);
        more[1] = widen<float>(read[1]);
    }
    const out_t pair[2] = {narrow<out_t>(finish<OTHERS>(a, t, c, terms[0], sum[0], more[0])),
                           narrow<out_t>(finish<OTHERS>(a, t, c + 1, terms[1], sum[1], more[1]))};
    u32 word;
    memcpy(&word, pair, sizeof word);
    return word;
}

/* ---- results of 16 bits, rows of whole 16 bytes: through the warp's own shared memory ---- */

constexpr int ROWS_AT_ONCE = 32 / LANES, ROUNDS = 16 / ROWS_AT_ONCE; /* lanes of a row copy 16 bytes each */

/* The residual of a slice: what each lane reads of it, to be in flight while another slice is finished. */
struct residual_slice {
    uint4 part[ROUNDS];

    __device__ __forceinline__ void fetch(const mica_conv_sm90_args &a, const target &own, int col)
    {
        const int lane = (int)threadIdx.x & 31, c = col + lane % LANES * 8;
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            const target t = target_from(own, i * ROWS_AT_ONCE + lane / LANES);
            part[i] = make_uint4(0, 0, 0, 0);
            if (t.exists && c < a.cols)
                part[i] = *(const uint4 *)((const residual_t *)a.epilogue.residual + t.residual + c);
        }
    }
    /* Where results will stand. */
    __device__ __forceinline__ void place(u32 to) const
    {
        const int lane = (int)threadIdx.x & 31;
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            const u32 words[4] = {part[i].x, part[i].y, part[i].z, part[i].w};
            shared_store(to + (u32)(i * ROWS_AT_ONCE + lane / LANES) * PITCH + (u32)(lane % LANES) * 16, words);
        }
        __syncwarp();
    }
};

/* Asks for the residual of a warp's rows, to have it in L2 when sums are done. */
__device__ __forceinline__ void request_residual(const mica_conv_sm90_args &a, const corner &p, int parts)
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5 & 3;
    for (int i = 0; i < parts; i++) {
        const target own = target_of(a, a.classes[p.index], p.row + i * 64 + warp * 16 + lane % 16);
        const residual_t *row = (const residual_t *)a.epilogue.residual + own.residual;
        for (int c = p.col + lane / 16 * 64; own.exists && c < min(p.col + BN, a.cols); c += 128)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(row + c));
    }
}

/* SLICE columns of the warp's 16 rows; t: of rows lane / 4 and 8 more. */
template <reading OTHERS>
__device__ __forceinline__ void place_slice(const mica_conv_sm90_args &a, const target (&t)[2], int col, u32 to,
                                            const float *sum)
{
    const int lane = (int)threadIdx.x & 31, part = lane >> 3;
    to += (u32)((lane & 7) + part % 2 * 8) * PITCH + (u32)part / 2 * 16;
#pragma unroll
    for (int j = 0; j < SLICE / 8; j += 2) {
        u32 v[4], residual[4] = {};
        if constexpr (OTHERS == WIDE)
            load_matrices(residual[0], residual[1], residual[2], residual[3], to + (u32)j * 16);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int c = col + 8 * (j + i) + 2 * (lane & 3);
            channel_terms terms[2];
            load_pair_terms(a, c, terms);
            v[2 * i] = finish_pair<OTHERS>(a, t[0], c, terms, sum + 4 * (j + i), residual[2 * i]);
            v[2 * i + 1] = finish_pair<OTHERS>(a, t[1], c, terms, sum + 4 * (j + i) + 2, residual[2 * i + 1]);
        }
        store_matrices(to + (u32)j * 16, v[0], v[1], v[2], v[3]);
        if (OTHERS == SINGLE) __syncwarp(); /* keeps the next loads, and the registers for them, behind */
    }
}

/* The slice to memory, neighbouring lanes at neighbouring 16 bytes; own: of row lane % 16. */
__device__ __forceinline__ void copy_slice(const mica_conv_sm90_args &a, const target &own, int col, u32 from,
                                           statistics &stats, int slice)
{
    const int lane = (int)threadIdx.x & 31, c = lane % LANES * 8;
    column_sums<8> sums;
    if constexpr (STATS) clear(sums);
#pragma unroll(STATS ? 2 : ROUNDS)
    for (int i = 0; i < ROUNDS; i++) {
        const int row = i * ROWS_AT_ONCE + lane / LANES;
        const target t = target_from(own, row);
        if constexpr (STATS) {
            const u32 at = from + (u32)row * PITCH + (u32)c * 2;
            uint4 *const to = (uint4 *)((out_t *)a.out + t.out + col + c), v = make_uint4(0, 0, 0, 0);
            if (t.exists && col + c < a.cols) *to = v = shared_load(at);
            out_t stored[8];
            memcpy(stored, &v, sizeof v);
            count(sums, stored);
        } else if (t.exists && col + c < a.cols) {
            *(uint4 *)((out_t *)a.out + t.out + col + c) = shared_load(from + (u32)row * PITCH + (u32)c * 2);
        }
    }
    if constexpr (STATS) add_rows(stats, slice, sums);
}

/* Each warp stores its own rows, so that no warp waits for another. */
template <reading OTHERS, int PARTS>
__device__ __forceinline__ void store_staged(const mica_conv_sm90_args &a, const corner &p, u32 staging,
                                             const float (&sum)[PARTS][BN / 2], statistics &stats)
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5 & 3;
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        const int row = p.row + i * 64 + warp * 16 + (lane & 15);
        const target own = target_of(a, a.classes[p.index], row);
        const target t[2] = {target_from(own, lane / 4), target_from(own, lane / 4 + 8)};
        residual_slice residual;
        if constexpr (OTHERS == WIDE) residual.fetch(a, own, p.col);
#pragma unroll
        for (int j = 0; j < BN / SLICE; j++) {
            const int col = p.col + j * SLICE;
            if constexpr (OTHERS == WIDE) {
                residual.place(staging);
                if (j + 1 < BN / SLICE) residual.fetch(a, own, col + SLICE);
            }
            place_slice<OTHERS>(a, t, col, staging, sum[i] + j * SLICE / 2);
            __syncwarp();
            copy_slice(a, own, col, staging, stats, j);
            __syncwarp();
        }
    }
}

/* ---- other results: from registers ---- */

template <reading OTHERS>
__device__ __forceinline__ void store_columns(const mica_conv_sm90_args &a, const target &t, int c,
                                              const channel_terms (&terms)[2], const float *sum,
                                              column_sums<2> &stats)
{
    if (!t.exists) return;
    out_t *at = (out_t *)a.out + t.out;
    const out_t w[2] = {narrow<out_t>(finish<OTHERS>(a, t, c, terms[0], sum[0], 0)),
                        narrow<out_t>(finish<OTHERS>(a, t, c + 1, terms[1], sum[1], 0))};
    if constexpr (STATS) count(stats, w);
    if constexpr (VECTOR > 1) {
        if (c < a.cols) store_vector<2>(at + c, w);
    } else {
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (c + e < a.cols) at[(c + e) * a.to.c] = w[e];
    }
}

template <reading OTHERS, int PARTS>
__device__ __forceinline__ void store_direct(const mica_conv_sm90_args &a, const corner &p,
                                             const float (&sum)[PARTS][BN / 2], statistics &stats)
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5 & 3;
    target t[2 * PARTS];
    column_sums<2> sums[2];
#pragma unroll
    for (int i = 0; i < 2 * PARTS; i++)
        t[i] = target_of(a, a.classes[p.index],
                         p.row + i / 2 * 64 + warp * 16 + i % 2 * 8 + lane / 4);
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        const int c = p.col + 8 * j + 2 * (lane & 3);
        channel_terms terms[2];
        load_pair_terms(a, c, terms);
        if constexpr (STATS) clear(sums[j % 2]);
#pragma unroll
        for (int i = 0; i < 2 * PARTS; i++)
            store_columns<OTHERS>(a, t[i], c, terms, sum[i / 2] + 4 * j + i % 2 * 2, sums[j % 2]);
        if constexpr (STATS)
            if (j % 2) add_rows(stats, j / 2, sums);
    }
}

/* A warpgroup's part of a tile. What else the results depend on is decided for all of them: a branch at
 * each would cost more than the products. */
template <int PARTS>
__device__ __forceinline__ void store(const mica_conv_sm90_args &a, const corner &p, u32 staging,
                                      const float (&sum)[PARTS][BN / 2], statistics &stats)
{
    const bool any = (RESIDUAL || a.beta != 0) && !(RESIDUAL_WIDE && a.wide);
    if constexpr (VECTOR == 8) {
        if (any)
            store_staged<SINGLE>(a, p, staging, sum, stats);
        else
            store_staged<RESIDUAL_WIDE ? WIDE : NOTHING>(a, p, staging, sum, stats);
    } else {
        if (any)
            store_direct<SINGLE>(a, p, sum, stats);
        else
            store_direct<NOTHING>(a, p, sum, stats);
    }
}
