/* SPDX-License-Identifier: Apache-2.0
 * What the tests of the drop-in libcudnn.so.9 share: tensors in memory of the device that the
 * handles are on (MICA_CUDNN_DEVICE: cpu, or a GPU, played or real), and comparisons. */
#ifndef FRONT_TEST_H
#define FRONT_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cudnn_abi.h"
#include "mica/mica.h"

int64_t mica_cudnn_calls(const char *function);
int64_t mica_cudnn_served(const char *function);

static cudnnHandle_t handle;
static mica_context *memory;
static uint64_t state = 1;

#define SUCCEEDS(call)                                                                             \
    do {                                                                                           \
        cudnnStatus_t status_ = (call);                                                            \
        if (status_ != CUDNN_STATUS_SUCCESS) {                                                     \
            char text_[1024];                                                                      \
            cudnnGetLastErrorString(text_, sizeof text_);                                          \
            fail_msg("%s: %s: %s", #call, cudnnGetErrorString(status_), text_);                    \
        }                                                                                          \
    } while (0)

static inline int open_device(void **unused)
{
    (void)unused;
    setenv("MICA_CUDNN_DEVICE", "cpu", 0);
    if (getenv("FRONT_SEED")) state = strtoull(getenv("FRONT_SEED"), NULL, 10); /* by hand */
    assert_int_equal(mica_context_create(getenv("MICA_CUDNN_DEVICE"), &memory), MICA_OK);
    SUCCEEDS(cudnnCreate(&handle));
    return 0;
}

static inline int close_device(void **unused)
{
    (void)unused;
    SUCCEEDS(cudnnDestroy(handle));
    mica_context_destroy(memory);
    return 0;
}

/* A pseudo-random number of 0 to n - 1. */
static inline int draw(int n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (unsigned)n);
}

typedef enum layout { NCHW, NHWC, GAPS } layout;

typedef struct array {
    mica_tensor t;
    cudnnTensorDescriptor_t desc;
    int64_t count, bytes;
    double *v; /* packed, logical order, as the type holds them */
    void *host, *data;
} array;

/* The tensor of a type, its dimensions ended by 0. GAPS: strides that leave odd gaps. */
static inline mica_tensor tensor_of(cudnnDataType_t type, layout order, const int *dims)
{
    static const mica_dtype dtypes[] = {
        [CUDNN_DATA_FLOAT] = MICA_F32, [CUDNN_DATA_DOUBLE] = MICA_F64,
        [CUDNN_DATA_HALF] = MICA_F16,  [CUDNN_DATA_INT8] = MICA_S8,
        [CUDNN_DATA_INT32] = MICA_S32, [CUDNN_DATA_BFLOAT16] = MICA_BF16};
    int64_t wide[MICA_MAX_RANK];
    int rank = 0;
    for (; dims[rank]; rank++) wide[rank] = dims[rank];
    mica_tensor t = order == NHWC ? mica_tensor_channels_last(dtypes[type], rank, wide)
                                  : mica_tensor_packed(dtypes[type], rank, wide);
    if (order == GAPS)
        for (int i = rank - 1, step = 2; i >= 0; step = step * (int)t.dims[i] + 1, i--)
            t.strides[i] = step;
    return t;
}

/* Uploads v. */
static inline void array_write(array *a)
{
    assert_int_equal(mica_tensor_store(&a->t, a->v, a->host), MICA_OK);
    assert_int_equal(mica_tensor_load(&a->t, a->host, a->v), MICA_OK);
    assert_int_equal(mica_upload(memory, a->data, a->host, a->bytes, NULL), MICA_OK);
}

static inline array array_of(mica_tensor t, cudnnDataType_t type)
{
    array a = {.t = t, .count = mica_tensor_count(&t), .bytes = mica_tensor_span(&t, NULL)};
    int dims[MICA_MAX_RANK], strides[MICA_MAX_RANK];
    for (int i = 0; i < t.rank; i++) dims[i] = (int)t.dims[i], strides[i] = (int)t.strides[i];
    SUCCEEDS(cudnnCreateTensorDescriptor(&a.desc));
    SUCCEEDS(cudnnSetTensorNdDescriptor(a.desc, type, t.rank, dims, strides));
    a.v = calloc((size_t)a.count + 1, sizeof *a.v);
    a.host = calloc(1, (size_t)a.bytes + 1);
    assert_int_equal(mica_malloc(memory, a.bytes, &a.data), MICA_OK);
    return a;
}

/* Quarters from -2 to 2: sums of their products are exact. */
static inline array array_new(cudnnDataType_t type, layout order, const int *dims)
{
    array a = array_of(tensor_of(type, order, dims), type);
    for (int64_t i = 0; i < a.count; i++)
        a.v[i] = type == CUDNN_DATA_INT8 || type == CUDNN_DATA_INT32 ? draw(9) - 4
                                                                     : (draw(17) - 8) / 4.0;
    array_write(&a);
    return a;
}

/* All one value: NaN shows whether old content is read. */
static inline array array_filled(cudnnDataType_t type, layout order, const int *dims, double value)
{
    array a = array_of(tensor_of(type, order, dims), type);
    for (int64_t i = 0; i < a.count; i++) a.v[i] = value;
    array_write(&a);
    return a;
}

/* What the device has now, packed in logical order; the caller frees it. */
static inline double *array_read(const array *a)
{
    double *values = calloc((size_t)a->count + 1, sizeof *values);
    assert_int_equal(mica_download(memory, a->host, a->data, a->bytes, NULL), MICA_OK);
    assert_int_equal(mica_tensor_load(&a->t, a->host, values), MICA_OK);
    return values;
}

static inline void array_free(array *a)
{
    cudnnDestroyTensorDescriptor(a->desc);
    mica_free(memory, a->data);
    free(a->host);
    free(a->v);
}

/* What a type rounds to, relative; `units` of it are the tolerance. */
static inline double unit_of(mica_dtype dtype)
{
    return dtype == MICA_F64    ? 0x1p-53
           : dtype == MICA_F32  ? 0x1p-24
           : dtype == MICA_F16  ? 0x1p-11
           : dtype == MICA_BF16 ? 0x1p-8
                                : 0;
}

/* The device's content is `expected`, within so many roundings of the type and of magnitude. */
static inline void array_is(const array *a, const double *expected, double units, double magnitude)
{
    double *found = array_read(a);
    for (int64_t i = 0; i < a->count; i++) {
        double bound = units * unit_of(a->t.dtype) * fmax(fabs(expected[i]), magnitude);
        if (!(fabs(found[i] - expected[i]) <= bound))
            fail_msg("element %lld of %s: %.17g, not %.17g within %g", (long long)i,
                     mica_dtype_name(a->t.dtype), found[i], expected[i], bound);
    }
    free(found);
}

/* Scaling factors in the type that cuDNN reads for tensors of a type. */
typedef union scalar {
    float f;
    double d;
} scalar;
static inline scalar scale_of(cudnnDataType_t type, double value)
{
    return type == CUDNN_DATA_DOUBLE ? (scalar){.d = value} : (scalar){.f = (float)value};
}

/* The place of an element in packed order. */
static inline int64_t at(const mica_tensor *t, const int64_t *index)
{
    int64_t place = 0;
    for (int i = 0; i < t->rank; i++) place = place * t->dims[i] + index[i];
    return place;
}

#endif
