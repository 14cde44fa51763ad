/* SPDX-License-Identifier: Apache-2.0
 * Descriptors: the table of attributes, their values, and who refers to whom. */
#include "backend.h"

#include <stdlib.h>
#include <string.h>

static const backend_row rows[] = {
#define A(owner, name, number, type, child, most, access)                                          \
    {BT_##owner, number, BW_##type, BT_##child, most, BA_##access, #name},
#include "backend_attributes.def"
#undef A
};
static const int row_count = (int)(sizeof rows / sizeof *rows);

static const char *const type_words[BT_COUNT] = {
#define BACKEND_X(name, number, words) [number] = words,
    BACKEND_TYPES(BACKEND_X)
#undef BACKEND_X
};

static const struct {
    const char *name;
    int bytes;
} wires[BW_COUNT] = {
#define BACKEND_X(name, number, bytes) [number] = {#name, bytes},
    BACKEND_WIRES(BACKEND_X)
#undef BACKEND_X
};

const char *backend_type_words(int type)
{
    return type >= 0 && type < BT_COUNT ? type_words[type] : "unknown descriptor";
}

const char *backend_wire_name(int type)
{
    return wires[type].name;
}

size_t backend_wire_bytes(int type)
{
    return (size_t)wires[type].bytes;
}

const backend_row *backend_row_anywhere(unsigned attribute)
{
    for (int i = 0; i < row_count; i++)
        if (rows[i].number == attribute) return &rows[i];
    return NULL;
}

bool backend_is_operation(int type)
{
    switch (type) {
    case BT_POINTWISE:
    case BT_CONVOLUTION:
    case BT_MATMUL:
    case BT_REDUCTION:
    case BT_RESAMPLE:
    case BT_RNG:
    case BT_GRAPH:
    case BT_PACK:
    case BT_TENSOR:
    case BT_KERNEL_CACHE:
    case BT_DEVICE:
        return false;
    default:
        return type >= BT_CONV_FWD && type < BT_COUNT;
    }
}

/* ---- references ---- */

static void drop_value(backend_value *v)
{
    if (v->given && v->type == BW_DESCRIPTOR)
        for (int64_t i = 0; i < v->count; i++) backend_release(((backend **)v->data)[i]);
    if (v->data != v->room) free(v->data);
    *v = (backend_value){0};
}

cudnnStatus_t backend_make(backend_type type, backend **made)
{
    backend *b;
    FRONT_TRY(front_create(FRONT_BACKEND, sizeof *b, &b));
    b->type = type;
    atomic_init(&b->references, 1);
    for (int i = 0; i < row_count; i++) {
        if (rows[i].owner != type) continue;
        if (!b->rows) b->rows = &rows[i];
        b->row_count++;
    }
    b->values = calloc((size_t)b->row_count + 1, sizeof *b->values);
    if (!b->values) {
        front_destroy(b, FRONT_BACKEND);
        return front_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
                          "a descriptor of %d attributes", b->row_count);
    }
    *made = b;
    return CUDNN_STATUS_SUCCESS;
}

void backend_retain(backend *b)
{
    atomic_fetch_add(&b->references, 1);
}

void backend_clear(backend *b)
{
    for (int i = 0; i < b->row_count; i++) drop_value(&b->values[i]);
    backend_built_free(b->built);
    backend_lowered_free(b->lowered);
    b->built = NULL;
    b->lowered = NULL;
    b->finalized = false;
}

void backend_release(backend *b)
{
    if (!b || atomic_fetch_sub(&b->references, 1) != 1) return;
    backend_clear(b);
    free(b->values);
    front_destroy(b, FRONT_BACKEND);
}

/* ---- values ---- */

int backend_row_of(const backend *b, unsigned attribute)
{
    for (int i = 0; i < b->row_count; i++)
        if (b->rows[i].number == attribute) return i;
    return -1;
}

const backend_value *backend_get(const backend *b, backend_attribute attribute)
{
    const int row = b ? backend_row_of(b, attribute) : -1;
    return row >= 0 && b->values[row].given ? &b->values[row] : NULL;
}

backend *backend_child(const backend *b, backend_attribute attribute)
{
    const backend_value *v = backend_get(b, attribute);
    return v && v->type == BW_DESCRIPTOR && v->count ? ((backend **)v->data)[0] : NULL;
}

int64_t backend_integer(const backend *b, backend_attribute attribute, int64_t otherwise)
{
    const backend_value *v = backend_get(b, attribute);
    int32_t narrow;
    int64_t wide;
    if (!v || !v->count || v->type == BW_DESCRIPTOR) return otherwise;
    if (wires[v->type].bytes == 1) return *(const unsigned char *)v->data != 0;
    if (wires[v->type].bytes == 4) {
        memcpy(&narrow, v->data, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, v->data, sizeof wide);
    return wide;
}

double backend_real(const backend *b, backend_attribute attribute, double otherwise)
{
    const backend_value *v = backend_get(b, attribute);
    float single;
    double number;
    if (!v || !v->count) return otherwise;
    if (v->type == BW_FLOAT) {
        memcpy(&single, v->data, sizeof single);
        return single;
    }
    memcpy(&number, v->data, sizeof number);
    return number;
}

int backend_integers(const backend *b, backend_attribute attribute, int64_t *integers)
{
    const backend_value *v = backend_get(b, attribute);
    if (!v || v->count > 8) return 0;
    memcpy(integers, v->data, (size_t)v->count * sizeof *integers);
    return (int)v->count;
}

cudnnHandle_t backend_handle(const backend *b, backend_attribute attribute)
{
    const backend_value *v = backend_get(b, attribute);
    cudnnHandle_t handle = NULL;
    if (v && v->count) memcpy(&handle, v->data, sizeof handle);
    return handle;
}

cudnnStatus_t backend_put(backend *b, backend_attribute attribute, int type, int64_t count,
                          const void *elements)
{
    const int row = backend_row_of(b, attribute);
    const size_t bytes = (size_t)count * (size_t)wires[type].bytes;
    backend_value fresh = {.given = true, .type = type, .count = count};
    fresh.data = bytes > sizeof fresh.room ? malloc(bytes) : NULL;
    if (bytes > sizeof fresh.room && !fresh.data)
        return front_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
                          "attribute %u of %zu bytes", (unsigned)attribute, bytes);
    if (bytes) memcpy(fresh.data ? fresh.data : fresh.room, elements, bytes);
    if (type == BW_DESCRIPTOR)
        for (int64_t i = 0; i < count; i++) backend_retain(((backend *const *)elements)[i]);
    drop_value(&b->values[row]);
    b->values[row] = fresh;
    if (!fresh.data) b->values[row].data = b->values[row].room;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t backend_fill(backend *to, const backend *from)
{
    for (int i = 0; i < from->row_count; i++) {
        const backend_value *v = &from->values[i];
        if (!v->given) continue;
        FRONT_TRY(
            backend_put(to, (backend_attribute)from->rows[i].number, v->type, v->count, v->data));
    }
    to->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}
