/* SPDX-License-Identifier: Apache-2.0
 * Operations of mica as custom calls of XLA: the handlers that mica.jax registers, one for each
 * platform and none for any operation. A call brings its problem line, the argument that each
 * operand and result is, and its scalars; a plan is looked up by the line and run on XLA's own
 * buffers, stream and scratch memory, without Python.
 *
 * The structs follow version 0 of XLA's C interface for foreign functions, which promises to append
 * only. */
#include <mica/mica.h>
#include <pthread.h>
#include <search.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what XLA passes ---- */

enum { STAGE_INSTANTIATE = 0, EXTENSION_METADATA = 1, VERSION_MAJOR = 0 };
enum { TYPE_F64 = 12, TYPE_F32 = 11, TYPE_S32 = 4 };
enum { ATTRIBUTE_ARRAY = 1, ATTRIBUTE_STRING = 4 };
enum {
    CODE_INVALID_ARGUMENT = 3,
    CODE_RESOURCE_EXHAUSTED = 8,
    CODE_FAILED_PRECONDITION = 9,
    CODE_UNIMPLEMENTED = 12,
    CODE_INTERNAL = 13,
    CODE_UNAVAILABLE = 14
};

typedef struct xla_error xla_error;
typedef struct xla_execution xla_execution;

typedef struct xla_extension {
    size_t size;
    int type;
    struct xla_extension *next;
} xla_extension;

typedef struct xla_version {
    size_t size;
    xla_extension *extension;
    int major, minor;
} xla_version;

typedef struct xla_metadata {
    size_t size;
    xla_version version;
    uint32_t traits;
} xla_metadata;

typedef struct xla_metadata_extension {
    xla_extension base;
    xla_metadata *metadata;
} xla_metadata_extension;

typedef struct xla_buffer {
    size_t size;
    xla_extension *extension;
    int type;
    void *data;
    int64_t rank, *dims;
} xla_buffer;

typedef struct xla_list { /* of operands, and of results */
    size_t size;
    xla_extension *extension;
    int64_t count;
    int *types;
    xla_buffer **at;
} xla_list;

typedef struct xla_text {
    const char *at;
    size_t length;
} xla_text;

typedef struct xla_array {
    int type;
    size_t count;
    const void *at;
} xla_array;

typedef struct xla_attributes {
    size_t size;
    xla_extension *extension;
    int64_t count;
    int *types;
    xla_text **names;
    void **at;
} xla_attributes;

typedef struct xla_error_arguments {
    size_t size;
    xla_extension *extension;
    const char *message;
    int code;
} xla_error_arguments;

typedef struct xla_stream_arguments {
    size_t size;
    xla_extension *extension;
    xla_execution *execution;
    void *stream;
} xla_stream_arguments;

typedef struct xla_allocation {
    size_t size;
    xla_extension *extension;
    xla_execution *execution;
    size_t bytes, alignment;
    void *data;
} xla_allocation;

typedef struct xla_memory {
    size_t size;
    xla_extension *extension;
    xla_execution *execution;
    size_t bytes;
    void *data;
} xla_memory;

typedef struct xla_ordinal_arguments {
    size_t size;
    xla_extension *extension;
    xla_execution *execution;
    int32_t ordinal;
} xla_ordinal_arguments;

typedef struct xla_api {
    size_t size;
    xla_extension *extension;
    xla_version version;
    const void *internal;
    xla_error *(*error_create)(xla_error_arguments *);
    void (*error_message)(void *);
    void (*error_destroy)(void *);
    xla_error *(*handler_register)(void *);
    xla_error *(*stream_get)(xla_stream_arguments *);
    xla_error *(*type_register)(void *);
    xla_error *(*context_get)(void *);
    xla_error *(*state_set)(void *);
    xla_error *(*state_get)(void *);
    xla_error *(*memory_allocate)(xla_allocation *);
    xla_error *(*memory_free)(xla_memory *);
    xla_error *(*pool_schedule)(void *);
    xla_error *(*pool_threads)(void *);
    xla_error *(*future_create)(void *);
    xla_error *(*future_set)(void *);
    xla_error *(*future_fail)(void *);
    xla_error *(*run_id)(void *);
    xla_error *(*device_ordinal)(xla_ordinal_arguments *);
} xla_api;

typedef struct xla_frame {
    size_t size;
    xla_extension *extension;
    const xla_api *api;
    xla_execution *execution;
    int stage;
    xla_list operands, results;
    xla_attributes attributes;
} xla_frame;

typedef xla_error *handler(xla_frame *frame);
MICA_API handler mica_xla_cpu, mica_xla_cpu_instantiate, mica_xla_cuda;

/* ---- refusals ---- */

static xla_error *refuse(const xla_frame *frame, int code, const char *message)
{
    return frame->api->error_create(&(xla_error_arguments){
        .size = sizeof(xla_error_arguments), .message = message, .code = code});
}

/* The library's status, value and rule. */
static xla_error *failed(const xla_frame *frame, mica_status status)
{
    int code = status == MICA_INVALID       ? CODE_INVALID_ARGUMENT
               : status == MICA_UNSUPPORTED ? CODE_UNIMPLEMENTED
               : status == MICA_OUT_OF_MEMORY || status == MICA_OUT_OF_DEVICE_MEMORY
                   ? CODE_RESOURCE_EXHAUSTED
               : status == MICA_DEVICE_LOST ? CODE_UNAVAILABLE
               : status == MICA_NO_DEVICE || status == MICA_FORKED_PROCESS
                   ? CODE_FAILED_PRECONDITION
                   : CODE_INTERNAL;
    char message[2048];
    snprintf(message, sizeof message, "%s: %s", mica_status_name(status), mica_error());
    return refuse(frame, code, message);
}

/* ---- plans ----
 * Executables of XLA come and go, and one that was compiled elsewhere is loaded from disk: a plan
 * is found by its line and made where there is none yet. */

enum { MOST_PLANS = 1024, MOST_DEVICES = 64 };
enum { SPACE_ALIGNMENT = 256, XLA_ALIGNMENT = 16 }; /* of workspace; the most that XLA gives */

typedef struct planned {
    const char *line; /* not ended by 0 while it is only looked for */
    size_t length;
    int device; /* -1: the CPU */
    mica_plan *plan;
    atomic_int users;
} planned;

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static void *plans;
static int count;
static mica_context *contexts[1 + MOST_DEVICES];

static int order(const void *one, const void *two)
{
    const planned *a = one, *b = two;
    if (a->device != b->device) return a->device < b->device ? -1 : 1;
    if (a->length != b->length) return a->length < b->length ? -1 : 1;
    return memcmp(a->line, b->line, a->length);
}

static planned *find(const planned *wanted)
{
    planned *const *found = tfind(wanted, &plans, order);
    if (found == NULL) return NULL;
    atomic_fetch_add(&(*found)->users, 1);
    return *found;
}

static const planned *idle;

static void note_idle(const void *node, VISIT visit, int depth)
{
    const planned *e = *(planned *const *)node;
    (void)depth;
    if ((visit == postorder || visit == leaf) && atomic_load(&((planned *)e)->users) == 0) idle = e;
}

/* Room for one more: plans that nobody runs now are given back. */
static void make_room(void)
{
    while (count >= MOST_PLANS) {
        idle = NULL;
        twalk(plans, note_idle);
        if (idle == NULL) return;
        tdelete(idle, &plans, order);
        mica_plan_destroy(idle->plan);
        free((void *)idle);
        count--;
    }
}

/* With the lock held for writing. */
static mica_status make(const planned *wanted, planned **made)
{
    mica_context **context = &contexts[1 + wanted->device];
    char name[32];
    mica_status status = MICA_OK;
    snprintf(name, sizeof name, wanted->device < 0 ? "cpu" : "cuda:%d", wanted->device);
    if (*context == NULL) status = mica_context_create(name, context);
    if (status) return status;
    planned *e = malloc(sizeof *e + wanted->length + 1);
    if (e == NULL) return MICA_OUT_OF_MEMORY;
    char *line = (char *)(e + 1);
    memcpy(line, wanted->line, wanted->length);
    line[wanted->length] = 0;
    *e = (planned){.line = line, .length = wanted->length, .device = wanted->device};
    status = mica_plan_from_text(*context, line, NULL, &e->plan);
    if (status) {
        free(e);
        return status;
    }
    make_room();
    atomic_init(&e->users, 1);
    if (tsearch(e, &plans, order) == NULL) {
        mica_plan_destroy(e->plan);
        free(e);
        return MICA_OUT_OF_MEMORY;
    }
    count++;
    *made = e;
    return MICA_OK;
}

static mica_status plan_of(xla_text line, int device, planned **found)
{
    planned wanted = {.line = line.at, .length = line.length, .device = device};
    mica_status status = MICA_OK;
    pthread_rwlock_rdlock(&lock);
    *found = find(&wanted);
    pthread_rwlock_unlock(&lock);
    if (*found != NULL) return MICA_OK;
    pthread_rwlock_wrlock(&lock);
    *found = find(&wanted);
    if (*found == NULL) status = make(&wanted, found);
    pthread_rwlock_unlock(&lock);
    return status;
}

/* ---- a call ---- */

typedef struct call {
    xla_text line;
    const int32_t
        *places; /* of each operand, then of each result: its argument; -1 - s: run-time scalar s */
    size_t places_count;
    const double *scalars;
    size_t scalars_count;
} call;

static const void *attribute(const xla_frame *frame, const char *name, int type)
{
    const xla_attributes *all = &frame->attributes;
    for (int64_t i = 0; i < all->count; i++)
        if (all->names[i]->length == strlen(name) &&
            memcmp(all->names[i]->at, name, all->names[i]->length) == 0)
            return all->types[i] == type ? all->at[i] : NULL;
    return NULL;
}

static xla_error *read_call(const xla_frame *frame, call *c)
{
    const xla_text *line = attribute(frame, "line", ATTRIBUTE_STRING);
    const xla_array *places = attribute(frame, "places", ATTRIBUTE_ARRAY);
    const xla_array *scalars = attribute(frame, "scalars", ATTRIBUTE_ARRAY);
    if (line == NULL || places == NULL || places->type != TYPE_S32 ||
        (scalars != NULL && scalars->type != TYPE_F64))
        return refuse(frame, CODE_INVALID_ARGUMENT,
                      "mica: the call is of another version of mica.jax");
    *c = (call){*line, places->at, places->count, scalars ? scalars->at : NULL,
                scalars ? scalars->count : 0};
    return NULL;
}

static void release_space(void *space)
{
    free(space);
}

static pthread_key_t space_key;

static void make_space_key(void)
{
    pthread_key_create(&space_key, release_space);
}

/* Workspace on the CPU, kept from call to call by each of XLA's threads. */
static void *space_of_thread(size_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static _Thread_local size_t held;
    pthread_once(&once, make_space_key);
    void *space = pthread_getspecific(space_key);
    if (space != NULL && held >= bytes) return space;
    free(space);
    bytes = (bytes + 4095) / 4096 * 4096;
    space = aligned_alloc(4096, bytes);
    pthread_setspecific(space_key, space);
    held = space ? bytes : 0;
    return space;
}

/* On a GPU XLA's scratch memory, which it aligns to no more than 16 bytes and never takes back by
 * itself. held: what to give back; it is used again in the order of the stream. */
static xla_error *workspace(const xla_frame *frame, size_t bytes, int device, void **space,
                            xla_memory *held)
{
    *space = NULL;
    if (bytes == 0) return NULL;
    if (device < 0) {
        *space = space_of_thread(bytes);
        return *space ? NULL
                      : refuse(frame, CODE_RESOURCE_EXHAUSTED, "mica: no memory for the workspace");
    }
    size_t whole = bytes + SPACE_ALIGNMENT - XLA_ALIGNMENT;
    xla_allocation wanted = {sizeof wanted, NULL, frame->execution, whole, XLA_ALIGNMENT, NULL};
    xla_error *error = frame->api->memory_allocate(&wanted);
    if (error != NULL) return error;
    *held = (xla_memory){sizeof *held, NULL, frame->execution, whole, wanted.data};
    uintptr_t at = (uintptr_t)wanted.data;
    *space = (char *)wanted.data + (SPACE_ALIGNMENT - at % SPACE_ALIGNMENT) % SPACE_ALIGNMENT;
    return NULL;
}

/* Run-time scalars that are operands: numbers that the program computes. On a GPU they are waited
 * for. */
static xla_error *read_scalar(const xla_frame *frame, const xla_buffer *b, int device, void *stream,
                              double *value)
{
    float narrow = 0;
    if (b->type != TYPE_F32 && b->type != TYPE_F64)
        return refuse(frame, CODE_INVALID_ARGUMENT, "mica: a run-time scalar is f32 or f64");
    void *to = b->type == TYPE_F32 ? (void *)&narrow : value;
    int64_t bytes = b->type == TYPE_F32 ? (int64_t)sizeof narrow : (int64_t)sizeof *value;
    mica_status status = mica_download(contexts[1 + device], to, b->data, bytes, stream);
    if (status) return failed(frame, status);
    if (b->type == TYPE_F32) *value = (double)narrow;
    return NULL;
}

static xla_error *bind(const xla_frame *frame, const call *c, int device, mica_run *run,
                       double *scalars)
{
    int64_t operands = frame->operands.count, all = operands + frame->results.count;
    if (c->places_count != (size_t)all || c->scalars_count > MICA_MAX_SCALARS)
        return refuse(frame, CODE_INTERNAL, "mica: the call has other operands than it says");
    if (c->scalars_count > 0) memcpy(scalars, c->scalars, c->scalars_count * sizeof *scalars);
    run->scalars = c->scalars_count > 0 ? scalars : NULL;
    for (int64_t i = 0; i < all; i++) {
        const xla_buffer *b =
            i < operands ? frame->operands.at[i] : frame->results.at[i - operands];
        int place = c->places[i];
        xla_error *error = NULL;
        if (place >= MICA_MAX_ARGS || -1 - place >= (int)c->scalars_count)
            return refuse(frame, CODE_INTERNAL, "mica: the call has arguments past the last");
        if (place < 0)
            error = read_scalar(frame, b, device, run->stream, &scalars[-1 - place]);
        else if (i >= operands && run->args[place] != NULL && run->args[place] != b->data)
            error =
                refuse(frame, CODE_INTERNAL, "mica: what is changed in place lies at two places");
        else
            run->args[place] = b->data;
        if (error != NULL) return error;
    }
    return NULL;
}

static xla_error *execute(xla_frame *frame, int device, void *stream)
{
    call c;
    planned *e;
    double scalars[MICA_MAX_SCALARS] = {0};
    mica_run run = {.size = sizeof run, .stream = stream};
    xla_memory held = {0};
    xla_error *error = read_call(frame, &c);
    if (error != NULL) return error;
    mica_status status = plan_of(c.line, device, &e);
    if (status) return failed(frame, status);
    error = bind(frame, &c, device, &run, scalars);
    if (error == NULL)
        error = workspace(frame, mica_plan_workspace(e->plan), device, &run.workspace, &held);
    if (error == NULL && (status = mica_plan_run(e->plan, &run)) != MICA_OK)
        error = failed(frame, status);
    if (held.data != NULL) {
        xla_error *other = frame->api->memory_free(&held);
        if (error == NULL) error = other;
    }
    atomic_fetch_sub(&e->users, 1);
    return error;
}

/* XLA asks once what version of the interface a handler was written for: the older of the two,
 * which both know. */
static bool answered(const xla_frame *frame)
{
    const xla_extension *extension = frame->extension;
    if (extension == NULL || extension->type != EXTENSION_METADATA) return false;
    xla_metadata *metadata = ((const xla_metadata_extension *)extension)->metadata;
    metadata->version.major = VERSION_MAJOR;
    metadata->version.minor = frame->api ? frame->api->version.minor : 0;
    metadata->traits = 0;
    return true;
}

/* Plans while XLA compiles, so that refusals come there and a run finds its plan. */
xla_error *mica_xla_cpu_instantiate(xla_frame *frame)
{
    call c;
    planned *e;
    if (answered(frame)) return NULL;
    xla_error *error = read_call(frame, &c);
    if (error != NULL) return error;
    mica_status status = plan_of(c.line, -1, &e);
    if (status) return failed(frame, status);
    atomic_fetch_sub(&e->users, 1);
    return NULL;
}

xla_error *mica_xla_cpu(xla_frame *frame)
{
    return answered(frame) ? NULL : execute(frame, -1, NULL);
}

/* XLA's device and stream. A program is compiled for no device in particular: the first run on one
 * plans. */
xla_error *mica_xla_cuda(xla_frame *frame)
{
    if (answered(frame)) return NULL;
    if (frame->api->size <= offsetof(xla_api, device_ordinal))
        return refuse(frame, CODE_UNIMPLEMENTED,
                      "mica: this jaxlib does not say on which device a call runs");
    xla_ordinal_arguments where = {sizeof where, NULL, frame->execution, 0};
    xla_stream_arguments stream = {sizeof stream, NULL, frame->execution, NULL};
    xla_error *error = frame->api->device_ordinal(&where);
    if (error == NULL) error = frame->api->stream_get(&stream);
    if (error != NULL) return error;
    if (where.ordinal < 0 || where.ordinal >= MOST_DEVICES)
        return refuse(frame, CODE_UNIMPLEMENTED, "mica: no more than 64 devices are counted");
    return execute(frame, where.ordinal, stream.stream);
}
