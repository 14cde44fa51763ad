/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda_passes": aux, quantised y, amax and statistics of channels on any GPU from sm_80 on.
 * The convolution by any of our engines, then a pass over its sums and one over y, which for images
 * of a few MB come from L2. Cost: that of the engine, and the passes at the speed of memory; 4
 * bytes of workspace per element of y (8 for f64) unless only statistics are asked for. */
#include "ops/conv/conv_passes.h"

enum { BLOCK = 256, LANE_PIXELS = 32, MOST_PARTS = 512, ROUNDS = 4, NEIGHBOURS = 32 };

/* The order is that of records: append only. */
static const mica_engine *const engines[] = {
    &mica_conv_cuda,           &mica_conv_sm80, &mica_conv_sm90,    &mica_conv_slab,
    &mica_conv_cuda_depthwise, &mica_conv_stem, &mica_conv_grouped, NULL};

typedef struct state {
    conv_passes passes;
    mica_kernel *finish, *stats, *sum;
    mica_grid finish_grid, stats_grid, sum_grid;
    conv_finish_args finish_args;
    conv_stats_args stats_args;
    size_t partial_at;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    return conv_passes_accepts(engines, desc, device, why);
}

static int configs(const void *desc, const mica_device_info *device, mica_config *list)
{
    return conv_passes_configs(engines, desc, device, list);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    return conv_passes_predict(engines, desc, device, config);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    conv_passes_contract(engines, desc, config, c);
}

/* ---- build ---- */

static mica_status add_kernel(mica_plan *plan, const char *file, const char *entry,
                              const mica_text *p, mica_kernel **kernel)
{
    mica_kernel_spec spec = {file, entry, p->data, 0};
    return mica_plan_add_kernel(plan, &spec, kernel);
}

static mica_status build_finish(mica_plan *plan, state *s)
{
    const mica_conv_desc *d = plan->desc;
    conv_finish_args *a = &s->finish_args;
    bool aux = mica_tensor_given(&d->aux), amax = mica_tensor_given(&d->amax);
    if (!s->passes.child) return MICA_OK;
    a->layout = s->passes.layout;
    a->epilogue = (mica_epilogue_args){.bias_stride = d->bias.strides[0],
                                       .scale_stride = d->scale.strides[0],
                                       .shift_stride = d->shift.strides[0],
                                       .act_a = d->act_a,
                                       .act_b = d->act_b};
    int64_t blocks = (a->layout.count + BLOCK - 1) / BLOCK, most = 16 * plan->device.units;
    s->finish_grid =
        (mica_grid){.grid = {(unsigned)(blocks < most ? blocks : most)}, .block = {BLOCK}};
    char text[4096];
    mica_text p = {text, sizeof text, 0};
    mica_epilogue e = mica_conv_epilogue(d);
    mica_prologue_epilogue(&p, &e);
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_int(&p, "AUX", aux);
    mica_prologue_int(&p, "AMAX", amax);
    mica_prologue_int(&p, "SCALE_Y", mica_tensor_given(&d->scale_y));
    mica_prologue_int(&p, "ACT_STEP", mica_epilogue_act(d->epilogue));
    mica_prologue_type(&p, "sum_t", s->passes.sums);
    mica_prologue_type(&p, "y_t", d->y.dtype);
    mica_prologue_type(&p, "aux_t", aux ? d->aux.dtype : MICA_F32);
    mica_prologue_type(&p, "amax_t", amax ? d->amax.dtype : MICA_F32);
    /* integer sums are exact in f64 */
    mica_prologue_type(&p, "fin_t", s->passes.sums == MICA_F32 ? MICA_F32 : MICA_F64);
    return add_kernel(plan, "ops/conv/conv_finish.cu", "conv_finish", &p, &s->finish);
}

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

static mica_status build_stats(mica_plan *plan, state *s)
{
    const mica_conv_desc *d = plan->desc;
    conv_stats_args *a = &s->stats_args;
    mica_tensor channel = conv_passes_channel(d);
    mica_layout_make(&a->layout, (const mica_tensor *[]){&channel}, 1);
    a->channels = d->y.dims[1];
    a->channel_stride = d->y.strides[1];
    a->sum_stride = d->stat_sum.strides[0];
    a->square_stride = d->stat_square.strides[0];
    if (a->channels == 0) return MICA_OK;
    int width = d->y.strides[1] == 1 ? NEIGHBOURS : 1;
    int64_t blocks = (a->channels + width - 1) / width;
    int64_t sum_blocks = (a->channels + NEIGHBOURS - 1) / NEIGHBOURS;
    if (blocks > INT32_MAX)
        return mica_fail(MICA_UNSUPPORTED, "%lld channels in blocks of %d: a grid holds 2147483647",
                         a->channels, width);
    split_pixels(a, blocks, BLOCK / width, plan->device.units);
    MICA_TRY(mica_book(plan, "statistics", 16 * (size_t)(a->parts * a->channels), &s->partial_at));
    s->stats_grid = (mica_grid){.grid = {(unsigned)blocks, (unsigned)a->parts}, .block = {BLOCK}};
    s->sum_grid = (mica_grid){.grid = {(unsigned)sum_blocks}, .block = {BLOCK}};
    char text[1024];
    mica_text p = {text, sizeof text, 0};
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_int(&p, "CHANNELS", width);
    mica_prologue_type(&p, "y_t", d->y.dtype);
    if (a->parts > 0)
        MICA_TRY(add_kernel(plan, "ops/conv/conv_stats.cu", "conv_stats", &p, &s->stats));
    bool sum = mica_tensor_given(&d->stat_sum), square = mica_tensor_given(&d->stat_square);
    p = (mica_text){text, sizeof text, 0};
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_int(&p, "CHANNELS", NEIGHBOURS);
    mica_prologue_int(&p, "SUM", sum);
    mica_prologue_int(&p, "SQUARE", square);
    mica_prologue_type(&p, "stat_t", sum ? d->stat_sum.dtype : d->stat_square.dtype);
    return add_kernel(plan, "ops/conv/conv_stats_sum.cu", "conv_stats_sum", &p, &s->sum);
}

static mica_status build(mica_plan *plan)
{
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    MICA_TRY(conv_passes_build(plan, engines, &s->passes));
    if (s->passes.finish) MICA_TRY(build_finish(plan, s));
    return s->passes.stats ? build_stats(plan, s) : MICA_OK;
}

/* ---- run ---- */

static mica_status run_finish(const mica_plan *plan, const state *s, const mica_run *r)
{
    const mica_tensor *amax = &((const mica_conv_desc *)plan->desc)->amax;
    if (mica_tensor_given(amax))
        MICA_TRY(mica_cuda_memset(plan->cuda, r->args[MICA_CONV_AMAX], 0,
                                  mica_dtype_bits(amax->dtype) / 8, r->stream));
    if (!s->finish) return MICA_OK;
    conv_finish_args a = s->finish_args;
    a.sums = mica_at(r, s->passes.sums_at);
    a.y = r->args[MICA_CONV_Y];
    a.aux = r->args[MICA_CONV_AUX];
    a.amax = r->args[MICA_CONV_AMAX];
    a.scale_y = r->args[MICA_CONV_SCALE_Y];
    a.alpha = mica_run_scalar(plan, r, MICA_CONV_ALPHA);
    a.beta = mica_run_scalar(plan, r, MICA_CONV_BETA);
    mica_epilogue_bind(&a.epilogue, r->args, MICA_CONV_BIAS);
    return mica_kernel_launch(s->finish, &s->finish_grid, r->stream, &a);
}

static mica_status run_stats(const state *s, const mica_run *r)
{
    if (!s->sum) return MICA_OK;
    conv_stats_args a = s->stats_args;
    a.y = r->args[MICA_CONV_Y];
    a.partial = mica_at(r, s->partial_at);
    a.sum = r->args[MICA_CONV_STAT_SUM];
    a.square = r->args[MICA_CONV_STAT_SQUARE];
    if (s->stats) MICA_TRY(mica_kernel_launch(s->stats, &s->stats_grid, r->stream, &a));
    return mica_kernel_launch(s->sum, &s->sum_grid, r->stream, &a);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    MICA_TRY(conv_passes_run(&s->passes, r));
    if (s->passes.finish) MICA_TRY(run_finish(plan, s, r));
    return s->passes.stats ? run_stats(s, r) : MICA_OK;
}

const mica_engine mica_conv_cuda_passes = {.name = "cuda_passes",
                                           .cuda = true,
                                           .knobs = conv_passes_knobs,
                                           .accepts = accepts,
                                           .configs = configs,
                                           .predict = predict,
                                           .contract = contract,
                                           .build = build,
                                           .run = run};
