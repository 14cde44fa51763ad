/* SPDX-License-Identifier: Apache-2.0
 * Fenced buffers: every byte that a run had no right to write is noticed, elements are not. */
#include "check/buffers.h"
#include "check/digest.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static mica_context *context;

static mica_tensor tensor(const char *text)
{
    mica_tensor t;
    assert_int_equal(mica_tensor_from_text(text, &t), MICA_OK);
    return t;
}

static bool intact(const cli_buffer *b)
{
    char text[160];
    return cli_buffer_intact(b, "x", text, sizeof text);
}

/* Flips each byte in turn; only those of elements may change, and those only in outputs. */
static void every_byte(const char *text, mica_dir dir, int64_t shift)
{
    cli_buffer b;
    mica_tensor t = tensor(text);
    assert_int_equal(cli_buffer_init(&b, context, &t, 0, dir), MICA_OK);
    assert_int_equal(cli_buffer_prepare(&b, context, 0xff, shift), MICA_OK);
    assert_int_equal(cli_buffer_fetch(&b, context), MICA_OK);
    assert_true(intact(&b));
    unsigned char *element = calloc(1, (size_t)b.span + 1), *ones = malloc((size_t)b.span + 1);
    memset(ones, 0xff, (size_t)b.span + 1);
    cli_copy_elements(&t, b.first, element, ones);
    int64_t marked = 0;
    for (int64_t i = 0; i < b.bytes; i++) {
        int64_t at = i - b.low;
        bool is_element = at >= 0 && at < b.span && element[at];
        marked += is_element;
        b.after[i] ^= 1;
        assert_int_equal(intact(&b), is_element && dir == MICA_OUT);
        b.after[i] ^= 1;
    }
    assert_int_equal(marked, mica_tensor_count(&t) * mica_dtype_bits(t.dtype) / 8);
    free(element);
    free(ones);
    cli_buffer_free(&b, context);
}

static void bytes(void **state)
{
    (void)state;
    every_byte("f32:3x5", MICA_OUT, 0);
    every_byte("f32:3x5", MICA_OUT, 4);
    every_byte("f32:3x5", MICA_IN, 4);
    every_byte("bf16:3x5:17x3", MICA_OUT, 2);
    every_byte("bf16:3x5:-17x3", MICA_OUT, 2);
    every_byte("u8:2x3x4:1x2x7", MICA_OUT, 1);
    every_byte("f32:0x5", MICA_OUT, 0);
}

static void content_and_poison(void **state)
{
    (void)state;
    const double values[] = {1, 2, 3, 4, 5, 6};
    double back[6];
    cli_buffer b;
    mica_tensor t = tensor("f16:2x3:8x2");
    assert_int_equal(cli_buffer_init(&b, context, &t, 0, MICA_INOUT), MICA_OK);
    assert_int_equal(cli_buffer_prepare(&b, context, 0xff, 0), MICA_OK);
    assert_int_equal(cli_buffer_fetch(&b, context), MICA_OK);
    assert_int_equal(mica_tensor_load(&t, cli_buffer_after(&b), back), MICA_OK);
    for (int i = 0; i < 6; i++) assert_true(isnan(back[i]));
    assert_int_equal(cli_buffer_content(&b, values), MICA_OK);
    assert_int_equal(cli_buffer_prepare(&b, context, 0xff, 2), MICA_OK);
    assert_int_equal(cli_buffer_fetch(&b, context), MICA_OK);
    assert_int_equal(mica_tensor_load(&t, cli_buffer_after(&b), back), MICA_OK);
    assert_memory_equal(back, values, sizeof values);
    assert_int_equal((uintptr_t)cli_buffer_pointer(&b) % 256, 2);
    cli_buffer_free(&b, context);
}

/* Three rows 3 GB apart: what lies around them is watched, and where offsets cut to 32 bits lead.
 */
static void far_apart(void **state)
{
    (void)state;
    const int64_t row = 3000000000, size = 80;
    double values[120], back[120];
    cli_buffer b;
    mica_tensor t = tensor("bf16:3x40:1500000000x1");
    for (int i = 0; i < 120; i++) values[i] = i;
    assert_int_equal(cli_buffer_init(&b, context, &t, 0, MICA_INOUT), MICA_OK);
    assert_true(b.window_count > 3);
    assert_int_equal(b.bytes, 2 * row + size + 2 * CLI_FENCE + 256);
    int64_t watched = 0;
    for (int64_t i = 0; i < b.window_count; i++) watched += b.windows[i].to - b.windows[i].from;
    assert_true(watched < 1 << 20);
    assert_int_equal(cli_buffer_content(&b, values), MICA_OK);
    assert_int_equal(cli_buffer_prepare(&b, context, 0xff, 2), MICA_OK);
    assert_int_equal(cli_buffer_fetch(&b, context), MICA_OK);
    assert_int_equal(mica_tensor_load(&t, cli_buffer_after(&b), back), MICA_OK);
    assert_memory_equal(back, values, sizeof values);
    assert_true(intact(&b));
    const int64_t gaps[] = {-1,
                            size,
                            row - 1,
                            row + size,
                            2 * row - 1,
                            2 * row + size,
                            2 * row - (INT64_C(1) << 32),
                            row - (INT64_C(1) << 31)};
    for (size_t i = 0; i < sizeof gaps / sizeof *gaps; i++) {
        b.after[b.low + gaps[i]] ^= 1;
        assert_false(intact(&b));
        b.after[b.low + gaps[i]] ^= 1;
    }
    unsigned char *kept = cli_map(b.span);
    cli_buffer_copy(&b, kept, b.after + b.low);
    assert_true(cli_buffer_repeats(&b, kept));
    b.after[b.low + 2 * row + 3] ^= 1;
    assert_true(intact(&b)); /* an element */
    assert_false(cli_buffer_repeats(&b, kept));
    cli_unmap(kept, b.span);
    cli_buffer_free(&b, context);
}

static uint64_t digest(const char *text, const double *values, int64_t shift)
{
    cli_buffer b;
    mica_tensor t = tensor(text);
    assert_int_equal(cli_buffer_init(&b, context, &t, 0, MICA_INOUT), MICA_OK);
    assert_int_equal(cli_buffer_content(&b, values), MICA_OK);
    assert_int_equal(cli_buffer_prepare(&b, context, shift ? 0x5a : 0xff, shift), MICA_OK);
    assert_int_equal(cli_buffer_fetch(&b, context), MICA_OK);
    uint64_t result = cli_digest_buffer(&b, 1);
    cli_buffer_free(&b, context);
    return result;
}

/* Bits of elements count and nothing else does: not gaps, strides, where the memory lies, nor which
 * NaN it is. */
static void digests(void **state)
{
    (void)state;
    const double values[] = {1, 2, 0, 4, NAN, 6}, negative[] = {1, 2, -0.0, 4, NAN, 6};
    const double other[] = {1, 2, 0, 4, -NAN, 6}, last[] = {1, 2, 0, 4, NAN, 6 + 0x1p-8};
    const uint64_t expected = digest("f16:2x3", values, 0);
    assert_true(digest("f16:2x3:8x2", values, 0) == expected);
    assert_true(digest("f16:2x3:-1x2", values, 2) == expected);
    assert_true(digest("f16:2x3", other, 0) == expected);
    assert_true(digest("f16:2x3", negative, 0) != expected);
    assert_true(digest("f16:2x3", last, 0) != expected);
    const double nibbles[] = {1, 2, 3, 4, 5, 6}, swapped[] = {2, 1, 3, 4, 5, 6};
    assert_true(digest("u4:6", nibbles, 0) == digest("u4:2x3", nibbles, 1));
    assert_true(digest("u4:6", nibbles, 0) != digest("u4:6", swapped, 0));
    /* Runs that agree are one result. */
    cli_digest d = {.found = {0x1f, 2}, .count = 2};
    char text[CLI_DIGESTS * 17 + 1];
    cli_digest_text(&d, text, sizeof text);
    assert_string_equal(text, "000000000000001f+0000000000000002");
}

static int open_context(void **state)
{
    (void)state;
    return mica_context_create("cpu", &context) != MICA_OK;
}

static int close_context(void **state)
{
    (void)state;
    mica_context_destroy(context);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes),
        cmocka_unit_test(content_and_poison),
        cmocka_unit_test(far_apart),
        cmocka_unit_test(digests),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
