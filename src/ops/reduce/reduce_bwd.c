/* SPDX-License-Identifier: Apache-2.0
 * Engine "compose", on the CPU and on GPUs: gradients of reductions, and norms of any order: the
 * extreme magnitude of a slice, the sum of powers of the others' shares of it, its root. What
 * gradients need of a slice is reduced again, by plans of the operation itself with a map where
 * there is none for it; then one pass of pointwise reads x, dy and those numbers, which repeat
 * along reduced dimensions by strides of 0. Cost: reading x once per number, then x, dx and hardly
 * more. */
#include "mica/pointwise.h"
#include "base/format.h"
#include "ops/compose/compose.h"
#include "ops/reduce/reduce_op.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A number of each slice: a reduction of x, or of map, in which x1 is the number before it. */
typedef struct number {
    bool given;
    mica_reduce_kind kind;
    const char *map;
    bool exact; /* an element of x, in its type */
} number;

enum { NUMBERS = 2 };

/* expr: of x0 (x), x1 (dy), x2 and x3 (the numbers); % is `share` over the number of elements, less
 * the correction, or of a norm p - 1. */
typedef struct gradient {
    const char *expr;
    double share;
    number numbers[NUMBERS];
} gradient;

#define EQUAL(a, b) a "==" b "||(" a "!=" a "&&" b "!=" b ")"
#define OF(kind)                                                                                   \
    {                                                                                              \
        true, MICA_REDUCE_KIND_##kind, NULL, false                                                 \
    }
#define BEST(kind)                                                                                 \
    {                                                                                              \
        true, MICA_REDUCE_KIND_##kind, NULL, true                                                  \
    }
#define SUM_OF(map)                                                                                \
    {                                                                                              \
        true, MICA_REDUCE_KIND_SUM, map, false                                                     \
    }
static const gradient gradients[] = {
    [MICA_REDUCE_KIND_SUM] = {"x1", 0, {{0}}},
    [MICA_REDUCE_KIND_MEAN] = {"x1*%", 1, {{0}}},
    [MICA_REDUCE_KIND_PROD] = {"where(x3==0,x1*(x2/x0),where(x3==1&&x0==0,x1*x2,0))",
                               0,
                               {{true, MICA_REDUCE_KIND_PROD, "where(x0==0,1,x0)", false},
                                SUM_OF("where(x0==0,1,0)")}},
    [MICA_REDUCE_KIND_MAX] = {"where(" EQUAL("x0", "x2") ",x1/x3,0)",
                              0,
                              {BEST(MAX), SUM_OF("where(" EQUAL("x0", "x1") ",1,0)")}},
    [MICA_REDUCE_KIND_MIN] = {"where(" EQUAL("x0", "x2") ",x1/x3,0)",
                              0,
                              {BEST(MIN), SUM_OF("where(" EQUAL("x0", "x1") ",1,0)")}},
    [MICA_REDUCE_KIND_AMAX] = {"where(" EQUAL("abs(x0)", "x2") ",sign(x0)*x1/x3,0)",
                               0,
                               {BEST(AMAX), SUM_OF("where(" EQUAL("abs(x0)", "x1") ",1,0)")}},
    [MICA_REDUCE_KIND_NORM1] = {"sign(x0)*x1", 0, {{0}}},
    [MICA_REDUCE_KIND_NORM2] = {"where(x2==0,0,x1*(x0/x2))", 0, {OF(NORM2)}},
    [MICA_REDUCE_KIND_LOGSUMEXP] = {"x1*(exp(x0-x2)/x3)", 0, {BEST(MAX), SUM_OF("exp(x0-x1)")}},
    [MICA_REDUCE_KIND_VAR] = {"x1*((x0-x2)*%)", 2, {OF(MEAN)}},
    [MICA_REDUCE_KIND_STD] = {"where(x3==0,0,x1*((x0-x2)/x3*%))", 1, {OF(MEAN), OF(STD)}},
};

#define LEAST "abs(x0)"
/* Powers of between -1 and 1 neither overflow nor vanish, those of shares may vanish. */
static const gradient of_root = {
    "where(x0==0||x2==0,0,sign(x0)*(pow(abs(x0),%)/pow(x2,%)*x1))", 0, {OF(NORM)}};
static const gradient of_norm = {
    "where(x0==0||x2==0,0,sign(x0)*(pow(abs(x0)/x2,%)*x1))", 0, {OF(NORM)}};
static const gradient of_least = {
    "where(" EQUAL("abs(x0)", "x2") ",sign(x0)*x1/x3,0)",
    0,
    {{true, MICA_REDUCE_KIND_MIN, LEAST, true}, SUM_OF("where(" EQUAL("abs(x0)", "x1") ",1,0)")}};
static const gradient of_count = {"where(isnan(x1)&&isinf(x1),1.0,0.0)", 0, {{0}}}; /* never */

static const gradient *gradient_of(const mica_reduce_desc *d)
{
    if (d->kind != MICA_REDUCE_KIND_NORM) return &gradients[d->kind];
    if (d->p == 0) return &of_count;
    if (isinf(d->p)) return &of_least;
    return fabs(d->p - 1) <= 1 ? &of_root : &of_norm;
}

static mica_dtype sums_of(const mica_reduce_desc *d)
{
    const bool wide = d->x.dtype == MICA_F64 || d->y.dtype == MICA_F64 || d->dy.dtype == MICA_F64 ||
                      d->dx.dtype == MICA_F64;
    return wide ? MICA_F64 : MICA_F32;
}

static void find_number(const mica_reduce_desc *d, const number *n, const mica_tensor *before,
                        mica_memory last, mica_tensor *t, mica_memory *to, mica_compose *c)
{
    const mica_dtype type = n->exact ? d->x.dtype : sums_of(d);
    *t = mica_tensor_packed(type, d->dy.rank, d->dy.dims);
    *to =
        mica_compose_temporary(c, (size_t)mica_tensor_count(t) * (size_t)mica_dtype_bits(type) / 8);
    mica_reduce_desc child = {.kind = n->kind,
                              .x = d->x,
                              .y = *t,
                              .keepdims = d->keepdims,
                              .correction = n->kind == d->kind ? d->correction : 0,
                              .p = n->kind == d->kind ? d->p : 2};
    const bool uses = n->map && strstr(n->map, "x1");
    memcpy(child.axes, d->axes, sizeof child.axes);
    if (n->map) snprintf(child.map, sizeof child.map, "%s", n->map);
    if (uses) child.x1 = mica_reduce_of_slices(before, &d->x, mica_reduce_axes(d));
    mica_compose_step(c, "reduce", &child, sizeof child, NULL);
    mica_compose_bind(c, MICA_REDUCE_X, mica_compose_arg(MICA_REDUCE_X));
    mica_compose_bind(c, MICA_REDUCE_Y, *to);
    if (uses) mica_compose_bind(c, MICA_REDUCE_X1, last);
}

static void add_reduction(const mica_reduce_desc *d, mica_reduce_kind kind, const char *map,
                          mica_tensor y, mica_memory to, const mica_tensor *x1, mica_memory at,
                          mica_compose *c)
{
    mica_reduce_desc child = {.kind = kind, .x = d->x, .y = y, .keepdims = d->keepdims};
    memcpy(child.axes, d->axes, sizeof child.axes);
    if (map) snprintf(child.map, sizeof child.map, "%s", map);
    if (x1) child.x1 = mica_reduce_of_slices(x1, &d->x, mica_reduce_axes(d));
    mica_compose_step(c, "reduce", &child, sizeof child, NULL);
    mica_compose_bind(c, MICA_REDUCE_X, mica_compose_arg(MICA_REDUCE_X));
    mica_compose_bind(c, MICA_REDUCE_Y, to);
    if (x1) mica_compose_bind(c, MICA_REDUCE_X1, at);
}

/* Where all are 0, or the extreme is an infinity, that is the norm. */
static void steps_of_norm(const mica_reduce_desc *d, mica_compose *c)
{
    const mica_memory y = mica_compose_arg(MICA_REDUCE_Y);
    mica_pointwise_desc root = {.y0 = d->y};
    char powers[96];
    if (d->p == 0 || isinf(d->p)) {
        add_reduction(d, d->p == 0 ? MICA_REDUCE_KIND_SUM : MICA_REDUCE_KIND_MIN,
                      d->p == 0 ? "where(x0==0,0.0,1.0)" : LEAST, d->y, y, NULL, y, c);
        return;
    }
    const mica_tensor numbers = mica_tensor_packed(sums_of(d), d->y.rank, d->y.dims);
    const size_t bytes =
        (size_t)mica_tensor_count(&numbers) * (size_t)mica_dtype_bits(numbers.dtype) / 8;
    const mica_memory extreme = mica_compose_temporary(c, bytes);
    const mica_memory sum = mica_compose_temporary(c, bytes);
    if (d->p > 0)
        add_reduction(d, MICA_REDUCE_KIND_AMAX, NULL, numbers, extreme, NULL, y, c);
    else
        add_reduction(d, MICA_REDUCE_KIND_MIN, LEAST, numbers, extreme, NULL, y, c);
    mica_format(powers, sizeof powers, "where(x1==0||isinf(x1),0.0,pow(abs(x0)/x1,%.17g))", d->p);
    add_reduction(d, MICA_REDUCE_KIND_SUM, powers, numbers, sum, &numbers, extreme, c);
    mica_format(root.expr, sizeof root.expr, "where(x1==0||isinf(x1),x1,x1*pow(x0,%.17g))",
                1 / d->p);
    root.x0 = root.x1 = numbers;
    mica_compose_step(c, "pointwise", &root, sizeof root, NULL);
    mica_compose_bind(c, MICA_POINTWISE_X0, sum);
    mica_compose_bind(c, MICA_POINTWISE_X0 + 1, extreme);
    mica_compose_bind(c, MICA_POINTWISE_Y0, y);
}

static void steps_of_gradient(const mica_reduce_desc *d, mica_compose *c)
{
    const gradient *g = gradient_of(d);
    const unsigned axes = mica_reduce_axes(d);
    mica_tensor numbers[NUMBERS] = {{0}};
    mica_memory at[NUMBERS] = {{0}};
    if (mica_tensor_count(&d->x) == 0) return;
    for (int k = 0; k < NUMBERS; k++)
        if (g->numbers[k].given)
            find_number(d, &g->numbers[k], &numbers[0], at[0], &numbers[k], &at[k], c);
    const double left = (double)mica_reduce_length(d) - d->correction;
    char share[32];
    if (d->kind == MICA_REDUCE_KIND_NORM)
        mica_format(share, sizeof share, "%.17g", d->p - 1);
    else if (left > 0)
        mica_format(share, sizeof share, "%.17g", g->share / left);
    else
        mica_format(share, sizeof share, "inf");
    mica_pointwise_desc p = {.y0 = d->dx};
    mica_text expr = {p.expr, sizeof p.expr, 0};
    for (const char *at = g->expr; *at; at++)
        mica_text_add(&expr, "%.*s", *at == '%' ? 32 : 1, *at == '%' ? share : at);
    if (strstr(p.expr, "x0")) p.x0 = d->x;
    p.x1 = mica_reduce_of_slices(&d->dy, &d->x, axes);
    if (g->numbers[0].given) p.x2 = mica_reduce_of_slices(&numbers[0], &d->x, axes);
    if (g->numbers[1].given) p.x3 = mica_reduce_of_slices(&numbers[1], &d->x, axes);
    mica_compose_step(c, "pointwise", &p, sizeof p, NULL);
    if (p.x0.dtype) mica_compose_bind(c, MICA_POINTWISE_X0, mica_compose_arg(MICA_REDUCE_X));
    mica_compose_bind(c, MICA_POINTWISE_X0 + 1, mica_compose_arg(MICA_REDUCE_DY));
    for (int k = 0; k < NUMBERS; k++)
        if (g->numbers[k].given) mica_compose_bind(c, MICA_POINTWISE_X0 + 2 + k, at[k]);
    mica_compose_bind(c, MICA_POINTWISE_Y0, mica_compose_arg(MICA_REDUCE_DX));
}

static void list_steps(const void *desc, mica_compose *c)
{
    const mica_reduce_desc *d = desc;
    (d->pass == MICA_REDUCE_BWD ? steps_of_gradient : steps_of_norm)(d, c);
}

/* ---- engine ---- */

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    const mica_reduce_desc *d = desc;
    if (d->pass == MICA_REDUCE_BWD || d->kind == MICA_REDUCE_KIND_NORM) return MICA_OK;
    return mica_refuse(why, "pass is fwd, this engine has bwd and norms of any p");
}

const mica_engine mica_reduce_compose = {
    .name = "compose", .accepts = accepts, MICA_COMPOSED(list_steps)};

const mica_engine mica_reduce_compose_cuda = {
    .name = "compose", .cuda = true, .accepts = accepts, MICA_COMPOSED(list_steps)};
