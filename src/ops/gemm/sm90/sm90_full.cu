/* SPDX-License-Identifier: Apache-2.0
 * The sums of sm90.cuh with what gemm_full_epilogue.cuh adds, through shared memory to c. With a gate a piece of them
 * has both columns of each pair: neighbours, or HALVES, where the first columns of a piece are gates and the
 * others what these are for. Prologue: that of sm90.cuh and of gemm_full_epilogue.cuh, and HALVES. */
#include "ops/gemm/sm90/sm90.cuh"
#include "ops/gemm/cuda/gemm_full.cuh"
#include "ops/gemm/sm90/sm90_full_args.h"

static_assert(SPLIT == 1 && !LIGHT, "whole sums, through shared memory");
static_assert(!(GATE && SWAPPED), "pairs lie across");
static_assert(GATE || !HALVES, "halves are of a gate");

constexpr int OUT_PIECE = GATE ? PIECE / 2 : PIECE; /* columns of c in a piece */
constexpr int OUT_TILE = GATE ? TILE_N / 2 : TILE_N;

/* The sums of VECTOR results from `column` of a piece on, in a line of it. */
__device__ __forceinline__ void read_sums(const sum_t *line, int column, sum_t (&sums)[VECTOR],
                                          sum_t (&partners)[VECTOR])
{
    if constexpr (GATE && !HALVES) {
        sum_t both[2 * VECTOR];
        load_vector<VECTOR>(line + 2 * column, both);
        load_vector<VECTOR>(line + 2 * column + VECTOR, both + VECTOR);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sums[i] = both[2 * i], partners[i] = both[2 * i + 1];
    } else {
        load_vector<VECTOR>(line + column, sums);
        if constexpr (GATE) load_vector<VECTOR>(line + OUT_PIECE + column, partners);
    }
}

/* Where a batch item's results, residual and aux begin. */
struct item {
    s64 c, r, x;
};

__device__ __forceinline__ item find_item(const gemm_full_args &x, const tile &t)
{
    item at = {};
#pragma unroll
    for (int i = 0; i < BATCH_RANK; i++) {
        at.c += t.batch[i] * x.gemm.shape.c_batch[i];
        at.r += t.batch[i] * x.gemm.shape.r_batch[i];
        at.x += t.batch[i] * x.extra.x_batch[i];
    }
    return at;
}

/* Four neighbours across; columns: those of c. */
__device__ __forceinline__ void finish_vector(const gemm_sm90_full_args &args, const item &at, s64 line, s64 across,
                                              s64 columns, const sum_t (&sums)[VECTOR],
                                              const sum_t (&partners)[VECTOR], maximum &amax)
{
    const gemm_full_args &x = args.x;
    const s64 step = args.product.c_n;
    c_t *c = (c_t *)x.gemm.c + at.c + line * args.product.c_m + across * step, v[VECTOR];
    const bool whole = args.product.whole && across + VECTOR <= columns;
    if (whole && x.gemm.beta != 0) load_vector<VECTOR>(c, v);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        if (across + i >= columns) continue;
        const element e = {SWAPPED ? across + i : line, SWAPPED ? line : across + i, at.r, at.x};
        v[i] = finish_extra(x, e, sums[i], partners[i], whole ? &v[i] : c + i * step, amax);
        if (!whole) c[i * step] = v[i];
    }
    if (whole) store_vector<VECTOR>(c, v);
}

__device__ __forceinline__ void finish_tile(const gemm_sm90_full_args &args, const tile &t,
                                            const sum_t (&sum)[WAVES][SUMS], sum_t *staging, int group, maximum &amax)
{
    constexpr int ACROSS = OUT_PIECE / VECTOR, ROWS = 128 / ACROSS; /* vectors of a line, lines at a time */
    const int thread = (int)threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const int column = thread % ACROSS * VECTOR, row = thread / ACROSS;
    const s64 columns = GATE ? args.product.across / 2 : args.product.across;
    const item at = find_item(args.x, t);
#pragma unroll 1
    for (int piece = 0; piece < WAVES * PIECES; piece++) {
        const int line = first_line(t, group) + piece / PIECES * 64;
        const int across = t.across / TILE_N * OUT_TILE + piece % PIECES * OUT_PIECE;
        if (line >= args.product.lines || across >= columns) continue;
        stage_piece(sum, staging, piece, warp, lane);
        named_barrier_sync(1 + group, 128);
#pragma unroll 1
        for (int y = row; y < 64; y += ROWS) {
            sum_t sums[VECTOR], partners[VECTOR] = {};
            read_sums(staging + y * PITCH, column, sums, partners);
            if (line + y < args.product.lines && across + column < columns)
                finish_vector(args, at, line + y, across + column, columns, sums, partners, amax);
        }
        named_barrier_sync(1 + group, 128);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm_sm90_full(const __grid_constant__ gemm_sm90_full_args args)
{
    load_and_consume(args.product, [&](const ring &r, unsigned char *, unsigned char *staging, int group, const buffer_barriers &) {
        maximum amax = {0};
        each_tile(args.product, r, group, [&](const sum_t(&sum)[WAVES][SUMS], const tile &t) {
            finish_tile(args, t, sum, (sum_t *)staging, group, amax);
        });
        if constexpr (AMAX) amax.store(args.x.amax);
    });
}
