/* SPDX-License-Identifier: Apache-2.0
 * What the judge of graphs allows where terms of a sum are subnormal: what they lose, and not so
 * much that a result could be anything. */
#include "graph/graph_truth.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

enum { TERMS = 256, RESULTS = 30 };
static const double subnormal = 0x1p-149; /* the least f32 */

static double tolerances[RESULTS], wants[RESULTS];

/* Of a product whose factors are multiplied by that before. */
static void judge(const char *scale, uint64_t seed)
{
    char text[400];
    mica_context *context;
    graph_truth t;
    cli_graph g = {0};
    snprintf(text, sizeof text,
             "input x = f32:6x%d\ninput y = f32:%dx5\noutput z\n"
             "pointwise expr=x0*%s x0=@x y0=@a\npointwise expr=x0*%s x0=@y y0=@b\n"
             "gemm a=@a b=@b c=@z\n",
             TERMS, TERMS, scale, scale);
    assert_int_equal(mica_context_create("cpu", &context), MICA_OK);
    assert_int_equal(mica_graph_from_text(text, &g.graph), MICA_OK);
    assert_int_equal(graph_truth_init(&t, context, &g, NULL), MICA_OK);
    assert_int_equal(graph_truth_fill(&t, MICA_FILL_RANDOM, seed), MICA_OK);
    const int z = graph_truth_tensor(&t, "z");
    for (int i = 0; i < RESULTS; i++) {
        tolerances[i] = graph_truth_tolerance(&t, z, i);
        wants[i] = fabs(t.want[z][i]);
    }
    graph_truth_free(&t);
    mica_graph_destroy(g.graph);
    mica_context_destroy(context);
}

static int sharp(void)
{
    int count = 0;
    for (int i = 0; i < RESULTS; i++) count += tolerances[i] < wants[i] / 4;
    return count;
}

static void terms_may_underflow(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        judge("1e-21", seed);
        /* each term is rounded to a multiple of the least number: by half of it at most */
        for (int i = 0; i < RESULTS; i++) assert_true(tolerances[i] >= TERMS / 2 * subnormal);
        assert_true(sharp() > RESULTS / 2);
    }
}

static void others_may_not_be_off_more(void **state)
{
    (void)state;
    judge("1", 1);
    for (int i = 0; i < RESULTS; i++) assert_true(tolerances[i] < 1e-3 * sqrt(TERMS));
    assert_true(sharp() > RESULTS / 2);
    /* all of it is less than the least number: nothing is known */
    judge("1e-23", 1);
    assert_int_equal(sharp(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(terms_may_underflow),
        cmocka_unit_test(others_may_not_be_off_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
