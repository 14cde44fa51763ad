/* SPDX-License-Identifier: Apache-2.0
 * grouped_gemm on any NVIDIA GPU from sm_80 on: every type, any strides, no workspace, IEEE
 * arithmetic, in the tiles of gemm's engine "cuda". Good for what the engines on tensor cores
 * refuse. Cost: gemm's, and a tile that is not full for each group. */
#include "ops/gemm/cuda/gemm_cuda.h"
#include "ops/grouped_gemm/grouped_gemm_shape.h"

typedef struct state {
    grouped_args args; /* all but pointers and scalars */
    mica_kernel *kernel;
    mica_grid grid;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc;
    if (device->arch >= 80) return MICA_OK;
    return mica_refuse(why, "the device is sm_%d, kernels start at sm_80", device->arch);
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    (void)device;
    grouped g;
    grouped_make(desc, &g);
    int64_t rows = g.form == GROUPED_TERMS ? g.item.c.dims[0] : (int64_t)g.expected;
    return gemm_cuda_configs(rows, g.item.c.dims[1], out);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    grouped g;
    grouped_make(desc, &g);
    double flops, bytes;
    mica_op_grouped_gemm.cost(desc, &flops, &bytes);
    double tiles =
        grouped_tiles(&g, c->knob[KNOB_TILE_M], c->knob[KNOB_TILE_N], c->knob[KNOB_TILE_M]);
    double k = g.form == GROUPED_TERMS ? g.expected : (double)g.item.a.dims[1];
    return gemm_cuda_predict(&g.item, tiles, k, bytes, device, c);
}

static mica_status build(mica_plan *plan)
{
    state *s;
    grouped g;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    grouped_make(plan->desc, &g);
    grouped_args_fill(&g, &s->args);
    if (s->args.gemm.shape.batches == 0 || g.count == 0) return MICA_OK;
    /* As many blocks as are resident, and some more: none needs to know how many tiles there are.
     */
    s->grid = gemm_cuda_grid(4LL * plan->device.units, &plan->config);
    char text[4096];
    mica_text prologue = {text, sizeof text, 0};
    gemm_cuda_prologue(&g.item, &s->args.gemm.shape, &plan->config, &prologue);
    grouped_prologue(&g, &prologue);
    return mica_plan_add_kernel(
        plan,
        &(mica_kernel_spec){.file = "ops/grouped_gemm/cuda/grouped_gemm_cuda.cu",
                            .entry = "grouped_cuda",
                            .prologue = text},
        &s->kernel);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    if (!s->kernel) return MICA_OK;
    grouped_args a = s->args;
    grouped_args_bind(plan, r, &a);
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &a);
}

const mica_engine grouped_cuda = {.name = "cuda",
                                  .cuda = true,
                                  .knobs = gemm_cuda_knobs,
                                  .accepts = accepts,
                                  .configs = configs,
                                  .predict = predict,
                                  .build = build,
                                  .run = run};
