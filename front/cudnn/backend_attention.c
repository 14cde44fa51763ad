/* SPDX-License-Identifier: Apache-2.0
 * Attention forward in the parts that cuDNN's frontend makes of it,
 *
 *     scores = Q K [* scale] [+ bias] [hidden where row < column]
 *     weights = exp(scores - max) / sum, [* mask, * 1 / (1 - p)];  out = weights V;  max + log(sum)
 *
 * found by its structure, never by unique ids or the order of operations. */
#include "backend_attention.h"

#include <string.h>

void attention_begin(attention *a)
{
    memset(a, 0, sizeof *a);
    a->q = a->k = a->k_swapped = a->v = a->v_swapped = a->out = a->stats = -1;
    a->scale = a->bias = a->drop_scale[0] = a->drop_scale[1] = -1;
    a->fill[0] = a->fill[1] = a->seq_q = a->seq_k = a->seed = a->offset = -1;
    a->dout = a->dq = a->dk = a->dv = -1;
    a->keep = 1;
    for (int i = 0; i < ATTENTION_EXEMPT; i++) a->exempt[i] = -1;
}

void attention_member(attention *a, int number)
{
    if (a->member_count == ATTENTION_MEMBERS || number < 0)
        a->failed = true;
    else
        a->members[a->member_count++] = number;
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

/* The lengths that an index along `axis` is below; -1. */
static int below_lengths(lowering *l, attention *a, int tensor, int axis)
{
    const int compare = attention_writer(l, tensor, BT_OP_POINTWISE, PW_CMP_LT);
    const int lengths = at(l, compare, AT_OP_POINTWISE_B);
    if (compare < 0 || index_axis(l, a, at(l, compare, AT_OP_POINTWISE_X)) != axis) return -1;
    if (l->tensors[lengths].is_virtual || l->tensors[lengths].by_value) return -1;
    attention_member(a, compare);
    return lengths;
}

static bool hides_padding(lowering *l, attention *a, int mask)
{
    const int both = attention_writer(l, mask, BT_OP_POINTWISE, PW_AND);
    if (both < 0 || a->seq_q >= 0) return false;
    attention_member(a, both);
    a->seq_q = below_lengths(l, a, at(l, both, AT_OP_POINTWISE_X), 1);
    a->seq_k = below_lengths(l, a, at(l, both, AT_OP_POINTWISE_B), 0);
    return a->seq_q >= 0 && a->seq_k >= 0;
}

static bool hides_future(lowering *l, attention *a, int mask)
{
    const int compare = attention_writer(l, mask, BT_OP_POINTWISE, PW_CMP_GE);
    if (compare < 0 || a->causal) return false;
    attention_member(a, compare);
    if (index_axis(l, a, at(l, compare, AT_OP_POINTWISE_X)) != 1 ||
        index_axis(l, a, at(l, compare, AT_OP_POINTWISE_B)) != 0)
        return false;
    return a->causal = true;
}

int attention_unhidden(lowering *l, attention *a, int select)
{
    const int mask = at(l, select, AT_OP_POINTWISE_T), fill = at(l, select, AT_OP_POINTWISE_B);
    if (fill < 0 || !l->tensors[fill].by_value) return -1;
    if (!hides_future(l, a, mask) && !hides_padding(l, a, mask)) return -1;
    attention_member(a, select);
    a->fill[a->fill[0] >= 0] = fill;
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
    a->q = node_at(l, n, AT_OP_MATMUL_A);
    a->k_swapped = node_at(l, n, AT_OP_MATMUL_B);
    attention_member(a, number);
    return l->tensors[a->q].t.rank == 4 && !l->tensors[a->q].is_virtual &&
           !l->tensors[a->k_swapped].is_virtual;
}

bool attention_scores(lowering *l, attention *a, int tensor)
{
    for (int steps = 0; steps < 8; steps++) {
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

/* Sizes of a product that come from tensors are the lengths: those of queries where the result has
 * rows of queries, and so on. */
static bool has_lengths(const lowering *l, const attention *a, const node *n)
{
    const int first = node_at(l, n, AT_OP_MATMUL_A), c = node_at(l, n, AT_OP_MATMUL_C);
    const bool scores = first == a->q || first == a->dout;
    const bool rows = scores || c == a->out || c == a->dq || c == a->exempt[2];
    const int m = rows ? a->seq_q : a->seq_k;
    const int wanted[] = {m, scores ? a->seq_k : -1, scores ? -1 : rows ? a->seq_k : a->seq_q};
    for (int i = 0; i < 3; i++) {
        const int given = node_at(l, n, AT_OP_MATMUL_M_OVERRIDE + (unsigned)i);
        if (given >= 0 && given != wanted[i]) return false;
    }
    return true;
}

bool attention_is_closed(lowering *l, const attention *a, const int *results, int count)
{
    if (a->failed) return false;
    for (int i = 0; i < a->member_count; i++)
        if (l->nodes[a->members[i]].type == BT_OP_MATMUL &&
            !has_lengths(l, a, &l->nodes[a->members[i]]))
            return false;
    for (int i = 0; i < a->member_count; i++) {
        const node *n = &l->nodes[a->members[i]];
        for (int k = 0; k < n->ref_count; k++) {
            const int tensor = n->refs[k].tensor;
            if (!n->refs[k].written || is_in(tensor, results, count)) continue;
            if (!l->tensors[tensor].is_virtual && !is_in(tensor, a->exempt, ATTENTION_EXEMPT))
                return false;
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
