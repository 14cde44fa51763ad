/* SPDX-License-Identifier: Apache-2.0
 * Engines, configurations and execution plans.
 *
 * A graph has one engine, mica's choice of kernels for it; or, where it has products of f32, two: 0
 * with products that may be rounded to TF32, 1 in IEEE arithmetic. Only the note TENSOR_CORE tells
 * them apart, as with cuDNN. All heuristic modes give them in that order. */
#include "backend.h"
#include "compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_cuda(const backend_lowered *l)
{
    mica_device_info info;
    return l->context && mica_context_info(l->context, &info) == MICA_OK && info.cuda;
}

/* ---- device properties: {"mica_cudnn_device":0} ---- */

static const char device_json[] = "{\"mica_cudnn_device\":%d}";

cudnnStatus_t backend_device_check(backend *device)
{
    const backend_value *json = backend_get(device, AT_DEVICE_JSON);
    const cudnnHandle_t handle = backend_handle(device, AT_DEVICE_HANDLE);
    int32_t id = (int32_t)backend_integer(device, AT_DEVICE_ID, handle ? handle->device : 0);
    char text[64] = "";
    mica_context *context;
    if (!json && !handle && !backend_get(device, AT_DEVICE_ID))
        return front_fail(CUDNN_STATUS_BAD_PARAM,
                          "device properties need DEVICE_ID, HANDLE or JSON_REPRESENTATION");
    if (json) {
        memcpy(text, json->data, json->count < 63 ? (size_t)json->count : 63);
        if (sscanf(text, device_json, &id) != 1)
            return front_fail(CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH,
                              "JSON that no device properties of this library wrote");
    }
    if (id < 0) id = 0; /* the host, for tests: it is whatever device is asked for */
    FRONT_TRY(front_device_context(id, &context));
    return backend_put(device, AT_DEVICE_ID, BW_INT32, 1, &id);
}

cudnnStatus_t backend_place(backend *graph, const backend *device)
{
    mica_context *context;
    if (graph->lowered->context) return CUDNN_STATUS_SUCCESS;
    if (!device)
        return front_fail(CUDNN_STATUS_BAD_PARAM,
                          "the operation graph has no HANDLE, and DEVICEPROP is not set");
    FRONT_TRY(front_device_context((int)backend_integer(device, AT_DEVICE_ID, 0), &context));
    graph->lowered->context = context;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- knobs: one, whose only value is mica's choice of kernels ---- */

enum { KNOB_KERNEL_CFG = 24 };

cudnnStatus_t backend_choices_check(const backend *config)
{
    const backend_value *choices = backend_get(config, AT_CONFIG_KNOB_CHOICES);
    for (int64_t i = 0; choices && i < choices->count; i++) {
        const backend *c = ((backend **)choices->data)[i];
        const int64_t type = backend_integer(c, AT_KNOB_CHOICE_TYPE, -1);
        const int64_t value = backend_integer(c, AT_KNOB_CHOICE_VALUE, -1);
        if (type != KNOB_KERNEL_CFG || value != 0)
            return front_fail(CUDNN_STATUS_NOT_SUPPORTED,
                              "knob %lld of value %lld: engines have knob %d with value 0",
                              (long long)type, (long long)value, KNOB_KERNEL_CFG);
    }
    return CUDNN_STATUS_SUCCESS;
}

/* Finalizes the client's descriptor. */
static cudnnStatus_t give_knobs(int64_t requested, int64_t *count, backend **knobs)
{
    *count = 1;
    if (!knobs || !requested) return CUDNN_STATUS_SUCCESS;
    FRONT_TRY(front_check(*knobs, FRONT_BACKEND, "an element of KNOB_INFO"));
    if ((*knobs)->type != BT_KNOB_INFO)
        return front_fail(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
                          "an element of KNOB_INFO is a %s, it has to be a %s",
                          backend_type_words((*knobs)->type), backend_type_words(BT_KNOB_INFO));
    (*knobs)->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- plans ---- */

void backend_built_free(backend_built *built)
{
    if (!built) return;
    backend_entry_put(built->entry);
    backend_entry_put(built->recent);
    compare_drop(built->original);
    pthread_mutex_destroy(&built->lock);
    free(built->port_of);
    free(built->extents);
    free(built->number_of);
    free(built->recent_numbers);
    free(built);
}

static int port_named(const backend_lowered *l, const char *name)
{
    for (int i = 0; i < l->port_count; i++)
        if (!strcmp(l->ports[i].name, name)) return i;
    return -1;
}

static int number_named(const backend_lowered *l, const char *name)
{
    for (int i = 0; i < l->number_count; i++)
        if (!strcmp(l->numbers[i].name, name)) return i;
    return -1;
}

static cudnnStatus_t map_names(backend_built *built)
{
    const backend_lowered *l = built->lowered;
    const mica_graph_plan *plan = backend_entry_plan(built->entry);
    mica_graph_tensor_info info;
    const char *name;
    double value;
    while (mica_graph_plan_tensor(plan, built->port_count, &info) == MICA_OK) built->port_count++;
    while (mica_graph_plan_scalar(plan, built->scalar_count, &name, &value) == MICA_OK)
        built->scalar_count++;
    built->port_of = calloc((size_t)built->port_count + 1, sizeof *built->port_of);
    built->extents = calloc((size_t)built->port_count + 1, sizeof *built->extents);
    built->number_of = calloc((size_t)built->scalar_count + 1, sizeof *built->number_of);
    built->recent_numbers = calloc((size_t)l->number_count + 1, sizeof(double));
    if (!built->port_of || !built->extents || !built->number_of || !built->recent_numbers)
        return front_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "a plan");
    for (int i = 0; i < built->port_count; i++) {
        mica_graph_plan_tensor(plan, i, &info);
        backend_extent *e = &built->extents[i];
        e->bytes = mica_tensor_span(&info.tensor, &e->first);
        e->result = info.kind == MICA_GRAPH_OUTPUT;
        built->port_of[i] = port_named(l, info.name);
        if (built->port_of[i] < 0)
            return front_fail(CUDNN_STATUS_BAD_PARAM, "tensor %s of a plan has no id", info.name);
    }
    for (int i = 0; i < built->scalar_count; i++) {
        mica_graph_plan_scalar(plan, i, &name, &value);
        built->number_of[i] = number_named(l, name);
        if (built->number_of[i] < 0)
            return front_fail(CUDNN_STATUS_BAD_PARAM, "number %s of a plan has no id", name);
    }
    return CUDNN_STATUS_SUCCESS;
}

/* ---- JSON: {"mica_cudnn_plan":1,"engine":0,"graph":"text"} ---- */

static const char json_head[] = "{\"mica_cudnn_plan\":1,\"engine\":%d,\"graph\":\"";

static char *write_json(const backend_built *built, int64_t *count)
{
    const char *text = built->lowered->text;
    char *json = malloc(strlen(text) * 2 + sizeof json_head + 32), *end = json;
    if (!json) return NULL;
    end += sprintf(end, json_head, built->engine);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') *end++ = '\\';
        if (*text == '\n') *end++ = '\\';
        *end++ = *text == '\n' ? 'n' : *text;
    }
    end = stpcpy(end, "\"}");
    *count = end - json + 1; /* with the end of the string */
    return json;
}

static cudnnStatus_t read_json(const backend *plan, mica_context *context, int *engine,
                               backend_lowered **lowered)
{
    const backend_value *v = backend_get(plan, AT_PLAN_JSON);
    const cudnnStatus_t wrong = CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH;
    int begin = 0;
    char *json = malloc((size_t)v->count + 1), *to;
    if (!json) return front_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "a plan");
    memcpy(json, v->data, (size_t)v->count);
    json[v->count] = 0;
    if (sscanf(json, "{\"mica_cudnn_plan\":1,\"engine\":%d,\"graph\":\"%n", engine, &begin) != 1 ||
        !begin) {
        free(json);
        return front_fail(wrong, "JSON that no plan of this library wrote");
    }
    const char *from = json + begin;
    for (to = json; *from && *from != '"'; from++) {
        if (*from == '\\' && from[1])
            from++, *to++ = *from == 'n' ? '\n' : *from;
        else
            *to++ = *from;
    }
    const bool closed = *from == '"';
    *to = 0;
    cudnnStatus_t status = closed ? backend_lowered_read(json, context, lowered)
                                  : front_fail(wrong, "the JSON of a plan has no end");
    free(json);
    return status;
}

/* A graph, engine and configuration for a plan from JSON, as though the client had made them. */
static cudnnStatus_t make_config(backend *plan, cudnnHandle_t handle)
{
    backend *graph = NULL, *engine = NULL, *config = NULL;
    int index = 0;
    int64_t number;
    cudnnStatus_t status = backend_make(BT_GRAPH, &graph);
    if (status == CUDNN_STATUS_SUCCESS)
        status = read_json(plan, front_context(handle), &index, &graph->lowered);
    number = index;
    if (status == CUDNN_STATUS_SUCCESS)
        status = backend_put(graph, AT_GRAPH_HANDLE, BW_HANDLE, 1, &handle);
    if (status == CUDNN_STATUS_SUCCESS) status = backend_make(BT_ENGINE, &engine);
    if (status == CUDNN_STATUS_SUCCESS)
        status = backend_put(engine, AT_ENGINE_OPERATION_GRAPH, BW_DESCRIPTOR, 1, &graph);
    if (status == CUDNN_STATUS_SUCCESS)
        status = backend_put(engine, AT_ENGINE_GLOBAL_INDEX, BW_INT64, 1, &number);
    if (status == CUDNN_STATUS_SUCCESS) status = backend_check(engine);
    if (status == CUDNN_STATUS_SUCCESS) status = backend_make(BT_CONFIG, &config);
    if (status == CUDNN_STATUS_SUCCESS)
        status = backend_put(config, AT_CONFIG_ENGINE, BW_DESCRIPTOR, 1, &engine);
    if (status == CUDNN_STATUS_SUCCESS)
        status = backend_put(plan, AT_PLAN_ENGINE_CONFIG, BW_DESCRIPTOR, 1, &config);
    if (graph) graph->finalized = true;
    if (engine) engine->finalized = true;
    if (config) config->finalized = true;
    backend_release(graph);
    backend_release(engine);
    backend_release(config);
    return status;
}

static const backend *engine_of(const backend *config)
{
    return backend_child(config, AT_CONFIG_ENGINE);
}

static const backend_lowered *lowered_of(const backend *engine)
{
    return backend_child(engine, AT_ENGINE_OPERATION_GRAPH)->lowered;
}

static int index_of(const backend *engine)
{
    return (int)backend_integer(engine, AT_ENGINE_GLOBAL_INDEX, 0);
}

cudnnStatus_t backend_build(backend *plan)
{
    cudnnHandle_t handle = backend_handle(plan, AT_PLAN_HANDLE);
    if (backend_get(plan, AT_PLAN_JSON)) {
        FRONT_TRY(front_given(handle, "the HANDLE of a plan from JSON"));
        FRONT_TRY(make_config(plan, handle));
    }
    const backend *config = backend_child(plan, AT_PLAN_ENGINE_CONFIG);
    if (!config)
        return front_fail(CUDNN_STATUS_BAD_PARAM,
                          "an execution plan needs ENGINE_CONFIG or JSON_REPRESENTATION");
    backend *graph = backend_child(engine_of(config), AT_ENGINE_OPERATION_GRAPH);
    if (handle && !graph->lowered->context) graph->lowered->context = front_context(handle);
    FRONT_TRY(backend_place(graph, backend_child(plan, AT_PLAN_DEVICE)));
    backend_built *built = calloc(1, sizeof *built);
    if (!built) return front_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "a plan");
    pthread_mutex_init(&built->lock, NULL);
    built->lowered = lowered_of(engine_of(config));
    built->engine = index_of(engine_of(config));
    cudnnStatus_t status = backend_entry_get(built->lowered, built->engine, NULL, &built->entry);
    if (status == CUDNN_STATUS_SUCCESS) status = map_names(built);
    if (status == CUDNN_STATUS_SUCCESS && handle && built->lowered->ragged_count)
        status = backend_ragged_prepare(handle, built->lowered);
    if (status == CUDNN_STATUS_SUCCESS)
        plan->built = built;
    else
        backend_built_free(built);
    return status;
}

/* ---- what is asked ---- */

static cudnnStatus_t fill_results(const backend *heuristics, int64_t count, backend **configs)
{
    backend *graph = backend_child(heuristics, AT_HEURISTICS_OPERATION_GRAPH);
    for (int64_t i = 0; i < count; i++) {
        backend *engine, *to = configs[i];
        FRONT_TRY(front_check(to, FRONT_BACKEND, "an element of RESULTS"));
        if (to->type != BT_CONFIG || to->finalized)
            return front_fail(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
                              "element %lld of RESULTS is a %s%s, it has to be a fresh %s",
                              (long long)i, to->finalized ? "finalized " : "",
                              backend_type_words(to->type), backend_type_words(BT_CONFIG));
        FRONT_TRY(backend_make(BT_ENGINE, &engine));
        cudnnStatus_t status =
            backend_put(engine, AT_ENGINE_OPERATION_GRAPH, BW_DESCRIPTOR, 1, &graph);
        if (status == CUDNN_STATUS_SUCCESS)
            status = backend_put(engine, AT_ENGINE_GLOBAL_INDEX, BW_INT64, 1, &i);
        engine->finalized = true;
        if (status == CUDNN_STATUS_SUCCESS)
            status = backend_put(to, AT_CONFIG_ENGINE, BW_DESCRIPTOR, 1, &engine);
        backend_release(engine);
        FRONT_TRY(status);
        to->finalized = true;
    }
    return CUDNN_STATUS_SUCCESS;
}

static int64_t shared_bytes(const mica_graph_plan *plan)
{
    mica_graph_step step;
    mica_kernel_info kernel;
    int64_t most = 0;
    for (int i = 0; mica_graph_plan_step(plan, i, &step) == MICA_OK; i++)
        for (int k = 0; mica_plan_kernel(step.plan, k, &kernel) == MICA_OK; k++)
            if (kernel.shared_bytes > most) most = kernel.shared_bytes;
    return most;
}

/* Elements of up to 8 bytes. */
static cudnnStatus_t give(const void *from, int64_t bytes, int64_t available, int64_t requested,
                          int64_t *count, void *elements)
{
    *count = available;
    if (!elements || !requested) return CUDNN_STATUS_SUCCESS;
    if (*count > requested) *count = requested;
    if (*count) memcpy(elements, from, (size_t)(*count * bytes));
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t give_notes(const backend *engine, unsigned attribute, int64_t requested,
                                int64_t *count, void *elements)
{
    const backend_lowered *l = lowered_of(engine);
    const bool tf32 = l->engines == 2 && index_of(engine) == 0;
    const int32_t note = attribute == AT_ENGINE_NUMERICAL_NOTE ? (int32_t)NOTE_TENSOR_CORE
                                                               : (int32_t)BEHAVIOR_COMPILES;
    const bool there = is_cuda(l) && (attribute == AT_ENGINE_BEHAVIOR_NOTE || l->narrow || tf32);
    return give(&note, 4, there, requested, count, elements);
}

static cudnnStatus_t give_config(const backend *config, unsigned attribute, int64_t requested,
                                 int64_t *count, void *elements)
{
    backend_entry *entry;
    const backend *engine = engine_of(config);
    FRONT_TRY(backend_entry_get(lowered_of(engine), index_of(engine), NULL, &entry));
    const int64_t workspace = backend_entry_workspace(entry);
    const int32_t shared = (int32_t)shared_bytes(backend_entry_plan(entry));
    backend_entry_put(entry);
    if (attribute == AT_CONFIG_WORKSPACE_SIZE)
        return give(&workspace, 8, 1, requested, count, elements);
    return give(&shared, 4, 1, requested, count, elements);
}

static cudnnStatus_t give_json(const backend *plan, int64_t requested, int64_t *count,
                               void *elements)
{
    int64_t length;
    char *json = write_json(plan->built, &length);
    if (!json) return front_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "JSON");
    give(json, 1, length, requested, count, elements);
    free(json);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t backend_compute(backend *b, const backend_row *row, int64_t requested, int64_t *count,
                              void *elements)
{
    int64_t number;
    switch (row->number) {
    case AT_HEURISTICS_RESULTS:
        number = backend_child(b, AT_HEURISTICS_OPERATION_GRAPH)->lowered->engines;
        *count = number;
        if (!elements || !requested) return CUDNN_STATUS_SUCCESS;
        if (*count > requested) *count = requested;
        return fill_results(b, *count, elements);
    case AT_GRAPH_ENGINE_GLOBAL_COUNT:
        number = b->lowered->engines;
        return give(&number, 8, 1, requested, count, elements);
    case AT_ENGINE_KNOB_INFO:
        return give_knobs(requested, count, elements);
    case AT_KNOB_INFO_TYPE:
        return give(&(int32_t){KNOB_KERNEL_CFG}, 4, 1, requested, count, elements);
    case AT_KNOB_INFO_MAXIMUM:
    case AT_KNOB_INFO_MINIMUM:
        return give(&(int64_t){0}, 8, 1, requested, count, elements);
    case AT_KNOB_INFO_STRIDE:
        return give(&(int64_t){1}, 8, 1, requested, count, elements);
    case AT_ENGINE_LAYOUT_INFO:
        return CUDNN_STATUS_SUCCESS; /* there are none */
    case AT_DEVICE_JSON: {
        char text[64];
        const int length =
            snprintf(text, sizeof text, device_json, (int)backend_integer(b, AT_DEVICE_ID, 0)) + 1;
        return give(text, 1, length, requested, count, elements);
    }
    case AT_ENGINE_NUMERICAL_NOTE:
    case AT_ENGINE_BEHAVIOR_NOTE:
        return give_notes(b, row->number, requested, count, elements);
    case AT_CONFIG_WORKSPACE_SIZE:
    case AT_CONFIG_SHARED_MEMORY_USED:
        return give_config(b, row->number, requested, count, elements);
    case AT_PLAN_WORKSPACE_SIZE:
        number = backend_entry_workspace(b->built->entry);
        return give(&number, 8, 1, requested, count, elements);
    case AT_PLAN_JSON:
        return give_json(b, requested, count, elements);
    default:
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED, "attribute %u (%s) has no value", row->number,
                          row->name);
    }
}
