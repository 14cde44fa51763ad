/* SPDX-License-Identifier: Apache-2.0
 * What other kernels of lrn left: results that are not finite, of which sums that leave the range of ordinary numbers
 * are found again, as fractions and exponents. Nothing but a load of each block where nothing was left. Constants
 * BACKWARD, BLOCK; types x_t, real, int_t (holds every index). */
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "ops/lrn/lrn_args.h"

#define INLINE __device__ __forceinline__
#define LRN    INLINE
#define INFINITY INFINITY_F

INLINE float frexp_of(float v, int *e) { return frexpf(v, e); }
INLINE double frexp_of(double v, int *e) { return frexp(v, e); }
INLINE float ldexp_of(float v, int e) { return ldexpf(v, e); }
INLINE double ldexp_of(double v, int e) { return ldexp(v, e); }
INLINE float exp2_of(float v) { return exp2f(v); }
INLINE double exp2_of(double v) { return exp2(v); }
INLINE float log2_of(float v) { return log2f(v); }
INLINE double log2_of(double v) { return log2(v); }
INLINE float rint_of(float v) { return rintf(v); }
INLINE double rint_of(double v) { return rint(v); }
INLINE float floor_of(float v) { return floorf(v); }
INLINE double floor_of(double v) { return floor(v); }
INLINE float fma_of(float a, float b, float c) { return fmaf(a, b, c); }
INLINE double fma_of(double a, double b, double c) { return fma(a, b, c); }

INLINE real lrn_get(const mica_lrn_args *, const void *data, s64 at) { return widen<real>(((const x_t *)data)[at]); }

#include "ops/lrn/lrn_body.h"

INLINE bool is_left(const void *data, s64 at) { return !lrn_is_finite(widen<real>(((const x_t *)data)[at])); }

extern "C" __global__ void __launch_bounds__(BLOCK, 1) lrn_careful(const __grid_constant__ mica_lrn_args a)
{
    overlap_wait();
    if (*(const u32 *)a.left == 0) return;
    s64 count = 1;
    for (int d = 0; d < LRN_AXES; d++) count *= a.sizes[d];
    for (s64 i = (s64)blockIdx.x * BLOCK + threadIdx.x; i < count; i += (s64)gridDim.x * BLOCK) {
        s64 at[LRN_AXES];
        int_t rest = (int_t)i;
        for (int d = LRN_AXES - 1; d >= 0; d--) at[d] = rest % (int_t)a.sizes[d], rest /= (int_t)a.sizes[d];
        if constexpr (!BACKWARD) {
            const s64 to = lrn_place(&a.y_step, at);
            if (is_left(a.y, to)) ((x_t *)a.y)[to] = narrow<x_t>(lrn_careful_forward(&a, at));
        } else {
            const s64 to = lrn_place(&a.dx_step, at), to_means = lrn_place(&a.dmeans_step, at);
            if (!is_left(a.dx, to) && !(a.dmeans && is_left(a.dmeans, to_means))) continue;
            real t;
            ((x_t *)a.dx)[to] = narrow<x_t>(lrn_careful_backward(&a, at, &t));
            if (a.dmeans) ((x_t *)a.dmeans)[to_means] = narrow<x_t>(t);
        }
    }
}
