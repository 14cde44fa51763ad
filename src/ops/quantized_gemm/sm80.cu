/* SPDX-License-Identifier: Apache-2.0
 * quantized_gemm on the tensor cores of sm_80 and later, swapped: rows of w are the 16 rows of mma.sync, rows
 * of x its 8 columns. Each warp has ROWS times 16 rows of w and all COLS times 8 rows of x of the block's tile.
 * Of DEPTH elements of a row, lane l % 4 has a quarter side by side, of w as of x: mma.sync does not mind the
 * order of k. Codes less their zero point are exact in 16 bits; sums of DEPTH are scaled in f32. Codes
 * of the next step are on their way while those of this one are multiplied; x comes by cp.async, STAGES deep.
 *
 * Constants of quantized_gemm.cuh (PIECE 16); ROWS, COLS, WARPS, STAGES. */
#include "kernels/mma.cuh"
#include "ops/quantized_gemm/quantized_gemm.cuh"
#include "ops/quantized_gemm/sm80_args.h"

constexpr int DEPTH = 64, QUARTER = DEPTH / 4, THREADS = 32 * WARPS;
constexpr int TILE_N = 16 * ROWS * WARPS, TILE_M = 8 * COLS;
constexpr int LINE = DEPTH * 2 + 16; /* bytes of a row of x in shared memory: no two lanes meet in a bank */
constexpr int WORDS = QUARTER * (NIBBLES ? 4 : 8) / 32;
static_assert(QUARTER == PIECE, "a piece for each lane");

QGEMM u32 pack(float low, float high, bf16)
{
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
QGEMM u32 pack(float low, float high, f16)
{
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* ---- x ---- */

/* Rows past the last are the last again. */
QGEMM void fetch_x(const mica_qgemm_sm80_args &a, s64 m0, s64 k0, char *to)
{
    constexpr int CHUNKS = DEPTH / 8;
#pragma unroll 1
    for (int c = (int)threadIdx.x; c < TILE_M * CHUNKS; c += THREADS) {
        const int row = c / CHUNKS, chunk = c % CHUNKS;
        const x_t *from = (const x_t *)a.g.x + min(m0 + row, a.g.m - 1) * a.g.x_m + k0 + chunk * 8;
        char *slot = to + row * LINE + chunk * 16;
        if (a.x_aligned) {
            copy_async<16>(shared_address(slot), from, 16);
            continue;
        }
#pragma unroll 1
        for (int i = 0; i < 8; i++) ((x_t *)slot)[i] = from[i];
    }
}

/* ---- w ---- */

struct lane_codes {
    u32 word[ROWS][2][WORDS];
};

QGEMM void fetch_codes(const mica_qgemm_sm80_args &a, s64 n, s64 k, lane_codes &c)
{
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const s64 at = of_group(a.g.w_at) + min(n + 16 * i + 8 * h, a.g.n - 1) * a.g.w_n + k;
            const u8 *from = (const u8 *)a.g.w + (NIBBLES ? at / 2 : at);
            if (a.w_aligned)
                load_vector<WORDS>((const u32 *)from, c.word[i][h]);
            else
#pragma unroll
                for (int w = 0; w < WORDS; w++)
                    c.word[i][h][w] = (u32)from[4 * w] | (u32)from[4 * w + 1] << 8 | (u32)from[4 * w + 2] << 16 | (u32)from[4 * w + 3] << 24;
        }
}

QGEMM float code_at(const u32 (&w)[WORDS], int e)
{
    if constexpr (CODE == CODE_E2M1) {
        return value_of(CODE, w[e / 8] >> 4 * (e % 8) & 15);
    } else if constexpr (NIBBLES) {
        /* as the last bits of 2^23 */
        constexpr u32 OFFSET = CODE == CODE_S4 ? 8 : 0;
        return __uint_as_float(0x4b000000u | ((w[e / 8] >> 4 * (e % 8) & 15) ^ OFFSET)) - (8388608.0f + OFFSET);
    } else {
        u8 byte = (u8)(w[e / 4] >> 8 * (e % 4));
        code_t code;
        memcpy(&code, &byte, 1);
        return widen<float>(code);
    }
}

/* Elements 4s to 4s + 3 of the lane's quarter. */
QGEMM void factors(const lane_codes &c, int i, int s, const float (&zero)[ROWS][2], u32 (&f)[4])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            v[e] = code_at(c.word[i][h], 4 * s + e);
            if constexpr (HAS_ZEROS) v[e] -= zero[i][h];
        }
        f[h] = pack(v[0], v[1], x_t{});
        f[2 + h] = pack(v[2], v[3], x_t{});
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) quantized_sm80(const __grid_constant__ mica_qgemm_sm80_args all)
{
    overlap_wait();
    __shared__ __align__(16) char shared[STAGES * TILE_M * LINE];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, row = lane / 4, quarter = lane % 4;
    mica_qgemm_sm80_args a = all;
    const s64 down = (a.g.m - 1) / TILE_M + 1, tiles = ((a.g.n - 1) / TILE_N + 1) * down, steps = a.g.k / DEPTH;
    groups_walk<s64, TILE_M> walk;
    if constexpr (GROUPED) walk.begin(a.g.ends, 0, (a.g.n - 1) / TILE_N + 1);
    for (s64 tile = blockIdx.x; GROUPED || tile < tiles; tile += gridDim.x) {
        tile_at at = {tile % down * TILE_M, tile / down * TILE_N, true};
        if constexpr (GROUPED) at = tile_of_group<TILE_M, TILE_N>(walk, tile, a.g);
        if (!at.there) break;
        const s64 m0 = at.m, n = at.n + warp * (16 * ROWS) + row;
        float sum[ROWS][COLS][4] = {};
        lane_codes now, next;
        float scale[ROWS][2] = {}, zero[ROWS][2] = {};
#pragma unroll 1
        for (int s = 0; s < STAGES - 1; s++) {
            if (s < steps) fetch_x(a, m0, (s64)s * DEPTH, shared + s * (TILE_M * LINE));
            copies_commit();
        }
        fetch_codes(a, n, quarter * QUARTER, now);
        s64 end = 0, group = 0;
        int stage = 0;
        for (s64 step = 0; step < steps; step++) {
            const s64 ahead = step + STAGES - 1;
            copies_wait<STAGES - 2>();
            __syncthreads();
            if (ahead < steps) fetch_x(a, m0, ahead * DEPTH, shared + (stage + STAGES - 1) % STAGES * (TILE_M * LINE));
            copies_commit();
            if (step + 1 < steps) fetch_codes(a, n, (step + 1) * DEPTH + quarter * QUARTER, next);
            if (step * DEPTH >= end) {
#pragma unroll
                for (int i = 0; i < ROWS; i++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const s64 line = min(n + 16 * i + 8 * h, a.g.n - 1);
                        scale[i][h] = scale_of(a.g, line, group), zero[i][h] = zero_of(a.g, line, group);
                    }
                end += a.g.group, group++;
            }
            float part[ROWS][COLS][4] = {};
            const char *x = shared + stage * (TILE_M * LINE) + row * LINE + quarter * (QUARTER * 2);
#pragma unroll
            for (int s = 0; s < 4; s++) {
                u32 f[ROWS][4];
#pragma unroll
                for (int i = 0; i < ROWS; i++) factors(now, i, s, zero, f[i]);
#pragma unroll
                for (int j = 0; j < COLS; j++) {
                    u32 b[2];
                    load_vector<2>((const u32 *)(x + j * 8 * LINE + s * 8), b);
#pragma unroll
                    for (int i = 0; i < ROWS; i++) matrix_unit<x_t, x_t>::multiply(part[i][j], f[i], b);
                }
            }
#pragma unroll
            for (int i = 0; i < ROWS; i++)
#pragma unroll
                for (int j = 0; j < COLS; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) sum[i][j][e] += scale[i][e / 2] * part[i][j][e];
            now = next;
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        copies_wait<0>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLS; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const s64 line = n + 16 * i + 8 * (e / 2), m = m0 + 8 * j + 2 * quarter + e % 2;
                    if (line < a.g.n && m < a.g.m) put_result(a.g, m, line, sum[i][j][e]);
                }
    }
    if constexpr (GROUPED) clear_rows(a.g, walk.ended, THREADS);
}
