/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of kv_append: a row's place and angles are found once for all its heads; rows of
 * heads are copied or rotated straight into the cache, or pass through buffers in the first-level
 * cache where they are converted. Any strides and types, no workspace. */
#include "ops/rope/cpu/rope_cpu.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"

typedef struct state {
    rope_cpu w;
    kv_shape shape;
    rope_tasks tasks;
    bool heads_first; /* the new heads of a row follow each other in memory, not its rows */
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
    return 1.5 * mica_roofline_ms(&mica_op_kv_append, desc, device) + 2e-4;
}

static mica_status build(mica_plan *plan)
{
    const mica_kv_append_desc *d = plan->desc;
    kv_shape shape;
    state *s;
    kv_shape_of(d, &shape);
    bool any = mica_tensor_count(&d->k) > 0 || (shape.has_v && mica_tensor_count(&d->v) > 0);
    int64_t kept = any ? rope_kept(&shape.angles) : 0;
    MICA_TRY(mica_plan_state(plan, sizeof *s + 2 * (size_t)kept * sizeof(double), &s));
    if (!any) return MICA_OK;
    s->shape = shape;
    rope_cpu_init(&s->w, &shape.angles, rope_accumulator(d->k.dtype, d->k_cache.dtype),
                  s->frequencies);
    s->bytes = mica_op_bytes(plan->op, d);
    s->heads_first = rope_heads_first(&d->k);
    rope_tasks_make(&s->tasks, shape.angles.batches * shape.angles.rows, shape.heads, s->bytes);
    return MICA_OK;
}

static rope_line line_of(const state *st, const mica_run *r, int side, int64_t b, int64_t h,
                         int64_t s, kv_place place)
{
    const mica_tensor *from = st->shape.from[side], *to = st->shape.to[side];
    return (rope_line){
        .from_type = from->dtype,
        .to_type = to->dtype,
        .from = r->args[side ? MICA_KV_APPEND_V : MICA_KV_APPEND_K],
        .to = r->args[side ? MICA_KV_APPEND_V_CACHE : MICA_KV_APPEND_K_CACHE],
        .from_at = b * from->strides[0] + h * from->strides[1] + s * from->strides[2],
        .from_step = from->strides[3],
        .to_at = place.outer * to->strides[0] + h * to->strides[1] + place.row * to->strides[2],
        .to_step = to->strides[3],
        .scale = 1.0 / (double)kv_scale_of(&st->shape, r->args, side, h),
    };
}

/* A row in flight. */
typedef struct moved {
    int64_t b, s;
    kv_place place;
    double position;
} moved;

static moved find_row(const state *st, const mica_kv_append_desc *d, const mica_run *r,
                      const rope_data *data, int64_t row)
{
    const rope_angles *a = &st->w.a;
    moved m = {.b = row / a->rows, .s = row % a->rows};
    rope_row in = rope_row_of(a, data, m.b, m.s);
    m.place = kv_place_of(d, &st->shape, r->args, &in);
    if (a->pairs && m.place.outer >= 0) m.position = rope_position(a, data, &in, m.b, m.s);
    return m;
}

/* The pairs of p[i], or the columns from `first` on where p is NULL, of all rows and heads. */
static void move_rows(const state *st, const mica_run *r, int side, const rope_task *task,
                      const moved *rows, const rope_piece *p, int64_t first)
{
    for (rope_walk at = rope_walk_start(task, st->heads_first); at.h < task->last;
         rope_walk_on(&at, task)) {
        const moved *row = &rows[at.i];
        if (row->place.outer < 0) continue;
        rope_line line = line_of(st, r, side, row->b, at.h, row->s, row->place);
        if (p)
            rope_cpu_rotate(&st->w, &p[at.i], &line);
        else
            rope_cpu_copy(&st->w, &line, first, st->shape.from[side]->dims[3]);
    }
}

static void run_task(const state *st, const mica_kv_append_desc *d, const mica_run *r,
                     const rope_data *data, rope_task task)
{
    const rope_angles *a = &st->w.a;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    rope_piece *pieces = mica_scratch_take(ROPE_ROWS * sizeof *pieces);
    moved rows[ROPE_ROWS];
    for (int64_t i = 0; i < task.rows; i++) rows[i] = find_row(st, d, r, data, task.row + i);
    for (int64_t first = 0; first < a->pairs; first += ROPE_PIECE) {
        for (int64_t i = 0; i < task.rows; i++) {
            pieces[i].first = first;
            pieces[i].n = a->pairs - first < ROPE_PIECE ? a->pairs - first : ROPE_PIECE;
            if (rows[i].place.outer >= 0)
                rope_cpu_angles(&st->w, data, rows[i].position, &pieces[i]);
        }
        move_rows(st, r, 0, &task, rows, pieces, 0);
    }
    if (2 * a->pairs < a->columns) move_rows(st, r, 0, &task, rows, NULL, 2 * a->pairs);
    if (st->shape.has_v) move_rows(st, r, 1, &task, rows, NULL, 0);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    rope_data data = kv_data_of(r->args);
#pragma omp parallel for num_threads(mica_cpu_threads_for(s->bytes))
    for (int64_t i = 0; i < s->tasks.blocks * s->tasks.groups; i++)
        run_task(s, plan->desc, r, &data, rope_task_of(&s->tasks, i));
    return MICA_OK;
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    const mica_kv_append_desc *d = desc;
    kv_shape s;
    (void)config;
    kv_shape_of(d, &s);
    rope_contract(&s.angles, rope_accumulator(d->k.dtype, d->k_cache.dtype), c);
}

const mica_engine mica_kv_append_cpu = {.name = "cpu",
                                        .accepts = accepts,
                                        .predict = predict,
                                        .contract = contract,
                                        .build = build,
                                        .run = run};
