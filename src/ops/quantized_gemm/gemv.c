/* SPDX-License-Identifier: Apache-2.0
 * Engine "gemv" of quantized_gemm: x of one to eight rows (decoding), rows of w side by side in
 * memory, groups of whole pieces; any types and formats. Multiply-adds of f32. Cost: the bytes of w
 * at the bandwidth of memory; with more rows of x, and formats of many steps, the arithmetic of
 * decoding. */
#include "ops/quantized_gemm/quantized_gemm.h"
#include "ops/quantized_gemm/gemv_args.h"
#include "ops/access/access.h"

#include <math.h>

enum { KNOB_LINES, KNOB_SHARE };
static const char *const knobs[] = {"lines", "share", NULL};

enum { MOST = 8, PIECE = 8, SPAN = 32 * PIECE, WARPS = 8, STAGES = 4, KEPT = 2 };

typedef struct state {
    mica_qgemm g;
    mica_kernel *kernel;
    mica_grid grid;
    bool x_fits;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    mica_qgemm g;
    (void)device;
    mica_qgemm_make(desc, NULL, &g);
    const mica_qgemm_args *a = &g.a;
    if (g.grouped) return mica_refuse(why, "w has groups of rows, this engine takes one matrix");
    if (a->m > MOST) return mica_refuse(why, "x has %lld rows, this engine takes %d", a->m, MOST);
    if (a->m == 0 || a->n == 0 || a->k == 0)
        return mica_refuse(why, "%lld x %lld x %lld: there is no product", a->m, a->n, a->k);
    if (a->k > INT32_MAX)
        return mica_refuse(why, "K is %lld, this engine counts to %d", a->k, INT32_MAX);
    if (!mica_qgemm_rows_whole(&g, 1))
        return mica_refuse(why, "rows of w are not whole bytes side by side");
    if (!g.blocks && a->group % PIECE && a->group < a->k)
        return mica_refuse(why, "group is %lld, a thread reads %d elements with one scale",
                           a->group, PIECE);
    return MICA_OK;
}

/* ---- configs and model ---- */

static int few_held(const mica_qgemm *g)
{
    int few = 1;
    while (few < g->a.m) few *= 2;
    return few;
}

static double tiles_of(const mica_qgemm *g, const mica_config *c)
{
    return ceil((double)g->a.n / (c->knob[KNOB_LINES] * (WARPS / c->knob[KNOB_SHARE])));
}

/* Instructions for each weight: decoding and a multiply-add for each row of x, and what a warp does
 * for a span, shared by its lines. */
static double model(const mica_quantized_gemm_desc *d, const mica_qgemm *g,
                    const mica_device_info *device, const mica_config *c)
{
    const double start_ms = 3e-3, reached = 0.8, decoding = g->blocks ? 8 : 4, span = 7;
    const double rounds = tiles_of(g, c) / (2.0 * device->units);
    const double memory =
        mica_op_bytes(&mica_op_quantized_gemm, d) / (reached * device->copy_gbps * 1e6);
    const double each = decoding + 1.2 * few_held(g) + span / c->knob[KNOB_LINES];
    const double flops = (double)g->a.n * (double)g->a.k * each * 2;
    const double compute = flops / (0.7 * device->f32_tflops * 1e9);
    const double spans = ceil((double)g->a.k / SPAN / c->knob[KNOB_SHARE]);
    const double alone =
        4e-4 * spans / (8 * STAGES); /* a warp waits for memory once for STAGES spans */
    return start_ms +
           (memory > compute ? memory : compute) * (1 + 0.2 / (rounds < 0.1 ? 0.1 : rounds)) +
           alone;
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
    for (int lines = few_held(&g) > 4 ? 2 : 4; lines >= 1; lines /= 2)
        for (int share = 1; share <= WARPS; share *= 2) {
            const mica_config c = {{lines, share}};
            if (share > 1 && g.a.k < (long long)SPAN * share) continue;
            count = mica_config_keep(out, ms, count, KEPT, &c, model(desc, &g, device, &c));
        }
    return count;
}

/* ---- plans ---- */

static void write_prologue(const mica_qgemm *g, const mica_config *c, mica_text *p)
{
    const bool nibbles = g->blocks ? g->has_scales : mica_dtype_bits(g->w) < 8;
    const bool common = g->a.group >= 32 && g->a.group <= MICA_BLOCKS_MOST &&
                        (g->a.group & (g->a.group - 1)) == 0 && g->a.group < g->a.k;
    mica_qgemm_prologue(g, PIECE, p);
    mica_prologue_int(p, "FEW", few_held(g));
    mica_prologue_int(p, "WARPS", WARPS);
    mica_prologue_int(p, "SHARE", c->knob[KNOB_SHARE]);
    mica_prologue_int(p, "LINES", c->knob[KNOB_LINES]);
    mica_prologue_int(p, "STAGES", STAGES);
    mica_prologue_int(p, "SPAN", SPAN);
    mica_prologue_int(p, "ROW_BYTES", nibbles || !g->blocks ? 1 : g->bytes);
    mica_prologue_int(p, "ROW_ELEMENTS", nibbles ? 2 : g->blocks ? g->elements : 1);
    mica_prologue_int(p, "GROUP", common ? g->a.group : 0);
    mica_prologue_int(p, "RESIDENT", few_held(g) > 2 ? 2 : 3);
}

static mica_status build(mica_plan *plan)
{
    char buffer[2048] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_qgemm *g = &s->g;
    mica_qgemm_make(plan->desc, NULL, g);
    const double tiles = tiles_of(g, &plan->config);
    s->x_fits = (g->a.x_k == 1 || g->a.k < 2) && (g->a.m < 2 || g->a.x_m % PIECE == 0);
    s->grid = (mica_grid){.grid = {tiles < INT32_MAX ? (unsigned)tiles : INT32_MAX},
                          .block = {32 * WARPS}};
    write_prologue(g, &plan->config, &p);
    mica_kernel_spec spec = {"ops/quantized_gemm/gemv.cu", "quantized_gemv", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    mica_qgemm_gemv_args a = {.g = s->g.a};
    mica_qgemm_bind(plan, run, &a.g);
    a.x_whole = s->x_fits && mica_access_starts(a.g.x, mica_access_bytes(s->g.x, PIECE));
    a.words = mica_qgemm_rows_whole(&s->g, 4) && mica_access_starts(a.g.w, 4);
    return mica_kernel_launch(s->kernel, &s->grid, run->stream, &a);
}

const mica_engine mica_quantized_gemm_gemv = {.name = "gemv",
                                              .cuda = true,
                                              .knobs = knobs,
                                              .accepts = accepts,
                                              .configs = configs,
                                              .predict = predict,
                                              .build = build,
                                              .run = run};
