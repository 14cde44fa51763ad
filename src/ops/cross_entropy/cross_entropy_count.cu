/* SPDX-License-Identifier: Apache-2.0
 * How many rows count, by block: for the gradient of a mean with ignored rows. Constants: BLOCK,
 * IGNORE, WEIGHTED; types label_t, weight_t, counted_t. */
#include "kernels/overlap.cuh"
#include "ops/cross_entropy/cross_entropy.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) cross_entropy_count(const mica_cross_entropy_args args)
{
    overlap_wait();
    __shared__ counted_t scratch[32];
    long long first = (long long)blockIdx.x * BLOCK + threadIdx.x;
    counted_t counted = block_sum(count_rows(args, first, (long long)gridDim.x * BLOCK), scratch);
    if (threadIdx.x == 0) partial_of(args)[blockIdx.x].counted = counted;
}
