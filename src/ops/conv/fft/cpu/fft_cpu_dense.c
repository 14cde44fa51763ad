/* SPDX-License-Identifier: Apache-2.0
 * The CPU engine "fft", dense and grouped: spectra go to planes of the workspace, one for each
 * value, and their products are a child plan of op gemm; vectors hold channels. */
#include "ops/conv/fft/cpu/fft_cpu.h"

#include <string.h>

mica_status conv_fft_dense_build(mica_plan *plan, conv_fft_cpu *s)
{
    const conv_fft_problem *p = &s->p;
    const conv_fft_division *d = &s->d;
    size_t number = (size_t)mica_dtype_bits(p->sums) / 8;
    size_t count = (size_t)(d->bins * p->g.groups) * number;
    mica_gemm_desc gemm;
    conv_fft_gemm(p, d, &gemm);
    s->scratch_each = conv_fft_tile_bytes(d);
    MICA_TRY(mica_book(plan, "image's spectra", count * (size_t)conv_fft_image_plane(p, d),
                       &s->image_at));
    MICA_TRY(mica_book(plan, "filter's spectra",
                       count * (size_t)(conv_fft_filter_plane(p) * d->parts), &s->filter_at));
    MICA_TRY(mica_book(plan, p->wgrad ? "gradient's spectra" : "result's spectra",
                       count * (size_t)conv_fft_result_plane(p, d), &s->result_at));
    MICA_TRY(mica_book(plan, "tiles", (size_t)s->workers * s->scratch_each, &s->scratch_at));
    return mica_plan_child_create(plan, "gemm", &gemm, sizeof gemm, NULL, &s->child, &s->child_at);
}

/* ---- lanes ---- */

/* Channels from `first` on of one group and image (of a filter: one of the result's channels). */
static int make_lanes(const conv_fft_cpu *s, const conv_fft_tensor *t, int64_t batch, int64_t group,
                      int64_t first, bool by_batch, conv_fft_lanes *l)
{
    const conv_fft_problem *p = &s->p;
    int64_t channels = by_batch ? p->to : t == &p->image ? p->from : p->to;
    int64_t left = channels - first, step = by_batch ? t->batch : t->channel;
    memset(l, 0, sizeof *l);
    l->count = left < s->loops->lanes ? (int)left : s->loops->lanes;
    l->neighbours = step == 1;
    for (int i = 0; i < l->count; i++) {
        l->exists[i] = true;
        l->offset[i] = t->base + group * t->group + batch * (by_batch ? t->channel : t->batch) +
                       (first + i) * step;
        l->residual[i] =
            batch * p->residual_n + group * p->residual_g + (first + i) * p->residual_c;
        l->channel[i] = group * channels + first + i;
    }
    return l->count;
}

static void start_at(conv_fft_lanes *l, int64_t y, int64_t x)
{
    for (int i = 0; i < l->count; i++) {
        l->start[i][0] = y;
        l->start[i][1] = x;
    }
}

/* ---- what a worker does with one tile ---- */

typedef struct pass {
    const conv_fft_cpu *s;
    const mica_run *run;
    const mica_conv_job *job;
    int64_t first; /* image of the chunk */
    char *points;
} pass;

typedef void tile_fn(const pass *a, int64_t index);

static int64_t blocks_of(const conv_fft_cpu *s, int64_t channels)
{
    return conv_ceil_div(channels, s->loops->lanes);
}

/* index: [image][slot][group][block of channels] */
static void image_tile(const pass *a, int64_t index)
{
    const conv_fft_cpu *s = a->s;
    const conv_fft_problem *p = &s->p;
    const conv_fft_division *d = &s->d;
    const conv_fft_axis *y = &d->axis[0], *x = &d->axis[1];
    int64_t blocks = blocks_of(s, p->from), first = index % blocks * s->loops->lanes;
    int64_t group = index / blocks % p->g.groups, row = index / (blocks * p->g.groups);
    int64_t slot = row % d->slots, n = a->first + row / d->slots;
    int64_t take[2] = {y->points, x->points};
    conv_fft_lanes lanes;
    int count = make_lanes(s, &p->image, n, group, first, false, &lanes);
    start_at(&lanes, slot / x->slots * y->step - y->before, slot % x->slots * x->step - x->before);
    if (n < p->g.n)
        s->loops->load(d, &p->image, a->job->types[p->dgrad ? 1 : 0], a->run->args[p->image_arg],
                       &lanes, take, a->points);
    else
        memset(a->points, 0, conv_fft_tile_bytes(d));
    s->loops->forward(d, s->roots, a->points);
    int64_t plane = conv_fft_image_plane(p, d);
    conv_fft_plane to = {.data = mica_at(a->run, s->image_at),
                         .at = group * plane + row * 4 * p->from + first,
                         .pitch = plane * p->g.groups,
                         .im = p->from};
    s->loops->to_plane(d, a->points, &to, count);
    to.at += 2 * p->from;
    to.turned = true;
    s->loops->to_plane(d, a->points, &to, count);
}

/* index: [part][group][from][block of to] */
static conv_fft_plane filter_plane(const pass *a, const conv_fft_tensor *t, int64_t index,
                                   conv_fft_lanes *lanes)
{
    const conv_fft_cpu *s = a->s;
    const conv_fft_problem *p = &s->p;
    const conv_fft_division *d = &s->d;
    const conv_fft_axis *y = &d->axis[0], *x = &d->axis[1];
    int64_t blocks = blocks_of(s, p->to), first = index % blocks * s->loops->lanes;
    int64_t from = index / blocks % p->from, rest = index / blocks / p->from;
    int64_t group = rest % p->g.groups, part = rest / p->g.groups;
    int64_t plane = conv_fft_filter_plane(p);
    make_lanes(s, t, from, group, first, true, lanes);
    start_at(lanes, part / x->parts * y->part, part % x->parts * x->part);
    return (conv_fft_plane){.data = mica_at(a->run, s->filter_at),
                            .at = (part * d->bins * p->g.groups + group) * plane + from * p->to +
                                  first,
                            .pitch = plane * p->g.groups,
                            .im = p->from * p->to};
}

static void filter_tile(const pass *a, int64_t index)
{
    const conv_fft_cpu *s = a->s;
    const conv_fft_division *d = &s->d;
    int64_t take[2] = {d->axis[0].part, d->axis[1].part};
    conv_fft_lanes lanes;
    conv_fft_plane to = filter_plane(a, &s->p.shorter, index, &lanes);
    s->loops->load(d, &s->p.shorter, a->job->types[2], a->run->args[s->p.short_arg], &lanes, take,
                   a->points);
    s->loops->forward(d, s->roots, a->points);
    s->loops->to_plane(d, a->points, &to, lanes.count);
}

static void filter_gradient_tile(const pass *a, int64_t index)
{
    const conv_fft_cpu *s = a->s;
    const conv_fft_division *d = &s->d;
    int64_t take[2] = {d->axis[0].part, d->axis[1].part};
    conv_fft_lanes lanes;
    conv_fft_plane from = filter_plane(a, &s->p.result, index, &lanes);
    s->loops->from_plane(d, &from, lanes.count, a->points);
    s->loops->inverse(d, s->roots, a->points);
    s->loops->store(d, &s->p, a->job, &lanes, take, a->points);
}

/* index: [image][slot][group][block of to]; slots of no tile are zeros in a gradient. */
static void result_tile(const pass *a, int64_t index)
{
    const conv_fft_cpu *s = a->s;
    const conv_fft_problem *p = &s->p;
    const conv_fft_division *d = &s->d;
    const conv_fft_axis *y = &d->axis[0], *x = &d->axis[1];
    const conv_fft_tensor *t = p->wgrad ? &p->shorter : &p->result;
    int64_t blocks = blocks_of(s, p->to), first = index % blocks * s->loops->lanes;
    int64_t group = index / blocks % p->g.groups, row = index / (blocks * p->g.groups);
    int64_t slot = row % d->slots, n = a->first + row / d->slots, take[2] = {y->step, x->step};
    int64_t down = slot / x->slots, across = slot % x->slots;
    bool exists = n < p->g.n && down < y->tiles && across < x->tiles;
    if (!exists && !p->wgrad) return;
    conv_fft_lanes lanes;
    int count = make_lanes(s, t, n, group, first, false, &lanes);
    start_at(&lanes, down * y->step, across * x->step);
    int64_t plane = conv_fft_result_plane(p, d);
    const conv_fft_plane at = {.data = mica_at(a->run, s->result_at),
                               .at = group * plane + row * 2 * p->to + first,
                               .pitch = plane * p->g.groups,
                               .im = p->to};
    if (!p->wgrad) {
        s->loops->from_plane(d, &at, count, a->points);
        s->loops->inverse(d, s->roots, a->points);
        s->loops->store(d, p, a->job, &lanes, take, a->points);
        return;
    }
    if (exists)
        s->loops->load(d, t, a->job->types[1], a->run->args[p->short_arg], &lanes, take, a->points);
    else
        memset(a->points, 0, conv_fft_tile_bytes(d));
    s->loops->forward(d, s->roots, a->points);
    s->loops->to_plane(d, a->points, &at, count);
}

/* ---- run ---- */

static void all_tiles(const pass *a, tile_fn *tile, int64_t count)
{
    const conv_fft_cpu *s = a->s;
#pragma omp parallel for schedule(static, 1) num_threads((int)s->workers)
    for (int64_t worker = 0; worker < s->workers; worker++) {
        pass mine = *a;
        mine.points = (char *)mica_at(a->run, s->scratch_at) + (size_t)worker * s->scratch_each;
        int64_t end = count * (worker + 1) / s->workers;
        for (int64_t i = count * worker / s->workers; i < end; i++) tile(&mine, i);
    }
}

static mica_status multiply(const pass *a, bool first)
{
    const conv_fft_cpu *s = a->s;
    const conv_fft_problem *p = &s->p;
    const conv_fft_division *d = &s->d;
    int64_t number = mica_dtype_bits(p->sums) / 8;
    for (int64_t part = 0; part < d->parts; part++) {
        bool add = p->wgrad ? !first : part > 0;
        double scalars[] = {[MICA_GEMM_ALPHA] = 1, [MICA_GEMM_BETA] = add ? 1 : 0};
        int64_t row = conv_fft_part_slots(d, part) * 4 * p->from;
        int64_t planes = part * d->bins * p->g.groups * conv_fft_filter_plane(p);
        char *image = (char *)mica_at(a->run, s->image_at) + row * number;
        char *filter = (char *)mica_at(a->run, s->filter_at) + planes * number;
        char *result = mica_at(a->run, s->result_at);
        mica_run child = {.workspace = mica_at(a->run, s->child_at), .scalars = scalars};
        child.args[MICA_GEMM_A] = image;
        child.args[MICA_GEMM_B] = p->wgrad ? result : filter;
        child.args[MICA_GEMM_C] = p->wgrad ? filter : result;
        MICA_TRY(mica_plan_child_run(s->child, &child));
    }
    return MICA_OK;
}

mica_status conv_fft_dense_run(const conv_fft_cpu *s, const mica_run *r, const mica_conv_job *job)
{
    const conv_fft_problem *p = &s->p;
    const conv_fft_division *d = &s->d;
    pass a = {.s = s, .run = r, .job = job};
    int64_t rows = d->each * d->slots * p->g.groups;
    int64_t filters = d->parts * p->g.groups * p->from * blocks_of(s, p->to);
    if (!p->wgrad) all_tiles(&a, filter_tile, filters);
    for (int64_t i = 0; i < d->chunks; i++) {
        a.first = i * d->each;
        all_tiles(&a, image_tile, rows * blocks_of(s, p->from));
        if (p->wgrad) all_tiles(&a, result_tile, rows * blocks_of(s, p->to));
        MICA_TRY(multiply(&a, i == 0));
        if (!p->wgrad) all_tiles(&a, result_tile, rows * blocks_of(s, p->to));
    }
    if (p->wgrad) all_tiles(&a, filter_gradient_tile, filters);
    return MICA_OK;
}
