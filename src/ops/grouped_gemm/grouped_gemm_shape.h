/* SPDX-License-Identifier: Apache-2.0
 * What the CUDA engines of grouped_gemm share on the host. */
#ifndef MICA_OPS_GROUPED_GEMM_GROUPED_GEMM_SHAPE_H
#define MICA_OPS_GROUPED_GEMM_GROUPED_GEMM_SHAPE_H

#include "ops/grouped_gemm/grouped_gemm.h"

/* Tiles of groups of the expected size. What a tile costs grows by every `step` of its rows. */
double grouped_tiles(const grouped *g, int tile_m, int tile_n, int step);
/* Everything but pointers and scalars; and those. */
void grouped_args_fill(const grouped *g, grouped_args *args);
void grouped_args_bind(const mica_plan *plan, const mica_run *run, grouped_args *args);
/* The constants of cuda/grouped_gemm_device.cuh. */
void grouped_prologue(const grouped *g, mica_text *prologue);

#endif
