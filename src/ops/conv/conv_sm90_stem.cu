/* SPDX-License-Identifier: Apache-2.0
 * First layers on Hopper's matrix units: windows x (taps of a few channels) x filters. Windows overlap in shared
 * memory and reach the units through registers; the filters lie in shared memory once for all tiles that a block
 * takes, while the copy engine brings the tile after next. A warpgroup computes 64 rows of the product at a time.
 * Constants: those of conv_sm90_stem.cuh and conv_stem_store.cuh; STAGES (tiles in shared memory); BLOCKS (per
 * multiprocessor, wanted); mma() with its left operand in registers. */
#include "ops/conv/conv_sm90_stem.cuh"

constexpr int LINES = 1;
#include "ops/conv/conv_stem_store.cuh"

constexpr int COLUMNS = 32 * GROUPS, WARPGROUPS = WARPS / 4;
constexpr int STRIPS = (LINES_ALL + 63) / 64;
constexpr u32 HALF = COLUMNS * 16, FILTER_BYTES = SLICES * 2 * HALF; /* 8 terms of all columns */
static_assert(!STATS || (u32)WARPS * 2 * 32 * EACH * 4 <= FILTER_BYTES, "sums fit where filters were");

/* [8 terms][column][terms]: rows along K without a swizzle. */
__device__ __forceinline__ void copy_filters(const conv_stem_args &a, int first, u32 *to)
{
    const in_t *other = (const in_t *)a.other;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < (int)FILTER_BYTES / 4; i += THREADS) {
        const int p = i / (4 * COLUMNS) * 4 + i % 4, column = i / 4 % COLUMNS, group = column / 32;
        const int k = first + filter_of(group % EACH, column / 8 % 4, column % 8);
        in_t v[2] = {};
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int r, s, c;
            if (tap_of(p, e, group / EACH, r, s, c) && k < a.filters)
                v[e] = other[k * a.filter_n + c * a.filter_c + r * a.filter_s[0] + s * a.filter_s[1]];
        }
        memcpy(&to[i], v, 4);
    }
}

/* line: of the tile, the first of this warp's 16. */
__device__ __forceinline__ void multiply(sums &sum, const u32 *image, u32 filters, int line, const int (&offset)[SLICES][2])
{
    constexpr bool IN_ONE_ROW = LINE_W % 16 == 0;
    const int at = line + (int)threadIdx.x % 32 / 4;
    u32 x[SLICES][4];
    const u32 *window = image + line_word(min(at, LINES_ALL - 1));
    const u32 *next = image + line_word(min(at + 8, LINES_ALL - 1));
#pragma unroll
    for (int i = 0; i < SLICES; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const u32 *from = window + offset[i][e];
            x[i][2 * e] = from[0];
            x[i][2 * e + 1] = IN_ONE_ROW ? from[8 * STEP] : next[offset[i][e]];
        }
    const u64 right = wgmma_operand<0>(filters, HALF, 128);
    float(&d)[COLUMNS / 2] = reinterpret_cast<float(&)[COLUMNS / 2]>(sum);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < SLICES; i++) mma(d, x[i], wgmma_advance(right, i * 2 * HALF), i > 0);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(d);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) conv_sm90_stem(const __grid_constant__ conv_sm90_stem_args args)
{
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ __align__(8) u64 barriers[STAGES];
    const conv_stem_args &a = args.stem;
    unsigned char *const images = memory, *const filters = memory + STAGES * IMAGE_ROOM;
    const u32 full = shared_address(barriers);
    const int lane = (int)threadIdx.x % 32, warp = uniform((int)threadIdx.x / 32);
    const unsigned row = mica_fastdiv_of(a.chunks, blockIdx.x), rows = gridDim.x / a.chunks.divisor;
    const int first = (int)(blockIdx.x - row * a.chunks.divisor) * 32 * EACH;
    const unsigned tiles = (unsigned)a.tiles;
    const bool plain = is_plain(a, first);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) mbarrier_init(full + 8 * i, 1);
        mbarrier_fence_init();
    }
    overlap_wait();
    if (threadIdx.x == 0)
        for (unsigned i = 0; i < STAGES && row + i * rows < tiles; i++)
            load_image(args, place_of(a, row + i * rows), shared_address(images) + i * IMAGE_ROOM, full + 8 * i);
    copy_filters(a, first, (u32 *)filters);
    async_fence();
    __syncthreads();
    int offset[SLICES][2];
#pragma unroll
    for (int i = 0; i < SLICES; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) offset[i][e] = word_offset(i * 8 + lane % 4 + e * 4);
    statistics stats;
    if constexpr (STATS) memset(&stats, 0, sizeof stats);
    u32 stage = 0, parity = 0;
    for (unsigned tile = row; tile < tiles; tile += rows) {
        const tile_place p = place_of(a, tile);
        mbarrier_wait(full + 8 * stage, parity);
#pragma unroll 1
        for (int strip = warp / 4; strip < STRIPS; strip += WARPGROUPS) {
            const int line = strip * 64 + warp % 4 * 16;
            sums sum;
            multiply(sum, (const u32 *)(images + stage * IMAGE_ROOM), shared_address(filters), line, offset);
            if (plain)
                store_lines<true>(a, p, first, line, sum, stats);
            else
                store_lines<false>(a, p, first, line, sum, stats);
        }
        __syncthreads(); /* nobody reads this tile any more */
        if (threadIdx.x == 0 && tile + STAGES * rows < tiles)
            load_image(args, place_of(a, tile + STAGES * rows), shared_address(images) + stage * IMAGE_ROOM, full + 8 * stage);
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    if constexpr (STATS) store_statistics(a, row, first, (float *)filters, stats);
}
