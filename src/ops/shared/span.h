/* SPDX-License-Identifier: Apache-2.0
 * Runs of elements converted to and from the type a CPU engine computes in. The four common float
 * types; f16 and bf16 round to nearest even, bit for bit as mica_tensor_store does. */
#ifndef MICA_OPS_SHARED_SPAN_H
#define MICA_OPS_SHARED_SPAN_H

#include "base/tensor.h"

/* out[i] = data[offset + i stride]. Not for f64, whose digits f32 would lose. */
void mica_span_load_f32(mica_dtype d, const void *data, int64_t offset, int64_t stride, int64_t n,
                        float *out);
/* data[offset + i stride] = in[i]. Not for f64. */
void mica_span_store_f32(mica_dtype d, void *data, int64_t offset, int64_t stride, int64_t n,
                         const float *in);
/* The same in double, all four types. */
void mica_span_load_f64(mica_dtype d, const void *data, int64_t offset, int64_t stride, int64_t n,
                        double *out);
void mica_span_store_f64(mica_dtype d, void *data, int64_t offset, int64_t stride, int64_t n,
                         const double *in);

/* The run itself where it can be read or written in place, else NULL. */
static inline float *mica_span_direct_f32(mica_dtype d, void *data, int64_t offset, int64_t stride)
{
    return d == MICA_F32 && stride == 1 ? (float *)data + offset : NULL;
}
static inline double *mica_span_direct_f64(mica_dtype d, void *data, int64_t offset, int64_t stride)
{
    return d == MICA_F64 && stride == 1 ? (double *)data + offset : NULL;
}

#endif
