/* SPDX-License-Identifier: Apache-2.0
 * How far values lie below their maximum, in all. */
#pragma once
#include "kernels/types.cuh"
#include "kernels/math.cuh"

template <typename A> __device__ __forceinline__ A negative_infinity() { return (A)-INFINITY_F; }

/* Sum of x - max of what has been seen, about the maximum at the time: sums of x itself would lose what
 * elements differ by. Times DEVIATION, so that it cannot overflow. */
template <typename A> struct deviation {
    A sum, seen;
};
constexpr float DEVIATION = 1.0f / (1ll << 32);

/* From now on about a maximum that is higher. Of -inf alone the sum is -inf. */
template <typename A> __device__ __forceinline__ void deviation_lower(deviation<A> &d, A from, A to)
{
    if (d.seen > 0 && from != to) d.sum += d.seen * (from * (A)DEVIATION - to * (A)DEVIATION);
}
/* Of values about that maximum, each is v * DEVIATION less this. */
template <typename A> __device__ __forceinline__ A deviation_shift(A max)
{
    return (max == negative_infinity<A>() ? (A)0 : max) * (A)DEVIATION;
}
