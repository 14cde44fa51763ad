/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu_passes": aux, quantised y, amax and statistics of channels on the CPU. The
 * convolution by the engine "cpu" or oneDNN's, then a pass over its sums and one over y. Cost: that
 * of the engine, and the passes at the speed of memory; 4 bytes of workspace per element of y (8
 * for f64) unless only statistics are asked for. */
#include "cpu/cpu.h"
#include "ops/conv/lowered/passes.h"
#include "ops/convert/cpu/convert.h"
#include "ops/epilogue/cpu/epilogue.h"

/* The order is that of records: append only. */
static const mica_engine *const engines[] = {&mica_conv_cpu, &mica_conv_onednn, NULL};

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

static mica_status build(mica_plan *plan)
{
    conv_passes *p;
    MICA_TRY(mica_plan_state(plan, sizeof *p, &p));
    return conv_passes_build(plan, engines, p);
}

/* ---- the epilogue ---- */

typedef struct job {
    const mica_conv_desc *d;
    const conv_passes *p;
    const mica_run *run;
    const void *sums;
    double alpha, beta;
    mica_amax *amax;
} job;

/* Offsets in the layout's tensors, and how far they go from element to element. */
typedef struct line {
    int64_t at[CONV_PASS_CHANNEL + 1], step[CONV_PASS_CHANNEL + 1];
    int count;
} line;

static void apply_step(const job *j, const line *l, int step, double *v)
{
    const mica_conv_desc *d = j->d;
    void *const *args = j->run->args;
    int64_t channel = l->at[CONV_PASS_CHANNEL], next = l->step[CONV_PASS_CHANNEL];
    switch (step) {
    case MICA_STEP_BIAS:
        mica_epilogue_add(&d->bias, args[MICA_CONV_BIAS], channel * d->bias.strides[0],
                          next * d->bias.strides[0], l->count, v);
        break;
    case MICA_STEP_SCALE:
        mica_epilogue_scale(&d->scale, args[MICA_CONV_SCALE], channel * d->scale.strides[0],
                            next * d->scale.strides[0], l->count, v);
        break;
    case MICA_STEP_SHIFT:
        mica_epilogue_add(&d->shift, args[MICA_CONV_SHIFT], channel * d->shift.strides[0],
                          next * d->shift.strides[0], l->count, v);
        break;
    case MICA_STEP_RESIDUAL:
        mica_epilogue_add(&d->residual, args[MICA_CONV_RESIDUAL], l->at[CONV_PASS_RESIDUAL],
                          l->step[CONV_PASS_RESIDUAL], l->count, v);
        break;
    default:
        mica_epilogue_activate((mica_act)(step - MICA_STEP_ACT), d->act_a, d->act_b,
                               j->p->sums == MICA_F32, l->count, v);
    }
}

static void finish_line(const job *j, const line *l)
{
    const mica_conv_desc *d = j->d;
    MICA_ALIGNED double v[MICA_EPILOGUE_RUN], old[MICA_EPILOGUE_RUN];
    int64_t y = l->at[CONV_PASS_Y], y_step = l->step[CONV_PASS_Y];
    int act = mica_epilogue_act(d->epilogue), steps = mica_epilogue_count(d->epilogue);
    mica_to_f64(j->p->sums, j->sums, l->at[CONV_PASS_SUMS], l->step[CONV_PASS_SUMS], v, l->count);
    for (int i = 0; i < l->count; i++) v[i] *= j->alpha;
    if (j->beta != 0) {
        mica_to_f64(d->y.dtype, j->run->args[MICA_CONV_Y], y, y_step, old, l->count);
        for (int i = 0; i < l->count; i++) old[i] *= j->beta;
        for (int i = 0; i < l->count; i++) v[i] += old[i];
    }
    for (int i = 0; i < act; i++) apply_step(j, l, d->epilogue[i], v);
    if (mica_tensor_given(&d->aux))
        mica_from_f64(d->aux.dtype, j->run->args[MICA_CONV_AUX], l->at[CONV_PASS_AUX],
                      l->step[CONV_PASS_AUX], v, l->count);
    for (int i = act; i < steps; i++) apply_step(j, l, d->epilogue[i], v);
    if (j->amax) mica_amax_keep(j->amax, l->count, v);
    mica_epilogue_quantise(d->y.dtype, j->run->args[MICA_CONV_SCALE_Y], l->count, v);
    mica_from_f64(d->y.dtype, j->run->args[MICA_CONV_Y], y, y_step, v, l->count);
}

/* Piece `index` of the innermost lines of a layout. */
static line line_of(const mica_layout *l, int tensors, int64_t index)
{
    line r = {.count = 1};
    if (l->rank == 0) return r;
    int last = l->rank - 1;
    int64_t pieces = (l->dims[last] + MICA_EPILOGUE_RUN - 1) / MICA_EPILOGUE_RUN;
    int64_t start = index % pieces * MICA_EPILOGUE_RUN, left = l->dims[last] - start;
    r.count = left < MICA_EPILOGUE_RUN ? (int)left : MICA_EPILOGUE_RUN;
    for (int t = 0; t < tensors; t++) {
        r.step[t] = l->strides[t][last];
        r.at[t] = start * r.step[t];
    }
    index /= pieces;
    for (int i = last - 1; i >= 0; i--) {
        for (int t = 0; t < tensors; t++) r.at[t] += index % l->dims[i] * l->strides[t][i];
        index /= l->dims[i];
    }
    return r;
}

static int64_t lines_of(const mica_layout *l)
{
    if (l->rank == 0 || l->count == 0) return l->count;
    int64_t len = l->dims[l->rank - 1];
    return l->count / len * ((len + MICA_EPILOGUE_RUN - 1) / MICA_EPILOGUE_RUN);
}

static void finish_all(const job *j)
{
    const mica_layout *l = &j->p->layout;
    int64_t lines = lines_of(l);
    int threads = mica_cpu_threads_for(16.0 * (double)l->count);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < lines; i++) {
        line at = line_of(l, CONV_PASS_CHANNEL + 1, i);
        finish_line(j, &at);
    }
}

static mica_status finish(const mica_plan *plan, const conv_passes *p, const mica_run *r)
{
    const mica_conv_desc *d = plan->desc;
    mica_amax amax = 0;
    job j = {.d = d,
             .p = p,
             .run = r,
             .sums = mica_at(r, p->sums_at),
             .alpha = mica_run_scalar(plan, r, MICA_CONV_ALPHA),
             .beta = mica_run_scalar(plan, r, MICA_CONV_BETA)};
    if (mica_tensor_given(&d->amax)) j.amax = &amax;
    finish_all(&j);
    if (j.amax) mica_amax_store(&amax, d->amax.dtype, r->args[MICA_CONV_AMAX]);
    return MICA_OK;
}

/* ---- statistics ---- */

enum { CHANNELS = 16 };

typedef struct stats {
    double sum[CHANNELS], square[CHANNELS];
} stats;

static void add(stats *s, int channel, double v)
{
    s->sum[channel] += v;
    s->square[channel] += v * v;
}

/* `width` channels from `first` on, neighbours in memory if there are more than one. */
static stats add_channels(const mica_tensor *y, const void *data, const mica_layout *l,
                          int64_t first, int width)
{
    stats s = {{0}, {0}};
    MICA_ALIGNED double v[MICA_EPILOGUE_RUN];
    int64_t lines = lines_of(l);
    for (int64_t i = 0; i < lines; i++) {
        line at = line_of(l, 1, i);
        int64_t from = at.at[0] + first * y->strides[1];
        if (width == 1) {
            mica_to_f64(y->dtype, data, from, at.step[0], v, at.count);
            for (int k = 0; k < at.count; k++) add(&s, 0, v[k]);
            continue;
        }
        for (int k = 0; k < at.count; k++) {
            mica_to_f64(y->dtype, data, from + k * at.step[0], 1, v, width);
            for (int c = 0; c < width; c++) add(&s, c, v[c]);
        }
    }
    return s;
}

static void store(const mica_tensor *t, void *data, int64_t first, int width, const double *v)
{
    if (mica_tensor_given(t))
        mica_from_f64(t->dtype, data, first * t->strides[0], t->strides[0], v, width);
}

static void make_stats(const mica_conv_desc *d, const mica_run *r)
{
    mica_tensor channel = conv_passes_channel(d);
    mica_layout l;
    mica_layout_make(&l, (const mica_tensor *[]){&channel}, 1);
    int64_t count = d->y.dims[1];
    int width = d->y.strides[1] == 1 ? CHANNELS : 1;
    int threads = mica_cpu_threads_for(8.0 * (double)mica_tensor_count(&d->y));
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t k = 0; k < count; k += width) {
        int n = count - k < width ? (int)(count - k) : width;
        stats s = add_channels(&d->y, r->args[MICA_CONV_Y], &l, k, n);
        store(&d->stat_sum, r->args[MICA_CONV_STAT_SUM], k, n, s.sum);
        store(&d->stat_square, r->args[MICA_CONV_STAT_SQUARE], k, n, s.square);
    }
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const conv_passes *p = plan->state;
    MICA_TRY(conv_passes_run(p, r));
    if (p->finish) MICA_TRY(finish(plan, p, r));
    if (p->stats) make_stats(plan->desc, r);
    return MICA_OK;
}

const mica_engine mica_conv_cpu_passes = {.name = "cpu_passes",
                                          .knobs = conv_passes_knobs,
                                          .accepts = accepts,
                                          .configs = configs,
                                          .predict = predict,
                                          .contract = contract,
                                          .build = build,
                                          .run = run};
