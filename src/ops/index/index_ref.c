/* SPDX-License-Identifier: Apache-2.0
 * The truth of maps: plain loops in logical order. Sums are formed in doubles, in a window of the
 * result that moves on where memory for all of it is not to be had. */
#include "ops/index/index.h"
#include "base/memory.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "ops/convert/integer.h"

#include <math.h>
#include <string.h>

typedef struct job {
    const mica_index_map *map; /* of the views' strides */
    const mica_view *args;
    double value;
} job;

/* The descriptor with the strides of the views; args[packed], if any, packed. */
static void maps_of(const mica_op *op, const void *desc, const mica_view *args, int packed,
                    mica_index_set *set)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    char *viewed = mica_scratch_take(MICA_MAX_DESC);
    memcpy(viewed, desc, op->desc_size);
    for (int i = 0; i < op->arg_count; i++) {
        mica_tensor *t = (mica_tensor *)(viewed + op->args[i].tensor);
        if (!args[i].data) continue;
        memcpy(t->strides, args[i].t.strides, sizeof t->strides);
        if (i != packed) continue;
        memset(t->strides, 0, sizeof t->strides);
        mica_tensor_default_strides(t);
    }
    memset(set, 0, sizeof *set);
    op->index->maps(viewed, set);
}

/* Offsets of element i; false: the map points nowhere. */
static bool locate(const job *j, int64_t i, int64_t *here, int64_t *there)
{
    const mica_index_map *m = j->map;
    int64_t index = 0;
    bool inside = m->there >= 0;
    *here = m->here_shift, *there = m->there_shift;
    for (int d = m->rank - 1; d >= 0; d--) {
        const mica_index_dim *a = &m->at[d];
        const int64_t c = i % a->size;
        const int64_t at = mica_index_bordered(a->border, a->start + a->step * c, a->across);
        i /= a->size;
        *here += c * a->here;
        *there += at * a->there;
        index += c * a->index;
        inside &= at >= 0;
    }
    if (m->flat && inside) {
        const int64_t v = (int64_t)mica_get(&j->args[m->index], index);
        const int64_t cell = mica_index_legal(v, mica_index_cells(m), m->negative);
        inside = cell >= 0;
        if (inside) *there += mica_index_cell_offset(m, cell);
        return inside;
    }
    for (int p = 0; p < m->parts && inside; p++) {
        const int64_t v = (int64_t)mica_get(&j->args[m->index], index + p * m->part_step);
        const int64_t at = mica_index_legal(v, m->part[p].extent, m->negative);
        inside = at >= 0 && !(m->skips && at == m->skip);
        *there += at * m->part[p].stride;
    }
    return inside;
}

/* ---- copies ---- */

static void copy_one(const job *j, int64_t i)
{
    const mica_view *to = &j->args[j->map->here];
    int64_t here, there;
    if (!locate(j, i, &here, &there)) {
        mica_put(to, here, j->value, fabs(j->value));
        return;
    }
    const mica_view *from = &j->args[j->map->there];
    const int64_t bytes = mica_dtype_bits(from->t.dtype) / 8;
    if (!to->mag && bytes && to->t.dtype == from->t.dtype) {
        memmove((char *)to->data + here * bytes, (const char *)from->data + there * bytes,
                (size_t)bytes);
        return;
    }
    const double v = mica_get(from, there);
    mica_put(to, here, v, fabs(v));
}

static int64_t count_of(const mica_index_map *m)
{
    int64_t count = 1;
    for (int d = 0; d < m->rank; d++) count *= m->at[d].size;
    return count;
}

/* Two elements of less than a byte share one: no threads side by side. */
static void copy(const job *j, mica_dtype stored)
{
    const int64_t count = count_of(j->map);
    const int threads = mica_dtype_bits(stored) < 8 ? 1 : mica_cpu_threads_for((double)count * 64);
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < count; i++) copy_one(j, i);
}

/* ---- sums ---- */

typedef struct sum {
    double value, magnitude;
    bool touched;
} sum;

static void merge(mica_index_reduce reduce, sum *s, double v)
{
    const double old = s->value;
    s->touched = true;
    switch (reduce) {
    case MICA_INDEX_LAST:
        s->value = v;
        break;
    case MICA_INDEX_ADD:
        s->value += v;
        s->magnitude += fabs(v);
        return;
    case MICA_INDEX_MUL:
        s->value *= v;
        break;
    case MICA_INDEX_MAX:
        s->value = v > old || v != v ? v : old;
        break;
    case MICA_INDEX_MIN:
        s->value = v < old || v != v ? v : old;
        break;
    }
    s->magnitude = fabs(s->value);
}

/* Elements [first, first + n) of there, in logical order. numbered: the map into a packed one. */
static void sum_window(const job *j, const job *numbered, int64_t first, int64_t n, sum *sums)
{
    const mica_index_map *m = j->map;
    const mica_view *to = &j->args[m->there];
    const bool fold = m->work == MICA_INDEX_FOLD;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = mica_offset(&to->t, first + i);
        const double old = fold ? 0 : mica_get(to, at);
        sums[i] = (sum){old, to->mag && !fold ? to->mag[at] : fabs(old), fold};
    }
    const int64_t count = count_of(m);
    for (int64_t i = 0; i < count; i++) {
        int64_t here, there;
        if (!locate(numbered, i, &here, &there) || there < first || there >= first + n) continue;
        merge(fold ? MICA_INDEX_ADD : m->reduce, &sums[there - first],
              mica_get(&j->args[m->here], here));
    }
}

static void combine(const job *j, const job *numbered, mica_dtype stored)
{
    enum { FEW = 256 };
    const mica_view *to = &j->args[j->map->there];
    const int64_t count = mica_tensor_count(&to->t);
    sum few[FEW], *all = mica_alloc((size_t)count * sizeof *all);
    sum *sums = all ? all : few;
    const int64_t window = all ? count : FEW;
    for (int64_t first = 0; first < count; first += window) {
        const int64_t n = count - first < window ? count - first : window;
        sum_window(j, numbered, first, n, sums);
        for (int64_t i = 0; i < n; i++)
            if (sums[i].touched)
                mica_put(to, mica_offset(&to->t, first + i),
                         mica_round_integer(stored, sums[i].value), sums[i].magnitude);
    }
    mica_release(all);
}

void mica_index_reference(const mica_op *op, const void *desc, const mica_view *args,
                          const double *scalars)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    mica_index_set *set = mica_scratch_take(sizeof *set);
    mica_index_set *numbered = mica_scratch_take(sizeof *numbered);
    maps_of(op, desc, args, -1, set);
    for (int i = 0; i < set->count; i++) {
        const mica_index_map *m = &set->map[i];
        const mica_dtype stored =
            mica_op_tensor(op, desc, m->work == MICA_INDEX_COPY ? m->here : m->there)->dtype;
        double value = op->scalar_count ? scalars[0] : 0;
        char element[16] = {0};
        mica_dtype_store(stored)(element, 0, value);
        job j = {m, args, mica_dtype_load(stored)(element, 0)};
        if (m->work == MICA_INDEX_COPY) {
            copy(&j, stored);
            continue;
        }
        maps_of(op, desc, args, m->there, numbered);
        combine(&j, &(job){&numbered->map[i], args, 0}, stored);
    }
}
