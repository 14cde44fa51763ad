/* SPDX-License-Identifier: Apache-2.0
 * First layers on Hopper's tensor cores: windows x (taps of a few channels) x filters. Windows overlap in shared
 * memory and reach the units through registers; the filters lie in shared memory once for all tiles that a block
 * takes, while TMA brings the tile after next. A warpgroup computes 64 rows of the product at a time.
 * Constants: those of sm90_stem.cuh and stem_store.cuh; STAGES (tiles in shared memory); BLOCKS (per
 * multiprocessor, wanted); mma() with its left operand in registers. */
#include "ops/conv/stem/sm90_stem.cuh"

constexpr int LINES = 1;
#include "ops/conv/stem/stem_store.cuh"

constexpr int COLUMNS = 32 * GROUPS, WARPGROUPS = WARPS / 4;
constexpr int STRIPS = (LINES_ALL + 63) / 64;
constexpr int SLICES = (PLANE_WORDS + 7) / 8; /* of 16 terms, of the taps of a plane */
constexpr u32 HALF = COLUMNS * 16, FILTER_BYTES = DEPTH * SLICES * 2 * HALF; /* 8 terms of all columns */
static_assert(!STATS || (u32)WARPS * 2 * 32 * EACH * 4 <= FILTER_BYTES, "sums fit where filters were");

/* [8 terms][column][terms]: rows along K without a swizzle. */
__device__ __forceinline__ void copy_filters(const conv_sm90_stem_args &args, int first, in_t *to)
{
    const conv_stem_args &a = args.stem;
    const in_t *other = (const in_t *)a.other;
    for (int i = (int)threadIdx.x; i < (int)FILTER_BYTES / 16; i += THREADS) {
        const int eight = i / COLUMNS, z = eight / (2 * SLICES), word = eight % (2 * SLICES) * 4;
        const int group = i % COLUMNS / 32, pixel = group / EACH;
        const int k = first + filter_of(group % EACH, i / 8 % 4, i % 8);
        const in_t *from = other + k * a.filter_n + z * args.filter_z;
        in_t v[8] = {};
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const int p = word + e / 2, at = p % RUN * 2 + e % 2 - LEAD - pixel * STRIDE_X * CHANNELS;
            const int s = at / CHANNELS, c = at % CHANNELS;
            if (p < PLANE_WORDS && at >= 0 && s < COLS && k < a.filters)
                v[e] = from[c * a.filter_c + p / RUN * a.filter_s[0] + s * a.filter_s[1]];
        }
        store_vector<8>(to + i * 8, v);
    }
}

/* line: of the tile, the first of this warp's 16; offset: of words of a plane. */
__device__ __forceinline__ void multiply(sums &sum, const u32 *image, u32 filters, int line, const int (&offset)[SLICES][2])
{
    constexpr bool IN_ONE_ROW = LINE_W % 16 == 0;
    const int at = line + (int)threadIdx.x % 32 / 4;
    const u32 *window = image + line_word(min(at, LINES_ALL - 1));
    const u32 *next = image + line_word(min(at + 8, LINES_ALL - 1));
    const u64 right = wgmma_operand<0>(filters, HALF, 128);
    float(&d)[COLUMNS / 2] = reinterpret_cast<float(&)[COLUMNS / 2]>(sum);
#pragma unroll
    for (int z = 0; z < DEPTH; z++) {
        u32 x[SLICES][4];
#pragma unroll
        for (int i = 0; i < SLICES; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const u32 *from = window + offset[i][e];
                x[i][2 * e] = from[z * PLANE_PITCH];
                x[i][2 * e + 1] = IN_ONE_ROW ? from[z * PLANE_PITCH + 8 * STEP] : next[z * PLANE_PITCH + offset[i][e]];
            }
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < SLICES; i++) mma(d, x[i], wgmma_advance(right, (z * SLICES + i) * 2 * HALF), z + i > 0);
        wgmma_commit();
        wgmma_wait<0>();
    }
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
    __syncthreads();
    overlap_wait();
    if (threadIdx.x == 0)
        for (unsigned i = 0; i < STAGES && row + i * rows < tiles; i++)
            load_image(args, place_of(a, row + i * rows), shared_address(images) + i * IMAGE_ROOM, full + 8 * i);
    copy_terms(a, first);
    copy_filters(args, first, (in_t *)filters);
    async_fence();
    __syncthreads();
    int offset[SLICES][2];
#pragma unroll
    for (int i = 0; i < SLICES; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int word = i * 8 + lane % 4 + e * 4;
            offset[i][e] = word < PLANE_WORDS ? word_offset(word) : 0;
        }
    statistics stats;
    if constexpr (STATS) memset(&stats, 0, sizeof stats);
    u32 stage = 0, parity = 0;
    for (unsigned tile = row; tile < tiles; tile += rows) {
        const tile_place p = place_of(a, tile);
        const plane_place plane = plane_of(args, p);
        const image_place at = {plane.image * args.to_n + plane.z * args.to_z,
                                plane.image * args.residual_n + plane.z * args.residual_z};
        mbarrier_wait(full + 8 * stage, parity);
#pragma unroll 1
        for (int strip = warp / 4; strip < STRIPS; strip += WARPGROUPS) {
            const int line = strip * 64 + warp % 4 * 16;
            sums sum;
            multiply(sum, (const u32 *)(images + stage * IMAGE_ROOM), shared_address(filters), line, offset);
            if (plain)
                store_lines<true>(a, at, p, first, line, sum, stats);
            else
                store_lines<false>(a, at, p, first, line, sum, stats);
        }
        __syncthreads(); /* nobody reads this tile any more */
        if (threadIdx.x == 0 && tile + STAGES * rows < tiles)
            load_image(args, place_of(a, tile + STAGES * rows), shared_address(images) + stage * IMAGE_ROOM, full + 8 * stage);
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    if constexpr (STATS) store_statistics(a, row, first, (float *)filters, stats);
}
