/* SPDX-License-Identifier: Apache-2.0
 * cuDNN's candidates for a graph, plans and runs. */
#include "peers/cudnn_calls.h"
#include "base/log.h"

enum { MOST_CONFIGS = 64 };
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
    while (c->count > 0) mica_dnn.unmake(c->list[--c->count].config);
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
    mica_dnn.unmake(engine);
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
        mica_dnn.unmake(config);
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
            mica_dnn.unmake(found[i]);
    return status;
}

static mica_status ask(const mica_cudnn *g, void *graph, int mode, candidates *c)
{
    void *heuristics;
    const mica_cudnn_attribute list[] = {
        {HEURISTICS_GRAPH, DESCRIPTOR, 1, &graph},
        {HEURISTICS_MODE, HEUR_MODE, 1, &mode},
    };
    MICA_TRY(mica_cudnn_describe(HEURISTICS, list, 2, &heuristics));
    mica_status status = read_results(g, heuristics, c);
    mica_dnn.unmake(heuristics);
    return status;
}

/* ---- plans ---- */

static mica_status plan_one(mica_cudnn *g, candidates *c, int i)
{
    int64_t count = 0;
    candidate chosen = c->list[i];
    const mica_cudnn_attribute list[] = {{PLAN_CONFIG, DESCRIPTOR, 1, &chosen.config}};
    if (g->made_count + 2 > MOST_MADE)
        return mica_fail(MICA_UNSUPPORTED, "a graph of more than %d descriptors", MOST_MADE);
    MICA_TRY(mica_cudnn_describe(PLAN, list, 1, &g->plan));
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
                         "inputs, transform them or use tensor cores unasked",
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
    const mica_cudnn_attribute list[] = {
        {GRAPH_HANDLE, HANDLE, 1, &mica_cudnn_handles[g->cuda->ordinal]},
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
    pthread_mutex_lock(&mica_cudnn_mutex);
    g->matrix_units = matrix_units;
    mica_status status = plan_graph(g, rank);
    pthread_mutex_unlock(&mica_cudnn_mutex);
    mica_cuda_leave(g->cuda, pushed);
    return status;
}

size_t mica_cudnn_workspace(const mica_cudnn *g)
{
    return (size_t)g->workspace;
}

/* ---- runs ---- */

static mica_status execute(const mica_cudnn *g, const mica_cudnn_attribute *list, int count,
                           void *stream)
{
    void *handle = mica_cudnn_handles[g->cuda->ordinal], *pack;
    MICA_TRY(DNN(set_stream, handle, stream));
    MICA_TRY(mica_cudnn_describe(VARIANT_PACK, list, count, &pack));
    mica_status status = DNN(execute, handle, g->plan, pack);
    mica_dnn.unmake(pack);
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
    const mica_cudnn_attribute list[] = {
        {PACK_IDS, INT64, count, ids},
        {PACK_POINTERS, POINTER, count, pointers},
        {PACK_WORKSPACE, POINTER, 1, &workspace},
    };
    MICA_TRY(mica_cuda_enter(g->cuda, &pushed));
    pthread_mutex_lock(&mica_cudnn_mutex);
    mica_status status = execute(g, list, 3, stream);
    pthread_mutex_unlock(&mica_cudnn_mutex);
    mica_cuda_leave(g->cuda, pushed);
    return status;
}
