/* SPDX-License-Identifier: Apache-2.0
 * Walks over a plane: a step for each run of a block, sums part by part in an order that follows
 * from the problem alone. Included by norm_cpu_real.c, once for float and once for double. */
#include "ops/norm/cpu/norm_cpu_work.h"

/* First kept index of a block, and its width. */
static int64_t block_start(const norm_plane *p, int64_t block, int64_t *width)
{
    *width = 1;
    if (!p->side_by_side) return block;
    int last = p->cols.rank - 1;
    int64_t run = p->cols.rank ? p->cols.dims[last] : 1;
    int64_t start = block % p->blocks_per_run * p->block;
    *width = run - start < p->block ? run - start : p->block;
    return block / p->blocks_per_run * run + start;
}

/* Applies the step to reduced indices of a block; sums, if there are any, go to *to. */
static void walk_range(work *w, int64_t block, int64_t from, int64_t end, step_fn step, sums *to)
{
    const norm_plane *p = w->plane;
    int64_t width, start = block_start(p, block, &width);
    w->sums = to;
    if (!p->side_by_side) {
        w->row = start;
        for (w->first = from; w->first < end; w->first += TILE) {
            w->n = end - w->first < TILE ? end - w->first : TILE;
            step(w);
        }
        return;
    }
    w->first = start;
    for (w->row = from; w->row < end; w->row += p->fold) {
        w->n = columns_of(p, width);
        if (end - w->row < p->fold) w->n = (end - w->row) * width;
        step(w);
        if (to && ++w->count == NORM_FLUSH) flush(w, columns_of(p, width));
    }
    if (to) flush(w, columns_of(p, width));
}

static void walk_part(work *w, int64_t block, int part, step_fn step, sums *to)
{
    int64_t from = part * w->plane->part_size, end = from + w->plane->part_size;
    walk_range(w, block, from, end < w->plane->reduced ? end : w->plane->reduced, step, to);
}

static void clear_sums(sums *s, int64_t columns)
{
    memset(s->plain, 0, (size_t)columns * sizeof *s->plain);
    memset(s->squared, 0, (size_t)columns * sizeof *s->squared);
}

static void add_sums(sums *to, const sums *s, int64_t columns)
{
    for (int64_t i = 0; i < columns; i++) {
        to->plain[i] += s->plain[i];
        to->squared[i] += s->squared[i];
    }
}

/* Every column receives the sum of `count` columns that are `step` apart, the first being *v. */
static void unite_columns(double *v, int64_t count, int64_t step)
{
    double total = 0;
    for (int64_t i = 0; i < count; i++) total += v[i * step];
    for (int64_t i = 0; i < count; i++) v[i * step] = total;
}

/* Adds the copies of each folded column. */
static void combine_folded_columns(const norm_plane *p, sums *s, int64_t width)
{
    for (int64_t i = 0; p->fold > 1 && i < width; i++) {
        unite_columns(s->plain + i, p->fold, width);
        unite_columns(s->squared + i, p->fold, width);
    }
    for (int64_t i = 0; p->together > 1 && i < columns_of(p, width); i += p->together) {
        unite_columns(s->plain + i, p->together, 1);
        unite_columns(s->squared + i, p->together, 1);
    }
}

/* Fields of a fresh work, but for its buffers. */
static void begin(work *w, const work *like)
{
    memcpy(w, like, offsetof(work, running));
    memset(w->running, 0, sizeof w->running);
}

/* Every part of a block by threads of its own. */
static void walk_parts_parallel(const work *w, int64_t block, step_fn step, sums *to, int threads)
{
    const norm_plane *p = w->plane;
    int64_t width;
    block_start(p, block, &width);
    int64_t columns = columns_of(p, width);
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    sums *partial = mica_scratch_take(NORM_PARTS * sizeof *partial);
#pragma omp parallel num_threads(threads)
    {
        mica_scratch own MICA_SCOPED = mica_scratch_open();
        work *mine = mica_scratch_take(sizeof *mine);
        begin(mine, w);
#pragma omp for schedule(static)
        for (int part = 0; part < p->parts; part++) {
            if (to) clear_sums(&partial[part], columns);
            walk_part(mine, block, part, step, to ? &partial[part] : NULL);
        }
        mica_stream_end();
    }
    for (int part = 0; to && part < p->parts; part++) add_sums(to, &partial[part], columns);
}

/* The same sums in the same order, with one thread (threads == 1) or several. */
static void walk(work *w, int64_t block, step_fn step, sums *to, int threads)
{
    int64_t width;
    block_start(w->plane, block, &width);
    int64_t columns = columns_of(w->plane, width);
    if (to) clear_sums(to, columns);
    if (threads > 1 && w->plane->parts > 1) walk_parts_parallel(w, block, step, to, threads);
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    sums *partial = mica_scratch_take(sizeof *partial);
    for (int part = 0; part < w->plane->parts && !(threads > 1 && w->plane->parts > 1); part++) {
        if (to) clear_sums(partial, columns);
        walk_part(w, block, part, step, to ? partial : NULL);
        if (to) add_sums(to, partial, columns);
    }
    if (to) combine_folded_columns(w->plane, to, width);
}
