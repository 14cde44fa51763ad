/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of max_unpool receive. */
#ifndef MICA_OPS_MAX_UNPOOL_ARGS_H
#define MICA_OPS_MAX_UNPOOL_ARGS_H

enum { MICA_MAX_UNPOOL_AXES = 5 }; /* N, C, D, H, W */

typedef struct mica_max_unpool_args {
    const void *x, *indices;
    void *y, *winners; /* winners: for each element of y the last update of it, -1: none */
    long long channels, updates, cells; /* updates, cells: of an N,C plane */
    long long update_count, cell_count; /* of all planes */
    long long window[3], plane[3];      /* D, H, W of x and of y */
    long long x_step[MICA_MAX_UNPOOL_AXES], index_step[MICA_MAX_UNPOOL_AXES];
    long long y_step[MICA_MAX_UNPOOL_AXES];
} mica_max_unpool_args;

#endif
