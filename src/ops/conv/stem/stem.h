/* SPDX-License-Identifier: Apache-2.0
 * First layers: what is taken, and how a plan's kernel divides it. */
#ifndef MICA_OPS_CONV_STEM_STEM_H
#define MICA_OPS_CONV_STEM_STEM_H

#include "ops/conv/conv.h"
#include "ops/conv/stem/stem_args.h"

enum { CONV_STEM_CHOICES = 2 };
/* Bytes of shared memory for what epilogues have by channel, besides what a layout counts. */
enum { CONV_STEM_TERMS = 5120 };

/* dgrad: cells of pixels of a, whose values are sums over the same pixels of b
 * (stem_dgrad.cu).
 */
typedef struct conv_stem_cells {
    int steps;              /* pixels of b that a cell is wide */
    int height, width, run; /* of what a block computes of a cell; elements of a row */
    int line, tiles;        /* columns from row to row; 8 columns each */
    int first[2], taps[2];  /* pixels of b around */
    int taken, slots;       /* which tiles have weights in which rows of pixels; how many */
    int slice, slices;      /* filters copied at once */
    double down, across;    /* cells of an image */
} conv_stem_cells;

typedef struct conv_stem_shape {
    mica_conv_geometry g;
    mica_conv_roles roles;
    mica_dtype in, out;
    int channels; /* in shared memory */
    int run, words;
    bool flat, stats;
    conv_stem_cells cells;
} conv_stem_shape;

/* What a plan's kernel is made of. */
typedef struct conv_stem_layout {
    int tile_h, tile_w; /* pixels of b; dgrad: cells */
    int shared;
    int chunks;                      /* blocks of filters; dgrad: of a cell's rows */
    int groups, lines;               /* fwd: of 32 filters, of 16 pixels; dgrad: rows of a warp */
    int units, word_groups, warps_p; /* wgrad */
    int warps, blocks;
    double down, across, tiles; /* of an image, of all */
    double cycles, setup;       /* of a multiprocessor for a tile, for a block's start */
} conv_stem_layout;

mica_status conv_stem_shape_make(const mica_conv_desc *d, conv_stem_shape *s, mica_why *why);
/* What does not depend on how taps become terms; and whether these are few enough. */
mica_status conv_stem_shape_begin(const mica_conv_desc *d, conv_stem_shape *s, mica_why *why);
mica_status conv_stem_words_ok(const conv_stem_shape *s, mica_why *why);
/* What tiles of tile_h x tile_w lead to; false if the device cannot hold it. */
bool conv_stem_layout_make(const conv_stem_shape *s, const mica_device_info *device, int tile_h,
                           int tile_w, conv_stem_layout *t);
/* The smallest tiles. */
bool conv_stem_layout_least(const conv_stem_shape *s, const mica_device_info *device,
                            conv_stem_layout *t);
/* Milliseconds without launches; parts: blocks that divide the tiles, 0: as many as there is
 * room for. */
double conv_stem_milliseconds(const conv_stem_shape *s, const mica_device_info *device,
                              const conv_stem_layout *t, double parts);
/* The quickest layouts, best first. */
int conv_stem_choices(const conv_stem_shape *s, const mica_device_info *device,
                      conv_stem_layout *best);

/* What does not depend on a run; the flags of alignment are those of the strides. */
void conv_stem_args_fill(const mica_conv_desc *d, const conv_stem_shape *s,
                         const conv_stem_layout *t, conv_stem_args *a);
/* fwd: whether statistics may be sums of f32. */
mica_status conv_stem_stats_ok(const conv_stem_shape *s, const mica_device_info *device, int warps,
                               mica_why *why);

/* ---- dgrad's share of these ---- */

mica_status conv_stem_cells_make(conv_stem_shape *s, mica_why *why);
bool conv_stem_cells_layout(const conv_stem_shape *s, const mica_device_info *device,
                            conv_stem_layout *t);
void conv_stem_cells_prologue(const conv_stem_shape *s, mica_text *p);

#endif
