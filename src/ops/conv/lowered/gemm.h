/* SPDX-License-Identifier: Apache-2.0
 * Images and filters as matrices of a child product: what the engines `gemm` and `col2im` share. */
#ifndef MICA_OPS_CONV_LOWERED_GEMM_H
#define MICA_OPS_CONV_LOWERED_GEMM_H

#include "ops/conv/conv.h"
#include "mica/gemm.h"

enum { CONV_MATRIX_MAX_GIB = 8 };

/* The distance between an image's neighbouring pixels, all counted together; false if there is
 * none. */
bool conv_merge_pixels(const mica_conv_geometry *g, const mica_conv_strides *s,
                       const long long *size, int64_t *stride);
/* That between pairs of a tap and a channel in the filter, in one order or the other. */
bool conv_merge_pairs(const mica_conv_geometry *g, long long channels, long long channel_stride,
                      bool *tap_fast, int64_t *stride);
/* One for each group, or a plain one. */
mica_tensor conv_matrix(mica_dtype dtype, int64_t groups, int64_t rows, int64_t columns,
                        int64_t group_stride, int64_t row_stride, int64_t column_stride);
/* The contract of the least exact engine that the product may take. */
void conv_product_contract(const mica_conv_desc *d, mica_contract *c);
/* The same where the sums are those of any engine of conv, some of which share them between a few
 * blocks. */
void conv_child_contract(const mica_conv_desc *d, mica_contract *c);

#endif
