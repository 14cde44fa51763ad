/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu": token by token, in f32 (f64 for f64 logits). Sums over tokens are formed in double,
 * in PARTS pieces that do not depend on the number of threads. Cost: a pass of vector loops over
 * the experts for each one that is chosen, and one for exponentials where all of them count. */
#include "ops/moe_route/cpu/moe_route_cpu.h"
#include "cpu/cpu.h"

#include <string.h>

enum { PARTS = 64 };

typedef struct state {
    moe_route_run r;
    double bytes; /* of traffic and what arithmetic is worth, to choose threads */
    size_t p, counts;
    mica_store_fn aux, z;
} state;

static mica_status build(mica_plan *plan)
{
    const mica_moe_route_desc *d = plan->desc;
    const size_t experts = (size_t)d->logits.dims[1];
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    s->r = (moe_route_run){.d = d,
                           .by_score = moe_route_by_score(d),
                           .limits = moe_route_limits_groups(d),
                           .softmax = moe_route_needs_softmax(d),
                           .sums = moe_route_sums(d)};
    s->bytes =
        mica_op_bytes(plan->op, d) + 2 * (double)(d->k + 4) * (double)mica_tensor_count(&d->logits);
    if (mica_tensor_given(&d->aux)) s->aux = mica_dtype_store(d->aux.dtype);
    if (mica_tensor_given(&d->z)) s->z = mica_dtype_store(d->z.dtype);
    if (!s->r.sums) return MICA_OK;
    MICA_TRY(mica_book(plan, "sums of shares", PARTS * experts * sizeof(double), &s->p));
    return mica_book(plan, "counts", PARTS * experts * sizeof(int64_t), &s->counts);
}

static void put_losses(const state *s, const mica_run *run, const moe_route_part *parts)
{
    const mica_moe_route_desc *d = s->r.d;
    const double tokens = (double)d->logits.dims[0];
    const int64_t experts = d->logits.dims[1];
    double aux = 0, z = 0;
    for (int64_t e = 0; e < experts; e++) {
        double p = 0;
        int64_t count = 0;
        for (int i = 0; i < PARTS; i++) p += parts[i].p[e], count += parts[i].counts[e];
        aux += (double)count * p;
        if (mica_tensor_given(&d->counts))
            ((int32_t *)run->args[MICA_MOE_ROUTE_COUNTS])[e * d->counts.strides[0]] =
                (int32_t)count;
    }
    for (int i = 0; i < PARTS; i++) z += parts[i].z;
    if (s->aux) s->aux(run->args[MICA_MOE_ROUTE_AUX], 0, aux * (double)experts / tokens / tokens);
    if (s->z) s->z(run->args[MICA_MOE_ROUTE_Z], 0, z / tokens);
}

static void route(const state *s, const moe_route_run *r, int64_t first, int64_t end,
                  moe_route_part *part)
{
    if (moe_route_is_wide(s->r.d))
        moe_route_f64(r, first, end, part);
    else
        moe_route_f32(r, first, end, part);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    const int64_t tokens = s->r.d->logits.dims[0], experts = s->r.d->logits.dims[1];
    moe_route_run r = s->r;
    moe_route_part parts[PARTS];
    r.run = run;
    for (int i = 0; r.sums && i < PARTS; i++) {
        parts[i].p = (double *)mica_at(run, s->p) + i * experts;
        parts[i].counts = (int64_t *)mica_at(run, s->counts) + i * experts;
        parts[i].z = 0;
    }
#pragma omp parallel for num_threads(mica_cpu_threads_for(s->bytes)) schedule(static)
    for (int i = 0; i < PARTS; i++) {
        if (r.sums) {
            memset(parts[i].p, 0, (size_t)experts * sizeof *parts[i].p);
            memset(parts[i].counts, 0, (size_t)experts * sizeof *parts[i].counts);
        }
        route(s, &r, tokens / PARTS * i + (tokens % PARTS) * i / PARTS,
              tokens / PARTS * (i + 1) + (tokens % PARTS) * (i + 1) / PARTS,
              r.sums ? &parts[i] : NULL);
    }
    if (r.sums) put_losses(s, run, parts);
    return MICA_OK;
}

const mica_engine mica_moe_route_cpu = {
    .name = "cpu", .reached = 0.3, .start_ms = 1e-3, .build = build, .run = run};
