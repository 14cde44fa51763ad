/* SPDX-License-Identifier: Apache-2.0
 * gemm of f64 on the tensor cores of sm_80 and later: cp.async and mma.sync. A block computes one tile at a
 * time; slices of 16 of k travel through STAGES buffers in shared memory, and each warp multiplies a
 * WARP_M x WARP_N piece of the tile. Sums run over k in order, as those of multiply-adds do.
 *
 * An instruction takes 4 of k for 16 rows and 8 columns; before sm_90 that is two instructions of 8 rows.
 * (With 8 of k, sm_90 was up to 8 % slower: registers do not hold two such fragments beside the sums.) Lane
 * 4 g + t of a warp holds rows g and g + 8 of a and column g of b at k = t, and columns 2 t and 2 t + 1 of the
 * sums' rows g and g + 8.
 *
 * Prologue: TILE_M TILE_N WARP_M WARP_N STAGES RESIDENT SHARED; A_VECTOR A_K_FAST B_VECTOR B_K_FAST:
 * elements fetched at once, along k or along the lines; C_VECTOR C_N_FAST: stored at once, along the columns
 * or rows; and that of gemm_device.cuh. */
#include "kernels/mma.cuh"
#include "kernels/overlap.cuh"
#include "kernels/vector.cuh"
#include "ops/gemm/cuda/gemm_device.cuh"
#include "ops/gemm/sm80/sm80_args.h"

constexpr int TILE_K = 16;
constexpr int WARPS_N = TILE_N / WARP_N, WARPS = TILE_M / WARP_M * WARPS_N, THREADS = WARPS * 32;
constexpr int BLOCKS_M = WARP_M / 16, BLOCKS_N = WARP_N / 8;
constexpr int STEPS = TILE_K / 4; /* of k in a slice */
static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0, "banks repeat every 16 lines");

typedef double sums[BLOCKS_M][BLOCKS_N][4];

/* ---- slices ---- */

/* In shared memory a slice of an operand lies as rows of k for each line (K_FAST) or rows of lines for each k.
 * Half a warp reads 4 k of 4 lines at a time, 8 bytes each: four elements that follow each other, from four
 * rows. Groups of four are permuted by the row, so that those are all banks once. */
template <int LINES, int VECTOR_, bool K_FAST_> struct operand {
    static constexpr int VECTOR = VECTOR_, COUNT = LINES * TILE_K;
    static constexpr bool K_FAST = K_FAST_;
    static constexpr int FAST = (K_FAST ? TILE_K : LINES) / VECTOR, EACH = THREADS / FAST;
    static constexpr int PIECES = COUNT / VECTOR / THREADS;
    static_assert(THREADS % FAST == 0 && PIECES > 0, "a thread's pieces differ in one index only");

    /* Line and k of a thread's piece i. */
    static __device__ __forceinline__ int line(int i)
    {
        return K_FAST ? (int)threadIdx.x / FAST + i * EACH : (int)threadIdx.x % FAST * VECTOR;
    }
    static __device__ __forceinline__ int depth(int i)
    {
        return K_FAST ? (int)threadIdx.x % FAST * VECTOR : (int)threadIdx.x / FAST + i * EACH;
    }
    static __device__ __forceinline__ int at(int line, int k)
    {
        if constexpr (K_FAST)
            return line * TILE_K + ((k >> 2 ^ (line & 3)) << 2) + (k & 3);
        else
            return k * LINES + ((line >> 2 ^ (k & 3)) << 2) + (line & 3);
    }

    /* This lane's element of N blocks of 8 lines, from line `first` on (a multiple of 16), at k = 4 quad .... */
    template <int N>
    static __device__ __forceinline__ void read(double (&f)[N], const double *slice, int first, int quad)
    {
        const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < N; i++) {
            if constexpr (K_FAST) {
                f[i] = slice[(first + g) * TILE_K + (quad ^ g % 4) * 4 + t + i * 8 * TILE_K];
            } else {
                const int group = g / 4 ^ t ^ i % 2 * 2;
                f[i] = slice[(quad * 4 + t) * LINES + first + group * 4 + g % 4 + i / 2 * 16];
            }
        }
    }
};
typedef operand<TILE_M, A_VECTOR, A_K_FAST> operand_a;
typedef operand<TILE_N, B_VECTOR, B_K_FAST> operand_b;
constexpr int STAGE = operand_a::COUNT + operand_b::COUNT;

/* What a thread fetches of one slice after the other. */
template <typename O> struct source {
    const double *at; /* its first piece of the next slice; the others are `step` elements apart */
    s64 step, next;
    int lines; /* that exist from its first one on */

    __device__ __forceinline__ source(const double *p, s64 line_stride, s64 k_stride, int count)
        : at(p + O::line(0) * line_stride + O::depth(0) * k_stride),
          step(O::EACH * (O::K_FAST ? line_stride : k_stride)), next(TILE_K * k_stride), lines(count - O::line(0))
    {
    }
    /* ALIGNED: whole pieces may be copied at once, else element by element. depth: of the slice. */
    template <bool ALIGNED> __device__ __forceinline__ void fetch(double *slice, int depth)
    {
        constexpr int AT_ONCE = ALIGNED ? O::VECTOR : 1;
        const int terms = depth - O::depth(0), slow = O::K_FAST ? lines : terms, fast = O::K_FAST ? terms : lines;
        const int most = fast < 0 ? 0 : fast < O::VECTOR ? fast : O::VECTOR;
        const u32 to = shared_address(slice);
        const double *from = at;
#pragma unroll
        for (int i = 0; i < O::PIECES; i++, from += step) {
            const int count = i * O::EACH < slow ? most : 0;
#pragma unroll
            for (int j = 0; j < O::VECTOR; j += AT_ONCE) {
                const int there = AT_ONCE > 1 ? count : j < count;
                copy_async<AT_ONCE * 8>(to + (O::at(O::line(i), O::depth(i)) + j) * 8, from + j, there * 8);
            }
        }
        at += next;
    }
};

struct sources {
    source<operand_a> a;
    source<operand_b> b;
    s64 k; /* not yet fetched */

    /* A slice past the last one is zeros: no branch parts the copies from the products beside them. */
    template <bool ALIGNED> __device__ __forceinline__ void fetch(double *stage)
    {
        const int depth = k < TILE_K ? k < 0 ? 0 : (int)k : TILE_K;
        a.template fetch<ALIGNED>(stage, depth);
        b.template fetch<ALIGNED>(stage + operand_a::COUNT, depth);
        k -= TILE_K;
    }
};

/* ---- products ---- */

__device__ __forceinline__ int warp_row() { return (int)threadIdx.x / 32 / WARPS_N * WARP_M; }
__device__ __forceinline__ int warp_col() { return (int)threadIdx.x / 32 % WARPS_N * WARP_N; }

struct fragments {
    double a[2 * BLOCKS_M], b[BLOCKS_N];

    __device__ __forceinline__ void read(const double *stage, int step)
    {
        operand_a::read(a, stage, warp_row(), step);
        operand_b::read(b, stage + operand_a::COUNT, warp_col(), step);
    }
};

__device__ __forceinline__ void multiply_block(double (&c)[4], const fragments &f, int i, int j)
{
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(f.a[2 * i]), "d"(f.a[2 * i + 1]), "d"(f.b[j]));
#else
#pragma unroll
    for (int r = 0; r < 2; r++)
        asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+d"(c[2 * r]), "+d"(c[2 * r + 1])
            : "d"(f.a[2 * i + r]), "d"(f.b[j]));
#endif
}

__device__ __forceinline__ void multiply_step(sums &sum, const fragments &f)
{
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
        for (int j = 0; j < BLOCKS_N; j++) multiply_block(sum[i][j], f, i, j);
}

/* The next instruction's fragments are read ahead where registers are left beside the sums: not beside the
 * addresses of many small pieces. */
constexpr int HELD = A_VECTOR * B_VECTOR == 4 ? 2 : 1;
static_assert(STEPS % HELD == 0, "a slice begins with the first fragments");

/* A block enters with no copies in flight and leaves the same; shared memory is free after a barrier. */
template <bool ALIGNED>
__device__ __forceinline__ void multiply_tile(sums &sum, double *shared, sources &from, s64 slices)
{
    fragments held[HELD];
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) {
        from.fetch<ALIGNED>(shared + s * STAGE);
        copies_commit();
    }
    if constexpr (HELD == 2) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        held[0].read(shared, 0);
    }
    int use = 0, fill = STAGES - 1;
    for (s64 s = 0; s < slices; s++) {
        const int next = use + 1 == STAGES ? 0 : use + 1;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const int read = step + HELD - 1; /* of this slice, or the first of the next one */
            if (read % STEPS == 0) {
                /* The slice is there, and all warps have read the one before, whose buffer is filled next. */
                copies_wait<STAGES - 2>();
                __syncthreads();
            }
            held[read % HELD].read(shared + (read < STEPS ? use : next) * STAGE, read % STEPS);
            if (step == 0) {
                from.fetch<ALIGNED>(shared + fill * STAGE);
                copies_commit();
            }
            multiply_step(sum, held[step % HELD]);
        }
        fill = use;
        use = next;
    }
    copies_wait<0>();
}

/* ---- results: transposed in shared memory, so that they are stored along the lines of c ---- */

constexpr int PASS_M = TILE_M < 64 ? TILE_M : 64; /* rows that are transposed at a time */
/* Neighbouring rows of a fragment lie half of all banks apart, columns that are two apart a quarter. */
constexpr int TURN_PITCH = C_N_FAST ? TILE_N + 8 : PASS_M + 2;
constexpr int TURNED = (C_N_FAST ? PASS_M : TILE_N) * TURN_PITCH;
static_assert(STAGES * STAGE * 8 <= SHARED && TURNED * 8 <= SHARED, "the launcher's shared memory");

__device__ __forceinline__ void turn_block(const double (&s)[4], double *turned, int row, int col)
{
    if constexpr (C_N_FAST) {
        *(double2 *)&turned[row * TURN_PITCH + col] = make_double2(s[0], s[1]);
        *(double2 *)&turned[(row + 8) * TURN_PITCH + col] = make_double2(s[2], s[3]);
    } else {
        turned[col * TURN_PITCH + row] = s[0], turned[(col + 1) * TURN_PITCH + row] = s[1];
        turned[col * TURN_PITCH + row + 8] = s[2], turned[(col + 1) * TURN_PITCH + row + 8] = s[3];
    }
}

/* Calls store(row, col, count, sums) for C_VECTOR results along the lines of c, of which `count` exist.
 * Barriers separate it from what used the shared memory before. */
template <typename F>
__device__ __forceinline__ void store_tile(const sums &sum, double *turned, int rows, int cols, const F &store)
{
    const int lane = (int)threadIdx.x % 32;
    for (int first = 0; first < TILE_M; first += PASS_M) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BLOCKS_M; i++) {
            const int row = warp_row() + i * 16 - first;
            if (row < 0 || row >= PASS_M) continue;
#pragma unroll
            for (int j = 0; j < BLOCKS_N; j++)
                turn_block(sum[i][j], turned, row + lane / 4, warp_col() + j * 8 + lane % 4 * 2);
        }
        __syncthreads();
        constexpr int ALONG = (C_N_FAST ? TILE_N : PASS_M) / C_VECTOR;
        for (int v = (int)threadIdx.x; v < PASS_M * TILE_N / C_VECTOR; v += THREADS) {
            const int fast = v % ALONG * C_VECTOR, slow = v / ALONG;
            const int row = first + (C_N_FAST ? slow : fast), col = C_N_FAST ? fast : slow;
            if (row >= rows || col >= cols) continue;
            const int left = C_N_FAST ? cols - col : rows - row;
            double piece[C_VECTOR];
            load_vector<C_VECTOR>(turned + slow * TURN_PITCH + fast, piece);
            store(row, col, left < C_VECTOR ? left : C_VECTOR, piece);
        }
    }
}

__device__ __forceinline__ int at_most(s64 n, int most) { return n < most ? (int)n : most; }

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gemm_sm80_f64(const __grid_constant__ gemm_sm80_args args)
{
    overlap_wait();
    extern __shared__ __align__(128) double shared[];
    const gemm_shape &s = args.g.shape;
    const s64 tiles = (s.m + TILE_M - 1) / TILE_M * ((s.n + TILE_N - 1) / TILE_N) * s.batches;

    for (s64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const place p = tile_place(s, tile);
        const int rows = at_most(s.m - p.row, TILE_M), cols = at_most(s.n - p.col, TILE_N);
        sources from = {{(const double *)args.g.a + p.a + p.row * s.a_m, s.a_m, s.a_k, rows},
                        {(const double *)args.g.b + p.b + p.col * s.b_n, s.b_n, s.b_k, cols},
                        s.k};
        const s64 slices = (s.k + TILE_K - 1) / TILE_K;
        sums sum = {};
        if (A_VECTOR * B_VECTOR == 1 || (args.a_aligned && args.b_aligned))
            multiply_tile<true>(sum, shared, from, slices);
        else
            multiply_tile<false>(sum, shared, from, slices);
        c_t *c = (c_t *)args.g.c + p.c + p.row * s.c_m + p.col * s.c_n;
        store_tile(sum, shared, rows, cols, [&](int row, int col, int count, const double(&piece)[C_VECTOR]) {
            const s64 along = C_N_FAST ? s.c_n : s.c_m;
            c_t *to = c + row * s.c_m + col * s.c_n, v[C_VECTOR];
#pragma unroll
            for (int i = 0; i < C_VECTOR; i++) {
                const s64 m = p.row + row + (C_N_FAST ? 0 : i), n = p.col + col + (C_N_FAST ? i : 0);
                if (i < count) v[i] = finish(args.g, p, m, n, piece[i], to + i * along);
            }
            if constexpr (C_VECTOR == 1)
                *to = v[0];
            else
                store_some<C_VECTOR>(to, v, count, args.c_aligned != 0);
        });
        __syncthreads();
    }
}
