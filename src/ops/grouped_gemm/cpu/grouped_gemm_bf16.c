/* SPDX-License-Identifier: Apache-2.0
 * grouped_gemm of bf16 on the CPU: tasks of gemm's engine "bf16", those of all groups dealt out to
 * the threads in turn, so that no group is waited for. Cost: that of gemm's. */
#include "ops/gemm/cpu/gemm_bf16.h"
#include "ops/grouped_gemm/grouped_gemm.h"
#include "cpu/cpu.h"

#include <omp.h>

typedef struct state {
    grouped g;
    gemm_bf16_loops loops; /* of a group with all rows and terms */
    int threads;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    grouped g;
    (void)device;
    grouped_make(desc, &g);
    return gemm_bf16_takes(&g.item, why);
}

static int configs(const void *desc, const mica_device_info *device, mica_config *list)
{
    (void)desc, (void)device;
    return gemm_bf16_units(list);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    double flops, bytes;
    grouped g;
    grouped_make(desc, &g);
    mica_op_grouped_gemm.cost(desc, &flops, &bytes);
    double rows = g.form == GROUPED_TERMS ? (double)g.item.c.dims[0] : g.expected;
    return 4e-4 + gemm_bf16_ms(config, device, flops, rows, bytes);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)desc;
    gemm_bf16_contract(config, c);
}

static mica_status build(mica_plan *plan)
{
    state *s;
    double flops, bytes;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    grouped_make(plan->desc, &s->g);
    gemm_bf16_make(&s->g.item, &plan->config, &s->loops);
    mica_op_grouped_gemm.cost(plan->desc, &flops, &bytes);
    s->threads = mica_cpu_threads_planned(bytes + flops / (4 * gemm_bf16_rate(&plan->config)));
    return MICA_OK;
}

/* Every `step`-th task of all groups, from `first` on. */
static void run_share(const mica_plan *plan, const mica_run *r, int64_t first, int64_t step)
{
    const state *s = plan->state;
    int64_t end = 0, next = first;
    for (int64_t i = 0; i < s->g.count; i++) {
        grouped_span span = grouped_next(&s->g, r->args[MICA_GROUPED_GEMM_GROUPS], i, &end);
        gemm_bf16_loops loops = s->loops;
        void *args[MICA_MAX_ARGS] = {0};
        grouped_bind(&s->g, r->args, i, span.from, args);
        if (s->g.form == GROUPED_TERMS)
            loops.shape.k = span.count;
        else
            loops.shape.m = span.count;
        gemm_cpu_epilogue finish = {.desc = &s->g.item,
                                    .shape = &loops.shape,
                                    .args = args,
                                    .alpha = mica_run_scalar(plan, r, MICA_GROUPED_GEMM_ALPHA),
                                    .beta = mica_run_scalar(plan, r, MICA_GROUPED_GEMM_BETA)};
        int64_t tasks = gemm_bf16_tasks(&loops.shape);
        for (; next < tasks; next += step) gemm_bf16_run_task(&loops, &finish, next);
        next -= tasks;
    }
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    int threads = mica_cpu_threads(); /* fewer than at build time in a forked child */
    if (s->loops.shape.batches == 0) return MICA_OK; /* no rows or no columns */
    if (threads > s->threads) threads = s->threads;
    if (threads == 1) {
        run_share(plan, r, 0, 1);
        return MICA_OK;
    }
#pragma omp parallel num_threads(threads)
    run_share(plan, r, omp_get_thread_num(), omp_get_num_threads());
    return MICA_OK;
}

static const char *const knobs[] = {"unit", NULL};

const mica_engine grouped_bf16 = {.name = "bf16",
                                  .knobs = knobs,
                                  .accepts = accepts,
                                  .configs = configs,
                                  .predict = predict,
                                  .contract = contract,
                                  .build = build,
                                  .run = run};
