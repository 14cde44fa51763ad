/* SPDX-License-Identifier: Apache-2.0
 * The judge of results: what passes, what does not, and when a comparison says too little. */
#include "check/compare.h"
#include "bench/stats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static bool passes(mica_dtype d, cli_tolerance t, double got, double want, double magnitude)
{
    double margin;
    return cli_element_passes(d, t, got, want, magnitude, &margin);
}

static void rounding_only(void **state)
{
    (void)state;
    const cli_tolerance none = {0};
    assert_true(passes(MICA_F32, none, 1, 1, 1));
    /* A correct rounding passes, the next value on either side of a representable one does not. */
    assert_true(passes(MICA_F32, none, 0x1.000002p0, 0x1.0000011p0, 1));
    assert_false(passes(MICA_F32, none, 0x1.000002p0, 1, 1));
    /* Below a power of two the values lie twice as close: one of them is within u |R|. */
    assert_true(passes(MICA_F32, none, 0x1.fffffep-1, 1, 1));
    assert_false(passes(MICA_F32, none, 0x1.fffffcp-1, 1, 1));
    assert_false(passes(MICA_BF16, none, 0x1.02p0, 1, 1));
    assert_true(passes(MICA_BF16, none, 1, 0x1.01p0, 1));
    assert_false(passes(MICA_F64, none, nextafter(1, 2), 1, 1));
}

static void sums(void **state)
{
    (void)state;
    const cli_tolerance t = {.phi = 0x1p-20};
    assert_true(passes(MICA_F32, t, 0.000095, 0, 100));
    assert_false(passes(MICA_F32, t, 0.0000955, 0, 100));
    /* No term entered: only zero will do. */
    assert_false(passes(MICA_F32, t, 0.000001, 0, 0));
    assert_true(passes(MICA_F32, t, -0.0, 0, 0));
}

static void not_finite(void **state)
{
    (void)state;
    const cli_tolerance t = {.phi = 1e-6};
    assert_true(passes(MICA_F32, t, NAN, NAN, 1));
    assert_false(passes(MICA_F32, t, 1, NAN, 1));
    assert_false(passes(MICA_F32, t, NAN, 1, 1));
    assert_true(passes(MICA_F32, t, INFINITY, INFINITY, 1));
    assert_false(passes(MICA_F32, t, -INFINITY, INFINITY, 1));
    assert_false(passes(MICA_F32, t, INFINITY, 3e38, 1));
    assert_false(passes(MICA_F32, t, 3.4e38, INFINITY, 1));
}

static void edges_of_types(void **state)
{
    (void)state;
    const cli_tolerance t = {.phi = 0x1p-10};
    assert_true(passes(MICA_F16, t, INFINITY, 70000, 70000)); /* overflows */
    assert_false(passes(MICA_F16, t, -INFINITY, 70000, 70000));
    assert_false(passes(MICA_F16, t, 1000, 70000, 70000));
    assert_true(passes(MICA_F16, t, 65504, 65519, 65519));
    assert_true(passes(MICA_F16, t, INFINITY, 65519, 65519));
    assert_true(passes(MICA_E4M3, t, 448, 1000, 1000)); /* saturates */
    assert_false(passes(MICA_E4M3, t, 416, 1000, 1000));
    assert_false(passes(MICA_E4M3, t, NAN, 1000, 1000));
}

/* Half a step beyond the largest number infinity begins, at the tie itself. */
static void infinity_has_a_place(void **state)
{
    (void)state;
    static const struct {
        mica_dtype type;
        double top, tie;
    } types[] = {{MICA_E5M2, 57344, 61440},
                 {MICA_F16, 65504, 65520},
                 {MICA_BF16, 0x1.fep127, 0x1.ffp127},
                 {MICA_F32, 0x1.fffffep127, 0x1.ffffffp127}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        mica_dtype d = types[i].type;
        double top = types[i].top, tie = types[i].tie, below = tie * (1 - 0x1p-40);
        const cli_tolerance none = {0}, some = {.phi = 0x1p-30};
        for (double sign = -1; sign <= 1; sign += 2) {
            assert_true(passes(d, none, sign * top, sign * top, top));
            assert_false(passes(d, none, sign * (double)INFINITY, sign * top, top));
            assert_false(passes(d, none, sign * (double)INFINITY, sign * below, below));
            assert_true(passes(d, none, sign * top, sign * below, below));
            assert_true(passes(d, none, sign * (double)INFINITY, sign * tie, tie));
            assert_false(passes(d, none, sign * top, sign * tie, tie));
            /* what may have been either may become either */
            assert_true(passes(d, some, sign * (double)INFINITY, sign * below, below));
            assert_true(passes(d, some, sign * top, sign * tie, tie));
            assert_false(passes(d, some, -sign * (double)INFINITY, sign * tie, tie));
        }
    }
    /* a wide interval around 0 has no say on overflow */
    assert_true(passes(MICA_F16, (cli_tolerance){.phi = 1}, 0, 1, 1e6));
}

static void integers(void **state)
{
    (void)state;
    const cli_tolerance none = {0}, some = {.phi = 0x1p-4};
    assert_true(passes(MICA_S8, none, 2, 2.5, 2.5));
    assert_false(passes(MICA_S8, none, 3, 2.5, 2.5)); /* nearest even */
    assert_true(passes(MICA_S8, none, 127, 1000, 1000));
    assert_false(passes(MICA_S8, none, 126, 1000, 1000));
    assert_true(passes(MICA_S8, some, 3, 2.4, 2.4)); /* 2.4 may have been 2.55 */
    assert_false(passes(MICA_S8, some, 4, 2.4, 2.4));
    assert_true(passes(MICA_BOOL, none, 1, 0.25, 0.25));
    assert_true(passes(MICA_BOOL, some, 0, 0, 0));
    assert_false(passes(MICA_BOOL, some, 1, 0, 0));
}

static void exact(void **state)
{
    (void)state;
    const cli_tolerance t = {.phi = 1, .exact = true};
    assert_true(passes(MICA_F32, t, 12, 12, 1e9));
    assert_false(passes(MICA_F32, t, nextafterf(12, 13), 12, 1e9));
    assert_true(passes(MICA_BF16, t, 256, 257, 1e9)); /* 257 as bf16 rounds it */
    assert_false(passes(MICA_BF16, t, 258, 257, 1e9));
    assert_true(passes(MICA_F32, t, -0.0, 0, 1));
}

static void shared_errors(void **state)
{
    (void)state;
    const cli_tolerance own = {.phi = 0x1p-10}, shared = {.phi = 0x1p-10, .least = 64};
    assert_false(passes(MICA_F32, own, 1.06, 1, 1));
    assert_true(passes(MICA_F32, shared, 1.06, 1, 1));
    assert_true(passes(MICA_F32, shared, 0.06, 0, 0)); /* others' terms, if none of its own */
    assert_false(passes(MICA_F32, shared, 1.07, 1, 1));
    assert_true(passes(MICA_F32, shared, 1.07, 1, 128));
}

static void whole_arrays(void **state)
{
    (void)state;
    const double want[] = {1, 2, 3, 4}, ones[] = {1, 1, 1, 1};
    const double got[] = {1, 2, 3.5, NAN};
    cli_comparison r;
    cli_compare(MICA_F32, (cli_tolerance){.phi = 1e-3}, 4, got, want, ones, &r);
    assert_int_equal(r.wrong, 2);
    assert_int_equal(r.shown, 2);
    assert_int_equal(r.first[0].index, 2);
    assert_true(isinf(r.margin));
    cli_compare(MICA_F32, (cli_tolerance){.phi = 1e-3}, 3, want, want, ones, &r);
    assert_int_equal(r.wrong, 0);
    assert_true(r.margin == 0);
}

static bool trusted(cli_tolerance t, int64_t n, const double *want, const double *magnitudes)
{
    char text[160];
    cli_trust(MICA_F32, t, n, want, magnitudes, text, sizeof text);
    return !*text;
}

static void trust(void **state)
{
    (void)state;
    double want[40], magnitudes[40];
    for (int i = 0; i < 40; i++) want[i] = 1 + i, magnitudes[i] = 50;
    assert_true(trusted((cli_tolerance){.phi = 1e-6}, 40, want, magnitudes));
    assert_false(trusted((cli_tolerance){.phi = 0.2}, 40, want, magnitudes));
    for (int i = 0; i < 37; i++) want[i] = 0;
    assert_false(trusted((cli_tolerance){.phi = 1e-6}, 40, want, magnitudes));
    /* Zeros that no term entered are checked exactly: they do not count. */
    for (int i = 0; i < 37; i++) magnitudes[i] = 0;
    assert_true(trusted((cli_tolerance){.phi = 1e-6}, 40, want, magnitudes));
    for (int i = 37; i < 40; i++) want[i] = magnitudes[i] = 0;
    assert_false(trusted((cli_tolerance){.phi = 1e-6}, 40, want, magnitudes));
    assert_true(trusted((cli_tolerance){.phi = 1e-6}, 1, want, magnitudes));
    assert_true(trusted((cli_tolerance){.phi = 1e-6}, 0, want, magnitudes));
}

static void statistics(void **state)
{
    (void)state;
    double v[] = {5, 1, 4, 2, 3};
    assert_true(cli_median(v, 5) == 3);
    assert_true(cli_quantile(v, 5, 0) == 1 && cli_quantile(v, 5, 1) == 5);
    assert_true(fabs(cli_quantile(v, 5, 0.1) - 1.4) < 1e-12);
    assert_true(isnan(cli_quantile(v, 0, 0.5)));
    /* R: wilcox.test(1:8, 5:12, exact = FALSE)$p.value is 0.01548 */
    const double a[] = {1, 2, 3, 4, 5, 6, 7, 8}, b[] = {5, 6, 7, 8, 9, 10, 11, 12};
    assert_true(fabs(cli_mann_whitney(a, 8, b, 8) - cli_mann_whitney(b, 8, a, 8)) < 1e-12);
    assert_true(cli_mann_whitney(a, 8, b, 8) > 0.005 && cli_mann_whitney(a, 8, b, 8) < 0.03);
    assert_true(cli_mann_whitney(a, 8, a, 8) > 0.9);
    assert_true(cli_mann_whitney(a, 0, b, 8) == 1);
    const double same[] = {2, 2, 2};
    assert_true(cli_mann_whitney(same, 3, same, 3) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding_only),
        cmocka_unit_test(sums),
        cmocka_unit_test(not_finite),
        cmocka_unit_test(edges_of_types),
        cmocka_unit_test(infinity_has_a_place),
        cmocka_unit_test(integers),
        cmocka_unit_test(exact),
        cmocka_unit_test(shared_errors),
        cmocka_unit_test(whole_arrays),
        cmocka_unit_test(trust),
        cmocka_unit_test(statistics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
