/* SPDX-License-Identifier: Apache-2.0
 * Engine "compose": gradients of inputs that were broadcast. They are formed for every element of
 * the results, in the arithmetic's type, in workspace, and summed from there: child plans of
 * pointwise and reduce, no kernel of their own. Cost: such a gradient is written and read once at
 * full size. Deterministic as those are. The engines "cpu" and "cuda" take the rest. */
#include "mica/reduce.h"
#include "ops/compose/compose.h"
#include "ops/pointwise/expression_op.h"

/* The gradient that has to be summed, if there is one; -1. */
static int find_summed(const mica_pointwise_desc *d, const mica_tensor *dims, int from)
{
    for (int k = from; d->pass == MICA_POINTWISE_BWD && k < MICA_EXPR_X; k++) {
        const mica_tensor *dx = mica_expr_given(d, MICA_POINTWISE_DX0 + k);
        if (dx && mica_expr_repeated(dx, dims)) return k;
    }
    return -1;
}

static mica_status accepts_plain(const void *desc, const mica_device_info *device, mica_why *why)
{
    mica_tensor dims;
    (void)device;
    MICA_TRY(mica_expr_dims(desc, &dims, why));
    const int k = find_summed(desc, &dims, 0);
    if (k < 0) return MICA_OK;
    const mica_tensor *dx = mica_expr_given(desc, MICA_POINTWISE_DX0 + k);
    const int d = __builtin_ctz(mica_expr_repeated(dx, &dims));
    return mica_refuse(why,
                       "dx%d is summed over dimension %d of %lld elements, this engine has no sums",
                       k, d, (long long)dims.dims[d]);
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    mica_tensor dims;
    (void)device;
    MICA_TRY(mica_expr_dims(desc, &dims, why));
    if (find_summed(desc, &dims, 0) < 0)
        return mica_refuse(why, "no gradient is summed: the engines cpu and cuda need no steps");
    return MICA_OK;
}

/* ---- steps ---- */

static mica_tensor *tensor_of(mica_pointwise_desc *d, int arg)
{
    return (mica_tensor *)((char *)d + mica_op_pointwise.args[arg].tensor);
}

static size_t bytes_of(const mica_tensor *t)
{
    return (size_t)(mica_tensor_count(t) * mica_dtype_bits(t->dtype) / 8);
}

static void add_cast(mica_compose *c, mica_memory from, const mica_tensor *sums, int arg,
                     const mica_tensor *to)
{
    const mica_pointwise_desc cast = {.expr = "x0", .x0 = *sums, .y0 = *to};
    mica_compose_step(c, "pointwise", &cast, sizeof cast, NULL);
    mica_compose_bind(c, MICA_POINTWISE_X0, from);
    mica_compose_bind(c, MICA_POINTWISE_Y0, mica_compose_arg(arg));
}

/* full: a gradient of all elements, at `from`. */
static void add_sum(mica_compose *c, const mica_tensor *full, mica_memory from, int arg,
                    const mica_tensor *dx)
{
    mica_reduce_desc sum = {.x = *full, .y = mica_expr_expanded(dx, full), .keepdims = true};
    const unsigned summed = mica_expr_repeated(dx, full);
    for (int i = 0, to = 0; i < full->rank; i++) {
        if (!(summed >> i & 1)) continue;
        sum.y.dims[i] = 1;
        sum.axes[to++] = MICA_REDUCE_AXIS(i);
    }
    mica_memory there = mica_compose_arg(arg);
    const mica_tensor y = sum.y;
    const bool cast = !mica_dtype_is_common(dx->dtype);
    if (cast) {
        sum.y = mica_tensor_packed(full->dtype, y.rank, y.dims);
        there = mica_compose_temporary(c, bytes_of(&sum.y));
    }
    mica_compose_step(c, "reduce", &sum, sizeof sum, NULL);
    mica_compose_bind(c, MICA_REDUCE_X, from);
    mica_compose_bind(c, MICA_REDUCE_Y, there);
    if (cast) add_cast(c, there, &sum.y, arg, &y);
}

static void list_steps(const void *desc, mica_compose *c)
{
    const mica_pointwise_desc *d = desc;
    mica_pointwise_desc child = *d;
    mica_pointwise_set set;
    mica_memory full[MICA_EXPR_X] = {{0}};
    mica_tensor dims;
    mica_why why;
    if (mica_expr_dims(d, &dims, &why) != MICA_OK) return; /* checked before */
    mica_pointwise_operands(&mica_op_pointwise, d, &set);
    dims.dtype = mica_pointwise_real(&set);
    mica_tensor_strides_like(&dims, mica_expr_given(d, MICA_POINTWISE_DY0));
    for (int k = 0; k < MICA_EXPR_X; k++) {
        mica_tensor *x = tensor_of(&child, MICA_POINTWISE_X0 + k);
        if (mica_tensor_given(x)) *x = mica_expr_expanded(x, &dims);
    }
    for (int k = find_summed(d, &dims, 0); k >= 0; k = find_summed(d, &dims, k + 1)) {
        *tensor_of(&child, MICA_POINTWISE_DX0 + k) = dims;
        full[k] = mica_compose_temporary(c, bytes_of(&dims));
    }
    mica_compose_step(c, "pointwise", &child, sizeof child, NULL);
    mica_compose_pass(c, MICA_POINTWISE_ARGS);
    mica_compose_scale(c);
    for (int k = find_summed(d, &dims, 0); k >= 0; k = find_summed(d, &dims, k + 1))
        mica_compose_bind(c, MICA_POINTWISE_DX0 + k, full[k]);
    for (int k = find_summed(d, &dims, 0); k >= 0; k = find_summed(d, &dims, k + 1))
        add_sum(c, &dims, full[k], MICA_POINTWISE_DX0 + k,
                mica_expr_given(d, MICA_POINTWISE_DX0 + k));
}

/* ---- engines ---- */

static const mica_engine cpu = {MICA_POINTWISE_CPU, .accepts = accepts_plain};
static const mica_engine cuda = {MICA_POINTWISE_CUDA, .accepts = accepts_plain};
static const mica_engine compose_cpu = {
    .name = "compose", .accepts = accepts, MICA_COMPOSED(list_steps)};
static const mica_engine compose_cuda = {
    .name = "compose", .cuda = true, .accepts = accepts, MICA_COMPOSED(list_steps)};

const mica_engine *const mica_expr_engines[] = {&cpu,  &compose_cpu,  &mica_engine_ref,
                                                &cuda, &compose_cuda, NULL};
