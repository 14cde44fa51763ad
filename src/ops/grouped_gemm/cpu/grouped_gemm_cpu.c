/* SPDX-License-Identifier: Apache-2.0
 * grouped_gemm on the CPU: gemm's own loops, group after group. Good for every type and stride.
 * Groups of much work are shared by all threads, one after the other; small ones go one to a
 * thread. Cost: that of gemm's engine "cpu", and the imbalance of the small ones. */
#include "ops/grouped_gemm/grouped_gemm.h"
#include "ops/gemm/cpu/gemm_cpu.h"
#include "cpu/cpu.h"

typedef struct state {
    grouped g;
    gemm_loops loops; /* of a group with all rows and terms */
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static mica_status build(mica_plan *plan)
{
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    grouped_make(plan->desc, &s->g);
    gemm_loops_make(&s->g.item, &s->loops);
    return MICA_OK;
}

static void run_group(const mica_plan *plan, const mica_run *r, int64_t index, grouped_span span,
                      int threads)
{
    const state *s = plan->state;
    gemm_loops loops = s->loops;
    void *args[MICA_MAX_ARGS] = {0};
    grouped_bind(&s->g, r->args, index, span.from, args);
    if (s->g.form == GROUPED_TERMS)
        loops.shape.k = span.count;
    else
        loops.shape.m = span.count;
    loops.threads = threads;
    gemm_cpu_epilogue finish = {.desc = &s->g.item,
                                .shape = &loops.shape,
                                .args = args,
                                .alpha = mica_run_scalar(plan, r, MICA_GROUPED_GEMM_ALPHA),
                                .beta = mica_run_scalar(plan, r, MICA_GROUPED_GEMM_BETA)};
    gemm_loops_run(&loops, &finish);
}

static double work_of(const state *s, grouped_span span)
{
    const gemm_shape *g = &s->loops.shape;
    double lines = s->g.form == GROUPED_TERMS ? (double)g->m : (double)g->k;
    return (double)span.count * lines * (double)g->n;
}

/* Runs every step-th small group from `first`, or, with step 0, the large ones. */
static void run_groups(const mica_plan *plan, const mica_run *r, int64_t first, int64_t step)
{
    const double large = 1e7;
    const state *s = plan->state;
    int64_t end = 0;
    for (int64_t i = 0; i < s->g.count; i++) {
        grouped_span span = grouped_next(&s->g, r->args[MICA_GROUPED_GEMM_GROUPS], i, &end);
        bool is_large = work_of(s, span) >= large;
        if (step == 0 && is_large) run_group(plan, r, i, span, mica_cpu_threads());
        if (step > 0 && !is_large && i % step == first) run_group(plan, r, i, span, 1);
    }
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    if (s->loops.shape.batches == 0) return MICA_OK; /* no rows or no columns */
    int threads = mica_cpu_threads();
    double flops, bytes;
    mica_op_grouped_gemm.cost(plan->desc, &flops, &bytes);
    if (mica_cpu_threads_for(bytes + flops / 4) == 1) threads = 1;
    run_groups(plan, r, 0, 0);
    if (threads == 1) {
        run_groups(plan, r, 0, 1);
        return MICA_OK;
    }
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int64_t i = 0; i < threads; i++) run_groups(plan, r, i, threads);
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    double flops, bytes;
    grouped g;
    grouped_make(desc, &g);
    mica_op_grouped_gemm.cost(desc, &flops, &bytes);
    double rows = g.form == GROUPED_TERMS ? (double)g.item.c.dims[0] : g.expected;
    return 2e-4 + gemm_loops_ms(device, flops, rows, bytes);
}

const mica_engine grouped_cpu = {
    .name = "cpu", .accepts = accepts, .predict = predict, .build = build, .run = run};
