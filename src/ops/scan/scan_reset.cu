/* SPDX-License-Identifier: Apache-2.0
 * No block of a row has begun, and none is there. A kernel, since what follows is then launched early. */
#include "kernels/overlap.cuh"
#include "ops/scan/scan_args.h"

extern "C" __global__ void __launch_bounds__(256) scan_reset(const mica_scan_args a)
{
    overlap_wait();
    for (long long i = blockIdx.x * 256ll + threadIdx.x; i < a.number_count; i += gridDim.x * 256ll) a.numbers[i] = 0;
}
