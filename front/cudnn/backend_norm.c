/* SPDX-License-Identifier: Apache-2.0
 * Normalisations of the graph interface as mica's norm. Statistics and parameters come with as many
 * dimensions as X, mica has those that are not repeated. */
#include "backend_node.h"

#include <stddef.h>

static const char *const kinds[] = {"layer", "instance", "batch", NULL, "rms", NULL};

/* The dimensions from `from` to before `to`: what is left out has to be 1. */
static cudnnStatus_t part(lowering *l, int tensor, int from, int to, mica_tensor *view)
{
    const mica_tensor *t = &l->tensors[tensor].t;
    *view = (mica_tensor){.dtype = t->dtype};
    for (int i = 0; i < t->rank; i++) {
        if (i >= from && i < to) {
            view->dims[view->rank] = t->dims[i];
            view->strides[view->rank++] = t->strides[i];
        } else if (t->dims[i] != 1) {
            return node_refuse(l, "tensor %lld of a norm has dimension %d of %lld, not 1",
                               (long long)l->tensors[tensor].uid, i, (long long)t->dims[i]);
        }
    }
    return CUDNN_STATUS_SUCCESS;
}

/* The first dimension that is normalised over, by the statistics or else the factor. */
static int first_axis(const lowering *l, int x, int statistic, int scale)
{
    const mica_tensor *t = &l->tensors[x].t;
    for (int i = 0; i < t->rank; i++) {
        if (statistic >= 0 && t->dims[i] > 1 && l->tensors[statistic].t.dims[i] == 1) return i;
        if (statistic < 0 && scale >= 0 && l->tensors[scale].t.dims[i] > 1) return i;
    }
    return 1;
}

typedef struct extents {
    int statistic[2], parameter[2];
} extents;

static extents extents_of(int kind, int axis, int rank)
{
    if (kind == NORM_BATCH) return (extents){{1, 2}, {1, 2}};
    if (kind == NORM_INSTANCE) return (extents){{0, 2}, {1, 2}};
    return (extents){{0, axis}, {axis, rank}};
}

static cudnnStatus_t put(lowering *l, const char *arg, int tensor, const int *range, bool written)
{
    mica_tensor view;
    if (tensor < 0) return CUDNN_STATUS_SUCCESS;
    FRONT_TRY(part(l, tensor, range[0], range[1], &view));
    if (written)
        node_write(l, arg, tensor, &view);
    else
        node_read_as(l, arg, tensor, &view);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t put_epsilon(lowering *l, int tensor)
{
    const char *name;
    if (tensor < 0) return CUDNN_STATUS_SUCCESS;
    if (!l->tensors[tensor].by_value)
        return node_refuse(l, "the epsilon of a norm is in device memory");
    FRONT_TRY(node_number(l, tensor, USE_BAKED, 1e-5, &name));
    node_put(&l->body, " eps=$%s$", name);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t lower_inference(lowering *l, const node *n, int x, int scale, int bias)
{
    const int mean = node_at(l, n, AT_OP_NORM_FWD_MEAN);
    const int rstd = node_at(l, n, AT_OP_NORM_FWD_INV_VARIANCE);
    if (mean < 0 || rstd < 0 || scale < 0 || bias < 0)
        return node_refuse(l, "inference of a batch norm without mean, variance, scale or bias");
    node_put(&l->body, "pointwise expr=(x0-x1)*x2*x3+x4");
    node_read(l, "x0", x);
    node_read(l, "x1", mean);
    node_read(l, "x2", rstd);
    node_read(l, "x3", scale);
    node_read(l, "x4", bias);
    node_write(l, "y0", node_at(l, n, AT_OP_NORM_FWD_Y), NULL);
    node_put(&l->body, "\n");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t begin(lowering *l, const char *pass, int kind, int axis, int rank)
{
    node_put(&l->body, "norm pass=%s kind=%s", pass, kinds[kind]);
    if (kind == NORM_LAYER || kind == NORM_RMS) node_put(&l->body, " axes=%d", rank - axis);
    return CUDNN_STATUS_SUCCESS;
}

/* mica changes running statistics in place: those of before are copied there, where the client has
 * them in another place. */
static cudnnStatus_t put_running(lowering *l, const char *arg, int from, int to)
{
    node_tensor *in = &l->tensors[from], *out = &l->tensors[to];
    const int range[] = {1, 2};
    mica_tensor view;
    FRONT_TRY(part(l, from, 1, 2, &view));
    if (view.dims[0] > 1 && view.strides[0] != 1)
        return node_refuse(l, "running statistics with a stride of %lld",
                           (long long)view.strides[0]);
    if (in->is_virtual || out->is_virtual || in->writer >= 0 || in->by_value ||
        in->t.dtype != out->t.dtype)
        return node_refuse(l, "running statistics in tensors %lld and %lld", (long long)in->uid,
                           (long long)out->uid);
    FRONT_TRY(put(l, arg, to, range, true));
    out->inout = true;
    l->copies[l->copy_count][0] = from;
    l->copies[l->copy_count++][1] = to;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t put_running_statistics(lowering *l, const node *n)
{
    static const unsigned at[] = {AT_OP_NORM_FWD_RUNNING_MEAN_IN, AT_OP_NORM_FWD_RUNNING_MEAN_OUT,
                                  AT_OP_NORM_FWD_RUNNING_VAR_IN, AT_OP_NORM_FWD_RUNNING_VAR_OUT,
                                  AT_OP_NORM_FWD_FACTOR};
    const char *name;
    int found[5], count = 0;
    for (int i = 0; i < 5; i++) count += (found[i] = node_at(l, n, at[i])) >= 0;
    if (!count) return CUDNN_STATUS_SUCCESS;
    if (count < 5 || l->copy_count > 2)
        return node_refuse(l, "a norm with %d of the 5 tensors of running statistics", count);
    if (!l->tensors[found[4]].by_value)
        return node_refuse(l, "the factor of running statistics is in device memory");
    FRONT_TRY(put_running(l, "running_mean", found[0], found[1]));
    FRONT_TRY(put_running(l, "running_var", found[2], found[3]));
    FRONT_TRY(node_number(l, found[4], USE_BAKED, 0.1, &name));
    node_put(&l->body, " momentum=$%s$", name);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t lower_fwd(lowering *l, const node *n, int kind)
{
    const int x = node_at(l, n, AT_OP_NORM_FWD_X), scale = node_at(l, n, AT_OP_NORM_FWD_SCALE);
    const int bias = node_at(l, n, AT_OP_NORM_FWD_BIAS), rank = l->tensors[x].t.rank;
    const int mean = node_at(l, n, AT_OP_NORM_FWD_MEAN);
    const int rstd = node_at(l, n, AT_OP_NORM_FWD_INV_VARIANCE);
    const int axis = first_axis(l, x, rstd, scale);
    const extents e = extents_of(kind, axis, rank);
    const bool training = backend_integer(n->op, AT_OP_NORM_FWD_PHASE, 0) == NORM_TRAINING;
    if (node_at(l, n, AT_OP_NORM_FWD_PEERS) >= 0) return node_refuse(l, "a norm with peers");
    if (kind != NORM_BATCH && node_at(l, n, AT_OP_NORM_FWD_RUNNING_MEAN_IN) >= 0)
        return node_refuse(l, "running statistics of a norm of kind %d", kind);
    if (!training && kind == NORM_BATCH) return lower_inference(l, n, x, scale, bias);
    if (!training && rstd >= 0)
        return node_refuse(l, "inference of a norm of kind %d with statistics", kind);
    FRONT_TRY(begin(l, "fwd", kind, axis, rank));
    node_read(l, "x", x);
    FRONT_TRY(put(l, "scale", scale, e.parameter, false));
    FRONT_TRY(put(l, "bias", bias, e.parameter, false));
    node_write(l, "y", node_at(l, n, AT_OP_NORM_FWD_Y), NULL);
    FRONT_TRY(put(l, "mean", mean, e.statistic, true));
    FRONT_TRY(put(l, "rstd", rstd, e.statistic, true));
    FRONT_TRY(put_epsilon(l, node_at(l, n, AT_OP_NORM_FWD_EPSILON)));
    FRONT_TRY(put_running_statistics(l, n));
    node_put(&l->body, "\n");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t lower_bwd(lowering *l, const node *n, int kind)
{
    const int x = node_at(l, n, AT_OP_NORM_BWD_X), scale = node_at(l, n, AT_OP_NORM_BWD_SCALE);
    const int mean = node_at(l, n, AT_OP_NORM_BWD_MEAN), rank = l->tensors[x].t.rank;
    const int rstd = node_at(l, n, AT_OP_NORM_BWD_INV_VARIANCE);
    const int axis = first_axis(l, x, rstd, scale);
    const extents e = extents_of(kind, axis, rank);
    if (node_at(l, n, AT_OP_NORM_BWD_PEERS) >= 0) return node_refuse(l, "a norm with peers");
    if (rstd < 0 || (mean < 0 && kind != NORM_RMS))
        return node_refuse(l, "a gradient of a norm without the statistics of the forward pass");
    FRONT_TRY(begin(l, "bwd", kind, axis, rank));
    node_read(l, "x", x);
    node_read(l, "dy", node_at(l, n, AT_OP_NORM_BWD_DY));
    FRONT_TRY(put(l, "scale", scale, e.parameter, false));
    if (kind != NORM_RMS) FRONT_TRY(put(l, "mean", mean, e.statistic, false));
    FRONT_TRY(put(l, "rstd", rstd, e.statistic, false));
    node_write(l, "dx", node_at(l, n, AT_OP_NORM_BWD_DX), NULL);
    FRONT_TRY(put(l, "dscale", node_at(l, n, AT_OP_NORM_BWD_DSCALE), e.parameter, true));
    FRONT_TRY(put(l, "dbias", node_at(l, n, AT_OP_NORM_BWD_DBIAS), e.parameter, true));
    node_put(&l->body, "\n");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t backend_lower_norm(lowering *l, node *n)
{
    const bool fwd = n->type == BT_OP_NORM_FWD;
    const int64_t kind =
        backend_integer(n->op, fwd ? AT_OP_NORM_FWD_MODE : AT_OP_NORM_BWD_MODE, -1);
    if (kind < 0 || kind > NORM_ADA_LAYER || !kinds[kind])
        return node_refuse(l, "norm mode %lld is not served", (long long)kind);
    return fwd ? lower_fwd(l, n, (int)kind) : lower_bwd(l, n, (int)kind);
}
