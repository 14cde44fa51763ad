/* SPDX-License-Identifier: Apache-2.0
 * How many steps a sequence has. */
#pragma once

template <typename A> __device__ __forceinline__ long long rnn_length(const A &a, long long b)
{
    if (!a.lengths) return a.steps;
    const long long at = b * a.length_stride;
    return a.long_lengths ? ((const long long *)a.lengths)[at] : ((const int *)a.lengths)[at];
}
