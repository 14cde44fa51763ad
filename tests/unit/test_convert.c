/* SPDX-License-Identifier: Apache-2.0
 * Runs of elements against one element at a time: every code of the short types, and floats of
 * every upper half with lower halves around ties; whole vectors and what is left over, neighbours
 * and not. */
#include "ops/convert/cpu/convert.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const mica_dtype types[] = {MICA_F16, MICA_BF16, MICA_E4M3, MICA_E5M2, MICA_S8, MICA_U8};
enum { TYPES = sizeof types / sizeof *types };

/* Lengths and strides of the runs. */
static const int64_t lengths[] = {1, 7, 8, 16, 31, 32, 33, 100, 513};
enum { LENGTHS = sizeof lengths / sizeof *lengths, LONGEST = 513, STRIDES = 3 };

static int bytes_of(mica_dtype type)
{
    return mica_dtype_bits(type) / 8;
}

/* NaN has several codes. */
static bool same(double a, double b)
{
    return (a != a && b != b) || (a == b && signbit(a) == signbit(b));
}

/* Runs of the numbers, one length after the other, written and compared with what single elements
 * give; poison between and behind them has to stay. */
static void compare_stores(mica_dtype type, const double *numbers, int64_t count, bool wide)
{
    mica_load_fn load = mica_dtype_load(type);
    mica_store_fn store = mica_dtype_store(type);
    int bytes = bytes_of(type), l = 0;
    static uint16_t got[STRIDES * (LONGEST + 1)];
    unsigned char *raw = (unsigned char *)got;
    float run[LONGEST];
    for (int64_t at = 0, n; at < count; at += n, l++) {
        int64_t stride = 1 + l / LENGTHS % STRIDES;
        n = lengths[l % LENGTHS] < count - at ? lengths[l % LENGTHS] : count - at;
        for (int64_t i = 0; i < n; i++) run[i] = (float)numbers[at + i];
        memset(got, 0xa5, sizeof got);
        if (wide)
            mica_from_f64(type, got, 0, stride, numbers + at, n);
        else
            mica_from_f32(type, got, 0, stride, run, n);
        for (int64_t i = 0; i < n; i++) {
            uint16_t want;
            store(&want, 0, numbers[at + i]);
            if (!same(load(got, i * stride), load(&want, 0)))
                fail_msg("%s, number %lld of %lld, %lld apart: %a became %a, not %a",
                         mica_dtype_name(type), (long long)i, (long long)n, (long long)stride,
                         numbers[at + i], load(got, i * stride), load(&want, 0));
            memset(raw + i * stride * bytes, 0xa5, (size_t)bytes);
        }
        for (size_t i = 0; i < sizeof got; i++) assert_int_equal(raw[i], 0xa5);
    }
}

/* Floats of every sign, exponent and upper part of the mantissa. */
static void stores(void **state)
{
    (void)state;
    static const uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    enum { LOWER = sizeof lower / sizeof *lower };
    const int64_t count = (int64_t)LOWER << 16;
    double *numbers = malloc((size_t)count * sizeof *numbers);
    assert_non_null(numbers);
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)(i / LOWER) << 16 | lower[i % LOWER];
        float f;
        memcpy(&f, &bits, sizeof f);
        numbers[i] = (double)f;
    }
    for (int t = 0; t < TYPES; t++) compare_stores(types[t], numbers, count, false);
    free(numbers);
}

/* Doubles beside those floats: what would be a tie after a first rounding to f32 is none. */
static void stores_of_f64(void **state)
{
    (void)state;
    enum { AROUND = 3 };
    const int64_t count = (int64_t)AROUND << 16;
    double *numbers = malloc((size_t)count * sizeof *numbers);
    assert_non_null(numbers);
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)(i / AROUND) << 16 | 0x8000;
        float f;
        memcpy(&f, &bits, sizeof f);
        double d = (double)f, toward[AROUND] = {d, INFINITY, -INFINITY};
        numbers[i] = isfinite(d) ? nextafter(d, toward[i % AROUND]) : d;
    }
    for (int t = 0; t < TYPES; t++) compare_stores(types[t], numbers, count, true);
    free(numbers);
}

static void loads(void **state)
{
    (void)state;
    for (int t = 0; t < TYPES; t++) {
        mica_load_fn load = mica_dtype_load(types[t]);
        int64_t codes = (int64_t)1 << 8 * bytes_of(types[t]);
        uint16_t short_codes[STRIDES * LONGEST];
        uint8_t *data = (uint8_t *)short_codes;
        float run[LONGEST];
        double wide[LONGEST];
        for (int64_t first = 0, l = 0; first < codes; first += lengths[l % LENGTHS], l++) {
            int64_t n = lengths[l % LENGTHS], stride = 1 + l / LENGTHS % STRIDES;
            for (int64_t i = 0; i < n; i++) {
                if (codes > 256)
                    short_codes[i * stride] = (uint16_t)(first + i);
                else
                    data[i * stride] = (uint8_t)(first + i);
            }
            mica_to_f32(types[t], short_codes, 0, stride, run, n);
            mica_to_f64(types[t], short_codes, 0, stride, wide, n);
            for (int64_t i = 0; i < n; i++) {
                double want = load(short_codes, i * stride);
                if (!same((double)run[i], want) || !same(wide[i], want))
                    fail_msg("%s, code %llx: %a and %a, not %a", mica_dtype_name(types[t]),
                             (unsigned long long)(first + i), (double)run[i], wide[i], want);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stores),
        cmocka_unit_test(stores_of_f64),
        cmocka_unit_test(loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
