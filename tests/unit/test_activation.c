/* SPDX-License-Identifier: Apache-2.0
 * relu of every 16-bit float, which the CPU forms on the bits: NaN stays, of zeros either sign. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "mica/mica.h"

#include <stdbool.h>
#include <stdio.h>

enum { ALL = 1 << 16 };

static void run(mica_context *ctx, const char *type, const char *engine, uint16_t *x, uint16_t *y)
{
    char line[64];
    mica_plan *plan;
    mica_options only = {.engine = engine};
    snprintf(line, sizeof line, "activation act=relu x=%s:%d", type, ALL);
    assert_int_equal(mica_plan_from_text(ctx, line, &only, &plan), MICA_OK);
    mica_run r = {.args = {[MICA_ACTIVATION_X] = x, [MICA_ACTIVATION_Y] = y}};
    assert_int_equal(mica_plan_run(plan, &r), MICA_OK);
    mica_plan_destroy(plan);
}

static void check_type(const char *type, int infinity)
{
    static uint16_t x[ALL], y[ALL], want[ALL];
    mica_context *ctx;
    assert_int_equal(mica_context_create("cpu", &ctx), MICA_OK);
    for (int i = 0; i < ALL; i++) x[i] = (uint16_t)i;
    run(ctx, type, "cpu", x, y);
    run(ctx, type, "ref", x, want);
    for (int i = 0; i < ALL; i++) {
        int size = y[i] & 0x7fff;
        bool nan = (i & 0x7fff) > infinity, zeros = size == 0 && (want[i] & 0x7fff) == 0;
        if (nan ? size <= infinity : y[i] != want[i] && !zeros)
            fail_msg("%s: relu of %04x is %04x, not %04x", type, (unsigned)i, y[i], want[i]);
    }
    mica_context_destroy(ctx);
}

static void test_relu_of_every_bf16(void **state)
{
    (void)state;
    check_type("bf16", 0x7f80);
}

static void test_relu_of_every_f16(void **state)
{
    (void)state;
    check_type("f16", 0x7c00);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_relu_of_every_bf16),
        cmocka_unit_test(test_relu_of_every_f16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
