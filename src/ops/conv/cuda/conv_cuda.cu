/* SPDX-License-Identifier: Apache-2.0
 * Convolution as a product of matrices that are never stored: rows are pixels and terms are (tap,
 * channel) pairs; in wgrad rows are pairs and terms are pixels; columns are the other channels.
 * Constants: those of conv_device.cuh; tile BM x BN x BK; TM x TN results per thread; LEFT_BY_TERM
 * and RIGHT_BY_TERM (neighbouring threads gather neighbouring terms, else rows or columns);
 * OUT_BY_ROW (neighbouring threads store neighbouring rows). Sums run over the terms in order. */
#include "kernels/overlap.cuh"
#include "ops/conv/cuda/conv_device.cuh"

constexpr int THREADS = BM / TM * (BN / TN);
static_assert(THREADS == 256, "the launcher's block");
static_assert(BM * BK % THREADS == 0 && BN * BK % THREADS == 0, "every thread gathers alike");

struct tile {
    acc_t left[BK][BM + 1], right[BK][BN + 1]; /* + 1: gathering along the terms hits all banks */
    pixel_entry pixels[WGRAD ? BK : BM];
    pair_entry pairs[WGRAD ? BM : BK];
};

__device__ __forceinline__ void make_rows(const mica_conv_args &a, tile &t, long long row0)
{
    for (int i = (int)threadIdx.x; i < BM; i += THREADS) {
        if constexpr (WGRAD)
            t.pairs[i] = make_pair_entry(a.g, row0 + i, a.rows);
        else
            t.pixels[i] = make_pixel(a.g, row0 + i, a.rows);
    }
}

__device__ __forceinline__ void make_terms(const mica_conv_args &a, tile &t, long long term0)
{
    for (int i = (int)threadIdx.x; i < BK; i += THREADS) {
        if constexpr (WGRAD)
            t.pixels[i] = make_pixel(a.g, term0 + i, a.terms);
        else
            t.pairs[i] = make_pair_entry(a.g, term0 + i, a.terms);
    }
}

__device__ __forceinline__ void gather_left(const mica_conv_args &a, tile &t, const left_t *left)
{
#pragma unroll
    for (int e = 0; e < BM * BK / THREADS; e++) {
        int i = (int)threadIdx.x + e * THREADS;
        int z = LEFT_BY_TERM ? i % BK : i / BM, r = LEFT_BY_TERM ? i / BK : i % BM;
        t.left[z][r] = image_value(a.g, left, t.pixels[WGRAD ? z : r], t.pairs[WGRAD ? r : z]);
    }
}

__device__ __forceinline__ void gather_right(const mica_conv_args &a, tile &t, const right_t *right, long long col0)
{
    const long long step = WGRAD ? a.g.b.c : DGRAD ? a.g.f.c : a.g.f.n;
#pragma unroll
    for (int e = 0; e < BN * BK / THREADS; e++) {
        int i = (int)threadIdx.x + e * THREADS;
        int z = RIGHT_BY_TERM ? i % BK : i / BN, c = RIGHT_BY_TERM ? i / BK : i % BN;
        bool exists = col0 + c < a.cols && (WGRAD ? t.pixels[WGRAD ? z : 0].exists : t.pairs[WGRAD ? 0 : z].exists);
        long long at = WGRAD ? t.pixels[WGRAD ? z : 0].place : t.pairs[WGRAD ? 0 : z].filter;
        t.right[z][c] = exists ? widen<acc_t>(right[at + (col0 + c) * step]) : (acc_t)0;
    }
}

__device__ __forceinline__ void multiply(const tile &t, int row, int col, acc_t sum[TM][TN])
{
#pragma unroll 8
    for (int z = 0; z < BK; z++) {
        acc_t p[TM], q[TN];
#pragma unroll
        for (int i = 0; i < TM; i++) p[i] = t.left[z][row + i * (BM / TM)];
#pragma unroll
        for (int j = 0; j < TN; j++) q[j] = t.right[z][col + j * (BN / TN)];
#pragma unroll
        for (int i = 0; i < TM; i++)
#pragma unroll
            for (int j = 0; j < TN; j++) sum[i][j] += p[i] * q[j];
    }
}

__device__ __forceinline__ void store(const mica_conv_args &a, const tile &t, long long base, long long group,
                                      long long row0, long long col0, int row, int col, const acc_t sum[TM][TN])
{
    base += group * (WGRAD ? a.g.f.g : counted_strides(a.g).g);
    const long long step = WGRAD ? a.g.f.n : counted_strides(a.g).c;
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++) {
            int r = row + i * (BM / TM);
            long long c = col0 + col + j * (BN / TN), residual = 0;
            if (row0 + r >= a.rows || c >= a.cols) continue;
            long long at = base + c * step + (WGRAD ? t.pairs[WGRAD ? r : 0].filter : t.pixels[WGRAD ? 0 : r].place);
            if constexpr (!WGRAD) residual = t.pixels[r].residual + group * a.g.residual.g + c * a.g.residual.c;
            finish(a, at, group * a.cols + c, residual, sum[i][j]);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) conv(const mica_conv_args a)
{
    overlap_wait();
    __shared__ tile t;
    const int row = (int)threadIdx.x % (BM / TM), col = (int)threadIdx.x / (BM / TM);
    const int my_row = OUT_BY_ROW ? row : (int)threadIdx.x / (BN / TN);
    const int my_col = OUT_BY_ROW ? col : (int)threadIdx.x % (BN / TN);
    for (long long index = blockIdx.x; index < a.tiles; index += gridDim.x) {
        long long rest = divide(index, a.col_tiles), col0 = (index - rest * a.col_tiles) * BN;
        long long group = divide(rest, a.row_tiles), row0 = (rest - group * a.row_tiles) * BM, base = 0;
        long long first = 0, last = a.terms;
        if constexpr (WGRAD) {
            const long long split = divide(group, a.g.groups);
            group -= split * a.g.groups;
            first = split * a.terms_each;
            last = last < first + a.terms_each ? last : first + a.terms_each;
            base += split * a.part;
        }
        const left_t *left = (const left_t *)a.left + group * read_strides(a.g).g;
        const right_t *right = (const right_t *)a.right + group * (WGRAD ? a.g.b.g : a.g.f.g);
        acc_t sum[TM][TN] = {};
        __syncthreads(); /* the tile before may still be read */
        make_rows(a, t, row0);
        for (long long term0 = first; term0 < last; term0 += BK) {
            make_terms(a, t, term0);
            __syncthreads();
            gather_left(a, t, left);
            gather_right(a, t, right, col0);
            __syncthreads();
            multiply(t, my_row, my_col, sum);
        }
        __syncthreads(); /* rows, where there are no terms */
        store(a, t, base, group, row0, col0, my_row, my_col, sum);
    }
}
