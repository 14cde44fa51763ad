/* SPDX-License-Identifier: Apache-2.0
 * The truth of a graph. */
#include "graph/graph_truth.h"
#include "check/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The mean square of what random moves do to a result is the sum of the squares of what each error
 * does alone, also where two errors of one size meet in a difference, which hides every second
 * move. Four times its root is no less than the largest move, nor than what 16 errors add up to. */
enum { MOVES = 16 };
static const double safety = 4;
static const double spread = 1.7320508; /* uniform numbers of deviation 1 */

static bool is_given(mica_graph_kind kind)
{
    return kind == MICA_GRAPH_INPUT || kind == MICA_GRAPH_INOUT;
}

static bool is_result(mica_graph_kind kind)
{
    return kind == MICA_GRAPH_OUTPUT || kind == MICA_GRAPH_INOUT;
}

static void *zeroed(size_t bytes)
{
    return memset(cli_alloc(bytes), 0, bytes);
}

/* ---- the graph ---- */

static mica_status read_order(graph_truth *t, mica_context *context, const mica_options *nodes)
{
    const mica_graph_options o = {.mode = MICA_GRAPH_SEPARATE, .nodes = nodes};
    mica_graph_plan *plan;
    mica_graph_step s;
    mica_status status = mica_graph_plan_create(context, t->graph, &o, &plan);
    if (status != MICA_OK) return status;
    for (int i = 0; i < t->nodes && mica_graph_plan_step(plan, i, &s) == MICA_OK; i++) {
        mica_contract contract;
        t->order[i] = atoi(s.nodes);
        mica_plan_contract(s.plan, &contract, &t->phi[t->order[i]]);
        t->phi[t->order[i]] += contract.ulps * contract.unit;
        /* each term may lose a subnormal of the accumulator, as in a case of its own */
        const double tiny = contract.flushes          ? 0x1p-126
                            : contract.unit < 0x1p-40 ? cli_tiny(MICA_F64)
                                                      : cli_tiny(MICA_F32);
        t->floor[t->order[i]] = tiny * (double)(contract.n_seq + contract.n_outer) *
                                (contract.amplify > 0 ? contract.amplify : 1);
    }
    mica_graph_plan_destroy(plan);
    return MICA_OK;
}

mica_status graph_truth_init(graph_truth *t, mica_context *context, const cli_graph *graph,
                             const mica_options *nodes)
{
    *t = (graph_truth){.graph = graph->graph};
    mica_graph_tensor_info info;
    mica_status status = mica_graph_infer(graph->graph);
    if (status != MICA_OK) return status; /* its text is what mica_error says now */
    while (mica_graph_tensor_at(t->graph, t->tensors, &info) == MICA_OK) t->tensors++;
    const size_t n = (size_t)t->tensors + 1;
    t->info = zeroed(n * sizeof *t->info);
    t->memory = zeroed(n * sizeof *t->memory);
    t->spans = zeroed(n * sizeof *t->spans);
    t->firsts = zeroed(n * sizeof *t->firsts);
    t->begin = zeroed(n * sizeof *t->begin);
    t->want = zeroed(n * sizeof *t->want);
    t->error = zeroed(n * sizeof *t->error);
    t->moved = zeroed(n * sizeof *t->moved);
    for (int i = 0; status == MICA_OK && i < t->tensors; i++) {
        mica_graph_tensor_at(t->graph, i, &t->info[i]);
        const mica_tensor *tensor = &t->info[i].tensor;
        const size_t count = (size_t)mica_tensor_count(tensor) + 1;
        t->spans[i] = mica_tensor_span(tensor, &t->firsts[i]);
        t->memory[i] = zeroed((size_t)t->spans[i] + 16);
        if (is_given(t->info[i].kind)) t->begin[i] = zeroed(count * sizeof(double));
        if (!is_result(t->info[i].kind)) continue;
        t->want[i] = zeroed(count * sizeof(double));
        t->error[i] = zeroed(count * sizeof(double));
        t->moved[i] = zeroed(count * sizeof(double));
    }
    mica_problem *problem;
    while (status == MICA_OK && mica_graph_problem(t->graph, t->nodes, &problem) == MICA_OK) {
        t->problems = cli_grow(t->problems, ((size_t)t->nodes + 1) * sizeof *t->problems);
        t->problems[t->nodes++] = problem;
    }
    t->order = zeroed(((size_t)t->nodes + 1) * sizeof *t->order);
    t->phi = zeroed(((size_t)t->nodes + 1) * sizeof *t->phi);
    t->floor = zeroed(((size_t)t->nodes + 1) * sizeof *t->floor);
    return status == MICA_OK ? read_order(t, context, nodes) : status;
}

void graph_truth_free(graph_truth *t)
{
    for (int i = 0; i < t->tensors; i++) {
        free(t->memory[i]);
        free(t->begin[i]);
        free(t->want[i]);
        free(t->error[i]);
        free(t->moved[i]);
    }
    for (int i = 0; i < t->nodes; i++) mica_problem_destroy(t->problems[i]);
    free(t->info);
    free(t->memory);
    free(t->spans);
    free(t->firsts);
    free(t->begin);
    free(t->want);
    free(t->error);
    free(t->moved);
    free(t->problems);
    free(t->order);
    free(t->phi);
    free(t->floor);
}

/* ---- data ---- */

static double draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

/* As the first node that reads all of it wants it: labels in range, variances positive. */
static mica_status make_data(graph_truth *t, int tensor, mica_fill fill, uint64_t seed)
{
    const mica_tensor *want = &t->info[tensor].tensor;
    mica_arg_info a;
    int64_t at = 0;
    for (int n = 0; n < t->nodes; n++)
        for (int i = 0; mica_problem_arg(t->problems[n], i, &a) == MICA_OK; i++) {
            const bool reads = a.dir == MICA_IN || a.dir == MICA_INOUT;
            if (!reads || mica_graph_bound(t->graph, n, i, &at) != tensor || at) continue;
            if (a.tensor.rank != want->rank ||
                memcmp(a.tensor.dims, want->dims, (size_t)want->rank * sizeof *want->dims) != 0)
                continue;
            return mica_problem_fill(t->problems[n], i, fill, seed + (uint64_t)tensor,
                                     t->begin[tensor]);
        }
    uint64_t state = seed * 977 + (uint64_t)tensor;
    for (int64_t i = 0; i < mica_tensor_count(want); i++) {
        double v = draw(&state) * 4 - 2;
        t->begin[tensor][i] = cli_unit(want->dtype) == 0 || fill == MICA_FILL_EXACT ? floor(v) : v;
        if (cli_unit(want->dtype) == 0) t->begin[tensor][i] = fabs(t->begin[tensor][i]);
    }
    return MICA_OK;
}

/* ---- nodes ---- */

/* What a result may be off by where it is made, by a node whose largest input is that. */
static double error_of(const graph_truth *t, int node, mica_dtype type, double value,
                       double magnitude, double largest)
{
    const double unit = cli_unit(type);
    if (unit == 0 || !isfinite(value)) return 0;
    return unit * fabs(value) + t->phi[node] * magnitude + t->floor[node] * largest +
           cli_tiny(type);
}

/* Of the numbers of an input that is no integer, or of those before it; element: its element 0. */
static mica_status find_largest(const mica_tensor *t, const void *element, double *largest)
{
    const int64_t count = mica_tensor_count(t);
    if (cli_unit(t->dtype) == 0 || count == 0) return MICA_OK;
    double *values = cli_alloc((size_t)count * sizeof *values);
    const mica_status status = mica_tensor_load(t, element, values);
    for (int64_t i = 0; status == MICA_OK && i < count; i++)
        if (isfinite(values[i]) && fabs(values[i]) > *largest) *largest = fabs(values[i]);
    free(values);
    return status;
}

static int64_t offset_of(const mica_tensor *t, int64_t i)
{
    int64_t at = 0;
    for (int d = t->rank - 1; d >= 0; d--) {
        at += i % t->dims[d] * t->strides[d];
        i /= t->dims[d];
    }
    return at;
}

/* Which elements of a tensor a part of it has; NULL: all, in their order. */
static int64_t *elements_of(const graph_truth *t, int tensor, const mica_tensor *part, int64_t at)
{
    const mica_tensor *whole = &t->info[tensor].tensor;
    const size_t size = (size_t)whole->rank * sizeof *whole->dims;
    if (mica_dtype_bits(whole->dtype) < 8) return NULL;
    if (!at && part->rank == whole->rank && !memcmp(part->dims, whole->dims, size) &&
        !memcmp(part->strides, whole->strides, size))
        return NULL;
    const int64_t bytes = mica_dtype_bits(whole->dtype) / 8, count = mica_tensor_count(part);
    const int64_t first = t->firsts[tensor] / bytes, all = mica_tensor_count(whole);
    int64_t *logical = zeroed((size_t)(t->spans[tensor] / bytes + 1) * sizeof *logical);
    int64_t *elements = zeroed((size_t)(count + 1) * sizeof *elements);
    for (int64_t i = 0; i < all; i++) logical[offset_of(whole, i) - first] = i;
    for (int64_t i = 0; i < count; i++) elements[i] = logical[offset_of(part, i) + at - first];
    free(logical);
    return elements;
}

/* A result goes into its tensor, or the part that begins at an element: as it is, or moved. */
static mica_status store(graph_truth *t, int node, int tensor, const mica_tensor *as, int64_t at,
                         double *values, const double *magnitudes, double largest, uint64_t *state)
{
    const int64_t count = mica_tensor_count(as), bits = mica_dtype_bits(as->dtype);
    int64_t *elements = t->want[tensor] ? elements_of(t, tensor, as, at) : NULL;
    for (int64_t i = 0; i < count; i++) {
        const double own = error_of(t, node, as->dtype, values[i], magnitudes[i], largest);
        const int64_t e = elements ? elements[i] : i;
        if (t->want[tensor] && !state) {
            t->want[tensor][e] = values[i];
            t->error[tensor][e] = own;
        }
        if (t->want[tensor] && state) {
            const double by = values[i] - t->want[tensor][e];
            if (values[i] != t->want[tensor][e] && !(isnan(values[i]) && isnan(t->want[tensor][e])))
                t->moved[tensor][e] = hypot(t->moved[tensor][e], by / sqrt(MOVES));
        }
        if (state) values[i] += (2 * draw(state) - 1) * spread * own;
    }
    free(elements);
    return mica_tensor_store(as, values,
                             (char *)t->memory[tensor] - t->firsts[tensor] + at * bits / 8);
}

static mica_status run_node(graph_truth *t, int node, uint64_t *state)
{
    void *args[MICA_MAX_ARGS] = {0};
    double *results[MICA_MAX_ARGS] = {0}, *magnitudes[MICA_MAX_ARGS] = {0};
    mica_arg_info a[MICA_MAX_ARGS];
    int64_t begins[MICA_MAX_ARGS] = {0};
    int count = 0, tensor[MICA_MAX_ARGS];
    double largest = 1;
    mica_status status = MICA_OK;
    for (; mica_problem_arg(t->problems[node], count, &a[count]) == MICA_OK; count++) {
        int64_t at = 0;
        const int i = tensor[count] = mica_graph_bound(t->graph, node, count, &at);
        if (i < 0) continue;
        begins[count] = at;
        args[count] =
            (char *)t->memory[i] - t->firsts[i] + at * mica_dtype_bits(t->info[i].tensor.dtype) / 8;
        if (a[count].dir != MICA_OUT && status == MICA_OK)
            status = find_largest(&a[count].tensor, args[count], &largest);
        if (a[count].dir != MICA_OUT && a[count].dir != MICA_INOUT) continue;
        const size_t n = (size_t)mica_tensor_count(&a[count].tensor) + 1;
        results[count] = zeroed(n * sizeof(double));
        magnitudes[count] = zeroed(n * sizeof(double));
    }
    if (status == MICA_OK)
        status = mica_problem_reference(t->problems[node], args, results, magnitudes);
    for (int i = 0; status == MICA_OK && i < count; i++)
        if (results[i])
            status = store(t, node, tensor[i], &a[i].tensor, begins[i], results[i], magnitudes[i],
                           largest, state);
    for (int i = 0; i < count; i++) {
        free(results[i]);
        free(magnitudes[i]);
    }
    return status;
}

/* All nodes; state: with results moved, else as they are. */
static mica_status run_nodes(graph_truth *t, uint64_t *state)
{
    mica_status status = MICA_OK;
    for (int i = 0; status == MICA_OK && i < t->tensors; i++) {
        char *element = (char *)t->memory[i] - t->firsts[i];
        const void *data = mica_graph_data(t->graph, i);
        memset(t->memory[i], 0, (size_t)t->spans[i]);
        if (data && t->spans[i] > 0)
            memcpy(t->memory[i], (const char *)data + t->firsts[i], (size_t)t->spans[i]);
        if (t->begin[i]) status = mica_tensor_store(&t->info[i].tensor, t->begin[i], element);
        /* what nobody writes stays */
        if (status == MICA_OK && t->begin[i] && t->want[i] && !state)
            status = mica_tensor_load(&t->info[i].tensor, element, t->want[i]);
    }
    for (int i = 0; status == MICA_OK && i < t->nodes; i++)
        status = run_node(t, t->order[i], state);
    return status;
}

mica_status graph_truth_data(graph_truth *t, mica_fill fill, uint64_t seed)
{
    mica_status status = MICA_OK;
    for (int i = 0; status == MICA_OK && i < t->tensors; i++)
        if (t->begin[i]) status = make_data(t, i, fill, seed);
    return status;
}

mica_status graph_truth_fill(graph_truth *t, mica_fill fill, uint64_t seed)
{
    uint64_t state = seed * 7919 + 1;
    mica_status status = graph_truth_data(t, fill, seed);
    for (int i = 0; i < t->tensors; i++) {
        if (t->moved[i])
            memset(t->moved[i], 0,
                   (size_t)mica_tensor_count(&t->info[i].tensor) * sizeof *t->moved[i]);
    }
    if (status == MICA_OK) status = run_nodes(t, NULL);
    for (int i = 0; status == MICA_OK && i < MOVES; i++) status = run_nodes(t, &state);
    return status;
}

double graph_truth_tolerance(const graph_truth *t, int tensor, int64_t i)
{
    return 2 * t->error[tensor][i] + safety * t->moved[tensor][i];
}

/* ---- on the device ---- */

enum { POISON = 0xff };

int graph_truth_tensor(const graph_truth *t, const char *name)
{
    int i = 0;
    while (strcmp(t->info[i].name, name) != 0) i++;
    return i;
}

void graph_truth_release(mica_context *context, graph_device *d)
{
    for (int i = 0; i < d->count; i++) mica_free(context, d->memory[i]);
    mica_free(context, d->workspace);
}

mica_status graph_truth_place(mica_context *context, const graph_truth *t,
                              const mica_graph_plan *plan, graph_device *d)
{
    mica_graph_tensor_info info;
    const int64_t bytes = (int64_t)mica_graph_plan_workspace(plan);
    mica_status status = mica_malloc(context, bytes, &d->workspace);
    if (status == MICA_OK) status = mica_memset(context, d->workspace, POISON, bytes, NULL);
    while (status == MICA_OK && mica_graph_plan_tensor(plan, d->count, &info) == MICA_OK) {
        if (d->count == GRAPH_TENSORS) return MICA_UNSUPPORTED;
        const int i = graph_truth_tensor(t, info.name), n = d->count;
        status = mica_malloc(context, t->spans[i], &d->memory[n]);
        if (status != MICA_OK) break;
        d->count++;
        d->tensors[n] = (char *)d->memory[n] - t->firsts[i];
        char *image = cli_alloc((size_t)t->spans[i] + 1);
        memset(image, POISON, (size_t)t->spans[i]);
        if (t->begin[i])
            status = mica_tensor_store(&info.tensor, t->begin[i], image - t->firsts[i]);
        if (status == MICA_OK)
            status = mica_upload(context, d->memory[n], image, t->spans[i], NULL);
        free(image);
    }
    return status;
}
