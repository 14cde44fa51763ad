/* SPDX-License-Identifier: Apache-2.0
 * Which group a tile belongs to, and what the group has. Constants: those of kernels/groups.cuh (FORM:
 * grouped_form) and of gemm_device.cuh. */
#pragma once
#include "kernels/groups.cuh"
#include "ops/gemm/cuda/gemm_device.cuh"
#include "ops/grouped_gemm/grouped_gemm_args.h"

/* Tiles of this kernel. */
template <typename I> using group_walk = groups_walk<I, TILE_M>;

__device__ __forceinline__ s64 in_group(const grouped_step &step, s64 group, s64 from)
{
    return group * step.group + from * step.start;
}

__device__ __forceinline__ companions companions_of(const grouped_args &args, s64 group, s64 from)
{
    companions of = {args.gemm.scale_a, args.gemm.scale_b, args.gemm.epilogue, in_group(args.r, group, from)};
    if constexpr (HAS_SCALE_A || BLOCKS) of.scale_a += in_group(args.scale_a, group, from);
    if constexpr (HAS_SCALE_B || BLOCKS) of.scale_b += in_group(args.scale_b, group, from);
    of.epilogue.bias = (const bias_t *)of.epilogue.bias + in_group(args.bias, group, from);
    of.epilogue.scale = (const scale_t *)of.epilogue.scale + in_group(args.scale, group, from);
    of.epilogue.shift = (const shift_t *)of.epilogue.shift + in_group(args.shift, group, from);
    return of;
}
