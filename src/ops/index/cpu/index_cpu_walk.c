/* SPDX-License-Identifier: Apache-2.0
 * Walks over rows, segments of bordered dimensions, offsets of indices. */
#include "ops/index/cpu/index_cpu.h"

#include <string.h>

static void place(index_cpu_walk *w, int d)
{
    const mica_index_dim *a = &w->p->form.at[d];
    const int64_t at = mica_index_bordered(a->border, a->start + a->step * w->c[d], a->across);
    w->outside += (at < 0) - (w->to[d] < 0);
    w->here += w->c[d] * a->here - w->from[d] * a->here;
    w->index += (w->c[d] - w->from[d]) * a->index;
    w->there += ((at < 0 ? 0 : at) - (w->to[d] < 0 ? 0 : w->to[d])) * a->there;
    w->from[d] = w->c[d], w->to[d] = at;
}

void index_cpu_begin(index_cpu_walk *w, const index_cpu_piece *p, int outer, int64_t row)
{
    memset(w, 0, sizeof *w);
    w->p = p, w->outer = outer;
    for (int d = outer - 1; d >= 0; d--) {
        w->c[d] = row % p->form.at[d].size;
        row /= p->form.at[d].size;
        place(w, d);
    }
}

void index_cpu_next(index_cpu_walk *w)
{
    for (int d = w->outer - 1; d >= 0; d--) {
        const bool over = ++w->c[d] == w->p->form.at[d].size;
        if (over) w->c[d] = 0;
        place(w, d);
        if (!over) return;
    }
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* i: the coordinate there before the border. */
static index_cpu_segment beside(const mica_index_dim *d, int64_t i, int64_t most)
{
    const int64_t n = d->across;
    if (n > 0 && d->border == MICA_INDEX_WRAP) {
        const int64_t at = mica_index_modulo(i, n);
        return (index_cpu_segment){least(most, n - at), at, 1};
    }
    if (n > 1 && d->border == MICA_INDEX_REFLECT) {
        const int64_t period = 2 * (n - 1), at = mica_index_modulo(i, period);
        if (at < n - 1) return (index_cpu_segment){least(most, n - 1 - at), at, 1};
        return (index_cpu_segment){least(most, period - at), period - at, -1};
    }
    const bool nowhere = n == 0 || d->border == MICA_INDEX_NONE;
    const bool returns = d->step > 0 ? i < 0 : i >= n;
    const int64_t distance = d->step > 0 ? -i : i - (n - 1),
                  step = d->step > 0 ? d->step : -d->step;
    if (returns) most = least(most, (distance + step - 1) / step);
    return (index_cpu_segment){most, nowhere ? -1 : i < 0 ? 0 : n - 1, 0};
}

index_cpu_segment index_cpu_segment_of(const mica_index_dim *d, int64_t c, int64_t most)
{
    const int64_t i = d->start + d->step * c, n = d->across;
    if (d->border == MICA_INDEX_INSIDE) return (index_cpu_segment){most, i, d->step};
    if (i < 0 || i >= n) return beside(d, i, most);
    const int64_t left = d->step > 0 ? (n - 1 - i) / d->step : i / -d->step;
    return (index_cpu_segment){least(most, left + 1), i, d->step};
}

/* ---- indices ---- */

enum { BLOCK = 256 };

static void widen(const void *index, mica_dtype type, int64_t at, int64_t step, int64_t n,
                  int64_t *v)
{
    if (type == MICA_S64)
        for (int64_t k = 0; k < n; k++) v[k] = ((const int64_t *)index)[at + k * step];
    else if (type == MICA_S32)
        for (int64_t k = 0; k < n; k++) v[k] = ((const int32_t *)index)[at + k * step];
    else
        for (int64_t k = 0; k < n; k++) v[k] = ((const uint32_t *)index)[at + k * step];
}

static void add_part(const mica_index_map *m, int part, const int64_t *v, int64_t n,
                     int64_t *offsets)
{
    const mica_index_part p = m->part[part];
    for (int64_t k = 0; k < n; k++) {
        const int64_t at = mica_index_legal(v[k], p.extent, m->negative);
        const bool out = at < 0 || (m->skips && at == m->skip) || offsets[k] == INT64_MIN;
        offsets[k] = out ? INT64_MIN : offsets[k] + at * p.stride;
    }
}

static void add_cells(const mica_index_map *m, const int64_t *v, int64_t n, int64_t *offsets)
{
    const int64_t cells = mica_index_cells(m);
    for (int64_t k = 0; k < n; k++) {
        const int64_t cell = mica_index_legal(v[k], cells, m->negative);
        offsets[k] = cell < 0 ? INT64_MIN : mica_index_cell_offset(m, cell);
    }
}

void index_cpu_offsets(const index_cpu_piece *p, const void *index, mica_dtype type, int64_t at,
                       int64_t step, int64_t n, int64_t *offsets)
{
    int64_t v[BLOCK];
    memset(offsets, 0, (size_t)n * sizeof *offsets);
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t few = n - i < BLOCK ? n - i : BLOCK;
        if (p->map.flat) {
            widen(index, type, at + i * step, step, few, v);
            add_cells(&p->map, v, few, offsets + i);
            continue;
        }
        for (int part = 0; part < p->map.parts; part++) {
            widen(index, type, at + i * step + part * p->map.part_step, step, few, v);
            add_part(&p->map, part, v, few, offsets + i);
        }
    }
}
