/* SPDX-License-Identifier: Apache-2.0
 * First layers on matrix units: pixels x (taps of a few channels) x filters. A block holds the filters
 * in the order of the units' operands and takes tile after tile of the images; a warp computes 32 pixels
 * at a time by 32 GROUPS filters. Constants: those of conv_stem.cuh and the epilogue's; GROUPS;
 * HAS_RESIDUAL; BLOCKS (per multiprocessor, wanted); out_t. */
#include "cuda/device/epilogue.cuh"
#include "ops/conv/conv_stem.cuh"

constexpr int SLICES = (WORDS + 7) / 8;
constexpr int PIXELS = TILE_H * TILE_W, STRIPS = (PIXELS + 31) / 32;

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

typedef float sums[2][GROUPS][4][4];

__device__ __forceinline__ void multiply(sums &sum, const u32 *image, const u32 *filters, const int (&base)[2][2],
                                         const int (&offset)[SLICES][2])
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) {
        u32 x[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++)
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
                matrix_unit<in_t, in_t>::multiply(sum[0][group][unit], x[0], b);
                matrix_unit<in_t, in_t>::multiply(sum[1][group][unit], x[1], b);
            }
        }
    }
}

/* 8 neighbouring filters of a pixel. */
__device__ __forceinline__ void store(const conv_stem_args &a, out_t *out, s64 residual, int k, const float (&v)[8])
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
    if (count >= 8 && a.to_aligned) {
        store_vector<8>(out, r);
        return;
    }
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (e < count) out[e * a.to.c] = r[e];
}

__device__ __forceinline__ void store_strip(const conv_stem_args &a, const tile_place &p, int first, int strip, const sums &sum)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int pixel = strip * 32 + i * 8 + lane / 4, row = pixel / TILE_W, col = pixel % TILE_W;
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
            store(a, (out_t *)a.out + at, residual, k, v);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) conv_stem(const __grid_constant__ conv_stem_args a)
{
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
    for (unsigned tile = row; tile < (unsigned)a.tiles; tile += rows) {
        const tile_place p = place_of(a, tile);
        __syncthreads(); /* the tile before may still be read */
        copy_image(a, p, image);
        __syncthreads();
#pragma unroll 1
        for (int strip = warp; strip < STRIPS; strip += WARPS) {
            sums sum = {};
            int base[2][2];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int pixel = strip * 32 + i * 8 + lane / 4;
                if (pixel >= PIXELS) pixel = 0;
                base[i / 2][i % 2] = pixel / TILE_W * (STRIDE_Y * IMAGE_W) + pixel % TILE_W * STEP;
            }
            multiply(sum, image, filters, base, offset);
            store_strip(a, p, first, strip, sum);
        }
    }
}
