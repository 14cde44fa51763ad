/* SPDX-License-Identifier: Apache-2.0
 * Transforms: conversions against the scalar ones, every pair of types, strides, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "mica/mica.h"
#include "ops/convert/cpu/convert.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mica_context *ctx;

static int open_context(void **state)
{
    (void)state;
    return mica_context_create("cpu", &ctx) != MICA_OK;
}

static int close_context(void **state)
{
    (void)state;
    mica_context_destroy(ctx);
    return 0;
}

static const mica_dtype types[] = {MICA_F64, MICA_F32, MICA_F16, MICA_BF16, MICA_E4M3, MICA_E5M2,
                                   MICA_S8,  MICA_U8,  MICA_S32, MICA_S64,  MICA_U32,  MICA_BOOL};
enum { TYPES = sizeof types / sizeof *types };

/* ---- runs of elements against mica_dtype_load and mica_dtype_store ---- */

static bool same_value(double a, double b)
{
    return a == b ? signbit(a) == signbit(b) : a != a && b != b;
}

static void loads_equal_scalar_loads(void **state)
{
    (void)state;
    static const mica_dtype small[] = {MICA_F16, MICA_BF16, MICA_E4M3, MICA_E5M2};
    for (size_t t = 0; t < sizeof small / sizeof *small; t++) {
        bool wide = mica_dtype_bits(small[t]) == 16;
        int64_t count = wide ? 65536 : 256;
        uint8_t *data = malloc((size_t)count * 2);
        float *out = malloc((size_t)count * sizeof *out);
        for (int64_t i = 0; i < count; i++) {
            if (wide)
                ((uint16_t *)(void *)data)[i] = (uint16_t)i;
            else
                data[i] = (uint8_t)i;
        }
        for (int64_t stride = 1; stride <= 3; stride += 2) {
            int64_t n = (count - 1) / stride + 1;
            mica_to_f32(small[t], data, 0, stride, out, n);
            for (int64_t i = 0; i < n; i++)
                if (!same_value((double)out[i], mica_dtype_load(small[t])(data, i * stride)))
                    fail_msg("%s code %lld: %a", mica_dtype_name(small[t]), (long long)(i * stride),
                             (double)out[i]);
        }
        free(data);
        free(out);
    }
}

/* Numbers near every boundary of the short formats, as doubles that are not all floats. */
static int64_t hard_values(double *v)
{
    int64_t n = 0;
    for (int e = -160; e <= 140; e++)
        for (int m = 0; m < 64; m++)
            for (int near = -1; near <= 1; near++) {
                double a = ldexp(1 + m / 64.0, e), b = a * (1 + near * 0x1p-45);
                v[n++] = m & 1 ? -b : b;
            }
    const double special[] = {
        0.0,     -0.0,   INFINITY, -INFINITY, NAN,    0x1p-1074, 0x1p1023,     0.5,          1.5,
        2.5,     -0.5,   127.5,    128.5,     -128.5, 255.5,     2147483647.5, 4294967295.5, 0x1p63,
        -0x1p63, 0x1p62, 65504,    65519.999, 65520,  448,       464,          57344,        61440};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++) v[n++] = special[i];
    return n;
}

static void stores_equal_scalar_stores(void **state)
{
    (void)state;
    double *v = malloc(sizeof *v * 64 * 1024);
    float *f = malloc(sizeof *f * 64 * 1024);
    char *a = malloc(8 * 64 * 1024), *b = malloc(8 * 64 * 1024);
    int64_t n = hard_values(v);
    for (int t = 0; t < TYPES; t++) {
        size_t bytes = (size_t)mica_dtype_bits(types[t]) / 8;
        mica_from_f64(types[t], a, 0, 1, v, n);
        for (int64_t i = 0; i < n; i++) mica_dtype_store(types[t])(b, i, v[i]);
        for (int64_t i = 0; i < n; i++)
            if (v[i] == v[i] && memcmp(a + (size_t)i * bytes, b + (size_t)i * bytes, bytes) != 0)
                fail_msg("%s of %a", mica_dtype_name(types[t]), v[i]);
        if (!mica_fits_f32(types[t])) continue;
        for (int64_t i = 0; i < n; i++) f[i] = (float)v[i];
        mica_from_f32(types[t], a, 0, 1, f, n);
        for (int64_t i = 0; i < n; i++) mica_dtype_store(types[t])(b, i, (double)f[i]);
        for (int64_t i = 0; i < n; i++) {
            double x = mica_dtype_load(types[t])(a, i), y = mica_dtype_load(types[t])(b, i);
            if (!same_value(x, y))
                fail_msg("%s of %a: %a, not %a", mica_dtype_name(types[t]), (double)f[i], x, y);
        }
    }
    free(v);
    free(f);
    free(a);
    free(b);
}

/* Every product rounded once, several blocks of neighbours and of elements that lie apart. */
static void scaled_stores_equal_scalar_stores(void **state)
{
    (void)state;
    const double factors[] = {1, -0.3, 1 / 255.0, 1 + 0x1p-30, 255, 0x1p-140};
    double *v = malloc(sizeof *v * 64 * 1024);
    float *f = malloc(sizeof *f * 64 * 1024);
    char *a = malloc(3 * 4 * 64 * 1024), *b = malloc(3 * 4 * 64 * 1024);
    int64_t n = hard_values(v);
    for (int64_t i = 0; i < n; i++) f[i] = (float)v[i];
    for (int t = 0; t < TYPES; t++)
        for (size_t k = 0; k < sizeof factors / sizeof *factors; k++)
            for (int64_t stride = 1; stride <= 3; stride += 2) {
                if (!mica_runs_f32(types[t])) continue;
                mica_scaled_from_f32(types[t], factors[k], a, 5, stride, f, n - 5);
                for (int64_t i = 0; i < n - 5; i++) {
                    int64_t at = 5 + i * stride;
                    mica_dtype_store(types[t])(b, at, factors[k] * (double)f[i]);
                    double x = mica_dtype_load(types[t])(a, at),
                           y = mica_dtype_load(types[t])(b, at);
                    if (!same_value(x, y))
                        fail_msg("%s of %a times %a: %a, not %a", mica_dtype_name(types[t]),
                                 factors[k], (double)f[i], x, y);
                }
            }
    free(v);
    free(f);
    free(a);
    free(b);
}

/* ---- problems through the engines ---- */

typedef struct array {
    mica_tensor t;
    char *memory;
    void *data; /* element 0 */
    int64_t bytes;
} array;

static array make_array(const mica_tensor *t, int byte)
{
    array a = {.t = *t};
    int64_t first;
    a.bytes = mica_tensor_span(t, &first);
    a.memory = malloc((size_t)a.bytes + 1);
    memset(a.memory, byte, (size_t)a.bytes + 1);
    a.data = a.memory - first;
    return a;
}

static mica_tensor tensor_of(const mica_problem *p, int arg)
{
    mica_arg_info info;
    assert_int_equal(mica_problem_arg(p, arg, &info), MICA_OK);
    return info.tensor;
}

static void run(const char *line, const char *engine, void *x, void *y, const double *scalars)
{
    mica_plan *plan;
    mica_options only = {.engine = engine};
    char bare[512];
    snprintf(bare, sizeof bare, "%s", line);
    if (mica_plan_from_text(ctx, bare, &only, &plan) != MICA_OK) fail_msg("%s", mica_error());
    mica_run r = {.args = {x, y}, .scalars = scalars};
    if (mica_plan_run(plan, &r) != MICA_OK) fail_msg("%s", mica_error());
    mica_plan_destroy(plan);
}

/* Values of x, most of them of about unit size, some beyond the range of short types. */
static void fill_x(const mica_problem *p, array *x, double *values)
{
    int64_t n = mica_tensor_count(&x->t);
    assert_int_equal(mica_problem_fill(p, 0, MICA_FILL_RANDOM, 7, values), MICA_OK);
    static const double odd[] = {1e9, -3e9, 300.5, -0.0, INFINITY, NAN, 0x1p-20, 2.5, -1e20};
    for (int64_t i = 0; i < n; i += 5) values[i] = odd[i / 5 % 9];
    assert_int_equal(mica_tensor_store(&x->t, values, x->data), MICA_OK);
}

/* The engine's bytes must be those of the reference's doubles, rounded once: gaps untouched. */
static void agrees(const char *line, double alpha, double beta)
{
    mica_problem *p;
    char full[512];
    snprintf(full, sizeof full, "%s alpha=%g beta=%g", line, alpha, beta);
    if (mica_problem_from_text(full, &p) != MICA_OK) fail_msg("%s: %s", full, mica_error());
    mica_tensor xt = tensor_of(p, 0), yt = tensor_of(p, 1);
    int64_t n = mica_tensor_count(&yt);
    double *values = malloc(sizeof *values * (size_t)(n + 1));
    double *result = malloc(sizeof *values * (size_t)(n + 1));
    array x = make_array(&xt, 0), want = make_array(&yt, 0xff);
    fill_x(p, &x, values);
    if (beta != 0) {
        for (int64_t i = 0; i < n; i++) values[i] = (double)(i % 7) - 2;
        mica_tensor_store(&yt, values, want.data);
    }
    array start = make_array(&yt, 0);
    memcpy(start.memory, want.memory, (size_t)want.bytes);
    void *args[] = {x.data, want.data};
    double *results[] = {NULL, result};
    if (mica_problem_reference(p, args, results, results) != MICA_OK) fail_msg("%s", mica_error());
    assert_int_equal(mica_problem_reference(p, args, results, NULL), MICA_OK);
    mica_tensor_store(&yt, result, want.data);
    const double scalars[] = {alpha, beta};
    static const char *const engines[] = {"cpu", "ref"};
    for (int e = 0; e < 2; e++) {
        array y = make_array(&yt, 0);
        memcpy(y.memory, start.memory, (size_t)y.bytes);
        run(line, engines[e], x.data, y.data, scalars);
        mica_tensor_load(&yt, y.data, values);
        mica_tensor_load(&yt, want.data, result);
        for (int64_t i = 0; i < n; i++)
            if (!same_value(values[i], result[i]))
                fail_msg("%s, %s: element %lld is %a, not %a", full, engines[e], (long long)i,
                         values[i], result[i]);
        /* What differs in bytes may only be NaN: those were compared as values. */
        if (!mica_dtype_is_float(yt.dtype))
            assert_memory_equal(y.memory, want.memory, (size_t)y.bytes);
        free(y.memory);
    }
    free(x.memory);
    free(want.memory);
    free(start.memory);
    free(values);
    free(result);
    mica_problem_destroy(p);
}

static void every_pair_of_types(void **state)
{
    (void)state;
    char line[256];
    static const char *const forms[] = {"transform x=%s:5x107 y=%s:5x107",
                                        "transform x=%s:2x3x70 y=%s:2x3x70:nwc",
                                        "transform x=%s:6x5 y=%s:6x5:17x3"};
    for (int a = 0; a < TYPES; a++)
        for (int b = 0; b < TYPES; b++)
            for (int f = 0; f < 3; f++) {
                snprintf(line, sizeof line, forms[f], mica_dtype_name(types[a]),
                         mica_dtype_name(types[b]));
                agrees(line, 1, 0);
                agrees(line, 0.3, 0);
                agrees(line, -2, 0.7);
            }
}

static void every_stride(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "transform x=f32:1 y=f32:1",
        "transform x=f32:0x4",
        "transform x=s32: y=f32:",
        "transform x=f32:2x3x5x7 perm=0x2x3x1",
        "transform x=f32:2x3x5x7 perm=3x2x1x0",
        "transform x=f32:2x3x5x7:nhwc perm=3x2x1x0 y=f32:7x5x3x2",
        "transform x=bf16:4x6x5x8 perm=0x2x1x3",
        "transform x=u8:129x67:t y=u8:129x67",
        "transform x=f16:129x67:t y=f16:129x67",
        "transform x=f32:129x67:t y=f32:129x67",
        "transform x=f64:129x67:t y=f64:129x67",
        "transform x=f64:129x67:t y=f64:129x67:100x1",
        "transform x=f32:3x4:1x5 y=f32:3x4:6x1",
        "transform x=f32:33x34:2x80 y=f32:33x34:70x2",
        "transform x=f32:3x4:-4x-1 y=bf16:3x4",
        "transform x=f32:30x40:-1x-30 y=f32:30x40",
        "transform x=f32:30x40 y=f32:30x40:-40x-1",
        "transform x=f32:30x40:0x1 y=f32:30x40",
        "transform x=f32:30x40:1x0 y=f16:30x40",
        "transform x=s8:3x224x13:nwc y=f32:3x224x13",
        "transform x=f32:2x2x2x2x2x2x2x2 perm=7x5x3x1x6x4x2x0",
        "transform x=f32:20000 y=bf16:20000:3",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        agrees(lines[i], 1, 0);
        agrees(lines[i], 0.5, 3);
    }
}

/* ---- bits ---- */

static void equal_types_keep_their_bits(void **state)
{
    (void)state;
    static const char *const engines[] = {"cpu", "ref"};
    for (int e = 0; e < 2; e++) {
        uint32_t nan[4] = {0x7f800001, 0xffc12345, 0x80000000, 1}, copy[4] = {0};
        run("transform x=f32:2x2 perm=1x0", engines[e], nan, copy, NULL);
        assert_int_equal(copy[0], nan[0]);
        assert_int_equal(copy[1], nan[2]);
        assert_int_equal(copy[2], nan[1]);
        uint16_t half[3] = {0x7c01, 0xfe55, 0x8001}, half_copy[3] = {0};
        run("transform x=f16:3", engines[e], half, half_copy, NULL);
        assert_memory_equal(half, half_copy, sizeof half);
        int64_t big[3] = {INT64_MAX, (1ll << 53) + 1, INT64_MIN + 1}, big_copy[3] = {0};
        run("transform x=s64:3:-1 y=s64:3", engines[e], big + 2, big_copy, NULL);
        for (int i = 0; i < 3; i++) assert_true(big_copy[i] == big[2 - i]);
        uint8_t truth[3] = {0, 7, 255}, truth_copy[3] = {1, 1, 1};
        run("transform x=bool:3", engines[e], truth, truth_copy, NULL);
        assert_memory_equal(truth, truth_copy, 3);
    }
}

/* 2^60 + 2^36 + 1 lies just above the middle of two floats: through a double it would be the middle
 * and go to the even one below. */
static void long_integers_round_once(void **state)
{
    (void)state;
    static const char *const engines[] = {"cpu", "ref"};
    int64_t v[] = {(1ll << 60) + (1ll << 36) + 1,
                   -(1ll << 60) - (1ll << 36) - 1,
                   (1ll << 60) + (1ll << 36),
                   (1ll << 62) + (1ll << 54) + 1,
                   INT64_MIN,
                   INT64_MAX};
    for (int e = 0; e < 2; e++) {
        float f[6];
        run("transform x=s64:6 y=f32:6", engines[e], v, f, NULL);
        assert_true(f[0] == 0x1p60f + 0x1p37f);
        assert_true(f[1] == -0x1p60f - 0x1p37f);
        assert_true(f[2] == 0x1p60f);
        assert_true(f[4] == -0x1p63f && f[5] == 0x1p63f);
        uint16_t b[6];
        run("transform x=s64:6 y=bf16:6", engines[e], v, b, NULL);
        assert_true(mica_bf16_to_f32(b[3]) == 0x1p62f + 0x1p55f);
        int32_t w[6];
        run("transform x=s64:6 y=s32:6", engines[e], v, w, NULL);
        assert_int_equal(w[0], INT32_MAX);
        assert_int_equal(w[4], INT32_MIN);
        double d[6];
        run("transform x=s64:6 y=f64:6", engines[e], v, d, NULL);
        assert_true(d[0] == 0x1p60 + 0x1p36);
        double back[] = {NAN, INFINITY, -INFINITY, 0x1p63, -0.5, 1.5};
        int64_t q[6];
        run("transform x=f64:6 y=s64:6", engines[e], back, q, NULL);
        assert_true(q[0] == 0 && q[1] == INT64_MAX && q[2] == INT64_MIN && q[3] == INT64_MAX);
        assert_true(q[4] == 0 && q[5] == 2);
    }
}

/* ---- lines ---- */

static void inference(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"transform x=f32:2x3x4x5:nhwc", "transform x=f32:2x3x4x5:nhwc"},
        {"transform x=f32:2x3x4 perm=0x1x2", "transform x=f32:2x3x4"},
        {"transform x=f32:2x3 y=bf16", "transform x=f32:2x3 y=bf16:2x3"},
        {"transform x=f32:2x3 perm=1 y=f32:3x2", "transform x=f32:2x3 perm=1"},
        {"transform x=f32:2x3 perm=1x0 y=f32:3x2:t", "transform x=f32:2x3 y=f32:3x2:t perm=1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mica_problem *p;
        char text[256];
        if (mica_problem_from_text(rows[i][0], &p) != MICA_OK) fail_msg("%s", mica_error());
        mica_problem_text(p, text, sizeof text);
        assert_string_equal(text, rows[i][1]);
        mica_problem_destroy(p);
    }
    mica_problem *p;
    assert_int_equal(mica_problem_from_text("transform x=f32:2x3x4:nwc", &p), MICA_OK);
    mica_tensor y = tensor_of(p, 1);
    assert_int_equal(y.strides[1], 1);
    mica_problem_destroy(p);
    assert_int_equal(mica_problem_from_text("transform x=f32:2x3x4 perm=2x0x1", &p), MICA_OK);
    y = tensor_of(p, 1);
    assert_int_equal(y.dims[0], 4);
    assert_int_equal(y.strides[2], 1);
    mica_problem_destroy(p);
}

static void refusals(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"transform y=f32:3", "x is needed"},
        {"transform x=f32:2x3 perm=1x1", "perm names dimension 1 twice"},
        {"transform x=f32:2x3 perm=0x0",
         "perm=0x0: 0 stands twice, a permutation names each dimension once"},
        {"transform x=f32:2x3 perm=0x2", "perm[1] is 2, x has dimensions 0 to 1"},
        {"transform x=f32:2x3 perm=1x0x5", "perm[2] is 5, x has only 2 dimensions"},
        {"transform x=f32:2x3 y=f32:2x4", "dimension 1 of y is 4, of x 3"},
        {"transform x=f32:2x3 perm=1x0 y=f32:2x3", "dimension 0 of y is 2, of x (permuted) 3"},
        {"transform x=f32:2x3 y=s4:2x3", "y is s4, it must be f64"},
        {"transform x=f32:2x3 y=f32:2x3:0x1", "share memory"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mica_problem *p;
        assert_int_equal(mica_problem_from_text(rows[i][0], &p), MICA_INVALID);
        if (!strstr(mica_error(), rows[i][1]))
            fail_msg("%s: \"%s\" lacks \"%s\"", rows[i][0], mica_error(), rows[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loads_equal_scalar_loads),
        cmocka_unit_test(stores_equal_scalar_stores),
        cmocka_unit_test(scaled_stores_equal_scalar_stores),
        cmocka_unit_test(every_pair_of_types),
        cmocka_unit_test(every_stride),
        cmocka_unit_test(equal_types_keep_their_bits),
        cmocka_unit_test(long_integers_round_once),
        cmocka_unit_test(inference),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("transform", tests, open_context, close_context);
}
