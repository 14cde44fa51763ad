/* SPDX-License-Identifier: Apache-2.0
 * Engine "disjoint": the gradient of the image, and transposed convolutions, whose filter is as
 * large as its stride, so that windows are disjoint and nothing lies between them: upsampling by
 * 2 x 2, patches of transformers. Each result then belongs to one pixel and one tap,
 *
 *   a[n, c, q * stride + t] = sum over k of b[n, k, q] * f[k, c, t]
 *
 * and all of them are one batched product whose results lie apart. Nothing is moved: the pixels
 * along one axis are rows, the taps across and their channels columns, all else are batches; what
 * batches do not hold are runs of the same child plan on other pointers. Per-channel vectors keep
 * columns to the channels, or are repeated for each tap first. 1 to 3 axes, epilogues, all types.
 * What it asks for: columns that lie side by side, as in NHWC. Cost: the child's, which reads b for
 * each tap down and is slow where an axis has few pixels. */
#include "mica/transform.h"
#include "ops/compose/compose.h"
#include "ops/conv/lowered/gemm.h"

#include <math.h>
#include <string.h>

/* The rows of the product: which axis of pixels, counted from the innermost, those that merge as
 * one. Whether vectors are repeated. */
enum { KNOB_ROWS, KNOB_REPEAT };
static const char *const knobs[] = {"rows", "repeat", NULL};

enum { MAX_BATCHES = 3 /* what tensor maps hold beside a matrix */, MAX_RUNS = 32 };

enum { IMAGE, FILTER, RESULT, RESIDUAL, OPERANDS };

enum { VECTORS = 3 }; /* bias, scale, shift */

typedef struct loop {
    int64_t size, stride[OPERANDS]; /* 0 where an operand does not depend on it */
} loop;

typedef struct product {
    mica_conv_geometry g;
    mica_conv_roles roles;
    loop pixels[4], taps[3];              /* slowest first, merged where they can be */
    int pixel_count, tap_count, run_taps; /* the first taps are runs, the others batches */
    loop columns, terms;
    int64_t runs, times; /* that vectors are repeated */
    mica_gemm_desc gemm;
} product;

/* ---- loops ---- */

static bool continues(const loop *outer, const loop *inner)
{
    int64_t next;
    for (int i = 0; i < OPERANDS; i++)
        if (__builtin_mul_overflow(inner->stride[i], inner->size, &next) ||
            outer->stride[i] != next)
            return false;
    return true;
}

/* Merges neighbours, in place, and leaves out loops over one; a last one stays in any case. */
static int merge(loop *loops, int count)
{
    int kept = 0;
    for (int i = 0; i < count; i++) {
        bool last = i == count - 1 && kept == 0;
        if (loops[i].size == 1 && !last) continue;
        loop next = loops[i];
        if (kept > 0 && continues(&loops[kept - 1], &next)) next.size *= loops[--kept].size;
        loops[kept++] = next;
    }
    return kept;
}

static void find_pixels(product *p)
{
    const mica_conv_geometry *g = &p->g;
    p->pixels[0] = (loop){g->n, {g->b.n, 0, g->a.n, g->residual.n}};
    for (int i = 0; i < 3; i++) {
        int64_t stride = g->out[i] > 1 ? g->stride[i] : 0;
        p->pixels[i + 1] =
            (loop){g->out[i], {g->b.s[i], 0, g->a.s[i] * stride, g->residual.s[i] * stride}};
    }
    p->pixel_count = merge(p->pixels, 4);
}

/* apart: columns are channels only. */
static void find_taps(product *p, bool apart)
{
    const mica_conv_geometry *g = &p->g;
    loop loops[4];
    for (int i = 0; i < 3; i++)
        loops[i] = (loop){g->tap[i], {0, g->f.s[i], g->a.s[i], g->residual.s[i]}};
    loops[3] = (loop){g->c, {0, g->f.c, g->a.c, g->residual.c}};
    p->tap_count = apart ? merge(loops, 3) : merge(loops, 4) - 1;
    p->columns = loops[apart ? 3 : p->tap_count];
    memcpy(p->taps, loops, sizeof p->taps);
}

/* ---- per-channel vectors ---- */

static const mica_tensor *vector_of(const mica_conv_desc *d, int i)
{
    return mica_op_tensor(&mica_op_conv, d, MICA_CONV_BIAS + i);
}

static bool has_vectors(const mica_conv_desc *d)
{
    for (int i = 0; i < VECTORS; i++)
        if (mica_tensor_given(vector_of(d, i))) return true;
    return false;
}

static mica_transform_desc repetition_of(const product *p, const mica_tensor *v)
{
    mica_tensor from = {
        .dtype = v->dtype, .rank = 2, .dims = {p->times, p->g.c}, .strides = {0, v->strides[0]}};
    return (mica_transform_desc){.x = from, .y = mica_tensor_packed(v->dtype, 2, from.dims)};
}

/* ---- the product ---- */

static mica_status check_windows(const product *p, mica_why *why)
{
    const mica_conv_geometry *g = &p->g;
    if (!p->roles.dgrad)
        return mica_refuse(why, "this engine is for gradients of the image and transposed "
                                "convolutions, whose windows are written");
    if (g->groups > 1) return mica_refuse(why, "groups is %lld, this engine takes one", g->groups);
    for (int i = 0; i < 3; i++) {
        if (g->tap[i] != g->stride[i])
            return mica_refuse(why,
                               "%lld taps and a stride of %lld along one axis, this engine is for "
                               "filters as large as their stride",
                               g->tap[i], g->stride[i]);
        if (g->dilation[i] != 1 && g->tap[i] > 1)
            return mica_refuse(why, "a dilation of %lld, this engine takes 1", g->dilation[i]);
        if (g->pad[i] != 0 || g->in[i] / g->stride[i] != g->out[i] || g->in[i] % g->stride[i])
            return mica_refuse(why,
                               "%lld windows of %lld pixels with a padding of %lld are not the "
                               "%lld pixels of the image, this engine writes nothing else",
                               g->out[i], g->tap[i], g->pad[i], g->in[i]);
    }
    if (g->tap[0] * g->tap[1] * g->tap[2] == 1)
        return mica_refuse(why, "the filter has one tap, a plain product: gemm takes it");
    return MICA_OK;
}

/* Batches are all pixels but the rows, then all taps but the runs. */
static mica_tensor matrix_of(const product *p, int which, mica_dtype dtype, int rows_at,
                             const loop *rows, const loop *columns)
{
    mica_tensor t = {.dtype = dtype};
    const loop *loops[MICA_MAX_RANK];
    for (int i = 0; i < p->pixel_count; i++)
        if (i != rows_at) loops[t.rank++] = &p->pixels[i];
    int pixels = t.rank;
    for (int i = p->run_taps; i < p->tap_count; i++) loops[t.rank++] = &p->taps[i];
    int batches = t.rank;
    loops[t.rank++] = rows;
    loops[t.rank++] = columns;
    for (int i = 0; i < t.rank; i++) {
        bool shared = (which == IMAGE && i >= pixels) || (which == FILTER && i < pixels);
        t.dims[i] = shared && i < batches ? 1 : loops[i]->size;
        t.strides[i] = loops[i]->stride[which];
    }
    return t;
}

static void fill_gemm(const mica_conv_desc *d, int rows, product *p)
{
    mica_gemm_desc *m = &p->gemm;
    mica_tensor *vectors[VECTORS] = {&m->bias, &m->scale, &m->shift};
    int at = p->pixel_count - 1 - rows;
    const loop *lines = &p->pixels[at], *columns = &p->columns, *terms = &p->terms;
    m->compute = d->compute;
    m->a = matrix_of(p, IMAGE, mica_conv_tensor(d, p->roles.b)->dtype, at, lines, terms);
    m->b = matrix_of(p, FILTER, d->w.dtype, at, terms, columns);
    m->c = matrix_of(p, RESULT, mica_conv_tensor(d, p->roles.a)->dtype, at, lines, columns);
    memcpy(m->epilogue, d->epilogue, sizeof m->epilogue);
    m->act_a = d->act_a;
    m->act_b = d->act_b;
    for (int i = 0; i < VECTORS; i++) {
        const mica_tensor *v = vector_of(d, i);
        if (!mica_tensor_given(v)) continue;
        *vectors[i] = p->times > 1 ? mica_tensor_packed(v->dtype, 1, &columns->size) : *v;
    }
    if (mica_tensor_given(&d->residual))
        m->residual = matrix_of(p, RESIDUAL, d->residual.dtype, at, lines, columns);
}

static mica_status make_product(const mica_conv_desc *d, const mica_config *config, product *p,
                                mica_why *why)
{
    bool vectors = has_vectors(d), repeat = config->knob[KNOB_REPEAT];
    *p = (product){.roles = mica_conv_roles_of(d), .runs = 1, .times = 1};
    mica_conv_geometry_make(d, &p->g);
    MICA_TRY(check_windows(p, why));
    find_pixels(p);
    find_taps(p, vectors && !repeat);
    p->terms = (loop){p->g.k, {p->g.b.c, p->g.f.n}};
    if (vectors && p->g.c > 0) p->times = p->columns.size / p->g.c;
    if (p->columns.size > 1 && p->columns.stride[RESULT] != 1)
        return mica_refuse(why,
                           "channels of the image that is written are %lld elements apart, this "
                           "engine is for 1",
                           (long long)p->columns.stride[RESULT]);
    int batches = p->pixel_count - 1 + p->tap_count;
    p->run_taps = batches > MAX_BATCHES ? batches - MAX_BATCHES : 0;
    for (int i = 0; i < p->run_taps; i++) p->runs *= p->taps[i].size;
    if (p->runs > MAX_RUNS)
        return mica_refuse(why, "%lld runs of the product, this engine makes at most %d",
                           (long long)p->runs, MAX_RUNS);
    fill_gemm(d, config->knob[KNOB_ROWS], p);
    return MICA_OK;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_config plain = {0};
    product p;
    char resolved[MICA_MAX_DESC] = {0};
    (void)device;
    MICA_TRY(conv_refuse_full_epilogue(desc, why));
    MICA_TRY(make_product(desc, &plain, &p, why));
    mica_why reason = {0};
    if (mica_op_resolve_child("gemm", &p.gemm, resolved, &reason) != MICA_OK)
        return mica_refuse(why, "the matrix product is none: %s", reason.text);
    return MICA_OK;
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    product p;
    mica_why why;
    int count = 0;
    (void)device;
    for (int repeat = 0; repeat < 2; repeat++) {
        mica_config c = {.knob = {[KNOB_REPEAT] = repeat}};
        if (make_product(desc, &c, &p, &why) != MICA_OK || (repeat && p.times == 1)) continue;
        for (int i = 0; i < p.pixel_count; i++) {
            c.knob[KNOB_ROWS] = i;
            out[count++] = c;
        }
    }
    return count;
}

/* Tiles of 128 x 128 at most, one for each batch at least: what one of little depth takes, whatever
 * it reads, on an H200. */
static double tiles_ms(const product *p, bool vectors, const mica_device_info *device)
{
    const double tile_ms = 0.9e-3, vectors_ms = 0.25e-3, vectors_whole_ms = 1.6e-3, edge = 128;
    const mica_gemm_desc *m = &p->gemm;
    double rows = (double)m->a.dims[m->a.rank - 2], columns = (double)p->columns.size;
    double batches = (double)mica_tensor_count(&m->c) / (rows * columns);
    double each = tile_ms;
    if (vectors) each = vectors_ms + vectors_whole_ms * fmin(columns, edge) / edge;
    return batches * ceil(rows / edge) * ceil(columns / edge) * each / device->units;
}

/* Products of few rows or columns are made to read the other operand once; in batches they read it
 * for each item, and little at a time. */
static bool is_few(const product *p)
{
    const int64_t few = 32;
    const mica_gemm_desc *m = &p->gemm;
    return m->a.dims[m->a.rank - 2] <= few || p->columns.size <= few;
}

static double repeat_ms(const mica_conv_desc *d, const product *p, const mica_device_info *device)
{
    double ms = 0;
    for (int i = 0; i < VECTORS; i++) {
        const mica_tensor *v = vector_of(d, i);
        mica_transform_desc t = repetition_of(p, v);
        if (p->times > 1 && mica_tensor_given(v))
            ms += mica_op_predict(mica_op_find("transform"), &t, device, true);
    }
    return ms;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    /* Times what gemm's model says. */
    const double few = 8, apart = 1.05, narrow = 1.4;
    const int line_bytes = 128;
    product p;
    mica_why why;
    char resolved[MICA_MAX_DESC] = {0};
    const mica_op *gemm = mica_op_find("gemm");
    if (make_product(desc, config, &p, &why) != MICA_OK || mica_tensor_count(&p.gemm.c) == 0 ||
        mica_op_resolve_child("gemm", &p.gemm, resolved, &why) != MICA_OK)
        return 0;
    double ms = mica_op_predict(gemm, resolved, device, true);
    if (is_few(&p)) ms *= few;
    if (config->knob[KNOB_ROWS]) ms *= apart;
    if (p.columns.size * mica_dtype_bits(p.gemm.c.dtype) / 8 < line_bytes) ms *= narrow;
    ms = fmax(ms, tiles_ms(&p, has_vectors(desc), device));
    return repeat_ms(desc, &p, device) + (double)p.runs * ms;
}

/* One tap reaches a pixel. */
static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    const mica_conv_desc *d = desc;
    mica_conv_geometry g;
    (void)config;
    mica_conv_geometry_make(d, &g);
    c->n_seq -= mica_conv_terms(d) - g.k;
    conv_product_contract(d, c);
}

/* ---- plan ---- */

/* What the product reads as vector i: the caller's, or what that is repeated to first. */
static mica_memory vector_in(mica_compose *c, const product *p, const mica_conv_desc *d, int i)
{
    const mica_tensor *v = vector_of(d, i);
    const mica_memory given = mica_compose_arg(MICA_CONV_BIAS + i);
    if (p->times == 1 || !mica_tensor_given(v)) return given;
    const mica_transform_desc t = repetition_of(p, v);
    const mica_memory repeated =
        mica_compose_temporary(c, (size_t)(p->columns.size * mica_dtype_bits(v->dtype) / 8));
    mica_compose_step(c, "transform", &t, sizeof t, NULL);
    mica_compose_bind(c, MICA_TRANSFORM_X, given);
    mica_compose_bind(c, MICA_TRANSFORM_Y, repeated);
    return repeated;
}

/* From one of the taps that are runs to the next. */
static void advance(mica_compose *c, const product *p, const loop *tap)
{
    static const int args[] = {
        [FILTER] = MICA_GEMM_B, [RESULT] = MICA_GEMM_C, [RESIDUAL] = MICA_GEMM_RESIDUAL};
    const mica_gemm_desc *m = &p->gemm;
    const mica_tensor *tensors[] = {[FILTER] = &m->b, [RESULT] = &m->c, [RESIDUAL] = &m->residual};
    mica_compose_repeat(c, tap->size);
    for (int i = FILTER; i < OPERANDS; i++)
        mica_compose_advance(c, args[i], tap->stride[i] * mica_dtype_bits(tensors[i]->dtype) / 8);
}

static void add_product(mica_compose *c, const product *p, const mica_memory vectors[VECTORS])
{
    mica_memory filter = mica_compose_arg(MICA_CONV_W);
    filter.at = p->g.f_base * (mica_dtype_bits(p->gemm.b.dtype) / 8);
    mica_compose_step(c, "gemm", &p->gemm, sizeof p->gemm, NULL);
    mica_compose_scale(c);
    mica_compose_bind(c, MICA_GEMM_A, mica_compose_arg(p->roles.b));
    mica_compose_bind(c, MICA_GEMM_B, filter);
    mica_compose_bind(c, MICA_GEMM_C, mica_compose_arg(p->roles.a));
    mica_compose_bind(c, MICA_GEMM_RESIDUAL, mica_compose_arg(MICA_CONV_RESIDUAL));
    for (int i = 0; i < VECTORS; i++) mica_compose_bind(c, MICA_GEMM_BIAS + i, vectors[i]);
    for (int i = p->run_taps - 1; i >= 0; i--) advance(c, p, &p->taps[i]);
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    mica_memory vectors[VECTORS];
    mica_compose c = {0};
    product p;
    mica_why why = {0};
    MICA_TRY(make_product(d, &plan->config, &p, &why));
    if (mica_tensor_count(&p.gemm.c) == 0) return mica_compose_build(plan, &c);
    for (int i = 0; i < VECTORS; i++) vectors[i] = vector_in(&c, &p, d, i);
    add_product(&c, &p, vectors);
    return mica_compose_build(plan, &c);
}

const mica_engine mica_conv_disjoint = {.name = "disjoint",
                                        .cuda = true,
                                        .knobs = knobs,
                                        .accepts = accepts,
                                        .configs = configs,
                                        .predict = predict,
                                        .contract = contract,
                                        .build = build,
                                        .run = mica_compose_run};
