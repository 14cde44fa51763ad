/* SPDX-License-Identifier: Apache-2.0
 * What the engines cuda and sm80 of attention share on the host: arguments, lists of kernels, the
 * kernels around those that multiply. */
#include "ops/attention/cuda/attention_cuda_plan.h"
#include "ops/access/access.h"

#include <math.h>
#include <stdlib.h>

enum {
    CHUNK = 64, /* columns */
    MOST_BLOCKS = 0x7fffffff,
};
static const int64_t WIDEST = (int64_t)1 << 50; /* a window as good as none */

bool attention_is_f64(const mica_attention_desc *d)
{
    return d->q.dtype == MICA_F64;
}

int64_t attention_tiles(const mica_tensor *cu, int64_t lines, int64_t sequences, int64_t rows)
{
    if (mica_tensor_given(cu)) return ceiling(lines, rows) + sequences;
    return ceiling(lines, rows) * sequences;
}

int64_t attention_query_tiles(const mica_attention_desc *d, const attention_shape *s, int64_t rows)
{
    return attention_tiles(&d->cu_q, s->rows * s->group, s->sequences, rows) * s->kv_heads;
}

/* ---- arguments ---- */

static int type_of(mica_dtype t)
{
    static const int types[MICA_DTYPE_COUNT] = {
        [MICA_F64] = ATTENTION_F64,   [MICA_F32] = ATTENTION_F32,   [MICA_F16] = ATTENTION_F16,
        [MICA_BF16] = ATTENTION_BF16, [MICA_E4M3] = ATTENTION_E4M3, [MICA_E5M2] = ATTENTION_E5M2};
    return types[t];
}

/* Whether lines can be read and written by vectors of 16 bytes, if the pointer is aligned to them.
 */
static int is_whole(const mica_tensor *t)
{
    const int vector = mica_access_of(t->dtype);
    return t->rank == 4 && mica_access_rows(vector, t) == vector;
}

static attention_operand operand_of(const mica_tensor *t, bool broadcast)
{
    attention_operand o = {.type = type_of(t->dtype), .whole = is_whole(t), .dim = {1, 1, 1, 1}};
    for (int i = 0; i < t->rank && i < 4; i++) {
        o.dim[i] = t->dims[i];
        o.stride[i] = broadcast && t->dims[i] == 1 ? 0 : t->strides[i];
    }
    return o;
}

/* The arguments that kernels get as operands. */
static const struct {
    int arg;
    size_t operand; /* offset in attention_cuda_args */
    bool broadcast;
} bindings[] = {
    {MICA_ATTENTION_Q, offsetof(attention_cuda_args, q), false},
    {MICA_ATTENTION_K, offsetof(attention_cuda_args, k), false},
    {MICA_ATTENTION_V, offsetof(attention_cuda_args, v), false},
    {MICA_ATTENTION_OUT, offsetof(attention_cuda_args, out), false},
    {MICA_ATTENTION_LSE, offsetof(attention_cuda_args, lse), false},
    {MICA_ATTENTION_DOUT, offsetof(attention_cuda_args, dout), false},
    {MICA_ATTENTION_DQ, offsetof(attention_cuda_args, d_q), false},
    {MICA_ATTENTION_DK, offsetof(attention_cuda_args, d_k), false},
    {MICA_ATTENTION_DV, offsetof(attention_cuda_args, d_v), false},
    {MICA_ATTENTION_DBIAS, offsetof(attention_cuda_args, dbias), false},
    {MICA_ATTENTION_DSINKS, offsetof(attention_cuda_args, dsinks), false},
    {MICA_ATTENTION_SCALE_Q, offsetof(attention_cuda_args, scale_q), true},
    {MICA_ATTENTION_SCALE_K, offsetof(attention_cuda_args, scale_k), true},
    {MICA_ATTENTION_SCALE_V, offsetof(attention_cuda_args, scale_v), true},
    {MICA_ATTENTION_SLOPES, offsetof(attention_cuda_args, slopes), false},
    {MICA_ATTENTION_BIAS, offsetof(attention_cuda_args, bias), true},
    {MICA_ATTENTION_MASK, offsetof(attention_cuda_args, mask), true},
    {MICA_ATTENTION_SINKS, offsetof(attention_cuda_args, sinks), false},
    {MICA_ATTENTION_RNG, offsetof(attention_cuda_args, rng), false},
    {MICA_ATTENTION_CU_Q, offsetof(attention_cuda_args, cu_q), false},
    {MICA_ATTENTION_CU_K, offsetof(attention_cuda_args, cu_k), false},
    {MICA_ATTENTION_SEQ_Q, offsetof(attention_cuda_args, seq_q), false},
    {MICA_ATTENTION_SEQ_K, offsetof(attention_cuda_args, seq_k), false},
    {MICA_ATTENTION_PAGES, offsetof(attention_cuda_args, pages), false},
};
enum { BINDINGS = sizeof bindings / sizeof *bindings };

static attention_operand *bound(attention_cuda_args *a, int i)
{
    return (attention_operand *)(void *)((char *)a + bindings[i].operand);
}

/* Neighbouring lines lie closer than the elements of one. */
static int is_across(const mica_tensor *t)
{
    if (!mica_tensor_given(t) || t->dims[3] == 1) return 0;
    return t->dims[2] > 1 && llabs(t->strides[2]) < llabs(t->strides[3]);
}

static int64_t window_of(int64_t window)
{
    return window == 0 || window > WIDEST ? WIDEST : window;
}

void attention_fill_args(const mica_attention_desc *d, const attention_shape *s, int64_t splits,
                         attention_cuda_args *a)
{
    *a = (attention_cuda_args){.sequences = s->sequences,
                               .heads = s->heads,
                               .kv_heads = s->kv_heads,
                               .group = s->group,
                               .rows = s->rows,
                               .keys = s->keys,
                               .d = s->d,
                               .dv = s->dv,
                               .left = window_of(d->window_left),
                               .right = window_of(d->window_right),
                               .diagonal = d->diagonal,
                               .bottom_right = d->align == MICA_ATTENTION_ALIGN_BOTTOM_RIGHT,
                               .k_across = is_across(&d->k),
                               .v_across = is_across(&d->v),
                               .q_across = is_across(&d->q),
                               .dout_across = is_across(&d->dout),
                               .scale = d->scale,
                               .soft_cap = d->soft_cap,
                               .threshold = (unsigned)(d->dropout * 0x1p32),
                               .keep_scale = 1 / (1 - d->dropout),
                               .splits = splits};
    if (d->causal != MICA_ATTENTION_NOT_CAUSAL) a->right = 1;
    for (int i = 0; i < BINDINGS; i++) {
        const mica_tensor *t = mica_op_tensor(&mica_op_attention, d, bindings[i].arg);
        if (mica_tensor_given(t)) *bound(a, i) = operand_of(t, bindings[i].broadcast);
    }
}

/* ---- kernels ---- */

mica_status attention_add_kernel(mica_plan *plan, const attention_kernel *k)
{
    attention_launches *s = plan->state;
    attention_launch *l = &s->launches[s->count];
    mica_kernel_spec spec = {k->file, k->entry, k->prologue, k->shared};
    MICA_TRY(mica_plan_add_kernel(plan, &spec, &l->kernel));
    l->grid = (mica_grid){.grid = {(unsigned)(k->blocks < MOST_BLOCKS ? k->blocks : MOST_BLOCKS)},
                          .block = {(unsigned)k->threads},
                          .dynamic_shared = (unsigned)k->shared};
    l->tiles = ceiling(k->lines, k->own);
    l->clears = -1;
    s->count++;
    return MICA_OK;
}

/* A warp per row. */
static const attention_layout warps = {
    .tx = 32, .ty = 8, .rows = 1, .other = 32, .columns = CHUNK, .plain = true};

attention_layout attention_layout_of(const mica_attention_desc *d, int32_t rows, int64_t columns)
{
    attention_layout l = {.tx = 16,
                          .ty = 16,
                          .rows = rows / 16,
                          .other = attention_is_f64(d) ? 32 : 64,
                          .columns = columns};
    if (rows == ATTENTION_FEW) l.tx = 32, l.ty = ATTENTION_FEW, l.rows = 1;
    return l;
}

static int chunks_of(int64_t columns)
{
    int chunks = 1;
    while (chunks * CHUNK < columns) chunks *= 2;
    return chunks;
}

static void add_prologue(const mica_attention_desc *d, const attention_layout *l, mica_text *p)
{
    bool bias = !l->plain && mica_tensor_given(&d->bias);
    mica_prologue_int(p, "TX", l->tx);
    mica_prologue_int(p, "TY", l->ty);
    mica_prologue_int(p, "ROWS", l->rows);
    mica_prologue_int(p, "OTHER", l->other);
    mica_prologue_int(p, "CHUNKS", chunks_of(l->columns));
    mica_prologue_int(p, "CAP", !l->plain && d->soft_cap > 0);
    mica_prologue_int(p, "ALIBI", !l->plain && mica_tensor_given(&d->slopes));
    mica_prologue_int(p, "BIAS", bias);
    mica_prologue_int(p, "MASK", !l->plain && mica_tensor_given(&d->mask));
    mica_prologue_int(p, "DROPOUT", !l->plain && d->dropout > 0);
    mica_dtype acc = attention_is_f64(d) ? MICA_F64 : MICA_F32;
    mica_prologue_type(p, "acc_t", acc);
    mica_prologue_type(p, "bias_t", bias ? d->bias.dtype : acc);
}

int64_t attention_shared_bytes(const mica_attention_desc *d, const attention_layout *l,
                               int64_t width0, int64_t width1)
{
    int64_t bytes = attention_is_f64(d) ? 8 : 4, pad = 16 / bytes, own = l->ty * l->rows;
    int64_t lines = own * (ceiling(width0, 4) * 4 + pad);
    if (width1 >= 0) lines += own * (ceiling(width1, 4) * 4 + pad);
    int64_t tiles = lines + l->other * (CHUNK + pad) + own * (l->other + pad);
    /* Results pass through it. */
    return bytes * larger(tiles, own * (chunks_of(l->columns) * CHUNK + pad));
}

mica_status attention_add_plain(mica_plan *plan, const attention_plain *k)
{
    char text[1024] = "";
    mica_text p = {text, sizeof text, 0};
    add_prologue(plan->desc, &k->layout, &p);
    if (k->k_name) mica_prologue_type(&p, k->k_name, k->k_type);
    if (k->v_name) mica_prologue_type(&p, k->v_name, k->v_type);
    int own = k->layout.ty * k->layout.rows;
    return attention_add_kernel(plan, &(attention_kernel){.file = k->file,
                                                          .entry = k->entry,
                                                          .prologue = text,
                                                          .lines = k->lines,
                                                          .own = own,
                                                          .blocks = k->blocks,
                                                          .shared = k->shared,
                                                          .threads = k->layout.tx * k->layout.ty});
}

/* What rows of no sequence keep. */
static mica_status add_clear(mica_plan *plan, int arg, double value)
{
    enum { THREADS = 256 };
    attention_launches *s = plan->state;
    const mica_tensor *t = mica_op_tensor(plan->op, plan->desc, arg);
    int64_t count = mica_tensor_given(t) ? mica_tensor_count(t) : 0,
            blocks = ceiling(count, THREADS);
    if (count == 0) return MICA_OK;
    char text[256] = "";
    mica_text p = {text, sizeof text, 0};
    mica_prologue_type(&p, "to_t", t->dtype);
    attention_launch *l = &s->launches[s->count];
    mica_kernel_spec spec = {"ops/attention/cuda/attention_cuda_clear.cu", "attention_clear", text,
                             0};
    MICA_TRY(mica_plan_add_kernel(plan, &spec, &l->kernel));
    l->grid = (mica_grid){.grid = {(unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS)},
                          .block = {THREADS}};
    l->clears = arg;
    l->clear = (attention_clear_args){operand_of(t, false), count, value};
    s->count++;
    return MICA_OK;
}

static bool ragged_queries(const mica_attention_desc *d)
{
    return mica_tensor_given(&d->cu_q) || mica_tensor_given(&d->seq_q);
}

mica_status attention_clear_forward(mica_plan *plan)
{
    if (!ragged_queries(plan->desc)) return MICA_OK;
    MICA_TRY(add_clear(plan, MICA_ATTENTION_OUT, 0));
    return add_clear(plan, MICA_ATTENTION_LSE, -(double)INFINITY);
}

mica_status attention_clear_backward(mica_plan *plan)
{
    const mica_attention_desc *d = plan->desc;
    if (ragged_queries(d)) MICA_TRY(add_clear(plan, MICA_ATTENTION_DQ, 0));
    if (!mica_tensor_given(&d->cu_k) && !mica_tensor_given(&d->seq_k)) return MICA_OK;
    MICA_TRY(add_clear(plan, MICA_ATTENTION_DK, 0));
    return add_clear(plan, MICA_ATTENTION_DV, 0);
}

mica_status attention_add_merge(mica_plan *plan, const attention_shape *shape, int64_t splits)
{
    const mica_attention_desc *d = plan->desc;
    attention_launches *s = plan->state;
    size_t element = attention_is_f64(d) ? 8 : 4;
    size_t lines = (size_t)(d->q.dims[0] * d->q.dims[1] * d->q.dims[2] * splits);
    MICA_TRY(mica_book(plan, "splits", lines * (size_t)shape->dv * element, &s->partial));
    MICA_TRY(mica_book(plan, "split sums", lines * 2 * element, &s->partial_stats));
    attention_plain m = {.file = "ops/attention/cuda/attention_cuda_merge.cu",
                         .entry = "attention_merge",
                         .lines = shape->rows * shape->group,
                         .layout = warps,
                         .blocks = attention_query_tiles(d, shape, warps.ty)};
    return attention_add_plain(plan, &m);
}

mica_status attention_add_delta(mica_plan *plan)
{
    const mica_attention_desc *d = plan->desc;
    attention_launches *s = plan->state;
    int64_t lines = d->q.dims[0] * d->q.dims[1] * d->q.dims[2];
    if (lines == 0) return MICA_OK;
    MICA_TRY(mica_book(plan, "dout out", (size_t)lines * (attention_is_f64(d) ? 8 : 4), &s->delta));
    s->keeps_delta = true;
    attention_plain k = {.file = "ops/attention/cuda/attention_cuda_delta.cu",
                         .entry = "attention_delta",
                         .layout = warps,
                         .blocks = ceiling(lines, warps.ty)};
    return attention_add_plain(plan, &k);
}

mica_status attention_add_dbias(mica_plan *plan, const attention_shape *shape, int32_t rows)
{
    const mica_attention_desc *d = plan->desc;
    if (!mica_tensor_given(&d->dbias) || mica_tensor_count(&d->dbias) == 0) return MICA_OK;
    const int64_t *dims = d->dbias.dims;
    attention_plain k = {.file = "ops/attention/cuda/attention_cuda_dbias.cu",
                         .entry = "attention_dbias",
                         .layout = attention_layout_of(d, rows, CHUNK),
                         .k_type = d->k.dtype,
                         .k_name = "x_t"};
    k.blocks = dims[0] * dims[1] * ceiling(dims[2], rows) * ceiling(dims[3], k.layout.other);
    k.shared = attention_shared_bytes(d, &k.layout, shape->d, shape->dv);
    return attention_add_plain(plan, &k);
}

mica_status attention_add_dsinks(mica_plan *plan, const attention_shape *shape)
{
    const mica_attention_desc *d = plan->desc;
    if (!mica_tensor_given(&d->dsinks) || shape->heads == 0) return MICA_OK;
    attention_plain k = {.file = "ops/attention/cuda/attention_cuda_dsinks.cu",
                         .entry = "attention_dsinks",
                         .layout = warps,
                         .blocks = shape->heads};
    return attention_add_plain(plan, &k);
}

/* ---- runs ---- */

static mica_status run_one(const attention_launches *s, int i, attention_cuda_args *a,
                           const mica_run *r)
{
    const attention_launch *l = &s->launches[i];
    if (l->clears >= 0) {
        attention_clear_args clear = l->clear;
        clear.to.data = r->args[l->clears];
        return mica_kernel_launch(l->kernel, &l->grid, r->stream, &clear);
    }
    a->tiles = l->tiles;
    return mica_kernel_launch(l->kernel, &l->grid, r->stream, a);
}

mica_status attention_run_kernels(const mica_plan *plan, const mica_run *r)
{
    const attention_launches *s = plan->state;
    attention_cuda_args a = s->args;
    for (int i = 0; i < BINDINGS; i++) {
        attention_operand *o = bound(&a, i);
        o->data = r->args[bindings[i].arg];
        o->whole = o->whole && mica_access_starts(o->data, 16);
    }
    if (r->workspace) {
        a.partial = mica_at(r, s->partial);
        a.partial_stats = mica_at(r, s->partial_stats);
        if (s->keeps_delta) a.delta = mica_at(r, s->delta);
    }
    for (int i = 0; i < s->count; i++) MICA_TRY(run_one(s, i, &a, r));
    return MICA_OK;
}
