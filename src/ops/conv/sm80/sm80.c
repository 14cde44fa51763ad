/* SPDX-License-Identifier: Apache-2.0
 * Convolution on the tensor cores of sm_80 and later (mma.sync): f16, bf16, f32 as tf32, and s8 or
 * u8 forward; all passes, 1 to 3 axes, groups, any strides. An implicit matrix product: some 0.7 of
 * the rate of mma.sync where 8 channels lie side by side, 0.3 where elements are gathered one by
 * one; the gradient of the image costs what the forward pass does for every stride. Filter
 * gradients may split their pixels into parts in workspace, which a second kernel adds up in order;
 * splits=1 needs none. Bad for a few channels in a group: tiles stay empty.
 *
 * Engine "sm80_f32" is the same for f32 in full precision, by three products of tf32 numbers for
 * one (ops/gemm/sm80/sm80.c). */
#include "ops/conv/sm80/sm80.h"
#include "ops/conv/cuda/conv_parts.h"

#include <stdlib.h>

enum { KNOB_TILE_M, KNOB_TILE_N, KNOB_SPLITS };
static const char *const knobs[] = {"tile_m", "tile_n", "splits", NULL};

enum {
    MOST_COUNT = 1 << 30,
    MOST_POSITION = 1 << 28,
    LEAST_SLICES = 16,
    LEAST_LINES = 32 /* f32: fewer leave most of a tile empty, three times over */
};

typedef struct state {
    conv_sm80_shape shape;
    mica_kernel *kernel;
    mica_grid grid;
    int image, other, out; /* run arguments */
    int residual_vector;   /* elements of one access; 0: there are none */
    conv_parts parts;
    int launches;
    conv_sm80_args args[]; /* all but pointers and scalars */
} state;

/* ---- what is taken ---- */

static mica_dtype input_type(const mica_conv_desc *d)
{
    bool dgrad = mica_conv_roles_of(d).out == MICA_CONV_X;
    return mica_conv_tensor(d, dgrad ? MICA_CONV_Y : MICA_CONV_X)->dtype;
}

static bool is_precise(const mica_conv_desc *d)
{
    return input_type(d) == MICA_F32 && d->compute != MICA_COMPUTE_TF32;
}

static mica_status accepts_types(const mica_conv_desc *d, mica_why *why)
{
    mica_dtype in = input_type(d);
    if (is_precise(d))
        return mica_refuse(why, "f32 without compute=tf32: this engine would round the inputs");
    if (in == MICA_F64 || in == MICA_E4M3 || in == MICA_E5M2)
        return mica_refuse(why,
                           "inputs are %s, these kernels take f16, bf16, s8, u8, and f32 as tf32",
                           mica_dtype_name(in));
    return MICA_OK;
}

static mica_status accepts_counts(const mica_conv_geometry *g, bool dgrad, mica_why *why)
{
    double pixels = (double)g->n, other_pixels = pixels, taps = 1, classes = 1;
    for (int i = 0; i < 3; i++) {
        double reach = (double)(g->tap[i] - 1) * (double)g->dilation[i] + (double)llabs(g->pad[i]);
        double end = reach + (double)g->in[i] + (double)g->out[i] * (double)g->stride[i];
        if (end >= MOST_POSITION)
            return mica_refuse(why, "positions reach %.10g on axis %d, these kernels count to %d",
                               end, i, MOST_POSITION);
        pixels *= (double)g->in[i];
        other_pixels *= (double)g->out[i];
        taps *= (double)g->tap[i];
        if (dgrad) classes *= (double)g->stride[i];
    }
    double pairs = taps * (double)(g->c > g->k ? g->c : g->k);
    double most = pixels > other_pixels ? pixels : other_pixels;
    if (pairs > most) most = pairs;
    if (most > MOST_COUNT || g->groups > MOST_COUNT)
        return mica_refuse(why, "%.10g pixels or products of a tap, these kernels count to %d",
                           most, MOST_COUNT);
    if (classes > CONV_SM80_MOST_CLASSES)
        return mica_refuse(why, "strides make %.10g classes of pixels, at most %d are launched",
                           classes, CONV_SM80_MOST_CLASSES);
    return MICA_OK;
}

static mica_status accepts_rest(const mica_conv_desc *d, const mica_device_info *device,
                                mica_why *why)
{
    MICA_TRY(conv_refuse_full_epilogue(d, why));
    if (device->arch < 80)
        return mica_refuse(why, "the device is sm_%d, its tensor cores are used from sm_80 on",
                           device->arch);
    mica_conv_geometry g;
    mica_conv_geometry_make(d, &g);
    return accepts_counts(&g, mica_conv_roles_of(d).dgrad, why);
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    MICA_TRY(accepts_types(desc, why));
    return accepts_rest(desc, device, why);
}

static mica_status accepts_f32(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_conv_desc *d = desc;
    if (input_type(d) != MICA_F32)
        return mica_refuse(why, "inputs are %s, these kernels take f32",
                           mica_dtype_name(input_type(d)));
    if (!is_precise(d)) return mica_refuse(why, "compute=tf32, this engine is for full precision");
    MICA_TRY(accepts_rest(d, device, why));
    conv_sm80_shape s;
    conv_sm80_shape_make(d, &s);
    long long rows = conv_sm80_rows(&s), cols = s.cols;
    if (rows >= LEAST_LINES && cols >= LEAST_LINES) return MICA_OK;
    return mica_refuse(why, "a product of %lld x %lld: tiles of 64 are for %d lines or more", rows,
                       cols, LEAST_LINES);
}

/* ---- configs ---- */

static int64_t tiles_of(const conv_sm80_shape *s, const mica_config *c)
{
    return conv_ceil_div(conv_sm80_rows(s), c->knob[KNOB_TILE_M]) *
           conv_ceil_div(s->cols, c->knob[KNOB_TILE_N]) * s->g.groups * s->class_count;
}

static int64_t slices_of(const conv_sm80_shape *s)
{
    return conv_ceil_div(conv_sm80_terms(s), mica_mma_slice(&s->tile));
}

/* Parts that give every multiprocessor two tiles. */
static int full_split(const mica_conv_desc *d, const conv_sm80_shape *s, const mica_config *c,
                      int units)
{
    if (!conv_parts_possible(d)) return 1;
    return conv_parts_choose(tiles_of(s, c), 2 * (int64_t)units, slices_of(s), LEAST_SLICES);
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    conv_sm80_shape s;
    conv_sm80_shape_make(desc, &s);
    int count = mica_mma_configs(&s.tile, conv_sm80_rows(&s), s.cols, out);
    int all = count;
    for (int i = 0; i < count; i++) {
        out[i].knob[KNOB_SPLITS] = 1;
        int splits = full_split(desc, &s, &out[i], device->units);
        if (splits == 1) continue;
        out[all] = out[i];
        out[all++].knob[KNOB_SPLITS] = splits;
    }
    return all;
}

/* Where the image's channels lie apart (NCHW) products take longer than predicted. Measured over
 * predicted, 41 problems on an H200: vectors of pixels (1 x 1 filters) 2.2 to 3.4, wgrad 1.6 to 2.6
 * (with a residual 5.6: that is left out); single elements 1.03 to 1.95, wgrad 0.9 to 1.7; f32 by
 * three products 2.8 and 3.3, wgrad 1.5, of which the same products with channels side by side
 * exceed their prediction by 1.3 and 1.6, too, and only the rest is taken. */
static double channels_apart_factor(const conv_sm80_shape *s, bool precise)
{
    bool wgrad = s->kind == MICA_CONV_KIND_WGRAD;
    if (!s->tap_fast || s->channels <= 1) return 1;
    if (precise) return wgrad ? 1 : 2.3;
    if (s->tile.a.vector > 1) return wgrad ? 2 : 2.8;
    return wgrad ? 1.4 : 1.2;
}

/* Copies of fewer than 16 bytes are so many more instructions; 32-bit elements take longer even so.
 * 25 random convolutions on an H200; elements of 2 bytes alone the tile's own model has. */
static double narrow_factor(const conv_sm80_shape *s)
{
    int element = (int)mica_dtype_bits(s->tile.a.dtype) / 8, bytes = element * s->tile.a.vector;
    if (s->tap_fast) return element == 4 ? 1.5 : 1;
    if (bytes == 4) return 3.4;
    if (bytes == 8) return element == 4 ? 2.4 : 1.7;
    return element == 4 ? 1.7 : 1;
}

/* What a residual adds: 0.7 to 1.2 milliseconds of a multiprocessor for a million elements, ten
 * problems of few terms on an H200. */
static double residual_ms(const mica_conv_desc *d, const mica_device_info *device)
{
    const double each_ms = 0.15e-6;
    if (!mica_tensor_given(&d->residual)) return 0;
    return each_ms * (double)mica_tensor_count(&d->residual) / device->units;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    const double launch_ms = 3e-3, gather = 1.2, copying = 0.77;
    bool wgrad = mica_conv_roles_of(desc).wgrad;
    double begin_ms = wgrad ? 8e-3 : 0; /* each thread finds the pixels of its terms */
    conv_sm80_shape s;
    conv_sm80_shape_make(desc, &s);
    if (mica_conv_is_empty(desc)) return 0;
    s.tile.tile_m = c->knob[KNOB_TILE_M];
    s.tile.tile_n = c->knob[KNOB_TILE_N];
    double splits = c->knob[KNOB_SPLITS] > 1 ? c->knob[KNOB_SPLITS] : 1;
    double launches = (double)conv_ceil_div(s.class_count, CONV_SM80_CLASSES) + (splits > 1);
    double k = (double)conv_sm80_terms(&s) / splits / (double)s.class_count;
    double compute =
        mica_mma_predict(device, &s.tile, (double)tiles_of(&s, c) * splits, k) * gather;
    compute *= channels_apart_factor(&s, is_precise(desc));
    if (!is_precise(desc)) compute *= narrow_factor(&s);
    double memory = mica_op_bytes(&mica_op_conv, desc) / (copying * device->copy_gbps * 1e6);
    double part = 4 * (double)mica_tensor_count(&((const mica_conv_desc *)desc)->w);
    double adding = splits > 1 ? 2 * splits * part / (device->copy_gbps * 1e6) : 0;
    return begin_ms + launches * launch_ms + adding + residual_ms(desc, device) +
           (compute > memory ? compute : memory);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    if (is_precise(desc))
        mica_mma_precise_contract(c);
    else
        mica_mma_contract(input_type(desc), c);
    if (config->knob[KNOB_SPLITS] > 1) c->n_outer += config->knob[KNOB_SPLITS];
}

/* ---- plan ---- */

static void write_prologue(const mica_conv_desc *d, const conv_sm80_shape *s, bool split,
                           mica_text *p)
{
    mica_mma_prologue(p, &s->tile);
    mica_prologue_int(p, "WGRAD", s->kind == MICA_CONV_KIND_WGRAD);
    mica_prologue_int(p, "AXES", s->axes);
    mica_prologue_int(p, "TAP_FAST", s->tap_fast);
    mica_prologue_int(p, "SPLIT", split);
    mica_prologue_int(p, "HAS_RESIDUAL", mica_tensor_given(&d->residual));
    /* integers that become integers are rounded as the reference rounds them */
    bool whole = mica_dtype_is_integer(s->tile.a.dtype) && mica_dtype_is_integer(d->y.dtype);
    mica_prologue_type(p, "fin_t", whole ? MICA_F64 : MICA_F32);
    mica_epilogue e = mica_conv_epilogue(d);
    mica_prologue_epilogue(p, &e);
}

static void fill_launches(const mica_conv_desc *d, state *s, int splits)
{
    const conv_sm80_shape *shape = &s->shape;
    for (int i = 0; i < s->launches; i++) {
        conv_sm80_args *a = &s->args[i];
        conv_sm80_args_make(shape, (int64_t)i * CONV_SM80_CLASSES, a);
        mica_conv_epilogue_args(d, &a->epilogue);
        a->splits = splits;
        a->slices_each = (int)conv_ceil_div(slices_of(shape), splits);
        a->part = splits > 1 ? mica_tensor_count(&d->w) : 0;
        a->row_tiles = conv_ceil_div(conv_sm80_rows(shape), shape->tile.tile_m);
        a->col_tiles = conv_ceil_div(shape->cols, shape->tile.tile_n);
        a->tiles = a->row_tiles * a->col_tiles * a->class_count * a->groups * splits;
    }
}

/* The residual beside what is stored at once, if its strides allow one access. */
static int residual_vector(const mica_conv_desc *d, const conv_sm80_shape *s)
{
    const mica_conv_strides *at = &s->g.residual;
    mica_dtype type = d->residual.dtype;
    if (!mica_tensor_given(&d->residual)) return 0;
    const int64_t steps = at->n | at->g | at->s[0] | at->s[1] | at->s[2];
    const int most = mica_access_of(type);
    const int wanted = s->tile.c_vector < most ? s->tile.c_vector : most;
    return mica_access_along(type, at->c, steps) >= wanted ? wanted : 0;
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    conv_sm80_shape shape;
    conv_sm80_shape_make(d, &shape);
    int64_t launches = conv_ceil_div(shape.class_count, CONV_SM80_CLASSES);
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s + (size_t)launches * sizeof *s->args, &s));
    mica_conv_roles roles = mica_conv_roles_of(d);
    s->image = roles.image;
    s->other = roles.other;
    s->out = roles.out;
    if (mica_conv_is_empty(d)) return MICA_OK;
    int splits = plan->config.knob[KNOB_SPLITS] > 1 ? plan->config.knob[KNOB_SPLITS] : 1;
    shape.tile.tile_m = plan->config.knob[KNOB_TILE_M];
    shape.tile.tile_n = plan->config.knob[KNOB_TILE_N];
    if (splits > 1) {
        MICA_TRY(conv_parts_build(plan, splits, MICA_F32, &s->parts));
        shape.tile.c = MICA_F32;
        if (shape.tile.c_vector > 4) shape.tile.c_vector = 4;
    }
    s->shape = shape;
    s->residual_vector = residual_vector(d, &shape);
    s->launches = (int)launches;
    fill_launches(d, s, splits);
    int shared = mica_mma_shared_bytes(&shape.tile);
    s->grid = (mica_grid){.block = {(unsigned)mica_mma_threads(&shape.tile)},
                          .dynamic_shared = (unsigned)shared};
    char text[4096];
    mica_text p = {text, sizeof text, 0};
    write_prologue(d, &shape, splits > 1, &p);
    mica_kernel_spec spec = {"ops/conv/sm80/sm80.cu", "conv_sm80", text, shared};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

/* ---- run ---- */

static bool is_aligned(const void *pointer, mica_dtype dtype, int vector)
{
    return mica_access_starts(pointer, mica_access_bytes(dtype, vector));
}

static void set_pointers(const mica_plan *plan, const state *s, const mica_run *r,
                         conv_sm80_args *a)
{
    const mica_conv_desc *d = plan->desc;
    const mica_mma_tile *t = &s->shape.tile;
    a->image = r->args[s->image];
    a->other = r->args[s->other];
    a->out = s->parts.kernel ? conv_parts_base(&s->parts, r) : r->args[s->out];
    a->alpha = mica_run_scalar(plan, r, MICA_CONV_ALPHA);
    a->beta = mica_run_scalar(plan, r, MICA_CONV_BETA);
    mica_epilogue_bind(&a->epilogue, r->args, MICA_CONV_BIAS);
    a->image_aligned = is_aligned(a->image, t->a.dtype, t->a.vector);
    a->other_aligned = is_aligned(a->other, t->b.dtype, t->b.vector);
    a->out_aligned = is_aligned(a->out, t->c, t->c_vector) && a->part % t->c_vector == 0;
    a->residual_aligned = s->residual_vector &&
                          is_aligned(a->epilogue.residual, d->residual.dtype, s->residual_vector);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    if (!s->kernel) return MICA_OK;
    mica_grid grid = s->grid;
    for (int i = 0; i < s->launches; i++) {
        conv_sm80_args a = s->args[i];
        set_pointers(plan, s, r, &a);
        grid.grid[0] = a.tiles < INT32_MAX ? (unsigned)a.tiles : INT32_MAX;
        MICA_TRY(mica_kernel_launch(s->kernel, &grid, r->stream, &a));
    }
    return conv_parts_run(plan, &s->parts, r);
}

const mica_engine mica_conv_sm80 = {.name = "sm80",
                                    .cuda = true,
                                    .knobs = knobs,
                                    .accepts = accepts,
                                    .configs = configs,
                                    .predict = predict,
                                    .contract = contract,
                                    .build = build,
                                    .run = run};

const mica_engine mica_conv_sm80_f32 = {.name = "sm80_f32",
                                        .cuda = true,
                                        .knobs = knobs,
                                        .accepts = accepts_f32,
                                        .configs = configs,
                                        .predict = predict,
                                        .contract = contract,
                                        .build = build,
                                        .run = run};
