/* SPDX-License-Identifier: Apache-2.0
 * Arguments of the kernel of blocks; host and device share this file. */
#ifndef MICA_OPS_QUANTIZE_BLOCKS_ARGS_H
#define MICA_OPS_QUANTIZE_BLOCKS_ARGS_H

#include "kernels/layout.h"

/* Tensors, as blocks. */
enum {
    MICA_BLOCKS_PLACE_CODE, /* bytes */
    MICA_BLOCKS_PLACE_VALUE,
    MICA_BLOCKS_PLACE_SCALE,
    MICA_BLOCKS_PLACES
};

typedef struct mica_blocks_args {
    void *at[MICA_BLOCKS_PLACES];
    mica_layout layout; /* of blocks */
    long long step[2];  /* from byte to byte, from element to element */
    long long count;    /* threads that work */
    int whole;          /* elements lie side by side, aligned for vectors */
} mica_blocks_args;

#endif
