/* SPDX-License-Identifier: Apache-2.0
 * Convolution in small groups and its gradient with respect to the image, on tensor cores: a warp computes
 * 32 pixels at a time by 16 channels, whose filters stay in its registers; groups of up to 8 channels
 * take two taps per product, so that half of it or more is of use. A block takes tile after tile, two in
 * shared memory at a time. Constants: those of grouped.cuh and the epilogue's; HAS_RESIDUAL; BLOCKS
 * (per multiprocessor, wanted); out_t. */
#include "kernels/epilogue.cuh"
#include "kernels/overlap.cuh"
#include "ops/conv/grouped/grouped.cuh"

constexpr int THREADS = 128 * WARPS_P, STRIPS = (PIXELS + 31) / 32;
/* Channels that a column of the units reads of a tap; the units' 16 terms are of one tap or of two. */
constexpr int SPAN = WIDTH < 8 ? 8 : WIDTH;
constexpr int SLICES = SPAN == 8 ? (TAPS + 1) / 2 : TAPS * SPAN / 16;
constexpr bool SHARED_TERMS = SPAN > 8; /* by both units of 8 columns */
constexpr bool HOLES = DGRAD && STRIDE_Y * STRIDE_X > 1;
constexpr int SLOT = HALO_H * HALO_W * PITCH;

/* The tap of terms 8 half.. of a slice, and their first channel, counted from the column's first. */
__device__ __forceinline__ constexpr int tap_of(int slice, int half)
{
    return SPAN == 8 ? 2 * slice + half : slice / (SPAN / 16);
}
__device__ __forceinline__ constexpr int channel_of(int slice, int half)
{
    return SPAN == 8 ? 0 : slice % (SPAN / 16) * 16 + 8 * half;
}

typedef u32 filters[SLICES][2][2];
typedef float sums[2][2][4]; /* [16 pixels][8 channels] */

/* first: the first of this warp's 16 channels. */
__device__ __forceinline__ void load_filters(const conv_grouped_args &a, filters &w, int first)
{
    const int lane = (int)threadIdx.x % 32;
    const in_t *filter = (const in_t *)a.other;
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int unit = i / 2, half = i % 2, tap = tap_of(slice, half);
            const int to = first + unit * 8 + lane / 4;
            in_t v[2] = {};
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int from = (first + unit * 8) / SPAN * SPAN + channel_of(slice, half) + lane % 4 * 2 + e;
                if (tap < TAPS && to < a.channels && from / WIDTH == to / WIDTH)
                    v[e] = filter[to / WIDTH * a.filter_g + to % WIDTH * a.filter_to + from % WIDTH * a.filter_from +
                                  tap / COLS * a.filter_s[0] + tap % COLS * a.filter_s[1]];
            }
            memcpy(&w[slice][unit][half], v, 4);
        }
}

/* Byte offset in the halo of what tap `tap` of pixel (row, col) reads; of the zeros behind the halo where
 * dgrad finds nothing. */
__device__ __forceinline__ u32 tap_address(int row, int col, int tap)
{
    const int t = tap < TAPS ? tap : 0;
    const int y = halo_of(row, t / COLS, ROWS, STRIDE_Y, DILATION_Y), x = halo_of(col, t % COLS, COLS, STRIDE_X, DILATION_X);
    return HOLES && (y < 0 || x < 0) ? (u32)(SLOT * (int)sizeof(in_t)) : (u32)((y * HALO_W + x) * ROW_BYTES);
}

__device__ __forceinline__ void multiply(sums &sum, u32 halo, const filters &w, int strip, int first)
{
    const int lane = (int)threadIdx.x % 32, half = lane / 16;
    int row[2], col[2];
    u32 base[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int pixel = strip * 32 + i * 16 + lane % 16;
        if (pixel >= PIXELS) pixel = 0;
        row[i] = pixel / TILE_W, col[i] = pixel % TILE_W;
        base[i] = halo + (u32)((strip_start(row[i], STRIDE_Y) * HALO_W + strip_start(col[i], STRIDE_X)) * ROW_BYTES);
    }
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int tap = SPAN == 8 && half ? tap_of(slice, 1) : tap_of(slice, 0);
            u32 at;
            if constexpr (HOLES)
                at = halo + tap_address(row[i], col[i], tap);
            else
                at = base[i] + tap_address(0, 0, tap);
            at += (u32)((first / SPAN * SPAN + (SPAN == 8 ? 0 : channel_of(slice, 0) + 8 * half)) * (int)sizeof(in_t));
            u32 x[4];
            load_matrices(x[0], x[1], x[2], x[3], at);
            matrix_unit<in_t, in_t>::multiply(sum[i][0], x, w[slice][0]);
            if constexpr (!SHARED_TERMS) load_matrices(x[0], x[1], x[2], x[3], at + 16);
            matrix_unit<in_t, in_t>::multiply(sum[i][1], x, w[slice][1]);
        }
}

__device__ __forceinline__ float finished(const conv_grouped_args &a, const out_t *out, s64 residual, int channel, float sum)
{
    float v = sum * (float)a.alpha;
    if (a.beta != 0) v += (float)a.beta * widen<float>(*out);
    return epilogue(a.epilogue, v, channel, residual);
}

/* channel: the first of this warp's. Groups fill the channels evenly: pairs exist or not. */
__device__ __forceinline__ void store(const conv_grouped_args &a, const tile_place &p, int channel, int strip, const sums &sum)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int pixel = strip * 32 + i * 8 + lane / 4;
        const int row = p.y * TILE_H - a.shift[0] + pixel / TILE_W, col = p.x * TILE_W - a.shift[1] + pixel % TILE_W;
        if (pixel >= PIXELS || (unsigned)row >= (unsigned)a.size_to[0] || (unsigned)col >= (unsigned)a.size_to[1]) continue;
        const s64 at = p.n * a.to.n + row * a.to.s[0] + col * a.to.s[1];
        s64 residual = 0;
        if constexpr (HAS_RESIDUAL) residual = p.n * a.residual.n + row * a.residual.s[0] + col * a.residual.s[1];
#pragma unroll
        for (int unit = 0; unit < 2; unit++) {
            const int c = channel + unit * 8 + lane % 4 * 2;
            if (c >= a.channels) continue;
            out_t *out = (out_t *)a.out + at + c * a.to.c;
            const s64 r = HAS_RESIDUAL ? residual + c * a.residual.c : 0;
            const float v[2] = {finished(a, out, r, c, sum[i / 2][unit][i % 2 * 2]),
                                finished(a, out + a.to.c, r + (HAS_RESIDUAL ? a.residual.c : 0), c + 1,
                                         sum[i / 2][unit][i % 2 * 2 + 1])};
            if (a.to_aligned) {
                store_elements<out_t, 2>(out, true, v);
            } else {
                out[0] = narrow<out_t>(v[0]);
                out[a.to.c] = narrow<out_t>(v[1]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) conv_grouped(const __grid_constant__ conv_grouped_args a)
{
    overlap_wait();
    extern __shared__ __align__(16) unsigned char memory[];
    constexpr int SPACE = SLOT + (HOLES ? PITCH : 0);
    in_t *const slots = (in_t *)memory;
    const int warp = (int)threadIdx.x / 32, first = warp % 4 * 16;
    const unsigned line = mica_fastdiv_of(a.channel_blocks, blockIdx.x), lines = gridDim.x / a.channel_blocks.divisor;
    const int channel = (int)(blockIdx.x - line * a.channel_blocks.divisor) * CHANNELS;
    if constexpr (HOLES)
        for (int i = (int)threadIdx.x; i < 2 * PITCH; i += THREADS) slots[i / PITCH * SPACE + SLOT + i % PITCH] = in_t{};
    filters w;
    if (line < (unsigned)a.tiles) copy_halo<THREADS>(slots, a, place_of(a, line), channel);
    copies_commit();
    load_filters(a, w, channel + first);
    int slot = 0;
    for (unsigned tile = line; tile < (unsigned)a.tiles; tile += lines) {
        if (tile + lines < (unsigned)a.tiles)
            copy_halo<THREADS>(slots + (slot ^ 1) * SPACE, a, place_of(a, tile + lines), channel);
        copies_commit();
        copies_wait<1>();
        __syncthreads();
        const tile_place p = place_of(a, tile);
        const u32 halo = shared_address(slots + slot * SPACE);
#pragma unroll 1
        for (int strip = warp / 4; strip < STRIPS; strip += WARPS_P) {
            sums sum = {};
            multiply(sum, halo, w, strip, first);
            store(a, p, channel + first, strip, sum);
        }
        __syncthreads(); /* this slot is filled next */
        slot ^= 1;
    }
}
