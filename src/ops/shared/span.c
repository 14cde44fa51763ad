/* SPDX-License-Identifier: Apache-2.0
 * Conversions of runs. f16 is converted with integer arithmetic, which every vector level has:
 * _Float16 becomes library calls where F16C is missing and scalar code where it is not. */
#include "ops/shared/span.h"
#include "cpu/cpu.h"

#include <string.h>

#define ALWAYS_INLINE __attribute__((always_inline)) static inline

ALWAYS_INLINE uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

ALWAYS_INLINE float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Exponent and digits moved into place make the value times 2^-112, subnormals too. */
ALWAYS_INLINE float from_f16(uint16_t h)
{
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t finite = bits_of(float_of(magnitude) * 0x1p112f);
    uint32_t special = magnitude | 0x7f800000; /* infinity and NaN keep their digits */
    return float_of(sign | (magnitude >= 0x0f800000 ? special : finite));
}

ALWAYS_INLINE uint16_t to_f16(float f)
{
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000;
    uint32_t a = u & 0x7fffffff;
    uint32_t normal = (a + 0xfff + (a >> 13 & 1) - (112u << 23)) >> 13;
    /* Next to 1/2 floats are 2^-24 apart, as subnormal f16 are: the sum rounds for us. */
    uint32_t small = bits_of(float_of(a) + 0.5f) - 0x3f000000;
    uint32_t code = a < 0x38800000 ? small : normal;
    code = a >= 0x477ff000 ? 0x7c00 : code; /* 65520 and more */
    code = a > 0x7f800000 ? 0x7e00 : code;
    return (uint16_t)(sign | code);
}

ALWAYS_INLINE float from_bf16(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

ALWAYS_INLINE uint16_t to_bf16(float f)
{
    uint32_t u = bits_of(f);
    uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? (u >> 16 | 0x40) : rounded);
}

/* ---- f32; d and stride are constants where these are called, so one loop remains ---- */

ALWAYS_INLINE void load_run(mica_dtype d, const void *data, int64_t stride, int64_t n,
                            float *restrict out)
{
    const uint16_t *half = data;
    const float *single = data;
    if (d == MICA_F16)
        for (int64_t i = 0; i < n; i++) out[i] = from_f16(half[i * stride]);
    else if (d == MICA_BF16)
        for (int64_t i = 0; i < n; i++) out[i] = from_bf16(half[i * stride]);
    else
        for (int64_t i = 0; i < n; i++) out[i] = single[i * stride];
}

ALWAYS_INLINE void store_run(mica_dtype d, void *restrict data, int64_t stride, int64_t n,
                             const float *in)
{
    uint16_t *half = data;
    float *single = data;
    if (d == MICA_F16)
        for (int64_t i = 0; i < n; i++) half[i * stride] = to_f16(in[i]);
    else if (d == MICA_BF16)
        for (int64_t i = 0; i < n; i++) half[i * stride] = to_bf16(in[i]);
    else
        for (int64_t i = 0; i < n; i++) single[i * stride] = in[i];
}

MICA_CLONES static void load_f16(const void *data, int64_t n, float *out)
{
    load_run(MICA_F16, data, 1, n, out);
}
MICA_CLONES static void load_bf16(const void *data, int64_t n, float *out)
{
    load_run(MICA_BF16, data, 1, n, out);
}
MICA_CLONES static void store_f16(void *data, int64_t n, const float *in)
{
    store_run(MICA_F16, data, 1, n, in);
}
MICA_CLONES static void store_bf16(void *data, int64_t n, const float *in)
{
    store_run(MICA_BF16, data, 1, n, in);
}

void mica_span_load_f32(mica_dtype d, const void *data, int64_t offset, int64_t stride, int64_t n,
                        float *out)
{
    if (d == MICA_F32) {
        const float *from = (const float *)data + offset;
        if (stride == 1)
            memcpy(out, from, (size_t)n * sizeof *out);
        else
            load_run(MICA_F32, from, stride, n, out);
        return;
    }
    const uint16_t *from = (const uint16_t *)data + offset;
    if (d == MICA_F16 && stride == 1)
        load_f16(from, n, out);
    else if (d == MICA_F16)
        load_run(MICA_F16, from, stride, n, out);
    else if (stride == 1)
        load_bf16(from, n, out);
    else
        load_run(MICA_BF16, from, stride, n, out);
}

void mica_span_store_f32(mica_dtype d, void *data, int64_t offset, int64_t stride, int64_t n,
                         const float *in)
{
    if (d == MICA_F32) {
        float *to = (float *)data + offset;
        if (stride == 1)
            memcpy(to, in, (size_t)n * sizeof *in);
        else
            store_run(MICA_F32, to, stride, n, in);
        return;
    }
    uint16_t *to = (uint16_t *)data + offset;
    if (d == MICA_F16 && stride == 1)
        store_f16(to, n, in);
    else if (d == MICA_F16)
        store_run(MICA_F16, to, stride, n, in);
    else if (stride == 1)
        store_bf16(to, n, in);
    else
        store_run(MICA_BF16, to, stride, n, in);
}

/* ---- f64 ---- */

void mica_span_load_f64(mica_dtype d, const void *data, int64_t offset, int64_t stride, int64_t n,
                        double *out)
{
    mica_load_fn load = mica_dtype_load(d);
    for (int64_t i = 0; i < n; i++) out[i] = load(data, offset + i * stride);
}

void mica_span_store_f64(mica_dtype d, void *data, int64_t offset, int64_t stride, int64_t n,
                         const double *in)
{
    mica_store_fn store = mica_dtype_store(d);
    for (int64_t i = 0; i < n; i++) store(data, offset + i * stride, in[i]);
}
