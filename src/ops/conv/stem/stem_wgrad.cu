/* SPDX-License-Identifier: Apache-2.0
 * The filter gradient of a first layer on tensor cores: filters x pixels x (taps of a few channels). A
 * block takes every `parts`th tile of all images and keeps its sums in registers; its warps divide
 * the words of taps WORD_GROUPS times 8 at a time, and WARPS_P of them the pixels of a tile, whose sums
 * are added in the warps' order. Parts are added up by conv_parts.cu. Constants: those of stem.cuh;
 * UNITS (16 filters each, of a block); WORD_GROUPS; WARPS_P; BLOCKS (per multiprocessor, wanted); out_t. */
#include "kernels/overlap.cuh"
#include "ops/conv/stem/stem.cuh"

constexpr int WARPS_N = WARPS / WARPS_P, FILTERS = 16 * UNITS;
constexpr int PITCH = FILTERS + 8; /* rows of matrices start at different banks */
constexpr int PIXELS = TILE_H * TILE_W, SLICES = PIXELS / 16;
constexpr int IMAGE_SPACE = (IMAGE_WORDS + 3) / 4 * 4;
static_assert(TILE_W % 16 == 0, "a slice of 16 pixels lies in one row");
static_assert(WARPS_N * WORD_GROUPS * 8 >= WORDS, "every word has its warp");

typedef float sums[UNITS][WORD_GROUPS][2][4];

/* [pixel][filter] of b; zero outside. */
__device__ __forceinline__ void copy_other(const conv_stem_args &a, const tile_place &p, int first, in_t *to)
{
    const in_t *other = (const in_t *)a.other + p.n * a.to.n;
    for (int i = (int)threadIdx.x; i < PIXELS * FILTERS / 8; i += THREADS) {
        const int pixel = i / (FILTERS / 8), k = i % (FILTERS / 8) * 8;
        const int row = p.y + pixel / TILE_W, col = p.x + pixel % TILE_W;
        const int count = row < a.size_to[0] && col < a.size_to[1] ? a.filters - first - k : 0;
        const in_t *from = count > 0 ? other + row * a.to.s[0] + col * a.to.s[1] + (first + k) * a.to.c : other;
        if (a.to_aligned) {
            copy_async<16>(shared_address(to + pixel * PITCH + k), from, count >= 8 ? 16 : count > 0 ? 2 * count : 0);
            continue;
        }
        in_t v[8] = {};
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (e < count) v[e] = from[e * a.to.c];
        store_vector<8>(to + pixel * PITCH + k, v);
    }
}

__device__ __forceinline__ void multiply(sums &sum, const u32 *image, u32 other, const int (&offset)[WORD_GROUPS], int slice)
{
    const int lane = (int)threadIdx.x % 32;
    const u32 *pixel = image + slice / (TILE_W / 16) * (STRIDE_Y * IMAGE_W) +
                       (slice % (TILE_W / 16) * 16 + lane % 4 * 2) * STEP;
    u32 x[WORD_GROUPS][2][2]; /* [][element of the word][pixels 0, 1 or 8, 9 from this lane's on] */
#pragma unroll
    for (int g = 0; g < WORD_GROUPS; g++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 p = pixel[offset[g] + half * 8 * STEP], q = pixel[offset[g] + (half * 8 + 1) * STEP];
            x[g][0][half] = __byte_perm(p, q, 0x5410);
            x[g][1][half] = __byte_perm(p, q, 0x7632);
        }
    /* lane's row of the matrix: a pixel's 8 filters */
    const int row = slice * 16 + lane / 16 * 8 + lane % 8;
    other += (u32)((row * PITCH + lane / 8 % 2 * 8) * (int)sizeof(in_t));
#pragma unroll
    for (int unit = 0; unit < UNITS; unit++) {
        u32 y[4];
        load_transposed(y[0], y[1], y[2], y[3], other + unit * 32);
#pragma unroll
        for (int g = 0; g < WORD_GROUPS; g++)
#pragma unroll
            for (int e = 0; e < 2; e++) matrix_unit<in_t, in_t>::multiply(sum[unit][g][e], y, x[g][e]);
    }
}

__device__ __forceinline__ void store_sum(const conv_stem_args &a, out_t *out, int k, int word, int element, float sum)
{
    const int at = word % RUN * 2 + element, s = at / CHANNELS, c = at % CHANNELS;
    if (k >= a.filters || word >= WORDS || s >= COLS || c >= REAL) return;
    out += k * a.filter_n + c * a.filter_c + word / RUN * a.filter_s[0] + s * a.filter_s[1];
    float v = sum * a.alpha;
    if (a.beta != 0) v += a.beta * widen<float>(*out);
    *out = narrow<out_t>(v);
}

/* Adds up the sums of the warps that divided the pixels; the last of them has all. */
__device__ __forceinline__ void merge(sums &sum, float *space, int warp_p)
{
    constexpr int EACH = UNITS * WORD_GROUPS * 8;
    float *mine = space + (int)threadIdx.x / 32 % WARPS_N * 32 * EACH + (int)threadIdx.x % 32;
    for (int w = 0; w < WARPS_P; w++) {
        __syncthreads();
        if (w != warp_p) continue;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            float &v = sum[i / (WORD_GROUPS * 8)][i / 8 % WORD_GROUPS][i / 4 % 2][i % 4];
            if (w > 0) v += mine[i * 32];
            mine[i * 32] = v;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) conv_stem_wgrad(const __grid_constant__ conv_stem_args a)
{
    overlap_wait();
    extern __shared__ __align__(16) u32 memory[];
    u32 *const image = memory;
    in_t *const other = (in_t *)(memory + IMAGE_SPACE);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int warp_n = warp % WARPS_N, warp_p = warp / WARPS_N;
    const unsigned part = mica_fastdiv_of(a.chunks, blockIdx.x), parts = gridDim.x / a.chunks.divisor;
    const int first = (int)(blockIdx.x - part * a.chunks.divisor) * FILTERS;
    int offset[WORD_GROUPS];
#pragma unroll
    for (int g = 0; g < WORD_GROUPS; g++) offset[g] = word_offset((warp_n * WORD_GROUPS + g) * 8 + lane / 4);
    sums sum = {};
    for (unsigned tile = part; tile < (unsigned)a.tiles; tile += parts) {
        const tile_place p = place_of(a, tile);
        __syncthreads(); /* the tile before may still be read */
        copy_other(a, p, first, other);
        copies_commit();
        copy_image(a, p, image);
        copies_wait<0>();
        __syncthreads();
#pragma unroll 1
        for (int slice = warp_p; slice < SLICES; slice += WARPS_P) multiply(sum, image, shared_address(other), offset, slice);
    }
    if constexpr (WARPS_P > 1) merge(sum, (float *)memory, warp_p);
    if (warp_p != WARPS_P - 1) return;
    out_t *const out = (out_t *)a.out + part * a.part;
#pragma unroll
    for (int unit = 0; unit < UNITS; unit++)
#pragma unroll
        for (int g = 0; g < WORD_GROUPS; g++)
#pragma unroll
            for (int e = 0; e < 8; e++)
                store_sum(a, out, first + unit * 16 + lane / 4 + e / 2 % 2 * 8,
                          (warp_n * WORD_GROUPS + g) * 8 + lane % 4 * 2 + e % 2, e / 4, sum[unit][g][e / 4][e % 4]);
}
