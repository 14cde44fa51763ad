/* SPDX-License-Identifier: Apache-2.0
 * Training steps as graphs: forward, backward and optimiser in one graph each, planned, placed in
 * one workspace and run as one object. ResNet-50 is that of 03_resnet50.c with the same data and
 * weights, so its losses are those; the transformer block is that of 04_transformer_block.c with a
 * loss behind it and AdamW.
 *
 *   08_training                                          a small check on the CPU
 *   08_training resnet50 DEVICE DTYPE BATCH SIZE STEPS
 *   08_training transformer DEVICE DTYPE BATCH LENGTH HEADS KV_HEADS HEAD_DIM FFN STEPS
 *
 * for example resnet50 cuda:0 bf16 256 224 20. With the DEVICE "text" it prints the graph. */
#include <mica/mica.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 1 << 18, CLASSES = 1000, FEATURES = 2048, CONVS = 53, BLOCKS = 16, MOST = 48 };

/* A graph's text as it grows, and how many values it has named. Parameters and gradients are parts
 * of one tensor for each of their two types, so that the optimiser is a launch for each. */
typedef struct network {
    char text[TEXT];
    size_t used;
    const char *dtype;
    int batch, values;
    long parameters, affine; /* elements taken */
} network;

static void stop(const char *what)
{
    fprintf(stderr, "08_training: %s: %s\n", what, mica_error());
    exit(1);
}

static void try(mica_status status, const char *what)
{
    if (status != MICA_OK) stop(what);
}

__attribute__((format(printf, 2, 3))) static void say(network *n, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(n->text + n->used, TEXT - n->used, format, arguments);
    va_end(arguments);
    n->used += (size_t)length;
    if (length < 0 || n->used >= TEXT) {
        fprintf(stderr, "08_training: the text is too long\n");
        exit(1);
    }
}

/* The next `count` elements, rounded up so that each part starts on 256 bytes. */
static long take(long *used, long count, long unit)
{
    const long at = *used;
    *used += (count + unit - 1) / unit * unit;
    return at;
}

/* ---- ResNet-50 (stride in the 3x3, as in torchvision) ---- */

/* A feature map @v<value>, batch x c x size x size; grad: of @g<value>, what has been added up. */
typedef struct map {
    int value, c, size;
    bool wants_grad, has_grad;
} map;

/* A convolution @c<i> and the normalisation behind it, which may add a shortcut. */
typedef struct layer {
    map *x, *added, y;
    int number, k, filter, stride;
    bool relu;
    long w, affine; /* where its parameters begin; the bias is behind the scale */
} layer;

typedef struct block {
    layer *reduce, *spatial, *expand, *shortcut; /* shortcut: NULL is the identity */
} block;

typedef struct resnet {
    layer layers[CONVS];
    int layer_count;
    block blocks[BLOCKS];
    map image, pooled, features;
} resnet;

static const char *shape(const network *n, const map *m)
{
    static char texts[8][64];
    static int next;
    char *text = texts[next++ % 8];
    snprintf(text, sizeof texts[0], "%s:%dx%dx%dx%d:nhwc", n->dtype, n->batch, m->c, m->size,
             m->size);
    return text;
}

static long bias_of(const layer *l)
{
    return l->affine + (l->k + 63) / 64 * 64;
}

static void say_conv(network *n, const layer *l, const char *pass, const char *w)
{
    say(n, "conv pass=%s w=%s:%dx%dx%dx%d:nhwc@%s+%ld pad=%dx%d stride=%dx%d", pass, n->dtype, l->k,
        l->x->c, l->filter, l->filter, w, l->w, l->filter / 2, l->filter / 2, l->stride, l->stride);
}

/* A scale or bias, which begins at `at`, of @a, or the gradient of one, of @da. */
static void say_affine(network *n, const layer *l, const char *name, const char *from, long at)
{
    say(n, " %s=f32:%d@%s+%ld", name, l->k, from, at);
}

static layer *add_layer(network *n, resnet *r, map *x, int k, int filter, int stride, bool relu,
                        map *added)
{
    layer *l = &r->layers[r->layer_count];
    *l = (layer){.x = x, .added = added, .number = r->layer_count++, .k = k, .filter = filter};
    l->stride = stride;
    l->relu = relu;
    l->w = take(&n->parameters, (long)k * x->c * filter * filter, 128);
    l->affine = take(&n->affine, k, 64);
    take(&n->affine, k, 64);
    l->y = (map){.value = n->values++, .c = k, .size = (x->size - 1) / stride + 1};
    l->y.wants_grad = true;
    say_conv(n, l, "fwd", "p");
    say(n, " x=@v%d y=%s@c%d\n", x->value, shape(n, &l->y), l->number);
    say(n, "norm kind=batch act=%s x=@c%d y=@v%d mean=f32:%d@m%d rstd=f32:%d@r%d",
        relu ? "relu" : "identity", l->number, l->y.value, k, l->number, k, l->number);
    say(n, " running_mean=f32:%d@stats+%ld running_var=f32:%d@stats+%ld", k, l->affine, k,
        bias_of(l));
    say_affine(n, l, "scale", "a", l->affine);
    say_affine(n, l, "bias", "a", bias_of(l));
    if (added) say(n, " residual=@v%d", added->value);
    say(n, "\n");
    return l;
}

static void add_layer_backward(network *n, layer *l)
{
    const char *y = shape(n, &l->y);
    say(n,
        "norm pass=bwd kind=batch act=%s x=@c%d dy=@g%d dx=%s@e%d mean=f32:%d@m%d rstd=f32:%d@r%d",
        l->relu ? "relu" : "identity", l->number, l->y.value, y, l->number, l->k, l->number, l->k,
        l->number);
    say_affine(n, l, "scale", "a", l->affine);
    if (l->relu) say_affine(n, l, "bias", "a", bias_of(l));
    say_affine(n, l, "dscale", "da", l->affine);
    say_affine(n, l, "dbias", "da", bias_of(l));
    if (l->added) {
        say(n, " residual=@v%d dresidual=%s@g%d", l->added->value, y, l->added->value);
        l->added->has_grad = true;
    }
    say(n, "\n");
    say_conv(n, l, "wgrad", "grad");
    say(n, " x=@v%d y=@e%d\n", l->x->value, l->number);
    if (!l->x->wants_grad) return;
    say_conv(n, l, "dgrad", "p");
    say(n, " x=%s@g%d y=@e%d%s\n", shape(n, l->x), l->x->value, l->number,
        l->x->has_grad ? " beta=1" : "");
    l->x->has_grad = true;
}

static map *add_block(network *n, resnet *r, block *b, map *x, int width, int stride)
{
    const int k = 4 * width;
    b->shortcut = x->c != k ? add_layer(n, r, x, k, 1, stride, false, NULL) : NULL;
    b->reduce = add_layer(n, r, x, width, 1, 1, true, NULL);
    b->spatial = add_layer(n, r, &b->reduce->y, width, 3, stride, true, NULL);
    b->expand = add_layer(n, r, &b->spatial->y, k, 1, 1, true, b->shortcut ? &b->shortcut->y : x);
    return &b->expand->y;
}

static void add_head(network *n, const map *x)
{
    const char *t = n->dtype;
    const int b = n->batch, c = CLASSES, f = FEATURES;
    const long w = take(&n->parameters, (long)c * f, 128), bias = take(&n->affine, c, 64);
    say(n, "pool mode=avg x=@v%d y=@features\n", x->value);
    say(n,
        "gemm a=%s:%dx%d@features b=%s:%dx%d:t@p+%ld c=@logits epilogue=bias bias=f32:%d@a+%ld\n",
        t, b, f, t, f, c, w, c, bias);
    say(n, "cross_entropy x=@logits labels=s32:%d@labels loss=@loss\n", b);
    say(n, "cross_entropy pass=bwd x=@logits labels=@labels dloss=@one dx=@dlogits\n");
    say(n, "gemm a=@dlogits b=%s:%dx%d@p+%ld c=@dfeatures\n", t, c, f, w);
    say(n, "gemm a=%s:%dx%d:t@dlogits b=%s:%dx%d@features c=%s:%dx%d@grad+%ld\n", t, c, b, t, b, f,
        t, c, f, w);
    say(n, "gemm a=@ones b=@dlogits c=f32:1x%d@da+%ld\n", c, bias);
    say(n, "pool pass=bwd mode=avg x=%s@g%d y=%s:%dx%dx1x1:nhwc@dfeatures\n", shape(n, x), x->value,
        t, b, f);
}

static void write_resnet50(network *n, resnet *r, const char *dtype, int batch, int size)
{
    static const int depth[] = {3, 4, 6, 3};
    *n = (network){.dtype = dtype, .batch = batch, .values = 1};
    *r = (resnet){.image = {.c = 3, .size = size}};
    const long p = 25600 * 1024, a = 64 * 1024;
    say(n, "input v0 = %s\ninput labels = s32:%d\nconstant one = f32: 1\ninput ones = %s:1x%d\n",
        shape(n, &r->image), batch, dtype, batch);
    say(n, "scalar rate = 0.02\nscalar step = 1\noutput loss\n");
    say(n, "inout p = %s:%ld\ninout grad = %s:%ld\ninout m = f32:%ld\ninout master = f32:%ld\n",
        dtype, p, dtype, p, p, p);
    say(n, "inout a = f32:%ld\ninout da = f32:%ld\ninout ma = f32:%ld\ninout stats = f32:%ld\n", a,
        a, a, a);
    layer *stem = add_layer(n, r, &r->image, 64, 7, 2, true, NULL);
    r->pooled = (map){.value = n->values++, .c = 64, .size = (stem->y.size - 1) / 2 + 1};
    r->pooled.wants_grad = true;
    const char *window = "window=3x3 stride=2x2 pad=1x1";
    say(n, "pool mode=max x=@v%d y=@v%d indices=s32@where %s\n", stem->y.value, r->pooled.value,
        window);
    map *x = &r->pooled;
    int i = 0;
    for (int stage = 0; stage < 4; stage++)
        for (int k = 0; k < depth[stage]; k++)
            x = add_block(n, r, &r->blocks[i++], x, 64 << stage, stage > 0 && k == 0 ? 2 : 1);
    add_head(n, x);
    for (i = BLOCKS - 1; i >= 0; i--) {
        const block *b = &r->blocks[i];
        add_layer_backward(n, b->expand);
        add_layer_backward(n, b->spatial);
        add_layer_backward(n, b->reduce);
        if (b->shortcut) add_layer_backward(n, b->shortcut);
    }
    say(n, "pool pass=bwd mode=max x=%s@g%d y=@g%d indices=@where %s\n", shape(n, &stem->y),
        stem->y.value, r->pooled.value, window);
    add_layer_backward(n, stem);
    say(n, "optim rule=sgd momentum=0.9 p=@p grad=@grad m=@m master=@master lr=@rate step=@step\n");
    say(n, "optim rule=sgd momentum=0.9 p=@a grad=@da m=@ma lr=@rate step=@step\n");
}

/* ---- memory and runs ---- */

typedef struct training {
    mica_context *ctx;
    void *stream;
    mica_graph *graph;
    mica_graph_plan *plan;
    void *tensors[MOST], *workspace;
    mica_tensor types[MOST];
    int count, launches;
    int64_t bytes; /* of tensors and workspace */
    mica_graph_memory memory;
} training;

static void make_training(training *t, const char *device, const network *n, mica_graph_mode mode)
{
    mica_device_info info;
    mica_graph_tensor_info tensor;
    mica_graph_step step;
    *t = (training){.count = 0};
    try(mica_context_create(device, &t->ctx), "context");
    try(mica_context_info(t->ctx, &info), "context");
    if (info.cuda) try(mica_stream_create(t->ctx, &t->stream), "stream");
    try(mica_graph_from_text(n->text, &t->graph), "graph");
    const mica_graph_options options = {.mode = mode, .replay = info.cuda};
    try(mica_graph_plan_create(t->ctx, t->graph, &options, &t->plan), "plan");
    try(mica_graph_plan_memory(t->plan, &t->memory), "plan");
    for (; mica_graph_plan_tensor(t->plan, t->count, &tensor) == MICA_OK; t->count++) {
        const int64_t bytes = mica_tensor_span(&tensor.tensor, NULL);
        if (t->count == MOST) stop("too many tensors");
        t->bytes += bytes;
        t->types[t->count] = tensor.tensor;
        try(mica_malloc(t->ctx, bytes, &t->tensors[t->count]), tensor.name);
        try(mica_memset(t->ctx, t->tensors[t->count], 0, bytes, t->stream), tensor.name);
    }
    try(mica_malloc(t->ctx, (int64_t)mica_graph_plan_workspace(t->plan) + 1, &t->workspace),
        "workspace");
    t->bytes += (int64_t)t->memory.workspace;
    while (mica_graph_plan_step(t->plan, t->launches, &step) == MICA_OK) t->launches++;
}

static void free_training(training *t)
{
    for (int i = 0; i < t->count; i++) mica_free(t->ctx, t->tensors[i]);
    mica_free(t->ctx, t->workspace);
    mica_graph_plan_destroy(t->plan);
    mica_graph_destroy(t->graph);
    if (t->stream) mica_stream_destroy(t->ctx, t->stream);
    mica_context_destroy(t->ctx);
}

/* Elements from `at` on of a tensor that is packed or nhwc: in the order of memory. */
static void write_part(training *t, const char *name, long at, const double *values, int64_t count)
{
    const int i = mica_graph_plan_index(t->plan, name);
    if (i < 0) stop(name);
    const mica_tensor part = {
        .dtype = t->types[i].dtype, .rank = 1, .dims = {count}, .strides = {1}};
    const int64_t size = mica_dtype_bits(part.dtype) / 8;
    void *raw = malloc((size_t)(count * size));
    if (!raw) stop("out of memory");
    try(mica_tensor_store(&part, values, raw), name);
    try(mica_upload(t->ctx, (char *)t->tensors[i] + at * size, raw, count * size, t->stream), name);
    try(mica_synchronize(t->ctx, t->stream), name);
    free(raw);
}

static double *read_all(training *t, const char *name)
{
    const int i = mica_graph_plan_index(t->plan, name);
    if (i < 0) stop(name);
    const int64_t count = mica_tensor_count(&t->types[i]),
                  bytes = mica_tensor_span(&t->types[i], NULL);
    void *raw = malloc((size_t)bytes);
    double *values = malloc((size_t)count * sizeof *values);
    if (!raw || !values) stop("out of memory");
    try(mica_download(t->ctx, raw, t->tensors[i], bytes, t->stream), name);
    try(mica_tensor_load(&t->types[i], raw, values), name);
    free(raw);
    return values;
}

static double loss_of(training *t)
{
    double *loss = read_all(t, "loss");
    const double value = *loss;
    free(loss);
    return value;
}

/* A step with learning rate `rate`. */
static void run_step(training *t, double rate, int step)
{
    const double scalars[] = {rate, step};
    const mica_graph_run run = {
        .tensors = t->tensors, .workspace = t->workspace, .stream = t->stream, .scalars = scalars};
    try(mica_graph_plan_run(t->plan, &run), "run");
}

static double time_steps(training *t, double rate, int step, int count)
{
    mica_event *from, *to;
    double ms;
    try(mica_event_create(t->ctx, &from), "event");
    try(mica_event_create(t->ctx, &to), "event");
    try(mica_event_record(t->ctx, from, t->stream), "event");
    for (int i = 0; i < count; i++) run_step(t, rate, step);
    try(mica_event_record(t->ctx, to, t->stream), "event");
    try(mica_event_elapsed(t->ctx, from, to, &ms), "event");
    mica_event_destroy(t->ctx, from);
    mica_event_destroy(t->ctx, to);
    return ms / count;
}

/* ---- data, as 03_resnet50.c draws it ---- */

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

/* Sums of four uniform numbers, rounded to f32. */
static void write_random(training *t, const char *name, long at, int64_t count, double deviation,
                         uint64_t *state)
{
    double *v = malloc((size_t)count * sizeof *v);
    if (!v) stop("out of memory");
    for (int64_t i = 0; i < count; i++) {
        double sum = uniform(state);
        for (int k = 0; k < 3; k++) sum += uniform(state);
        v[i] = (float)((sum - 2) * 1.732 * deviation);
    }
    write_part(t, name, at, v, count);
    free(v);
}

static void write_constant(training *t, const char *name, long at, int64_t count, double value)
{
    double *v = malloc((size_t)count * sizeof *v);
    if (!v) stop("out of memory");
    for (int64_t i = 0; i < count; i++) v[i] = value;
    write_part(t, name, at, v, count);
    free(v);
}

static void fill_resnet50(training *t, const resnet *r, int batch, int size)
{
    uint64_t state = 1;
    write_random(t, "v0", 0, (int64_t)batch * 3 * size * size, 1, &state);
    double *labels = malloc((size_t)batch * sizeof *labels);
    if (!labels) stop("out of memory");
    for (int i = 0; i < batch; i++) labels[i] = floor(uniform(&state) * CLASSES);
    write_part(t, "labels", 0, labels, batch);
    free(labels);
    write_constant(t, "ones", 0, batch, 1);
    const layer *l = r->layers;
    long next = 0;
    for (int i = 0; i < CONVS; i++, l++) {
        const int64_t terms = (int64_t)l->x->c * l->filter * l->filter;
        write_random(t, "p", l->w, l->k * terms, sqrt(2.0 / (double)terms), &state);
        write_constant(t, "a", l->affine, l->k, 1);
        write_constant(t, "stats", bias_of(l), l->k, 1);
        next = l->w + (l->k * terms + 127) / 128 * 128;
    }
    write_random(t, "p", next, CLASSES * FEATURES, sqrt(1.0 / FEATURES), &state);
    double *p = read_all(t, "p");
    write_part(t, "master", 0, p, 25600 * 1024);
    free(p);
}

/* One step, two that warm up, and `steps` that are timed, as 03_resnet50.c: the loss of one batch,
 * learnt again and again, must fall. Places in the workspace are within 2 % of the least. */
static int train_resnet50(const char *device, const char *dtype, int batch, int size, int steps)
{
    static network n;
    static resnet r;
    training t;
    write_resnet50(&n, &r, dtype, batch, size);
    if (!strcmp(device, "text")) return fputs(n.text, stdout) < 0;
    make_training(&t, device, &n, MICA_GRAPH_FUSED);
    fill_resnet50(&t, &r, batch, size);
    run_step(&t, 0.02, 1);
    const double first = loss_of(&t);
    time_steps(&t, 0.02, 2, 2);
    const double ms = time_steps(&t, 0.02, 2, steps), last = loss_of(&t);
    const double least = (double)t.memory.workspace / (double)t.memory.least;
    printf("ResNet-50    %9.3f ms, loss %.3f -> %.3f\n", ms, first, last);
    printf("%-12s %d launches, %.1f MB, of them workspace %.1f, %.4f of the least\n", "",
           t.launches, (double)t.bytes / 1e6, (double)t.memory.workspace / 1e6, least);
    free_training(&t);
    return !(last < first && least <= 1.02);
}

/* ---- a transformer block ---- */

typedef struct sizes {
    int batch, length, heads, kv, d, ffn;
} sizes;

/* Parts of @p, the weights, one behind the other. */
typedef struct weights {
    long qkv, o, gu, d, count;
} weights;

static weights weights_of(const sizes *s)
{
    const long model = (long)s->heads * s->d, row = (s->heads + 2L * s->kv) * s->d;
    weights w = {.count = 0};
    w.qkv = take(&w.count, row * model, 128);
    w.o = take(&w.count, model * model, 128);
    w.gu = take(&w.count, 2L * s->ffn * model, 128);
    w.d = take(&w.count, s->ffn * model, 128);
    return w;
}

/* c = a w^T */
static void say_linear(network *n, const char *a, long w, int rows, int columns, const char *c)
{
    say(n, "gemm a=@%s b=%s:%dx%d:t@p+%ld c=@%s\n", a, n->dtype, columns, rows, w, c);
}

/* da = dc w and dw = dc^T a, of so many tokens */
static void say_linear_backward(network *n, const char *dc, const char *a, long w, int rows,
                                int columns, int tokens)
{
    const char *t = n->dtype;
    say(n, "gemm a=%s:%dx%d@%s b=%s:%dx%d@p+%ld c=%s:%dx%d@d_%s\n", t, tokens, rows, dc, t, rows,
        columns, w, t, tokens, columns, a);
    say(n, "gemm a=%s:%dx%d:t@%s b=%s:%dx%d@%s c=%s:%dx%d@grad+%ld\n", t, rows, tokens, dc, t,
        tokens, columns, a, t, rows, columns, w);
}

static void write_transformer(network *n, const char *t, const sizes *s)
{
    const int tokens = s->batch * s->length, model = s->heads * s->d,
              row = (s->heads + 2 * s->kv) * s->d;
    const weights w = weights_of(s);
    const char *f = strcmp(t, "f64") ? "f32" : "f64";
    char q[96], k[96], out[96], lse[64];
    *n = (network){.dtype = t, .batch = s->batch};
    snprintf(q, sizeof q, "%s:%dx%dx%dx%d:%dx%dx%dx1", t, s->batch, s->heads, s->length, s->d,
             s->length * row, s->d, row);
    snprintf(k, sizeof k, "%s:%dx%dx%dx%d:%dx%dx%dx1", t, s->batch, s->kv, s->length, s->d,
             s->length * row, s->d, row);
    snprintf(out, sizeof out, "%s:%dx%dx%dx%d:%dx%dx%dx1", t, s->batch, s->heads, s->length, s->d,
             s->length * model, s->d, model);
    snprintf(lse, sizeof lse, "%s:%dx%dx%d", f, s->batch, s->heads, s->length);
    say(n, "input x = %s:%dx%d\ninput target = %s:%dx%d\n", t, tokens, model, t, tokens, model);
    say(n, "scalar rate = 0.001\nscalar step = 1\noutput loss\noutput dx\ninout dqkv = %s:%dx%d\n",
        t, tokens, row);
    say(n, "inout p = %s:%ld\ninout grad = %s:%ld\ninout m = %s:%ld\ninout v = %s:%ld\n", t,
        w.count, t, w.count, f, w.count, f, w.count);
    const bool narrow = strcmp(t, "f32") && strcmp(t, "f64");
    if (narrow) say(n, "inout master = f32:%ld\n", w.count);
    say(n, "inout a = %s:%d\ninout da = %s:%d\ninout ma = %s:%d\ninout va = %s:%d\n", f, 2 * model,
        f, 2 * model, f, 2 * model, f, 2 * model);
    /* forward */
    say(n, "norm kind=rms x=@x scale=%s:%d@a y=@h1 rstd=%s@rstd1\n", f, model, f);
    say_linear(n, "h1", w.qkv, row, model, "qkv");
    say(n, "rope q=%s@qkv k=%s@qkv+%d q_out=@q k_out=@k\n", q, k, model);
    say(n, "attention q=@q k=@k v=%s@qkv+%d out=%s@heads lse=%s@lse causal=top_left\n", k,
        model + s->kv * s->d, out, lse);
    say(n, "gemm a=%s:%dx%d@heads b=%s:%dx%d:t@p+%ld c=@o\n", t, tokens, model, t, model, model,
        w.o);
    say(n, "pointwise expr=x0+x1 x0=@x x1=@o y0=@r\n");
    say(n, "norm kind=rms x=@r scale=%s:%d@a+%d y=@h2 rstd=%s@rstd2\n", f, model, model, f);
    say_linear(n, "h2", w.gu, 2 * s->ffn, model, "u");
    say(n, "activation act=silu gated=1 axis=1 x=@u y=@gated\n");
    say_linear(n, "gated", w.d, model, s->ffn, "down");
    say(n, "pointwise expr=x0+x1 x0=@r x1=@down y0=@y\n");
    say(n, "reduce kind=mean map=(x0-x1)*(x0-x1) x=@y x1=@target y=%s@loss\n", f);
    /* backward */
    say(n, "pointwise expr=(x0-x1)*s0 x0=@y x1=@target y0=@dy s0=%.17g\n", 2.0 / tokens / model);
    say_linear_backward(n, "dy", "gated", w.d, model, s->ffn, tokens);
    say(n, "activation pass=bwd act=silu gated=1 axis=1 x=@u dy=@d_gated dx=@du\n");
    say_linear_backward(n, "du", "h2", w.gu, 2 * s->ffn, model, tokens);
    say(n,
        "norm pass=bwd kind=rms x=@r scale=%s:%d@a+%d dy=@d_h2 rstd=@rstd2 dx=@dn "
        "dscale=%s:%d@da+%d\n",
        f, model, model, f, model, model);
    say(n, "pointwise expr=x0+x1 x0=@dn x1=@dy y0=@dx\n");
    say_linear_backward(n, "dx", "heads", w.o, model, model, tokens);
    say(n,
        "attention pass=bwd q=@q k=@k v=%s@qkv+%d out=%s@heads lse=@lse dout=%s@d_heads "
        "dq=%s@dq dk=%s@dk dv=%s@dqkv+%d causal=top_left\n",
        k, model + s->kv * s->d, out, out, q, k, k, model + s->kv * s->d);
    say(n, "rope pass=bwd q=@dq k=@dk q_out=%s@dqkv k_out=%s@dqkv+%d\n", q, k, model);
    say_linear_backward(n, "dqkv", "h1", w.qkv, row, model, tokens);
    say(n,
        "norm pass=bwd kind=rms x=@x scale=%s:%d@a dy=@d_h1 rstd=@rstd1 dx=@dx dscale=%s:%d@da "
        "beta=1\n",
        f, model, f, model);
    say(n, "optim rule=adamw p=@p grad=@grad m=@m v=@v%s lr=@rate step=@step\n",
        narrow ? " master=@master" : "");
    say(n, "optim rule=adamw p=@a grad=@da m=@ma v=@va lr=@rate step=@step\n");
}

static void fill_transformer(training *t, const sizes *s)
{
    const int64_t model = s->heads * s->d, row = (s->heads + 2 * s->kv) * s->d;
    const int64_t tokens = s->batch * s->length;
    const weights w = weights_of(s);
    const double size = 1 / sqrt((double)model);
    uint64_t state = 7;
    write_random(t, "x", 0, tokens * model, 1, &state);
    write_random(t, "target", 0, tokens * model, 1, &state);
    write_random(t, "p", w.qkv, row * model, size, &state);
    write_random(t, "p", w.o, model * model, size, &state);
    write_random(t, "p", w.gu, 2 * s->ffn * model, size, &state);
    write_random(t, "p", w.d, s->ffn * model, 1 / sqrt((double)s->ffn), &state);
    write_constant(t, "a", 0, 2 * model, 1);
    if (mica_graph_plan_index(t->plan, "master") < 0) return;
    double *p = read_all(t, "p");
    write_part(t, "master", 0, p, w.count);
    free(p);
}

/* The slope of the loss along a random direction of the parameters, by differences, is that of the
 * gradient. f64; directions of length up to 80 and steps of 1e-6: rounding of a loss of about 2
 * makes 1e-10, of slopes above 1e-3; a wrong term of a gradient shows in the first digits. */
static int check_slope(const sizes *s, const char *name, const char *gradient)
{
    static network n;
    training t;
    write_transformer(&n, "f64", s);
    make_training(&t, "cpu", &n, MICA_GRAPH_FUSED);
    fill_transformer(&t, s);
    run_step(&t, 0, 1);
    const int index = mica_graph_plan_index(t.plan, name);
    const int64_t count = mica_tensor_count(&t.types[index]);
    double *at = read_all(&t, name), *grad = read_all(&t, gradient), slope = 0, loss[2];
    double *moved = malloc((size_t)count * sizeof *moved);
    if (!moved) stop("out of memory");
    for (int side = 0; side < 2; side++) {
        uint64_t state = 9;
        for (int64_t i = 0; i < count; i++) {
            const double direction = uniform(&state) - 0.5;
            moved[i] = at[i] + (side ? 1e-6 : -1e-6) * direction;
            if (side) slope += grad[i] * direction;
        }
        write_part(&t, name, 0, moved, count);
        run_step(&t, 0, 1);
        loss[side] = loss_of(&t);
    }
    const double difference = (loss[1] - loss[0]) / 2e-6;
    printf("%-12s slope %.9f by @%s, %.9f by differences\n", "", slope, gradient, difference);
    free(at);
    free(grad);
    free(moved);
    free_training(&t);
    return !(fabs(slope - difference) <= 1e-6 * fabs(slope) && slope != 0);
}

/* Launches that by hand are needed: those of 04_transformer_block.c, two of the loss and two of the
 * optimiser. */
enum { BY_HAND = 23 + 2 + 2 };

static int train_transformer(const char *device, const char *dtype, const sizes *s, int steps,
                             bool check)
{
    static network n;
    training t, apart;
    int bad = 0;
    write_transformer(&n, dtype, s);
    if (!strcmp(device, "text")) return fputs(n.text, stdout) < 0;
    make_training(&t, device, &n, MICA_GRAPH_FUSED);
    fill_transformer(&t, s);
    run_step(&t, 1e-3, 1);
    const double first = loss_of(&t);
    for (int i = 2; i <= steps; i++) run_step(&t, 1e-3, i);
    const double last = loss_of(&t), ms = time_steps(&t, 1e-3, steps + 1, steps);
    printf("transformer  %9.3f ms, loss %.6f -> %.6f, %d launches, workspace %.1f MB\n", ms, first,
           last, t.launches, (double)t.memory.workspace / 1e6);
    if (check) {
        make_training(&apart, device, &n, MICA_GRAPH_SEPARATE);
        fill_transformer(&apart, s);
        for (int i = 1; i <= steps; i++) run_step(&apart, 1e-3, i);
        printf("%-12s node by node %d launches, loss %.6f, workspace %.1f MB\n", "", apart.launches,
               loss_of(&apart), (double)apart.memory.workspace / 1e6);
        /* engines' own workspace grows with threads, on both sides; sums in other orders, through
         * steps of Adam, which divides by gradients' sizes */
        bad = !(fabs(loss_of(&apart) - last) <= 1e-3 * last && last < first) ||
              t.launches > BY_HAND || t.memory.workspace > apart.memory.workspace;
        free_training(&apart);
    }
    free_training(&t);
    return bad;
}

int main(int argc, char **argv)
{
    const sizes small = {2, 23, 6, 2, 16, 136};
    if (argc == 1) {
        int bad = train_resnet50("cpu", "f32", 8, 32, 4);
        bad |= train_transformer("cpu", "f32", &small, 8, true);
        bad |= check_slope(&small, "p", "grad");
        bad |= check_slope(&small, "a", "da");
        return bad | check_slope(&small, "x", "dx");
    }
    if (argc == 7 && !strcmp(argv[1], "resnet50"))
        return train_resnet50(argv[2], argv[3], atoi(argv[4]), atoi(argv[5]), atoi(argv[6]));
    if (argc != 11 || strcmp(argv[1], "transformer")) {
        fprintf(stderr, "usage: 08_training [resnet50 DEVICE DTYPE BATCH SIZE STEPS |\n"
                        "       transformer DEVICE DTYPE BATCH LENGTH HEADS KV_HEADS HEAD_DIM FFN "
                        "STEPS]\n");
        return 2;
    }
    const sizes s = {atoi(argv[4]), atoi(argv[5]), atoi(argv[6]),
                     atoi(argv[7]), atoi(argv[8]), atoi(argv[9])};
    return train_transformer(argv[2], argv[3], &s, atoi(argv[10]), false);
}
