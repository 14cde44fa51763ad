/* SPDX-License-Identifier: Apache-2.0
 * Which group a tile belongs to, found by whole warps from the vector in global memory: as grouped_gemm.h has
 * it. Arguments of kernels have `groups`, that vector, `groups_stride`, `count` of groups, and `limit`, most
 * rows. Constants: FORM, HAS_GROUPS; type groups_t. */
#pragma once
#include "kernels/types.cuh"

enum { FORM_ROWS, FORM_ROOMS, FORM_TERMS };

/* A warp looks at 32 groups at a time, one per lane: prefix maxima make ends of what the vector says,
 * whatever that is, prefix sums number the tiles. Tiles must be asked for in ascending order. */
template <typename I, int TILE_ROWS> struct groups_walk {
    I base, before, ended; /* group of lane 0, tiles and end before it */
    I from, rows, through; /* of this lane's group: rows (or terms), tiles up to and with its own */
    I tiles;

    template <typename A> __device__ __forceinline__ void load(const A &args, I plane_rows, I tiles_across)
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
        tiles = FORM == FORM_TERMS ? (g < args.count ? plane_rows : 0) : (rows + TILE_ROWS - 1) / TILE_ROWS;
        tiles *= tiles_across;
        through = tiles;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const I other = __shfl_up_sync(~0u, through, step);
            if (lane >= step) through += other;
        }
        through += before;
    }

    template <typename A> __device__ __forceinline__ void begin(const A &args, I plane_rows, I tiles_across)
    {
        base = before = ended = 0;
        load(args, plane_rows, tiles_across);
    }

    struct found {
        I group, from, rows; /* rows or terms */
        I tile;              /* of the group */
        bool there;
    };

    template <typename A> __device__ __forceinline__ found find(const A &args, I tile, I plane_rows, I tiles_across)
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
