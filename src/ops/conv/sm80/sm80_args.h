/* SPDX-License-Identifier: Apache-2.0
 * A convolution as the matrix kernels of engine sm80 see it; host and device share this file.
 *
 * All passes read an image at positions that are linear in a pixel and a tap,
 *
 *   position = pixel * pixel_step + tap * tap_step + base      (0 outside of [0, size))
 *
 * FWD: pixels of b, image a. WGRAD: the same, summed over pixels. DGRAD of stride s reads b: the
 * pixels of a fall into s classes along an axis, and a class meets every s-th tap (or so) at whole
 * positions. */
#ifndef MICA_OPS_CONV_SM80_SM80_ARGS_H
#define MICA_OPS_CONV_SM80_SM80_ARGS_H

#include "kernels/epilogue_args.h"
#include "kernels/fastdiv.h"

#define CONV_SM80_CLASSES 8 /* of one launch */

typedef struct conv_sm80_class {
    mica_fastdiv pixels[3], taps[3]; /* of one image, of the filter */
    int base[3];
    int pixel_count, tap_count; /* of all images; of all axes */
    long long place, residual;  /* offsets of the first pixel in the image it belongs to */
    long long filter;           /* offset of the first tap */
} conv_sm80_class;

typedef struct conv_sm80_args {
    const void *image, *other; /* other: the filter, in WGRAD the image b */
    void *out;
    double alpha, beta;
    mica_epilogue_args epilogue;
    int image_aligned, other_aligned, out_aligned;
    int residual_aligned; /* for one access to what is stored at once */
    int size[3], pixel_step[3], tap_step[3];
    long long image_n, image_c, image_s[3];
    long long place_n, place_s[3]; /* the image whose pixels are counted */
    long long residual_n, residual_s[3];
    long long filter_c, filter_s[3]; /* by the channel of the image that is read, and tap */
    long long other_col, out_col, residual_col;
    long long image_g, other_g, out_g, residual_g; /* from group to group */
    int groups, cols, splits, slices_each;
    long long part;        /* elements between the results of parts */
    mica_fastdiv channels; /* of the image that is read, in a group */
    long long row_tiles, col_tiles, tiles;
    int class_count;
    conv_sm80_class classes[CONV_SM80_CLASSES];
} conv_sm80_args;

#endif
