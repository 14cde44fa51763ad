/* SPDX-License-Identifier: Apache-2.0
 * The weights of the three axes, a thread per row: few thousand, which the kernel behind this one finds
 * in the cache. Constants: BACKWARD, BLOCK; types acc_t, int_t. */
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"

#define RESIZE __device__ __forceinline__
typedef acc_t weight_t;
#include "ops/resize/resize_body.h"

extern "C" __global__ void __launch_bounds__(BLOCK) resize_table(const __grid_constant__ mica_resize_args a)
{
    overlap_wait();
    s64 i = (s64)blockIdx.x * BLOCK + threadIdx.x;
    int axis = 0;
    while (axis < 3 && i >= a.table[axis].rows) i -= a.table[axis++].rows;
    if (axis == 3) return;
    const mica_resize_table &t = a.table[axis];
    const s64 first = resize_row(&a.axes[axis], BACKWARD, i, (acc_t *)t.weights + i * t.most, t.most, nullptr);
    ((int_t *)t.first)[i] = (int_t)first;
}
