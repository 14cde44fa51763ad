/* SPDX-License-Identifier: Apache-2.0
 * Folds and combinations of the engine "cpu". Whoever owns an element of the result goes through
 * all that it gets, in the same order for any number of threads.
 *
 * A fold walks the result and looks up what the map brings to each row. A combination walks the
 * updates: threads share out a dimension that both tensors have, or, where there is none, all go
 * through all indices and each takes those in its own range. */
#include "ops/index/cpu/index_cpu.h"
#include "cpu/cpu.h"
#include "ops/convert/cpu/convert.h"

#include <omp.h>
#include <string.h>

enum { BLOCK = 512 };

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static int64_t most_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- arithmetic ---- */

MICA_MEMORY_CLONES
static void add_f32(float *to, int64_t step, const float *v, int64_t n)
{
    if (step == 1)
        for (int64_t i = 0; i < n; i++) to[i] += v[i];
    else
        for (int64_t i = 0; i < n; i++) to[i * step] += v[i];
}

MICA_MEMORY_CLONES
static void add_f64(double *to, int64_t step, const double *v, int64_t n)
{
    if (step == 1)
        for (int64_t i = 0; i < n; i++) to[i] += v[i];
    else
        for (int64_t i = 0; i < n; i++) to[i * step] += v[i];
}

static double reduced(mica_index_reduce reduce, double old, double v)
{
    if (reduce == MICA_INDEX_ADD) return old + v;
    if (reduce == MICA_INDEX_MUL) return old * v;
    const bool better = reduce == MICA_INDEX_MAX ? v > old : v < old;
    return better || v != v ? v : old;
}

/* Reductions of f32 are those of doubles, rounded: a sum or product of two floats is not rounded
 * twice (Figueroa 1995). */
static void merge(mica_dtype real, mica_index_reduce reduce, void *sums, int64_t at, int64_t step,
                  const void *v, int64_t n)
{
    if (real == MICA_F32) {
        float *to = (float *)sums + at;
        if (reduce == MICA_INDEX_ADD)
            add_f32(to, step, v, n);
        else
            for (int64_t i = 0; i < n; i++)
                to[i * step] = (float)reduced(reduce, to[i * step], ((const float *)v)[i]);
        return;
    }
    double *to = (double *)sums + at;
    if (reduce == MICA_INDEX_ADD)
        add_f64(to, step, v, n);
    else
        for (int64_t i = 0; i < n; i++)
            to[i * step] = reduced(reduce, to[i * step], ((const double *)v)[i]);
}

static void load(mica_dtype real, mica_dtype type, const void *data, int64_t at, int64_t step,
                 void *v, int64_t n)
{
    if (real == MICA_F32)
        mica_to_f32(type, data, at, step, v, n);
    else
        mica_to_f64(type, data, at, step, v, n);
}

static void store(mica_dtype real, mica_dtype type, void *data, int64_t at, int64_t step,
                  const void *v, int64_t n)
{
    if (real == MICA_F32)
        mica_from_f32(type, data, at, step, v, n);
    else
        mica_from_f64(type, data, at, step, v, n);
}

/* ---- folds ---- */

typedef struct fold {
    const index_cpu_piece *p;
    const void *here;
    mica_dtype real;
    int64_t first, n; /* of the row, elements of the block */
    void *sums;
} fold;

static void add_here(const fold *f, int64_t at, int64_t step, int64_t to, int64_t to_step,
                     int64_t n)
{
    double v[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t few = least(BLOCK, n - i);
        load(f->real, f->p->from, f->here, at + i * step, step, v, few);
        merge(f->real, MICA_INDEX_ADD, f->sums, to + i * to_step, to_step, v, few);
    }
}

/* What of a segment of coordinates from c on lies in the block. */
static void add_segment(const fold *f, const mica_index_dim *row, int64_t at, int64_t c,
                        const index_cpu_segment *s)
{
    const int64_t from = f->first - s->at, to = from + f->n - 1, step = s->step;
    int64_t low = 0, high = s->n - 1;
    if (s->at < 0) return;
    if (step == 0) {
        if (from > 0 || to < 0) return;
    } else if (step > 0) {
        low = most_of(low, from <= 0 ? 0 : (from + step - 1) / step);
        high = to < 0 ? -1 : least(high, to / step);
    } else {
        low = most_of(low, to >= 0 ? 0 : (-to - step - 1) / -step);
        high = from > 0 ? -1 : least(high, -from / -step);
    }
    if (low <= high)
        add_here(f, at + (c + low) * row->here, row->here, s->at + low * step - f->first, step,
                 high - low + 1);
}

/* Adds to the block all rows of here that dimensions d and later bring to it; at: offset so far. */
static void add_rows(const fold *f, const index_cpu_walk *w, int d, int64_t at)
{
    const index_cpu_piece *p = f->p;
    if (d < p->form.rank - 1) {
        const mica_index_sources s = mica_index_sources_of(&p->form.at[d], w->c[d]);
        for (int k = 0; k < 2; k++)
            for (int64_t i = 0; i < s.count[k]; i++)
                add_rows(f, w, d + 1, at + (s.first[k] + i * s.apart) * p->form.at[d].here);
        return;
    }
    /* As a copy sees it: walked are the coordinates of here. */
    mica_index_dim row = p->form.at[d];
    row.size = p->form.at[d].across, row.across = p->form.at[d].size;
    if (row.border == MICA_INDEX_INSIDE) {
        add_here(f, at + f->first * row.here, row.here, 0, 1, f->n);
        return;
    }
    for (int64_t c = 0; c < row.size;) {
        const index_cpu_segment s = index_cpu_segment_of(&row, c, row.size - c);
        add_segment(f, &row, at, c, &s);
        c += s.n;
    }
}

static void fold_block(const fold *f, const index_cpu_walk *w, void *there)
{
    const index_cpu_piece *p = f->p;
    const int last = p->form.rank - 1;
    int64_t to = 0;
    for (int d = 0; d < last; d++) to += w->c[d] * p->form.at[d].there;
    const int64_t step = last < 0 ? 1 : p->form.at[last].there;
    memset(f->sums, 0, BLOCK * sizeof(double));
    if (last < 0)
        add_here(f, 0, 1, 0, 1, 1);
    else
        add_rows(f, w, 0, 0);
    store(f->real, p->to, there, to + f->first * step, step, f->sums, f->n);
}

/* Coordinates of a row of the result. */
static void find_row(index_cpu_walk *w, const mica_index_form *form, int64_t row)
{
    for (int d = form->rank - 2; d >= 0; d--) {
        w->c[d] = row % form->at[d].size;
        row /= form->at[d].size;
    }
}

void index_cpu_fold(const index_cpu_piece *p, const void *here, void *there)
{
    const int64_t length = p->form.rank ? p->form.at[p->form.rank - 1].size : 1;
    const int64_t blocks = (length + BLOCK - 1) / BLOCK, tasks = p->form.count / length * blocks;
    const mica_dtype real = mica_runs_f32(p->from) && mica_runs_f32(p->to) ? MICA_F32 : MICA_F64;
#pragma omp parallel for num_threads(mica_cpu_threads_for(p->bytes)) schedule(static)
    for (int64_t i = 0; i < tasks; i++) {
        MICA_ALIGNED double sums[BLOCK];
        index_cpu_walk w;
        const int64_t first = i % blocks * BLOCK;
        fold f = {p, here, real, first, least(BLOCK, length - first), sums};
        find_row(&w, &p->form, i / blocks);
        fold_block(&f, &w, there);
    }
}

/* ---- combinations ---- */

typedef struct combination {
    const index_cpu_piece *p;
    const char *here;
    char *there; /* or the sums */
    const void *index;
    mica_dtype index_type;
    int64_t lowest, highest; /* offsets by indices that this thread takes */
} combination;

static void merge_run(const combination *c, int64_t from, int64_t from_step, int64_t to,
                      int64_t to_step, int64_t n)
{
    const index_cpu_piece *p = c->p;
    double v[BLOCK];
    if (p->map.reduce == MICA_INDEX_LAST) {
        const char *at = c->here + from * p->size;
        char *there = c->there + to * p->size;
        if (from_step == 1 && to_step == 1)
            memcpy(there, at, (size_t)(n * p->size));
        else
            mica_move(at, from_step, there, to_step, p->size, n);
        return;
    }
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t few = least(BLOCK, n - i);
        load(p->real, p->from, c->here, from + i * from_step, from_step, v, few);
        merge(p->real, p->map.reduce, c->there, to + i * to_step, to_step, v, few);
    }
}

static void merge_offsets(const combination *c, int64_t from, int64_t from_step, int64_t to,
                          int64_t to_step, const int64_t *at, int64_t n)
{
    const index_cpu_piece *p = c->p;
    double v[BLOCK];
    const int64_t size = mica_dtype_bits(p->real) / 8;
    if (p->map.reduce != MICA_INDEX_LAST) load(p->real, p->from, c->here, from, from_step, v, n);
    for (int64_t k = 0; k < n; k++) {
        if (at[k] == INT64_MIN) continue;
        const int64_t place = to + k * to_step + at[k];
        if (p->map.reduce == MICA_INDEX_LAST)
            memcpy(c->there + place * p->size, c->here + (from + k * from_step) * p->size,
                   (size_t)p->size);
        else
            merge(p->real, p->map.reduce, c->there, place, 1, (char *)v + k * size, 1);
    }
}

/* What belongs to others is as what is outside. */
static void keep_own(const combination *c, int64_t *at, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        if (at[k] < c->lowest || at[k] > c->highest) at[k] = INT64_MIN;
}

static void combine_row(const combination *c, const index_cpu_walk *w, const mica_index_dim *row,
                        const mica_index_dim *run)
{
    int64_t at[BLOCK];
    const int64_t length = row ? row->size : 1, n = run ? run->size : 1;
    for (int64_t j = 0; j < length; j += BLOCK) {
        const int64_t few = least(BLOCK, length - j);
        const int64_t from = w->here + (row ? j * row->here : 0);
        const int64_t to = w->there + (row ? j * row->there : 0);
        const int64_t from_step = row ? row->here : 0, to_step = row ? row->there : 0;
        index_cpu_offsets(c->p, c->index, c->index_type, w->index + (row ? j * row->index : 0),
                          row ? row->index : 0, few, at);
        if (c->lowest != INT64_MIN) keep_own(c, at, few);
        if (!run) {
            merge_offsets(c, from, from_step, to, to_step, at, few);
            continue;
        }
        for (int64_t k = 0; k < few; k++)
            if (at[k] != INT64_MIN)
                merge_run(c, from + k * from_step, run->here, to + k * to_step + at[k], run->there,
                          n);
    }
}

/* The piece of one thread: of a dimension that both tensors have, or of the offsets. */
static void combine_share(combination c, int64_t threads, int64_t t)
{
    index_cpu_piece own = *c.p;
    mica_index_form *f = &own.form;
    index_cpu_walk w;
    int split = 0;
    while (split < f->rank && (f->at[split].there == 0 || f->at[split].size < threads)) split++;
    int64_t begin = 0;
    c.lowest = INT64_MIN;
    if (split < f->rank) {
        const int64_t size = f->at[split].size;
        begin = size * t / threads;
        f->at[split].size = size * (t + 1) / threads - begin;
    } else if (threads > 1) {
        int64_t least_at = 0, reach = 1;
        for (int i = 0; i < own.map.parts; i++) {
            const int64_t last = (own.map.part[i].extent - 1) * own.map.part[i].stride;
            least_at += last < 0 ? last : 0;
            reach += last < 0 ? -last : last;
        }
        const int64_t each = (reach + threads - 1) / threads;
        c.lowest = least_at + t * each;
        c.highest = c.lowest + each - 1;
    }
    c.p = &own;
    int64_t rows = 1;
    const int outer = own.row < 0 ? 0 : own.row;
    for (int d = 0; d < outer; d++) rows *= f->at[d].size;
    index_cpu_begin(&w, &own, outer, 0);
    if (split < f->rank) {
        w.here += begin * f->at[split].here;
        w.there += begin * f->at[split].there;
        w.index += begin * f->at[split].index;
    }
    for (int64_t i = 0; i < rows; i++) {
        combine_row(&c, &w, own.row < 0 ? NULL : &f->at[own.row],
                    own.run < 0 ? NULL : &f->at[own.run]);
        index_cpu_next(&w);
    }
}

/* Between the result and the sums, row by row. */
static void move_sums(const index_cpu_piece *p, void *there, void *sums, bool in)
{
    const mica_tensor *t = &p->result;
    const int64_t count = mica_tensor_count(t), n = t->rank ? t->dims[t->rank - 1] : 1;
    const int64_t step = t->rank ? t->strides[t->rank - 1] : 1, size = mica_dtype_bits(p->real) / 8;
#pragma omp parallel for num_threads(mica_cpu_threads_for((double)count * 8)) schedule(static)
    for (int64_t i = 0; i < count / n; i++) {
        const int64_t at = mica_offset(t, i * n);
        void *row = (char *)sums + i * n * size;
        if (in)
            load(p->real, p->to, there, at, step, row, n);
        else
            store(p->real, p->to, there, at, step, row, n);
    }
}

void index_cpu_combine(const index_cpu_piece *p, const void *here, void *there, const void *index,
                       mica_dtype index_type, void *workspace)
{
    void *to = p->in_place ? there : workspace;
    const int64_t size = mica_dtype_bits(p->in_place ? p->to : p->real) / 8;
    if (mica_tensor_count(&p->result) == 0) return;
    if (!p->in_place) move_sums(p, there, workspace, true);
#pragma omp parallel num_threads(mica_cpu_threads_for(p->bytes))
    combine_share((combination){.p = p,
                                .here = here,
                                .there = (char *)to + p->map.there_shift * size,
                                .index = index,
                                .index_type = index_type},
                  omp_get_num_threads(), omp_get_thread_num());
    if (!p->in_place) move_sums(p, there, workspace, false);
}
