/* SPDX-License-Identifier: Apache-2.0
 * What the files of the resizing family share. */
#ifndef MICA_OPS_RESIZE_RESIZE_H
#define MICA_OPS_RESIZE_RESIZE_H

#include "mica/resize.h"
#include "ops/op.h"
#include "ops/resize/resize_args.h"

extern const mica_op mica_op_resize;
extern const mica_engine mica_resize_cpu, mica_resize_cuda;

/* The three axes D, H, W, those that x lacks in front with one element. */
void mica_resize_axes(const mica_resize_desc *desc, mica_resize_axis axes[3]);
/* Strides in the order N C D H W, 0 for axes that the tensor lacks or has one element of. */
void mica_resize_strides(const mica_tensor *t, long long strides[5]);
/* Most weights of a row; at least 1. */
int64_t mica_resize_most(const mica_resize_axis *axis, bool backward);
/* A row of the table, in f64: where it begins, -1 where there is nothing. */
int64_t mica_resize_row(const mica_resize_axis *axis, bool backward, int64_t i, double *weights,
                        int64_t most);

void mica_resize_reference(const void *desc, const mica_view *args, const double *scalars);

#endif
