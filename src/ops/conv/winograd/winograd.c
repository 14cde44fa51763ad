/* SPDX-License-Identifier: Apache-2.0
 * Engine "winograd": filters of 3 x 3 taps at stride 1 as Winograd's minimal filtering (Lavin and
 * Gray 2016), for all three passes. Tiles of 2 x 2 or 4 x 4 pixels (config `tile`) and the filters
 * become points, one product per point is a child plan of op gemm, batched, and its result is
 * transformed back: 2.25 or 4 times fewer products than taps. Cost: the child, and points written
 * and read, 4 or 2.25 times the image and the result; so it is for f32 with many channels. Images
 * pass in chunks of tiles, which bound the workspace (config `chunks`).
 *
 * What it is not: as exact as other engines. Points mix all pixels of a tile, so that an infinity
 * or NaN reaches the whole tile, and errors grow as contract() says. That is why it is only taken
 * by name, in `measure` too. Points and their sums are f32 whatever the types of images and
 * filters, and compute=tf32 has no effect: points rounded to 11 or 8 bits would have errors as
 * large as results. For 16-bit types it saves memory beside f32, and no time beside tensor cores.
 */
#include "ops/conv/winograd/winograd.h"
#include "ops/mma/mma_tile.h"
#include "ops/conv/winograd/winograd_args.h"

enum { BLOCK = 128, TAPS = CONV_WINOGRAD_TAPS };

static const char *const knobs[] = {"tile", "chunks", NULL};

typedef struct state {
    conv_winograd_problem p;
    conv_winograd_division d;
    mica_kernel *filter, *read, *other; /* filter: NULL if runs get it packed */
    mica_kernel *pack;
    size_t filter_at, read_at, other_at, child_at;
    conv_winograd_args filter_args, read_args, other_args;
    mica_plan *child;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    return conv_winograd_accepts(desc, why);
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    conv_winograd_problem p;
    conv_winograd_make(desc, &p);
    int count = conv_winograd_chunkings(&p, device, 4, out);
    return count + conv_winograd_chunkings(&p, device, 2, out + count);
}

/* ---- model and contract ---- */

static bool stays_in_cache(const conv_winograd_division *d, const mica_device_info *device)
{
    return 2 * (double)(d->read_bytes + d->other_bytes) <= (double)device->cache_bytes;
}

/* Images, filters and points at copy speed, points that stay in the cache at twice that, and the
 * child's products. */
static double predict_some(const void *desc, const mica_device_info *device,
                           const mica_config *config, bool packed)
{
    const double launch_ms = 4e-3;
    const mica_op *gemm = mica_op_find("gemm");
    conv_winograd_problem p;
    conv_winograd_division d;
    char resolved[MICA_MAX_DESC] = {0};
    mica_why why;
    conv_winograd_make(desc, &p);
    conv_winograd_divide(&p, config->knob[KNOB_TILE], config->knob[KNOB_CHUNKS], &d);
    if (mica_op_resolve_child("gemm", &d.gemm, resolved, &why) != MICA_OK) return 0;
    double chunks = (double)d.chunks, points = (double)d.read_bytes + (double)d.other_bytes;
    double bytes = mica_op_bytes(&mica_op_conv, desc) + chunks * points;
    if (stays_in_cache(&d, device)) bytes -= chunks * points / 2;
    if (!packed) bytes += (double)d.filter_bytes;
    double launches = 2 * chunks + !packed;
    return bytes / (device->copy_gbps * 1e6) + launches * launch_ms +
           chunks * mica_op_predict(gemm, resolved, device, true);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    return predict_some(desc, device, config, false);
}

/* Roundings err on either side, so that what they add up to grows by the 2-norms of what a term
 * passes, B' or A, G and A', on its way to result i (Higham and Mary's model, as in phi):
 *
 *     alpha_i^2 = sum over points t of A'_it^2 |G_t|^2 |B'_t|^2,      in wgrad
 *     alpha_i^2 = sum over points t of G'_it^2 |A_t|^2 |B'_t|^2
 *
 *     F(2,3)  |B'|^2 = 2 2 2 2              |A|^2 = 1 2 2 1
 *                                           |G|^2 = 1 3/4 3/4 1
 *     F(4,3)  |B'|^2 = 42 34 34 10 10 42    |A|^2 = 1 4 4 85 85 1
 *                                           |G|^2 = 1/16 1/12 1/12 7/192 7/192 1
 *
 * at most 5 and 94.4, in wgrad 4 and 96.8 along an axis, which is alpha itself on two. It counts
 * for terms as large as the largest pixel times the largest tap (or gradient), met or not: a result
 * has some of them, and the magnitude sum of such inputs says so. The roundings a term meets
 * besides the child's: 5 along an axis for tiles of 2, 10 for tiles of 4. */
static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    conv_winograd_problem p;
    conv_winograd_division d;
    conv_winograd_make(desc, &p);
    conv_winograd_divide(&p, config->knob[KNOB_TILE], config->knob[KNOB_CHUNKS], &d);
    bool small = d.tile == 2;
    double grown = small ? (p.wgrad ? 4 : 5) : (p.wgrad ? 96.8 : 94.4);
    if (p.wgrad) grown *= (double)d.across * (double)d.down;
    for (int axis = 1; axis <= 2; axis++) {
        int64_t met = mica_conv_most_met(&p.g, p.roles.kind, axis);
        grown /= (double)(met > 1 ? met : 1);
    }
    c->n_seq += (p.wgrad ? d.tiles : p.from) - mica_conv_terms(desc);
    c->n_outer = small ? 10 : 20;
    mica_contract tiles = *c; /* the child may take three products of tf32 for one */
    mica_mma_precise_contract(&tiles);
    if (mica_contract_phi(&tiles) > mica_contract_phi(c)) *c = tiles;
    c->amplify = grown > 1 ? grown : 1;
    c->fractions = !small; /* sixths; halves and quarters of small integers are exact */
}

/* ---- packed filters ---- */

static size_t packed_bytes(const mica_plan *plan, int arg)
{
    const state *s = plan->state;
    return s->pack && arg == s->p.roles.f ? s->d.filter_bytes : 0;
}

static mica_status launch(mica_kernel *kernel, const conv_winograd_args *a, void *stream)
{
    if (a->count == 0) return MICA_OK;
    mica_grid grid = {.grid = {(a->count + BLOCK - 1) / BLOCK}, .block = {BLOCK}};
    return mica_kernel_launch(kernel, &grid, stream, a);
}

static const void *first_tap(const mica_conv_desc *d, const conv_winograd_problem *p,
                             const void *filter)
{
    const mica_conv_geometry *g = &p->g;
    int64_t at = g->f_base;
    if (p->dgrad) at += (TAPS - 1) * (g->f.s[1] + g->f.s[2]);
    return (const char *)filter + at * (mica_dtype_bits(d->w.dtype) / 8);
}

static mica_status transform_filter(const mica_plan *plan, mica_kernel *kernel, const void *from,
                                    void *to, void *stream)
{
    const state *s = plan->state;
    conv_winograd_args a = s->filter_args;
    a.from = first_tap(plan->desc, &s->p, from);
    a.to = to;
    return launch(kernel, &a, stream);
}

static mica_status pack(const mica_plan *plan, int arg, const void *from, void *to, void *stream)
{
    const state *s = plan->state;
    (void)arg;
    return transform_filter(plan, s->pack, from, to, stream);
}

static double predict_packed(const void *desc, const mica_device_info *device,
                             const mica_config *config, uint64_t packed)
{
    return predict_some(desc, device, config, packed >> MICA_CONV_W & 1);
}

/* ---- plans ---- */

/* The numbers of a kernel that goes over a filter. */
static void fill_filter(state *s)
{
    const conv_winograd_problem *p = &s->p;
    const mica_conv_strides *f = &p->g.f;
    conv_winograd_args *a = &s->filter_args;
    int64_t columns = p->filter_by_to ? p->to : p->from;
    int64_t by_to = p->dgrad ? f->c : f->n, by_from = p->dgrad ? f->n : f->c;
    a->columns = mica_fastdiv_make((unsigned)columns);
    a->count = (unsigned)(p->from * p->to);
    a->filter_row = p->filter_by_to ? by_from : by_to;
    a->filter_col = p->filter_by_to ? by_to : by_from;
    for (int i = 0; i < 2; i++) a->filter_s[i] = p->dgrad ? -f->s[i + 1] : f->s[i + 1];
}

/* Of one that goes over tiles. start: where tile 0 begins, to the left of the image by `before`. */
static void fill_tiles(const conv_winograd_division *d, const mica_conv_strides *at,
                       const long long *size, const int64_t *before, int64_t channels,
                       bool by_channel, conv_winograd_args *a)
{
    a->image = (conv_winograd_image){.n = at->n, .c = at->c};
    for (int i = 0; i < 2; i++) {
        a->image.s[i] = at->s[i + 1];
        a->image.size[i] = (int)size[i + 1];
        a->image.start[i] = (int)-before[i];
    }
    a->across = mica_fastdiv_make((unsigned)d->across);
    a->down = mica_fastdiv_make((unsigned)d->down);
    a->columns = mica_fastdiv_make((unsigned)(by_channel ? channels : d->each));
    a->tiles = (unsigned)d->tiles;
    a->count = (unsigned)(d->each * channels);
}

static void fill_images(const mica_conv_desc *d, state *s)
{
    const conv_winograd_problem *p = &s->p;
    const mica_conv_geometry *g = &p->g;
    const int64_t none[2] = {0, 0};
    int64_t before[2] = {g->pad[1], g->pad[2]};
    for (int i = 0; i < 2 && p->dgrad; i++) before[i] = TAPS - 1 - before[i];
    if (p->from > 0 && s->d.tiles > 0)
        fill_tiles(&s->d, p->read_at, p->read_size, before, p->from, p->read_by_channel,
                   &s->read_args);
    if (s->d.tiles == 0) return;
    conv_winograd_args *a = &s->other_args;
    fill_tiles(&s->d, p->other_at, p->other_size, none, p->to, p->other_by_channel, a);
    a->epilogue.act_a = d->act_a;
    a->epilogue.act_b = d->act_b;
    a->epilogue.bias_stride = d->bias.strides[0];
    a->epilogue.scale_stride = d->scale.strides[0];
    a->epilogue.shift_stride = d->shift.strides[0];
    a->residual_n = g->residual.n;
    a->residual_c = g->residual.c;
    for (int i = 0; i < 2; i++) a->residual_s[i] = g->residual.s[i + 1];
}

static mica_text prologue_of(const state *s, char *buffer, size_t size)
{
    mica_text p = {buffer, size, 0};
    *buffer = 0;
    mica_prologue_int(&p, "TILE", s->d.tile);
    mica_prologue_int(&p, "BLOCK", BLOCK);
    return p;
}

static mica_status add_filter(mica_plan *plan, const state *s, const char *file, const char *entry,
                              mica_kernel **kernel)
{
    char buffer[512];
    const mica_conv_desc *d = plan->desc;
    if (s->filter_args.count == 0) return MICA_OK;
    mica_text p = prologue_of(s, buffer, sizeof buffer);
    mica_prologue_type(&p, "filter_t", d->w.dtype);
    mica_kernel_spec spec = {file, entry, p.data, 0};
    return mica_plan_add_kernel(plan, &spec, kernel);
}

static mica_status add_image(mica_plan *plan, const state *s, bool gradient, mica_kernel **kernel)
{
    char buffer[512];
    const conv_winograd_problem *q = &s->p;
    if ((gradient ? &s->other_args : &s->read_args)->count == 0) return MICA_OK;
    const mica_tensor *image = mica_conv_tensor(plan->desc, gradient ? q->other : q->read);
    mica_text p = prologue_of(s, buffer, sizeof buffer);
    mica_prologue_int(&p, "CHANNEL_FAST", gradient ? q->other_by_channel : q->read_by_channel);
    mica_prologue_int(&p, "GRADIENT", gradient);
    mica_prologue_type(&p, "image_t", image->dtype);
    mica_kernel_spec spec = {"ops/conv/winograd/winograd_image.cu", "conv_winograd_image_points",
                             p.data, 0};
    return mica_plan_add_kernel(plan, &spec, kernel);
}

static mica_status add_result(mica_plan *plan, state *s)
{
    char buffer[2048];
    const mica_conv_desc *d = plan->desc;
    mica_epilogue e = mica_conv_epilogue(d);
    mica_text p = prologue_of(s, buffer, sizeof buffer);
    mica_prologue_epilogue(&p, &e);
    mica_prologue_int(&p, "CHANNEL_FAST", s->p.other_by_channel);
    mica_prologue_type(&p, "out_t", mica_conv_tensor(d, s->p.other)->dtype);
    mica_kernel_spec spec = {"ops/conv/winograd/winograd_result.cu", "conv_winograd_result", p.data,
                             0};
    return mica_plan_add_kernel(plan, &spec, &s->other);
}

static mica_status add_kernels(mica_plan *plan, state *s)
{
    MICA_TRY(add_image(plan, s, false, &s->read));
    if (s->p.wgrad) {
        MICA_TRY(add_image(plan, s, true, &s->other));
        return add_filter(plan, s, "ops/conv/winograd/winograd_wgrad.cu", "conv_winograd_wgrad",
                          &s->filter);
    }
    bool packed = plan->packed >> s->p.roles.f & 1;
    MICA_TRY(add_filter(plan, s, "ops/conv/winograd/winograd_filter.cu", "conv_winograd_filter",
                        packed ? &s->pack : &s->filter));
    return add_result(plan, s);
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    if (mica_conv_is_empty(d)) return MICA_OK;
    conv_winograd_make(d, &s->p);
    conv_winograd_divide(&s->p, plan->config.knob[KNOB_TILE], plan->config.knob[KNOB_CHUNKS],
                         &s->d);
    if (s->p.from > 0) fill_filter(s);
    fill_images(d, s);
    MICA_TRY(add_kernels(plan, s));
    if (!s->pack) MICA_TRY(mica_book(plan, "filter's points", s->d.filter_bytes, &s->filter_at));
    MICA_TRY(mica_book(plan, "image's points", s->d.read_bytes, &s->read_at));
    MICA_TRY(mica_book(plan, s->p.wgrad ? "gradient's points" : "result's points", s->d.other_bytes,
                       &s->other_at));
    return mica_plan_child_create(plan, "gemm", &s->d.gemm, sizeof s->d.gemm, NULL, &s->child,
                                  &s->child_at);
}

/* ---- run ---- */

static mica_status multiply(const state *s, const mica_run *r, int64_t chunk, void *filter)
{
    void *read = mica_at(r, s->read_at), *other = mica_at(r, s->other_at);
    double scalars[] = {[MICA_GEMM_ALPHA] = 1, [MICA_GEMM_BETA] = s->p.wgrad && chunk > 0 ? 1 : 0};
    mica_run child = {
        .workspace = mica_at(r, s->child_at), .stream = r->stream, .scalars = scalars};
    child.args[MICA_GEMM_A] = s->p.wgrad ? other : read;
    child.args[MICA_GEMM_B] = s->p.wgrad ? read : filter;
    child.args[MICA_GEMM_C] = s->p.wgrad ? filter : other;
    return mica_plan_child_run(s->child, &child);
}

static mica_status run_chunk(const state *s, const mica_run *r, int64_t chunk, void *filter,
                             const conv_winograd_args *other)
{
    conv_winograd_args a = s->read_args, b = *other;
    a.first = b.first = (unsigned)(chunk * s->d.each);
    a.from = r->args[s->p.read];
    a.to = mica_at(r, s->read_at);
    MICA_TRY(launch(s->read, &a, r->stream));
    if (s->p.wgrad) MICA_TRY(launch(s->other, &b, r->stream));
    MICA_TRY(multiply(s, r, chunk, filter));
    return s->p.wgrad ? MICA_OK : launch(s->other, &b, r->stream);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    const conv_winograd_problem *p = &s->p;
    if (!s->child) return MICA_OK;
    void *filter = s->pack ? r->args[p->roles.f] : mica_at(r, s->filter_at);
    void *points = mica_at(r, s->other_at), *other = r->args[p->other];
    conv_winograd_args b = s->other_args;
    b.from = p->wgrad ? other : points;
    b.to = p->wgrad ? points : other;
    b.alpha = mica_run_scalar(plan, r, MICA_CONV_ALPHA);
    b.beta = mica_run_scalar(plan, r, MICA_CONV_BETA);
    mica_epilogue_bind(&b.epilogue, r->args, MICA_CONV_BIAS);
    if (!p->wgrad && !s->pack)
        MICA_TRY(transform_filter(plan, s->filter, r->args[p->roles.f], filter, r->stream));
    for (int64_t i = 0; i < s->d.chunks; i++) MICA_TRY(run_chunk(s, r, i, filter, &b));
    if (!p->wgrad) return MICA_OK;
    conv_winograd_args a = s->filter_args;
    a.from = filter;
    a.to = (void *)(uintptr_t)first_tap(plan->desc, p, r->args[p->roles.f]);
    a.alpha = b.alpha;
    a.beta = b.beta;
    return launch(s->filter, &a, r->stream);
}

static const mica_packing packing = {packed_bytes, pack, predict_packed};

const mica_engine mica_conv_winograd = {.name = "winograd",
                                        .cuda = true,
                                        .by_name = true,
                                        .knobs = knobs,
                                        .accepts = accepts,
                                        .configs = configs,
                                        .predict = predict,
                                        .packing = &packing,
                                        .contract = contract,
                                        .build = build,
                                        .run = run};
