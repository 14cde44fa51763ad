/* SPDX-License-Identifier: Apache-2.0
 * What both engines make of an operation's maps. */
#include "ops/index/index.h"
#include "base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

mica_index_map mica_index_between(mica_index_work work, int here, const mica_tensor *t, int there,
                                  const mica_tensor *other)
{
    mica_index_map m = {.work = work, .here = here, .there = there, .index = -1, .rank = t->rank};
    for (int d = 0; d < t->rank; d++)
        m.at[d] = (mica_index_dim){.size = t->dims[d],
                                   .here = t->strides[d],
                                   .there = other ? other->strides[d] : 0,
                                   .step = 1,
                                   .across = t->dims[d]};
    return m;
}

mica_index_map mica_index_filled(int here, const mica_tensor *t)
{
    return mica_index_between(MICA_INDEX_COPY, here, t, -1, NULL);
}

/* ---- simplest forms ---- */

/* What lies inside everywhere is no border. */
static void settle(mica_index_map *m, mica_index_dim *d)
{
    const int64_t last = d->start + d->step * (d->size - 1);
    if (d->border == MICA_INDEX_INSIDE || d->size == 0) return;
    if (d->size == 1) d->start = mica_index_bordered(d->border, d->start, d->across);
    if (d->size == 1 && d->start < 0) {
        m->there = -1;
        return;
    }
    if (d->size > 1 && (d->start < 0 || d->start >= d->across || last < 0 || last >= d->across))
        return;
    m->there_shift += d->start * d->there;
    d->there *= d->step;
    d->start = 0, d->step = 1, d->border = MICA_INDEX_INSIDE;
}

/* Folds to which each element of here belongs alone are copies from here. */
static bool has_inverse(const mica_index_dim *d)
{
    const bool unit = d->step == 1 || d->step == -1;
    return d->border == MICA_INDEX_INSIDE || (d->border == MICA_INDEX_NONE && unit) ||
           (d->border == MICA_INDEX_WRAP && d->size == d->across && d->step == 1);
}

static void invert(mica_index_map *m)
{
    for (int d = 0; d < m->rank; d++)
        if (!has_inverse(&m->at[d])) return;
    const mica_index_map old = *m;
    m->work = MICA_INDEX_COPY;
    m->here = old.there, m->there = old.here;
    m->here_shift = old.there_shift, m->there_shift = old.here_shift;
    for (int d = 0; d < m->rank; d++) {
        mica_index_dim *to = &m->at[d];
        to->here = old.at[d].there, to->there = old.at[d].here;
        to->size = old.at[d].across, to->across = old.at[d].size;
        to->start = to->step > 0 ? -to->start : to->start;
    }
}

void mica_index_maps(const mica_op *op, const void *desc, mica_index_set *set)
{
    memset(set, 0, sizeof *set);
    op->index->maps(desc, set);
    for (int i = 0; i < set->count; i++) {
        mica_index_map *m = &set->map[i];
        if (m->work == MICA_INDEX_FOLD) invert(m);
        for (int d = 0; d < m->rank && m->work == MICA_INDEX_COPY && m->there >= 0; d++)
            settle(m, &m->at[d]);
        if (m->there >= 0) continue;
        m->index = -1, m->parts = 0;
        for (int d = 0; d < m->rank; d++)
            m->at[d] = (mica_index_dim){.size = m->at[d].size, .here = m->at[d].here, .step = 1};
    }
}

/* ---- walks ---- */

static int64_t walked_stride(const mica_index_map *m, const mica_index_dim *d)
{
    return llabs(m->work == MICA_INDEX_FOLD ? d->there : d->here);
}

static bool merges(const mica_index_dim *outer, const mica_index_dim *inner)
{
    return outer->border == MICA_INDEX_INSIDE && inner->border == MICA_INDEX_INSIDE &&
           outer->here == inner->here * inner->size && outer->there == inner->there * inner->size &&
           outer->index == inner->index * inner->size;
}

void mica_index_form_make(const mica_index_map *m, bool ordered, mica_index_form *f)
{
    memset(f, 0, sizeof *f);
    f->count = 1;
    for (int d = 0; d < m->rank; d++) {
        mica_index_dim now = m->at[d];
        if (m->work == MICA_INDEX_FOLD) now.size = m->at[d].across, now.across = m->at[d].size;
        f->count *= now.size;
        if (now.size == 1 && now.border == MICA_INDEX_INSIDE) continue;
        int j = f->rank++;
        for (; !ordered && j > 0 && walked_stride(m, &now) > walked_stride(m, &f->at[j - 1]); j--)
            f->at[j] = f->at[j - 1];
        f->at[j] = now;
    }
    int kept = 0;
    for (int d = 0; d < f->rank; d++) {
        if (kept && merges(&f->at[kept - 1], &f->at[d])) {
            const int64_t outer = f->at[kept - 1].size;
            f->at[kept - 1] = f->at[d];
            f->at[kept - 1].size *= outer;
            f->at[kept - 1].across *= outer;
        } else {
            f->at[kept++] = f->at[d];
        }
    }
    f->rank = kept;
}

/* ---- for engines and operations ---- */

bool mica_index_has_nibbles(const mica_op *op, const void *desc)
{
    bool any = false;
    for (int i = 0; i < op->arg_count; i++)
        any |= mica_op_dir(op, desc, i) != MICA_UNUSED &&
               mica_dtype_bits(mica_op_tensor(op, desc, i)->dtype) < 8;
    return any;
}

void mica_index_value(const mica_plan *plan, const mica_run *run, mica_dtype type, void *bits)
{
    memset(bits, 0, 16);
    if (plan->op->scalar_count) mica_dtype_store(type)(bits, 0, mica_run_scalar(plan, run, 0));
}

bool mica_index_exact(const void *desc)
{
    (void)desc;
    return true;
}

void mica_index_fill(const int64_t *extents, int parts, bool negative, int64_t count,
                     mica_fill fill, uint64_t seed, double *values)
{
    for (int64_t i = 0; i < count; i++) {
        const double most = (double)extents[i % parts];
        const uint64_t bits = mica_random_bits(seed, (uint64_t)i);
        double v = floor(mica_random_uniform(seed ^ 1, (uint64_t)i) * most);
        if (fill == MICA_FILL_EXTREME && bits % 3 == 0 && most > 0) v = bits & 8 ? 0 : most - 1;
        if (negative && bits % 5 == 1) v -= most;
        if (bits % 29 == 2 || most == 0) v = bits & 8 || !negative ? most : -most - 1;
        values[i] = v;
    }
}

const mica_engine *const mica_index_engines[] = {&mica_index_cpu, &mica_engine_ref,
                                                 &mica_index_cuda, NULL};
