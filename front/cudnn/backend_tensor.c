/* SPDX-License-Identifier: Apache-2.0
 * Tensors of an operation graph that is lowered, and their text in lines of a mica graph. */
#include "backend_node.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

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

bool node_is_laid_out(const mica_tensor *t, bool last)
{
    const mica_tensor like = last ? mica_tensor_channels_last(t->dtype, t->rank, t->dims)
                                  : mica_tensor_packed(t->dtype, t->rank, t->dims);
    for (int i = 0; i < t->rank; i++)
        if (t->dims[i] > 1 && t->strides[i] != like.strides[i]) return false;
    return true;
}

void node_settle(mica_tensor *t, bool channels_last)
{
    const bool last = t->rank >= 3 && node_is_laid_out(t, true),
               packed = node_is_laid_out(t, false);
    if (last && (channels_last || !packed))
        *t = mica_tensor_channels_last(t->dtype, t->rank, t->dims);
    else if (packed)
        *t = mica_tensor_packed(t->dtype, t->rank, t->dims);
}

bool node_is_apart(const mica_tensor *t)
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

void backend_tensor(const backend *desc, mica_tensor *tensor)
{
    *tensor = (mica_tensor){
        .dtype = front_dtype((cudnnDataType_t)backend_integer(desc, AT_TENSOR_DATA_TYPE, 0))};
    tensor->rank = backend_integers(desc, AT_TENSOR_DIMENSIONS, tensor->dims);
    backend_integers(desc, AT_TENSOR_STRIDES, tensor->strides);
    tensor->strided = 1;
    for (int i = 0; i < tensor->rank; i++)
        if (tensor->strides[i]) tensor->strided = 0;
}

static bool same(const mica_tensor *a, const mica_tensor *b)
{
    if (a->dtype != b->dtype || a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dims[i] != b->dims[i] || (a->dims[i] > 1 && a->strides[i] != b->strides[i]))
            return false;
    return true;
}

cudnnStatus_t node_find_tensor(lowering *l, const backend *desc, int *index)
{
    const int64_t uid = backend_integer(desc, AT_TENSOR_UNIQUE_ID, 0);
    node_tensor *t = &l->tensors[l->tensor_count];
    mica_tensor tensor;
    backend_tensor(desc, &tensor);
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

/* ---- lines ---- */

void node_put_tensor(node_text *to, const mica_tensor *t)
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
    if (!same(as, &t->form)) node_put_tensor(&l->body, as);
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
    node_put_tensor(&l->body, &t->form);
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

void node_put_axes(lowering *l, const char *field, const int64_t *values, int count, int64_t plain)
{
    bool needed = false;
    for (int i = 0; i < count; i++) needed |= values[i] != plain;
    for (int i = 0; needed && i < count; i++) {
        if (i == 0)
            node_put(&l->body, " %s=%lld", field, (long long)values[i]);
        else
            node_put(&l->body, "x%lld", (long long)values[i]);
    }
}

void node_put_list(lowering *l, const char *field, const int64_t *values, int count)
{
    node_put(&l->body, " %s=%lld", field, (long long)values[0]);
    for (int i = 1; i < count; i++) node_put(&l->body, ",%lld", (long long)values[i]);
}
