/* SPDX-License-Identifier: Apache-2.0
 * Cross-entropy of a linear layer against PyTorch's (tests/judges/linear_cross_entropy.py), labels
 * out of range, its workspace, refusals. */
#include "line.h"

#include "mica/linear_cross_entropy.h"

enum { ROWS = 4, WIDTH = 3, CLASSES = 5 };
typedef struct judgement {
    const char *fields;
    int losses;
    double labels[ROWS], loss[ROWS], dx[ROWS * WIDTH], dw[CLASSES * WIDTH];
} judgement;

#include "../judges/linear_cross_entropy.h"
enum { JUDGEMENTS = sizeof judgements / sizeof *judgements };

static void judged(void **state)
{
    (void)state;
    const char *const types[] = {"f64", "f32"}, *const takers[] = {"compose", "ref"};
    for (int form = 0; form < 12; form++)
        for (const judgement *j = judgements; j < judgements + JUDGEMENTS; j++) {
            const char *type = types[form & 1];
            const double unit = form & 1 ? 4e-6 : 1e-13;
            double loss[ROWS], dx[ROWS * WIDTH], dw[CLASSES * WIDTH];
            double *values[MICA_MAX_ARGS] = {
                (double *)x, (double *)w, (double *)j->labels, loss, NULL, dx, dw};
            char line[300];
            snprintf(line, sizeof line,
                     "linear_cross_entropy x=%s:4x3 w=%s:5x3 dx=%s:4x3 dw=%s:5x3 chunk=%d %s", type,
                     type, type, type, (const int[]){1, 2, 5}[form >> 2], j->fields);
            run_ok(takers[form >> 1 & 1], line, values);
            assert_int_equal(differences(loss, j->loss, j->losses, unit, unit), 0);
            assert_int_equal(differences(dx, j->dx, ROWS * WIDTH, unit, unit), 0);
            assert_int_equal(differences(dw, j->dw, CLASSES * WIDTH, unit, unit), 0);
        }
}

/* Nothing is read out of bounds: NaN in its row, and so in the mean. */
static void out_of_range(void **state)
{
    (void)state;
    const char *const takers[] = {"compose", "ref"};
    for (int e = 0; e < 2; e++) {
        double labels[] = {4, 5, 0, -1}, loss[ROWS], dx[ROWS * WIDTH];
        double *values[MICA_MAX_ARGS] = {(double *)x, (double *)w, labels, loss, NULL, dx};
        run_ok(takers[e],
               "linear_cross_entropy x=f32:4x3 w=f32:5x3 dx=f32:4x3 chunk=2 reduction=none",
               values);
        for (int i = 0; i < ROWS; i++) {
            assert_int_equal(isnan(loss[i]) != 0, i % 2);
            assert_int_equal(isnan(dx[i * WIDTH]) != 0, i % 2);
        }
        run_ok(takers[e], "linear_cross_entropy x=f32:4x3 w=f32:5x3 dx=f32:4x3 chunk=2", values);
        assert_true(isnan(loss[0]));
    }
}

/* Of a model with 128256 words, against two tensors of logits in bf16: what PyTorch has at its
 * peak. */
static void workspace(void **state)
{
    (void)state;
    const double logits = 2 * 2.0 * 8192 * 128256;
    const char *const line = "linear_cross_entropy x=bf16:8192x4096 w=bf16:128256x4096 "
                             "dx=bf16:8192x4096 dw=bf16:128256x4096";
    mica_problem *p;
    mica_plan *plan;
    assert_int_equal(mica_problem_from_text(line, &p), MICA_OK);
    assert_int_equal(mica_plan_problem(context, p, &(mica_options){.engine = "compose"}, &plan),
                     MICA_OK);
    const double bytes = (double)mica_plan_workspace(plan);
    if (!(bytes <= 0.15 * logits)) fail_msg("%g bytes of workspace, logits have %g", bytes, logits);
    mica_plan_destroy(plan);
    mica_problem_destroy(p);
}

static void refusals(void **state)
{
    (void)state;
    refuses("linear_cross_entropy x=f32:4x3 w=f32:5x3 dx=f64:4x3",
            "dx is f64, it must be f32, as x, or f32");
    refuses("linear_cross_entropy x=f64:4x3 w=f64:5x3 dw=bf16:5x3",
            "dw is bf16, it must be f64, as x, or f32");
    refuses("linear_cross_entropy x=f32:4x3", "w is needed");
    refuses("linear_cross_entropy x=f32:4x3 w=f32:5x4", "x has rows of 3 elements, w of 4");
    refuses("linear_cross_entropy x=f32:4x3x1 w=f32:5x3", "x has rank 3, it must be 2");
    refuses("linear_cross_entropy x=f32:4x3 w=bf16:5x3", "w is bf16");
    refuses("linear_cross_entropy x=f32:4x3 w=f32:0x3", "there are no classes");
    refuses("linear_cross_entropy x=f32:4x3 w=f32:5x3 smoothing=2", "smoothing is 2, it must be");
    refuses("linear_cross_entropy x=f32:4x3 w=f32:5x3 chunk=0", "chunk is 0");
    refuses("linear_cross_entropy x=f32:4x3 w=f32:5x3 labels=s32:5", "labels");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(judged),
        cmocka_unit_test(out_of_range),
        cmocka_unit_test(workspace),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
