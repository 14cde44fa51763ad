/* SPDX-License-Identifier: Apache-2.0
 * The image's gradient of a first layer on tensor cores. Pixels of dx fall into cells, STRIDE_Y rows of
 * CELL_W = STRIDE_X * STEPS columns; the values of a cell are sums over the TAPS_Y x TAPS_X pixels of dy
 * around it, so they are a row of the product (cells) x (pixels around, filters) x (values of a cell). A value
 * has no weight at pixels that none of its taps reach: those are zeros, and left out where 8 columns, a tile,
 * have no weight in a whole row of pixels (TAKEN). So an infinity of dy makes NaN in all of the cells around.
 *
 * A block takes tiles of cells one after the other. Their pixels of dy pass through two buffers, SLICE filters at a time;
 * the weights of all filters stay in the order of the units' operands. A warp has 16 cells of LINES rows of cells
 * and reads a row of pixels once for all rows of cells around it. Sums are transposed in shared memory, so that
 * rows of dx are written in pieces.
 *
 * Constants: STRIDE_Y, STRIDE_X, DILATION_Y, DILATION_X, PAD_Y, PAD_X; ROWS, COLS (taps of the filter); CHANNELS;
 * STEPS; FIRST_Y, FIRST_X, TAPS_Y, TAPS_X (pixels around, from the first pixel of a cell); CELL_H (rows of a cell
 * that a block computes: STRIDE_Y, or fewer if TAPS_Y = 1); LINE (columns from row to row of a cell), TAKEN (bit
 * ty * TILES + tile); SLICE, SLICES; TILE_H, TILE_W (cells); WARPS; FLAT (rows of dx are runs of elements in memory);
 * HAS_RESIDUAL and the epilogue's; BLOCKS (per multiprocessor, wanted); in_t, out_t. */
#include "kernels/epilogue.cuh"
#include "kernels/mma.cuh"
#include "kernels/overlap.cuh"
#include "kernels/vector.cuh"
#include "ops/conv/stem/stem_tile.cuh"

constexpr int THREADS = 32 * WARPS, WARPS_X = TILE_W / 16, LINES = TILE_H * WARPS_X / WARPS;
constexpr int CELL_W = STRIDE_X * STEPS, RUN = CELL_W * CHANNELS, TILES = (CELL_H * LINE + 7) / 8;
constexpr int HALO_H = TILE_H + TAPS_Y - 1, HALO_W = (TILE_W - 1) * STEPS + TAPS_X;
/* Pixels of neighbouring cells lie side by side: a row has STEPS parts. */
constexpr int PART = (HALO_W + STEPS - 1) / STEPS, PITCH = STEPS * PART;
constexpr int CHUNKS = SLICE / 8, PIXEL_BYTES = 2 * SLICE, BUFFER_BYTES = HALO_H * PITCH * PIXEL_BYTES;
/* Chunks of a pixel are permuted so that those of 8 neighbouring pixels lie in different banks: after
 * PERIOD pixels the banks repeat. */
constexpr int PERIOD = CHUNKS % 8 == 0 ? 1 : CHUNKS % 4 == 0 ? 2 : 4, KEYS = 8 / PERIOD;
constexpr int STEPS_K = SLICE / 16;
static_assert(sizeof(in_t) == 2 && SLICE % 16 == 0, "whole units");
static_assert(WARPS_X * 16 == TILE_W && LINES * WARPS == TILE_H * WARPS_X, "every cell has its warp");
static_assert(CELL_H == STRIDE_Y || TAPS_Y == 1, "rows of cells differ in their taps");
static_assert(TILES * TAPS_Y < 32, "bits of TAKEN");

__device__ __forceinline__ constexpr bool is_taken(int ty, int tile) { return TAKEN >> (ty * TILES + tile) & 1; }

/* Without a loop: a compiler that cannot fold one would look up registers at run time. */
__device__ __forceinline__ constexpr int bits_of(unsigned v)
{
    v -= v >> 1 & 0x55555555u;
    v = (v & 0x33333333u) + (v >> 2 & 0x33333333u);
    return (int)(((v + (v >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
}

/* Products that are taken before this one. */
__device__ __forceinline__ constexpr int slot_of(int ty, int tile)
{
    return bits_of((unsigned)TAKEN & ((1u << (ty * TILES + tile)) - 1));
}
constexpr int SLOTS = slot_of(TAPS_Y, 0);
constexpr int FILTER_WORDS = TAPS_X * SLICES * STEPS_K * SLOTS * 64;

/* Where column x of a row of pixels lies. */
__device__ __forceinline__ constexpr unsigned position(unsigned x) { return x % STEPS * PART + x / STEPS; }

__device__ __forceinline__ unsigned key_of(unsigned position) { return position / PERIOD % KEYS; }

/* ---- operands ---- */

/* 8 filters of a pixel, of which `count` exist. */
template <bool ALIGNED>
__device__ __forceinline__ void copy_chunk(const conv_stem_args &a, const in_t *from, int count, char *to)
{
    if constexpr (ALIGNED) {
        copy_async<16>(shared_address(to), from, 2 * count);
    } else {
        in_t v[8] = {};
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (e < count) v[e] = from[e * a.to.c];
        store_vector<8>((in_t *)to, v);
    }
}

/* SLICE filters of a tile's pixels of dy; zero outside. A thread keeps to its chunk of the filters. */
template <bool ALIGNED>
__device__ __forceinline__ void copy_pixels(const conv_stem_args &a, const tile_place &p, int slice, char *to)
{
    constexpr unsigned EACH = THREADS / CHUNKS, DOWN = EACH / HALO_W, OVER = EACH % HALO_W; /* at once; how far on */
    const in_t *image = (const in_t *)a.image + p.n * a.to.n;
    const int chunk = (int)threadIdx.x % CHUNKS, k = slice * SLICE + chunk * 8;
    const int filters = a.filters - k < 0 ? 0 : a.filters - k < 8 ? a.filters - k : 8;
    const s64 step = DOWN * a.to.s[0] + OVER * a.to.s[1], next_row = a.to.s[0] - HALO_W * a.to.s[1];
    unsigned x = threadIdx.x / CHUNKS % HALO_W, y = threadIdx.x / CHUNKS / HALO_W;
    int row = p.y + FIRST_Y + (int)y, col = p.x * STEPS + FIRST_X + (int)x;
    const in_t *from = image + row * a.to.s[0] + col * a.to.s[1] + k * a.to.c;
    if (threadIdx.x >= EACH * CHUNKS) return;
    while (y < HALO_H) {
        const unsigned at = position(x);
        const bool inside = (unsigned)row < (unsigned)a.size_to[0] && (unsigned)col < (unsigned)a.size_to[1];
        copy_chunk<ALIGNED>(a, inside ? from : image, inside ? filters : 0,
                            to + (y * PITCH + at) * PIXEL_BYTES + ((chunk ^ key_of(at)) << 4));
        x += OVER, col += OVER, y += DOWN, row += DOWN, from += step;
        if (x >= HALO_W) x -= HALO_W, col -= HALO_W, y++, row++, from += next_row;
    }
}

__device__ __forceinline__ void copy_pixels(const conv_stem_args &a, const tile_place &p, int slice, char *to)
{
    if (a.to_aligned)
        copy_pixels<true>(a, p, slice, to);
    else
        copy_pixels<false>(a, p, slice, to);
    copies_commit();
}

/* The tap that lies `distance` pixels of dx before the image's pixel, or -1. */
__device__ __forceinline__ int tap_at(int distance, int dilation, int taps)
{
    const int tap = distance / dilation;
    return distance >= 0 && distance == tap * dilation && tap < taps ? tap : -1;
}

/* Of filters k and k + 1: the weight of a cell's value `column` at pixel ty, tx around it. */
__device__ __forceinline__ u32 weights(const conv_stem_args &a, int row, int column, int ty, int tx, int k)
{
    const int at = column % LINE, c = at % CHANNELS;
    row += column / LINE;
    const int r = tap_at(row + PAD_Y - (ty + FIRST_Y) * STRIDE_Y, DILATION_Y, ROWS);
    const int s = tap_at(at / CHANNELS + PAD_X - (tx + FIRST_X) * STRIDE_X, DILATION_X, COLS);
    in_t v[2] = {};
#pragma unroll
    for (int e = 0; e < 2; e++)
        if (column / LINE < CELL_H && at < RUN && r >= 0 && s >= 0 && k + e < a.filters)
            v[e] = ((const in_t *)a.other)[(k + e) * a.filter_n + c * a.filter_c + r * a.filter_s[0] + s * a.filter_s[1]];
    u32 word;
    memcpy(&word, v, 4);
    return word;
}

/* [tx][16 filters][slot][lane][two words]; a thread keeps to its lane and word. */
__device__ __forceinline__ void copy_filters(const conv_stem_args &a, int row, u32 *to)
{
    const int lane = (int)threadIdx.x / 2 % 32, word = (int)threadIdx.x % 2;
    static_assert(THREADS % 64 == 0, "threads share out whole slots");
#pragma unroll 1
    for (int ty = 0; ty < TAPS_Y; ty++)
#pragma unroll 1
        for (int tile = 0; tile < TILES; tile++) {
            if (!is_taken(ty, tile)) continue;
            u32 *const slot = to + slot_of(ty, tile) * 64 + lane * 2 + word;
#pragma unroll 4
            for (int i = (int)threadIdx.x / 64; i < TAPS_X * SLICES * STEPS_K; i += THREADS / 64) {
                const int k = i % (SLICES * STEPS_K) * 16 + word * 8 + lane % 4 * 2;
                slot[i * SLOTS * 64] = weights(a, row, tile * 8 + lane / 4, ty, i / (SLICES * STEPS_K), k);
            }
        }
}

/* ---- products ---- */

typedef float sums[LINES][TILES][4];

/* 16 filters at one pixel along x: from the address of a lane's part of a row of pixels on. */
__device__ __forceinline__ void multiply_step(sums &sum, u32 pixels, const u32 *filters)
{
    u32 w[SLOTS][2];
#pragma unroll
    for (int i = 0; i < SLOTS; i++) load_vector<2>(filters + i * 64, w[i]);
#pragma unroll
    for (int row = 0; row < LINES + TAPS_Y - 1; row++) {
        u32 y[4];
        load_matrices(y[0], y[1], y[2], y[3], pixels + row * PITCH * PIXEL_BYTES);
#pragma unroll
        for (int ty = 0; ty < TAPS_Y; ty++)
#pragma unroll
            for (int tile = 0; tile < TILES; tile++)
                if (is_taken(ty, tile) && row >= ty && row - ty < LINES)
                    matrix_unit<in_t, in_t>::multiply(sum[row - ty][tile], y, w[slot_of(ty, tile)]);
    }
}

__device__ __forceinline__ void multiply(sums &sum, u32 pixels, const u32 *filters, int slice)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int cell = warp % WARPS_X * 16 + lane % 16;
    pixels += warp / WARPS_X * LINES * PITCH * PIXEL_BYTES;
    filters += slice * STEPS_K * SLOTS * 64 + lane * 2;
#pragma unroll 1
    for (int tx = 0; tx < TAPS_X; tx++, filters += SLICES * STEPS_K * SLOTS * 64) {
        const unsigned at = cell + position(tx);
#pragma unroll
        for (int step = 0; step < STEPS_K; step++) {
            const unsigned chunk = (step * 2 + lane / 16) ^ key_of(at);
            multiply_step(sum, pixels + at * PIXEL_BYTES + (chunk << 4), filters + step * SLOTS * 64);
        }
    }
}

/* ---- results ---- */

/* A sum as a value of dx, whose element `at` counts from a pixel on. */
__device__ __forceinline__ float finish(const conv_stem_args &a, float sum, out_t old, int at, s64 residual)
{
    const int c = at % CHANNELS, x = at / CHANNELS;
    float f = sum * a.alpha;
    if (a.beta != 0) f += a.beta * widen<float>(old);
    return epilogue(a.epilogue, f, c, HAS_RESIDUAL ? residual + x * a.residual.s[1] + c * a.residual.c : 0);
}

/* 8 elements of a row of dx, the first `count` of which exist; `at`: which they are from `out` on. */
__device__ __forceinline__ void store(const conv_stem_args &a, out_t *out, s64 residual, int at, int count, const float *sums)
{
    if (FLAT && count >= 8 && a.from_aligned) {
        float v[8];
        out_t r[8] = {};
        load_vector<8>(sums, v);
        if (a.beta != 0) load_vector<8>(out + at, r);
#pragma unroll
        for (int e = 0; e < 8; e++) r[e] = narrow<out_t>(finish(a, v[e], r[e], at + e, residual));
        store_vector<8>(out + at, r);
        return;
    }
#pragma unroll 1
    for (int e = 0; e < 8 && e < count; e++) {
        out_t *const to = out + (at + e) / CHANNELS * a.from.s[1] + (at + e) % CHANNELS * a.from.c;
        out_t old = {};
        if (a.beta != 0) old = *to;
        *to = narrow<out_t>(finish(a, sums[e], old, at + e, residual));
    }
}

/* Values of 16 cells as [row of the cell][cell][column], then to where they belong. */
__device__ __forceinline__ void store_cells(const conv_stem_args &a, const tile_place &p, int line, int row,
                                            const float (&sum)[TILES][4], float *space)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    constexpr int SIDE = RUN % 2 == 0 ? 2 : 1; /* columns that are stored at once */
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int e = 0; e < 4; e += SIDE) {
            const int column = tile * 8 + lane % 4 * 2 + e % 2, cell = lane / 4 + e / 2 * 8;
            if (column / LINE < CELL_H && column % LINE < RUN)
                store_vector<SIDE>(space + (column / LINE * 16 + cell) * RUN + column % LINE, &sum[tile][e]);
        }
    __syncwarp();
    const int x = (p.x + warp % WARPS_X * 16) * CELL_W;
    const int y = (p.y + warp / WARPS_X * LINES + line) * STRIDE_Y + row;
    for (int i = lane; i < CELL_H * 2 * RUN; i += 32) {
        const int at = i % (2 * RUN) * 8, down = y + i / (2 * RUN), left = (a.size_from[1] - x) * CHANNELS - at;
        if (down >= a.size_from[0] || left <= 0) continue;
        out_t *const out = (out_t *)a.out + p.n * a.from.n + down * a.from.s[0] + x * a.from.s[1];
        s64 residual = 0;
        if constexpr (HAS_RESIDUAL) residual = p.n * a.residual.n + down * a.residual.s[0] + x * a.residual.s[1];
        store(a, out, residual, at, left, space + i * 8);
    }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) conv_stem_dgrad(const __grid_constant__ conv_stem_args a)
{
    overlap_wait();
    extern __shared__ __align__(16) char memory[];
    u32 *const filters = (u32 *)(memory + 2 * BUFFER_BYTES);
    float *const space = (float *)(filters + FILTER_WORDS) + (int)threadIdx.x / 32 * (CELL_H * 16 * RUN);
    const unsigned first = mica_fastdiv_of(a.chunks, blockIdx.x), each = gridDim.x / a.chunks.divisor;
    const int row = (int)(blockIdx.x - first * a.chunks.divisor) * CELL_H;
    int buffer = 0;
    if (first < (unsigned)a.tiles) copy_pixels(a, place_of(a, first), 0, memory);
    copy_filters(a, row, filters);
    for (unsigned tile = first; tile < (unsigned)a.tiles; tile += each) {
        const tile_place p = place_of(a, tile);
        sums sum = {};
#pragma unroll 1
        for (int slice = 0; slice < SLICES; slice++, buffer ^= BUFFER_BYTES) {
            copies_wait<0>();
            __syncthreads(); /* the other buffer was read by all */
            const bool last = slice == SLICES - 1;
            if (!last || tile + each < (unsigned)a.tiles)
                copy_pixels(a, last ? place_of(a, tile + each) : p, last ? 0 : slice + 1, memory + (buffer ^ BUFFER_BYTES));
            multiply(sum, shared_address(memory) + buffer, filters, slice);
        }
#pragma unroll
        for (int line = 0; line < LINES; line++) store_cells(a, p, line, row, sum[line], space);
    }
}
