/* SPDX-License-Identifier: Apache-2.0
 * Tensors in memory, and steps that they are handed to. */
#include "ops/compose/held.h"
#include "mica/pointwise.h"
#include "base/format.h"

static int64_t bytes_of(mica_dtype type)
{
    return mica_dtype_bits(type) / 8;
}

mica_held mica_held_temporary(mica_compose *c, mica_dtype type, int rank, const int64_t *dims)
{
    mica_held h = {.t = mica_tensor_packed(type, rank, dims)};
    h.at = mica_compose_temporary(c, (size_t)mica_tensor_count(&h.t) * (size_t)bytes_of(type));
    return h;
}

mica_held mica_held_transposed(mica_held h)
{
    int64_t *dims = h.t.dims + h.t.rank - 2, *strides = h.t.strides + h.t.rank - 2;
    const int64_t dim = dims[0], stride = strides[0];
    dims[0] = dims[1], strides[0] = strides[1];
    dims[1] = dim, strides[1] = stride;
    return h;
}

mica_held mica_held_part(mica_held h, int dimension, int64_t first, int64_t count)
{
    h.t.dims[dimension] = count;
    h.at.at += first * h.t.strides[dimension] * bytes_of(h.t.dtype);
    return h;
}

void mica_held_expressions(mica_compose *c, const char *text, const mica_held *y, int results,
                           const mica_held *x, int count)
{
    mica_pointwise_desc e = {0};
    mica_format(e.expr, sizeof e.expr, "%s", text);
    for (int i = 0; i < count; i++) (&e.x0)[i] = x[i].t;
    for (int i = 0; i < results; i++) (&e.y0)[i] = y[i].t;
    mica_compose_step(c, "pointwise", &e, sizeof e, NULL);
    for (int i = 0; i < count; i++)
        if (mica_held_given(&x[i])) mica_compose_bind(c, MICA_POINTWISE_X0 + i, x[i].at);
    for (int i = 0; i < results; i++) mica_compose_bind(c, MICA_POINTWISE_Y0 + i, y[i].at);
}

void mica_held_reduction(mica_compose *c, mica_reduce_kind kind, int axis, mica_held x, mica_held y)
{
    mica_reduce_desc r = {.kind = kind, .x = x.t, .y = y.t};
    if (axis >= 0) r.axes[0] = MICA_REDUCE_AXIS(axis);
    mica_compose_step(c, "reduce", &r, sizeof r, NULL);
    mica_compose_bind(c, MICA_REDUCE_X, x.at);
    mica_compose_bind(c, MICA_REDUCE_Y, y.at);
}
