/* SPDX-License-Identifier: Apache-2.0
 * `mica bench` of graphs: fused and unfused in turns, on the same data. Runs are made chains where
 * one is short, as plans of problems are; data stays where it is, as it does between the steps of a
 * network. */
#include "graph/graph_bench.h"
#include "graph/graph_truth.h"
#include "bench/table.h"

#include <stdlib.h>
#include <string.h>

static const double chain_ms = 2; /* what a sample takes at least */

typedef struct timed {
    mica_graph_plan *plan;
    graph_device *device;
    mica_event *from, *to;
    long runs; /* of a sample */
} timed;

static mica_status sample(mica_context *context, const timed *t, double *ms)
{
    const mica_graph_run run = {.tensors = t->device->tensors, .workspace = t->device->workspace};
    mica_status status = mica_event_record(context, t->from, NULL);
    for (long i = 0; status == MICA_OK && i < t->runs; i++)
        status = mica_graph_plan_run(t->plan, &run);
    if (status == MICA_OK) status = mica_event_record(context, t->to, NULL);
    if (status == MICA_OK) status = mica_event_elapsed(context, t->from, t->to, ms);
    *ms /= (double)t->runs;
    return status;
}

static mica_status begin(mica_context *context, const graph_truth *truth, const cli_graph *g,
                         mica_graph_mode mode, const mica_options *nodes, timed *t)
{
    const mica_graph_options options = cli_graph_options(g, mode, nodes);
    double ms = 0;
    *t = (timed){.device = cli_alloc(sizeof *t->device), .runs = 1};
    memset(t->device, 0, sizeof *t->device);
    mica_status status = cli_graph_plan(context, g, &options, &t->plan);
    if (status == MICA_OK) status = graph_truth_place(context, truth, t->plan, t->device);
    if (status == MICA_OK) status = mica_event_create(context, &t->from);
    if (status == MICA_OK) status = mica_event_create(context, &t->to);
    for (int i = 0; status == MICA_OK && i < 2; i++) status = sample(context, t, &ms);
    if (status == MICA_OK && ms < chain_ms)
        t->runs = (long)(chain_ms / (ms > 1e-4 ? ms : 1e-4)) + 1;
    return status;
}

static void end(mica_context *context, timed *t)
{
    mica_event_destroy(context, t->from);
    mica_event_destroy(context, t->to);
    graph_truth_release(context, t->device);
    mica_graph_plan_destroy(t->plan);
    free(t->device);
}

/* Arithmetic, traffic and least time of the launches that are left. */
static void cost(mica_context *context, const mica_graph_plan *plan, graph_timing *r)
{
    mica_graph_step s;
    for (int i = 0; mica_graph_plan_step(plan, i, &s) == MICA_OK; i++) {
        mica_problem *problem;
        double flops, bytes;
        char *line = cli_alloc((size_t)mica_plan_describe(s.plan, NULL, 0) + 1);
        mica_plan_describe(s.plan, line, (size_t)mica_plan_describe(s.plan, NULL, 0) + 1);
        if (mica_problem_from_text(line, &problem) == MICA_OK) {
            mica_problem_cost(problem, &flops, &bytes);
            r->flops += flops;
            r->bytes += bytes;
            r->roof_ms += mica_problem_roofline(context, problem);
            mica_problem_destroy(problem);
        }
        free(line);
    }
}

static mica_status time_both(mica_context *context, timed *modes, graph_timing *results, int count,
                             double seconds, size_t least)
{
    mica_status status = MICA_OK;
    const double start = cli_seconds();
    for (size_t n = 0; status == MICA_OK && !cli_stopped(); n++) {
        const double spent = cli_seconds() - start;
        if ((n >= least && spent > seconds * count) || spent > 10 * seconds * count) break;
        for (int m = 0; status == MICA_OK && m < count; m++) {
            graph_timing *r = &results[m];
            r->samples = cli_grow(r->samples, (r->count + 1) * sizeof *r->samples);
            status = sample(context, &modes[m], &r->samples[r->count++]);
        }
    }
    return status;
}

mica_status graph_time(mica_context *context, const cli_graph *g, const mica_options *nodes,
                       double seconds, size_t least, graph_timing *results)
{
    graph_truth truth;
    timed modes[GRAPH_TIMED] = {{0}};
    int begun = 0;
    mica_status status = graph_truth_init(&truth, context, g, nodes);
    if (status == MICA_OK) status = graph_truth_data(&truth, MICA_FILL_RANDOM, 1);
    while (status == MICA_OK && begun < GRAPH_TIMED) {
        results[begun] = (graph_timing){.mode = (mica_graph_mode)begun};
        status = begin(context, &truth, g, (mica_graph_mode)begun, nodes, &modes[begun]);
        begun++;
    }
    if (status == MICA_OK) status = time_both(context, modes, results, begun, seconds, least);
    for (int i = 0; status == MICA_OK && i < begun; i++) cost(context, modes[0].plan, &results[i]);
    for (int i = 0; i < begun; i++) end(context, &modes[i]);
    graph_truth_free(&truth);
    return status;
}
