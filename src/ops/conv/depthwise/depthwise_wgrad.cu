/* SPDX-License-Identifier: Apache-2.0
 * The gradient of a depthwise filter: a block takes every `parts`th tile of all images, two in shared
 * memory at a time, and sums up ROWS rows of taps of its channels in registers; its threads' sums are
 * added in their order, those of the parts by conv_parts.cu. Constants: those of depthwise.cuh
 * (TILE and THREAD are of b, the halo of a; ROWS of one block), BLOCKS (per multiprocessor); out_t. */
#include "kernels/overlap.cuh"
#include "ops/conv/depthwise/depthwise.cuh"

constexpr int HALO_ELEMENTS = (HALO_H * HALO_W * PITCH + 7) / 8 * 8;
constexpr int SLOT_ELEMENTS = HALO_ELEMENTS + (TILE_H * TILE_W * PITCH + 7) / 8 * 8;

typedef float sums[ROWS][COLS][2];

struct place {
    int channel, j, depth_tap, row; /* row: the first row of taps */
    unsigned part;
};

__device__ __forceinline__ place block_place(const conv_depthwise_args &a)
{
    unsigned i = blockIdx.x, rest;
    place p;
    rest = mica_fastdiv_of(a.channel_blocks, i), p.channel = (int)(i - rest * a.channel_blocks.divisor) * CHANNELS;
    i = rest, rest = mica_fastdiv_of(a.multipliers, i), p.j = (int)(i - rest * a.multipliers.divisor);
    i = rest, rest = mica_fastdiv_of(a.taps_deep, i), p.depth_tap = (int)(i - rest * a.taps_deep.divisor);
    i = rest, rest = mica_fastdiv_of(a.row_blocks, i), p.row = (int)(i - rest * a.row_blocks.divisor) * ROWS;
    p.part = rest;
    return p;
}

__device__ __forceinline__ void copy_tile(const conv_depthwise_args &a, const place &p, unsigned tile, in_t *slot)
{
    unsigned i = tile, rest;
    rest = mica_fastdiv_of(a.across, i);
    const int x = (int)(i - rest * a.across.divisor);
    i = rest, rest = mica_fastdiv_of(a.down, i);
    const int y = (int)(i - rest * a.down.divisor);
    i = rest, rest = mica_fastdiv_of(a.depth, i);
    const int z = (int)(i - rest * a.depth.divisor);
    const s64 n = rest;
    const int z_from = z * a.depth_stride - a.depth_pad + p.depth_tap * a.depth_dilation;
    const bool exists = (unsigned)z_from < (unsigned)a.size_from[0];
    const int channels = a.channels - p.channel;
    const in_t *image = (const in_t *)a.image + n * a.from.n + (exists ? z_from * a.from.s[0] : 0) + p.channel * a.from.c;
    copy_tile_of<HALO_H, HALO_W>(slot, plane_of(image, a.from, a.size_from, channels, a.from_aligned), exists,
                                 y * TILE_H * STRIDE_Y + a.origin[0] + p.row * DILATION_Y,
                                 x * TILE_W * STRIDE_X + a.origin[1]);
    const in_t *other = (const in_t *)a.filter + n * a.to.n + z * a.to.s[0] + p.channel * a.to.c + p.j * a.to.j;
    copy_tile_of<TILE_H, TILE_W>(slot + HALO_ELEMENTS, plane_of(other, a.to, a.size_to, channels, a.to_aligned), exists,
                                 y * TILE_H, x * TILE_W);
}

__device__ __forceinline__ void add_strip(sums &sum, const in_t *slot, int strip, int pair)
{
    constexpr int LINES = halo_size(THREAD_H, ROWS, STRIDE_Y, DILATION_Y);
    const int row0 = strip / STRIPS_X * THREAD_H, col0 = strip % STRIPS_X * THREAD_W;
    const in_t *halo = slot + (row0 * STRIDE_Y * HALO_W + col0 * STRIDE_X) * PITCH + 2 * pair;
    const in_t *other = slot + HALO_ELEMENTS + (row0 * TILE_W + col0) * PITCH + 2 * pair;
    float factor[THREAD_H][THREAD_W][2];
#pragma unroll
    for (int i = 0; i < THREAD_H; i++)
#pragma unroll
        for (int k = 0; k < THREAD_W; k++) load_pair(other + (i * TILE_W + k) * PITCH, factor[i][k]);
#pragma unroll
    for (int line = 0; line < LINES; line++) {
        float window[WINDOW][2];
#pragma unroll
        for (int i = 0; i < WINDOW; i++) load_pair(halo + (line * HALO_W + i) * PITCH, window[i]);
#pragma unroll
        for (int o = 0; o < THREAD_H; o++)
#pragma unroll
            for (int t = 0; t < ROWS; t++) {
                if (halo_of(o, t, ROWS, STRIDE_Y, DILATION_Y) != line) continue;
#pragma unroll
                for (int s = 0; s < COLS; s++)
#pragma unroll
                    for (int k = 0; k < THREAD_W; k++) {
                        const int at = halo_of(k, s, COLS, STRIDE_X, DILATION_X);
                        sum[t][s][0] += window[at][0] * factor[o][k][0];
                        sum[t][s][1] += window[at][1] * factor[o][k][1];
                    }
            }
    }
}

__device__ __forceinline__ void store_sum(const conv_depthwise_args &a, const place &p, int row, int col, int c, float sum)
{
    if (p.channel + c >= a.channels || p.row + row >= a.filter_rows) return;
    out_t *out = (out_t *)a.out + p.part * a.part + (p.channel + c) * a.taps.c + p.j * a.taps.j +
                 p.depth_tap * a.taps.s[0] + (p.row + row) * a.taps.s[1] + col * a.taps.s[2];
    float v = sum * (float)a.alpha;
    if (a.beta != 0) v += (float)a.beta * widen<float>(*out);
    *out = narrow<out_t>(v);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv_depthwise_wgrad(const __grid_constant__ conv_depthwise_args a)
{
    overlap_wait();
    extern __shared__ __align__(16) unsigned char memory[];
    in_t *const slots = (in_t *)memory;
    const int pair = (int)threadIdx.x % PAIRS, group = (int)threadIdx.x / PAIRS;
    const place p = block_place(a);
    sums sum = {};
    if (p.part < a.tiles) copy_tile(a, p, p.part, slots);
    copies_commit();
    int slot = 0;
    for (unsigned tile = p.part; tile < a.tiles; tile += a.parts) {
        if (tile + a.parts < a.tiles) copy_tile(a, p, tile + a.parts, slots + (slot ^ 1) * SLOT_ELEMENTS);
        copies_commit();
        copies_wait<1>();
        __syncthreads();
#pragma unroll 1
        for (int strip = group; strip < STRIPS; strip += GROUPS) add_strip(sum, slots + slot * SLOT_ELEMENTS, strip, pair);
        __syncthreads(); /* this slot is filled next */
        slot ^= 1;
    }
    float *const each = (float *)memory; /* [group][col][channel] of one row */
    copies_wait<0>();
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        __syncthreads();
#pragma unroll
        for (int s = 0; s < COLS; s++) {
            each[(group * COLS + s) * CHANNELS + 2 * pair] = sum[row][s][0];
            each[(group * COLS + s) * CHANNELS + 2 * pair + 1] = sum[row][s][1];
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < COLS * CHANNELS; i += THREADS) {
            float v = 0;
            for (int g = 0; g < GROUPS; g++) v += each[g * COLS * CHANNELS + i];
            store_sum(a, p, row, i / CHANNELS, i % CHANNELS, v);
        }
    }
}
