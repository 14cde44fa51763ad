/* SPDX-License-Identifier: Apache-2.0
 * Attention forward: as one operation, and in the parts that cuDNN's frontend makes of it,
 *
 *     scores = Q K [* scale] [+ bias] [hidden where row < column]
 *     weights = exp(scores - max) / sum, [* mask, * 1 / (1 - p)];  out = weights V;  max + log(sum)
 *
 * found by its structure, never by unique ids or the order of operations. */
#include "backend_attention.h"

#include <math.h>
#include <string.h>

void attention_begin(attention *a)
{
    memset(a, 0, sizeof *a);
    a->q = a->k_swapped = a->v = a->v_swapped = a->out = a->stats = -1;
    a->scale = a->bias = a->fill = a->drop_scale[0] = a->drop_scale[1] = -1;
    a->dout = a->dq = a->dk = a->dv = -1;
    for (int i = 0; i < 4; i++) a->exempt[i] = -1;
}

void attention_member(attention *a, int node)
{
    if (a->member_count == ATTENTION_MEMBERS || node < 0)
        a->failed = true;
    else
        a->members[a->member_count++] = node;
}

/* Factors of a pointwise operation are 1 in these graphs. */
static bool is_kind(const lowering *l, int number, int type, int mode)
{
    const node *n = &l->nodes[number];
    if (n->done || n->type != type || (mode >= 0 && n->mode != mode)) return false;
    return type != BT_OP_POINTWISE || (backend_real(n->op, AT_OP_POINTWISE_ALPHA1, 1) == 1 &&
                                       backend_real(n->op, AT_OP_POINTWISE_ALPHA2, 1) == 1);
}

int attention_writer(lowering *l, int tensor, int type, int mode)
{
    const int writer = tensor < 0 ? -1 : l->tensors[tensor].writer;
    return writer >= 0 && is_kind(l, writer, type, mode) ? writer : -1;
}

int attention_reader(lowering *l, int tensor, int type, int mode, int n)
{
    for (int i = 0; tensor >= 0 && i < l->node_count; i++) {
        bool reads = false;
        for (int k = 0; k < l->nodes[i].ref_count; k++)
            reads |= !l->nodes[i].refs[k].written && l->nodes[i].refs[k].tensor == tensor;
        if (reads && is_kind(l, i, type, mode) && n-- == 0) return i;
    }
    return -1;
}

static int at(const lowering *l, int number, unsigned attribute)
{
    return number < 0 ? -1 : node_at(l, &l->nodes[number], attribute);
}

int attention_scaled(lowering *l, int number, int *value)
{
    const int x = at(l, number, AT_OP_POINTWISE_X), b = at(l, number, AT_OP_POINTWISE_B);
    if (x < 0 || b < 0 || l->tensors[x].by_value == l->tensors[b].by_value) return -1;
    *value = l->tensors[b].by_value ? b : x;
    return *value == b ? x : b;
}

int attention_dropped(lowering *l, attention *a, int number)
{
    const int x = at(l, number, AT_OP_POINTWISE_X), b = at(l, number, AT_OP_POINTWISE_B);
    const int from_b = attention_writer(l, b, BT_OP_RNG, -1);
    const int rng = from_b >= 0 ? from_b : attention_writer(l, x, BT_OP_RNG, -1);
    if (rng < 0) return -1;
    const backend *d = backend_child(l->nodes[rng].op, AT_OP_RNG_DESC);
    if (backend_integer(d, AT_RNG_DISTRIBUTION, -1) != RNG_BERNOULLI) return -1;
    if (a->rng && a->rng != &l->nodes[rng]) return -1;
    if (!a->rng) attention_member(a, rng);
    a->rng = &l->nodes[rng];
    return from_b >= 0 ? x : b;
}

/* ---- scores ---- */

/* The number of a dimension, counted from the last one, that an operation is the index of; -1. */
static int index_axis(lowering *l, attention *a, int tensor)
{
    const int number = attention_writer(l, tensor, BT_OP_POINTWISE, PW_GEN_INDEX);
    if (number < 0) return -1;
    attention_member(a, number);
    const backend *d = backend_child(l->nodes[number].op, AT_OP_POINTWISE_DESC);
    return l->tensors[tensor].t.rank - 1 - (int)backend_integer(d, AT_POINTWISE_AXIS, -1);
}

int attention_unhidden(lowering *l, attention *a, int select)
{
    const int mask = at(l, select, AT_OP_POINTWISE_T), fill = at(l, select, AT_OP_POINTWISE_B);
    const int compare = attention_writer(l, mask, BT_OP_POINTWISE, PW_CMP_GE);
    if (compare < 0 || fill < 0 || !l->tensors[fill].by_value || a->causal) return -1;
    attention_member(a, select);
    attention_member(a, compare);
    if (index_axis(l, a, at(l, compare, AT_OP_POINTWISE_X)) != 1 ||
        index_axis(l, a, at(l, compare, AT_OP_POINTWISE_B)) != 0)
        return -1;
    a->causal = true;
    a->fill = fill;
    return at(l, select, AT_OP_POINTWISE_X);
}

static int unbiased(lowering *l, attention *a, int add)
{
    const int x = at(l, add, AT_OP_POINTWISE_X), b = at(l, add, AT_OP_POINTWISE_B);
    const bool of_b = b >= 0 && l->tensors[b].writer < 0 && !l->tensors[b].by_value;
    if (a->bias >= 0 || x < 0 || b < 0 || (!of_b && (l->tensors[x].writer >= 0))) return -1;
    if (!of_b && l->tensors[x].by_value) return -1;
    attention_member(a, add);
    a->bias = of_b ? b : x;
    return of_b ? x : b;
}

static bool product_of(lowering *l, attention *a, int number)
{
    const node *n = &l->nodes[number];
    if (at(l, number, AT_OP_MATMUL_M_OVERRIDE) >= 0 ||
        at(l, number, AT_OP_MATMUL_N_OVERRIDE) >= 0 || at(l, number, AT_OP_MATMUL_K_OVERRIDE) >= 0)
        return false;
    a->q = node_at(l, n, AT_OP_MATMUL_A);
    a->k_swapped = node_at(l, n, AT_OP_MATMUL_B);
    attention_member(a, number);
    return l->tensors[a->q].t.rank == 4 && !l->tensors[a->q].is_virtual &&
           !l->tensors[a->k_swapped].is_virtual;
}

bool attention_scores(lowering *l, attention *a, int tensor)
{
    for (int steps = 0; steps < 6; steps++) {
        const int product = attention_writer(l, tensor, BT_OP_MATMUL, -1);
        if (product >= 0) return product_of(l, a, product);
        if (a->scale >= 0) return false; /* a factor behind a sum is another formula */
        const int select = attention_writer(l, tensor, BT_OP_POINTWISE, PW_SELECT);
        const int add = attention_writer(l, tensor, BT_OP_POINTWISE, PW_ADD);
        const int mul = attention_writer(l, tensor, BT_OP_POINTWISE, PW_MUL);
        if (select >= 0) {
            tensor = attention_unhidden(l, a, select);
        } else if (add >= 0) {
            tensor = unbiased(l, a, add);
        } else if (mul >= 0) {
            tensor = attention_scaled(l, mul, &a->scale);
            attention_member(a, mul);
        } else {
            return false;
        }
        if (tensor < 0) return false;
    }
    return false;
}

/* ---- the whole ---- */

static bool is_member(const attention *a, int number)
{
    for (int i = 0; i < a->member_count; i++)
        if (a->members[i] == number) return true;
    return false;
}

static bool is_in(int value, const int *list, int count)
{
    for (int i = 0; i < count; i++)
        if (list[i] == value) return true;
    return false;
}

bool attention_is_closed(lowering *l, const attention *a, const int *results, int count)
{
    if (a->failed) return false;
    for (int i = 0; i < a->member_count; i++) {
        const node *n = &l->nodes[a->members[i]];
        for (int k = 0; k < n->ref_count; k++) {
            const int tensor = n->refs[k].tensor;
            if (!n->refs[k].written || is_in(tensor, results, count)) continue;
            if (!l->tensors[tensor].is_virtual && !is_in(tensor, a->exempt, 4)) return false;
            for (int other = 0; other < l->node_count; other++)
                for (int r = 0; r < l->nodes[other].ref_count; r++)
                    if (l->nodes[other].refs[r].tensor == tensor && !is_member(a, other))
                        return false;
        }
    }
    return true;
}

static bool over_last(const lowering *l, int reduction, int kind)
{
    const node *n = &l->nodes[reduction];
    const mica_tensor *x = &l->tensors[node_at(l, n, AT_OP_REDUCTION_X)].t;
    const mica_tensor *y = &l->tensors[node_at(l, n, AT_OP_REDUCTION_Y)].t;
    if (backend_integer(backend_child(n->op, AT_OP_REDUCTION_DESC), AT_REDUCTION_OPERATOR, -1) !=
        kind)
        return false;
    for (int i = 0; i < x->rank; i++)
        if (y->dims[i] != (i == x->rank - 1 ? 1 : x->dims[i])) return false;
    return true;
}

/* max + log(sum), where somebody asks for it. */
static void find_statistics(lowering *l, attention *a, int max, int sum)
{
    const int log = attention_reader(l, sum, BT_OP_POINTWISE, PW_LOG, 0);
    const int of_log = at(l, log, AT_OP_POINTWISE_Y);
    const int add = attention_reader(l, of_log, BT_OP_POINTWISE, PW_ADD, 0);
    const int x = at(l, add, AT_OP_POINTWISE_X), b = at(l, add, AT_OP_POINTWISE_B);
    if (log < 0 || add < 0 || !((x == max && b == of_log) || (b == max && x == of_log))) return;
    attention_member(a, log);
    attention_member(a, add);
    a->stats = at(l, add, AT_OP_POINTWISE_Y);
}

static bool find_softmax(lowering *l, attention *a, int weights)
{
    const int div = attention_writer(l, weights, BT_OP_POINTWISE, PW_DIV);
    const int exp_tensor = at(l, div, AT_OP_POINTWISE_X), sum = at(l, div, AT_OP_POINTWISE_B);
    const int exponential = attention_writer(l, exp_tensor, BT_OP_POINTWISE, PW_EXP);
    const int add = attention_writer(l, sum, BT_OP_REDUCTION, -1);
    const int less = at(l, exponential, AT_OP_POINTWISE_X);
    const int sub = attention_writer(l, less, BT_OP_POINTWISE, PW_SUB);
    const int scores = at(l, sub, AT_OP_POINTWISE_X), max = at(l, sub, AT_OP_POINTWISE_B);
    const int largest = attention_writer(l, max, BT_OP_REDUCTION, -1);
    if (div < 0 || exponential < 0 || add < 0 || sub < 0 || largest < 0) return false;
    if (at(l, add, AT_OP_REDUCTION_X) != exp_tensor || at(l, largest, AT_OP_REDUCTION_X) != scores)
        return false;
    if (!over_last(l, add, CUDNN_REDUCE_TENSOR_ADD) ||
        !over_last(l, largest, CUDNN_REDUCE_TENSOR_MAX))
        return false;
    const int found[] = {div, exponential, add, sub, largest};
    for (int i = 0; i < 5; i++) attention_member(a, found[i]);
    find_statistics(l, a, max, sum);
    return attention_scores(l, a, scores);
}

static bool find_fwd(lowering *l, attention *a, int product)
{
    int weights = at(l, product, AT_OP_MATMUL_A);
    attention_begin(a);
    a->v = at(l, product, AT_OP_MATMUL_B);
    a->out = at(l, product, AT_OP_MATMUL_C);
    attention_member(a, product);
    int mul = attention_writer(l, weights, BT_OP_POINTWISE, PW_MUL);
    if (mul >= 0) {
        weights = attention_scaled(l, mul, &a->drop_scale[0]);
        attention_member(a, mul);
        mul = attention_writer(l, weights, BT_OP_POINTWISE, PW_MUL);
        if (mul < 0) return false;
        weights = attention_dropped(l, a, mul);
        attention_member(a, mul);
    }
    const int results[] = {a->out, -1};
    if (weights < 0 || l->tensors[a->v].is_virtual || !find_softmax(l, a, weights)) return false;
    return attention_is_closed(l, a, (const int[]){results[0], a->stats}, 2);
}

/* ---- lines ---- */

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

cudnnStatus_t backend_find_attention(lowering *l)
{
    attention a;
    int products = 0;
    bool random = false;
    for (int i = 0; i < l->node_count; i++) {
        if (l->nodes[i].done || l->nodes[i].type != BT_OP_MATMUL) continue;
        if (find_fwd(l, &a, i)) FRONT_TRY(attention_put(l, &a));
    }
    for (int i = 0; i < l->node_count; i++) {
        if (l->nodes[i].done) continue;
        products += l->nodes[i].type == BT_OP_MATMUL;
        random |= l->nodes[i].type == BT_OP_RNG;
    }
    /* its mask would be another one than that of the other pass */
    if (random && products > 1)
        return node_refuse(l, "dropout among products, of no attention known");
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
    for (int i = 0; i < n->ref_count; i++)
        if (backend_child(l->tensors[n->refs[i].tensor].desc, AT_TENSOR_RAGGED_OFFSET))
            return node_refuse(l, "attention of ragged tensors");
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
