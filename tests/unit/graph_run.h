/* SPDX-License-Identifier: Apache-2.0
 * Running graphs from text on made-up data, for unit tests. */
#ifndef MICA_TESTS_UNIT_GRAPH_RUN_H
#define MICA_TESTS_UNIT_GRAPH_RUN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mica/mica.h"

enum { GRAPH_MOST = 64 };

static mica_context *context;

static int open_context(void **state)
{
    (void)state;
    return mica_context_create("cpu", &context) != MICA_OK;
}

static int close_context(void **state)
{
    (void)state;
    mica_context_destroy(context);
    return 0;
}

typedef struct graph_run {
    mica_graph_plan *plan;
    double *values[GRAPH_MOST]; /* of real tensors, behind the run */
    int64_t counts[GRAPH_MOST];
    int steps, taken;
    char reasons[4096]; /* of rewrites that were not taken, a line each */
} graph_run;

static inline mica_graph *graph_of(const char *text)
{
    mica_graph *g;
    if (mica_graph_from_text(text, &g) != MICA_OK) fail_msg("%s\n%s", mica_error(), text);
    return g;
}

/* Sums of f32, of up to 72 products of up to 3.5^2 in whatever order an engine has: 72 12.25 2^-24
 * is 5e-5. A step that is missing or twice there is off by more than 1e-2. */
#define GRAPH_NEAR 1e-4

/* Whole numbers between -3 and 3: sums are exact. */
static inline double made_up(int tensor, int64_t i)
{
    uint64_t h = ((uint64_t)tensor + 1) * 1000003u + (uint64_t)i;
    h = (h ^ h >> 31) * UINT64_C(0x9e3779b97f4a7c15);
    return (double)(h >> 40) / (1 << 24) * 7 - 3.5;
}

static inline void run_plan(graph_run *r, bool whole)
{
    void *blocks[GRAPH_MOST] = {0}, *tensors[GRAPH_MOST] = {0};
    mica_graph_tensor_info info;
    int n = 0;
    for (; mica_graph_plan_tensor(r->plan, n, &info) == MICA_OK; n++) {
        int64_t first, span = mica_tensor_span(&info.tensor, &first);
        r->counts[n] = mica_tensor_count(&info.tensor);
        blocks[n] = malloc((size_t)span + 16);
        tensors[n] = (char *)blocks[n] - first;
        memset(blocks[n], 0xff, (size_t)span + 16);
        r->values[n] = malloc(((size_t)r->counts[n] + 1) * sizeof(double));
        for (int64_t i = 0; i < r->counts[n]; i++)
            r->values[n][i] = whole ? round(made_up(n, i)) : made_up(n, i);
        if (info.kind != MICA_GRAPH_OUTPUT)
            assert_int_equal(mica_tensor_store(&info.tensor, r->values[n], tensors[n]), MICA_OK);
    }
    size_t space = mica_graph_plan_workspace(r->plan);
    char *workspace = aligned_alloc(256, space + 256);
    memset(workspace, 0xff, space + 256);
    const mica_graph_run run = {.tensors = tensors, .workspace = space ? workspace : NULL};
    if (mica_graph_plan_run(r->plan, &run) != MICA_OK) fail_msg("%s", mica_error());
    for (size_t i = 0; i < 256; i++) assert_int_equal((unsigned char)workspace[space + i], 0xff);
    for (int i = 0; i < n; i++) {
        mica_graph_plan_tensor(r->plan, i, &info);
        assert_int_equal(mica_tensor_load(&info.tensor, tensors[i], r->values[i]), MICA_OK);
        free(blocks[i]);
    }
    free(workspace);
}

static inline graph_run run_graph(const mica_graph *g, const mica_graph_options *options,
                                  bool whole)
{
    graph_run r = {0};
    mica_graph_step step;
    mica_graph_attempt a;
    if (mica_graph_plan_create(context, g, options, &r.plan) != MICA_OK)
        fail_msg("%s", mica_error());
    while (mica_graph_plan_step(r.plan, r.steps, &step) == MICA_OK) r.steps++;
    for (int i = 0; mica_graph_plan_attempt(r.plan, i, &a) == MICA_OK; i++) {
        size_t used = strlen(r.reasons);
        r.taken += a.taken;
        if (!a.taken)
            snprintf(r.reasons + used, sizeof r.reasons - used, "%s: %s\n", a.rewrite, a.reason);
    }
    run_plan(&r, whole);
    return r;
}

static inline void forget_run(graph_run *r)
{
    mica_graph_plan_destroy(r->plan);
    for (int i = 0; i < GRAPH_MOST; i++) free(r->values[i]);
}

static inline void agree(const graph_run *a, const graph_run *b, double relative, const char *what)
{
    for (int i = 0; i < GRAPH_MOST && a->values[i]; i++)
        for (int64_t k = 0; k < a->counts[i]; k++) {
            double p = a->values[i][k], q = b->values[i][k];
            if (p == q || (isnan(p) && isnan(q))) continue;
            if (!(fabs(p - q) <= relative * (1 + fabs(q))))
                fail_msg("%s: tensor %d, element %lld: %.9g and %.9g", what, i, (long long)k, p, q);
        }
}

/* Fused, unfused, one by one and by the references alone: all agree. Returns the launches that
 * fusing leaves. */
static inline graph_run agrees_whole(const char *text, double relative, bool whole)
{
    mica_graph *g = graph_of(text);
    const mica_options reference = {.engine = "ref"};
    const mica_graph_options unfused = {.mode = MICA_GRAPH_UNFUSED};
    const mica_graph_options separate = {.mode = MICA_GRAPH_SEPARATE, .nodes = &reference};
    graph_run a = run_graph(g, NULL, whole), b = run_graph(g, &unfused, whole);
    graph_run c = run_graph(g, &separate, whole);
    agree(&b, &c, relative, "unfused and the references");
    agree(&a, &c, relative, "fused and the references");
    forget_run(&b);
    forget_run(&c);
    mica_graph_destroy(g);
    return a;
}

/* Launches behind fusing, and how many rewrites were taken; -1: several ways lead there. */
static inline void fuses_to(const char *text, int steps, int taken)
{
    graph_run r = agrees_whole(text, GRAPH_NEAR, false);
    if (r.steps != steps || (taken >= 0 && r.taken != taken))
        fail_msg("%d launches by %d rewrites, not %d by %d:\n%s%s", r.steps, r.taken, steps, taken,
                 text, r.reasons);
    forget_run(&r);
}

/* Nothing is fused, and a reason has those words. */
static inline void stays(const char *text, int steps, const char *words)
{
    graph_run r = agrees_whole(text, GRAPH_NEAR, false);
    if (r.steps != steps || !strstr(r.reasons, words))
        fail_msg("%d launches, not %d, or no \"%s\":\n%s%s", r.steps, steps, words, text,
                 r.reasons);
    forget_run(&r);
}

static inline void invalid(const char *text, const char *words)
{
    mica_graph *g;
    mica_status status = mica_graph_from_text(text, &g);
    if (status == MICA_OK) {
        status = mica_graph_infer(g);
        mica_graph_destroy(g);
    }
    if (status != MICA_INVALID || !strstr(mica_error(), words))
        fail_msg("%s\n%s: \"%s\" has no \"%s\"", text, mica_status_name(status), mica_error(),
                 words);
}

#endif
