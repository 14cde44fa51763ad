/* SPDX-License-Identifier: Apache-2.0
 * The embedded kernel sources: unpacked once, and not where there is no memory. The first test has
 * to be the first. */
#include "cuda/compile/sources.h"
#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <string.h>

static void without_memory_the_next_call_tries_again(void **state)
{
    (void)state;
    const char *text;
    for (int i = 0; i < 2; i++) {
        mica_fault_set(MICA_FAULT_ALLOC, 1, true);
        assert_int_equal(mica_source_text("kernels/types.cuh", &text), MICA_OUT_OF_MEMORY);
        assert_null(text);
        mica_fault_set(MICA_FAULT_ALLOC, 0, false);
    }
    assert_int_equal(mica_source_text("kernels/types.cuh", &text), MICA_OK);
    assert_non_null(text);
}

static void text_is_found_by_its_name(void **state)
{
    (void)state;
    const char *types, *again, *kernel, *none;
    assert_int_equal(mica_source_text("kernels/types.cuh", &types), MICA_OK);
    assert_int_equal(mica_source_text("kernels/types.cuh", &again), MICA_OK);
    assert_ptr_equal(types, again);
    assert_non_null(strstr(types, "struct bf16 { u16 bits; };"));
    assert_int_equal(mica_source_text("ops/gemm/sm90/sm90.cu", &kernel), MICA_OK);
    assert_non_null(strstr(kernel, "extern \"C\" __global__"));
    assert_int_equal(mica_source_text("kernels/types", &none), MICA_OK);
    assert_null(none);
    assert_int_equal(mica_source_text("", &none), MICA_OK);
    assert_null(none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_memory_the_next_call_tries_again),
        cmocka_unit_test(text_is_found_by_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
