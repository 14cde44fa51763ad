/* SPDX-License-Identifier: Apache-2.0
 * One element of a transform. Constants and types: SAME (x_t is y_t: bits are moved), x_t, y_t,
 * plain_t (holds every value of x_t). */
#pragma once
#include "ops/transform/transform_args.h"

template <typename Y, typename X> __device__ __forceinline__ Y convert(X v)
{
    if constexpr (SAME)
        return v;
    else
        return narrow<Y>(widen<plain_t>(v));
}

/* In f64 and rounded once, with the same operations as on the host. */
__device__ __forceinline__ y_t scale(const mica_transform_args &a, x_t v, y_t old)
{
    double x = widen<double>(v);
    if (a.beta == 0) return narrow<y_t>(__dmul_rn(a.alpha, x));
    return narrow<y_t>(fma(a.alpha, x, __dmul_rn(a.beta, widen<double>(old))));
}
