/* SPDX-License-Identifier: Apache-2.0
 * The drop-in as a library: every function can be called with nulls, wrong objects are told, errors
 * have a text per thread, plans are bounded, calls are counted, threads have handles of their own.
 */
#define _GNU_SOURCE
#include "front.h"
#include "front_test.h"

#include <dlfcn.h>
#include <pthread.h>

typedef cudnnStatus_t (*any_function)(void *, void *, void *, void *, void *, void *, void *,
                                      void *, void *, void *, void *, void *, void *, void *,
                                      void *, void *, void *, void *, void *, void *, void *,
                                      void *, void *, void *, void *, void *, void *, void *,
                                      void *, void *, void *, void *, void *, void *, void *,
                                      void *);

static any_function find(const char *name)
{
    any_function function;
    void *symbol = dlsym(RTLD_DEFAULT, name);
    assert_non_null(symbol);
    memcpy(&function, &symbol, sizeof function);
    return function;
}

static cudnnStatus_t call(const char *name, void *a, void *b)
{
    return find(name)(a, b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                      0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

static const struct {
    const char *name;
    bool served, status;
} functions[] = {
#define SERVED(part, result, name, arguments)                                                      \
    {#name, true, sizeof(#result) == sizeof "cudnnStatus_t"},
#define REFUSED(part, name, words) {#name, false, true},
#include "functions.def"
#undef SERVED
#undef REFUSED
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

/* What may succeed with nulls: nothing to destroy, nothing to check, a callback taken away. */
static bool may_succeed(const char *name)
{
    return strstr(name, "Destroy") || strstr(name, "VersionCheck") || strstr(name, "etCallback");
}

static void test_nulls(void **unused)
{
    (void)unused;
    for (int i = 0; i < FUNCTIONS; i++) {
        char text[1024] = "";
        cudnnStatus_t status = call(functions[i].name, NULL, NULL);
        if (!functions[i].status) continue;
        if (status == CUDNN_STATUS_SUCCESS && may_succeed(functions[i].name)) continue;
        cudnnGetLastErrorString(text, sizeof text);
        if (status == CUDNN_STATUS_SUCCESS || !strstr(text, functions[i].name))
            fail_msg("%s: %s, \"%s\"", functions[i].name, cudnnGetErrorString(status), text);
        if (!functions[i].served) assert_int_equal(status, CUDNN_STATUS_NOT_SUPPORTED);
    }
}

/* The first argument of each function is an object of another kind: all but setters of what it is
 * tell so. */
static void test_kinds(void **unused)
{
    (void)unused;
    cudnnTensorDescriptor_t tensor;
    cudnnPoolingDescriptor_t pooling;
    SUCCEEDS(cudnnCreateTensorDescriptor(&tensor));
    SUCCEEDS(cudnnCreatePoolingDescriptor(&pooling));
    char text[1024];
    for (int i = 0; i < FUNCTIONS; i++) {
        const char *name = functions[i].name;
        if (!functions[i].served || !functions[i].status || strstr(name, "Backend")) continue;
        if (may_succeed(name) && !strstr(name, "Destroy")) continue;
        /* Those write through their first argument. */
        if (strstr(name, "cudnnCreate") || !strcmp(name, "cudnnGetProperty")) continue;
        void *other = strstr(name, "Pooling") ? (void *)tensor : (void *)pooling;
        cudnnStatus_t status = call(name, other, NULL);
        cudnnGetLastErrorString(text, sizeof text);
        if (status / 1000 != 2)
            fail_msg("%s of a foreign object: %s, \"%s\"", name, cudnnGetErrorString(status), text);
    }
    SUCCEEDS(cudnnDestroyTensorDescriptor(tensor));
    SUCCEEDS(cudnnDestroyPoolingDescriptor(pooling));
    uint64_t numbers[8] = {4711};
    assert_int_equal(cudnnSetStream((cudnnHandle_t)(void *)numbers, NULL), CUDNN_STATUS_BAD_PARAM);
    cudnnGetLastErrorString(text, sizeof text);
    assert_non_null(strstr(text, "foreign object"));
}

static void test_versions(void **unused)
{
    (void)unused;
    int value[3];
    for (int i = 0; i < 3; i++) SUCCEEDS(cudnnGetProperty((libraryPropertyType)i, &value[i]));
    assert_int_equal(value[0] * 10000 + value[1] * 100 + value[2], cudnnGetVersion());
    assert_int_equal(cudnnGetVersion() / 10000, 9);
    assert_int_equal(cudnnGetProperty((libraryPropertyType)3, value), CUDNN_STATUS_BAD_PARAM);
    assert_string_equal(cudnnGetErrorString(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT),
                        "CUDNN_STATUS_NOT_SUPPORTED_LAYOUT");
    assert_string_equal(cudnnGetErrorString((cudnnStatus_t)4711), "CUDNN_UNKNOWN_STATUS");
    cudaStream_t stream = NULL;
    int place;
    SUCCEEDS(cudnnSetStream(handle, (cudaStream_t)(void *)&place));
    SUCCEEDS(cudnnGetStream(handle, &stream));
    assert_ptr_equal(stream, &place);
    SUCCEEDS(cudnnSetStream(handle, NULL));
}

/* What is read once is gone; another thread's is its own. */
static void *fail_elsewhere(void *text)
{
    cudnnSetStream(NULL, NULL);
    cudnnGetLastErrorString(text, 256);
    return NULL;
}

static void test_error_text(void **unused)
{
    (void)unused;
    char here[256], there[256];
    pthread_t thread;
    assert_int_equal(cudnnGetStream(handle, NULL), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, there), 0);
    pthread_join(thread, NULL);
    cudnnGetLastErrorString(here, sizeof here);
    assert_string_equal(here, "cudnnGetStream: stream is null");
    assert_string_equal(there, "cudnnSetStream: handle is null");
    cudnnGetLastErrorString(here, sizeof here);
    assert_string_equal(here, "");
    cudnnGetStream(handle, NULL);
    cudnnGetLastErrorString(here, 6);
    assert_string_equal(here, "cudnn");
}

static char told[256];
static void listen(cudnnSeverity_t severity, void *user, const cudnnDebug_t *debug,
                   const char *message)
{
    assert_int_equal(severity, CUDNN_SEV_ERROR);
    assert_int_equal(debug->cudnnStatus, CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    snprintf(told, sizeof told, "%s%s", (const char *)user, message);
}

static void test_callback(void **unused)
{
    (void)unused;
    unsigned mask = 0;
    void *user;
    cudnnCallback_t function;
    SUCCEEDS(cudnnSetCallback(1u << CUDNN_SEV_ERROR, "> ", listen));
    SUCCEEDS(cudnnGetCallback(&mask, &user, &function));
    assert_true(mask == 1u << CUDNN_SEV_ERROR && function == listen);
    cudnnGetStream(handle, NULL);
    assert_string_equal(told, "> cudnnGetStream: stream is null");
    SUCCEEDS(cudnnSetCallback(0, NULL, NULL));
    told[0] = 0;
    cudnnGetStream(handle, NULL);
    assert_string_equal(told, "");
}

/* What is set is what is got. */
static void test_getters(void **unused)
{
    (void)unused;
    cudnnTensorDescriptor_t t;
    cudnnDataType_t type;
    int v[8], rank;
    SUCCEEDS(cudnnCreateTensorDescriptor(&t));
    assert_int_equal(
        cudnnGetTensor4dDescriptor(t, &type, v, v + 1, v + 2, v + 3, v + 4, v + 5, v + 6, v + 7),
        CUDNN_STATUS_BAD_PARAM);
    SUCCEEDS(cudnnSetTensor4dDescriptor(t, CUDNN_TENSOR_NHWC, CUDNN_DATA_HALF, 2, 3, 4, 5));
    SUCCEEDS(
        cudnnGetTensor4dDescriptor(t, &type, v, v + 1, v + 2, v + 3, v + 4, v + 5, v + 6, v + 7));
    static const int nhwc[] = {2, 3, 4, 5, 60, 1, 15, 3};
    assert_memory_equal(v, nhwc, sizeof nhwc);
    assert_int_equal(type, CUDNN_DATA_HALF);
    size_t bytes;
    SUCCEEDS(cudnnGetTensorSizeInBytes(t, &bytes));
    assert_int_equal(bytes, 240);
    SUCCEEDS(cudnnSetTensor4dDescriptorEx(t, CUDNN_DATA_INT32, 2, 3, 4, 5, 100, 30, 7, 1));
    SUCCEEDS(cudnnGetTensorNdDescriptor(t, 2, &type, &rank, v, v + 4));
    assert_true(rank == 4 && v[1] == 3 && v[4] == 100 && v[5] == 30);
    assert_int_equal(
        cudnnSetTensor4dDescriptor(t, CUDNN_TENSOR_NCHW_VECT_C, CUDNN_DATA_INT8x4, 1, 1, 1, 1),
        CUDNN_STATUS_NOT_SUPPORTED);
    assert_int_equal(
        cudnnSetTensorNdDescriptor(t, CUDNN_DATA_FLOAT, 2, (int[]){2, -1}, (int[]){1, 1}),
        CUDNN_STATUS_BAD_PARAM);
    SUCCEEDS(cudnnDestroyTensorDescriptor(t));

    cudnnFilterDescriptor_t f;
    cudnnTensorFormat_t format;
    SUCCEEDS(cudnnCreateFilterDescriptor(&f));
    SUCCEEDS(cudnnSetFilter4dDescriptor(f, CUDNN_DATA_DOUBLE, CUDNN_TENSOR_NHWC, 6, 3, 2, 1));
    SUCCEEDS(cudnnGetFilterNdDescriptor(f, 8, &type, &format, &rank, v));
    assert_true(rank == 4 && format == CUDNN_TENSOR_NHWC && v[0] == 6 && v[3] == 1);
    SUCCEEDS(cudnnGetFilterSizeInBytes(f, &bytes));
    assert_int_equal(bytes, 36 * 8);
    SUCCEEDS(cudnnDestroyFilterDescriptor(f));

    cudnnConvolutionDescriptor_t c;
    cudnnConvolutionMode_t mode;
    cudnnMathType_t math;
    SUCCEEDS(cudnnCreateConvolutionDescriptor(&c));
    SUCCEEDS(cudnnSetConvolution2dDescriptor(c, 1, 2, 3, 4, 5, 6, CUDNN_CROSS_CORRELATION,
                                             CUDNN_DATA_FLOAT));
    SUCCEEDS(cudnnSetConvolutionMathType(c, CUDNN_FMA_MATH));
    SUCCEEDS(
        cudnnGetConvolution2dDescriptor(c, v, v + 1, v + 2, v + 3, v + 4, v + 5, &mode, &type));
    for (int i = 0; i < 6; i++) assert_int_equal(v[i], i + 1);
    SUCCEEDS(cudnnGetConvolutionMathType(c, &math));
    assert_int_equal(math, CUDNN_FMA_MATH);
    SUCCEEDS(cudnnGetConvolutionGroupCount(c, v));
    assert_int_equal(v[0], 1);
    SUCCEEDS(cudnnDestroyConvolutionDescriptor(c));
}

/* Hundreds of shapes make hundreds of plans; few stay, and they do what they did. */
static void test_plans_are_bounded(void **unused)
{
    (void)unused;
    const int64_t calls = mica_cudnn_calls("cudnnScaleTensor");
    const int64_t served = mica_cudnn_served("cudnnScaleTensor");
    mica_stats stats;
    float two = 2;
    for (int i = 1; i <= 300; i++) {
        array a = array_filled(CUDNN_DATA_FLOAT, NCHW, (int[]){1, i, 0}, 1);
        SUCCEEDS(cudnnScaleTensor(handle, a.desc, a.data, &two));
        array_free(&a);
    }
    assert_int_equal(mica_cudnn_calls("cudnnScaleTensor") - calls, 300);
    assert_int_equal(mica_cudnn_served("cudnnScaleTensor") - served, 300);
    assert_int_equal(mica_cudnn_calls("cudnnNoSuchFunction"), -1);
    assert_true(mica_cudnn_calls(NULL) >= 300);
    assert_true(mica_cudnn_calls("cudnnCreate") >= 1);
    /* The context of all handles of a device has mica's bound. */
    mica_context *shared = handle->context;
    assert_int_equal(mica_context_stats(shared, &stats), MICA_OK);
    assert_true(stats.plans >= 300);
    assert_int_equal(mica_context_cache_limit(shared, 64 << 10), MICA_OK);
    assert_int_equal(mica_context_stats(shared, &stats), MICA_OK);
    assert_true(stats.plans < 300 && stats.plan_bytes <= 64 << 10);
    array a = array_filled(CUDNN_DATA_FLOAT, NCHW, (int[]){1, 7, 0}, 1);
    SUCCEEDS(cudnnScaleTensor(handle, a.desc, a.data, &two));
    array_is(&a, (double[]){2, 2, 2, 2, 2, 2, 2}, 0, 0);
    array_free(&a);
    assert_int_equal(mica_context_cache_limit(shared, 64 << 20), MICA_OK);
}

/* Threads with handles of their own, at once. */
static void *work(void *failed)
{
    cudnnHandle_t own;
    cudnnTensorDescriptor_t t;
    void *data;
    const double one = 1;
    *(int *)failed = 1;
    if (cudnnCreate(&own) || cudnnCreateTensorDescriptor(&t)) return NULL;
    for (int i = 0; i < 200; i++) {
        const int n = 1 + i % 23;
        double half = 0.5, values[23];
        if (mica_malloc(memory, n * 8, &data) != MICA_OK) return NULL;
        if (cudnnSetTensor4dDescriptor(t, CUDNN_TENSOR_NCHW, CUDNN_DATA_DOUBLE, 1, n, 1, 1) ||
            cudnnSetTensor(own, t, data, &one) || cudnnScaleTensor(own, t, data, &half))
            return NULL;
        if (mica_download(memory, values, data, n * 8, NULL) != MICA_OK) return NULL;
        for (int k = 0; k < n; k++)
            if (values[k] != 0.5) return NULL;
        mica_free(memory, data);
    }
    if (cudnnDestroyTensorDescriptor(t) || cudnnDestroy(own)) return NULL;
    *(int *)failed = 0;
    return NULL;
}

static void test_threads(void **unused)
{
    (void)unused;
    pthread_t threads[4];
    int failed[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &failed[i]), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++) assert_int_equal(failed[i], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nulls),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_error_text),
        cmocka_unit_test(test_callback),
        cmocka_unit_test(test_getters),
        cmocka_unit_test(test_plans_are_bounded),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
