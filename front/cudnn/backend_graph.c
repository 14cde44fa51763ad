/* SPDX-License-Identifier: Apache-2.0
 * From descriptors to the text of a mica graph: operations and their tensors, what is an input, an
 * output or neither, and the declarations. */
#include "backend_node.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- text ---- */

void node_put(node_text *text, const char *format, ...)
{
    va_list list;
    for (int pass = 0; pass < 2 && !text->failed; pass++) {
        va_start(list, format);
        const size_t left = text->room - text->length;
        const int length =
            vsnprintf(text->text ? text->text + text->length : NULL, left, format, list);
        va_end(list);
        if (length < 0) text->failed = true;
        if (length >= 0 && (size_t)length < left) {
            text->length += (size_t)length;
            return;
        }
        const size_t room = text->room * 2 + (size_t)(length > 0 ? length : 0) + 256;
        char *more = realloc(text->text, room);
        if (!more) {
            text->failed = true;
            return;
        }
        text->text = more;
        text->room = room;
    }
}

cudnnStatus_t node_refuse(lowering *l, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(l->out->refusal, sizeof l->out->refusal, format, list);
    va_end(list);
    return CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN;
}

/* ---- tensors ---- */

/* Whether strides of dimensions above 1 are those of a packed tensor, or of one with channels last.
 */
static bool is_laid_out(const mica_tensor *t, bool last)
{
    const mica_tensor like = last ? mica_tensor_channels_last(t->dtype, t->rank, t->dims)
                                  : mica_tensor_packed(t->dtype, t->rank, t->dims);
    for (int i = 0; i < t->rank; i++)
        if (t->dims[i] > 1 && t->strides[i] != like.strides[i]) return false;
    return true;
}

/* Strides of dimensions of 1 say nothing: those of a usual layout are put there. */
static void settle(mica_tensor *t, bool channels_last)
{
    const bool last = t->rank >= 3 && is_laid_out(t, true), packed = is_laid_out(t, false);
    if (last && (channels_last || !packed))
        *t = mica_tensor_channels_last(t->dtype, t->rank, t->dims);
    else if (packed)
        *t = mica_tensor_packed(t->dtype, t->rank, t->dims);
}

/* Whether no two elements share memory, for any tensor that loops could make. */
static bool is_apart(const mica_tensor *t)
{
    bool taken[MICA_MAX_RANK] = {false};
    int64_t extent = 1;
    for (int i = 0; i < t->rank; i++) {
        int next = -1;
        for (int k = 0; k < t->rank; k++)
            if (!taken[k] && (next < 0 || t->strides[k] < t->strides[next])) next = k;
        taken[next] = true;
        if (t->dims[next] == 1) continue;
        if (t->strides[next] < extent) return false;
        if (__builtin_mul_overflow(t->strides[next], t->dims[next], &extent)) return false;
    }
    return true;
}

cudnnStatus_t backend_tensor(const backend *desc, mica_tensor *tensor)
{
    *tensor = (mica_tensor){
        .dtype = front_dtype((cudnnDataType_t)backend_integer(desc, AT_TENSOR_DATA_TYPE, 0))};
    tensor->rank = backend_integers(desc, AT_TENSOR_DIMENSIONS, tensor->dims);
    backend_integers(desc, AT_TENSOR_STRIDES, tensor->strides);
    tensor->strided = 1;
    for (int i = 0; i < tensor->rank; i++)
        if (tensor->strides[i]) tensor->strided = 0;
    return CUDNN_STATUS_SUCCESS;
}

static bool same(const mica_tensor *a, const mica_tensor *b)
{
    if (a->dtype != b->dtype || a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dims[i] != b->dims[i] || (a->dims[i] > 1 && a->strides[i] != b->strides[i]))
            return false;
    return true;
}

static cudnnStatus_t find_tensor(lowering *l, const backend *desc, int *index)
{
    const int64_t uid = backend_integer(desc, AT_TENSOR_UNIQUE_ID, 0);
    node_tensor *t = &l->tensors[l->tensor_count];
    mica_tensor tensor;
    FRONT_TRY(backend_tensor(desc, &tensor));
    for (*index = 0; *index < l->tensor_count; ++*index) {
        if (l->tensors[*index].uid != uid) continue;
        if (!same(&l->tensors[*index].t, &tensor))
            return front_fail(CUDNN_STATUS_BAD_PARAM,
                              "unique id %lld stands for two tensors that differ", (long long)uid);
        return CUDNN_STATUS_SUCCESS;
    }
    *t = (node_tensor){.uid = uid, .desc = desc, .t = tensor, .writer = -1, .alias = -1};
    t->is_virtual = backend_integer(desc, AT_TENSOR_IS_VIRTUAL, 0) != 0;
    t->by_value = backend_integer(desc, AT_TENSOR_IS_BY_VALUE, 0) != 0;
    snprintf(t->name, sizeof t->name, "%s%s%llu", t->by_value ? "v" : "t", uid < 0 ? "m" : "",
             uid < 0 ? 0ull - (unsigned long long)uid : (unsigned long long)uid);
    l->tensor_count++;
    return CUDNN_STATUS_SUCCESS;
}

int node_at(const lowering *l, const node *n, unsigned attribute)
{
    for (int i = 0; i < n->ref_count; i++)
        if (n->refs[i].attribute == attribute) {
            int tensor = n->refs[i].tensor;
            while (l->tensors[tensor].alias >= 0) tensor = l->tensors[tensor].alias;
            return tensor;
        }
    return -1;
}

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
    FRONT_TRY(find_tensor(l, desc, &r->tensor));
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

/* Every virtual tensor is written, and nothing waits for itself. */
static cudnnStatus_t check_order(const lowering *l)
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
            found++;
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
            type != BT_OP_RESAMPLE_FWD && type != BT_OP_NORM_FWD && type != BT_OP_NORM_BWD)
            continue;
        for (int k = 0; k < l->nodes[i].ref_count; k++) {
            const mica_tensor *t = &l->tensors[l->nodes[i].refs[k].tensor].t;
            if (t->rank < 3) continue;
            const bool last = is_laid_out(t, true), packed = is_laid_out(t, false);
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
        settle(&t->t, l->channels_last);
        if (t->is_virtual && !is_apart(&t->t))
            t->t = mica_tensor_packed(t->t.dtype, t->t.rank, t->t.dims);
        t->form = t->t;
    }
}

/* ---- lines ---- */

static void put_tensor(node_text *to, const mica_tensor *t)
{
    char text[320];
    if (mica_tensor_text(t, text, sizeof text) >= (int)sizeof text) to->failed = true;
    node_put(to, "%s", text);
}

void node_read_as(lowering *l, const char *arg, int tensor, const mica_tensor *as)
{
    node_tensor *t = &l->tensors[tensor];
    t->used = true;
    node_put(&l->body, " %s=", arg);
    if (!same(as, &t->form)) put_tensor(&l->body, as);
    node_put(&l->body, "@%s", t->name);
}

void node_read(lowering *l, const char *arg, int tensor)
{
    const mica_tensor as = l->tensors[tensor].t;
    node_read_as(l, arg, tensor, &as);
}

void node_write(lowering *l, const char *arg, int tensor, const mica_tensor *as)
{
    node_tensor *t = &l->tensors[tensor];
    t->used = true;
    if (as) t->form = *as;
    node_put(&l->body, " %s=", arg);
    put_tensor(&l->body, &t->form);
    node_put(&l->body, "@%s", t->name);
}

cudnnStatus_t node_number(lowering *l, int tensor, backend_use use, double value, const char **name)
{
    node_tensor *t = &l->tensors[tensor];
    backend_lowered *o = l->out;
    for (int i = 0; i < o->number_count; i++)
        if (o->numbers[i].uid == t->uid && o->numbers[i].use == use) {
            *name = o->numbers[i].name;
            return CUDNN_STATUS_SUCCESS;
        }
    if (mica_tensor_count(&t->t) != 1)
        return node_refuse(l, "tensor %lld is by value, of %lld elements", (long long)t->uid,
                           (long long)mica_tensor_count(&t->t));
    backend_number *grown = realloc(o->numbers, ((size_t)o->number_count + 1) * sizeof *grown);
    if (!grown)
        return front_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "a lowered graph");
    o->numbers = grown;
    backend_number *n = &o->numbers[o->number_count++];
    *n = (backend_number){.uid = t->uid, .type = t->t.dtype, .use = use, .value = value};
    snprintf(n->name, sizeof n->name, "%.26s%s", t->name, use == USE_SCALAR ? "" : "b");
    *name = n->name;
    return CUDNN_STATUS_SUCCESS;
}

static void put_header(lowering *l, node_text *to)
{
    for (int i = 0; i < l->tensor_count; i++) {
        const node_tensor *t = &l->tensors[i];
        if (t->used && !t->is_virtual && !t->by_value)
            node_put(to, "#port %lld %s\n", (long long)t->uid, t->name);
    }
    for (int i = 0; i < l->out->number_count; i++) {
        const backend_number *n = &l->out->numbers[i];
        node_put(to, "#value %lld %s %s %.17g %d\n", (long long)n->uid, mica_dtype_name(n->type),
                 n->name, n->value, (int)n->use);
        if (n->use == USE_SCALAR) node_put(to, "scalar %s = %.17g\n", n->name, n->value);
    }
    for (int i = 0; i < l->tensor_count; i++) {
        const node_tensor *t = &l->tensors[i];
        if (!t->used || t->by_value) continue;
        node_put(to, "%s %s = ",
                 t->is_virtual   ? "tensor"
                 : t->inout      ? "inout"
                 : t->writer < 0 ? "input"
                                 : "output",
                 t->name);
        put_tensor(to, &t->form);
        node_put(to, "\n");
    }
    if (l->extra.text) node_put(to, "%s", l->extra.text);
}

static cudnnStatus_t lower_nodes(lowering *l)
{
    FRONT_TRY(backend_find_attention_bwd(l));
    FRONT_TRY(backend_find_attention(l));
    for (int i = 0; i < l->node_count; i++)
        if (!l->nodes[i].done) FRONT_TRY(backend_lower_operation(l, &l->nodes[i]));
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t write_all(lowering *l)
{
    node_text all = {0};
    if (l->out->narrow) node_put(&all, "#narrow\n");
    put_header(l, &all);
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
    l->out->context = front_context(backend_handle(graph, AT_GRAPH_HANDLE));
    for (int64_t i = 0; i < ops->count; i++) FRONT_TRY(add_node(l, ((backend **)ops->data)[i]));
    FRONT_TRY(check_order(l));
    settle_all(l);
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    if (backend_integer(graph, AT_GRAPH_IS_DYNAMIC_SHAPE_ENABLED, 0))
        status = node_refuse(l, "dynamic shapes are not served");
    if (status == CUDNN_STATUS_SUCCESS) status = lower_nodes(l);
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
