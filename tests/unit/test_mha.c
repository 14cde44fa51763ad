/* SPDX-License-Identifier: Apache-2.0
 * Multi-head attention: gradients against differences, heads by hand, rows and sizes of nothing,
 * what needs copies, what descriptions are refused. */
#include "line.h"
#include "ops/op.h"

static const char *const both[] = {"compose", "ref"};

/* ---- gradients ---- */

/* Batch 2, 5 queries and 4 keys, 4 heads on 2 of keys; all widths differ. */
#define SIZES                                                                                      \
    "q=f64:2x5x6 k=f64:2x4x7 v=f64:2x4x8 heads=4 kv_heads=2 head_dim=3 value_dim=5 out=f64:2x5x9"
#define BIASES " bq=f64 bk=f64 bv=f64 bo=f64"
static const char *const scores[] = {
    " causal=bottom_right mask=bool:2x1x5x4",
    " align=bottom_right window_left=3 window_right=2 soft_cap=1.5 slopes=f64:4 bias=f64:2x1x5x4 "
    "sinks=f64:4 dropout=0.25 seq_q=s32:2 seq_k=s32:2 dbias=f64 dsinks=f64"};
enum { ARGS = MICA_MHA_DSINKS + 1 };

typedef double memory[ARGS][2 * 4 * 5 * 9];

/* What has a gradient, where that comes, and in which pass. */
static const struct {
    int arg, gradient, count;
    bool weights;
} parameters[] = {
    {MICA_MHA_Q, MICA_MHA_Q, 60, false},        {MICA_MHA_K, MICA_MHA_K, 56, false},
    {MICA_MHA_V, MICA_MHA_V, 64, false},        {MICA_MHA_WQ, MICA_MHA_WQ, 12 * 6, true},
    {MICA_MHA_WK, MICA_MHA_WK, 6 * 7, true},    {MICA_MHA_WV, MICA_MHA_WV, 10 * 8, true},
    {MICA_MHA_WO, MICA_MHA_WO, 9 * 20, true},   {MICA_MHA_BQ, MICA_MHA_BQ, 12, true},
    {MICA_MHA_BK, MICA_MHA_BK, 6, true},        {MICA_MHA_BV, MICA_MHA_BV, 10, true},
    {MICA_MHA_BO, MICA_MHA_BO, 9, true},        {MICA_MHA_BIAS, MICA_MHA_DBIAS, 40, false},
    {MICA_MHA_SINKS, MICA_MHA_DSINKS, 4, false}};
enum { PARAMETERS = sizeof parameters / sizeof *parameters };

static void point(memory m, double **values)
{
    for (int i = 0; i < ARGS; i++) values[i] = m[i];
}

static void fill_parameters(memory m)
{
    for (int i = 0; i < PARAMETERS; i++) wave(m[parameters[i].arg], parameters[i].count, i);
}

static double loss(const char *engine, int s, double **values, const double *weights)
{
    double sum = 0;
    char line[512];
    snprintf(line, sizeof line, "mha " SIZES BIASES "%s", scores[s]);
    run_ok(engine, line, values);
    for (int i = 0; i < 2 * 5 * 9; i++) sum += values[MICA_MHA_OUT][i] * weights[i];
    return sum;
}

/* Gradients of all parameters into `gradients`, of forward's values and that of out. */
static void run_backward(const char *engine, int s, memory forward, const double *dout,
                         memory gradients)
{
    static memory backward;
    double *b[MICA_MAX_ARGS] = {0};
    char line[512];
    point(backward, b);
    memcpy(backward, forward, sizeof backward);
    memcpy(backward[MICA_MHA_OUT], dout, 90 * sizeof *dout);
    snprintf(line, sizeof line, "mha pass=bwd_data " SIZES "%s", scores[s]);
    run_ok(engine, line, b);
    memcpy(gradients, backward, sizeof backward);
    for (int i = MICA_MHA_Q; i <= MICA_MHA_V; i++)
        memcpy(backward[i], forward[i], sizeof backward[i]);
    run_ok(engine, "mha pass=bwd_weights " SIZES BIASES, b);
    for (int i = 0; i < PARAMETERS; i++)
        if (parameters[i].weights)
            memcpy(gradients[parameters[i].gradient], backward[parameters[i].gradient],
                   sizeof backward[0]);
}

/* Differences of fourth order with steps of 1e-3: wrong by about 1e-12 and by rounding, 1e-13. */
static void gradients_are_slopes(void **state)
{
    (void)state;
    const double h = 1e-3;
    for (int e = 0; e < 4; e++) {
        static memory forward, gradients;
        int s = e / 2;
        const char *engine = both[e % 2];
        double *f[MICA_MAX_ARGS] = {0}, dout[90], step[180];
        point(forward, f);
        fill_parameters(forward);
        for (int i = 0; i < 40; i++) forward[MICA_MHA_MASK][i] = i % 5 != 1;
        for (int i = 0; i < 4; i++) forward[MICA_MHA_SLOPES][i] = 0.1 * (i + 1);
        memcpy(forward[MICA_MHA_RNG], (const double[]){12345, 6}, 2 * sizeof(double));
        memcpy(forward[MICA_MHA_SEQ_Q], (const double[]){5, 3}, 2 * sizeof(double));
        memcpy(forward[MICA_MHA_SEQ_K], (const double[]){3, 4}, 2 * sizeof(double));
        wave(dout, 90, 3.3);
        loss(engine, s, f, dout);
        run_backward(engine, s, forward, dout, gradients);
        /* the first scores have neither bias nor sinks */
        for (int i = 0; i < (s ? PARAMETERS : PARAMETERS - 2); i++) {
            double slope = 0, sums[4], size = 0;
            double *parameter = forward[parameters[i].arg];
            int count = parameters[i].count;
            wave(step, count, 10 + i);
            for (int a = 0; a < count; a++) {
                slope += gradients[parameters[i].gradient][a] * step[a];
                size += fabs(gradients[parameters[i].gradient][a] * step[a]);
            }
            for (int k = 0; k < 4; k++) {
                double far = (k < 2 ? 1 : 2) * (k % 2 ? -h : h);
                double before[180];
                memcpy(before, parameter, sizeof before);
                for (int a = 0; a < count; a++) parameter[a] += far * step[a];
                sums[k] = loss(engine, s, f, dout);
                memcpy(parameter, before, sizeof before);
            }
            double want = (8 * (sums[0] - sums[1]) - (sums[2] - sums[3])) / (12 * h);
            /* a bias of keys moves all scores of a row alike: no gradient, unless capped */
            assert_true(size > 0 || parameters[i].arg == MICA_MHA_BK);
            assert_int_equal(differences(&slope, &want, 1, 1e-8 + 1e-8 * size, 0), 0);
        }
    }
}

/* ---- by hand ---- */

/* One key: whatever the scores, out = wo (wv v + bv) + bo, each head with its own rows of wv. */
static void one_key_takes_all(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        static memory m;
        double *values[MICA_MAX_ARGS] = {0};
        point(m, values);
        for (int i = 0; i <= MICA_MHA_BO; i++) wave(m[i], 16, i);
        const double v[] = {1, 2}, wv[] = {1, 0, 0, 1, 2, 0, 0, 3}, bv[] = {10, 20, 30, 40};
        const double wo[] = {1, 10, 100, 1000}, bo[] = {0.5};
        memcpy(m[MICA_MHA_V], v, sizeof v), memcpy(m[MICA_MHA_WV], wv, sizeof wv);
        memcpy(m[MICA_MHA_BV], bv, sizeof bv), memcpy(m[MICA_MHA_WO], wo, sizeof wo);
        memcpy(m[MICA_MHA_BO], bo, sizeof bo);
        run_ok(both[e],
               "mha q=f32:1x3x2 k=f32:1x1x2 heads=2 head_dim=1 value_dim=2 out=f32:1x3x1 "
               "bv=f32 bo=f32",
               values);
        const double heads[] = {11, 22, 11, 22, 11, 22, 32, 46, 32, 46, 32, 46};
        assert_int_equal(differences(values[MICA_MHA_OH], heads, 12, 0, 0), 0);
        const double out = 11 + 220 + 3200 + 46000 + 0.5, all[] = {out, out, out};
        assert_int_equal(differences(values[MICA_MHA_OUT], all, 3, 0, 0), 0);
    }
}

/* ---- nothing ---- */

static void rows_that_see_nothing(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        static memory m;
        double *values[MICA_MAX_ARGS] = {0};
        point(m, values);
        for (int i = 0; i <= MICA_MHA_BO; i++) wave(m[i], 16, i);
        /* 3 queries, 1 key at the end of the diagonal: the first two see none */
        run_ok(both[e], "mha q=f32:1x3x4 k=f32:1x1x4 causal=bottom_right bo=f32", values);
        const double none[] = {-INFINITY, -INFINITY};
        assert_int_equal(differences(values[MICA_MHA_LSE], none, 2, 0, 0), 0);
        assert_int_equal(differences(values[MICA_MHA_OUT], m[MICA_MHA_BO], 4, 0, 1e-7), 0);
        assert_int_equal(differences(values[MICA_MHA_OUT] + 4, m[MICA_MHA_BO], 4, 0, 1e-7), 0);
        assert_true(isfinite(values[MICA_MHA_LSE][2]));
        wave(m[MICA_MHA_OUT], 12, 5);
        run_ok(both[e], "mha pass=bwd_data q=f32:1x3x4 k=f32:1x1x4 causal=bottom_right", values);
        const double zero[8] = {0};
        assert_int_equal(differences(values[MICA_MHA_Q], zero, 8, 0, 0), 0);
        assert_int_equal(differences(values[MICA_MHA_DQH], zero, 8, 0, 0), 0);
    }
}

static void sums_of_nothing(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        static memory m;
        double *values[MICA_MAX_ARGS] = {0};
        const double zero[16] = {0};
        point(m, values);
        for (int i = 0; i <= MICA_MHA_BO; i++) wave(m[i], 16, i);
        run_ok(both[e], "mha q=f32:2x3x4 k=f32:2x0x4 bo=f32", values);
        assert_int_equal(differences(values[MICA_MHA_OUT] + 20, m[MICA_MHA_BO], 4, 0, 1e-7), 0);
        for (int i = 0; i < 6; i++) assert_true(values[MICA_MHA_LSE][i] == -INFINITY);
        run_ok(both[e], "mha pass=bwd_data q=f32:2x3x4 k=f32:2x0x4", values);
        assert_int_equal(differences(values[MICA_MHA_Q], zero, 16, 0, 0), 0);
        wave(m[MICA_MHA_DKH], 16, 1);
        run_ok(both[e], "mha pass=bwd_weights q=f32:2x3x4 k=f32:2x0x4 bk=f32 bo=f32", values);
        assert_int_equal(differences(values[MICA_MHA_WK], zero, 16, 0, 0), 0);
        assert_int_equal(differences(values[MICA_MHA_BK], zero, 4, 0, 0), 0);
        /* keys, but nobody asks */
        run_ok(both[e], "mha pass=bwd_data q=f32:2x0x4 k=f32:2x3x4", values);
        assert_int_equal(differences(values[MICA_MHA_V], zero, 16, 0, 0), 0);
    }
}

/* A row of no sequence: its out is bo; one with a sink and no keys has the sink as lse. */
static void rows_of_no_sequence(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        static memory m;
        double *values[MICA_MAX_ARGS] = {0};
        point(m, values);
        for (int i = 0; i <= MICA_MHA_BO; i++) wave(m[i], 16, i);
        const double offsets_q[] = {1, 3}, offsets_k[] = {0, 0}, sink[] = {0.75};
        memcpy(m[MICA_MHA_CU_Q], offsets_q, sizeof offsets_q);
        memcpy(m[MICA_MHA_CU_K], offsets_k, sizeof offsets_k);
        m[MICA_MHA_SINKS][0] = sink[0];
        run_ok(both[e], "mha q=f32:1x4x4 k=f32:1x2x4 cu_q=s32:2 cu_k=s32:2 sinks=f32:1 bo=f32",
               values);
        const double lse[] = {-INFINITY, sink[0], sink[0], -INFINITY}, zero[16] = {0};
        assert_int_equal(differences(values[MICA_MHA_LSE], lse, 4, 0, 0), 0);
        assert_int_equal(differences(values[MICA_MHA_OH], zero, 16, 0, 0), 0);
        for (int i = 0; i < 4; i++)
            assert_int_equal(differences(values[MICA_MHA_OUT] + 4 * i, m[MICA_MHA_BO], 4, 0, 1e-7),
                             0);
    }
}

/* Every weight of 1 is either dropped or becomes 1 / (1 - dropout), by attention's words. */
static void dropout_is_attentions(void **state)
{
    (void)state;
    enum { ROWS = 24 };
    static memory m;
    double *values[MICA_MAX_ARGS] = {0}, want[ROWS], rng[] = {0x123456789abc, 7};
    point(m, values);
    for (int i = 0; i <= MICA_MHA_BO; i++)
        for (int a = 0; a < ROWS; a++) m[i][a] = 1;
    memcpy(m[MICA_MHA_RNG], rng, sizeof rng);
    double *own[MICA_MAX_ARGS] = {[MICA_ATTENTION_Q] = m[0],
                                  [MICA_ATTENTION_K] = m[1],
                                  [MICA_ATTENTION_V] = m[2],
                                  [MICA_ATTENTION_OUT] = want,
                                  [MICA_ATTENTION_RNG] = rng};
    run_ok("ref", "attention q=f32:3x1x8x1 k=f32:3x1x1x1 dropout=0.5", own);
    for (int e = 0; e < 2; e++) {
        run_ok(both[e], "mha q=f32:3x8x1 k=f32:3x1x1 dropout=0.5", values);
        assert_int_equal(differences(values[MICA_MHA_OUT], want, ROWS, 0, 1e-7), 0);
        int dropped = 0;
        for (int i = 0; i < ROWS; i++) dropped += values[MICA_MHA_OUT][i] == 0;
        assert_in_range(dropped, 4, 20);
    }
}

/* ---- plans ---- */

static size_t workspace(const char *line, const char *engine, int *children)
{
    mica_plan *plan;
    mica_options o = {.engine = engine};
    if (mica_plan_from_text(context, line, &o, &plan) != MICA_OK) fail_msg("%s", mica_error());
    size_t bytes = mica_plan_workspace(plan);
    if (children) *children = plan->child_count;
    mica_plan_destroy(plan);
    return bytes;
}

static void copies_only_where_needed(void **state)
{
    (void)state;
    int products, children;
    size_t plain = workspace("mha q=f32:2x5x16 heads=2", "compose", &products);
    assert_int_equal(products, 5);
    /* rows of a batch further apart: a copy, which lies where attention's workspace comes later */
    const char *apart = "mha q=f32:2x5x16:100x16x1 k=f32:2x5x16 heads=2";
    assert_int_equal(workspace(apart, "compose", &children), plain);
    assert_int_equal(children, products + 1);
    /* one of more bytes than that: 2 x 5 x 4096 numbers */
    const char *wide = "mha q=f32:2x5x4096:30000x4096x1 k=f32:2x5x16 heads=2 head_dim=8";
    assert_true(workspace(wide, "compose", NULL) >= plain + 100000);
    /* heads apart from each other */
    assert_int_equal(workspace("mha q=f32:2x5x16 heads=2 oh=f32:2x2x5x8", "compose", &children),
                     plain);
    assert_int_equal(children, products + 1);
    assert_int_equal(workspace("mha q=f32:2x5x16:100x16x1 heads=2", "ref", NULL), 0);
    mica_plan *plan;
    mica_options none = {.workspace_limit = MICA_NO_WORKSPACE};
    assert_int_equal(
        mica_plan_from_text(context, "mha q=f32:2x5x16:100x16x1 heads=2", &none, &plan), MICA_OK);
    assert_string_equal(mica_plan_engine(plan), "ref");
    mica_plan_destroy(plan);
}

static void dimensions_are_inferred(void **state)
{
    (void)state;
    mica_problem *p;
    mica_arg_info info;
    char text[64];
    assert_int_equal(mica_problem_from_text("mha q=bf16:2x5x12 k=bf16:2x7x10 heads=4 kv_heads=2 "
                                            "wv=bf16:6x10 wo=bf16:9x12",
                                            &p),
                     MICA_OK);
    const struct {
        int arg;
        const char *text;
    } want[] = {{MICA_MHA_WQ, "bf16:12x12"},        {MICA_MHA_WK, "bf16:6x10"},
                {MICA_MHA_OUT, "bf16:2x5x9"},       {MICA_MHA_QH, "bf16:2x4x5x3:bshd"},
                {MICA_MHA_KH, "bf16:2x2x7x3:bshd"}, {MICA_MHA_OH, "bf16:2x4x5x3:bshd"},
                {MICA_MHA_LSE, "f32:2x4x5"}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        assert_int_equal(mica_problem_arg(p, want[i].arg, &info), MICA_OK);
        mica_tensor_text(&info.tensor, text, sizeof text);
        assert_string_equal(text, want[i].text);
    }
    mica_problem_destroy(p);
}

/* Of what is read behind the projections the operation knows the dimensions, not its child alone.
 */
static void types_are_enough(void **state)
{
    (void)state;
    mica_problem *p;
    mica_arg_info info;
    char text[64];
    assert_int_equal(mica_problem_from_text("mha pass=bwd_data q=f16:3x5x12 heads=4 slopes=f32: "
                                            "sinks=f16: dsinks=f32: seq_q=s32: seq_k=s32: rng=s64: "
                                            "dropout=0.5",
                                            &p),
                     MICA_OK);
    const struct {
        int arg;
        const char *text;
    } want[] = {{MICA_MHA_SLOPES, "f32:4"}, {MICA_MHA_SINKS, "f16:4"}, {MICA_MHA_DSINKS, "f32:4"},
                {MICA_MHA_SEQ_Q, "s32:3"},  {MICA_MHA_SEQ_K, "s32:3"}, {MICA_MHA_RNG, "s64:2"}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        assert_int_equal(mica_problem_arg(p, want[i].arg, &info), MICA_OK);
        mica_tensor_text(&info.tensor, text, sizeof text);
        assert_string_equal(text, want[i].text);
    }
    mica_problem_destroy(p);
}

static void descriptions_are_refused(void **state)
{
    (void)state;
    refuses("mha", "q is needed");
    refuses("mha q=f32:5x16", "rank 2");
    refuses("mha q=s8:2x5x16", "q is s8");
    refuses("mha q=f32:2x5x16 k=bf16:2x5x16", "k is bf16, it must be f32");
    refuses("mha q=bf16:2x5x16 wq=f32:16x16", "wq is f32, it must be bf16");
    refuses("mha q=bf16:2x5x16 bq=f16", "bq is f16, it must be bf16 or f32");
    refuses("mha q=bf16:2x5x16 lse=bf16:2x1x5", "lse is bf16, it must be f32");
    refuses("mha q=f32:2x5x16 heads=-1", "-1 heads");
    refuses("mha q=f32:2x5x16 heads=4 kv_heads=3", "4 heads, 3 of keys");
    refuses("mha q=f32:2x5x4096 heads=2", "head_dim is 2048");
    refuses("mha q=f32:2x5x16 value_dim=-3", "value_dim is -3");
    refuses("mha q=f32:2x5x16 heads=3", "16 columns of q are no multiple of 3 heads");
    refuses("mha q=f32:2x5x16 heads=2 wv=f32:15x16", "15 rows of wv");
    refuses("mha q=f32:2x5x16 k=f32:3x5x16", "q has 2 sequences, k 3");
    refuses("mha q=f32:2x5x16 v=f32:3x5x16", "dimension 0 of v is 3, it must be 2");
    refuses("mha q=f32:2x5x16 v=f32:2x6x16", "dimension 1 of v is 6, it must be 5");
    refuses("mha q=f32:2x5x16 wo=f32:16x15", "dimension 1 of wo is 15, it must be 16");
    refuses("mha q=f32:2x5x16 bo=f32:15", "dimension 0 of bo is 15");
    refuses("mha q=f32:2x5x16 mask=f32:1x1x5x5", "mask is f32");
    refuses("mha q=f32:2x5x16 mask=bool:2x2x5x5", "dimension 1 of mask is 2, it must be 1 or 1");
    refuses("mha q=f32:2x5x16 qh=f32:2x1x5x16:0x16x16x1", "qh");
    refuses("mha q=f32:2x5x16 dropout=1", "dropout is 1");
    refuses("mha q=f32:2x5x16 soft_cap=-1", "soft_cap is -1");
    refuses("mha q=f32:2x5x16 heads=2 slopes=f32:3", "dimension 0 of slopes is 3, it must be 2");
    refuses("mha q=f32:2x5x16 bias=s32:1x1x5x5", "bias is s32");
    refuses("mha pass=bwd_data q=f32:2x5x16 dbias=f32:1x1x5x5", "dbias without bias");
    refuses("mha pass=bwd_data q=f32:2x5x16 dsinks=f32:1", "dsinks without sinks");
    refuses("mha q=f32:2x5x16 rng=s64:2", "rng without dropout");
    refuses("mha q=f32:2x5x16 seq_k=s32:3", "dimension 0 of seq_k is 3, it must be 2");
    refuses("mha q=f32:2x5x16 cu_q=s32:3", "1 x H x rows x D");
    refuses("mha q=f32:1x5x16 cu_q=s32:3 cu_k=s32:3 bias=f32:1x1x5x5", "packed sequences");
    refuses("mha q=f32:2x5x16 causal=top_left window_right=2", "window_right is 2");
    refuses("mha q=f32:2x5x16 window_left=-1", "window_left is -1");
    refuses("mha q=f32:2x5x16 scale=inf", "scale");
    refuses("mha q=f32:1048576x536870912x0", "at most 2^48");
    refuses("mha q=f32:0x1099511627776x0 heads=1048576 head_dim=1", "at most 2^48");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_slopes),     cmocka_unit_test(one_key_takes_all),
        cmocka_unit_test(rows_that_see_nothing),    cmocka_unit_test(sums_of_nothing),
        cmocka_unit_test(rows_of_no_sequence),      cmocka_unit_test(dropout_is_attentions),
        cmocka_unit_test(copies_only_where_needed), cmocka_unit_test(dimensions_are_inferred),
        cmocka_unit_test(types_are_enough),         cmocka_unit_test(descriptions_are_refused),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
