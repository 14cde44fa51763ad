/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of nms: a list per thread. Its boxes are sorted by merging, then each is compared
 * with those selected so far, 16 and more at a time, until one suppresses it: n times the selected
 * at most. Any types and strides. Workspace: for each thread about 100 bytes a box, and the
 * selected. */
#include "ops/nms/cpu/nms_cpu.h"
#include "cpu/cpu.h"

#include <omp.h>

typedef struct state {
    mica_nms_args args;
    size_t room_bytes;
    size_t room, kept, counts; /* bookings */
    int threads;
    double bytes;
} state;

static mica_status build(mica_plan *plan)
{
    const mica_nms_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_nms_args_make(d, &s->args);
    const mica_nms_args *a = &s->args;
    s->bytes = 64.0 * (double)a->lists * (double)a->n;
    s->threads = mica_cpu_threads_planned(s->bytes);
    if (s->threads > a->lists) s->threads = a->lists ? (int)a->lists : 1;
    s->room_bytes = mica_nms_room(a->n, mica_nms_real(d) == MICA_F64 ? 8 : 4);
    MICA_TRY(mica_book(plan, "lists", s->room_bytes * (size_t)s->threads, &s->room));
    MICA_TRY(
        mica_book(plan, "selected", (size_t)(a->lists * a->limit) * sizeof(int32_t), &s->kept));
    return mica_book(plan, "counts", (size_t)a->lists * sizeof(int64_t), &s->counts);
}

static void put(const mica_tensor *t, void *data, int64_t at, int64_t v)
{
    if (t->dtype == MICA_S32)
        ((int32_t *)data)[at] = (int32_t)v;
    else
        ((int64_t *)data)[at] = v;
}

static void put_row(const mica_nms_desc *d, const mica_nms_args *a, int64_t row, int64_t list,
                    int64_t i)
{
    const int64_t at = row * a->selected_row;
    if (row >= a->rows) return;
    if (d->selected.rank == 1) {
        put(&d->selected, a->selected, at, i);
        return;
    }
    put(&d->selected, a->selected, at, i < 0 ? -1 : list / a->per_batch);
    put(&d->selected, a->selected, at + a->selected_column, i < 0 ? -1 : list % a->per_batch);
    put(&d->selected, a->selected, at + 2 * a->selected_column, i);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    const mica_nms_desc *d = plan->desc;
    mica_nms_args a = s->args;
    mica_nms_args_point(plan, run, &a);
    int32_t *kept = mica_at(run, s->kept);
    int64_t *counts = mica_at(run, s->counts), row = 0;
    const bool wide = mica_nms_real(d) == MICA_F64;
    int threads = mica_cpu_threads_for(s->bytes);
    if (threads > s->threads) threads = s->threads;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t l = 0; l < a.lists; l++) {
        char *room = (char *)mica_at(run, s->room) + (size_t)omp_get_thread_num() * s->room_bytes;
        counts[l] =
            (wide ? mica_nms_list_f64 : mica_nms_list_f32)(d, &a, l, room, kept + l * a.limit);
    }
    for (int64_t l = 0; l < a.lists; l++)
        for (int64_t i = 0; i < counts[l]; i++) put_row(d, &a, row++, l, kept[l * a.limit + i]);
    put(&d->count, a.count, 0, row);
    for (; row < a.rows; row++) put_row(d, &a, row, 0, -1);
    return MICA_OK;
}

const mica_engine mica_nms_cpu = {
    .name = "cpu", .reached = 0.1, .start_ms = 1e-3, .build = build, .run = run};
