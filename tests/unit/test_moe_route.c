/* SPDX-License-Identifier: Apache-2.0
 * Routing: against PyTorch, ties, NaN and infinities, choices that are not there, no tokens, bits
 * that do not depend on threads, what descriptions are refused. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

/* ---- against PyTorch (tests/judges/moe_route.py) ---- */

enum { ELEMENTS = 60, ARGUMENTS = MICA_MOE_ROUTE_DLOGITS + 1 };
typedef struct judgement {
    const char *line;
    int losses;
    double values[ARGUMENTS][ELEMENTS]; /* by argument */
    int counts[ARGUMENTS];              /* 0: there is none */
} judgement;

static const judgement judgements[] = {
#include "../judges/moe_route.h"
};
enum { JUDGEMENTS = sizeof judgements / sizeof *judgements };

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
        if (fabs(got[i] - want) <= units * (1 + fabs(want))) continue;
        fail_msg("%s: argument %d, element %d is %.17g, PyTorch's %.17g", line, arg, i, got[i],
                 want);
    }
}

static void judge(const judgement *j, const char *engine, const char *type, double units)
{
    char line[400];
    double got[ARGUMENTS][ELEMENTS], *values[MICA_MAX_ARGS] = {0};
    for (int i = 0; i < ARGUMENTS; i++) values[i] = (double *)j->values[i];
    const int results[] = {MICA_MOE_ROUTE_INDICES, MICA_MOE_ROUTE_WEIGHTS, MICA_MOE_ROUTE_COUNTS,
                           MICA_MOE_ROUTE_AUX, MICA_MOE_ROUTE_Z};
    for (int i = 0; i < 5; i++) values[results[i]] = got[results[i]];
    spell(line, "moe_route", j, type);
    sprintf(line + strlen(line), " counts=s32");
    if (j->counts[MICA_MOE_ROUTE_BIAS]) sprintf(line + strlen(line), " bias=%s", type);
    if (j->losses) sprintf(line + strlen(line), " aux=%s z=%s", type, type);
    run_ok(engine, line, values);
    for (int i = 0; i < (j->losses ? 5 : 3); i++)
        compare(j, line, results[i], got[results[i]], i == 0 || i == 2 ? 0 : units);
    for (int i = 0; i < 5; i++) values[results[i]] = (double *)j->values[results[i]];
    values[MICA_MOE_ROUTE_DLOGITS] = got[MICA_MOE_ROUTE_DLOGITS];
    spell(line, "moe_route pass=bwd", j, type);
    if (j->losses) sprintf(line + strlen(line), " counts=s32 daux=%s dz=%s", type, type);
    run_ok(engine, line, values);
    compare(j, line, MICA_MOE_ROUTE_DLOGITS, got[MICA_MOE_ROUTE_DLOGITS], units);
}

static void judged(void **state)
{
    (void)state;
    for (const judgement *j = judgements; j < judgements + JUDGEMENTS; j++)
        for (int e = 0; e < 2; e++) {
            judge(j, engines[e], "f64", 1e-13);
            judge(j, engines[e], "f32", 3e-6);
        }
}

/* ---- by hand ---- */

static void ties_and_nan(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double x[] = {1, 3, 3, 1, -0.0, 0, -INFINITY, -INFINITY, 2, NAN, 5, NAN};
        const double want[] = {1, 2, 0, 0, 1, 2, 1, 3, 2};
        double indices[9], w[9], counts[4], bias[] = {0, 0, 0, 0};
        run_ok(engines[e], "moe_route logits=f32:3x4 k=3 counts=s32 renormalise=1",
               VALUES(x, NULL, indices, w, counts));
        assert_int_equal(differences(indices, want, 9, 0, 0), 0);
        assert_int_equal(differences(counts, (double[]){2, 3, 3, 1}, 4, 0, 0), 0);
        assert_true(w[3] == 0.5 && w[4] == 0.5 && w[5] == 0);
        assert_true(isnan(w[6]) && isnan(w[7]) && isnan(w[8]));
        run_ok(engines[e], "moe_route logits=bf16:3x4 k=3 score=sigmoid bias=f32",
               VALUES(x, bias, indices, w));
        assert_int_equal(differences(indices, want, 9, 0, 0), 0);
        assert_true(w[3] == 0.5 && w[5] == 0 && isnan(w[6]) && w[8] > 0.99);
    }
}

/* The bias decides and does not count; -inf takes an expert out. */
static void bias_decides(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double x[] = {0, 0, 0, 0}, bias[] = {-INFINITY, 0.125, 0, 1}, indices[2], w[2];
        run_ok(engines[e], "moe_route logits=f32:1x4 k=2 bias=f32", VALUES(x, bias, indices, w));
        assert_true(indices[0] == 3 && indices[1] == 1 && w[0] == 0.25 && w[1] == 0.25);
    }
}

static void few(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double x[3] = {4, -7, 0.5}, indices[3], w[3], counts[8], aux, z;
        run_ok(engines[e], "moe_route logits=f32:3x1 counts=s32",
               VALUES(x, NULL, indices, w, counts));
        assert_true(indices[2] == 0 && w[0] == 1 && w[1] == 1 && w[2] == 1 && counts[0] == 3);
        run_ok(engines[e], "moe_route logits=f32:0x8 k=2 counts=s32 aux=f32 z=f32",
               VALUES(x, NULL, indices, w, counts, &aux, &z));
        for (int i = 0; i < 8; i++) assert_true(counts[i] == 0);
        assert_true(isnan(aux) && isnan(z));
    }
}

/* Indices outside are no choices: the rest is a routing to fewer experts. */
static void choices_outside(void **state)
{
    (void)state;
    const char *const lines[] = {"score=softmax", "score=sigmoid", "score=softmax renormalise=1",
                                 "score=sigmoid renormalise=1"};
    for (int l = 0; l < 8; l++) {
        char more[200], fewer[200];
        double x[12], dw[9], given[] = {1, -1, 3, 2, 4, 0, 2000000000, -2000000000, 3}, dx[12];
        double left[3], kept[3], want[12], *in[MICA_MAX_ARGS] = {x}, *out[MICA_MAX_ARGS] = {x};
        wave(x, 12, 1), wave(dw, 9, 2);
        snprintf(more, sizeof more, "moe_route pass=bwd logits=f64:3x4 k=3 %s", lines[l / 2]);
        in[MICA_MOE_ROUTE_INDICES] = given, in[MICA_MOE_ROUTE_DWEIGHTS] = dw;
        in[MICA_MOE_ROUTE_DLOGITS] = dx;
        run_ok(engines[l % 2], more, in);
        for (int t = 0; t < 3; t++) {
            int n = 0;
            for (int j = 0; j < 3; j++)
                if (given[3 * t + j] >= 0 && given[3 * t + j] < 4)
                    left[n] = given[3 * t + j], kept[n++] = dw[3 * t + j];
            snprintf(fewer, sizeof fewer, "moe_route pass=bwd logits=f64:1x4 k=%d %s", n,
                     lines[l / 2]);
            out[MICA_MOE_ROUTE_LOGITS] = x + 4 * t;
            out[MICA_MOE_ROUTE_INDICES] = left, out[MICA_MOE_ROUTE_DWEIGHTS] = kept;
            out[MICA_MOE_ROUTE_DLOGITS] = want + 4 * t;
            run_ok(engines[l % 2], fewer, out);
        }
        assert_int_equal(differences(dx, want, 12, 1e-15, 1e-14), 0);
    }
}

static void threads_do_not_matter(void **state)
{
    (void)state;
    enum { TOKENS = 3001, EXPERTS = 16, K = 2 };
    double *x = malloc(TOKENS * EXPERTS * sizeof *x), *w = malloc(2 * TOKENS * K * sizeof *w);
    double indices[TOKENS * K], losses[2][2], counts[EXPERTS];
    const int threads = omp_get_max_threads();
    wave(x, TOKENS * EXPERTS, 1);
    for (int i = 0; i < 2; i++) {
        omp_set_num_threads(i ? 4 : 1);
        run_ok("cpu", "moe_route logits=f32:3001x16 k=2 counts=s32 aux=f32 z=f32",
               VALUES(x, NULL, indices, w + i * TOKENS * K, counts, &losses[i][0], &losses[i][1]));
    }
    omp_set_num_threads(threads);
    assert_memory_equal(w, w + TOKENS * K, TOKENS * K * sizeof *w);
    assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
    free(x);
    free(w);
}

static void descriptions_are_refused(void **state)
{
    (void)state;
    refuses("moe_route", "logits");
    refuses("moe_route logits=f32:8", "logits has rank 1");
    refuses("moe_route logits=s8:4x8", "logits is s8");
    refuses("moe_route logits=f32:4x1025", "logits has 1025 experts, 1 to 1024");
    refuses("moe_route logits=f32:4x0", "logits has 0 experts");
    refuses("moe_route logits=f32:4x8 k=9", "k is 9");
    refuses("moe_route logits=f32:4x64 k=33", "k is 33");
    refuses("moe_route logits=f32:4x64 k=-1", "k is -1");
    refuses("moe_route logits=f32:4x9 groups=2", "groups is 2, it must be 1 to 32 and divide 9");
    refuses("moe_route logits=f32:4x64 groups=64", "groups is 64");
    refuses("moe_route logits=f32:4x8 groups=4 topk_groups=5", "topk_groups is 5, 1 to 4");
    refuses("moe_route logits=f32:4x8 groups=8 topk_groups=4", "groups of 1 have no two experts");
    refuses("moe_route logits=f32:4x8 groups=4 topk_groups=1 k=3", "k is 3, 1 groups have 2");
    refuses("moe_route logits=f32:4x8 bias=f64", "bias is f64");
    refuses("moe_route logits=f32:4x8 weights=f64", "weights is f64");
    refuses("moe_route logits=f32:4x8 indices=s64", "indices is s64");
    refuses("moe_route logits=f32:4x8 score=sigmoid aux=f32", "aux is for score=softmax");
    refuses("moe_route pass=bwd logits=f32:4x8 score=sigmoid dz=f32", "dz is for score=softmax");
    refuses("moe_route pass=bwd logits=f32:4x8 daux=f32", "daux without counts");
    refuses("moe_route pass=bwd logits=f32:4x8 counts=s32", "counts in bwd is for daux");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(judged),
        cmocka_unit_test(ties_and_nan),
        cmocka_unit_test(bias_decides),
        cmocka_unit_test(few),
        cmocka_unit_test(choices_outside),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(descriptions_are_refused),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
