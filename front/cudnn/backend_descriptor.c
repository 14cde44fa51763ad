/* SPDX-License-Identifier: Apache-2.0
 * Descriptors: their attributes by the table, and who refers to whom. */
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

static void clear(backend *b)
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
    clear(b);
    free(b->values);
    front_destroy(b, FRONT_BACKEND);
}

/* ---- values ---- */

static int row_of(const backend *b, unsigned attribute)
{
    for (int i = 0; i < b->row_count; i++)
        if (b->rows[i].number == attribute) return i;
    return -1;
}

const backend_value *backend_get(const backend *b, backend_attribute attribute)
{
    const int row = b ? row_of(b, attribute) : -1;
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
    const int row = row_of(b, attribute);
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

/* ---- what the client calls ---- */

static cudnnStatus_t check_object(const void *descriptor)
{
    FRONT_TRY(front_given(descriptor, "descriptor"));
    FRONT_TRY(front_check(descriptor, FRONT_BACKEND, "descriptor"));
    const backend *b = descriptor;
    if (b->destroyed)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "the %s was destroyed before",
                          backend_type_words(b->type));
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t find_row(const backend *b, unsigned attribute, int *row)
{
    *row = row_of(b, attribute);
    if (*row >= 0) return CUDNN_STATUS_SUCCESS;
    for (int i = 0; i < row_count; i++)
        if (rows[i].number == attribute)
            return front_fail(CUDNN_STATUS_BAD_PARAM,
                              "attribute %u (%s) is one of the %s, not of the %s", attribute,
                              rows[i].name, backend_type_words(rows[i].owner),
                              backend_type_words(b->type));
    return front_fail(CUDNN_STATUS_NOT_SUPPORTED, "attribute %u of the %s is not served", attribute,
                      backend_type_words(b->type));
}

static bool type_fits(int row_type, unsigned type)
{
    if (row_type == BW_REAL) return type == BW_FLOAT || type == BW_DOUBLE;
    if (row_type == BW_SEED) return type == BW_INT64 || type == BW_DESCRIPTOR;
    return type == (unsigned)row_type;
}

static cudnnStatus_t check_type(const backend *b, const backend_row *r, unsigned type)
{
    if (type_fits(r->type, type)) return CUDNN_STATUS_SUCCESS;
    const char *wanted = r->type == BW_REAL   ? "FLOAT or DOUBLE"
                         : r->type == BW_SEED ? "INT64 or DESCRIPTOR"
                                              : wires[r->type].name;
    return front_fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
                      "attribute %u (%s) of the %s has type %u, it is of %s", r->number, r->name,
                      backend_type_words(b->type), type, wanted);
}

static cudnnStatus_t check_children(const backend *b, const backend_row *r, int64_t count,
                                    backend *const *children)
{
    for (int64_t i = 0; i < count; i++) {
        FRONT_TRY(check_object(children[i]));
        const backend *c = children[i];
        const bool fits = r->child == BT_ANY ? backend_is_operation(c->type) : c->type == r->child;
        if (!fits)
            return front_fail(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
                              "attribute %u (%s) of the %s: element %lld is a %s, it takes a %s",
                              r->number, r->name, backend_type_words(b->type), (long long)i,
                              backend_type_words(c->type),
                              r->child == BT_ANY ? "an operation" : backend_type_words(r->child));
        if (!c->finalized)
            return front_fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
                              "attribute %u (%s) of the %s: element %lld, a %s, is not finalized",
                              r->number, r->name, backend_type_words(b->type), (long long)i,
                              backend_type_words(c->type));
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *descriptor)
{
    front_enter(CALL_cudnnBackendCreateDescriptor);
    backend *b;
    FRONT_TRY(front_given(descriptor, "descriptor"));
    *descriptor = NULL;
    if (type >= BT_COUNT)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "descriptor type %u, known are 0 to %d", type,
                          BT_COUNT - 1);
    FRONT_TRY(backend_make((backend_type)type, &b));
    *descriptor = b;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    front_enter(CALL_cudnnBackendDestroyDescriptor);
    if (!descriptor) return CUDNN_STATUS_SUCCESS;
    FRONT_TRY(check_object(descriptor));
    backend *b = descriptor;
    b->destroyed = true;
    backend_release(b);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendInitialize(cudnnBackendDescriptor_t descriptor)
{
    front_enter(CALL_cudnnBackendInitialize);
    FRONT_TRY(check_object(descriptor));
    backend *b = descriptor;
    if (atomic_load(&b->references) != 1)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "the %s is an attribute of another descriptor",
                          backend_type_words(b->type));
    clear(b);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *elements)
{
    front_enter(CALL_cudnnBackendSetAttribute);
    FRONT_TRY(check_object(descriptor));
    backend *b = descriptor;
    int row;
    if (b->finalized)
        return front_fail(CUDNN_STATUS_NOT_INITIALIZED,
                          "attribute %u: the %s is finalized, nothing more is set", name,
                          backend_type_words(b->type));
    FRONT_TRY(find_row(b, name, &row));
    const backend_row *r = &b->rows[row];
    if (r->access == BA_READ)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "attribute %u (%s) of the %s can only be read",
                          name, r->name, backend_type_words(b->type));
    FRONT_TRY(check_type(b, r, type));
    if (count < 0 || count > r->most || (count == 0 && r->access == BA_NEED))
        return front_fail(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND,
                          "attribute %u (%s) of the %s: %lld elements, it takes %s%lld", name,
                          r->name, backend_type_words(b->type), (long long)count,
                          r->most > 1 ? "1 to " : "", (long long)r->most);
    if (count) FRONT_TRY(front_given(elements, r->name));
    if (type == BW_DESCRIPTOR) FRONT_TRY(check_children(b, r, count, elements));
    if (type == BW_HANDLE && count) {
        cudnnHandle_t handle;
        memcpy(&handle, elements, sizeof handle);
        FRONT_TRY(front_given(handle, "handle"));
        FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    }
    return backend_put(b, (backend_attribute)name, (int)type, count, elements);
}

static cudnnStatus_t get_children(const backend *b, const backend_row *r, const backend_value *v,
                                  int64_t count, void *elements)
{
    backend **to = elements;
    for (int64_t i = 0; i < count; i++) {
        backend *from = ((backend **)v->data)[i];
        FRONT_TRY(check_object(to[i]));
        if (to[i]->type != from->type)
            return front_fail(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
                              "attribute %u (%s) of the %s: element %lld is a %s, it gives a %s",
                              r->number, r->name, backend_type_words(b->type), (long long)i,
                              backend_type_words(to[i]->type), backend_type_words(from->type));
        if (to[i]->finalized)
            return front_fail(CUDNN_STATUS_BAD_PARAM,
                              "attribute %u (%s): element %lld is finalized, it has to be fresh",
                              r->number, r->name, (long long)i);
        FRONT_TRY(backend_fill(to[i], from));
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_stored(const backend *b, const backend_row *r, unsigned type,
                                int64_t requested, int64_t *count, void *elements)
{
    const backend_value *v = backend_get(b, (backend_attribute)r->number);
    if (!v) return CUDNN_STATUS_SUCCESS;
    *count = v->count;
    if (!elements || !requested) return CUDNN_STATUS_SUCCESS;
    if (*count > requested) *count = requested;
    if (v->type == BW_DESCRIPTOR && type == BW_DESCRIPTOR)
        return get_children(b, r, v, *count, elements);
    if (v->type == (int)type) {
        memcpy(elements, v->data, (size_t)*count * (size_t)wires[type].bytes);
        return CUDNN_STATUS_SUCCESS;
    }
    if (r->type == BW_REAL) {
        const double number = backend_real(b, (backend_attribute)r->number, 0);
        const float single = (float)number;
        memcpy(elements, type == BW_FLOAT ? (const void *)&single : &number,
               (size_t)wires[type].bytes);
        return CUDNN_STATUS_SUCCESS;
    }
    return front_fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
                      "attribute %u (%s) was set with type %d, it is asked for with %u", r->number,
                      r->name, v->type, type);
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t *count, void *elements)
{
    front_enter(CALL_cudnnBackendGetAttribute);
    FRONT_TRY(check_object(descriptor));
    backend *b = descriptor;
    int row;
    int64_t found = 0;
    if (!b->finalized)
        return front_fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
                          "attribute %u: the %s is not finalized", name,
                          backend_type_words(b->type));
    FRONT_TRY(find_row(b, name, &row));
    const backend_row *r = &b->rows[row];
    FRONT_TRY(check_type(b, r, type));
    if (requested < 0)
        return front_fail(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "attribute %u (%s): %lld elements",
                          name, r->name, (long long)requested);
    cudnnStatus_t status = r->access == BA_READ || r->access == BA_BOTH
                               ? backend_compute(b, r, requested, &found, elements)
                               : get_stored(b, r, type, requested, &found, elements);
    if (status == CUDNN_STATUS_SUCCESS && count) *count = found;
    return status;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    front_enter(CALL_cudnnBackendFinalize);
    FRONT_TRY(check_object(descriptor));
    backend *b = descriptor;
    if (b->finalized)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "the %s is finalized already",
                          backend_type_words(b->type));
    if (!b->row_count)
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED, "the %s is not served",
                          backend_type_words(b->type));
    for (int i = 0; i < b->row_count; i++)
        if (b->rows[i].access == BA_NEED && !b->values[i].given)
            return front_fail(CUDNN_STATUS_BAD_PARAM, "the %s needs attribute %u (%s)",
                              backend_type_words(b->type), b->rows[i].number, b->rows[i].name);
    FRONT_TRY(backend_check(b));
    b->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}
