/* SPDX-License-Identifier: Apache-2.0
 * Ragged tensors: sequence n of a B x H x S x D tensor begins offsets[n] * multiplier elements
 * behind the pointer, and has as many rows as the lengths of attention say. mica's packed tensors
 * have a fixed number of rows, and what belongs to no sequence is written, too; how many rows the
 * client's memory has is not known here. So a plan has padded tensors in memory of the handle, and
 * a run moves what counts: rows of sequences, nothing else of the client's memory is touched. An
 * offset is a whole number of rows, and there are at most B * S of them: what lies behind is read
 * as 0 and not written. */
#include "backend_node.h"

#include <stdio.h>
#include <string.h>

/* ---- lowering ---- */

cudnnStatus_t node_unravel(lowering *l, int tensor, int axis, int lengths, bool summed)
{
    if (tensor < 0 || l->tensors[tensor].is_virtual || l->tensors[tensor].ragged_axis)
        return CUDNN_STATUS_SUCCESS;
    node_tensor *t = &l->tensors[tensor];
    const backend *offsets = backend_child(t->desc, AT_TENSOR_RAGGED_OFFSET);
    mica_tensor o;
    if (!offsets) return CUDNN_STATUS_SUCCESS;
    backend_tensor(offsets, &o);
    if (lengths < 0)
        return node_refuse(l, "tensor %lld is ragged, and attention has no lengths of sequences",
                           (long long)t->uid);
    if (t->t.rank != 4 || (o.dtype != MICA_S32 && o.dtype != MICA_S64) ||
        mica_tensor_count(&o) != t->t.dims[0] + 1)
        return node_refuse(l, "the offsets of tensor %lld are %lld of type %s, not %lld integers",
                           (long long)t->uid, (long long)mica_tensor_count(&o),
                           mica_dtype_name(o.dtype), (long long)t->t.dims[0] + 1);
    int64_t rows, reach;
    for (int i = 1; i < 4; i++)
        if (__builtin_mul_overflow(t->t.dims[0] * t->t.dims[axis], t->t.strides[i], &reach) ||
            t->t.dims[0] * t->t.dims[axis] > INT32_MAX || reach > INT64_C(1) << 44)
            return node_refuse(l, "the ragged tensor %lld is too large", (long long)t->uid);
    if (__builtin_mul_overflow(t->t.dims[1], t->t.dims[5 - axis], &rows) || rows > INT32_MAX)
        return node_refuse(l, "the ragged tensor %lld is too large", (long long)t->uid);
    const int columns = 5 - axis;
    t->ragged_axis = axis;
    t->lengths = lengths;
    t->summed = summed;
    t->t.strides[columns] = 1;
    t->t.strides[1] = t->t.dims[columns];
    t->t.strides[axis] = t->t.dims[1] * t->t.dims[columns];
    t->t.strides[0] = t->t.dims[axis] * t->t.strides[axis];
    t->t.strided = 0;
    t->form = t->t;
    return CUDNN_STATUS_SUCCESS;
}

void node_put_ragged(node_text *text, const lowering *l, int tensor)
{
    const node_tensor *t = &l->tensors[tensor];
    const int order[] = {0, t->ragged_axis, 1, 5 - t->ragged_axis};
    mica_tensor offsets;
    int64_t strides[8];
    if (!t->ragged_axis || !t->used) return;
    const backend *o = backend_child(t->desc, AT_TENSOR_RAGGED_OFFSET);
    backend_tensor(o, &offsets);
    backend_integers(t->desc, AT_TENSOR_STRIDES, strides);
    node_put(text, "#ragged %lld %lld %s %lld %lld %d %s", (long long)t->uid,
             (long long)backend_integer(o, AT_TENSOR_UNIQUE_ID, 0), mica_dtype_name(offsets.dtype),
             (long long)backend_integer(t->desc, AT_TENSOR_RAGGED_MULTIPLIER, 1),
             (long long)l->tensors[t->lengths].uid, t->summed, mica_dtype_name(t->t.dtype));
    for (int i = 0; i < 4; i++) node_put(text, " %lld", (long long)t->t.dims[order[i]]);
    for (int i = 1; i < 4; i++) node_put(text, " %lld", (long long)strides[order[i]]);
    node_put(text, "\n");
}

bool backend_ragged_read(backend_lowered *l, const char *line)
{
    long long n[12];
    char index[12], type[12];
    int summed;
    if (l->ragged_count == BACKEND_RAGGED) return false;
    if (sscanf(line, "#ragged %lld %lld %11s %lld %lld %d %11s %lld %lld %lld %lld %lld %lld %lld",
               &n[0], &n[1], index, &n[2], &n[3], &summed, type, &n[4], &n[5], &n[6], &n[7], &n[8],
               &n[9], &n[10]) != 14)
        return false;
    backend_ragged *r = &l->ragged[l->ragged_count++];
    *r = (backend_ragged){.uid = n[0], .offsets = n[1], .multiplier = n[2], .lengths = n[3]};
    r->summed = summed != 0;
    r->index = backend_dtype_named(index);
    r->tensor.dtype = backend_dtype_named(type);
    r->tensor.rank = 4;
    for (int i = 0; i < 4; i++) r->tensor.dims[i] = n[4 + i];
    for (int i = 1; i < 4; i++) r->tensor.strides[i] = n[7 + i];
    for (int i = 0; i < 4; i++)
        if (r->tensor.dims[i] < 1 || r->tensor.strides[i] < 0) return false;
    return (r->index == MICA_S32 || r->index == MICA_S64) && r->tensor.dtype != MICA_NONE &&
           r->multiplier > 0;
}

/* ---- runs ---- */

/* Elements from one row to the next. */
static int64_t row_of(const backend_ragged *r)
{
    const mica_tensor *t = &r->tensor;
    if (t->dims[1] > 1 && t->strides[1]) return t->strides[1];
    return t->strides[3] == 1 && t->strides[2] == t->dims[3] ? t->dims[2] * t->dims[3]
           : t->strides[1]                                   ? t->strides[1]
                                                             : 1;
}

/* The client's memory, as B * S rows of H x D. */
static mica_tensor rows_of(const backend_ragged *r)
{
    const mica_tensor *t = &r->tensor;
    mica_tensor rows = {.dtype = t->dtype, .rank = 3};
    rows.dims[0] = t->dims[0] * t->dims[1], rows.strides[0] = row_of(r);
    for (int i = 1; i < 3; i++) rows.dims[i] = t->dims[i + 1], rows.strides[i] = t->strides[i + 1];
    return rows;
}

static mica_tensor index_of(const backend_ragged *r)
{
    return mica_tensor_packed(MICA_S32, 2, r->tensor.dims);
}

static size_t room_of(const mica_tensor *t)
{
    return ((size_t)mica_tensor_span(t, NULL) + 255) / 256 * 256;
}

/* B x S: the row of each position, -1 behind the end of its sequence. */
static mica_pointwise_desc index_problem(const backend_ragged *r)
{
    mica_pointwise_desc d = {.y0 = index_of(r)};
    const int64_t row = row_of(r), whole = r->multiplier % row ? 1 : row;
    mica_tensor each = d.y0;
    each.strides[0] = 1, each.strides[1] = 0;
    d.x1 = d.x2 = each;
    each.dtype = r->index;
    d.x0 = each;
    if (!r->summed) d.x2 = (mica_tensor){0};
    snprintf(d.expr, sizeof d.expr, "s32(where(i1<%s,s64(s64(x0)*%lld/%lld)+i1,-1))",
             r->summed ? "x1-x2" : "x1", (long long)(r->multiplier / whole),
             (long long)(row / whole));
    return d;
}

static mica_gather_desc pad_problem(const backend_ragged *r)
{
    return (mica_gather_desc){.x = rows_of(r),
                              .index = index_of(r),
                              .y = mica_tensor_packed(r->tensor.dtype, 4, r->tensor.dims)};
}

static mica_scatter_desc unpad_problem(const backend_ragged *r)
{
    const int64_t places[] = {r->tensor.dims[0], r->tensor.dims[1], 1};
    return (mica_scatter_desc){.mode = MICA_SCATTER_ND,
                               .x = rows_of(r),
                               .y = rows_of(r),
                               .index = mica_tensor_packed(MICA_S32, 3, places),
                               .u = mica_tensor_packed(r->tensor.dtype, 4, r->tensor.dims)};
}

static cudnnStatus_t make_index(cudnnHandle_t handle, const backend_ragged *r, const void *offsets,
                                const void *lengths, void *index)
{
    const mica_pointwise_desc d = index_problem(r);
    mica_run run = {0};
    run.args[MICA_POINTWISE_X0] = (void *)(uintptr_t)offsets;
    run.args[MICA_POINTWISE_X0 + 1] = (char *)(uintptr_t)lengths + (r->summed ? 4 : 0);
    if (r->summed) run.args[MICA_POINTWISE_X0 + 2] = (void *)(uintptr_t)lengths;
    run.args[MICA_POINTWISE_Y0] = index;
    return front_run(handle, "pointwise", &d, sizeof d, &run);
}

static cudnnStatus_t missing(int64_t uid)
{
    return front_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
                      "the variant pack has no pointer for tensor %lld", (long long)uid);
}

/* Memory of the handle for all of them. What the client's tensors may reach over at most is left
 * free in front: they end behind their buffers, as how long these are is not known. */
static cudnnStatus_t place(cudnnHandle_t handle, const backend_lowered *l, backend_moves *m)
{
    size_t bytes = 0, reach = 0;
    char *memory;
    for (int i = 0; i < l->ragged_count; i++) {
        const mica_tensor rows = rows_of(&l->ragged[i]), index = index_of(&l->ragged[i]);
        bytes += room_of(&m->form[i]) + room_of(&index);
        if (room_of(&rows) > reach) reach = room_of(&rows);
    }
    FRONT_TRY(front_temporary(handle, 7, bytes + reach, (void **)&memory));
    memory += reach;
    for (int i = 0; i < l->ragged_count; i++) {
        const mica_tensor index = index_of(&l->ragged[i]);
        m->padded[i] = memory;
        m->index[i] = memory + room_of(&m->form[i]);
        memory += room_of(&m->form[i]) + room_of(&index);
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t prepare(cudnnHandle_t handle, const char *op, const void *desc, size_t size)
{
    mica_plan *plan;
    void *workspace;
    FRONT_TRY(front_plan(handle, op, desc, size, NULL, &plan));
    const size_t bytes = mica_plan_workspace(plan);
    mica_plan_destroy(plan);
    return front_workspace(handle, bytes, &workspace);
}

cudnnStatus_t backend_ragged_prepare(cudnnHandle_t handle, const backend_lowered *l)
{
    backend_moves m;
    for (int i = 0; i < l->ragged_count; i++) {
        const mica_pointwise_desc index = index_problem(&l->ragged[i]);
        const mica_gather_desc in = pad_problem(&l->ragged[i]);
        const mica_scatter_desc out = unpad_problem(&l->ragged[i]);
        m.form[i] = in.y;
        FRONT_TRY(prepare(handle, "pointwise", &index, sizeof index));
        FRONT_TRY(prepare(handle, "gather", &in, sizeof in));
        FRONT_TRY(prepare(handle, "scatter", &out, sizeof out));
    }
    return place(handle, l, &m);
}

static cudnnStatus_t pad(cudnnHandle_t handle, const backend_ragged *r, const backend_moves *m,
                         int i)
{
    const mica_gather_desc d = pad_problem(r);
    mica_run run = {0};
    run.args[MICA_GATHER_X] = m->client[i];
    run.args[MICA_GATHER_INDEX] = m->index[i];
    run.args[MICA_GATHER_Y] = m->padded[i];
    return front_run(handle, "gather", &d, sizeof d, &run);
}

cudnnStatus_t backend_ragged_begin(cudnnHandle_t handle, const backend_built *built,
                                   const backend *pack, void **tensors, backend_moves *m)
{
    const backend_lowered *l = built->lowered;
    int port[BACKEND_RAGGED];
    for (int i = 0; i < l->ragged_count; i++) {
        const backend_ragged *r = &l->ragged[i];
        for (port[i] = 0; port[i] < built->port_count; port[i]++)
            if (l->ports[built->port_of[port[i]]].uid == r->uid) break;
        if (port[i] == built->port_count)
            return front_fail(CUDNN_STATUS_INTERNAL_ERROR, "no port of the ragged tensor %lld",
                              (long long)r->uid);
        m->form[i] = mica_tensor_packed(r->tensor.dtype, 4, r->tensor.dims);
        m->client[i] = tensors[port[i]];
        m->result[i] = built->extents[port[i]].result;
    }
    FRONT_TRY(place(handle, l, m));
    for (int i = 0; i < l->ragged_count; i++) {
        const backend_ragged *r = &l->ragged[i];
        const void *offsets = backend_pointer(pack, r->offsets);
        const void *lengths = backend_pointer(pack, r->lengths);
        if (!offsets || !lengths) return missing(offsets ? r->lengths : r->offsets);
        FRONT_TRY(make_index(handle, r, offsets, lengths, m->index[i]));
        if (!m->result[i]) FRONT_TRY(pad(handle, r, m, i));
        tensors[port[i]] = m->padded[i];
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t backend_ragged_end(cudnnHandle_t handle, const backend_built *built,
                                 const backend_moves *m)
{
    for (int i = 0; i < built->lowered->ragged_count; i++) {
        const backend_ragged *r = &built->lowered->ragged[i];
        const mica_scatter_desc d = unpad_problem(r);
        mica_run run = {0};
        if (!m->result[i]) continue;
        run.args[MICA_SCATTER_X] = run.args[MICA_SCATTER_Y] = m->client[i];
        run.args[MICA_SCATTER_INDEX] = m->index[i];
        run.args[MICA_SCATTER_U] = m->padded[i];
        FRONT_TRY(front_run(handle, "scatter", &d, sizeof d, &run));
    }
    return CUDNN_STATUS_SUCCESS;
}
