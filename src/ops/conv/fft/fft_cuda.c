/* SPDX-License-Identifier: Apache-2.0
 * Engine "fft" of GPUs: long filters as products of spectra (overlap-save), for all three passes in
 * one and two dimensions. A block transforms one tile, or a few of neighbouring channels, in shared
 * memory. Depthwise filters that fit half a tile are one kernel from image to result, besides the
 * filter's spectra, which L2 holds; longer ones, and gradients, leave spectra of images in the
 * workspace. Dense ones are planes of the workspace and a child plan of op gemm. Cost: what shared
 * memory takes for log4(points) passes over a tile, three times as long as the tile's way from and
 * to memory; planes, twice 8 to 16 bytes for each number; the child.
 *
 * What it is not: as exact as other engines. A transform mixes all numbers of a tile, so that an
 * infinity or NaN reaches the whole tile, and small results beside large ones lose digits, as
 * conv_fft_contract() says. That is why it is only taken by name. Numbers of f16 and bf16 are f32
 * from the image on, and compute=tf32 has no effect. */
#include "ops/conv/fft/fft.h"

#include <math.h>

enum { BLOCK = 256, MOST_COLUMNS = 4096, KEEP = 2, MOST_SHARED = 48 << 10, MOST_LOG_SIGNALS = 5 };
enum { MOST_SHARES = 64, WAVES = 4 };
enum { SHARES, PRODUCTS, FUSED }; /* fft_result.cu */

typedef struct state {
    conv_fft_problem p;
    conv_fft_division d;
    mica_kernel *points, *sums, *result; /* points: inputs are of one type */
    conv_fft_args image_args, short_args, result_args;
    conv_fft_sums_args sums_args;
    size_t image_at, filter_at, result_at, sums_at, child_at;
    mica_plan *child;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    return conv_fft_accepts(desc, why);
}

static bool fuses(const conv_fft_problem *p, const conv_fft_division *d)
{
    return p->depthwise && !p->wgrad && d->parts == 1;
}

/* ---- model ---- */

/* The share of a block's threads that have a piece of a tile: small tiles of few channels leave
 * most of them idle. Other blocks run beside it, so that half of them are enough. */
static double occupied(const conv_fft_problem *p, const conv_fft_division *d)
{
    double signals = (double)(p->depthwise ? p->g.groups : p->from < p->to ? p->from : p->to);
    double pieces = (double)d->axis[0].points * d->half / 4;
    double most = 1 << MOST_LOG_SIGNALS, share = 2 * pieces * fmin(signals, most) / BLOCK;
    return share < 1 ? share : 1;
}

/* Milliseconds of transforms at a seventh of the f32 rate, which is what shared memory lets pass;
 * tensors and spectra at copy speed, those of filters besides for each tile at the twice as high
 * one of the cache; products, where they are a child's, at half the f32 rate. */
static double cost(const conv_fft_problem *p, const conv_fft_division *d,
                   const mica_device_info *device)
{
    const double launch_ms = 4e-3;
    double rate = device->f32_tflops * 1e9 * (p->sums == MICA_F64 ? 0.5 : 1);
    double value = 2 * mica_dtype_bits(p->sums) / 8, chunks = (double)d->chunks;
    double image = chunks * conv_fft_image_values(p, d), parts = (double)d->parts;
    double result = chunks * conv_fft_result_values(p, d);
    double ms = conv_fft_transform_flops(p, d) / (0.15 * rate * occupied(p, d));
    double bytes = value * (image + result); /* the tensors: about half a spectrum, and its halo */
    bytes += 2 * value * conv_fft_filter_values(p, d);
    if (p->depthwise) {
        ms += (fuses(p, d) ? 2 : 3) * chunks * launch_ms;
        bytes += value * image * (fuses(p, d) ? 0.5 : 1 + 1.5 * parts);
        return ms + bytes / (device->copy_gbps * 1e6);
    }
    bytes += value * (image * 2 * (1 + parts) + result * 2 * parts);
    return ms + conv_fft_product_flops(p, d) / (0.5 * rate) + bytes / (device->copy_gbps * 1e6) +
           (2 + parts) * chunks * launch_ms;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    return conv_fft_predict(desc, device, config, cost);
}

static int configs(const void *desc, const mica_device_info *device, mica_config *list)
{
    return conv_fft_configs(desc, device, MOST_COLUMNS, KEEP, cost, list);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    conv_fft_problem p;
    conv_fft_make(desc, &p);
    conv_fft_contract(desc, config, !p.depthwise && p.sums == MICA_F32, c);
}

/* ---- arguments ---- */

static int log_of(int64_t n)
{
    int log = 0;
    while ((int64_t)1 << log < n) log++;
    return log;
}

static size_t shared_bytes(const state *s, int log_signals)
{
    size_t points = (size_t)(s->d.bins << log_signals),
           number = (size_t)mica_dtype_bits(s->p.sums) / 8;
    return (points + points / 4 + 1) * 2 * number;
}

/* count: signals by digit, existing or not; places: of the launch. */
static void fill_args(const state *s, const int64_t *count, int64_t down, int64_t across,
                      conv_fft_args *a)
{
    const conv_fft_axis *axis = s->d.axis;
    a->log_rows = log_of(axis[0].points);
    a->log_half = log_of(s->d.half);
    while (a->log_signals < MOST_LOG_SIGNALS && (int64_t)1 << a->log_signals < count[0] &&
           (BLOCK << a->log_signals) <= MOST_COLUMNS * 2 &&
           shared_bytes(s, a->log_signals + 1) <= MOST_SHARED)
        a->log_signals++;
    for (int i = 0; i < 3; i++) a->count[i] = count[i];
    /* these fit where a grid has so many blocks, which build() sees to */
    a->lane_blocks = (unsigned)((count[0] + ((int64_t)1 << a->log_signals) - 1) >> a->log_signals);
    a->blocks[0] = (unsigned)count[1];
    a->blocks[1] = (unsigned)count[2];
    a->places[0] = (int)down;
    a->places[1] = (int)across;
    a->parts[0] = a->parts[1] = 1;
    a->scale = s->d.scale;
}

/* Where tiles lie: of an image, with what lies before result 0; of results and gradients; of the
 * filter's parts. */
enum { IMAGE, TILES, PARTS };

static void fill_side(const state *s, const conv_fft_tensor *t, const int64_t *digit, int kind,
                      conv_fft_args *a, conv_fft_side *side)
{
    side->t = *t;
    for (int i = 0; i < 3; i++) {
        side->digit[i] = digit[i];
        side->limit[i] = a->count[i];
    }
    for (int i = 0; i < 2; i++) {
        const conv_fft_axis *x = &s->d.axis[i];
        side->first[i] = kind == IMAGE ? (int)-x->before : 0;
        side->step[i] = (int)(kind == PARTS ? x->part : x->step);
        side->take[i] = kind == IMAGE ? x->points : side->step[i];
        side->places[i] = (int)(kind == IMAGE ? x->slots : kind == TILES ? x->tiles : x->parts);
    }
    side->lane_fast = digit[0] == 1;
}

/* Digits of images and results, and of filters: {group, image, 1} and {group, 1, 1} if depthwise,
 * {channel, image, group} and {to, from, group} if not. */
static void image_digits(const state *s, const conv_fft_tensor *t, int64_t channels, int64_t *count,
                         int64_t *stride)
{
    const conv_fft_problem *p = &s->p;
    const int64_t depthwise[2][3] = {{p->g.groups, s->d.each, 1}, {t->group, t->batch, 0}};
    const int64_t dense[2][3] = {{channels, s->d.each, p->g.groups},
                                 {t->channel, t->batch, t->group}};
    for (int i = 0; i < 3; i++) {
        count[i] = p->depthwise ? depthwise[0][i] : dense[0][i];
        stride[i] = p->depthwise ? depthwise[1][i] : dense[1][i];
    }
}

static void filter_digits(const state *s, const conv_fft_tensor *t, int64_t *count, int64_t *stride)
{
    const conv_fft_problem *p = &s->p;
    const int64_t depthwise[2][3] = {{p->g.groups, 1, 1}, {t->group, 0, 0}};
    const int64_t dense[2][3] = {{p->to, p->from, p->g.groups}, {t->batch, t->channel, t->group}};
    for (int i = 0; i < 3; i++) {
        count[i] = p->depthwise ? depthwise[0][i] : dense[0][i];
        stride[i] = p->depthwise ? depthwise[1][i] : dense[1][i];
    }
}

static void set_spectra(conv_fft_spectra *p, int64_t digit0, int64_t digit1, int64_t digit2,
                        int64_t place, int64_t bin, int64_t im)
{
    *p =
        (conv_fft_spectra){.digit = {digit0, digit1, digit2}, .place = place, .bin = bin, .im = im};
}

/* Depthwise: [group][image, slot][bin] and [part][group][bin] of pairs. */
static void depthwise_rows(const state *s, conv_fft_spectra *p)
{
    int64_t value = 2 * s->d.bins, image = s->d.slots * value;
    set_spectra(p, s->d.each * image, image, 0, value, 2, 1);
}

static void depthwise_filter(const state *s, conv_fft_spectra *p)
{
    int64_t value = 2 * s->d.bins;
    set_spectra(p, value, 0, 0, s->p.g.groups * value, 2, 1);
}

static void image_spectra(const state *s, conv_fft_spectra *p)
{
    if (s->p.depthwise) {
        depthwise_rows(s, p);
        return;
    }
    int64_t plane = conv_fft_image_plane(&s->p, &s->d), row = 4 * s->p.from;
    set_spectra(p, 1, s->d.slots * row, plane, row, plane * s->p.g.groups, s->p.from);
    p->turned = row / 2;
}

static void result_spectra(const state *s, conv_fft_spectra *p)
{
    if (s->p.depthwise) {
        depthwise_rows(s, p);
        return;
    }
    int64_t plane = conv_fft_result_plane(&s->p, &s->d), row = 2 * s->p.to;
    set_spectra(p, 1, s->d.slots * row, plane, row, plane * s->p.g.groups, s->p.to);
}

static void filter_spectra(const state *s, conv_fft_spectra *p)
{
    if (s->p.depthwise) {
        depthwise_filter(s, p);
        return;
    }
    int64_t plane = conv_fft_filter_plane(&s->p), all = plane * s->p.g.groups;
    set_spectra(p, 1, s->p.to, plane, s->d.bins * all, all, s->p.from * s->p.to);
}

/* ---- build ---- */

static void fill_image(state *s)
{
    int64_t count[3], stride[3];
    const conv_fft_axis *axis = s->d.axis;
    image_digits(s, &s->p.image, s->p.from, count, stride);
    fill_args(s, count, axis[0].slots, axis[1].slots, &s->image_args);
    fill_side(s, &s->p.image, stride, IMAGE, &s->image_args, &s->image_args.side);
    image_spectra(s, &s->image_args.points);
}

static void fill_shorter(state *s)
{
    int64_t count[3], stride[3];
    const conv_fft_axis *axis = s->d.axis;
    conv_fft_args *a = &s->short_args;
    if (s->p.wgrad) {
        image_digits(s, &s->p.shorter, s->p.to, count, stride);
        fill_args(s, count, axis[0].slots, axis[1].slots, a);
        fill_side(s, &s->p.shorter, stride, TILES, a, &a->side);
        result_spectra(s, &a->points);
        return;
    }
    filter_digits(s, &s->p.shorter, count, stride);
    fill_args(s, count, axis[0].parts, axis[1].parts, a);
    fill_side(s, &s->p.shorter, stride, PARTS, a, &a->side);
    filter_spectra(s, &a->points);
}

static void fill_epilogue(const mica_conv_desc *d, const state *s, conv_fft_args *a)
{
    const conv_fft_problem *p = &s->p;
    const int64_t depthwise[2][3] = {{1, 0, 0}, {p->residual_g, p->residual_n, 0}};
    const int64_t dense[2][3] = {{1, 0, p->to}, {p->residual_c, p->residual_n, p->residual_g}};
    a->epilogue = (mica_epilogue_args){.bias_stride = d->bias.strides[0],
                                       .scale_stride = d->scale.strides[0],
                                       .shift_stride = d->shift.strides[0],
                                       .act_a = d->act_a,
                                       .act_b = d->act_b};
    for (int i = 0; i < 3; i++) {
        a->channel[i] = p->depthwise ? depthwise[0][i] : dense[0][i];
        a->residual[i] = p->depthwise ? depthwise[1][i] : dense[1][i];
    }
    for (int i = 0; i < 2; i++) a->residual_s[i] = p->residual_s[i];
}

static void fill_result(const mica_conv_desc *d, state *s)
{
    int64_t count[3], stride[3];
    const conv_fft_axis *axis = s->d.axis;
    conv_fft_args *a = &s->result_args;
    if (s->p.wgrad) {
        filter_digits(s, &s->p.result, count, stride);
        fill_args(s, count, axis[0].parts, axis[1].parts, a);
        fill_side(s, &s->p.result, stride, PARTS, a, &a->side);
        filter_spectra(s, &a->points);
        return;
    }
    image_digits(s, &s->p.result, s->p.to, count, stride);
    fill_args(s, count, axis[0].slots, axis[1].slots, a);
    fill_side(s, &s->p.result, stride, TILES, a, &a->side);
    if (s->p.depthwise) {
        image_digits(s, &s->p.image, 1, count, stride);
        fill_side(s, &s->p.image, stride, IMAGE, a, &a->image);
        image_spectra(s, &a->points);
        filter_spectra(s, &a->filter);
        for (int i = 0; i < 2; i++) a->parts[i] = (int)axis[i].parts;
    } else {
        result_spectra(s, &a->points);
    }
    fill_epilogue(d, s, a);
}

/* Shares of the rows, so that all multiprocessors have blocks. */
static void fill_sums(const mica_plan *plan, state *s)
{
    const conv_fft_division *d = &s->d;
    conv_fft_sums_args *a = &s->sums_args;
    int64_t rows = d->each * d->slots - d->reach, value = 2 * d->bins;
    int64_t blocks = (d->bins + BLOCK - 1) / BLOCK * s->p.g.groups * d->parts;
    int64_t shares = (WAVES * plan->device.units + blocks - 1) / blocks;
    a->rows = rows > 0 ? rows : 0;
    if (shares > MOST_SHARES) shares = MOST_SHARES;
    if (shares > a->rows) shares = a->rows > 0 ? a->rows : 1;
    a->each = (a->rows + shares - 1) / shares;
    a->shares = a->each > 0 ? (unsigned)((a->rows + a->each - 1) / a->each) : 1;
    a->group = d->each * d->slots * value;
    a->row = value;
    a->part = d->axis[1].slots;
    a->groups = (unsigned)s->p.g.groups;
    for (int i = 0; i < 2; i++) a->parts[i] = (int)d->axis[i].parts;
    a->bins = d->bins;
    s->result_args.parts[1] = (int)a->shares;
    s->result_args.share = d->parts * s->p.g.groups * value;
}

static double blocks_of(const conv_fft_args *a)
{
    double lanes = (double)((a->count[0] + (1ll << a->log_signals) - 1) >> a->log_signals);
    return lanes * (double)a->count[1] * (double)a->count[2] * a->places[0] * a->places[1];
}

static mica_status refuse_grid(const state *s, double blocks)
{
    return mica_fail(MICA_UNSUPPORTED, "%.10g tiles of %d x %d: a grid holds 2147483647", blocks,
                     s->d.axis[0].points, s->d.axis[1].points);
}

static mica_status add_kernel(mica_plan *plan, const char *file, const char *entry, mica_text *p,
                              mica_kernel **kernel)
{
    const state *s = plan->state;
    mica_prologue_int(p, "BLOCK", BLOCK);
    mica_prologue_type(p, "sum_t", s->p.sums);
    mica_kernel_spec spec = {file, entry, p->data, 0};
    return mica_plan_add_kernel(plan, &spec, kernel);
}

static mica_status add_points(mica_plan *plan, state *s)
{
    char text[512] = "";
    mica_text p = {text, sizeof text, 0};
    mica_prologue_type(&p, "in_t", mica_conv_tensor(plan->desc, s->p.image_arg)->dtype);
    return add_kernel(plan, "ops/conv/fft/fft_points.cu", "conv_fft_points", &p, &s->points);
}

static mica_status add_result(mica_plan *plan, state *s)
{
    char text[2048] = "";
    const mica_conv_desc *d = plan->desc;
    bool products = s->p.depthwise && !s->p.wgrad;
    mica_epilogue e = mica_conv_epilogue(d);
    mica_text p = {text, sizeof text, 0};
    mica_prologue_epilogue(&p, &e);
    bool fused = fuses(&s->p, &s->d);
    mica_prologue_int(&p, "MODE", fused ? FUSED : products ? PRODUCTS : SHARES);
    mica_prologue_type(&p, "in_t", fused ? mica_conv_tensor(d, s->p.image_arg)->dtype : s->p.sums);
    mica_prologue_type(&p, "out_t", mica_conv_tensor(d, s->p.result_arg)->dtype);
    return add_kernel(plan, "ops/conv/fft/fft_result.cu", "conv_fft_result", &p, &s->result);
}

static mica_status add_kernels(mica_plan *plan, state *s)
{
    MICA_TRY(add_points(plan, s));
    if (s->p.depthwise && s->p.wgrad) {
        char text[512] = "";
        mica_text p = {text, sizeof text, 0};
        MICA_TRY(add_kernel(plan, "ops/conv/fft/fft_sums.cu", "conv_fft_sums", &p, &s->sums));
    }
    return add_result(plan, s);
}

static mica_status book(mica_plan *plan, state *s)
{
    const conv_fft_problem *p = &s->p;
    const conv_fft_division *d = &s->d;
    const size_t number = (size_t)mica_dtype_bits(p->sums) / 8;
    const size_t planes = (size_t)(d->bins * p->g.groups) * number;
    size_t image =
        planes * (size_t)(p->depthwise ? 2 * d->each * d->slots : conv_fft_image_plane(p, d));
    size_t filter = planes * (size_t)(conv_fft_filter_plane(p) * d->parts);
    size_t result =
        planes * (size_t)(p->depthwise ? 2 * d->each * d->slots : conv_fft_result_plane(p, d));
    if (!fuses(p, d)) MICA_TRY(mica_book(plan, "image's spectra", image, &s->image_at));
    if (p->depthwise && p->wgrad)
        MICA_TRY(
            mica_book(plan, "sums of spectra", filter * (size_t)s->sums_args.shares, &s->sums_at));
    else
        MICA_TRY(mica_book(plan, "filter's spectra", filter, &s->filter_at));
    if (p->depthwise && !p->wgrad) return MICA_OK;
    return mica_book(plan, p->wgrad ? "gradient's spectra" : "result's spectra", result,
                     &s->result_at);
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    if (mica_conv_is_empty(d)) return MICA_OK;
    conv_fft_make_run(d, &s->p);
    conv_fft_divide(&s->p, &plan->config, &s->d);
    fill_image(s);
    fill_shorter(s);
    fill_result(d, s);
    if (s->p.depthwise && s->p.wgrad) fill_sums(plan, s);
    const conv_fft_args *all[] = {&s->image_args, &s->short_args, &s->result_args};
    for (int i = 0; i < 3; i++)
        if (blocks_of(all[i]) > INT32_MAX) return refuse_grid(s, blocks_of(all[i]));
    double sums = (double)s->sums_args.groups * (double)s->d.parts * s->sums_args.shares;
    if (sums > INT32_MAX) return refuse_grid(s, sums);
    MICA_TRY(add_kernels(plan, s));
    MICA_TRY(book(plan, s));
    if (s->p.depthwise) return MICA_OK;
    mica_gemm_desc gemm;
    conv_fft_gemm(&s->p, &s->d, &gemm);
    return mica_plan_child_create(plan, "gemm", &gemm, sizeof gemm, NULL, &s->child, &s->child_at);
}

/* ---- run ---- */

static mica_status launch(const state *s, mica_kernel *kernel, const conv_fft_args *a, void *stream)
{
    double blocks = blocks_of(a);
    if (blocks == 0) return MICA_OK;
    mica_grid grid = {.grid = {(unsigned)blocks},
                      .block = {BLOCK},
                      .dynamic_shared = (unsigned)shared_bytes(s, a->log_signals)};
    return mica_kernel_launch(kernel, &grid, stream, a);
}

/* One chunk of images: the tensor begins there, and fewer images may be left. */
static void enter_chunk(const state *s, int64_t chunk, mica_dtype type, void *data,
                        conv_fft_side *side)
{
    int64_t first = chunk * s->d.each, left = s->p.g.n - first;
    side->data = (char *)data + first * side->t.batch * (mica_dtype_bits(type) / 8);
    side->limit[1] = left < s->d.each ? left : s->d.each;
}

static mica_status multiply(const state *s, const mica_run *r, int64_t chunk)
{
    const conv_fft_problem *p = &s->p;
    const conv_fft_division *d = &s->d;
    const int64_t number = mica_dtype_bits(p->sums) / 8;
    for (int64_t part = 0; part < d->parts; part++) {
        bool add = p->wgrad ? chunk > 0 : part > 0;
        double scalars[] = {[MICA_GEMM_ALPHA] = 1, [MICA_GEMM_BETA] = add ? 1 : 0};
        int64_t row = conv_fft_part_slots(d, part) * 4 * p->from;
        int64_t planes = part * d->bins * p->g.groups * conv_fft_filter_plane(p);
        char *image = (char *)mica_at(r, s->image_at) + row * number;
        char *filter = (char *)mica_at(r, s->filter_at) + planes * number;
        char *result = mica_at(r, s->result_at);
        mica_run child = {
            .workspace = mica_at(r, s->child_at), .stream = r->stream, .scalars = scalars};
        child.args[MICA_GEMM_A] = image;
        child.args[MICA_GEMM_B] = p->wgrad ? result : filter;
        child.args[MICA_GEMM_C] = p->wgrad ? filter : result;
        MICA_TRY(mica_plan_child_run(s->child, &child));
    }
    return MICA_OK;
}

static mica_status add_up(const state *s, const mica_run *r, int64_t chunk)
{
    conv_fft_sums_args a = s->sums_args;
    a.image = mica_at(r, s->image_at);
    a.gradient = mica_at(r, s->result_at);
    a.sums = mica_at(r, s->sums_at);
    a.add = chunk > 0;
    unsigned columns = a.groups * (unsigned)s->d.parts * a.shares;
    mica_grid grid = {.grid = {columns, (unsigned)((a.bins + BLOCK - 1) / BLOCK)},
                      .block = {BLOCK}};
    return mica_kernel_launch(s->sums, &grid, r->stream, &a);
}

static mica_dtype type_of(const mica_plan *plan, int arg)
{
    return mica_conv_tensor(plan->desc, arg)->dtype;
}

static mica_status run_chunk(const mica_plan *plan, const mica_run *r, int64_t chunk)
{
    const state *s = plan->state;
    const conv_fft_problem *p = &s->p;
    if (!fuses(p, &s->d)) {
        conv_fft_args a = s->image_args;
        enter_chunk(s, chunk, type_of(plan, p->image_arg), r->args[p->image_arg], &a.side);
        a.points.data = mica_at(r, s->image_at);
        MICA_TRY(launch(s, s->points, &a, r->stream));
    }
    if (p->wgrad) {
        conv_fft_args a = s->short_args;
        enter_chunk(s, chunk, type_of(plan, p->short_arg), r->args[p->short_arg], &a.side);
        a.points.data = mica_at(r, s->result_at);
        MICA_TRY(launch(s, s->points, &a, r->stream));
        return p->depthwise ? add_up(s, r, chunk) : multiply(s, r, chunk);
    }
    if (!p->depthwise) MICA_TRY(multiply(s, r, chunk));
    conv_fft_args a = s->result_args;
    enter_chunk(s, chunk, type_of(plan, p->result_arg), r->args[p->result_arg], &a.side);
    enter_chunk(s, chunk, type_of(plan, p->image_arg), r->args[p->image_arg], &a.image);
    a.points.data = mica_at(r, p->depthwise ? s->image_at : s->result_at);
    a.filter.data = mica_at(r, s->filter_at);
    a.alpha = mica_run_scalar(plan, r, MICA_CONV_ALPHA);
    a.beta = mica_run_scalar(plan, r, MICA_CONV_BETA);
    mica_epilogue_bind(&a.epilogue, r->args, MICA_CONV_BIAS);
    /* the residual, too, begins at the chunk */
    const mica_tensor *residual = &((const mica_conv_desc *)plan->desc)->residual;
    if (mica_tensor_given(residual))
        a.epilogue.residual =
            (const char *)a.epilogue.residual +
            chunk * s->d.each * p->residual_n * (mica_dtype_bits(residual->dtype) / 8);
    return launch(s, s->result, &a, r->stream);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    const conv_fft_problem *p = &s->p;
    if (!s->result) return MICA_OK;
    if (!p->wgrad) {
        conv_fft_args a = s->short_args;
        a.side.data = r->args[p->short_arg];
        a.points.data = mica_at(r, s->filter_at);
        MICA_TRY(launch(s, s->points, &a, r->stream));
    }
    for (int64_t i = 0; i < s->d.chunks; i++) MICA_TRY(run_chunk(plan, r, i));
    if (!p->wgrad) return MICA_OK;
    conv_fft_args a = s->result_args;
    a.side.data = r->args[p->result_arg];
    a.points.data = mica_at(r, p->depthwise ? s->sums_at : s->filter_at);
    a.alpha = mica_run_scalar(plan, r, MICA_CONV_ALPHA);
    a.beta = mica_run_scalar(plan, r, MICA_CONV_BETA);
    return launch(s, s->result, &a, r->stream);
}

const mica_engine mica_conv_fft_cuda = {.name = "fft",
                                        .cuda = true,
                                        .by_name = true,
                                        .knobs = conv_fft_knobs,
                                        .accepts = accepts,
                                        .configs = configs,
                                        .predict = predict,
                                        .contract = contract,
                                        .build = build,
                                        .run = run};
