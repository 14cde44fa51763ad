/* SPDX-License-Identifier: Apache-2.0
 * Convolution by Hopper's copy engine and matrix units, forward and dgrad: rows are pixels of the
 * result, columns its channels, terms (tap, 64 channels of the image that is read). One warp loads
 * BM pixels as a tap sees them (im2col) and BN columns of the filter into a ring of stages; two
 * warpgroups multiply, each half of the rows. Blocks persist, so that the next tile's loads run
 * while results are stored; these go from registers to memory.
 * Constants: AXES of the image; tile BM x BN; STAGES; FILTER_MN (columns are what lies side by side
 * in the filter, else terms); VECTOR (results stored at once: 8 of 16 bits, 2 of f32, else 1);
 * RESIDUAL; types in_t, out_t; those of the epilogue; mma(). */
#include "cuda/device/epilogue.cuh"
#include "cuda/device/vector.cuh"
#include "ops/conv/conv_sm90.cuh"

constexpr int IMAGE_BYTES = BM * ROW;

/* A tile: its class, first pixel in it and first column. */
struct place {
    int index, row, col;
};

__device__ __forceinline__ place find(const mica_conv_sm90_args &a, int tile)
{
    int index = 0;
    while (index + 1 < a.class_count && tile >= a.classes[index + 1].first_tile) index++;
    tile -= a.classes[index].first_tile;
    return place{index, tile / a.col_tiles * BM, tile % a.col_tiles * BN};
}

/* ---- loads ---- */

__device__ __forceinline__ void load_filter(u32 to, const mica_tensor_map *map, u32 bar, int inner, const int tap[3],
                                            int outer)
{
    if constexpr (AXES == 1)
        tma_load(to, map, bar, inner, tap[2], outer);
    else if constexpr (AXES == 2)
        tma_load(to, map, bar, inner, tap[2], tap[1], outer);
    else
        tma_load(to, map, bar, inner, tap[2], tap[1], tap[0], outer);
}

__device__ __forceinline__ void load_stage(const mica_conv_sm90_args &a, const place &p, const int at[3], int n,
                                           const int tap[3], int k, u32 to, u32 bar)
{
    const mica_conv_class &c = a.classes[p.index];
    int away[3], filter[3];
#pragma unroll
    for (int d = 0; d < 3; d++) {
        away[d] = tap[d] * a.tap_step[d];
        filter[d] = c.filter[d] + tap[d] * c.filter_step[d];
    }
    mbarrier_arrive_expect(bar, STAGE_BYTES);
    load_image(to, &a.image[p.index], bar, k, at, n, away);
    if constexpr (FILTER_MN) {
        for (int j = 0; j < BN; j += 64)
            load_filter(to + IMAGE_BYTES + j * ROW, &a.filter, bar, p.col + j, filter, k);
    } else {
        load_filter(to + IMAGE_BYTES, &a.filter, bar, k, filter, p.col);
    }
}

__device__ __forceinline__ void produce(const mica_conv_sm90_args &a, u32 stages, u32 full, u32 empty)
{
    ring r = {0, 1};
    for (int tile = (int)blockIdx.x; tile < a.tiles; tile += (int)gridDim.x) {
        const place p = find(a, tile);
        const mica_conv_class &c = a.classes[p.index];
        int at[3], tap[3];
        const int n = position(c.count, p.row, at);
#pragma unroll
        for (int d = 0; d < 3; d++) at[d] = c.start[d] + at[d] * a.step[d];
        for (tap[0] = 0; tap[0] < c.taps[0]; tap[0]++)
            for (tap[1] = 0; tap[1] < c.taps[1]; tap[1]++)
                for (tap[2] = 0; tap[2] < c.taps[2]; tap[2]++)
                    for (int k = 0; k < a.terms; k += 64, r.advance()) {
                        mbarrier_wait(empty + 8 * r.stage, r.parity);
                        load_stage(a, p, at, n, tap, k, stages + r.stage * STAGE_BYTES, full + 8 * r.stage);
                    }
    }
}

/* ---- products ---- */

/* One stage: a warpgroup's rows by all columns. */
__device__ __forceinline__ void multiply(float (&sum)[PARTS][BN / 2], u32 image, u32 filter, bool more)
{
    const u64 left = wgmma_operand<ROW>(image, 16, 8 * ROW);
    const u64 right = wgmma_operand<ROW>(filter, FILTER_MN ? CHUNK : 16, 8 * ROW);
    wgmma_fence();
#pragma unroll
    for (int z = 0; z < 64 / 16; z++)
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            mma(sum[i], wgmma_advance(left, i * CHUNK + z * 32), wgmma_advance(right, FILTER_MN ? z * 16 * ROW : z * 32),
                more || z > 0);
    wgmma_commit();
}

/* ---- results ---- */

__device__ __forceinline__ float finish(const mica_conv_sm90_args &a, float sum, float old, int channel,
                                        long long residual)
{
    return epilogue(a.epilogue, a.alpha * sum + old, (long long)channel, residual);
}

/* Two 16-bit results. */
__device__ __forceinline__ u32 pack(const float v[2])
{
    const out_t pair[2] = {narrow<out_t>(v[0]), narrow<out_t>(v[1])};
    u32 word;
    memcpy(&word, pair, sizeof word);
    return word;
}

/* Four lanes with four words each: lane q gets word q of all. */
__device__ __forceinline__ void exchange(u32 (&w)[4], int lane)
{
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & bit) continue;
            const bool upper = lane & bit;
            const u32 got = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i + bit], bit);
            w[i] = upper ? got : w[i];
            w[i + bit] = upper ? w[i + bit] : got;
        }
}

/* beta times what the result held, of columns c and c + 1. */
__device__ __forceinline__ void old_content(const mica_conv_sm90_args &a, const out_t *at, int c, float old[2])
{
    old[0] = old[1] = 0;
    if (a.beta == 0) return;
#pragma unroll
    for (int e = 0; e < 2; e++)
        if (c + e < a.cols) old[e] = a.beta * widen<float>(at[(c + e) * a.to.c]);
}

/* The two results of a row that this thread holds in block j of 8 columns. */
__device__ __forceinline__ void finish_pair(const mica_conv_sm90_args &a, const out_t *at, long long residual, int c,
                                            const float *sum, float v[2])
{
    float old[2];
    old_content(a, at, c, old);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        v[e] = 0;
        if (VECTOR > 1 || c + e < a.cols)
            v[e] = finish(a, sum[e], old[e], c + e, residual + (RESIDUAL ? (c + e) * a.residual.c : 0));
    }
}

__device__ __forceinline__ void store_pair(const mica_conv_sm90_args &a, out_t *at, int c, const float v[2])
{
    if constexpr (VECTOR == 2) {
        const out_t w[2] = {narrow<out_t>(v[0]), narrow<out_t>(v[1])};
        store_vector<2>(at + c, w);
    } else {
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (c + e < a.cols) at[(c + e) * a.to.c] = narrow<out_t>(v[e]);
    }
}

/* 32 columns of one row, in a quad of lanes. */
__device__ __forceinline__ void store_columns(const mica_conv_sm90_args &a, out_t *at, long long residual, bool exists,
                                              int col, const float *sum)
{
    const int lane = (int)threadIdx.x & 3;
    u32 words[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int c = col + 8 * j + 2 * lane;
        float v[2] = {};
        if (exists && c < a.cols) finish_pair(a, at, residual, c, sum + 2 * j, v);
        if constexpr (VECTOR == 8)
            words[j] = pack(v);
        else if (exists && c < a.cols)
            store_pair(a, at, c, v);
    }
    if constexpr (VECTOR == 8) {
        exchange(words, lane);
        if (exists && col + 8 * lane < a.cols) *(uint4 *)(at + col + 8 * lane) = *(const uint4 *)words;
    }
}

__device__ __forceinline__ void store(const mica_conv_sm90_args &a, const place &p, int group,
                                      const float (&sum)[PARTS][BN / 2])
{
    const mica_conv_class &c = a.classes[p.index];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5 & 3;
    out_t *out[2 * PARTS];
    long long residual[2 * PARTS];
    bool exists[2 * PARTS];
#pragma unroll
    for (int i = 0; i < 2 * PARTS; i++) {
        const int row = p.row + (group * PARTS + i / 2) * 64 + warp * 16 + i % 2 * 8 + lane / 4;
        int at[3];
        const long long n = position(c.count, row, at);
        exists[i] = row < c.pixels;
        out[i] = (out_t *)a.out + (c.out + n * a.to.n + at[0] * a.to.s[0] + at[1] * a.to.s[1] + at[2] * a.to.s[2]);
        residual[i] = 0;
        if constexpr (RESIDUAL)
            residual[i] = c.residual + n * a.residual.n + at[0] * a.residual.s[0] + at[1] * a.residual.s[1] +
                          at[2] * a.residual.s[2];
    }
#pragma unroll
    for (int j = 0; j < BN / 32; j++)
#pragma unroll
        for (int i = 0; i < 2 * PARTS; i++) {
            float part[8];
#pragma unroll
            for (int e = 0; e < 8; e++) part[e] = sum[i / 2][16 * j + e / 2 * 4 + i % 2 * 2 + e % 2];
            store_columns(a, out[i], residual[i], exists[i], p.col + 32 * j, part);
        }
}

__device__ __forceinline__ void consume(const mica_conv_sm90_args &a, int group, u32 stages, u32 full, u32 empty)
{
    const bool leader = (threadIdx.x & 127) == 0;
    float sum[PARTS][BN / 2];
    ring r = {0, 0};
    for (int tile = (int)blockIdx.x; tile < a.tiles; tile += (int)gridDim.x) {
        const place p = find(a, tile);
        const mica_conv_class &c = a.classes[p.index];
        const int steps = c.taps[0] * c.taps[1] * c.taps[2] * ((a.terms + 63) / 64);
        int last = -1;
        if (steps == 0)
#pragma unroll
            for (int i = 0; i < PARTS * BN / 2; i++) sum[i / (BN / 2)][i % (BN / 2)] = 0;
#pragma unroll 1
        for (int k = 0; k < steps; k++, r.advance()) {
            const u32 image = stages + r.stage * STAGE_BYTES;
            mbarrier_wait(full + 8 * r.stage, r.parity);
            multiply(sum, image + group * PARTS * CHUNK, image + IMAGE_BYTES, k > 0);
            wgmma_wait<1>();
            if (leader && last >= 0) mbarrier_arrive(empty + 8 * last);
            last = r.stage;
        }
        wgmma_wait<0>();
        if (leader && last >= 0) mbarrier_arrive(empty + 8 * last);
        store(a, p, group, sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_sm90(const __grid_constant__ mica_conv_sm90_args a)
{
    const u32 stages = ring_memory(), full = ring_barriers(), empty = full + 8 * STAGES;
    const int group = uniform((int)threadIdx.x / 128) - 1;
    if (group < 0) {
        registers_give<40>();
        if (threadIdx.x == 0) produce(a, stages, full, empty);
    } else {
        registers_take<232>();
        consume(a, group, stages, full, empty);
    }
}
