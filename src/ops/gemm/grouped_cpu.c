/* SPDX-License-Identifier: Apache-2.0
 * grouped_gemm on the CPU: gemm's own loops, group after group. Good for every type and stride.
 * Groups of much work are shared by all threads, one after the other; small ones go one to a
 * thread. Cost: that of gemm's engine of the same name ("cpu", or "bf16" for that type), and the
 * imbalance of the small ones. */
#include "ops/gemm/grouped.h"
#include "ops/gemm/gemm_bf16.h"
#include "ops/gemm/gemm_cpu.h"
#include "cpu/cpu.h"

#include <string.h>

typedef struct state {
    grouped g;
    gemm_loops loops; /* of a group with all rows and terms */
    gemm_bf16_loops bf16;
    bool is_bf16;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static mica_status accepts_bf16(const void *desc, const mica_device_info *device, mica_why *why)
{
    grouped g;
    (void)device;
    grouped_make(desc, &g);
    return gemm_bf16_takes(&g.item, why);
}

static int configs_bf16(const void *desc, const mica_device_info *device, mica_config *list)
{
    (void)desc, (void)device;
    return gemm_bf16_units(list);
}

static void contract_bf16(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)desc;
    gemm_bf16_contract(config, c);
}

static mica_status build(mica_plan *plan)
{
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    grouped_make(plan->desc, &s->g);
    s->is_bf16 = plan->engine == &grouped_bf16;
    gemm_loops_make(&s->g.item, &s->loops);
    if (s->is_bf16) gemm_bf16_make(&s->g.item, &plan->config, &s->bf16);
    return MICA_OK;
}

static void *part_of(const state *s, const mica_run *r, int tensor, int64_t index, int64_t from)
{
    const mica_tensor *t =
        (const mica_tensor *)((const char *)&s->g.item + mica_op_gemm.args[tensor].tensor);
    char *p = r->args[tensor];
    int64_t at = grouped_offset(&s->g, tensor, index, from);
    return p ? p + at * mica_dtype_bits(t->dtype) / 8 : NULL;
}

/* A group on the matrix unit. */
static void run_group_bf16(const state *s, const gemm_finish *finish, int threads)
{
    gemm_bf16_loops loops = s->bf16;
    loops.shape = *finish->shape;
    loops.threads = threads;
    gemm_bf16_run(&loops, finish);
}

static void run_group(const mica_plan *plan, const mica_run *r, int64_t index, grouped_span span,
                      int threads)
{
    const state *s = plan->state;
    gemm_loops loops = s->loops;
    void *args[MICA_MAX_ARGS] = {0};
    for (int t = 0; t < GROUPED_TENSORS; t++) args[t] = part_of(s, r, t, index, span.from);
    if (s->g.form == GROUPED_TERMS)
        loops.shape.k = span.count;
    else
        loops.shape.m = span.count;
    loops.threads = threads;
    gemm_finish finish = {.desc = &s->g.item,
                          .shape = &loops.shape,
                          .args = args,
                          .alpha = mica_run_scalar(plan, r, MICA_GROUPED_GEMM_ALPHA),
                          .beta = mica_run_scalar(plan, r, MICA_GROUPED_GEMM_BETA)};
    if (s->is_bf16)
        run_group_bf16(s, &finish, threads);
    else
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
    mica_op_grouped_gemm.cost(desc, &flops, &bytes);
    double compute = flops / (0.35 * device->f32_tflops * 1e9);
    double memory = bytes / (0.5 * device->copy_gbps * 1e6);
    return 2e-4 + (compute > memory ? compute : memory);
}

static double predict_bf16(const void *desc, const mica_device_info *device,
                           const mica_config *config)
{
    const double pack_rows = 100;
    double flops, bytes;
    grouped g;
    grouped_make(desc, &g);
    mica_op_grouped_gemm.cost(desc, &flops, &bytes);
    double rows = g.form == GROUPED_TERMS ? (double)g.item.c.dims[0] : g.expected;
    if (rows > 0) flops *= 1 + pack_rows / (rows < 256 ? rows : 256);
    double compute = flops / (gemm_bf16_rate(config) * device->f32_tflops * 1e9);
    double memory = bytes / (0.5 * device->copy_gbps * 1e6);
    return 4e-4 + (compute > memory ? compute : memory);
}

static const char *const knobs_bf16[] = {"unit", NULL};

const mica_engine grouped_bf16 = {.name = "bf16",
                                  .knobs = knobs_bf16,
                                  .accepts = accepts_bf16,
                                  .configs = configs_bf16,
                                  .predict = predict_bf16,
                                  .contract = contract_bf16,
                                  .build = build,
                                  .run = run};

const mica_engine grouped_cpu = {
    .name = "cpu", .accepts = accepts, .predict = predict, .build = build, .run = run};
