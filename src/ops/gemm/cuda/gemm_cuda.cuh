/* SPDX-License-Identifier: Apache-2.0
 * Tiles of a product with plain multiply-adds, for the kernels gemm_cuda and grouped_cuda: slices of a and
 * b in shared memory, each thread a MICRO_M x MICRO_N piece in registers; the next slice travels from
 * global memory to registers meanwhile. Sums run over k in order, so the bits do not depend on the grid.
 *
 * Prologue: TILE_M TILE_N TILE_K MICRO_M MICRO_N, A_K_FAST B_N_FAST C_N_FAST (neighbouring threads
 * read along K of a, along N of b; write along N of c), HAS_SCALE_A HAS_SCALE_B, BLOCKS (scales of blocks
 * of 128 stand inside the sum), types a_t b_t c_t, sum_t (of the products: double, float, s32, s64), held_t
 * (of slices in shared memory), out_t (of the epilogue: double or float), and the epilogue's. */
#pragma once
#include "ops/gemm/cuda/gemm_device.cuh"

constexpr int THREADS_M = TILE_M / MICRO_M, THREADS_N = TILE_N / MICRO_N;
constexpr int THREADS = THREADS_M * THREADS_N;
/* A thread's piece is made of squares of GROUP, spread evenly over the tile, so that neighbouring
 * threads read neighbouring vectors of shared memory. */
constexpr int GROUP_M = MICRO_M < 4 ? MICRO_M : 4, GROUP_N = MICRO_N < 4 ? MICRO_N : 4;
constexpr int PAD = 16 / (int)sizeof(held_t);
constexpr int PITCH_A = TILE_M + PAD, PITCH_B = TILE_N + PAD;
constexpr int LOADS_A = TILE_M * TILE_K / THREADS, LOADS_B = TILE_N * TILE_K / THREADS;
/* Two blocks hide each other's barriers; large pieces of 64-bit sums, or beside conversions from 8
 * bits, need the registers of both. */
constexpr int RESIDENT = MICRO_M * MICRO_N <= 4 || (sizeof(sum_t) == 4 && sizeof(a_t) > 1) ? 2 : 1;

static_assert(TILE_M % MICRO_M == 0 && TILE_N % MICRO_N == 0, "pieces fill the tile");
static_assert(MICRO_M % GROUP_M == 0 && MICRO_N % GROUP_N == 0, "groups fill the piece");
static_assert(TILE_M * TILE_K % THREADS == 0 && TILE_N * TILE_K % THREADS == 0, "loads are even");
static_assert(THREADS % TILE_K == 0 && THREADS % TILE_M == 0 && THREADS % TILE_N == 0,
              "a thread's loads differ in one index only");

template <int N> struct alignas(N * sizeof(held_t) < 16 ? N * sizeof(held_t) : 16) group {
    held_t v[N];
};

/* One thread's share of a slice: elements `step` apart along lines (or along k). */
template <typename T, int LINES, int LOADS, bool K_FAST> struct slice {
    static constexpr int EACH = K_FAST ? THREADS / TILE_K : THREADS / LINES;
    int line, k;

    __device__ explicit slice(int thread)
        : line(K_FAST ? thread / TILE_K : thread % LINES), k(K_FAST ? thread % TILE_K : thread / LINES)
    {
    }
    __device__ void read(T *regs, const T *p, s64 lines, s64 depth, s64 line_stride, s64 k_stride) const
    {
        p += line * line_stride + k * k_stride;
        const s64 step = EACH * (K_FAST ? line_stride : k_stride);
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            bool there = K_FAST ? k < depth && line + i * EACH < lines
                                : line < lines && k + i * EACH < depth;
            regs[i] = there ? *p : T{};
            p += step;
        }
    }
    template <int PITCH> __device__ void write(const T *regs, held_t *to) const
    {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int l = K_FAST ? line + i * EACH : line, d = K_FAST ? k : k + i * EACH;
            to[d * PITCH + l] = widen<held_t>(regs[i]);
        }
    }
};
typedef slice<a_t, TILE_M, LOADS_A, A_K_FAST> slice_a;
typedef slice<b_t, TILE_N, LOADS_B, !B_N_FAST> slice_b;

__device__ __forceinline__ void multiply(sum_t (&sum)[MICRO_M][MICRO_N], const held_t *a,
                                         const held_t *b, int thread_m, int thread_n)
{
#pragma unroll
    for (int k = 0; k < TILE_K; k++) {
        group<GROUP_M> x[MICRO_M / GROUP_M];
        group<GROUP_N> y[MICRO_N / GROUP_N];
#pragma unroll
        for (int g = 0; g < MICRO_M / GROUP_M; g++)
            x[g] = *(const group<GROUP_M> *)&a[k * PITCH_A + (g * THREADS_M + thread_m) * GROUP_M];
#pragma unroll
        for (int g = 0; g < MICRO_N / GROUP_N; g++)
            y[g] = *(const group<GROUP_N> *)&b[k * PITCH_B + (g * THREADS_N + thread_n) * GROUP_N];
#pragma unroll
        for (int i = 0; i < MICRO_M; i++)
#pragma unroll
            for (int j = 0; j < MICRO_N; j++)
                sum[i][j] += x[i / GROUP_M].v[i % GROUP_M] * y[j / GROUP_N].v[j % GROUP_N];
    }
}

/* ---- tiles ---- */

constexpr int SCALED = 128; /* elements of K, and columns of b, that share a scale */
static_assert(SCALED % TILE_K == 0, "a slice has one scale");

struct slices {
    alignas(16) held_t a[TILE_K * PITCH_A], b[TILE_K * PITCH_B];
};

/* A thread's place in the tile. */
struct worker {
    int m, n;
    slice_a load_a;
    slice_b load_b;

    __device__ explicit worker(int thread)
        : m(C_N_FAST ? thread / THREADS_N : thread % THREADS_M), n(C_N_FAST ? thread % THREADS_N : thread / THREADS_M),
          load_a(thread), load_b(thread)
    {
    }
    __device__ int row(int i) const { return (i / GROUP_M * THREADS_M + m) * GROUP_M + i % GROUP_M; }
    __device__ int col(int j) const { return (j / GROUP_N * THREADS_N + n) * GROUP_N + j % GROUP_N; }
};

/* What a tile is made of: its first elements, and how much of it there is. */
struct factors {
    const a_t *a;
    const b_t *b;
    s64 rows, cols, depth;
    s64 row, col; /* of the tile, for scales of blocks: */
    const float *scale_a, *scale_b;
};

/* sum += scale_a scale_b part, and part becomes 0. */
__device__ __forceinline__ void add_scaled(sum_t (&sum)[MICRO_M][MICRO_N], sum_t (&part)[MICRO_M][MICRO_N],
                                           const gemm_args &args, const factors &f, const worker &w, s64 block)
{
    sum_t fb[MICRO_N];
#pragma unroll
    for (int j = 0; j < MICRO_N; j++) {
        const s64 col = f.col + min((s64)w.col(j), f.cols - 1);
        fb[j] = f.scale_b[block * args.scale_b_k + col / SCALED * args.scale_b_n];
    }
#pragma unroll
    for (int i = 0; i < MICRO_M; i++) {
        const s64 row = f.row + min((s64)w.row(i), f.rows - 1);
        const sum_t fa = f.scale_a[row * args.scale_a_stride + block * args.scale_a_k];
#pragma unroll
        for (int j = 0; j < MICRO_N; j++) {
            sum[i][j] += fa * fb[j] * part[i][j];
            part[i][j] = 0;
        }
    }
}

/* All slices of a tile. */
__device__ __forceinline__ void sum_tile(sum_t (&sum)[MICRO_M][MICRO_N], const gemm_args &args, factors f,
                                         const worker &w, slices &held)
{
    const gemm_shape &s = args.shape;
    a_t next_a[LOADS_A];
    b_t next_b[LOADS_B];
    sum_t part[MICRO_M][MICRO_N] = {};
    w.load_a.read(next_a, f.a, f.rows, f.depth, s.a_m, s.a_k);
    w.load_b.read(next_b, f.b, f.cols, f.depth, s.b_n, s.b_k);
    s64 done = 0;
    for (s64 left = f.depth; left > 0; left -= TILE_K) {
        w.load_a.template write<PITCH_A>(next_a, held.a);
        w.load_b.template write<PITCH_B>(next_b, held.b);
        __syncthreads();
        if (left > TILE_K) {
            f.a += TILE_K * s.a_k;
            f.b += TILE_K * s.b_k;
            w.load_a.read(next_a, f.a, f.rows, left - TILE_K, s.a_m, s.a_k);
            w.load_b.read(next_b, f.b, f.cols, left - TILE_K, s.b_n, s.b_k);
        }
        if constexpr (BLOCKS) {
            multiply(part, held.a, held.b, w.m, w.n);
            done += TILE_K;
            if (done % SCALED == 0 || left <= TILE_K) add_scaled(sum, part, args, f, w, (done - 1) / SCALED);
        } else {
            multiply(sum, held.a, held.b, w.m, w.n);
        }
        __syncthreads();
    }
}
