/* SPDX-License-Identifier: Apache-2.0
 * How many neighbours one access may take: types, strides, sizes, and what each of them forbids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ops/access/access.h"
#include "ops/access/layout.h"

static mica_layout layout_of(const char *a, const char *b)
{
    mica_tensor tensors[2];
    mica_layout l;
    assert_int_equal(mica_tensor_from_text(a, &tensors[0]), MICA_OK);
    assert_int_equal(mica_tensor_from_text(b, &tensors[1]), MICA_OK);
    mica_layout_make(&l, (const mica_tensor *const[]){&tensors[0], &tensors[1]}, 2);
    return l;
}

static void expect(int vector, const char *a, const char *b, unsigned which)
{
    mica_layout l = layout_of(a, b);
    if (mica_access_layout(8, &l, which) != vector)
        fail_msg("%s %s: %d, not %d", a, b, mica_access_layout(8, &l, which), vector);
}

static void widest_type(void **state)
{
    (void)state;
    assert_int_equal(mica_access_most((mica_dtype[]){MICA_BF16, MICA_F32}, 2), 4);
    assert_int_equal(mica_access_most((mica_dtype[]){MICA_U8}, 1), 16);
    assert_int_equal(mica_access_most((mica_dtype[]){MICA_F64, MICA_E4M3}, 2), 2);
}

static void steps(void **state)
{
    (void)state;
    assert_int_equal(mica_access_fit(8, 16 | 0 | -24), 8);
    assert_int_equal(mica_access_fit(8, 16 | -12), 4);
    assert_int_equal(mica_access_fit(8, 7), 1);
    assert_int_equal(mica_access_fit(8, 0), 8);
    assert_int_equal(mica_access_along(MICA_F16, 1, 12), 4);
    assert_int_equal(mica_access_along(MICA_F64, 1, 12), 2);
    assert_int_equal(mica_access_along(MICA_F16, 2, 12), 1);
    assert_int_equal(mica_access_step(5, 1), 0);
    assert_int_equal(mica_access_step(5, 2), 5);
}

static void rows(void **state)
{
    (void)state;
    expect(8, "f32:4x16", "f32:4x16:32x1", 3);
    expect(4, "f32:4x16", "f32:4x16:20x1", 3);
    expect(2, "f32:4x6:8x1", "f32:4x6:16x1", 3); /* the row's length */
    expect(8, "f32:6x10", "f32:6x10", 3);        /* one row, which may end in a part */
    expect(8, "f32:1023", "f32:1023", 3);
    expect(1, "f32:4x16", "f32:4x16:1x4", 3); /* not side by side in the second */
    expect(8, "f32:4x16", "f32:4x16:1x4", 1); /* which does not count here */
    expect(1, "f32:4x16:-16x-1", "f32:4x16", 3);
    expect(1, "f32:", "f32:", 3);
}

/* ---- a judge that looks at each access ---- */

static uint64_t seed;

static int64_t below(int64_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((seed >> 33) % (uint64_t)n);
}

/* Small, and with steps that powers of two divide, or not, or that go back or stand still. */
static mica_tensor some_tensor(void)
{
    mica_tensor t = {.dtype = MICA_U8, .rank = (int32_t)(1 + below(4))};
    for (int d = 0; d < t.rank; d++) {
        t.dims[d] = 1 + below(d == t.rank - 1 ? 16 : 3);
        t.strides[d] = (below(9) - 4) * (1 << below(5));
    }
    if (below(4)) t.strides[t.rank - 1] = 1;
    return t;
}

/* Whether accesses of `width` neighbours along the last dimension all start at multiples of it, and
 * end within their rows if there are several; or, not `whole`, within or behind them. */
static bool is_legal(const mica_tensor *t, int width, bool whole)
{
    const int last = t->rank - 1;
    int64_t at[MICA_MAX_RANK] = {0};
    if (width > 1 && t->dims[last] > 1 && t->strides[last] != 1) return false;
    for (;;) {
        int64_t offset = 0;
        for (int d = 0; d < t->rank; d++) offset += at[d] * t->strides[d];
        if (offset % width || (whole && at[last] + width > t->dims[last])) return false;
        int d = last;
        at[last] += width;
        while (d >= 0 && at[d] >= t->dims[d]) {
            at[d] = 0;
            if (--d >= 0) at[d]++;
        }
        if (d < 0) return true;
    }
}

static int widest_legal(const mica_tensor *t, const mica_tensor *u, int most, bool whole)
{
    while (most > 1 && !(is_legal(t, most, whole) && is_legal(u, most, whole))) most /= 2;
    return most;
}

/* Rows of tensors: each width is legal, and none that is wider. */
static void judged_rows(void **state)
{
    (void)state;
    int seen[5] = {0};
    for (seed = 1; seed < 40000; seed++) {
        const uint64_t here = seed;
        const mica_tensor t = some_tensor();
        const int wanted = widest_legal(&t, &t, 16, false), width = mica_access_rows(16, &t);
        if (width != wanted)
            fail_msg("seed %llu: %d, not %d", (unsigned long long)here, width, wanted);
        seed = here;
        seen[__builtin_ctz((unsigned)width)]++;
    }
    for (int i = 0; i < 5; i++) assert_in_range(seen[i], 100, 40000);
}

/* Two tensors of one layout. */
static void judged_layouts(void **state)
{
    (void)state;
    int seen[5] = {0};
    for (seed = 1; seed < 40000; seed++) {
        const uint64_t here = seed;
        mica_tensor t = some_tensor(), u = t;
        for (int d = 0; d < u.rank - 1; d++) u.strides[d] += below(4) ? 0 : (int64_t)1 << below(4);
        mica_layout l;
        mica_layout_make(&l, (const mica_tensor *const[]){&t, &u}, 2);
        /* What the layout made of them: sizes of 1 gone, neighbours merged. */
        mica_tensor a = {.rank = l.rank}, b = {.rank = l.rank};
        for (int d = 0; d < l.rank; d++) {
            a.dims[d] = b.dims[d] = l.dims[d];
            a.strides[d] = l.strides[0][d], b.strides[d] = l.strides[1][d];
        }
        const int wanted = l.rank ? widest_legal(&a, &b, 16, l.rank > 1) : 1;
        const int width = mica_access_layout(16, &l, 3);
        if (width != wanted)
            fail_msg("seed %llu: %d, not %d", (unsigned long long)here, width, wanted);
        seed = here;
        seen[__builtin_ctz((unsigned)width)]++;
    }
    for (int i = 0; i < 5; i++) assert_in_range(seen[i], 100, 40000);
}

/* Of several steps the width divides each, and twice of it does not. */
static void judged_steps(void **state)
{
    (void)state;
    for (seed = 1; seed < 20000; seed++) {
        const uint64_t here = seed;
        const int64_t a = (below(9) - 4) * (1 << below(6)), b = (below(9) - 4) * (1 << below(6)),
                      c = below(99) * 4;
        const int width = mica_access_fit(16, a | b | c);
        assert_true(a % width == 0 && b % width == 0 && c % width == 0);
        assert_true(width == 16 || a % (2 * width) || b % (2 * width) || c % (2 * width));
        seed = here;
    }
}

static void addresses(void **state)
{
    (void)state;
    static const mica_dtype types[] = {MICA_U8, MICA_BF16, MICA_F32, MICA_F64};
    for (int i = 0; i < 4; i++)
        for (int width = 1; width <= 16; width *= 2) {
            const int bytes = mica_access_bytes(types[i], width), all = (1 << i) * width;
            assert_int_equal(bytes, all < 16 ? all : 16);
            for (uintptr_t at = 64; at < 128; at++) {
                bool aligned = mica_access_starts((const void *)at, bytes);
                assert_int_equal(aligned, at % (uintptr_t)bytes == 0);
            }
        }
    assert_true(mica_access_starts(NULL, 16));
    assert_false(mica_access_starts(NULL, 0));
}

static void counted(void **state)
{
    (void)state;
    mica_layout l = layout_of("f32:4x16", "f32:4x16:32x1");
    mica_access_count(&l, 8, 2);
    assert_int_equal(l.count, 8);
    assert_int_equal(l.dims[1], 2);
    assert_int_equal(l.strides[0][1], 8);
    assert_int_equal(l.strides[1][0], 32);
    l = layout_of("f32:1023", "f32:1023");
    mica_access_count(&l, 4, 2);
    assert_int_equal(l.count, 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widest_type), cmocka_unit_test(steps),
        cmocka_unit_test(rows),        cmocka_unit_test(judged_steps),
        cmocka_unit_test(judged_rows), cmocka_unit_test(judged_layouts),
        cmocka_unit_test(addresses),   cmocka_unit_test(counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
