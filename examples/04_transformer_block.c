/* SPDX-License-Identifier: Apache-2.0
 * A transformer block (as in Llama) from mica's plans, forward and all gradients:
 *
 *     h1 = rms(x) g1                      q, k, v = h1 wqkv^T, q and k turned by their positions
 *     r  = x + attention(q, k, v) wo^T    causal, several query heads to a key head
 *     h2 = rms(r) g2                      u = h2 wgu^T
 *     y  = r + (silu(u1) u2) wd^T         u1 and u2 are the halves of u
 *
 * Additions are the norm's and the last product's; the gate is the epilogue of its product where
 * the model says that this is faster than a pass of its own. On a GPU the steps are captured in
 * CUDA graphs: a run only enqueues.
 *
 *   04_transformer_block      a check on the CPU: the f64 gradients are those of differences, and
 *                             f32, f16 and bf16 agree with f64
 *   04_transformer_block DEVICE DTYPE BATCH LENGTH HEADS KV_HEADS HEAD_DIM FFN STEPS [FOLDER]
 *
 * for example cuda:0 bf16 2 4096 32 8 128 14336 20. It prints times, and compares with f64 on the
 * CPU where that takes seconds. FOLDER receives all tensors, which transformer_block_torch.py
 * compares with PyTorch's. DEVICE sm_90a compiles the kernels into the cache, without a GPU. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mica/mica.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_STEPS = 32 };

/* Dimensions of the block's tensors. */
typedef enum dim { ONE, TOKENS, MODEL, QKV_ROW, HEAD_ROW, FFN, FFN2, ALL_HEADS, LENGTH, DIMS } dim;

/* Weights are as torch.nn.Linear has them: outputs x inputs. statistic: f32, of f64 f64. */
#define TENSORS(X)                                                                                 \
    X(x, TOKENS, MODEL, false)                                                                     \
    X(g1, ONE, MODEL, true)                                                                        \
    X(wqkv, QKV_ROW, MODEL, false)                                                                 \
    X(wo, MODEL, HEAD_ROW, false)                                                                  \
    X(g2, ONE, MODEL, true)                                                                        \
    X(wgu, FFN2, MODEL, false)                                                                     \
    X(wd, MODEL, FFN, false)                                                                       \
    X(dy, TOKENS, MODEL, false)                                                                    \
    X(y, TOKENS, MODEL, false)                                                                     \
    X(dx, TOKENS, MODEL, false)                                                                    \
    X(dg1, ONE, MODEL, true)                                                                       \
    X(dwqkv, QKV_ROW, MODEL, false)                                                                \
    X(dwo, MODEL, HEAD_ROW, false)                                                                 \
    X(dg2, ONE, MODEL, true)                                                                       \
    X(dwgu, FFN2, MODEL, false)                                                                    \
    X(dwd, MODEL, FFN, false)                                                                      \
    X(h1, TOKENS, MODEL, false)                                                                    \
    X(rstd1, TOKENS, ONE, true)                                                                    \
    X(qkv, TOKENS, QKV_ROW, false)                                                                 \
    X(heads, TOKENS, HEAD_ROW, false)                                                              \
    X(lse, ALL_HEADS, LENGTH, true)                                                                \
    X(o, TOKENS, MODEL, false)                                                                     \
    X(r, TOKENS, MODEL, false)                                                                     \
    X(rstd2, TOKENS, ONE, true)                                                                    \
    X(h2, TOKENS, MODEL, false)                                                                    \
    X(u, TOKENS, FFN2, false)                                                                      \
    X(gated, TOKENS, FFN, false)                                                                   \
    X(dgated, TOKENS, FFN, false)                                                                  \
    X(du, TOKENS, FFN2, false)                                                                     \
    X(dh2, TOKENS, MODEL, false)                                                                   \
    X(dheads, TOKENS, HEAD_ROW, false)                                                             \
    X(dqkv, TOKENS, QKV_ROW, false)                                                                \
    X(dh1, TOKENS, MODEL, false)

typedef enum name {
#define X(name, rows, columns, statistic) name##_,
    TENSORS(X)
#undef X
        COUNT,
    INPUTS = dy_ + 1, /* x, weights and the gradient of y */
    PARAMETERS = dy_, /* what has a gradient, which stands as much further on as dx from x */
    GRADIENTS = dx_,  /* in the order of the parameters */
    RESULTS_END = dwd_ + 1
} name;

static const struct {
    const char *name;
    dim rows, columns;
    bool statistic;
} tensors[COUNT] = {
#define X(name, rows, columns, statistic) {#name, rows, columns, statistic},
    TENSORS(X)
#undef X
};

/* Plans in the order in which they run. */
typedef struct list {
    int count;
    struct {
        mica_plan *plan;
        mica_run run;
    } steps[MOST_STEPS];
} list;

typedef struct block {
    mica_context *ctx;
    mica_device_info info;
    void *stream;
    const char *dtype, *statistic;
    int64_t dims[DIMS];
    int64_t batch, length, heads, kv_heads, head_dim;
    void *data[COUNT];
    list forward, backward;
    void *workspace;
    size_t workspace_bytes;
} block;

static const double transform_beta_one[] = {1, 1}, norm_beta_one[] = {1};

static void stop(const char *what)
{
    fprintf(stderr, "04_transformer_block: %s: %s\n", what, mica_error());
    exit(1);
}

static void try(mica_status status, const char *what)
{
    if (status != MICA_OK) stop(what);
}

static const char *type_of(const block *b, name t)
{
    return tensors[t].statistic ? b->statistic : b->dtype;
}

/* ---- tensors in memory ---- */

static mica_tensor whole(const block *b, name t)
{
    mica_tensor tensor;
    char text[96];
    snprintf(text, sizeof text, "%s:%lldx%lld", type_of(b, t), (long long)b->dims[tensors[t].rows],
             (long long)b->dims[tensors[t].columns]);
    try(mica_tensor_from_text(text, &tensor), text);
    return tensor;
}

static int64_t count_of(const block *b, name t)
{
    return b->dims[tensors[t].rows] * b->dims[tensors[t].columns];
}

static int64_t bytes_of(const block *b, name t)
{
    mica_tensor tensor = whole(b, t);
    return count_of(b, t) * mica_dtype_bits(tensor.dtype) / 8;
}

static void *host_memory(int64_t bytes)
{
    void *p = malloc((size_t)bytes + 1);
    if (!p) stop("out of host memory");
    return p;
}

static void write_tensor(block *b, name t, const double *values)
{
    mica_tensor tensor = whole(b, t);
    void *raw = host_memory(bytes_of(b, t));
    try(mica_tensor_store(&tensor, values, raw), tensors[t].name);
    try(mica_upload(b->ctx, b->data[t], raw, bytes_of(b, t), b->stream), tensors[t].name);
    free(raw);
}

static double *read_tensor(block *b, name t)
{
    mica_tensor tensor = whole(b, t);
    void *raw = host_memory(bytes_of(b, t));
    double *values = host_memory(count_of(b, t) * (int64_t)sizeof(double));
    try(mica_download(b->ctx, raw, b->data[t], bytes_of(b, t), b->stream), tensors[t].name);
    try(mica_tensor_load(&tensor, raw, values), tensors[t].name);
    free(raw);
    return values;
}

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

/* Sums of four uniform numbers, of deviation 1. */
static double normal(uint64_t *state)
{
    double sum = -2;
    for (int i = 0; i < 4; i++) sum += uniform(state);
    return sum * 1.7320508;
}

/* The same for a type on each device. Weights keep the size of what they multiply. */
static void make_inputs(block *b)
{
    for (name t = 0; t < INPUTS; t++) {
        uint64_t state = (uint64_t)t + 1;
        bool scale = tensors[t].rows == ONE, weight = !scale && t != x_ && t != dy_;
        double size = weight ? 1 / sqrt((double)b->dims[tensors[t].columns]) : scale ? 0.1 : 1;
        double *values = host_memory(count_of(b, t) * (int64_t)sizeof *values);
        for (int64_t i = 0; i < count_of(b, t); i++) values[i] = scale + size * normal(&state);
        write_tensor(b, t, values);
        free(values);
    }
}

/* ---- plans ---- */

/* A tensor in a line: as it lies, or transposed. */
static const char *in(const block *b, name t)
{
    static char texts[8][64];
    static int next;
    char *text = texts[next++ % 8];
    snprintf(text, sizeof texts[0], "%s:%lldx%lld", type_of(b, t),
             (long long)b->dims[tensors[t].rows], (long long)b->dims[tensors[t].columns]);
    return text;
}

static const char *turned(const block *b, name t)
{
    static char texts[8][64];
    static int next;
    char *text = texts[next++ % 8];
    snprintf(text, sizeof texts[0], "%s:%lldx%lld:t", type_of(b, t),
             (long long)b->dims[tensors[t].columns], (long long)b->dims[tensors[t].rows]);
    return text;
}

/* Heads within rows of `row` elements: batch x heads x length x columns of a head. */
static const char *by_head(const block *b, int64_t heads, int64_t row)
{
    static char texts[16][128];
    static int next;
    char *text = texts[next++ % 16];
    snprintf(text, sizeof texts[0], "%s:%lldx%lldx%lldx%lld:%lldx%lldx%lldx1", b->dtype,
             (long long)b->batch, (long long)heads, (long long)b->length, (long long)b->head_dim,
             (long long)(b->length * row), (long long)b->head_dim, (long long)row);
    return text;
}

__attribute__((format(printf, 2, 3))) static mica_plan *plan(block *b, const char *format, ...)
{
    char line[1024];
    va_list arguments;
    mica_plan *plan;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    try(mica_plan_from_text(b->ctx, line, NULL, &plan), line);
    return plan;
}

static void add(block *b, list *l, mica_plan *plan, mica_run run)
{
    if (l->count == MOST_STEPS) stop("too many steps");
    if (mica_plan_workspace(plan) > b->workspace_bytes)
        b->workspace_bytes = mica_plan_workspace(plan);
    run.stream = b->stream;
    l->steps[l->count].plan = plan;
    l->steps[l->count++].run = run;
}

/* c = a w^T */
static void add_linear(block *b, name c, name a, name w)
{
    add(b, &b->forward, plan(b, "gemm a=%s b=%s", in(b, a), turned(b, w)),
        (mica_run){.args = {b->data[a], b->data[w], b->data[c]}});
}

/* da = dc w and dw = dc^T a */
static void add_linear_backward(block *b, name dc, name a, name w, name da, name dw)
{
    add(b, &b->backward, plan(b, "gemm a=%s b=%s", in(b, dc), in(b, w)),
        (mica_run){.args = {b->data[dc], b->data[w], b->data[da]}});
    add(b, &b->backward, plan(b, "gemm a=%s b=%s", turned(b, dc), in(b, a)),
        (mica_run){.args = {b->data[dc], b->data[a], b->data[dw]}});
}

/* Queries, keys or values within rows of qkv or its gradient. */
static void *part(const block *b, name t, int64_t heads_before)
{
    mica_tensor tensor = whole(b, t);
    return (char *)b->data[t] + heads_before * b->head_dim * mica_dtype_bits(tensor.dtype) / 8;
}

static mica_plan *rope_plan(block *b, const char *pass)
{
    const char *q = by_head(b, b->heads, b->dims[QKV_ROW]);
    const char *k = by_head(b, b->kv_heads, b->dims[QKV_ROW]);
    return plan(b, "rope pass=%s q=%s q_out=%s k=%s k_out=%s", pass, q, q, k, k);
}

static void add_attention(block *b)
{
    int64_t row = b->dims[QKV_ROW];
    void *q = part(b, qkv_, 0), *k = part(b, qkv_, b->heads);
    void *v = part(b, qkv_, b->heads + b->kv_heads);
    add(b, &b->forward, rope_plan(b, "fwd"), (mica_run){.args = {q, k, q, k}});
    add(b, &b->forward,
        plan(b, "attention q=%s k=%s v=%s out=%s lse=%s causal=top_left", by_head(b, b->heads, row),
             by_head(b, b->kv_heads, row), by_head(b, b->kv_heads, row),
             by_head(b, b->heads, b->dims[HEAD_ROW]), b->statistic),
        (mica_run){.args = {q, k, v, b->data[heads_], b->data[lse_]}});
}

static void add_attention_backward(block *b)
{
    int64_t row = b->dims[QKV_ROW], kv = b->heads + b->kv_heads;
    const char *q = by_head(b, b->heads, row), *k = by_head(b, b->kv_heads, row);
    const char *out = by_head(b, b->heads, b->dims[HEAD_ROW]);
    void *dq = part(b, dqkv_, 0), *dk = part(b, dqkv_, b->heads);
    add(b, &b->backward,
        plan(b,
             "attention pass=bwd q=%s k=%s v=%s out=%s dout=%s dq=%s dk=%s dv=%s causal=top_left",
             q, k, k, out, out, q, k, k),
        (mica_run){.args = {[MICA_ATTENTION_Q] = part(b, qkv_, 0),
                            [MICA_ATTENTION_K] = part(b, qkv_, b->heads),
                            [MICA_ATTENTION_V] = part(b, qkv_, kv),
                            [MICA_ATTENTION_OUT] = b->data[heads_],
                            [MICA_ATTENTION_LSE] = b->data[lse_],
                            [MICA_ATTENTION_DOUT] = b->data[dheads_],
                            [MICA_ATTENTION_DQ] = dq,
                            [MICA_ATTENTION_DK] = dk,
                            [MICA_ATTENTION_DV] = part(b, dqkv_, kv)}});
    add(b, &b->backward, rope_plan(b, "bwd"), (mica_run){.args = {dq, dk, dq, dk}});
}

/* The gate in the product's epilogue, or behind it: what the model takes for faster. */
static void add_gate(block *b)
{
    mica_plan *fused = plan(b, "gemm a=%s b=%s epilogue=silu gate=halves aux=%s", in(b, h2_),
                            turned(b, wgu_), b->dtype);
    mica_plan *product = plan(b, "gemm a=%s b=%s", in(b, h2_), turned(b, wgu_));
    mica_plan *gate = plan(b, "activation act=silu gated=1 axis=1 x=%s", in(b, u_));
    bool apart =
        mica_plan_predicted(product) + mica_plan_predicted(gate) < mica_plan_predicted(fused);
    if (apart) {
        add(b, &b->forward, product,
            (mica_run){.args = {b->data[h2_], b->data[wgu_], b->data[u_]}});
        add(b, &b->forward, gate, (mica_run){.args = {b->data[u_], b->data[gated_]}});
        mica_plan_destroy(fused);
        return;
    }
    add(b, &b->forward, fused,
        (mica_run){.args = {[MICA_GEMM_A] = b->data[h2_],
                            [MICA_GEMM_B] = b->data[wgu_],
                            [MICA_GEMM_C] = b->data[gated_],
                            [MICA_GEMM_AUX] = b->data[u_]}});
    mica_plan_destroy(product);
    mica_plan_destroy(gate);
}

static void add_forward(block *b)
{
    const char *s = b->statistic;
    add(b, &b->forward,
        plan(b, "norm kind=rms x=%s scale=%s:%lld rstd=%s:%lld", in(b, x_), s,
             (long long)b->dims[MODEL], s, (long long)b->dims[TOKENS]),
        (mica_run){.args = {[MICA_NORM_X] = b->data[x_],
                            [MICA_NORM_SCALE] = b->data[g1_],
                            [MICA_NORM_Y] = b->data[h1_],
                            [MICA_NORM_RSTD] = b->data[rstd1_]}});
    add_linear(b, qkv_, h1_, wqkv_);
    add_attention(b);
    add_linear(b, o_, heads_, wo_);
    add(b, &b->forward,
        plan(b, "norm kind=rms x=%s residual=%s scale=%s:%lld rstd=%s:%lld", in(b, o_), in(b, x_),
             s, (long long)b->dims[MODEL], s, (long long)b->dims[TOKENS]),
        (mica_run){.args = {[MICA_NORM_X] = b->data[o_],
                            [MICA_NORM_RESIDUAL] = b->data[x_],
                            [MICA_NORM_SCALE] = b->data[g2_],
                            [MICA_NORM_Y] = b->data[h2_],
                            [MICA_NORM_SUM] = b->data[r_],
                            [MICA_NORM_RSTD] = b->data[rstd2_]}});
    add_gate(b);
    add(b, &b->forward, plan(b, "gemm a=%s b=%s epilogue=residual", in(b, gated_), turned(b, wd_)),
        (mica_run){.args = {[MICA_GEMM_A] = b->data[gated_],
                            [MICA_GEMM_B] = b->data[wd_],
                            [MICA_GEMM_C] = b->data[y_],
                            [MICA_GEMM_RESIDUAL] = b->data[r_]}});
}

/* dx = gradient through the norm + that of the way past it: what dx holds (past == dx), which the
 * norm adds to, or another tensor, which has to stay as it is */
static void add_norm_backward(block *b, name x, name g, name rstd, name dy, name past, name dx,
                              name dg)
{
    add(b, &b->backward,
        plan(b, "norm pass=bwd kind=rms x=%s scale=%s:%lld", in(b, x), b->statistic,
             (long long)b->dims[MODEL]),
        (mica_run){.args = {[MICA_NORM_X] = b->data[x],
                            [MICA_NORM_DY] = b->data[dy],
                            [MICA_NORM_SCALE] = b->data[g],
                            [MICA_NORM_RSTD] = b->data[rstd],
                            [MICA_NORM_DX] = b->data[dx],
                            [MICA_NORM_DSCALE] = b->data[dg]},
                   .scalars = past == dx ? norm_beta_one : NULL});
    if (past != dx)
        add(b, &b->backward, plan(b, "transform x=%s", in(b, past)),
            (mica_run){.args = {b->data[past], b->data[dx]}, .scalars = transform_beta_one});
}

static void add_backward(block *b)
{
    add_linear_backward(b, dy_, gated_, wd_, dgated_, dwd_);
    add(b, &b->backward, plan(b, "activation pass=bwd act=silu gated=1 axis=1 x=%s", in(b, u_)),
        (mica_run){.args = {[MICA_ACTIVATION_X] = b->data[u_],
                            [MICA_ACTIVATION_DY] = b->data[dgated_],
                            [MICA_ACTIVATION_DX] = b->data[du_]}});
    add_linear_backward(b, du_, h2_, wgu_, dh2_, dwgu_);
    /* until the first norm's turn dx is the gradient of r */
    add_norm_backward(b, r_, g2_, rstd2_, dh2_, dy_, dx_, dg2_);
    add_linear_backward(b, dx_, heads_, wo_, dheads_, dwo_);
    add_attention_backward(b);
    add_linear_backward(b, dqkv_, h1_, wqkv_, dh1_, dwqkv_);
    add_norm_backward(b, x_, g1_, rstd1_, dh1_, dx_, dx_, dg1_);
}

/* ---- the block ---- */

typedef struct sizes {
    int64_t batch, length, heads, kv_heads, head_dim, ffn;
} sizes;

static void make_block(block *b, const char *device, const char *dtype, const sizes *s)
{
    int64_t row = s->heads * s->head_dim;
    *b = (block){.dtype = dtype,
                 .statistic = strcmp(dtype, "f64") ? "f32" : "f64",
                 .batch = s->batch,
                 .length = s->length,
                 .heads = s->heads,
                 .kv_heads = s->kv_heads,
                 .head_dim = s->head_dim};
    const int64_t dims[DIMS] = {
        [ONE] = 1,           [TOKENS] = s->batch * s->length,
        [MODEL] = row,       [QKV_ROW] = (s->heads + 2 * s->kv_heads) * s->head_dim,
        [HEAD_ROW] = row,    [FFN] = s->ffn,
        [FFN2] = 2 * s->ffn, [ALL_HEADS] = s->batch * s->heads,
        [LENGTH] = s->length};
    memcpy(b->dims, dims, sizeof dims);
    try(mica_context_create(device, &b->ctx), "context");
    try(mica_context_info(b->ctx, &b->info), "context");
    if (b->info.cuda && !b->info.offline) try(mica_stream_create(b->ctx, &b->stream), "stream");
    for (name t = 0; t < COUNT && !b->info.offline; t++)
        try(mica_malloc(b->ctx, bytes_of(b, t), &b->data[t]), "memory");
    add_forward(b);
    add_backward(b);
    if (b->info.offline) return;
    try(mica_malloc(b->ctx, (int64_t)b->workspace_bytes + 1, &b->workspace), "workspace");
    list *lists[] = {&b->forward, &b->backward};
    for (int l = 0; l < 2; l++)
        for (int i = 0; i < lists[l]->count; i++) lists[l]->steps[i].run.workspace = b->workspace;
    make_inputs(b);
}

static void free_block(block *b)
{
    list *lists[] = {&b->forward, &b->backward};
    for (int l = 0; l < 2; l++)
        for (int i = 0; i < lists[l]->count; i++) mica_plan_destroy(lists[l]->steps[i].plan);
    for (name t = 0; t < COUNT; t++) mica_free(b->ctx, b->data[t]);
    mica_free(b->ctx, b->workspace);
    if (b->stream) mica_stream_destroy(b->ctx, b->stream);
    mica_context_destroy(b->ctx);
}

static void run_list(const list *l)
{
    for (int i = 0; i < l->count; i++)
        try(mica_plan_run(l->steps[i].plan, &l->steps[i].run), "run");
}

static void run_step(const block *b)
{
    run_list(&b->forward);
    run_list(&b->backward);
}

/* ---- checks ---- */

/* The loss whose gradient in y is dy. */
static double loss(block *b)
{
    double *y = read_tensor(b, y_), *dy = read_tensor(b, dy_), sum = 0;
    for (int64_t i = 0; i < count_of(b, y_); i++) sum += y[i] * dy[i];
    free(y);
    free(dy);
    return sum;
}

static double loss_at(block *b, name t, const double *at, const double *direction, double step)
{
    double *moved = host_memory(count_of(b, t) * (int64_t)sizeof *moved);
    for (int64_t i = 0; i < count_of(b, t); i++) moved[i] = at[i] + step * direction[i];
    write_tensor(b, t, moved);
    run_list(&b->forward);
    free(moved);
    return loss(b);
}

/* The slope of the loss along a random direction, from four values, is that of the gradient. With
 * steps of h = 1e-3 and 2h the differences are wrong by h^4 / 30 times the fifth derivative, about
 * 1e-13, and by the rounding of losses of about 10, 1e-15 / h; 1e-9 leaves room for both, while a
 * wrong term of a gradient shows in the first digits. */
static bool check_slopes(block *b)
{
    const double h = 1e-3, bound = 1e-9;
    bool good = true;
    run_step(b);
    for (name t = 0; t < PARAMETERS; t++) {
        uint64_t state = 100 + (uint64_t)t;
        int64_t count = count_of(b, t);
        double *at = read_tensor(b, t), *gradient = read_tensor(b, t + GRADIENTS);
        double *direction = host_memory(count * (int64_t)sizeof *direction);
        double slope = 0, size = 0;
        for (int64_t i = 0; i < count; i++) {
            direction[i] = normal(&state) / sqrt((double)b->dims[tensors[t].columns]);
            slope += gradient[i] * direction[i];
            size += gradient[i] * gradient[i] * direction[i] * direction[i];
        }
        double near = loss_at(b, t, at, direction, h) - loss_at(b, t, at, direction, -h);
        double far = loss_at(b, t, at, direction, 2 * h) - loss_at(b, t, at, direction, -2 * h);
        double difference = (8 * near - far) / (12 * h), error = fabs(difference - slope);
        bool ok = error <= bound * sqrt(size) && size > 0;
        printf("%-6s slope %13.6f, of differences %13.6f, relative error %.1e%s\n",
               tensors[t + GRADIENTS].name, slope, difference, error / sqrt(size),
               ok ? "" : "  WRONG");
        good &= ok;
        write_tensor(b, t, at);
        free(at);
        free(gradient);
        free(direction);
    }
    return good;
}

/* The results of a block against those of f64 on the CPU, of the same (rounded) inputs. What is
 * stored between plans is rounded to the type, about a dozen times on the way to a gradient and
 * independently: an error of sqrt(12) / 2 units is expected, 4 are let pass. To them come those of
 * the longest sum, n terms in f32: 4 sqrt(n) of its units. */
static bool check_type(block *b, const sizes *s)
{
    static block truth;
    make_block(&truth, "cpu", "f64", s);
    for (name t = 0; t < INPUTS; t++) {
        double *values = read_tensor(b, t);
        write_tensor(&truth, t, values);
        free(values);
    }
    run_step(b);
    run_step(&truth);
    const double unit = !strcmp(b->dtype, "bf16")  ? 0x1p-8
                        : !strcmp(b->dtype, "f16") ? 0x1p-11
                        : !strcmp(b->dtype, "f32") ? 0x1p-24
                                                   : 0x1p-53;
    double terms = (double)(b->dims[FFN2] > b->dims[TOKENS] ? b->dims[FFN2] : b->dims[TOKENS]);
    double bound = 4 * unit + 4 * sqrt(terms) * (unit < 0x1p-24 ? unit : 0x1p-24);
    bool good = true;
    for (name t = y_; t < RESULTS_END; t++) {
        double *y = read_tensor(b, t), *r = read_tensor(&truth, t), error = 0, size = 0;
        for (int64_t i = 0; i < count_of(b, t); i++) {
            error += (y[i] - r[i]) * (y[i] - r[i]);
            size += r[i] * r[i];
        }
        error = sqrt(error / size);
        bool ok = error <= bound;
        printf("%-5s %-6s relative error %.2e, bound %.2e%s\n", b->dtype, tensors[t].name, error,
               bound, ok ? "" : "  WRONG");
        good &= ok;
        free(y);
        free(r);
    }
    free_block(&truth);
    return good;
}

static int check_all(void)
{
    static const char *const types[] = {"f32", "f16", "bf16"};
    const sizes s = {
        .batch = 2, .length = 23, .heads = 6, .kv_heads = 2, .head_dim = 16, .ffn = 136};
    static block b;
    make_block(&b, "cpu", "f64", &s);
    bool good = check_slopes(&b);
    free_block(&b);
    for (int i = 0; i < 3; i++) {
        make_block(&b, "cpu", types[i], &s);
        good &= check_type(&b, &s);
        free_block(&b);
    }
    return good ? 0 : 1;
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

static void *capture(const graphs *g, const block *b, bool backward)
{
    enum { THREAD_LOCAL = 1 };
    void *graph, *executable;
    if (g->begin(b->stream, THREAD_LOCAL)) return NULL;
    run_list(&b->forward);
    if (backward) run_list(&b->backward);
    if (g->end(b->stream, &graph) || g->instantiate(&executable, graph, 0)) return NULL;
    return executable;
}

/* Milliseconds of each of `count` rounds, from the first to the last. */
static double time_block(block *b, bool backward, const graphs *g, int count)
{
    mica_event *from, *to;
    double ms = 0;
    void *graph = g ? capture(g, b, backward) : NULL;
    if (g && !graph) stop("the steps cannot be captured");
    try(mica_event_create(b->ctx, &from), "event");
    try(mica_event_create(b->ctx, &to), "event");
    for (int i = -2; i < count; i++) {
        if (i == 0) try(mica_event_record(b->ctx, from, b->stream), "event");
        if (graph && g->launch(graph, b->stream)) stop("graph launch");
        if (graph) continue;
        run_list(&b->forward);
        if (backward) run_list(&b->backward);
    }
    try(mica_event_record(b->ctx, to, b->stream), "event");
    try(mica_event_elapsed(b->ctx, from, to, &ms), "event");
    mica_event_destroy(b->ctx, from);
    mica_event_destroy(b->ctx, to);
    return ms / count;
}

/* ---- one run ---- */

/* Products of the forward pass; half of the scores are seen. */
static double flops(const block *b)
{
    double weights =
        (double)(count_of(b, wqkv_) + count_of(b, wo_) + count_of(b, wgu_) + count_of(b, wd_));
    double scores = (double)(b->batch * b->heads * b->length) * (double)(b->length + 1) / 2;
    return 2 * (double)b->dims[TOKENS] * weights + 4 * scores * (double)b->head_dim;
}

static void print_plans(const block *b)
{
    const list *lists[] = {&b->forward, &b->backward};
    char line[1024];
    for (int l = 0; l < 2; l++)
        for (int i = 0; i < lists[l]->count; i++) {
            const mica_plan *p = lists[l]->steps[i].plan;
            mica_plan_describe(p, line, sizeof line);
            printf("%9.4f ms  %-10s %s\n", mica_plan_predicted(p), mica_plan_engine(p), line);
        }
}

/* All tensors as they lie in memory, and a list of them: name, type, rows, columns. */
static void write_folder(block *b, const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/block.txt", folder);
    FILE *list = fopen(path, "w");
    if (!list) stop(path);
    fprintf(list, "block %lld %lld %lld %lld %lld %lld\n", (long long)b->batch,
            (long long)b->length, (long long)b->heads, (long long)b->kv_heads,
            (long long)b->head_dim, (long long)b->dims[FFN]);
    for (name t = 0; t < RESULTS_END; t++) {
        void *raw = host_memory(bytes_of(b, t));
        try(mica_download(b->ctx, raw, b->data[t], bytes_of(b, t), b->stream), tensors[t].name);
        snprintf(path, sizeof path, "%s/%s.bin", folder, tensors[t].name);
        FILE *f = fopen(path, "wb");
        if (!f || fwrite(raw, 1, (size_t)bytes_of(b, t), f) != (size_t)bytes_of(b, t) || fclose(f))
            stop(path);
        fprintf(list, "%s %s %lld %lld\n", tensors[t].name, type_of(b, t),
                (long long)b->dims[tensors[t].rows], (long long)b->dims[tensors[t].columns]);
        free(raw);
    }
    if (fclose(list)) stop(path);
}

static int run_once(const char *device, const char *dtype, const sizes *s, int steps,
                    const char *folder)
{
    static block b;
    graphs g;
    make_block(&b, device, dtype, s);
    print_plans(&b);
    int result = 0;
    if (!b.info.offline) {
        run_step(&b);
        if (flops(&b) <= 1e9)
            result = check_type(&b, s) ? 0 : 1;
        else
            printf("too large to compare with f64 here: transformer_block_torch.py does\n");
        if (folder) write_folder(&b, folder);
        const graphs *used = b.info.cuda && open_graphs(&g, b.info.name) ? &g : NULL;
        double forward = time_block(&b, false, used, steps),
               both = time_block(&b, true, used, steps);
        double tokens = (double)b.dims[TOKENS];
        printf("%s, %s, %lld x %lld tokens, %lld heads of %lld, %lld of keys, %lld between%s\n",
               b.info.model, dtype, (long long)s->batch, (long long)s->length, (long long)s->heads,
               (long long)s->head_dim, (long long)s->kv_heads, (long long)s->ffn,
               used ? ", CUDA graphs" : "");
        printf("forward  %9.3f ms, %9.0f tokens/s, %7.2f TFLOP/s\n", forward,
               tokens * 1e3 / forward, flops(&b) / forward * 1e-9);
        printf("step     %9.3f ms, %9.0f tokens/s, %7.2f TFLOP/s\n", both, tokens * 1e3 / both,
               3 * flops(&b) / both * 1e-9);
    }
    free_block(&b);
    return result;
}

int main(int argc, char **argv)
{
    if (argc == 1) return check_all();
    int64_t numbers[7] = {0};
    bool good = argc == 10 || argc == 11;
    for (int i = 0; i < 7 && good; i++) good = (numbers[i] = atoll(argv[3 + i])) > 0;
    if (!good || numbers[2] % numbers[3] || numbers[4] % 2) {
        fprintf(stderr,
                "usage: 04_transformer_block [DEVICE DTYPE BATCH LENGTH HEADS KV_HEADS HEAD_DIM "
                "FFN STEPS [FOLDER]]\nHEADS is a multiple of KV_HEADS, HEAD_DIM is even\n");
        return 2;
    }
    const sizes s = {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]};
    return run_once(argv[1], argv[2], &s, (int)numbers[6], argc == 11 ? argv[10] : NULL);
}
