/* SPDX-License-Identifier: Apache-2.0
 * What the files of quantize_rows share. */
#ifndef MICA_OPS_QUANTIZE_ROWS_QUANTIZE_ROWS_H
#define MICA_OPS_QUANTIZE_ROWS_QUANTIZE_ROWS_H

#include "mica/quantize_rows.h"
#include "ops/op.h"
#include "ops/epilogue/activation.h"

typedef struct quantize_rows_sizes {
    int64_t rows, columns; /* of v */
    int64_t group, groups; /* columns that share a scale; of a row */
    bool one_scale;        /* for all */
} quantize_rows_sizes;
quantize_rows_sizes mica_quantize_rows_sizes(const mica_quantize_rows_desc *d);
/* The dimensions of v, packed. */
mica_tensor mica_quantize_rows_value(const mica_quantize_rows_desc *d, mica_dtype type);

void mica_quantize_rows_reference(const void *desc, const mica_view *views, const double *scalars);

extern const mica_op mica_op_quantize_rows;
extern const mica_engine mica_quantize_rows_compose, mica_quantize_rows_compose_cuda,
    mica_quantize_rows_fused;

#endif
