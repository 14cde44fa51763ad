/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda_passes": aux, quantised y, amax and statistics of channels on any GPU from sm_80 on;
 * statistics alone where no engine forms them as it stores y.
 * The convolution by any of our engines, then a pass over its sums and one over y, which for images
 * of a few MB come from L2. Cost: that of the engine, and the passes at the speed of memory; 4
 * bytes of workspace per element of y (8 for f64) unless only statistics are asked for. */
#include "ops/conv/lowered/passes.h"
#include "ops/conv/lowered/stats.h"

enum { BLOCK = 256 };

/* The order is that of records: append only. */
static const mica_engine *const engines[] = {&mica_conv_cuda,           &mica_conv_sm80,
                                             &mica_conv_sm90,           &mica_conv_slab,
                                             &mica_conv_cuda_depthwise, &mica_conv_stem,
                                             &mica_conv_grouped,        &mica_conv_sm80_f32,
                                             &mica_conv_depthwise_mma,  NULL};

typedef struct state {
    conv_passes passes;
    mica_kernel *finish;
    mica_grid finish_grid;
    conv_epilogue_pass_args finish_args;
    conv_stats stats;
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

static mica_status build_finish(mica_plan *plan, state *s)
{
    const mica_conv_desc *d = plan->desc;
    conv_epilogue_pass_args *a = &s->finish_args;
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
    mica_kernel_spec spec = {"ops/conv/lowered/epilogue_pass.cu", "conv_epilogue_pass", text, 0};
    return mica_plan_add_kernel(plan, &spec, &s->finish);
}

static mica_status build(mica_plan *plan)
{
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    MICA_TRY(conv_passes_build(plan, engines, &s->passes));
    if (s->passes.finish) MICA_TRY(build_finish(plan, s));
    return s->passes.stats ? conv_stats_build(plan, &s->stats) : MICA_OK;
}

/* ---- run ---- */

static mica_status run_finish(const mica_plan *plan, const state *s, const mica_run *r)
{
    const mica_tensor *amax = &((const mica_conv_desc *)plan->desc)->amax;
    if (mica_tensor_given(amax))
        MICA_TRY(mica_cuda_memset(plan->cuda, r->args[MICA_CONV_AMAX], 0,
                                  mica_dtype_bits(amax->dtype) / 8, r->stream));
    if (!s->finish) return MICA_OK;
    conv_epilogue_pass_args a = s->finish_args;
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

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    MICA_TRY(conv_passes_run(&s->passes, r));
    if (s->passes.finish) MICA_TRY(run_finish(plan, s, r));
    return conv_stats_run(&s->stats, r);
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
