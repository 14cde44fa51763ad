/* SPDX-License-Identifier: Apache-2.0
 * What the gradients of attention on sm_80's tensor cores share: weights are formed again from lse. */
#pragma once
#include "ops/attention/sm80/sm80.cuh"

typedef float tile_t[BLOCKS][OTHER / 8][4];

/* A weight as values see it, and the gradient of the product. */
struct pair {
    float weight, ds;
};

/* Of query x and key j: v, dp: products of q and k, of dout and v. */
__device__ __forceinline__ pair find_pair(const attention_cuda_args &args, const units &u, const row &x, int j, float v,
                                          float dp, bool drops)
{
    if (!sees(args, x, j)) return {0, 0};
    float slope;
    /* The difference first: both are large where it is not, and would be rounded. */
    const float p = exp2_of((find_score(args, u, x, j, v, slope) - x.lse) * LOG2E);
    const float keep = !DROPOUT ? 1 : drops ? 0 : (float)args.keep_scale;
    return {p * keep, p * (keep * dp - x.delta) * slope};
}
