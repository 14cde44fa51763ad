/* SPDX-License-Identifier: Apache-2.0
 * Convolutions through the graph interface, by the calls that PyTorch makes: all three passes,
 * groups, depthwise, layouts, one to three dimensions, f64 with DOUBLE factors, and with sum, bias
 * and ReLU. */
#include "backend_test.h"

typedef struct problem {
    cudnnDataType_t type;
    layout order;
    int axes, n, c, k, groups, x[3], w[3], pad[3], after[3], stride[3], dilation[3];
    int mode;
    double alpha, beta;
} problem;

static int64_t out_of(const problem *p, int i)
{
    const int span = (p->w[i] - 1) * p->dilation[i] + 1;
    return (p->x[i] + p->pad[i] + p->after[i] - span) / p->stride[i] + 1;
}

typedef struct setting {
    array x, w, y;
} setting;

static setting set_up(const problem *p)
{
    int x[6] = {p->n, p->c}, w[6] = {p->k, p->c / p->groups}, y[6] = {p->n, p->k};
    for (int i = 0; i < p->axes; i++) {
        x[2 + i] = p->x[i];
        w[2 + i] = p->w[i];
        y[2 + i] = (int)out_of(p, i);
    }
    return (setting){array_new(p->type, p->order, x), array_new(p->type, p->order, w),
                     array_new(p->type, p->order, y)};
}

static void tear_down(setting *s)
{
    array_free(&s->x);
    array_free(&s->w);
    array_free(&s->y);
}

/* alpha * products + beta * old content of which of x, w, y is `out`. */
static double *convolve(const problem *p, const setting *s, char out)
{
    const array *result = out == 'x' ? &s->x : out == 'w' ? &s->w : &s->y;
    const int64_t *yd = s->y.t.dims, *wd = s->w.t.dims;
    double *sums = calloc((size_t)result->count + 1, sizeof *sums);
    int64_t taps = 1, pixels = 1;
    for (int i = 0; i < p->axes; i++) taps *= wd[2 + i], pixels *= yd[2 + i];
    for (int64_t n = 0; n < p->n; n++)
        for (int64_t k = 0; k < p->k; k++)
            for (int64_t q = 0; q < pixels; q++)
                for (int64_t c = 0; c < wd[1]; c++)
                    for (int64_t t = 0; t < taps; t++) {
                        int64_t yi[5] = {n, k}, wi[5] = {k, c};
                        int64_t xi[5] = {n, k / (p->k / p->groups) * wd[1] + c};
                        bool inside = true;
                        for (int64_t i = p->axes - 1, rq = q, rt = t; i >= 0; i--) {
                            const int64_t tap = rt % wd[2 + i];
                            yi[2 + i] = rq % yd[2 + i], rq /= yd[2 + i], rt /= wd[2 + i];
                            wi[2 + i] = p->mode == CUDNN_CONVOLUTION ? wd[2 + i] - 1 - tap : tap;
                            xi[2 + i] = yi[2 + i] * p->stride[i] - p->pad[i] + tap * p->dilation[i];
                            inside = inside && xi[2 + i] >= 0 && xi[2 + i] < p->x[i];
                        }
                        if (!inside) continue;
                        const int64_t xa = at(&s->x.t, xi), wa = at(&s->w.t, wi);
                        const int64_t ya = at(&s->y.t, yi);
                        if (out == 'y') sums[ya] += s->x.v[xa] * s->w.v[wa];
                        if (out == 'x') sums[xa] += s->y.v[ya] * s->w.v[wa];
                        if (out == 'w') sums[wa] += s->y.v[ya] * s->x.v[xa];
                    }
    for (int64_t i = 0; i < result->count; i++)
        sums[i] = p->alpha * sums[i] + (p->beta ? p->beta * result->v[i] : 0);
    return sums;
}

static desc conv_desc(const problem *p)
{
    desc d = make(BT_CONVOLUTION);
    int64_t pre[3], post[3], stride[3], dilation[3];
    for (int i = 0; i < p->axes; i++) {
        pre[i] = p->pad[i], post[i] = p->after[i];
        stride[i] = p->stride[i], dilation[i] = p->dilation[i];
    }
    put_int(d, AT_CONVOLUTION_COMP_TYPE, BW_DATA_TYPE,
            p->type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT);
    put_int(d, AT_CONVOLUTION_CONV_MODE, BW_CONVOLUTION_MODE, p->mode);
    put_wide(d, AT_CONVOLUTION_SPATIAL_DIMS, p->axes);
    put(d, AT_CONVOLUTION_PRE_PADDINGS, BW_INT64, p->axes, pre);
    put(d, AT_CONVOLUTION_POST_PADDINGS, BW_INT64, p->axes, post);
    put(d, AT_CONVOLUTION_DILATIONS, BW_INT64, p->axes, dilation);
    put(d, AT_CONVOLUTION_FILTER_STRIDES, BW_INT64, p->axes, stride);
    finish(d);
    return d;
}

static void put_factor(desc op, int attribute, cudnnDataType_t type, double value)
{
    if (type == CUDNN_DATA_DOUBLE)
        put(op, attribute, BW_DOUBLE, 1, &value);
    else
        put_float(op, attribute, (float)value);
}

static desc conv_op(const problem *p, int type, desc x, desc w, desc y)
{
    static const int places[][6] = {{AT_CONV_FWD_X, AT_CONV_FWD_W, AT_CONV_FWD_Y, AT_CONV_FWD_DESC,
                                     AT_CONV_FWD_ALPHA, AT_CONV_FWD_BETA},
                                    {AT_CONV_WGRAD_X, AT_CONV_WGRAD_DW, AT_CONV_WGRAD_DY,
                                     AT_CONV_WGRAD_DESC, AT_CONV_WGRAD_ALPHA, AT_CONV_WGRAD_BETA},
                                    {AT_CONV_DGRAD_DX, AT_CONV_DGRAD_W, AT_CONV_DGRAD_DY,
                                     AT_CONV_DGRAD_DESC, AT_CONV_DGRAD_ALPHA, AT_CONV_DGRAD_BETA}};
    const int *at = places[type - BT_CONV_FWD];
    desc op = make(type), d = conv_desc(p);
    put_desc(op, at[0], x);
    put_desc(op, at[1], w);
    put_desc(op, at[2], y);
    put_desc(op, at[3], d);
    put_factor(op, at[4], p->type, p->alpha);
    put_factor(op, at[5], p->type, p->beta);
    finish(op);
    drop(d);
    return op;
}

static void run_pass(const problem *p, int type, char out, int which)
{
    setting s = set_up(p);
    const array *result = out == 'x' ? &s.x : out == 'w' ? &s.w : &s.y;
    double *expected = convolve(p, &s, out);
    desc x = tensor_desc(120, &s.x.t, 'r'), y = tensor_desc(121, &s.y.t, 'r');
    desc w = tensor_desc(119, &s.w.t, 'r'), op = conv_op(p, type, x, w, y);
    drop(x);
    drop(y);
    drop(w);
    run_ops(1, &op, which, 3, (const int64_t[]){120, 121, 119},
            (void *[]){s.x.data, s.y.data, s.w.data});
    array_is(result, expected, 2, 1);
    free(expected);
    tear_down(&s);
}

#define ONES                                                                                       \
    {                                                                                              \
        1, 1, 1                                                                                    \
    }
#define PLAIN .mode = CUDNN_CROSS_CORRELATION, .alpha = 1

static void all_passes(void **unused)
{
    (void)unused;
    const problem problems[] = {
        {CUDNN_DATA_BFLOAT16,
         NHWC,
         2,
         2,
         8,
         8,
         1,
         {6, 6},
         {3, 3},
         {1, 1},
         {1, 1},
         ONES,
         ONES,
         PLAIN},
        {CUDNN_DATA_FLOAT,
         NCHW,
         2,
         2,
         3,
         4,
         1,
         {7, 6},
         {3, 3},
         {1, 1},
         {1, 1},
         {2, 2},
         ONES,
         PLAIN},
        {CUDNN_DATA_HALF, NCHW, 2, 2, 8, 8, 4, {5, 5}, {3, 3}, {1, 1}, {1, 1}, ONES, ONES, PLAIN},
        {CUDNN_DATA_HALF, NHWC, 2, 2, 8, 8, 8, {5, 5}, {3, 3}, {1, 1}, {1, 1}, ONES, ONES, PLAIN},
        {CUDNN_DATA_DOUBLE, NCHW, 2, 1, 3, 2, 1, {5, 5}, {3, 3}, {0}, {0}, ONES, ONES, PLAIN},
        {CUDNN_DATA_BFLOAT16,
         NCHW,
         2,
         2,
         4,
         4,
         1,
         {1, 12},
         {1, 5},
         {0, 2},
         {0, 2},
         ONES,
         ONES,
         PLAIN},
        {CUDNN_DATA_HALF,
         NCHW,
         3,
         1,
         3,
         4,
         1,
         {4, 4, 3},
         {2, 3, 2},
         {1, 1, 0},
         {1, 1, 0},
         ONES,
         ONES,
         PLAIN},
        {CUDNN_DATA_FLOAT,
         NCHW,
         2,
         2,
         3,
         4,
         1,
         {6, 7},
         {3, 2},
         {1, 0},
         {2, 1},
         ONES,
         {1, 2},
         PLAIN},
        {CUDNN_DATA_FLOAT,
         NHWC,
         2,
         1,
         3,
         4,
         1,
         {6, 6},
         {1, 1},
         {0},
         {0},
         ONES,
         ONES,
         .mode = CUDNN_CONVOLUTION,
         .alpha = 0.5,
         .beta = 2},
        {CUDNN_DATA_FLOAT,
         NCHW,
         1,
         2,
         3,
         4,
         1,
         {9},
         {3},
         {1},
         {1},
         ONES,
         ONES,
         .mode = CUDNN_CONVOLUTION,
         .alpha = 2,
         .beta = 0.25},
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (int which = 0; which < 1 + (problems[i].type == CUDNN_DATA_FLOAT); which++) {
            run_pass(&problems[i], BT_CONV_FWD, 'y', which);
            run_pass(&problems[i], BT_CONV_DGRAD, 'x', which);
            run_pass(&problems[i], BT_CONV_WGRAD, 'w', which);
        }
}

/* conv -> + alpha2 z -> + bias -> relu, z unread where alpha2 is 0. */
static void fused(void **unused)
{
    (void)unused;
    const problem p = {CUDNN_DATA_HALF, NHWC,   2,      2,      8,    8,    1,
                       {5, 5},          {3, 3}, {1, 1}, {1, 1}, ONES, ONES, PLAIN};
    for (int step = 0; step < 3; step++) {
        const float alpha2 = (float)step / 2;
        setting s = set_up(&p);
        const int same[] = {2, 8, 5, 5, 0}, channels[] = {1, 8, 1, 1, 0};
        array z = step ? array_new(p.type, NHWC, same) : array_filled(p.type, NHWC, same, NAN);
        array bias = array_new(p.type, NHWC, channels);
        double *expected = convolve(&p, &s, 'y');
        mica_tensor wide = s.y.t;
        wide.dtype = MICA_F32;
        for (int64_t i = 0; i < s.y.count; i++) {
            expected[i] += bias.v[i / 25 % 8] + (step ? (double)alpha2 * z.v[i] : 0);
            expected[i] = fmax(expected[i], 0);
        }
        desc x = tensor_desc(120, &s.x.t, 'r'), y = tensor_desc(121, &s.y.t, 'r');
        desc w = tensor_desc(119, &s.w.t, 'r'), tz = tensor_desc(122, &z.t, 'r');
        desc b = tensor_desc(98, &bias.t, 'r'), v1 = tensor_desc(67, &wide, 'v');
        desc v2 = tensor_desc(65, &wide, 'v'), v3 = tensor_desc(66, &wide, 'v');
        desc ops[] = {conv_op(&p, BT_CONV_FWD, x, w, v1),
                      pointwise(PW_ADD, v1, tz, NULL, v2, -1, alpha2),
                      pointwise(PW_ADD, v2, b, NULL, v3, -1, 1),
                      pointwise(PW_RELU_FWD, v3, NULL, NULL, y, -1, 1)};
        desc parts[] = {x, y, w, tz, b, v1, v2, v3};
        for (int i = 0; i < 8; i++) drop(parts[i]);
        run_ops(4, ops, 0, 5, (const int64_t[]){120, 121, 119, 122, 98},
                (void *[]){s.x.data, s.y.data, s.w.data, z.data, bias.data});
        array_is(&s.y, expected, 2, 1);
        free(expected);
        array_free(&z);
        array_free(&bias);
        tear_down(&s);
    }
}

/* What PyTorch and XLA ask of configurations, engines and plans. */
static void questions(void **unused)
{
    (void)unused;
    const problem p = {CUDNN_DATA_FLOAT, NCHW,   2,      1,      3,    4,    1,
                       {5, 5},           {3, 3}, {1, 1}, {1, 1}, ONES, ONES, PLAIN};
    setting s = set_up(&p);
    desc x = tensor_desc(120, &s.x.t, 'r'), y = tensor_desc(121, &s.y.t, 'r');
    desc w = tensor_desc(119, &s.w.t, 'r'), op = conv_op(&p, BT_CONV_FWD, x, w, y);
    desc g = graph_of(1, &op);
    int64_t count = -1, index = -1, bytes = -1, told;
    int32_t notes[10], shared = -1;
    for (int mode = 0; mode < HEURISTIC_MODES; mode++) {
        drop(config_of(g, mode, 0, &count));
        assert_int_equal(count, 2); /* TF32 in front of IEEE arithmetic */
    }
    SUCCEEDS(cudnnBackendGetAttribute(g, AT_GRAPH_ENGINE_GLOBAL_COUNT, BW_INT64, 1, NULL, &bytes));
    assert_int_equal(bytes, 2);
    /* TF32 is told by the note of tensor cores alone, which a CPU has not */
    desc fast = config_of(g, HEURISTIC_A, 0, NULL), first = make(BT_ENGINE);
    SUCCEEDS(cudnnBackendGetAttribute(fast, AT_CONFIG_ENGINE, BW_DESCRIPTOR, 1, NULL, &first));
    SUCCEEDS(cudnnBackendGetAttribute(first, AT_ENGINE_NUMERICAL_NOTE, BW_NUMERICAL_NOTE, 10,
                                      &count, notes));
    assert_int_equal(count, strcmp(getenv("MICA_CUDNN_DEVICE"), "cpu") != 0);
    if (count) assert_int_equal(notes[0], NOTE_TENSOR_CORE);
    drop(fast);
    drop(first);
    desc config = config_of(g, HEURISTIC_B, 1, NULL), engine = make(BT_ENGINE), choices[44];
    SUCCEEDS(cudnnBackendGetAttribute(config, AT_CONFIG_ENGINE, BW_DESCRIPTOR, 1, &count, &engine));
    assert_int_equal(count, 1);
    SUCCEEDS(cudnnBackendGetAttribute(engine, AT_ENGINE_GLOBAL_INDEX, BW_INT64, 1, NULL, &index));
    assert_int_equal(index, 1);
    SUCCEEDS(cudnnBackendGetAttribute(engine, AT_ENGINE_NUMERICAL_NOTE, BW_NUMERICAL_NOTE, 10,
                                      &told, NULL));
    SUCCEEDS(cudnnBackendGetAttribute(engine, AT_ENGINE_NUMERICAL_NOTE, BW_NUMERICAL_NOTE, 10,
                                      &count, notes));
    assert_int_equal(count, told);
    assert_int_equal(count, 0); /* IEEE arithmetic */
    SUCCEEDS(cudnnBackendGetAttribute(engine, AT_ENGINE_KNOB_INFO, BW_DESCRIPTOR, 0, &count, NULL));
    assert_int_equal(count, 0);
    for (int i = 0; i < 44; i++) choices[i] = make(BT_KNOB_CHOICE);
    SUCCEEDS(cudnnBackendGetAttribute(config, AT_CONFIG_KNOB_CHOICES, BW_DESCRIPTOR, 44, &count,
                                      choices));
    assert_int_equal(count, 0);
    for (int i = 0; i < 44; i++) drop(choices[i]);
    SUCCEEDS(cudnnBackendGetAttribute(config, AT_CONFIG_WORKSPACE_SIZE, BW_INT64, 1, NULL, &bytes));
    SUCCEEDS(
        cudnnBackendGetAttribute(config, AT_CONFIG_SHARED_MEMORY_USED, BW_INT32, 1, NULL, &shared));
    assert_true(bytes >= 0 && shared >= 0);
    /* an engine made again of its index, as XLA does */
    desc again = make(BT_ENGINE), rebuilt = make(BT_CONFIG);
    put_desc(again, AT_ENGINE_OPERATION_GRAPH, g);
    put_wide(again, AT_ENGINE_GLOBAL_INDEX, index);
    finish(again);
    put_desc(rebuilt, AT_CONFIG_ENGINE, again);
    finish(rebuilt);
    desc plan = plan_of(rebuilt);
    assert_int_equal(workspace_of(plan), bytes);
    desc parts[] = {x, y, w, op, g, config, engine, again, rebuilt, plan};
    for (int i = 0; i < 10; i++) drop(parts[i]);
    tear_down(&s);
}

/* A plan goes into text and comes back without its graph. */
static void serialised(void **unused)
{
    (void)unused;
    const problem p = {CUDNN_DATA_FLOAT, NCHW,   2,      1,      3,    4,    1,
                       {5, 5},           {3, 3}, {1, 1}, {1, 1}, ONES, ONES, PLAIN};
    setting s = set_up(&p);
    double *expected = convolve(&p, &s, 'y');
    desc x = tensor_desc(-7, &s.x.t, 'r'), y = tensor_desc(121, &s.y.t, 'r');
    desc w = tensor_desc(119, &s.w.t, 'r'), op = conv_op(&p, BT_CONV_FWD, x, w, y);
    desc g = graph_of(1, &op), config = config_of(g, HEURISTIC_A, 1, NULL), plan = plan_of(config);
    int64_t length = 0, index = -1;
    SUCCEEDS(cudnnBackendGetAttribute(plan, AT_PLAN_JSON, BW_CHAR, 0, &length, NULL));
    char *json = calloc(1, (size_t)length + 1);
    SUCCEEDS(cudnnBackendGetAttribute(plan, AT_PLAN_JSON, BW_CHAR, length, &length, json));
    desc parts[] = {x, y, w, op, g, config, plan};
    for (int i = 0; i < 7; i++) drop(parts[i]);
    plan = make(BT_PLAN);
    put(plan, AT_PLAN_HANDLE, BW_HANDLE, 1, &handle);
    put(plan, AT_PLAN_JSON, BW_CHAR, length, json);
    finish(plan);
    SUCCEEDS(run_plan(plan, 3, (const int64_t[]){121, -7, 119},
                      (void *[]){s.y.data, s.x.data, s.w.data}));
    array_is(&s.y, expected, 2, 1);
    config = make(BT_CONFIG);
    desc engine = make(BT_ENGINE);
    SUCCEEDS(
        cudnnBackendGetAttribute(plan, AT_PLAN_ENGINE_CONFIG, BW_DESCRIPTOR, 1, NULL, &config));
    SUCCEEDS(cudnnBackendGetAttribute(config, AT_CONFIG_ENGINE, BW_DESCRIPTOR, 1, NULL, &engine));
    SUCCEEDS(cudnnBackendGetAttribute(engine, AT_ENGINE_GLOBAL_INDEX, BW_INT64, 1, NULL, &index));
    assert_int_equal(index, 1);
    drop(plan);
    drop(config);
    drop(engine);
    /* cut, or of somebody else */
    plan = make(BT_PLAN);
    put(plan, AT_PLAN_HANDLE, BW_HANDLE, 1, &handle);
    put(plan, AT_PLAN_JSON, BW_CHAR, length / 2, json);
    assert_int_not_equal(cudnnBackendFinalize(plan), CUDNN_STATUS_SUCCESS);
    put(plan, AT_PLAN_JSON, BW_CHAR, 2, "{}");
    assert_int_not_equal(cudnnBackendFinalize(plan), CUDNN_STATUS_SUCCESS);
    drop(plan);
    free(json);
    free(expected);
    tear_down(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_passes),
        cmocka_unit_test(fused),
        cmocka_unit_test(questions),
        cmocka_unit_test(serialised),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
