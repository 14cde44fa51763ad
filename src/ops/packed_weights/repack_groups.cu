/* SPDX-License-Identifier: Apache-2.0
 * Scales and zero points of groups, a column of a group per thread, neighbouring threads along N. Constants of
 * packed_weights.cuh, HAS_SCALES, and ZERO_IS_CODE (zero points are of w's type, else of zero_t). */
#include "ops/packed_weights/packed_weights.cuh"
#include "ops/packed_weights/repack_weights.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) repack_groups(const __grid_constant__ mica_packed_args a)
{
    overlap_wait();
    const s64 i = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.count) return;
    const s64 n = i % a.n, g = i / a.n;
    if constexpr (HAS_SCALES) ((scale_t *)a.w_scales)[n * a.w_scales_n + g * a.w_scales_g] = scale_of(a, g, n);
    if constexpr (HAS_ZEROS) {
        const s64 to = n * a.w_zeros_n + g * a.w_zeros_g;
        if constexpr (ZERO_IS_CODE) put_code<BITS == 8 ? 8 : 4>(a.w_zeros, to, (u32)zero_of(a, g, n));
        else ((zero_t *)a.w_zeros)[to] = narrow<zero_t>((float)zero_of(a, g, n));
    }
}
