/* SPDX-License-Identifier: Apache-2.0
 * Rotations and appends: by hand, against extended precision, by their laws; what is dropped; what
 * descriptions are refused. */
#include "line.h"

#include "base/random.h"
#include "base/tensor.h"

enum { D = 8, S = 5, H = 2 };

/* ---- values ---- */

/* Position 1 and frequencies 1 and 1/100, by hand. */
static void a_quarter_by_hand(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double q[4] = {1, 2, 3, 4}, out[4], c[2] = {cos(1.0), cos(0.01)},
               s[2] = {sin(1.0), sin(0.01)};
        double positions = 1;
        double *values[MICA_MAX_ARGS] = {
            [MICA_ROPE_Q] = q, [MICA_ROPE_Q_OUT] = out, [MICA_ROPE_POSITIONS] = &positions};
        run_ok(engines[e], "rope q=f64:1x1x1x4 positions=s32:1", values);
        const double half[] = {c[0] - 3 * s[0], 2 * c[1] - 4 * s[1], 3 * c[0] + s[0],
                               4 * c[1] + 2 * s[1]};
        assert_int_equal(differences(out, half, 4, 1e-15, 1e-15), 0);
        run_ok(engines[e], "rope q=f64:1x1x1x4 positions=s32:1 pairing=interleaved", values);
        const double pairs[] = {c[0] - 2 * s[0], 2 * c[0] + s[0], 3 * c[1] - 4 * s[1],
                                4 * c[1] + 3 * s[1]};
        assert_int_equal(differences(out, pairs, 4, 1e-15, 1e-15), 0);
    }
}

/* cos and sin of p f, f being a short number: the product is exact in extended precision, and so is
 * its reduction by a multiple of 2 pi in three pieces, of which the first two have few digits. */
static void exact_turn(double p, double f, double *c, double *s)
{
    const long double first = 6.28125L,
                      second = 0x1.fb54442cp-10L; /* 2 pi = first + second + third */
    const long double third = 0x8.c234c4c6628b80ep-45L;
    long double x = (long double)p * (long double)f, n = rintl(x / 6.283185307179586477L);
    x = ((x - n * first) - n * second) - n * third;
    *c = (double)cosl(x);
    *s = (double)sinl(x);
}

/* Far positions are as good as near ones. */
static void angles_are_reduced_exactly(void **state)
{
    (void)state;
    static const double positions[] = {0, 1, -7, 1 << 20, 1048577, -2097143, 123456789, 2147483647};
    static const double frequencies[] = {1, 0.75, 0x1.23456p-3, 0x1.8p-17};
    for (int e = 0; e < 2; e++) {
        double q[8][8], out[8][8], want[8][8], p[8], f[4];
        memcpy(p, positions, sizeof p);
        memcpy(f, frequencies, sizeof f);
        for (int i = 0; i < 8; i++)
            for (int k = 0; k < 4; k++) {
                double c, s;
                exact_turn(p[i], f[k], &c, &s);
                q[i][k] = 1, q[i][k + 4] = 0;
                want[i][k] = c, want[i][k + 4] = s;
            }
        double *values[MICA_MAX_ARGS] = {[MICA_ROPE_Q] = &q[0][0],
                                         [MICA_ROPE_Q_OUT] = &out[0][0],
                                         [MICA_ROPE_POSITIONS] = p,
                                         [MICA_ROPE_INV_FREQ] = f};
        run_ok(engines[e], "rope q=f64:1x1x8x8 positions=s64:8 inv_freq=f32:4", values);
        assert_int_equal(differences(&out[0][0], &want[0][0], 64, 2e-15, 0), 0);
        run_ok(engines[e], "rope q=f32:1x1x8x8 positions=s32:8 inv_freq=f32:4", values);
        assert_int_equal(differences(&out[0][0], &want[0][0], 64, 0, 0x1.8p-23), 0);
    }
}

/* Position 2^40 of 96 columns: cos and sin of 2^40 10000^(-i/48), i = 1, 5, 17, 47, by mpmath with
 * 400 bits. With 10000^(-1/48) rounded to a double the angle is off by 2^40 times 2^-55, 3e-5; with
 * the exponent rounded before it, by 1e-4. */
static void frequencies_have_no_end(void **state)
{
    (void)state;
    static const struct {
        int pair;
        double c, s;
    } turns[] = {{1, -0x1.3d143536e899bp-1, 0x1.92004d402e2b3p-1},
                 {5, 0x1.c08814eb20db0p-2, -0x1.cc453a205df99p-1},
                 {17, 0x1.a70e3279e69b0p-2, 0x1.d2430213b9a1dp-1},
                 {47, 0x1.87c660aae080fp-1, -0x1.49a1777f278e0p-1}};
    for (int e = 0; e < 4; e++) {
        double q[96] = {0}, out[96], p[] = {0x1p40};
        for (int i = 0; i < 48; i++) q[i] = 1;
        double *values[MICA_MAX_ARGS] = {
            [MICA_ROPE_Q] = q, [MICA_ROPE_Q_OUT] = out, [MICA_ROPE_POSITIONS] = p};
        bool wide = e & 1;
        run_ok(engines[e / 2],
               wide ? "rope q=f64:1x1x1x96 positions=s64:1" : "rope q=f32:1x1x1x96 positions=s64:1",
               values);
        for (int i = 0; i < 4; i++) {
            double got[] = {out[turns[i].pair], out[turns[i].pair + 48]};
            assert_int_equal(differences(got, (double[]){turns[i].c, turns[i].s}, 2,
                                         wide ? 2e-15 : 0, wide ? 0 : 0x1.8p-23),
                             0);
        }
    }
}

/* ---- laws ---- */

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* Products of rotated rows depend on the distance of their positions only. */
static void products_see_distances(void **state)
{
    (void)state;
    double q[2][D], k[2][D], q_out[2][D], k_out[2][D], near[] = {10, 3}, far[] = {1000010, 1000003};
    wave(q[0], D, 1), wave(k[0], D, 2);
    memcpy(q[1], q[0], sizeof q[0]);
    memcpy(k[1], k[0], sizeof k[0]);
    double *values[MICA_MAX_ARGS] = {[MICA_ROPE_Q] = q[0],
                                     [MICA_ROPE_K] = k[0],
                                     [MICA_ROPE_Q_OUT] = q_out[0],
                                     [MICA_ROPE_K_OUT] = k_out[0],
                                     [MICA_ROPE_POSITIONS] = near};
    const char *line = "rope q=f64:1x1x2x8 k=f64:1x1x2x8 positions=s32:2";
    run_ok("cpu", line, values);
    double want = dot(q_out[0], k_out[1], D);
    assert_true(fabs(want - dot(q[0], k[0], D)) > 1e-3);
    values[MICA_ROPE_POSITIONS] = far;
    run_ok("cpu", line, values);
    assert_true(fabs(dot(q_out[0], k_out[1], D) - want) < 1e-14 * 20);
}

/* The gradient is the transposed matrix: x . R y = R' x . y, and R' R = factor^2. */
static void backward_is_the_transpose(void **state)
{
    (void)state;
    enum { N = H * S * D };
    for (int e = 0; e < 2; e++)
        for (int pairing = 0; pairing < 2; pairing++) {
            double x[N], y[N], forward[N], back[N], again[N], start = 77;
            char line[2][160];
            for (int pass = 0; pass < 2; pass++)
                snprintf(
                    line[pass], sizeof line[pass],
                    "rope pass=%s q=f64:1x2x5x8 rotary_dim=6 factor=1.5 start=s32:1 pairing=%s",
                    pass ? "bwd" : "fwd", pairing ? "interleaved" : "half");
            wave(x, N, 0.5), wave(y, N, 1.5);
            double *values[MICA_MAX_ARGS] = {[MICA_ROPE_START] = &start};
            values[MICA_ROPE_Q] = x, values[MICA_ROPE_Q_OUT] = forward;
            run_ok(engines[e], line[0], values);
            values[MICA_ROPE_Q] = y, values[MICA_ROPE_Q_OUT] = back;
            run_ok(engines[e], line[1], values);
            assert_true(fabs(dot(forward, y, N) - dot(x, back, N)) < 1e-12);
            values[MICA_ROPE_Q] = forward, values[MICA_ROPE_Q_OUT] = again;
            run_ok(engines[e], line[1], values);
            for (int i = 0; i < N; i++) x[i] *= i % D < 6 ? 2.25 : 1;
            assert_int_equal(differences(again, x, N, 1e-14, 0), 0);
        }
}

static void in_place_keeps_bits(void **state)
{
    (void)state;
    enum { N = H * S * D };
    static const char *const lines[] = {
        "rope q=f32:1x2x5x8 rotary_dim=6", "rope q=f32:1x2x5x8 pairing=interleaved",
        "rope q=bf16:1x2x5x8:bshd rotary_dim=4", "rope pass=bwd q=f64:1x2x5x8 factor=0.5"};
    static const int onto[] = {MICA_ROPE_Q_OUT, MICA_ROPE_Q};
    for (int e = 0; e < 2; e++)
        for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
            double x[N], apart[N], on[N];
            wave(x, N, 0.5);
            double *values[MICA_MAX_ARGS] = {[MICA_ROPE_Q] = x, [MICA_ROPE_Q_OUT] = apart};
            run_ok(engines[e], lines[i], values);
            values[MICA_ROPE_Q_OUT] = on;
            assert_int_equal(line_run(engines[e], lines[i], values, onto), MICA_OK);
            assert_memory_equal(apart, on, sizeof on);
        }
}

/* q and k of packed QKV in place, between each other in memory; what does touch is refused. */
static void packed_qkv_in_place(void **state)
{
    (void)state;
    enum { ROWS = 3, HEADS = 4, K_HEADS = 2, ROW = (HEADS + 2 * K_HEADS) * D };
    float qkv[ROWS * ROW], want[ROWS * ROW];
    for (int i = 0; i < ROWS * ROW; i++)
        qkv[i] = want[i] = (float)mica_random_normal(1, (uint64_t)i);
    mica_plan *both, *one;
    assert_int_equal(
        mica_plan_from_text(context,
                            "rope q=f32:1x4x3x8:192x8x64x1 k=f32:1x2x3x8:192x8x64x1 "
                            "q_out=f32:1x4x3x8:192x8x64x1 k_out=f32:1x2x3x8:192x8x64x1",
                            NULL, &both),
        MICA_OK);
    assert_int_equal(
        mica_plan_from_text(context, "rope q=f32:1x6x3x8:192x8x64x1 q_out=f32:1x6x3x8:192x8x64x1",
                            NULL, &one),
        MICA_OK);
    mica_run alone = {.args = {[MICA_ROPE_Q] = want, [MICA_ROPE_Q_OUT] = want}};
    assert_int_equal(mica_plan_run(one, &alone), MICA_OK);
    float *k = qkv + HEADS * D;
    mica_run run = {.args = {[MICA_ROPE_Q] = qkv,
                             [MICA_ROPE_K] = k,
                             [MICA_ROPE_Q_OUT] = qkv,
                             [MICA_ROPE_K_OUT] = k}};
    if (mica_plan_run(both, &run) != MICA_OK) fail_msg("%s", mica_error());
    assert_memory_equal(qkv, want, sizeof want);
    run.args[MICA_ROPE_K] = run.args[MICA_ROPE_K_OUT] = k - 1;
    assert_int_equal(mica_plan_run(both, &run), MICA_INVALID);
    assert_non_null(strstr(mica_error(), "overlaps"));
    run.args[MICA_ROPE_K] = run.args[MICA_ROPE_K_OUT] = qkv + ROW - 2 * D + 1;
    assert_int_equal(mica_plan_run(both, &run), MICA_INVALID);
    assert_memory_equal(qkv, want, sizeof want);
    mica_plan_destroy(both);
    mica_plan_destroy(one);
}

/* ---- appends ---- */

/* Sequence 1 has one page and room for one more row: its second one is dropped. Sequence 2's page
 * is absent, sequence 3 begins before the cache. */
static void rows_without_a_place_are_dropped(void **state)
{
    (void)state;
    enum { PAGE = 2, POOL = 4 };
    for (int e = 0; e < 2; e++) {
        double k[4][2][2], v[4][2], pool[POOL * PAGE][2], values_pool[POOL * PAGE];
        double seq_k[] = {1, 3, 0, -1}, pages[] = {2, 0, 3, 1, 7, -1, 1, 1};
        wave(&k[0][0][0], 16, 1), wave(&v[0][0], 8, 2);
        for (int i = 0; i < POOL * PAGE; i++) pool[i][0] = pool[i][1] = values_pool[i] = -100 - i;
        double *values[MICA_MAX_ARGS] = {
            [MICA_KV_APPEND_K] = &k[0][0][0],       [MICA_KV_APPEND_V] = &v[0][0],
            [MICA_KV_APPEND_K_CACHE] = &pool[0][0], [MICA_KV_APPEND_V_CACHE] = values_pool,
            [MICA_KV_APPEND_SEQ_K] = seq_k,         [MICA_KV_APPEND_PAGES] = pages};
        run_ok(engines[e],
               "kv_append k=f64:4x1x2x2 v=f64:4x1x2x1 k_cache=f64:4x1x2x2 pages=s32:4x2", values);
        /* rows (page, place): 0 -> (2,1), (0,0); 1 -> (1,1), none; 2 -> none; 3 -> none, (1,0) */
        const int from[POOL * PAGE][2] = {{0, 1},  {-1, 0}, {3, 1},  {1, 0},
                                          {-1, 0}, {0, 0},  {-1, 0}, {-1, 0}};
        for (int i = 0; i < POOL * PAGE; i++) {
            int n = from[i][0], row = from[i][1];
            for (int c = 0; c < 2; c++)
                assert_true(pool[i][c] == (n < 0 ? -100 - i : k[n][row][c]));
            assert_true(values_pool[i] == (n < 0 ? -100 - i : v[n][row]));
        }
    }
}

/* What is stored times the scale is what came, as near as the type allows; beyond it saturates. */
static void quantised_values_round_and_saturate(void **state)
{
    (void)state;
    static const char *const types[] = {"e4m3", "e5m2", "s8"};
    static const double most[] = {448, 57344, 127};
    for (int e = 0; e < 2; e++)
        for (int t = 0; t < 3; t++) {
            double k[] = {1e9, -1e9, 0.5 * most[t], -5, 0, INFINITY}, cache[6] = {0};
            double scale = 0.5, seq_k = 0;
            char line[128];
            snprintf(line, sizeof line, "kv_append k=f32:1x1x1x6 k_cache=%s:1x1x1x6 scale_k=f32:1",
                     types[t]);
            double *values[MICA_MAX_ARGS] = {[MICA_KV_APPEND_K] = k,
                                             [MICA_KV_APPEND_K_CACHE] = cache,
                                             [MICA_KV_APPEND_SEQ_K] = &seq_k,
                                             [MICA_KV_APPEND_SCALE_K] = &scale};
            run_ok(engines[e], line, values);
            double low = t == 2 ? -128 : -most[t];
            const double want[] = {most[t], low, most[t], -10, 0, most[t]};
            for (int i = 0; i < 6; i++)
                if (cache[i] != want[i]) fail_msg("%s: %g, not %g", types[t], cache[i], want[i]);
        }
}

/* What rope and then an append do, an append that rotates does. */
static void appending_rotates(void **state)
{
    (void)state;
    enum { N = S * D };
    double k[N], turned[N], plain[N], cache[N], start = 1234, seq_k = 0, positions[S];
    wave(k, N, 0.25);
    memset(plain, 0, sizeof plain);
    memset(cache, 0, sizeof cache);
    for (int i = 0; i < S; i++) positions[i] = 1234 + i;
    double *rope[MICA_MAX_ARGS] = {
        [MICA_ROPE_Q] = k, [MICA_ROPE_Q_OUT] = turned, [MICA_ROPE_START] = &start};
    run_ok("cpu", "rope q=f32:1x1x5x8 start=s32:1", rope);
    double *copy[MICA_MAX_ARGS] = {[MICA_KV_APPEND_K] = turned,
                                   [MICA_KV_APPEND_K_CACHE] = plain,
                                   [MICA_KV_APPEND_SEQ_K] = &seq_k};
    run_ok("cpu", "kv_append k=f32:1x1x5x8 k_cache=f32:1x1x5x8", copy);
    double *both[MICA_MAX_ARGS] = {[MICA_KV_APPEND_K] = k,
                                   [MICA_KV_APPEND_K_CACHE] = cache,
                                   [MICA_KV_APPEND_SEQ_K] = &seq_k,
                                   [MICA_KV_APPEND_POSITIONS] = positions};
    run_ok("cpu", "kv_append rope=half k=f32:1x1x5x8 k_cache=f32:1x1x5x8 positions=s32:5", both);
    assert_memory_equal(plain, cache, sizeof cache);
    assert_memory_equal(plain, turned, sizeof turned);
}

/* ---- descriptions ---- */

static void inference(void **state)
{
    (void)state;
    mica_problem *p;
    mica_arg_info info;
    assert_int_equal(mica_problem_from_text("rope q=bf16:2x4x7x64:bshd k=bf16:2x2x7x64", &p),
                     MICA_OK);
    mica_problem_arg(p, MICA_ROPE_Q_OUT, &info);
    assert_true(info.dir == MICA_OUT && info.tensor.strides[1] == 64);
    assert_int_equal(info.alias, MICA_ROPE_Q);
    mica_problem_arg(p, MICA_ROPE_COS, &info);
    assert_int_equal(info.dir, MICA_UNUSED);
    mica_problem_destroy(p);
    const char *line =
        "kv_append k=bf16:1x2x9x48 v=bf16:1x2x9x32 k_cache=e4m3:20x2x4x48 cu_q=s32:4 "
        "pages=s32:3x5";
    assert_int_equal(mica_problem_from_text(line, &p), MICA_OK);
    mica_problem_arg(p, MICA_KV_APPEND_V_CACHE, &info);
    assert_true(info.dir == MICA_INOUT && info.tensor.dtype == MICA_E4M3);
    assert_true(info.tensor.dims[0] == 20 && info.tensor.dims[3] == 32);
    mica_problem_arg(p, MICA_KV_APPEND_SEQ_K, &info);
    assert_true(info.tensor.dtype == MICA_S32 && info.tensor.dims[0] == 3);
    mica_problem_destroy(p);
}

static void refusals_name_value_and_rule(void **state)
{
    (void)state;
    refuses("rope", "q is needed");
    refuses("rope q=f32:3x4", "q has rank 2");
    refuses("rope q=e4m3:1x1x1x4", "q is e4m3, it must be f64, f32, f16 or bf16");
    refuses("rope q=f32:1x1x1x5", "rotary_dim is 5, it must be even and at most D, 5");
    refuses("rope q=f32:1x1x1x4 rotary_dim=6", "rotary_dim is 6");
    refuses("rope q=f32:1x1x1x4 rotary_dim=-2", "rotary_dim is -2");
    refuses("rope q=f32:1x1x1x4 theta=-1", "theta is -1");
    refuses("rope q=f32:1x1x1x4 theta=500 inv_freq=f32:2", "theta is 500, but inv_freq");
    refuses("rope q=f32:1x1x1x4 inv_freq=f64:2", "inv_freq is f64, it must be f32");
    refuses("rope q=f32:1x1x1x4 inv_freq=f32:4", "dimension 0 of inv_freq is 4, it must be 2");
    refuses("rope q=f32:1x1x1x4 cos=f32:3x2", "cos and sin");
    refuses("rope q=f32:1x1x1x4 cos=bf16:3x2 sin=bf16:3x2", "cos is bf16");
    refuses("rope q=bf16:1x1x1x4 cos=bf16:3x2 sin=f32:3x2", "cos is bf16, sin f32");
    refuses("rope q=f32:1x1x1x4 cos=f32:0x2 sin=f32:0x2", "cos has rank 2 and 0 rows");
    refuses("rope q=f32:1x1x1x4 cos=f32:3x2 sin=f32:4x2", "dimension 0 of sin is 4");
    refuses("rope q=f32:1x1x1x4 cos=f32:3x2 sin=f32:3x2 inv_freq=f32:2", "exclude each other");
    refuses("rope q=f32:2x1x3x4 positions=s32:2", "dimension 0 of positions is 2, it must be 3");
    refuses("rope q=f32:2x1x3x4 positions=f32:3", "positions is f32, it must be s32 or s64");
    refuses("rope q=f32:2x1x3x4 start=s32:3", "dimension 0 of start is 3, it must be 2");
    refuses("rope q=f32:2x1x3x4 start=s32:2 positions=s32:3", "positions and start");
    refuses("rope q=f32:2x1x3x4 cu=s32:3", "with cu q is 1 x H x rows x D, it begins with 2");
    refuses("rope q=f32:1x1x3x4 cu=s64:3", "cu is s64, it must be s32");
    refuses("rope q=f32:1x1x3x4 k=bf16:1x1x3x4", "k is bf16, q is f32; they must agree");
    refuses("rope q=f32:1x1x3x4 k=f32:1x1x3x6", "dimension 3 of k is 6, it must be 4");
    refuses("rope q=f32:1x1x3x4 k_out=f32:1x1x3x4", "k_out without k");
    refuses("rope q=f32:1x1x3x4 q_out=f32:1x1x3x4:0x0x0x1", "q_out");
    refuses("kv_append k=f32:1x1x3x4", "k_cache is needed");
    refuses("kv_append k=f32:1x1x3x4 k_cache=f64:1x1x3x4", "k_cache is f64");
    refuses("kv_append k=f64:1x1x3x4 k_cache=f32:1x1x3x4", "k_cache is f32, it must be f64");
    refuses("kv_append k=f32:2x1x3x4 k_cache=f32:3x1x3x4", "dimension 0 of k_cache is 3");
    refuses("kv_append k=f32:2x1x3x4 k_cache=f32:2x1x3x4 v_cache=f32", "v_cache");
    refuses("kv_append k=f32:2x1x3x4 v=bf16 k_cache=f32:2x1x3x4",
            "v is bf16, k is f32; they must agree");
    refuses("kv_append k=f32:2x1x3x4 k_cache=f32:2x1x3x4 scale_k=f32:1", "scale_k is for 8-bit");
    refuses("kv_append k=f32:2x2x3x4 k_cache=s8:2x2x3x4 scale_k=f32:3", "list of 1 or 2");
    refuses("kv_append k=f32:2x1x3x4 k_cache=f32:2x1x3x4 theta=5", "theta 5");
    refuses("kv_append k=f32:2x1x3x4 k_cache=f32:2x1x3x4 positions=s32:3",
            "positions without rope");
    refuses("kv_append k=f32:2x1x3x4 k_cache=f32:9x1x3x4 pages=s32:3x4",
            "dimension 0 of pages is 3");
    refuses("kv_append k=f32:2x1x3x4 k_cache=f32:9x1x3x4 pages=s64:2x4", "pages is s64");
    refuses("kv_append k=f32:1x1x3x4 k_cache=f32:2x1x3x4 cu_q=s32:3 seq_q=s32:2", "cu_q and seq_q");
    refuses("kv_append rope=half k=f32:2x1x3x5 k_cache=f32:2x1x3x5", "rotary_dim is 5");
    refuses("kv_append k=f32:0x1x1x1 k_cache=f32:0x1x281474976710656x0 pages=s32:0x281474976710656",
            "at most 2^48");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_quarter_by_hand),
        cmocka_unit_test(angles_are_reduced_exactly),
        cmocka_unit_test(frequencies_have_no_end),
        cmocka_unit_test(products_see_distances),
        cmocka_unit_test(backward_is_the_transpose),
        cmocka_unit_test(in_place_keeps_bits),
        cmocka_unit_test(packed_qkv_in_place),
        cmocka_unit_test(rows_without_a_place_are_dropped),
        cmocka_unit_test(quantised_values_round_and_saturate),
        cmocka_unit_test(appending_rotates),
        cmocka_unit_test(inference),
        cmocka_unit_test(refusals_name_value_and_rule),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
