/* SPDX-License-Identifier: Apache-2.0
 * Attention backward in the parts that cuDNN's frontend makes of it:
 *
 *     P = exp(scores - stats)               scores as forward
 *     dV = reshape(P [* mask * 1 / (1 - p)]) dO            [summed over the heads of a group]
 *     dS = (dO V [* mask] - D) P [* 1 / (1 - p)] * scale,  D = sum(dO O) [* factor]
 *     dK = reshape(dS) Q,  dQ = cast(dS reshape(K))        [dK as dV]
 *
 * D and the sum in front of the cast are real tensors there, which the frontend puts into its
 * workspace. mica's attention has no use for them: they are not written. */
#include "backend_attention.h"

static int at(const lowering *l, int number, unsigned attribute)
{
    return number < 0 ? -1 : node_at(l, &l->nodes[number], attribute);
}

/* A reshape that exchanges the last two dimensions of the same memory. */
static bool transposes(const lowering *l, int reshape)
{
    const mica_tensor *x = &l->tensors[at(l, reshape, AT_OP_RESHAPE_X)].t;
    const mica_tensor *y = &l->tensors[at(l, reshape, AT_OP_RESHAPE_Y)].t;
    static const int from[] = {0, 1, 3, 2};
    if (x->rank != 4 || y->rank != 4) return false;
    for (int i = 0; i < 4; i++)
        if (y->dims[i] != x->dims[from[i]] ||
            (y->dims[i] > 1 && y->strides[i] != x->strides[from[i]]))
            return false;
    return true;
}

/* The product whose first operand is a transpose of `tensor`. */
static int product_of_reshape(lowering *l, attention *a, int tensor, int with)
{
    for (int i = 0;; i++) {
        const int reshape = attention_reader(l, tensor, BT_OP_RESHAPE, -1, i);
        if (reshape < 0) return -1;
        if (!transposes(l, reshape)) continue;
        const int turned = at(l, reshape, AT_OP_RESHAPE_Y);
        const int product = attention_reader(l, turned, BT_OP_MATMUL, -1, 0);
        if (product < 0 || at(l, product, AT_OP_MATMUL_A) != turned) continue;
        if (with >= 0 && at(l, product, AT_OP_MATMUL_B) != with) continue;
        attention_member(a, reshape);
        attention_member(a, product);
        return product;
    }
}

/* The gradient that a product makes, or its sum over the query heads of each key head. */
static int summed(lowering *l, attention *a, int product)
{
    const int c = at(l, product, AT_OP_MATMUL_C);
    const int sum = attention_reader(l, c, BT_OP_REDUCTION, -1, 0);
    if (sum < 0) return c;
    if (!l->tensors[c].is_virtual) a->exempt[a->exempt[3] < 0 ? 3 : 4] = c;
    const backend *d = backend_child(l->nodes[sum].op, AT_OP_REDUCTION_DESC);
    if (backend_integer(d, AT_REDUCTION_OPERATOR, -1) != CUDNN_REDUCE_TENSOR_ADD) return -1;
    attention_member(a, sum);
    return at(l, sum, AT_OP_REDUCTION_Y);
}

/* P from its exponential: what of it multiplies dO. */
static int dropped_weights(lowering *l, attention *a, int weights)
{
    for (int i = 0;; i++) {
        const int mul = attention_reader(l, weights, BT_OP_POINTWISE, PW_MUL, i);
        if (mul < 0) return weights;
        if (attention_dropped(l, a, mul) != weights) continue;
        attention_member(a, mul);
        const int masked = at(l, mul, AT_OP_POINTWISE_Y);
        const int scale = attention_reader(l, masked, BT_OP_POINTWISE, PW_MUL, 0);
        if (scale < 0 || attention_scaled(l, scale, &a->drop_scale[0]) != masked) return -1;
        attention_member(a, scale);
        return at(l, scale, AT_OP_POINTWISE_Y);
    }
}

/* D and O: sum(dO O), of which a factor is not looked at but that it fits dropout or is 1. */
static bool find_row_sums(lowering *l, attention *a, int d, int *factor)
{
    const int mul = attention_writer(l, d, BT_OP_POINTWISE, PW_MUL);
    a->exempt[0] = d;
    if (mul >= 0) {
        d = attention_scaled(l, mul, factor);
        attention_member(a, mul);
    }
    const int sum = attention_writer(l, d, BT_OP_REDUCTION, -1);
    const int product = attention_writer(l, at(l, sum, AT_OP_REDUCTION_X), BT_OP_POINTWISE, PW_MUL);
    const int x = at(l, product, AT_OP_POINTWISE_X), b = at(l, product, AT_OP_POINTWISE_B);
    if (sum < 0 || product < 0 || (x != a->dout && b != a->dout)) return false;
    a->exempt[1] = d;
    a->out = x == a->dout ? b : x;
    attention_member(a, sum);
    attention_member(a, product);
    return true;
}

/* From dO V forward to dS. */
static int score_gradient(lowering *l, attention *a, int weights, int *factor)
{
    int product = -1, tensor;
    bool less = false, times = false;
    for (int i = 0; product < 0; i++) {
        const int reader = attention_reader(l, a->dout, BT_OP_MATMUL, -1, i);
        if (reader < 0) return -1;
        if (at(l, reader, AT_OP_MATMUL_A) == a->dout) product = reader;
    }
    attention_member(a, product);
    a->v_swapped = at(l, product, AT_OP_MATMUL_B);
    tensor = at(l, product, AT_OP_MATMUL_C);
    for (int steps = 0; steps < 6; steps++) {
        const int sub = attention_reader(l, tensor, BT_OP_POINTWISE, PW_SUB, 0);
        const int mul = attention_reader(l, tensor, BT_OP_POINTWISE, PW_MUL, 0);
        if (sub >= 0) {
            const int d = at(l, sub, AT_OP_POINTWISE_B);
            if (less || at(l, sub, AT_OP_POINTWISE_X) != tensor) return -1;
            if (!find_row_sums(l, a, d, factor)) return -1;
            attention_member(a, sub);
            less = true;
            tensor = at(l, sub, AT_OP_POINTWISE_Y);
            continue;
        }
        if (mul < 0) break;
        const int x = at(l, mul, AT_OP_POINTWISE_X), b = at(l, mul, AT_OP_POINTWISE_B);
        int value = -1;
        if (x == weights || b == weights) {
            if (!less || times) return -1;
            times = true;
        } else if (attention_scaled(l, mul, &value) == tensor) {
            if (value != a->scale) a->drop_scale[1] = value;
            if (!times) return -1;
        } else if (less || attention_dropped(l, a, mul) != tensor) {
            return -1;
        }
        attention_member(a, mul);
        tensor = at(l, mul, AT_OP_POINTWISE_Y);
    }
    return less && times ? tensor : -1;
}

/* dQ of dS and K; the sum in f32 and its cast. */
static bool find_dq(lowering *l, attention *a, int ds)
{
    const int product = attention_reader(l, ds, BT_OP_MATMUL, -1, 0);
    const int k = at(l, product, AT_OP_MATMUL_B);
    const int reshape = attention_writer(l, k, BT_OP_RESHAPE, -1);
    if (product < 0 || at(l, product, AT_OP_MATMUL_A) != ds) return false;
    if (reshape >= 0 && at(l, reshape, AT_OP_RESHAPE_X) != a->k_swapped) return false;
    if (reshape < 0 || !transposes(l, reshape)) return false;
    attention_member(a, product);
    attention_member(a, reshape);
    a->dq = at(l, product, AT_OP_MATMUL_C);
    const int cast = attention_reader(l, a->dq, BT_OP_POINTWISE, PW_IDENTITY, 0);
    if (cast < 0) return true;
    a->exempt[2] = a->dq;
    attention_member(a, cast);
    a->dq = at(l, cast, AT_OP_POINTWISE_Y);
    return true;
}

static bool is_shaped(const lowering *l, int tensor, const mica_tensor *like, bool swap)
{
    const mica_tensor *t = tensor < 0 ? NULL : &l->tensors[tensor].t;
    return t && t->rank == 4 && t->dims[0] == like->dims[0] && t->dims[1] == like->dims[1] &&
           t->dims[2] == like->dims[swap ? 3 : 2] && t->dims[3] == like->dims[swap ? 2 : 3];
}

static bool fits(const lowering *l, const attention *a)
{
    return is_shaped(l, a->dq, &l->tensors[a->q].t, false) &&
           is_shaped(l, a->out, &l->tensors[a->dout].t, false) &&
           is_shaped(l, a->dk, &l->tensors[a->k_swapped].t, true) &&
           is_shaped(l, a->dv, &l->tensors[a->v_swapped].t, true) &&
           l->tensors[a->stats].t.rank == 4 && l->tensors[a->stats].t.dims[3] == 1 &&
           !l->tensors[a->v_swapped].is_virtual && !l->tensors[a->out].is_virtual &&
           !l->tensors[a->dout].is_virtual && !!a->rng == (a->drop_scale[0] >= 0) &&
           !!a->rng == (a->drop_scale[1] >= 0);
}

static bool find_bwd(lowering *l, attention *a, int exponential, int *factor)
{
    const int weights = at(l, exponential, AT_OP_POINTWISE_Y);
    int argument = at(l, exponential, AT_OP_POINTWISE_X);
    attention_begin(a);
    *factor = -1;
    attention_member(a, exponential);
    /* scores may be hidden behind the subtraction, or in front of it */
    const int select = attention_writer(l, argument, BT_OP_POINTWISE, PW_SELECT);
    if (select >= 0) argument = attention_unhidden(l, a, select);
    const int sub = attention_writer(l, argument, BT_OP_POINTWISE, PW_SUB);
    if (sub < 0) return false;
    attention_member(a, sub);
    const int scores = at(l, sub, AT_OP_POINTWISE_X);
    a->stats = at(l, sub, AT_OP_POINTWISE_B);
    if (l->tensors[a->stats].writer >= 0 || l->tensors[a->stats].by_value) return false;
    if (!attention_scores(l, a, scores)) return false;
    const int used = dropped_weights(l, a, weights);
    const int of_dv = used < 0 ? -1 : product_of_reshape(l, a, used, -1);
    if (of_dv < 0) return false;
    a->dout = at(l, of_dv, AT_OP_MATMUL_B);
    a->dv = summed(l, a, of_dv);
    const int ds = score_gradient(l, a, weights, factor);
    const int of_dk = ds < 0 ? -1 : product_of_reshape(l, a, ds, a->q);
    if (of_dk < 0) return false;
    a->dk = summed(l, a, of_dk);
    if (!find_dq(l, a, ds) || !fits(l, a)) return false;
    return attention_is_closed(l, a, (const int[]){a->dq, a->dk, a->dv}, 3);
}

cudnnStatus_t backend_find_attention_bwd(lowering *l)
{
    attention a;
    int factor;
    for (int i = 0; i < l->node_count; i++) {
        if (l->nodes[i].done || l->nodes[i].type != BT_OP_POINTWISE || l->nodes[i].mode != PW_EXP)
            continue;
        if (!find_bwd(l, &a, i, &factor)) continue;
        FRONT_TRY(attention_put(l, &a));
        if (factor < 0) continue;
        /* of D: 1, or the probability to keep a weight */
        const backend *d = a.rng ? backend_child(a.rng->op, AT_OP_RNG_DESC) : NULL;
        const char *name;
        FRONT_TRY(node_number(
            l, factor, USE_EQUAL,
            d ? (double)(float)backend_real(d, AT_RNG_BERNOULLI_PROBABILITY, 0.5) : 1, &name));
    }
    return CUDNN_STATUS_SUCCESS;
}
