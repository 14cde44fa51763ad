/* SPDX-License-Identifier: Apache-2.0
 * The mean or sum of the forward blocks' shares, by one block in a fixed order. Constants: BLOCK (a
 * power of two), REDUCTION, MEAN, IGNORE, WEIGHTED; types loss_t, label_t, weight_t, counted_t. */
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "ops/cross_entropy/cross_entropy.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) cross_entropy_reduce(const mica_cross_entropy_args args)
{
    overlap_wait();
    __shared__ partial_sum shares[BLOCK];
    partial_sum mine = {0, 0};
    for (int i = threadIdx.x; i < args.partials; i += BLOCK) {
        mine.sum += partial_of(args)[i].sum;
        mine.counted += partial_of(args)[i].counted;
    }
    shares[threadIdx.x] = mine;
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x >= half) continue;
        shares[threadIdx.x].sum += shares[threadIdx.x + half].sum;
        shares[threadIdx.x].counted += shares[threadIdx.x + half].counted;
    }
    if (threadIdx.x != 0) return;
    double sum = shares[0].sum, counted = (double)shares[0].counted;
    *(loss_t *)args.loss = narrow<loss_t>(REDUCTION == MEAN ? sum / counted : sum);
}
