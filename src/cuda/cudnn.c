/* SPDX-License-Identifier: Apache-2.0
 * cuDNN through our own prototypes. The numbers are those of cudnn_graph.h of version 9, which the
 * library keeps: they are what programs built against it were compiled with. */
#include "cuda/cudnn.h"
#include "cuda/device.h"
#include "cuda/driver.h"
#include "base/env.h"
#include "base/log.h"
#include "base/memory.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* Kinds of descriptors. */
enum {
    POINTWISE = 0,
    CONVOLUTION = 1,
    ENGINE = 2,
    CONFIG = 3,
    HEURISTICS = 4,
    PLAN = 5,
    CONV_FWD = 10, /* then the gradient of the filter, then that of the image */
    APPLY_POINTWISE = 13,
    GRAPH = 15,
    VARIANT_PACK = 16,
    TENSOR = 17
};
/* Types of attributes. */
enum {
    HANDLE = 0,
    DATA_TYPE = 1,
    BOOLEAN = 2,
    INT64 = 3,
    FLOAT = 4,
    DOUBLE = 5,
    POINTER = 6,
    CONV_MODE = 7,
    HEUR_MODE = 8,
    NUMERICAL_NOTE = 11,
    POINTWISE_MODE = 14,
    DESCRIPTOR = 15
};
/* Attributes. */
enum {
    POINTWISE_HOW = 0,
    POINTWISE_PRECISION = 1,
    CONV_COMPUTE = 100,
    CONV_HOW = 101,
    CONV_DILATIONS = 102,
    CONV_STRIDES = 103,
    CONV_PADS_AFTER = 104,
    CONV_PADS_BEFORE = 105,
    CONV_AXES = 106,
    HEURISTICS_MODE = 200,
    HEURISTICS_GRAPH = 201,
    HEURISTICS_RESULTS = 202,
    CONFIG_ENGINE = 300,
    PLAN_CONFIG = 401,
    PLAN_WORKSPACE = 402,
    APPLY_CONV = 700, /* alpha, beta, the convolution, three tensors; 6 numbers for each pass */
    APPLY_STEP = 750,
    APPLY_FROM = 751,
    APPLY_OTHER = 752,
    APPLY_TO = 753,
    GRAPH_HANDLE = 800,
    GRAPH_OPERATIONS = 801,
    TENSOR_ALIGNMENT = 900,
    TENSOR_TYPE = 901,
    TENSOR_DIMS = 902,
    TENSOR_STRIDES = 903,
    TENSOR_ID = 906,
    TENSOR_VIRTUAL = 907,
    PACK_IDS = 1000,
    PACK_POINTERS = 1001,
    PACK_WORKSPACE = 1003,
    ENGINE_INDEX = 1301,
    ENGINE_NOTES = 1303
};
/* What an engine says of its arithmetic. */
enum {
    NOTE_MATRIX_UNITS = 0,
    NOTE_ROUNDS_INPUTS = 1,
    NOTE_NARROW_SUMS = 2,
    NOTE_FFT = 3,
    NOTE_WINOGRAD = 5 /* and the three tile sizes after it */
};
enum { MODE_A = 3, MODE_FALLBACK = 2 };
/* This engine of filter gradients transforms, too, but has no note of it: sums of small integers
 * come out as fractions (9.19 on an H200). */
enum { SILENT_WGRAD_ENGINE = 17 };
enum {
    MOST_DEVICES = 64,
    MOST_MADE = 48,
    MOST_TENSORS = 16,
    MOST_OPERATIONS = 8,
    MOST_CONFIGS = 64
};
enum { BAD_PARAMETER = 2000, NOT_SUPPORTED = 3000, INTERNAL = 4000, EXECUTION_FAILED = 5000 };

#define CALLS(X)                                                                                   \
    X(create, "cudnnCreate", (void **))                                                            \
    X(set_stream, "cudnnSetStream", (void *, void *))                                              \
    X(make, "cudnnBackendCreateDescriptor", (int, void **))                                        \
    X(unmake, "cudnnBackendDestroyDescriptor", (void *))                                           \
    X(finish, "cudnnBackendFinalize", (void *))                                                    \
    X(set, "cudnnBackendSetAttribute", (void *, int, int, int64_t, const void *))                  \
    X(get, "cudnnBackendGetAttribute", (void *, int, int, int64_t, int64_t *, void *))             \
    X(execute, "cudnnBackendExecute", (void *, void *, void *))

static struct {
#define MICA_X(name, symbol, prototype) int(*name) prototype;
    CALLS(MICA_X)
#undef MICA_X
    size_t (*version)(void);
    void (*words)(char *, size_t);
} dnn;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* also of the handles: they have state */
static void *library;
static char path[512];
static void *handles[MOST_DEVICES]; /* as long as the process: they are costly and few */

struct mica_cudnn {
    mica_cuda *cuda;
    void *made[MOST_MADE]; /* what is to be destroyed; parents after their children */
    int made_count;
    void *tensors[MOST_TENSORS];
    bool given[MOST_TENSORS]; /* by runs: not virtual */
    int tensor_count;
    void *operations[MOST_OPERATIONS];
    int operation_count;
    bool matrix_units, wgrad; /* what candidates may use; what the graph computes */
    void *plan;
    int64_t workspace;
};

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
    *(void **)&dnn.name = dlsym(library, symbol);                                                  \
    if (!dnn.name) missing = symbol;
    CALLS(MICA_X)
#undef MICA_X
    *(void **)&dnn.version = dlsym(library, "cudnnGetVersion");
    *(void **)&dnn.words = dlsym(library, "cudnnGetLastErrorString");
    if (!dnn.words) missing = "cudnnGetLastErrorString";
    if (!dnn.version) missing = "cudnnGetVersion";
    if (missing) {
        dlclose(library);
        library = NULL;
        return mica_fail(MICA_UNSUPPORTED, "libcudnn has no %s", missing);
    }
    mica_library_path(*(void **)&dnn.create, path, sizeof path);
    mica_log(MICA_LOG_INFO, "cuDNN %zu from %s", dnn.version(), path);
    return MICA_OK;
}

mica_status mica_cudnn_load(void)
{
    pthread_mutex_lock(&mutex);
    mica_status status = library ? MICA_OK : open_library();
    pthread_mutex_unlock(&mutex);
    return status;
}

const char *mica_cudnn_path(void)
{
    return path;
}

size_t mica_cudnn_version(void)
{
    return library ? dnn.version() : 0;
}

/* While a graph is made every refusal is one of the problem; only runs can fail. */
static mica_status check(const char *call, int code)
{
    if (code == 0) return MICA_OK;
    char words[256] = "";
    dnn.words(words, sizeof words);
    words[strcspn(words, "\n")] = 0;
    bool fails = code < BAD_PARAMETER || code >= EXECUTION_FAILED;
    return mica_fail(fails ? MICA_DEVICE_ERROR : MICA_UNSUPPORTED, "%s gave %d%s%s", call, code,
                     *words ? ": " : "", words);
}
#define DNN(call, ...) check("cuDNN's " #call, dnn.call(__VA_ARGS__))

/* ---- descriptors ---- */

typedef struct attribute {
    int name, type;
    int64_t count;
    const void *values;
} attribute;

static mica_status fill(void *descriptor, const attribute *list, int count)
{
    for (int i = 0; i < count; i++)
        MICA_TRY(DNN(set, descriptor, list[i].name, list[i].type, list[i].count, list[i].values));
    return DNN(finish, descriptor);
}

/* A finished descriptor that the caller destroys. */
static mica_status describe(int kind, const attribute *list, int count, void **descriptor)
{
    MICA_TRY(DNN(make, kind, descriptor));
    mica_status status = fill(*descriptor, list, count);
    if (status == MICA_OK) return MICA_OK;
    dnn.unmake(*descriptor);
    *descriptor = NULL;
    return status;
}

/* The same, destroyed with the graph. */
static mica_status keep(mica_cudnn *g, int kind, const attribute *list, int count,
                        void **descriptor)
{
    if (g->made_count == MOST_MADE)
        return mica_fail(MICA_UNSUPPORTED, "a graph of more than %d descriptors", MOST_MADE);
    MICA_TRY(describe(kind, list, count, descriptor));
    g->made[g->made_count++] = *descriptor;
    return MICA_OK;
}
#define KEEP(g, kind, list, out) keep(g, kind, list, (int)(sizeof(list) / sizeof *(list)), out)

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
    if (handles[cuda->ordinal]) return MICA_OK;
    MICA_TRY(mica_cuda_enter(cuda, &pushed));
    mica_status status = DNN(create, &handles[cuda->ordinal]);
    mica_cuda_leave(cuda, pushed);
    return status;
}

mica_status mica_cudnn_create(mica_cuda *cuda, mica_cudnn **graph)
{
    *graph = NULL;
    MICA_TRY(mica_cudnn_load());
    pthread_mutex_lock(&mutex);
    mica_status status = open_handle(cuda);
    pthread_mutex_unlock(&mutex);
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
    while (g->made_count > 0) dnn.unmake(g->made[--g->made_count]);
    mica_release(g);
}

mica_status mica_cudnn_add_tensor(mica_cudnn *g, const mica_tensor *t, bool is_virtual, int *number)
{
    if (g->tensor_count == MOST_TENSORS)
        return mica_fail(MICA_UNSUPPORTED, "a graph of more than %d tensors", MOST_TENSORS);
    int64_t id = g->tensor_count + 1, alignment = MICA_CUDNN_ALIGNMENT;
    int type = type_of(t->dtype);
    const attribute list[] = {
        {TENSOR_TYPE, DATA_TYPE, 1, &type},           {TENSOR_DIMS, INT64, t->rank, t->dims},
        {TENSOR_STRIDES, INT64, t->rank, t->strides}, {TENSOR_ID, INT64, 1, &id},
        {TENSOR_ALIGNMENT, INT64, 1, &alignment},     {TENSOR_VIRTUAL, BOOLEAN, 1, &is_virtual},
    };
    MICA_TRY(KEEP(g, TENSOR, list, &g->tensors[g->tensor_count]));
    g->given[g->tensor_count] = !is_virtual;
    *number = g->tensor_count++;
    return MICA_OK;
}

static mica_status add_operation(mica_cudnn *g, int kind, const attribute *list, int count)
{
    if (g->operation_count == MOST_OPERATIONS)
        return mica_fail(MICA_UNSUPPORTED, "a graph of more than %d operations", MOST_OPERATIONS);
    MICA_TRY(keep(g, kind, list, count, &g->operations[g->operation_count]));
    g->operation_count++;
    return MICA_OK;
}

static mica_status describe_conv(mica_cudnn *g, const mica_cudnn_conv *c, void **conv)
{
    int64_t axes = c->axes;
    int type = type_of(c->compute), how = !c->flip;
    const attribute list[] = {
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
    const attribute list[] = {
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
    const attribute what[] = {
        {POINTWISE_HOW, POINTWISE_MODE, 1, &how},
        {POINTWISE_PRECISION, DATA_TYPE, 1, &type},
    };
    MICA_TRY(KEEP(g, POINTWISE, what, &pointwise));
    attribute list[] = {
        {APPLY_STEP, DESCRIPTOR, 1, &pointwise},
        {APPLY_FROM, DESCRIPTOR, 1, &g->tensors[from]},
        {APPLY_TO, DESCRIPTOR, 1, &g->tensors[to]},
        {APPLY_OTHER, DESCRIPTOR, 1, other < 0 ? NULL : &g->tensors[other]},
    };
    return add_operation(g, APPLY_POINTWISE, list, other < 0 ? 3 : 4);
}

/* ---- candidates ---- */

typedef struct candidate {
    void *config;
    int64_t engine; /* the library's number of it */
    unsigned notes; /* bit i: note i */
} candidate;
typedef struct candidates {
    candidate list[MOST_CONFIGS];
    int count, left_out; /* left_out: those whose arithmetic is not asked for */
} candidates;

static void drop(candidates *c)
{
    while (c->count > 0) dnn.unmake(c->list[--c->count].config);
}

static mica_status read_engine(candidate *c)
{
    enum { MOST = 32 };
    void *engine;
    int list[MOST];
    int64_t count = 0;
    MICA_TRY(DNN(make, ENGINE, &engine));
    mica_status status = DNN(get, c->config, CONFIG_ENGINE, DESCRIPTOR, 1, &count, &engine);
    if (status == MICA_OK) status = DNN(get, engine, ENGINE_INDEX, INT64, 1, &count, &c->engine);
    count = 0;
    if (status == MICA_OK)
        status = DNN(get, engine, ENGINE_NOTES, NUMERICAL_NOTE, MOST, &count, list);
    for (int64_t i = 0; status == MICA_OK && i < count && i < MOST; i++)
        if (list[i] >= 0 && list[i] < MOST) c->notes |= 1u << list[i];
    dnn.unmake(engine);
    return status;
}

static bool is_wanted(const mica_cudnn *g, candidate *c)
{
    unsigned unwanted =
        1u << NOTE_ROUNDS_INPUTS | 1u << NOTE_NARROW_SUMS | 1u << NOTE_FFT | 0xfu << NOTE_WINOGRAD;
    if (!g->matrix_units) unwanted |= 1u << NOTE_MATRIX_UNITS;
    if (read_engine(c) != MICA_OK || c->notes & unwanted) return false;
    return !g->wgrad || c->engine != SILENT_WGRAD_ENGINE;
}

static void take(const mica_cudnn *g, candidates *c, void *config)
{
    candidate found = {.config = config};
    if (is_wanted(g, &found)) {
        c->list[c->count++] = found;
    } else {
        dnn.unmake(config);
        c->left_out++;
    }
}

static mica_status read_results(const mica_cudnn *g, void *heuristics, candidates *c)
{
    void *found[MOST_CONFIGS];
    int64_t count = 0, filled = 0, room = MOST_CONFIGS - c->count;
    int made = 0;
    MICA_TRY(DNN(get, heuristics, HEURISTICS_RESULTS, DESCRIPTOR, 0, &count, NULL));
    if (count > room) count = room;
    mica_status status = MICA_OK;
    while (made < count && status == MICA_OK) {
        status = DNN(make, CONFIG, &found[made]);
        made += status == MICA_OK;
    }
    /* it may fill fewer than it announced */
    if (status == MICA_OK && count > 0)
        status = DNN(get, heuristics, HEURISTICS_RESULTS, DESCRIPTOR, count, &filled, found);
    for (int i = 0; i < made; i++)
        if (status == MICA_OK && i < filled)
            take(g, c, found[i]);
        else
            dnn.unmake(found[i]);
    return status;
}

static mica_status ask(const mica_cudnn *g, void *graph, int mode, candidates *c)
{
    void *heuristics;
    const attribute list[] = {
        {HEURISTICS_GRAPH, DESCRIPTOR, 1, &graph},
        {HEURISTICS_MODE, HEUR_MODE, 1, &mode},
    };
    MICA_TRY(describe(HEURISTICS, list, 2, &heuristics));
    mica_status status = read_results(g, heuristics, c);
    dnn.unmake(heuristics);
    return status;
}

/* ---- plans ---- */

static mica_status plan_one(mica_cudnn *g, candidates *c, int i)
{
    int64_t count = 0;
    candidate chosen = c->list[i];
    const attribute list[] = {{PLAN_CONFIG, DESCRIPTOR, 1, &chosen.config}};
    if (g->made_count + 2 > MOST_MADE)
        return mica_fail(MICA_UNSUPPORTED, "a graph of more than %d descriptors", MOST_MADE);
    MICA_TRY(describe(PLAN, list, 1, &g->plan));
    g->made[g->made_count++] = chosen.config;
    g->made[g->made_count++] = g->plan;
    c->list[i] = c->list[--c->count];
    MICA_TRY(DNN(get, g->plan, PLAN_WORKSPACE, INT64, 1, &count, &g->workspace));
    mica_log(MICA_LOG_DEBUG, "cudnn,candidate %d,engine %lld,notes %#x,workspace %lld", i,
             (long long)chosen.engine, chosen.notes, (long long)g->workspace);
    return MICA_OK;
}

static mica_status plan_ranked(mica_cudnn *g, int rank, candidates *c)
{
    if (rank >= c->count)
        return mica_fail(MICA_UNSUPPORTED,
                         "number %d of cuDNN's candidates was asked for, it has %d; %d more round "
                         "inputs, transform them or use matrix units unasked",
                         rank, c->count, c->left_out);
    mica_status status = plan_one(g, c, rank);
    for (int i = 1; rank == 0 && i < c->count && status == MICA_UNSUPPORTED; i++)
        status = plan_one(g, c, i);
    return status;
}

static mica_status plan_graph(mica_cudnn *g, int rank)
{
    void *graph;
    candidates c = {.count = 0};
    const attribute list[] = {
        {GRAPH_HANDLE, HANDLE, 1, &handles[g->cuda->ordinal]},
        {GRAPH_OPERATIONS, DESCRIPTOR, g->operation_count, g->operations},
    };
    MICA_TRY(KEEP(g, GRAPH, list, &graph));
    mica_status status = ask(g, graph, MODE_A, &c);
    if (status == MICA_OK || status == MICA_UNSUPPORTED) {
        mica_status fallback = ask(g, graph, MODE_FALLBACK, &c);
        if (status == MICA_OK && c.count == 0) status = fallback;
        if (c.count > 0) status = MICA_OK;
    }
    if (status == MICA_OK) status = plan_ranked(g, rank, &c);
    drop(&c);
    return status;
}

mica_status mica_cudnn_plan(mica_cudnn *g, int rank, bool matrix_units)
{
    bool pushed;
    MICA_TRY(mica_cuda_enter(g->cuda, &pushed));
    pthread_mutex_lock(&mutex);
    g->matrix_units = matrix_units;
    mica_status status = plan_graph(g, rank);
    pthread_mutex_unlock(&mutex);
    mica_cuda_leave(g->cuda, pushed);
    return status;
}

size_t mica_cudnn_workspace(const mica_cudnn *g)
{
    return (size_t)g->workspace;
}

/* ---- runs ---- */

static mica_status execute(const mica_cudnn *g, const attribute *list, int count, void *stream)
{
    void *handle = handles[g->cuda->ordinal], *pack;
    MICA_TRY(DNN(set_stream, handle, stream));
    MICA_TRY(describe(VARIANT_PACK, list, count, &pack));
    mica_status status = DNN(execute, handle, g->plan, pack);
    dnn.unmake(pack);
    return status;
}

mica_status mica_cudnn_run(const mica_cudnn *g, void *const *memory, void *workspace, void *stream)
{
    int64_t ids[MOST_TENSORS], count = 0;
    void *pointers[MOST_TENSORS];
    bool pushed;
    for (int i = 0; i < g->tensor_count; i++) {
        if (!g->given[i]) continue;
        if ((uintptr_t)memory[i] % MICA_CUDNN_ALIGNMENT)
            return mica_fail(MICA_UNSUPPORTED,
                             "a pointer is %p, cuDNN was promised multiples of %d", memory[i],
                             MICA_CUDNN_ALIGNMENT);
        ids[count] = i + 1;
        pointers[count++] = memory[i];
    }
    const attribute list[] = {
        {PACK_IDS, INT64, count, ids},
        {PACK_POINTERS, POINTER, count, pointers},
        {PACK_WORKSPACE, POINTER, 1, &workspace},
    };
    MICA_TRY(mica_cuda_enter(g->cuda, &pushed));
    pthread_mutex_lock(&mutex);
    mica_status status = execute(g, list, 3, stream);
    pthread_mutex_unlock(&mutex);
    mica_cuda_leave(g->cuda, pushed);
    return status;
}
