/* SPDX-License-Identifier: Apache-2.0
 * Which group a tile belongs to, found by whole warps from the vector in global memory. Constants: FORM
 * (grouped_form), HAS_GROUPS; type groups_t; those of gemm_device.cuh. */
#pragma once
#include "ops/gemm/gemm_device.cuh"
#include "ops/gemm/grouped_args.h"

enum { FORM_ROWS, FORM_ROOMS, FORM_TERMS };

/* A warp looks at 32 groups at a time, one per lane: prefix maxima make ends of what the vector says,
 * whatever that is, prefix sums number the tiles. Tiles must be asked for in ascending order. */
struct group_walk {
    s64 base, before, ended; /* group of lane 0, tiles and end before it */
    s64 from, rows, through; /* of this lane's group: rows (or terms), tiles up to and with its own */
    s64 tiles;

    __device__ __forceinline__ void load(const grouped_args &args, s64 plane_rows, s64 tiles_across)
    {
        const int lane = (int)threadIdx.x % 32;
        const s64 g = base + lane;
        s64 v = 0;
        if (g < args.count) v = HAS_GROUPS ? (s64)((const groups_t *)args.groups)[g * args.groups_stride] : args.limit;
        v = min(max(v, 0LL), args.limit);
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
            const s64 other = __shfl_up_sync(~0u, through, step);
            if (lane >= step) through += other;
        }
        through += before;
    }

    __device__ __forceinline__ void begin(const grouped_args &args, s64 plane_rows, s64 tiles_across)
    {
        base = before = ended = 0;
        load(args, plane_rows, tiles_across);
    }

    struct found {
        s64 group, from, rows; /* rows or terms */
        s64 tile;              /* of the group */
        bool there;
    };

    __device__ __forceinline__ found find(const grouped_args &args, s64 tile, s64 plane_rows, s64 tiles_across)
    {
        for (;;) {
            const s64 last = __shfl_sync(~0u, through, 31);
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

__device__ __forceinline__ s64 in_group(const grouped_step &step, const group_walk::found &g)
{
    return g.group * step.group + g.from * step.start;
}

__device__ __forceinline__ companions companions_of(const grouped_args &args, const group_walk::found &g)
{
    companions of = {args.gemm.scale_a, args.gemm.scale_b, args.gemm.epilogue, in_group(args.r, g)};
    if constexpr (HAS_SCALE_A || BLOCKS) of.scale_a += in_group(args.scale_a, g);
    if constexpr (HAS_SCALE_B || BLOCKS) of.scale_b += in_group(args.scale_b, g);
    of.epilogue.bias = (const bias_t *)of.epilogue.bias + in_group(args.bias, g);
    of.epilogue.scale = (const scale_t *)of.epilogue.scale + in_group(args.scale, g);
    of.epilogue.shift = (const shift_t *)of.epilogue.shift + in_group(args.shift, g);
    return of;
}
