/* SPDX-License-Identifier: Apache-2.0
 * What the CUDA engines of grouped_gemm share on the host. */
#ifndef MICA_OPS_GEMM_GROUPED_SHAPE_H
#define MICA_OPS_GEMM_GROUPED_SHAPE_H

#include "ops/gemm/grouped.h"

/* Tiles of groups of the expected size; half a tile more for each run of rows, that ends anywhere.
 */
double grouped_tiles(const grouped *g, int tile_m, int tile_n);
/* Everything but pointers and scalars; and those. */
void grouped_args_fill(const grouped *g, grouped_args *args);
void grouped_args_bind(const mica_plan *plan, const mica_run *run, grouped_args *args);
/* The constants of grouped_device.cuh. */
void grouped_prologue(const grouped *g, mica_text *prologue);

#endif
