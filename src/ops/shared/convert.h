/* SPDX-License-Identifier: Apache-2.0
 * Runs of elements to and from f32 or f64 on the CPU, vectorised by the compiler. */
#ifndef MICA_OPS_SHARED_CONVERT_H
#define MICA_OPS_SHARED_CONVERT_H

#include "mica/types.h"

/* n elements of a f32, f16 or bf16 tensor, `stride` elements apart, starting at `offset`. */
void mica_to_f32(mica_dtype dtype, const void *data, int64_t offset, int64_t stride, float *out,
                 int64_t n);
void mica_from_f32(mica_dtype dtype, void *data, int64_t offset, int64_t stride, const float *in,
                   int64_t n);

#endif
