/* SPDX-License-Identifier: Apache-2.0
 * ResNet-50 (He and others 2015, stride in the 3x3 as in torchvision) from mica's plans: inference
 * with batch normalisation folded into the convolutions' epilogues, and training steps (forward,
 * backward, SGD with momentum). On a GPU both are captured in CUDA graphs: a run only enqueues.
 *
 *   03_resnet50                               a small check: f32, 8 images of 32 x 32, the CPU
 *   03_resnet50 DEVICE DTYPE BATCH SIZE STEPS for example cuda:0 bf16 256 224 20
 *
 * Data and weights are random; the loss of one batch, learnt again and again, must fall. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mica/mica.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CLASSES = 1000, MOST_STEPS = 1024, MOST_MEMORIES = 1024, CONVS = 53, BLOCKS = 16 };

/* Plans in the order in which they run. */
typedef struct list {
    int count;
    struct {
        mica_plan *plan;
        mica_run run;
    } steps[MOST_STEPS];
} list;

/* A feature map, N x C x H x W in the order nhwc; grad is NULL where none is wanted. */
typedef struct map {
    int c, size;
    void *data, *grad;
    bool has_grad; /* something stands in grad already: the next one adds to it */
} map;

/* A convolution and the normalisation behind it, which may add a shortcut. */
typedef struct layer {
    map *x, *added; /* added: NULL for none */
    map conv, y;    /* in front of and behind the normalisation */
    int k, filter, stride;
    bool relu; /* inside the normalisation */
    void *w, *dw;
    float *scale, *bias, *dscale, *dbias, *mean, *rstd, *running_mean, *running_var;
    float *folded_scale, *folded_shift;
} layer;

/* 1x1, 3x3, 1x1 and a shortcut, which the last normalisation adds in front of its ReLU. */
typedef struct block {
    layer *reduce, *spatial, *expand, *shortcut; /* shortcut: NULL is the identity */
} block;

typedef struct net {
    mica_context *ctx;
    void *stream;
    void *memories[MOST_MEMORIES]; /* all that memory() gave */
    int memory_count;
    int64_t memory_bytes;
    const char *dtype;
    int batch, size;
    list train, infer;
    layer convs[CONVS];
    int conv_count;
    block blocks[BLOCKS];
    int block_count;
    int64_t parameters, parameters_used; /* of the blocks below, in elements */
    char *p, *grad;                      /* filters: all parameters of the network's type */
    int64_t affine, affine_used;
    float *a, *da;               /* scales and biases: f32 */
    map image, pooled, features; /* behind the stem's max pooling; behind the global average */
    int32_t *where;              /* the maxima */
    void *fc, *dfc, *logits, *dlogits;
    float *fc_bias, *dfc_bias, *loss, *one;
    void *ones;
    int32_t *labels;
    void *workspace;
    size_t workspace_bytes;
} net;

static const double beta_one[] = {1, 1}, start_rate[] = {0.02, 1, 1}, rate[] = {0.02, 2, 1};

static void stop(const char *what)
{
    fprintf(stderr, "03_resnet50: %s: %s\n", what, mica_error());
    exit(1);
}

static void try(mica_status status, const char *what)
{
    if (status != MICA_OK) stop(what);
}

static int64_t type_bytes(const net *n)
{
    return !strcmp(n->dtype, "f32") ? 4 : 2;
}

/* Zeroed device memory; it lives as long as the network. */
static void *memory(net *n, int64_t bytes)
{
    void *p;
    try(mica_malloc(n->ctx, bytes, &p), "memory");
    if (n->memory_count == MOST_MEMORIES) stop("too many tensors");
    n->memories[n->memory_count++] = p;
    n->memory_bytes += bytes;
    try(mica_memset(n->ctx, p, 0, bytes, n->stream), "memory");
    return p;
}

static void upload(net *n, void *to, const float *values, int64_t count, const char *dtype)
{
    char line[128];
    mica_plan *plan;
    void *staged;
    try(mica_malloc(n->ctx, count * 4, &staged), "memory");
    snprintf(line, sizeof line, "transform x=f32:%lld y=%s:%lld", (long long)count, dtype,
             (long long)count);
    try(mica_plan_from_text(n->ctx, line, NULL, &plan), line);
    try(mica_upload(n->ctx, staged, values, count * 4, n->stream), "upload");
    mica_run run = {.args = {staged, to}, .stream = n->stream};
    try(mica_plan_run(plan, &run), line);
    try(mica_synchronize(n->ctx, n->stream), line);
    mica_plan_destroy(plan);
    mica_free(n->ctx, staged);
}

static double uniform(void)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) * 0x1p-53;
}

/* Random numbers of the given deviation (sums of uniform ones). */
static void upload_random(net *n, void *to, int64_t count, double deviation)
{
    float *host = malloc((size_t)count * sizeof *host);
    if (!host) stop("out of memory");
    for (int64_t i = 0; i < count; i++)
        host[i] = (float)((uniform() + uniform() + uniform() + uniform() - 2) * 1.732 * deviation);
    upload(n, to, host, count, n->dtype);
    free(host);
}

static void upload_constant(net *n, float *to, int count, float value)
{
    float host[4096];
    for (int i = 0; i < count; i++) host[i] = value;
    try(mica_upload(n->ctx, to, host, count * 4, n->stream), "upload");
}

__attribute__((format(printf, 4, 5))) static void add(net *n, list *l, mica_run run,
                                                      const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (l->count == MOST_STEPS) stop("too many steps");
    try(mica_plan_from_text(n->ctx, line, NULL, &l->steps[l->count].plan), line);
    size_t bytes = mica_plan_workspace(l->steps[l->count].plan);
    if (bytes > n->workspace_bytes) n->workspace_bytes = bytes;
    run.stream = n->stream;
    l->steps[l->count++].run = run;
}

static const char *shape(const net *n, int c, int size)
{
    static char texts[8][64];
    static int next;
    char *text = texts[next++ % 8];
    snprintf(text, sizeof texts[0], "%s:%dx%dx%dx%d:nhwc", n->dtype, n->batch, c, size, size);
    return text;
}

static void make_map(net *n, map *m, int c, int size, bool grad)
{
    int64_t bytes = (int64_t)n->batch * c * size * size * type_bytes(n);
    *m = (map){.c = c, .size = size, .data = memory(n, bytes)};
    if (grad) m->grad = memory(n, bytes);
}

/* The next `count` parameters; rounded up, so that each tensor starts on 256 bytes. */
static void *take(net *n, int64_t count, void **gradient)
{
    int64_t at = n->parameters_used * type_bytes(n);
    n->parameters_used += (count + 127) / 128 * 128;
    if (n->parameters_used > n->parameters) stop("too many parameters");
    *gradient = n->grad + at;
    return n->p + at;
}

static float *take_affine(net *n, int count, float **gradient)
{
    float *p = n->a + n->affine_used;
    *gradient = n->da + n->affine_used;
    n->affine_used += (count + 63) / 64 * 64;
    if (n->affine_used > n->affine) stop("too many parameters");
    return p;
}

/* ---- layers, forward ---- */

static void conv_line(const net *n, const layer *l, char *line, size_t size)
{
    snprintf(line, size, "x=%s w=%s:%dx%dx%dx%d:nhwc pad=%dx%d stride=%dx%d",
             shape(n, l->x->c, l->x->size), n->dtype, l->k, l->x->c, l->filter, l->filter,
             l->filter / 2, l->filter / 2, l->stride, l->stride);
}

/* Training: convolution, then normalisation with the batch's statistics. */
static layer *add_layer(net *n, map *x, int k, int filter, int stride, bool relu, map *added)
{
    char line[256];
    layer *l = &n->convs[n->conv_count++];
    int size = (x->size - 1) / stride + 1;
    *l = (layer){.x = x, .added = added, .k = k, .filter = filter, .stride = stride, .relu = relu};
    int64_t terms = (int64_t)x->c * filter * filter;
    l->w = take(n, k * terms, &l->dw);
    upload_random(n, l->w, k * terms, sqrt(2.0 / (double)terms));
    l->scale = take_affine(n, k, &l->dscale);
    l->bias = take_affine(n, k, &l->dbias);
    upload_constant(n, l->scale, k, 1);
    float **f32[] = {&l->mean,        &l->rstd,         &l->running_mean,
                     &l->running_var, &l->folded_scale, &l->folded_shift};
    for (size_t i = 0; i < sizeof f32 / sizeof *f32; i++) *f32[i] = memory(n, k * 4);
    upload_constant(n, l->running_var, k, 1);
    make_map(n, &l->conv, k, size, true);
    make_map(n, &l->y, k, size, true);

    conv_line(n, l, line, sizeof line);
    add(n, &n->train, (mica_run){.args = {x->data, l->w, l->conv.data}}, "conv %s", line);
    add(n, &n->train,
        (mica_run){.args = {[MICA_NORM_X] = l->conv.data,
                            [MICA_NORM_RESIDUAL] = added ? added->data : NULL,
                            [MICA_NORM_SCALE] = l->scale,
                            [MICA_NORM_BIAS] = l->bias,
                            [MICA_NORM_Y] = l->y.data,
                            [MICA_NORM_MEAN] = l->mean,
                            [MICA_NORM_RSTD] = l->rstd,
                            [MICA_NORM_RUNNING_MEAN] = l->running_mean,
                            [MICA_NORM_RUNNING_VAR] = l->running_var}},
        "norm kind=batch act=%s x=%s scale=f32:%d bias=f32:%d mean=f32:%d rstd=f32:%d "
        "running_mean=f32:%d running_var=f32:%d%s%s",
        relu ? "relu" : "identity", shape(n, k, size), k, k, k, k, k, k, added ? " residual=" : "",
        added ? shape(n, k, size) : "");
    return l;
}

/* Inference: one launch; the normalisation is the epilogue's scale and shift. */
static void add_folded(net *n, layer *l, const void *residual, bool relu)
{
    char line[256];
    conv_line(n, l, line, sizeof line);
    add(n, &n->infer,
        (mica_run){.args = {[MICA_CONV_X] = l->x->data,
                            [MICA_CONV_W] = l->w,
                            [MICA_CONV_Y] = l->y.data,
                            [MICA_CONV_SCALE] = l->folded_scale,
                            [MICA_CONV_SHIFT] = l->folded_shift,
                            [MICA_CONV_RESIDUAL] = (void *)residual}},
        "conv %s epilogue=scale,shift%s%s", line, residual ? ",residual" : "", relu ? ",relu" : "");
}

/* ---- layers, backward ---- */

static void add_layer_backward(net *n, layer *l)
{
    char line[256], shortcut[160] = "";
    const char *text = shape(n, l->k, l->y.size);
    if (l->added) {
        snprintf(shortcut, sizeof shortcut, " residual=%s dresidual=%s", text, text);
        l->added->has_grad = true;
    }
    add(n, &n->train,
        (mica_run){.args = {[MICA_NORM_X] = l->conv.data,
                            [MICA_NORM_RESIDUAL] = l->added ? l->added->data : NULL,
                            [MICA_NORM_SCALE] = l->scale,
                            [MICA_NORM_BIAS] = l->bias,
                            [MICA_NORM_MEAN] = l->mean,
                            [MICA_NORM_RSTD] = l->rstd,
                            [MICA_NORM_DY] = l->y.grad,
                            [MICA_NORM_DX] = l->conv.grad,
                            [MICA_NORM_DSCALE] = l->dscale,
                            [MICA_NORM_DBIAS] = l->dbias,
                            [MICA_NORM_DRESIDUAL] = l->added ? l->added->grad : NULL}},
        "norm pass=bwd kind=batch act=%s x=%s scale=f32:%d bias=f32:%d%s",
        l->relu ? "relu" : "identity", text, l->k, l->k, shortcut);
    conv_line(n, l, line, sizeof line);
    add(n, &n->train, (mica_run){.args = {l->x->data, l->dw, l->conv.grad}}, "conv pass=wgrad %s",
        line);
    if (!l->x->grad) return;
    add(n, &n->train,
        (mica_run){.args = {l->x->grad, l->w, l->conv.grad},
                   .scalars = l->x->has_grad ? beta_one : NULL},
        "conv pass=dgrad %s", line);
    l->x->has_grad = true;
}

/* ---- blocks ---- */

static map *add_block(net *n, block *b, map *x, int width, int stride)
{
    int k = 4 * width;
    b->shortcut = x->c != k ? add_layer(n, x, k, 1, stride, false, NULL) : NULL;
    b->reduce = add_layer(n, x, width, 1, 1, true, NULL);
    b->spatial = add_layer(n, &b->reduce->y, width, 3, stride, true, NULL);
    map *added = b->shortcut ? &b->shortcut->y : x;
    b->expand = add_layer(n, &b->spatial->y, k, 1, 1, true, added);

    if (b->shortcut) add_folded(n, b->shortcut, NULL, false);
    add_folded(n, b->reduce, NULL, true);
    add_folded(n, b->spatial, NULL, true);
    add_folded(n, b->expand, added->data, true);
    return &b->expand->y;
}

static void add_block_backward(net *n, block *b)
{
    add_layer_backward(n, b->expand);
    add_layer_backward(n, b->spatial);
    add_layer_backward(n, b->reduce);
    if (b->shortcut) add_layer_backward(n, b->shortcut);
}

/* ---- head ---- */

static void add_head(net *n, map *x)
{
    enum { FEATURES = 2048 };
    int b = n->batch;
    const char *t = n->dtype;
    make_map(n, &n->features, FEATURES, 1, true);
    n->fc = take(n, CLASSES * FEATURES, &n->dfc);
    upload_random(n, n->fc, CLASSES * FEATURES, sqrt(1.0 / FEATURES));
    n->fc_bias = take_affine(n, CLASSES, &n->dfc_bias);
    n->logits = memory(n, b * CLASSES * type_bytes(n));
    n->dlogits = memory(n, b * CLASSES * type_bytes(n));
    for (int i = 0; i < 2; i++) {
        list *l = i ? &n->train : &n->infer;
        add(n, l, (mica_run){.args = {x->data, n->features.data}}, "pool mode=avg x=%s",
            shape(n, x->c, x->size));
        add(n, l,
            (mica_run){.args = {[MICA_GEMM_A] = n->features.data,
                                [MICA_GEMM_B] = n->fc,
                                [MICA_GEMM_C] = n->logits,
                                [MICA_GEMM_BIAS] = n->fc_bias}},
            "gemm a=%s:%dx%d b=%s:%dx%d:t epilogue=bias", t, b, FEATURES, t, FEATURES, CLASSES);
    }
    add(n, &n->train, (mica_run){.args = {n->logits, n->labels, n->loss}},
        "cross_entropy x=%s:%dx%d labels=s32:%d", t, b, CLASSES, b);
    add(n, &n->train,
        (mica_run){.args = {[MICA_CROSS_ENTROPY_X] = n->logits,
                            [MICA_CROSS_ENTROPY_LABELS] = n->labels,
                            [MICA_CROSS_ENTROPY_DLOSS] = n->one,
                            [MICA_CROSS_ENTROPY_DX] = n->dlogits}},
        "cross_entropy pass=bwd x=%s:%dx%d labels=s32:%d", t, b, CLASSES, b);
    add(n, &n->train, (mica_run){.args = {n->dlogits, n->fc, n->features.grad}},
        "gemm a=%s:%dx%d b=%s:%dx%d", t, b, CLASSES, t, CLASSES, FEATURES);
    add(n, &n->train, (mica_run){.args = {n->dlogits, n->features.data, n->dfc}},
        "gemm a=%s:%dx%d:t b=%s:%dx%d", t, CLASSES, b, t, b, FEATURES);
    add(n, &n->train, (mica_run){.args = {n->ones, n->dlogits, n->dfc_bias}},
        "gemm a=%s:1x%d b=%s:%dx%d c=f32", t, b, t, b, CLASSES);
    add(n, &n->train, (mica_run){.args = {x->grad, n->features.grad}},
        "pool pass=bwd mode=avg x=%s", shape(n, x->c, x->size));
}

static void add_optimisers(net *n)
{
    void *m = memory(n, n->parameters * 4), *master = memory(n, n->parameters * 4);
    char line[128];
    mica_plan *plan;
    snprintf(line, sizeof line, "transform x=%s:%lld y=f32:%lld", n->dtype,
             (long long)n->parameters, (long long)n->parameters);
    try(mica_plan_from_text(n->ctx, line, NULL, &plan), line);
    mica_run run = {.args = {n->p, master}, .stream = n->stream};
    try(mica_plan_run(plan, &run), line);
    mica_plan_destroy(plan);
    add(n, &n->train,
        (mica_run){.args = {[MICA_OPTIM_P] = n->p,
                            [MICA_OPTIM_GRAD] = n->grad,
                            [MICA_OPTIM_M] = m,
                            [MICA_OPTIM_MASTER] = master},
                   .scalars = rate},
        "optim rule=sgd momentum=0.9 p=%s:%lld master=f32:%lld", n->dtype, (long long)n->parameters,
        (long long)n->parameters);
    add(n, &n->train, (mica_run){.args = {n->a, n->da, memory(n, n->affine * 4)}, .scalars = rate},
        "optim rule=sgd momentum=0.9 p=f32:%lld", (long long)n->affine);
}

/* ---- the network ---- */

static void make_data(net *n)
{
    int64_t pixels = (int64_t)n->batch * n->size * n->size;
    make_map(n, &n->image, 3, n->size, false);
    upload_random(n, n->image.data, 3 * pixels, 1);
    int32_t *labels = malloc((size_t)n->batch * sizeof *labels);
    float *ones = malloc((size_t)n->batch * sizeof *ones);
    if (!labels || !ones) stop("out of memory");
    for (int i = 0; i < n->batch; i++) {
        labels[i] = (int32_t)(uniform() * CLASSES);
        ones[i] = 1;
    }
    n->labels = memory(n, n->batch * 4);
    n->ones = memory(n, n->batch * 4);
    n->one = memory(n, 4);
    n->loss = memory(n, 4);
    try(mica_upload(n->ctx, n->labels, labels, n->batch * 4, n->stream), "labels");
    upload(n, n->ones, ones, n->batch, n->dtype);
    upload_constant(n, n->one, 1, 1);
    free(labels);
    free(ones);
}

static map *add_stem(net *n)
{
    layer *stem = add_layer(n, &n->image, 64, 7, 2, true, NULL);
    add_folded(n, stem, NULL, true);
    int size = (stem->y.size - 1) / 2 + 1;
    make_map(n, &n->pooled, 64, size, true);
    n->where = memory(n, (int64_t)n->batch * 64 * size * size * 4);
    const char *text = shape(n, 64, stem->y.size);
    add(n, &n->infer, (mica_run){.args = {stem->y.data, n->pooled.data}},
        "pool mode=max x=%s window=3x3 stride=2x2 pad=1x1", text);
    add(n, &n->train, (mica_run){.args = {stem->y.data, n->pooled.data, n->where}},
        "pool mode=max x=%s window=3x3 stride=2x2 pad=1x1 indices=s32:%dx64x%dx%d:nhwc", text,
        n->batch, size, size);
    return &n->pooled;
}

static void add_stem_backward(net *n)
{
    layer *stem = &n->convs[0];
    add(n, &n->train, (mica_run){.args = {stem->y.grad, n->pooled.grad, n->where}},
        "pool pass=bwd mode=max x=%s window=3x3 stride=2x2 pad=1x1 indices=s32:%dx64x%dx%d:nhwc",
        shape(n, 64, stem->y.size), n->batch, n->pooled.size, n->pooled.size);
    add_layer_backward(n, stem);
}

static void make_net(net *n)
{
    static const int depth[4] = {3, 4, 6, 3};
    n->parameters = 25600 * 1024;
    n->affine = 64 * 1024;
    n->p = memory(n, n->parameters * type_bytes(n));
    n->grad = memory(n, n->parameters * type_bytes(n));
    n->a = memory(n, n->affine * 4);
    n->da = memory(n, n->affine * 4);
    make_data(n);
    map *x = add_stem(n);
    for (int stage = 0; stage < 4; stage++)
        for (int i = 0; i < depth[stage]; i++)
            x = add_block(n, &n->blocks[n->block_count++], x, 64 << stage,
                          stage > 0 && i == 0 ? 2 : 1);
    add_head(n, x);
    for (int i = BLOCKS - 1; i >= 0; i--) add_block_backward(n, &n->blocks[i]);
    add_stem_backward(n);
    add_optimisers(n);
    n->workspace = memory(n, (int64_t)n->workspace_bytes + 1);
    list *lists[] = {&n->train, &n->infer};
    for (int l = 0; l < 2; l++)
        for (int i = 0; i < lists[l]->count; i++) lists[l]->steps[i].run.workspace = n->workspace;
}

/* The normalisation with running statistics as one scale and one shift per channel. */
static void fold(net *n)
{
    float v[4][2048], shift[2048];
    for (int i = 0; i < n->conv_count; i++) {
        layer *l = &n->convs[i];
        float *from[4] = {l->scale, l->bias, l->running_mean, l->running_var};
        for (int j = 0; j < 4; j++)
            try(mica_download(n->ctx, v[j], from[j], l->k * 4, n->stream), "fold");
        for (int c = 0; c < l->k; c++) {
            v[0][c] /= sqrtf(v[3][c] + 1e-5f);
            shift[c] = v[1][c] - v[2][c] * v[0][c];
        }
        try(mica_upload(n->ctx, l->folded_scale, v[0], l->k * 4, n->stream), "fold");
        try(mica_upload(n->ctx, l->folded_shift, shift, l->k * 4, n->stream), "fold");
    }
}

/* Seconds since the call before, for what is slow only once. */
static double lap(void)
{
    static struct timespec before;
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    double passed =
        (double)(now.tv_sec - before.tv_sec) + 1e-9 * (double)(now.tv_nsec - before.tv_nsec);
    before = now;
    return passed;
}

static void run_list(const net *n, const list *l)
{
    (void)n;
    for (int i = 0; i < l->count; i++)
        try(mica_plan_run(l->steps[i].plan, &l->steps[i].run), "run");
}

/* ---- CUDA graphs, through the driver that mica uses too ---- */

typedef struct graphs {
    int (*retain)(void **context, int device);
    int (*use)(void *context);
    int (*begin)(void *stream, int mode);
    int (*end)(void *stream, void **graph);
    int (*instantiate)(void **executable, void *graph, unsigned long long flags);
    int (*launch)(void *executable, void *stream);
} graphs;

/* Capturing wants the device's primary context, the one mica works in, to be current. */
static bool open_graphs(graphs *g, const char *device)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    if (!driver) return false;
    *(void **)&g->retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&g->use = dlsym(driver, "cuCtxSetCurrent");
    *(void **)&g->begin = dlsym(driver, "cuStreamBeginCapture_v2");
    *(void **)&g->end = dlsym(driver, "cuStreamEndCapture");
    *(void **)&g->instantiate = dlsym(driver, "cuGraphInstantiateWithFlags");
    *(void **)&g->launch = dlsym(driver, "cuGraphLaunch");
    if (!g->retain || !g->use || !g->begin || !g->end || !g->instantiate || !g->launch)
        return false;
    const char *colon = strchr(device, ':');
    return g->retain(&context, colon ? atoi(colon + 1) : 0) == 0 && g->use(context) == 0;
}

static void *capture(const graphs *g, const net *n, const list *l)
{
    enum { THREAD_LOCAL = 1 };
    void *graph, *executable;
    if (g->begin(n->stream, THREAD_LOCAL)) return NULL;
    run_list(n, l);
    if (g->end(n->stream, &graph) || g->instantiate(&executable, graph, 0)) return NULL;
    return executable;
}

/* Milliseconds of each of `count` rounds, from the first to the last. */
static double time_list(net *n, const list *l, const graphs *g, int count)
{
    mica_event *from, *to;
    double ms = 0;
    void *graph = g ? capture(g, n, l) : NULL;
    if (g && !graph) stop("the steps cannot be captured");
    try(mica_event_create(n->ctx, &from), "event");
    try(mica_event_create(n->ctx, &to), "event");
    for (int i = -2; i < count; i++) {
        if (i == 0) try(mica_event_record(n->ctx, from, n->stream), "event");
        if (!graph)
            run_list(n, l);
        else if (g->launch(graph, n->stream))
            stop("graph launch");
    }
    try(mica_event_record(n->ctx, to, n->stream), "event");
    try(mica_event_elapsed(n->ctx, from, to, &ms), "event");
    mica_event_destroy(n->ctx, from);
    mica_event_destroy(n->ctx, to);
    return ms / count;
}

static float loss_of(net *n)
{
    float loss;
    try(mica_download(n->ctx, &loss, n->loss, 4, n->stream), "loss");
    return loss;
}

static void free_net(net *n)
{
    for (int i = 0; i < n->train.count; i++) mica_plan_destroy(n->train.steps[i].plan);
    for (int i = 0; i < n->infer.count; i++) mica_plan_destroy(n->infer.steps[i].plan);
    for (int i = 0; i < n->memory_count; i++) mica_free(n->ctx, n->memories[i]);
    if (n->stream) mica_stream_destroy(n->ctx, n->stream);
    mica_context_destroy(n->ctx);
}

int main(int argc, char **argv)
{
    static net n;
    graphs g;
    n.dtype = argc > 2 ? argv[2] : "f32";
    n.batch = argc > 3 ? atoi(argv[3]) : 8;
    n.size = argc > 4 ? atoi(argv[4]) : 32;
    int steps = argc > 5 ? atoi(argv[5]) : 4;
    if (n.batch < 1 || n.size < 32 || n.size % 32 || steps < 1) {
        fprintf(stderr,
                "usage: 03_resnet50 [DEVICE DTYPE BATCH SIZE STEPS], SIZE a multiple of 32\n");
        return 2;
    }
    mica_device_info info;
    lap();
    try(mica_context_create(argc > 1 ? argv[1] : "cpu", &n.ctx), "context");
    try(mica_context_info(n.ctx, &info), "context");
    if (info.cuda) try(mica_stream_create(n.ctx, &n.stream), "stream");
    make_net(&n);
    printf("%d plans, %d of them for training, %.1f MB: %.1f s\n", n.train.count + n.infer.count,
           n.train.count, (double)n.memory_bytes / 1e6, lap());

    n.train.steps[n.train.count - 1].run.scalars = start_rate;
    n.train.steps[n.train.count - 2].run.scalars = start_rate;
    run_list(&n, &n.train);
    float first = loss_of(&n);
    printf("first step: %.1f s\n", lap());
    n.train.steps[n.train.count - 1].run.scalars = rate;
    n.train.steps[n.train.count - 2].run.scalars = rate;
    const graphs *used = info.cuda && open_graphs(&g, info.name) ? &g : NULL;
    double train = time_list(&n, &n.train, used, steps);
    float last = loss_of(&n);
    fold(&n);
    double infer = time_list(&n, &n.infer, used, steps);
    printf("%s, %s, batch %d, %dx%d%s\n", info.model, n.dtype, n.batch, n.size, n.size,
           used ? ", CUDA graphs" : "");
    printf("training  %8.3f ms, %8.0f images/s, loss %.3f -> %.3f\n", train, n.batch * 1e3 / train,
           (double)first, (double)last);
    printf("inference %8.3f ms, %8.0f images/s\n", infer, n.batch * 1e3 / infer);
    free_net(&n);
    return last < first ? 0 : 1;
}
