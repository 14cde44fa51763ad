/* SPDX-License-Identifier: Apache-2.0
 * Tensors inside the library: checks, views, element access by type. */
#ifndef MICA_BASE_TENSOR_H
#define MICA_BASE_TENSOR_H

#include "base/why.h"
#include "base/text.h"

#define MICA_MOST_ELEMENTS ((int64_t)1 << 48)

/* Fills strides that were left out with the packed order. Behind it `strided` is set where all
 * strides are 0 and there is more than one element, and nowhere else. */
void mica_tensor_default_strides(mica_tensor *t);
/* Strides of `t` ordered in memory as those of `like` (same rank): what inference gives outputs. */
void mica_tensor_strides_like(mica_tensor *t, const mica_tensor *like);
/* INVALID unless type, rank, dims and the span are sane. `output`: also that no two elements share
 * memory. name: for the reason. */
mica_status mica_tensor_check(const mica_tensor *t, const char *name, bool output, mica_why *why);
/* INVALID unless dims agree; names for the reason. */
mica_status mica_tensor_same_dims(const mica_tensor *a, const char *a_name, const mica_tensor *b,
                                  const char *b_name, mica_why *why);
bool mica_tensor_equal(const mica_tensor *a, const mica_tensor *b);
/* Packed, last dimension fastest. */
bool mica_tensor_is_packed(const mica_tensor *t);
/* Packed with dimension 1 fastest. */
bool mica_tensor_is_channels_last(const mica_tensor *t);
/* The elements fill one gapless block of memory in some order. */
bool mica_tensor_is_dense(const mica_tensor *t);
static inline bool mica_tensor_given(const mica_tensor *t)
{
    return t->dtype != MICA_NONE;
}

bool mica_dtype_is_float(mica_dtype d);   /* f64 f32 f16 bf16 e4m3 e5m2 */
bool mica_dtype_is_common(mica_dtype d);  /* f64 f32 f16 bf16 */
bool mica_dtype_is_integer(mica_dtype d); /* exact: s8 u8 s32 s64 u32 bool ... */
/* Unit roundoff, 2^-24 for f32; 0 for integers. */
double mica_dtype_unit(mica_dtype d);
/* Type sums are formed in: f64 for f64, s32 for 8-bit integers, f32 for the rest. */
mica_dtype mica_dtype_accumulator(mica_dtype d);

/* One element at an offset in elements, as double; and back, rounding to nearest even and
 * saturating integers. Complex types are not covered. */
typedef double (*mica_load_fn)(const void *data, int64_t offset);
typedef void (*mica_store_fn)(void *data, int64_t offset, double value);
mica_load_fn mica_dtype_load(mica_dtype d);
/* Their names, "f64 f32 ...": of all, or of those that operations compute with (that have a load).
 */
void mica_dtype_list(mica_text *text, bool computed);
mica_store_fn mica_dtype_store(mica_dtype d);

/* Bit conversions, round to nearest even; NaN stays NaN. e4m3 saturates to 448, e5m2 does not. */
float mica_f16_to_f32(uint16_t bits);
uint16_t mica_f32_to_f16(float value);
float mica_bf16_to_f32(uint16_t bits);
uint16_t mica_f32_to_bf16(float value);

#endif
