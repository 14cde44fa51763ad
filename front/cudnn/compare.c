/* SPDX-License-Identifier: Apache-2.0
 * The library that is compared with. It is opened so that its own calls stay in it; objects like
 * ours are made for each call, handles once. */
#define _GNU_SOURCE
#include "compare.h"
#include "conv.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    long long compared, differed, skipped;
    double largest;
} totals[FRONT_CALLS];

/* ---- the library ---- */

static void open_library(void)
{
    const char *path = getenv("MICA_CUDNN_COMPARE");
    if (!path || !*path) return;
#ifdef RTLD_DEEPBIND
    void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
#else
    void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
#endif
    if (!opened) {
        front_say("MICA_CUDNN_COMPARE: %s", dlerror());
        return;
    }
    if (dlsym(opened, "mica_cudnn_calls") == (void *)(uintptr_t)&mica_cudnn_calls) {
        front_say("MICA_CUDNN_COMPARE: %s is this library", path);
        return;
    }
    library = opened;
}

static void *function_named(const char *name)
{
    pthread_once(&once, open_library);
    return library ? dlsym(library, name) : NULL;
}

void *compare_function(compare_call *c, const char *name)
{
    void *f = c->lost ? NULL : function_named(name);
    if (!f) c->lost = true;
    return f;
}

/* Calls of the other library while an object or a handle is made; false if one fails. */
static bool did(compare_call *c, cudnnStatus_t status)
{
    if (status != CUDNN_STATUS_SUCCESS) c->lost = true;
    return !c->lost;
}

bool compare_begin(compare_call *c, cudnnHandle_t handle, front_call call)
{
    __typeof__(&cudnnCreate) create;
    __typeof__(&cudnnSetStream) set_stream;
    memset(c, 0, sizeof *c);
    *(void **)&create = function_named("cudnnCreate");
    *(void **)&set_stream = function_named("cudnnSetStream");
    if (!create || !set_stream || !handle || handle->kind != FRONT_HANDLE) return false;
    c->call = call;
    c->handle = handle;
    c->status = CUDNN_STATUS_NOT_INITIALIZED;
    if (!handle->original) did(c, create(&handle->original));
    c->original = handle->original;
    if (!c->lost) did(c, set_stream(c->original, handle->stream));
    return true;
}

void compare_close(cudnnHandle_t handle)
{
    __typeof__(&cudnnDestroy) destroy;
    if (!handle->original) return;
    *(void **)&destroy = function_named("cudnnDestroy");
    if (destroy) destroy(handle->original);
    handle->original = NULL;
}

void compare_drop(void *descriptor)
{
    __typeof__(&cudnnBackendDestroyDescriptor) destroy;
    *(void **)&destroy = descriptor ? function_named("cudnnBackendDestroyDescriptor") : NULL;
    if (descriptor && destroy) destroy(descriptor);
}

/* ---- objects ---- */

static void make_tensor(compare_call *c, const struct cudnnTensorStruct *t, void **made)
{
    __typeof__(&cudnnCreateTensorDescriptor) create;
    __typeof__(&cudnnSetTensorNdDescriptor) set;
    int dims[MICA_MAX_RANK], strides[MICA_MAX_RANK];
    *(void **)&create = compare_function(c, "cudnnCreateTensorDescriptor");
    *(void **)&set = compare_function(c, "cudnnSetTensorNdDescriptor");
    for (int i = 0; i < t->tensor.rank; i++)
        dims[i] = (int)t->tensor.dims[i], strides[i] = (int)t->tensor.strides[i];
    if (c->lost || !did(c, create((cudnnTensorDescriptor_t *)made))) return;
    did(c, set(*made, t->type, t->tensor.rank, dims, strides));
}

static void make_filter(compare_call *c, const struct cudnnFilterStruct *f, void **made)
{
    __typeof__(&cudnnCreateFilterDescriptor) create;
    __typeof__(&cudnnSetFilterNdDescriptor) set;
    int dims[MICA_MAX_RANK];
    *(void **)&create = compare_function(c, "cudnnCreateFilterDescriptor");
    *(void **)&set = compare_function(c, "cudnnSetFilterNdDescriptor");
    for (int i = 0; i < f->tensor.rank; i++) dims[i] = (int)f->tensor.dims[i];
    if (c->lost || !did(c, create((cudnnFilterDescriptor_t *)made))) return;
    did(c, set(*made, f->type, f->format, f->tensor.rank, dims));
}

static void make_convolution(compare_call *c, const struct cudnnConvolutionStruct *d, void **made)
{
    __typeof__(&cudnnCreateConvolutionDescriptor) create;
    __typeof__(&cudnnSetConvolutionNdDescriptor) set;
    __typeof__(&cudnnSetConvolutionGroupCount) set_groups;
    __typeof__(&cudnnSetConvolutionMathType) set_math;
    *(void **)&create = compare_function(c, "cudnnCreateConvolutionDescriptor");
    *(void **)&set = compare_function(c, "cudnnSetConvolutionNdDescriptor");
    *(void **)&set_groups = compare_function(c, "cudnnSetConvolutionGroupCount");
    *(void **)&set_math = compare_function(c, "cudnnSetConvolutionMathType");
    if (c->lost || !did(c, create((cudnnConvolutionDescriptor_t *)made))) return;
    did(c, set(*made, d->axes, d->pad, d->stride, d->dilation, d->mode, d->compute));
    did(c, set_groups(*made, d->groups));
    did(c, set_math(*made, d->math));
}

static void make_pooling(compare_call *c, const struct cudnnPoolingStruct *p, void **made)
{
    __typeof__(&cudnnCreatePoolingDescriptor) create;
    __typeof__(&cudnnSetPoolingNdDescriptor) set;
    *(void **)&create = compare_function(c, "cudnnCreatePoolingDescriptor");
    *(void **)&set = compare_function(c, "cudnnSetPoolingNdDescriptor");
    if (c->lost || !did(c, create((cudnnPoolingDescriptor_t *)made))) return;
    did(c, set(*made, p->mode, p->nan, p->axes, p->window, p->pad, p->stride));
}

static void make_activation(compare_call *c, const struct cudnnActivationStruct *a, void **made)
{
    __typeof__(&cudnnCreateActivationDescriptor) create;
    __typeof__(&cudnnSetActivationDescriptor) set;
    __typeof__(&cudnnSetActivationDescriptorSwishBeta) set_beta;
    *(void **)&create = compare_function(c, "cudnnCreateActivationDescriptor");
    *(void **)&set = compare_function(c, "cudnnSetActivationDescriptor");
    *(void **)&set_beta = compare_function(c, "cudnnSetActivationDescriptorSwishBeta");
    if (c->lost || !did(c, create((cudnnActivationDescriptor_t *)made))) return;
    did(c, set(*made, a->mode, a->nan, a->coef));
    if (a->mode == CUDNN_ACTIVATION_SWISH) did(c, set_beta(*made, a->swish_beta));
}

/* All begin with their kind and whether they are set. */
void *compare_object(compare_call *c, const void *object)
{
    const struct cudnnTensorStruct *head = object;
    void *made = NULL;
    if (!object || c->lost) return NULL;
    if (c->object_count == COMPARE_OBJECTS || !head->set) {
        c->lost = true;
        return NULL;
    }
    switch (head->kind) {
    case FRONT_TENSOR:
        make_tensor(c, object, &made);
        break;
    case FRONT_FILTER:
        make_filter(c, object, &made);
        break;
    case FRONT_CONVOLUTION:
        make_convolution(c, object, &made);
        break;
    case FRONT_POOLING:
        make_pooling(c, object, &made);
        break;
    case FRONT_ACTIVATION:
        make_activation(c, object, &made);
        break;
    default:
        c->lost = true;
        return NULL;
    }
    if (!made) return NULL;
    c->kinds[c->object_count] = head->kind;
    c->objects[c->object_count++] = made;
    return made;
}

static void destroy_objects(compare_call *c)
{
    static const char *const names[] = {
        [FRONT_TENSOR - FRONT_GONE] = "cudnnDestroyTensorDescriptor",
        [FRONT_FILTER - FRONT_GONE] = "cudnnDestroyFilterDescriptor",
        [FRONT_CONVOLUTION - FRONT_GONE] = "cudnnDestroyConvolutionDescriptor",
        [FRONT_POOLING - FRONT_GONE] = "cudnnDestroyPoolingDescriptor",
        [FRONT_ACTIVATION - FRONT_GONE] = "cudnnDestroyActivationDescriptor",
    };
    for (int i = 0; i < c->object_count; i++) {
        cudnnStatus_t (*destroy)(void *);
        *(void **)&destroy = function_named(names[c->kinds[i] - FRONT_GONE]);
        if (destroy) destroy(c->objects[i]);
    }
}

/* ---- results ---- */

void *compare_memory(compare_call *c, size_t bytes)
{
    void *memory = NULL;
    if (!bytes || c->lost) return NULL;
    if (c->memory_count == 4 ||
        mica_malloc(c->handle->context, (int64_t)bytes, &memory) != MICA_OK) {
        c->lost = true;
        return NULL;
    }
    return c->memory[c->memory_count++] = memory;
}

void *compare_result_at(compare_call *c, const char *name, const mica_tensor *tensor, void *data)
{
    mica_context *context = c->handle->context;
    int64_t first;
    if (!data || c->lost) return NULL;
    const int64_t bytes = mica_tensor_span(tensor, &first);
    compare_result *r = &c->results[c->result_count];
    void *host = malloc((size_t)bytes + 1);
    if (c->result_count == COMPARE_RESULTS || first || !host ||
        mica_malloc(context, bytes, &r->theirs) != MICA_OK) {
        c->lost = true;
        free(host);
        return NULL;
    }
    r->name = name;
    r->ours = data;
    r->tensor = *tensor;
    c->result_count++;
    if (mica_download(context, host, data, bytes, c->handle->stream) != MICA_OK ||
        mica_synchronize(context, c->handle->stream) != MICA_OK ||
        mica_upload(context, r->theirs, host, bytes, c->handle->stream) != MICA_OK ||
        mica_synchronize(context, c->handle->stream) != MICA_OK)
        c->lost = true;
    free(host);
    return r->theirs;
}

void *compare_result_of(compare_call *c, const char *name, const void *descriptor, void *data)
{
    const struct cudnnTensorStruct *t = descriptor; /* a filter's begins alike */
    const struct cudnnFilterStruct *f = descriptor;
    if (!descriptor || !data || c->lost) return NULL;
    if (!t->set || (t->kind != FRONT_TENSOR && t->kind != FRONT_FILTER)) {
        c->lost = true;
        return NULL;
    }
    return compare_result_at(c, name, t->kind == FRONT_FILTER ? &f->tensor : &t->tensor, data);
}

static double *values_at(const compare_call *c, const mica_tensor *t, const void *data)
{
    const int64_t bytes = mica_tensor_span(t, NULL);
    void *host = malloc((size_t)bytes + 1);
    double *values = malloc(((size_t)mica_tensor_count(t) + 1) * sizeof *values);
    const bool read =
        host && values &&
        mica_download(c->handle->context, host, data, bytes, c->handle->stream) == MICA_OK &&
        mica_synchronize(c->handle->context, c->handle->stream) == MICA_OK &&
        mica_tensor_load(t, host, values) == MICA_OK;
    free(host);
    if (read) return values;
    free(values);
    return NULL;
}

/* Of the largest magnitude: products of f32 may be rounded to TF32, sums be in another order. */
static double allowed(mica_dtype type)
{
    return type == MICA_F64    ? 0x1p-40
           : type == MICA_F32  ? 0x1p-9
           : type == MICA_F16  ? 0x1p-7
           : type == MICA_BF16 ? 0x1p-5
                               : 0;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static bool is_equal(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

static void put_place(const mica_tensor *t, int64_t element, char *text, size_t size)
{
    int64_t index[MICA_MAX_RANK];
    size_t length = 0;
    for (int i = t->rank - 1; i >= 0; element /= t->dims[i], i--) index[i] = element % t->dims[i];
    for (int i = 0; i < t->rank && length < size; i++)
        length += (size_t)snprintf(text + length, size - length, "%s%lld", i ? "," : "",
                                   (long long)index[i]);
}

/* Tells what differs; the largest difference, of the largest magnitude. */
static double tell(const compare_call *c, const compare_result *r, const double *ours,
                   const double *theirs, bool *differs)
{
    const int64_t count = mica_tensor_count(&r->tensor);
    double scale = 0, most = 0;
    int64_t wrong = 0, where = -1;
    char place[160] = "";
    for (int64_t i = 0; i < count; i++)
        if (isfinite(theirs[i])) scale = larger(scale, fabs(theirs[i]));
    for (int64_t i = 0; i < count; i++) {
        if (is_equal(ours[i], theirs[i])) continue;
        double off = fabs(ours[i] - theirs[i]);
        if (!isfinite(off)) off = INFINITY;
        wrong += off > allowed(r->tensor.dtype) * scale;
        if (where < 0 || off > most) most = off, where = i;
    }
    if (wrong) {
        put_place(&r->tensor, where, place, sizeof place);
        front_say(
            "compare: %s, %s: %lld of %lld %s differ by more than %g of the largest, which is "
            "%g; most at (%s): %.9g, original %.9g",
            front_call_name(c->call), r->name, (long long)wrong, (long long)count,
            mica_dtype_name(r->tensor.dtype), allowed(r->tensor.dtype), scale, place, ours[where],
            theirs[where]);
        *differs = true;
    }
    return scale > 0 ? most / scale : most;
}

static void compare_results(const compare_call *c)
{
    bool differs = false, read = true;
    double largest = 0;
    for (int i = 0; i < c->result_count; i++) {
        const compare_result *r = &c->results[i];
        double *ours = values_at(c, &r->tensor, r->ours);
        double *theirs = values_at(c, &r->tensor, r->theirs);
        read &= ours && theirs;
        if (ours && theirs) largest = larger(largest, tell(c, r, ours, theirs, &differs));
        free(ours);
        free(theirs);
    }
    pthread_mutex_lock(&lock);
    totals[c->call].compared += read;
    totals[c->call].skipped += !read;
    totals[c->call].differed += differs;
    totals[c->call].largest = larger(totals[c->call].largest, largest);
    pthread_mutex_unlock(&lock);
}

cudnnStatus_t compare_end(compare_call *c, cudnnStatus_t status)
{
    const bool here = status == CUDNN_STATUS_SUCCESS;
    const bool there = !c->lost && c->status == CUDNN_STATUS_SUCCESS;
    if (here && there) {
        compare_results(c);
    } else {
        pthread_mutex_lock(&lock);
        totals[c->call].skipped++;
        pthread_mutex_unlock(&lock);
        if (here != there)
            front_say("compare: %s, not compared: %s here, the original %s",
                      front_call_name(c->call), front_status_name(status),
                      c->lost ? "could not be asked" : front_status_name(c->status));
    }
    destroy_objects(c);
    for (int i = 0; i < c->result_count; i++) mica_free(c->handle->context, c->results[i].theirs);
    for (int i = 0; i < c->memory_count; i++) mica_free(c->handle->context, c->memory[i]);
    return status;
}

void compare_report(void)
{
    for (int i = 0; i < FRONT_CALLS; i++)
        if (totals[i].compared || totals[i].skipped)
            front_say("compare: %-50s %8lld compared %8lld differ %8lld not compared, largest "
                      "difference %.3g",
                      front_call_name((front_call)i), totals[i].compared, totals[i].differed,
                      totals[i].skipped, totals[i].largest);
}
