/* SPDX-License-Identifier: Apache-2.0
 * Merged loop nests over tensors of equal dimensions: for element-wise engines on both backends. */
#ifndef MICA_OPS_ACCESS_LAYOUT_H
#define MICA_OPS_ACCESS_LAYOUT_H

#include "base/tensor.h"
#include "kernels/layout.h"

/* Describes n <= MICA_LAYOUT_TENSORS tensors of equal dims (0-stride dims allowed). Sizes 1 vanish,
 * dimensions are sorted so that the last is the one with the smallest strides of the first tensor,
 * and neighbours that are contiguous in all tensors merge: packed tensors become one dimension. The
 * order of elements is then no longer the logical one: only for work in which each element stands
 * alone. */
void mica_layout_make(mica_layout *layout, const mica_tensor *const *tensors, int n);
/* Its steps for other loop nests, whose dims of n tensors have strides[tensor][dim]: dims, none of
 * size 1, are sorted and merged in place; returns how many are left. And whether count and all
 * offsets are below 2^31. */
int mica_layout_merge(long long *dims, long long (*strides)[MICA_LAYOUT_RANK], int rank, int n);
bool mica_layout_fits_int(long long count, const long long *dims,
                          long long (*strides)[MICA_LAYOUT_RANK], int rank, int n);
/* One dimension with stride 1 in all n tensors (or nothing at all). */
bool mica_layout_is_linear(const mica_layout *layout, int n);

#endif
