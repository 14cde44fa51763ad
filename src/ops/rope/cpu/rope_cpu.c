/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of rope: the cosines and sines of some rows are formed once for all their heads;
 * rows of heads are rotated where they lie, or pass through buffers in the first-level cache. Any
 * strides and types, no workspace. Few rows of many heads (decoding) are divided by groups of
 * heads. */
#include "ops/rope/cpu/rope_cpu.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"

#include <stdlib.h>
#include <string.h>

/* ---- what both operations use ---- */

void rope_cpu_init(rope_cpu *w, const rope_angles *a, mica_dtype accumulator, double *frequencies)
{
    *w = (rope_cpu){.a = *a, .f64 = accumulator == MICA_F64};
    if (rope_kept(a) == 0) return;
    for (int64_t i = 0; i < a->pairs; i++)
        frequencies[i] = rope_frequency(a, i, &frequencies[a->pairs + i]);
    w->frequencies = frequencies;
}

void rope_cpu_angles(const rope_cpu *w, const rope_data *data, double position, rope_piece *p)
{
    if (w->f64)
        rope_cpu_angles_f64(w, data, position, p);
    else
        rope_cpu_angles_f32(w, data, position, p);
}

void rope_cpu_rotate(const rope_cpu *w, const rope_piece *p, const rope_line *line)
{
    if (w->f64)
        rope_cpu_rotate_f64(w, p, line);
    else
        rope_cpu_rotate_f32(w, p, line);
}

void rope_cpu_copy(const rope_cpu *w, const rope_line *line, int64_t first, int64_t columns)
{
    bool same = line->from_type == line->to_type && line->scale == 1;
    if (same && line->from_step == 1 && line->to_step == 1 && first < columns) {
        int64_t bytes = mica_dtype_bits(line->from_type) / 8;
        memcpy((char *)line->to + (line->to_at + first) * bytes,
               (const char *)line->from + (line->from_at + first) * bytes,
               (size_t)((columns - first) * bytes));
        return;
    }
    if (w->f64)
        rope_cpu_copy_f64(line, first, columns);
    else
        rope_cpu_copy_f32(line, first, columns);
}

void rope_tasks_make(rope_tasks *t, int64_t rows, int64_t heads, double bytes)
{
    int64_t threads = mica_cpu_threads_planned(bytes), want = threads > 1 ? 4 * threads : 1;
    *t = (rope_tasks){.rows = rows, .heads = heads, .block = ROPE_ROWS, .groups = 1};
    if (rows < want * t->block) t->block = rows > want ? rows / want : 1;
    t->blocks = (rows + t->block - 1) / t->block;
    if (t->blocks > 0 && t->blocks < want) t->groups = (want + t->blocks - 1) / t->blocks;
    if (t->groups > heads) t->groups = heads > 0 ? heads : 1;
}

bool rope_heads_first(const mica_tensor *t)
{
    return llabs(t->strides[1]) < llabs(t->strides[t->dims[2] > 1 ? 2 : 0]);
}

rope_task rope_task_of(const rope_tasks *t, int64_t index)
{
    int64_t row = index / t->groups * t->block, group = index % t->groups;
    int64_t left = t->rows - row;
    return (rope_task){row, left < t->block ? left : t->block, t->heads * group / t->groups,
                       t->heads * (group + 1) / t->groups};
}

/* ---- the engine ---- */

typedef struct state {
    rope_cpu w;
    rope_tasks tasks;
    bool heads_first; /* the heads of a row follow each other in memory, not its rows */
    double bytes;
    double frequencies[];
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    return 1.5 * mica_roofline_ms(&mica_op_rope, desc, device) + 2e-4;
}

static int64_t elements_of(const mica_tensor *t)
{
    return mica_tensor_given(t) ? mica_tensor_count(t) : 0;
}

static mica_status build(mica_plan *plan)
{
    const mica_rope_desc *d = plan->desc;
    rope_angles a;
    state *s;
    rope_angles_of(d, &a);
    bool any = elements_of(&d->q) > 0 || elements_of(&d->k) > 0;
    int64_t kept = any ? rope_kept(&a) : 0;
    MICA_TRY(mica_plan_state(plan, sizeof *s + 2 * (size_t)kept * sizeof(double), &s));
    if (!any) return MICA_OK;
    rope_cpu_init(&s->w, &a, rope_accumulator(d->q.dtype, d->q_out.dtype), s->frequencies);
    s->bytes = mica_op_bytes(plan->op, d);
    s->heads_first = rope_heads_first(&d->q_out);
    int64_t heads = d->q.dims[1] + (mica_tensor_given(&d->k) ? d->k.dims[1] : 0);
    rope_tasks_make(&s->tasks, a.batches * a.rows, heads, s->bytes);
    return MICA_OK;
}

/* Heads of q, then of k. */
static rope_line line_of(const mica_rope_desc *d, const mica_run *r, int64_t b, int64_t h,
                         int64_t s)
{
    bool k = h >= d->q.dims[1];
    const mica_tensor *from = k ? &d->k : &d->q, *to = k ? &d->k_out : &d->q_out;
    if (k) h -= d->q.dims[1];
    return (rope_line){
        .from_type = from->dtype,
        .to_type = to->dtype,
        .from = r->args[k ? MICA_ROPE_K : MICA_ROPE_Q],
        .to = r->args[k ? MICA_ROPE_K_OUT : MICA_ROPE_Q_OUT],
        .from_at = b * from->strides[0] + h * from->strides[1] + s * from->strides[2],
        .from_step = from->strides[3],
        .to_at = b * to->strides[0] + h * to->strides[1] + s * to->strides[2],
        .to_step = to->strides[3],
        .scale = 1,
    };
}

/* Where a task's rows are. */
typedef struct rows_of_task {
    int64_t b[ROPE_ROWS], s[ROPE_ROWS];
} rows_of_task;

/* The pairs of p[i], or what is not rotated where p is NULL, of all rows and heads. */
static void turn_rows(const state *st, const mica_rope_desc *d, const mica_run *r,
                      const rope_task *task, const rows_of_task *rows, const rope_piece *p)
{
    const rope_angles *a = &st->w.a;
    for (rope_walk at = rope_walk_start(task, st->heads_first); at.h < task->last;
         rope_walk_on(&at, task)) {
        rope_line line = line_of(d, r, rows->b[at.i], at.h, rows->s[at.i]);
        if (p)
            rope_cpu_rotate(&st->w, &p[at.i], &line);
        else if (line.from != line.to)
            rope_cpu_copy(&st->w, &line, 2 * a->pairs, a->columns);
    }
}

static void run_task(const state *st, const mica_rope_desc *d, const mica_run *r,
                     const rope_data *data, rope_task task)
{
    const rope_angles *a = &st->w.a;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    rope_piece *pieces = mica_scratch_take(ROPE_ROWS * sizeof *pieces);
    rows_of_task rows;
    for (int64_t i = 0; i < task.rows; i++)
        rows.b[i] = (task.row + i) / a->rows, rows.s[i] = (task.row + i) % a->rows;
    for (int64_t first = 0; first < a->pairs; first += ROPE_PIECE) {
        for (int64_t i = 0; i < task.rows; i++) {
            rope_row place = rope_row_of(a, data, rows.b[i], rows.s[i]);
            double position = rope_position(a, data, &place, rows.b[i], rows.s[i]);
            pieces[i].first = first;
            pieces[i].n = a->pairs - first < ROPE_PIECE ? a->pairs - first : ROPE_PIECE;
            rope_cpu_angles(&st->w, data, position, &pieces[i]);
        }
        turn_rows(st, d, r, &task, &rows, pieces);
    }
    if (2 * a->pairs < a->columns) turn_rows(st, d, r, &task, &rows, NULL);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    rope_data data = rope_data_of(r->args);
#pragma omp parallel for num_threads(mica_cpu_threads_for(s->bytes))
    for (int64_t i = 0; i < s->tasks.blocks * s->tasks.groups; i++)
        run_task(s, plan->desc, r, &data, rope_task_of(&s->tasks, i));
    return MICA_OK;
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    const mica_rope_desc *d = desc;
    rope_angles a;
    (void)config;
    rope_angles_of(d, &a);
    rope_contract(&a, rope_accumulator(d->q.dtype, d->q_out.dtype), c);
}

const mica_engine mica_rope_cpu = {.name = "cpu",
                                   .accepts = accepts,
                                   .predict = predict,
                                   .contract = contract,
                                   .build = build,
                                   .run = run};
