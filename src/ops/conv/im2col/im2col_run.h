/* SPDX-License-Identifier: Apache-2.0
 * What the plans of the Hopper engines hold alike, and what their runs share. */
#ifndef MICA_OPS_CONV_IM2COL_IM2COL_RUN_H
#define MICA_OPS_CONV_IM2COL_IM2COL_RUN_H

#include "ops/conv/lowered/stats.h"
#include "ops/conv/im2col/im2col_shape.h"

typedef struct conv_sm90_plan {
    mica_conv_sm90_shape shape;
    mica_tensor_map_spec image[MICA_CONV_CLASSES], other, result, residual; /* rank 0: none */
    mica_kernel *kernel;
    mica_grid grid;
    conv_generic generic; /* for misaligned pointers */
    conv_stats stats;
    mica_conv_sm90_reduce reduce;
} conv_sm90_plan;

/* Whether TMA takes a run's pointers: multiples of 16 bytes. */
bool conv_sm90_aligned(const conv_sm90_plan *p, const mica_run *run);
/* Encodes the maps that there are for a run's pointers. */
mica_status conv_sm90_encode(const mica_plan *plan, const conv_sm90_plan *p, const mica_run *run,
                             mica_tensor_map *image, mica_tensor_map *other,
                             mica_tensor_map *result);
/* Whether TMA brings a run's residual, and the map if so: nothing else of what memory
 * holds at a result's place may be needed. */
mica_status conv_sm90_encode_residual(const mica_plan *plan, const conv_sm90_plan *p,
                                      const mica_run *run, mica_tensor_map *map, int *wide);
/* The kernel, and those that add up what it left of statistics and of wgrad's sums. */
mica_status conv_sm90_launch(const mica_plan *plan, const conv_sm90_plan *p, const mica_run *run,
                             const void *args);

#endif
