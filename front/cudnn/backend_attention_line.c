/* SPDX-License-Identifier: Apache-2.0
 * The line of attention, of parts that were found and of cuDNN's single operations. */
#include "backend_attention.h"

#include <math.h>

static mica_tensor swapped(const mica_tensor *t)
{
    mica_tensor s = *t;
    s.dims[2] = t->dims[3], s.strides[2] = t->strides[3];
    s.dims[3] = t->dims[2], s.strides[3] = t->strides[2];
    return s;
}

static mica_tensor without_last(const mica_tensor *t)
{
    mica_tensor s = *t;
    s.rank = 3;
    s.dims[3] = s.strides[3] = 0;
    return s;
}

/* ---- dropout, by the probability as a float, which both passes have alike ---- */

static cudnnStatus_t put_dropout(lowering *l, const attention *a, int *fresh)
{
    const mica_tensor one = mica_tensor_packed(MICA_S64, 1, (const int64_t[]){1});
    const char *name;
    if (a->seed < 0 || a->offset < 0 || a->keep <= 0 || a->keep > 1)
        return node_refuse(l, "dropout of attention without tensors of seed and offset");
    if (l->tensors[a->seed].t.dtype != MICA_S64 || l->tensors[a->offset].t.dtype != MICA_S64)
        return node_refuse(l, "dropout of attention with seed and offset that are not INT64");
    *fresh = l->fresh++;
    node_put(&l->extra, "tensor rng%d = s64:2\n", *fresh);
    node_put(&l->body, "concat axis=0");
    node_read_as(l, "x0", a->seed, &one);
    node_read_as(l, "x1", a->offset, &one);
    node_put(&l->body, " y=@rng%d\n", *fresh);
    for (int i = 0; i < 2; i++)
        if (a->drop_scale[i] >= 0)
            FRONT_TRY(node_number(l, a->drop_scale[i], USE_EQUAL, 1 / a->keep, &name));
    return CUDNN_STATUS_SUCCESS;
}

/* ---- lengths ---- */

static cudnnStatus_t check_lengths(lowering *l, int tensor, int64_t count)
{
    const node_tensor *t = &l->tensors[tensor];
    if (t->by_value)
        return node_refuse(l, "the lengths %lld of attention are by value", (long long)t->uid);
    if (t->t.dtype == MICA_S32 && mica_tensor_count(&t->t) == count) return CUDNN_STATUS_SUCCESS;
    return node_refuse(l, "lengths %lld of attention are %lld of type %s, not %lld of INT32",
                       (long long)t->uid, (long long)mica_tensor_count(&t->t),
                       mica_dtype_name(t->t.dtype), (long long)count);
}

/* Lengths as mica has them, from sums where there are these; gives their number or -1. */
static cudnnStatus_t put_lengths(lowering *l, int tensor, bool sums, int64_t batch, int *fresh)
{
    const mica_tensor each = mica_tensor_packed(MICA_S32, 1, &batch);
    *fresh = -1;
    if (tensor < 0) return CUDNN_STATUS_SUCCESS;
    FRONT_TRY(check_lengths(l, tensor, batch + sums));
    if (!sums) return CUDNN_STATUS_SUCCESS;
    *fresh = l->fresh++;
    node_put(&l->extra, "tensor length%d = s32:%lld\n", *fresh, (long long)batch);
    node_put(&l->body, "pointwise expr=s32(x0-x1)");
    node_read_as(l, "x0", tensor, &each);
    node_put(&l->body, "+1");
    node_read_as(l, "x1", tensor, &each);
    node_put(&l->body, " y0=@length%d\n", *fresh);
    return CUDNN_STATUS_SUCCESS;
}

static void read_lengths(lowering *l, const char *arg, int tensor, int fresh, int64_t batch)
{
    const mica_tensor each = mica_tensor_packed(MICA_S32, 1, &batch);
    if (fresh >= 0)
        node_put(&l->body, " %s=@length%d", arg, fresh);
    else if (tensor >= 0)
        node_read_as(l, arg, tensor, &each);
}

static cudnnStatus_t unravel(lowering *l, const attention *a)
{
    const int of_queries[] = {a->q, a->out, a->stats, a->dout, a->dq};
    const int of_keys[] = {a->k, a->v, a->dk, a->dv}, turned[] = {a->k_swapped, a->v_swapped};
    for (int i = 0; i < 5; i++) FRONT_TRY(node_unravel(l, of_queries[i], 2, a->seq_q, a->summed_q));
    for (int i = 0; i < 4; i++) FRONT_TRY(node_unravel(l, of_keys[i], 2, a->seq_k, a->summed_k));
    for (int i = 0; i < 2; i++) FRONT_TRY(node_unravel(l, turned[i], 3, a->seq_k, a->summed_k));
    return CUDNN_STATUS_SUCCESS;
}

/* ---- the line ---- */

static cudnnStatus_t put_numbers(lowering *l, const attention *a, int fresh)
{
    const mica_tensor *q = &l->tensors[a->q].t;
    const char *name;
    if (a->scale >= 0)
        FRONT_TRY(
            node_number(l, a->scale, USE_BAKED, (float)(1 / sqrt((double)q->dims[3])), &name));
    if (a->scale >= 0)
        node_put(&l->body, " scale=$%s$", name);
    else
        node_put(&l->body, " scale=1");
    if (a->causal) node_put(&l->body, " causal=top_left");
    for (int i = 0; i < 2; i++)
        if (a->fill[i] >= 0) FRONT_TRY(node_number(l, a->fill[i], USE_LOWEST, -1e30, &name));
    if (a->bias >= 0) node_read(l, "bias", a->bias);
    if (a->keep < 1) node_put(&l->body, " dropout=%.17g rng=@rng%d", 1 - a->keep, fresh);
    return CUDNN_STATUS_SUCCESS;
}

static void read_turned(lowering *l, const char *arg, int tensor, int turned)
{
    if (tensor >= 0) {
        node_read(l, arg, tensor);
        return;
    }
    const mica_tensor as = swapped(&l->tensors[turned].t);
    node_read_as(l, arg, turned, &as);
}

static void put_bwd(lowering *l, const attention *a)
{
    const mica_tensor lse = without_last(&l->tensors[a->stats].t);
    node_read(l, "out", a->out);
    node_read_as(l, "lse", a->stats, &lse);
    node_read(l, "dout", a->dout);
    node_write(l, "dq", a->dq, NULL);
    node_write(l, "dk", a->dk, NULL);
    node_write(l, "dv", a->dv, NULL);
}

static void put_fwd(lowering *l, const attention *a)
{
    node_write(l, "out", a->out, NULL);
    if (a->stats < 0 || (l->tensors[a->stats].is_virtual && !l->tensors[a->stats].reads)) return;
    const mica_tensor lse = without_last(&l->tensors[a->stats].t);
    node_write(l, "lse", a->stats, &lse);
}

cudnnStatus_t attention_put(lowering *l, attention *a)
{
    const int64_t batch = l->tensors[a->q].t.dims[0];
    int fresh = 0, length_q, length_k;
    if (a->rng) {
        const backend *d = backend_child(a->rng->op, AT_OP_RNG_DESC);
        a->keep = (double)(float)backend_real(d, AT_RNG_BERNOULLI_PROBABILITY, 0.5);
        a->seed = node_at(l, a->rng, AT_OP_RNG_SEED);
        a->offset = node_at(l, a->rng, AT_OP_RNG_OFFSET);
    }
    if (a->rng || a->keep != 1) FRONT_TRY(put_dropout(l, a, &fresh));
    FRONT_TRY(put_lengths(l, a->seq_q, a->summed_q, batch, &length_q));
    FRONT_TRY(put_lengths(l, a->seq_k, a->summed_k, batch, &length_k));
    FRONT_TRY(unravel(l, a));
    node_put(&l->body, "attention pass=%s", a->dq >= 0 ? "bwd" : "fwd");
    node_read(l, "q", a->q);
    read_turned(l, "k", a->k, a->k_swapped);
    read_turned(l, "v", a->v, a->v_swapped);
    if (a->dq >= 0)
        put_bwd(l, a);
    else
        put_fwd(l, a);
    read_lengths(l, "seq_q", a->seq_q, length_q, batch);
    read_lengths(l, "seq_k", a->seq_k, length_k, batch);
    FRONT_TRY(put_numbers(l, a, fresh));
    if (l->tensors[a->q].t.dtype == MICA_F32) node_put(&l->body, " $TF32$");
    if (mica_dtype_bits(l->tensors[a->q].t.dtype) < 32) l->out->narrow = true;
    node_put(&l->body, "\n");
    for (int i = 0; i < a->member_count; i++) l->nodes[a->members[i]].done = true;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- single operations ---- */

static cudnnStatus_t refuse_any(lowering *l, const node *n, const unsigned *attributes, int count)
{
    for (int i = 0; i < count; i++)
        if (node_at(l, n, attributes[i]) >= 0)
            return node_refuse(l, "attention with attribute %u", attributes[i]);
    return CUDNN_STATUS_SUCCESS;
}

/* Of sequences' lengths and of their sums the one that is given. */
static cudnnStatus_t take_lengths(lowering *l, const node *n, unsigned each, unsigned sums,
                                  int *tensor, bool *summed)
{
    const int of_each = node_at(l, n, each), of_sums = node_at(l, n, sums);
    if (of_each >= 0 && of_sums >= 0)
        return node_refuse(l, "attention with lengths and their sums");
    *summed = of_sums >= 0;
    *tensor = *summed ? of_sums : of_each;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_scale(lowering *l, const attention *a)
{
    if (a->scale >= 0 && !l->tensors[a->scale].by_value)
        return node_refuse(l, "the scale of attention is in device memory");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t lower_fwd(lowering *l, const node *n)
{
    static const unsigned refused[] = {AT_OP_SDPA_FWD_BLOCK_MASK, AT_OP_SDPA_FWD_PAGE_TABLE_K,
                                       AT_OP_SDPA_FWD_PAGE_TABLE_V, AT_OP_SDPA_FWD_RNG_DUMP};
    attention a;
    FRONT_TRY(refuse_any(l, n, refused, 4));
    if (backend_child(n->op, AT_OP_SDPA_FWD_SUBGRAPH))
        return node_refuse(l, "attention with a graph for its scores");
    attention_begin(&a);
    a.q = node_at(l, n, AT_OP_SDPA_FWD_Q);
    a.k = node_at(l, n, AT_OP_SDPA_FWD_K);
    a.v = node_at(l, n, AT_OP_SDPA_FWD_V);
    a.out = node_at(l, n, AT_OP_SDPA_FWD_O);
    a.stats = node_at(l, n, AT_OP_SDPA_FWD_STATS);
    a.scale = node_at(l, n, AT_OP_SDPA_FWD_SCALE);
    a.seed = node_at(l, n, AT_OP_SDPA_FWD_SEED);
    a.offset = node_at(l, n, AT_OP_SDPA_FWD_OFFSET);
    a.keep = (double)(float)(1 - backend_real(n->op, AT_OP_SDPA_FWD_DROPOUT, 0));
    FRONT_TRY(check_scale(l, &a));
    FRONT_TRY(take_lengths(l, n, AT_OP_SDPA_FWD_SEQ_LEN_Q, AT_OP_SDPA_FWD_CU_SEQ_LEN_Q, &a.seq_q,
                           &a.summed_q));
    FRONT_TRY(take_lengths(l, n, AT_OP_SDPA_FWD_SEQ_LEN_KV, AT_OP_SDPA_FWD_CU_SEQ_LEN_KV, &a.seq_k,
                           &a.summed_k));
    return attention_put(l, &a);
}

static cudnnStatus_t lower_bwd(lowering *l, const node *n)
{
    static const unsigned refused[] = {AT_OP_SDPA_BWD_DBIAS, AT_OP_SDPA_BWD_SINK,
                                       AT_OP_SDPA_BWD_DSINK};
    attention a;
    FRONT_TRY(refuse_any(l, n, refused, 3));
    if (backend_child(n->op, AT_OP_SDPA_BWD_SUBGRAPH))
        return node_refuse(l, "the gradient of attention with a graph for its scores");
    attention_begin(&a);
    a.q = node_at(l, n, AT_OP_SDPA_BWD_Q);
    a.k = node_at(l, n, AT_OP_SDPA_BWD_K);
    a.v = node_at(l, n, AT_OP_SDPA_BWD_V);
    a.out = node_at(l, n, AT_OP_SDPA_BWD_O);
    a.stats = node_at(l, n, AT_OP_SDPA_BWD_STATS);
    a.dout = node_at(l, n, AT_OP_SDPA_BWD_DO);
    a.dq = node_at(l, n, AT_OP_SDPA_BWD_DQ);
    a.dk = node_at(l, n, AT_OP_SDPA_BWD_DK);
    a.dv = node_at(l, n, AT_OP_SDPA_BWD_DV);
    a.scale = node_at(l, n, AT_OP_SDPA_BWD_SCALE);
    a.seed = node_at(l, n, AT_OP_SDPA_BWD_SEED);
    a.offset = node_at(l, n, AT_OP_SDPA_BWD_OFFSET);
    a.keep = (double)(float)(1 - backend_real(n->op, AT_OP_SDPA_BWD_DROPOUT, 0));
    FRONT_TRY(check_scale(l, &a));
    FRONT_TRY(take_lengths(l, n, AT_OP_SDPA_BWD_SEQ_LEN_Q, AT_OP_SDPA_BWD_CU_SEQ_LEN_Q, &a.seq_q,
                           &a.summed_q));
    FRONT_TRY(take_lengths(l, n, AT_OP_SDPA_BWD_SEQ_LEN_KV, AT_OP_SDPA_BWD_CU_SEQ_LEN_KV, &a.seq_k,
                           &a.summed_k));
    return attention_put(l, &a);
}

cudnnStatus_t backend_lower_sdpa(lowering *l, node *n)
{
    return n->type == BT_OP_SDPA_FWD ? lower_fwd(l, n) : lower_bwd(l, n);
}
