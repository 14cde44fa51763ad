/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of index: rows of the tensor that is walked, whose runs are copied as a whole: bound
 * by memory. Rows are shared out among threads, long runs too; results that do not fit the caches
 * go past them. Types of less than a byte go the reference's way. */
#include "ops/index/cpu/index_cpu.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "cpu/stream.h"
#include "ops/convert/cpu/convert.h"

#include <omp.h>
#include <string.h>

enum { OFFSETS = 256, TASK = 1 << 16, LONG_RUN = 1 << 18, PAST = 1024 };

typedef struct state {
    bool nibbles; /* as the reference: elements are not bytes */
    int count;
    index_cpu_piece piece[MICA_INDEX_PIECES];
} state;

/* ---- build ---- */

/* The last dimension is one run where the map does nothing in it. */
static void choose_rows(index_cpu_piece *p)
{
    const mica_index_form *f = &p->form;
    const mica_index_dim *last = f->rank ? &f->at[f->rank - 1] : NULL;
    const bool copies = p->map.work == MICA_INDEX_COPY;
    const bool run = last && last->border == MICA_INDEX_INSIDE && last->index == 0 &&
                     (!copies || (last->here == 1 && (last->there == 1 || p->map.there < 0)));
    p->run = run ? f->rank - 1 : -1;
    p->row = run ? f->rank - 2 : f->rank - 1;
}

static mica_status book_sums(mica_plan *plan, index_cpu_piece *p, int index)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    char *packed = mica_scratch_take(MICA_MAX_DESC);
    mica_index_set *set = mica_scratch_take(sizeof *set);
    p->real = mica_runs_f32(p->to) ? MICA_F32 : MICA_F64;
    p->in_place = p->real == p->to || p->map.reduce == MICA_INDEX_LAST;
    p->result = *mica_op_tensor(plan->op, plan->desc, p->map.there);
    if (p->in_place) return MICA_OK;
    memcpy(packed, plan->desc, plan->op->desc_size);
    mica_tensor *t = (mica_tensor *)(packed + plan->op->args[p->map.there].tensor);
    memset(t->strides, 0, sizeof t->strides);
    mica_tensor_default_strides(t);
    mica_index_maps(plan->op, packed, set);
    p->map = set->map[index];
    const size_t each = (size_t)mica_dtype_bits(p->real) / 8;
    return mica_book(plan, "sums", (size_t)mica_tensor_count(t) * each, &p->sums);
}

static mica_status build(mica_plan *plan)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    mica_index_set *set = mica_scratch_take(sizeof *set);
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_index_maps(plan->op, plan->desc, set);
    s->nibbles = mica_index_has_nibbles(plan->op, plan->desc);
    s->count = set->count;
    const double bytes = mica_op_bytes(plan->op, plan->desc);
    for (int i = 0; i < set->count && !s->nibbles; i++) {
        index_cpu_piece *p = &s->piece[i];
        p->map = set->map[i];
        p->from = mica_op_tensor(plan->op, plan->desc, p->map.here)->dtype;
        p->to = mica_op_tensor(plan->op, plan->desc, p->map.there < 0 ? p->map.here : p->map.there)
                    ->dtype;
        p->size = mica_dtype_bits(p->from) / 8;
        if (p->map.work == MICA_INDEX_COMBINE) MICA_TRY(book_sums(plan, p, i));
        mica_index_form_make(&p->map, p->map.work == MICA_INDEX_COMBINE, &p->form);
        choose_rows(p);
        p->bytes = (double)p->form.count * (double)p->size * 2;
        p->past = mica_stream_pays(bytes, plan->device.cache_bytes);
    }
    return MICA_OK;
}

/* ---- copies ---- */

typedef struct copy {
    const index_cpu_piece *p;
    char *here;
    const char *there, *index;
    mica_dtype index_type;
    int64_t run; /* elements of a run */
    int64_t run_bytes;
    int64_t step, there_step; /* bytes from one of a row to the next */
    char value[16];
    bool past;
} copy;

static void fill(const copy *c, char *to, int64_t n)
{
    const int64_t size = c->p->size;
    bool same = true;
    for (int64_t i = 1; i < size; i++) same &= c->value[i] == c->value[0];
    if (same)
        memset(to, c->value[0], (size_t)(n * size));
    else
        mica_move(c->value, 0, to, 1, size, n);
}

static void copy_run(const copy *c, char *to, const char *from, int64_t bytes)
{
    if (!c->past || bytes < PAST) {
        memcpy(to, from, (size_t)bytes);
        return;
    }
    for (int64_t i = 0; i < bytes; i += MICA_AHEAD) {
        const int64_t n = bytes - i < MICA_AHEAD ? bytes - i : MICA_AHEAD;
        mica_fetch_ahead(from + i + MICA_AHEAD, n);
        mica_stream_copy(to + i, from + i, (size_t)n);
    }
}

/* n of a row, `from_step` bytes apart there. from NULL: the value. */
static void copy_row(const copy *c, char *to, const char *from, int64_t from_step, int64_t n)
{
    const int64_t size = c->p->size;
    if (!from && c->step == c->run_bytes)
        fill(c, to, n * c->run);
    else if (!from && c->run == 1)
        mica_move(c->value, 0, to, c->step / size, size, n);
    else if (!from)
        for (int64_t i = 0; i < n; i++) fill(c, to + i * c->step, c->run);
    else if (c->step == c->run_bytes && from_step == c->run_bytes)
        copy_run(c, to, from, n * c->run_bytes);
    else if (c->run == 1)
        mica_move(from, from_step / size, to, c->step / size, size, n);
    else
        for (int64_t i = 0; i < n; i++) {
            if (c->run_bytes < PAST) mica_fetch_ahead(from + i * from_step + 2 * PAST, 64);
            copy_run(c, to + i * c->step, from + i * from_step, c->run_bytes);
        }
}

MICA_MEMORY_CLONES
static void take_4(const uint32_t *from, const int64_t *at, uint32_t *to, int64_t step, int64_t n,
                   uint32_t value)
{
    for (int64_t k = 0; k < n; k++) to[k * step] = at[k] == INT64_MIN ? value : from[at[k]];
}

static void take_elements(const copy *c, char *to, const char *from, const int64_t *at, int64_t n)
{
    const int64_t size = c->p->size;
    if (size == 4) {
        uint32_t value;
        memcpy(&value, c->value, sizeof value);
        take_4((const uint32_t *)from, at, (uint32_t *)to, c->step / 4, n, value);
        return;
    }
    for (int64_t k = 0; k < n; k++)
        memcpy(to + k * c->step, at[k] == INT64_MIN ? c->value : from + at[k] * size, (size_t)size);
}

/* Positions [first, first + n) of a row whose places an index tensor has. */
static void take_row(const copy *c, const index_cpu_walk *w, int64_t first, int64_t n)
{
    const index_cpu_piece *p = c->p;
    const mica_index_dim *row = &p->form.at[p->row];
    int64_t at[OFFSETS];
    for (int64_t j = first; j < first + n; j += OFFSETS) {
        const int64_t few = first + n - j < OFFSETS ? first + n - j : OFFSETS;
        char *to = c->here + w->here * p->size + j * c->step;
        const char *from = c->there + (w->there + j * row->there) * p->size;
        index_cpu_offsets(p, c->index, c->index_type, w->index + j * row->index, row->index, few,
                          at);
        if (row->there)
            for (int64_t k = 0; k < few; k++)
                if (at[k] != INT64_MIN) at[k] += k * row->there;
        if (c->run == 1) {
            take_elements(c, to, from, at, few);
            continue;
        }
        for (int64_t k = 0; k < few; k++, to += c->step) {
            if (k + 2 < few && at[k + 2] != INT64_MIN)
                mica_fetch_ahead(from + at[k + 2] * p->size,
                                 c->run_bytes < MICA_AHEAD ? c->run_bytes : MICA_AHEAD);
            if (at[k] == INT64_MIN)
                fill(c, to, c->run);
            else
                copy_run(c, to, from + at[k] * p->size, c->run_bytes);
        }
    }
}

static void copy_positions(const copy *c, const index_cpu_walk *w, int64_t first, int64_t n)
{
    const index_cpu_piece *p = c->p;
    const mica_index_dim *row = p->row < 0 ? NULL : &p->form.at[p->row];
    char *to = c->here + w->here * p->size;
    int64_t there = w->there, one = 0;
    bool nowhere = w->outside || p->map.there < 0;
    if (!nowhere && p->map.parts) {
        if (row && row->index) {
            take_row(c, w, first, n);
            return;
        }
        index_cpu_offsets(p, c->index, c->index_type, w->index, 0, 1, &one);
        nowhere = one == INT64_MIN;
        there += nowhere ? 0 : one;
    }
    if (nowhere || !row) {
        copy_row(c, to + first * c->step, nowhere ? NULL : c->there + there * p->size, 0, n);
        return;
    }
    for (int64_t j = first; j < first + n;) {
        const index_cpu_segment s = index_cpu_segment_of(row, j, first + n - j);
        copy_row(c, to + j * c->step,
                 s.at < 0 ? NULL : c->there + (there + s.at * row->there) * p->size,
                 s.step * row->there * p->size, s.n);
        j += s.n;
    }
}

/* Rows are cut where they are long, and runs. */
typedef struct cuts {
    int64_t rows, length, row_step, row_cuts, run_step, run_cuts;
} cuts;

static cuts cut(const index_cpu_piece *p)
{
    const mica_index_form *f = &p->form;
    cuts c = {.rows = 1, .length = p->row < 0 ? 1 : f->at[p->row].size};
    const int64_t run = p->run < 0 ? 1 : f->at[p->run].size, bytes = run * p->size;
    for (int d = 0; d < p->row; d++) c.rows *= f->at[d].size;
    c.row_step = bytes < TASK ? TASK / bytes : 1;
    c.run_step = bytes > 2 * LONG_RUN ? LONG_RUN / p->size : run;
    c.row_cuts = (c.length + c.row_step - 1) / c.row_step;
    c.run_cuts = (run + c.run_step - 1) / c.run_step;
    return c;
}

static void copy_share(copy c, const cuts *cuts, int64_t first, int64_t count)
{
    const index_cpu_piece *p = c.p;
    const int64_t run = c.run;
    char *here = c.here;
    const char *there = c.there;
    index_cpu_walk w;
    if (count == 0) return;
    int64_t run_cut = first % cuts->run_cuts, row_cut = first / cuts->run_cuts % cuts->row_cuts;
    index_cpu_begin(&w, p, p->row < 0 ? 0 : p->row, first / cuts->run_cuts / cuts->row_cuts);
    while (count--) {
        const int64_t begin = run_cut * cuts->run_step, at = row_cut * cuts->row_step;
        const int64_t left = cuts->length - at;
        if (cuts->run_cuts > 1) {
            c.run = run - begin < cuts->run_step ? run - begin : cuts->run_step;
            c.run_bytes = c.run * p->size;
            c.here = here + begin * p->size;
            c.there = there + (p->map.there < 0 ? 0 : begin * p->size);
        }
        copy_positions(&c, &w, at, left < cuts->row_step ? left : cuts->row_step);
        if (++run_cut < cuts->run_cuts) continue;
        run_cut = 0;
        if (++row_cut < cuts->row_cuts) continue;
        row_cut = 0;
        index_cpu_next(&w);
    }
}

static void copy_piece(copy *c)
{
    const index_cpu_piece *p = c->p;
    const cuts k = cut(p);
    c->run = p->run < 0 ? 1 : p->form.at[p->run].size;
    c->run_bytes = c->run * p->size;
    c->step = p->row < 0 ? 0 : p->form.at[p->row].here * p->size;
    c->past = p->past;
    const int64_t tasks = k.rows * k.row_cuts * k.run_cuts;
#pragma omp parallel num_threads(mica_cpu_threads_for(p->bytes))
    {
        const int64_t threads = omp_get_num_threads(), t = omp_get_thread_num();
        const int64_t each = tasks / threads, rest = tasks % threads;
        copy_share(*c, &k, t * each + (t < rest ? t : rest), each + (t < rest));
        mica_stream_end();
    }
}

/* ---- the engine ---- */

static mica_status run_piece(const mica_plan *plan, const mica_run *run, const index_cpu_piece *p)
{
    const mica_index_map *m = &p->map;
    const mica_dtype index =
        m->index < 0 ? MICA_NONE : mica_op_tensor(plan->op, plan->desc, m->index)->dtype;
    char *here = (char *)run->args[m->here] + m->here_shift * p->size;
    char *there = m->there < 0 ? NULL : run->args[m->there];
    if (there) there += m->there_shift * (mica_dtype_bits(p->to) / 8);
    if (m->work == MICA_INDEX_FOLD) {
        index_cpu_fold(p, here, there);
    } else if (m->work == MICA_INDEX_COMBINE) {
        index_cpu_combine(p, here, run->args[m->there], run->args[m->index], index,
                          run->workspace ? mica_at(run, p->sums) : NULL);
    } else if (there != here) {
        copy c = {.p = p,
                  .here = here,
                  .there = there,
                  .index = m->index < 0 ? NULL : run->args[m->index],
                  .index_type = index};
        mica_index_value(plan, run, p->from, c.value);
        copy_piece(&c);
    }
    return MICA_OK;
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    if (s->nibbles) return mica_engine_ref.run(plan, run);
    for (int i = 0; i < s->count; i++)
        if (s->piece[i].form.count) MICA_TRY(run_piece(plan, run, &s->piece[i]));
    return MICA_OK;
}

/* reached: of bench/cases/pad-cpu.txt and its neighbours, copies of long runs. */
const mica_engine mica_index_cpu = {
    .name = "cpu", .reached = 0.7, .start_ms = 2e-4, .build = build, .run = run};
