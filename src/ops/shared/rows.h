/* SPDX-License-Identifier: Apache-2.0
 * Rows: runs of elements at one stride, converted to and from float or double. CPU engines of
 * memory-bound operations load blocks of ROW_BLOCK elements that stay in the first-level cache,
 * work on them, and store them; results equal those of mica_dtype_load and mica_dtype_store. */
#ifndef MICA_OPS_SHARED_ROWS_H
#define MICA_OPS_SHARED_ROWS_H

#include "base/tensor.h"

#define MICA_ROW_BLOCK 512

/* Elements data[offset + i * stride], i < n. The float forms take f32 f16 bf16 e4m3 e5m2, the double
 * forms every real type of a byte or more. */
void mica_row_load_f32(mica_dtype d, const void *data, int64_t offset, int64_t stride, int64_t n,
                       float *out);
void mica_row_load_f64(mica_dtype d, const void *data, int64_t offset, int64_t stride, int64_t n,
                       double *out);
void mica_row_store_f32(mica_dtype d, void *data, int64_t offset, int64_t stride, int64_t n,
                        const float *in);
void mica_row_store_f64(mica_dtype d, void *data, int64_t offset, int64_t stride, int64_t n,
                        const double *in);
/* s64 to double with an odd last bit where digits are lost, so that rounding the double to a shorter
 * type is the only rounding (Boldo and Melquiond 2008). */
void mica_row_load_s64_odd(const void *data, int64_t offset, int64_t stride, int64_t n,
                           double *out);

/* Whether the float forms take it. */
static inline bool mica_row_fits_f32(mica_dtype d)
{
    return mica_dtype_is_float(d) && d != MICA_F64;
}

#endif
