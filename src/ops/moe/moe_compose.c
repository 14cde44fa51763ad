/* SPDX-License-Identifier: Apache-2.0
 * Engine "compose": routes, rows in the order of experts, a product of their groups for each of
 * w1, w3 and w2, the activation between them, weighted sums of the rows of a token; each on
 * whatever engine is best for it. Offsets of the groups are made on the device: all loads have one
 * plan. Without gating and without a hidden to keep the activation is in the first product, unless
 * weights are in few bits: those are read as they are by quantized_gemm, or, where activations are
 * e4m3, by grouped_gemm with scales of blocks, behind a quantize of the rows.
 *
 * Backward, with g the rows of dy (each a copy, without its weight) and r a row's weight:
 *
 *     dh = g w2    dweights = <h, dh> + <b2, g>    du = act'(u) r dh    dw2 = g^T (r h)    dw1 =
 * du^T x dx = sum over the rows of a token of du w1
 *
 * so that what experts made of rows, w2 h, is not needed again. Floor: the products, 2 rows (2 I H
 * + I O) operations forward and twice as many backward, or the weights of experts that have tokens
 * over the bandwidth where tokens are few; between them rows of I and H elements go to memory and
 * back: a fused activation would save 6 of 2 (2 H + 5 I + O) bytes a row. */
#include "ops/moe/moe.h"
#include "mica/activation.h"
#include "mica/gather.h"
#include "mica/gemm.h"
#include "mica/grouped_gemm.h"
#include "mica/moe_permute.h"
#include "mica/quantize.h"
#include "mica/quantized_gemm.h"
#include "ops/compose/held.h"

#include <string.h>

typedef mica_held held;

typedef struct steps {
    const mica_moe_desc *d;
    moe_sizes s;
    mica_compose list;
    mica_dtype type, real, map; /* of x, of sums, of offsets and places */
    held x, logits, indices, weights;
    held ends, rows, places, xp; /* of groups; moe_permute's */
} steps;

static held argument(const steps *p, int arg)
{
    return mica_held_arg(mica_op_tensor(&mica_op_moe, p->d, arg), arg);
}

static held matrix(steps *p, mica_dtype type, int64_t rows, int64_t columns)
{
    return mica_held_temporary(&p->list, type, 2, (const int64_t[]){rows, columns});
}

static held vector(steps *p, mica_dtype type, int64_t count)
{
    return mica_held_temporary(&p->list, type, 1, &count);
}

static void bind(steps *p, int arg, held h)
{
    if (mica_held_given(&h)) mica_compose_bind(&p->list, arg, h.at);
}

/* ---- steps ---- */

static void product(steps *p, held a, held b, held c, const held *residual)
{
    mica_gemm_desc g = {.a = a.t, .b = b.t, .c = c.t, .compute = p->d->compute};
    if (residual) g.epilogue[0] = MICA_STEP_RESIDUAL, g.residual = residual->t;
    mica_compose_step(&p->list, "gemm", &g, sizeof g, NULL);
    bind(p, MICA_GEMM_A, a);
    bind(p, MICA_GEMM_B, b);
    bind(p, MICA_GEMM_C, c);
    if (residual) bind(p, MICA_GEMM_RESIDUAL, *residual);
}

/* What products take; scales: none, or of blocks of codes. */
typedef struct operand {
    held rows, scales;
} operand;

/* c = a b of each group, and then: a bias, an activation, what is in c already. */
typedef struct then {
    held bias;
    mica_act act;
    bool added;
} then;

static void scaled_groups(steps *p, mica_grouped_gemm_pass pass, operand a, operand b, held c,
                          const then *t)
{
    mica_grouped_gemm_desc g = {.pass = pass,
                                .a = a.rows.t,
                                .b = b.rows.t,
                                .c = c.t,
                                .scale_a = a.scales.t,
                                .scale_b = b.scales.t,
                                .groups = p->ends.t,
                                .compute = p->d->compute};
    int n = 0;
    if (t && mica_held_given(&t->bias)) g.epilogue[n++] = MICA_STEP_BIAS, g.bias = t->bias.t;
    if (t && t->added) g.epilogue[n++] = MICA_STEP_RESIDUAL, g.residual = c.t;
    if (t && t->act) {
        g.epilogue[n++] = MICA_STEP_ACT + (int32_t)t->act;
        g.act_a = p->d->act_a, g.act_b = p->d->act_b;
    }
    mica_compose_step(&p->list, "grouped_gemm", &g, sizeof g, NULL);
    bind(p, MICA_GROUPED_GEMM_A, a.rows);
    bind(p, MICA_GROUPED_GEMM_B, b.rows);
    bind(p, MICA_GROUPED_GEMM_C, c);
    bind(p, MICA_GROUPED_GEMM_SCALE_A, a.scales);
    bind(p, MICA_GROUPED_GEMM_SCALE_B, b.scales);
    bind(p, MICA_GROUPED_GEMM_GROUPS, p->ends);
    if (t) bind(p, MICA_GROUPED_GEMM_BIAS, t->bias);
    if (t && t->added) bind(p, MICA_GROUPED_GEMM_RESIDUAL, c);
}

static void groups(steps *p, mica_grouped_gemm_pass pass, held a, held b, held c, const then *t)
{
    scaled_groups(p, pass, (operand){.rows = a}, (operand){.rows = b}, c, t);
}

/* ---- products with experts ---- */

static operand operand_of(steps *p, held rows)
{
    operand o = {.rows = rows};
    const int64_t count = rows.t.dims[0], columns = rows.t.dims[1];
    if (p->d->activations != MICA_MOE_ACTIVATIONS_E4M3) return o;
    o.rows = matrix(p, MICA_E4M3, count, columns);
    o.scales = matrix(p, MICA_F32, count, columns ? (columns - 1) / MOE_BLOCK + 1 : 0);
    const mica_quantize_desc q = {.pass = MICA_QUANTIZE_AMAX,
                                  .x = rows.t,
                                  .y = o.rows.t,
                                  .scale = o.scales.t,
                                  .block = {1, MOE_BLOCK}};
    mica_compose_step(&p->list, "quantize", &q, sizeof q, NULL);
    bind(p, MICA_QUANTIZE_X, rows);
    bind(p, MICA_QUANTIZE_Y, o.rows);
    bind(p, MICA_QUANTIZE_SCALE, o.scales);
    return o;
}

/* Number `which` of w1, w2, w3, in few bits. */
static void codes(steps *p, held a, int which, held c, held bias)
{
    const held w = argument(p, MICA_MOE_W1 + which);
    const held scales = argument(p, MICA_MOE_SCALES1 + which);
    const held zeros = argument(p, MICA_MOE_ZEROS1 + which);
    const mica_quantized_gemm_desc q = {.x = a.t,
                                        .w = w.t,
                                        .y = c.t,
                                        .scales = scales.t,
                                        .zeros = zeros.t,
                                        .bias = bias.t,
                                        .group = p->d->group,
                                        .ends = p->ends.t};
    mica_compose_step(&p->list, "quantized_gemm", &q, sizeof q, NULL);
    bind(p, MICA_QUANTIZED_GEMM_X, a);
    bind(p, MICA_QUANTIZED_GEMM_W, w);
    bind(p, MICA_QUANTIZED_GEMM_Y, c);
    bind(p, MICA_QUANTIZED_GEMM_SCALES, scales);
    bind(p, MICA_QUANTIZED_GEMM_ZEROS, zeros);
    bind(p, MICA_QUANTIZED_GEMM_BIAS, bias);
    bind(p, MICA_QUANTIZED_GEMM_ENDS, p->ends);
}

/* With number `which` of w1, w2, w3. */
static void experts(steps *p, operand a, int which, held c, const then *t)
{
    const held w = argument(p, MICA_MOE_W1 + which);
    if (moe_has_codes(p->d) && !mica_held_given(&a.scales)) {
        codes(p, a.rows, which, c, t->bias);
        return;
    }
    operand b = {mica_held_transposed(w), argument(p, MICA_MOE_SCALES1 + which)};
    if (mica_held_given(&b.scales)) b.scales = mica_held_transposed(b.scales);
    scaled_groups(p, MICA_GROUPED_GEMM_FWD, a, b, c, t);
}

static void route(steps *p)
{
    if (!moe_routes(p->d)) {
        p->indices = argument(p, MICA_MOE_INDICES);
        p->weights = argument(p, MICA_MOE_WEIGHTS);
        return;
    }
    const mica_moe_route_desc r = moe_route_of(p->d, MICA_MOE_ROUTE_FWD);
    p->logits = argument(p, MICA_MOE_LOGITS);
    if (!mica_held_given(&p->logits)) {
        p->logits = matrix(p, p->real, p->s.tokens, p->s.experts);
        product(p, p->x, mica_held_transposed(argument(p, MICA_MOE_ROUTER)), p->logits, NULL);
    }
    p->indices = matrix(p, MICA_S32, p->s.tokens, p->s.k);
    p->weights = matrix(p, p->real, p->s.tokens, p->s.k);
    mica_compose_step(&p->list, "moe_route", &r, sizeof r, NULL);
    bind(p, MICA_MOE_ROUTE_LOGITS, p->logits);
    bind(p, MICA_MOE_ROUTE_BIAS, argument(p, MICA_MOE_SCORE_BIAS));
    bind(p, MICA_MOE_ROUTE_INDICES, p->indices);
    bind(p, MICA_MOE_ROUTE_WEIGHTS, p->weights);
}

/* Maps, and with `rows` those of x. */
static void permute(steps *p, bool rows)
{
    const moe_sizes *s = &p->s;
    held offsets = vector(p, p->map, s->experts + 1);
    p->rows = vector(p, p->map, s->rows);
    p->places = matrix(p, p->map, s->tokens, s->k);
    if (rows) p->xp = matrix(p, p->type, s->rows, s->width);
    p->ends = mica_held_part(offsets, 0, 1, s->experts);
    const mica_moe_permute_desc m = {.indices = p->indices.t,
                                     .x = rows ? p->x.t : (mica_tensor){0},
                                     .offsets = offsets.t,
                                     .rows = p->rows.t,
                                     .places = p->places.t,
                                     .y = p->xp.t,
                                     .experts = s->experts,
                                     .capacity = p->d->capacity};
    mica_compose_step(&p->list, "moe_permute", &m, sizeof m, NULL);
    bind(p, MICA_MOE_PERMUTE_INDICES, p->indices);
    if (rows) bind(p, MICA_MOE_PERMUTE_X, p->x);
    bind(p, MICA_MOE_PERMUTE_OFFSETS, offsets);
    bind(p, MICA_MOE_PERMUTE_ROWS, p->rows);
    bind(p, MICA_MOE_PERMUTE_PLACES, p->places);
    bind(p, MICA_MOE_PERMUTE_Y, p->xp);
}

/* y = sums of the rows of a token, with weights if they are given. */
static void sum_rows(steps *p, held x, held weights, held y)
{
    const mica_moe_unpermute_desc u = {
        .x = x.t, .places = p->places.t, .weights = weights.t, .y = y.t};
    mica_compose_step(&p->list, "moe_unpermute", &u, sizeof u, NULL);
    bind(p, MICA_MOE_UNPERMUTE_X, x);
    bind(p, MICA_MOE_UNPERMUTE_PLACES, p->places);
    bind(p, MICA_MOE_UNPERMUTE_WEIGHTS, weights);
    bind(p, MICA_MOE_UNPERMUTE_Y, y);
}

/* The half of what enters the activation that w1 or w3 makes; without w3 w1 makes both. */
static held half(const steps *p, held u, bool second)
{
    if (!mica_tensor_given(&p->d->w3)) return u;
    return mica_held_part(u, 1, second ? p->s.inner : 0, p->s.inner);
}

static void enter(steps *p, held u, mica_act act)
{
    const then first = {.bias = argument(p, MICA_MOE_B1), .act = act};
    const then second = {.bias = argument(p, MICA_MOE_B3)};
    const operand x = operand_of(p, p->xp);
    experts(p, x, 0, half(p, u, false), &first);
    if (mica_tensor_given(&p->d->w3)) experts(p, x, 2, half(p, u, true), &second);
}

/* h = act(u), or u itself. With dh: its gradient du. */
static held activate(steps *p, held u, const held *dh)
{
    const mica_moe_desc *d = p->d;
    const bool plain = !d->gated && d->act == MICA_ACT_IDENTITY;
    if (plain) return dh ? *dh : u;
    held to = matrix(p, p->type, p->s.rows, dh ? p->s.pre : p->s.inner);
    mica_activation_desc a = {.act = d->act,
                              .x = u.t,
                              .gated = d->gated,
                              .axis = d->gated,
                              .act_a = d->act_a,
                              .act_b = d->act_b};
    if (dh)
        a.pass = MICA_ACTIVATION_BWD, a.dy = dh->t, a.dx = to.t;
    else
        a.y = to.t;
    mica_compose_step(&p->list, "activation", &a, sizeof a, NULL);
    bind(p, MICA_ACTIVATION_X, u);
    if (dh) bind(p, MICA_ACTIVATION_DY, *dh);
    bind(p, dh ? MICA_ACTIVATION_DX : MICA_ACTIVATION_Y, to);
    return to;
}

static void forward(steps *p)
{
    const mica_moe_desc *d = p->d;
    const bool kept = mica_tensor_given(&d->hidden), plain = !moe_has_codes(d) || d->activations,
               fused = !kept && !d->gated && plain;
    permute(p, true);
    held u = kept ? argument(p, MICA_MOE_HIDDEN) : matrix(p, p->type, p->s.rows, p->s.pre);
    if (kept) mica_held_expression(&p->list, "0.0", u, NULL, 0); /* products leave rows out */
    enter(p, u, fused ? d->act : MICA_ACT_IDENTITY);
    const held h = fused ? u : activate(p, u, NULL);
    const held made = matrix(p, p->type, p->s.rows, p->s.out);
    const then last = {.bias = argument(p, MICA_MOE_B2)};
    experts(p, operand_of(p, h), 1, made, &last);
    sum_rows(p, made, p->weights, argument(p, MICA_MOE_Y));
}

/* ---- gradients ---- */

/* The rows of dy, a copy for each choice. x is only read for gradients of weights. */
static held rows_of_gradient(steps *p)
{
    const mica_moe_desc *d = p->d;
    const held g = matrix(p, p->type, p->s.rows, p->s.out);
    const mica_moe_unpermute_desc u = {.pass = MICA_MOE_UNPERMUTE_BWD,
                                       .x = g.t,
                                       .places = p->places.t,
                                       .rows = p->rows.t,
                                       .dy = d->dy,
                                       .dx = g.t};
    mica_compose_step(&p->list, "moe_unpermute", &u, sizeof u, NULL);
    bind(p, MICA_MOE_UNPERMUTE_X, g);
    bind(p, MICA_MOE_UNPERMUTE_PLACES, p->places);
    bind(p, MICA_MOE_UNPERMUTE_ROWS, p->rows);
    bind(p, MICA_MOE_UNPERMUTE_DY, argument(p, MICA_MOE_DY));
    bind(p, MICA_MOE_UNPERMUTE_DX, g);
    return g;
}

/* y[i..] = x[index[i..]], 0 where that is -1. */
static void gather(steps *p, held x, held index, held y)
{
    const mica_gather_desc g = {.x = x.t, .index = index.t, .y = y.t};
    mica_compose_step(&p->list, "gather", &g, sizeof g, NULL);
    bind(p, MICA_GATHER_X, x);
    bind(p, MICA_GATHER_INDEX, index);
    bind(p, MICA_GATHER_Y, y);
}

/* Of rows: the weights of their choices. */
static held weights_of_rows(steps *p)
{
    const held by_row = vector(p, p->weights.t.dtype, p->s.rows);
    held all = p->weights;
    if (all.t.strides[0] != p->s.k || all.t.strides[1] != 1) {
        all = matrix(p, all.t.dtype, p->s.tokens, p->s.k);
        mica_held_expression(&p->list, "x0", all, &p->weights, 1);
    }
    all.t = mica_tensor_packed(all.t.dtype, 1, (int64_t[]){p->s.tokens * p->s.k});
    gather(p, all, p->rows, by_row);
    return by_row;
}

static held as_column(held h)
{
    h.t.rank = 2;
    h.t.dims[1] = 1, h.t.strides[1] = 1;
    return h;
}

/* The same number in all columns. */
static held over_columns(held h, int64_t columns)
{
    h.t.rank = 2;
    h.t.dims[1] = columns, h.t.strides[1] = 0;
    return h;
}

/* Sums of g over the rows of each expert, or of all, of rows by `by`. */
static void bias_gradient(steps *p, held g, held by, int arg)
{
    const held to = argument(p, arg);
    if (!mica_held_given(&to)) return;
    held each =
        mica_held_temporary(&p->list, p->real, 3, (const int64_t[]){p->s.experts, g.t.dims[1], 1});
    groups(p, MICA_GROUPED_GEMM_WGRAD, mica_held_transposed(g), as_column(by), each, NULL);
    each.t.rank = 2;
    if (to.t.rank == 2)
        mica_held_expression(&p->list, "x0", to, &each, 1);
    else
        mica_held_reduction(&p->list, MICA_REDUCE_KIND_SUM, 0, each, to);
}

static void weight_gradient(steps *p, held g, held x, int arg)
{
    const held to = argument(p, arg);
    if (mica_held_given(&to))
        groups(p, MICA_GROUPED_GEMM_WGRAD, mica_held_transposed(g), x, to, NULL);
}

/* dots += <b2, g>: a product of one column. */
static void add_bias_dots(steps *p, held g, held dots)
{
    const moe_sizes *s = &p->s;
    const held by_row = vector(p, p->real, s->rows);
    held b2 = argument(p, MICA_MOE_B2), column = matrix(p, p->type, s->experts, s->out);
    if (b2.t.rank == 1) {
        b2.t.rank = 2;
        b2.t.dims[1] = b2.t.dims[0], b2.t.strides[1] = b2.t.strides[0];
        b2.t.dims[0] = s->experts, b2.t.strides[0] = 0;
    }
    mica_held_expression(&p->list, "x0", column, &b2, 1);
    column.t.rank = 3;
    column.t.dims[2] = 1, column.t.strides[2] = 1;
    groups(p, MICA_GROUPED_GEMM_FWD, g, column, as_column(by_row), NULL);
    mica_held_expression(&p->list, "x0+x1", dots, (const held[]){dots, by_row}, 2);
}

/* Of the choices' weights, <w2 h + b2, g>, as they are here: T x k of `real`. */
static held route_gradient(steps *p, held h, held dh, held g)
{
    const held dots = vector(p, p->real, p->s.rows), to = matrix(p, p->real, p->s.tokens, p->s.k);
    mica_reduce_desc r = {.x = h.t, .x1 = dh.t, .y = dots.t, .map = "x0*x1"};
    r.axes[0] = MICA_REDUCE_AXIS(1);
    mica_compose_step(&p->list, "reduce", &r, sizeof r, NULL);
    bind(p, MICA_REDUCE_X, h);
    bind(p, MICA_REDUCE_X1, dh);
    bind(p, MICA_REDUCE_Y, dots);
    if (mica_tensor_given(&p->d->b2)) add_bias_dots(p, g, dots);
    gather(p, dots, p->places, to);
    return to;
}

/* dlogits and drouter; what of dx comes by them is added to `part`. */
static void router_gradient(steps *p, held dweights, held part)
{
    const mica_moe_desc *d = p->d;
    const mica_moe_route_desc r = moe_route_of(d, MICA_MOE_ROUTE_BWD);
    const bool routed = mica_tensor_given(&d->router);
    const held dx = argument(p, MICA_MOE_DX), router = argument(p, MICA_MOE_ROUTER);
    const held dlogits =
        routed ? matrix(p, p->type, p->s.tokens, p->s.experts) : argument(p, MICA_MOE_DLOGITS);
    mica_compose_step(&p->list, "moe_route", &r, sizeof r, NULL);
    bind(p, MICA_MOE_ROUTE_LOGITS, p->logits);
    bind(p, MICA_MOE_ROUTE_INDICES, p->indices);
    bind(p, MICA_MOE_ROUTE_DWEIGHTS, dweights);
    bind(p, MICA_MOE_ROUTE_DLOGITS, dlogits);
    if (!routed) return;
    product(p, dlogits, router, dx, &part);
    const held drouter = argument(p, MICA_MOE_DROUTER);
    if (mica_held_given(&drouter)) product(p, mica_held_transposed(dlogits), p->x, drouter, NULL);
}

/* dx, as sums over the rows of a token. */
static void input_gradient(steps *p, held du, held to)
{
    const held rows = matrix(p, p->type, p->s.rows, p->s.width);
    const then sum = {.added = true};
    groups(p, MICA_GROUPED_GEMM_FWD, half(p, du, false), argument(p, MICA_MOE_W1), rows, NULL);
    if (mica_tensor_given(&p->d->w3))
        groups(p, MICA_GROUPED_GEMM_FWD, half(p, du, true), argument(p, MICA_MOE_W3), rows, &sum);
    sum_rows(p, rows, (held){0}, to);
}

static bool wants(const steps *p, int first, int last)
{
    for (int i = first; i <= last; i++)
        if (mica_tensor_given(mica_op_tensor(&mica_op_moe, p->d, i))) return true;
    return false;
}

static void backward(steps *p)
{
    const mica_moe_desc *d = p->d;
    const bool given = mica_tensor_given(&d->hidden), routed = mica_tensor_given(&d->router);
    const moe_sizes *s = &p->s;
    permute(p, !given || wants(p, MICA_MOE_DW1, MICA_MOE_DW3));
    const held u = given ? argument(p, MICA_MOE_HIDDEN) : matrix(p, p->type, s->rows, s->pre);
    if (!given) enter(p, u, MICA_ACT_IDENTITY);
    const held h = activate(p, u, NULL), g = rows_of_gradient(p), by_row = weights_of_rows(p);
    held dh = matrix(p, p->type, s->rows, s->inner), dweights = {0};
    groups(p, MICA_GROUPED_GEMM_FWD, g, argument(p, MICA_MOE_W2), dh, NULL);
    if (moe_needs_dweights(d)) dweights = route_gradient(p, h, dh, g);
    if (mica_tensor_given(&d->dweights))
        mica_held_expression(&p->list, "x0", argument(p, MICA_MOE_DWEIGHTS), &dweights, 1);
    /* Weights of rows go into h and dh. */
    const held results[] = {matrix(p, p->type, s->rows, s->inner),
                            matrix(p, p->type, s->rows, s->inner)};
    const held in[] = {dh, over_columns(by_row, s->inner), h};
    const bool both = mica_tensor_given(&d->dw2);
    mica_held_expressions(&p->list, both ? "x0*x1;x2*x1" : "x0*x1", results, both ? 2 : 1, in,
                          both ? 3 : 2);
    weight_gradient(p, g, results[1], MICA_MOE_DW2);
    const held du = activate(p, u, &results[0]);
    weight_gradient(p, half(p, du, false), p->xp, MICA_MOE_DW1);
    weight_gradient(p, half(p, du, true), p->xp, MICA_MOE_DW3);
    if (wants(p, MICA_MOE_DB1, MICA_MOE_DB3)) {
        const held ones = vector(p, p->type, s->rows), by = vector(p, p->type, s->rows);
        mica_held_expression(&p->list, "1.0", ones, NULL, 0);
        mica_held_expression(&p->list, "x0", by, &by_row, 1);
        bias_gradient(p, half(p, du, false), ones, MICA_MOE_DB1);
        bias_gradient(p, half(p, du, true), ones, MICA_MOE_DB3);
        bias_gradient(p, g, by, MICA_MOE_DB2);
    }
    const held part = routed ? matrix(p, p->real, s->tokens, s->width) : argument(p, MICA_MOE_DX);
    input_gradient(p, du, part);
    if (routed || mica_tensor_given(&d->dlogits)) router_gradient(p, dweights, part);
}

/* ---- engine ---- */

static void make_steps(const mica_moe_desc *d, steps *p)
{
    memset(p, 0, sizeof *p);
    p->d = d;
    p->s = moe_sizes_of(d);
    p->type = d->x.dtype;
    p->real = moe_real(d);
    p->map = p->s.rows > INT32_MAX ? MICA_S64 : MICA_S32;
    p->x = argument(p, MICA_MOE_X);
    route(p);
    if (d->pass == MICA_MOE_FWD)
        forward(p);
    else
        backward(p);
}

static void list_steps(const void *desc, mica_compose *list)
{
    steps p;
    make_steps(desc, &p);
    *list = p.list;
}

const mica_engine mica_moe_compose = {.name = "compose", MICA_COMPOSED(list_steps)};

const mica_engine mica_moe_compose_cuda = {
    .name = "compose", .cuda = true, MICA_COMPOSED(list_steps)};
