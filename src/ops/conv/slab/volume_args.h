/* SPDX-License-Identifier: Apache-2.0
 * What the kernel of volumes receives; host and device share this file, so no types but C's own. */
#ifndef MICA_OPS_CONV_SLAB_VOLUME_ARGS_H
#define MICA_OPS_CONV_SLAB_VOLUME_ARGS_H

#include "kernels/tensor_map.h"
#include "ops/conv/conv_args.h"

/* Tiles of two planes, HEIGHT down and 8 pixels across, `deep` of them in an image's planes; start:
 * where tap 0 of pixel 0 reads. Index 0 counts planes, 1 down, 2 across. */
typedef struct conv_volume_args {
    mica_tensor_map image, other, result; /* other: filter; wgrad: b, and no result */
    mica_tensor_map residual_map;         /* wide: TMA brings the residual, and beta is 0 */
    int across, down, deep, tiles;
    int start[3];
    int tap[3], tap_step[3]; /* the filter's coordinate of tap 0, and the way to the next */
    int size[3], channels;   /* of the image written; wgrad: of b */
    mica_conv_strides to, residual;
    void *out;
    float *partial; /* wgrad: blocks x channels of b x taps x 64 */
    float alpha, beta;
    int wide;
    mica_epilogue_args epilogue;
} conv_volume_args;

#endif
