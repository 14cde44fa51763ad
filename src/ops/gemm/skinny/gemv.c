/* SPDX-License-Identifier: Apache-2.0
 * gemm where c has one to four rows or columns and both operands lie along K (decoding with weights
 * as they are stored, matrix times vector): f32, bf16, f16, 8-bit floats and integers, on any GPU
 * from sm_80 on (8-bit floats from sm_89); no workspace. Cost: the wide operand at the bandwidth of
 * memory, and the time that the last blocks are alone. */
#include "ops/gemm/skinny/skinny.h"

#include <math.h>

enum { KNOB_LINES, KNOB_CHUNKS, KNOB_SHARE };
static const char *const knobs[] = {"lines", "chunks", "share", NULL};

enum { FEW = 4, WARPS = 8, KEPT = 4 };

static mica_status plan_geometry(const mica_gemm_desc *d, const mica_device_info *device,
                                 skinny_geometry *g, mica_why *why)
{
    MICA_TRY(skinny_geometry_make(d, device, g, why));
    if (g->few.lines > FEW)
        return mica_refuse(why, "c is %lld x %lld, one of them must be at most %d", g->shape.m,
                           g->shape.n, FEW);
    if (!g->k_major || !g->few_k_major)
        return mica_refuse(why, "%s does not lie along K", g->k_major ? g->few.name : g->wide.name);
    return MICA_OK;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    skinny_geometry g;
    MICA_TRY(gemm_refuse_full_epilogue(desc, why));
    return plan_geometry(desc, device, &g, why);
}

/* ---- configs and model ---- */

static double tiles_of(const skinny_geometry *g, const mica_config *c)
{
    long long lines = (long long)c->knob[KNOB_LINES] * (WARPS / c->knob[KNOB_SHARE]);
    return (double)((g->wide.lines + lines - 1) / lines) * (double)g->shape.batches;
}

/* Lines of the other operand that a block has room for. */
static int few_held(const skinny_geometry *g)
{
    return g->few.lines > 2 ? FEW : (int)g->few.lines;
}

/* Memory's bandwidth, an eighth more for each line beyond the first of the few (a multiply-add for
 * each element), and a tenth of the time of a round of blocks until the last one ends. No less than
 * the latency of a warp's steps through K, one after the other. Fitted to an H200. */
static double model(const mica_gemm_desc *d, const skinny_geometry *g,
                    const mica_device_info *device, const mica_config *c)
{
    const double start_ms = 3e-3, reading = 1.09, several = 0.12, step_ms = 0.5e-3;
    const double shifted_ms = 0.6e-3; /* of a step, for each line of the few and one more */
    double memory = mica_op_bytes(&mica_op_gemm, d) / (reading * device->copy_gbps * 1e6);
    double resident = few_held(g) == 1 && skinny_vector(g) < 16 && !g->shifted ? 3 : 2;
    double rounds = tiles_of(g, c) / (resident * device->units);
    memory *= 1 + several * (few_held(g) - 1);
    memory *= 1 + 0.1 / (rounds < 1 ? 1 : rounds);
    double share = 32.0 * skinny_vector(g) * c->knob[KNOB_CHUNKS] * c->knob[KNOB_SHARE];
    double steps = ceil((double)g->shape.k / share) * ceil(rounds);
    double step = g->shifted ? shifted_ms * (few_held(g) + 1) : step_ms;
    return start_ms + fmax(memory, step * steps);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    skinny_geometry g;
    mica_why why;
    if (plan_geometry(desc, device, &g, &why) != MICA_OK) return 0;
    return model(desc, &g, device, c);
}

/* Warps that share a line have a step of K each. */
static bool suits(const skinny_geometry *g, const mica_config *c)
{
    long long step = 32LL * skinny_vector(g) * c->knob[KNOB_CHUNKS];
    return c->knob[KNOB_SHARE] == 1 || g->shape.k >= step * c->knob[KNOB_SHARE];
}

/* The best few of the model: others would only be compiled and timed for nothing. A lane has 128
 * bytes in flight: half of what is shifted are neighbours'. */
static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    skinny_geometry g;
    mica_why why;
    if (plan_geometry(desc, device, &g, &why) != MICA_OK) return 0;
    double ms[KEPT];
    int count = 0, reads = g.shifted ? 4 : 8;
    for (int lines = few_held(&g) == 1 ? 4 : 2; lines >= 2; lines /= 2)
        for (int share = 1; share <= WARPS; share *= 2) {
            mica_config c = {{lines, reads / lines, share}};
            if (!suits(&g, &c)) continue;
            count = mica_config_keep(out, ms, count, KEPT, &c, model(desc, &g, device, &c));
        }
    return count;
}

/* ---- plans ---- */

static void write_prologue(const mica_gemm_desc *d, const skinny_geometry *g, const mica_config *c,
                           mica_text *p)
{
    mica_prologue_int(p, "WARPS", WARPS);
    mica_prologue_int(p, "SHARE", c->knob[KNOB_SHARE]);
    mica_prologue_int(p, "LINES", c->knob[KNOB_LINES]);
    mica_prologue_int(p, "CHUNKS", c->knob[KNOB_CHUNKS]);
    mica_prologue_int(p, "FEW", few_held(g));
    mica_prologue_int(p, "BATCHED", g->shape.batches > 1);
    mica_prologue_int(p, "SHIFTED", g->shifted);
    skinny_prologue(d, g, p);
}

static mica_status build(mica_plan *plan)
{
    skinny_state *s;
    skinny_geometry g;
    mica_why why;
    const mica_gemm_desc *d = plan->desc;
    const mica_config *c = &plan->config;
    MICA_TRY(plan_geometry(d, &plan->device, &g, &why));
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    skinny_state_fill(d, &g, s);
    double tiles = tiles_of(&g, c);
    s->grid = (mica_grid){.grid = {(unsigned)(tiles < INT32_MAX ? tiles : INT32_MAX)},
                          .block = {32 * WARPS}};
    char text[4096];
    mica_text prologue = {text, sizeof text, 0};
    write_prologue(d, &g, c, &prologue);
    return mica_plan_add_kernel(plan,
                                &(mica_kernel_spec){.file = "ops/gemm/skinny/gemv.cu",
                                                    .entry = "gemm_gemv",
                                                    .prologue = text},
                                &s->kernel);
}

const mica_engine gemm_gemv = {.name = "gemv",
                               .cuda = true,
                               .knobs = knobs,
                               .accepts = accepts,
                               .configs = configs,
                               .predict = predict,
                               .build = build,
                               .run = skinny_run};
