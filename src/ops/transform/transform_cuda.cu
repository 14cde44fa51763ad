/* SPDX-License-Identifier: Apache-2.0
 * Transforms along y's fastest dimension: VEC elements per thread. Constants: LINEAR (one run in both
 * tensors), VEC, BLOCK, and those of transform_convert.cuh. */
#include "kernels/layout.cuh"
#include "kernels/overlap.cuh"
#include "kernels/vector.cuh"
#include "ops/transform/transform_convert.cuh"

static_assert(VEC * sizeof(x_t) <= 16 && VEC * sizeof(y_t) <= 16, "one access per tensor");

__device__ __forceinline__ void work(const mica_transform_args &a, const x_t *x, y_t *y, int n)
{
    x_t in[VEC];
    y_t out[VEC];
    load_some<VEC>(x, in, n, a.aligned);
    if (a.scaled) {
        if (a.beta != 0) load_some<VEC>(y, out, n, a.aligned);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            if (i < n) out[i] = scale(a, in[i], out[i]);
    } else {
#pragma unroll
        for (int i = 0; i < VEC; i++)
            if (i < n) out[i] = convert<y_t>(in[i]);
    }
    store_some<VEC>(y, out, n, a.aligned);
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) transform(const mica_transform_args a)
{
    overlap_wait();
    long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.layout.count) return;
    long long at[2] = {i * VEC, i * VEC};
    int n = VEC;
    if constexpr (LINEAR) {
        if (a.count - at[0] < VEC) n = (int)(a.count - at[0]);
    } else {
        layout_offsets<2>(a.layout, i, at);
    }
    work(a, (const x_t *)a.x + at[1], (y_t *)a.y + at[0], n);
}
