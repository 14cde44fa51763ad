/* SPDX-License-Identifier: Apache-2.0
 * What inference engines ask for: caches of keys and values in pages, and grouped products of
 * mixtures of experts. */
#include "backend_node.h"

/* ---- pages ---- */

/* Which of dimensions 2 and 3 holds positions: the other one's elements lie closer. */
static int positions_of(const mica_tensor *t)
{
    if (t->dims[3] == 1) return 2;
    return t->strides[3] <= t->strides[2] || t->dims[2] == 1 ? 2 : 3;
}

static void add_dim(mica_tensor *t, int64_t dim, int64_t stride)
{
    t->dims[t->rank] = dim;
    t->strides[t->rank++] = stride;
}

/* Y[b, h, p page + j, :] = container[table[b, p], h, j, :]; a page number outside gives zeros.
 * Positions from the length of their sequence on are copied like the others: they do not count. */
static cudnnStatus_t lower_paged_load(lowering *l, const node *n)
{
    const int pool = node_at(l, n, AT_OP_PAGED_LOAD_CONTAINER);
    const int table = node_at(l, n, AT_OP_PAGED_LOAD_PAGE_TABLE);
    const int y = node_at(l, n, AT_OP_PAGED_LOAD_Y);
    const mica_tensor *c = &l->tensors[pool].t, *t = &l->tensors[table].t, *r = &l->tensors[y].t;
    mica_tensor from = {.dtype = c->dtype}, pages = {.dtype = t->dtype}, to = {.dtype = r->dtype};
    if (c->rank != 4 || t->rank != 4 || r->rank != 4)
        return node_refuse(l, "pages of tensors that have not 4 dimensions");
    const int cs = positions_of(c), rs = positions_of(r);
    const int64_t page = c->dims[cs], columns = c->dims[5 - cs], count = t->dims[2];
    if (r->dims[0] != t->dims[0] || t->dims[1] != 1 || t->dims[3] != 1 ||
        r->dims[1] != c->dims[1] || r->dims[5 - rs] != columns || r->dims[rs] != count * page)
        return node_refuse(l,
                           "tensor %lld has not the %lld positions of %lld pages of %lld, heads "
                           "and columns of the container %lld",
                           (long long)l->tensors[y].uid, (long long)(count * page),
                           (long long)count, (long long)page, (long long)l->tensors[pool].uid);
    add_dim(&from, c->dims[0], c->strides[0]);
    add_dim(&from, c->dims[1], c->strides[1]);
    add_dim(&from, page, c->strides[cs]);
    add_dim(&from, columns, c->strides[5 - cs]);
    add_dim(&pages, t->dims[0], t->strides[0]);
    add_dim(&pages, count, t->strides[2]);
    add_dim(&to, r->dims[0], r->strides[0]);
    add_dim(&to, count, r->strides[rs] * page);
    add_dim(&to, r->dims[1], r->strides[1]);
    add_dim(&to, page, r->strides[rs]);
    add_dim(&to, columns, r->strides[5 - rs]);
    node_put(&l->body, "gather");
    node_read_as(l, "x", pool, &from);
    node_read_as(l, "index", table, &pages);
    node_write(l, "y", y, &to);
    node_put(&l->body, "\n");
    return CUDNN_STATUS_SUCCESS;
}

/* ---- experts ---- */

/* cuDNN has where each expert's tokens begin, mica where they end: the same numbers from the second
 * on, and the number of tokens. */
static cudnnStatus_t lower_experts(lowering *l, const node *n)
{
    const int token = node_at(l, n, AT_OP_MOE_MATMUL_TOKEN);
    const int weight = node_at(l, n, AT_OP_MOE_MATMUL_WEIGHT);
    const int offsets = node_at(l, n, AT_OP_MOE_MATMUL_OFFSETS);
    const int output = node_at(l, n, AT_OP_MOE_MATMUL_OUTPUT);
    const int64_t mode = backend_integer(n->op, AT_OP_MOE_MATMUL_MODE, 0);
    const mica_tensor *a = &l->tensors[token].t, *b = &l->tensors[weight].t;
    const mica_tensor *c = &l->tensors[output].t, *o = &l->tensors[offsets].t;
    mica_tensor rows = {.dtype = a->dtype}, result = {.dtype = c->dtype};
    mica_tensor begins = {.dtype = o->dtype};
    const int fresh = l->fresh++;
    if (mode != 0)
        return node_refuse(l, "a grouped matmul that gathers or scatters (mode %lld)",
                           (long long)mode);
    if (a->rank != 3 || b->rank != 3 || c->rank != 3 || o->rank != 3 || a->dims[0] != 1 ||
        c->dims[0] != 1 || a->dims[1] != c->dims[1] || o->dims[0] != b->dims[0] ||
        o->dims[1] != 1 || o->dims[2] != 1)
        return node_refuse(l, "a grouped matmul of tensors that are not 1 x tokens x features, "
                              "experts x features x results and experts x 1 x 1");
    if (l->tensors[output].is_virtual) /* tokens of no expert would be nothing at all */
        return node_refuse(l, "a grouped matmul whose result is virtual");
    l->tensors[output].inout = true;
    if (o->dtype != MICA_S32)
        return node_refuse(l, "offsets of a grouped matmul of type %s", mica_dtype_name(o->dtype));
    for (int i = 1; i < 3; i++) {
        add_dim(&rows, a->dims[i], a->strides[i]);
        add_dim(&result, c->dims[i], c->strides[i]);
    }
    node_put(&l->extra, "constant tokens%d = s32:1 %lld\n", fresh, (long long)a->dims[1]);
    if (b->dims[0] > 1) {
        add_dim(&begins, b->dims[0] - 1, o->strides[0]);
        node_put(&l->extra, "tensor ends%d = s32:%lld\n", fresh, (long long)b->dims[0]);
        node_put(&l->body, "concat axis=0");
        node_read_as(l, "x0", offsets, &begins);
        node_put(&l->body, "+%lld x1=@tokens%d y=@ends%d\n", (long long)o->strides[0], fresh,
                 fresh);
    }
    node_put(&l->body, "grouped_gemm");
    node_read_as(l, "a", token, &rows);
    node_read(l, "b", weight);
    node_put(&l->body, " groups=@%s%d", b->dims[0] > 1 ? "ends" : "tokens", fresh);
    node_write(l, "c", output, &result);
    if (mica_dtype_bits(a->dtype) < 32) l->out->narrow = true;
    node_put(&l->body, "\n");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t backend_lower_serving(lowering *l, const node *n)
{
    return n->type == BT_OP_PAGED_LOAD ? lower_paged_load(l, n) : lower_experts(l, n);
}
