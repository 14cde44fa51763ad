/* SPDX-License-Identifier: Apache-2.0
 * The CPU engine "fft", depthwise: spectra of an image never leave a core's cache. A worker goes
 * over a stretch of tiles, row by row, keeps the spectra of those that later results need, and
 * multiplies, transforms back and stores (wgrad: adds up). Vectors hold 16 (f64: 8) groups, or
 * where there are fewer, stretches of the same images besides. */
#include "ops/conv/fft/cpu/fft_cpu.h"

#include <string.h>

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- the division of the work ---- */

static void split_work(conv_fft_cpu *s)
{
    const conv_fft_problem *p = &s->p;
    const conv_fft_axis *axis = s->d.axis;
    conv_fft_split *w = &s->split;
    int lanes = s->loops->lanes;
    for (w->wide = 1; w->wide < lanes && w->wide < p->g.groups;) w->wide *= 2;
    w->deep = lanes / w->wide;
    w->major = axis[0].tiles > axis[1].tiles ? 0 : 1;
    w->group_blocks = conv_ceil_div(p->g.groups, w->wide);
    const conv_fft_axis *major = &axis[w->major], *minor = &axis[1 - w->major];
    /* as many stretches as fill the vectors and occupy the workers, none shorter than its halo */
    int64_t images = p->g.n > 0 ? p->g.n : 1, blocks = w->group_blocks > 0 ? w->group_blocks : 1;
    int64_t wanted = conv_ceil_div(w->deep * conv_ceil_div(2 * s->workers, blocks), images);
    int64_t most = major->tiles / major->parts;
    int64_t stretches = at_most(wanted, most > 1 ? most : 1);
    w->tiles_each = conv_ceil_div(major->tiles, stretches);
    w->stretches = w->tiles_each > 0 ? conv_ceil_div(major->tiles, w->tiles_each) : 0;
    w->item_blocks = conv_ceil_div(p->g.n * w->stretches, w->deep);
    w->shares = at_most(w->item_blocks, conv_ceil_div(2 * s->workers, blocks));
    w->reach = (major->parts - 1) * minor->slots + minor->parts - 1;
}

mica_status conv_fft_depthwise_build(mica_plan *plan, conv_fft_cpu *s)
{
    split_work(s);
    const conv_fft_split *w = &s->split;
    size_t tile = conv_fft_tile_bytes(&s->d);
    size_t spectra = (size_t)(w->group_blocks * s->d.parts) * tile;
    s->scratch_each = (size_t)(w->reach + 2) * tile;
    if (s->p.wgrad)
        MICA_TRY(
            mica_book(plan, "sums of spectra", spectra * (size_t)(w->shares + 1), &s->result_at));
    else
        MICA_TRY(mica_book(plan, "filter's spectra", spectra, &s->filter_at));
    return mica_book(plan, "tiles", (size_t)s->workers * s->scratch_each, &s->scratch_at);
}

/* ---- lanes ---- */

/* The groups of a block, from one place on, as often as there are items. */
static void filter_lanes(const conv_fft_cpu *s, const conv_fft_tensor *t, int64_t block,
                         int64_t part, conv_fft_lanes *l)
{
    const conv_fft_axis *axis = s->d.axis;
    const conv_fft_split *w = &s->split;
    int64_t first[2] = {part / axis[1].parts * axis[0].part, part % axis[1].parts * axis[1].part};
    memset(l, 0, sizeof *l);
    l->count = w->wide * w->deep;
    for (int i = 0; i < l->count; i++) {
        int64_t group = block * w->wide + i % w->wide;
        l->exists[i] = group < s->p.g.groups;
        l->offset[i] = t->base + group * t->group;
        memcpy(l->start[i], first, sizeof first);
    }
}

/* Row (column) `major`, column (row) `minor` of tiles within the stretches of a block of items;
 * halo: of the image, whose tiles begin before the results', and which has more of them. */
static void image_lanes(const conv_fft_cpu *s, const conv_fft_tensor *t, int64_t group_block,
                        int64_t item_block, int64_t major, int64_t minor, bool halo,
                        conv_fft_lanes *l)
{
    const conv_fft_problem *p = &s->p;
    const conv_fft_split *w = &s->split;
    const conv_fft_axis *axis = s->d.axis, *x = &axis[w->major], *y = &axis[1 - w->major];
    memset(l, 0, sizeof *l);
    l->neighbours = w->deep == 1 && t->group == 1;
    for (int i = 0; i < s->loops->lanes; i++) {
        int64_t group = group_block * w->wide + i % w->wide;
        int64_t item = item_block * w->deep + i / w->wide;
        int64_t n = item / w->stretches, tile = item % w->stretches * w->tiles_each + major;
        l->exists[i] = group < p->g.groups && n < p->g.n && (halo || tile < x->tiles);
        if (l->exists[i]) l->count = i + 1;
        l->offset[i] = n * t->batch + group * t->group;
        l->residual[i] = n * p->residual_n + group * p->residual_g;
        l->channel[i] = group;
        l->start[i][w->major] = tile * x->step - (halo ? x->before : 0);
        l->start[i][1 - w->major] = minor * y->step - (halo ? y->before : 0);
    }
}

/* ---- a stretch ---- */

typedef struct pass {
    const conv_fft_cpu *s;
    const mica_conv_job *job;
    const void *image, *shorter;
    mica_dtype image_type, short_type;
    char *filter;  /* spectra [part], of the block of groups */
    char *scratch; /* [reach + 1] of the image, and one more */
} pass;

static void one_result(const pass *a, int64_t group_block, int64_t item_block, int64_t major,
                       int64_t minor, int64_t newest)
{
    const conv_fft_cpu *s = a->s;
    const conv_fft_division *d = &s->d;
    const conv_fft_split *w = &s->split;
    size_t bytes = conv_fft_tile_bytes(d);
    char *last = a->scratch + (size_t)(w->reach + 1) * bytes;
    int64_t pitch = d->axis[1 - w->major].slots, columns = d->axis[1].parts;
    int64_t take[2] = {d->axis[0].step, d->axis[1].step};
    conv_fft_lanes lanes;
    image_lanes(s, s->p.wgrad ? &s->p.shorter : &s->p.result, group_block, item_block, major, minor,
                false, &lanes);
    if (lanes.count == 0) return;
    if (s->p.wgrad) {
        s->loops->load(d, &s->p.shorter, a->short_type, a->shorter, &lanes, take, last);
        s->loops->forward(d, s->roots, last);
    }
    for (int64_t part = 0; part < d->parts; part++) {
        int64_t at[2] = {part / columns, part % columns};
        int64_t index = newest - w->reach + at[w->major] * pitch + at[1 - w->major];
        char *x = a->scratch + (size_t)(index % (w->reach + 1)) * bytes;
        char *f = a->filter + (size_t)part * bytes;
        if (s->p.wgrad)
            s->loops->multiply(d, x, last, true, f);
        else
            s->loops->multiply(d, x, f, part > 0, last);
    }
    if (s->p.wgrad) return;
    s->loops->inverse(d, s->roots, last);
    s->loops->store(d, &s->p, a->job, &lanes, take, last);
}

static void one_block(const pass *a, int64_t group_block, int64_t item_block)
{
    const conv_fft_cpu *s = a->s;
    const conv_fft_division *d = &s->d;
    const conv_fft_split *w = &s->split;
    const conv_fft_axis *x = &d->axis[w->major], *y = &d->axis[1 - w->major];
    int64_t take[2] = {d->axis[0].points, d->axis[1].points}, index = 0;
    conv_fft_lanes lanes;
    for (int64_t u = 0; u < w->tiles_each + x->parts - 1; u++)
        for (int64_t v = 0; v < y->slots; v++, index++) {
            char *to = a->scratch + (size_t)(index % (w->reach + 1)) * conv_fft_tile_bytes(d);
            image_lanes(s, &s->p.image, group_block, item_block, u, v, true, &lanes);
            s->loops->load(d, &s->p.image, a->image_type, a->image, &lanes, take, to);
            s->loops->forward(d, s->roots, to);
            if (u >= x->parts - 1 && v >= y->parts - 1)
                one_result(a, group_block, item_block, u - x->parts + 1, v - y->parts + 1, index);
        }
}

/* ---- run ---- */

static pass make_pass(const conv_fft_cpu *s, const mica_run *r, const mica_conv_job *job)
{
    int image = s->p.dgrad ? 1 : 0, shorter = s->p.wgrad ? 1 : 2;
    return (pass){.s = s,
                  .job = job,
                  .image = r->args[s->p.image_arg],
                  .shorter = r->args[s->p.short_arg],
                  .image_type = job->types[image],
                  .short_type = job->types[shorter]};
}

static void transform_filter(const conv_fft_cpu *s, const pass *a, char *to)
{
    const conv_fft_division *d = &s->d;
    int64_t take[2] = {d->axis[0].part, d->axis[1].part};
    int64_t count = s->split.group_blocks * d->parts;
#pragma omp parallel for schedule(static) num_threads((int)s->workers)
    for (int64_t i = 0; i < count; i++) {
        conv_fft_lanes lanes;
        char *points = to + (size_t)i * conv_fft_tile_bytes(d);
        filter_lanes(s, &s->p.shorter, i / d->parts, i % d->parts, &lanes);
        s->loops->load(d, &s->p.shorter, a->short_type, a->shorter, &lanes, take, points);
        s->loops->forward(d, s->roots, points);
    }
}

static void gradient_of_filter(const conv_fft_cpu *s, const mica_conv_job *job, char *sums)
{
    const conv_fft_division *d = &s->d;
    const conv_fft_split *w = &s->split;
    size_t bytes = conv_fft_tile_bytes(d);
    int64_t take[2] = {d->axis[0].part, d->axis[1].part};
    int64_t count = w->group_blocks * d->parts;
#pragma omp parallel for schedule(static) num_threads((int)s->workers)
    for (int64_t i = 0; i < count; i++) {
        conv_fft_lanes lanes;
        char *to = sums + (size_t)i * bytes;
        for (int64_t share = 1; share < w->shares; share++)
            s->loops->add(d, to + (size_t)(share * count) * bytes, to);
        s->loops->fold(d, w->wide, to);
        s->loops->inverse(d, s->roots, to);
        filter_lanes(s, &s->p.result, i / d->parts, i % d->parts, &lanes);
        lanes.count = w->wide;
        s->loops->store(d, &s->p, job, &lanes, take, to);
    }
}

void conv_fft_depthwise_run(const conv_fft_cpu *s, const mica_run *r, const mica_conv_job *job)
{
    const conv_fft_split *w = &s->split;
    size_t block = (size_t)s->d.parts * conv_fft_tile_bytes(&s->d);
    char *spectra = mica_at(r, s->p.wgrad ? s->result_at : s->filter_at);
    const pass all = make_pass(s, r, job);
    if (s->p.wgrad)
        memset(spectra, 0, block * (size_t)(w->group_blocks * (w->shares + 1)));
    else
        transform_filter(s, &all, spectra);
    int64_t shares = s->p.wgrad ? w->shares : w->item_blocks, jobs = shares * w->group_blocks;
#pragma omp parallel for schedule(static, 1) num_threads((int)s->workers)
    for (int64_t worker = 0; worker < s->workers; worker++)
        for (int64_t i = worker; i < jobs; i += s->workers) {
            pass mine = all;
            int64_t group_block = i % w->group_blocks, share = i / w->group_blocks;
            mine.filter = spectra + block * (size_t)(s->p.wgrad ? i : group_block);
            mine.scratch = (char *)mica_at(r, s->scratch_at) + (size_t)worker * s->scratch_each;
            for (int64_t item = share; item < w->item_blocks; item += shares)
                one_block(&mine, group_block, item);
        }
    if (s->p.wgrad) gradient_of_filter(s, job, spectra);
}
