/* SPDX-License-Identifier: Apache-2.0
 * Windows that samples place. Constants: AXES (of x), WIDE (windows are placed in f64), BLOCK and those of
 * pool.cuh, of windows as high as WINDOW_ where BAKED; type sample_t. */
#pragma once
#include "kernels/overlap.cuh"
#include "ops/pool/pool.cuh"

static_assert(MODE == MAX && !ADAPTIVE && !DILATED, "windows of neighbours");

/* Axes that x lacks are the first of the three. */
template <int AXIS> __device__ __forceinline__ mica_pool_steps steps_of(const mica_pool_fractional_args &f, const place &p)
{
    double sample = 0;
    if constexpr (AXIS >= 3 - AXES) {
        const long long at = p.n * f.samples_strides[0] + p.c * f.samples_strides[1];
        sample = widen<double>(((const sample_t *)f.samples)[at + (AXIS - (3 - AXES)) * f.samples_strides[2]]);
    }
    return mica_pool_steps_of(&f.pool.axes[AXIS], f.by[AXIS], sample, WIDE);
}
