/* SPDX-License-Identifier: Apache-2.0
 * How many neighbours one access may take: types, strides, sizes, and what each of them forbids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ops/shared/access.h"
#include "ops/shared/layout.h"

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
    if (mica_access_fit(&l, which, 8) != vector)
        fail_msg("%s %s: %d, not %d", a, b, mica_access_fit(&l, which, 8), vector);
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
    assert_int_equal(mica_access_divide(8, (int64_t[]){16, 0, -24}, 3), 8);
    assert_int_equal(mica_access_divide(8, (int64_t[]){16, -12}, 2), 4);
    assert_int_equal(mica_access_divide(8, (int64_t[]){7}, 1), 1);
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
        cmocka_unit_test(widest_type),
        cmocka_unit_test(steps),
        cmocka_unit_test(rows),
        cmocka_unit_test(counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
