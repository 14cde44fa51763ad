/* SPDX-License-Identifier: Apache-2.0
 * Which group a tile belongs to, found by whole warps from the vector in global memory. Constants: FORM
 * (grouped_form), HAS_GROUPS; type groups_t; those of gemm_device.cuh. */
#pragma once
#include "ops/gemm/cuda/gemm_device.cuh"
#include "ops/grouped_gemm/grouped_gemm_args.h"

enum { FORM_ROWS, FORM_ROOMS, FORM_TERMS };

/* A warp looks at 32 groups at a time, one per lane: prefix maxima make ends of what the vector says,
 * whatever that is, prefix sums number the tiles. Tiles must be asked for in ascending order. */
template <typename I> struct group_walk {
    I base, before, ended; /* group of lane 0, tiles and end before it */
    I from, rows, through; /* of this lane's group: rows (or terms), tiles up to and with its own */
    I tiles;

    __device__ __forceinline__ void load(const grouped_args &args, I plane_rows, I tiles_across)
    {
        const int lane = (int)threadIdx.x % 32;
        const I g = base + lane;
        s64 given = 0;
        if (g < args.count) given = HAS_GROUPS ? (s64)((const groups_t *)args.groups)[g * args.groups_stride] : args.limit;
        I v = (I)min(max(given, 0LL), args.limit);
        from = 0;
        rows = v;
        if constexpr (FORM != FORM_ROOMS) {
#pragma unroll
            for (int step = 1; step < 32; step *= 2) v = max(v, __shfl_up_sync(~0u, v, step));
            v = max(v, ended);
            from = __shfl_up_sync(~0u, v, 1);
            if (lane == 0) from = ended;
            rows = v - from;
            ended = __shfl_sync(~0u, v, 31);
        }
        tiles = FORM == FORM_TERMS ? (g < args.count ? plane_rows : 0) : (rows + TILE_M - 1) / TILE_M;
        tiles *= tiles_across;
        through = tiles;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const I other = __shfl_up_sync(~0u, through, step);
            if (lane >= step) through += other;
        }
        through += before;
    }

    __device__ __forceinline__ void begin(const grouped_args &args, I plane_rows, I tiles_across)
    {
        base = before = ended = 0;
        load(args, plane_rows, tiles_across);
    }

    struct found {
        I group, from, rows; /* rows or terms */
        I tile;              /* of the group */
        bool there;
    };

    __device__ __forceinline__ found find(const grouped_args &args, I tile, I plane_rows, I tiles_across)
    {
        for (;;) {
            const I last = __shfl_sync(~0u, through, 31);
            if (tile < last) break;
            before = last;
            base += 32;
            if (base >= args.count) return found{0, 0, 0, 0, false};
            load(args, plane_rows, tiles_across);
        }
        const int lane = __ffs((int)__ballot_sync(~0u, tile < through)) - 1;
        return found{base + lane, __shfl_sync(~0u, from, lane), __shfl_sync(~0u, rows, lane),
                     tile - __shfl_sync(~0u, through - tiles, lane), true};
    }
};

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
