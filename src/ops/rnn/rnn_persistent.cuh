/* SPDX-License-Identifier: Apache-2.0
 * Products of the persistent kernels: sequences x k times k x columns, of which a block keeps its columns
 * of the weights over all steps, the first KEPT tiles of 8 in registers, the rest in shared memory. Warps
 * divide k, each has blocks of 32 of it side by side; their sums meet in shared memory and are added in the order of
 * warps, so that bits do not vary. Constants: TILES, KEPT, K_BLOCKS (of a warp), ROW_TILES (of 16 sequences
 * at once), UNITS (of a block); type x_t.
 *
 * Within a block of k lane (g, q) has k from 8 q to 8 q + 7 of row, or column, g: 16 bytes, which are the
 * operands of two instructions. Which k an instruction calls its i-th does not matter as long as both
 * operands agree. Buffers hold these 16 bytes lane by lane, of rows 0 to 7 and then 8 to 15 of a tile. */
#pragma once
#include "kernels/bulk.cuh"
#include "kernels/mma.cuh"
#include "kernels/shared.cuh"

#include "ops/rnn/rnn_persistent_args.h"

constexpr int THREADS = 32 * RNN_WARPS, ROWS = ROW_TILES * RNN_ROWS, COLUMNS = 8 * TILES;
/* Rows of sums: an odd number of 32 bytes, lest rows of a store share banks. */
constexpr int PITCH = COLUMNS + (TILES % 2 ? 0 : 8);
constexpr int CELLS = (ROWS * UNITS + THREADS - 1) / THREADS; /* of a thread */
constexpr int KEPT_SIZE = KEPT ? KEPT : 1;
static_assert(KEPT <= TILES && sizeof(x_t) == 2, "16-bit types");

/* Of the dynamic shared memory; the kernel's own arrays follow. */
constexpr u32 SUMS_BYTES = RNN_WARPS * ROWS * PITCH * 4;
constexpr u32 WEIGHTS_BYTES = (TILES - KEPT) * RNN_WARPS * K_BLOCKS * 512;

struct product {
    u32 kept[KEPT_SIZE][K_BLOCKS][4];
};

__device__ __forceinline__ int first_k() { return ((int)threadIdx.x / 32 * K_BLOCKS) * RNN_K_BLOCK + threadIdx.x % 4 * 8; }

/* read(column, k, words): eight weights, 0 where there are none. */
template <typename F> __device__ __forceinline__ void load_weights(product &p, char *shared, F read)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int j = 0; j < K_BLOCKS; j++) {
            u32 words[4];
            read(8 * t + lane / 4, first_k() + j * RNN_K_BLOCK, words);
            if (t < KEPT) {
#pragma unroll
                for (int i = 0; i < 4; i++) p.kept[t < KEPT ? t : 0][j][i] = words[i];
            } else {
                const int at = ((t - KEPT) * RNN_WARPS + warp) * K_BLOCKS + j;
                ((uint4 *)(shared + SUMS_BYTES))[at * 32 + lane] = make_uint4(words[0], words[1], words[2], words[3]);
            }
        }
}

/* Where a sequence's k-th element lies in a buffer. */
__device__ __forceinline__ long long exchanged(int row, int k, int width)
{
    const int k_blocks = (width + RNN_K_BLOCK - 1) / RNN_K_BLOCK, tile = row / RNN_ROWS * k_blocks + k / RNN_K_BLOCK;
    const int lane = row % 8 * 4 + k % RNN_K_BLOCK / 8;
    return tile * 512LL + (row % RNN_ROWS / 8 * 32 + lane) * 8 + k % 8;
}

/* Rows from `row` on and below `end` of a buffer; sums of a warp's part of k go to shared memory. Others wrote
 * the buffer: it is read where all meet, in the L2. */
__device__ __forceinline__ void multiply(const product &p, char *shared, const x_t *buffer, int row, int end, int width)
{
    const int k_blocks = (width + RNN_K_BLOCK - 1) / RNN_K_BLOCK;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = first_k();
    float sums[ROW_TILES][TILES][4] = {};
#pragma unroll
    for (int j = 0; j < K_BLOCKS; j++) {
        uint4 low[ROW_TILES], high[ROW_TILES];
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) {
            const int r = row + m * RNN_ROWS + lane / 4, tile = (row / RNN_ROWS + m) * k_blocks + warp * K_BLOCKS + j;
            const uint4 *from = (const uint4 *)buffer + tile * 64LL + lane;
            low[m] = high[m] = make_uint4(0, 0, 0, 0);
            if (k + j * RNN_K_BLOCK < width) {
                if (r < end) low[m] = __ldcg(from);
                if (r + 8 < end) high[m] = __ldcg(from + 32);
            }
        }
        u32 weights[TILES][2][2];
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            if (t < KEPT) {
#pragma unroll
                for (int i = 0; i < 4; i++) weights[t][i / 2][i % 2] = p.kept[t < KEPT ? t : 0][j][i];
            } else {
                const int at = ((t - KEPT) * RNN_WARPS + warp) * K_BLOCKS + j;
                const uint4 w = ((const uint4 *)(shared + SUMS_BYTES))[at * 32 + lane];
                weights[t][0][0] = w.x, weights[t][0][1] = w.y, weights[t][1][0] = w.z, weights[t][1][1] = w.w;
            }
        }
        /* Sums that do not wait for one another follow one another. */
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int m = 0; m < ROW_TILES; m++) {
                    const u32 a[4] = {half ? low[m].z : low[m].x, half ? high[m].z : high[m].x,
                                      half ? low[m].w : low[m].y, half ? high[m].w : high[m].y};
                    matrix_unit<x_t, x_t>::multiply(sums[m][t], a, weights[t][half]);
                }
    }
    float *to = (float *)shared + (warp * ROWS + lane / 4) * PITCH + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            float *at = to + m * RNN_ROWS * PITCH + 8 * t;
            *(float2 *)at = make_float2(sums[m][t][0], sums[m][t][1]);
            *(float2 *)(at + 8 * PITCH) = make_float2(sums[m][t][2], sums[m][t][3]);
        }
}

__device__ __forceinline__ float summed(const char *shared, int row, int column)
{
    const float *from = (const float *)shared + row * PITCH + column;
    float sum = from[0];
#pragma unroll
    for (int w = 1; w < RNN_WARPS; w++) sum += from[w * ROWS * PITCH];
    return sum;
}

/* ---- the barrier of all blocks of a direction ---- */

/* Behind __syncthreads(): what the block wrote is there for those that see the number. */
__device__ __forceinline__ void grid_arrive(int *arrived)
{
    if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(arrived), "r"(1) : "memory");
}

/* Until `count` blocks came, counted from the launch on; __syncthreads() follows. */
__device__ __forceinline__ void grid_wait(const int *arrived, int count)
{
    if (threadIdx.x == 0)
        while (acquire_number(arrived) < count)
            ;
    __syncthreads();
}
