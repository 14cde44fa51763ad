/* SPDX-License-Identifier: Apache-2.0
 * Which problems the engines "fft" take, their tiles, and what roundings add up to. */
#include "ops/conv/fft/fft.h"

#include <math.h>
#include <stdlib.h>

#include "ops/mma/mma_tile.h"

const char *const conv_fft_knobs[] = {"rows", "cols", "chunks", NULL};

enum { LEAST_COLUMNS = 64, LEAST_SIDE = 16, MOST_POINTS = 4096, FINER = 4 };
static const double MOST_CHUNK_VALUES = 0x1p27, MOST_REACH = 0x1p30;

/* ---- the problem ---- */

static int64_t dense(int64_t count, int64_t spacing)
{
    return count > 0 ? (count - 1) * spacing + 1 : 0;
}

static conv_fft_tensor image_tensor(const mica_conv_strides *at, const long long *size)
{
    return (conv_fft_tensor){.batch = at->n,
                             .group = at->g,
                             .channel = at->c,
                             .s = {at->s[1], at->s[2]},
                             .size = {size[1], size[2]},
                             .spacing = {1, 1}};
}

static conv_fft_tensor filter_tensor(const mica_conv_geometry *g, bool mirrored)
{
    conv_fft_tensor t = image_tensor(&g->f, g->tap);
    t.base = g->f_base;
    for (int i = 0; i < 2; i++) {
        t.spacing[i] = g->dilation[i + 1];
        if (!mirrored) continue;
        t.base += (t.size[i] - 1) * t.s[i];
        t.s[i] = -t.s[i];
    }
    if (mirrored) {
        t.batch = g->f.c;
        t.channel = g->f.n;
    }
    return t;
}

void conv_fft_make(const mica_conv_desc *d, conv_fft_problem *p)
{
    *p = (conv_fft_problem){.roles = mica_conv_roles_of(d)};
    mica_conv_geometry_make(d, &p->g);
    const mica_conv_geometry *g = &p->g;
    p->wgrad = p->roles.wgrad;
    p->dgrad = p->roles.dgrad;
    conv_fft_tensor a = image_tensor(&g->a, g->in), b = image_tensor(&g->b, g->out);
    conv_fft_tensor f = filter_tensor(g, p->dgrad);
    for (int i = 0; i < 2; i++) b.spacing[i] = g->stride[i + 1];
    p->image = p->dgrad ? b : a;
    p->shorter = p->wgrad ? b : f;
    p->result = p->wgrad ? f : p->dgrad ? a : b;
    p->image_arg = p->roles.image;
    p->short_arg = p->roles.other;
    p->result_arg = p->roles.out;
    p->from = p->dgrad ? g->k : g->c;
    p->to = p->dgrad ? g->c : g->k;
    p->depthwise = p->from == 1 && p->to == 1;
    p->sums = mica_dtype_accumulator(mica_conv_tensor(d, p->image_arg)->dtype);
    p->residual_n = g->residual.n;
    p->residual_g = g->residual.g;
    p->residual_c = g->residual.c;
    for (int i = 0; i < 2; i++) p->residual_s[i] = g->residual.s[i + 1];
}

void conv_fft_make_run(const mica_conv_desc *d, conv_fft_problem *p)
{
    conv_fft_make(d, p);
    if (!mica_conv_misses(&p->g)) return;
    for (int i = 0; i < 2; i++) p->image.size[i] = p->shorter.size[i] = 0;
}

/* dense() of numbers that may be too large for it */
static double extent(int64_t count, int64_t spacing)
{
    return (double)count * (double)spacing;
}

mica_status conv_fft_accepts(const mica_conv_desc *d, mica_why *why)
{
    conv_fft_problem p;
    MICA_TRY(conv_refuse_full_epilogue(d, why));
    if (d->x.rank > 4)
        return mica_refuse(why, "x has %d spatial axes, this engine takes 1 and 2", d->x.rank - 2);
    conv_fft_make(d, &p);
    mica_dtype type = mica_conv_tensor(d, p.image_arg)->dtype;
    if (!mica_dtype_is_common(type))
        return mica_refuse(why, "inputs are %s, this engine takes f64, f32, f16 and bf16",
                           mica_dtype_name(type));
    for (int i = 0; i < 2; i++) {
        double reach = extent(p.g.tap[i + 1], p.g.dilation[i + 1]) + (double)llabs(p.g.pad[i + 1]);
        reach += p.dgrad ? (double)p.g.in[i + 1] : extent(p.g.out[i + 1], p.g.stride[i + 1]);
        if (reach > MOST_REACH)
            return mica_refuse(
                why, "positions of pixels and taps reach %.10g, this engine goes to 2^30", reach);
    }
    return MICA_OK;
}

/* ---- tiles ---- */

static conv_fft_axis axis_of(const conv_fft_problem *p, int i, int points)
{
    const mica_conv_geometry *g = &p->g;
    conv_fft_axis x = {.points = points, .taps = dense(g->tap[i + 1], g->dilation[i + 1])};
    x.out = p->dgrad ? g->in[i + 1] : dense(g->out[i + 1], g->stride[i + 1]);
    x.before = p->dgrad ? x.taps - 1 - g->pad[i + 1] : g->pad[i + 1];
    int64_t whole = points - x.taps + 1; /* results of a tile that has all taps */
    if (x.taps <= points / 2 + 1 || (whole > 0 && whole >= x.out)) {
        x.step = whole;
        x.part = x.taps;
        x.parts = 1;
    } else {
        x.step = x.part = points / 2;
        x.parts = conv_ceil_div(x.taps, x.part);
    }
    x.tiles = conv_ceil_div(x.out, x.step);
    x.slots = x.tiles > 0 ? x.tiles + x.parts - 1 : 0;
    return x;
}

void conv_fft_divide(const conv_fft_problem *p, const mica_config *config, conv_fft_division *d)
{
    *d = (conv_fft_division){
        .axis = {axis_of(p, 0, config->knob[KNOB_ROWS]), axis_of(p, 1, config->knob[KNOB_COLS])}};
    const conv_fft_axis *y = &d->axis[0], *x = &d->axis[1];
    d->half = x->points / 2;
    d->bins = y->points * (d->half + 1);
    d->parts = y->parts * x->parts;
    d->slots = y->slots * x->slots;
    d->reach = conv_fft_part_slots(d, d->parts - 1);
    int64_t chunks = config->knob[KNOB_CHUNKS];
    d->each = conv_ceil_div(p->g.n, chunks > 0 ? chunks : 1);
    d->chunks = d->each > 0 ? conv_ceil_div(p->g.n, d->each) : 1;
    /* 2 of each of two spectra and of the way back, and the points of half a row and of a column */
    d->scale = 1.0 / (8.0 * d->half * y->points);
}

double conv_fft_image_values(const conv_fft_problem *p, const conv_fft_division *d)
{
    return (double)d->each * (double)d->slots * (double)(p->g.groups * p->from) * d->bins;
}

double conv_fft_filter_values(const conv_fft_problem *p, const conv_fft_division *d)
{
    return (double)(p->g.groups * p->from) * (double)p->to * (double)d->parts * d->bins;
}

double conv_fft_result_values(const conv_fft_problem *p, const conv_fft_division *d)
{
    return (double)d->each * (double)d->slots * (double)(p->g.groups * p->to) * d->bins;
}

double conv_fft_transform_flops(const conv_fft_problem *p, const conv_fft_division *d)
{
    double values = conv_fft_filter_values(p, d);
    values += (double)d->chunks * (conv_fft_image_values(p, d) + conv_fft_result_values(p, d));
    return 5 * values * log2((double)d->axis[0].points * d->axis[1].points);
}

double conv_fft_product_flops(const conv_fft_problem *p, const conv_fft_division *d)
{
    double pairs = (double)d->chunks * conv_fft_image_values(p, d) * (double)p->to;
    return 8 * pairs * (double)d->parts;
}

/* ---- configs ---- */

/* Whether spectra of images wait in the workspace, so that chunks save some of it. */
static bool keeps_spectra(const conv_fft_problem *p, const conv_fft_division *d,
                          const mica_device_info *device)
{
    return !p->depthwise || (device->cuda && (p->wgrad || d->parts > 1));
}

/* As few chunks as the bound allows, times `finer`. */
static void choose_chunks(const conv_fft_problem *p, const mica_device_info *device, int64_t finer,
                          mica_config *config, conv_fft_division *d)
{
    config->knob[KNOB_CHUNKS] = 1;
    conv_fft_divide(p, config, d);
    if (!keeps_spectra(p, d, device)) return;
    double values = 2 * conv_fft_image_values(p, d) + conv_fft_result_values(p, d);
    double chunks = (double)finer * (floor(values / MOST_CHUNK_VALUES) + 1), most = (double)p->g.n;
    config->knob[KNOB_CHUNKS] = (int32_t)(chunks < most ? chunks : most > 1 ? most : 1);
    conv_fft_divide(p, config, d);
    config->knob[KNOB_CHUNKS] = (int32_t)d->chunks;
}

double conv_fft_predict(const mica_conv_desc *desc, const mica_device_info *device,
                        const mica_config *config, conv_fft_cost *cost)
{
    conv_fft_problem p;
    conv_fft_division d;
    conv_fft_make(desc, &p);
    conv_fft_divide(&p, config, &d);
    return cost(&p, &d, device);
}

int conv_fft_configs(const mica_conv_desc *desc, const mica_device_info *device, int most_columns,
                     int keep, conv_fft_cost *cost, mica_config *configs)
{
    conv_fft_problem p;
    conv_fft_make(desc, &p);
    bool line = p.g.tap[1] == 1;
    double ms[MICA_MAX_CONFIGS];
    int count = 0;
    for (int rows = line ? 1 : LEAST_SIDE; rows <= (line ? 1 : CONV_FFT_MOST_ROWS); rows *= 2)
        for (int cols = line ? LEAST_COLUMNS : LEAST_SIDE;
             cols <= (line ? most_columns : CONV_FFT_MOST_ROWS); cols *= 2) {
            conv_fft_division d;
            mica_config config = {.knob = {[KNOB_ROWS] = rows, [KNOB_COLS] = cols}};
            choose_chunks(&p, device, 1, &config, &d);
            count = mica_config_keep(configs, ms, count, keep, &config, cost(&p, &d, device));
        }
    conv_fft_division d;
    mica_config finer = configs[0];
    choose_chunks(&p, device, FINER, &finer, &d); /* for those who have little memory */
    if (finer.knob[KNOB_CHUNKS] > configs[0].knob[KNOB_CHUNKS]) configs[count++] = finer;
    return count;
}

/* ---- contract ---- */

/* Roundings of a transform are of relative size u, err on either side and add up to some u of its
 * 2-norm, spread evenly or with the values (Higham 2002, chapter 24); so with spectra X and F of n
 * points a result is off by
 *
 *     u / n * sqrt(sum |X|^2 |F|^2) <= u / n * max |F| * sqrt(sum |X|^2)
 *                                   <= u * taps * largest tap * largest pixel
 *
 * from each channel, since |F| is at most the sum of all taps, and sum |X|^2 is n times that of the
 * pixels' squares. That is a sum of all taps, whether they meet pixels or not, against a magnitude
 * sum of those that do. In wgrad the gradient stands for the filter. The roundings a term meets
 * besides those of the sum over channels: two in the sums and two in the twiddle of each radix-4
 * step, of three transforms, which is six for each halving. */
void conv_fft_contract(const mica_conv_desc *desc, const mica_config *config, bool matrix_units,
                       mica_contract *c)
{
    conv_fft_problem p;
    conv_fft_division d;
    conv_fft_make(desc, &p);
    conv_fft_divide(&p, config, &d);
    double grown = 1;
    int64_t sums = p.from * d.parts, rounds = 0;
    if (p.wgrad) sums = p.g.n * d.axis[0].tiles * d.axis[1].tiles;
    for (int i = 0; i < 2; i++) {
        const conv_fft_axis *x = &d.axis[i];
        int64_t terms = p.wgrad ? p.g.out[i + 1] : p.g.tap[i + 1];
        int64_t met = mica_conv_most_met(&p.g, p.roles.kind, i + 1);
        grown *= (double)terms / (double)(met > 1 ? met : 1);
        for (int n = 1; n < x->points; n *= 2) rounds++;
    }
    c->n_seq += 2 * sums - mica_conv_terms(desc);
    c->n_outer = 6 * rounds + 3;
    mica_contract products = *c; /* the child may take three products of tf32 for one */
    if (matrix_units) mica_mma_precise_contract(&products);
    if (mica_contract_phi(&products) > mica_contract_phi(c)) *c = products;
    c->amplify = grown > 1 ? grown : 1;
    c->fractions = true;
}

/* ---- products ---- */

static mica_tensor planes(mica_dtype type, int64_t count, int64_t plane, int64_t rows, int64_t cols)
{
    return (mica_tensor){
        .dtype = type, .rank = 3, .dims = {count, rows, cols}, .strides = {plane, cols, 1}};
}

void conv_fft_gemm(const conv_fft_problem *p, const conv_fft_division *d, mica_gemm_desc *gemm)
{
    int64_t count = d->bins * p->g.groups, slots = d->each * d->slots - d->reach;
    int64_t rows = slots > 0 ? 2 * slots : 0;
    mica_tensor image = planes(p->sums, count, conv_fft_image_plane(p, d), rows, 2 * p->from);
    mica_tensor filter = planes(p->sums, count, conv_fft_filter_plane(p), 2 * p->from, p->to);
    mica_tensor result = planes(p->sums, count, conv_fft_result_plane(p, d), rows, p->to);
    *gemm = (mica_gemm_desc){.a = image, .b = filter, .c = result};
    if (!p->wgrad) return;
    image.dims[1] = 2 * p->from;
    image.dims[2] = rows;
    image.strides[1] = 1;
    image.strides[2] = 2 * p->from;
    *gemm = (mica_gemm_desc){.a = image, .b = result, .c = filter};
}
