/* SPDX-License-Identifier: Apache-2.0
 * Depthwise problems whose planes follow each other in memory, and the tiles that a block works on,
 * for the engine "planar". */
#ifndef MICA_OPS_CONV_DEPTHWISE_PLANAR_H
#define MICA_OPS_CONV_DEPTHWISE_PLANAR_H

#include "ops/conv/depthwise/depthwise.h"

typedef struct conv_planar_tile {
    int planes, tile_h;             /* of a block; several planes: tile_h is all rows */
    int thread_h, thread_w, strips; /* of a thread, how many */
    bool staged;                    /* results leave through shared memory */
    int tile_w, tiles;              /* all columns in whole strips; of a plane */
    int strip_threads;              /* of a plane */
    int to_access;                  /* pixels of a store */
    int blocks, shared;             /* of a multiprocessor; bytes */
    bool held;                      /* weights stay in registers */
    /* of a block's tile: instructions of warps, wavefronts of shared memory, sectors stored */
    double issue, fronts, sectors;
} conv_planar_tile;

/* Refuses what conv_depthwise_shape_make takes and this engine does not. */
mica_status conv_planar_fits(const conv_depthwise_shape *s, mica_why *why);
/* Whether results may be staged: the engine writes packed planes, too. */
bool conv_planar_stages(const conv_depthwise_shape *s);
bool conv_planar_filter_packed(const conv_depthwise_shape *s);
/* Fills the rest of a tile whose first six members are set; false if the device cannot hold it. */
bool conv_planar_tile_complete(const conv_depthwise_shape *s, const mica_device_info *device,
                               conv_planar_tile *t);
/* The best first; returns how many, at most `most`. */
int conv_planar_tiles(const conv_depthwise_shape *s, const mica_device_info *device,
                      conv_planar_tile *tiles, int most);
/* Tiles of all planes; wgrad: of one block's channels in all images. */
double conv_planar_count(const conv_depthwise_shape *s, const conv_planar_tile *t);
/* wgrad: blocks that share no tile's sums. */
double conv_planar_wgrad_blocks(const conv_depthwise_shape *s, const conv_planar_tile *t);
/* Milliseconds without launches, in `blocks` blocks of all; memory_ms: what memory alone would
 * take. */
double conv_planar_ms(const conv_depthwise_shape *s, const mica_device_info *device,
                      const conv_planar_tile *t, double blocks, double memory_ms);

#endif
