/* SPDX-License-Identifier: Apache-2.0
 * First layers on tensor cores: pixels x (taps of a few channels) x filters. A block holds the filters
 * in the order of the units' operands and takes tile after tile of the images; a warp computes 16 LINES
 * pixels at a time by 32 GROUPS filters. Constants: those of stem.cuh and stem_store.cuh; BLOCKS (per
 * multiprocessor, wanted). */
#include "kernels/overlap.cuh"
#include "ops/conv/stem/stem.cuh"

constexpr int PAIR = 1;
#include "ops/conv/stem/stem_store.cuh"

constexpr int SLICES = (WORDS + 7) / 8;
constexpr int PIXELS = TILE_H * TILE_W, STRIP = 16 * LINES, STRIPS = (PIXELS + STRIP - 1) / STRIP;
static_assert(!STATS || WARPS * 2 * 32 * GROUPS <= SLICES * GROUPS * 256, "sums fit where filters were");

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

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) conv_stem(const __grid_constant__ conv_stem_args a)
{
    overlap_wait();
    extern __shared__ __align__(16) u32 memory[];
    u32 *const filters = memory, *const image = memory + SLICES * GROUPS * 256;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const unsigned row = mica_fastdiv_of(a.chunks, blockIdx.x), rows = gridDim.x / a.chunks.divisor;
    const int first = (int)(blockIdx.x - row * a.chunks.divisor) * 32 * GROUPS;
    const bool plain = is_plain(a, first);
    copy_terms(a, first);
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
        const image_place at = {p.n * a.to.n, p.n * a.residual.n};
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
            if (plain)
                store_lines<true>(a, at, p, first, strip * STRIP, sum, stats);
            else
                store_lines<false>(a, at, p, first, strip * STRIP, sum, stats);
        }
    }
    if constexpr (STATS) store_statistics(a, row, first, (float *)filters, stats);
}
