/* SPDX-License-Identifier: Apache-2.0
 * The element functions in double, which is what engines are compared with, against values that
 * nobody here computed (tests/judges/functions.py): within the accuracy that the table documents.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ops/pointwise/functions.h"

#include <float.h>
#include <stdbool.h>
#include <math.h>
#include <string.h>

typedef struct judgement {
    const char *name;
    double a, b, c, want;
} judgement;

static const judgement judgements[] = {
#include "../judges/functions.h"
};
enum { JUDGEMENTS = sizeof judgements / sizeof *judgements };

/* What the arguments' own roundoff, `inner` times, makes of the value. */
static double inner_error(int function, const judgement *j, double inner)
{
    const double v[] = {j->a, j->b, j->c};
    double sum = 0;
    for (int i = 0; i < mica_functions[function].arity; i++)
        for (int sign = -1; sign <= 1; sign += 2) {
            double w[] = {v[0], v[1], v[2]};
            w[i] *= 1 + sign * inner * DBL_EPSILON / 2;
            sum = fmax(sum, fabs(mica_function_value(function, w[0], w[1], w[2]) - j->want));
        }
    return inner > 0 ? sum : 0;
}

static void values_are_those_of_others(void **state)
{
    (void)state;
    double worst = 0;
    const char *of = "";
    for (int i = 0; i < JUDGEMENTS; i++) {
        const judgement *j = &judgements[i];
        const int function = mica_function_find(j->name, (int)strlen(j->name));
        assert_true(function >= 0);
        const mica_function *f = &mica_functions[function];
        const double got = mica_function_value(function, j->a, j->b, j->c);
        const double ulp = DBL_EPSILON * fabs(j->want), error = fabs(got - j->want);
        const double allowed = fmax(f->ulps, 0.5) * ulp + inner_error(function, j, f->inner);
        if (!(error <= allowed))
            fail_msg("%s(%a, %a, %a) is %a, mpmath has %a: off by %g of %g ulps", j->name, j->a,
                     j->b, j->c, got, j->want, error / ulp, allowed / ulp);
        if (ulp > 0 && error / ulp > worst) worst = error / ulp, of = j->name;
    }
    print_message("%d values, at most %.2g units off (%s)\n", (int)JUDGEMENTS, worst, of);
}

/* Each function that is not a choice or a bit of an integer has been judged. */
static void every_function_is_judged(void **state)
{
    (void)state;
    int missing = 0;
    for (int i = 0; i < MICA_FUNCTIONS; i++) {
        const mica_function *f = &mica_functions[i];
        bool judged = f->kind != MICA_FUNCTION_REAL;
        for (int k = 0; k < JUDGEMENTS; k++) judged |= !strcmp(judgements[k].name, f->name);
        if (!judged && strcmp(f->name, "prelu") != 0 && strcmp(f->name, "nan_to_num") != 0) {
            print_message("%s has no judge\n", f->name);
            missing++;
        }
    }
    assert_int_equal(missing, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_are_those_of_others),
                                       cmocka_unit_test(every_function_is_judged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
