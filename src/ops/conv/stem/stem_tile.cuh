/* SPDX-License-Identifier: Apache-2.0
 * Where tiles of the images lie. Constants: TILE_H, TILE_W. */
#pragma once
#include "ops/conv/stem/stem_args.h"

struct tile_place {
    int y, x; /* of the first pixel of b; dgrad: cell */
    s64 n;
};

__device__ __forceinline__ tile_place place_of(const conv_stem_args &a, unsigned tile)
{
    tile_place p;
    unsigned rest = mica_fastdiv_of(a.across, tile);
    p.x = (int)(tile - rest * a.across.divisor) * TILE_W;
    tile = rest, rest = mica_fastdiv_of(a.down, tile);
    p.y = (int)(tile - rest * a.down.divisor) * TILE_H;
    p.n = rest;
    return p;
}
