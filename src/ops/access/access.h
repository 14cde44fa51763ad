/* SPDX-License-Identifier: Apache-2.0
 * How many neighbours one access may take: one rule for kernels and for loops of the CPU. Widths
 * are powers of two, in elements. One fits if it divides every step from access to access: all of
 * them then start at a multiple of it if the first does, which runs ask of their pointers. */
#ifndef MICA_OPS_ACCESS_ACCESS_H
#define MICA_OPS_ACCESS_ACCESS_H

#include "base/tensor.h"
#include "kernels/layout.h"

/* The widest access of a GPU. */
enum { MICA_ACCESS_BYTES = 16 };

/* ---- what fits ---- */

/* Elements that one access of MICA_ACCESS_BYTES takes; of the widest of some types; at least 1. */
int mica_access_of(mica_dtype type);
int mica_access_most(const mica_dtype *types, int count);

/* The largest of width, width / 2, ... 1 that divides the step; or several steps, joined by |, for
 * a power of two divides all of them if it divides that. 0 is a step that every width divides. */
static inline int mica_access_fit(int width, int64_t steps)
{
    while (steps & (width - 1)) width /= 2;
    return width;
}

/* The step along a dimension of so many indices: of one none is taken. */
static inline int64_t mica_access_step(int64_t stride, int64_t size)
{
    return size > 1 ? stride : 0;
}

/* The width that fits steps from access to access of neighbours that are `stride` apart: 1, unless
 * they lie side by side. */
int mica_access_along(mica_dtype type, int64_t stride, int64_t steps);
/* The steps of a tensor along the first `dims` dimensions of a layout. */
int64_t mica_access_steps(const mica_layout *layout, int tensor, int dims);
/* The width that fits all rows, along the last dimension, of a tensor. It may exceed the row. */
int mica_access_rows(int width, const mica_tensor *t);
/* The same for those tensors of a layout whose bit is set in `which`, where no access reaches
 * beyond a row, either. The only row of one dimension may end in a part of an access. */
int mica_access_layout(int width, const mica_layout *layout, unsigned which);
/* From now on the last dimension is counted in accesses: a last part counts as one. */
void mica_access_count(mica_layout *layout, int width, int tensors);

/* ---- addresses ---- */

/* What the address of so many elements must be a multiple of: more than MICA_ACCESS_BYTES are
 * several accesses. */
int mica_access_bytes(mica_dtype type, int width);
/* Whether the address is a multiple of so many bytes; of 0 none is. */
bool mica_access_starts(const void *at, int bytes);

#endif
