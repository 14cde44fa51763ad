/* SPDX-License-Identifier: Apache-2.0
 * The filter gradient of a first layer on Hopper's tensor cores: (taps of a few channels) x pixels x filters. The
 * left operand is windows of the image through registers, the right one tiles of b as TMA brings them:
 * rows of the product, counted through, are elements of windows, its columns the filters of a row's PAIR pixels. A
 * block takes every `parts`th tile of all images and keeps its sums in registers; its warpgroups divide the
 * words of windows, M_TILES times 32, and SHARES of them the pixels of a tile, whose sums are added in the
 * warpgroups' order. Parts are added up by conv_parts.cu. Constants: those of sm90_stem.cuh; FILTERS (of b, of
 * a block); FILTER_CHUNKS (blocks for all filters); BOX (filters side by side in shared memory: 32 or 64); M_TILES;
 * SHARES; BATCH (slices of 16 rows of the product that are in registers at once); STAGES (tiles in shared memory);
 * out_t; mma() with its left operand in registers, its right one's rows along N. */
#include "kernels/vector.cuh"
#include "ops/conv/stem/sm90_stem.cuh"
#include "ops/conv/slab/ping_pong.cuh"

constexpr int COLUMNS = PAIR * FILTERS, BLOCK = THREADS + 32; /* and the warp that loads */
constexpr int STEPS_W = LINE_W / (16 * BATCH), STEPS = TILE_H * STEPS_W;
constexpr u32 ROW_BYTES = 2 * BOX, BOX_BYTES = LINES_ALL * ROW_BYTES;
constexpr u32 OTHER_BYTES = BOX_BYTES * (COLUMNS / BOX), OTHER_ROOM = (OTHER_BYTES + 1023) / 1024 * 1024;
constexpr u32 STAGE_ROOM = (OTHER_ROOM + IMAGE_ROOM + 1023) / 1024 * 1024;
constexpr int ELEMENTS = DEPTH * ROWS * COLS * CHANNELS, SUM_PITCH = COLUMNS + 4;
static_assert(WARPS == 4 * M_TILES * SHARES, "every word has its warpgroup");
static_assert(PAIR == 1 || M_TILES * 32 >= WORDS, "a block has the terms of both pixels");
static_assert(LINE_W % (16 * BATCH) == 0 && STEPS % SHARES == 0, "whole batches, the same for all");
static_assert(M_TILES * 64 * SUM_PITCH * 4 <= STAGES * (int)STAGE_ROOM, "sums fit where tiles were");

typedef u32 terms[BATCH][4];

/* ---- loads ---- */

__device__ __forceinline__ void load_other(const conv_sm90_stem_args &a, const tile_place &p, int first, u32 to, u32 bar)
{
    mbarrier_arrive_expect(bar, OTHER_BYTES);
#pragma unroll 1
    for (int i = 0; i < COLUMNS / BOX; i++) {
        const int k = first + i % (FILTERS / BOX) * BOX;
        if constexpr (PAIR == 1)
            tma_load(to + i * BOX_BYTES, &a.other, bar, k, p.x, p.y, (int)p.n);
        else
            tma_load(to + i * BOX_BYTES, &a.other, bar, k, i / (FILTERS / BOX), p.x / 2, p.y, (int)p.n);
    }
}

__device__ __forceinline__ void produce(const conv_sm90_stem_args &args, int first, unsigned part, unsigned parts,
                                        u32 memory, u32 full, u32 empty)
{
    ring<STAGES> r = {0, 1};
    for (unsigned tile = part; tile < (unsigned)args.stem.tiles; tile += parts, r.advance()) {
        const tile_place p = place_of(args.stem, tile);
        const u32 to = memory + r.at * STAGE_ROOM;
        mbarrier_wait(empty + 8 * r.at, r.parity);
        load_other(args, p, first, to, full + 8 * r.at);
        load_image(args, p, to + OTHER_ROOM, full + 8 * r.at);
    }
}

/* ---- products ---- */

/* word: the first of this lane's row of the left operand, for the step's first line. */
__device__ __forceinline__ void load_terms(terms &x, const u32 *word)
{
    word += (int)threadIdx.x % 4 * 2 * STEP;
#pragma unroll
    for (int i = 0; i < BATCH; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 p = word[(16 * i + 8 * half) * STEP], q = word[(16 * i + 8 * half + 1) * STEP];
            x[i][2 * half] = __byte_perm(p, q, 0x5410);
            x[i][2 * half + 1] = __byte_perm(p, q, 0x7632);
        }
}

/* other: of the step's first line. */
__device__ __forceinline__ void multiply(float (&sum)[COLUMNS / 2], const terms &x, u32 other)
{
    const u64 right = wgmma_operand<(int)ROW_BYTES>(other, BOX_BYTES, 8 * ROW_BYTES);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < BATCH; i++) mma(sum, x[i], wgmma_advance(right, i * 16 * ROW_BYTES), 1);
    wgmma_commit();
}

/* All steps of this warpgroup: the terms of one come to registers while the one before is multiplied. A tile is
 * given back when the next one's first step is about to be multiplied. */
__device__ __forceinline__ void accumulate(float (&sum)[COLUMNS / 2], unsigned part, unsigned parts, unsigned tiles,
                                           const unsigned char *memory, int offset, int share, u32 full, u32 empty)
{
    constexpr int COUNT = STEPS / SHARES;
    ring<STAGES> r = {0, 0};
    int last = -1;
    terms x[2];
    for (unsigned tile = part; tile < tiles; tile += parts, r.advance()) {
        const unsigned char *stage = memory + r.at * STAGE_ROOM;
        const u32 *image = (const u32 *)(stage + OTHER_ROOM) + SHIFT + offset;
        mbarrier_wait(full + 8 * r.at, r.parity);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int step = i * SHARES + share;
            if (COUNT % 2 && i == 0) wgmma_wait<0>(); /* the last one used the same registers */
            load_terms(x[i % 2], image + step / STEPS_W * (STRIDE_Y * PITCH) + step % STEPS_W * (16 * BATCH * STEP));
            wgmma_wait<0>();
            if (i == 0 && last >= 0 && threadIdx.x % 32 == 0) mbarrier_arrive(empty + 8 * last);
            multiply(sum, x[i % 2], shared_address(stage) + step * (16 * BATCH * ROW_BYTES));
        }
        last = r.at;
    }
    wgmma_wait<0>();
    wgmma_hold(sum);
}

/* ---- results ---- */

/* [element][column]; share after share adds its own. first: element of this warp's rows. */
__device__ __forceinline__ void merge(const float (&sum)[COLUMNS / 2], float *to, int first, int share)
{
    const int lane = (int)threadIdx.x % 32;
    for (int s = 0; s < SHARES; s++) {
        __syncthreads();
        if (s != share) continue;
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++) {
            const int element = first + lane / 4 * 2 + i / 2 % 2, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            float *p = to + element * SUM_PITCH + column;
            *p = s > 0 ? *p + sum[i] : sum[i];
        }
    }
    __syncthreads();
}

/* first, word: of this block. */
__device__ __forceinline__ void store_sums(const conv_sm90_stem_args &args, out_t *out, int first, int word, const float *from)
{
    const conv_stem_args &a = args.stem;
    for (int i = (int)threadIdx.x; i < ELEMENTS * FILTERS; i += BLOCK) {
        const int k = i / ELEMENTS, t = i % ELEMENTS, c = t % CHANNELS, s = t / CHANNELS % COLS;
        const int r = t / (COLS * CHANNELS), own = LEAD + s * CHANNELS + c + 2 * (r * RUN - word);
        if (first + k >= a.filters) return;
        if ((unsigned)own >= M_TILES * 64) continue; /* another block's */
        float sum = 0;
#pragma unroll
        for (int pixel = 0; pixel < PAIR; pixel++)
            sum += from[(own + pixel * STRIDE_X * CHANNELS) * SUM_PITCH + pixel * FILTERS + k];
        out_t *to = out + (first + k) * a.filter_n + c * a.filter_c + r / ROWS * args.filter_z + r % ROWS * a.filter_s[0] +
                    s * a.filter_s[1];
        float v = sum * a.alpha;
        if (a.beta != 0) v += a.beta * widen<float>(*to);
        *to = narrow<out_t>(v);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) conv_sm90_stem_wgrad(const __grid_constant__ conv_sm90_stem_args args)
{
    extern __shared__ unsigned char memory_any[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    unsigned char *const memory = memory_any + (1024 - shared_address(memory_any) % 1024) % 1024;
    const conv_stem_args &a = args.stem;
    const u32 full = shared_address(barriers), empty = full + 8 * STAGES;
    const int lane = (int)threadIdx.x % 32, warp = uniform((int)threadIdx.x / 32);
    const unsigned part = mica_fastdiv_of(a.chunks, blockIdx.x), parts = gridDim.x / a.chunks.divisor;
    const int chunk = (int)(blockIdx.x - part * a.chunks.divisor); /* first all of the first words */
    const int first = chunk % FILTER_CHUNKS * FILTERS, word = chunk / FILTER_CHUNKS * M_TILES * 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) mbarrier_init(full + 8 * i, 2), mbarrier_init(empty + 8 * i, WARPS);
        mbarrier_fence_init();
    }
    __syncthreads();
    overlap_wait();
    const int m_tile = warp / 4 % M_TILES, share = warp < WARPS ? warp / 4 / M_TILES : -1;
    float sum[COLUMNS / 2] = {};
    if (share < 0) {
        if (lane == 0) produce(args, first, part, parts, shared_address(memory), full, empty);
        __syncwarp();
    } else {
        const int offset = word_offset(word + m_tile * 32 + warp % 4 * 8 + lane / 4);
        accumulate(sum, part, parts, (unsigned)a.tiles, memory, offset, share, full, empty);
    }
    merge(sum, (float *)memory, m_tile * 64 + warp % 4 * 16, share);
    store_sums(args, (out_t *)a.out + part * a.part, first, word, (const float *)memory);
}
