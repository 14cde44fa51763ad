/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of lrn: any types and strides. A task is what no window reaches out of: a piece of
 * an image's positions with all channels, or a plane. Line by line the squares of lines around it
 * are added up, then those along it; backward a task's lines of slopes stay in the cache until they
 * are summed, so that each tensor goes through memory once.
 * Workspace: some lines for each thread, backward two tasks. */
#include "ops/lrn/cpu/lrn_cpu.h"
#include "cpu/cpu.h"

enum { BLOCK = 512, TASK = 1 << 15 };

typedef struct state {
    mica_lrn_walk walk;
    void (*loops)(const mica_lrn_walk *w, const mica_lrn_args *a, void *workspace);
    size_t workspace;
} state;

static bool is_windowed(const mica_lrn_args *a, int axis)
{
    return a->before[axis] + a->after[axis] > 0;
}

static void choose(mica_lrn_walk *w)
{
    const mica_lrn_args *a = &w->a;
    const int row = w->row;
    w->lines = 1, w->tasks = 1;
    for (int i = 0; i < LRN_AXES; i++) {
        if (i == row) continue;
        *(is_windowed(a, i) ? &w->lines : &w->tasks) *= a->sizes[i];
    }
    w->block = a->sizes[row];
    if (is_windowed(a, row)) {
        w->line = w->block + a->before[row] + a->after[row];
    } else {
        int64_t most = w->backward ? TASK / w->lines / 64 * 64 : BLOCK;
        if (most < 64) most = 64;
        if (most > BLOCK) most = BLOCK;
        if (w->block > most) w->block = most;
        w->tasks *= (a->sizes[row] + w->block - 1) / w->block;
        w->line = w->block;
    }
    w->line = (w->line + 15) / 16 * 16;
}

static mica_status build(mica_plan *plan)
{
    const mica_lrn_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_lrn_walk *w = &s->walk;
    mica_lrn_prepare(d, &w->a);
    if (mica_tensor_count(&d->x) == 0) return MICA_OK;
    const int64_t real = d->x.dtype == MICA_F64 ? 8 : 4;
    s->loops = real == 8 ? mica_lrn_loops_f64 : mica_lrn_loops_f32;
    w->row = mica_lrn_row(&w->a);
    w->power = mica_lrn_power(d);
    w->backward = d->pass == MICA_LRN_BWD;
    choose(w);
    w->bytes = mica_op_bytes(plan->op, d) * 4;
    w->threads = mica_cpu_threads_planned(w->bytes);
    if (w->threads > w->tasks) w->threads = (int)w->tasks;
    const int64_t kept = w->backward ? 2 * w->lines * ((w->block + 15) / 16 * 16) : 0;
    w->task_bytes = (MICA_LRN_LINES * w->line + kept) * real;
    return mica_book(plan, "lines of squares and slopes", (size_t)(w->task_bytes * w->threads),
                     &s->workspace);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    if (s->walk.tasks == 0) return MICA_OK;
    mica_lrn_args a = s->walk.a;
    a.x = r->args[MICA_LRN_X], a.means = r->args[MICA_LRN_MEANS], a.dy = r->args[MICA_LRN_DY];
    a.y = r->args[MICA_LRN_Y], a.dx = r->args[MICA_LRN_DX], a.dmeans = r->args[MICA_LRN_DMEANS];
    s->loops(&s->walk, &a, mica_at(r, s->workspace));
    return MICA_OK;
}

const mica_engine mica_lrn_cpu = {
    .name = "cpu", .reached = 0.3, .start_ms = 3e-4, .build = build, .run = run};
