/* SPDX-License-Identifier: Apache-2.0
 * The fake driver. Every function counts as a call, can be told to fail, and refuses what the real
 * one refuses: handles it does not know, and work without a current context. Linked with tests/emu
 * it runs kernels, too; FAKE_SMS and FAKE_ARCH (80, 89, 90) then say what the device is, FAKE_NAME
 * its name. With FAKE_MEMSET=none memory stays as it is: gigabytes
 * are set before each timed run.
 */
#include "fake.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum code {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    TOO_LARGE = 720,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901,
    STREAM_CAPTURE_IMPLICIT = 906
};

enum kind { ALLOCATION, MODULE, FUNCTION, STREAM, EVENT, GRAPH, EXEC, KINDS };

/* Of a graph or, a copy of it, of what was made of that. */
typedef struct node {
    struct node *next, *origin; /* of a copy: the graph's */
    struct object *function;    /* NULL: memory is set */
    unsigned grid[3], block[3], shared, cluster;
    bool overlaps, cooperative;
    unsigned char *args;
    unsigned long long to;
    unsigned char byte;
    size_t bytes; /* of args, or set */
} node;

typedef struct object {
    struct object *next;
    enum kind kind;
    int device;
    size_t bytes;
    void *memory;         /* of allocations */
    struct object *owner; /* of functions: the module; of streams: the graph that they capture */
    int mode;             /* of that capture, */
    bool broken;          /* which a call has ended, */
    pthread_t thread;     /* and who began it */
    node *nodes, *last;   /* of graphs and execs */
    void *played;         /* of modules the library, of functions the entry, if kernels run */
    char text[512];       /* names of a module, separated by \n; name of a function */
} object;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static object *objects;
static fake_books books;
static fake_launch last_launch;
static int initialized, last_attribute;
static size_t limit_bytes = (size_t)1 << 30, used_bytes;
static long retained[FAKE_DEVICES];
static char contexts[FAKE_DEVICES]; /* their addresses are the handles */

static struct {
    char call[64];
    int code, sticky;
    long n;
} script;

static _Thread_local void *stack[64];
static _Thread_local int depth;

enum { CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED };
static _Thread_local int thread_mode = CAPTURE_GLOBAL;

/* ---- control ---- */

EXPORT fake_get_books_fn fake_get_books;
EXPORT fake_get_launch_fn fake_get_launch;
EXPORT fake_fail_fn fake_fail;
EXPORT fake_limit_fn fake_limit;
EXPORT fake_attribute_fn fake_attribute;

void fake_get_books(fake_books *out)
{
    pthread_mutex_lock(&mutex);
    *out = books;
    out->pushed = depth;
    for (int i = 0; i < FAKE_DEVICES; i++) out->contexts += retained[i];
    for (object *o = objects; o; o = o->next) {
        out->allocations += o->kind == ALLOCATION;
        out->modules += o->kind == MODULE;
        out->streams += o->kind == STREAM;
        out->events += o->kind == EVENT;
        out->graphs += o->kind == GRAPH;
        out->execs += o->kind == EXEC;
    }
    pthread_mutex_unlock(&mutex);
}

void fake_get_launch(fake_launch *launch)
{
    pthread_mutex_lock(&mutex);
    *launch = last_launch;
    pthread_mutex_unlock(&mutex);
}

void fake_fail(const char *call, int code, long n, int sticky)
{
    pthread_mutex_lock(&mutex);
    snprintf(script.call, sizeof script.call, "%s", call);
    script.code = code;
    script.n = n;
    script.sticky = sticky;
    pthread_mutex_unlock(&mutex);
}

void fake_limit(unsigned long bytes)
{
    limit_bytes = bytes;
}

int fake_attribute(void)
{
    return last_attribute;
}

/* ---- every call ---- */

/* Enters a call: the mutex is held until leave(). Gives the code that the script wants. */
static int enter(const char *call)
{
    pthread_mutex_lock(&mutex);
    books.calls++;
    if (script.n < 0) return script.code; /* after a sticky one */
    if (script.n > 0 && (!strcmp(script.call, "*") || !strcmp(script.call, call)) &&
        --script.n == 0) {
        if (script.sticky) script.n = -1;
        return script.code;
    }
    return initialized || !strcmp(call, "cuInit") || !strcmp(call, "cuDriverGetVersion")
               ? OK
               : NOT_INITIALIZED;
}

static int leave(int code)
{
    books.errors += code != OK;
    pthread_mutex_unlock(&mutex);
    return code;
}

static void *current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

static int current_device(void)
{
    return (int)((char *)current() - contexts);
}

/* As enter, for calls that need a context. */
static int enter_context(const char *call)
{
    int code = enter(call);
    return code == OK && !current() ? INVALID_CONTEXT : code;
}

static object *add(enum kind kind, size_t bytes)
{
    object *o = calloc(1, sizeof *o);
    if (!o) abort();
    o->kind = kind;
    o->device = current_device();
    o->bytes = bytes;
    o->next = objects;
    objects = o;
    return o;
}

static object *find(enum kind kind, const void *handle)
{
    object *o = objects;
    while (o && (o->kind != kind || (kind == ALLOCATION ? o->memory : o) != handle)) o = o->next;
    return o;
}

static void drop(object *gone)
{
    object **at = &objects;
    while (*at != gone) at = &(*at)->next;
    *at = gone->next;
    if (gone->kind == ALLOCATION) used_bytes -= gone->bytes;
    if (gone->kind == MODULE && gone->played) emu_close(gone->played);
    for (node *n = gone->nodes, *next; n; n = next) {
        next = n->next;
        free(n->args);
        free(n);
    }
    free(gone->memory);
    free(gone);
}

static int valid_stream(const void *stream)
{
    return !stream || find(STREAM, stream);
}

/* ---- devices and contexts ---- */

EXPORT int cuInit(unsigned flags)
{
    int code = enter("cuInit");
    if (code == OK && flags != 0) code = INVALID_VALUE;
    if (code == OK) initialized = 1;
    return leave(code);
}

EXPORT int cuDriverGetVersion(int *version)
{
    int code = enter("cuDriverGetVersion");
    *version = 13000;
    return leave(code);
}

EXPORT int cuGetErrorName(int code, const char **name)
{
    static const struct {
        int code;
        const char *name;
    } names[] = {{OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
                 {304, "CUDA_ERROR_OPERATING_SYSTEM"},
                 {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                 {716, "CUDA_ERROR_MISALIGNED_ADDRESS"},
                 {719, "CUDA_ERROR_LAUNCH_FAILED"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (names[i].code != code) continue;
        *name = names[i].name;
        return OK;
    }
    return INVALID_VALUE;
}

EXPORT int cuDeviceGetCount(int *count)
{
    int code = enter("cuDeviceGetCount");
    if (code == OK) *count = FAKE_DEVICES;
    return leave(code);
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
    int code = enter("cuDeviceGet");
    if (code == OK && (ordinal < 0 || ordinal >= FAKE_DEVICES)) code = INVALID_DEVICE;
    if (code == OK) *device = ordinal;
    return leave(code);
}

EXPORT int cuDeviceGetName(char *name, int size, int device)
{
    int code = enter("cuDeviceGetName");
    const char *wanted = getenv("FAKE_NAME");
    if (code == OK && wanted)
        snprintf(name, (size_t)size, "%s", wanted);
    else if (code == OK)
        snprintf(name, (size_t)size, "Fake GPU %d", device);
    return leave(code);
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    int code = enter("cuDeviceTotalMem");
    (void)device;
    if (code == OK) *bytes = limit_bytes;
    return leave(code);
}

static int number_or(const char *variable, int other)
{
    const char *text = getenv(variable);
    return text ? atoi(text) : other;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    const int arch = number_or("FAKE_ARCH", 90);
    const struct {
        int attribute, value;
    } table[] = {{13, 1980000},   {16, number_or("FAKE_SMS", 132)},
                 {36, 2000000},   {37, 5120},
                 {38, 52428800},  {75, arch / 10},
                 {76, arch % 10}, {97, 232448},
                 {33, 0x17},      {34, 0},
                 {50, 0}};
    int code = enter("cuDeviceGetAttribute");
    (void)device;
    for (size_t i = 0; code == OK && i < sizeof table / sizeof *table; i++)
        if (table[i].attribute == attribute) {
            *value = table[i].value;
            return leave(OK);
        }
    return leave(code == OK ? INVALID_VALUE : code);
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device)
{
    int code = enter("cuDevicePrimaryCtxRetain");
    if (code == OK && (device < 0 || device >= FAKE_DEVICES)) code = INVALID_DEVICE;
    if (code == OK) {
        retained[device]++;
        *context = &contexts[device];
    }
    return leave(code);
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
    int code = enter("cuDevicePrimaryCtxRelease");
    if (code == OK && retained[device] == 0) code = INVALID_CONTEXT;
    if (code == OK) retained[device]--;
    return leave(code);
}

EXPORT int cuCtxGetCurrent(void **context)
{
    int code = enter("cuCtxGetCurrent");
    if (code == OK) *context = current();
    return leave(code);
}

EXPORT int cuCtxPushCurrent_v2(void *context)
{
    int code = enter("cuCtxPushCurrent");
    if (code == OK && (depth == 64 || !context)) code = INVALID_CONTEXT;
    if (code == OK) stack[depth++] = context;
    return leave(code);
}

EXPORT int cuCtxPopCurrent_v2(void **context)
{
    int code = enter("cuCtxPopCurrent");
    if (code == OK && depth == 0) code = INVALID_CONTEXT;
    if (code == OK) *context = stack[--depth];
    return leave(code);
}

/* ---- modules and launches ---- */

static bool captures_globally(void)
{
    for (object *o = objects; o; o = o->next)
        if (o->kind == STREAM && o->owner && o->mode == CAPTURE_GLOBAL) return true;
    return false;
}

EXPORT int cuModuleLoadData(void **module, const void *image)
{
    int code = enter_context("cuModuleLoadData");
    if (code == OK && strncmp(image, FAKE_CUBIN, strlen(FAKE_CUBIN)) != 0) code = INVALID_IMAGE;
    if (code == OK && thread_mode != CAPTURE_RELAXED && captures_globally())
        code = STREAM_CAPTURE_UNSUPPORTED;
    if (code == OK) {
        object *o = add(MODULE, 0);
        snprintf(o->text, sizeof o->text, "%s", (const char *)image);
        if (emu_open) {
            const char *library = (const char *)image + strlen(image) + 1;
            uint64_t bytes;
            memcpy(&bytes, library, sizeof bytes);
            o->played = emu_open(library + sizeof bytes, bytes);
            if (!o->played) code = INVALID_IMAGE;
        }
        *module = o;
    }
    return leave(code);
}

EXPORT int cuModuleUnload(void *module)
{
    int code = enter_context("cuModuleUnload");
    object *o = find(MODULE, module);
    if (code == OK && !o) code = INVALID_HANDLE;
    if (code == OK) {
        for (object *f = objects, *next; f; f = next) {
            next = f->next;
            if (f->kind == FUNCTION && f->owner == o) drop(f);
        }
        drop(o);
    }
    return leave(code);
}

EXPORT int cuModuleGetFunction(void **function, void *module, const char *name)
{
    int code = enter_context("cuModuleGetFunction");
    object *o = find(MODULE, module);
    char line[128];
    snprintf(line, sizeof line, "\n%s\n", name);
    if (code == OK && !o) code = INVALID_HANDLE;
    if (code == OK && !strstr(o->text, line)) code = NOT_FOUND;
    if (code == OK) {
        object *f = add(FUNCTION, 0);
        f->owner = o;
        snprintf(f->text, sizeof f->text, "%s", name);
        if (o->played) f->played = emu_entry(o->played, name);
        *function = f;
    }
    return leave(code);
}

EXPORT int cuFuncSetAttribute(void *function, int attribute, int value)
{
    int code = enter_context("cuFuncSetAttribute");
    if (code == OK && !find(FUNCTION, function)) code = INVALID_HANDLE;
    if (code == OK && (attribute != 8 || value < 0)) code = INVALID_VALUE;
    if (code == OK) last_attribute = value;
    return leave(code);
}

static node *add_node(object *graph)
{
    node *n = calloc(1, sizeof *n);
    if (!n) abort();
    *(graph->last ? &graph->last->next : &graph->nodes) = n;
    return graph->last = n;
}

static void set_args(node *n, const object *function, const void *args)
{
    const size_t own = emu_bytes ? emu_bytes(function->owner->played, function->text) : 0;
    free(n->args);
    n->bytes = own ? own : sizeof last_launch.args;
    n->args = malloc(n->bytes);
    if (!n->args) abort();
    memcpy(n->args, args, n->bytes);
}

/* The graph that a stream captures, or NULL. */
static object *captured(void *stream)
{
    object *s = stream ? find(STREAM, stream) : NULL;
    return s ? s->owner : NULL;
}

/* Calls that a capture does not allow, such as giving memory back, end it. */
static int unsafe_call(void)
{
    int code = OK;
    for (object *o = objects; o; o = o->next) {
        if (o->kind != STREAM || !o->owner || thread_mode == CAPTURE_RELAXED) continue;
        const bool own = pthread_equal(o->thread, pthread_self());
        const bool others = thread_mode == CAPTURE_GLOBAL && o->mode == CAPTURE_GLOBAL;
        if (own ? o->mode == CAPTURE_RELAXED : !others) continue;
        o->broken = true;
        code = STREAM_CAPTURE_UNSUPPORTED;
    }
    return code;
}

EXPORT int cuThreadExchangeStreamCaptureMode(int *mode)
{
    int code = enter("cuThreadExchangeStreamCaptureMode"), before = thread_mode;
    if (code == OK && (*mode < CAPTURE_GLOBAL || *mode > CAPTURE_RELAXED)) code = INVALID_VALUE;
    if (code == OK) {
        thread_mode = *mode;
        *mode = before;
    }
    return leave(code);
}

static bool anybody_captures(void)
{
    for (object *o = objects; o; o = o->next)
        if (o->kind == STREAM && o->owner) return true;
    return false;
}

static int play(const object *f, const unsigned *grid, const unsigned *block, unsigned shared,
                unsigned cluster, bool overlaps, bool cooperative, void *stream, const void *args)
{
    last_launch = (fake_launch){.shared = shared,
                                .cluster = cluster,
                                .overlaps = overlaps,
                                .cooperative = cooperative,
                                .stream = stream};
    snprintf(last_launch.kernel, sizeof last_launch.kernel, "%.60s", f->text);
    memcpy(last_launch.grid, grid, sizeof last_launch.grid);
    memcpy(last_launch.block, block, sizeof last_launch.block);
    memcpy(last_launch.args, args, sizeof last_launch.args);
    last_launch.device = f->device;
    if (f->device != current_device()) return INVALID_HANDLE;
    const fake_kernel kernel = {f->text, f->played, overlaps, cooperative};
    return f->played ? emu_launch(&kernel, grid, block, shared, cluster, args) : OK;
}

static int launch(void *function, const unsigned *grid, const unsigned *block, unsigned shared,
                  unsigned cluster, bool overlaps, bool cooperative, void *stream,
                  void **parameters)
{
    object *f = find(FUNCTION, function), *graph = captured(stream);
    if (!f || !valid_stream(stream)) return INVALID_HANDLE;
    unsigned threads = block[0] * block[1] * block[2];
    for (int i = 0; i < 3; i++)
        if (grid[i] == 0 || block[i] == 0) return INVALID_VALUE;
    if (threads > 1024 || !parameters || !parameters[0]) return INVALID_VALUE;
    if (cluster && grid[0] % cluster) return INVALID_VALUE;
    /* One block to a multiprocessor: a real one may hold more. */
    if (cooperative && grid[0] * grid[1] * grid[2] > (unsigned)number_or("FAKE_SMS", 132))
        return TOO_LARGE;
    if (graph) {
        node *n = add_node(graph);
        n->function = f;
        memcpy(n->grid, grid, sizeof n->grid);
        memcpy(n->block, block, sizeof n->block);
        n->shared = shared;
        n->cluster = cluster;
        n->overlaps = overlaps;
        n->cooperative = cooperative;
        set_args(n, f, parameters[0]);
        books.captured++;
        return OK;
    }
    books.launches++;
    return play(f, grid, block, shared, cluster, overlaps, cooperative, stream, parameters[0]);
}

EXPORT int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, void *stream,
                          void **parameters, void **extra)
{
    int code = enter_context("cuLaunchKernel");
    const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
    (void)extra;
    if (code == OK)
        code = launch(function, grid, block, shared, 0, false, false, stream, parameters);
    return leave(code);
}

/* As cuda.h lays them out. */
typedef struct attribute {
    int id;
    char pad[8 - sizeof(int)];
    union {
        char pad[64];
        unsigned dim[3];
    } value;
} attribute;
typedef struct config {
    unsigned gx, gy, gz, bx, by, bz, shared;
    void *stream;
    attribute *attributes;
    unsigned count;
} config;

EXPORT int cuLaunchKernelEx(const config *c, void *function, void **parameters, void **extra)
{
    enum { COOPERATIVE = 2, CLUSTER = 4, OVERLAP = 6 };
    int code = enter_context("cuLaunchKernelEx");
    const unsigned grid[] = {c->gx, c->gy, c->gz}, block[] = {c->bx, c->by, c->bz};
    unsigned cluster = 0;
    bool overlaps = false, cooperative = false;
    (void)extra;
    if (code == OK && (c->count < 1 || c->count > 3)) code = INVALID_VALUE;
    for (unsigned i = 0; i < c->count && code == OK; i++) {
        const unsigned *dim = c->attributes[i].value.dim;
        int id = c->attributes[i].id;
        if ((id != CLUSTER || dim[1] != 1 || dim[2] != 1) &&
            ((id != OVERLAP && id != COOPERATIVE) || dim[0] != 1))
            code = INVALID_VALUE;
        if (id == CLUSTER) cluster = dim[0];
        if (id == OVERLAP) overlaps = true;
        if (id == COOPERATIVE) cooperative = true;
    }
    if (code == OK)
        code = launch(function, grid, block, c->shared, cluster, overlaps, cooperative, c->stream,
                      parameters);
    return leave(code);
}

/* ---- memory ---- */

/* Whole pages where kernels run, which can be closed. */
static size_t unit(void)
{
    return emu_launch ? (size_t)sysconf(_SC_PAGESIZE) : 256;
}

void fake_open_memory(bool open)
{
    for (object *o = objects; o; o = o->next)
        if (o->kind == ALLOCATION)
            mprotect(o->memory, (o->bytes + unit() - 1) / unit() * unit(),
                     open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

bool fake_owns_memory(const void *address)
{
    const char *at = address;
    for (object *o = objects; o; o = o->next) {
        const char *from = o->memory;
        if (o->kind == ALLOCATION && at >= from && at < from + o->bytes) return true;
    }
    return false;
}

EXPORT int cuMemAlloc_v2(unsigned long long *address, size_t bytes)
{
    int code = enter_context("cuMemAlloc");
    if (code == OK && bytes == 0) code = INVALID_VALUE;
    if (code == OK && bytes > limit_bytes - used_bytes) code = OUT_OF_MEMORY;
    if (code == OK) {
        object *o = add(ALLOCATION, bytes);
        o->memory = aligned_alloc(unit(), (bytes + unit() - 1) / unit() * unit());
        if (!o->memory) abort();
        used_bytes += bytes;
        *address = (unsigned long long)(uintptr_t)o->memory;
    }
    return leave(code);
}

EXPORT int cuMemGetInfo_v2(size_t *available, size_t *total)
{
    int code = enter_context("cuMemGetInfo");
    if (code == OK) {
        *available = limit_bytes - used_bytes;
        *total = limit_bytes;
    }
    return leave(code);
}

EXPORT int cuMemFree_v2(unsigned long long address)
{
    int code = enter_context("cuMemFree");
    object *o = find(ALLOCATION, (void *)(uintptr_t)address);
    if (code == OK && !o) code = INVALID_VALUE;
    if (code == OK) code = unsafe_call();
    if (code == OK) drop(o);
    return leave(code);
}

EXPORT int cuMemsetD8Async(unsigned long long address, unsigned char byte, size_t bytes,
                           void *stream)
{
    int code = enter_context("cuMemsetD8Async");
    if (code == OK && !valid_stream(stream)) code = INVALID_HANDLE;
    const char *mode = getenv("FAKE_MEMSET");
    object *graph = captured(stream);
    if (code == OK && graph) {
        node *n = add_node(graph);
        n->to = address;
        n->byte = byte;
        n->bytes = bytes;
        books.captured++;
    } else if (code == OK && !(mode && !strcmp(mode, "none")))
        memset((void *)(uintptr_t)address, byte, bytes);
    return leave(code);
}

EXPORT int cuMemcpyAsync(unsigned long long to, unsigned long long from, size_t bytes, void *stream)
{
    int code = enter_context("cuMemcpyAsync");
    if (code == OK && !valid_stream(stream)) code = INVALID_HANDLE;
    if (code == OK && captured(stream)) code = STREAM_CAPTURE_UNSUPPORTED;
    if (code == OK) memmove((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
    return leave(code);
}

/* ---- streams and events ---- */

EXPORT int cuStreamCreate(void **stream, unsigned flags)
{
    int code = enter_context("cuStreamCreate");
    if (code == OK && flags > 1) code = INVALID_VALUE;
    if (code == OK) *stream = add(STREAM, 0);
    return leave(code);
}

EXPORT int cuStreamDestroy_v2(void *stream)
{
    int code = enter_context("cuStreamDestroy");
    object *o = find(STREAM, stream);
    if (code == OK && !o) code = INVALID_HANDLE;
    if (code == OK) drop(o);
    return leave(code);
}

EXPORT int cuStreamSynchronize(void *stream)
{
    int code = enter_context("cuStreamSynchronize");
    if (code == OK && !valid_stream(stream)) code = INVALID_HANDLE;
    if (code == OK && captured(stream)) code = STREAM_CAPTURE_UNSUPPORTED;
    books.synchronized++;
    return leave(code);
}

EXPORT int cuEventCreate(void **event, unsigned flags)
{
    int code = enter_context("cuEventCreate");
    if (code == OK && flags != 0) code = INVALID_VALUE;
    if (code == OK) *event = add(EVENT, 0);
    return leave(code);
}

EXPORT int cuEventDestroy_v2(void *event)
{
    int code = enter_context("cuEventDestroy");
    object *o = find(EVENT, event);
    if (code == OK && !o) code = INVALID_HANDLE;
    if (code == OK) drop(o);
    return leave(code);
}

EXPORT int cuEventRecord(void *event, void *stream)
{
    int code = enter_context("cuEventRecord");
    if (code == OK && (!find(EVENT, event) || !valid_stream(stream))) code = INVALID_HANDLE;
    return leave(code);
}

EXPORT int cuEventSynchronize(void *event)
{
    int code = enter_context("cuEventSynchronize");
    books.synchronized++;
    if (code == OK && !find(EVENT, event)) code = INVALID_HANDLE;
    return leave(code);
}

EXPORT int cuEventElapsedTime(float *ms, void *from, void *to)
{
    int code = enter_context("cuEventElapsedTime");
    if (code == OK && (!find(EVENT, from) || !find(EVENT, to))) code = INVALID_HANDLE;
    if (code == OK) *ms = 1.5f;
    return leave(code);
}

/* ---- capture and graphs ---- */

EXPORT int cuStreamBeginCapture_v2(void *stream, int mode)
{
    int code = enter_context("cuStreamBeginCapture");
    object *s = stream ? find(STREAM, stream) : NULL;
    if (code == OK && !s) code = stream ? INVALID_HANDLE : STREAM_CAPTURE_UNSUPPORTED;
    if (code == OK && (s->owner || mode < 0 || mode > 2)) code = INVALID_VALUE;
    if (code == OK) {
        s->owner = add(GRAPH, 0);
        s->mode = mode;
        s->broken = false;
        s->thread = pthread_self();
    }
    return leave(code);
}

EXPORT int cuStreamEndCapture(void *stream, void **graph)
{
    int code = enter_context("cuStreamEndCapture");
    object *s = stream ? find(STREAM, stream) : NULL;
    if (code == OK && (!s || !s->owner)) code = INVALID_VALUE;
    if (code == OK && s->broken) code = STREAM_CAPTURE_INVALIDATED;
    if (code == OK) {
        *graph = s->owner;
        s->owner = NULL;
    } else if (s && s->owner) { /* a capture that fails is over */
        drop(s->owner);
        s->owner = NULL;
    }
    return leave(code);
}

EXPORT int cuStreamIsCapturing(void *stream, int *state)
{
    int code = enter_context("cuStreamIsCapturing");
    if (code == OK && !valid_stream(stream)) code = INVALID_HANDLE;
    if (code == OK) *state = captured(stream) != NULL;
    return leave(code);
}

EXPORT int cuStreamGetCaptureInfo_v3(void *stream, int *state, uint64_t *id, void **graph,
                                     void ***before, const void **edges, size_t *count)
{
    int code = enter_context("cuStreamGetCaptureInfo");
    object *g = captured(stream);
    if (code == OK && !valid_stream(stream)) code = INVALID_HANDLE;
    if (code == OK) {
        *state = g != NULL;
        if (id) *id = (uintptr_t)g;
        if (graph) *graph = g;
        if (before) *before = g ? (void **)&g->last : NULL;
        if (edges) *edges = NULL;
        if (count) *count = g && g->last;
    }
    return leave(code);
}

static size_t count_nodes(const object *graph)
{
    size_t count = 0;
    for (const node *n = graph->nodes; n; n = n->next) count++;
    return count;
}

EXPORT int cuGraphGetNodes(void *graph, void **nodes, size_t *count)
{
    int code = enter_context("cuGraphGetNodes");
    object *g = find(GRAPH, graph);
    if (code == OK && !g) code = INVALID_HANDLE;
    if (code == OK && nodes) code = INVALID_VALUE; /* nobody asks for them */
    if (code == OK) *count = count_nodes(g);
    return leave(code);
}

EXPORT int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
    int code = enter_context("cuGraphInstantiate");
    object *g = find(GRAPH, graph);
    if (code == OK && !g) code = INVALID_HANDLE;
    if (code == OK && flags) code = INVALID_VALUE;
    if (code == OK) {
        object *e = add(EXEC, 0);
        e->owner = g;
        for (node *n = g->nodes; n; n = n->next) {
            node *copy = add_node(e);
            *copy = *n;
            copy->next = NULL;
            copy->origin = n;
            copy->args = NULL;
            if (n->function) set_args(copy, n->function, n->args);
        }
        *exec = e;
    }
    return leave(code);
}

EXPORT int cuGraphDestroy(void *graph)
{
    int code = enter_context("cuGraphDestroy");
    object *g = find(GRAPH, graph);
    if (code == OK && !g) code = INVALID_HANDLE;
    if (code == OK) drop(g);
    return leave(code);
}

EXPORT int cuGraphExecDestroy(void *exec)
{
    int code = enter_context("cuGraphExecDestroy");
    object *e = find(EXEC, exec);
    if (code == OK && !e) code = INVALID_HANDLE;
    if (code == OK) drop(e);
    return leave(code);
}

EXPORT int cuGraphLaunch(void *exec, void *stream)
{
    int code = enter_context("cuGraphLaunch");
    object *e = find(EXEC, exec);
    if (code == OK && (!e || !valid_stream(stream))) code = INVALID_HANDLE;
    if (code == OK && captured(stream)) code = STREAM_CAPTURE_UNSUPPORTED; /* a child graph */
    if (code == OK && !stream && anybody_captures()) code = STREAM_CAPTURE_IMPLICIT;
    for (node *n = e ? e->nodes : NULL; code == OK && n; n = n->next) {
        books.replayed++;
        if (n->function)
            code = play(n->function, n->grid, n->block, n->shared, n->cluster, n->overlaps,
                        n->cooperative, stream, n->args);
        else
            memset((void *)(uintptr_t)n->to, n->byte, n->bytes);
    }
    return leave(code);
}

/* The copy of a graph's node, as long as the graph is there. */
static node *node_of(object *exec, const void *handle)
{
    if (!exec || !find(GRAPH, exec->owner)) return NULL;
    node *n = exec->nodes;
    while (n && n->origin != handle) n = n->next;
    return n;
}

/* As cuda.h lays them out. */
typedef struct kernel_node {
    void *function;
    unsigned gx, gy, gz, bx, by, bz, shared;
    void **parameters, **extra;
    void *kernel, *context;
} kernel_node;
typedef struct memset_node {
    unsigned long long to;
    size_t pitch;
    unsigned value, element_bytes;
    size_t width, height;
} memset_node;

EXPORT int cuGraphExecKernelNodeSetParams_v2(void *exec, void *handle, const kernel_node *p)
{
    int code = enter_context("cuGraphExecKernelNodeSetParams");
    node *n = node_of(find(EXEC, exec), handle);
    object *f = find(FUNCTION, p->function);
    if (code == OK && (!n || !n->function || !f || !p->parameters)) code = INVALID_VALUE;
    if (code == OK && (!p->gx || !p->gy || !p->gz || !p->bx || !p->by || !p->bz))
        code = INVALID_VALUE;
    if (code == OK) {
        const unsigned grid[] = {p->gx, p->gy, p->gz}, block[] = {p->bx, p->by, p->bz};
        n->function = f;
        memcpy(n->grid, grid, sizeof grid);
        memcpy(n->block, block, sizeof block);
        n->shared = p->shared;
        set_args(n, f, p->parameters[0]);
        books.changed++;
    }
    return leave(code);
}

EXPORT int cuGraphExecMemsetNodeSetParams(void *exec, void *handle, const memset_node *p,
                                          void *context)
{
    int code = enter_context("cuGraphExecMemsetNodeSetParams");
    node *n = node_of(find(EXEC, exec), handle);
    if (code == OK && (!n || n->function || !context)) code = INVALID_VALUE;
    if (code == OK && (p->element_bytes != 1 || p->height != 1)) code = INVALID_VALUE;
    if (code == OK) {
        n->to = p->to;
        n->byte = (unsigned char)p->value;
        n->bytes = p->width;
        books.changed++;
    }
    return leave(code);
}

/* ---- tensor maps: the arguments are written into the map, for tests to look at ---- */

static fake_map describe(int type, unsigned rank, const void *address, const uint64_t *dims,
                         const uint64_t *strides, const uint32_t *steps, int swizzle)
{
    fake_map m = {.type = (uint8_t)type,
                  .rank = (uint8_t)rank,
                  .swizzle = (uint8_t)swizzle,
                  .address = (uintptr_t)address};
    for (unsigned i = 0; i < rank; i++) {
        m.last[i] = (uint32_t)(dims[i] - 1);
        if (i > 0) m.strides[i - 1] = strides[i - 1];
        m.steps[i] = (uint8_t)steps[i];
    }
    return m;
}

EXPORT int cuTensorMapEncodeTiled(void *out, int type, unsigned rank, void *address,
                                  const uint64_t *dims, const uint64_t *strides,
                                  const uint32_t *box, const uint32_t *steps, int interleave,
                                  int swizzle, int promotion, int fill)
{
    int code = enter("cuTensorMapEncodeTiled");
    if (code == OK && (interleave || promotion < 0 || promotion > 3 || fill)) code = INVALID_VALUE;
    if (code == OK) {
        fake_map m = describe(type, rank, address, dims, strides, steps, swizzle);
        for (unsigned i = 0; i < rank; i++) m.box[i] = (uint16_t)box[i];
        memcpy(out, &m, sizeof m);
    }
    return leave(code);
}

EXPORT int cuTensorMapEncodeIm2col(void *out, int type, unsigned rank, void *address,
                                   const uint64_t *dims, const uint64_t *strides, const int *lower,
                                   const int *upper, uint32_t channels, uint32_t pixels,
                                   const uint32_t *steps, int interleave, int swizzle,
                                   int promotion, int fill)
{
    int code = enter("cuTensorMapEncodeIm2col");
    if (code == OK && (interleave || promotion < 0 || promotion > 3 || fill)) code = INVALID_VALUE;
    if (code == OK) {
        fake_map m = describe(type, rank, address, dims, strides, steps, swizzle);
        m.im2col = 1;
        m.channels = (uint16_t)channels;
        m.pixels = (uint16_t)pixels;
        for (unsigned i = 0; i < rank - 2; i++) {
            m.lower[i] = (int16_t)lower[i];
            m.upper[i] = (int16_t)upper[i];
        }
        memcpy(out, &m, sizeof m);
    }
    return leave(code);
}
