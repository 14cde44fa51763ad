/* SPDX-License-Identifier: Apache-2.0
 * Data types: names, sizes, and one element at a time to and from double. */
#include "base/tensor.h"

#include <float.h>
#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    int bits, unit;
} types[] = {{"none", 0, 0},
#define MICA_X(name, text, bits, unit) {text, bits, unit},
             MICA_DTYPES(MICA_X)
#undef MICA_X
};

static bool known(mica_dtype d)
{
    return (unsigned)d < MICA_DTYPE_COUNT;
}

const char *mica_dtype_name(mica_dtype d)
{
    return types[known(d) ? d : MICA_NONE].name;
}
int mica_dtype_bits(mica_dtype d)
{
    return known(d) ? types[d].bits : 0;
}

double mica_dtype_unit(mica_dtype d)
{
    return known(d) && types[d].unit ? ldexp(1, types[d].unit) : 0;
}

bool mica_dtype_is_common(mica_dtype d)
{
    return d == MICA_F64 || d == MICA_F32 || d == MICA_F16 || d == MICA_BF16;
}

bool mica_dtype_is_float(mica_dtype d)
{
    return mica_dtype_is_common(d) || d == MICA_E4M3 || d == MICA_E5M2;
}

bool mica_dtype_is_integer(mica_dtype d)
{
    return known(d) && d != MICA_NONE && !types[d].unit;
}

mica_dtype mica_dtype_accumulator(mica_dtype d)
{
    if (d == MICA_F64) return MICA_F64;
    return d == MICA_S8 || d == MICA_U8 ? MICA_S32 : MICA_F32;
}

/* ---- bit conversions ---- */

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

float mica_bf16_to_f32(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

uint16_t mica_f32_to_bf16(float value)
{
    uint32_t u = bits_of(value);
    if (value != value) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float mica_f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, e = bits >> 10 & 31, m = bits & 0x3ff;
    if (e == 31) return float_of(sign | 0x7f800000 | m << 13);
    if (e == 0) return float_of(sign | bits_of((float)m * 0x1p-24f));
    return float_of(sign | (e + 112) << 23 | m << 13);
}

/* 2^e of a normal number. */
static double power(int e)
{
    uint64_t bits = (uint64_t)(e + 1023) << 52;
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* Of a subnormal number or zero, one less than that of the smallest normal one. */
static int exponent(double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return (int)(bits >> 52 & 0x7ff) - 1023;
}

/* Rounds a double to `digits` significant bits with exponents down to `min_exponent` (that of the
 * smallest normal number), to nearest even, in one step: the sum with a number so large has no
 * other bits. What is far past every format stays as it is. */
static double round_to(double v, int digits, int min_exponent)
{
    int e = exponent(v);
    if (e > 512) return v;
    int last = (e > min_exponent ? e : min_exponent) - digits + 1;
    double large = 1.5 * power(last + 52);
    return copysign((v + large) - large, v);
}

/* Bits of an already rounded value in a small format with `mantissa` stored bits. */
static unsigned encode(double v, int mantissa, int min_exponent)
{
    unsigned sign = signbit(v) ? 1 : 0;
    double a = fabs(v);
    int e = exponent(a);
    unsigned code;
    if (a < power(min_exponent))
        code = (unsigned)(a * power(mantissa - min_exponent));
    else
        code = ((unsigned)(e - min_exponent + 1) << mantissa) +
               (unsigned)((a - power(e)) * power(mantissa - e));
    return sign << 15 | code; /* the caller moves the sign */
}

static uint16_t double_to_f16(double v)
{
    if (v != v) return 0x7e00;
    double r = round_to(v, 11, -14);
    if (fabs(r) > 65504) return signbit(v) ? 0xfc00 : 0x7c00;
    return (uint16_t)encode(r, 10, -14);
}

uint16_t mica_f32_to_f16(float value)
{
    return double_to_f16((double)value);
}

static uint16_t double_to_bf16(double v)
{
    if (v != v) return 0x7fc0;
    /* Round once to 8 digits; the result is exact in f32. */
    double r = round_to(v, 8, -126);
    if (fabs(r) > 0x1.fep127) return signbit(v) ? 0xff80 : 0x7f80;
    return (uint16_t)(bits_of((float)r) >> 16);
}

static uint8_t double_to_e4m3(double v)
{
    if (v != v) return 0x7f;
    double r = round_to(v, 4, -6);
    if (fabs(r) > 448) r = signbit(v) ? -448 : 448;
    unsigned code = encode(r, 3, -6);
    return (uint8_t)((code & 0x7f) | code >> 8);
}

static uint8_t double_to_e5m2(double v)
{
    if (v != v) return 0x7f;
    double r = round_to(v, 3, -14);
    if (fabs(r) > 57344) return signbit(v) ? 0xfc : 0x7c;
    unsigned code = encode(r, 2, -14);
    return (uint8_t)((code & 0x7f) | code >> 8);
}

static double e4m3_to_double(uint8_t b)
{
    int e = b >> 3 & 15, m = b & 7;
    if (e == 15 && m == 7) return NAN;
    double a = e ? (8 + m) * power(e - 10) : m * 0x1p-9;
    return b & 0x80 ? -a : a;
}

static double e2m1_to_double(uint8_t b)
{
    static const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return b & 8 ? -values[b & 7] : values[b & 7];
}

static uint8_t double_to_e2m1(double v)
{
    double a = fabs(v) > 6 || v != v ? 6 : fabs(round_to(v, 2, 0));
    for (uint8_t i = 0; i < 8; i++)
        if (e2m1_to_double(i) == a) return (uint8_t)(i | (signbit(v) ? 8 : 0));
    return 7;
}

/* Powers of two, 2^-127 to 2^127, and NaN. Nearest, ties up: halfway is 1.5 times the lower one.
 * What lies beyond the ends becomes them, 0 too. */
static uint8_t double_to_e8m0(double v)
{
    int e;
    if (!(v >= 0) || v > DBL_MAX) return 255;
    if (v < 0x1p-127) return 0;
    const double fraction = frexp(v, &e); /* 0.5 to 1 */
    const int code = e - 1 + 127 + (fraction >= 0.75);
    return (uint8_t)(code > 254 ? 254 : code);
}

static double e8m0_to_double(uint8_t b)
{
    return b == 255 ? NAN : power(b - 127);
}

/* ---- elements ---- */

static double load_f64(const void *p, int64_t i)
{
    return ((const double *)p)[i];
}
static double load_f32(const void *p, int64_t i)
{
    return (double)((const float *)p)[i];
}
static double load_f16(const void *p, int64_t i)
{
    return (double)mica_f16_to_f32(((const uint16_t *)p)[i]);
}
static double load_bf16(const void *p, int64_t i)
{
    return (double)mica_bf16_to_f32(((const uint16_t *)p)[i]);
}
static double load_e4m3(const void *p, int64_t i)
{
    return e4m3_to_double(((const uint8_t *)p)[i]);
}
/* e5m2 is the upper half of an f16. */
static double load_e5m2(const void *p, int64_t i)
{
    return (double)mica_f16_to_f32((uint16_t)(((const uint8_t *)p)[i] << 8));
}
static double load_e8m0(const void *p, int64_t i)
{
    return e8m0_to_double(((const uint8_t *)p)[i]);
}
static double load_s8(const void *p, int64_t i)
{
    return ((const int8_t *)p)[i];
}
static double load_u8(const void *p, int64_t i)
{
    return ((const uint8_t *)p)[i];
}
static double load_s32(const void *p, int64_t i)
{
    return ((const int32_t *)p)[i];
}
static double load_s64(const void *p, int64_t i)
{
    return (double)((const int64_t *)p)[i];
}
static double load_u32(const void *p, int64_t i)
{
    return ((const uint32_t *)p)[i];
}
static double load_bool(const void *p, int64_t i)
{
    return ((const uint8_t *)p)[i] != 0;
}

static unsigned nibble(const void *p, int64_t i)
{
    return ((const uint8_t *)p)[i >> 1] >> (i & 1 ? 4 : 0) & 15;
}

static double load_e2m1(const void *p, int64_t i)
{
    return e2m1_to_double((uint8_t)nibble(p, i));
}
static double load_u4(const void *p, int64_t i)
{
    return nibble(p, i);
}
static double load_s4(const void *p, int64_t i)
{
    return (double)((int)(nibble(p, i) ^ 8) - 8);
}

void mica_dtype_list(mica_text *text, bool computed)
{
    for (int d = 1; d < MICA_DTYPE_COUNT; d++)
        if (!computed || mica_dtype_load((mica_dtype)d))
            mica_text_add(text, "%s%s", text->length ? " " : "", mica_dtype_name((mica_dtype)d));
}

mica_load_fn mica_dtype_load(mica_dtype d)
{
    static const mica_load_fn table[MICA_DTYPE_COUNT] = {
        [MICA_F64] = load_f64,   [MICA_F32] = load_f32,   [MICA_F16] = load_f16,
        [MICA_BF16] = load_bf16, [MICA_E4M3] = load_e4m3, [MICA_E5M2] = load_e5m2,
        [MICA_E2M1] = load_e2m1, [MICA_S8] = load_s8,     [MICA_U8] = load_u8,
        [MICA_S4] = load_s4,     [MICA_U4] = load_u4,     [MICA_S32] = load_s32,
        [MICA_S64] = load_s64,   [MICA_U32] = load_u32,   [MICA_BOOL] = load_bool,
        [MICA_E8M0] = load_e8m0};
    return known(d) ? table[d] : NULL;
}

/* Nearest even, saturated to [low, high]; NaN becomes 0. */
static double integer(double v, double low, double high)
{
    if (v != v) return 0;
    double r = nearbyint(v);
    return r < low ? low : r > high ? high : r;
}

static void store_f64(void *p, int64_t i, double v)
{
    ((double *)p)[i] = v;
}
static void store_f32(void *p, int64_t i, double v)
{
    ((float *)p)[i] = (float)v;
}
static void store_f16(void *p, int64_t i, double v)
{
    ((uint16_t *)p)[i] = double_to_f16(v);
}
static void store_bf16(void *p, int64_t i, double v)
{
    ((uint16_t *)p)[i] = double_to_bf16(v);
}
static void store_e4m3(void *p, int64_t i, double v)
{
    ((uint8_t *)p)[i] = double_to_e4m3(v);
}
static void store_e5m2(void *p, int64_t i, double v)
{
    ((uint8_t *)p)[i] = double_to_e5m2(v);
}
static void store_e8m0(void *p, int64_t i, double v)
{
    ((uint8_t *)p)[i] = double_to_e8m0(v);
}
static void store_s8(void *p, int64_t i, double v)
{
    ((int8_t *)p)[i] = (int8_t)integer(v, -128, 127);
}
static void store_u8(void *p, int64_t i, double v)
{
    ((uint8_t *)p)[i] = (uint8_t)integer(v, 0, 255);
}
static void store_s32(void *p, int64_t i, double v)
{
    ((int32_t *)p)[i] = (int32_t)integer(v, -0x1p31, 0x1p31 - 1);
}
static void store_u32(void *p, int64_t i, double v)
{
    ((uint32_t *)p)[i] = (uint32_t)integer(v, 0, 0x1p32 - 1);
}
static void store_bool(void *p, int64_t i, double v)
{
    ((uint8_t *)p)[i] = v != 0;
}

static void store_s64(void *p, int64_t i, double v)
{
    double r = integer(v, -0x1p63, 0x1p63);
    ((int64_t *)p)[i] = r >= 0x1p63 ? INT64_MAX : (int64_t)r;
}

static void set_nibble(void *p, int64_t i, unsigned v)
{
    uint8_t *byte = (uint8_t *)p + (i >> 1);
    *byte = (uint8_t)(i & 1 ? (*byte & 15) | v << 4 : (*byte & 0xf0) | v);
}

static void store_e2m1(void *p, int64_t i, double v)
{
    set_nibble(p, i, double_to_e2m1(v));
}
static void store_u4(void *p, int64_t i, double v)
{
    set_nibble(p, i, (unsigned)integer(v, 0, 15));
}
static void store_s4(void *p, int64_t i, double v)
{
    set_nibble(p, i, (unsigned)(int)integer(v, -8, 7) & 15);
}

mica_store_fn mica_dtype_store(mica_dtype d)
{
    static const mica_store_fn table[MICA_DTYPE_COUNT] = {
        [MICA_F64] = store_f64,   [MICA_F32] = store_f32,   [MICA_F16] = store_f16,
        [MICA_BF16] = store_bf16, [MICA_E4M3] = store_e4m3, [MICA_E5M2] = store_e5m2,
        [MICA_E2M1] = store_e2m1, [MICA_S8] = store_s8,     [MICA_U8] = store_u8,
        [MICA_S4] = store_s4,     [MICA_U4] = store_u4,     [MICA_S32] = store_s32,
        [MICA_S64] = store_s64,   [MICA_U32] = store_u32,   [MICA_BOOL] = store_bool,
        [MICA_E8M0] = store_e8m0};
    return known(d) ? table[d] : NULL;
}
