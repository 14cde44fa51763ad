/* SPDX-License-Identifier: Apache-2.0
 * Runs of elements to and from f32 and f64. Every conversion is arithmetic on bits without
 * branches, so that the compiler vectorises it at each instruction level. */
#include "ops/convert/cpu/convert.h"
#include "ops/convert/cpu/bf16.h"
#include "cpu/cpu.h"
#include "cpu/stream.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 512 };

#define INLINE __attribute__((always_inline)) static inline

/* ---- one element ---- */

/* Moving the fields into place leaves the exponent 112 short: one exact product puts it right,
 * subnormals included; infinity and NaN are set apart. */
INLINE float f16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)(h & 0x7fff) << 13;
    uint32_t r = mica_bits_of(mica_float_of(u) * 0x1p112f);
    r = u >= 0x0f800000 ? u | 0x7f800000 : r;
    return mica_float_of(r | (uint32_t)(h & 0x8000) << 16);
}

/* Magnitude a >= 0 in a format with `digits` stored mantissa bits and smallest normal exponent
 * `low`. Normal numbers round in their bits; below, adding 2^(low - digits + 23) makes the float
 * adder round at the right place. */
INLINE uint32_t small_code(float a, int digits, int low)
{
    uint32_t u = mica_bits_of(a), drop = (uint32_t)(23 - digits);
    uint32_t normal = ((u + (1u << (drop - 1)) - 1 + (u >> drop & 1)) >> drop) -
                      ((uint32_t)(low + 126) << digits);
    float magic = mica_float_of((uint32_t)(low - digits + 23 + 127) << 23);
    uint32_t subnormal = mica_bits_of(a + magic) - mica_bits_of(magic);
    return u < (uint32_t)(low + 127) << 23 ? subnormal : normal;
}

INLINE uint16_t f32_to_f16(float v)
{
    uint32_t sign = mica_bits_of(v) >> 16 & 0x8000;
    float a = fabsf(v);
    uint32_t code = a >= 65520 ? 0x7c00 : small_code(a, 10, -14);
    return (uint16_t)(v != v ? 0x7e00 : code | sign);
}
INLINE uint8_t f32_to_e4m3(float v)
{
    uint32_t sign = mica_bits_of(v) >> 24 & 0x80;
    float a = fabsf(v);
    uint32_t code = a >= 448 ? 0x7e : small_code(a, 3, -6);
    return (uint8_t)(v != v ? 0x7f : code | sign);
}
INLINE uint8_t f32_to_e5m2(float v)
{
    uint32_t sign = mica_bits_of(v) >> 24 & 0x80;
    float a = fabsf(v);
    uint32_t code = a >= 61440 ? 0x7c : small_code(a, 2, -14);
    return (uint8_t)(v != v ? 0x7f : code | sign);
}

INLINE float e5m2_to_f32(uint8_t b)
{
    return f16_to_f32((uint16_t)(b << 8));
}
/* As f16: the fields are 120 short. */
INLINE float e4m3_to_f32(uint8_t b)
{
    uint32_t u = (uint32_t)(b & 0x7f) << 20;
    uint32_t r = mica_bits_of(mica_float_of(u) * 0x1p120f);
    r = u == 0x07f00000 ? 0x7fc00000 : r;
    return mica_float_of(r | (uint32_t)(b & 0x80) << 24);
}

/* A double on its way to a type shorter than f32: cut, and odd if anything was cut. */
INLINE float to_odd(double v)
{
    float f = (float)v;
    uint32_t u = mica_bits_of(f);
    double back = (double)f;
    u -= fabs(back) > fabs(v) ? 1 : 0; /* infinity becomes the largest float, which is odd */
    u |= back != v && v == v ? 1 : 0;
    return mica_float_of(u);
}

/* Nearest even within [low, high], NaN to 0. The sum with 1.5 * 2^52 has no bits below one. */
INLINE double to_integer(double v, double low, double high)
{
    double r = v < low ? low : v > high ? high : v;
    r = (r + 0x1.8p52) - 0x1.8p52;
    return v != v ? 0 : r;
}
INLINE int64_t to_s64(double v)
{
    double r = v != v ? 0 : rint(v);
    return r >= 0x1p63 ? INT64_MAX : r < -0x1p63 ? INT64_MIN : (int64_t)r;
}

INLINE float s8_to_f32(uint8_t b)
{
    return (float)(int8_t)b;
}
INLINE float u8_to_f32(uint8_t b)
{
    return (float)b;
}
/* As to_integer, for small ranges: the sum with 1.5 * 2^23 has no bits below one. */
INLINE int32_t to_small_integer(float v, float low, float high)
{
    float r = v < low ? low : v > high ? high : v;
    r = (r + 0x1.8p23f) - 0x1.8p23f;
    return v != v ? 0 : (int32_t)r;
}
INLINE uint8_t f32_to_s8(float v)
{
    return (uint8_t)to_small_integer(v, -128, 127);
}
INLINE uint8_t f32_to_u8(float v)
{
    return (uint8_t)to_small_integer(v, 0, 255);
}

/* ---- rows: the conversion is a constant, so each call becomes a loop of its own ---- */

INLINE void load_16(const uint16_t *p, int64_t n, float (*to)(uint16_t), float *out)
{
    for (int64_t i = 0; i < n; i++) out[i] = to(p[i]);
}
INLINE void load_8(const uint8_t *p, int64_t n, float (*to)(uint8_t), float *out)
{
    for (int64_t i = 0; i < n; i++) out[i] = to(p[i]);
}
INLINE void store_16(uint16_t *p, int64_t n, uint16_t (*from)(float), const float *in)
{
    for (int64_t i = 0; i < n; i++) p[i] = from(in[i]);
}
INLINE void store_8(uint8_t *p, int64_t n, uint8_t (*from)(float), const float *in)
{
    for (int64_t i = 0; i < n; i++) p[i] = from(in[i]);
}

/* ---- by instructions that the compiler does not find ----
 * Each of these does whole vectors of n neighbours and returns how many elements that was. */

#if defined(__x86_64__)
#include <immintrin.h>

enum { EIGHT = 8, SIXTEEN = 16 };

static bool has_f16c(void)
{
#ifdef __clang__ /* knows no f16c here; what has AVX2 has it */
    return __builtin_cpu_supports("avx2");
#else
    return __builtin_cpu_supports("f16c");
#endif
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

#define WITH_F16C   __attribute__((target("avx,f16c")))
#define WITH_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))

WITH_F16C static int64_t load_f16(const uint16_t *p, int64_t n, float *out)
{
    int64_t i = 0;
    for (; i + EIGHT <= n; i += EIGHT)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + i))));
    return i;
}

WITH_AVX512 static int64_t load_f16_wide(const uint16_t *p, int64_t n, float *out)
{
    int64_t i = 0;
    for (; i + SIXTEEN <= n; i += SIXTEEN)
        _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p + i))));
    return i;
}

/* NaN as f32_to_f16 writes it, here and below. */
WITH_F16C static int64_t store_f16(uint16_t *p, int64_t n, const float *in)
{
    int64_t i = 0;
    for (; i + EIGHT <= n; i += EIGHT) {
        __m256 v = _mm256_loadu_ps(in + i);
        __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        __m128i where =
            _mm_packs_epi32(_mm256_castsi256_si128(nan), _mm256_extractf128_si256(nan, 1));
        __m128i half = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
        half = _mm_blendv_epi8(half, _mm_set1_epi16(0x7e00), where);
        _mm_storeu_si128((__m128i *)(p + i), half);
    }
    return i;
}

WITH_AVX512 static int64_t store_f16_wide(uint16_t *p, int64_t n, const float *in)
{
    int64_t i = 0;
    for (; i + SIXTEEN <= n; i += SIXTEEN) {
        __m512 v = _mm512_loadu_ps(in + i);
        /* the form with a mask: gcc's macro of the other warns where nothing is optimised */
        __m256i half = _mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT);
        __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        half = _mm256_mask_blend_epi16(nan, half, _mm256_set1_epi16(0x7e00));
        _mm256_storeu_si256((__m256i *)(p + i), half);
    }
    return i;
}

/* Rounded in the upper half of each number. */
WITH_AVX512 static inline __m512i round_bf16(const float *in)
{
    __m512i u = _mm512_loadu_si512(in);
    __mmask16 number = _mm512_cmp_ps_mask((__m512)u, (__m512)u, _CMP_ORD_Q);
    __m512i even = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    return _mm512_mask_add_epi32(quiet, number, _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)),
                                 even);
}

WITH_AVX512 static int64_t store_bf16_wide(uint16_t *p, int64_t n, const float *in)
{
    static const uint16_t upper[2 * SIXTEEN] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    const __m512i odd = _mm512_loadu_si512(upper);
    int64_t i = 0;
    for (; i + 2 * SIXTEEN <= n; i += 2 * SIXTEEN)
        _mm512_storeu_si512(p + i, _mm512_permutex2var_epi16(round_bf16(in + i), odd,
                                                             round_bf16(in + i + SIXTEEN)));
    return i;
}

static int64_t load_vectors(mica_dtype dtype, const void *from, int64_t n, float *out)
{
    if (dtype != MICA_F16 || !has_f16c()) return 0;
    return has_avx512() ? load_f16_wide(from, n, out) : load_f16(from, n, out);
}

static int64_t store_vectors(mica_dtype dtype, void *to, int64_t n, const float *in)
{
    if (dtype == MICA_BF16 && has_avx512()) return store_bf16_wide(to, n, in);
    if (dtype != MICA_F16 || !has_f16c()) return 0;
    return has_avx512() ? store_f16_wide(to, n, in) : store_f16(to, n, in);
}
#else
static int64_t load_vectors(mica_dtype dtype, const void *from, int64_t n, float *out)
{
    (void)dtype, (void)from, (void)n, (void)out;
    return 0;
}
static int64_t store_vectors(mica_dtype dtype, void *to, int64_t n, const float *in)
{
    (void)dtype, (void)to, (void)n, (void)in;
    return 0;
}
#endif

/* n neighbours. */
MICA_CLONES
static void to_f32(mica_dtype dtype, const void *data, int64_t n, float *out)
{
    if (dtype == MICA_F16)
        load_16(data, n, f16_to_f32, out);
    else if (dtype == MICA_BF16)
        load_16(data, n, mica_bf16_value, out);
    else if (dtype == MICA_E4M3)
        load_8(data, n, e4m3_to_f32, out);
    else if (dtype == MICA_E5M2)
        load_8(data, n, e5m2_to_f32, out);
    else if (dtype == MICA_S8)
        load_8(data, n, s8_to_f32, out);
    else if (dtype == MICA_U8)
        load_8(data, n, u8_to_f32, out);
    else
        memcpy(out, data, (size_t)n * sizeof *out);
}

MICA_CLONES
static void from_f32(mica_dtype dtype, void *data, int64_t n, const float *in)
{
    if (dtype == MICA_F16)
        store_16(data, n, f32_to_f16, in);
    else if (dtype == MICA_BF16)
        store_16(data, n, mica_bf16_rounded, in);
    else if (dtype == MICA_E4M3)
        store_8(data, n, f32_to_e4m3, in);
    else if (dtype == MICA_E5M2)
        store_8(data, n, f32_to_e5m2, in);
    else if (dtype == MICA_S8)
        store_8(data, n, f32_to_s8, in);
    else if (dtype == MICA_U8)
        store_8(data, n, f32_to_u8, in);
    else
        memcpy(data, in, (size_t)n * sizeof *in);
}

void mica_move(const char *from, int64_t from_step, char *to, int64_t to_step, int64_t bytes,
               int64_t n)
{
    if (bytes == 8)
        for (int64_t i = 0; i < n; i++) memcpy(to + i * to_step * 8, from + i * from_step * 8, 8);
    else if (bytes == 4)
        for (int64_t i = 0; i < n; i++) memcpy(to + i * to_step * 4, from + i * from_step * 4, 4);
    else if (bytes == 2)
        for (int64_t i = 0; i < n; i++) memcpy(to + i * to_step * 2, from + i * from_step * 2, 2);
    else
        for (int64_t i = 0; i < n; i++) to[i * to_step] = from[i * from_step];
}

void mica_to_f32(mica_dtype dtype, const void *data, int64_t offset, int64_t stride, float *out,
                 int64_t n)
{
    int64_t bytes = mica_dtype_bits(dtype) / 8;
    const char *from = (const char *)data + offset * bytes;
    if (stride == 1) {
        int64_t done = load_vectors(dtype, from, n, out);
        if (done < n) to_f32(dtype, from + done * bytes, n - done, out + done);
        return;
    }
    if (dtype == MICA_F32) {
        mica_move(from, stride, (char *)out, 1, bytes, n);
        return;
    }
    MICA_ALIGNED uint16_t block[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = n - i < BLOCK ? n - i : BLOCK;
        mica_move(from + i * stride * bytes, stride, (char *)block, 1, bytes, m);
        mica_to_f32(dtype, block, 0, 1, out + i, m);
    }
}

void mica_from_f32(mica_dtype dtype, void *data, int64_t offset, int64_t stride, const float *in,
                   int64_t n)
{
    int64_t bytes = mica_dtype_bits(dtype) / 8;
    char *to = (char *)data + offset * bytes;
    if (stride == 1) {
        int64_t done = store_vectors(dtype, to, n, in);
        if (done < n) from_f32(dtype, to + done * bytes, n - done, in + done);
        return;
    }
    if (dtype == MICA_F32) {
        mica_move((const char *)in, 1, to, stride, bytes, n);
        return;
    }
    MICA_ALIGNED uint16_t block[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = n - i < BLOCK ? n - i : BLOCK;
        mica_from_f32(dtype, block, 0, 1, in + i, m);
        mica_move((const char *)block, 1, to + i * stride * bytes, stride, bytes, m);
    }
}

const float *mica_run_f32(mica_dtype dtype, const void *data, int64_t offset, int64_t stride,
                          float *buffer, int64_t n)
{
    if (dtype == MICA_F32 && stride == 1) return (const float *)data + offset;
    mica_to_f32(dtype, data, offset, stride, buffer, n);
    return buffer;
}

/* Ready to be rounded to dtype. */
MICA_CLONES
static void scale(mica_dtype dtype, double alpha, const float *in, float *out, int64_t n)
{
    if (dtype == MICA_F32)
        for (int64_t i = 0; i < n; i++) out[i] = (float)(alpha * in[i]);
    else
        for (int64_t i = 0; i < n; i++) out[i] = to_odd(alpha * in[i]);
}

MICA_CLONES
static void scale_to_bytes(mica_dtype dtype, double alpha, const float *in, uint8_t *out, int64_t n)
{
    if (dtype == MICA_S8)
        for (int64_t i = 0; i < n; i++) {
            int8_t code = (int8_t)to_integer(alpha * in[i], -128, 127);
            out[i] = (uint8_t)code;
        }
    else
        for (int64_t i = 0; i < n; i++) out[i] = (uint8_t)to_integer(alpha * in[i], 0, 255);
}

void mica_scaled_from_f32(mica_dtype dtype, double alpha, void *data, int64_t offset,
                          int64_t stride, const float *in, int64_t n)
{
    MICA_ALIGNED float block[BLOCK];
    if (alpha == 1) {
        mica_from_f32(dtype, data, offset, stride, in, n);
        return;
    }
    if (stride == 1 && (dtype == MICA_S8 || dtype == MICA_U8)) {
        scale_to_bytes(dtype, alpha, in, (uint8_t *)data + offset, n);
        return;
    }
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = n - i < BLOCK ? n - i : BLOCK, at = offset + i * stride;
        float *to = dtype == MICA_F32 && stride == 1 ? (float *)data + at : block;
        scale(dtype, alpha, in + i, to, m);
        if (to == block) mica_from_f32(dtype, data, at, stride, block, m);
    }
}

void mica_scaled_stream_f32(mica_dtype dtype, double alpha, void *data, int64_t offset,
                            const float *in, int64_t n)
{
    MICA_ALIGNED float block[BLOCK];
    size_t bytes = (size_t)mica_dtype_bits(dtype) / 8;
    char *to = (char *)data + offset * (int64_t)bytes;
    if (dtype == MICA_F32 && alpha == 1) {
        mica_stream_copy(to, in, (size_t)n * bytes);
        return;
    }
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = n - i < BLOCK ? n - i : BLOCK;
        mica_scaled_from_f32(dtype, alpha, block, 0, 1, in + i, m);
        mica_stream_copy(to + (size_t)i * bytes, block, (size_t)m * bytes);
    }
}

void mica_stream_f32(mica_dtype dtype, void *data, int64_t offset, const float *in, int64_t n)
{
    mica_scaled_stream_f32(dtype, 1, data, offset, in, n);
}

/* n neighbours, here and below. */
MICA_MEMORY_CLONES
static void load_integers(mica_dtype dtype, const void *data, int64_t n, double *out)
{
    const int8_t *b = data;
    const uint8_t *ub = data;
    const int32_t *w = data;
    const uint32_t *uw = data;
    const int64_t *q = data;
    if (dtype == MICA_S8)
        for (int64_t i = 0; i < n; i++) out[i] = b[i];
    else if (dtype == MICA_U8)
        for (int64_t i = 0; i < n; i++) out[i] = ub[i];
    else if (dtype == MICA_BOOL)
        for (int64_t i = 0; i < n; i++) out[i] = ub[i] != 0;
    else if (dtype == MICA_S32)
        for (int64_t i = 0; i < n; i++) out[i] = w[i];
    else if (dtype == MICA_U32)
        for (int64_t i = 0; i < n; i++) out[i] = uw[i];
    else
        for (int64_t i = 0; i < n; i++) out[i] = (double)q[i];
}

MICA_MEMORY_CLONES
static void store_integers(mica_dtype dtype, void *data, int64_t n, const double *in)
{
    int8_t *b = data;
    uint8_t *ub = data;
    int32_t *w = data;
    uint32_t *uw = data;
    int64_t *q = data;
    if (dtype == MICA_S8)
        for (int64_t i = 0; i < n; i++) b[i] = (int8_t)to_integer(in[i], -128, 127);
    else if (dtype == MICA_U8)
        for (int64_t i = 0; i < n; i++) ub[i] = (uint8_t)to_integer(in[i], 0, 255);
    else if (dtype == MICA_BOOL)
        for (int64_t i = 0; i < n; i++) ub[i] = in[i] != 0;
    else if (dtype == MICA_S32)
        for (int64_t i = 0; i < n; i++) w[i] = (int32_t)to_integer(in[i], -0x1p31, 0x1p31 - 1);
    else if (dtype == MICA_U32)
        for (int64_t i = 0; i < n; i++) uw[i] = (uint32_t)to_integer(in[i], 0, 0x1p32 - 1);
    else
        for (int64_t i = 0; i < n; i++) q[i] = to_s64(in[i]);
}

static void load_apart(mica_dtype dtype, const char *from, int64_t stride, int64_t n, double *out)
{
    MICA_ALIGNED double block[BLOCK];
    int64_t bytes = mica_dtype_bits(dtype) / 8;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = n - i < BLOCK ? n - i : BLOCK;
        mica_move(from + i * stride * bytes, stride, (char *)block, 1, bytes, m);
        load_integers(dtype, block, m, out + i);
    }
}

static void store_apart(mica_dtype dtype, char *to, int64_t stride, int64_t n, const double *in)
{
    MICA_ALIGNED double block[BLOCK];
    int64_t bytes = mica_dtype_bits(dtype) / 8;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = n - i < BLOCK ? n - i : BLOCK;
        store_integers(dtype, block, m, in + i);
        mica_move((const char *)block, 1, to + i * stride * bytes, stride, bytes, m);
    }
}

MICA_CLONES
static void widen(const float *in, int64_t n, double *out)
{
    for (int64_t i = 0; i < n; i++) out[i] = (double)in[i];
}
MICA_CLONES
static void narrow(const double *in, int64_t n, bool odd, float *out)
{
    if (odd)
        for (int64_t i = 0; i < n; i++) out[i] = to_odd(in[i]);
    else
        for (int64_t i = 0; i < n; i++) out[i] = (float)in[i];
}

void mica_to_f64(mica_dtype dtype, const void *data, int64_t offset, int64_t stride, double *out,
                 int64_t n)
{
    if (dtype == MICA_F64) {
        const double *p = (const double *)data + offset;
        for (int64_t i = 0; i < n; i++) out[i] = p[i * stride];
        return;
    }
    if (dtype == MICA_F32 && stride == 1) {
        widen((const float *)data + offset, n, out);
        return;
    }
    if (!mica_fits_f32(dtype)) {
        const char *from = (const char *)data + offset * (mica_dtype_bits(dtype) / 8);
        if (stride == 1)
            load_integers(dtype, from, n, out);
        else
            load_apart(dtype, from, stride, n, out);
        return;
    }
    MICA_ALIGNED float block[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = n - i < BLOCK ? n - i : BLOCK;
        mica_to_f32(dtype, data, offset + i * stride, stride, block, m);
        widen(block, m, out + i);
    }
}

void mica_from_f64(mica_dtype dtype, void *data, int64_t offset, int64_t stride, const double *in,
                   int64_t n)
{
    if (dtype == MICA_F64) {
        double *p = (double *)data + offset;
        for (int64_t i = 0; i < n; i++) p[i * stride] = in[i];
        return;
    }
    if (dtype == MICA_F32 && stride == 1) {
        narrow(in, n, false, (float *)data + offset);
        return;
    }
    if (!mica_fits_f32(dtype)) {
        char *to = (char *)data + offset * (mica_dtype_bits(dtype) / 8);
        if (stride == 1)
            store_integers(dtype, to, n, in);
        else
            store_apart(dtype, to, stride, n, in);
        return;
    }
    MICA_ALIGNED float block[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = n - i < BLOCK ? n - i : BLOCK;
        narrow(in + i, m, dtype != MICA_F32, block);
        mica_from_f32(dtype, data, offset + i * stride, stride, block, m);
    }
}

void mica_stream_f64(mica_dtype dtype, void *data, int64_t offset, const double *in, int64_t n)
{
    MICA_ALIGNED double block[BLOCK];
    size_t bytes = (size_t)mica_dtype_bits(dtype) / 8;
    char *to = (char *)data + offset * (int64_t)bytes;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = n - i < BLOCK ? n - i : BLOCK;
        mica_from_f64(dtype, block, 0, 1, in + i, m);
        mica_stream_copy(to + (size_t)i * bytes, block, (size_t)m * bytes);
    }
}

void mica_s64_to_f64_odd(const void *data, int64_t offset, int64_t stride, double *out, int64_t n)
{
    const int64_t *p = (const int64_t *)data + offset;
    for (int64_t i = 0; i < n; i++) {
        int64_t v = p[i * stride];
        /* The low 11 bits of what does not fit 53 become one sticky bit: 2^63 still holds it. */
        uint64_t a = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
        uint64_t lost = a >> 53 ? a & 0x7ff : 0;
        double r = (double)(a & ~lost) + (lost ? 1024.0 : 0);
        out[i] = v < 0 ? -r : r;
    }
}

/* ---- 64-bit integers ---- */

void mica_to_s64(mica_dtype dtype, const void *data, int64_t offset, int64_t stride, int64_t *out,
                 int64_t n)
{
    if (dtype == MICA_S64) {
        mica_move((const char *)data + offset * 8, stride, (char *)out, 1, 8, n);
        return;
    }
    MICA_ALIGNED double block[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t m = n - i < BLOCK ? n - i : BLOCK;
        mica_to_f64(dtype, data, offset + i * stride, stride, block, m);
        for (int64_t j = 0; j < m; j++) out[i + j] = (int64_t)block[j];
    }
}

/* What a double cannot hold is saturated by any type that is shorter. */
void mica_from_s64(mica_dtype dtype, void *data, int64_t offset, int64_t stride, const int64_t *in,
                   int64_t n)
{
    if (dtype == MICA_S64) {
        mica_move((const char *)in, 1, (char *)data + offset * 8, stride, 8, n);
        return;
    }
    MICA_ALIGNED double block[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t m = n - i < BLOCK ? n - i : BLOCK;
        for (int64_t j = 0; j < m; j++) block[j] = (double)in[i + j];
        mica_from_f64(dtype, data, offset + i * stride, stride, block, m);
    }
}

void mica_wrap_s64(mica_dtype dtype, void *data, int64_t offset, int64_t stride, const int64_t *in,
                   int64_t n)
{
    if (mica_dtype_bits(dtype) == 64) {
        mica_from_s64(dtype, data, offset, stride, in, n);
    } else if (mica_dtype_bits(dtype) == 32) {
        uint32_t *to = (uint32_t *)data + offset;
        for (int64_t i = 0; i < n; i++) to[i * stride] = (uint32_t)(uint64_t)in[i];
    } else {
        uint8_t *to = (uint8_t *)data + offset;
        for (int64_t i = 0; i < n; i++) to[i * stride] = (uint8_t)(uint64_t)in[i];
    }
}
