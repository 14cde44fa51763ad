/* SPDX-License-Identifier: Apache-2.0
 * Convolution by Hopper's TMA and tensor cores where sums are short, as with 1x1 filters: a
 * block's columns of the filter stay in shared memory, and only pixels pass through the ring. Two
 * warpgroups ping-pong on tiles of BM pixels: one stores while the other multiplies. One class
 * of pixels. Constants: AXES of the image; tile BM x BN; STAGES; STEPS (of a tile: taps by 64 terms);
 * those of im2col_direct.cuh and im2col_store.cuh; type in_t. */
#include "kernels/overlap.cuh"
#include "ops/conv/im2col/im2col_direct.cuh"
#include "ops/conv/im2col/im2col_store.cuh"

constexpr int STAGE_BYTES = BM * ROW, STEP_BYTES = BN * ROW;
constexpr int PARTS = BM / 64;
static_assert(BM % 64 == 0 && BN % 64 == 0 && BN <= 256 && PARTS * BN <= 256, "the accumulators fit");

/* Persistent schedule: column, first row tile, stride, count. */
struct way {
    int col, first, step, count;
};

__device__ __forceinline__ way own_way(const mica_conv_sm90_args &a)
{
    const int rows = a.tiles / a.col_tiles;
    way w;
    w.col = (int)blockIdx.x % a.col_tiles * BN;
    w.first = (int)blockIdx.x / a.col_tiles;
    w.step = (int)gridDim.x / a.col_tiles;
    w.count = (rows - w.first + w.step - 1) / w.step;
    return w;
}

__device__ __forceinline__ void load_filters(const mica_conv_sm90_args &a, int col, u32 filter, u32 ready)
{
    const mica_conv_class &c = a.classes[0];
    step t = {{0, 0, 0}, 0};
    mbarrier_arrive_expect(ready, STEPS * STEP_BYTES);
    for (int k = 0; k < STEPS; k++, t.advance(c, a.terms)) {
        int tap[3];
#pragma unroll
        for (int d = 0; d < 3; d++) tap[d] = c.filter[d] + t.tap[d] * c.filter_step[d];
        load_columns(a, filter + k * STEP_BYTES, ready, col, tap, t.k);
    }
}

__device__ __forceinline__ void produce(const mica_conv_sm90_args &a, u32 filter, u32 stages, u32 full)
{
    const u32 empty = full + 8 * STAGES, ready = empty + 8 * STAGES;
    const mica_conv_class &c = a.classes[0];
    const way w = own_way(a);
    ring<STAGES> r = {0, 1};
    load_filters(a, w.col, filter, ready);
    for (int i = 0; i < w.count; i++) {
        int at[3];
        const int n = position(c.count, (w.first + i * w.step) * BM, at);
#pragma unroll
        for (int d = 0; d < 3; d++) at[d] = c.start[d] + at[d] * a.step[d];
        step t = {{0, 0, 0}, 0};
        for (int k = 0; k < STEPS; k++, r.advance(), t.advance(c, a.terms)) {
            int away[3];
#pragma unroll
            for (int d = 0; d < 3; d++) away[d] = t.tap[d] * a.tap_step[d];
            mbarrier_wait(empty + 8 * r.at, r.parity);
            mbarrier_arrive_expect(full + 8 * r.at, STAGE_BYTES);
            load_image(stages + r.at * STAGE_BYTES, &a.image[0], full + 8 * r.at, t.k, at, n, away);
        }
    }
}

/* A tile's sum; `first` counts the stages before its own. The other warpgroup goes on while the last is multiplied. */
__device__ __forceinline__ void accumulate(float (&sum)[PARTS][BN / 2], int first, u32 filter, u32 stages, u32 full,
                                           turn &t)
{
    const u32 empty = full + 8 * STAGES;
    const bool leader = (threadIdx.x & 127) == 0;
    ring<STAGES> r = {0, 0};
    r.skip(first);
    int last = -1;
    t.begin();
#pragma unroll 1
    for (int k = 0; k < STEPS; k++, r.advance()) {
        mbarrier_wait(full + 8 * r.at, r.parity);
        multiply(sum, stages + r.at * STAGE_BYTES, filter + k * STEP_BYTES, k > 0);
        wgmma_wait<1>();
        if (leader && last >= 0) mbarrier_arrive(empty + 8 * last);
        last = r.at;
    }
    t.end();
    wgmma_wait<0>();
    if (leader) mbarrier_arrive(empty + 8 * last);
}

__device__ __forceinline__ void consume(const mica_conv_sm90_args &a, int group, u32 filter, u32 stages, u32 full)
{
    const u32 ready = full + 8 * 2 * STAGES;
    const u32 all = stages + STAGES * STAGE_BYTES, staging = all + (threadIdx.x / 32 - 4) * (16 * PITCH);
    const way w = own_way(a);
    float sum[PARTS][BN / 2];
    statistics stats;
    if constexpr (STATS) clear(stats);
    turn t(full + 8 * (2 * STAGES + 1), group);
    mbarrier_wait(ready, 0);
    for (int i = group; i < w.count; i += 2) {
        const corner p = {0, (w.first + i * w.step) * BM, w.col};
        if (RESIDUAL_WIDE && a.wide) request_residual(a, p, PARTS);
        accumulate(sum, i * STEPS, filter, stages, full, t);
        store(a, p, staging, sum, stats);
    }
    if constexpr (STATS) store_statistics(a, all, 16 * PITCH, stats);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_sm90_short(const __grid_constant__ mica_conv_sm90_args a)
{
    const u32 filter = ring_memory(), stages = filter + STEPS * STEP_BYTES, full = ring_barriers(1, 1);
    overlap_wait();
    const int group = uniform((int)threadIdx.x / 128) - 1;
    if (group < 0) {
        registers_give<40>();
        if (threadIdx.x == 0) produce(a, filter, stages, full);
    } else {
        registers_take<232>();
        consume(a, group, filter, stages, full);
    }
}
