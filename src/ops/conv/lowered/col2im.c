/* SPDX-License-Identifier: Apache-2.0
 * Engine "col2im": the gradient of the image, and transposed convolutions, as one matrix product
 * and a pass over what it leaves. The product of y's pixels with the filter is a child plan, which
 * takes whatever engine is best for it; its result in workspace, a sum for each pixel of y, tap and
 * channel, is then added up pixel by pixel of the image by the taps that reach it. Where filters
 * are no wider than their stride (patches of transformers, upsampling), no product is wasted. 1 to
 * 3 axes, groups as batches, all types, any strides of the image, epilogues in the pass. Cost
 * beside the product's: 4 bytes (8 for f64) written and read for each sum. */
#include "ops/conv/lowered/gemm.h"
#include "ops/conv/lowered/col2im_args.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCK = 256, BLOCKS_PER_UNIT = 16, WALKED = 4 };

typedef struct product {
    mica_conv_geometry g;
    mica_conv_roles roles;
    int64_t rows, pairs; /* of one group: pixels of b, taps times channels of a */
    bool tap_fast;       /* order of the pairs */
    mica_dtype sums;
    mica_gemm_desc gemm;
} product;

typedef struct state {
    product p;
    mica_kernel *kernel;
    mica_grid grid;
    conv_col2im_args args;
    size_t matrix_at, child_at;
    mica_plan *child;
} state;

static double matrix_bytes(const product *p)
{
    return (double)p->g.groups * (double)p->rows * (double)p->pairs *
           (mica_dtype_bits(p->sums) / 8);
}

static mica_status make_product(const mica_conv_desc *d, product *p, mica_why *why)
{
    *p = (product){.roles = mica_conv_roles_of(d)};
    mica_conv_geometry *g = &p->g;
    mica_conv_geometry_make(d, g);
    if (!p->roles.dgrad)
        return mica_refuse(why, "this engine is for gradients of the image and transposed "
                                "convolutions, which add up what several pixels have");
    for (int i = 0; i < 3; i++)
        if (g->stride[i] > 1 && g->dilation[i] > 1 && g->tap[i] > 1)
            return mica_refuse(why,
                               "a stride of %lld and a dilation of %lld along one axis; this "
                               "engine takes one of them",
                               g->stride[i], g->dilation[i]);
    const mica_tensor *image = mica_conv_tensor(d, p->roles.b);
    int64_t pixel, pair;
    p->sums = mica_dtype_accumulator(image->dtype);
    p->rows = g->n * g->out[0] * g->out[1] * g->out[2];
    p->pairs = g->tap[0] * g->tap[1] * g->tap[2] * g->c;
    if (!conv_merge_pixels(g, &g->b, g->out, &pixel))
        return mica_refuse(why, "the pixels that are read do not lie at one distance, as a matrix "
                                "needs them");
    if (!conv_merge_pairs(g, g->c, g->f.c, &p->tap_fast, &pair))
        return mica_refuse(why, "taps and channels of the filter do not lie at one distance, as a "
                                "matrix needs them");
    double bytes = matrix_bytes(p), most = (double)CONV_MATRIX_MAX_GIB * 0x1p30;
    if (bytes > most)
        return mica_refuse(why, "the image as a matrix has %.4g GiB, the limit is %d GiB",
                           bytes / 0x1p30, CONV_MATRIX_MAX_GIB);
    mica_gemm_desc *m = &p->gemm;
    m->compute = d->compute;
    m->a = conv_matrix(image->dtype, g->groups, p->rows, g->k, g->b.g, pixel, g->b.c);
    m->b = conv_matrix(d->w.dtype, g->groups, g->k, p->pairs, g->f.g, g->f.n, pair);
    m->c = conv_matrix(p->sums, g->groups, p->rows, p->pairs, p->rows * p->pairs, p->pairs, 1);
    return MICA_OK;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    product p;
    char resolved[MICA_MAX_DESC] = {0};
    (void)device;
    MICA_TRY(conv_refuse_full_epilogue(desc, why));
    MICA_TRY(make_product(desc, &p, why));
    mica_why reason = {0};
    if (mica_op_resolve_child("gemm", &p.gemm, resolved, &reason) != MICA_OK)
        return mica_refuse(why, "the matrix product is none: %s", reason.text);
    return MICA_OK;
}

/* Neighbours of a row of the image that are one access: channels of a pixel, or pixels and channels
 * together. */
static int vector_of(const product *p, mica_dtype type, bool *one_pixel)
{
    const mica_conv_geometry *g = &p->g;
    const mica_conv_strides *s = &g->a;
    const int64_t rows = mica_access_step(s->n, g->n) | mica_access_step(s->g, g->groups) |
                         mica_access_step(s->s[0], g->in[0]) | mica_access_step(s->s[1], g->in[1]);
    const int most = mica_access_along(type, s->c, rows);
    const int pixel = p->tap_fast ? 1 : mica_access_fit(most, g->c | s->s[2]);
    const bool walks = g->groups == 1 && s->s[2] == g->c;
    const int walk = walks ? mica_access_fit(most < WALKED ? most : WALKED, g->c * g->in[2]) : 1;
    *one_pixel = pixel >= walk;
    return *one_pixel ? pixel : walk;
}

/* The product, and the matrix and the image at copy speed, by accesses of fewer than 8 bytes up to
 * four times slower; a thread's taps come one after the other. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    const double pass_ms = 6e-3; /* another kernel, whose threads find their pixels */
    const double tap_ms = 0.55e-3;
    const mica_conv_desc *d = desc;
    product p;
    mica_why why;
    (void)config;
    char resolved[MICA_MAX_DESC] = {0};
    const mica_op *gemm = mica_op_find("gemm");
    if (make_product(d, &p, &why) != MICA_OK ||
        mica_op_resolve_child("gemm", &p.gemm, resolved, &why) != MICA_OK)
        return 0;
    const mica_tensor *image = mica_conv_tensor(d, p.roles.out);
    double bytes =
        matrix_bytes(&p) + (double)mica_tensor_count(image) * (mica_dtype_bits(image->dtype) / 8);
    bool one_pixel;
    int wide = vector_of(&p, image->dtype, &one_pixel) * mica_dtype_bits(image->dtype) / 8;
    double narrow = wide < 8 ? 8.0 / wide : 1,
           taps = (double)(p.g.tap[0] * p.g.tap[1] * p.g.tap[2]);
    double adding = fmax(narrow * bytes / (device->copy_gbps * 1e6), tap_ms * taps);
    return mica_op_predict(gemm, resolved, device, true) + pass_ms + adding;
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    const mica_conv_desc *d = desc;
    mica_conv_geometry g;
    (void)config;
    mica_conv_geometry_make(d, &g);
    conv_product_contract(d, c);
    c->n_outer += g.tap[0] * g.tap[1] * g.tap[2];
}

/* ---- plans ---- */

static bool counts_are_wide(const product *p)
{
    const mica_conv_geometry *g = &p->g;
    double image = (double)g->n * (double)g->groups * (double)g->c;
    for (int i = 0; i < 3; i++) image *= (double)g->in[i];
    return image > INT32_MAX || (double)p->rows * (double)p->pairs > INT32_MAX;
}

/* Whether several taps along an axis may reach one pixel. */
static bool taps_overlap(const mica_conv_geometry *g)
{
    for (int i = 0; i < 3; i++)
        if (g->tap[i] > g->stride[i]) return true;
    return false;
}

static void fill_args(state *s, const mica_conv_desc *d, int vector)
{
    const product *p = &s->p;
    const mica_conv_geometry *g = &p->g;
    s->args = (conv_col2im_args){.g = *g, .rows = p->rows, .pairs = p->pairs};
    s->args.taps = g->tap[0] * g->tap[1] * g->tap[2];
    s->args.pieces = g->in[2] * g->c / vector;
    s->args.parts = (s->args.pieces + MICA_CONV_COL2IM_PART - 1) / MICA_CONV_COL2IM_PART;
    s->args.items = g->groups * g->n * g->in[0] * g->in[1] * s->args.parts;
    mica_conv_epilogue_args(d, &s->args.epilogue);
}

static mica_status add_kernel(mica_plan *plan, state *s)
{
    const mica_conv_desc *d = plan->desc;
    const product *p = &s->p;
    char text[4096];
    mica_text prologue = {text, sizeof text, 0};
    mica_dtype to = mica_conv_tensor(d, p->roles.out)->dtype;
    mica_epilogue e = mica_conv_epilogue(d);
    bool one_pixel;
    const int vector = vector_of(p, to, &one_pixel);
    fill_args(s, d, vector);
    mica_prologue_epilogue(&prologue, &e);
    mica_prologue_int(&prologue, "KIND", MICA_CONV_KIND_DGRAD);
    mica_prologue_int(&prologue, "BLOCK", BLOCK);
    mica_prologue_int(&prologue, "VECTOR", vector);
    mica_prologue_int(&prologue, "ONE_PIXEL", one_pixel);
    mica_prologue_int(&prologue, "OVERLAPS", taps_overlap(&p->g));
    mica_prologue_int(&prologue, "TAP_FAST", p->tap_fast);
    mica_prologue_int(&prologue, "C_FAST", vector > 1 || llabs(p->g.a.c) <= llabs(p->g.a.s[2]));
    mica_prologue_int(&prologue, "COUNT_64", counts_are_wide(p));
    mica_prologue_type(&prologue, "coord_t",
                       mica_conv_positions_fit_s32(&p->g) ? MICA_S32 : MICA_S64);
    mica_prologue_type(&prologue, "left_t", p->sums);
    mica_prologue_type(&prologue, "right_t", p->sums);
    mica_prologue_type(&prologue, "acc_t", p->sums);
    mica_prologue_type(&prologue, "out_t", to);
    mica_prologue_type(&prologue, "fin_t", p->sums == MICA_F32 ? MICA_F32 : MICA_F64);
    int64_t blocks = (s->args.items + BLOCK / 32 - 1) / (BLOCK / 32);
    int64_t most = (int64_t)plan->device.units * BLOCKS_PER_UNIT;
    s->grid = (mica_grid){.grid = {(unsigned)(blocks < most ? blocks : most)}, .block = {BLOCK}};
    MICA_TRY(mica_book(plan, "image as a matrix", (size_t)matrix_bytes(p), &s->matrix_at));
    mica_kernel_spec spec = {"ops/conv/lowered/col2im.cu", "conv_col2im", text, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    state *s;
    mica_why why = {0};
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    if (mica_conv_is_empty(d)) return MICA_OK;
    MICA_TRY(make_product(d, &s->p, &why));
    MICA_TRY(add_kernel(plan, s));
    return mica_plan_child_create(plan, "gemm", &s->p.gemm, sizeof s->p.gemm, NULL, &s->child,
                                  &s->child_at);
}

static mica_status multiply(const mica_conv_desc *d, const state *s, const mica_run *r)
{
    const product *p = &s->p;
    const double scalars[] = {[MICA_GEMM_ALPHA] = 1, [MICA_GEMM_BETA] = 0};
    mica_run child = {
        .workspace = mica_at(r, s->child_at), .stream = r->stream, .scalars = scalars};
    child.args[MICA_GEMM_A] = r->args[p->roles.b];
    child.args[MICA_GEMM_B] =
        (char *)r->args[MICA_CONV_W] + p->g.f_base * (mica_dtype_bits(d->w.dtype) / 8);
    child.args[MICA_GEMM_C] = mica_at(r, s->matrix_at);
    return mica_plan_child_run(s->child, &child);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    if (!s->child) return MICA_OK;
    MICA_TRY(multiply(plan->desc, s, r));
    conv_col2im_args a = s->args;
    a.matrix = mica_at(r, s->matrix_at);
    a.image = r->args[s->p.roles.out];
    a.alpha = mica_run_scalar(plan, r, MICA_CONV_ALPHA);
    a.beta = mica_run_scalar(plan, r, MICA_CONV_BETA);
    a.whole = mica_access_starts(a.image, 16);
    mica_epilogue_bind(&a.epilogue, r->args, MICA_CONV_BIAS);
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &a);
}

const mica_engine mica_conv_col2im = {.name = "col2im",
                                      .cuda = true,
                                      .accepts = accepts,
                                      .predict = predict,
                                      .contract = contract,
                                      .build = build,
                                      .run = run};
