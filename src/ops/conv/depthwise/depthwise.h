/* SPDX-License-Identifier: Apache-2.0
 * Depthwise problems and the tiles that a multiprocessor works on, for the engine "depthwise". */
#ifndef MICA_OPS_CONV_DEPTHWISE_DEPTHWISE_H
#define MICA_OPS_CONV_DEPTHWISE_DEPTHWISE_H

#include "ops/conv/conv.h"
#include "ops/conv/depthwise/depthwise_args.h"

enum {
    CONV_DEPTHWISE_MOST_TAPS = 64,
    CONV_DEPTHWISE_MOST_SUMS = 50,
    CONV_DEPTHWISE_MOST_SLIDES = 4 /* configs of the kernel that slides */
};

typedef struct conv_depthwise_shape {
    mica_conv_geometry g;
    mica_conv_roles roles;
    mica_dtype in, out;
    int bytes; /* of an element read */
    /* the image that is read with a halo, and the result's image (wgrad: b) */
    conv_depthwise_strides from, to;
    long long size_from[3], size_to[3];
    int vector;                        /* elements of a copy to shared memory */
    bool pixels_first, staged, paired; /* see the kernels */
    bool one_plane;
} conv_depthwise_shape;

typedef struct conv_depthwise_tile {
    int channels, tile_h, tile_w, thread_h, thread_w;
    int rows; /* of taps, of one block: all but in wgrad */
    int groups, pitch, blocks;
    bool unrolled, wide_weights; /* f32 in shared memory */
    bool slide; /* the other kernel: a thread goes down thread_w columns, thread_h rows at a time */
    bool held;  /* its weights stay in registers */
    int shared; /* bytes */
    double cycles; /* of a multiprocessor, for one tile */
} conv_depthwise_tile;

/* Columns of a strip, [0] to before [1]: those inside the image in every strip, or in any. */
typedef struct conv_depthwise_columns {
    int read_sure[2], read_ever[2], write_sure[2];
} conv_depthwise_columns;

/* The steps from pixel to pixel of what is read, or of what is written (wgrad: of b). */
int64_t conv_depthwise_steps(const conv_depthwise_shape *s, bool to);
mica_status conv_depthwise_shape_make(const mica_conv_desc *d, conv_depthwise_shape *s,
                                      mica_why *why);
/* Along an axis, where tiles start (dgrad: so many pixels before 0), and their halo. */
long long conv_depthwise_shift(const conv_depthwise_shape *s, int axis);
long long conv_depthwise_origin(const conv_depthwise_shape *s, int axis);
/* Constants of a kernel: the pass and its taps, of which a block has `rows` rows. */
void conv_depthwise_write_taps(const conv_depthwise_shape *s, int64_t rows, mica_text *p);
/* Fills the rest of a tile whose first five numbers and slide are set; false if the device cannot
 * hold it. */
bool conv_depthwise_tile_complete(const conv_depthwise_shape *s, const mica_device_info *device,
                                  conv_depthwise_tile *t);
/* The smallest tile there is; false if not even that can be held. */
bool conv_depthwise_tile_least(const conv_depthwise_shape *s, const mica_device_info *device,
                               conv_depthwise_tile *t);
/* The best first; returns how many, at most `most`. */
int conv_depthwise_tiles(const conv_depthwise_shape *s, const mica_device_info *device,
                         conv_depthwise_tile *tiles, int most);
/* The same for the kernel that slides: whether it takes the problem, the rest of a tile, its
 * columns, and the best tiles. */
bool conv_depthwise_slides(const conv_depthwise_shape *s);
bool conv_depthwise_slide_complete(const conv_depthwise_shape *s, const mica_device_info *device,
                                   conv_depthwise_tile *t);
conv_depthwise_columns conv_depthwise_slide_columns(const conv_depthwise_shape *s,
                                                    const conv_depthwise_tile *t);
int conv_depthwise_slide_tiles(const conv_depthwise_shape *s, const mica_device_info *device,
                               conv_depthwise_tile *tiles, int most);
/* Tiles of all images and channels (wgrad: of one block of channels and taps). */
double conv_depthwise_count(const conv_depthwise_shape *s, const conv_depthwise_tile *t);
/* wgrad: blocks that share no tile's sums. */
double conv_depthwise_wgrad_blocks(const conv_depthwise_shape *s, const conv_depthwise_tile *t);
/* Milliseconds without launches. */
double conv_depthwise_ms(const conv_depthwise_shape *s, const mica_device_info *device,
                         const conv_depthwise_tile *t);

#endif
