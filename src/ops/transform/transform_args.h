/* SPDX-License-Identifier: Apache-2.0
 * What the transform kernels receive; host and device share this file. */
#ifndef MICA_OPS_TRANSFORM_TRANSFORM_ARGS_H
#define MICA_OPS_TRANSFORM_TRANSFORM_ARGS_H

#include "kernels/layout.h"

typedef struct mica_transform_args {
    const void *x;
    void *y;
    double alpha, beta;
    int scaled;      /* alpha is not 1 or beta not 0 */
    int aligned;     /* pointers allow vectors */
    long long count; /* elements */
    /* y's strides, x's. Strided kernel: the last dimension counts vectors. Tile kernel: the
     * dimensions outside of the tile. */
    mica_layout layout;
    /* Tile kernel: a run of x is along the columns, a run of y along the rows. */
    long long rows, cols, row_tiles, col_tiles;
    long long x_row, x_col, y_row, y_col;
} mica_transform_args;

#endif
