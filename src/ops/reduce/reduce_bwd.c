/* SPDX-License-Identifier: Apache-2.0
 * Engine "compose", on the CPU and on GPUs: gradients of reductions. What they need of a slice is
 * reduced again, by plans of the operation itself with a map where there is none for it; then one
 * pass of pointwise reads x, dy and those numbers, which repeat along reduced dimensions by strides
 * of 0. Cost: reading x once per number, then x, dx and hardly more. */
#include "mica/pointwise.h"
#include "base/format.h"
#include "ops/compose/compose.h"
#include "ops/reduce/reduce_op.h"

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
 * the correction. */
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

static mica_dtype sums_of(const mica_reduce_desc *d)
{
    const bool wide = d->x.dtype == MICA_F64 || d->dy.dtype == MICA_F64 || d->dx.dtype == MICA_F64;
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
                              .correction = n->kind == d->kind ? d->correction : 0};
    const bool uses = n->map && strstr(n->map, "x1");
    memcpy(child.axes, d->axes, sizeof child.axes);
    if (n->map) snprintf(child.map, sizeof child.map, "%s", n->map);
    if (uses) child.x1 = mica_reduce_of_slices(before, &d->x, mica_reduce_axes(d));
    mica_compose_step(c, "reduce", &child, sizeof child, NULL);
    mica_compose_bind(c, MICA_REDUCE_X, mica_compose_arg(MICA_REDUCE_X));
    mica_compose_bind(c, MICA_REDUCE_Y, *to);
    if (uses) mica_compose_bind(c, MICA_REDUCE_X1, last);
}

static void steps_of(const mica_reduce_desc *d, mica_compose *c)
{
    const gradient *g = &gradients[d->kind];
    const unsigned axes = mica_reduce_axes(d);
    mica_tensor numbers[NUMBERS] = {{0}};
    mica_memory at[NUMBERS] = {{0}};
    if (mica_tensor_count(&d->x) == 0) return;
    for (int k = 0; k < NUMBERS; k++)
        if (g->numbers[k].given)
            find_number(d, &g->numbers[k], &numbers[0], at[0], &numbers[k], &at[k], c);
    const double left = (double)mica_reduce_length(d) - d->correction;
    char share[32];
    if (left > 0)
        mica_format(share, sizeof share, "%.17g", g->share / left);
    else
        mica_format(share, sizeof share, "inf");
    mica_pointwise_desc p = {.y0 = d->dx};
    const char *const gap = strchr(g->expr, '%');
    const int before = gap ? (int)(gap - g->expr) : (int)strlen(g->expr);
    snprintf(p.expr, sizeof p.expr, "%.*s%s%s", before, g->expr, gap ? share : "",
             gap ? gap + 1 : "");
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

/* ---- engine ---- */

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    const mica_reduce_desc *d = desc;
    if (d->pass == MICA_REDUCE_BWD) return MICA_OK;
    return mica_refuse(why, "pass is fwd, this engine has bwd");
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    mica_compose c = {0};
    (void)config;
    steps_of(desc, &c);
    return mica_compose_predict(&c, device);
}

static mica_status build(mica_plan *plan)
{
    mica_compose c = {0};
    steps_of(plan->desc, &c);
    return mica_compose_build(plan, &c);
}

const mica_engine mica_reduce_compose = {.name = "compose",
                                         .accepts = accepts,
                                         .predict = predict,
                                         .build = build,
                                         .run = mica_compose_run};

const mica_engine mica_reduce_compose_cuda = {.name = "compose",
                                              .cuda = true,
                                              .accepts = accepts,
                                              .predict = predict,
                                              .build = build,
                                              .run = mica_compose_run};
