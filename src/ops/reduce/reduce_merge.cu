/* SPDX-License-Identifier: Apache-2.0
 * The parts of slices: a warp merges those of one, in a fixed order. Constants and types: those of
 * reduce_op.cuh; THREADS 32. */
#include "ops/reduce/reduce.cuh"
#include "ops/reduce/reduce_op.cuh"

static_assert(THREADS == 32 && ALONG && BESIDE == 1, "a warp for each slice");

extern "C" __global__ void __launch_bounds__(BLOCK) reduce_merge(const mica_reduce_args args)
{
    overlap_wait();
    for (long long first = (long long)blockIdx.x * SLICES; first < args.kept.count; first += (long long)gridDim.x * SLICES) {
        const long long slice = first + slice_in_block();
        if (slice >= args.kept.count) continue;
        state s;
        state_begin(s);
        for (int part = thread_in_slice(); part < args.part_count; part += THREADS)
            state_merge(s, ((const state *)args.parts)[part * args.kept.count + slice]);
        state_merge_lanes(s, THREADS);
        if (thread_in_slice() != 0) continue;
        long long at[2];
        layout_offsets<2>(args.kept, slice, at);
        store_result(args, at[1], s);
    }
}
