/* SPDX-License-Identifier: Apache-2.0
 * Networks as graphs, written node by node as frameworks have them; what can be one launch becomes
 * one when the graph is planned. ResNet-50's inference is that of 03_resnet50.c, the transformer
 * block's forward pass that of 04_transformer_block.c, where the same is done by hand.
 *
 *   07_networks                                          a small check on the CPU
 *   07_networks resnet50 DEVICE DTYPE BATCH SIZE STEPS
 *   07_networks transformer DEVICE DTYPE BATCH LENGTH HEADS KV_HEADS HEAD_DIM FFN STEPS
 *
 * for example resnet50 cuda:0 bf16 256 224 20. With the DEVICE "text" it prints the graph, which
 * `mica explain`, `mica check` and bench/peers/torch_graphs.py take. */
#include <mica/mica.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 1 << 16, MOST = 512, CLASSES = 1000 };

/* A graph's text as it grows, and how many values it has named. */
typedef struct network {
    char text[TEXT];
    size_t used;
    const char *dtype;
    int batch, values, convs;
} network;

__attribute__((format(printf, 2, 3))) static void say(network *n, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(n->text + n->used, TEXT - n->used, format, arguments);
    va_end(arguments);
    n->used += (size_t)length;
    if (length < 0 || n->used >= TEXT) {
        fprintf(stderr, "07_networks: the text is too long\n");
        exit(1);
    }
}

/* ---- ResNet-50 (stride in the 3x3, as in torchvision) ---- */

typedef struct map {
    int value, c, size; /* @v<value>, batch x c x size x size */
} map;

/* A convolution, and its batch normalisation as a factor and a summand of each channel. */
static map add_conv(network *n, map x, int k, int filter, int stride)
{
    const int i = n->convs++, made = n->values + 2;
    say(n, "input w%d = %s:%dx%dx%dx%d:nhwc\ninput s%d = f32:1x%dx1x1\ninput b%d = f32:1x%dx1x1\n",
        i, n->dtype, k, x.c, filter, filter, i, k, i, k);
    say(n, "conv x=@v%d w=@w%d y=@v%d pad=%dx%d stride=%dx%d\n", x.value, i, made - 1, filter / 2,
        filter / 2, stride, stride);
    say(n, "pointwise expr=x0*x1+x2 x0=@v%d x1=@s%d x2=@b%d y0=%s@v%d\n", made - 1, i, i, n->dtype,
        made);
    n->values = made;
    return (map){made, k, (x.size - 1) / stride + 1};
}

static map add_relu(network *n, map x)
{
    say(n, "activation act=relu x=@v%d y=@v%d\n", x.value, n->values + 1);
    x.value = ++n->values;
    return x;
}

static map add_block(network *n, map x, int c, int stride)
{
    map y = add_relu(n, add_conv(n, x, c, 1, 1));
    y = add_relu(n, add_conv(n, y, c, 3, stride));
    const map shortcut = x.c == 4 * c ? x : add_conv(n, x, 4 * c, 1, stride);
    y = add_conv(n, y, 4 * c, 1, 1);
    say(n, "pointwise expr=x0+x1 x0=@v%d x1=@v%d y0=@v%d\n", y.value, shortcut.value,
        n->values + 1);
    y.value = ++n->values;
    return add_relu(n, y);
}

static void write_resnet50(network *n, const char *dtype, int batch, int size)
{
    static const int blocks[] = {3, 4, 6, 3};
    *n = (network){.dtype = dtype, .batch = batch};
    say(n, "input v0 = %s:%dx3x%dx%d:nhwc\n", dtype, batch, size, size);
    map x = add_relu(n, add_conv(n, (map){0, 3, size}, 64, 7, 2));
    say(n, "pool mode=max x=@v%d y=@v%d window=3x3 stride=2x2 pad=1x1\n", x.value, n->values + 1);
    x = (map){++n->values, 64, (x.size - 1) / 2 + 1};
    for (int stage = 0; stage < 4; stage++)
        for (int i = 0; i < blocks[stage]; i++)
            x = add_block(n, x, 64 << stage, stage > 0 && i == 0 ? 2 : 1);
    say(n, "pool mode=avg x=@v%d y=@features\n", x.value);
    say(n, "input fc = %s:%dx%d\ninput fb = f32:%d\noutput y\n", dtype, CLASSES, x.c, CLASSES);
    say(n, "gemm a=%s:%dx%d@features b=%s:%dx%d:t@fc c=@y epilogue=bias bias=@fb\n", dtype, batch,
        x.c, dtype, x.c, CLASSES);
}

/* ---- a transformer block ---- */

static void write_transformer(network *n, const char *t, const int s[6])
{
    const int batch = s[0], length = s[1], heads = s[2], kv = s[3], d = s[4], ffn = s[5];
    const int tokens = batch * length, model = heads * d, row = (heads + 2 * kv) * d;
    char q[96], k[96], out[96];
    *n = (network){.dtype = t, .batch = batch};
    /* heads within rows: batch x heads x length x columns */
    snprintf(q, sizeof q, "%s:%dx%dx%dx%d:%dx%dx%dx1", t, batch, heads, length, d, length * row, d,
             row);
    snprintf(k, sizeof k, "%s:%dx%dx%dx%d:%dx%dx%dx1", t, batch, kv, length, d, length * row, d,
             row);
    snprintf(out, sizeof out, "%s:%dx%dx%dx%d:%dx%dx%dx1", t, batch, heads, length, d,
             length * model, d, model);
    say(n, "input x = %s:%dx%d\ninput g1 = f32:%d\ninput g2 = f32:%d\n", t, tokens, model, model,
        model);
    say(n, "input wqkv = %s:%dx%d\ninput wo = %s:%dx%d\n", t, row, model, t, model, model);
    say(n, "input wgu = %s:%dx%d\ninput wd = %s:%dx%d\noutput y\n", t, 2 * ffn, model, t, model,
        ffn);
    say(n, "norm kind=rms x=@x scale=@g1 y=@h1\n");
    say(n, "gemm a=@h1 b=%s:%dx%d:t@wqkv c=@qkv\n", t, model, row);
    say(n, "rope q=%s@qkv k=%s@qkv+%d q_out=@q k_out=@k\n", q, k, model);
    say(n, "attention q=@q k=@k v=%s@qkv+%d out=%s@heads causal=top_left\n", k, model + kv * d,
        out);
    say(n, "gemm a=%s:%dx%d@heads b=%s:%dx%d:t@wo c=@o\n", t, tokens, model, t, model, model);
    say(n, "pointwise expr=x0+x1 x0=@x x1=@o y0=@r\nnorm kind=rms x=@r scale=@g2 y=@h2\n");
    say(n, "gemm a=@h2 b=%s:%dx%d:t@wgu c=@u\n", t, model, 2 * ffn);
    say(n, "activation act=silu gated=1 axis=1 x=@u y=@gated\n");
    say(n, "gemm a=@gated b=%s:%dx%d:t@wd c=@down\n", t, ffn, model);
    say(n, "pointwise expr=x0+x1 x0=@r x1=@down y0=@y\n");
}

/* ---- running one ---- */

static int failed(const char *what)
{
    fprintf(stderr, "07_networks: %s: %s\n", what, mica_error());
    return 1;
}

/* Inputs of deviation 1, weights that keep the size of what they multiply, factors near 1. */
static mica_status fill(mica_context *ctx, const mica_graph_tensor_info *info, void *memory)
{
    const mica_tensor *t = &info->tensor;
    const int64_t count = mica_tensor_count(t), bytes = mica_tensor_span(t, NULL);
    const bool factor = *info->name == 's' || *info->name == 'g', weight = *info->name == 'w';
    const double terms = (double)count / (double)t->dims[0];
    const double size = weight ? sqrt(1.5 / terms) : factor ? 0.1 : *info->name == 'b' ? 0.1 : 1;
    double *values = malloc((size_t)count * sizeof *values);
    void *raw = malloc((size_t)bytes);
    uint64_t state = 1;
    for (const char *c = info->name; *c; c++) state = state * 131 + (unsigned char)*c;
    for (int64_t i = 0; values && i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = factor + size * 3.46 * ((double)(state >> 11) * 0x1p-53 - 0.5);
    }
    mica_status status = values && raw ? mica_tensor_store(t, values, raw) : MICA_OUT_OF_MEMORY;
    if (status == MICA_OK) status = mica_upload(ctx, memory, raw, bytes, NULL);
    free(values);
    free(raw);
    return status;
}

typedef struct outcome {
    int launches;
    size_t workspace;
    int64_t tensors; /* bytes */
    double ms;
    double *y;
    int64_t count;
} outcome;

/* y as numbers. */
static mica_status fetch(mica_context *ctx, const mica_tensor *t, const void *memory, outcome *o)
{
    const int64_t bytes = mica_tensor_span(t, NULL);
    void *raw = malloc((size_t)bytes);
    o->count = mica_tensor_count(t);
    o->y = malloc((size_t)o->count * sizeof *o->y);
    mica_status status = raw && o->y ? MICA_OK : MICA_OUT_OF_MEMORY;
    if (status == MICA_OK) status = mica_download(ctx, raw, memory, bytes, NULL);
    if (status == MICA_OK) status = mica_tensor_load(t, raw, o->y);
    free(raw);
    return status;
}

static mica_status time_runs(mica_context *ctx, const mica_graph_plan *plan,
                             const mica_graph_run *run, int steps, double *ms)
{
    mica_event *from, *to;
    mica_status status = mica_event_create(ctx, &from);
    if (status == MICA_OK) status = mica_event_create(ctx, &to);
    for (int i = 0; status == MICA_OK && i < 3; i++) status = mica_graph_plan_run(plan, run);
    if (status == MICA_OK) status = mica_event_record(ctx, from, NULL);
    for (int i = 0; status == MICA_OK && i < steps; i++) status = mica_graph_plan_run(plan, run);
    if (status == MICA_OK) status = mica_event_record(ctx, to, NULL);
    if (status == MICA_OK) status = mica_event_elapsed(ctx, from, to, ms);
    if (status != MICA_OK) return status;
    *ms /= steps;
    mica_event_destroy(ctx, from);
    mica_event_destroy(ctx, to);
    return MICA_OK;
}

static int run(mica_context *ctx, const char *text, mica_graph_mode mode, int steps, outcome *o)
{
    mica_graph *graph;
    mica_graph_plan *plan;
    mica_graph_tensor_info info;
    mica_graph_step step;
    void *tensors[MOST] = {0}, *workspace;
    int count = 0;
    *o = (outcome){.launches = 0};
    if (mica_graph_from_text(text, &graph)) return failed("graph");
    if (mica_graph_plan_create(ctx, graph, &(mica_graph_options){.mode = mode}, &plan))
        return failed("plan");
    for (; mica_graph_plan_tensor(plan, count, &info) == MICA_OK; count++) {
        const int64_t bytes = mica_tensor_span(&info.tensor, NULL);
        o->tensors += bytes;
        if (count == MOST || mica_malloc(ctx, bytes, &tensors[count])) return failed(info.name);
        if (info.kind == MICA_GRAPH_INPUT && fill(ctx, &info, tensors[count]))
            return failed(info.name);
    }
    o->workspace = mica_graph_plan_workspace(plan);
    if (mica_malloc(ctx, (int64_t)o->workspace, &workspace)) return failed("workspace");
    while (mica_graph_plan_step(plan, o->launches, &step) == MICA_OK) o->launches++;
    const mica_graph_run r = {.tensors = tensors, .workspace = workspace};
    if (time_runs(ctx, plan, &r, steps, &o->ms)) return failed("run");
    const int y = mica_graph_plan_index(plan, "y");
    mica_graph_plan_tensor(plan, y, &info);
    if (fetch(ctx, &info.tensor, tensors[y], o)) return failed("y");
    for (int i = 0; i < count; i++) mica_free(ctx, tensors[i]);
    mica_free(ctx, workspace);
    mica_graph_plan_destroy(plan);
    mica_graph_destroy(graph);
    return 0;
}

/* Fused, and where it is small, beside node by node: most: launches that by hand are needed. */
static int show(mica_context *ctx, const char *what, const network *n, int steps, int most,
                bool compare)
{
    outcome fused, apart;
    double largest = 0, off = 0;
    if (run(ctx, n->text, MICA_GRAPH_FUSED, steps, &fused)) return 1;
    printf("%-12s %9.3f ms, %d launches, workspace %.1f MB, inputs and results %.1f MB\n", what,
           fused.ms, fused.launches, (double)fused.workspace / 1e6, (double)fused.tensors / 1e6);
    if (compare) {
        if (run(ctx, n->text, MICA_GRAPH_SEPARATE, 1, &apart)) return 1;
        for (int64_t i = 0; i < fused.count; i++) {
            largest = fmax(largest, fabs(apart.y[i]));
            off = fmax(off, fabs(apart.y[i] - fused.y[i]));
        }
        printf("%-12s node by node %d launches, largest difference %.1e of %.3g\n", "",
               apart.launches, off, largest);
        free(apart.y);
    }
    free(fused.y);
    return (compare && !(off <= 1e-4 * largest && largest > 1e-3)) || fused.launches > most;
}

int main(int argc, char **argv)
{
    static network n;
    static const int small[] = {2, 37, 4, 2, 64, 96};
    mica_context *ctx;
    const bool check = argc == 1, resnet = argc == 7 && !strcmp(argv[1], "resnet50");
    const bool block = argc == 11 && !strcmp(argv[1], "transformer");
    if (!check && !resnet && !block) {
        fprintf(stderr, "usage: 07_networks [resnet50 DEVICE DTYPE BATCH SIZE STEPS |\n"
                        "       transformer DEVICE DTYPE BATCH LENGTH HEADS KV_HEADS HEAD_DIM FFN "
                        "STEPS]\n");
        return 2;
    }
    int sizes[6] = {0};
    for (int i = 0; block && i < 6; i++) sizes[i] = atoi(argv[4 + i]);
    if (resnet) write_resnet50(&n, argv[3], atoi(argv[4]), atoi(argv[5]));
    if (block) write_transformer(&n, argv[3], sizes);
    if (!check && !strcmp(argv[2], "text")) return fputs(n.text, stdout) < 0;
    if (mica_context_create(check ? "cpu" : argv[2], &ctx)) return failed("context");
    int status = 0;
    if (check) {
        write_resnet50(&n, "f32", 2, 32);
        status = show(ctx, "ResNet-50", &n, 1, 56, true);
        write_transformer(&n, "f32", small);
        status |= show(ctx, "transformer", &n, 1, 10, true);
    } else {
        status = show(ctx, argv[1], &n, atoi(argv[argc - 1]), MOST, false);
    }
    mica_context_destroy(ctx);
    return status;
}
