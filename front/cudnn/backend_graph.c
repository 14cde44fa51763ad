/* SPDX-License-Identifier: Apache-2.0
 * From descriptors to the text of a mica graph: operations and their tensors, what is an input, an
 * output or neither, and the declarations. */
#include "backend_node.h"

#include <stdlib.h>
#include <string.h>

/* ---- operations ---- */

static bool writes(const backend *op, unsigned attribute)
{
    switch (attribute) {
    case AT_CONV_FWD_Y:
    case AT_CONV_DGRAD_DX:
    case AT_CONV_WGRAD_DW:
    case AT_OP_POINTWISE_DX:
    case AT_OP_POINTWISE_Y:
    case AT_OP_GENSTATS_SUM:
    case AT_OP_GENSTATS_SQUARES:
    case AT_OP_MATMUL_C:
    case AT_OP_REDUCTION_Y:
    case AT_OP_RESAMPLE_FWD_Y:
    case AT_OP_RESAMPLE_FWD_INDEX:
    case AT_OP_RESAMPLE_BWD_DX:
    case AT_OP_CONCAT_Y:
    case AT_OP_NORM_FWD_Y:
    case AT_OP_NORM_FWD_RUNNING_MEAN_OUT:
    case AT_OP_NORM_FWD_RUNNING_VAR_OUT:
    case AT_OP_NORM_BWD_DX:
    case AT_OP_NORM_BWD_DSCALE:
    case AT_OP_NORM_BWD_DBIAS:
    case AT_OP_RESHAPE_Y:
    case AT_OP_RNG_Y:
    case AT_OP_SDPA_FWD_O:
    case AT_OP_SDPA_FWD_STATS:
    case AT_OP_SDPA_FWD_RNG_DUMP:
    case AT_OP_SDPA_BWD_DQ:
    case AT_OP_SDPA_BWD_DK:
    case AT_OP_SDPA_BWD_DV:
    case AT_OP_SDPA_BWD_DSINK:
    case AT_OP_SDPA_BWD_DBIAS:
    case AT_OP_PAGED_LOAD_Y:
    case AT_OP_MOE_MATMUL_OUTPUT:
    case AT_OP_TRANSPOSE_Y:
    case AT_OP_SLICE_Y:
        return true;
    case AT_OP_NORM_FWD_MEAN:
    case AT_OP_NORM_FWD_INV_VARIANCE:
        return backend_integer(op, AT_OP_NORM_FWD_PHASE, 0) == NORM_TRAINING;
    default:
        return false;
    }
}

static cudnnStatus_t add_ref(lowering *l, node *n, int number, unsigned attribute,
                             const backend *desc)
{
    node_ref *r = &l->refs[l->ref_count];
    r->attribute = attribute;
    r->written = writes(n->op, attribute);
    FRONT_TRY(node_find_tensor(l, desc, &r->tensor));
    node_tensor *t = &l->tensors[r->tensor];
    if (r->written && t->writer >= 0)
        return front_fail(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
                          "operations %d and %d both write tensor %lld", t->writer, number,
                          (long long)t->uid);
    if (r->written && t->by_value)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "operation %d writes tensor %lld, a value",
                          number, (long long)t->uid);
    if (r->written) t->writer = number;
    if (!r->written) t->reads++;
    l->ref_count++;
    n->ref_count++;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t add_node(lowering *l, const backend *op)
{
    const int number = l->node_count;
    node *n = &l->nodes[l->node_count++];
    *n = (node){.op = op, .type = (int)op->type, .mode = -1, .refs = l->refs + l->ref_count};
    if (op->type == BT_OP_POINTWISE)
        n->mode =
            (int)backend_integer(backend_child(op, AT_OP_POINTWISE_DESC), AT_POINTWISE_MODE, -1);
    for (int i = 0; i < op->row_count; i++) {
        const backend_value *v = &op->values[i];
        if (op->rows[i].child != BT_TENSOR || !v->given || v->type != BW_DESCRIPTOR) continue;
        for (int64_t k = 0; k < v->count; k++)
            FRONT_TRY(add_ref(l, n, number, op->rows[i].number, ((backend **)v->data)[k]));
    }
    return CUDNN_STATUS_SUCCESS;
}

/* Every virtual tensor is written, and nothing waits for itself: `order` is one to go by. */
static cudnnStatus_t check_order(lowering *l)
{
    bool ready[BACKEND_MAX_NODES] = {false};
    for (int i = 0; i < l->tensor_count; i++)
        if (l->tensors[i].is_virtual && l->tensors[i].writer < 0)
            return front_fail(CUDNN_STATUS_BAD_PARAM, "no operation writes the virtual tensor %lld",
                              (long long)l->tensors[i].uid);
    for (int found = 0, before = -1; found < l->node_count && found != before;) {
        before = found;
        for (int i = 0; i < l->node_count; i++) {
            bool free = !ready[i];
            for (int k = 0; free && k < l->nodes[i].ref_count; k++) {
                const node_ref *r = &l->nodes[i].refs[k];
                const int writer = l->tensors[r->tensor].writer;
                if (!r->written && writer >= 0 && !ready[writer]) free = false;
            }
            if (!free) continue;
            ready[i] = true;
            l->order[found++] = i;
        }
        if (found == before)
            return front_fail(CUDNN_STATUS_BAD_PARAM, "operations wait for each other in a circle");
    }
    return CUDNN_STATUS_SUCCESS;
}

/* The layout of tensors that could be both follows the first one of a convolution that could not.
 */
static bool finds_channels_last(const lowering *l)
{
    for (int i = 0; i < l->node_count; i++) {
        const int type = l->nodes[i].type;
        if (type != BT_CONV_FWD && type != BT_CONV_DGRAD && type != BT_CONV_WGRAD &&
            type != BT_OP_RESAMPLE_FWD && type != BT_OP_RESAMPLE_BWD && type != BT_OP_NORM_FWD &&
            type != BT_OP_NORM_BWD)
            continue;
        for (int k = 0; k < l->nodes[i].ref_count; k++) {
            const mica_tensor *t = &l->tensors[l->nodes[i].refs[k].tensor].t;
            if (t->rank < 3) continue;
            const bool last = node_is_laid_out(t, true), packed = node_is_laid_out(t, false);
            if (last != packed) return last;
        }
    }
    return false;
}

static void settle_all(lowering *l)
{
    l->channels_last = finds_channels_last(l);
    for (int i = 0; i < l->tensor_count; i++) {
        node_tensor *t = &l->tensors[i];
        node_settle(&t->t, l->channels_last);
        if (t->is_virtual && !node_is_apart(&t->t))
            t->t = mica_tensor_packed(t->t.dtype, t->t.rank, t->t.dims);
        t->form = t->t;
    }
}

static void put_declaration(const node_tensor *t, node_text *text)
{
    const char *kind = t->is_virtual   ? "tensor"
                       : t->inout      ? "inout"
                       : t->writer < 0 ? "input"
                                       : "output";
    if (!t->used || t->by_value) return;
    if (t->bits)
        node_put(text, "%s %sp = u8:%lld\n", kind, t->name,
                 (long long)mica_tensor_count(&t->t) / 8);
    node_put(text, "%s %s = ", t->bits ? "tensor" : kind, t->name);
    node_put_tensor(text, &t->form);
    node_put(text, "\n");
}

static void put_header(lowering *l, node_text *text)
{
    for (int i = 0; i < l->tensor_count; i++) {
        const node_tensor *t = &l->tensors[i];
        if (t->used && !t->is_virtual && !t->by_value)
            node_put(text, "#port %lld %s%s\n", (long long)t->uid, t->name, t->bits ? "p" : "");
    }
    for (int i = 0; i < l->copy_count; i++) {
        const node_tensor *from = &l->tensors[l->copies[i][0]], *to = &l->tensors[l->copies[i][1]];
        node_put(text, "#copy %lld %lld %s %lld\n", (long long)from->uid, (long long)to->uid,
                 mica_dtype_name(to->t.dtype), (long long)mica_tensor_count(&to->t));
    }
    for (int i = 0; i < l->tensor_count; i++) node_put_ragged(text, l, i);
    for (int i = 0; i < l->out->number_count; i++) {
        const backend_number *n = &l->out->numbers[i];
        node_put(text, "#value %lld %s %s %.17g %d\n", (long long)n->uid, mica_dtype_name(n->type),
                 n->name, n->value, (int)n->use);
        if (n->use == USE_SCALAR) node_put(text, "scalar %s = %.17g\n", n->name, n->value);
    }
    for (int i = 0; i < l->tensor_count; i++) put_declaration(&l->tensors[i], text);
    if (l->extra.text) node_put(text, "%s", l->extra.text);
}

/* ---- BOOLEAN tensors: 8 elements to a byte in the order of memory, the first one in bit 0 ---- */

static cudnnStatus_t find_bits(lowering *l)
{
    for (int i = 0; i < l->tensor_count; i++) {
        node_tensor *t = &l->tensors[i];
        const int64_t count = mica_tensor_count(&t->t);
        if (t->t.dtype != MICA_BOOL || t->is_virtual || t->by_value) continue;
        if (count % 8 || !node_is_apart(&t->t) || mica_tensor_span(&t->t, NULL) != count)
            return node_refuse(l, "tensor %lld is BOOLEAN of %lld elements, which fill no bytes",
                               (long long)t->uid, (long long)count);
        t->bits = true;
        if (t->writer < 0)
            t->form = mica_tensor_packed(MICA_BOOL, 2, (const int64_t[]){count / 8, 8});
    }
    return CUDNN_STATUS_SUCCESS;
}

/* Lines that take elements from bytes, in front of all others. */
static void put_unpacking(const lowering *l, node_text *text)
{
    for (int i = 0; i < l->tensor_count; i++) {
        const node_tensor *t = &l->tensors[i];
        if (!t->bits || !t->used || t->writer >= 0) continue;
        mica_tensor bytes = {.dtype = MICA_U8, .rank = 2, .dims = {t->form.dims[0], 8}};
        bytes.strides[0] = 1;
        node_put(text, "pointwise expr=bool((x0>>i1)&1) x0=");
        node_put_tensor(text, &bytes);
        node_put(text, "@%sp y0=@%s\n", t->name, t->name);
    }
}

static void put_packing(lowering *l)
{
    for (int i = 0; i < l->tensor_count; i++) {
        const node_tensor *t = &l->tensors[i];
        if (!t->bits || !t->used || t->writer < 0) continue;
        mica_tensor every = {.dtype = MICA_BOOL, .rank = 1};
        every.dims[0] = mica_tensor_count(&t->t) / 8, every.strides[0] = 8;
        node_put(&l->body, "pointwise expr=u8(x0");
        for (int k = 1; k < 8; k++) node_put(&l->body, "|(u8(x%d)<<%d)", k, k);
        node_put(&l->body, ")");
        for (int k = 0; k < 8; k++) {
            node_put(&l->body, " x%d=", k);
            node_put_tensor(&l->body, &every);
            node_put(&l->body, "@%s", t->name);
            if (k) node_put(&l->body, "+%d", k);
        }
        node_put(&l->body, " y0=@%sp\n", t->name);
    }
}

/* Ragged tensors are those of attention alone. */
static cudnnStatus_t check_ragged(lowering *l)
{
    for (int i = 0; i < l->tensor_count; i++) {
        const node_tensor *t = &l->tensors[i];
        if (t->used && !t->is_virtual && !t->ragged_axis &&
            backend_child(t->desc, AT_TENSOR_RAGGED_OFFSET))
            return node_refuse(l, "tensor %lld is ragged", (long long)t->uid);
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t lower_nodes(lowering *l)
{
    FRONT_TRY(find_bits(l));
    FRONT_TRY(backend_find_attention_bwd(l));
    FRONT_TRY(backend_find_attention(l));
    for (int i = 0; i < l->node_count; i++) {
        node *n = &l->nodes[l->order[i]];
        if (!n->done) FRONT_TRY(backend_lower_operation(l, n));
    }
    put_packing(l);
    return check_ragged(l);
}

static cudnnStatus_t write_all(lowering *l)
{
    node_text all = {0};
    if (l->out->narrow) node_put(&all, "#narrow\n");
    put_header(l, &all);
    put_unpacking(l, &all);
    node_put(&all, "%s", l->body.text ? l->body.text : "");
    if (all.failed || l->body.failed || l->extra.failed) {
        free(all.text);
        return front_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "a lowered graph");
    }
    backend_lowered *read;
    cudnnStatus_t status = backend_lowered_read(all.text, l->out->context, &read);
    free(all.text);
    FRONT_TRY(status);
    backend_lowered_free(l->out);
    l->out = read;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t lower(lowering *l, const backend *graph)
{
    const backend_value *ops = backend_get(graph, AT_GRAPH_OPS);
    size_t room = 1;
    for (int64_t i = 0; i < ops->count; i++) {
        const backend *op = ((backend **)ops->data)[i];
        for (int r = 0; r < op->row_count; r++) room += (size_t)op->values[r].count;
    }
    l->refs = calloc(room, sizeof *l->refs);
    l->tensors = calloc(room, sizeof *l->tensors);
    l->out = calloc(1, sizeof *l->out);
    if (!l->refs || !l->tensors || !l->out)
        return front_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "%zu tensors", room);
    const cudnnHandle_t handle = backend_handle(graph, AT_GRAPH_HANDLE);
    l->out->context = handle ? front_context(handle) : NULL;
    for (int64_t i = 0; i < ops->count; i++) FRONT_TRY(add_node(l, ((backend **)ops->data)[i]));
    FRONT_TRY(check_order(l));
    settle_all(l);
    cudnnStatus_t status = lower_nodes(l); /* of the sizes described, with dynamic shapes too */
    if (status == CUDNN_STATUS_SUCCESS) return write_all(l);
    return *l->out->refusal ? CUDNN_STATUS_SUCCESS : status;
}

cudnnStatus_t backend_lower(const backend *graph, backend_lowered **lowered)
{
    lowering *l = calloc(1, sizeof *l);
    if (!l) return front_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "a graph");
    cudnnStatus_t status = lower(l, graph);
    *lowered = status == CUDNN_STATUS_SUCCESS ? l->out : NULL;
    if (status != CUDNN_STATUS_SUCCESS) backend_lowered_free(l->out);
    free(l->refs);
    free(l->tensors);
    free(l->body.text);
    free(l->extra.text);
    free(l);
    return status;
}
