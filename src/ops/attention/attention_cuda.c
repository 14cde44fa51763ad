/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda": anything, on any sm_80 and later: every type, stride and feature, both passes,
 * deterministic. A warp per row, without matrix units and without sharing what is read but through
 * the caches: correct before fast. */
#include "ops/attention/attention.h"
#include "ops/attention/attention_args.h"

#include <string.h>

_Static_assert(ATTENTION_PAGES == (int)MICA_ATTENTION_PAGES, "kernels count tensors as callers do");

enum { FORWARD, DELTA, DQ, DKV, BIAS, SINKS, KERNELS };
enum { MOST_BLOCKS = 1 << 20 };

typedef struct state {
    mica_kernel *kernel[KERNELS];
    mica_grid grid[KERNELS];
    mica_attention_args args;
    size_t delta;
    int warps;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static void fill_tensors(const mica_attention_desc *d, mica_attention_args *a)
{
    for (int t = 0; t < ATTENTION_TENSORS; t++) {
        const mica_tensor *tensor = mica_op_tensor(&mica_op_attention, d, t);
        if (!mica_tensor_given(tensor)) continue;
        a->has |= 1u << t;
        for (int i = 0; i < tensor->rank && i < 4; i++)
            a->stride[t][i] = tensor->dims[i] == 1 ? 0 : tensor->strides[i];
    }
}

static void fill_args(const mica_attention_desc *d, mica_attention_args *a)
{
    attention_shape s;
    attention_shape_make(d, &s);
    fill_tensors(d, a);
    a->sequences = s.sequences, a->heads = s.heads, a->kv_heads = s.kv_heads, a->group = s.group;
    a->batches = d->q.dims[0], a->rows = s.rows;
    a->k_batches = d->k.dims[0], a->key_rows = d->k.dims[2], a->keys = s.keys;
    memcpy(a->bias_dims, d->dbias.dims, sizeof a->bias_dims);
    a->d = (int)s.d, a->dv = (int)s.dv;
    a->causal = d->causal != MICA_ATTENTION_NOT_CAUSAL;
    a->bottom_right = d->align == MICA_ATTENTION_ALIGN_BOTTOM_RIGHT;
    a->window_left = d->window_left, a->window_right = d->window_right;
    a->scale = d->scale, a->soft_cap = d->soft_cap;
    const int64_t none[2] = {0};
    mica_attention_desc seedless = *d;
    if (mica_tensor_given(&d->rng)) seedless.rng.strides[0] = 1;
    attention_dropout drop = attention_dropout_make(&seedless, none);
    a->drop_scale = drop.scale, a->drop_threshold = drop.threshold, a->drops = d->dropout > 0;
}

/* Columns of a lane: a power of two, so that few kernels serve all sizes. */
static int columns_of(const mica_attention_args *a)
{
    int most = a->d > a->dv ? a->d : a->dv, columns = 1;
    while (columns * 32 < most) columns *= 2;
    return columns;
}

static void prologue(const mica_attention_desc *d, const state *s, int kernel, mica_text *p)
{
    mica_dtype acc = d->q.dtype == MICA_F64 ? MICA_F64 : MICA_F32;
    const struct {
        const char *name;
        mica_dtype type;
    } types[] = {
        {"q_t", d->q.dtype},         {"k_t", d->k.dtype},         {"v_t", d->v.dtype},
        {"out_t", d->out.dtype},     {"dout_t", d->dout.dtype},   {"dq_t", d->dq.dtype},
        {"dk_t", d->dk.dtype},       {"dv_t", d->dv.dtype},       {"bias_t", d->bias.dtype},
        {"dbias_t", d->dbias.dtype}, {"sinks_t", d->sinks.dtype}, {"dsinks_t", d->dsinks.dtype}};
    mica_prologue_int(p, "COLUMNS", columns_of(&s->args));
    mica_prologue_int(p, "WARPS", s->warps);
    if (kernel == BIAS || kernel == SINKS) mica_prologue_int(p, "SINKS", kernel == SINKS);
    mica_prologue_type(p, "acc_t", acc);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        mica_prologue_type(p, types[i].name, types[i].type == MICA_NONE ? acc : types[i].type);
}

static mica_status add_kernel(mica_plan *plan, state *s, int kernel, double rows)
{
    static const char *const files[KERNELS][2] = {
        [FORWARD] = {"ops/attention/attention_cuda_fwd.cu", "attention_forward"},
        [DELTA] = {"ops/attention/attention_cuda_delta.cu", "attention_delta"},
        [DQ] = {"ops/attention/attention_cuda_dq.cu", "attention_dq"},
        [DKV] = {"ops/attention/attention_cuda_dkv.cu", "attention_dkv"},
        [BIAS] = {"ops/attention/attention_cuda_bias.cu", "attention_bias"},
        [SINKS] = {"ops/attention/attention_cuda_bias.cu", "attention_bias"}};
    char buffer[1024] = "";
    mica_text text = {buffer, sizeof buffer, 0};
    if (rows == 0) return MICA_OK;
    prologue(plan->desc, s, kernel, &text);
    double blocks = (rows + s->warps - 1) / s->warps;
    s->grid[kernel] = (mica_grid){.grid = {blocks < MOST_BLOCKS ? (unsigned)blocks : MOST_BLOCKS},
                                  .block = {(unsigned)s->warps * 32}};
    mica_kernel_spec spec = {files[kernel][0], files[kernel][1], buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel[kernel]);
}

static mica_status add_backward(mica_plan *plan, state *s)
{
    const mica_attention_desc *d = plan->desc;
    const mica_attention_args *a = &s->args;
    double rows = (double)mica_tensor_count(&d->lse);
    double keys = (double)a->k_batches * (double)a->kv_heads * (double)a->key_rows;
    if (mica_tensor_count(&d->dk) == 0 && mica_tensor_count(&d->dv) == 0) keys = 0;
    size_t element = d->q.dtype == MICA_F64 ? sizeof(double) : sizeof(float);
    MICA_TRY(mica_book(plan, "delta", (size_t)rows * element, &s->delta));
    MICA_TRY(add_kernel(plan, s, DELTA, rows));
    MICA_TRY(add_kernel(plan, s, DQ, mica_tensor_count(&d->dq) ? rows : 0));
    MICA_TRY(add_kernel(plan, s, DKV, keys));
    if (mica_tensor_given(&d->dbias))
        MICA_TRY(add_kernel(plan, s, BIAS, (double)mica_tensor_count(&d->dbias)));
    if (mica_tensor_given(&d->dsinks)) MICA_TRY(add_kernel(plan, s, SINKS, (double)a->heads));
    return MICA_OK;
}

static mica_status build(mica_plan *plan)
{
    const mica_attention_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    fill_args(d, &s->args);
    /* Two rows of a warp in shared memory stay below 48 KiB. */
    s->warps = d->q.dtype == MICA_F64 && columns_of(&s->args) == 32 ? 2 : 4;
    if (d->pass == MICA_ATTENTION_BWD) return add_backward(plan, s);
    bool empty = mica_tensor_count(&d->out) == 0 && mica_tensor_count(&d->lse) == 0;
    double rows = (double)d->q.dims[0] * (double)d->q.dims[1] * (double)d->q.dims[2];
    return add_kernel(plan, s, FORWARD, empty ? 0 : rows);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    mica_attention_args args = s->args;
    for (int t = 0; t < ATTENTION_TENSORS; t++) args.data[t] = r->args[t];
    args.delta = mica_at(r, s->delta);
    for (int k = 0; k < KERNELS; k++)
        if (s->kernel[k]) MICA_TRY(mica_kernel_launch(s->kernel[k], &s->grid[k], r->stream, &args));
    return MICA_OK;
}

/* A thirtieth of plain f32 arithmetic. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    double flops, bytes = 0;
    mica_op_attention.cost(desc, &flops, &bytes);
    double again = ((const mica_attention_desc *)desc)->pass == MICA_ATTENTION_BWD ? 1.4 : 1;
    return 5e-3 + again * flops / (device->f32_tflops * 1e9 / 30);
}

const mica_engine mica_attention_cuda = {.name = "cuda",
                                         .cuda = true,
                                         .accepts = accepts,
                                         .predict = predict,
                                         .build = build,
                                         .run = run};
