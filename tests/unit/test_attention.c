/* SPDX-License-Identifier: Apache-2.0
 * Attention: known values, limits, refusals, gradients by finite differences, properties (V = 1,
 * prefixes, packed and paged keys, batches), Philox, equal bits for any number of threads. */
#include "line.h"

#include <float.h>
#include "ops/attention/attention.h"

#define VALUES(...)                                                                                \
    (double *[MICA_MAX_ARGS])                                                                      \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define Q       [MICA_ATTENTION_Q]
#define K       [MICA_ATTENTION_K]
#define V       [MICA_ATTENTION_V]
#define OUT     [MICA_ATTENTION_OUT]
#define LSE     [MICA_ATTENTION_LSE]
#define DOUT    [MICA_ATTENTION_DOUT]
#define DQ      [MICA_ATTENTION_DQ]
#define DK      [MICA_ATTENTION_DK]
#define DV      [MICA_ATTENTION_DV]
#define DBIAS   [MICA_ATTENTION_DBIAS]
#define DSINKS  [MICA_ATTENTION_DSINKS]
#define SLOPES  [MICA_ATTENTION_SLOPES]
#define BIAS    [MICA_ATTENTION_BIAS]
#define MASK    [MICA_ATTENTION_MASK]
#define SINKS   [MICA_ATTENTION_SINKS]
#define RNG     [MICA_ATTENTION_RNG]
#define CU_Q    [MICA_ATTENTION_CU_Q]
#define CU_K    [MICA_ATTENTION_CU_K]
#define SEQ_Q   [MICA_ATTENTION_SEQ_Q]
#define SEQ_K   [MICA_ATTENTION_SEQ_K]
#define PAGES   [MICA_ATTENTION_PAGES]
#define SCORES  [MICA_ATTENTION_SCORES]
#define WEIGHTS [MICA_ATTENTION_WEIGHTS]

/* ---- values that can be checked by hand ---- */

static void known_values(void **state)
{
    (void)state;
    /* Scores log 1, log 2, log 5: weights 1/8, 2/8, 5/8. */
    double q[] = {1, 0}, k[] = {log(1), 9, log(2), 9, log(5), 9}, v[] = {8, 16, 80};
    double out[1], lse[1];
    for (int e = 0; e < 2; e++) {
        const char *line = "attention q=f32:1x1x1x2 k=f32:1x1x3x2 v=f32:1x1x3x1 scale=1 lse=f32";
        run_ok(engines[e], line, VALUES(Q = q, K = k, V = v, OUT = out, LSE = lse));
        assert_int_equal(differences(out, &(double){1 + 4 + 50}, 1, 0, 1e-6), 0);
        assert_int_equal(differences(lse, &(double){log(8)}, 1, 0, 1e-6), 0);
        /* A sink of log 8 takes half of the weight; a third key that is masked, its own. */
        double sink[] = {log(8)}, mask[] = {1, 1, 0};
        line = "attention q=f32:1x1x1x2 k=f32:1x1x3x2 v=f32:1x1x3x1 scale=1 lse=f32 sinks=f32:1";
        run_ok(engines[e], line, VALUES(Q = q, K = k, V = v, OUT = out, LSE = lse, SINKS = sink));
        assert_int_equal(differences(out, &(double){27.5}, 1, 0, 1e-6), 0);
        assert_int_equal(differences(lse, &(double){log(16)}, 1, 0, 1e-6), 0);
        line = "attention q=f32:1x1x1x2 k=f32:1x1x3x2 v=f32:1x1x3x1 scale=1 mask=bool:1x1x1x3";
        run_ok(engines[e], line, VALUES(Q = q, K = k, V = v, OUT = out, MASK = mask));
        assert_int_equal(differences(out, &(double){40 / 3.0}, 1, 0, 1e-6), 0);
    }
    /* Of two queries and three keys: who sees whom. Values say which keys were seen, all alike. */
    double zeros[6] = {0}, which[] = {1, 10, 100}, seen[2];
    const struct {
        const char *words;
        double want[2];
    } rows[] = {{"causal=top_left", {1, 11 / 2.0}},
                {"causal=bottom_right", {11 / 2.0, 111 / 3.0}},
                {"window_left=1", {111 / 3.0, 110 / 2.0}},
                {"window_left=1 window_right=1", {1, 10}},
                {"window_left=1 window_right=1 align=bottom_right", {10, 100}},
                {"window_right=2 align=bottom_right", {111 / 3.0, 111 / 3.0}},
                {"causal=bottom_right window_left=2", {11 / 2.0, 110 / 2.0}},
                {"causal=top_left diagonal=1", {11 / 2.0, 111 / 3.0}},
                {"causal=bottom_right diagonal=-1", {1, 11 / 2.0}},
                {"window_left=1 window_right=1 diagonal=1", {10, 100}},
                {"causal=top_left diagonal=-1", {0, 1}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int e = 0; e < 2; e++) {
            char line[160];
            snprintf(line, sizeof line, "attention q=f32:1x1x2x1 k=f32:1x1x3x1 v=f32:1x1x3x1 %s",
                     rows[i].words);
            run_ok(engines[e], line, VALUES(Q = zeros, K = zeros, V = which, OUT = seen));
            assert_int_equal(differences(seen, rows[i].want, 2, 0, 1e-6), 0);
        }
    /* The comparison notices a diagonal that is one off. */
    assert_int_equal(differences(rows[1].want, rows[0].want, 2, 0, 1e-6), 2);
}

/* Scores and weights as results: those of known_values(), and of a query that sees two keys. */
static void known_weights(void **state)
{
    (void)state;
    const char *const by[] = {"compose", "ref"};
    double q[] = {1, 0}, k[] = {log(1), 9, log(2), 9, log(5), 9}, v[] = {8, 16, 80};
    double out[1], scores[3], weights[3], sink[] = {log(8)};
    const double all[] = {1 / 8.0, 2 / 8.0, 5 / 8.0}, half[] = {1 / 16.0, 2 / 16.0, 5 / 16.0};
    const double two[] = {1 / 3.0, 2 / 3.0, 0}, made[] = {0, log(2), -INFINITY};
    for (int e = 0; e < 2; e++) {
        const char *line =
            "attention q=f32:1x1x1x2 k=f32:1x1x3x2 v=f32:1x1x3x1 scale=1 weights=f32";
        run_ok(by[e], line, VALUES(Q = q, K = k, V = v, OUT = out, WEIGHTS = weights));
        assert_int_equal(differences(weights, all, 3, 0, 1e-6), 0);
        assert_int_equal(differences(weights, half, 3, 0, 1e-6), 3);
        line = "attention q=f32:1x1x1x2 k=f32:1x1x3x2 v=f32:1x1x3x1 scale=1 weights=f32 "
               "sinks=f32:1";
        run_ok(by[e], line,
               VALUES(Q = q, K = k, V = v, OUT = out, WEIGHTS = weights, SINKS = sink));
        assert_int_equal(differences(weights, half, 3, 0, 1e-6), 0);
        line = "attention q=f32:1x1x1x2 k=f32:1x1x3x2 v=f32:1x1x3x1 scale=1 weights=f32 "
               "scores=f32 causal=top_left diagonal=1 dropout=0.5";
        double rng[] = {3, 0};
        run_ok(
            by[e], line,
            VALUES(Q = q, K = k, V = v, OUT = out, WEIGHTS = weights, SCORES = scores, RNG = rng));
        assert_int_equal(differences(weights, two, 3, 0, 1e-6), 0);
        assert_int_equal(differences(scores, made, 2, 0, 1e-6), 0);
        assert_true(scores[2] == -INFINITY);
    }
}

/* Known answers of the generator's authors (Random123's kat_vectors). */
static void philox(void **state)
{
    (void)state;
    attention_dropout drop = {0};
    uint32_t word[4];
    attention_philox(&drop, 0, 0, 0, word);
    assert_memory_equal(word, ((uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}), 16);
    drop.key[0] = drop.key[1] = drop.offset = 0xffffffff;
    attention_philox(&drop, 0xffffffff, 0xffffffff, (int64_t)0xffffffff * 4, word);
    assert_memory_equal(word, ((uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}), 16);
    drop = (attention_dropout){.key = {0xa4093822, 0x299f31d0}, .offset = 0x03707344};
    attention_philox(&drop, 0x13198a2e, 0x85a308d3, (int64_t)0x243f6a88 * 4, word);
    assert_memory_equal(word, ((uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}), 16);
}

static void rows_without_keys(void **state)
{
    (void)state;
    double q[8], k[12], v[12], out[8], lse[4], mask[] = {0, 0, 0, 1, 0, 1};
    wave(q, 8, 0), wave(k, 12, 1), wave(v, 12, 2);
    for (int e = 0; e < 2; e++) {
        const char *line =
            "attention q=f32:1x2x2x2 k=f32:1x2x3x2 v=f32:1x2x3x2 lse=f32 mask=bool:1x1x2x3";
        run_ok(engines[e], line, VALUES(Q = q, K = k, V = v, OUT = out, LSE = lse, MASK = mask));
        assert_true(out[0] == 0 && out[1] == 0 && out[4] == 0 && lse[0] == -INFINITY);
        assert_true(out[2] != 0 && isfinite(lse[1]) && lse[2] == -INFINITY);
        double dq[8], dk[12], dv[12], w[8];
        wave(w, 8, 3);
        line = "attention pass=bwd q=f32:1x2x2x2 k=f32:1x2x3x2 v=f32:1x2x3x2 mask=bool:1x1x2x3";
        run_ok(engines[e], line,
               VALUES(Q = q, K = k, V = v, OUT = out, LSE = lse, DOUT = w, DQ = dq, DK = dk,
                      DV = dv, MASK = mask));
        assert_true(dq[0] == 0 && dq[1] == 0 && dq[2] != 0);
        /* The second key is seen by nobody. */
        assert_true(dk[2] == 0 && dk[3] == 0 && dv[2] == 0 && dk[0] != 0 && dv[4] != 0);
        for (int i = 0; i < 12; i++) assert_true(isfinite(dk[i]) && isfinite(dv[i]));
    }
}

/* A NaN is seen in the row that has it and in no other; so is an infinite score. Sinks of -inf are
 * none. */
static void not_a_number(void **state)
{
    (void)state;
    double k[] = {1, 2}, v[] = {3, 4}, bad[] = {NAN, INFINITY}, none[] = {-INFINITY}, out[2],
           lse[2];
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < 2; i++) {
            double q[] = {bad[i], 0};
            const char *line =
                "attention q=f32:1x1x2x1 k=f32:1x1x2x1 v=f32:1x1x2x1 scale=1 lse=f32 sinks=f32:1";
            run_ok(engines[e], line,
                   VALUES(Q = q, K = k, V = v, OUT = out, LSE = lse, SINKS = none));
            assert_true(isnan(out[0]) && isnan(lse[0]));
            assert_int_equal(differences(out + 1, &(double){3.5}, 1, 0, 1e-6), 0);
            assert_int_equal(differences(lse + 1, &(double){log(2)}, 1, 0, 1e-6), 0);
            /* nothing to see: no NaN either */
            line = "attention q=f32:1x1x2x1 k=f32:1x1x0x1 v=f32:1x1x0x1 lse=f32 sinks=f32:1";
            run_ok(engines[e], line,
                   VALUES(Q = q, K = k, V = v, OUT = out, LSE = lse, SINKS = none));
            assert_true(out[0] == 0 && out[1] == 0 && lse[0] == -INFINITY);
        }
}

/* A bias of -1e12 and less on both keys, values 1 and 3: of doubles 1 + -1e12 is the same for both
 * keys, so the weights exp(s - max) / sum are 1/2 and the result is 2. exp(s - lse) is not: lse = s
 * + log 2 is rounded to a multiple of 2^-13 at 1e12, of 2 at 1e16. In f32 that comes at -1e9
 * already, and the lowest number of the type, which masks are often written with, is no exception.
 */
static void large_scores_weigh_alike(void **state)
{
    (void)state;
    const double biases[] = {-1e12, -1e15, -1e16, -DBL_MAX, -1e9, -0x1.fffffep127, 0x1.fffffep127};
    for (int e = 0; e < 2; e++)
        for (size_t i = 0; i < 2 * sizeof biases / sizeof *biases; i++) {
            double b = biases[i / 2], bias[] = {b, b}, q[] = {1}, k[] = {1, 1}, v[] = {1, 3},
                   out[1];
            bool wide = i & 1;
            /* the CPU's loops compute in f32 */
            if (wide ? e == 0 : b == -DBL_MAX) continue;
            run_ok(engines[e],
                   wide ? "attention q=f64:1x1x1x1 k=f64:1x1x2x1 v=f64:1x1x2x1 bias=f64:1x1x1x2"
                        : "attention q=f32:1x1x1x1 k=f32:1x1x2x1 v=f32:1x1x2x1 bias=f32:1x1x1x2",
                   VALUES(Q = q, K = k, V = v, OUT = out, BIAS = bias));
            if (out[0] != 2) fail_msg("%s, bias %g: %.17g", engines[e], b, out[0]);
        }
}

/* A sink of +inf has all the weight: out 0, lse +inf, with keys and without; backward p of it is 1
 * and delta = sum dout out is 0, so nothing moves. No NaN. */
static void infinite_sinks(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++)
        for (int keys = 0; keys < 2; keys++) {
            double q[] = {1}, k[] = {1, 2}, v[] = {3, 4}, sink[] = {INFINITY}, out[1], lse[1];
            double one[] = {1}, dq[1], dk[2], dv[2], dsink[1];
            run_ok(engines[e],
                   keys ? "attention q=f32:1x1x1x1 k=f32:1x1x2x1 v=f32:1x1x2x1 lse=f32 sinks=f32:1"
                        : "attention q=f32:1x1x1x1 k=f32:1x1x0x1 v=f32:1x1x0x1 lse=f32 sinks=f32:1",
                   VALUES(Q = q, K = k, V = v, OUT = out, LSE = lse, SINKS = sink));
            assert_true(out[0] == 0 && lse[0] == INFINITY);
            if (!keys) continue;
            run_ok(engines[e],
                   "attention pass=bwd q=f32:1x1x1x1 k=f32:1x1x2x1 v=f32:1x1x2x1 sinks=f32:1 "
                   "dsinks=f32",
                   VALUES(Q = q, K = k, V = v, OUT = out, LSE = lse, SINKS = sink, DOUT = one,
                          DQ = dq, DK = dk, DV = dv, DSINKS = dsink));
            assert_true(dq[0] == 0 && dk[0] == 0 && dk[1] == 0 && dv[0] == 0 && dv[1] == 0);
            assert_true(dsink[0] == 0);
        }
}

static void refusals(void **state)
{
    (void)state;
    refuses("attention k=f32:1x1x1x1", "q is needed");
    refuses("attention q=f32:2x3x4", "q has rank 3");
    refuses("attention q=s32:1x1x1x1", "q is s32, it must be f64, f32");
    refuses("attention pass=bwd q=e4m3:1x1x1x1", "q is e4m3, it must be f64, f32, f16 or bf16");
    refuses("attention q=f32:1x1x1x8 k=f16", "k is f16, it must be of q's type");
    refuses("attention q=e4m3:1x1x1x8 k=s8", "k is s8, it must be e4m3 or e5m2");
    refuses("attention q=f32:1x1x1x8 k=e4m3 v=f32", "v is f32, k e4m3");
    refuses("attention q=f64:1x1x1x8 out=f32", "out is f32, it must be f64");
    refuses("attention q=f32:1x1x1x8 out=bf16", "out is bf16, it must be of q's type or f32");
    refuses("attention q=f32:1x1x1x8 lse=f64", "lse is f64, it must be f32");
    refuses("attention q=f32:1x4x1x8 k=f32:1x3x1x8", "q has 4 heads, k 3");
    refuses("attention q=f32:1x1x1x8 k=f32:1x1x1x9", "dimension 3 of k is 9, it must be 8");
    refuses("attention q=f32:1x1x1x1025", "heads of at most 1024");
    refuses("attention q=f32:2x1x1x8 k=f32:3x1x1x8", "q has 2 sequences, k 3");
    refuses("attention q=f32:1x1x4x8 soft_cap=-1", "soft_cap is -1");
    refuses("attention q=f32:1x1x4x8 dropout=1", "dropout is 1, it must be 0 or more and below 1");
    refuses("attention q=f32:1x1x4x8 rng=s64:2", "rng without dropout");
    refuses("attention q=f32:1x1x4x8 rng=s64:3 dropout=0.5", "dimension 0 of rng is 3");
    refuses("attention q=f32:1x1x4x8 window_left=-1", "window_left is -1");
    refuses("attention q=f32:1x1x4x8 causal=top_left window_right=2", "window_right is 2");
    refuses("attention q=f32:1x1x4x8 causal=top_left align=bottom_right", "contradict");
    refuses("attention q=f32:1x2x4x8 slopes=f32:3", "dimension 0 of slopes is 3, it must be 2");
    refuses("attention q=f32:1x2x4x8 bias=f32:1x2x3x4", "dimension 2 of bias is 3, it must be 1");
    refuses("attention q=f32:1x2x4x8 mask=f32:1x2x4x4", "mask is f32, it must be u8 or bool");
    refuses("attention pass=bwd q=f32:1x2x4x8 dbias=f32:1x2x4x4", "dbias without bias");
    refuses("attention pass=bwd q=f32:1x2x4x8 dsinks=f32:2", "dsinks without sinks");
    refuses("attention q=f32:1x2x4x8 scale_k=f32:1", "scale_k is for 8-bit types, k is f32");
    refuses("attention q=f32:2x2x4x8 cu_q=s32:3", "with cu_q q is 1 x H");
    refuses("attention q=f32:1x2x4x8 cu_q=s32:0 cu_k=s32:1", "list of N + 1");
    refuses("attention q=f32:1x2x4x8 cu_q=s64:3 cu_k=s32:3", "cu_q is s64, it must be s32");
    refuses("attention q=f32:1x2x4x8 cu_q=s32:3 cu_k=s32:4", "q has 2 sequences, k 3");
    refuses("attention q=f32:1x2x4x8 cu_q=s32:2 cu_k=s32:2 seq_q=s32:1", "exclude each other");
    refuses("attention q=f32:1x2x4x8 cu_q=s32:2 cu_k=s32:2 bias=f32:1x1x1x1",
            "bias is for batches");
    refuses("attention q=f32:2x2x4x8 seq_k=s32:3", "dimension 0 of seq_k is 3, it must be 2");
    refuses("attention q=f32:2x2x4x8 k=f32:9x2x4x8 pages=s32:2x4", "with pages seq_k is needed");
    refuses("attention pass=bwd q=f32:2x2x4x8 k=f32:9x2x4x8 pages=s32:2x4 seq_k=s32:2",
            "pages are for fwd");
    refuses("attention q=f32:1x2x4x8 max_q=-1", "max_q is -1");
    refuses("attention q=f32:1x2x4x8 diagonal=281474976710657", "diagonal is 281474976710657");
    refuses("attention q=f32:1x2x4x8 scores=bf16", "scores is bf16, it must be of q's type or f32");
    refuses("attention q=f64:1x2x4x8 weights=f32", "weights is f32, it must be f64");
    refuses("attention q=f32:1x2x4x8 weights=f32:1x2x4x5", "dimension 3 of weights is 5");
    refuses("attention q=f32:1x2x4x8 weights=f32 cu_q=s32:2 cu_k=s32:2", "weights are for batches");
    refuses("attention q=f32:1x2x4x8 k=e4m3 scores=f32", "scores are for q and k of 16 bits");
    refuses("attention pass=bwd q=f32:1x2x4x8 scores=f32", "scores");
}

/* Layout bshd: read, written, and the memory order of what is inferred. */
static void heads_inside(void **state)
{
    (void)state;
    mica_tensor t;
    char text[80];
    assert_int_equal(mica_tensor_from_text("f32:2x3x5x7:bshd", &t), MICA_OK);
    assert_true(t.strides[0] == 105 && t.strides[1] == 7 && t.strides[2] == 21 &&
                t.strides[3] == 1);
    mica_tensor_text(&t, text, sizeof text);
    assert_string_equal(text, "f32:2x3x5x7:bshd");
    assert_int_equal(mica_tensor_from_text("f32:2x3x5:bshd", &t), MICA_INVALID);
    mica_problem *p;
    mica_arg_info info;
    assert_int_equal(mica_problem_from_text("attention q=bf16:2x3x5x7:bshd v=f16", &p),
                     MICA_INVALID);
    assert_int_equal(mica_problem_from_text("attention q=bf16:2x3x5x7:bshd", &p), MICA_OK);
    assert_int_equal(mica_problem_arg(p, MICA_ATTENTION_OUT, &info), MICA_OK);
    assert_true(info.tensor.strides[1] == 7 && info.tensor.strides[2] == 21);
    mica_problem_text(p, text, sizeof text);
    assert_string_equal(text, "attention q=bf16:2x3x5x7:bshd");
    mica_problem_destroy(p);
}

/* ---- gradients ---- */

enum { B = 2, H = 4, HK = 2, SQ = 3, SK = 5, D = 3, DD = 2 };

typedef struct inputs {
    double q[B * H * SQ * D], k[B * HK * SK * D], v[B * HK * SK * DD];
    double bias[H * SQ * SK], sinks[H], slopes[H], rng[2];
    double out[B * H * SQ * DD], lse[B * H * SQ], w[B * H * SQ * DD];
} inputs;

static double weighted(const char *line, inputs *x, double *out)
{
    double sum = 0;
    run_ok("ref", line,
           VALUES(Q = x->q, K = x->k, V = x->v, BIAS = x->bias, SINKS = x->sinks,
                  SLOPES = x->slopes, RNG = x->rng, OUT = out, LSE = x->lse));
    for (int i = 0; i < B * H * SQ * DD; i++) sum += x->w[i] * out[i];
    return sum;
}

static void differentiate(const char *line, inputs *x, double *at, int n, double *want)
{
    const double eps = 1e-6;
    double other[B * H * SQ * DD];
    for (int i = 0; i < n; i++) {
        double old = at[i];
        at[i] = old + eps;
        double up = weighted(line, x, other);
        at[i] = old - eps;
        want[i] = (up - weighted(line, x, other)) / (2 * eps);
        at[i] = old;
    }
}

static void finite_differences(void **state)
{
    (void)state;
    static const char *const forms[] = {"", "causal=bottom_right", "window_left=2 soft_cap=1.5",
                                        "dropout=0.5",
                                        "scale=-0.9 causal=top_left dropout=0.25 soft_cap=2"};
    for (size_t form = 0; form < sizeof forms / sizeof *forms; form++) {
        inputs x;
        char fwd[400], bwd[400];
        static const char tensors[] = "q=f64:2x4x3x3 k=f64:2x2x5x3 v=f64:2x2x5x2 bias=f64:1x4x3x5 "
                                      "sinks=f64:4 slopes=f64:4";
        snprintf(fwd, sizeof fwd, "attention %s lse=f64 %s", tensors, forms[form]);
        snprintf(bwd, sizeof bwd, "attention pass=bwd %s dbias=f64 dsinks=f64 %s", tensors,
                 forms[form]);
        wave(x.q, B * H * SQ * D, 0.1), wave(x.k, B * HK * SK * D, 0.2);
        wave(x.v, B * HK * SK * DD, 0.3), wave(x.bias, H * SQ * SK, 0.4), wave(x.sinks, H, 0.5);
        wave(x.slopes, H, 0.6), wave(x.w, B * H * SQ * DD, 0.7);
        x.rng[0] = 12345, x.rng[1] = 6;
        double q[sizeof x.q / 8], k[sizeof x.k / 8], v[sizeof x.v / 8], bias[H * SQ * SK], sinks[H];
        differentiate(fwd, &x, x.q, sizeof q / 8, q);
        differentiate(fwd, &x, x.k, sizeof k / 8, k);
        differentiate(fwd, &x, x.v, sizeof v / 8, v);
        differentiate(fwd, &x, x.bias, H * SQ * SK, bias);
        differentiate(fwd, &x, x.sinks, H, sinks);
        weighted(fwd, &x, x.out);
        double dq[sizeof x.q / 8], dk[sizeof x.k / 8], dv[sizeof x.v / 8], dbias[H * SQ * SK];
        double dsinks[H];
        run_ok("ref", bwd,
               VALUES(Q = x.q, K = x.k, V = x.v, BIAS = x.bias, SINKS = x.sinks, SLOPES = x.slopes,
                      RNG = x.rng, OUT = x.out, LSE = x.lse, DOUT = x.w, DQ = dq, DK = dk, DV = dv,
                      DBIAS = dbias, DSINKS = dsinks));
        assert_int_equal(differences(dq, q, sizeof q / 8, 1e-5, 1e-3), 0);
        assert_int_equal(differences(dk, k, sizeof k / 8, 1e-5, 1e-3), 0);
        assert_int_equal(differences(dv, v, sizeof v / 8, 1e-5, 1e-3), 0);
        assert_int_equal(differences(dbias, bias, H * SQ * SK, 1e-5, 1e-3), 0);
        assert_int_equal(differences(dsinks, sinks, H, 1e-5, 1e-3), 0);
        /* Gradients that are a thousandth off are noticed. */
        for (int i = 0; i < H; i++) dsinks[i] = dsinks[i] * 1.002 + 1e-4;
        assert_true(differences(dsinks, sinks, H, 1e-5, 1e-3) > 0);
    }
}

/* ---- properties ---- */

/* V = 1 gives 1, whatever is seen: weights sum to one. */
static void weights_sum_to_one(void **state)
{
    (void)state;
    enum { N = 3 * 70 * 8 };
    double q[N], k[N], v[N], out[N], slopes[3];
    wave(q, N, 0), wave(k, N, 1), wave(slopes, 3, 2);
    for (int i = 0; i < N; i++) q[i] *= 4, v[i] = 1;
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e], "attention q=f32:1x3x70x8 causal=top_left window_left=40 slopes=f32:3",
               VALUES(Q = q, K = k, V = v, OUT = out, SLOPES = slopes));
        for (int i = 0; i < N; i++) assert_true(fabs(out[i] - 1) < 1e-6);
    }
}

/* Bits of a row depend neither on later rows nor on the batch it stands in. */
static void rows_stand_alone(void **state)
{
    (void)state;
    enum { LONG = 2 * 2 * 300 * 16, ROW = 16 };
    double *q = malloc(3 * LONG * sizeof *q), *out = malloc(2 * LONG * sizeof *out);
    assert_true(q && out);
    double *k = q + LONG, *v = k + LONG, *part = out + LONG;
    wave(q, 3 * LONG, 0);
    run_ok("cpu", "attention q=f32:2x2x300x16 causal=top_left",
           VALUES(Q = q, K = k, V = v, OUT = out));
    int at = 300 * ROW; /* head 1 of item 0, its first 130 rows */
    run_ok("cpu", "attention q=f32:1x1x130x16 causal=top_left",
           VALUES(Q = q + at, K = k + at, V = v + at, OUT = part));
    assert_memory_equal(part, out + at, 130 * ROW * sizeof *part);
    free(q), free(out);
}

/* Sequences packed one behind the other, in pages, and padded: the same bits. */
static void packed_paged_padded(void **state)
{
    (void)state;
    enum { D8 = 8, T = 14, P = 6, PAGE = 4 };
    double q[T * D8], k[T * D8], v[T * D8], packed[T * D8], cu[] = {0, 5, 5, 14};
    wave(q, T * D8, 0), wave(k, T * D8, 1), wave(v, T * D8, 2);
    run_ok("cpu", "attention q=f32:1x1x14x8 cu_q=s32:4 cu_k=s32:4 causal=bottom_right",
           VALUES(Q = q, K = k, V = v, OUT = packed, CU_Q = cu, CU_K = cu));
    /* Sequence 0 in pages 4, 1; sequence 2 in pages 5, 0, 3; sequence 1 has none. */
    const int page[3][3] = {{4, 1, -1}, {-1, 77, -1}, {5, 0, 3}};
    double pool_k[P * PAGE * D8], pool_v[P * PAGE * D8], pages[9], seq[] = {5, 0, 9};
    for (int i = 0; i < P * PAGE * D8; i++) pool_k[i] = pool_v[i] = NAN;
    for (int n = 0; n < 3; n++) {
        for (int p = 0; p < 3; p++) pages[n * 3 + p] = page[n][p];
        for (int j = 0; j < (int)seq[n]; j++)
            for (int c = 0; c < D8; c++) {
                int to = (page[n][j / PAGE] * PAGE + j % PAGE) * D8 + c;
                pool_k[to] = k[((int)cu[n] + j) * D8 + c];
                pool_v[to] = v[((int)cu[n] + j) * D8 + c];
            }
    }
    double paged[T * D8], padded[3 * 9 * D8], out[3 * 9 * D8], many_k[3 * 9 * D8],
        many_v[3 * 9 * D8];
    run_ok(
        "cpu",
        "attention q=f32:1x1x14x8 k=f32:6x1x4x8 pages=s32:3x3 seq_k=s32:3 cu_q=s32:4 "
        "causal=bottom_right",
        VALUES(Q = q, K = pool_k, V = pool_v, OUT = paged, PAGES = pages, SEQ_K = seq, CU_Q = cu));
    assert_memory_equal(paged, packed, sizeof packed);
    for (int i = 0; i < 3 * 9 * D8; i++) padded[i] = many_k[i] = many_v[i] = NAN;
    for (int n = 0; n < 3; n++) {
        size_t bytes = (size_t)seq[n] * D8 * sizeof *q;
        memcpy(padded + n * 9 * D8, q + (int)cu[n] * D8, bytes);
        memcpy(many_k + n * 9 * D8, k + (int)cu[n] * D8, bytes);
        memcpy(many_v + n * 9 * D8, v + (int)cu[n] * D8, bytes);
    }
    run_ok("cpu", "attention q=f32:3x1x9x8 seq_q=s32:3 seq_k=s32:3 causal=bottom_right",
           VALUES(Q = padded, K = many_k, V = many_v, OUT = out, SEQ_Q = seq, SEQ_K = seq));
    for (int n = 0; n < 3; n++)
        for (int i = 0; i < 9 * D8; i++)
            assert_true(out[n * 9 * D8 + i] ==
                        (i < (int)seq[n] * D8 ? packed[(int)cu[n] * D8 + i] : 0));
}

/* How many weights dropout drops, and that another seed drops others. */
static void dropout_rate(void **state)
{
    (void)state;
    enum { S = 200, N = S * S };
    double *v = calloc(N, sizeof *v), *out = calloc(N, sizeof *out),
           *zeros = calloc(N, sizeof *out);
    double *other = calloc(N, sizeof *other);
    assert_true(v && out && zeros && other);
    /* Equal scores and V = 1: out shows which weights were kept. */
    for (int i = 0; i < S; i++) v[i * S + i] = 1;
    const char *line = "attention q=f32:1x1x200x4 v=f32:1x1x200x200 dropout=0.25";
    double rng[] = {7, 1}, next[] = {7, 2};
    run_ok("cpu", line, VALUES(Q = zeros, K = zeros, V = v, OUT = out, RNG = rng));
    run_ok("cpu", line, VALUES(Q = zeros, K = zeros, V = v, OUT = other, RNG = next));
    int dropped = 0, differ = 0;
    for (int i = 0; i < N; i++) {
        dropped += out[i] == 0;
        differ += (out[i] == 0) != (other[i] == 0);
        assert_true(out[i] == 0 || fabs(out[i] - 1 / (0.75 * S)) < 1e-7);
    }
    /* Six standard deviations of 40000 draws. */
    assert_true(abs(dropped - N / 4) < 520);
    assert_true(abs(differ - 3 * N / 8) < 582);
    free(v), free(out), free(zeros), free(other);
}

static void threads_do_not_show(void **state)
{
    (void)state;
    const char *const lines[] = {"attention q=f32:2x4x170x16 k=f32:2x2x200x16 v=f32:2x2x200x16",
                                 "attention q=f32:1x2x1x16 k=f32:1x1x6000x16 v=f32:1x1x6000x16",
                                 "attention q=f32:1x40x1x16 k=f32:1x1x6000x16 v=f32:1x1x6000x16"};
    const size_t results[] = {2 * 4 * 170 * 16, 2 * 16, 40 * 16};
    enum { N = 6000 * 16 };
    double *q = malloc(5 * N * sizeof *q);
    assert_non_null(q);
    double *k = q + N, *v = k + N, *one = v + N, *many = one + N;
    wave(q, 5 * N, 1);
    int before = omp_get_max_threads();
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        omp_set_num_threads(1);
        run_ok("cpu", lines[i], VALUES(Q = q, K = k, V = v, OUT = one));
        omp_set_num_threads(5);
        run_ok("cpu", lines[i], VALUES(Q = q, K = k, V = v, OUT = many));
        assert_memory_equal(one, many, results[i] * sizeof *one);
    }
    omp_set_num_threads(before);
    free(q);
}

/* Backward too, with everything that is summed over threads' work. */
static void threads_do_not_show_backward(void **state)
{
    (void)state;
    enum { N = 2 * 4 * 170 * 16, M = 2 * 2 * 200 * 16, R = 2 * 4 * 170 };
    const char *line = "attention pass=bwd q=f32:2x4x170x16 k=f32:2x2x200x16 sinks=f32:4 "
                       "dsinks=f32 bias=f32:1x1x170x200 dbias=f32";
    double *x = malloc((3 * N + 2 * M + 2 * R + 34000) * sizeof *x), *g[2], sinks[4];
    assert_non_null(x);
    wave(x, 3 * N + 2 * M + 2 * R + 34000, 1), wave(sinks, 4, 2);
    double *q = x, *out = q + N, *dout = out + N, *k = dout + N, *v = k + M, *lse = v + M;
    double *bias = lse + R;
    for (int i = 0; i < R; i++) lse[i] = 7;
    int before = omp_get_max_threads();
    for (int t = 0; t < 2; t++) {
        g[t] = calloc(N + 2 * M + 34000 + 4, sizeof *g[t]);
        assert_non_null(g[t]);
        omp_set_num_threads(t ? 5 : 1);
        run_ok("cpu", line,
               VALUES(Q = q, K = k, V = v, OUT = out, LSE = lse, DOUT = dout, BIAS = bias,
                      SINKS = sinks, DQ = g[t], DK = g[t] + N, DV = g[t] + N + M,
                      DBIAS = g[t] + N + 2 * M, DSINKS = g[t] + N + 2 * M + 34000));
    }
    omp_set_num_threads(before);
    assert_memory_equal(g[0], g[1], (N + 2 * M + 34000 + 4) * sizeof *x);
    free(x), free(g[0]), free(g[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_values),
        cmocka_unit_test(known_weights),
        cmocka_unit_test(philox),
        cmocka_unit_test(rows_without_keys),
        cmocka_unit_test(not_a_number),
        cmocka_unit_test(large_scores_weigh_alike),
        cmocka_unit_test(infinite_sinks),
        cmocka_unit_test(refusals),
        cmocka_unit_test(heads_inside),
        cmocka_unit_test(finite_differences),
        cmocka_unit_test(weights_sum_to_one),
        cmocka_unit_test(rows_stand_alone),
        cmocka_unit_test(packed_paged_padded),
        cmocka_unit_test(dropout_rate),
        cmocka_unit_test(threads_do_not_show),
        cmocka_unit_test(threads_do_not_show_backward),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
