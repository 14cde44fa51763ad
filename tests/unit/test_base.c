/* SPDX-License-Identifier: Apache-2.0
 * Base layer: number formats, tensors, field tables, random numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/fields.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/tensor.h"
#include "ops/convert/cpu/convert.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- number formats ---- */

static bool same(double a, double b)
{
    return (a != a && b != b) || (a == b && signbit(a) == signbit(b));
}

/* Every code of an 8- or 16-bit format reads as a double that stores back to the same code. */
static void every_code_round_trips(void **state)
{
    (void)state;
    const mica_dtype types[] = {MICA_F16, MICA_BF16, MICA_E4M3, MICA_E5M2, MICA_S8, MICA_U8};
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        mica_load_fn load = mica_dtype_load(types[k]);
        mica_store_fn store = mica_dtype_store(types[k]);
        uint32_t codes = 1u << mica_dtype_bits(types[k]);
        for (uint32_t code = 0; code < codes; code++) {
            uint16_t in = (uint16_t)code, out = 0;
            double v = load(&in, 0);
            store(&out, 0, v);
            assert_true(same(v, load(&out, 0)));
            if (v == v) assert_int_equal(in, out);
        }
    }
}

/* Rounding between neighbours a and b of a format: below, at and above the middle. */
static void rounding_is_to_nearest_even(void **state)
{
    (void)state;
    const struct {
        mica_dtype type;
        uint16_t last; /* the largest finite positive code */
    } formats[] = {{MICA_F16, 0x7bff}, {MICA_BF16, 0x7f7f}, {MICA_E4M3, 0x7e}, {MICA_E5M2, 0x7b}};
    for (size_t k = 0; k < 4; k++) {
        mica_load_fn load = mica_dtype_load(formats[k].type);
        mica_store_fn store = mica_dtype_store(formats[k].type);
        for (uint16_t code = 0; code < formats[k].last; code++) {
            uint16_t next = (uint16_t)(code + 1), got = 0;
            double a = load(&code, 0), b = load(&next, 0), middle = (a + b) / 2;
            store(&got, 0, middle);
            assert_int_equal(got, code % 2 ? next : code);
            store(&got, 0, nextafter(middle, 0));
            assert_int_equal(got, code);
            store(&got, 0, nextafter(middle, INFINITY));
            assert_int_equal(got, next);
        }
    }
}

static void overflow_and_nan(void **state)
{
    (void)state;
    const struct {
        mica_dtype type;
        double in, out;
    } rows[] = {{MICA_F16, 65519.9, 65504},
                {MICA_F16, 65520, INFINITY},
                {MICA_F16, -1e9, -INFINITY},
                {MICA_BF16, 1e39, INFINITY},
                {MICA_E4M3, 1e9, 448},
                {MICA_E4M3, -INFINITY, -448},
                {MICA_E5M2, 61439, 57344},
                {MICA_E5M2, 61440, INFINITY},
                {MICA_S8, 127.5, 127},
                {MICA_S8, -1000, -128},
                {MICA_S8, 2.5, 2},
                {MICA_S8, NAN, 0},
                {MICA_U8, -3, 0},
                {MICA_S32, 3e9, 2147483647},
                {MICA_U32, 5e9, 4294967295},
                {MICA_BOOL, 0.1, 1},
                {MICA_F16, NAN, NAN},
                {MICA_E4M3, NAN, NAN}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char element[16];
        mica_dtype_store(rows[i].type)(element, 0, rows[i].in);
        assert_true(same(mica_dtype_load(rows[i].type)(element, 0), rows[i].out));
    }
}

enum { RUN = 331, STEP = 3 }; /* whole vectors of any width and a rest */

static uint32_t element_at(const void *data, int bytes, int64_t i)
{
    return bytes == 2 ? ((const uint16_t *)data)[i] : ((const uint8_t *)data)[i];
}

/* Codes from `first` on, `stride` apart, and the numbers between them and their neighbours. */
static void run_agrees(mica_dtype type, uint32_t first, int64_t stride)
{
    const int bytes = mica_dtype_bits(type) / 8;
    const mica_load_fn load = mica_dtype_load(type);
    uint16_t codes[RUN * STEP] = {0}, fast[RUN * STEP] = {0}, slow[1];
    float v[RUN], between[RUN];
    for (int i = 0; i < RUN; i++) {
        if (bytes == 2)
            codes[i * stride] = (uint16_t)(first + (uint32_t)i);
        else
            ((uint8_t *)codes)[i * stride] = (uint8_t)(first + (uint32_t)i);
    }
    mica_to_f32(type, codes, 0, stride, v, RUN);
    for (int i = 0; i < RUN; i++) assert_true(same((double)v[i], load(codes, i * stride)));
    for (int step = -1; step <= 1; step++) {
        for (int i = 0; i < RUN; i++) {
            float next = step < 0 ? nextafterf(v[i], -INFINITY)
                         : step   ? nextafterf(v[i], INFINITY)
                                  : v[i];
            between[i] = next * (1 + (float)step * 0x1p-9f);
        }
        mica_from_f32(type, fast, 0, stride, between, RUN);
        for (int i = 0; i < RUN; i++) {
            mica_dtype_store(type)(slow, 0, (double)between[i]);
            if (between[i] == between[i])
                assert_int_equal(element_at(fast, bytes, i * stride), element_at(slow, bytes, 0));
            else
                assert_true(same(load(fast, i * stride), load(slow, 0)));
        }
    }
}

/* The vectorised conversions agree with the one-element ones on every code and on all roundings. */
static void fast_conversions_agree(void **state)
{
    (void)state;
    const mica_dtype types[] = {MICA_F16, MICA_BF16, MICA_E4M3, MICA_E5M2, MICA_S8, MICA_U8};
    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
        for (uint32_t code = 0; code < 65536; code += RUN) {
            run_agrees(types[k], code, 1);
            run_agrees(types[k], code, STEP);
        }
}

static void sub_byte_types_pack_low_half_first(void **state)
{
    (void)state;
    uint8_t bytes[2] = {0xff, 0xff};
    mica_dtype_store(MICA_S4)(bytes, 0, -8);
    mica_dtype_store(MICA_S4)(bytes, 1, 7);
    assert_int_equal(bytes[0], 0x78);
    assert_int_equal(bytes[1], 0xff);
    assert_true(mica_dtype_load(MICA_S4)(bytes, 0) == -8);
    mica_dtype_store(MICA_E2M1)(bytes, 2, -2.4);
    assert_true(mica_dtype_load(MICA_E2M1)(bytes, 2) == -2);
}

/* Ties up and codes as ml_dtypes 0.6.0 has them (float8_e8m0fnu), but for 0, which it makes NaN. */
static void scales_are_powers_of_two(void **state)
{
    static const struct {
        double value;
        int code;
    } rows[] = {{1, 127},        {1.25, 127}, {1.4999999, 127}, {1.5, 128},       {3, 129},
                {2.9999, 128},   {0.75, 127}, {0.7499, 126},    {0x1p-127, 0},    {0x1.8p-127, 1},
                {0x1p-140, 0},   {0, 0},      {0x1p127, 254},   {0x1.fp127, 254}, {-1, 255},
                {INFINITY, 255}, {NAN, 255}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint8_t byte = 77;
        mica_dtype_store(MICA_E8M0)(&byte, 0, rows[i].value);
        assert_int_equal(byte, rows[i].code);
    }
    for (int code = 0; code < 255; code++) {
        const uint8_t byte = (uint8_t)code;
        assert_true(mica_dtype_load(MICA_E8M0)(&byte, 0) == ldexp(1, code - 127));
    }
    const uint8_t nan = 255;
    assert_true(isnan(mica_dtype_load(MICA_E8M0)(&nan, 0)));
}

/* ---- tensors ---- */

static void text_round_trips(void **state)
{
    (void)state;
    const char *const texts[] = {"f32:",        "f32:0",           "bf16:256x64x56x56:nhwc",
                                 "f16:2x3x4x5", "f64:2x3:t",       "s8:1x2x3x4x5:ndhwc",
                                 "f32:2x3:8x1", "e4m3:2x3x4:nwc",  "f32:4:-1",
                                 "f32:3x5:0x1", "f32:2x3x4:1x2x6", "s64:7"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        mica_tensor t, again;
        char text[256];
        assert_int_equal(mica_tensor_from_text(texts[i], &t), MICA_OK);
        mica_tensor_text(&t, text, sizeof text);
        assert_int_equal(mica_tensor_from_text(text, &again), MICA_OK);
        assert_memory_equal(&t, &again, sizeof t);
        assert_string_equal(text, texts[i]);
    }
}

static void bad_text_is_refused_with_the_rule(void **state)
{
    (void)state;
    const struct {
        const char *text, *says;
    } rows[] = {{"", "data type"},
                {"f33:2", "data type"},
                {"f32:-2", "negative"},
                {"f32:2x", "sizes"},
                {"f32:2x3:foo", "layout"},
                {"f32:2x3:1", "layout"},
                {"f32:99999999999999999999", "sizes"},
                {"f32:1x1x1x1x1x1x1x1x1", "sizes"},
                {"f32:3:nhwc", "layout"},
                {"f32:2x3:1x2x3", "layout"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mica_tensor t = {0}, before = t;
        assert_int_equal(mica_tensor_from_text(rows[i].text, &t), MICA_INVALID);
        assert_non_null(strstr(mica_error(), rows[i].says));
        assert_memory_equal(&t, &before, sizeof t);
    }
}

static void spans(void **state)
{
    (void)state;
    const struct {
        const char *text;
        int64_t first, bytes;
    } rows[] = {{"f32:2x3", 0, 24},
                {"f32:2x3:8x1", 0, 44},
                {"f32:4:-2", -24, 28},
                {"f32:5x0", 0, 0},
                {"f32:", 0, 4},
                {"s4:3", 0, 2},
                {"f16:3:4611686018427387904", 0, -1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mica_tensor t;
        int64_t first;
        assert_int_equal(mica_tensor_from_text(rows[i].text, &t), MICA_OK);
        assert_int_equal(mica_tensor_span(&t, &first), rows[i].bytes);
        assert_int_equal(first, rows[i].first);
    }
}

static void checks(void **state)
{
    (void)state;
    const struct {
        const char *text, *says;
        bool output;
    } rows[] = {{"f32:2x3", NULL, true},
                {"f32:2x3:1x1", "share memory", true},
                {"f32:2x3:1x1", NULL, false},
                {"f32:3x5:0x1", "share memory", true},
                {"f32:3037000500x3037000500x2", "63 bits", true},
                {"f32:281474976710657:0", "at most 2^48", false},
                {"f32:0x281474976710657", "at most 2^48", true},
                {"f32:16777216x33554432:0x1", "at most 2^48", false},
                {"f32:0x16777216x33554432", "a size of 0 counting as 1", false},
                {"f32:281474976710656:0", NULL, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mica_tensor t;
        mica_why why = {""};
        assert_int_equal(mica_tensor_from_text(rows[i].text, &t), MICA_OK);
        mica_status status = mica_tensor_check(&t, "x", rows[i].output, &why);
        assert_int_equal(status, rows[i].says ? MICA_INVALID : MICA_OK);
        if (rows[i].says) assert_non_null(strstr(why.text, rows[i].says));
    }
}

static void values_follow_strides(void **state)
{
    (void)state;
    mica_tensor t;
    assert_int_equal(mica_tensor_from_text("s32:2x3:-4x1", &t), MICA_OK);
    int32_t memory[7] = {9, 9, 9, 9, 9, 9, 9};
    const double in[] = {1, 2, 3, 4, 5, 6};
    double out[6];
    assert_int_equal(mica_tensor_store(&t, in, memory + 4), MICA_OK);
    const int32_t want[] = {4, 5, 6, 9, 1, 2, 3};
    assert_memory_equal(memory, want, sizeof want);
    assert_int_equal(mica_tensor_load(&t, memory + 4, out), MICA_OK);
    assert_memory_equal(in, out, sizeof in);
}

/* ---- fields ---- */

typedef struct sample {
    int32_t mode;
    mica_tensor x;
    int64_t pad[3], n;
    double eps;
    bool flag;
    int32_t steps[4];
    char words[8];
} sample;

static const char *const modes[] = {"slow", "fast", NULL};
static const char *const steps[] = {"", "bias", "relu", NULL};
static const mica_field table[] = {
    MICA_FIELD(sample, mode, ENUM, .spellings = modes),
    MICA_FIELD(sample, x, TENSOR),
    MICA_FIELD(sample, pad, AXES, .count = 3),
    MICA_FIELD(sample, n, I64, .def = 1),
    MICA_FIELD(sample, eps, F64, .def = 1e-5),
    MICA_FIELD(sample, flag, FLAG),
    MICA_FIELD(sample, steps, LIST, .count = 4, .spellings = steps),
    MICA_FIELD(sample, words, TEXT, .count = 8),
};
enum { FIELDS = sizeof table / sizeof *table };

static void fields_parse_and_print(void **state)
{
    (void)state;
    sample s = {0};
    mica_why why;
    const char *const values[] = {"fast",  "f32:2x3", "0x2",       "5",
                                  "1e-06", "1",       "bias,relu", "a=b,c;d"};
    for (int i = 0; i < FIELDS; i++)
        assert_int_equal(mica_field_parse(&table[i], values[i], &s, &why), MICA_OK);
    char buffer[256];
    mica_text text = {buffer, sizeof buffer, 0};
    for (int i = 0; i < FIELDS; i++) mica_field_text(&table[i], &s, &text);
    assert_string_equal(
        buffer, " mode=fast x=f32:2x3 pad=0x2 n=5 eps=1e-06 flag=1 steps=bias,relu words=a=b,c;d");
}

static void bad_fields_leave_the_descriptor(void **state)
{
    (void)state;
    const struct {
        int field;
        const char *value, *says;
    } rows[] = {{0, "quick", "slow, fast"},
                {1, "f32:x", "sizes"},
                {2, "1x2x3x4", "too many"},
                {2, "1x", "1x2x3"},
                {3, "4.5", "whole"},
                {3, "99999999999999999999", "whole"},
                {4, "nan", "finite"},
                {4, "1e999", "finite"},
                {5, "2", "0 or 1"},
                {6, "bias,gelu", "bias, relu"},
                {6, "bias,bias,bias,bias", "too many"},
                {7, "12345678", "at most 7"},
                {7, "a b", "character 2"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        sample s = {.n = 7}, before = s;
        mica_why why = {""};
        assert_int_equal(mica_field_parse(&table[rows[i].field], rows[i].value, &s, &why),
                         MICA_INVALID);
        assert_non_null(strstr(why.text, rows[i].says));
        assert_memory_equal(&s, &before, sizeof s);
    }
}

static void copies_ignore_padding_and_short_descriptors(void **state)
{
    (void)state;
    sample a, b, copy_a = {0}, copy_b = {0};
    mica_why why = {""};
    memset(&a, 0xa5, sizeof a);
    memset(&b, 0x5a, sizeof b);
    const sample value = {.mode = 1, .x = {.dtype = MICA_F32, .rank = 1, .dims = {5}}, .n = 3};
    for (int i = 0; i < FIELDS; i++) {
        memcpy((char *)&a + table[i].offset, (const char *)&value + table[i].offset,
               mica_field_size(&table[i]));
        memcpy((char *)&b + table[i].offset, (const char *)&value + table[i].offset,
               mica_field_size(&table[i]));
    }
    b.x.dims[3] = 77;                            /* past the rank: means nothing */
    memcpy(a.words, "one\0xyz", sizeof a.words); /* as what stands behind a text's end */
    memcpy(b.words, "one\0\0\0z", sizeof b.words);
    assert_int_equal(mica_fields_copy(table, FIELDS, &a, sizeof a, &copy_a, &why), MICA_OK);
    assert_int_equal(mica_fields_copy(table, FIELDS, &b, sizeof b, &copy_b, &why), MICA_OK);
    assert_memory_equal(&copy_a, &copy_b, sizeof copy_a);
    assert_int_equal(copy_a.x.strides[0], 1);
    sample shorter = {0};
    assert_int_equal(mica_fields_copy(table, FIELDS, &value, offsetof(sample, n), &shorter, &why),
                     MICA_OK);
    assert_int_equal(shorter.n, 0);
    memset(shorter.words, 'a', sizeof shorter.words);
    assert_int_equal(mica_fields_copy(table, FIELDS, &shorter, sizeof a, &copy_a, &why),
                     MICA_INVALID);
    assert_non_null(strstr(why.text, "at most 7"));
    a.mode = 9;
    assert_int_equal(mica_fields_copy(table, FIELDS, &a, sizeof a, &copy_a, &why), MICA_INVALID);
    assert_non_null(strstr(why.text, "mode: 9"));
}

/* ---- random numbers, faults ---- */

static void random_numbers_have_their_moments(void **state)
{
    (void)state;
    double sum = 0, squares = 0, low = 1, high = 0;
    enum { N = 100000 };
    for (uint64_t i = 0; i < N; i++) {
        double v = mica_random_normal(7, i), u = mica_random_uniform(7, i);
        sum += v, squares += v * v;
        low = u < low ? u : low, high = u > high ? u : high;
    }
    assert_true(fabs(sum / N) < 0.02 && fabs(squares / N - 1) < 0.02);
    assert_true(low >= 0 && low < 0.001 && high < 1 && high > 0.999);
}

static void faults_come_when_asked(void **state)
{
    (void)state;
    mica_fault_set(MICA_FAULT_ALLOC, 2, false);
    void *a = mica_alloc(8), *b = mica_alloc(8), *c = mica_alloc(8);
    mica_fault_set(MICA_FAULT_ALLOC, 1, true);
    void *d = mica_alloc(8), *e = mica_alloc(8);
    mica_fault_set(MICA_FAULT_ALLOC, 0, false);
    assert_true(a && !b && c && !d && !e);
    mica_release(a);
    mica_release(c);
}

static void hear(void *user, mica_log_level level, const char *line)
{
    if (level == MICA_LOG_WARN) snprintf(user, 10000, "%s", line);
}

static void lines_of_the_log_are_whole(void **state)
{
    (void)state;
    static char heard[10000], said[6000];
    const size_t lengths[] = {10, 4060, 4075, 4076, 4077, 4078, 4079, 4080, 4095, 4096, 5999};
    mica_log_set(hear, heard, MICA_LOG_WARN);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memset(said, 'x', lengths[i]);
        said[lengths[i] - 1] = 'y';
        said[lengths[i]] = 0;
        mica_log(MICA_LOG_WARN, "%s", said);
        const char *tail = strchr(heard, 'x');
        assert_string_equal(tail, said);
    }
    mica_log_set(NULL, NULL, MICA_LOG_ERROR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_round_trips),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(overflow_and_nan),
        cmocka_unit_test(fast_conversions_agree),
        cmocka_unit_test(sub_byte_types_pack_low_half_first),
        cmocka_unit_test(scales_are_powers_of_two),
        cmocka_unit_test(text_round_trips),
        cmocka_unit_test(bad_text_is_refused_with_the_rule),
        cmocka_unit_test(spans),
        cmocka_unit_test(checks),
        cmocka_unit_test(values_follow_strides),
        cmocka_unit_test(fields_parse_and_print),
        cmocka_unit_test(bad_fields_leave_the_descriptor),
        cmocka_unit_test(copies_ignore_padding_and_short_descriptors),
        cmocka_unit_test(random_numbers_have_their_moments),
        cmocka_unit_test(faults_come_when_asked),
        cmocka_unit_test(lines_of_the_log_are_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
