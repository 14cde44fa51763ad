/* SPDX-License-Identifier: Apache-2.0
 * gemm with plain multiply-adds: a block computes tiles of c from slices of a and b in shared
 * memory, each thread a MICRO_M x MICRO_N piece in registers; the next slice travels from global
 * memory to registers meanwhile. Sums run over k in order, so the bits do not depend on the grid.
 *
 * Prologue: TILE_M TILE_N TILE_K MICRO_M MICRO_N, A_K_FAST B_N_FAST C_N_FAST (neighbouring threads
 * read along K of a, along N of b; write along N of c), HAS_SCALE_A HAS_SCALE_B, types a_t b_t c_t,
 * sum_t (of the products: double, float, s32, s64), held_t (of slices in shared memory), out_t (of what
 * follows the sum: double or float), and the epilogue's. */
#include "ops/gemm/gemm_device.cuh"

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

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gemm_cuda(const __grid_constant__ gemm_args args)
{
    const gemm_shape &s = args.shape;
    __shared__ alignas(16) held_t held_a[TILE_K * PITCH_A], held_b[TILE_K * PITCH_B];
    const int thread = (int)threadIdx.x;
    const int thread_m = C_N_FAST ? thread / THREADS_N : thread % THREADS_M;
    const int thread_n = C_N_FAST ? thread % THREADS_N : thread / THREADS_M;
    const slice_a load_a(thread);
    const slice_b load_b(thread);
    const s64 tiles = (s.m + TILE_M - 1) / TILE_M * ((s.n + TILE_N - 1) / TILE_N) * s.batches;

    for (s64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const place p = tile_place(s, tile);
        const s64 rows = s.m - p.row, cols = s.n - p.col;
        const a_t *a = (const a_t *)args.a + p.a + p.row * s.a_m;
        const b_t *b = (const b_t *)args.b + p.b + p.col * s.b_n;
        sum_t sum[MICRO_M][MICRO_N] = {};
        a_t next_a[LOADS_A];
        b_t next_b[LOADS_B];
        load_a.read(next_a, a, rows, s.k, s.a_m, s.a_k);
        load_b.read(next_b, b, cols, s.k, s.b_n, s.b_k);
        for (s64 left = s.k; left > 0; left -= TILE_K) {
            load_a.template write<PITCH_A>(next_a, held_a);
            load_b.template write<PITCH_B>(next_b, held_b);
            __syncthreads();
            if (left > TILE_K) {
                a += TILE_K * s.a_k;
                b += TILE_K * s.b_k;
                load_a.read(next_a, a, rows, left - TILE_K, s.a_m, s.a_k);
                load_b.read(next_b, b, cols, left - TILE_K, s.b_n, s.b_k);
            }
            multiply(sum, held_a, held_b, thread_m, thread_n);
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < MICRO_M; i++) {
            const int row = (i / GROUP_M * THREADS_M + thread_m) * GROUP_M + i % GROUP_M;
#pragma unroll
            for (int j = 0; j < MICRO_N; j++) {
                const int col = (j / GROUP_N * THREADS_N + thread_n) * GROUP_N + j % GROUP_N;
                if (row >= rows || col >= cols) continue;
                const s64 r = p.row + row, n = p.col + col;
                c_t *c = (c_t *)args.c + p.c + r * s.c_m + n * s.c_n;
                *c = finish(args, p, r, n, sum[i][j], c);
            }
        }
    }
}
