/* SPDX-License-Identifier: Apache-2.0
 * cuDNN through our own prototypes: the library, descriptors, graphs. */
#include "peers/cudnn_calls.h"
#include "cuda/driver.h"
#include "base/env.h"
#include "base/system/library.h"
#include "base/log.h"
#include "base/memory.h"

#include <dlfcn.h>
#include <string.h>

mica_cudnn_table mica_dnn;
pthread_mutex_t mica_cudnn_mutex = PTHREAD_MUTEX_INITIALIZER;
void *mica_cudnn_handles[MOST_DEVICES];

static void *library;
static char path[512];

/* ---- the library ---- */

static mica_status open_library(void)
{
    static const char *const names[] = {"libcudnn.so.9", NULL};
    char text[1024] = "";
    mica_text looked = {text, sizeof text, 0};
    library = mica_library_open("MICA_CUDNN", mica_env(MICA_ENV_CUDNN), names, &looked);
    if (!library) return mica_fail(MICA_UNSUPPORTED, "cuDNN is not here: %s", text);
    const char *missing = NULL;
#define MICA_X(name, symbol, prototype)                                                            \
    *(void **)&mica_dnn.name = dlsym(library, symbol);                                             \
    if (!mica_dnn.name) missing = symbol;
    MICA_CUDNN_CALLS(MICA_X)
#undef MICA_X
    *(void **)&mica_dnn.version = dlsym(library, "cudnnGetVersion");
    *(void **)&mica_dnn.words = dlsym(library, "cudnnGetLastErrorString");
    if (!mica_dnn.words) missing = "cudnnGetLastErrorString";
    if (!mica_dnn.version) missing = "cudnnGetVersion";
    if (missing) {
        dlclose(library);
        library = NULL;
        return mica_fail(MICA_UNSUPPORTED, "libcudnn has no %s", missing);
    }
    mica_library_path(*(void **)&mica_dnn.create, path, sizeof path);
    mica_log(MICA_LOG_INFO, "cuDNN %zu from %s", mica_dnn.version(), path);
    return MICA_OK;
}

mica_status mica_cudnn_load(void)
{
    pthread_mutex_lock(&mica_cudnn_mutex);
    mica_status status = library ? MICA_OK : open_library();
    pthread_mutex_unlock(&mica_cudnn_mutex);
    return status;
}

const char *mica_cudnn_path(void)
{
    return path;
}

size_t mica_cudnn_version(void)
{
    return library ? mica_dnn.version() : 0;
}

mica_status mica_cudnn_check(const char *call, int code)
{
    enum { BAD_PARAMETER = 2000, EXECUTION_FAILED = 5000 };
    if (code == 0) return MICA_OK;
    char words[256] = "";
    mica_dnn.words(words, sizeof words);
    words[strcspn(words, "\n")] = 0;
    bool fails = code < BAD_PARAMETER || code >= EXECUTION_FAILED;
    return mica_fail(fails ? MICA_DEVICE_ERROR : MICA_UNSUPPORTED, "%s gave %d%s%s", call, code,
                     *words ? ": " : "", words);
}

/* ---- descriptors ---- */

static mica_status fill(void *descriptor, const mica_cudnn_attribute *list, int count)
{
    for (int i = 0; i < count; i++)
        MICA_TRY(DNN(set, descriptor, list[i].name, list[i].type, list[i].count, list[i].values));
    return DNN(finish, descriptor);
}

mica_status mica_cudnn_describe(int kind, const mica_cudnn_attribute *list, int count,
                                void **descriptor)
{
    MICA_TRY(DNN(make, kind, descriptor));
    mica_status status = fill(*descriptor, list, count);
    if (status == MICA_OK) return MICA_OK;
    mica_dnn.unmake(*descriptor);
    *descriptor = NULL;
    return status;
}

mica_status mica_cudnn_keep(mica_cudnn *g, int kind, const mica_cudnn_attribute *list, int count,
                            void **descriptor)
{
    if (g->made_count == MOST_MADE)
        return mica_fail(MICA_UNSUPPORTED, "a graph of more than %d descriptors", MOST_MADE);
    MICA_TRY(mica_cudnn_describe(kind, list, count, descriptor));
    g->made[g->made_count++] = *descriptor;
    return MICA_OK;
}

static int type_of(mica_dtype dtype)
{
    switch (dtype) {
    case MICA_F64:
        return 1;
    case MICA_F16:
        return 2;
    case MICA_BF16:
        return 9;
    default:
        return 0; /* f32 */
    }
}

/* ---- graphs ---- */

static mica_status open_handle(mica_cuda *cuda)
{
    bool pushed;
    if (cuda->ordinal < 0 || cuda->ordinal >= MOST_DEVICES)
        return mica_fail(MICA_UNSUPPORTED, "device %d: cuDNN is opened on the first %d",
                         cuda->ordinal, MOST_DEVICES);
    if (mica_cudnn_handles[cuda->ordinal]) return MICA_OK;
    MICA_TRY(mica_cuda_enter(cuda, &pushed));
    mica_status status = DNN(create, &mica_cudnn_handles[cuda->ordinal]);
    mica_cuda_leave(cuda, pushed);
    return status;
}

mica_status mica_cudnn_create(mica_cuda *cuda, mica_cudnn **graph)
{
    *graph = NULL;
    MICA_TRY(mica_cudnn_load());
    pthread_mutex_lock(&mica_cudnn_mutex);
    mica_status status = open_handle(cuda);
    pthread_mutex_unlock(&mica_cudnn_mutex);
    MICA_TRY(status);
    mica_cudnn *g = mica_alloc(sizeof *g);
    if (!g) return mica_fail_memory(sizeof *g);
    g->cuda = cuda;
    *graph = g;
    return MICA_OK;
}

void mica_cudnn_destroy(mica_cudnn *g)
{
    if (!g) return;
    while (g->made_count > 0) mica_dnn.unmake(g->made[--g->made_count]);
    mica_release(g);
}

mica_status mica_cudnn_add_tensor(mica_cudnn *g, const mica_tensor *t, bool is_virtual, int *number)
{
    if (g->tensor_count == MOST_TENSORS)
        return mica_fail(MICA_UNSUPPORTED, "a graph of more than %d tensors", MOST_TENSORS);
    int64_t id = g->tensor_count + 1, alignment = MICA_CUDNN_ALIGNMENT;
    int type = type_of(t->dtype);
    const mica_cudnn_attribute list[] = {
        {TENSOR_TYPE, DATA_TYPE, 1, &type},           {TENSOR_DIMS, INT64, t->rank, t->dims},
        {TENSOR_STRIDES, INT64, t->rank, t->strides}, {TENSOR_ID, INT64, 1, &id},
        {TENSOR_ALIGNMENT, INT64, 1, &alignment},     {TENSOR_VIRTUAL, BOOLEAN, 1, &is_virtual},
    };
    MICA_TRY(KEEP(g, TENSOR, list, &g->tensors[g->tensor_count]));
    g->given[g->tensor_count] = !is_virtual;
    *number = g->tensor_count++;
    return MICA_OK;
}

static mica_status add_operation(mica_cudnn *g, int kind, const mica_cudnn_attribute *list,
                                 int count)
{
    if (g->operation_count == MOST_OPERATIONS)
        return mica_fail(MICA_UNSUPPORTED, "a graph of more than %d operations", MOST_OPERATIONS);
    MICA_TRY(mica_cudnn_keep(g, kind, list, count, &g->operations[g->operation_count]));
    g->operation_count++;
    return MICA_OK;
}

static mica_status describe_conv(mica_cudnn *g, const mica_cudnn_conv *c, void **conv)
{
    int64_t axes = c->axes;
    int type = type_of(c->compute), how = !c->flip;
    const mica_cudnn_attribute list[] = {
        {CONV_COMPUTE, DATA_TYPE, 1, &type},
        {CONV_HOW, CONV_MODE, 1, &how},
        {CONV_AXES, INT64, 1, &axes},
        {CONV_PADS_BEFORE, INT64, axes, c->pad_low},
        {CONV_PADS_AFTER, INT64, axes, c->pad_high},
        {CONV_STRIDES, INT64, axes, c->stride},
        {CONV_DILATIONS, INT64, axes, c->dilation},
    };
    return KEEP(g, CONVOLUTION, list, conv);
}

mica_status mica_cudnn_add_conv(mica_cudnn *g, const mica_cudnn_conv *c)
{
    void *conv;
    MICA_TRY(describe_conv(g, c, &conv));
    g->wgrad = c->pass == MICA_CUDNN_WGRAD;
    bool wide = c->compute == MICA_F64;
    const double f64[] = {1, 0};
    const float f32[] = {1, 0};
    const void *alpha = wide ? (const void *)f64 : f32,
               *beta = wide ? (const void *)(f64 + 1) : f32 + 1;
    int scalar = wide ? DOUBLE : FLOAT;
    /* the passes are numbered 0 fwd, 1 filter, 2 image as kinds, but 0 fwd, 1 image, 2 filter as
     * attributes; the tensors come as w x y, then w dx dy, then dw x dy */
    static const int blocks[] = {
        [MICA_CUDNN_FWD] = 0, [MICA_CUDNN_DGRAD] = 6, [MICA_CUDNN_WGRAD] = 12};
    int first = APPLY_CONV + blocks[c->pass];
    const mica_cudnn_attribute list[] = {
        {first, scalar, 1, alpha},
        {first + 1, scalar, 1, beta},
        {first + 2, DESCRIPTOR, 1, &conv},
        {first + 3, DESCRIPTOR, 1, &g->tensors[c->w]},
        {first + 4, DESCRIPTOR, 1, &g->tensors[c->x]},
        {first + 5, DESCRIPTOR, 1, &g->tensors[c->y]},
    };
    return add_operation(g, CONV_FWD + (int)c->pass, list, sizeof list / sizeof *list);
}

mica_status mica_cudnn_add_step(mica_cudnn *g, mica_cudnn_step step, mica_dtype compute, int from,
                                int other, int to)
{
    void *pointwise;
    int how = (int)step, type = type_of(compute);
    const mica_cudnn_attribute what[] = {
        {POINTWISE_HOW, POINTWISE_MODE, 1, &how},
        {POINTWISE_PRECISION, DATA_TYPE, 1, &type},
    };
    MICA_TRY(KEEP(g, POINTWISE, what, &pointwise));
    mica_cudnn_attribute list[] = {
        {APPLY_STEP, DESCRIPTOR, 1, &pointwise},
        {APPLY_FROM, DESCRIPTOR, 1, &g->tensors[from]},
        {APPLY_TO, DESCRIPTOR, 1, &g->tensors[to]},
        {APPLY_OTHER, DESCRIPTOR, 1, other < 0 ? NULL : &g->tensors[other]},
    };
    return add_operation(g, APPLY_POINTWISE, list, other < 0 ? 3 : 4);
}
