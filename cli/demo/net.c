/* SPDX-License-Identifier: Apache-2.0
 * The demonstration's network. */
#include "demo/net.h"
#include "demo/digits.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { C1 = NET_CHANNELS_1, C2 = NET_CHANNELS_2, FEATURES = C2 * 16 };

#define TRY(expr)                                                                                  \
    do {                                                                                           \
        mica_status try_status = (expr);                                                           \
        if (try_status != MICA_OK) return try_status;                                              \
    } while (0)

/* ---- buffers ---- */

static mica_status add_buffer(net *n, const char *name, int64_t bytes, char *memory)
{
    int i = n->buffer_count;
    if (i == NET_BUFFERS) abort();
    snprintf(n->buffers[i].name, sizeof n->buffers[i].name, "%s", name);
    n->buffers[i].bytes = bytes;
    n->buffers[i].memory = memory;
    n->buffers[i].owned = !memory;
    n->buffer_count++;
    if (memory) return MICA_OK;
    void *fresh;
    mica_status status = mica_malloc(n->context, bytes, &fresh);
    if (status != MICA_OK) {
        n->buffer_count--;
        return status;
    }
    n->buffers[i].memory = fresh;
    return mica_memset(n->context, fresh, 0, bytes, NULL);
}

void *net_buffer(net *n, const char *name, int64_t *bytes)
{
    for (int i = 0; i < n->buffer_count; i++) {
        if (strcmp(n->buffers[i].name, name) != 0) continue;
        if (bytes) *bytes = n->buffers[i].bytes;
        return n->buffers[i].memory;
    }
    return NULL;
}

/* ---- steps ---- */

/* Binds each argument of the plan to the buffer that `bindings` ("x=conv1 w=w1 y=bn1") names;
 * buffers that do not exist yet are made in the argument's size. */
static mica_status bind(net *n, net_step *s, const char *bindings)
{
    char copy[256], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", bindings);
    for (char *pair = strtok_r(copy, " ", &rest); pair; pair = strtok_r(NULL, " ", &rest)) {
        char *buffer = strchr(pair, '=');
        *buffer++ = 0;
        mica_arg_info info;
        int i = 0;
        while (mica_plan_arg(s->plan, i, &info) == MICA_OK && strcmp(info.name, pair) != 0) i++;
        if (i >= MICA_MAX_ARGS || info.dir == MICA_UNUSED) {
            cli_say("%s: no argument %s", s->line, pair);
            return MICA_INTERNAL;
        }
        if (!net_buffer(n, buffer, NULL)) {
            mica_status status = add_buffer(n, buffer, mica_tensor_span(&info.tensor, NULL), NULL);
            if (status != MICA_OK) return status;
        }
        s->run.args[i] = net_buffer(n, buffer, NULL);
    }
    return MICA_OK;
}

static mica_status add_step(net *n, net_list list, const char *name, const char *bindings,
                            const char *format, ...) __attribute__((format(printf, 5, 6)));

static mica_status add_step(net *n, net_list list, const char *name, const char *bindings,
                            const char *format, ...)
{
    if (n->count[list] == NET_STEPS) abort();
    net_step *s = &n->steps[list][n->count[list]];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(s->line, sizeof s->line, format, arguments);
    va_end(arguments);
    snprintf(s->name, sizeof s->name, "%s", name);
    mica_status status = mica_plan_from_text(n->context, s->line, NULL, &s->plan);
    if (status != MICA_OK) return status;
    n->count[list]++;
    s->phase = n->phase;
    mica_problem *problem;
    TRY(mica_problem_from_text(s->line, &problem));
    mica_problem_cost(problem, &s->flops, &s->bytes);
    s->roof_ms = mica_problem_roofline(n->context, problem);
    mica_problem_destroy(problem);
    return bind(n, s, bindings);
}

/* ---- parameters: one block, so that one optimiser plan steps them all ---- */

typedef struct parameter {
    const char *name;
    int64_t count;
    double deviation, mean; /* of the start */
} parameter;

static const parameter parameters[] = {{"w1", C1 * 9, 0, 0},
                                       {"scale1", C1, 0, 1},
                                       {"bias1", C1, 0, 0},
                                       {"w2", C2 *C1 * 9, 0, 0},
                                       {"scale2", C2, 0, 1},
                                       {"bias2", C2, 0, 0},
                                       {"wf", FEATURES *DIGIT_CLASSES, 0, 0},
                                       {"bf", DIGIT_CLASSES, 0, 0}};
enum { PARAMETERS = sizeof parameters / sizeof *parameters };

/* He's start for the filters (normal, variance 2 / fan-in). */
static double deviation_of(const char *name)
{
    if (!strcmp(name, "w1")) return sqrt(2.0 / 9);
    if (!strcmp(name, "w2")) return sqrt(2.0 / (9 * C1));
    if (!strcmp(name, "wf")) return sqrt(1.0 / FEATURES);
    return 0;
}

static double normal(uint64_t seed, uint64_t i)
{
    double u = ((double)(digits_random(seed, 2 * i) >> 11) + 1) * 0x1p-53;
    double v = (double)(digits_random(seed, 2 * i + 1) >> 11) * 0x1p-53;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static mica_status add_parameters(net *n, uint64_t seed)
{
    n->parameters = 0;
    for (int i = 0; i < PARAMETERS; i++) n->parameters += parameters[i].count;
    size_t bytes = (size_t)n->parameters * sizeof(float);
    float *start = cli_alloc(bytes);
    TRY(add_buffer(n, "parameters", (int64_t)bytes, NULL));
    TRY(add_buffer(n, "gradients", (int64_t)bytes, NULL));
    char *p = net_buffer(n, "parameters", NULL), *g = net_buffer(n, "gradients", NULL);
    int64_t at = 0;
    for (int i = 0; i < PARAMETERS; i++) {
        const parameter *one = &parameters[i];
        double deviation = deviation_of(one->name);
        for (int64_t k = 0; k < one->count; k++)
            start[at + k] = (float)(one->mean + deviation * normal(seed, (uint64_t)(at + k)));
        char gradient[24];
        snprintf(gradient, sizeof gradient, "d%s", one->name);
        TRY(add_buffer(n, one->name, one->count * 4, p + at * 4));
        TRY(add_buffer(n, gradient, one->count * 4, g + at * 4));
        at += one->count;
    }
    mica_status status = mica_upload(n->context, p, start, (int64_t)bytes, NULL);
    free(start);
    return status;
}

/* ---- the network ---- */

static mica_status add_block(net *n, int i, int channels_in, int channels, const char *x)
{
    char name[32], bindings[160];
    int b = n->batch;
    snprintf(name, sizeof name, "conv%d", i);
    snprintf(bindings, sizeof bindings, "x=%s w=w%d y=c%d", x, i, i);
    TRY(add_step(n, NET_TRAIN, name, bindings, "conv x=f32:%dx%dx8x8 w=f32:%dx%dx3x3 pad=1x1", b,
                 channels_in, channels, channels_in));
    snprintf(name, sizeof name, "batch norm %d", i);
    snprintf(bindings, sizeof bindings,
             "x=c%d scale=scale%d bias=bias%d y=n%d mean=mean%d rstd=rstd%d running_mean=rm%d "
             "running_var=rv%d",
             i, i, i, i, i, i, i, i);
    TRY(add_step(n, NET_TRAIN, name, bindings,
                 "norm kind=batch x=f32:%dx%dx8x8 scale=f32:%d bias=f32:%d mean=f32:%d rstd=f32:%d "
                 "running_mean=f32:%d running_var=f32:%d",
                 b, channels, channels, channels, channels, channels, channels, channels));
    snprintf(name, sizeof name, "relu%d", i);
    snprintf(bindings, sizeof bindings, "x=n%d y=a%d", i, i);
    return add_step(n, NET_TRAIN, name, bindings, "activation act=relu x=f32:%dx%dx8x8", b,
                    channels);
}

static mica_status add_block_backward(net *n, int i, int channels_in, int channels, const char *x)
{
    char name[32], bindings[160];
    int b = n->batch;
    snprintf(name, sizeof name, "relu%d bwd", i);
    snprintf(bindings, sizeof bindings, "x=n%d dy=da%d dx=dn%d", i, i, i);
    TRY(add_step(n, NET_TRAIN, name, bindings, "activation pass=bwd act=relu x=f32:%dx%dx8x8", b,
                 channels));
    snprintf(name, sizeof name, "batch norm %d bwd", i);
    snprintf(bindings, sizeof bindings,
             "x=c%d scale=scale%d mean=mean%d rstd=rstd%d dy=dn%d dx=dc%d dscale=dscale%d "
             "dbias=dbias%d",
             i, i, i, i, i, i, i, i);
    TRY(add_step(n, NET_TRAIN, name, bindings,
                 "norm pass=bwd kind=batch x=f32:%dx%dx8x8 scale=f32:%d bias=f32:%d", b, channels,
                 channels, channels));
    snprintf(name, sizeof name, "conv%d wgrad", i);
    snprintf(bindings, sizeof bindings, "x=%s y=dc%d w=dw%d", x, i, i);
    return add_step(n, NET_TRAIN, name, bindings,
                    "conv pass=wgrad x=f32:%dx%dx8x8 w=f32:%dx%dx3x3 pad=1x1", b, channels_in,
                    channels, channels_in);
}

static mica_status add_head(net *n)
{
    int b = n->batch;
    TRY(add_step(n, NET_TRAIN, "max pool", "x=a2 y=p indices=where",
                 "pool mode=max x=f32:%dx%dx8x8 window=2x2 indices=s32:%dx%dx4x4", b, C2, b, C2));
    TRY(add_step(n, NET_TRAIN, "fully connected", "a=p b=wf bias=bf c=logits",
                 "gemm a=f32:%dx%d b=f32:%dx%d epilogue=bias", b, FEATURES, FEATURES,
                 DIGIT_CLASSES));
    TRY(add_step(n, NET_TRAIN, "cross-entropy", "x=logits labels=labels loss=loss",
                 "cross_entropy x=f32:%dx%d labels=s32:%d", b, DIGIT_CLASSES, b));
    n->phase = NET_BACKWARD;
    TRY(add_step(n, NET_TRAIN, "cross-entropy bwd", "x=logits labels=labels dloss=one dx=dlogits",
                 "cross_entropy pass=bwd x=f32:%dx%d labels=s32:%d", b, DIGIT_CLASSES, b));
    TRY(add_step(n, NET_TRAIN, "fully connected dgrad", "a=dlogits b=wf c=dp",
                 "gemm a=f32:%dx%d b=f32:%dx%d:t", b, DIGIT_CLASSES, DIGIT_CLASSES, FEATURES));
    TRY(add_step(n, NET_TRAIN, "fully connected wgrad", "a=p b=dlogits c=dwf",
                 "gemm a=f32:%dx%d:t b=f32:%dx%d", FEATURES, b, b, DIGIT_CLASSES));
    TRY(add_step(n, NET_TRAIN, "fully connected bias grad", "a=ones b=dlogits c=dbf",
                 "gemm a=f32:1x%d b=f32:%dx%d", b, b, DIGIT_CLASSES));
    return add_step(n, NET_TRAIN, "max pool bwd", "x=da2 y=dp indices=where",
                    "pool pass=bwd mode=max x=f32:%dx%dx8x8 window=2x2 indices=s32:%dx%dx4x4", b,
                    C2, b, C2);
}

static mica_status add_training(net *n)
{
    TRY(add_block(n, 1, 1, C1, "x"));
    TRY(add_block(n, 2, C1, C2, "a1"));
    TRY(add_head(n));
    TRY(add_block_backward(n, 2, C1, C2, "a1"));
    TRY(add_step(n, NET_TRAIN, "conv2 dgrad", "y=dc2 w=w2 x=da1",
                 "conv pass=dgrad x=f32:%dx%dx8x8 w=f32:%dx%dx3x3 pad=1x1", n->batch, C1, C2, C1));
    TRY(add_block_backward(n, 1, 1, C1, "x"));
    n->phase = NET_UPDATE;
    TRY(add_step(n, NET_TRAIN, "adamw", "p=parameters grad=gradients m=m v=v",
                 "optim rule=adamw p=f32:%lld weight_decay=0.01", (long long)n->parameters));
    n->optimiser = &n->steps[NET_TRAIN][n->count[NET_TRAIN] - 1];
    n->optimiser->run.scalars = n->optimiser->scalars;
    return MICA_OK;
}

/* Inference: the normalisation takes the running statistics, ReLU rides along with it. */
static mica_status add_test_block(net *n, int i, int channels_in, int channels, const char *x)
{
    char name[32], bindings[160];
    int b = n->held_out;
    snprintf(name, sizeof name, "conv%d", i);
    snprintf(bindings, sizeof bindings, "x=%s w=w%d y=test.c%d", x, i, i);
    TRY(add_step(n, NET_TEST, name, bindings, "conv x=f32:%dx%dx8x8 w=f32:%dx%dx3x3 pad=1x1", b,
                 channels_in, channels, channels_in));
    snprintf(name, sizeof name, "batch norm %d + relu", i);
    snprintf(bindings, sizeof bindings,
             "x=test.c%d scale=scale%d bias=bias%d running_mean=rm%d running_var=rv%d y=test.a%d",
             i, i, i, i, i, i);
    return add_step(n, NET_TEST, name, bindings,
                    "norm kind=batch mode=infer act=relu x=f32:%dx%dx8x8 scale=f32:%d bias=f32:%d "
                    "running_mean=f32:%d running_var=f32:%d",
                    b, channels, channels, channels, channels, channels);
}

static mica_status add_testing(net *n)
{
    int b = n->held_out;
    n->phase = NET_FORWARD;
    TRY(add_test_block(n, 1, 1, C1, "test.x"));
    TRY(add_test_block(n, 2, C1, C2, "test.a1"));
    TRY(add_step(n, NET_TEST, "max pool", "x=test.a2 y=test.p",
                 "pool mode=max x=f32:%dx%dx8x8 window=2x2", b, C2));
    TRY(add_step(n, NET_TEST, "fully connected", "a=test.p b=wf bias=bf c=test.logits",
                 "gemm a=f32:%dx%d b=f32:%dx%d epilogue=bias", b, FEATURES, FEATURES,
                 DIGIT_CLASSES));
    return add_step(n, NET_TEST, "softmax", "x=test.logits y=test.y", "softmax x=f32:%dx%d axis=-1",
                    b, DIGIT_CLASSES);
}

static mica_status fill_constant(net *n, const char *name, float value)
{
    int64_t bytes = 0;
    void *memory = net_buffer(n, name, &bytes);
    float *host = cli_alloc((size_t)bytes);
    for (int64_t i = 0; i < bytes / 4; i++) host[i] = value;
    mica_status status = mica_upload(n->context, memory, host, bytes, NULL);
    free(host);
    return status;
}

static mica_status add_workspace(net *n)
{
    size_t most = 0;
    for (int list = 0; list < NET_LISTS; list++)
        for (int i = 0; i < n->count[list]; i++)
            if (mica_plan_workspace(n->steps[list][i].plan) > most)
                most = mica_plan_workspace(n->steps[list][i].plan);
    if (most) TRY(mica_malloc(n->context, (int64_t)most, &n->workspace));
    for (int list = 0; list < NET_LISTS; list++)
        for (int i = 0; i < n->count[list]; i++) n->steps[list][i].run.workspace = n->workspace;
    return MICA_OK;
}

mica_status net_create(net *n, mica_context *context, int batch, int held_out, uint64_t seed)
{
    memset(n, 0, sizeof *n);
    n->context = context;
    n->batch = batch;
    n->held_out = held_out;
    TRY(add_parameters(n, seed));
    TRY(add_training(n));
    TRY(add_testing(n));
    TRY(add_workspace(n));
    TRY(fill_constant(n, "ones", 1));
    TRY(fill_constant(n, "one", 1));
    TRY(fill_constant(n, "rv1", 1));
    return fill_constant(n, "rv2", 1);
}

void net_destroy(net *n)
{
    for (int list = 0; list < NET_LISTS; list++)
        for (int i = 0; i < n->count[list]; i++) mica_plan_destroy(n->steps[list][i].plan);
    for (int i = 0; i < n->buffer_count; i++)
        if (n->buffers[i].owned) mica_free(n->context, n->buffers[i].memory);
    mica_free(n->context, n->workspace);
    memset(n, 0, sizeof *n);
}

static mica_status run_all(net *n, net_list list)
{
    for (int i = 0; i < n->count[list]; i++)
        TRY(mica_plan_run(n->steps[list][i].plan, &n->steps[list][i].run));
    return MICA_OK;
}

mica_status net_train(net *n, double learning_rate, int step)
{
    n->optimiser->scalars[MICA_OPTIM_LR] = learning_rate;
    n->optimiser->scalars[MICA_OPTIM_STEP] = step;
    n->optimiser->scalars[MICA_OPTIM_GRAD_SCALE] = 1;
    return run_all(n, NET_TRAIN);
}

mica_status net_test(net *n)
{
    return run_all(n, NET_TEST);
}

/* ---- time ---- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

mica_status net_time(net *n, net_list list)
{
    enum { RUNS = 31 };
    mica_event *from, *to;
    TRY(mica_event_create(n->context, &from));
    TRY(mica_event_create(n->context, &to));
    mica_status status = MICA_OK;
    for (int i = 0; i < n->count[list] && status == MICA_OK; i++) {
        net_step *s = &n->steps[list][i];
        double times[RUNS];
        for (int r = 0; r < RUNS && status == MICA_OK; r++) {
            status = mica_event_record(n->context, from, NULL);
            if (status == MICA_OK) status = mica_plan_run(s->plan, &s->run);
            if (status == MICA_OK) status = mica_event_record(n->context, to, NULL);
            if (status == MICA_OK) status = mica_event_elapsed(n->context, from, to, &times[r]);
        }
        qsort(times, RUNS, sizeof *times, ascending);
        s->ms = times[RUNS / 2];
    }
    mica_event_destroy(n->context, from);
    mica_event_destroy(n->context, to);
    return status;
}
