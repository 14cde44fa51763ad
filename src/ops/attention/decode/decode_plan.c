/* SPDX-License-Identifier: Apache-2.0
 * What attention's engines for few queries share: what they refuse, their kernels' arguments, the
 * kernel that adds up splits, a run. */
#include "ops/attention/decode/decode.h"
#include "ops/access/access.h"

#include <limits.h>

enum { WARPS = 4, MAX_LENGTH = 1 << 29 };

#define LOG2E 1.4426950408889634

/* ---- what is taken ---- */

int attention_decode_size(const mica_attention_desc *d)
{
    return d->k.dtype == d->q.dtype ? 2 : 1;
}

mica_status attention_decode_check_features(const mica_attention_desc *d, mica_why *why)
{
    mica_dtype q = d->q.dtype, k = d->k.dtype, v = d->v.dtype;
    if (d->pass != MICA_ATTENTION_FWD) return mica_refuse(why, "pass is bwd, this engine does fwd");
    if (q != MICA_F16 && q != MICA_BF16)
        return mica_refuse(why, "q is %s, taken are f16 and bf16", mica_dtype_name(q));
    if (k != v)
        return mica_refuse(why, "k is %s, v %s; taken are equal types", mica_dtype_name(k),
                           mica_dtype_name(v));
    if (d->dropout != 0)
        return mica_refuse(why, "dropout is %g, this engine drops nothing", d->dropout);
    if (mica_tensor_given(&d->bias)) return mica_refuse(why, "bias is given, this engine has none");
    if (mica_tensor_given(&d->mask)) return mica_refuse(why, "mask is given, this engine has none");
    return MICA_OK;
}

mica_status attention_decode_check_columns(const mica_tensor *t, const char *name, int most,
                                           mica_why *why)
{
    int64_t columns = t->dims[3];
    for (int i = 0; i < 3; i++)
        if (t->dims[i] < 1)
            return mica_refuse(why, "dimension %d of %s is 0, there is nothing to do", i, name);
    if (columns < 1 || columns > most)
        return mica_refuse(why, "%s has %lld columns, this engine takes 1 to %d", name,
                           (long long)columns, most);
    return MICA_OK;
}

mica_status attention_decode_check_addressing(const mica_tensor *t, const char *name, int size,
                                              int most, mica_why *why)
{
    MICA_TRY(attention_decode_check_columns(t, name, most, why));
    if (t->strides[3] != 1 && t->dims[3] > 1)
        return mica_refuse(why, "columns of %s are %lld elements apart, the rule is 1", name,
                           (long long)t->strides[3]);
    for (int i = 0; i < 3; i++)
        if (t->dims[i] > 1 && t->strides[i] * size % 16)
            return mica_refuse(
                why, "dimension %d of %s has a stride of %lld bytes, the rule is a multiple of 16",
                i, name, (long long)t->strides[i] * size);
    return MICA_OK;
}

int64_t attention_decode_queries(const mica_attention_desc *d, const attention_shape *s)
{
    if (d->max_q) return smaller(d->max_q, s->rows);
    return mica_tensor_given(&d->cu_q) ? ceiling(s->rows, s->sequences) : s->rows;
}

int64_t attention_decode_keys(const mica_attention_desc *d, const attention_shape *s)
{
    int64_t keys = s->keys;
    if (d->max_k)
        keys = smaller(d->max_k, keys);
    else if (mica_tensor_given(&d->cu_k))
        keys = ceiling(keys, s->sequences);
    int64_t left = d->window_left, queries = attention_decode_queries(d, s);
    return left && left < keys - queries ? left + queries : keys;
}

mica_status attention_decode_check_lengths(const mica_attention_desc *d, const attention_shape *s,
                                           int64_t most, mica_why *why)
{
    if (s->sequences < 1) return mica_refuse(why, "there are no sequences");
    int64_t queries = attention_decode_queries(d, s);
    if (queries > most)
        return mica_refuse(why, "sequences have %lld queries, this engine takes up to %lld",
                           (long long)queries, (long long)most);
    double rows = (double)s->rows * (double)s->group,
           lines = (double)s->sequences * (double)s->heads;
    if (rows >= MAX_LENGTH || s->keys >= MAX_LENGTH)
        return mica_refuse(why, "%.3g rows of a key head and %lld keys, the limit is 2^29", rows,
                           (long long)s->keys);
    if (d->k.dims[0] >= MAX_LENGTH)
        return mica_refuse(why, "k has %lld pages or batch items, the limit is 2^29",
                           (long long)d->k.dims[0]);
    double blocks = (rows / 16 + 3) * lines * ATTENTION_DECODE_SPLITS;
    if (blocks >= INT_MAX)
        return mica_refuse(why, "%.3g tiles of rows, the limit is 2^24", blocks / 128);
    return MICA_OK;
}

/* ---- configs ---- */

int64_t attention_decode_tiles(const mica_attention_desc *d, const attention_shape *s, int rows)
{
    int64_t queries = attention_decode_queries(d, s);
    return ceiling(queries * s->group, rows) * s->sequences * s->kv_heads;
}

void attention_decode_add_config(mica_config *out, int *count, int rows, int64_t splits,
                                 bool cluster)
{
    mica_config c = {{rows, (int32_t)splits, cluster}};
    for (int i = 0; i < *count; i++)
        if (out[i].knob[ATTENTION_DECODE_KNOB_SPLITS] == c.knob[ATTENTION_DECODE_KNOB_SPLITS] &&
            out[i].knob[ATTENTION_DECODE_KNOB_CLUSTER] == cluster)
            return;
    out[(*count)++] = c;
}

/* ---- plans ---- */

static int far(int64_t window)
{
    return window == 0 || window > ATTENTION_DECODE_FAR ? ATTENTION_DECODE_FAR : (int)window;
}

/* Bytes to which a tensor must be aligned to be accessed by so many elements of a row. */
static int vector_bytes(const mica_tensor *t, int elements)
{
    return mica_access_rows(elements, t) == elements ? mica_access_bytes(t->dtype, elements) : 0;
}

/* The tensors that kernels only read. */
static const struct {
    int arg;
    size_t tensor; /* offset in attention_decode_args */
} inputs[] = {
    {MICA_ATTENTION_Q, offsetof(attention_decode_args, q)},
    {MICA_ATTENTION_K, offsetof(attention_decode_args, k)},
    {MICA_ATTENTION_V, offsetof(attention_decode_args, v)},
    {MICA_ATTENTION_CU_Q, offsetof(attention_decode_args, cu_q)},
    {MICA_ATTENTION_CU_K, offsetof(attention_decode_args, cu_k)},
    {MICA_ATTENTION_SEQ_Q, offsetof(attention_decode_args, seq_q)},
    {MICA_ATTENTION_SEQ_K, offsetof(attention_decode_args, seq_k)},
    {MICA_ATTENTION_PAGES, offsetof(attention_decode_args, pages)},
    {MICA_ATTENTION_SLOPES, offsetof(attention_decode_args, slopes)},
    {MICA_ATTENTION_SINKS, offsetof(attention_decode_args, sinks)},
    {MICA_ATTENTION_SCALE_K, offsetof(attention_decode_args, scale_k)},
    {MICA_ATTENTION_SCALE_V, offsetof(attention_decode_args, scale_v)},
};
enum { INPUTS = sizeof inputs / sizeof *inputs };

static attention_decode_tensor *input(attention_decode_args *a, int i)
{
    return (attention_decode_tensor *)(void *)((char *)a + inputs[i].tensor);
}

static void fill_args(const mica_attention_desc *d, const attention_shape *s, const mica_config *c,
                      attention_decode_args *a)
{
    bool paged = mica_tensor_given(&d->pages);
    for (int i = 0; i < INPUTS; i++) {
        const mica_tensor *t = mica_op_tensor(&mica_op_attention, d, inputs[i].arg);
        for (int e = 0; e < 4 && e < t->rank; e++) input(a, i)->stride[e] = t->strides[e];
    }
    if (d->scale_k.dims[0] == 1) a->scale_k.stride[0] = 0;
    if (d->scale_v.dims[0] == 1) a->scale_v.stride[0] = 0;
    for (int i = 0; i < 4; i++) a->out_stride[i] = d->out.strides[i];
    for (int i = 0; i < 3; i++) a->lse_stride[i] = d->lse.strides[i];
    a->sequences = (int)s->sequences;
    a->heads = (int)s->heads;
    a->kv_heads = (int)s->kv_heads;
    a->group = (int)s->group;
    a->rows = (int)s->rows;
    a->keys = (int)s->keys;
    a->page = mica_fastdiv_make(paged ? (unsigned)s->page : 1);
    a->groups = mica_fastdiv_make((unsigned)s->group);
    a->pool = (int)d->k.dims[0];
    a->tiles = (int)ceiling(s->rows * s->group, c->knob[ATTENTION_DECODE_KNOB_ROWS]);
    a->splits = c->knob[ATTENTION_DECODE_KNOB_SPLITS];
    a->cluster = c->knob[ATTENTION_DECODE_KNOB_CLUSTER];
    a->d = (int)s->d;
    a->dv = (int)s->dv;
    a->left = far(d->window_left);
    a->right = d->causal != MICA_ATTENTION_NOT_CAUSAL ? 1 : far(d->window_right);
    a->bottom_right = d->align == MICA_ATTENTION_ALIGN_BOTTOM_RIGHT;
    a->out_wide = d->out.dtype == MICA_F32;
    a->sink_type = d->sinks.dtype == MICA_F16    ? ATTENTION_DECODE_F16
                   : d->sinks.dtype == MICA_BF16 ? ATTENTION_DECODE_BF16
                                                 : ATTENTION_DECODE_F32;
    a->scale = (float)(d->scale * LOG2E);
    a->cap = (float)(d->soft_cap * LOG2E);
    a->cap_inverse = d->soft_cap > 0 ? (float)(2 / d->soft_cap) : 0;
}

void attention_decode_fill(const mica_plan *plan, const attention_shape *s, int keys)
{
    const mica_attention_desc *d = plan->desc;
    attention_decode_state *st = plan->state;
    fill_args(d, s, &plan->config, &st->args);
    st->args.runs = s->page % keys == 0; /* 0 if there are no pages */
    st->q_bytes = vector_bytes(&d->q, 8);
    st->out_bytes = d->v.dims[3] % 4 ? 0 : vector_bytes(&d->out, 4);
    st->equal_rows = s->dv <= s->d && d->k.dtype == d->v.dtype;
    for (int i = 0; i < 3; i++)
        if (d->k.dims[i] > 1 && d->k.strides[i] != d->v.strides[i]) st->equal_rows = false;
    /* Packed sequences may have a last tile each, and so the rows before and behind them. */
    bool packed = mica_tensor_given(&d->cu_q);
    int64_t tiles = st->args.tiles * s->kv_heads * (packed ? 1 : s->sequences);
    if (packed) tiles += (s->sequences + 2) * s->kv_heads;
    st->grid = (mica_grid){.grid = {(unsigned)(tiles * st->args.splits)},
                           .cluster = st->args.cluster ? (unsigned)st->args.splits : 0};
}

mica_status attention_decode_add_merge(mica_plan *plan, const attention_shape *s)
{
    enum { COLUMNS = 128 }; /* of a row that a block merges */
    const mica_attention_desc *d = plan->desc;
    attention_decode_state *st = plan->state;
    if (st->args.splits == 1 || st->args.cluster) return MICA_OK;
    int64_t lines = d->q.dims[0] * d->q.dims[1] * d->q.dims[2], splits = st->args.splits;
    char text[128];
    mica_text p = {text, sizeof text, 0};
    mica_prologue_type(&p, "q_t", d->q.dtype);
    st->merge_grid =
        (mica_grid){.grid = {(unsigned)(lines * ceiling(s->dv, COLUMNS))}, .block = {32 * WARPS}};
    size_t parts = (size_t)(lines * splits);
    MICA_TRY(mica_book(plan, "splits", parts * (size_t)ceiling(s->dv, 4) * 16, &st->partial));
    MICA_TRY(mica_book(plan, "split sums", parts * 8, &st->stats));
    mica_kernel_spec spec = {"ops/attention/decode/decode_merge.cu", "attention_decode_merge", text,
                             0};
    return mica_plan_add_kernel(plan, &spec, &st->merge);
}

mica_status attention_decode_run(const mica_plan *plan, const mica_run *r)
{
    const attention_decode_state *st = plan->state;
    attention_decode_args a = st->args;
    for (int i = 0; i < INPUTS; i++) input(&a, i)->data = r->args[inputs[i].arg];
    a.out = r->args[MICA_ATTENTION_OUT];
    a.lse = r->args[MICA_ATTENTION_LSE];
    a.copies = mica_access_starts(a.k.data, 16) && mica_access_starts(a.v.data, 16);
    a.q_whole = mica_access_starts(a.q.data, st->q_bytes);
    a.out_whole = mica_access_starts(a.out, st->out_bytes);
    a.values_in_keys = st->equal_rows && a.k.data == a.v.data;
    if (st->merge) {
        a.partial = mica_at(r, st->partial);
        a.stats = mica_at(r, st->stats);
    }
    MICA_TRY(mica_kernel_launch(st->kernel, &st->grid, r->stream, &a));
    return st->merge ? mica_kernel_launch(st->merge, &st->merge_grid, r->stream, &a) : MICA_OK;
}
