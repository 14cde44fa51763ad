/* SPDX-License-Identifier: Apache-2.0
 * Runs of elements to and from f32. */
#include "ops/shared/convert.h"
#include "cpu/cpu.h"

#include <string.h>

#define INLINE __attribute__((always_inline)) static inline

INLINE uint32_t bits_of(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

INLINE float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

INLINE float bf16_to_f32(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

INLINE uint16_t f32_to_bf16(float v)
{
    uint32_t u = bits_of(v), rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    return (uint16_t)(v != v ? u >> 16 | 0x40 : rounded);
}

/* Moving the bits to where f32 has them leaves the exponent short by 112: a multiplication mends
 * that, for subnormals too. Infinity and NaN keep the largest exponent. No branch: it vectorises.
 */
INLINE float f16_to_f32(uint16_t bits)
{
    uint32_t magnitude = (uint32_t)(bits & 0x7fff) << 13;
    uint32_t u = bits_of(float_of(magnitude) * 0x1p112f);
    u |= magnitude >= 0x0f800000 ? 0x7f800000 : 0;
    return float_of(u | (uint32_t)(bits & 0x8000) << 16);
}

/* Normal results round in the integer; subnormal ones by adding 1/2, whose last place is 2^-24. */
INLINE uint16_t f32_to_f16(float v)
{
    uint32_t u = bits_of(v), magnitude = u & 0x7fffffff;
    uint32_t normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
    uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    uint32_t code = magnitude < 0x38800000 ? subnormal : normal;
    code = magnitude >= 0x477ff000 ? 0x7c00 : code;
    code = magnitude > 0x7f800000 ? 0x7e00 : code;
    return (uint16_t)(code | (u >> 16 & 0x8000));
}

/* Two loops each, because stride 1 must be known to vectorise. */
INLINE void load_bf16(const uint16_t *p, int64_t stride, float *out, int64_t n)
{
    if (stride == 1)
        for (int64_t i = 0; i < n; i++) out[i] = bf16_to_f32(p[i]);
    else
        for (int64_t i = 0; i < n; i++) out[i] = bf16_to_f32(p[i * stride]);
}

INLINE void store_bf16(uint16_t *p, int64_t stride, const float *in, int64_t n)
{
    if (stride == 1)
        for (int64_t i = 0; i < n; i++) p[i] = f32_to_bf16(in[i]);
    else
        for (int64_t i = 0; i < n; i++) p[i * stride] = f32_to_bf16(in[i]);
}

INLINE void load_f16(const uint16_t *p, int64_t stride, float *out, int64_t n)
{
    if (stride == 1)
        for (int64_t i = 0; i < n; i++) out[i] = f16_to_f32(p[i]);
    else
        for (int64_t i = 0; i < n; i++) out[i] = f16_to_f32(p[i * stride]);
}

INLINE void store_f16(uint16_t *p, int64_t stride, const float *in, int64_t n)
{
    if (stride == 1)
        for (int64_t i = 0; i < n; i++) p[i] = f32_to_f16(in[i]);
    else
        for (int64_t i = 0; i < n; i++) p[i * stride] = f32_to_f16(in[i]);
}

MICA_CLONES
void mica_to_f32(mica_dtype dtype, const void *data, int64_t offset, int64_t stride, float *out,
                 int64_t n)
{
    if (dtype == MICA_F32) {
        const float *p = (const float *)data + offset;
        for (int64_t i = 0; i < n; i++) out[i] = p[i * stride];
    } else if (dtype == MICA_BF16) {
        load_bf16((const uint16_t *)data + offset, stride, out, n);
    } else {
        load_f16((const uint16_t *)data + offset, stride, out, n);
    }
}

MICA_CLONES
void mica_from_f32(mica_dtype dtype, void *data, int64_t offset, int64_t stride, const float *in,
                   int64_t n)
{
    if (dtype == MICA_F32) {
        float *p = (float *)data + offset;
        for (int64_t i = 0; i < n; i++) p[i * stride] = in[i];
    } else if (dtype == MICA_BF16) {
        store_bf16((uint16_t *)data + offset, stride, in, n);
    } else {
        store_f16((uint16_t *)data + offset, stride, in, n);
    }
}
