/* SPDX-License-Identifier: Apache-2.0
 * First layers on matrix units: pixels x (taps of a few channels) x filters. A block holds the filters
 * in the order of the units' operands and takes tile after tile of the images; a warp computes 16 LINES
 * pixels at a time by 32 GROUPS filters. Constants: those of conv_stem.cuh and the epilogue's; GROUPS; LINES;
 * HAS_RESIDUAL; STATS (sums and sums of squares by filter are formed of what is stored, for
 * conv_stats_sum.cu); BLOCKS (per multiprocessor, wanted); out_t. */
#include "cuda/device/epilogue.cuh"
#include "cuda/device/overlap.cuh"
#include "ops/conv/conv_halve.cuh"
#include "ops/conv/conv_stem.cuh"

constexpr int SLICES = (WORDS + 7) / 8;
constexpr int PIXELS = TILE_H * TILE_W, STRIP = 16 * LINES, STRIPS = (PIXELS + STRIP - 1) / STRIP;

/* Columns of the units are filters in such an order that a thread's sums of four units are of 8
 * neighbouring filters. */
__device__ __forceinline__ int filter_of(int group, int unit, int column)
{
    return 32 * group + 8 * (column / 2) + 2 * unit + column % 2;
}

/* [slice][group][units 0, 1 or 2, 3][lane][unit][two words of taps] */
__device__ __forceinline__ void copy_filters(const conv_stem_args &a, int first, u32 *to)
{
    for (int i = (int)threadIdx.x; i < SLICES * GROUPS * 256; i += THREADS) {
        const int lane = i / 4 % 32, unit = i / 128 % 2 * 2 + i / 2 % 2, group = i / 256 % GROUPS;
        const int p = i / (256 * GROUPS) * 8 + lane % 4 + i % 2 * 4, k = first + filter_of(group, unit, lane / 4);
        in_t v[2] = {};
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int at = p % RUN * 2 + e, s = at / CHANNELS, c = at % CHANNELS;
            if (p < WORDS && s < COLS && c < REAL && k < a.filters)
                v[e] = ((const in_t *)a.other)[k * a.filter_n + c * a.filter_c + p / RUN * a.filter_s[0] + s * a.filter_s[1]];
        }
        memcpy(&to[i], v, 4);
    }
}

typedef float sums[LINES][GROUPS][4][4];

__device__ __forceinline__ void multiply(sums &sum, const u32 *image, const u32 *filters, const int (&base)[LINES][2],
                                         const int (&offset)[SLICES][2])
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) {
        u32 x[LINES][4];
#pragma unroll
        for (int i = 0; i < LINES; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) x[i][e] = image[base[i][e % 2] + offset[slice][e / 2]];
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            u32 w[8];
            const u32 *from = filters + (slice * GROUPS + group) * 256 + lane * 4;
            load_vector<4>(from, w);
            load_vector<4>(from + 128, w + 4);
#pragma unroll
            for (int unit = 0; unit < 4; unit++) {
                const u32 b[2] = {w[2 * unit], w[2 * unit + 1]};
#pragma unroll
                for (int i = 0; i < LINES; i++) matrix_unit<in_t, in_t>::multiply(sum[i][group][unit], x[i], b);
            }
        }
    }
}

/* ---- sums by filter ---- */

/* Of 8 filters, as a thread meets them. */
struct column_sums {
    float sum[8], square[8];
};

/* Of a warp's pixels, shared out among its lanes: 2 of each 32 filters. */
struct statistics {
    float v[GROUPS][2];
};

__device__ __forceinline__ void add_stored(column_sums &s, const out_t (&stored)[8])
{
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const float f = widen<float>(stored[e]);
        s.sum[e] += f;
        s.square[e] = fmaf(f, f, s.square[e]);
    }
}

/* The sums are kept by lanes of the lower half of a warp, the squares by the others. */
__device__ __forceinline__ void add_pixels(float (&to)[2], const column_sums &s)
{
    float v[16];
    memcpy(v, s.sum, sizeof s.sum);
    memcpy(v + 8, s.square, sizeof s.square);
    halve<16>(v, 16);
    halve<8>(v, 8);
    halve<4>(v, 4);
#pragma unroll
    for (int e = 0; e < 2; e++) to[e] += v[e];
}

/* After the block's last tile; shared: 2 x 32 GROUPS of each warp, where the filters were. */
__device__ __forceinline__ void store_statistics(const conv_stem_args &a, unsigned row, int first, float *shared,
                                                 const statistics &s)
{
    constexpr int FILTERS = 32 * GROUPS;
    static_assert(WARPS * 2 * FILTERS <= SLICES * GROUPS * 256, "it fits");
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int filter = lane % 4 * 8 + lane / 8 % 2 * 4 + lane / 4 % 2 * 2;
    __syncthreads(); /* the filters may still be read */
#pragma unroll
    for (int group = 0; group < GROUPS; group++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            shared[(2 * warp + lane / 16) * FILTERS + 32 * group + filter + e] = s.v[group][e];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < 2 * FILTERS; i += THREADS) {
        const int k = first + i % FILTERS;
        double sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += (double)shared[w * 2 * FILTERS + i];
        if (k < a.filters) a.sums[(2LL * row + i / FILTERS) * a.filters + k] = sum;
    }
}

/* ---- results ---- */

/* 8 neighbouring filters of a pixel. */
__device__ __forceinline__ void store(const conv_stem_args &a, out_t *out, s64 residual, int k, const float (&v)[8],
                                      column_sums &own)
{
    const int count = a.filters - k;
    out_t r[8];
    if (count <= 0) return;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        float f = v[e] * (float)a.alpha;
        const bool exists = e < count;
        if (a.beta != 0 && exists) f += (float)a.beta * widen<float>(out[e * a.to.c]);
        if (exists) f = epilogue(a.epilogue, f, k + e, residual + (HAS_RESIDUAL ? e * a.residual.c : 0));
        r[e] = narrow<out_t>(f);
    }
    if constexpr (STATS) add_stored(own, r);
    if (count >= 8 && a.to_aligned) {
        store_vector<8>(out, r);
        return;
    }
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (e < count) out[e * a.to.c] = r[e];
}

__device__ __forceinline__ void store_strip(const conv_stem_args &a, const tile_place &p, int first, int strip,
                                            const sums &sum, statistics &stats)
{
    const int lane = (int)threadIdx.x % 32;
    column_sums own[GROUPS];
    if constexpr (STATS) memset(own, 0, sizeof own);
#pragma unroll
    for (int i = 0; i < 2 * LINES; i++) {
        const int pixel = strip * STRIP + i * 8 + lane / 4, row = pixel / TILE_W, col = pixel % TILE_W;
        if (row >= TILE_H || p.y + row >= a.size_to[0] || p.x + col >= a.size_to[1]) continue;
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            const int k = first + 32 * group + lane % 4 * 8;
            const s64 at = p.n * a.to.n + (p.y + row) * a.to.s[0] + (p.x + col) * a.to.s[1] + k * a.to.c;
            s64 residual = 0;
            if constexpr (HAS_RESIDUAL)
                residual = p.n * a.residual.n + (p.y + row) * a.residual.s[0] + (p.x + col) * a.residual.s[1] + k * a.residual.c;
            float v[8];
#pragma unroll
            for (int e = 0; e < 8; e++) v[e] = sum[i / 2][group][e / 2][i % 2 * 2 + e % 2];
            store(a, (out_t *)a.out + at, residual, k, v, own[group]);
        }
    }
    if constexpr (STATS)
#pragma unroll
        for (int group = 0; group < GROUPS; group++) add_pixels(stats.v[group], own[group]);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) conv_stem(const __grid_constant__ conv_stem_args a)
{
    overlap_wait();
    extern __shared__ __align__(16) u32 memory[];
    u32 *const filters = memory, *const image = memory + SLICES * GROUPS * 256;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const unsigned row = mica_fastdiv_of(a.chunks, blockIdx.x), rows = gridDim.x / a.chunks.divisor;
    const int first = (int)(blockIdx.x - row * a.chunks.divisor) * 32 * GROUPS;
    copy_filters(a, first, filters);
    int offset[SLICES][2];
#pragma unroll
    for (int i = 0; i < SLICES; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) offset[i][e] = word_offset(i * 8 + lane % 4 + e * 4);
    statistics stats;
    if constexpr (STATS) memset(&stats, 0, sizeof stats);
    for (unsigned tile = row; tile < (unsigned)a.tiles; tile += rows) {
        const tile_place p = place_of(a, tile);
        __syncthreads(); /* the tile before may still be read */
        copy_image(a, p, image);
        __syncthreads();
#pragma unroll 1
        for (int strip = warp; strip < STRIPS; strip += WARPS) {
            sums sum = {};
            int base[LINES][2];
#pragma unroll
            for (int i = 0; i < 2 * LINES; i++) {
                int pixel = strip * STRIP + i * 8 + lane / 4;
                if (pixel >= PIXELS) pixel = 0;
                base[i / 2][i % 2] = pixel / TILE_W * (STRIDE_Y * IMAGE_W) + pixel % TILE_W * STEP;
            }
            multiply(sum, image, filters, base, offset);
            store_strip(a, p, first, strip, sum, stats);
        }
    }
    if constexpr (STATS) store_statistics(a, row, first, (float *)filters, stats);
}
