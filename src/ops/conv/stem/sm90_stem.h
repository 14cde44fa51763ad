/* SPDX-License-Identifier: Apache-2.0
 * First layers on Hopper: what is taken, and how a plan's kernel divides it. */
#ifndef MICA_OPS_CONV_STEM_SM90_STEM_H
#define MICA_OPS_CONV_STEM_SM90_STEM_H

#include "ops/conv/stem/stem.h"

enum { CONV_SM90_STEM_CHOICES = 2 };

typedef struct conv_sm90_stem_shape {
    conv_stem_shape stem;
    int pair;  /* pixels of b of a row of the product */
    int lead;  /* elements of a window that count for nothing */
    int shift; /* words before the first window */
    int step;  /* words from row to row of the product */
    int steps; /* of the epilogue */
} conv_sm90_stem_shape;

typedef struct conv_sm90_stem_layout {
    conv_stem_layout tiles; /* fwd: groups; wgrad: none of what it alone has */
    int pitch, image_h;     /* words of a row, rows of a plane of the image in shared memory */
    int stages;             /* tiles in shared memory */
    int filters, box;       /* wgrad: of a block; of a box in shared memory */
    int m_tiles, shares;    /* wgrad: of a block, 32 words each; warpgroups for one tile of b */
    int filter_chunks;      /* wgrad: blocks for all filters */
    int batch;              /* wgrad: slices of 16 rows of the product at once */
} conv_sm90_stem_layout;

mica_status conv_sm90_stem_shape_make(const mica_conv_desc *d, const mica_device_info *device,
                                      conv_sm90_stem_shape *s, mica_why *why);
/* What tiles of tile_h x tile_w pixels of b lead to; false if the device cannot hold it. */
bool conv_sm90_stem_layout_make(const conv_sm90_stem_shape *s, const mica_device_info *device,
                                int tile_h, int tile_w, conv_sm90_stem_layout *l);
/* The quickest layouts, best first. */
int conv_sm90_stem_choices(const conv_sm90_stem_shape *s, const mica_device_info *device,
                           conv_sm90_stem_layout *best);
/* Blocks that divide the tiles, each for all chunks of filters. */
int conv_sm90_stem_parts(const conv_sm90_stem_layout *l, const mica_device_info *device);
/* Without launches. */
double conv_sm90_stem_milliseconds(const mica_device_info *device, const conv_sm90_stem_layout *l,
                                   int parts);

#endif
