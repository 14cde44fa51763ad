/* SPDX-License-Identifier: Apache-2.0
 * Tiles of the slab engines and what they read, as slab.cuh counts it; their plans and runs.
 */
#ifndef MICA_OPS_CONV_SLAB_SLAB_TILE_H
#define MICA_OPS_CONV_SLAB_SLAB_TILE_H

#include "ops/conv/slab/slab_args.h"
#include "ops/conv/im2col/im2col_run.h"

enum { CONV_SLAB_MOST = 256 }; /* positions of a tile */
enum { CONV_SLAB_CHANNELS = 64, CONV_SLAB_PIXEL = 128, CONV_SLAB_TAP = 64 * 128 };
/* Left of a block's shared memory for barriers and for placing the slots at a multiple of 1024. */
enum { CONV_SLAB_RESERVE = 2048 };

/* Knobs of both engines: rows of a tile, and whether it is flat. */
enum { CONV_SLAB_HEIGHT, CONV_SLAB_FLAT };

typedef struct conv_slab_tile {
    int rows, eights; /* of pixels; groups of 8 positions: what a product has for columns */
    int line;         /* positions of a row, the image's and those of its padding; 0: 8 across */
    int across, down; /* tiles of a plane */
    int wide, tall;   /* boxes of results */
    int64_t slab;     /* bytes of what is read, and of zeros behind it */
    int64_t zeros;
} conv_slab_tile;

/* False if TMA or a product cannot; flat: whole rows, one after the other. */
bool conv_slab_tile_make(const mica_conv_sm90_shape *s, const mica_config *config,
                         conv_slab_tile *t);
/* Cycles of a problem by a config, INFINITY where it does not fit. */
typedef double conv_slab_cost(const mica_conv_sm90_shape *s, const mica_device_info *device,
                              const mica_config *config);
/* The config of least cycles and the next: those of `heights` rows, which 0 ends, and all flat
 * ones. Returns how many there are. */
int conv_slab_configs(const mica_conv_sm90_shape *s, const mica_device_info *device,
                      const int *heights, conv_slab_cost *cost, mica_config configs[2]);
/* The lattice's map, of as many pixels as a tile reads of it; none if no tap does. */
void conv_slab_image_map(const mica_conv_sm90_shape *s, const conv_slab_tile *t, int lattice,
                         mica_tensor_map_spec *map);
void conv_slab_tile_prologue(const mica_conv_sm90_shape *s, const conv_slab_tile *t, mica_text *p);
/* What does not depend on how an engine deals with channels. */
void conv_slab_tile_args(const mica_conv_desc *d, const mica_conv_sm90_shape *s,
                         const conv_slab_tile *t, mica_conv_slab_args *a);
/* Tiles of all images, of one chunk of channels. */
int64_t conv_slab_tiles(const mica_conv_sm90_shape *s, const conv_slab_tile *t);

/* What both engines' build makes, and their run. sm90.image: by lattice; sm90.other: none for
 * narrow groups' filters. */
typedef struct conv_slab_plan {
    conv_sm90_plan sm90;
    conv_slab_tile tile;
    mica_conv_slab_args args;
} conv_slab_plan;
mica_status conv_slab_run(const mica_plan *plan, const mica_run *run);

#endif
