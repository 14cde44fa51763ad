/* SPDX-License-Identifier: Apache-2.0
 * Operations that move, make or summarise elements as lines of a mica graph: changes of shape,
 * random numbers, pooling, statistics. */
#include "backend_node.h"

#include <string.h>

/* ---- shapes ---- */

static void put_transform(lowering *l, int x, const mica_tensor *as, int64_t at, int y)
{
    node_put(&l->body, "transform");
    node_read_as(l, "x", x, as);
    if (at) node_put(&l->body, "+%lld", (long long)at);
    node_write(l, "y", y, NULL);
    node_put(&l->body, "\n");
}

static bool is_packed(const mica_tensor *t)
{
    const mica_tensor like = mica_tensor_packed(t->dtype, t->rank, t->dims);
    for (int i = 0; i < t->rank; i++)
        if (t->dims[i] > 1 && t->strides[i] != like.strides[i]) return false;
    return true;
}

/* Y's dimensions and strides are a view of the memory of X, with which cuDNN's frontend transposes;
 * LOGICAL, or where that cannot be, its elements in their order. */
static cudnnStatus_t lower_reshape(lowering *l, const node *n)
{
    const int x = node_at(l, n, AT_OP_RESHAPE_X), y = node_at(l, n, AT_OP_RESHAPE_Y);
    const mica_tensor *tx = &l->tensors[x].t;
    mica_tensor as = l->tensors[y].t;
    bool view = backend_integer(n->op, AT_OP_RESHAPE_MODE, RESHAPE_VIEW) != RESHAPE_LOGICAL;
    as.dtype = tx->dtype;
    view = view && mica_tensor_span(&as, NULL) == mica_tensor_span(tx, NULL);
    if (!view && as.rank == tx->rank && !memcmp(as.dims, tx->dims, sizeof as.dims)) {
        as = *tx;
    } else if (!view) {
        if (!is_packed(tx))
            return node_refuse(l, "a reshape of tensor %lld, which is not packed",
                               (long long)l->tensors[x].uid);
        as = mica_tensor_packed(as.dtype, as.rank, as.dims);
    }
    put_transform(l, x, &as, 0, y);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t lower_transpose(lowering *l, const node *n)
{
    const int x = node_at(l, n, AT_OP_TRANSPOSE_X);
    const mica_tensor *tx = &l->tensors[x].t;
    mica_tensor as = *tx;
    int64_t perm[8];
    const int rank = backend_integers(n->op, AT_OP_TRANSPOSE_PERMUTATION, perm);
    for (int i = 0; i < tx->rank; i++) {
        if (rank != tx->rank || perm[i] < 0 || perm[i] >= rank)
            return node_refuse(l, "PERMUTATION is none of %d dimensions", tx->rank);
        as.dims[i] = tx->dims[perm[i]];
        as.strides[i] = tx->strides[perm[i]];
    }
    put_transform(l, x, &as, 0, node_at(l, n, AT_OP_TRANSPOSE_Y));
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t lower_slice(lowering *l, const node *n)
{
    const int x = node_at(l, n, AT_OP_SLICE_X);
    mica_tensor as = l->tensors[x].t;
    int64_t start[8], limit[8], step[8] = {1, 1, 1, 1, 1, 1, 1, 1}, at = 0;
    const int rank = backend_integers(n->op, AT_OP_SLICE_START, start);
    const int ends = backend_integers(n->op, AT_OP_SLICE_LIMIT, limit);
    const int steps = backend_integers(n->op, AT_OP_SLICE_STRIDES, step);
    if (rank != as.rank || ends != rank || (steps && steps != rank))
        return node_refuse(l, "a slice of %d indices of a tensor of rank %d", rank, as.rank);
    for (int i = 0; i < rank; i++) {
        if (start[i] < 0 || limit[i] > as.dims[i] || start[i] >= limit[i] || step[i] < 1)
            return node_refuse(l, "a slice of %lld to %lld in steps of %lld, of %lld",
                               (long long)start[i], (long long)limit[i], (long long)step[i],
                               (long long)as.dims[i]);
        at += start[i] * as.strides[i];
        as.dims[i] = (limit[i] - start[i] + step[i] - 1) / step[i];
        as.strides[i] *= step[i];
    }
    put_transform(l, x, &as, at, node_at(l, n, AT_OP_SLICE_Y));
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t lower_concat(lowering *l, const node *n)
{
    const int y = node_at(l, n, AT_OP_CONCAT_Y);
    int count = 0;
    node_put(&l->body, "concat axis=%lld", (long long)backend_integer(n->op, AT_OP_CONCAT_AXIS, 0));
    for (int i = 0; i < n->ref_count; i++) {
        char arg[8] = {'x', (char)('0' + count), 0};
        if (n->refs[i].attribute != AT_OP_CONCAT_INPUTS) continue;
        if (count++ == 8) return node_refuse(l, "a concatenation of more than 8 tensors");
        int x = n->refs[i].tensor;
        while (l->tensors[x].alias >= 0) x = l->tensors[x].alias;
        node_read(l, arg, x);
    }
    if (backend_get(n->op, AT_OP_CONCAT_INPLACE_INDEX))
        return node_refuse(l, "a concatenation in place");
    node_write(l, "y", y, NULL);
    node_put(&l->body, "\n");
    return CUDNN_STATUS_SUCCESS;
}

/* ---- random numbers ---- */

static cudnnStatus_t lower_random(lowering *l, const node *n)
{
    const backend *d = backend_child(n->op, AT_OP_RNG_DESC);
    const int seed = node_at(l, n, AT_OP_RNG_SEED), offset = node_at(l, n, AT_OP_RNG_OFFSET);
    const mica_tensor one = mica_tensor_packed(MICA_S64, 1, (const int64_t[]){1});
    const int fresh = l->fresh++;
    if (seed >= 0 && offset >= 0) {
        node_put(&l->extra, "tensor rng%d = s64:2\n", fresh);
        node_put(&l->body, "concat axis=0");
        node_read_as(l, "x0", seed, &one);
        node_read_as(l, "x1", offset, &one);
        node_put(&l->body, " y=@rng%d\n", fresh);
    } else if (seed < 0 && offset < 0) {
        const int64_t number = backend_integer(n->op, AT_OP_RNG_SEED, 0);
        if (number > INT64_C(1) << 53 || number < -(INT64_C(1) << 53))
            return node_refuse(l, "a seed of %lld, which is beyond 2^53", (long long)number);
        node_put(&l->extra, "constant rng%d = s64:2 %lld 0\n", fresh, (long long)number);
    } else {
        return node_refuse(l, "a random operation with one of seed and offset as a tensor");
    }
    switch (backend_integer(d, AT_RNG_DISTRIBUTION, 0)) {
    case RNG_BERNOULLI:
        node_put(&l->body, "random kind=bernoulli p=%.17g",
                 (double)(float)backend_real(d, AT_RNG_BERNOULLI_PROBABILITY, 0.5));
        break;
    case RNG_UNIFORM:
        node_put(&l->body, "random kind=uniform low=%.17g high=%.17g",
                 backend_real(d, AT_RNG_UNIFORM_MINIMUM, 0),
                 backend_real(d, AT_RNG_UNIFORM_MAXIMUM, 1));
        break;
    default:
        node_put(&l->body, "random kind=normal mean=%.17g std=%.17g",
                 backend_real(d, AT_RNG_NORMAL_MEAN, 0),
                 backend_real(d, AT_RNG_NORMAL_DEVIATION, 1));
    }
    node_put(&l->body, " rng=@rng%d", fresh);
    node_write(l, "y", node_at(l, n, AT_OP_RNG_Y), NULL);
    node_put(&l->body, "\n");
    return CUDNN_STATUS_SUCCESS;
}

/* ---- pooling, statistics ---- */

typedef struct windows {
    int dims, mode;
    int64_t window[8], stride[8], pad[8], extra[8];
} windows;

static cudnnStatus_t read_windows(lowering *l, const backend *d, windows *w)
{
    const int padding = (int)backend_integer(d, AT_RESAMPLE_PADDING_MODE, PADDING_ZERO);
    w->mode = (int)backend_integer(d, AT_RESAMPLE_MODE, 0);
    w->dims = backend_integers(d, AT_RESAMPLE_PRE_PADDINGS, w->pad);
    if (w->mode != RESAMPLE_AVG && w->mode != RESAMPLE_MAX && w->mode != RESAMPLE_AVG_INSIDE)
        return node_refuse(l, "resample mode %d, average and maximum are served", w->mode);
    if (padding != (w->mode == RESAMPLE_MAX ? PADDING_NEG_INF : PADDING_ZERO))
        return node_refuse(l, "resample mode %d with padding mode %d", w->mode, padding);
    backend_integers(d, AT_RESAMPLE_POST_PADDINGS, w->extra);
    backend_integers(d, AT_RESAMPLE_WINDOW_DIMS, w->window);
    backend_integers(d, AT_RESAMPLE_STRIDES, w->stride);
    for (int i = 0; i < w->dims; i++) w->extra[i] -= w->pad[i];
    return CUDNN_STATUS_SUCCESS;
}

static void put_windows(lowering *l, const windows *w)
{
    node_put(&l->body, "%s",
             w->mode == RESAMPLE_MAX   ? " mode=max"
             : w->mode == RESAMPLE_AVG ? " mode=avg"
                                       : " mode=avg_valid");
    node_put_axes(l, "window", w->window, w->dims, -1);
    node_put_axes(l, "stride", w->stride, w->dims, -1);
    node_put_axes(l, "pad", w->pad, w->dims, 0);
    node_put_axes(l, "pad_extra", w->extra, w->dims, 0);
}

/* Names that mica's indices have, which count the elements of x's plane; cuDNN's count those of the
 * window, the last axis fastest. */
static int fresh_places(lowering *l, const mica_tensor *like)
{
    const mica_tensor places = mica_tensor_packed(MICA_S32, like->rank, like->dims);
    const int fresh = l->fresh++;
    node_put(&l->extra, "tensor place%d = ", fresh);
    node_put_tensor(&l->extra, &places);
    node_put(&l->extra, "\n");
    return fresh;
}

/* " expr=TYPE(sum)": of the number in x0 along each axis what is left of it, shifted by where the
 * window begins, and put together again. */
static void put_renumbering(lowering *l, const windows *w, mica_dtype type, const int64_t *from,
                            const int64_t *to, int sign)
{
    int64_t below = 1, above = 1;
    node_put(&l->body, "pointwise expr=%s(", mica_dtype_name(type));
    for (int i = w->dims - 1; i >= 0; i--) {
        node_put(&l->body, "%s(s64(s64(x0)/%lld)%%%lld%c(i%d*%lld-%lld))*%lld",
                 i == w->dims - 1 ? "" : "+", (long long)below, (long long)from[i],
                 sign > 0 ? '+' : '-', i + 2, (long long)w->stride[i], (long long)w->pad[i],
                 (long long)above);
        below *= from[i];
        above *= to[i];
    }
    node_put(&l->body, ")");
}

static cudnnStatus_t check_index(lowering *l, const windows *w, int index, int like)
{
    const mica_tensor *t = &l->tensors[index].t, *y = &l->tensors[like].t;
    int64_t most = 1;
    for (int i = 0; i < w->dims; i++) most *= w->window[i];
    if (w->mode != RESAMPLE_MAX) return node_refuse(l, "an average with an index tensor");
    if ((t->dtype != MICA_S8 && t->dtype != MICA_S32 && t->dtype != MICA_S64) ||
        (t->dtype == MICA_S8 && most > 128))
        return node_refuse(l, "an index tensor of type %s for windows of %lld elements",
                           mica_dtype_name(t->dtype), (long long)most);
    for (int i = 0; i < y->rank; i++)
        if (t->rank != y->rank || t->dims[i] != y->dims[i])
            return node_refuse(l, "the index tensor %lld has not the dimensions of tensor %lld",
                               (long long)l->tensors[index].uid, (long long)l->tensors[like].uid);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t lower_resample(lowering *l, const node *n)
{
    const int x = node_at(l, n, AT_OP_RESAMPLE_FWD_X), y = node_at(l, n, AT_OP_RESAMPLE_FWD_Y);
    const int index = node_at(l, n, AT_OP_RESAMPLE_FWD_INDEX);
    windows w;
    int fresh = 0;
    FRONT_TRY(read_windows(l, backend_child(n->op, AT_OP_RESAMPLE_FWD_DESC), &w));
    if (backend_real(n->op, AT_OP_RESAMPLE_FWD_ALPHA, 1) != 1 ||
        backend_real(n->op, AT_OP_RESAMPLE_FWD_BETA, 0) != 0)
        return node_refuse(l, "a resampling with factors");
    if (index >= 0) {
        FRONT_TRY(check_index(l, &w, index, y));
        fresh = fresh_places(l, &l->tensors[y].t);
    }
    node_put(&l->body, "pool");
    put_windows(l, &w);
    node_read(l, "x", x);
    node_write(l, "y", y, NULL);
    if (index >= 0) node_put(&l->body, " indices=@place%d", fresh);
    node_put(&l->body, "\n");
    if (index < 0) return CUDNN_STATUS_SUCCESS;
    put_renumbering(l, &w, l->tensors[index].t.dtype, l->tensors[x].t.dims + 2, w.window, -1);
    node_put(&l->body, " x0=@place%d", fresh);
    node_write(l, "y0", index, NULL);
    node_put(&l->body, "\n");
    return CUDNN_STATUS_SUCCESS;
}

/* Where a maximum's gradient goes: where the forward pass said, or as x says again. */
static cudnnStatus_t put_winners(lowering *l, const node *n, const windows *w, int *fresh)
{
    const int x = node_at(l, n, AT_OP_RESAMPLE_BWD_X), dy = node_at(l, n, AT_OP_RESAMPLE_BWD_DY);
    const int dx = node_at(l, n, AT_OP_RESAMPLE_BWD_DX);
    const int index = node_at(l, n, AT_OP_RESAMPLE_BWD_INDEX);
    const mica_tensor *t = &l->tensors[dy].t;
    if (index < 0 && x < 0)
        return node_refuse(l, "the gradient of a maximum without index tensor and X");
    if (index >= 0) FRONT_TRY(check_index(l, w, index, dy));
    *fresh = fresh_places(l, t);
    if (index >= 0) {
        put_renumbering(l, w, MICA_S32, w->window, l->tensors[dx].t.dims + 2, 1);
        node_read(l, "x0", index);
        node_put(&l->body, " y0=@place%d\n", *fresh);
        return CUDNN_STATUS_SUCCESS;
    }
    const mica_tensor again = mica_tensor_packed(l->tensors[x].t.dtype, t->rank, t->dims);
    node_put(&l->extra, "tensor again%d = ", *fresh);
    node_put_tensor(&l->extra, &again);
    node_put(&l->extra, "\n");
    node_put(&l->body, "pool");
    put_windows(l, w);
    node_read(l, "x", x);
    node_put(&l->body, " y=@again%d indices=@place%d\n", *fresh, *fresh);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t lower_resample_bwd(lowering *l, const node *n)
{
    const int dx = node_at(l, n, AT_OP_RESAMPLE_BWD_DX), dy = node_at(l, n, AT_OP_RESAMPLE_BWD_DY);
    windows w;
    int fresh = 0;
    FRONT_TRY(read_windows(l, backend_child(n->op, AT_OP_RESAMPLE_BWD_DESC), &w));
    if (backend_real(n->op, AT_OP_RESAMPLE_BWD_ALPHA, 1) != 1 ||
        backend_real(n->op, AT_OP_RESAMPLE_BWD_BETA, 0) != 0)
        return node_refuse(l, "the gradient of a resampling with factors");
    if (w.mode == RESAMPLE_MAX) FRONT_TRY(put_winners(l, n, &w, &fresh));
    node_put(&l->body, "pool pass=bwd");
    put_windows(l, &w);
    node_read(l, "y", dy);
    if (w.mode == RESAMPLE_MAX) node_put(&l->body, " indices=@place%d", fresh);
    node_write(l, "x", dx, NULL);
    node_put(&l->body, "\n");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t lower_statistics(lowering *l, const node *n)
{
    const int x = node_at(l, n, AT_OP_GENSTATS_X);
    const int out[] = {node_at(l, n, AT_OP_GENSTATS_SUM), node_at(l, n, AT_OP_GENSTATS_SQUARES)};
    int64_t axes[8];
    int count = 0;
    for (int i = 0; i < l->tensors[x].t.rank; i++)
        if (i != 1) axes[count++] = i;
    for (int i = 0; i < 2; i++) {
        node_put(&l->body, "reduce kind=sum keepdims=1%s", i ? " map=square(x0)" : "");
        node_put_list(l, "axes", axes, count);
        node_read(l, "x", x);
        node_write(l, "y", out[i], NULL);
        node_put(&l->body, "\n");
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t backend_lower_shape(lowering *l, node *n)
{
    switch (n->type) {
    case BT_OP_RESHAPE:
        return lower_reshape(l, n);
    case BT_OP_TRANSPOSE:
        return lower_transpose(l, n);
    case BT_OP_SLICE:
        return lower_slice(l, n);
    case BT_OP_CONCAT:
        return lower_concat(l, n);
    case BT_OP_RNG:
        return lower_random(l, n);
    case BT_OP_RESAMPLE_FWD:
        return lower_resample(l, n);
    case BT_OP_RESAMPLE_BWD:
        return lower_resample_bwd(l, n);
    case BT_OP_GENSTATS:
        return lower_statistics(l, n);
    default:
        return node_refuse(l, "the %s is not served", backend_type_words(n->type));
    }
}
