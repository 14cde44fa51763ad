/* SPDX-License-Identifier: Apache-2.0
 * Operations as lines of a mica graph: convolutions, products, reductions. */
#include "backend_node.h"

static mica_dtype type_of(const lowering *l, int tensor)
{
    return l->tensors[tensor].t.dtype;
}

/* Products of f32 may be rounded to TF32; those of 16 and 8 bits are what tensor cores are for. */
static void note_products(lowering *l, int a, int b)
{
    const int bits = mica_dtype_bits(type_of(l, a));
    if (type_of(l, a) == MICA_F32 && type_of(l, b) == MICA_F32) node_put(&l->body, " $TF32$");
    if (bits < 32) l->out->narrow = true;
}

/* Sums are at least as wide as the client asks, or the graph is refused. */
static cudnnStatus_t check_compute(lowering *l, int64_t type, int tensor)
{
    const mica_dtype compute = front_dtype((cudnnDataType_t)type), of = type_of(l, tensor);
    if (compute == MICA_F64 && of != MICA_F64)
        return node_refuse(l, "computing in double with tensors of %s", mica_dtype_name(of));
    return CUDNN_STATUS_SUCCESS;
}

/* ---- convolutions ---- */

typedef struct conv_places {
    const char *pass;
    unsigned desc, alpha, beta, x, w, y, result;
} conv_places;

static const conv_places *places_of(int type)
{
    static const conv_places fwd = {
        "fwd",         AT_CONV_FWD_DESC, AT_CONV_FWD_ALPHA, AT_CONV_FWD_BETA,
        AT_CONV_FWD_X, AT_CONV_FWD_W,    AT_CONV_FWD_Y,     AT_CONV_FWD_Y};
    static const conv_places dgrad = {
        "dgrad",          AT_CONV_DGRAD_DESC, AT_CONV_DGRAD_ALPHA, AT_CONV_DGRAD_BETA,
        AT_CONV_DGRAD_DX, AT_CONV_DGRAD_W,    AT_CONV_DGRAD_DY,    AT_CONV_DGRAD_DX};
    static const conv_places wgrad = {
        "wgrad",         AT_CONV_WGRAD_DESC, AT_CONV_WGRAD_ALPHA, AT_CONV_WGRAD_BETA,
        AT_CONV_WGRAD_X, AT_CONV_WGRAD_DW,   AT_CONV_WGRAD_DY,    AT_CONV_WGRAD_DW};
    return type == BT_CONV_FWD ? &fwd : type == BT_CONV_DGRAD ? &dgrad : &wgrad;
}

static void put_convolution(lowering *l, const backend *d, int dims)
{
    int64_t pre[8], post[8], values[8];
    backend_integers(d, AT_CONVOLUTION_PRE_PADDINGS, pre);
    backend_integers(d, AT_CONVOLUTION_POST_PADDINGS, post);
    for (int i = 0; i < dims; i++) post[i] -= pre[i];
    node_put_axes(l, "pad", pre, dims, 0);
    node_put_axes(l, "pad_extra", post, dims, 0);
    backend_integers(d, AT_CONVOLUTION_FILTER_STRIDES, values);
    node_put_axes(l, "stride", values, dims, 1);
    backend_integers(d, AT_CONVOLUTION_DILATIONS, values);
    node_put_axes(l, "dilation", values, dims, 1);
    if (backend_integer(d, AT_CONVOLUTION_CONV_MODE, 1) == CUDNN_CONVOLUTION)
        node_put(&l->body, " flip=1");
}

static cudnnStatus_t lower_conv(lowering *l, const node *n)
{
    const conv_places *p = places_of(n->type);
    const backend *d = backend_child(n->op, (backend_attribute)p->desc);
    const int x = node_at(l, n, p->x), w = node_at(l, n, p->w), y = node_at(l, n, p->y);
    const int result = node_at(l, n, p->result);
    const double alpha = backend_real(n->op, (backend_attribute)p->alpha, 1);
    const double beta = backend_real(n->op, (backend_attribute)p->beta, 0);
    const mica_tensor *tx = &l->tensors[x].t, *tw = &l->tensors[w].t;
    if (tx->rank < 3 || tx->rank > 5)
        return node_refuse(l, "a convolution of %d spatial dimensions, 1 to 3 are served",
                           tx->rank - 2);
    FRONT_TRY(check_compute(l, backend_integer(d, AT_CONVOLUTION_COMP_TYPE, 0), x));
    if (beta != 0 && l->tensors[result].is_virtual)
        return node_refuse(l, "beta is %g and the result virtual", beta);
    node_put(&l->body, "conv pass=%s", p->pass);
    const int named[] = {x, w, y};
    static const char *const args[] = {"x", "w", "y"};
    for (int i = 0; i < 3; i++) {
        if (named[i] == result)
            node_write(l, args[i], named[i], NULL);
        else
            node_read(l, args[i], named[i]);
    }
    put_convolution(l, d, tx->rank - 2);
    if (tx->dims[1] != tw->dims[1])
        node_put(&l->body, " groups=%lld", (long long)(tx->dims[1] / tw->dims[1]));
    note_products(l, n->type == BT_CONV_DGRAD ? y : x, n->type == BT_CONV_WGRAD ? y : w);
    if (alpha != 1) node_put(&l->body, " alpha=%.17g", alpha);
    if (beta != 0) node_put(&l->body, " beta=%.17g", beta);
    if (beta != 0) l->tensors[result].inout = true;
    node_put(&l->body, "\n");
    return CUDNN_STATUS_SUCCESS;
}

/* ---- products and reductions ---- */

static void add_dim(mica_tensor *t, int64_t dim, int64_t stride)
{
    t->dims[t->rank] = dim;
    t->strides[t->rank++] = stride;
    t->strided |= stride == 0;
}

static void trim(mica_tensor *t)
{
    for (int i = 0; i < t->rank; i++)
        if (t->strides[i]) t->strided = 0;
}

static mica_tensor empty_like(const mica_tensor *t)
{
    return (mica_tensor){.dtype = t->dtype};
}

/* A copy of an operand that is 0 from the size on which K_OVERRIDE has for its batch: what lies
 * there may be NaN. M_OVERRIDE and N_OVERRIDE say which results count: the others may be anything.
 */
static cudnnStatus_t hide_behind(lowering *l, const node *n, int tensor, int dim, int *fresh)
{
    const node_tensor *t = &l->tensors[tensor];
    if (!node_is_apart(&t->t))
        return node_refuse(l, "K_OVERRIDE of a matmul whose operand %lld repeats elements",
                           (long long)t->uid);
    *fresh = l->fresh++;
    node_put(&l->extra, "tensor hidden%d = ", *fresh);
    node_put_tensor(&l->extra, &t->t);
    node_put(&l->extra, "\n");
    node_put(&l->body, "pointwise expr=where(i%d<x1,x0,0)", dim);
    node_read(l, "x0", tensor);
    node_read(l, "x1", node_at(l, n, AT_OP_MATMUL_K_OVERRIDE));
    node_put(&l->body, " y0=@hidden%d\n", *fresh);
    return CUDNN_STATUS_SUCCESS;
}

/* A batch dimension of which a or b has a part is two: of groups, and of those in a group. */
static cudnnStatus_t lower_matmul(lowering *l, const node *n)
{
    const int a = node_at(l, n, AT_OP_MATMUL_A), b = node_at(l, n, AT_OP_MATMUL_B);
    const int c = node_at(l, n, AT_OP_MATMUL_C);
    const mica_tensor *t[] = {&l->tensors[a].t, &l->tensors[b].t, &l->tensors[c].t};
    mica_tensor view[] = {empty_like(t[0]), empty_like(t[1]), empty_like(t[2])};
    const int rank = t[2]->rank;
    const bool shorter = node_at(l, n, AT_OP_MATMUL_K_OVERRIDE) >= 0;
    int hidden[2] = {0, 0};
    FRONT_TRY(check_compute(
        l, backend_integer(backend_child(n->op, AT_OP_MATMUL_DESC), AT_MATMUL_COMP_TYPE, 0), a));
    for (int i = 0; i < rank; i++) {
        const int64_t whole = t[2]->dims[i];
        int64_t groups = whole;
        for (int k = 0; i < rank - 2 && k < 2; k++)
            if (t[k]->dims[i] != 1 && t[k]->dims[i] < groups) groups = t[k]->dims[i];
        for (int k = 0; k < 3; k++) {
            const int64_t dim = t[k]->dims[i], stride = t[k]->strides[i];
            const int64_t inside = groups == whole || dim < whole ? 1 : whole / groups;
            if (view[k].rank + (groups != whole) + rank - i > MICA_MAX_RANK)
                return node_refuse(l, "a matmul of rank %d with groups", rank);
            add_dim(&view[k], dim / inside, stride * inside);
            if (groups != whole) add_dim(&view[k], inside, stride);
        }
    }
    for (int k = 0; k < 3; k++) trim(&view[k]);
    for (int k = 0; shorter && k < 2; k++)
        FRONT_TRY(hide_behind(l, n, k ? b : a, rank - 1 - k, &hidden[k]));
    node_put(&l->body, "gemm");
    for (int k = 0; k < 2; k++) {
        if (!shorter) {
            node_read_as(l, k ? "b" : "a", k ? b : a, &view[k]);
            continue;
        }
        node_put(&l->body, " %c=", "ab"[k]);
        node_put_tensor(&l->body, &view[k]);
        node_put(&l->body, "@hidden%d", hidden[k]);
    }
    node_write(l, "c", c, &view[2]);
    note_products(l, a, b);
    node_put(&l->body, "\n");
    return CUDNN_STATUS_SUCCESS;
}

/* A dimension of y that is a part of x's is reduced group by group. */
static cudnnStatus_t lower_reduction(lowering *l, const node *n)
{
    static const char *const kinds[REDUCTION_KINDS] = {"sum",  "prod",  "min",   "max", "amax",
                                                       "mean", "norm1", "norm2", "prod"};
    const backend *d = backend_child(n->op, AT_OP_REDUCTION_DESC);
    const int x = node_at(l, n, AT_OP_REDUCTION_X), y = node_at(l, n, AT_OP_REDUCTION_Y);
    const mica_tensor *tx = &l->tensors[x].t, *ty = &l->tensors[y].t;
    mica_tensor in = empty_like(tx), out = empty_like(ty);
    const int kind = (int)backend_integer(d, AT_REDUCTION_OPERATOR, 0);
    int64_t axes[8];
    int count = 0;
    FRONT_TRY(check_compute(l, backend_integer(d, AT_REDUCTION_COMP_TYPE, 0), x));
    for (int i = 0; i < tx->rank; i++) {
        const int64_t part = tx->dims[i] / ty->dims[i];
        const bool split = part > 1 && ty->dims[i] > 1;
        if (in.rank + split + tx->rank - i > MICA_MAX_RANK)
            return node_refuse(l, "a reduction of rank %d with groups", tx->rank);
        add_dim(&in, split ? ty->dims[i] : tx->dims[i], tx->strides[i] * (split ? part : 1));
        add_dim(&out, ty->dims[i], ty->strides[i]);
        if (part > 1) axes[count++] = in.rank - 1 + split;
        if (!split) continue;
        add_dim(&in, part, tx->strides[i]);
        add_dim(&out, 1, ty->strides[i]);
    }
    trim(&in);
    trim(&out);
    if (!count) { /* over one element each: magnitudes of norms, else what is there */
        const bool size = kind == 4 || kind == 6 || kind == 7;
        node_put(&l->body, "pointwise expr=%s",
                 size        ? "abs(x0)"
                 : kind == 8 ? "where(x0==0,1,x0)"
                             : "x0");
        node_read(l, "x0", x);
        node_write(l, "y0", y, NULL);
        node_put(&l->body, "\n");
        return CUDNN_STATUS_SUCCESS;
    }
    node_put(&l->body, "reduce kind=%s keepdims=1", kinds[kind]);
    node_put_list(l, "axes", axes, count);
    if (kind == 8) node_put(&l->body, " map=where(x0==0,1,x0)");
    node_read_as(l, "x", x, &in);
    node_write(l, "y", y, &out);
    node_put(&l->body, "\n");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t backend_lower_operation(lowering *l, node *n)
{
    switch (n->type) {
    case BT_CONV_FWD:
    case BT_CONV_DGRAD:
    case BT_CONV_WGRAD:
        return lower_conv(l, n);
    case BT_OP_POINTWISE:
        return backend_lower_pointwise(l, n);
    case BT_OP_MATMUL:
        return lower_matmul(l, n);
    case BT_OP_REDUCTION:
        return lower_reduction(l, n);
    case BT_OP_NORM_FWD:
    case BT_OP_NORM_BWD:
        return backend_lower_norm(l, n);
    case BT_OP_SDPA_FWD:
    case BT_OP_SDPA_BWD:
        return backend_lower_sdpa(l, n);
    case BT_OP_PAGED_LOAD:
    case BT_OP_MOE_MATMUL:
        return backend_lower_serving(l, n);
    default:
        return backend_lower_shape(l, n);
    }
}
