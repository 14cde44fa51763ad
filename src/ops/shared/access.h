/* SPDX-License-Identifier: Apache-2.0
 * How many neighbours one access may take: one rule for kernels and for loops of the CPU. */
#ifndef MICA_OPS_SHARED_ACCESS_H
#define MICA_OPS_SHARED_ACCESS_H

#include "base/tensor.h"
#include "kernels/layout.h"

/* The widest access of a GPU. */
enum { MICA_ACCESS_BYTES = 16 };

/* Elements of the widest of these types that one access of MICA_ACCESS_BYTES takes; at least 1. */
int mica_access_most(const mica_dtype *types, int count);
/* The largest of most, most / 2, ... 1 that divides every step: accesses of so many elements that
 * are so far apart all start at a multiple of themselves if the first does. */
int mica_access_divide(int most, const int64_t *steps, int count);
/* The same for accesses along the last dimension of those tensors of a layout whose bit is set in
 * `which`: neighbours lie side by side in all of them, and no access reaches beyond a row. The only
 * row of one dimension may end in a part of an access. */
int mica_access_fit(const mica_layout *layout, unsigned which, int most);
/* From now on the last dimension is counted in accesses: a last part counts as one. */
void mica_access_count(mica_layout *layout, int vector, int tensors);

#endif
