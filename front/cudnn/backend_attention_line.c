/* SPDX-License-Identifier: Apache-2.0
 * The line of attention, of parts that were found and of cuDNN's one operation. */
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

/* Dropout by the probability as a float, which both passes have alike. */
static cudnnStatus_t put_dropout(lowering *l, const attention *a, int *fresh)
{
    const mica_tensor one = mica_tensor_packed(MICA_S64, 1, (const int64_t[]){1});
    const backend *d = backend_child(a->rng->op, AT_OP_RNG_DESC);
    const double keep = (double)(float)backend_real(d, AT_RNG_BERNOULLI_PROBABILITY, 0.5);
    const int seed = node_at(l, a->rng, AT_OP_RNG_SEED),
              offset = node_at(l, a->rng, AT_OP_RNG_OFFSET);
    const char *name;
    if (seed < 0 || offset < 0 || keep <= 0 || keep > 1)
        return node_refuse(l, "dropout of attention without tensors of seed and offset");
    *fresh = l->fresh++;
    node_put(&l->extra, "tensor rng%d = s64:2\n", *fresh);
    node_put(&l->body, "concat axis=0");
    node_read_as(l, "x0", seed, &one);
    node_read_as(l, "x1", offset, &one);
    node_put(&l->body, " y=@rng%d\n", *fresh);
    for (int i = 0; i < 2; i++)
        if (a->drop_scale[i] >= 0)
            FRONT_TRY(node_number(l, a->drop_scale[i], USE_EQUAL, 1 / keep, &name));
    return CUDNN_STATUS_SUCCESS;
}

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
    if (a->fill >= 0) FRONT_TRY(node_number(l, a->fill, USE_LOWEST, -1e30, &name));
    if (a->bias >= 0) node_read(l, "bias", a->bias);
    if (a->rng) {
        const backend *d = backend_child(a->rng->op, AT_OP_RNG_DESC);
        const double keep = (double)(float)backend_real(d, AT_RNG_BERNOULLI_PROBABILITY, 0.5);
        node_put(&l->body, " dropout=%.17g rng=@rng%d", 1 - keep, fresh);
    }
    return CUDNN_STATUS_SUCCESS;
}

static void put_bwd(lowering *l, const attention *a)
{
    const mica_tensor lse = without_last(&l->tensors[a->stats].t);
    const mica_tensor v = swapped(&l->tensors[a->v_swapped].t);
    node_read_as(l, "v", a->v_swapped, &v);
    node_read(l, "out", a->out);
    node_read_as(l, "lse", a->stats, &lse);
    node_read(l, "dout", a->dout);
    node_write(l, "dq", a->dq, NULL);
    node_write(l, "dk", a->dk, NULL);
    node_write(l, "dv", a->dv, NULL);
}

static void put_fwd(lowering *l, const attention *a)
{
    node_read(l, "v", a->v);
    node_write(l, "out", a->out, NULL);
    if (a->stats < 0 || (l->tensors[a->stats].is_virtual && !l->tensors[a->stats].reads)) return;
    const mica_tensor lse = without_last(&l->tensors[a->stats].t);
    node_write(l, "lse", a->stats, &lse);
}

cudnnStatus_t attention_put(lowering *l, const attention *a)
{
    const mica_tensor k = swapped(&l->tensors[a->k_swapped].t);
    int fresh = 0;
    if (a->rng) FRONT_TRY(put_dropout(l, a, &fresh));
    node_put(&l->body, "attention pass=%s", a->dq >= 0 ? "bwd" : "fwd");
    node_read(l, "q", a->q);
    node_read_as(l, "k", a->k_swapped, &k);
    if (a->dq >= 0)
        put_bwd(l, a);
    else
        put_fwd(l, a);
    FRONT_TRY(put_numbers(l, a, fresh));
    if (l->tensors[a->q].t.dtype == MICA_F32) node_put(&l->body, " $TF32$");
    if (mica_dtype_bits(l->tensors[a->q].t.dtype) < 32) l->out->narrow = true;
    node_put(&l->body, "\n");
    for (int i = 0; i < a->member_count; i++) l->nodes[a->members[i]].done = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t backend_lower_sdpa(lowering *l, node *n)
{
    static const unsigned refused[] = {AT_OP_SDPA_FWD_BLOCK_MASK, AT_OP_SDPA_FWD_PAGE_TABLE_K,
                                       AT_OP_SDPA_FWD_PAGE_TABLE_V};
    const int q = node_at(l, n, AT_OP_SDPA_FWD_Q), stats = node_at(l, n, AT_OP_SDPA_FWD_STATS);
    attention a;
    for (int i = 0; i < 3; i++)
        if (node_at(l, n, refused[i]) >= 0)
            return node_refuse(l, "attention with attribute %u", refused[i]);
    if (backend_child(n->op, AT_OP_SDPA_FWD_SUBGRAPH))
        return node_refuse(l, "attention with a graph for its scores");
    attention_begin(&a);
    a.q = q;
    a.v = node_at(l, n, AT_OP_SDPA_FWD_V);
    a.out = node_at(l, n, AT_OP_SDPA_FWD_O);
    a.stats = stats;
    a.scale = node_at(l, n, AT_OP_SDPA_FWD_SCALE);
    if (a.scale >= 0 && !l->tensors[a.scale].by_value)
        return node_refuse(l, "the scale of attention is in device memory");
    node_put(&l->body, "attention pass=fwd");
    node_read(l, "q", q);
    node_read(l, "k", node_at(l, n, AT_OP_SDPA_FWD_K));
    put_fwd(l, &a);
    static const unsigned lengths[] = {AT_OP_SDPA_FWD_SEQ_LEN_Q, AT_OP_SDPA_FWD_SEQ_LEN_KV};
    for (int i = 0; i < 2; i++) {
        const int tensor = node_at(l, n, lengths[i]);
        if (tensor < 0) continue;
        const mica_tensor each = mica_tensor_packed(MICA_S32, 1, l->tensors[q].t.dims);
        node_read_as(l, i ? "seq_k" : "seq_q", tensor, &each);
    }
    FRONT_TRY(put_numbers(l, &a, 0));
    if (l->tensors[q].t.dtype == MICA_F32) node_put(&l->body, " $TF32$");
    if (mica_dtype_bits(l->tensors[q].t.dtype) < 32) l->out->narrow = true;
    node_put(&l->body, "\n");
    return CUDNN_STATUS_SUCCESS;
}
