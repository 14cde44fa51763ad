/* SPDX-License-Identifier: Apache-2.0
 * `mica check` of graphs: fused, unfused and node by node, beside the references of the nodes. */
#include "graph/graph_truth.h"
#include "check/check.h"
#include "json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Integers are whole: a half more is the same number. */
static bool passes(const graph_truth *t, int tensor, int64_t i, double got, double *margin)
{
    const double want = t->want[tensor][i];
    const mica_dtype type = t->info[tensor].tensor.dtype;
    double tolerance = graph_truth_tolerance(t, tensor, i);
    if (cli_unit(type) == 0) tolerance += 0.5 + tolerance;
    if (isnan(tolerance)) return true; /* moved into or out of what is no number */
    if (got == want || (isnan(got) && isnan(want)) || got == cli_quantize(type, want)) return true;
    const double ratio = fabs(got - want) / (tolerance > 0 ? tolerance : 1e-300);
    if (!(ratio <= *margin)) *margin = ratio;
    return ratio <= 1;
}

static bool says_little(const graph_truth *t, int tensor)
{
    const int64_t count = mica_tensor_count(&t->info[tensor].tensor);
    int64_t sharp = 0;
    for (int64_t i = 0; i < count; i++)
        sharp += graph_truth_tolerance(t, tensor, i) <= fabs(t->want[tensor][i]) / 4;
    return count > 1 && sharp < count / 4;
}

static mica_status judge(check *c, const graph_truth *t, const mica_graph_plan *plan,
                         const graph_device *d, check_outcome *o, char *text, size_t size)
{
    mica_graph_tensor_info info;
    mica_status status = MICA_OK;
    for (int n = 0; status == MICA_OK && n < d->count; n++) {
        mica_graph_plan_tensor(plan, n, &info);
        const int i = graph_truth_tensor(t, info.name);
        const int64_t count = mica_tensor_count(&info.tensor);
        if (!t->want[i] || !count) continue;
        char *image = cli_alloc((size_t)t->spans[i] + 1);
        double *got = cli_alloc((size_t)count * sizeof *got);
        status = mica_download(c->context, image, d->memory[n], t->spans[i], NULL);
        if (status == MICA_OK) status = mica_tensor_load(&info.tensor, image - t->firsts[i], got);
        for (int64_t k = 0; status == MICA_OK && k < count; k++) {
            if (passes(t, i, k, got[k], &o->margin) || o->status == CHECK_MISMATCH) continue;
            o->status = CHECK_MISMATCH;
            snprintf(text, size, "%s[%lld] is %.9g, the references give %.9g, within %.3g",
                     info.name, (long long)k, got[k], t->want[i][k],
                     graph_truth_tolerance(t, i, k));
        }
        if (o->status == CHECK_PASSED && says_little(t, i)) {
            o->status = CHECK_MISTRUSTED;
            snprintf(text, size, "%s may be off by most of what it is", info.name);
        }
        free(image);
        free(got);
    }
    return status;
}

/* The run that is judged. A replay makes another one before, elsewhere: what was recorded there
 * must then be changed in place. */
static mica_status run(check *c, const graph_truth *t, const mica_graph_plan *plan,
                       const graph_device *d, bool replay, bool *replayed)
{
    mica_graph_replays r = {0};
    graph_device *first = cli_alloc(sizeof *first);
    *first = (graph_device){.count = 0};
    mica_status status = replay ? graph_truth_place(c->context, t, plan, first) : MICA_OK;
    for (int i = replay ? 0 : 1; status == MICA_OK && i < 2; i++) {
        const graph_device *at = i ? d : first;
        status = mica_graph_plan_run(
            plan, &(mica_graph_run){.tensors = at->tensors, .workspace = at->workspace});
    }
    if (status == MICA_OK) status = mica_synchronize(c->context, NULL);
    *replayed = mica_graph_plan_replays(plan, &r) == MICA_OK && r.launched == 2 && r.updated > 0;
    graph_truth_release(c->context, first);
    free(first);
    return status;
}

/* A plan of other extents must not run: memory is of these. */
static bool has_tensors(const graph_truth *t, const mica_graph_plan *plan, char *text, size_t size)
{
    mica_graph_tensor_info info;
    for (int n = 0; mica_graph_plan_tensor(plan, n, &info) == MICA_OK; n++) {
        const int i = graph_truth_tensor(t, info.name);
        char have[256], want[256];
        mica_tensor_text(&info.tensor, have, sizeof have);
        mica_tensor_text(&t->info[i].tensor, want, sizeof want);
        if (!strcmp(have, want)) continue;
        snprintf(text, size, "the plan has %.60s as %.120s, the graph as %.120s", info.name, have,
                 want);
        return false;
    }
    return true;
}

static void check_mode(check *c, const cli_graph *g, const graph_truth *t, mica_graph_mode mode,
                       mica_fill fill, bool replay)
{
    char text[400] = "";
    bool replayed = false;
    const mica_options nodes = {.engine = c->engine, .nondeterministic = true};
    mica_graph_options options = cli_graph_options(g, mode, &nodes);
    mica_graph_plan *plan = NULL;
    graph_device *d = cli_alloc(sizeof *d);
    *d = (graph_device){.count = 0};
    check_outcome o = {.line = g->line,
                       .engine = replay ? "replay" : cli_graph_modes[mode],
                       .config = "",
                       .fill = cli_fill_names[fill],
                       .text = text};
    options.replay = replay;
    mica_status status = cli_graph_plan(c->context, g, &options, &plan);
    const bool fits = status != MICA_OK || has_tensors(t, plan, text, sizeof text);
    if (!fits) o.status = CHECK_MISMATCH;
    if (status == MICA_OK && fits) status = graph_truth_place(c->context, t, plan, d);
    if (status == MICA_OK && fits) status = run(c, t, plan, d, replay, &replayed);
    if (status == MICA_OK && fits) status = judge(c, t, plan, d, &o, text, sizeof text);
    if (status == MICA_OK && replay && !replayed && o.status == CHECK_PASSED) {
        o.status = CHECK_REFUSED;
        snprintf(text, sizeof text, "its launches were not replayed; MICA_LOG=info says why");
    }
    check_call_failed(c, status, &o, text, sizeof text);
    check_record(c, &o);
    graph_truth_release(c->context, d);
    mica_graph_plan_destroy(plan);
    free(d);
}

static void compile_graph(check *c, const cli_graph *g)
{
    char text[400] = "";
    const mica_graph_options options = cli_graph_options(g, g->mode, NULL);
    mica_graph_plan *plan = NULL;
    check_outcome o = {
        .line = g->line, .engine = cli_graph_modes[g->mode], .fill = "", .text = text};
    mica_status status = cli_graph_plan(c->context, g, &options, &plan);
    check_call_failed(c, status, &o, text, sizeof text);
    check_record(c, &o);
    mica_graph_plan_destroy(plan);
}

void check_graphs(check *c)
{
    cli_graphs_spread(&c->graphs, c->seed);
    for (int i = 0; i < c->graphs.count && !cli_stopped() && !c->lost; i++) {
        const cli_graph *g = &c->graphs.items[i];
        const mica_options nodes = {.engine = c->engine, .nondeterministic = true};
        if (c->compile_only) {
            compile_graph(c, g);
            continue;
        }
        graph_truth t;
        mica_status status = graph_truth_init(&t, c->context, g, &nodes);
        for (int fill = 0; cli_fill_names[fill] && status == MICA_OK; fill++) {
            /* what adversarial data overflows in one node says nothing of the others */
            if (!c->fills[fill] || fill > MICA_FILL_SAME_SIGN || cli_stopped()) continue;
            status = graph_truth_fill(&t, (mica_fill)fill, c->seed);
            for (int mode = 0; cli_graph_modes[mode] && status == MICA_OK && !c->lost; mode++)
                check_mode(c, g, &t, (mica_graph_mode)mode, (mica_fill)fill, false);
            if (status == MICA_OK && !c->lost && c->device.cuda)
                check_mode(c, g, &t, g->mode, (mica_fill)fill, true);
        }
        if (status != MICA_OK) {
            char text[400] = "";
            check_outcome o = {.line = g->line, .engine = "any", .fill = "", .text = text};
            check_call_failed(c, status, &o, text, sizeof text);
            check_record(c, &o);
        }
        graph_truth_free(&t);
    }
}
