/* SPDX-License-Identifier: Apache-2.0
 * Results to a box that TMA stores, or read from one that it loaded: 64 rows of
 * BOX_BYTES, swizzled. A warp has 16 rows; a thread has of these rows lane / 4 (half 0) and 8 more (half 1) and
 * of every eight columns, number j, the pair that begins with column 8 j + lane % 4 * 2, as wgmma leaves sums.
 * Constants: LINE_BYTES (128), BOX_BYTES; type c_t. */
#pragma once
#include "kernels/mma.cuh"
#include "kernels/vector.cuh"
#include "kernels/wgmma.cuh"

constexpr int UNITS = BOX_BYTES / 16, ROWS_OF_UNIT = LINE_BYTES / BOX_BYTES; /* of the swizzle */
constexpr bool BY_MATRICES = sizeof(c_t) == 2; /* 16 rows and columns are moved at once, else pair by pair */

/* Where 16 bytes of a row stand. */
__device__ __forceinline__ unsigned char *unit_at(unsigned char *box, int row, int unit)
{
    return box + row * BOX_BYTES + (unit ^ row / ROWS_OF_UNIT % UNITS) * 16;
}
__device__ __forceinline__ unsigned char *pair_at(unsigned char *box, int warp, int half, int j, int lane)
{
    const int byte = (8 * j + lane % 4 * 2) * (int)sizeof(c_t);
    return unit_at(box, warp * 16 + lane / 4 + 8 * half, byte / 16) + byte % 16;
}
__device__ __forceinline__ u32 matrices_at(unsigned char *box, int warp, int j, int lane)
{
    return shared_address(unit_at(box, warp * 16 + lane % 16, j + lane / 16));
}

/* T: residual_t or c_t, of the same size. */
template <typename T> struct pair {
    T of[2];
};

template <typename T, int COUNT>
__device__ __forceinline__ void load_pairs(unsigned char *box, int first, pair<T> (&to)[2][COUNT], int warp, int lane)
{
#pragma unroll
    for (int j = 0; j < COUNT; j += 2) {
        if constexpr (BY_MATRICES) {
            u32 words[4];
            load_matrices(words[0], words[1], words[2], words[3], matrices_at(box, warp, first + j, lane));
#pragma unroll
            for (int i = 0; i < 4; i++) memcpy(&to[i % 2][j + i / 2], &words[i], 4);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                load_vector<2>((const T *)pair_at(box, warp, i % 2, first + j + i / 2, lane), to[i % 2][j + i / 2].of);
        }
    }
}

template <typename T, int COUNT>
__device__ __forceinline__ void store_pairs(unsigned char *box, int first, const pair<T> (&from)[2][COUNT], int warp,
                                            int lane)
{
#pragma unroll
    for (int j = 0; j < COUNT; j += 2) {
        if constexpr (BY_MATRICES) {
            u32 words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) memcpy(&words[i], &from[i % 2][j + i / 2], 4);
            store_matrices(matrices_at(box, warp, first + j, lane), words[0], words[1], words[2], words[3]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                store_vector<2>((T *)pair_at(box, warp, i % 2, first + j + i / 2, lane), from[i % 2][j + i / 2].of);
        }
    }
}
