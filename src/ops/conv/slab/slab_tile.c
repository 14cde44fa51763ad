/* SPDX-License-Identifier: Apache-2.0
 * Tiles of the slab engines, and their runs. Tiles are 8 pixels across and so many rows down; or
 * flat, whole rows one after the other with the zeros of their padding between them, of which the
 * right ones of a row are the left ones of the next: for widths that tiles of 8 would round up by
 * more. */
#include "ops/conv/slab/slab_tile.h"

#include <math.h>

enum { ACROSS = 8, MOST_BOX = 256 /* TMA's */ };

/* Of the image that taps read. */
static const long long *size_read(const mica_conv_sm90_shape *s)
{
    return s->roles.dgrad ? s->g.out : s->g.in;
}

static int64_t reach_of(const mica_conv_sm90_shape *s, int axis)
{
    return (s->g.tap[axis] - 1) * s->tap_step[axis];
}

/* ---- lattices ---- */

/* Pixels of a lattice along an axis where `count` results are formed at once. */
static int64_t lattice_pixels(const mica_conv_sm90_shape *s, int axis, int lattice, int64_t count)
{
    int64_t reach = -1;
    for (int64_t t = 0; t < s->g.tap[axis]; t++) {
        int64_t at = t * s->tap_step[axis];
        if (at % s->step[axis] == lattice) reach = at / s->step[axis];
    }
    return reach < 0 ? 0 : count + reach;
}

/* All that are read. */
static int64_t slab_pixels(const mica_conv_sm90_shape *s, int axis, int64_t count)
{
    int64_t pixels = 0;
    for (int i = 0; i < s->step[axis]; i++) pixels += lattice_pixels(s, axis, i, count);
    return pixels;
}

/* Of the longest lattice, what is left out between them counted. */
static int64_t box_pixels(const mica_conv_sm90_shape *s, int axis, int64_t count)
{
    return (count + reach_of(s, axis) / s->step[axis]) * s->step[axis];
}

/* ---- tiles ---- */

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Positions of a row: what lies past the image's right side comes out as the next row's left, where
 * both are zeros. */
static int64_t line_of(const mica_conv_sm90_shape *s)
{
    int64_t reach = reach_of(s, 2), start = s->classes[0].start[2], left = start < 0 ? -start : 0;
    int64_t apart = mica_conv_sm90_size(s)[2] + reach;
    int64_t shared = most(most(size_read(s)[2] - start, apart + start), mica_conv_sm90_size(s)[2]);
    return left > 0 && shared < apart ? shared : apart;
}

static bool make_flat(const mica_conv_sm90_shape *s, int rows, conv_slab_tile *t)
{
    int64_t line = line_of(s), positions = line * rows, reach = reach_of(s, 1) * line;
    if (s->step[1] != 1 || s->step[2] != 1 || line > MOST_BOX || positions > CONV_SLAB_MOST)
        return false;
    int64_t eights = conv_ceil_div(positions, ACROSS);
    if (s->roles.wgrad) eights += eights % 2; /* the terms of a product are 16 */
    if (eights * ACROSS > CONV_SLAB_MOST) return false;
    int64_t slab = positions + reach, read = eights * ACROSS + reach + reach_of(s, 2);
    /* results stand where the slab stood, two groups at a time, and leave the zeros alone */
    if (!s->roles.wgrad && (eights + eights % 2) * ACROSS > slab) return false;
    t->line = (int)line;
    t->eights = (int)eights;
    t->across = 1;
    t->wide = (int)line;
    t->slab = slab * CONV_SLAB_PIXEL;
    t->zeros = (read > slab ? read - slab : 0) * CONV_SLAB_PIXEL;
    return true;
}

bool conv_slab_tile_make(const mica_conv_sm90_shape *s, const mica_config *config,
                         conv_slab_tile *t)
{
    int rows = config->knob[CONV_SLAB_HEIGHT];
    *t = (conv_slab_tile){.rows = rows, .eights = rows, .wide = ACROSS, .tall = rows};
    if (box_pixels(s, 1, rows) > MOST_BOX || box_pixels(s, 2, ACROSS) > MOST_BOX) return false;
    t->down = (int)conv_ceil_div(mica_conv_sm90_size(s)[1], rows);
    if (config->knob[CONV_SLAB_FLAT]) return make_flat(s, rows, t);
    t->across = (int)conv_ceil_div(mica_conv_sm90_size(s)[2], ACROSS);
    t->slab = slab_pixels(s, 1, rows) * slab_pixels(s, 2, ACROSS) * CONV_SLAB_PIXEL;
    return true;
}

int64_t conv_slab_tiles(const mica_conv_sm90_shape *s, const conv_slab_tile *t)
{
    return s->g.n * mica_conv_sm90_size(s)[0] * t->across * t->down;
}

/* ---- choosing ---- */

typedef struct best {
    const mica_conv_sm90_shape *s;
    const mica_device_info *device;
    conv_slab_cost *cost;
    double cycles[2];
} best;

static void consider(best *b, mica_config config, mica_config configs[2])
{
    double cycles = b->cost(b->s, b->device, &config);
    int place = cycles < b->cycles[0] ? 0 : 1;
    if (!(cycles < b->cycles[place])) return;
    if (place == 0) {
        b->cycles[1] = b->cycles[0];
        configs[1] = configs[0];
    }
    b->cycles[place] = cycles;
    configs[place] = config;
}

int conv_slab_configs(const mica_conv_sm90_shape *s, const mica_device_info *device,
                      const int *heights, conv_slab_cost *cost, mica_config configs[2])
{
    best b = {s, device, cost, {INFINITY, INFINITY}};
    for (; *heights; heights++) consider(&b, (mica_config){{*heights}}, configs);
    for (int rows = 1; rows <= CONV_SLAB_MOST; rows++)
        consider(&b, (mica_config){{rows, 1}}, configs);
    return b.cycles[1] < INFINITY ? 2 : b.cycles[0] < INFINITY ? 1 : 0;
}

/* ---- what kernels are told ---- */

void conv_slab_image_map(const mica_conv_sm90_shape *s, const conv_slab_tile *t, int lattice,
                         mica_tensor_map_spec *map)
{
    int64_t tall = lattice_pixels(s, 1, lattice / s->step[2], t->rows),
            wide = t->line ? t->line : lattice_pixels(s, 2, lattice % s->step[2], ACROSS);
    if (tall == 0 || wide == 0) return;
    mica_conv_sm90_window_map(s, !s->roles.dgrad, CONV_SLAB_CHANNELS, (int)wide, (int)tall, map);
}

void conv_slab_tile_prologue(const mica_conv_sm90_shape *s, const conv_slab_tile *t, mica_text *p)
{
    mica_prologue_int(p, "TAPS_DOWN", s->g.tap[1]);
    mica_prologue_int(p, "TAPS_ACROSS", s->g.tap[2]);
    mica_prologue_int(p, "STEP_DOWN", s->tap_step[1]);
    mica_prologue_int(p, "STEP_ACROSS", s->tap_step[2]);
    mica_prologue_int(p, "STRIDE_DOWN", s->step[1]);
    mica_prologue_int(p, "STRIDE_ACROSS", s->step[2]);
    mica_prologue_int(p, "LINE", t->line);
    mica_prologue_int(p, "ROWS", t->rows);
    mica_prologue_int(p, "EIGHTS", t->eights);
    mica_prologue_type(p, "in_t", s->in);
}

void conv_slab_tile_args(const mica_conv_desc *d, const mica_conv_sm90_shape *s,
                         const conv_slab_tile *t, mica_conv_slab_args *a)
{
    const mica_conv_class *c = &s->classes[0];
    a->across = t->across;
    a->down = t->down;
    a->tiles = (int)conv_slab_tiles(s, t);
    for (int i = 0; i < 2; i++) {
        a->start[i] = c->start[i + 1];
        a->filter[i] = c->filter[i + 1];
        a->filter_step[i] = c->filter_step[i + 1];
        a->size[i] = (int)mica_conv_sm90_size(s)[i + 1];
    }
    a->channels = (int)(s->g.groups * mica_conv_sm90_columns(s));
    a->to = *mica_conv_sm90_strides(s);
    a->residual = s->g.residual;
    mica_conv_epilogue_args(d, &a->epilogue);
}

/* ---- runs ---- */

static mica_status run_slabs(const mica_plan *plan, const conv_slab_plan *s, const mica_run *r)
{
    const conv_sm90_plan *p = &s->sm90;
    const mica_conv_roles *roles = &p->shape.roles;
    mica_conv_slab_args a = s->args;
    MICA_TRY(conv_sm90_encode(plan, p, r, a.image, &a.other, &a.result));
    MICA_TRY(conv_sm90_encode_residual(plan, p, r, &a.residual_map, &a.wide));
    a.narrow = r->args[roles->other];
    a.out = r->args[roles->out];
    a.alpha = (float)mica_run_scalar(plan, r, MICA_CONV_ALPHA);
    a.beta = (float)mica_run_scalar(plan, r, MICA_CONV_BETA);
    mica_epilogue_bind(&a.epilogue, r->args, MICA_CONV_BIAS);
    if (roles->wgrad) a.partial = mica_at(r, p->reduce.partial);
    if (p->shape.stats) a.sums = conv_stats_partial(&p->stats, r);
    return conv_sm90_launch(plan, p, r, &a);
}

mica_status conv_slab_run(const mica_plan *plan, const mica_run *r)
{
    const conv_slab_plan *s = plan->state;
    return conv_sm90_aligned(&s->sm90, r) ? run_slabs(plan, s, r)
                                          : conv_generic_run(&s->sm90.generic, r);
}
