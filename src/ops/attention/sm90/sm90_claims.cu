/* SPDX-License-Identifier: Apache-2.0
 * Resets the work counter. A kernel, since behind a memset there would be no programmatic dependent launch. */
#include "kernels/overlap.cuh"
#include "ops/attention/sm90/sm90_args.h"

extern "C" __global__ void __launch_bounds__(32) attention_sm90_claims(const attention_sm90_claims_args a)
{
    overlap_wait();
    if (threadIdx.x == 0) *a.claims = 0;
}
