/* SPDX-License-Identifier: Apache-2.0
 * What the slab kernels receive; host and device share this file, so no types but C's own. */
#ifndef MICA_OPS_CONV_SLAB_SLAB_ARGS_H
#define MICA_OPS_CONV_SLAB_SLAB_ARGS_H

#include "kernels/tensor_map.h"
#include "ops/conv/conv_args.h"

/* Tiles as in slab.cuh; start: where tap 0 of pixel 0 reads. Index 0 counts
 * down, 1 across. Blocks that follow each other have a tile's chunks, 64 channels each. */
#define MICA_CONV_SLAB_LATTICES 4
typedef struct mica_conv_slab_args {
    mica_tensor_map image[MICA_CONV_SLAB_LATTICES]; /* by lattice: boxes differ */
    mica_tensor_map other, result;                  /* other: filter; wgrad: b, and no result */
    mica_tensor_map residual_map; /* wide: TMA brings the residual, and beta is 0 */
    int across, down, tiles, chunks;
    int start[2];
    /* sm90_stream: 64 channels at a time are read, and planes */
    int blocks, plane_taps, plane_start, plane_step, plane_filter, plane_filter_step;
    int planes, planes_read;       /* of the image written, of the other */
    int filter[2], filter_step[2]; /* the filter's coordinate of tap 0, and the way to the next */
    int size[2], channels;         /* of the image written; wgrad: channels of b; of all groups */
    const void *narrow;            /* the filter of groups of fewer than 64 channels, and its */
    long long narrow_strides[3];   /* strides: from row to row, down, across */
    mica_conv_strides to, residual;
    void *out;
    float *partial; /* wgrad: parts x channels of b x taps x WIDTH */
    float alpha, beta;
    int wide;
    mica_epilogue_args epilogue;
    double *sums; /* by channel: parts x 2 warpgroups x (sum, square) x channels */
} mica_conv_slab_args;

#endif
