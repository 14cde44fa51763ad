/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda" of quantized_gemm: any types and strides, plain multiply-adds of f32. Good where
 * nothing else takes a problem. Cost: 2MNK at about a third of the rate of f32, and each weight
 * decoded once for 64 rows of x. */
#include "ops/quantized_gemm/quantized_gemm.h"
#include "ops/quantize/quantize.h"

#include <math.h>

enum { TILE = 64, PIECE = 8, THREADS = 256 };

typedef struct state {
    mica_qgemm g;
    mica_kernel *kernel;
    mica_grid grid;
} state;

/* ---- what its kernels share with others of the family ---- */

static mica_dtype stored(mica_dtype d)
{
    return d == MICA_NONE ? MICA_F32 : mica_dtype_bits(d) < 8 ? MICA_U8 : d;
}

void mica_qgemm_prologue(const mica_qgemm *g, int piece, mica_text *p)
{
    mica_prologue_int(p, "PIECE", piece);
    mica_prologue_int(p, "SIDE_BY_SIDE", g->a.w_k == 1);
    mica_prologue_int(p, "HAS_SCALES", g->has_scales);
    mica_prologue_int(p, "HAS_BIAS", g->has_bias);
    mica_prologue_int(p, "GROUPED", g->grouped);
    mica_prologue_int(p, "FORM", 0); /* runs of rows */
    mica_prologue_int(p, "HAS_GROUPS", 1);
    mica_prologue_type(p, "groups_t", g->grouped ? g->ends : MICA_S32);
    mica_prologue_type(p, "x_t", g->x);
    mica_prologue_type(p, "y_t", g->y);
    mica_prologue_type(p, "bias_t", stored(g->bias));
    if (g->blocks) {
        mica_prologue_int(p, "BLOCK", THREADS);
        mica_prologue_int(p, "ELEMENTS", g->elements);
        mica_prologue_int(p, "BYTES", g->bytes);
        mica_prologue_type(p, "value_t", MICA_F32);
        mica_text_add(p, "#define WEIGHTS_BLOCKS 1\n#define CODER decode_%s\n", g->blocks->name);
        return;
    }
    mica_prologue_int(p, "CODE", mica_quantize_code(g->w));
    mica_prologue_int(p, "HAS_ZEROS", g->has_zeros);
    mica_prologue_int(p, "ZERO_IS_CODE", g->zeros == g->w);
    mica_prologue_int(p, "ONE_GROUP", g->a.group % piece == 0 || g->a.group >= g->a.k);
    mica_prologue_type(p, "code_t", stored(g->w));
    mica_prologue_type(p, "zero_t", stored(g->zeros));
    mica_prologue_type(p, "real", MICA_F32);
    mica_quantize_scale_prologue(p, g->scales);
    mica_text_add(p, "#define WEIGHTS_BLOCKS 0\n");
}

/* ---- the engine ---- */

mica_grid mica_qgemm_grid(const mica_qgemm *g, int rows, int columns,
                          const mica_device_info *device, unsigned threads)
{
    const double tiles = mica_qgemm_tiles(g, rows, columns);
    /* Of groups the number of tiles is data: blocks take several where there may be many. */
    const double most = g->grouped ? 16.0 * device->units : INT32_MAX, blocks = fmin(tiles, most);
    return (mica_grid){.grid = {blocks < 1 ? 1 : (unsigned)blocks}, .block = {threads}};
}

/* Plain f32 at a third of its rate, in whole rounds of blocks. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    const double reached = 0.33, start_ms = 3e-3;
    mica_qgemm g;
    (void)config;
    mica_qgemm_make(desc, NULL, &g);
    const double tiles = mica_qgemm_tiles(&g, TILE, TILE);
    const double rounds = ceil(tiles / device->units) * device->units;
    const double flops = rounds * TILE * TILE * 2.0 * (double)g.a.k;
    return start_ms + flops / (reached * device->f32_tflops * 1e9);
}

static mica_status build(mica_plan *plan)
{
    char buffer[2048] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_qgemm_make(plan->desc, NULL, &s->g);
    if (s->g.a.m == 0 || s->g.a.n == 0) return MICA_OK;
    s->grid = mica_qgemm_grid(&s->g, TILE, TILE, &plan->device, THREADS);
    mica_qgemm_prologue(&s->g, PIECE, &p);
    mica_kernel_spec spec = {"ops/quantized_gemm/quantized_gemm.cu", "quantized_gemm", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    if (!s->kernel) return MICA_OK;
    mica_qgemm_args a = s->g.a;
    mica_qgemm_bind(plan, run, &a);
    return mica_kernel_launch(s->kernel, &s->grid, run->stream, &a);
}

const mica_engine mica_quantized_gemm_cuda = {
    .name = "cuda", .cuda = true, .predict = predict, .build = build, .run = run};
