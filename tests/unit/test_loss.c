/* SPDX-License-Identifier: Apache-2.0
 * Losses against values that nobody here computed (tests/judges/losses.py), means over nothing,
 * refusals, equal bits for any number of threads. */
#include "line.h"

#include "mica/loss.h"

enum { ELEMENTS = 12 };
typedef struct judgement {
    const char *line;
    double values[10][ELEMENTS]; /* by argument */
    int counts[10];              /* 0: there is none */
} judgement;

static const judgement judgements[] = {
#include "../judges/losses.h"
};
enum { JUDGEMENTS = sizeof judgements / sizeof *judgements };

/* "loss" and the judgement's line with that type for '@'. */
static void spell(char *line, const char *begin, const judgement *j, const char *type)
{
    line += sprintf(line, "%s ", begin);
    for (const char *c = j->line; *c; c++)
        line += *c == '@' ? sprintf(line, "%s", type) : sprintf(line, "%c", *c);
}

static void compare(const judgement *j, const char *line, int arg, const double *got, double units)
{
    for (int i = 0; i < j->counts[arg]; i++) {
        const double want = j->values[arg][i];
        if (isnan(want)   ? isnan(got[i])
            : isinf(want) ? got[i] == want
                          : fabs(got[i] - want) <= units * (1 + fabs(want)))
            continue;
        fail_msg("%s: argument %d, element %d is %.17g, PyTorch's %.17g", line, arg, i, got[i],
                 want);
    }
}

static void judged(void **state)
{
    (void)state;
    const char *const types[] = {"f64", "f32"};
    const char *const takers[] = {"compose", "ref"};
    const double units[] = {1e-13, 3e-6};
    for (int e = 0; e < 2; e++)
        for (int t = 0; t < 2; t++)
            for (const judgement *j = judgements; j < judgements + JUDGEMENTS; j++) {
                char line[400];
                double out[3][ELEMENTS], *values[MICA_MAX_ARGS] = {0};
                for (int i = 0; i <= MICA_LOSS_DY; i++)
                    if (j->counts[i]) values[i] = (double *)j->values[i];
                values[MICA_LOSS_Y] = out[0];
                spell(line, "loss", j, types[t]);
                run_ok(takers[e], line, values);
                compare(j, line, MICA_LOSS_Y, out[0], units[t]);
                spell(line, "loss pass=bwd", j, types[t]);
                for (int k = 0; k < 3; k++) {
                    const bool wanted = j->counts[MICA_LOSS_DX + k] > 0;
                    values[MICA_LOSS_DX + k] = out[k];
                    if (wanted && k)
                        sprintf(line + strlen(line), " %s=%s:3x4", k == 1 ? "dtarget" : "dother",
                                types[t]);
                }
                run_ok(takers[e], line, values);
                for (int k = 0; k < 3; k++)
                    if (j->counts[MICA_LOSS_DX + k])
                        compare(j, line, MICA_LOSS_DX + k, out[k], units[t]);
            }
}

/* PyTorch: NaN, but for a sum. */
static void nothing(void **state)
{
    (void)state;
    const char *const lines[] = {"loss x=f32:0x5 target=f32:0x5",
                                 "loss kind=kl_div reduction=batchmean x=f32:0x5 target=f32:0x5",
                                 "loss kind=cosine_embedding x=f32:0x5 target=f32:0 other=f32:0x5",
                                 "loss reduction=sum x=f32:0x5 target=f32:0x5",
                                 "loss kind=kl_div reduction=batchmean x=f32:5x0 target=f32:5x0"};
    const char *const takers[] = {"compose", "ref"};
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < 5; i++) {
            double x = 0, y = 7;
            double *values[MICA_MAX_ARGS] = {&x, &x, &x, NULL, NULL, &y};
            run_ok(takers[e], lines[i], values);
            assert_true(i < 3 ? isnan(y) : y == 0);
        }
}

static void refusals(void **state)
{
    (void)state;
    refuses("loss x=f32:3x4", "target is needed");
    refuses("loss x=f32:3x4 target=f32:4", "target has rank 1, x has 2");
    refuses("loss x=f32:3x4 target=f32:3x4 other=f32:3x4", "other is given, mse has none");
    refuses("loss kind=gaussian_nll x=f32:3x4 target=f32:3x4", "gaussian_nll needs other");
    refuses("loss kind=smooth_l1 x=f32:3x4 target=f32:3x4 weight=f32:4",
            "weight is given, smooth_l1 has none");
    refuses("loss kind=bce x=f32:3x4 target=f32:3x4 weight=f32:3",
            "weight does not broadcast to x: dimension 1 from the last is 3, that of x 4");
    refuses("loss kind=bce x=f32:3x4 target=f32:3x4 pos_weight=f32:4",
            "pos_weight is given, bce has none");
    refuses("loss reduction=batchmean x=f32:3x4 target=f32:3x4",
            "reduction=batchmean is for kl_div");
    refuses("loss kind=huber beta=0 x=f32:3x4 target=f32:3x4", "beta is 0, it must be above 0");
    refuses("loss kind=cosine_embedding x=f32:3x4 target=f32:3x4 other=f32:3x4",
            "target has rank 2, rows of x has 1");
    refuses("loss kind=cosine_embedding x=f32: target=f32: other=f32:", "needs rows");
    refuses("loss pass=bwd x=f32:3x4 target=s8:3x4 dtarget=f32:3x4",
            "dtarget is given, target is no floating-point type");
    refuses("loss x=f32:3x4 target=f32:3x4 y=f32:3x4", "y has rank 2");
    refuses("loss x=f32:3x4 target=s64:3x4", "target is s64, only classes are");
    refuses("loss kind=multi_margin x=f32:3x4 target=f32:3", "takes classes in s32 or s64");
    refuses("loss kind=multi_margin x=f32:3x4 target=s64:3x4", "target has rank 2, rows of x has");
    refuses("loss kind=multilabel_margin x=f32:3x4 target=s64:3", "target has rank 1, x has 2");
    refuses("loss kind=multi_margin x=f32:3x4 target=s64:3 p=3", "p is 3, multi_margin takes 1");
    refuses("loss kind=multi_margin x=f32:3x0 target=s64:3", "x has no classes");
    refuses("loss kind=multi_margin x=f32:3x4 target=s64:3 weight=f32:3x4",
            "weight of multi_margin is that of classes, of which there are 4");
    refuses("loss kind=multilabel_margin x=f32:3x4 target=s64:3x4 weight=f32:4",
            "weight is given, multilabel_margin has none");
    refuses("loss kind=multi_margin x=f32:1x1x1x1x1x1x1x4 target=s64:1x1x1x1x1x1x1",
            "x has rank 8, multi_margin takes 7");
}

static void threads_do_not_show(void **state)
{
    (void)state;
    enum { N = 100000 };
    double *x = malloc(N * sizeof *x), *target = malloc(N * sizeof *x), few, many;
    double *values[MICA_MAX_ARGS] = {x, target};
    wave(x, N, 3), wave(target, N, 5);
    const int before = omp_get_max_threads();
    omp_set_num_threads(1);
    values[MICA_LOSS_Y] = &few;
    run_ok("compose", "loss kind=huber x=f32:100000 target=f32:100000", values);
    omp_set_num_threads(5);
    values[MICA_LOSS_Y] = &many;
    run_ok("compose", "loss kind=huber x=f32:100000 target=f32:100000", values);
    omp_set_num_threads(before);
    assert_true(few == many && few > 0);
    free(x), free(target);
}

/* What a gradient does not depend on is not counted: the share of the roofline is at most 1. */
static void costs(void **state)
{
    (void)state;
    const struct {
        const char *line;
        double bytes;
    } rows[] = {
        {"loss kind=kl_div x=f32:100 target=f32:100 reduction=none", 1200},
        {"loss pass=bwd kind=kl_div x=f32:100 target=f32:100 reduction=none", 1200},
        {"loss pass=bwd kind=kl_div x=f32:100 target=f32:100 dtarget=f32:100 reduction=none", 2000},
        {"loss pass=bwd kind=mse x=f32:100 target=bf16:100 weight=f32:100 reduction=none", 1800},
        {"loss pass=bwd kind=bce x=f32:100 target=f32:100 reduction=sum", 1204},
        {"loss pass=bwd kind=margin_ranking x=f32:100 target=f32:100 other=f32:100 reduction=none",
         2000}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mica_problem *p;
        double flops, bytes;
        assert_int_equal(mica_problem_from_text(rows[i].line, &p), MICA_OK);
        mica_problem_cost(p, &flops, &bytes);
        if (bytes != rows[i].bytes) fail_msg("%s: %g bytes", rows[i].line, bytes);
        mica_problem_destroy(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(judged),   cmocka_unit_test(nothing),
        cmocka_unit_test(refusals), cmocka_unit_test(threads_do_not_show),
        cmocka_unit_test(costs),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
