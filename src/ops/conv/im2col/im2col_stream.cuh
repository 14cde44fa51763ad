/* SPDX-License-Identifier: Apache-2.0
 * Pieces of mica_conv_stream: piece i is from length * i / pieces to where the next one begins. */
#pragma once
#include "ops/conv/im2col/im2col_args.h"

/* The piece that a block of pixels is in. */
__device__ __forceinline__ int piece_of(long long at, int pieces, long long length)
{
    return (int)(((at + 1) * pieces - 1) / length);
}

/* The tile of a row (of all groups') and a column. */
__device__ __forceinline__ int tile_of(const mica_conv_stream &s, int row, int column)
{
    const int group = row / s.group_rows, down = (row - group * s.group_rows) / s.tile_rows;
    return (group * s.group_tiles + down) * s.col_tiles + column / s.tile_cols;
}

/* Parts of a tile. */
__device__ __forceinline__ int parts_of(const mica_conv_stream &s, int tile)
{
    const long long from = (long long)tile * s.blocks;
    return piece_of(from + s.blocks - 1, s.pieces, s.length) - piece_of(from, s.pieces, s.length) + 1;
}
