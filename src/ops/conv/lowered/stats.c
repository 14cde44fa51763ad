/* SPDX-License-Identifier: Apache-2.0
 * Statistics of channels on a GPU, for the engine of passes and for those that form them with y. */
#include "ops/conv/lowered/stats.h"
#include "ops/conv/lowered/passes.h"

#include <math.h>

enum { BLOCK = 256, LANE_PIXELS = 32, MOST_PARTS = 512, ROUNDS = 4, NEIGHBOURS = 32 };

/* Parts of the pixels, so that all multiprocessors have blocks and each thread has some pixels. */
static void split_pixels(conv_stats_args *a, int64_t column_blocks, int lanes, int units)
{
    int64_t least = (int64_t)lanes * LANE_PIXELS, parts = ROUNDS * units / column_blocks;
    if (parts > a->layout.count / least) parts = a->layout.count / least;
    if (parts > MOST_PARTS) parts = MOST_PARTS;
    if (parts < 1) parts = 1;
    a->each = (a->layout.count + parts - 1) / parts;
    a->parts = a->layout.count ? (a->layout.count + a->each - 1) / a->each : 0;
}

static mica_status add_pass(mica_plan *plan, conv_stats *s, int64_t blocks, int width)
{
    const mica_conv_desc *d = plan->desc;
    char text[1024];
    mica_text p = {text, sizeof text, 0};
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_int(&p, "CHANNELS", width);
    mica_prologue_type(&p, "y_t", d->y.dtype);
    s->pass_grid =
        (mica_grid){.grid = {(unsigned)blocks, (unsigned)s->args.parts}, .block = {BLOCK}};
    mica_kernel_spec spec = {"ops/conv/lowered/stats.cu", "conv_stats", text, 0};
    return mica_plan_add_kernel(plan, &spec, &s->pass);
}

static mica_status add_sum(mica_plan *plan, conv_stats *s)
{
    const mica_conv_desc *d = plan->desc;
    bool sum = mica_tensor_given(&d->stat_sum), square = mica_tensor_given(&d->stat_square);
    int64_t blocks = (s->args.channels + NEIGHBOURS - 1) / NEIGHBOURS;
    char text[1024];
    mica_text p = {text, sizeof text, 0};
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_int(&p, "CHANNELS", NEIGHBOURS);
    mica_prologue_int(&p, "SUM", sum);
    mica_prologue_int(&p, "SQUARE", square);
    mica_prologue_type(&p, "stat_t", sum ? d->stat_sum.dtype : d->stat_square.dtype);
    s->sum_grid = (mica_grid){.grid = {(unsigned)blocks}, .block = {BLOCK}};
    mica_kernel_spec spec = {"ops/conv/lowered/stats_sum.cu", "conv_stats_sum", text, 0};
    return mica_plan_add_kernel(plan, &spec, &s->sum);
}

static mica_status add_partial(mica_plan *plan, conv_stats *s)
{
    size_t count = (size_t)(s->args.parts * s->args.channels);
    return mica_book(plan, "statistics", 2 * sizeof(double) * count, &s->partial_at);
}

static void fill_args(const mica_conv_desc *d, conv_stats_args *a)
{
    a->channels = d->y.dims[1];
    a->channel_stride = d->y.strides[1];
    a->sum_stride = d->stat_sum.strides[0];
    a->square_stride = d->stat_square.strides[0];
}

mica_status conv_stats_build(mica_plan *plan, conv_stats *s)
{
    const mica_conv_desc *d = plan->desc;
    conv_stats_args *a = &s->args;
    mica_tensor channel = conv_passes_channel(d);
    mica_layout_make(&a->layout, (const mica_tensor *[]){&channel}, 1);
    fill_args(d, a);
    if (a->channels == 0) return MICA_OK;
    int width = d->y.strides[1] == 1 ? NEIGHBOURS : 1;
    int64_t blocks = (a->channels + width - 1) / width;
    if (blocks > INT32_MAX)
        return mica_fail(MICA_UNSUPPORTED, "%lld channels in blocks of %d: a grid holds 2147483647",
                         a->channels, width);
    split_pixels(a, blocks, BLOCK / width, plan->device.units);
    MICA_TRY(add_partial(plan, s));
    if (a->parts > 0) MICA_TRY(add_pass(plan, s, blocks, width));
    return add_sum(plan, s);
}

mica_status conv_stats_build_parts(mica_plan *plan, int64_t parts, conv_stats *s)
{
    fill_args(plan->desc, &s->args);
    s->args.parts = parts;
    MICA_TRY(add_partial(plan, s));
    return add_sum(plan, s);
}

double *conv_stats_partial(const conv_stats *s, const mica_run *r)
{
    return mica_at(r, s->partial_at);
}

mica_status conv_stats_run(const conv_stats *s, const mica_run *r)
{
    if (!s->sum) return MICA_OK;
    conv_stats_args a = s->args;
    a.y = r->args[MICA_CONV_Y];
    a.partial = conv_stats_partial(s, r);
    a.sum = r->args[MICA_CONV_STAT_SUM];
    a.square = r->args[MICA_CONV_STAT_SQUARE];
    if (s->pass) MICA_TRY(mica_kernel_launch(s->pass, &s->pass_grid, r->stream, &a));
    return mica_kernel_launch(s->sum, &s->sum_grid, r->stream, &a);
}

mica_conv_desc conv_without_stats(const mica_conv_desc *d)
{
    const mica_tensor none = {0};
    mica_conv_desc plain = *d;
    plain.stat_sum = plain.stat_square = none;
    return plain;
}

/* slack_of in conv_ref.c has the other side. Few terms stay far below what their number allows. */
bool conv_stats_chain_ok(double each, double count)
{
    return each <= fmax(80, 4 * sqrt(count));
}

mica_status conv_generic_build(mica_plan *plan, conv_generic *g)
{
    const mica_conv_desc *d = plan->desc;
    mica_conv_desc plain = conv_without_stats(d);
    if (conv_has_batch_stats(d)) MICA_TRY(conv_stats_build(plan, &g->stats));
    return mica_plan_child_create(plan, "conv", &plain, sizeof plain, "cuda", &g->plan, &g->at);
}

mica_status conv_generic_run(const conv_generic *g, const mica_run *r)
{
    mica_run child = *r;
    child.workspace = mica_at(r, g->at);
    MICA_TRY(mica_plan_child_run(g->plan, &child));
    return conv_stats_run(&g->stats, r);
}
