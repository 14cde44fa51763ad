/* SPDX-License-Identifier: Apache-2.0
 * Layers of experts against Mixtral's (tests/judges/moe.py), what is dropped or outside, all tokens
 * with one expert, its workspace, refusals. */
#include "line.h"

#include "mica/moe.h"

enum { TOKENS = 6, WIDTH = 5, INNER = 3, EXPERTS = 4, K = 2 };
enum { X = TOKENS * WIDTH, W1 = EXPERTS * 2 * INNER * WIDTH, W2 = EXPERTS * WIDTH * INNER };
enum { B1 = EXPERTS * 2 * INNER, B2 = EXPERTS * WIDTH };
enum { ROUTER = EXPERTS * WIDTH, CHOICES = TOKENS * K, HIDDEN = CHOICES * 2 * INNER };
static const struct judgement {
    const char *act;
    int routed, biased;
    double x[X], w1[W1], w2[W2], router[ROUTER], indices[CHOICES], weights[CHOICES], y[X], dy[X];
    double dx[X], dw1[W1], dw2[W2];
    double droute[ROUTER]; /* of the router, or of the weights */
    double b1[B1], b2[B2], db1[B1], db2[B2];
} judgements[] = {
#include "../judges/moe.h"
};
enum { JUDGEMENTS = sizeof judgements / sizeof *judgements };

static const char *const takers[] = {"compose", "ref"};

/* The first or second half of each expert's rows of w1. */
static void take_half(const double *w1, int second, double *half)
{
    for (int e = 0; e < EXPERTS; e++)
        memcpy(half + e * INNER * WIDTH, w1 + (2 * e + second) * INNER * WIDTH,
               INNER * WIDTH * sizeof *half);
}

/* apart: w1 and w3 instead of both in one. */
static void judge(const struct judgement *j, const char *taker, const char *type, bool apart,
                  double units)
{
    char line[500];
    double y[X], hidden[HIDDEN], dx[X], dw[3][W1], droute[ROUTER], first[W1], second[W1];
    double db1[B1], db2[B2];
    double *values[MICA_MAX_ARGS] = {[MICA_MOE_X] = (double *)j->x,
                                     [MICA_MOE_W1] = (double *)j->w1,
                                     [MICA_MOE_W2] = (double *)j->w2,
                                     [MICA_MOE_INDICES] = (double *)j->indices,
                                     [MICA_MOE_WEIGHTS] = (double *)j->weights,
                                     [MICA_MOE_ROUTER] = (double *)j->router,
                                     [MICA_MOE_HIDDEN] = hidden,
                                     [MICA_MOE_Y] = y,
                                     [MICA_MOE_DY] = (double *)j->dy,
                                     [MICA_MOE_DX] = dx,
                                     [MICA_MOE_DW1] = dw[0],
                                     [MICA_MOE_DW2] = dw[1],
                                     [MICA_MOE_DW3] = dw[2],
                                     [MICA_MOE_B1] = (double *)j->b1,
                                     [MICA_MOE_B2] = (double *)j->b2,
                                     [MICA_MOE_DB1] = db1,
                                     [MICA_MOE_DB2] = db2,
                                     [MICA_MOE_DWEIGHTS] = droute,
                                     [MICA_MOE_DROUTER] = droute};
    char text[300], third[40] = "", biases[40] = "", gradients[40] = "";
    if (j->biased && apart) return;
    if (apart) {
        take_half(j->w1, 0, first);
        take_half(j->w1, 1, second);
        values[MICA_MOE_W1] = first, values[MICA_MOE_W3] = second;
        snprintf(third, sizeof third, " w3=%s:4x3x5", type);
    }
    if (j->biased) {
        snprintf(biases, sizeof biases, " b1=%s:4x6 b2=%s:4x5", type, type);
        snprintf(gradients, sizeof gradients, " db1=%s db2=%s", type, type);
    }
    snprintf(text, sizeof text, "x=%s:6x5 w1=%s:4x%dx5 w2=%s:4x5x3%s%s gated=1 act=%s%s%s", type,
             type, apart ? 3 : 6, type, third, biases, j->act,
             j->routed ? " k=2 renormalise=1 router=" : " indices=s32:6x2 weights=", type);
    for (int kept = 0; kept < 2; kept++) {
        snprintf(line, sizeof line, "moe %s%s%s", text, kept ? " hidden=" : "", kept ? type : "");
        run_ok(taker, line, values);
        assert_int_equal(differences(y, j->y, X, units, units), 0);
        snprintf(line, sizeof line, "moe pass=bwd %s%s%s dw1=%s dw2=%s%s%s%s %s=%s", text,
                 kept ? " hidden=" : "", kept ? type : "", type, type, apart ? " dw3=" : "",
                 apart ? type : "", gradients, j->routed ? "drouter" : "dweights", type);
        run_ok(taker, line, values);
        assert_int_equal(differences(dx, j->dx, X, units, units), 0);
        assert_int_equal(differences(dw[1], j->dw2, W2, units, units), 0);
        assert_int_equal(differences(droute, j->droute, j->routed ? ROUTER : CHOICES, units, units),
                         0);
        if (j->biased) {
            assert_int_equal(differences(db1, j->db1, B1, units, units), 0);
            assert_int_equal(differences(db2, j->db2, B2, units, units), 0);
        }
        for (int h = 0; h < 2 && apart; h++) {
            take_half(j->dw1, h, first);
            assert_int_equal(differences(dw[2 * h], first, W1 / 2, units, units), 0);
        }
        if (apart) take_half(j->w1, 0, first);
        if (!apart) assert_int_equal(differences(dw[0], j->dw1, W1, units, units), 0);
    }
}

static void judged(void **state)
{
    (void)state;
    for (const struct judgement *j = judgements; j < judgements + JUDGEMENTS; j++)
        for (int form = 0; form < 4; form++) {
            judge(j, takers[form & 1], "f64", form >> 1, j->routed && !j->biased ? 3e-6 : 1e-12);
            judge(j, takers[form & 1], "f32", form >> 1, 2e-5);
        }
}

/* Experts double and negate, each takes one choice; 2 and -1 are no experts. */
static void what_is_dropped(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double x[] = {1, 2, 3}, w1[] = {2, -1}, w2[] = {1, 1}, b2[] = {100};
        double indices[] = {1, 0, 1, 2, 0, -1}, weights[] = {1, 10, 1, 1, 0.5, 1}, y[3];
        const double all[] = {99 + 1020, 98, 53}, one[] = {99 + 1020, 0, 0};
        double *values[MICA_MAX_ARGS] = {
            [MICA_MOE_X] = x,   [MICA_MOE_W1] = w1,           [MICA_MOE_W2] = w2,
            [MICA_MOE_B2] = b2, [MICA_MOE_INDICES] = indices, [MICA_MOE_WEIGHTS] = weights,
            [MICA_MOE_Y] = y};
        const char *const line = "moe x=f32:3x1 w1=f32:2x1x1 w2=f32:2x1x1 b2=f32:1 indices=s32:3x2";
        char limited[100];
        run_ok(takers[e], line, values);
        assert_int_equal(differences(y, all, 3, 0, 0), 0);
        snprintf(limited, sizeof limited, "%s capacity=1", line);
        run_ok(takers[e], limited, values);
        assert_int_equal(differences(y, one, 3, 0, 0), 0);
    }
}

/* Rows of x or of results, and those inside of experts before and behind the activation. */
static void workspace(void **state)
{
    (void)state;
    const double rows = 4096.0 * 8, most = rows * 2 * (2048 + 3 * 768);
    const char *const line = "moe x=bf16:4096x2048 w1=bf16:128x1536x2048 w2=bf16:128x2048x768 "
                             "logits=f32:4096x128 k=8 gated=1 act=silu";
    mica_problem *p;
    mica_plan *plan;
    assert_int_equal(mica_problem_from_text(line, &p), MICA_OK);
    assert_int_equal(mica_plan_problem(context, p, &(mica_options){.engine = "compose"}, &plan),
                     MICA_OK);
    const double bytes = (double)mica_plan_workspace(plan);
    if (!(bytes <= 1.02 * most)) fail_msg("%g bytes of workspace, rows have %g", bytes, most);
    mica_plan_destroy(plan);
    mica_problem_destroy(p);
}

#define GATED "moe x=f32:3x4 w1=f32:2x6x4 w2=f32:2x4x3 gated=1 "
static void refusals(void **state)
{
    (void)state;
    refuses("moe x=f32:3x4 w1=f32:2x6x4", "w2 is needed");
    refuses("moe x=f32:3x4x1 w1=f32:2x6x4 w2=f32:2x4x3 indices=s32:3x1", "x has rank 3");
    refuses("moe x=f32:3x4 w1=f32:6x4 w2=f32:2x4x3 indices=s32:3x1", "w1 has rank 2, it must be");
    refuses("moe x=f32:3x4 w1=f32:2x6x4 w2=f32:2x4x3 indices=s32:3x1",
            "dimension 1 of w1 is 6, it must be 3");
    refuses(GATED, "0 of indices, logits and router are given, it must be one");
    refuses(GATED "indices=s32:3x1 logits=f32:3x2", "2 of indices, logits and router are given");
    refuses(GATED "indices=s32:4x1", "dimension 0 of indices is 4, it must be 3");
    refuses(GATED "indices=s64:3x1", "indices is s64, it must be s32");
    refuses(GATED "indices=s32:3x1 weights=f64", "weights is f64, x is f32; f64 is for f64 x");
    refuses(GATED "indices=s32:3x1 b1=f32:3", "b1 has 3 elements in 1 dimensions, it must be 6 or");
    refuses(GATED "indices=s32:3x1 b3=f32:3", "b3 without w3");
    refuses(GATED "indices=s32:3x1 score_bias=f32", "score_bias with indices: routes are given");
    refuses(GATED "logits=f32:3x2 k=3", "k is 3, logits has 2 experts");
    refuses(GATED "logits=f32:3x2 k=40", "k is 40, 1 to 32 are legal");
    refuses(GATED "logits=f32:3x2 groups=3", "groups is 3");
    refuses(GATED "logits=f32:3x2 pass=bwd drouter=f32", "drouter without router");
    refuses(GATED "indices=s32:3x1 y=f16", "y is f16, it must be f32, as x, or f32");
    refuses("moe x=f32:3x4 w1=f32:2x3x4 w3=f32:2x3x4 w2=f32:2x4x3 indices=s32:3x1",
            "w3 without gated");
    refuses("moe x=f32:3x4 w1=f32:0x3x4 w2=f32:0x4x3 indices=s32:3x1", "w1 has 0 experts");
    refuses("moe x=bf16:3x4 w1=s4:2x3x4 w2=bf16:2x4x3 indices=s32:3x1",
            "w2 is bf16, w1 is s4; they must agree");
    refuses("moe x=bf16:3x4 w1=f32:2x3x4 w2=bf16:2x4x3 indices=s32:3x1",
            "w1 is f32, x is bf16; they must agree");
}

#define CODES "moe x=bf16:3x4 w1=u4:2x6x4 w2=u4:2x4x3 indices=s32:3x1 gated=1 "
#define BLOCKS                                                                                     \
    "moe x=bf16:3x4 w1=e4m3:2x6x4 w2=e4m3:2x4x3 indices=s32:3x1 gated=1 activations=e4m3 "
static void refusals_of_codes(void **state)
{
    (void)state;
    refuses(CODES "pass=bwd", "w1 is u4 in bwd: experts in few bits have a forward pass only");
    refuses(CODES "scales1=f32:2x6x3", "dimension 2 of scales1 is 3, ");
    refuses(CODES "group=2 scales1=f32:2x6x3", "dimension 2 of scales1 is 3, ");
    refuses(CODES "scales3=f32", "scales3 without w3");
    refuses(CODES "zeros1=s8", "zeros1 is s8, it must be of w1's type, u4, or of scales1', f32");
    refuses(CODES "zeros1=u4:2x6x2", "dimension 2 of zeros1 is 2, ");
    refuses(CODES "activations=e4m3", "w1 is u4, with activations=e4m3 it must be e4m3");
    refuses("moe x=f64:3x4 w1=u4:2x6x4 w2=u4:2x4x3 indices=s32:3x1 gated=1",
            "x is f64, w1 u4: weights in few bits are for");
    refuses(GATED "indices=s32:3x1 scales1=f32:1", "scales1 is for weights in few bits, w1 is f32");
    refuses(GATED "indices=s32:3x1 group=2", "group is for weights in few bits, w1 is f32");
    refuses(GATED "indices=s32:3x1 activations=e4m3",
            "w1 is f32, with activations=e4m3 it must be");
    refuses(BLOCKS "group=64", "group is 64, with activations=e4m3 it is 128");
    refuses(BLOCKS "scales2=bf16", "scales2 is bf16, with activations=e4m3 it must be f32");
    refuses(BLOCKS "zeros1=f32", "zeros1 is for integers, w1 is e4m3");
}

/* Expert 0 has codes 3 and 1 of zero 1 and scales 0.5 and 2, expert 1 codes 0 and 5: w1 is 1 and 0,
 * then -0.5 and 8. w2 is 7 and -8. */
static void codes_by_hand(void **state)
{
    (void)state;
    double x[] = {2, 3, 1, -1, 4, 0.5}, w1[] = {3, 1, 0, 5}, w2[] = {7, -8};
    double scales1[] = {0.5, 2, 0.5, 2}, zeros1[] = {1, 1, 1, 1}, scales2[] = {1};
    double indices[] = {0, 1, 1}, weights[] = {1, 2, -1}, y[3];
    const double wanted[] = {7 * 2, 2 * -8 * -8.5, -(-8 * 2)};
    double *values[MICA_MAX_ARGS] = {[MICA_MOE_X] = x,
                                     [MICA_MOE_W1] = w1,
                                     [MICA_MOE_W2] = w2,
                                     [MICA_MOE_SCALES1] = scales1,
                                     [MICA_MOE_ZEROS1] = zeros1,
                                     [MICA_MOE_SCALES2] = scales2,
                                     [MICA_MOE_INDICES] = indices,
                                     [MICA_MOE_WEIGHTS] = weights,
                                     [MICA_MOE_Y] = y};
    for (int e = 0; e < 2; e++) {
        run_ok(
            takers[e],
            "moe x=f32:3x2 w1=s8:2x1x2 w2=s8:2x1x1 indices=s32:3x1 group=1 zeros1=s8 scales2=f32:1",
            values);
        assert_int_equal(differences(y, wanted, 3, 0, 0), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(judged),
        cmocka_unit_test(what_is_dropped),
        cmocka_unit_test(workspace),
        cmocka_unit_test(refusals),
        cmocka_unit_test(refusals_of_codes),
        cmocka_unit_test(codes_by_hand),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
