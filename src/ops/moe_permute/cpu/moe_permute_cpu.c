/* SPDX-License-Identifier: Apache-2.0
 * Engines "cpu". moe_permute: choices are counted and placed by one thread, in their order, and
 * rows copied by all. moe_unpermute: tokens, rows and choices each by one thread, in f32 (f64 for
 * f64 x). Cost: memory's. */
#include "ops/moe_permute/cpu/moe_permute_cpu.h"
#include "cpu/cpu.h"

#include <string.h>

typedef struct state {
    size_t count; /* of the workspace */
    double bytes; /* of traffic, to choose threads */
} state;

static mica_status build_permute(mica_plan *plan)
{
    const mica_moe_permute_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    s->bytes = mica_op_bytes(plan->op, d);
    return mica_book(plan, "counts", (size_t)d->experts * sizeof(int64_t), &s->count);
}

static void copy_row(const mica_moe_permute_desc *d, const mica_run *run, int64_t row)
{
    const size_t size = (size_t)mica_dtype_bits(d->x.dtype) / 8;
    const int64_t columns = d->x.dims[1], from = d->x.strides[1], to = d->y.strides[1];
    const int64_t c =
        moe_map_get(&d->rows, run->args[MICA_MOE_PERMUTE_ROWS], row * d->rows.strides[0]);
    char *y = (char *)run->args[MICA_MOE_PERMUTE_Y] + row * d->y.strides[0] * (int64_t)size;
    const char *x = run->args[MICA_MOE_PERMUTE_X];
    if (c >= 0) x += c / d->indices.dims[1] * d->x.strides[0] * (int64_t)size;
    if (to == 1 && (from == 1 || c < 0)) {
        if (c >= 0)
            memcpy(y, x, (size_t)columns * size);
        else
            memset(y, 0, (size_t)columns * size);
        return;
    }
    for (int64_t i = 0; i < columns; i++, y += to * (int64_t)size, x += from * (int64_t)size) {
        if (c >= 0)
            memcpy(y, x, size);
        else
            memset(y, 0, size);
    }
}

static mica_status run_permute(const mica_plan *plan, const mica_run *run)
{
    const mica_moe_permute_desc *d = plan->desc;
    const state *s = plan->state;
    const moe_maps maps = {run->args[MICA_MOE_PERMUTE_INDICES], run->args[MICA_MOE_PERMUTE_OFFSETS],
                           run->args[MICA_MOE_PERMUTE_ROWS], run->args[MICA_MOE_PERMUTE_PLACES],
                           mica_at(run, s->count)};
    moe_permute_sort(d, &maps);
    if (!mica_tensor_given(&d->x)) return MICA_OK;
#pragma omp parallel for num_threads(mica_cpu_threads_for(s->bytes)) schedule(static)
    for (int64_t r = 0; r < d->rows.dims[0]; r++) copy_row(d, run, r);
    return MICA_OK;
}

static mica_status build_unpermute(mica_plan *plan)
{
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    s->bytes = mica_op_bytes(plan->op, plan->desc);
    return MICA_OK;
}

static mica_status run_unpermute(const mica_plan *plan, const mica_run *run)
{
    const mica_moe_unpermute_desc *d = plan->desc;
    const state *s = plan->state;
    const bool wide = d->x.dtype == MICA_F64, fwd = d->pass == MICA_MOE_UNPERMUTE_FWD;
    const int64_t sums = fwd ? d->places.dims[0] : d->x.dims[0];
    const int64_t dots = mica_tensor_given(&d->dweights) ? mica_tensor_count(&d->dweights) : 0;
#pragma omp parallel for num_threads(mica_cpu_threads_for(s->bytes)) schedule(static)
    for (int64_t i = 0; i < sums; i++) {
        if (fwd)
            (wide ? moe_sum_f64 : moe_sum_f32)(d, run, i);
        else
            (wide ? moe_row_f64 : moe_row_f32)(d, run, i);
    }
#pragma omp parallel for num_threads(mica_cpu_threads_for(s->bytes)) schedule(static)
    for (int64_t c = 0; c < dots; c++) (wide ? moe_dot_f64 : moe_dot_f32)(d, run, c);
    return MICA_OK;
}

const mica_engine moe_permute_cpu = {
    .name = "cpu", .reached = 0.5, .start_ms = 1e-3, .build = build_permute, .run = run_permute};
const mica_engine moe_unpermute_cpu = {.name = "cpu",
                                       .reached = 0.5,
                                       .start_ms = 1e-3,
                                       .build = build_unpermute,
                                       .run = run_unpermute};
