/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of affine_grid: any types and strides. Along a row of outputs each coordinate is
 * the base coordinate of the last axis times a number, and another; backward a row is two sums of
 * each coordinate, its own and that times the base coordinates. Rows are summed in parts that do
 * not depend on the number of threads. Bound by memory. Workspace: the sums of parts. */
#include "ops/affine_grid/cpu/affine_grid_cpu.h"

enum { PART_ELEMENTS = 1 << 14 };

typedef struct state {
    mica_affine_walk walk;
    size_t sums;
} state;

static mica_status build(mica_plan *plan)
{
    const mica_affine_grid_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_affine_walk *w = &s->walk;
    w->d = d, w->grid = mica_affine_grid_of(d), w->theta = mica_affine_grid_theta(d);
    w->axes = w->grid->rank - 2;
    w->samples = w->grid->dims[0], w->columns = w->grid->dims[w->axes], w->rows = 1;
    for (int a = 1; a < w->axes; a++) w->rows *= w->grid->dims[a];
    w->bytes = mica_op_bytes(plan->op, d);
    w->part = w->columns > 0 ? PART_ELEMENTS / w->columns + 1 : 1;
    w->parts = (w->rows + w->part - 1) / w->part;
    if (mica_affine_grid_is_forward(d)) return MICA_OK;
    return mica_book(plan, "sums of parts",
                     (size_t)(w->samples * w->parts * w->axes * (w->axes + 1)) * sizeof(double),
                     &s->sums);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    const mica_affine_walk *w = &s->walk;
    const bool f64 = w->grid->dtype == MICA_F64;
    if (mica_affine_grid_is_forward(w->d))
        (f64 ? mica_affine_grid_forward_f64 : mica_affine_grid_forward_f32)(
            w, r->args[MICA_AFFINE_GRID_THETA], r->args[MICA_AFFINE_GRID_GRID]);
    else
        (f64 ? mica_affine_grid_backward_f64 : mica_affine_grid_backward_f32)(
            w, r->args[MICA_AFFINE_GRID_DGRID], r->args[MICA_AFFINE_GRID_DTHETA],
            mica_at(r, s->sums));
    return MICA_OK;
}

const mica_engine mica_affine_grid_cpu = {
    .name = "cpu", .reached = 0.5, .start_ms = 3e-4, .build = build, .run = run};
