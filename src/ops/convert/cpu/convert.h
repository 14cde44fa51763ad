/* SPDX-License-Identifier: Apache-2.0
 * Runs of elements to and from f32 or f64 on the CPU, vectorised by the compiler. Results equal
 * those of mica_dtype_load and mica_dtype_store: nearest even in one rounding, integers saturate.
 */
#ifndef MICA_OPS_CONVERT_CPU_CONVERT_H
#define MICA_OPS_CONVERT_CPU_CONVERT_H

#include "base/tensor.h"

/* The bits of n elements of 1, 2, 4 or 8 bytes; steps in elements. */
void mica_move(const char *from, int64_t from_step, char *to, int64_t to_step, int64_t bytes,
               int64_t n);

/* n elements of a f32, f16, bf16, e4m3, e5m2, s8 or u8 tensor, `stride` elements apart, starting at
 * `offset`. */
void mica_to_f32(mica_dtype dtype, const void *data, int64_t offset, int64_t stride, float *out,
                 int64_t n);
void mica_from_f32(mica_dtype dtype, void *data, int64_t offset, int64_t stride, const float *in,
                   int64_t n);
/* Such a run as an array: itself where it is one of f32, else converted into buffer. */
const float *mica_run_f32(mica_dtype dtype, const void *data, int64_t offset, int64_t stride,
                          float *buffer, int64_t n);
/* alpha times each, and rounded once. */
void mica_scaled_from_f32(mica_dtype dtype, double alpha, void *data, int64_t offset,
                          int64_t stride, const float *in, int64_t n);
/* Both to neighbours, past the caches; mica_stream_end() of cpu/stream.h ends a series. */
void mica_stream_f32(mica_dtype dtype, void *data, int64_t offset, const float *in, int64_t n);
void mica_scaled_stream_f32(mica_dtype dtype, double alpha, void *data, int64_t offset,
                            const float *in, int64_t n);
/* To and from double, of any real type of a byte or more. */
void mica_to_f64(mica_dtype dtype, const void *data, int64_t offset, int64_t stride, double *out,
                 int64_t n);
void mica_from_f64(mica_dtype dtype, void *data, int64_t offset, int64_t stride, const double *in,
                   int64_t n);
/* mica_from_f64 of neighbours, past the caches. */
void mica_stream_f64(mica_dtype dtype, void *data, int64_t offset, const double *in, int64_t n);
/* To and from 64-bit integers, of any integer type of a byte or more: saturated, or what fits of
 * the bits. */
void mica_to_s64(mica_dtype dtype, const void *data, int64_t offset, int64_t stride, int64_t *out,
                 int64_t n);
void mica_from_s64(mica_dtype dtype, void *data, int64_t offset, int64_t stride, const int64_t *in,
                   int64_t n);
void mica_wrap_s64(mica_dtype dtype, void *data, int64_t offset, int64_t stride, const int64_t *in,
                   int64_t n);
/* s64 to f64 with an odd last bit where digits are lost, so that rounding the double to a shorter
 * type is the only rounding (Boldo and Melquiond 2008). */
void mica_s64_to_f64_odd(const void *data, int64_t offset, int64_t stride, double *out, int64_t n);

/* A floating-point type that the f32 forms take. */
static inline bool mica_fits_f32(mica_dtype dtype)
{
    return mica_dtype_is_float(dtype) && dtype != MICA_F64;
}
/* Whether the f32 forms take it, integers included. */
static inline bool mica_runs_f32(mica_dtype dtype)
{
    return mica_fits_f32(dtype) || dtype == MICA_S8 || dtype == MICA_U8;
}

#endif
