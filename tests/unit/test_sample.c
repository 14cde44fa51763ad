/* SPDX-License-Identifier: Apache-2.0
 * sample: what processors of transformers leave, with its probabilities, and how often each is
 * drawn (tests/judges/sample.py); ties, infinities, NaN; the draw's words; rows by themselves;
 * refusals. */
#include "line.h"

enum { COLUMNS = 96, DRAWS = 20000 };

static const struct judged {
    const char *line;
    double left[COLUMNS]; /* log-probabilities; 1: left out */
} judged[] = {
#include "../judges/sample.h"
};

static void judge(const char *engine, const struct judged *j, double *const *values)
{
    char line[512];
    int times[COLUMNS] = {0}, freedom = -1;
    double chi = 0;
    snprintf(line, sizeof line,
             "sample x=f32:%dx%d:0x1 counts=s32:%dx%d:0x1 logprob=f32 logprobs=processed seed=5 %s",
             DRAWS, COLUMNS, DRAWS, COLUMNS, j->line);
    run_ok(engine, line, values);
    for (int r = 0; r < DRAWS; r++) {
        const int token = (int)values[MICA_SAMPLE_TOKEN][r];
        assert_in_range(token, 0, COLUMNS - 1);
        const double want = j->left[token], got = values[MICA_SAMPLE_LOGPROB][r];
        if (want > 0) fail_msg("%s: %d is drawn, it was left out", j->line, token);
        if (fabs(got - want) > 4e-6)
            fail_msg("%s: %.9g of %d, not %.9g", j->line, got, token, want);
        times[token]++;
    }
    for (int c = 0; c < COLUMNS; c++) {
        const double expected = j->left[c] > 0 ? 0 : DRAWS * exp(j->left[c]);
        if (expected < 5) continue;
        chi += (times[c] - expected) * (times[c] - expected) / expected;
        freedom++;
    }
    if (chi > freedom + 4 * sqrt(2 * freedom))
        fail_msg("%s: chi^2 %g of %d", j->line, chi, freedom);
}

static void as_transformers(void **unused)
{
    (void)unused;
    const size_t all = (size_t)DRAWS * COLUMNS;
    double *x = malloc(all * sizeof *x), *counts = malloc(all * sizeof *counts);
    double *token = malloc(DRAWS * sizeof *token), *logprob = malloc(DRAWS * sizeof *logprob);
    assert_true(x && counts && token && logprob);
    for (size_t i = 0; i < all; i++) {
        const int c = (int)(i % COLUMNS);
        x[i] = (c * 7919 + 13) % 96 / 8.0 - 6;
        counts[i] = c % 3 ? 0 : c % 5;
    }
    double *const values[MICA_MAX_ARGS] = {[MICA_SAMPLE_X] = x,
                                           [MICA_SAMPLE_COUNTS] = counts,
                                           [MICA_SAMPLE_TOKEN] = token,
                                           [MICA_SAMPLE_LOGPROB] = logprob};
    for (size_t j = 0; j < sizeof judged / sizeof *judged; j++) judge("cpu", &judged[j], values);
    judge("ref", &judged[9], values);
    free(x), free(counts), free(token), free(logprob);
}

/* Tokens of rows that are given one after the other. */
static void tokens(const char *engine, const char *line, const double *x, const double *more,
                   int arg, double *token)
{
    double *values[MICA_MAX_ARGS] = {
        [MICA_SAMPLE_X] = (double *)(uintptr_t)x, [MICA_SAMPLE_TOKEN] = token};
    if (more) values[arg] = (double *)(uintptr_t)more;
    run_ok(engine, line, values);
}

static void special(void **unused)
{
    (void)unused;
    static const char *const engines[] = {"cpu", "ref"};
    const double rows[] = {1,        3,         3,         2,         /* ties */
                           NAN,      -1,        NAN,       -INFINITY, /* one is left */
                           NAN,      -INFINITY, -INFINITY, NAN,       /* none is */
                           INFINITY, 5,         -INFINITY, INFINITY,  /* those alone */
                           -0.0,     0,         -0.0,      -1};
    for (int e = 0; e < 2; e++) {
        double token[5];
        tokens(engines[e], "sample x=f32:5x4 temperature=0", rows, NULL, 0, token);
        const double greedy[] = {1, 1, -1, 0, 0};
        assert_memory_equal(token, greedy, sizeof greedy);
        for (int seed = 0; seed < 40; seed++) {
            char line[128];
            snprintf(line, sizeof line, "sample x=f32:5x4 top_k=1 seed=%d", seed);
            tokens(engines[e], line, rows, NULL, 0, token);
            assert_memory_equal(token, greedy, sizeof greedy);
            snprintf(line, sizeof line, "sample x=f32:5x4 top_k=2 seed=%d", seed);
            tokens(engines[e], line, rows, NULL, 0, token);
            assert_true(token[0] == 1 || token[0] == 2);
            assert_true(token[1] == 1 && token[2] == -1);
            assert_true(token[3] == 0 || token[3] == 3);
            assert_true(token[4] == 0 || token[4] == 1);
        }
        /* half of the weight is that of one of two that are alike: the first */
        tokens(engines[e], "sample x=f32:1x2 top_p=0.5", (double[]){7, 7}, NULL, 0, token);
        assert_true(token[0] == 0);
        tokens(engines[e], "sample x=f32:1x3 mask=u32", (double[]){9, 1, 2}, (double[]){2},
               MICA_SAMPLE_MASK, token);
        assert_true(token[0] == 1);
    }
}

/* Equal weights: the token is u columns / 2^64; u of those words that random draws, too. */
static void words(void **unused)
{
    (void)unused;
    const double x[8] = {0};
    for (int i = 0; i < 64; i++) {
        char line[160];
        double w[2], token;
        const double rng[] = {i * 1000003, 2147483648.0};
        double *values[MICA_MAX_ARGS] = {
            [MICA_RANDOM_Y] = w, [MICA_RANDOM_RNG] = (double *)(uintptr_t)rng};
        snprintf(line, sizeof line, "random kind=bits y=u32:2 first=%d", 4 * i);
        run_ok("cpu", line, values);
        snprintf(line, sizeof line, "sample x=f32:1x8 seeds=s64 offset=%d", i);
        tokens("cpu", line, x, rng, MICA_SAMPLE_SEEDS, &token);
        assert_true(token == floor(w[1] / 0x1p29));
    }
}

/* A row's token is the same wherever the row stands. */
static void alone(void **unused)
{
    (void)unused;
    enum { ROWS = 12, WIDE = 300 };
    static double x[ROWS * WIDE];
    double seeds[ROWS], all[ROWS], one;
    for (int i = 0; i < ROWS * WIDE; i++) x[i] = (i * 7919 + 13) % 1009 / 64.0;
    for (int r = 0; r < ROWS; r++) seeds[r] = 1000 + r % 5;
    tokens("cpu", "sample x=f32:12x300 seeds=s64 top_p=0.95 offset=3", x, seeds, MICA_SAMPLE_SEEDS,
           all);
    for (int r = 0; r < ROWS; r++) {
        tokens("cpu", "sample x=f32:1x300 seeds=s64 top_p=0.95 offset=3", x + r * WIDE, seeds + r,
               MICA_SAMPLE_SEEDS, &one);
        assert_true(one == all[r]);
    }
}

static void refusals(void **unused)
{
    (void)unused;
    refuses("sample x=f32:5", "x has rank 1");
    refuses("sample x=f64:5x5", "x is f64");
    refuses("sample x=bf16:1x4194305", "x has 4194305 columns");
    refuses("sample x=f32:5x33 mask=u32:5x1", "mask");
    refuses("sample x=f32:5x33 top_ks=s32:4", "top_ks");
    refuses("sample x=f32:5x33 seeds=s32:5", "seeds is s32");
    refuses("sample x=f32:5x33 prompt=u32", "counts");
    refuses("sample x=f32:5x33 input=probabilities bias=f32", "bias is for input=logits");
    refuses("sample x=f32:5x33 input=probabilities counts=s32", "counts is for input=logits");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_transformers), cmocka_unit_test(special),  cmocka_unit_test(words),
        cmocka_unit_test(alone),           cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
