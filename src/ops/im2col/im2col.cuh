/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of im2col share. Constants: AXES (of the image), WIDE (positions or counts do
 * not fit 31 bits), BLOCK. */
#pragma once
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "kernels/vector.cuh"
#include "ops/im2col/im2col_args.h"

#define INLINE __device__ __forceinline__

template <bool B, typename T, typename F> struct either {
    typedef F type;
};
template <typename T, typename F> struct either<true, T, F> {
    typedef T type;
};
typedef either<WIDE, s64, s32>::type coord_t;
typedef either<WIDE, u64, u32>::type count_t;

constexpr int FIRST = MICA_IM2COL_AXES - AXES; /* axis */

struct coords_t {
    coord_t at[MICA_IM2COL_AXES];
};

/* rest % size, and rest / size in rest. */
INLINE coord_t split_off(count_t &rest, long long size)
{
    const count_t q = rest / (count_t)size, r = rest - q * (count_t)size;
    rest = q;
    return (coord_t)r;
}
