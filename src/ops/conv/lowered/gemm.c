/* SPDX-License-Identifier: Apache-2.0
 * Engine "gemm": convolution as one matrix product, which is a child plan and takes whatever engine
 * is best for it. Windows that lie at one distance multiply the image where it lies (filters of one
 * tap; windows as large as the image; 1-D filters without padding); for all others a kernel first
 * writes the image as a matrix (im2col) into workspace, the pixels of the result times taps times
 * channels: that, written and read, is its cost beside an implicit product. Forward, dgrad and
 * wgrad, 1 to 3 axes, groups as batches, all types. What it asks for: pixels of the result, and
 * taps and channels of the filter, that lie at one distance each, as in NHWC and NDHWC; but for
 * wgrad images may lie apart, as in NCHW, and are batches then. */
#include "ops/conv/lowered/gemm.h"
#include "ops/conv/lowered/gemm_args.h"
#include "ops/mma/mma_tile.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 256, BLOCKS_PER_UNIT = 8 };

/* The three matrices: the image that is read (rows x pairs), the filter, and the other image. */
typedef struct product {
    mica_conv_geometry g;
    mica_conv_roles roles;
    int64_t rows, pairs;   /* of one group */
    int64_t images;        /* that are batches: 1 where all of them are rows of one matrix */
    bool direct, tap_fast; /* the image is the matrix already; order of the pairs */
    mica_gemm_desc gemm;
} product;

typedef struct state {
    product p;
    mica_kernel *kernel;
    mica_grid grid;
    conv_gemm_args args;
    int vector;
    size_t matrix_at, child_at;
    mica_plan *child;
} state;

/* ---- several dimensions as one ---- */

/* The distance between neighbours of dimensions counted together, the last fastest; false if there
 * is none. */
static bool merge(int rank, const long long *sizes, const long long *strides, int64_t *stride)
{
    int64_t next = 0;
    bool first = true;
    *stride = 1;
    for (int d = rank - 1; d >= 0; d--) {
        if (sizes[d] == 1) continue;
        if (first) *stride = strides[d];
        if (!first && strides[d] != next) return false;
        first = false;
        if (__builtin_mul_overflow(strides[d], sizes[d], &next)) return false;
    }
    return true;
}

bool conv_merge_pixels(const mica_conv_geometry *g, const mica_conv_strides *s,
                       const long long *size, int64_t *stride)
{
    const long long sizes[4] = {g->n, size[0], size[1], size[2]};
    const long long strides[4] = {s->n, s->s[0], s->s[1], s->s[2]};
    return merge(4, sizes, strides, stride);
}

bool conv_merge_pairs(const mica_conv_geometry *g, long long channels, long long channel_stride,
                      bool *tap_fast, int64_t *stride)
{
    const long long by_tap[4] = {g->tap[0], g->tap[1], g->tap[2], channels};
    const long long by_tap_strides[4] = {g->f.s[0], g->f.s[1], g->f.s[2], channel_stride};
    const long long by_channel[4] = {channels, g->tap[0], g->tap[1], g->tap[2]};
    const long long by_channel_strides[4] = {channel_stride, g->f.s[0], g->f.s[1], g->f.s[2]};
    *tap_fast = false;
    if (merge(4, by_tap, by_tap_strides, stride)) return true;
    *tap_fast = true;
    return merge(4, by_channel, by_channel_strides, stride);
}

/* ---- the product ---- */

mica_tensor conv_matrix(mica_dtype dtype, int64_t groups, int64_t rows, int64_t columns,
                        int64_t group_stride, int64_t row_stride, int64_t column_stride)
{
    mica_tensor t = {.dtype = dtype,
                     .rank = 3,
                     .dims = {groups, rows, columns},
                     .strides = {group_stride, row_stride, column_stride}};
    if (groups > 1) return t;
    return (mica_tensor){
        .dtype = dtype, .rank = 2, .dims = {rows, columns}, .strides = {row_stride, column_stride}};
}

/* Whether windows of a, none of which reaches out of it, are rows of a matrix where they lie: at
 * one distance, as are the pairs of each, in the filter's order. They may overlap. */
static bool windows_are_rows(const mica_conv_geometry *g, bool tap_fast, int64_t *row,
                             int64_t *pair)
{
    mica_conv_strides windows = g->a;
    long long tap[3];
    for (int i = 0; i < 3; i++) {
        long long last = (g->out[i] - 1) * g->stride[i] + (g->tap[i] - 1) * g->dilation[i];
        if (g->pad[i] != 0 || last >= g->in[i]) return false;
        windows.s[i] *= g->stride[i];
        tap[i] = g->a.s[i] * g->dilation[i];
    }
    const long long by_tap[4] = {g->tap[0], g->tap[1], g->tap[2], g->c};
    const long long by_tap_strides[4] = {tap[0], tap[1], tap[2], g->a.c};
    const long long by_channel[4] = {g->c, g->tap[0], g->tap[1], g->tap[2]};
    const long long by_channel_strides[4] = {g->a.c, tap[0], tap[1], tap[2]};
    return conv_merge_pixels(g, &windows, g->out, row) &&
           (tap_fast ? merge(4, by_channel, by_channel_strides, pair)
                     : merge(4, by_tap, by_tap_strides, pair));
}

/* Whether there is one window to an image and nothing beside it, so that dgrad is a product, too.
 */
static bool is_one_window(const mica_conv_geometry *g)
{
    for (int i = 0; i < 3; i++)
        if (g->out[i] != 1 || g->tap[i] != g->in[i] || g->pad[i] != 0 ||
            (g->dilation[i] != 1 && g->tap[i] > 1))
            return false;
    return true;
}

static double matrix_bytes(const mica_conv_desc *d, const product *p)
{
    if (p->direct) return 0;
    return (double)p->g.groups * (double)p->rows * (double)p->pairs *
           (mica_dtype_bits(mica_conv_tensor(d, p->roles.image)->dtype) / 8);
}

/* The product that is dgrad of one window; false where there is none. */
static bool make_one_window(const mica_conv_desc *d, product *p)
{
    const mica_conv_geometry *g = &p->g;
    mica_gemm_desc *m = &p->gemm;
    int64_t pairs = g->tap[0] * g->tap[1] * g->tap[2] * g->c, row, pair, image_pair;
    if (d->epilogue[0] || !is_one_window(g)) return false;
    if (!conv_merge_pairs(g, g->c, g->f.c, &p->tap_fast, &pair) ||
        !windows_are_rows(g, p->tap_fast, &row, &image_pair))
        return false;
    p->direct = true;
    p->images = 1;
    p->rows = g->n;
    p->pairs = g->k;
    m->compute = d->compute;
    m->a = conv_matrix(mica_conv_tensor(d, p->roles.b)->dtype, g->groups, g->n, g->k, g->b.g,
                       g->b.n, g->b.c);
    m->b = conv_matrix(d->w.dtype, g->groups, g->k, pairs, g->f.g, g->f.n, pair);
    m->c = conv_matrix(mica_conv_tensor(d, p->roles.a)->dtype, g->groups, g->n, pairs, g->a.g, row,
                       image_pair);
    return true;
}

/* How the images of a result lie in memory: which is read, which written, and their pixels. */
typedef struct placement {
    mica_conv_geometry g; /* of all images, or of one of those that are batches */
    int64_t pixel;        /* from pixel to pixel of the result (wgrad: of b) */
    bool direct;
    int64_t image_row, image_pair; /* of what is read */
} placement;

/* False where pixels, of the result or a residual, do not lie at one distance. */
static bool place(const mica_conv_desc *d, const product *p, int64_t images, placement *at)
{
    bool dgrad = p->roles.dgrad;
    int64_t residual;
    *at = (placement){.g = p->g};
    mica_conv_geometry *g = &at->g;
    g->n = images;
    const long long *size = dgrad ? g->in : g->out;
    at->image_pair = dgrad ? g->b.c : g->a.c;
    if (!conv_merge_pixels(g, dgrad ? &g->a : &g->b, size, &at->pixel)) return false;
    if (mica_tensor_given(&d->residual) && !conv_merge_pixels(g, &g->residual, size, &residual))
        return false;
    at->direct =
        dgrad ? mica_conv_is_pointwise(g) && conv_merge_pixels(g, &g->b, g->out, &at->image_row)
              : windows_are_rows(g, p->tap_fast, &at->image_row, &at->image_pair);
    return true;
}

/* All images as one matrix, or each as one of its own if only that can be, or needs no matrix to be
 * written. */
static bool choose_placement(const mica_conv_desc *d, product *p, placement *at)
{
    placement one;
    bool whole = place(d, p, p->g.n, at);
    p->images = 1;
    if (p->roles.wgrad || p->g.n < 2 || (whole && at->direct)) return whole;
    if (!place(d, p, 1, &one) || (whole && !one.direct)) return whole;
    p->images = p->g.n;
    *at = one;
    return true;
}

/* The same matrix of each image, or one for all: a stride of 0. */
static mica_tensor each_image(const product *p, mica_tensor t, int64_t stride)
{
    mica_tensor all = {.dtype = t.dtype, .rank = t.rank + 1, .dims = {stride ? p->images : 1}};
    if (p->images == 1) return t;
    all.strides[0] = stride ? stride : 1;
    memcpy(all.dims + 1, t.dims, (size_t)t.rank * sizeof *t.dims);
    memcpy(all.strides + 1, t.strides, (size_t)t.rank * sizeof *t.strides);
    return all;
}

/* What the loops need to know, and where it does not fit, why. */
static mica_status make_product(const mica_conv_desc *d, product *p, mica_why *why)
{
    *p = (product){.roles = mica_conv_roles_of(d)};
    mica_conv_geometry *g = &p->g;
    mica_conv_geometry_make(d, g);
    bool dgrad = p->roles.dgrad, wgrad = p->roles.wgrad;
    const mica_conv_strides *read = dgrad ? &g->b : &g->a, *other = dgrad ? &g->a : &g->b;
    const long long *size = dgrad ? g->in : g->out;
    long long channels = dgrad ? g->k : g->c, columns = dgrad ? g->c : g->k;
    long long channel_stride = dgrad ? g->f.n : g->f.c, column_stride = dgrad ? g->f.c : g->f.n;
    int64_t pair;
    placement at;
    p->rows = g->n * size[0] * size[1] * size[2];
    p->pairs = g->tap[0] * g->tap[1] * g->tap[2] * channels;
    if (dgrad && make_one_window(d, p)) return MICA_OK;
    if (!conv_merge_pairs(g, channels, channel_stride, &p->tap_fast, &pair))
        return mica_refuse(
            why, "taps and channels of the filter do not lie at one distance, as a matrix "
                 "needs them");
    if (!choose_placement(d, p, &at))
        return mica_refuse(why,
                           "the pixels of %s%s do not lie at one distance, as a matrix needs them",
                           dgrad ? "the gradient" : "the result",
                           mica_tensor_given(&d->residual) ? " or the residual" : "");
    mica_dtype image = mica_conv_tensor(d, p->roles.image)->dtype, filter = d->w.dtype;
    mica_dtype third = mica_conv_tensor(d, dgrad ? p->roles.a : p->roles.b)->dtype;
    p->direct = at.direct;
    double bytes = matrix_bytes(d, p), most = (double)CONV_MATRIX_MAX_GIB * 0x1p30;
    if (bytes > most)
        return mica_refuse(why, "the image as a matrix has %.4g GiB, the limit is %d GiB",
                           bytes / 0x1p30, CONV_MATRIX_MAX_GIB);
    int64_t rows = p->rows / p->images;
    mica_tensor left =
        conv_matrix(image, g->groups, rows, p->pairs, p->rows * p->pairs, p->pairs, 1);
    if (p->direct)
        left = conv_matrix(image, g->groups, rows, p->pairs, read->g, at.image_row, at.image_pair);
    left = each_image(p, left, p->direct ? read->n : rows * p->pairs);
    mica_gemm_desc *m = &p->gemm;
    m->compute = d->compute;
    if (wgrad) {
        m->a = conv_matrix(third, g->groups, columns, rows, other->g, other->c, at.pixel);
        m->b = left;
        m->c = conv_matrix(filter, g->groups, columns, p->pairs, g->f.g, column_stride, pair);
        return MICA_OK;
    }
    m->a = left;
    m->b = each_image(
        p, conv_matrix(filter, g->groups, p->pairs, columns, g->f.g, pair, column_stride), 0);
    m->c = each_image(p, conv_matrix(third, g->groups, rows, columns, other->g, at.pixel, other->c),
                      other->n);
    return MICA_OK;
}

static mica_status add_epilogue(const mica_conv_desc *d, product *p, mica_why *why)
{
    mica_gemm_desc *m = &p->gemm;
    const mica_conv_geometry *g = &p->g;
    bool vectors =
        mica_tensor_given(&d->bias) || mica_tensor_given(&d->scale) || mica_tensor_given(&d->shift);
    if (vectors && g->groups > 1)
        return mica_refuse(
            why,
            "bias, scale and shift differ between the %lld groups, which are batches "
            "of one product",
            g->groups);
    memcpy(m->epilogue, d->epilogue, sizeof m->epilogue);
    m->act_a = d->act_a;
    m->act_b = d->act_b;
    m->bias = d->bias;
    m->scale = d->scale;
    m->shift = d->shift;
    if (!mica_tensor_given(&d->residual)) return MICA_OK;
    /* choose_placement has seen that they merge */
    mica_conv_geometry one = *g;
    int64_t pixel;
    if (p->images > 1) one.n = 1;
    conv_merge_pixels(&one, &g->residual, p->roles.dgrad ? g->in : g->out, &pixel);
    m->residual =
        each_image(p,
                   conv_matrix(d->residual.dtype, g->groups, p->rows / p->images,
                               p->roles.dgrad ? g->c : g->k, g->residual.g, pixel, g->residual.c),
                   g->residual.n);
    return MICA_OK;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_conv_desc *d = desc;
    product p;
    char resolved[MICA_MAX_DESC] = {0};
    (void)device;
    MICA_TRY(conv_refuse_full_epilogue(d, why));
    MICA_TRY(make_product(d, &p, why));
    MICA_TRY(add_epilogue(d, &p, why));
    mica_why reason = {0};
    if (mica_op_resolve_child("gemm", &p.gemm, resolved, &reason) != MICA_OK)
        return mica_refuse(why, "the matrix product is none: %s", reason.text);
    return MICA_OK;
}

void conv_product_contract(const mica_conv_desc *d, mica_contract *c)
{
    mica_dtype type = d->pass == MICA_CONV_DGRAD ? d->y.dtype : d->x.dtype;
    if (type == MICA_E4M3 || type == MICA_E5M2) {
        /* Hopper's units keep 13 bits behind the point for 128 terms, which are then added in f32.
         */
        int64_t terms = mica_conv_terms(d);
        c->truncates = true;
        c->unit = 0x1p-14;
        c->k_inst = 16;
        c->n_seq = (terms < 128 ? terms : 128) + 16;
        return;
    }
    if (type == MICA_F32 && d->compute != MICA_COMPUTE_TF32) {
        mica_contract tiles = *c;
        mica_mma_precise_contract(&tiles);
        if (mica_contract_phi(&tiles) > mica_contract_phi(c)) *c = tiles;
        return;
    }
    bool units = type == MICA_F16 || type == MICA_BF16 || type == MICA_F32;
    if (!units) return;
    mica_mma_contract(type, c);
    if (type == MICA_F32)
        c->n_seq++;
    else
        c->n_outer += 128; /* parts of K that are added up */
}

void conv_child_contract(const mica_conv_desc *d, mica_contract *c)
{
    const int64_t blocks = 16; /* more than any of them has */
    conv_product_contract(d, c);
    /* in units of tf32 they are less than one: blocks are added in f32 */
    c->n_outer += c->unit > 0x1p-12 ? 1 : blocks;
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)config;
    conv_product_contract(desc, c);
}

/* ---- plans ---- */

/* The image as its matrix is written from: where taps across and their channels lie side by side,
 * and no window reaches out of its row, they are channels of one tap, which vectors may be made of.
 */
static mica_conv_geometry written_from(const product *p)
{
    mica_conv_geometry g = p->g;
    bool beside =
        !p->roles.dgrad && !p->tap_fast && g.a.c == 1 && g.a.s[2] == g.c && g.dilation[2] == 1;
    if (!beside || g.pad[2] != 0 || (g.out[2] - 1) * g.stride[2] + g.tap[2] > g.in[2]) return g;
    g.c *= g.tap[2];
    g.tap[2] = 1;
    g.a.s[2] *= g.stride[2];
    g.stride[2] = 1;
    g.in[2] = g.out[2];
    return g;
}

static int vector_of(const mica_conv_desc *d, const product *p)
{
    const mica_conv_geometry g = written_from(p);
    const mica_conv_strides *s = p->roles.dgrad ? &g.b : &g.a;
    const int64_t steps = (p->roles.dgrad ? g.k : g.c) | mica_access_step(s->g, g.groups) |
                          conv_pixel_steps(s->n, g.n, s->s, p->roles.dgrad ? g.out : g.in);
    if (p->tap_fast) return 1;
    return mica_access_along(mica_conv_tensor(d, p->roles.image)->dtype, s->c, steps);
}

static int vector_bytes(const mica_conv_desc *d, const product *p)
{
    return mica_access_bytes(mica_conv_tensor(d, p->roles.image)->dtype, vector_of(d, p));
}

/* The matrix written at copy speed, or as threads find its vectors, and what its product takes. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    const double matrix_ms = 8e-3;     /* another kernel, whose threads find their pixels */
    const double found_per_ms = 0.8e6; /* vectors, by a multiprocessor */
    const mica_conv_desc *d = desc;
    product p;
    mica_why why;
    (void)config;
    char resolved[MICA_MAX_DESC] = {0};
    const mica_op *gemm = mica_op_find("gemm");
    if (make_product(d, &p, &why) != MICA_OK || add_epilogue(d, &p, &why) != MICA_OK ||
        mica_op_resolve_child("gemm", &p.gemm, resolved, &why) != MICA_OK)
        return 0;
    double product_ms = mica_op_predict(gemm, resolved, device, true);
    if (p.direct) return product_ms;
    double bytes = matrix_bytes(d, &p), vectors = bytes / vector_bytes(d, &p);
    return product_ms + matrix_ms +
           fmax(1.5 * bytes / (device->copy_gbps * 1e6), vectors / (found_per_ms * device->units));
}

static mica_status add_kernel(mica_plan *plan, state *s)
{
    const mica_conv_desc *d = plan->desc;
    const product *p = &s->p;
    char text[4096];
    mica_text prologue = {text, sizeof text, 0};
    mica_dtype type = mica_conv_tensor(d, p->roles.image)->dtype;
    double elements = (double)p->rows * (double)p->pairs * (double)p->g.groups;
    static const int32_t no_steps[MICA_MAX_STEPS] = {0};
    mica_epilogue none = mica_conv_epilogue(d);
    none.steps = (int32_t *)(uintptr_t)no_steps;
    mica_prologue_epilogue(&prologue, &none);
    s->vector = vector_of(d, p);
    mica_prologue_int(&prologue, "KIND",
                      p->roles.dgrad ? MICA_CONV_KIND_DGRAD : MICA_CONV_KIND_FWD);
    mica_prologue_int(&prologue, "BLOCK", BLOCK);
    mica_prologue_int(&prologue, "VECTOR", s->vector);
    mica_prologue_int(&prologue, "TAP_FAST", p->tap_fast);
    mica_prologue_int(&prologue, "COUNT_64", elements > INT32_MAX);
    mica_prologue_type(&prologue, "coord_t",
                       mica_conv_positions_fit_s32(&p->g) ? MICA_S32 : MICA_S64);
    static const char *const types[] = {"left_t", "right_t", "out_t"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        mica_prologue_type(&prologue, types[i], type);
    mica_prologue_type(&prologue, "acc_t", mica_dtype_accumulator(type));
    mica_prologue_type(&prologue, "fin_t", MICA_F32);
    int64_t part = (int64_t)MICA_CONV_GEMM_PART * s->vector, parts = (p->pairs + part - 1) / part;
    s->args =
        (conv_gemm_args){.g = written_from(p), .rows = p->rows, .pairs = p->pairs, .parts = parts};
    int64_t items = p->rows * p->g.groups * parts, blocks = (items + BLOCK / 32 - 1) / (BLOCK / 32);
    int64_t most = (int64_t)plan->device.units * BLOCKS_PER_UNIT;
    s->grid = (mica_grid){.grid = {(unsigned)(blocks < most ? blocks : most)}, .block = {BLOCK}};
    MICA_TRY(mica_book(plan, "image as a matrix", (size_t)matrix_bytes(d, p), &s->matrix_at));
    mica_kernel_spec spec = {"ops/conv/lowered/gemm.cu", "conv_gemm", text, 0};
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
    MICA_TRY(add_epilogue(d, &s->p, &why));
    if (!s->p.direct && s->p.rows * s->p.pairs > 0) MICA_TRY(add_kernel(plan, s));
    return mica_plan_child_create(plan, "gemm", &s->p.gemm, sizeof s->p.gemm, NULL, &s->child,
                                  &s->child_at);
}

static mica_status write_matrix(const state *s, const mica_run *r, void *to)
{
    conv_gemm_args args = s->args;
    args.image = r->args[s->p.roles.image];
    args.matrix = to;
    args.whole = s->vector > 1 && mica_access_starts(args.image, 16) && mica_access_starts(to, 16);
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &args);
}

static void *element(const mica_conv_desc *d, const mica_run *r, int arg, int64_t first)
{
    return (char *)r->args[arg] + first * (mica_dtype_bits(mica_conv_tensor(d, arg)->dtype) / 8);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const mica_conv_desc *d = plan->desc;
    const state *s = plan->state;
    const product *p = &s->p;
    if (!s->child) return MICA_OK;
    void *image = p->direct ? r->args[p->roles.image] : mica_at(r, s->matrix_at);
    if (s->kernel) MICA_TRY(write_matrix(s, r, image));
    bool wgrad = p->roles.wgrad;
    int other = p->roles.dgrad ? p->roles.a : p->roles.b;
    double scalars[] = {[MICA_GEMM_ALPHA] = mica_run_scalar(plan, r, MICA_CONV_ALPHA),
                        [MICA_GEMM_BETA] = mica_run_scalar(plan, r, MICA_CONV_BETA)};
    void *filter = element(d, r, MICA_CONV_W, p->g.f_base);
    mica_run child = {
        .workspace = mica_at(r, s->child_at), .stream = r->stream, .scalars = scalars};
    child.args[MICA_GEMM_A] = wgrad ? r->args[other] : image;
    child.args[MICA_GEMM_B] = wgrad ? image : filter;
    child.args[MICA_GEMM_C] = wgrad ? filter : r->args[other];
    child.args[MICA_GEMM_BIAS] = r->args[MICA_CONV_BIAS];
    child.args[MICA_GEMM_SCALE] = r->args[MICA_CONV_SCALE];
    child.args[MICA_GEMM_SHIFT] = r->args[MICA_CONV_SHIFT];
    child.args[MICA_GEMM_RESIDUAL] = r->args[MICA_CONV_RESIDUAL];
    return mica_plan_child_run(s->child, &child);
}

const mica_engine mica_conv_gemm = {.name = "gemm",
                                    .cuda = true,
                                    .accepts = accepts,
                                    .predict = predict,
                                    .contract = contract,
                                    .build = build,
                                    .run = run};
