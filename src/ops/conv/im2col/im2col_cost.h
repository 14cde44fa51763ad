/* SPDX-License-Identifier: Apache-2.0
 * Configs of the engine sm90_im2col, and what they cost. */
#ifndef MICA_OPS_CONV_IM2COL_IM2COL_COST_H
#define MICA_OPS_CONV_IM2COL_IM2COL_COST_H

#include "ops/conv/im2col/im2col_shape.h"

/* Knobs. A tile is rows x cols. Forward and dgrad: splits > 1 blocks of a cluster share the terms
 * of a tile; turns: ping-pong, each warpgroup has tiles of its own; held: and the filter stays in
 * shared memory (im2col_short.cu). wgrad: splits parts of each tile, which a cluster of so many
 * blocks adds up and stores if cluster is 1, or, if pieces is not 0, a stream of so many. */
enum {
    MICA_CONV_ROWS,
    MICA_CONV_COLS,
    MICA_CONV_SPLITS,
    MICA_CONV_PIECES,
    MICA_CONV_PINGPONG,
    MICA_CONV_HELD,
    MICA_CONV_CLUSTER
};

/* Bytes of a row in shared memory; of that memory, left for barriers and for placing the ring. */
enum { MICA_CONV_ROW = 128, MICA_CONV_RESERVE = 2048 };

/* wgrad's tiles, and blocks of 64 pixels. */
typedef struct mica_conv_sm90_tiles {
    int64_t rows, cols, all, blocks;
} mica_conv_sm90_tiles;

/* Blocks of the persistent schedule, at most. With statistics all tiles of a block have the same
 * columns. */
int mica_conv_sm90_blocks(const mica_conv_sm90_shape *s, int cols, int units);
/* Steps of 64 terms behind a result of one class. */
int64_t mica_conv_sm90_steps(const mica_conv_sm90_shape *s, int class_index);
/* Columns of a result that pass through shared memory at once, and bytes that takes. */
int mica_conv_sm90_slice(const mica_conv_sm90_shape *s, const mica_config *config);
int mica_conv_sm90_staging(int slice);
mica_conv_sm90_tiles mica_conv_sm90_wgrad_tiles(const mica_conv_sm90_shape *s, int rows, int cols);
/* Parts of a tile's sum, at most. */
int mica_conv_sm90_parts(const mica_conv_sm90_shape *s, const mica_config *config);

int mica_conv_sm90_configs(const mica_conv_sm90_shape *s, const mica_device_info *device,
                           mica_config *configs);
/* Milliseconds. */
double mica_conv_sm90_predict(const mica_conv_sm90_shape *s, const mica_device_info *device,
                              const mica_config *config);

#endif
