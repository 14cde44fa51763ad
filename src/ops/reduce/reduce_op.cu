/* SPDX-License-Identifier: Apache-2.0
 * Reductions of slices, or of parts of slices, whose states then wait in the workspace. Constants and
 * types: those of reduce.cuh and reduce_op.cuh. */
#include "ops/reduce/reduce.cuh"
#include "ops/reduce/reduce_op.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) reduce(const mica_reduce_args args)
{
    overlap_wait();
    reduce_slices<state>(args, [&](long long slice, long long at, const state &s) {
        if (args.parts) ((state *)args.parts)[blockIdx.y * args.kept.count + slice] = s;
        else store_result(args, at, s);
    });
}
