/* SPDX-License-Identifier: Apache-2.0
 * `mica bench`: the memory roof of a CPU, measured. What a core gets of the memory depends on the
 * machine and, in a virtual one, on its neighbours of the moment: so a large copy runs beside each
 * problem. A GPU's roof is that of its description. */
#include "bench/bench.h"
#include "bench/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COPIES = 5 };

struct bench_roof {
    mica_context *context;
    mica_plan *plan;
    void *from, *to;
    mica_event *start, *end;
    double bytes;
};

static mica_status begin(bench_roof *r, int64_t bytes)
{
    char *line = cli_format("transform x=f32:%lld", (long long)(bytes / 4));
    mica_status status = mica_plan_from_text(r->context, line, NULL, &r->plan);
    if (status == MICA_OK) status = mica_malloc(r->context, bytes, &r->from);
    if (status == MICA_OK) status = mica_malloc(r->context, bytes, &r->to);
    if (status == MICA_OK) status = mica_event_create(r->context, &r->start);
    if (status == MICA_OK) status = mica_event_create(r->context, &r->end);
    if (status == MICA_OK) memset(r->from, 0, (size_t)bytes), memset(r->to, 0, (size_t)bytes);
    free(line);
    return status;
}

bench_roof *bench_roof_create(mica_context *context, const mica_device_info *device)
{
    if (device->cuda) return NULL;
    int64_t bytes = device->memory_bytes / 16, most = 128 << 20;
    bench_roof *r = cli_alloc(sizeof *r);
    *r = (bench_roof){.context = context};
    bytes = bytes < most ? bytes / 4 * 4 : most;
    r->bytes = 2 * (double)bytes;
    if (begin(r, bytes) == MICA_OK) return r;
    cli_say("the copy bandwidth cannot be measured: %s", mica_error());
    bench_roof_free(r);
    return NULL;
}

void bench_roof_free(bench_roof *r)
{
    if (!r) return;
    mica_plan_destroy(r->plan);
    mica_event_destroy(r->context, r->start);
    mica_event_destroy(r->context, r->end);
    mica_free(r->context, r->from);
    mica_free(r->context, r->to);
    free(r);
}

/* Milliseconds of a copy; 0 if it failed. */
static double copy(const bench_roof *r)
{
    mica_run run = {.args = {[MICA_TRANSFORM_X] = r->from, [MICA_TRANSFORM_Y] = r->to}};
    double ms = 0;
    if (mica_event_record(r->context, r->start, NULL) == MICA_OK &&
        mica_plan_run(r->plan, &run) == MICA_OK &&
        mica_event_record(r->context, r->end, NULL) == MICA_OK &&
        mica_event_elapsed(r->context, r->start, r->end, &ms) == MICA_OK)
        return ms;
    return 0;
}

double bench_roof_gbps(const bench_roof *r)
{
    double ms[COPIES];
    if (!r) return 0;
    for (int i = 0; i < COPIES; i++) ms[i] = copy(r);
    double median = cli_median(ms, COPIES);
    return median > 0 ? r->bytes / (median * 1e6) : 0;
}

double bench_roof_ms(const mica_context *context, const mica_device_info *device,
                     const mica_problem *problem, double measured_gbps)
{
    double flops, bytes, modelled = mica_problem_roofline(context, problem);
    if (measured_gbps <= 0) return modelled;
    mica_problem_cost(problem, &flops, &bytes);
    double memory = bytes / (measured_gbps * 1e6);
    bool by_memory = modelled <= 1.001 * bytes / (device->copy_gbps * 1e6);
    return by_memory ? memory : fmax(modelled, memory);
}
