/* SPDX-License-Identifier: Apache-2.0
 * What clients call on descriptors: creating, setting, getting, finalizing, destroying. The table
 * says what an attribute takes; a refusal names attribute, value and rule. */
#include "backend.h"

#include <string.h>

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
    *row = backend_row_of(b, attribute);
    if (*row >= 0) return CUDNN_STATUS_SUCCESS;
    const backend_row *other = backend_row_anywhere(attribute);
    if (other)
        return front_fail(
            CUDNN_STATUS_BAD_PARAM, "attribute %u (%s) is one of the %s, not of the %s", attribute,
            other->name, backend_type_words(other->owner), backend_type_words(b->type));
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
                                              : backend_wire_name(r->type);
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
    backend_clear(b);
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
        memcpy(elements, v->data, (size_t)*count * backend_wire_bytes((int)type));
        return CUDNN_STATUS_SUCCESS;
    }
    if (r->type == BW_REAL) {
        const double number = backend_real(b, (backend_attribute)r->number, 0);
        const float single = (float)number;
        memcpy(elements, type == BW_FLOAT ? (const void *)&single : &number,
               backend_wire_bytes((int)type));
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
