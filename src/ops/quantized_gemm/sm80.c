/* SPDX-License-Identifier: Apache-2.0
 * Engine "sm80" of quantized_gemm: x of f16 or bf16 by codes of 4 or 8 bits on the tensor cores,
 * with mma.sync. Codes are multiplied as they are, exact in 16 bits, and sums scaled in f32:
 * nothing is rounded that f32 would not round. Rows of w and x side by side, K of whole 64, groups
 * too. Of groups, tiles do not cross from one to the next. Cost: the bytes of w, or 2MNK at about
 * half the rate of mma.sync. K is not split: narrow layers leave multiprocessors idle. */
#include "ops/quantized_gemm/quantized_gemm.h"
#include "ops/quantized_gemm/sm80_args.h"
#include "ops/access/access.h"
#include "ops/mma/mma_tile.h"

#include <math.h>

enum { KNOB_ROWS, KNOB_COLS };
static const char *const knobs[] = {"rows", "cols", NULL};

enum { DEPTH = 64, PIECE = 16, WARPS = 4, STAGES = 4, KEPT = 2 };

typedef struct state {
    mica_qgemm g;
    mica_kernel *kernel;
    mica_grid grid;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    mica_qgemm g;
    (void)device;
    mica_qgemm_make(desc, NULL, &g);
    const mica_qgemm_args *a = &g.a;
    if (g.blocks)
        return mica_refuse(why, "w holds blocks of %s, these kernels take codes", g.blocks->name);
    if (g.x == MICA_F32) return mica_refuse(why, "x is f32, these kernels take f16 and bf16");
    if (a->m == 0 || a->n == 0 || a->k == 0)
        return mica_refuse(why, "%lld x %lld x %lld: there is no product", a->m, a->n, a->k);
    if (a->k % DEPTH) return mica_refuse(why, "K is %lld, no multiple of %d", a->k, DEPTH);
    if (a->group % DEPTH && a->group < a->k)
        return mica_refuse(why, "group is %lld, no multiple of %d", a->group, DEPTH);
    if (g.grouped && a->ends.count == 0) return mica_refuse(why, "there are no groups");
    if (g.has_zeros && g.zeros != g.w)
        return mica_refuse(why, "zeros is %s, these kernels take those of w's type",
                           mica_dtype_name(g.zeros));
    if (!mica_qgemm_rows_whole(&g, 1) || a->x_k != 1)
        return mica_refuse(why, "rows of w or x do not lie side by side in whole bytes");
    return MICA_OK;
}

/* ---- configs and model ---- */

static double tiles_of(const mica_qgemm *g, const mica_config *c)
{
    const int rows = 8 * c->knob[KNOB_COLS], columns = 16 * WARPS * c->knob[KNOB_ROWS];
    return mica_qgemm_tiles(g, rows, columns);
}

/* A tile's step costs its products and the decoding of its codes; in whole rounds of blocks. */
static double model(const mica_quantized_gemm_desc *d, const mica_qgemm *g,
                    const mica_device_info *device, const mica_config *c)
{
    const double start_ms = 4e-3, resident = 2, decoding = 0.7;
    const double rows = 16.0 * WARPS * c->knob[KNOB_ROWS], cols = 8.0 * c->knob[KNOB_COLS];
    const double rounds = ceil(tiles_of(g, c) / (resident * device->units));
    const double products =
        rows * (cols + 16 * decoding) * 2 * (double)g->a.k * resident * device->units;
    const double compute = rounds * products / (0.4 * device->bf16_tflops * 1e9);
    const double memory =
        mica_op_bytes(&mica_op_quantized_gemm, d) / (0.55 * device->copy_gbps * 1e6);
    return start_ms + (memory > compute ? memory : compute);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    mica_qgemm g;
    mica_qgemm_make(desc, NULL, &g);
    return model(desc, &g, device, config);
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    mica_qgemm g;
    double ms[KEPT];
    int count = 0;
    mica_qgemm_make(desc, NULL, &g);
    for (int rows = 2; rows >= 1; rows--)
        for (int cols = 8; cols >= 1; cols /= 2) {
            const mica_config c = {{rows, cols}};
            if (cols > 1 && 4 * cols >= mica_qgemm_expected(&g)) continue;
            if (rows * cols > 8) continue; /* sums would not stay in registers */
            count = mica_config_keep(out, ms, count, KEPT, &c, model(desc, &g, device, &c));
        }
    return count;
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)config;
    mica_mma_contract(((const mica_quantized_gemm_desc *)desc)->x.dtype, c);
}

/* ---- plans ---- */

static mica_status build(mica_plan *plan)
{
    char buffer[2048] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_qgemm_make(plan->desc, NULL, &s->g);
    s->grid = mica_qgemm_grid(&s->g, 8 * plan->config.knob[KNOB_COLS],
                              16 * WARPS * plan->config.knob[KNOB_ROWS], &plan->device, 32 * WARPS);
    mica_qgemm_prologue(&s->g, PIECE, &p);
    mica_prologue_int(&p, "ROWS", plan->config.knob[KNOB_ROWS]);
    mica_prologue_int(&p, "COLS", plan->config.knob[KNOB_COLS]);
    mica_prologue_int(&p, "WARPS", WARPS);
    mica_prologue_int(&p, "STAGES", STAGES);
    mica_kernel_spec spec = {"ops/quantized_gemm/sm80.cu", "quantized_sm80", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    mica_qgemm_sm80_args a = {.g = s->g.a};
    mica_qgemm_bind(plan, run, &a.g);
    const int bytes = PIECE * mica_dtype_bits(s->g.w) / 8;
    a.x_aligned = (a.g.m < 2 || a.g.x_m % 8 == 0) && mica_access_starts(a.g.x, 16);
    a.w_aligned = mica_qgemm_rows_whole(&s->g, bytes) && mica_access_starts(a.g.w, bytes);
    return mica_kernel_launch(s->kernel, &s->grid, run->stream, &a);
}

const mica_engine mica_quantized_gemm_sm80 = {.name = "sm80",
                                              .cuda = true,
                                              .knobs = knobs,
                                              .accepts = accepts,
                                              .configs = configs,
                                              .predict = predict,
                                              .contract = contract,
                                              .build = build,
                                              .run = run};
