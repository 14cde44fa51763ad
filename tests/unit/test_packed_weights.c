/* SPDX-License-Identifier: Apache-2.0
 * dequantize_weights and repack_weights: words at random, bit for bit as the packages that define
 * the layouts have them (tests/judges/packed_weights.py), also through quantized_gemm; act-order;
 * words by hand; shapes; refusals. */
#include "line.h"

enum { SETS = 3, ARGS = 8 };

static const struct judged {
    const char *line;
    uint64_t digest[SETS];
    uint16_t first[4]; /* of the first set */
} judged[] = {
#include "../judges/packed_weights.h"
};

/* splitmix64 (Steele, Lea, Flood 2014), as the judge has it. */
static uint64_t bits_of(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static uint64_t digest_of(const void *data, size_t bytes)
{
    uint64_t h = 0xcbf29ce484222325;
    for (size_t i = 0; i < bytes; i++) h = (h ^ ((const uint8_t *)data)[i]) * 0x100000001b3;
    return h;
}

static size_t bytes_of(const mica_tensor *t)
{
    return (size_t)(mica_tensor_count(t) * mica_dtype_bits(t->dtype) + 7) / 8;
}

/* Words of 3 bits whose highest is 0: word w of a row. */
static uint32_t below_four(int64_t w)
{
    uint32_t mask = 0;
    for (int64_t b = 0; b < 32; b++)
        if ((32 * w + b) % 3 != 2) mask |= 1u << b;
    return mask;
}

/* Tensors in the order of memory as the judge has them: seeds are 1 for qweight, 2 for qzeros, 3
 * for scales, 4 for g_idx, and ten more for each set. */
static void *filled(const mica_dequantize_weights_desc *d, int arg, const mica_tensor *t, int set)
{
    static const uint64_t seeds[] = {[MICA_DEQUANTIZE_WEIGHTS_QWEIGHT] = 1,
                                     [MICA_DEQUANTIZE_WEIGHTS_QZEROS] = 2,
                                     [MICA_DEQUANTIZE_WEIGHTS_SCALES] = 3,
                                     [MICA_DEQUANTIZE_WEIGHTS_G_IDX] = 4};
    void *data = malloc(bytes_of(t) + 1);
    const int64_t count = mica_tensor_count(t);
    for (int64_t i = 0; i < count; i++) {
        const uint64_t bits = bits_of(seeds[arg] + 10 * (uint64_t)set, (uint64_t)i);
        uint32_t word = (uint32_t)(bits >> 32);
        if (arg == MICA_DEQUANTIZE_WEIGHTS_SCALES) {
            ((uint16_t *)data)[i] = (uint16_t)(0x2000 + bits % 0x1800);
            continue;
        }
        if (arg == MICA_DEQUANTIZE_WEIGHTS_G_IDX) word = (uint32_t)(bits % 4);
        if (arg == MICA_DEQUANTIZE_WEIGHTS_QZEROS && d->format == MICA_PACKED_GPTQ && d->bits == 3)
            word &= below_four(i % t->dims[1]);
        ((uint32_t *)data)[i] = word;
    }
    return data;
}

/* A problem line with its resolved descriptor and memory for its arguments. */
typedef struct problem {
    mica_problem *p;
    mica_plan *plan;
    mica_tensor t[ARGS];
    mica_run run;
} problem;

static void open_problem(const char *engine, const char *line, problem *q)
{
    mica_arg_info info;
    memset(q, 0, sizeof *q);
    if (mica_problem_from_text(line, &q->p) != MICA_OK) fail_msg("%s: %s", line, mica_error());
    mica_options options = {.engine = engine};
    assert_int_equal(mica_plan_problem(context, q->p, &options, &q->plan), MICA_OK);
    assert_int_equal(mica_plan_workspace(q->plan), 0);
    for (int a = 0; mica_problem_arg(q->p, a, &info) == MICA_OK; a++) {
        if (info.dir == MICA_UNUSED) continue;
        q->t[a] = info.tensor;
        if (info.dir == MICA_OUT) {
            q->run.args[a] = malloc(bytes_of(&q->t[a]) + 1);
            memset(q->run.args[a], 0xa5, bytes_of(&q->t[a]) + 1);
        }
    }
}

static void run_problem(problem *q)
{
    if (mica_plan_run(q->plan, &q->run) != MICA_OK) fail_msg("%s", mica_error());
}

static void close_problem(problem *q, const int *not_mine)
{
    for (int a = 0; a < ARGS; a++) {
        bool mine = true;
        for (const int *n = not_mine; n && *n >= 0; n++) mine = mine && *n != a;
        if (mine) free(q->run.args[a]);
    }
    mica_plan_destroy(q->plan);
    mica_problem_destroy(q->p);
}

static mica_dequantize_weights_desc head_of(const char *line)
{
    mica_dequantize_weights_desc d = {0};
    d.format = strstr(line, "marlin")    ? MICA_PACKED_MARLIN
               : strstr(line, "awq")     ? MICA_PACKED_AWQ
               : strstr(line, "gptq_v2") ? MICA_PACKED_GPTQ_V2
                                         : MICA_PACKED_GPTQ;
    d.bits = strstr(line, "bits=")[5] - '0';
    return d;
}

static void dequantized(const char *engine, const char *rest, int set, problem *q)
{
    char line[256];
    const mica_dequantize_weights_desc d = head_of(rest);
    snprintf(line, sizeof line, "dequantize_weights %s", rest);
    open_problem(engine, line, q);
    for (int a = 0; a < MICA_DEQUANTIZE_WEIGHTS_Y; a++)
        if (q->t[a].rank) q->run.args[a] = filled(&d, a, &q->t[a], set);
    run_problem(q);
}

static void as_packages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
        for (int e = 0; e < 2; e++)
            for (int set = 0; set < SETS; set++) {
                const struct judged *j = &judged[i];
                problem q;
                dequantized(engines[e], j->line, set, &q);
                const uint16_t *y = q.run.args[MICA_DEQUANTIZE_WEIGHTS_Y];
                if (set == 0 && memcmp(y, j->first, sizeof j->first) != 0)
                    fail_msg("%s, %s: begins with %04x %04x", j->line, engines[e], y[0], y[1]);
                if (digest_of(y, bytes_of(&q.t[MICA_DEQUANTIZE_WEIGHTS_Y])) != j->digest[set])
                    fail_msg("%s, %s: set %d is read otherwise", j->line, engines[e], set);
                close_problem(&q, NULL);
            }
}

/* Every format and number of bits is judged, and g_idx. */
static void all_judged(void **state)
{
    (void)state;
    int found[4][9] = {{0}}, ordered = 0;
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++) {
        const mica_dequantize_weights_desc d = head_of(judged[i].line);
        found[d.format][d.bits]++;
        ordered += strstr(judged[i].line, "g_idx") != NULL;
    }
    for (int bits = 2; bits <= 8; bits = bits == 4 ? 8 : bits + 1) {
        assert_int_equal(found[MICA_PACKED_GPTQ][bits], 1);
        assert_int_equal(found[MICA_PACKED_GPTQ_V2][bits], bits == 3 ? 2 : 4);
    }
    assert_int_equal(found[MICA_PACKED_AWQ][4], 2);
    assert_int_equal(found[MICA_PACKED_MARLIN][4], 4);
    assert_int_equal(found[MICA_PACKED_MARLIN][8], 4);
    assert_int_equal(ordered, 4);
}

/* The same words repacked: "qweight=... scales=... qzeros=..." without group and g_idx. */
static void repacked(const char *engine, const char *rest, const problem *from, int32_t *order,
                     problem *q)
{
    char line[512], text[3][96], *at = line;
    const mica_dequantize_weights_desc d = head_of(rest);
    static const char *const names[] = {"gptq", "gptq_v2", "awq", "marlin"};
    for (int a = 0; a < 3; a++) mica_tensor_text(&from->t[a], text[a], sizeof text[a]);
    at += sprintf(at, "repack_weights format=%s bits=%d qweight=%s scales=%s", names[d.format],
                  (int)d.bits, text[0], text[1]);
    if (from->t[MICA_DEQUANTIZE_WEIGHTS_QZEROS].rank) at += sprintf(at, " qzeros=%s", text[2]);
    if (order) sprintf(at, " order=s32:%d", (int)from->t[MICA_DEQUANTIZE_WEIGHTS_Y].dims[0]);
    open_problem(engine, line, q);
    q->run.args[MICA_REPACK_WEIGHTS_QWEIGHT] = from->run.args[MICA_DEQUANTIZE_WEIGHTS_QWEIGHT];
    q->run.args[MICA_REPACK_WEIGHTS_SCALES] = from->run.args[MICA_DEQUANTIZE_WEIGHTS_SCALES];
    q->run.args[MICA_REPACK_WEIGHTS_QZEROS] = from->run.args[MICA_DEQUANTIZE_WEIGHTS_QZEROS];
    q->run.args[MICA_REPACK_WEIGHTS_ORDER] = order;
    run_problem(q);
}
static const int not_of_repack[] = {MICA_REPACK_WEIGHTS_QWEIGHT, MICA_REPACK_WEIGHTS_SCALES,
                                    MICA_REPACK_WEIGHTS_QZEROS, MICA_REPACK_WEIGHTS_ORDER, -1};

/* The weights that quantized_gemm multiplies with: products of unit vectors, whose element is at
 * column order^-1 of w, as y lies. */
static void *through_gemm(const char *engine, const problem *r, const mica_tensor *y, int64_t group,
                          const int32_t *order)
{
    char line[512], text[3][96];
    problem q;
    const mica_tensor *w = &r->t[MICA_REPACK_WEIGHTS_W];
    const int64_t k = w->dims[1];
    mica_tensor_text(w, text[0], sizeof text[0]);
    mica_tensor_text(&r->t[MICA_REPACK_WEIGHTS_W_SCALES], text[1], sizeof text[1]);
    mica_tensor_text(y, text[2], sizeof text[2]);
    const char *zeros = !r->t[MICA_REPACK_WEIGHTS_W_ZEROS].rank ? ""
                        : w->dtype == MICA_U8                   ? " zeros=u8"
                                                                : " zeros=u4";
    snprintf(line, sizeof line, "quantized_gemm x=f32:%dx%d w=%s scales=%s group=%d y=%s%s", (int)k,
             (int)k, text[0], text[1], (int)group, text[2], zeros);
    open_problem(engine, line, &q);
    float *x = calloc((size_t)(k * k), sizeof *x);
    for (int64_t j = 0; j < k; j++) x[(order ? order[j] : j) * k + j] = 1;
    q.run.args[MICA_QUANTIZED_GEMM_X] = x;
    q.run.args[MICA_QUANTIZED_GEMM_W] = r->run.args[MICA_REPACK_WEIGHTS_W];
    q.run.args[MICA_QUANTIZED_GEMM_SCALES] = r->run.args[MICA_REPACK_WEIGHTS_W_SCALES];
    q.run.args[MICA_QUANTIZED_GEMM_ZEROS] = r->run.args[MICA_REPACK_WEIGHTS_W_ZEROS];
    run_problem(&q);
    void *found = q.run.args[MICA_QUANTIZED_GEMM_Y];
    close_problem(&q, (int[]){MICA_QUANTIZED_GEMM_W, MICA_QUANTIZED_GEMM_SCALES,
                              MICA_QUANTIZED_GEMM_ZEROS, MICA_QUANTIZED_GEMM_Y, -1});
    return found;
}

/* What the packages have, once repacked and multiplied with. */
static void nothing_is_lost(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
        for (int e = 0; e < 2; e++) {
            const struct judged *j = &judged[i];
            const char *group = strstr(j->line, "group=");
            problem q, r;
            if (!group) continue;
            dequantized(engines[e], j->line, 1, &q);
            repacked(engines[e], j->line, &q, NULL, &r);
            const mica_tensor *t = &q.t[MICA_DEQUANTIZE_WEIGHTS_Y];
            void *y = through_gemm(engines[e], &r, t, atoi(group + 6), NULL);
            if (digest_of(y, bytes_of(t)) != j->digest[1])
                fail_msg("%s, %s: other weights once repacked", j->line, engines[e]);
            free(y);
            close_problem(&r, not_of_repack);
            close_problem(&q, NULL);
        }
}

/* Groups of 32 rows each, in any order: sorted, and x gathered by the same order. */
static void act_order(void **state)
{
    (void)state;
    enum { K = 128, N = 40, GROUP = 32 };
    static const char line[] =
        "format=gptq bits=4 qweight=s32:16x40 scales=f16:4x40 qzeros=s32:4x5 g_idx=s32:128";
    int32_t g_idx[K], order[K];
    for (int k = 0; k < K; k++) g_idx[k] = k * 37 % K / GROUP;
    for (int g = 0, j = 0; g < K / GROUP; g++)
        for (int k = 0; k < K; k++)
            if (g_idx[k] == g) order[j++] = k;
    for (int e = 0; e < 2; e++) {
        problem q, r;
        dequantized(engines[e], line, 0, &q);
        memcpy(q.run.args[MICA_DEQUANTIZE_WEIGHTS_G_IDX], g_idx, sizeof g_idx);
        run_problem(&q);
        repacked(engines[e], line, &q, order, &r);
        void *y = through_gemm(engines[e], &r, &q.t[MICA_DEQUANTIZE_WEIGHTS_Y], GROUP, order);
        assert_memory_equal(y, q.run.args[MICA_DEQUANTIZE_WEIGHTS_Y], (size_t)K * N * 2);
        free(y);
        close_problem(&r, not_of_repack);
        close_problem(&q, NULL);
    }
}

/* One word of each packing, codes 0 to 7 or what they are. */
static void by_hand(void **state)
{
    (void)state;
    static const int columns[] = {0, 2, 4, 6, 1, 3, 5, 7};
    double words[] = {0x76543210}, scales[8] = {1, 1, 1, 1, 1, 1, 1, 1}, y[8], w[8], z[8], s[8];
    double zeros[] = {0x0000000f}, order[] = {7, 6, 5, 4, 3, 2, -1, 8}, g_idx[8] = {0};
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e], "dequantize_weights format=gptq qweight=s32:1x1 scales=f32:1x1",
               (double *[]){words, scales, NULL, NULL, y});
        for (int k = 0; k < 8; k++) assert_true(y[k] == k - 8);
        /* a zero point stored as 15 is 0; as it stands it is 15 */
        run_ok(engines[e],
               "dequantize_weights format=gptq qweight=s32:1x1 scales=f32:1x1 qzeros=s32:1x1",
               (double *[]){words, scales, zeros, NULL, y});
        for (int k = 0; k < 8; k++) assert_true(y[k] == k);
        run_ok(engines[e],
               "dequantize_weights format=gptq_v2 qweight=s32:1x1 scales=f32:1x1 qzeros=s32:1x1",
               (double *[]){words, scales, zeros, NULL, y});
        for (int k = 0; k < 8; k++) assert_true(y[k] == k - 15);
        run_ok(engines[e], "dequantize_weights format=awq qweight=s32:1x1 scales=f32:1x8",
               (double *[]){words, scales, NULL, NULL, y});
        for (int i = 0; i < 8; i++) assert_true(y[columns[i]] == i - 8);
        /* indices outside */
        g_idx[1] = 1, g_idx[2] = -1;
        run_ok(engines[e],
               "dequantize_weights format=gptq qweight=s32:1x1 scales=f32:1x1 g_idx=s32:8",
               (double *[]){words, scales, NULL, g_idx, y});
        for (int k = 0; k < 8; k++) assert_true(y[k] == (k == 1 || k == 2 ? 0 : k - 8));
        run_ok(engines[e], "repack_weights format=gptq qweight=s32:1x1 qzeros=s32:1x1 order=s32:8",
               (double *[]){words, NULL, zeros, order, w, NULL, z});
        for (int j = 0; j < 8; j++) assert_true(w[j] == (j < 6 ? 7 - j : 0));
        run_ok(engines[e],
               "repack_weights format=gptq_v2 qweight=s32:1x1 qzeros=s32:1x1 w_zeros=bf16",
               (double *[]){words, NULL, zeros, NULL, w, NULL, z});
        assert_true(z[0] == 15 && w[7] == 7);
        run_ok(engines[e], "repack_weights format=gptq qweight=s32:1x1 qzeros=s32:1x1 order=s32:8",
               (double *[]){words, NULL, zeros, order, w, NULL, z});
        assert_true(z[0] == 0);
        run_ok(engines[e], "repack_weights format=gptq qweight=s32:1x1 scales=f32:1x1",
               (double *[]){words, scales, NULL, NULL, w, s, NULL});
        for (int j = 0; j < 8; j++) assert_true(w[j] == j - 8);
        assert_true(s[0] == 1);
    }
}

static void shapes(void **state)
{
    (void)state;
    static const char *const rows[][3] = {
        {"dequantize_weights qweight=s32:512x40 scales=bf16:32x40", "4", "bf16:4096x40"},
        {"dequantize_weights bits=3 qweight=s32:12x40 scales=f16:4x40 y=f32", "4", "f32:128x40"},
        {"dequantize_weights format=awq qweight=s32:64x5 scales=f16:2x40", "4", "f16:64x40"},
        {"dequantize_weights format=marlin qweight=s32:8x128 scales=f16:1x64", "4", "f16:128x64"},
        {"repack_weights qweight=s32:512x40", "4", "s4:40x4096"},
        {"repack_weights bits=8 qweight=s32:2x40 qzeros=s32:2x10", "4", "u8:40x8"},
        {"repack_weights bits=2 qweight=s32:2x40 qzeros=s32:4x3", "6", "u4:40x4"},
        {"repack_weights format=marlin bits=8 qweight=s32:2x256 scales=f16:1x64", "5", "f16:64x1"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[128];
        mica_problem *p;
        mica_arg_info info;
        if (mica_problem_from_text(rows[i][0], &p) != MICA_OK) fail_msg("%s", mica_error());
        assert_int_equal(mica_problem_arg(p, rows[i][1][0] - '0', &info), MICA_OK);
        mica_tensor_text(&info.tensor, text, sizeof text);
        assert_string_equal(text, rows[i][2]);
        mica_problem_destroy(p);
    }
}

static void refusals(void **state)
{
    (void)state;
    refuses("dequantize_weights scales=f16:1x8", "qweight is needed");
    refuses("dequantize_weights qweight=s32:1x8", "scales is needed");
    refuses("dequantize_weights qweight=u8:1x8 scales=f16:1x8", "qweight is u8");
    refuses("dequantize_weights qweight=s32:1x8 scales=e4m3:1x8", "scales is e4m3");
    refuses("dequantize_weights qweight=s32:8 scales=f16:1x8", "qweight has rank 1");
    refuses("dequantize_weights qweight=s32:1x8 scales=f16:8", "scales has rank 1");
    refuses("dequantize_weights qweight=s32:1x8 scales=f16:1x7", "scales");
    refuses("dequantize_weights format=gguf qweight=s32:1x8 scales=f16:1x8", "gguf");
    refuses("dequantize_weights bits=5 qweight=s32:1x8 scales=f16:1x8",
            "bits is 5, of gptq it must be 2, 3, 4 or 8");
    refuses("dequantize_weights format=awq bits=8 qweight=s32:1x8 scales=f16:1x64", "it must be 4");
    refuses("dequantize_weights format=marlin bits=2 qweight=s32:1x64 scales=f16:1x64",
            "it must be 4 or 8");
    refuses("dequantize_weights bits=3 qweight=s32:4x8 scales=f16:1x8", "qweight has 4 rows");
    refuses("dequantize_weights format=marlin qweight=s32:4x64 scales=f16:1x32",
            "qweight has 64 columns, a tile of marlin with 4 bits is 128");
    refuses("dequantize_weights qweight=s32:4x8 scales=f16:3x8 group=8",
            "scales has 3 rows, K of 32 with groups of 8 needs 4");
    refuses("dequantize_weights qweight=s32:4x8 scales=f16:33x8", "scales has 33 rows");
    refuses("dequantize_weights qweight=s32:4x8 scales=f16:0x8", "scales has 0 rows");
    refuses("dequantize_weights qweight=s32:4x8 scales=f16:4x8 group=0", "group");
    refuses("dequantize_weights qweight=s32:4x8 scales=f16:4x8 group=8 g_idx=s32:32",
            "group is 8, with g_idx");
    refuses("dequantize_weights qweight=s32:4x8 scales=f16:4x8 g_idx=s32:31", "g_idx");
    refuses("dequantize_weights qweight=s32:4x8 scales=f16:0x8 g_idx=s32:32", "scales has no rows");
    refuses("dequantize_weights format=awq qweight=s32:4x1 scales=f16:1x8 g_idx=s32:4",
            "g_idx is for gptq, format is awq");
    refuses("dequantize_weights qweight=s32:4x8 scales=f16:4x8 qzeros=s32:4x2", "qzeros");
    refuses("dequantize_weights qweight=s32:4x8 scales=f16:4x8 qzeros=s32:3x1", "qzeros");
    refuses("dequantize_weights qweight=s32:4x8 scales=f16:4x8 y=f64", "y is f64");
    refuses("repack_weights scales=f16:1x8", "qweight is needed");
    refuses("repack_weights qweight=s32:4x8 w=u4", "w is u4, of 4 bits without qzeros it is s4");
    refuses("repack_weights bits=8 qweight=s32:4x8 qzeros=s32:1x2 w=u4", "with qzeros it is u8");
    refuses("repack_weights qweight=s32:4x8 w_scales=f16:8x1", "w_scales without scales");
    refuses("repack_weights qweight=s32:4x8 w_zeros=u4:8x1", "w_zeros without qzeros");
    refuses("repack_weights qweight=s32:4x8 qzeros=s32:2x1 scales=f16:3x8", "scales");
    refuses("repack_weights qweight=s32:4x8 scales=f16:3x8 w_scales=f32", "w_scales");
    refuses("repack_weights qweight=s32:4x8 qzeros=s32:2x1 w_zeros=u8",
            "w_zeros is u8, it must be of w's type, u4, or f32, f16 or bf16");
    refuses("repack_weights qweight=s32:4x8 order=s32:8", "order");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_packages),     cmocka_unit_test(all_judged),
        cmocka_unit_test(nothing_is_lost), cmocka_unit_test(act_order),
        cmocka_unit_test(by_hand),         cmocka_unit_test(shapes),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
