/* SPDX-License-Identifier: Apache-2.0
 * Convolution: results worked out by hand, refusals, adjoints, finite differences, threads. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "mica/mica.h"
#include "base/random.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4096 }; /* elements of a tensor in these tests */
enum { ARGS = MICA_CONV_STAT_SQUARE + 1 };

typedef struct values {
    double v[ARGS][MOST]; /* by argument */
} values;

static mica_context *cpu(void)
{
    static mica_context *context;
    if (!context) assert_int_equal(mica_context_create("cpu", &context), MICA_OK);
    return context;
}

static mica_problem *problem_of(const char *line)
{
    mica_problem *p;
    if (mica_problem_from_text(line, &p) != MICA_OK) fail_msg("%s: %s", line, mica_error());
    return p;
}

static mica_arg_info arg_of(const mica_problem *p, int i)
{
    mica_arg_info info;
    assert_int_equal(mica_problem_arg(p, i, &info), MICA_OK);
    return info;
}

static int64_t count_of(const mica_problem *p, int i)
{
    mica_arg_info info = arg_of(p, i);
    int64_t n = mica_tensor_count(&info.tensor);
    assert_true(n >= 0 && n <= MOST);
    return n;
}

/* Runs the line on one engine; values of inputs go in, those of the output come out. */
static void run_on(const char *engine, const char *line, values *v)
{
    mica_problem *p = problem_of(line);
    mica_plan *plan;
    mica_options options = {.engine = engine};
    if (mica_plan_problem(cpu(), p, &options, &plan) != MICA_OK) fail_msg("%s", mica_error());
    void *memory[ARGS] = {0};
    mica_run run = {.scalars = mica_problem_scalars(p)};
    for (int i = 0; i < ARGS; i++) {
        mica_arg_info info = arg_of(p, i);
        if (info.dir == MICA_UNUSED) continue;
        int64_t first, bytes = mica_tensor_span(&info.tensor, &first);
        memory[i] = malloc((size_t)bytes + 1);
        memset(memory[i], 0xff, (size_t)bytes + 1);
        run.args[i] = (char *)memory[i] - first;
        if (info.dir == MICA_IN) mica_tensor_store(&info.tensor, v->v[i], run.args[i]);
    }
    size_t bytes = mica_plan_workspace(plan);
    run.workspace = bytes ? aligned_alloc(256, bytes) : NULL;
    if (mica_plan_run(plan, &run) != MICA_OK) fail_msg("%s: %s", line, mica_error());
    for (int i = 0; i < ARGS; i++) {
        mica_arg_info info = arg_of(p, i);
        if (info.dir == MICA_OUT) mica_tensor_load(&info.tensor, run.args[i], v->v[i]);
        free(memory[i]);
    }
    free(run.workspace);
    mica_plan_destroy(plan);
    mica_problem_destroy(p);
}

static bool has_engine(const char *engine, const char *line)
{
    mica_problem *p = problem_of(line);
    mica_verdict verdict;
    bool has = false;
    for (int i = 0; mica_problem_verdict(cpu(), p, i, &verdict) == MICA_OK; i++)
        has |= !strcmp(verdict.engine, engine) && verdict.status == MICA_OK;
    mica_problem_destroy(p);
    return has;
}

static bool same(const double *a, const double *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!(a[i] == b[i])) return false;
    return true;
}

/* ---- by hand ---- */

static void golden(const char *line, int out, const double *x, const double *w, const double *y,
                   const double *want, int n)
{
    static const char *const engines[] = {"ref", "cpu", "onednn"};
    static values v;
    for (int e = 0; e < 3; e++) {
        if (e == 2 && !has_engine("onednn", line)) continue;
        memset(&v, 0, sizeof v);
        const double *in[] = {x, w, y};
        mica_problem *p = problem_of(line);
        assert_int_equal(count_of(p, out), n);
        for (int i = 0; i < 3; i++)
            if (in[i]) memcpy(v.v[i], in[i], (size_t)count_of(p, i) * sizeof(double));
        mica_problem_destroy(p);
        run_on(engines[e], line, &v);
        for (int i = 0; i < n; i++)
            if (v.v[out][i] != want[i])
                fail_msg("%s on %s: [%d] is %g, by hand %g", line, engines[e], i, v.v[out][i],
                         want[i]);
    }
}

static void test_golden(void **state)
{
    (void)state;
    const double x[] = {1, 2, 3, 4, 5}, w[] = {1, 10, 100};
    /* cross-correlation: y[0] = 1 + 20 + 300 */
    golden("conv x=f32:1x1x5 w=f32:1x1x3", 2, x, w, NULL, (double[]){321, 432, 543}, 3);
    golden("conv x=f32:1x1x5 w=f32:1x1x3 pad=1", 2, x, w, NULL, (double[]){210, 321, 432, 543, 54},
           5);
    golden("conv x=f32:1x1x5 w=f32:1x1x3 flip=1", 2, x, w, NULL, (double[]){123, 234, 345}, 3);
    golden("conv x=f32:1x1x5 w=f32:1x1x3 stride=2 pad=1", 2, x, w, NULL, (double[]){210, 432, 54},
           3);
    golden("conv x=f32:1x1x5 w=f32:1x1x3 dilation=2", 2, x, w, NULL, (double[]){531}, 1);
    /* zeros before only: causal; then the last pixel is cropped */
    golden("conv x=f32:1x1x5 w=f32:1x1x3 pad=2 pad_extra=-2", 2, x, w, NULL,
           (double[]){100, 210, 321, 432, 543}, 5);
    golden("conv x=f32:1x1x5 w=f32:1x1x3 pad_extra=-1", 2, x, w, NULL, (double[]){321, 432}, 2);
    /* torch.nn.functional.conv_transpose1d(x[:2], w, stride=2): 1 10 100+2 20 200 */
    golden("conv transposed=1 x=f32:1x1x2 w=f32:1x1x3 stride=2", 2, x, w, NULL,
           (double[]){1, 10, 102, 20, 200}, 5);
    golden("conv transposed=1 x=f32:1x1x2 w=f32:1x1x3 stride=2 pad=1 output_pad=1", 2, x, w, NULL,
           (double[]){10, 102, 20, 200}, 4);
    /* dgrad of a strided filter: no result looks at the last pixel */
    golden("conv pass=dgrad x=f32:1x1x6 w=f32:1x1x3 stride=2", 0, NULL, w, (double[]){1, 2},
           (double[]){1, 10, 102, 20, 200, 0}, 6);
    golden("conv pass=wgrad x=f32:1x1x5 w=f32:1x1x3 stride=2", 1, x, NULL, (double[]){1, 10},
           (double[]){31, 42, 53}, 3);
}

static void test_golden_groups(void **state)
{
    (void)state;
    /* two groups of 2 -> 1: y = x0 + 10 x1 | 100 x2 + 1000 x3 */
    golden("conv x=f32:1x4x1 w=f32:2x2x1 groups=2", 2, (double[]){1, 2, 3, 4},
           (double[]){1, 10, 100, 1000}, NULL, (double[]){21, 4300}, 2);
    golden("conv x=f32:1x2x2x2 w=f32:2x1x2x2 groups=2", 2, (double[]){1, 2, 3, 4, 5, 6, 7, 8},
           (double[]){1, 1, 1, 1, 1, 0, 0, 1}, NULL, (double[]){10, 13}, 2);
    /* 8-bit results saturate and round to even */
    golden("conv x=s8:1x1x3 w=s8:1x1x1 y=s8:1x1x3", 2, (double[]){100, -100, 3}, (double[]){2},
           NULL, (double[]){127, -128, 6}, 3);
    golden("conv x=u8:1x1x3 w=s8:1x1x1 y=s8:1x1x3 alpha=0.5", 2, (double[]){1, 3, 255},
           (double[]){1}, NULL, (double[]){0, 2, 127}, 3);
    golden("conv x=u8:1x1x2 w=s8:1x1x2", 2, (double[]){255, 255}, (double[]){-128, -128}, NULL,
           (double[]){-65280}, 1);
}

/* A sum of nothing is written, not left: the batch may be empty while the filter is not. */
static void test_empty_sum(void **state)
{
    (void)state;
    golden("conv pass=wgrad x=f32:0x1x5 w=f32:1x1x3", 1, NULL, NULL, NULL, (double[]){0, 0, 0}, 3);
    golden("conv x=f32:1x0x3 w=f32:2x0x3", 2, NULL, NULL, NULL, (double[]){0, 0}, 2);
    golden("conv pass=dgrad x=f32:1x1x3 w=f32:0x1x3", 0, NULL, NULL, NULL, (double[]){0, 0, 0}, 3);
}

/* ---- more results than y ---- */

typedef struct more {
    const char *line;
    double x[8], w[4], scale_y, y[8], aux[8], amax, sum[2], square[2];
} more;

/* One tap: y is x times w by channel. */
static const more mores[] = {
    {.line = "conv x=f32:2x1x2 w=f32:2x1x1 aux=f32 amax=f32 stat_sum=f32 stat_square=f32 "
             "epilogue=relu",
     .x = {1, -2, 3, 4},
     .w = {2, -1},
     .y = {2, 0, 0, 2, 6, 8, 0, 0},
     .aux = {2, -4, -1, 2, 6, 8, -3, -4},
     .amax = 8,
     .sum = {16, 2},
     .square = {104, 4}},
    {.line = "conv x=bf16:1x1x2 w=bf16:2x1x1 stat_sum=f32 stat_square=f32",
     .x = {255, 3},
     .w = {3, 1}, /* 765 is stored as 764, to even */
     .y = {764, 9, 255, 3},
     .sum = {773, 258},
     .square = {583777, 65034}},
    {.line = "conv x=f32:1x1x3 w=f32:1x1x1 y=e4m3 scale_y=f32 amax=f32",
     .x = {100, -17, 1000},
     .w = {1},
     .scale_y = 2,
     .y = {192, -32, 448},
     .amax = 1000},
    {.line = "conv x=f32:1x1x4 w=f32:1x1x1 y=e5m2 amax=f32",
     .x = {1e9, -60000, 9, 0},
     .w = {1},
     .y = {57344, -57344, 8, 0},
     .amax = 1e9},
    {.line = "conv x=bf16:1x1x4 w=bf16:1x1x1 y=s8 scale_y=f32 amax=f32 aux=f32 epilogue=identity",
     .x = {5, -7, 300, -400},
     .w = {1},
     .scale_y = 0.5,
     .y = {2, -4, 127, -128},
     .aux = {5, -7, 300, -400},
     .amax = 400},
    {.line = "conv x=s8:1x1x3 w=s8:1x1x1 y=s8 scale_y=f32 amax=f32",
     .x = {100, -3, 5},
     .w = {100},
     .scale_y = 0.005,
     .y = {50, -1, 2}, /* the float 0.005 is a little less than that */
     .amax = 10000},
    {.line = "conv x=f64:1x1x2 w=f64:1x1x1 aux=f64 amax=f64 stat_sum=f64 stat_square=f64 "
             "epilogue=relu",
     .x = {-1e200, 3},
     .w = {1},
     .y = {0, 3},
     .aux = {-1e200, 3},
     .amax = 3,
     .sum = {3},
     .square = {9}},
    {.line = "conv x=f32:0x1x3 w=f32:2x1x1 y=e4m3 amax=f32", .w = {1, 1}},
    {.line = "conv x=f32:0x1x3 w=f32:2x1x1 stat_sum=f32 stat_square=f32", .w = {1, 1}},
};

static void result_is(const char *line, const char *engine, int arg, const values *v,
                      const double *want)
{
    mica_problem *p = problem_of(line);
    mica_arg_info info = arg_of(p, arg);
    int64_t count = info.dir == MICA_UNUSED ? 0 : count_of(p, arg);
    for (int64_t i = 0; i < count; i++)
        if (v->v[arg][i] != want[i])
            fail_msg("%s on %s: %s[%lld] is %g, by hand %g", line, engine, info.name, (long long)i,
                     v->v[arg][i], want[i]);
    mica_problem_destroy(p);
}

static void test_more_results(void **state)
{
    (void)state;
    static const char *const engines[] = {"ref", "cpu_passes", NULL};
    static values v;
    for (size_t m = 0; m < sizeof mores / sizeof *mores; m++) {
        const more *t = &mores[m];
        for (int e = 0; e < 3; e++) {
            memset(&v, 0, sizeof v);
            memcpy(v.v[MICA_CONV_X], t->x, sizeof t->x);
            memcpy(v.v[MICA_CONV_W], t->w, sizeof t->w);
            v.v[MICA_CONV_SCALE_Y][0] = t->scale_y;
            run_on(engines[e], t->line, &v);
            result_is(t->line, engines[e], MICA_CONV_Y, &v, t->y);
            result_is(t->line, engines[e], MICA_CONV_AUX, &v, t->aux);
            result_is(t->line, engines[e], MICA_CONV_AMAX, &v, &t->amax);
            result_is(t->line, engines[e], MICA_CONV_STAT_SUM, &v, t->sum);
            result_is(t->line, engines[e], MICA_CONV_STAT_SQUARE, &v, t->square);
        }
    }
}

/* ---- refusals ---- */

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *line, *reason;
    } cases[] = {
        {"conv x=f32:1x3x8x8", "w is needed"},
        {"conv w=f32:4x3x3x3", "x and y are both missing"},
        {"conv x=f32:1x3 w=f32:4x3", "both must have the same 3, 4 or 5"},
        {"conv x=f32:1x3x8 w=f32:4x3x3x3", "x has 3 dimensions and w has 4"},
        {"conv x=f32:1x3x8x8 w=f32:4x2x3x3", "w has 2 channels, x has 3 in 1 groups"},
        {"conv x=f32:1x3x8x8 w=f32:4x3x3x3 groups=2", "groups is 2"},
        {"conv x=f32:1x3x8x8 w=f32:4x3x0x3", "w has 0 taps on axis 1"},
        {"conv x=f32:1x3x8x8 w=f32:4x3x3x3 pad=1x1x1", "pad has 1 for axis 3"},
        {"conv x=f32:1x3x8x8 w=f32:4x3x3x3 stride=-1", "stride is -1 on axis 1"},
        {"conv x=f32:1x3x8x8 w=f32:4x3x9x3", "axis 1: x is 8 long"},
        {"conv x=f32:1x3x8x8 w=f32:4x3x3x3 y=f32:1x4x8x6", "axis 1: y is 8 long, x's 8 gives 6"},
        {"conv x=f32:1x3x8x8 w=f32:4x3x3x3 y=f32:1x5x6x6", "w has 4 filters, y has 5 channels"},
        {"conv x=f32:1x3x8x8 w=f32:4x3x3x3 y=f32:2x4x6x6", "y has a batch of 2, x of 1"},
        {"conv x=f32:1x3x8x8 w=f32:4x3x3x3 output_pad=1", "output_pad is 1 on axis 1"},
        {"conv transposed=1 x=f32:1x3x8 w=f32:3x4x3 stride=2 output_pad=2", "output_pad is 2"},
        {"conv pass=dgrad y=f32:1x4x3x3 w=f32:4x3x3x3 stride=2x1", "x is missing: with stride 2"},
        {"conv x=f32:1x3x8x8 w=bf16:4x3x3x3", "x is f32 and w is bf16"},
        {"conv x=f32:1x3x8x8 w=f32:4x3x3x3 y=bf16:1x4x6x6", "y is bf16: it must be f32"},
        {"conv x=bf16:1x3x8 w=bf16:4x3x3 y=f16:1x4x6", "y is f16: it must be bf16 or f32"},
        {"conv x=bf16:1x3x8 w=bf16:4x3x3 compute=tf32", "compute is tf32"},
        {"conv x=u8:1x3x8x8 w=u8:4x3x3x3",
         "w is u8, it must be f64, f32, f16, bf16, e4m3, e5m2 or s8"},
        {"conv x=s8:1x3x8 w=s8:4x3x3 y=bf16:1x4x6", "it must be s32, f32 or s8"},
        {"conv pass=wgrad x=s8:1x3x8x8 w=s8:4x3x3x3", "pass is wgrad: integers"},
        {"conv pass=dgrad x=e4m3:1x3x8x8 w=e4m3:4x3x3x3", "e4m3 is for forward passes"},
        {"conv x=e4m3:1x3x8 w=f16:4x3x3", "e4m3 and e5m2 go with each other"},
        {"conv x=e5m2:1x3x8 w=e4m3:4x3x3 y=f64:1x4x6", "f32, f16, bf16, e4m3"},
        {"conv x=s8:1x200000x1 w=s8:1x200000x1", "200000 products"},
        {"conv pass=dgrad x=f32:1x3x8 w=f32:4x3x3 epilogue=relu", "epilogue starts with relu"},
        {"conv x=f32:1x3x8 w=f32:4x3x3 epilogue=bias bias=f32:3",
         "of bias is 3, of the output's channels 4"},
        {"conv x=f32:1x3x8 w=f32:4x3x3 epilogue=residual residual=f32:1x4x5", "residual"},
        {"conv x=f32:1x3x8 w=f32:4x3x3 epilogue=residual residual=s8:1x4x6", "residual is s8"},
        {"conv x=f32:1x3x8 w=f32:4x3x3 aux=f32", "aux holds what goes into an activation"},
        {"conv x=f32:1x3x8 w=f32:4x3x3 aux=f64 epilogue=relu", "aux is f64; with f32 inputs it is"},
        {"conv x=f32:1x3x8 w=f32:4x3x3 aux=f32:1x4x5 epilogue=relu", "aux"},
        {"conv pass=dgrad x=f32:1x3x8 w=f32:4x3x3 amax=f32", "amax is for pass fwd, this is dgrad"},
        {"conv pass=wgrad x=f32:1x3x8 w=f32:4x3x3 stat_sum=f32", "stat_sum is for pass fwd"},
        {"conv pass=dgrad x=e4m3:1x3x8 w=f32:4x3x3 y=f32:1x4x6", "x is e4m3: it must be f32"},
        {"conv x=f32:1x3x8 w=f32:4x3x3 scale_y=f32", "scale_y is for an 8-bit y, y is f32"},
        {"conv x=f32:1x3x8 w=f32:4x3x3 y=s8 scale_y=f16", "scale_y is f16, it must be f32"},
        {"conv x=f32:1x3x8 w=f32:4x3x3 y=s8 scale_y=f32:4",
         "dimension 0 of scale_y is 4, it must be 1"},
        {"conv x=f32:1x3x8 w=f32:4x3x3 y=u8",
         "y is u8, it must be f64, f32, f16, bf16, e4m3, e5m2, s8 or s32"},
        {"conv x=f64:1x3x8 w=f64:4x3x3 y=e4m3", "y is e4m3: it must be f64"},
        {"conv x=f64:1x3x8 w=f64:4x3x3 amax=f32", "amax is f32, it must be f64"},
        {"conv x=f32:1x3x8 w=f32:4x3x3 y=e4m3 stat_sum=f32", "y is e4m3; stat_sum and"},
        {"conv x=f32:1x3x8 w=f32:4x3x3 stat_sum=f32:3",
         "dimension 0 of stat_sum is 3, it must be 4"},
        {"conv x=f32:1x3x8 w=f32:4x3x3 stat_square=bf16", "stat_square is bf16, it must be f32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mica_problem *p = NULL;
        mica_status status = mica_problem_from_text(cases[i].line, &p);
        if (status != MICA_INVALID || !strstr(mica_error(), cases[i].reason))
            fail_msg("%s: status %d, \"%s\", not \"%s\"", cases[i].line, (int)status, mica_error(),
                     cases[i].reason);
        mica_problem_destroy(p);
    }
}

static void test_inference(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        int arg;
        const char *text;
    } cases[] = {
        {"conv x=bf16:2x3x8x9:nhwc w=bf16:4x3x3x3 stride=2x1", 2, "bf16:2x4x3x7:nhwc"},
        {"conv pass=dgrad y=f32:2x4x6x7 w=f32:4x3x3x3", 0, "f32:2x3x8x9"},
        {"conv transposed=1 x=f32:2x3x4 w=f32:3x2x3 stride=2 groups=3 output_pad=1", 2,
         "f32:2x6x10"},
        {"conv transposed=1 pass=dgrad y=f32:2x6x10 w=f32:3x2x3 stride=2 groups=3", 0, "f32:2x3x4"},
        {"conv x=u8:2x3x8 w=s8:4x3x3 epilogue=bias", 2, "s32:2x4x6"},
        {"conv x=u8:2x3x8 w=s8:4x3x3 epilogue=bias", 3, "f32:4"},
        {"conv x=f32:2x3x8 w=f32:4x3x3 epilogue=bias bias=bf16", 3, "bf16:4"},
        {"conv x=f32:2x3x8 w=f32:4x3x3 y=s8 scale_y=f32:1x1", 7, "f32:1x1"},
        {"conv x=f64:2x3x8 w=f64:4x3x3 epilogue=scale,residual", 6, "f64:2x4x6"},
        {"conv x=f32:2x3x0x5 w=f32:4x3x3x3 pad=1x0", 2, "f32:2x4x0x3"},
        {"conv x=f32:2x1x8x9:nhwc w=f32:4x1x3x3", 2, "f32:2x4x6x7:nhwc"},
        {"conv x=f32:2x1x8x9 w=f32:4x1x3x3", 2, "f32:2x4x6x7"},
        {"conv transposed=1 x=f32:2x3x1x1 w=f32:3x4x2x2", 2, "f32:2x4x2x2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mica_problem *p = problem_of(cases[i].line);
        mica_arg_info info = arg_of(p, cases[i].arg);
        char text[128];
        mica_tensor_text(&info.tensor, text, sizeof text);
        assert_string_equal(text, cases[i].text);
        mica_problem_destroy(p);
    }
}

/* ---- adjoints ---- */

static const char *const linear_cases[] = {
    "x=f64:2x4x7x6 w=f64:6x4x3x2",
    "x=f64:2x4x7x6 w=f64:6x4x3x2 pad=1x2 stride=2x3",
    "x=f64:2x4x7x6 w=f64:6x2x3x2 groups=2 pad=1x1 dilation=2x1",
    "x=f64:2x4x7x6 w=f64:4x1x3x3 groups=4 pad=1x1 stride=2x1",
    "x=f64:2x4x7x6 w=f64:6x4x3x2 pad=2x0 pad_extra=-1x1",
    "x=f64:2x4x7x6 w=f64:6x4x3x2 pad=-1x0 pad_extra=1x-2 flip=1",
    "x=f64:2x4x7x6:nhwc w=f64:6x4x3x2:nhwc pad=1x1 stride=1x2",
    "x=f64:1x2x4x5x6 w=f64:3x2x2x3x2 pad=1x0x1 stride=1x2x1 dilation=1x1x2",
    "x=f64:2x6x19 w=f64:4x3x5 groups=2 pad=4 pad_extra=-4 dilation=2",
    "transposed=1 x=f64:2x4x5x6 w=f64:4x3x3x2 stride=2x3 pad=1x0 output_pad=1x2",
    "transposed=1 x=f64:2x4x5x6 w=f64:4x3x3x2 groups=2 dilation=2x1 pad_extra=1x0",
    "transposed=1 x=f64:2x4x5x6 w=f64:4x1x3x3 groups=4 stride=2x2 flip=1",
    "x=f32:2x40x7x6:nhwc w=f32:40x1x3x3 groups=40 pad=1x1 stride=2x1",
    "x=f32:2x6x5x17 w=f32:6x1x3x5 groups=6 pad=1x2 dilation=1x2",
    "x=f32:2x8x7x6 w=f32:8x4x3x3 groups=2 pad=1x1 stride=2x2",
    "transposed=1 x=f32:2x8x5x6:nhwc w=f32:8x4x3x2 stride=2x1",
};

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static void small_integers(double *v, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) v[i] = floor(7 * mica_random_uniform(seed, (uint64_t)i)) - 3;
}

/* <conv(x, w), dy>, <x, dgrad(dy, w)>, <w, wgrad(x, dy)> on one engine. */
static void three_products(const char *engine, const char *fwd, const char *back, double product[3])
{
    static values v, g;
    char line[512];
    snprintf(line, sizeof line, "conv %s", fwd);
    mica_problem *p = problem_of(line);
    int64_t n[3] = {count_of(p, 0), count_of(p, 1), count_of(p, 2)};
    mica_problem_destroy(p);
    for (int i = 0; i < 2; i++) small_integers(v.v[i], n[i], 11 + (uint64_t)i);
    small_integers(g.v[2], n[2], 13);
    run_on(engine, line, &v);
    product[0] = dot(v.v[2], g.v[2], n[2]);
    for (int pass = 1; pass < 3; pass++) {
        snprintf(line, sizeof line, "conv pass=%s %s", pass == 1 ? "dgrad" : "wgrad", back);
        int out = pass - 1;
        memcpy(g.v[0], v.v[0], sizeof g.v[0]);
        memcpy(g.v[1], v.v[1], sizeof g.v[1]);
        run_on(engine, line, &g);
        product[pass] = dot(g.v[out], v.v[out], n[out]);
    }
}

static void test_adjoint(void **state)
{
    (void)state;
    static const char *const engines[] = {"ref", "cpu", "onednn"};
    int ran[3] = {0};
    for (size_t i = 0; i < sizeof linear_cases / sizeof *linear_cases; i++)
        for (int e = 0; e < 3; e++) {
            char line[512];
            bool here = true;
            for (int pass = 0; pass < 3 && here; pass++) {
                static const char *const passes[] = {"fwd", "dgrad", "wgrad"};
                snprintf(line, sizeof line, "conv pass=%s %s", passes[pass], linear_cases[i]);
                here = has_engine(engines[e], line);
            }
            if (!here) continue;
            double product[3];
            three_products(engines[e], linear_cases[i], linear_cases[i], product);
            ran[e]++;
            if (product[0] != product[1] || product[0] != product[2])
                fail_msg("%s on %s: %.17g, %.17g, %.17g", linear_cases[i], engines[e], product[0],
                         product[1], product[2]);
        }
    int all = (int)(sizeof linear_cases / sizeof *linear_cases);
    assert_int_equal(ran[0], all);
    assert_int_equal(ran[1], all);
    if (has_engine("onednn", "conv x=f32:1x8x8x8 w=f32:8x8x3x3")) assert_true(ran[2] >= 3);
}

/* The identity must break where the gradient belongs to another convolution. */
static void test_adjoint_notices(void **state)
{
    (void)state;
    double product[3];
    three_products("ref", "x=f64:2x4x7x6 w=f64:6x4x3x3 pad=1x1",
                   "x=f64:2x4x7x6 w=f64:6x4x3x3 pad=0x1 pad_extra=2x0", product);
    assert_true(product[0] != product[1] && product[0] != product[2]);
    three_products("ref", "x=f64:2x4x7x6 w=f64:6x4x3x3 pad=1x1",
                   "x=f64:2x4x7x6 w=f64:6x4x3x3 pad=1x1 flip=1", product);
    assert_true(product[0] != product[1] && product[0] != product[2]);
}

/* ---- finite differences ---- */

static void test_differences(void **state)
{
    (void)state;
    const double eps = 1e-6;
    for (int c = 0; c < 12; c++) {
        static values v, g;
        char line[512];
        snprintf(line, sizeof line, "conv %s", linear_cases[c]);
        mica_problem *p = problem_of(line);
        for (int i = 0; i < 3; i++)
            for (int64_t k = 0; k < count_of(p, i); k++)
                v.v[i][k] = g.v[i][k] = mica_random_normal(17 + (uint64_t)i, (uint64_t)k);
        int64_t ny = count_of(p, 2);
        for (int arg = 0; arg < 2; arg++) {
            snprintf(line, sizeof line, "conv pass=%s %s", arg ? "wgrad" : "dgrad",
                     linear_cases[c]);
            memcpy(g.v[0], v.v[0], sizeof g.v[0]);
            memcpy(g.v[1], v.v[1], sizeof g.v[1]);
            run_on("ref", line, &g);
            snprintf(line, sizeof line, "conv %s", linear_cases[c]);
            for (int64_t k = 0; k < count_of(p, arg); k += 7) {
                double old = v.v[arg][k], loss[2];
                for (int side = 0; side < 2; side++) {
                    v.v[arg][k] = old + (side ? eps : -eps);
                    run_on("ref", line, &v);
                    loss[side] = dot(v.v[2], g.v[2], ny);
                }
                v.v[arg][k] = old;
                double slope = (loss[1] - loss[0]) / (2 * eps), want = g.v[arg][k];
                if (fabs(slope - want) > 1e-5 + 1e-3 * fabs(want))
                    fail_msg("%s, argument %d, element %lld: %g, by differences %g", line, arg,
                             (long long)k, want, slope);
            }
        }
        mica_problem_destroy(p);
    }
}

/* ---- a plan shared by threads ---- */

enum { THREADS = 12, ROUNDS = 40 };

typedef struct job {
    const mica_plan *plan;
    const float *x, *w;
    float y[4 * 16 * 49];
    int failures;
    const float *want;
} job;

static void *run_job(void *data)
{
    job *j = data;
    size_t bytes = mica_plan_workspace(j->plan);
    void *workspace = bytes ? aligned_alloc(256, bytes) : NULL;
    for (int i = 0; i < ROUNDS; i++) {
        memset(j->y, 0xff, sizeof j->y);
        mica_run run = {.args = {[MICA_CONV_X] = (void *)(uintptr_t)j->x,
                                 [MICA_CONV_W] = (void *)(uintptr_t)j->w,
                                 [MICA_CONV_Y] = j->y},
                        .workspace = workspace};
        if (mica_plan_run(j->plan, &run) != MICA_OK) j->failures++;
        if (j->want && memcmp(j->y, j->want, sizeof j->y)) j->failures++;
    }
    free(workspace);
    return NULL;
}

static void share_plan(const char *engine, const char *config)
{
    static float x[THREADS][4 * 8 * 49], w[16 * 8 * 9];
    static job alone[THREADS], together[THREADS];
    mica_plan *plan;
    mica_options options = {.engine = engine, .config = config};
    const char *line = "conv x=f32:4x8x7x7 w=f32:16x8x3x3 pad=1x1";
    mica_status status = mica_plan_from_text(cpu(), line, &options, &plan);
    if (status != MICA_OK) fail_msg("%s %s: %s", engine, config ? config : "", mica_error());
    for (int i = 0; i < 16 * 8 * 9; i++) w[i] = (float)mica_random_normal(3, (uint64_t)i);
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; t++) {
        for (int i = 0; i < 4 * 8 * 49; i++)
            x[t][i] = (float)mica_random_normal(100 + (uint64_t)t, (uint64_t)i);
        alone[t] = together[t] = (job){.plan = plan, .x = x[t], .w = w};
        run_job(&alone[t]);
        together[t].want = alone[t].y;
    }
    assert_memory_not_equal(alone[0].y, alone[1].y, sizeof alone[0].y);
    for (int t = 0; t < THREADS; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, run_job, &together[t]), 0);
    for (int t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
        assert_int_equal(alone[t].failures + together[t].failures, 0);
    }
    mica_plan_destroy(plan);
}

static void test_threads(void **state)
{
    (void)state;
    share_plan("cpu", NULL);
    if (!has_engine("onednn", "conv x=f32:4x8x7x7 w=f32:16x8x3x3 pad=1x1")) return;
    share_plan("onednn", "formats=1");
    share_plan("onednn", "formats=2");
}

/* A caller inside a parallel region has one thread to give, the plan was made for more. */
static void test_inside_parallel_region(void **state)
{
    (void)state;
    static float x[1 * 8 * 49], w[16 * 8 * 9], y[2][16 * 49];
    mica_plan *plan;
    assert_int_equal(
        mica_plan_from_text(cpu(), "conv x=f32:1x8x7x7 w=f32:16x8x3x3 pad=1x1", NULL, &plan),
        MICA_OK);
    for (int i = 0; i < 8 * 49; i++) x[i] = (float)(i % 5 - 2);
    for (int i = 0; i < 16 * 8 * 9; i++) w[i] = (float)(i % 3 - 1);
    void *workspaces[2] = {aligned_alloc(256, mica_plan_workspace(plan) + 256),
                           aligned_alloc(256, mica_plan_workspace(plan) + 256)};
    mica_status status[2];
#pragma omp parallel for num_threads(2)
    for (int i = 0; i < 2; i++)
        status[i] =
            mica_plan_run(plan, &(mica_run){.args = {x, w, y[i]}, .workspace = workspaces[i]});
    assert_int_equal(status[0] | status[1], MICA_OK);
    assert_memory_equal(y[0], y[1], sizeof y[0]);
    assert_memory_not_equal(y[0], (float[16 * 49]){0}, sizeof y[0]);
    free(workspaces[0]);
    free(workspaces[1]);
    mica_plan_destroy(plan);
}

/* Some engine takes every sound line without any workspace. */
static void test_no_workspace(void **state)
{
    (void)state;
    mica_options options = {.workspace_limit = MICA_NO_WORKSPACE};
    for (size_t i = 0; i < sizeof linear_cases / sizeof *linear_cases; i++) {
        char line[512];
        mica_plan *plan;
        snprintf(line, sizeof line, "conv %s", linear_cases[i]);
        if (mica_plan_from_text(cpu(), line, &options, &plan) != MICA_OK)
            fail_msg("%s", mica_error());
        assert_int_equal(mica_plan_workspace(plan), 0);
        mica_plan_destroy(plan);
    }
}

/* The comparison of these tests sees one wrong element. */
static void test_mutant(void **state)
{
    (void)state;
    static values v, u;
    for (int i = 0; i < 2; i++) small_integers(v.v[i], MOST, 5 + (uint64_t)i);
    u = v;
    run_on("ref", "conv x=f64:2x4x7x6 w=f64:6x4x3x3 pad=1x1", &v);
    run_on("cpu", "conv x=f64:2x4x7x6 w=f64:6x4x3x3 pad=1x1", &u);
    assert_true(same(v.v[2], u.v[2], 2 * 6 * 42));
    u.v[2][2 * 6 * 42 - 1] += 1;
    assert_false(same(v.v[2], u.v[2], 2 * 6 * 42));
    run_on("cpu", "conv x=f64:2x4x7x6 w=f64:6x4x3x3 pad=0x1 pad_extra=2x0", &u);
    assert_false(same(v.v[2], u.v[2], 2 * 6 * 42));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_golden_groups),
        cmocka_unit_test(test_empty_sum),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_more_results),
        cmocka_unit_test(test_inference),
        cmocka_unit_test(test_adjoint),
        cmocka_unit_test(test_adjoint_notices),
        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_inside_parallel_region),
        cmocka_unit_test(test_no_workspace),
        cmocka_unit_test(test_mutant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
