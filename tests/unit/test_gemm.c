/* SPDX-License-Identifier: Apache-2.0
 * gemm: values worked out by hand, rules, every config of every CPU engine on exact integers, the
 * adjoint identity, gradients by differences, and that the comparison notices one wrong element. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "mica/mica.h"
#include "ops/onednn/onednn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARGS = MICA_GEMM_AMAX + 1 };

static mica_context *ctx;

static int open_context(void **state)
{
    (void)state;
    return mica_context_create("cpu", &ctx) != MICA_OK;
}

static int close_context(void **state)
{
    (void)state;
    mica_context_destroy(ctx);
    return 0;
}

/* ---- a problem with its memory ---- */

typedef struct bench {
    mica_problem *problem;
    mica_arg_info info[ARGS];
    char *memory[ARGS];
    void *data[ARGS];     /* element 0 */
    double *values[ARGS]; /* packed, logical order */
    int64_t count[ARGS];
} bench;

static void fill(bench *b, int arg, const double *values)
{
    memcpy(b->values[arg], values, (size_t)b->count[arg] * sizeof *values);
    assert_int_equal(mica_tensor_store(&b->info[arg].tensor, values, b->data[arg]), MICA_OK);
}

static bench set_up(const char *line, mica_fill kind, uint64_t seed)
{
    bench b = {0};
    if (mica_problem_from_text(line, &b.problem) != MICA_OK) fail_msg("%s: %s", line, mica_error());
    for (int i = 0; i < ARGS; i++) {
        assert_int_equal(mica_problem_arg(b.problem, i, &b.info[i]), MICA_OK);
        if (b.info[i].dir == MICA_UNUSED) continue;
        int64_t first, bytes = mica_tensor_span(&b.info[i].tensor, &first);
        b.memory[i] = malloc((size_t)bytes + 1);
        memset(b.memory[i], 0xff, (size_t)bytes + 1);
        b.data[i] = b.memory[i] - first;
        b.count[i] = mica_tensor_count(&b.info[i].tensor);
        b.values[i] = malloc(((size_t)b.count[i] + 1) * sizeof(double));
        if (mica_problem_fill(b.problem, i, kind, seed, b.values[i]) != MICA_OK)
            fail_msg("%s: %s", line, mica_error());
        if (i != MICA_GEMM_C) fill(&b, i, b.values[i]);
    }
    return b;
}

static void tear_down(bench *b)
{
    for (int i = 0; i < ARGS; i++) {
        free(b->memory[i]);
        free(b->values[i]);
    }
    mica_problem_destroy(b->problem);
}

/* c by an engine, as doubles into b->values[C]. */
static void run(bench *b, const char *engine, const char *config)
{
    mica_plan *plan;
    mica_options o = {.engine = engine, .config = config};
    if (mica_plan_problem(ctx, b->problem, &o, &plan) != MICA_OK) fail_msg("%s", mica_error());
    size_t bytes = mica_plan_workspace(plan);
    void *workspace = bytes ? aligned_alloc(256, (bytes + 255) / 256 * 256) : NULL;
    mica_run r = {.scalars = mica_problem_scalars(b->problem), .workspace = workspace};
    memcpy(r.args, b->data, sizeof b->data);
    if (mica_plan_run(plan, &r) != MICA_OK) fail_msg("%s", mica_error());
    mica_tensor_load(&b->info[MICA_GEMM_C].tensor, b->data[MICA_GEMM_C], b->values[MICA_GEMM_C]);
    mica_plan_destroy(plan);
    free(workspace);
}

static double *reference(bench *b)
{
    double *results[MICA_MAX_ARGS] = {0};
    results[MICA_GEMM_C] = malloc(((size_t)b->count[MICA_GEMM_C] + 1) * sizeof(double));
    if (mica_problem_reference(b->problem, b->data, results, NULL) != MICA_OK)
        fail_msg("%s", mica_error());
    return results[MICA_GEMM_C];
}

/* Elements of c that differ. */
static int64_t wrong(const bench *b, const double *want)
{
    int64_t n = 0;
    for (int64_t i = 0; i < b->count[MICA_GEMM_C]; i++)
        n += !(b->values[MICA_GEMM_C][i] == want[i]);
    return n;
}

/* ---- by hand ---- */

typedef struct golden {
    const char *line;
    double in[ARGS][6], c[6];
} golden;

static const golden goldens[] = {
    {.line = "gemm a=f32:2x3 b=f32:3x2",
     .in = {{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}},
     .c = {58, 64, 139, 154}},
    {.line = "gemm a=f64:2x3:t b=f64:3x2:t alpha=2",
     .in = {{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}},
     .c = {116, 128, 278, 308}},
    {.line = "gemm a=bf16:2x2 b=bf16:2x2 epilogue=bias,scale,shift,relu",
     .in = {{1, -1, 2, 0},
            {3, 1, 1, 1},
            [MICA_GEMM_BIAS] = {1, -2},
            [MICA_GEMM_SCALE] = {2, 3},
            [MICA_GEMM_SHIFT] = {-1, 7}},
     /* sums 2 0 6 2; + bias 3 -2 7 0; x scale 6 -6 14 0; + shift 5 1 13 7 */
     .c = {5, 1, 13, 7}},
    {.line = "gemm a=s8:1x2 b=s8:2x3 c=s8 alpha=0.5",
     /* 5 7 -5 halved: 2.5, 3.5, -2.5 to even */
     .in = {{1, 2}, {1, 3, -1, 2, 2, -2}},
     .c = {2, 4, -2}},
    {.line = "gemm a=s8:1x2 b=s8:2x2 c=u8", .in = {{127, 127}, {127, -1, 127, -1}}, .c = {255, 0}},
    {.line = "gemm a=u8:1x2 b=s8:2x1", .in = {{255, 255}, {-128, -128}}, .c = {-65280}},
    {.line = "gemm a=e4m3:2x1 b=e5m2:1x2 scale_a=f32:2 scale_b=f32:2",
     .in = {{448, -0.5}, {4, 57344}, [MICA_GEMM_SCALE_A] = {1, 8}, [MICA_GEMM_SCALE_B] = {0.5, 2}},
     .c = {896, 51380224, -8, -458752}},
    {.line = "gemm a=f32:2x1x2 b=f32:2x1", .in = {{1, 2, 3, 4}, {10, 1}}, .c = {12, 34}},
    {.line = "gemm a=f32:2x0 b=f32:0x2 epilogue=bias,relu",
     .in = {[MICA_GEMM_BIAS] = {3, -4}},
     .c = {3, 0, 3, 0}},
    {.line = "gemm a=s8:2x0 b=s8:0x1", .c = {0, 0}},
    /* products 3 -2 5 -1 and 6 -4 10 -2 */
    {.line = "gemm a=f32:2x1 b=f32:1x4 gate=pairs epilogue=relu",
     .in = {{1, 2}, {3, -2, 5, -1}},
     .c = {-6, -5, -24, -20}},
    {.line = "gemm a=f32:2x1 b=f32:1x4 gate=halves epilogue=relu",
     .in = {{1, 2}, {3, -2, 5, -1}},
     .c = {15, 0, 60, 0}},
    /* with biases 4 -1 6 0, the residual after the product */
    {.line = "gemm a=f32:1x1 b=f32:1x4 gate=halves epilogue=bias,identity,residual",
     .in =
         {{1}, {3, -2, 5, -1}, [MICA_GEMM_BIAS] = {1, 1, 1, 1}, [MICA_GEMM_RESIDUAL] = {100, 200}},
     .c = {124, 200}},
    {.line = "gemm a=f32:2x1 b=f32:1x2 c=e4m3 scale_c=f32",
     .in = {{1, -3}, {100, 17}, [MICA_GEMM_SCALE_C] = {2}},
     .c = {192, 32, -448, -104}}, /* 200 and 34: to even */
    {.line = "gemm a=f32:2x1 b=f32:1x2 c=e5m2 scale_c=f32",
     .in = {{1, -3}, {60000, 3}, [MICA_GEMM_SCALE_C] = {0.5}},
     .c = {28672, 1.5, -57344, -4}}, /* 30000; 4.5 to even */
    {.line = "gemm a=f32:2x1 b=f32:1x2 c=s8 scale_c=f32",
     .in = {{1, -3}, {100, 5}, [MICA_GEMM_SCALE_C] = {0.5}},
     .c = {50, 2, -128, -8}}, /* 2.5 and -7.5 to even */
    {.line = "gemm a=f32:1x1 b=f32:1x3 c=e5m2",
     .in = {{1}, {1e30, -70000, 0x1p-20}},
     .c = {57344, -57344, 0}},
};

static void values_by_hand(void **state)
{
    (void)state;
    for (size_t g = 0; g < sizeof goldens / sizeof *goldens; g++) {
        bench b = set_up(goldens[g].line, MICA_FILL_EXACT, 1);
        for (int i = 0; i < ARGS; i++)
            if (b.info[i].dir == MICA_IN) fill(&b, i, goldens[g].in[i]);
        static const char *const engines[] = {"cpu", "ref", NULL};
        for (int e = 0; e < 3; e++) {
            run(&b, engines[e], NULL);
            for (int64_t i = 0; i < b.count[MICA_GEMM_C]; i++)
                if (b.values[MICA_GEMM_C][i] != goldens[g].c[i])
                    fail_msg("%s: c[%lld] is %g, not %g", goldens[g].line, (long long)i,
                             b.values[MICA_GEMM_C][i], goldens[g].c[i]);
        }
        tear_down(&b);
    }
}

/* ---- the other results ---- */

static void result_is(bench *b, int arg, const char *line, const double *want)
{
    double got[16];
    assert_in_range(b->count[arg], 1, 16);
    mica_tensor_load(&b->info[arg].tensor, b->data[arg], got);
    for (int64_t i = 0; i < b->count[arg]; i++)
        if (!(got[i] == want[i] || (isnan(got[i]) && isnan(want[i]))))
            fail_msg("%s: %s[%lld] is %g, not %g", line, b->info[arg].name, (long long)i, got[i],
                     want[i]);
}

static const struct {
    const char *line;
    double a[6], b[6], aux[8], amax[1];
} results[] = {
    {"gemm a=f32:2x1 b=f32:1x3 aux=f32 amax=f32 epilogue=relu",
     {1, -2},
     {3, -4, 5},
     {3, -4, 5, -6, 8, -10},
     {8}},
    {"gemm a=f32:2x1 b=f32:1x4 gate=halves aux=bf16 amax=f32 epilogue=identity",
     {1, 2},
     {3, -4, 5, 7},
     {3, -4, 5, 7, 6, -8, 10, 14},
     {112}},
    /* before scale_c and before rounding to c */
    {"gemm a=f32:1x2 b=f32:2x1 c=e4m3 scale_c=f32 amax=f32 aux=f32 epilogue=identity",
     {1000, 1},
     {-5, 1},
     {-4999},
     {4999}},
    {"gemm a=f64:1x1 b=f64:1x2 aux=f64 amax=f64 epilogue=relu", {1}, {-1e300, 1}, {-1e300, 1}, {1}},
    {"gemm a=f32:1x1 b=f32:1x3 c=s8 amax=f32 aux=f32 epilogue=identity",
     {1},
     {5, (double)NAN, -(double)INFINITY},
     {5, (double)NAN, -(double)INFINITY},
     {(double)NAN}},
    {"gemm a=f32:1x0 b=f32:0x2 amax=f32 aux=f32 epilogue=relu", {0}, {0}, {0, 0}, {0}},
};

static void other_results(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof results / sizeof *results; r++) {
        static const char *const engines[] = {"cpu", "ref", NULL};
        bench b = set_up(results[r].line, MICA_FILL_EXACT, 1);
        fill(&b, MICA_GEMM_A, results[r].a);
        fill(&b, MICA_GEMM_B, results[r].b);
        if (b.count[MICA_GEMM_SCALE_C]) fill(&b, MICA_GEMM_SCALE_C, (double[]){0.25});
        for (int e = 0; e < 3; e++) {
            memset(b.data[MICA_GEMM_AUX], 0x55, (size_t)b.count[MICA_GEMM_AUX] * 2);
            memset(b.data[MICA_GEMM_AMAX], 0x7f, 4); /* large: it must not be kept */
            run(&b, engines[e], NULL);
            result_is(&b, MICA_GEMM_AUX, results[r].line, results[r].aux);
            result_is(&b, MICA_GEMM_AMAX, results[r].line, results[r].amax);
        }
        tear_down(&b);
    }
}

/* No element has no magnitude, and there is nothing but amax to write. */
static void empty_amax_is_zero(void **state)
{
    (void)state;
    static const char *const lines[] = {"gemm a=f32:0x3 b=f32:3x2 amax=f32",
                                        "gemm a=f32:2x3 b=f32:3x0 c=e4m3 amax=f32"};
    for (int l = 0; l < 2; l++) {
        static const char *const engines[] = {"cpu", "ref", NULL};
        bench b = set_up(lines[l], MICA_FILL_EXACT, 1);
        for (int e = 0; e < 3; e++) {
            memset(b.data[MICA_GEMM_AMAX], 0x7f, 4);
            run(&b, engines[e], NULL);
            result_is(&b, MICA_GEMM_AMAX, lines[l], (double[]){0});
        }
        tear_down(&b);
    }
}

/* ---- rules ---- */

static void refuses(const char *line, const char *part)
{
    mica_problem *p;
    mica_status status = mica_problem_from_text(line, &p);
    if (status != MICA_INVALID || !strstr(mica_error(), part))
        fail_msg("%s: status %d, \"%s\" lacks \"%s\"", line, (int)status, mica_error(), part);
}

static void contradictions_are_named(void **state)
{
    (void)state;
    refuses("gemm a=f32:2x3", "gemm: b is needed");
    refuses("gemm b=f32:2x3", "gemm: a is needed");
    refuses("gemm", "gemm: a is needed");
    refuses("gemm a=f32:2x3 b=f32:4x2", "a has 3 columns, b has 4 rows");
    refuses("gemm a=f32:3 b=f32:3x2", "a has rank 1, b 2; a matrix has at least 2");
    refuses("gemm a=f32:2x2x3 b=f32:3x3x2", "batch dimension 1 from the last is 2 in a, 3 in b");
    refuses("gemm a=f32:2x3 b=f64:3x2", "a is f32, b is f64; f64 goes with f64");
    refuses("gemm a=s8:2x3 b=u8:3x2", "b is u8, it must be f64, f32");
    refuses("gemm a=s32:2x3 b=s32:3x2", "a is s32, it must be f64, f32");
    refuses("gemm a=f32:2x3 b=f32:3x2 c=f64:2x2", "c is f64; with f32 inputs it is f32, f16");
    refuses("gemm a=s8:2x3 b=s8:3x2 c=f64", "c is f64; with s8 inputs it is s32, s8");
    refuses("gemm a=f32:2x3 b=f32:3x2 c=f32:2x3", "of the product of a and b 2");
    refuses("gemm a=f32:2x3 b=f32:3x2 scale_a=f32:1", "scale_a is for 8-bit inputs, a is f32");
    refuses("gemm a=e4m3:2x3 b=e4m3:3x2 scale_a=f32:3", "it must have 1 or the 2 rows of a");
    refuses("gemm a=e4m3:2x3 b=e4m3:3x2 scale_b=f16:2", "scale_b is f16, it must be f32");
    refuses("gemm a=f32:2x3 b=f32:3x2 bias=f32:3 epilogue=bias",
            "of bias is 3, of the output's channels 2");
    refuses("gemm a=f32:2x3 b=f32:3x2 residual=e4m3:2x2 epilogue=residual", "residual is e4m3");
    refuses("gemm a=f32:2x3 b=f32:3x2 c=f32:2x2:0x1", "share memory");
}

static void contradictions_of_gates_and_scales(void **state)
{
    (void)state;
#define AB "gemm a=f32:2x3 b=f32:3x4 "
    refuses("gemm a=f32:2x3 b=f32:3x5 gate=pairs epilogue=relu",
            "the product has 5 columns, gate=pairs needs an even number");
    refuses(AB "gate=halves", "gate=halves: epilogue has no activation");
    refuses(AB "gate=pairs epilogue=residual,relu", "residual is step 1 of epilogue");
    refuses(AB "gate=pairs epilogue=relu,bias",
            "bias is step 2 of epilogue, the activation step 1");
    refuses(AB "gate=pairs epilogue=relu c=f32:2x4", "of the gated product 2");
    refuses(AB "gate=pairs epilogue=bias,relu bias=f32:2",
            "of bias is 2, of the output's channels 4");
    refuses("gemm a=e4m3:2x3 b=e4m3:3x4 scale_a=f32:2x1 scale_b=f32:1x1 gate=pairs epilogue=relu",
            "not with scales of blocks");
    refuses(AB "aux=f32", "aux holds what goes into an activation, epilogue has none");
    refuses(AB "aux=f64 epilogue=relu", "aux is f64; with f32 inputs it is f32, f16 or bf16");
    refuses(AB "aux=f32:2x2 epilogue=relu", "aux");
    refuses(AB "aux=f32:2x2 gate=pairs epilogue=relu", "aux");
    refuses(AB "scale_c=f32", "scale_c is for an 8-bit c, c is f32");
    refuses(AB "c=e4m3 scale_c=f64", "scale_c is f64, it must be f32");
    refuses(AB "c=e4m3 scale_c=f32:4", "dimension 0 of scale_c is 4, it must be 1");
    refuses(AB "amax=f64", "amax is f64, it must be f32");
    refuses(AB "amax=f32:0", "dimension 0 of amax is 0, it must be 1");
    refuses("gemm a=f64:2x3 b=f64:3x4 amax=f32", "amax is f32, it must be f64");
    refuses("gemm a=f64:2x3 b=f64:3x4 c=e4m3", "c is e4m3; with f64 inputs it is f64 or f32");
    refuses(AB "c=u8", "c is u8; with f32 inputs it is f32, f16, bf16, e4m3, e5m2 or s8");
    refuses("grouped_gemm a=f32:4x3 b=f32:2x3x4 c=e4m3:4x4",
            "c is e4m3; with f32 inputs it is f32, f16 or bf16");
#undef AB
}

static void argument_is(const char *line, int arg, const char *tensor)
{
    bench b = set_up(line, MICA_FILL_EXACT, 1);
    char text[128];
    mica_tensor_text(&b.info[arg].tensor, text, sizeof text);
    assert_string_equal(text, tensor);
    tear_down(&b);
}

static void output_is_inferred(void **state)
{
    (void)state;
    static const struct {
        const char *line, *c;
    } rows[] = {{"gemm a=f16:2x3 b=f16:3x4", "f16:2x4"},
                {"gemm a=f16:2x3 b=bf16:3x4", "f32:2x4"},
                {"gemm a=e5m2:2x3 b=e5m2:3x4", "f32:2x4"},
                {"gemm a=u8:2x3 b=s8:3x4", "s32:2x4"},
                {"gemm a=f32:5x1x2x3 b=f32:7x3x4 c=bf16", "bf16:5x7x2x4"},
                {"gemm a=f64:2x3:t b=f64:5x3x4", "f64:5x2x4"},
                {"gemm a=bf16:2x3 b=bf16:3x4 gate=pairs epilogue=silu", "bf16:2x2"},
                {"gemm a=bf16:5x2x3 b=bf16:3x4 c=e4m3 gate=halves epilogue=silu", "e4m3:5x2x2"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        argument_is(rows[i].line, MICA_GEMM_C, rows[i].c);
}

/* What goes with the epilogue, of which a type is enough. */
static void others_are_inferred(void **state)
{
    (void)state;
#define AB "gemm a=f32:5x2x3 b=f32:3x4 "
    argument_is(AB "epilogue=bias", MICA_GEMM_BIAS, "f32:4");
    argument_is(AB "epilogue=bias bias=bf16", MICA_GEMM_BIAS, "bf16:4");
    argument_is(AB "epilogue=shift,relu gate=halves", MICA_GEMM_SHIFT, "f32:4");
    argument_is("gemm a=f64:2x3 b=f64:3x4 c=f32 epilogue=scale", MICA_GEMM_SCALE, "f32:4");
    argument_is("gemm a=f64:2x3 b=f64:3x4 epilogue=scale", MICA_GEMM_SCALE, "f64:4");
    argument_is("gemm a=s8:2x3 b=s8:3x4 c=s8 epilogue=bias", MICA_GEMM_BIAS, "f32:4");
    argument_is(AB "epilogue=residual residual=bf16", MICA_GEMM_RESIDUAL, "bf16:5x2x4");
    argument_is(AB "epilogue=relu aux=bf16 gate=pairs", MICA_GEMM_AUX, "bf16:5x2x4");
    argument_is(AB "c=s8 scale_c=f32", MICA_GEMM_SCALE_C, "f32:1");
    argument_is(AB "c=s8 scale_c=f32:1x1", MICA_GEMM_SCALE_C, "f32:1x1");
    argument_is(AB "amax=f32", MICA_GEMM_AMAX, "f32:1");
#undef AB
}

/* ---- every config on exact integers ---- */

static const char *const exact_lines[] = {
    "gemm a=f32:49x129 b=f32:129x65",
    "gemm a=f32:1x300 b=f32:300x70:t epilogue=bias,relu",
    "gemm a=f32:50x33:t b=f32:33x70 c=f32:50x70:t epilogue=bias,scale,residual,relu6",
    "gemm a=f32:37x29:60x2 b=f32:29x41:3x90 c=f32:37x41:200x3",
    "gemm a=f32:3x17x40 b=f32:3x40x23:t alpha=2 beta=-1 epilogue=residual",
    "gemm a=f32:5x3x17x19 b=f32:5x1x19x23 beta=1",
    "gemm a=f32:4x17x19 b=f32:19x23 epilogue=bias,residual,relu",
    "gemm a=f64:31x70 b=f64:70x9 beta=3",
    "gemm a=bf16:49x129:t b=bf16:129x65 epilogue=bias,relu",
    "gemm a=f16:49x129 b=f16:129x65 c=f32",
    "gemm a=s8:49x129 b=s8:129x65:t",
    "gemm a=s8:49x129 b=s8:129x65 c=s8 alpha=0.25 epilogue=bias",
    "gemm a=u8:3x19x129 b=s8:129x65 c=bf16 scale_b=f32:65 beta=1",
    "gemm a=s8:19x40:t b=s8:40x30 c=s32:19x30:t beta=2 alpha=3 epilogue=relu",
    "gemm a=e4m3:49x129 b=e5m2:129x65 scale_a=f32:49 scale_b=f32:65",
    "gemm a=f32:3x49x129 b=f32:129x130 gate=pairs epilogue=bias,relu,residual aux=bf16 beta=2",
    "gemm a=bf16:49x129:t b=bf16:129x130:t c=f32 gate=halves epilogue=identity",
    "gemm a=f16:49x129 b=bf16:129x65 c=s8:49x65:t scale_c=f32 epilogue=bias",
    "gemm a=e4m3:49x129 b=e4m3:129x65 c=e5m2 amax=f32 beta=1",
};

static void check_configs(bench *b, const char *line, const char *engine, const double *want,
                          int *checked)
{
    char config[128];
    for (int i = 0;
         mica_problem_config(ctx, b->problem, engine, i, config, sizeof config, NULL) == MICA_OK;
         i++, ++*checked) {
        /* The old content of c was made for beta; poison otherwise. */
        if (mica_problem_scalars(b->problem)[MICA_GEMM_BETA] != 0)
            mica_problem_fill(b->problem, MICA_GEMM_C, MICA_FILL_EXACT, 5, b->values[MICA_GEMM_C]);
        else
            for (int64_t j = 0; j < b->count[MICA_GEMM_C]; j++)
                b->values[MICA_GEMM_C][j] = (double)NAN;
        mica_tensor_store(&b->info[MICA_GEMM_C].tensor, b->values[MICA_GEMM_C],
                          b->data[MICA_GEMM_C]);
        run(b, engine, config);
        int64_t n = wrong(b, want);
        if (n) fail_msg("%s: %s %s: %lld elements are wrong", line, engine, config, (long long)n);
    }
}

static void configs_are_exact(void **state)
{
    (void)state;
    int checked[3] = {0};
    for (size_t l = 0; l < sizeof exact_lines / sizeof *exact_lines; l++) {
        bench b = set_up(exact_lines[l], MICA_FILL_EXACT, 5);
        assert_true(mica_problem_exact(b.problem));
        mica_tensor_store(&b.info[MICA_GEMM_C].tensor, b.values[MICA_GEMM_C], b.data[MICA_GEMM_C]);
        double *want = reference(&b);
        double *stored = malloc(((size_t)b.count[MICA_GEMM_C] + 1) * sizeof *stored);
        char *memory = malloc((size_t)b.count[MICA_GEMM_C] * 8 + 8);
        mica_tensor packed =
            mica_tensor_packed(b.info[MICA_GEMM_C].tensor.dtype, 1, &b.count[MICA_GEMM_C]);
        mica_tensor_store(&packed, want, memory);
        mica_tensor_load(&packed, memory, stored);
        static const char *const engines[] = {"onednn", "cpu", "ref"};
        for (int e = 0; e < 3; e++)
            check_configs(&b, exact_lines[l], engines[e], stored, &checked[e]);
        /* The comparison must notice one element. */
        stored[b.count[MICA_GEMM_C] / 2] += 1;
        assert_int_equal(wrong(&b, stored), 1);
        free(memory);
        free(stored);
        free(want);
        tear_down(&b);
    }
    int lines = sizeof exact_lines / sizeof *exact_lines;
    assert_int_equal(checked[1], lines);
    assert_int_equal(checked[2], lines);
    int least = mica_onednn_exact_int8() ? 14 : 11;
    if (mica_onednn_version()) assert_in_range(checked[0], least, 2 * lines);
}

/* The residual may be c itself. */
static void residual_in_place(void **state)
{
    (void)state;
    const char *line = "gemm a=f32:30x64 b=f32:64x50 epilogue=bias,residual,relu";
    bench b = set_up(line, MICA_FILL_EXACT, 3);
    double *want = reference(&b);
    static const char *const engines[] = {"cpu", "ref", NULL};
    for (int e = 0; e < 3; e++) {
        memcpy(b.data[MICA_GEMM_C], b.data[MICA_GEMM_RESIDUAL], 30 * 50 * 4);
        void *apart = b.data[MICA_GEMM_RESIDUAL];
        b.data[MICA_GEMM_RESIDUAL] = b.data[MICA_GEMM_C];
        run(&b, engines[e], NULL);
        b.data[MICA_GEMM_RESIDUAL] = apart;
        assert_int_equal(wrong(&b, want), 0);
    }
    free(want);
    tear_down(&b);
}

/* ---- calculus ---- */

/* <a b, dc> = <a, dc b^t> = <b, a^t dc>: three products through mica, equal on small integers. */
static void adjoint_identity(void **state)
{
    (void)state;
    bench f = set_up("gemm a=f64:3x7x5 b=f64:3x5x4", MICA_FILL_EXACT, 1);
    bench g = set_up("gemm a=f64:3x7x4 b=f64:3x4x5:t", MICA_FILL_EXACT, 2);
    bench h = set_up("gemm a=f64:3x5x7:t b=f64:3x7x4", MICA_FILL_EXACT, 3);
    const double *dc = g.values[MICA_GEMM_A];
    /* The same memory, read as its transpose: b^t lies as b does, and a^t as a. */
    memcpy(g.data[MICA_GEMM_B], f.data[MICA_GEMM_B], 3 * 5 * 4 * sizeof(double));
    memcpy(h.data[MICA_GEMM_A], f.data[MICA_GEMM_A], 3 * 7 * 5 * sizeof(double));
    memcpy(h.data[MICA_GEMM_B], g.data[MICA_GEMM_A], 3 * 7 * 4 * sizeof(double));
    run(&f, NULL, NULL);
    run(&g, NULL, NULL);
    run(&h, NULL, NULL);
    double with_c = 0, with_a = 0, with_b = 0;
    for (int i = 0; i < 3 * 7 * 4; i++) with_c += f.values[MICA_GEMM_C][i] * dc[i];
    for (int i = 0; i < 3 * 7 * 5; i++)
        with_a += f.values[MICA_GEMM_A][i] * g.values[MICA_GEMM_C][i];
    for (int i = 0; i < 3 * 5 * 4; i++)
        with_b += f.values[MICA_GEMM_B][i] * h.values[MICA_GEMM_C][i];
    assert_true(with_c != 0 && with_c == with_a && with_c == with_b);
    tear_down(&f);
    tear_down(&g);
    tear_down(&h);
}

/* d sum(c) / d a[m,k] = sum_n b[k,n] through the reference, by central differences. */
static void slope_by_differences(void **state)
{
    (void)state;
    const double eps = 1e-6;
    bench b = set_up("gemm a=f64:3x4 b=f64:4x5 alpha=1.5", MICA_FILL_RANDOM, 4);
    for (int i = 0; i < 12; i++) {
        double sum[2] = {0}, *a = b.data[MICA_GEMM_A], at = a[i], slope = 0;
        for (int side = 0; side < 2; side++) {
            a[i] = at + (side ? eps : -eps);
            double *c = reference(&b);
            for (int j = 0; j < 15; j++) sum[side] += c[j];
            free(c);
        }
        a[i] = at;
        for (int n = 0; n < 5; n++) slope += 1.5 * b.values[MICA_GEMM_B][i % 4 * 5 + n];
        double seen = (sum[1] - sum[0]) / (2 * eps);
        assert_true(fabs(seen - slope) <= 1e-5 + 1e-3 * fabs(slope));
    }
    tear_down(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_by_hand),
        cmocka_unit_test(contradictions_are_named),
        cmocka_unit_test(other_results),
        cmocka_unit_test(empty_amax_is_zero),
        cmocka_unit_test(contradictions_of_gates_and_scales),
        cmocka_unit_test(output_is_inferred),
        cmocka_unit_test(others_are_inferred),
        cmocka_unit_test(configs_are_exact),
        cmocka_unit_test(residual_in_place),
        cmocka_unit_test(adjoint_identity),
        cmocka_unit_test(slope_by_differences),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
