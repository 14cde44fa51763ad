/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of moe_permute and moe_unpermute share. */
#pragma once
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "kernels/vector.cuh"
#include "ops/moe_permute/moe_permute_args.h"

typedef mica_moe_permute_args arguments;

/* Where choice c of a map of tokens x k lies. */
__device__ __forceinline__ s64 choice_offset(const arguments &a, s64 c, s64 token, s64 slot)
{
    const s64 t = a.choices <= 0x7fffffff ? (s64)((u32)c / (u32)a.k) : c / a.k;
    return t * token + (c - t * a.k) * slot;
}
__device__ __forceinline__ s64 token_of(const arguments &a, s64 c)
{
    return a.choices <= 0x7fffffff ? (s64)((u32)c / (u32)a.k) : c / a.k;
}

/* The choice's expert, -1 for none. */
__device__ __forceinline__ int expert_of(const arguments &a, s64 c, s64 end)
{
    if (c >= end) return -1;
    const int e = ((const int *)a.indices)[choice_offset(a, c, a.index_token, a.index_slot)];
    return e >= 0 && e < a.experts ? e : -1;
}
