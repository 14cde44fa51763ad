/* SPDX-License-Identifier: Apache-2.0
 * What Hopper's forward kernels of 16 and of 8 bits do alike with tiles: how rows come into shared memory, in
 * chunks of 128 bytes a row, swizzled, and how queries meet keys there. Constants: those of sm90.cu;
 * in_t is any type of the operands' size. */
#pragma once
#include "kernels/shared.cuh"
#include "kernels/tma.cuh"
#include "kernels/wgmma.cuh"
#include "ops/attention/sm90/sm90_softmax.cuh"

constexpr int ROW = 128; /* bytes of a row in shared memory */
constexpr int COLUMNS_OF_ROW = ROW / (int)sizeof(in_t);
constexpr int Q_CHUNK = 64 * ROW, KEY_CHUNK = KEYS * ROW;
constexpr int Q_BYTES = D_CHUNKS * Q_CHUNK, K_BYTES = D_CHUNKS * KEY_CHUNK, V_BYTES = V_CHUNKS * KEY_CHUNK;
/* Q_BYTES: a warpgroup's queries. */
constexpr int THREADS = 128 * (GROUPS + 1);
/* Of 504 or 512 registers for a thread of each warpgroup; who looks for sequences and pages needs
 * more. */
constexpr bool SEARCHES = PACKED_Q || PACKED_K || COUNTED_Q || COUNTED_K || PIECE > 0;
constexpr int GIVEN = SEARCHES ? 56 : GROUPS == 2 ? 40 : 32;
constexpr int TAKEN = GROUPS == 2 ? (504 - GIVEN) / 2 : (512 - GIVEN) / 3;

/* ---- loads, by a whole warp ---- */

/* What TMA does, for pointers that it cannot take: element by element, so that it is slow.
 * Chunks are `pitch` rows apart. */
__device__ __forceinline__ void copy_tile(u32 to, const attention_sm90_source &s, int chunks, int pitch, int rows,
                                          int row, int head, int batch, int lane)
{
    constexpr int EACH = 16 / (int)sizeof(in_t), IN_WORD = EACH / 4, BITS = 32 / IN_WORD;
    const in_t *from = (const in_t *)s.data + batch * s.stride[0] + head * s.stride[1];
#pragma unroll 1
    for (int i = lane; i < chunks * rows * 8; i += 32) {
        const int piece = i % 8, y = i / 8 % rows, chunk = i / 8 / rows;
        u32 words[4] = {0, 0, 0, 0};
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int x = chunk * COLUMNS_OF_ROW + piece * EACH + e;
            if (x < s.columns && row + y < s.rows)
                words[e / IN_WORD] |= (u32)from[(row + y) * s.stride[2] + x].bits << e % IN_WORD * BITS;
            /* Not all loads at once: registers are few. */
            if (sizeof(in_t) == 1 && e % 4 == 3) asm volatile("" ::: "memory");
        }
        shared_store(to + (chunk * pitch + y) * ROW + (piece ^ y % 8) * 16, words);
    }
    async_fence();
    __syncwarp();
}

/* Rows from `row` on, into chunks of columns. */
__device__ __forceinline__ void load_tile(const attention_sm90_args &a, u32 to, const mica_tensor_map *map,
                                          const attention_sm90_source &s, u32 bar, int chunks, int rows, int row,
                                          int head, int batch, int lane)
{
    if (a.direct) copy_tile(to, s, chunks, rows, rows, row, head, batch, lane);
    if (lane != 0) return;
    if (a.direct) {
        mbarrier_arrive(bar);
        return;
    }
    mbarrier_arrive_expect(bar, chunks * rows * ROW);
#pragma unroll 1
    for (int c = 0; c < chunks; c++)
        tma_load(to + c * rows * ROW, map, bar, COLUMNS_OF_ROW * c, row, head, batch);
}

/* The producer too looks its job up in shared memory: it has few registers. */
__device__ __forceinline__ void find_next(const attention_sm90_args &a, job *to, int &round, int lane)
{
    const job j = find_job(a, round);
    if (lane == 0) *to = j;
    __syncwarp();
}

/* ---- products ---- */

__device__ __forceinline__ void release(u32 bar)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(bar);
}

/* By steps of 32 bytes. */
__device__ __forceinline__ void issue_keys(float (&s)[SCORES], u32 q, u32 k)
{
    const u64 a = wgmma_operand<128>(q, 16, 8 * ROW), b = wgmma_operand<128>(k, 16, 8 * ROW);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < D_STEPS; i++)
        multiply_keys(s, wgmma_advance(a, i / 4 * Q_CHUNK + i % 4 * 32),
                      wgmma_advance(b, i / 4 * KEY_CHUNK + i % 4 * 32), i);
    wgmma_commit();
}

/* Tiles in [from, to) are seen whole by all rows of a warpgroup. */
__device__ __forceinline__ range whole_tiles(const attention_sm90_args &a, const job &j, int first, int last)
{
    return range{(keys_of(a, j, last).from + KEYS - 1) / KEYS, keys_of(a, j, first).to / KEYS};
}
