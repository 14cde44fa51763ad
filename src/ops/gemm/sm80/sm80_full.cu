/* SPDX-License-Identifier: Apache-2.0
 * gemm_sm80 with what gemm_full_epilogue.cuh adds. With a gate a tile holds both columns of each pair: neighbours,
 * where they are so in b, else eight gates and the eight columns that they are for alternately, so that reads
 * of up to eight columns stay whole.
 *
 * Prologue: that of kernels/mma_tile.cuh and of gemm_full_epilogue.cuh, and HALVES (the pairs are halves of b). */
#include "kernels/mma_tile.cuh"
#include "kernels/overlap.cuh"
#include "ops/gemm/cuda/gemm_full.cuh"
#include "ops/gemm/sm80/sm80_full_args.h"

constexpr int TURNS = 8; /* columns of one kind that follow each other */
static_assert(!HALVES || B_K_FAST || B_VECTOR <= TURNS, "a piece of b is of one kind");
static_assert(C_VECTOR <= TURNS, "so is a piece of results");

/* The column of c that line l of b is for. */
__device__ __forceinline__ int column_of(int l) { return HALVES ? l / (2 * TURNS) * TURNS + l % TURNS : l; }

/* One operand's slice: lines `line_step` apart, of which half may lie `partner` further. */
template <typename O, typename T, bool TURNED> struct matrix {
    const T *first; /* of line 0 */
    s64 line_step, k_step, partner;
    int lines, depth; /* that exist; of TURNED ones: of either kind */
    bool aligned;

    __device__ __forceinline__ int locate(int, int line, int k, const T *&p) const
    {
        const int l = TURNED ? column_of(line) : line;
        p = first + l * line_step + k * k_step;
        if (TURNED && line / TURNS % 2) p += partner;
        const int there = O::K_FAST ? depth - k : lines - l;
        if (O::K_FAST ? l >= lines : k >= depth) return 0;
        return there < 0 ? 0 : there < O::VECTOR ? there : O::VECTOR;
    }
};

struct product_tile {
    static constexpr bool TABLES = false;
    const gemm_sm80_full_args &args;
    const a_t *first_a;
    const b_t *first_b;
    int rows, cols;

    __device__ __forceinline__ void prepare(s64) const {}
    __device__ __forceinline__ int depth(s64 slice) const
    {
        const s64 left = args.x.gemm.shape.k - slice * TILE_K;
        return left < TILE_K ? (int)left : TILE_K;
    }
    __device__ __forceinline__ matrix<operand_a, a_t, false> a(s64 slice) const
    {
        const gemm_shape &s = args.x.gemm.shape;
        return {first_a + slice * TILE_K * s.a_k, s.a_m, s.a_k, 0, rows, depth(slice), args.a_aligned != 0};
    }
    __device__ __forceinline__ matrix<operand_b, b_t, HALVES> b(s64 slice) const
    {
        const gemm_shape &s = args.x.gemm.shape;
        return {first_b + slice * TILE_K * s.b_k, s.b_n,       s.b_k,
                args.x.extra.partner,             HALVES ? cols / 2 : cols, depth(slice),
                args.b_aligned != 0};
    }
};

__device__ __forceinline__ int at_most(s64 n, int most) { return n < most ? (int)n : most; }

/* ---- results ---- */

constexpr int OUT_N = GATE ? TILE_N / 2 : TILE_N; /* columns of c in a tile */

/* C_VECTOR sums from where they were transposed, for column `col` of c's tile or the first of some. */
__device__ __forceinline__ void read_sums(const sum_t *turned, int slow, int fast, sum_t (&gates)[C_VECTOR],
                                          sum_t (&partners)[C_VECTOR])
{
    const int col = C_N_FAST ? fast : slow, at = HALVES ? col / TURNS * 2 * TURNS + col % TURNS : GATE ? 2 * col : col;
    if constexpr (C_N_FAST && GATE && !HALVES) {
#pragma unroll
        for (int i = 0; i < C_VECTOR; i++) {
            const sum_pair both = *(const sum_pair *)&turned[slow * TURN_PITCH + at + 2 * i];
            gates[i] = both.v[0];
            partners[i] = both.v[1];
        }
        return;
    }
    const sum_t *from = C_N_FAST ? turned + slow * TURN_PITCH + at : turned + at * TURN_PITCH + fast;
    load_vector<C_VECTOR>(from, gates);
    if constexpr (GATE) {
        constexpr int AWAY = HALVES ? TURNS : 1;
        load_vector<C_VECTOR>(from + AWAY * (C_N_FAST ? 1 : TURN_PITCH), partners);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gemm_sm80_full(const __grid_constant__ gemm_sm80_full_args args)
{
    overlap_wait();
    extern __shared__ __align__(128) char shared[];
    const gemm_shape &s = args.x.gemm.shape;
    const s64 plane = (s.m + TILE_M - 1) / TILE_M * ((s.n + TILE_N - 1) / TILE_N), tiles = plane * s.batches;
    maximum amax = {0};

    for (s64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const place p = tile_place(s, tile);
        const s64 aux = AUX ? aux_item(args.x, tile / plane) : 0, col0 = GATE ? p.col / 2 : p.col;
        product_tile source = {args, (const a_t *)args.x.gemm.a + p.a + p.row * s.a_m,
                               (const b_t *)args.x.gemm.b + p.b + (HALVES ? col0 : p.col) * s.b_n,
                               at_most(s.m - p.row, TILE_M), at_most(s.n - p.col, TILE_N)};
        sums sum = {};
        multiply_tile(sum, shared, source, (s.k + TILE_K - 1) / TILE_K);
        c_t *c = (c_t *)args.x.gemm.c + p.c + p.row * s.c_m + col0 * s.c_n;
        store_turned<OUT_N>(
            sum, shared, source.rows, GATE ? source.cols / 2 : source.cols, [](int, int, int) { return no_more{}; },
            [&](int row, int col, int count, const sum_t *turned, int slow, int fast, no_more) {
                const s64 along = C_N_FAST ? s.c_n : s.c_m;
                c_t *to = c + row * s.c_m + col * s.c_n, v[C_VECTOR];
                sum_t gates[C_VECTOR], partners[C_VECTOR] = {};
                read_sums(turned, slow, fast, gates, partners);
#pragma unroll
                for (int i = 0; i < C_VECTOR; i++) {
                    const element at = {p.row + row + (C_N_FAST ? 0 : i), col0 + col + (C_N_FAST ? i : 0), p.r, aux};
                    if (i < count) v[i] = finish_extra(args.x, at, gates[i], partners[i], to + i * along, amax);
                }
                if constexpr (C_VECTOR == 1)
                    *to = v[0];
                else
                    store_some<C_VECTOR>(to, v, count, args.c_aligned != 0);
            });
        __syncthreads();
    }
    if constexpr (AMAX) amax.store(args.x.amax);
}
