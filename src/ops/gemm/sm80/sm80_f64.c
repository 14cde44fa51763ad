/* SPDX-License-Identifier: Apache-2.0
 * gemm of f64 on the tensor cores of sm_80 and later: any strides, no workspace, the sums of plain
 * multiply-adds. Good for all f64 products on sm_80 and sm_90, whose tensor cores multiply f64 at
 * twice the rate of the plain ones; elsewhere they have a 64th of the f32 rate, and engine "cuda"
 * is as good. Cost: 2MNK at 61 TFLOP/s on an H200 in whole rounds of tiles, or the operands at 0.6
 * of the bandwidth. */
#include "ops/gemm/sm80/sm80.h"
#include "ops/gemm/sm80/sm80_args.h"

enum { KNOB_TILE_M, KNOB_TILE_N };
static const char *const knobs[] = {"tile_m", "tile_n", NULL};

enum { TILE_K = 16 }; /* the kernel's */

/* efficiency: of the units' rate, tiles full and K long; judged. Shared memory bounds that of small
 * tiles. On sm_90 the units of a multiprocessor take 32 clocks for 32 x 32 results and 4 of k, in
 * which it moves 4 KiB; fragments are 32 bytes for each line of each warp, copies 32 for each line
 * of the tile. Tiles of 128 x 128 keep it busy for half of the time, of 64 x 64 for 3/4, of
 * 64 x 32 for 9/8, of 32 x 32 for 3/2; on sm_80 for half as much. */
typedef struct choice {
    int tile_m, tile_n, warp_m, warp_n, stages, resident;
    double efficiency;
} choice;
static const choice choices[] = {
    {128, 128, 64, 32, 3, 1, 0.90}, {128, 64, 64, 32, 3, 2, 0.88}, {64, 128, 64, 32, 3, 2, 0.88},
    {64, 64, 32, 32, 4, 3, 0.80},   {64, 32, 32, 16, 4, 4, 0.60},  {32, 64, 16, 32, 4, 4, 0.60},
    {32, 32, 16, 16, 6, 4, 0.45},
};
enum { CHOICES = sizeof choices / sizeof *choices };

typedef struct state {
    gemm_sm80_args args; /* all but pointers and scalars */
    mica_mma_operand a, b;
    int c_vector;
    mica_kernel *kernel;
    mica_grid grid;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_gemm_desc *d = desc;
    if (device->arch < 80)
        return mica_refuse(why, "the device is sm_%d, its tensor cores are used from sm_80 on",
                           device->arch);
    if (d->a.dtype != MICA_F64)
        return mica_refuse(why, "a is %s, this engine takes f64", mica_dtype_name(d->a.dtype));
    return gemm_refuse_full_epilogue(d, why);
}

/* ---- configs and model ---- */

static const choice *choice_of(const mica_config *c)
{
    const choice *found = choices;
    for (int i = 0; i < CHOICES; i++)
        if (choices[i].tile_m == c->knob[KNOB_TILE_M] && choices[i].tile_n == c->knob[KNOB_TILE_N])
            found = &choices[i];
    return found;
}

/* Tiles more than half of which would always be empty are left out, but for the smallest. */
static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    (void)device;
    gemm_shape s;
    gemm_shape_make(desc, &s);
    int count = 0;
    for (int i = 0; i < CHOICES; i++) {
        const choice *t = &choices[i];
        if (i < CHOICES - 1 && (2 * s.m <= t->tile_m || 2 * s.n <= t->tile_n)) continue;
        out[count++] = (mica_config){{t->tile_m, t->tile_n}};
    }
    return count;
}

static int64_t tiles_of(const gemm_shape *s, const choice *t)
{
    return (s->m + t->tile_m - 1) / t->tile_m * ((s->n + t->tile_n - 1) / t->tile_n) * s->batches;
}

/* TFLOP/s of the tensor cores. A multiprocessor's: 128 flop a clock on sm_80, 256 on sm_90, which
 * is what it has of plain f32. */
static double rate_of(const mica_device_info *device)
{
    static const struct {
        int arch;
        double of_f32;
    } rates[] = {{80, 1}, {90, 1}, {100, 0.5}};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (rates[i].arch == device->arch) return rates[i].of_f32 * device->f32_tflops;
    return device->f32_tflops / 64;
}

/* As mica_mma_predict: tiles are dealt to the multiprocessors in rounds; a slice takes its
 * arithmetic, or the latency of its loads where too few stages and blocks hide it. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    const double latency_ms = 0.8e-3, fill_ms = 2e-3, launch_ms = 3e-3;
    const double reached = 0.6; /* of the bandwidth, without TMA */
    const choice *t = choice_of(c);
    gemm_shape s;
    gemm_shape_make(desc, &s);
    if (s.batches == 0) return 0;
    double units = device->units;
    double rounds = (double)(int64_t)(((double)tiles_of(&s, t) + units - 1) / units);
    double resident = rounds < t->resident ? rounds : t->resident;
    double step =
        2.0 * t->tile_m * t->tile_n * TILE_K * units / (rate_of(device) * 1e9 * t->efficiency);
    double hidden = latency_ms / ((t->stages - 1) * resident);
    double slices = (double)((s.k + TILE_K - 1) / TILE_K);
    double compute = rounds * (slices * (step > hidden ? step : hidden) + fill_ms / resident);
    double memory = mica_op_bytes(&mica_op_gemm, desc) / (reached * device->copy_gbps * 1e6);
    return launch_ms + (compute > memory ? compute : memory);
}

/* ---- plan ---- */

static int shared_bytes(const choice *t, bool c_n_fast)
{
    int pass = t->tile_m < 64 ? t->tile_m : 64;
    int turned = c_n_fast ? pass * (t->tile_n + 8) : t->tile_n * (pass + 2);
    int pipe = t->stages * (t->tile_m + t->tile_n) * TILE_K;
    return 8 * (pipe > turned ? pipe : turned);
}

static void write_prologue(const mica_plan *plan, const choice *t, bool c_n_fast, int shared,
                           mica_text *p)
{
    const mica_gemm_desc *d = plan->desc;
    const state *s = plan->state;
    mica_prologue_int(p, "TILE_M", t->tile_m);
    mica_prologue_int(p, "TILE_N", t->tile_n);
    mica_prologue_int(p, "WARP_M", t->warp_m);
    mica_prologue_int(p, "WARP_N", t->warp_n);
    mica_prologue_int(p, "STAGES", t->stages);
    mica_prologue_int(p, "RESIDENT", t->resident);
    mica_prologue_int(p, "SHARED", shared);
    mica_prologue_int(p, "A_VECTOR", s->a.vector);
    mica_prologue_int(p, "A_K_FAST", s->a.k_fast);
    mica_prologue_int(p, "B_VECTOR", s->b.vector);
    mica_prologue_int(p, "B_K_FAST", s->b.k_fast);
    mica_prologue_int(p, "C_VECTOR", s->c_vector);
    mica_prologue_int(p, "C_N_FAST", c_n_fast);
    mica_prologue_int(p, "HAS_SCALE_A", 0); /* of 8-bit inputs only */
    mica_prologue_int(p, "HAS_SCALE_B", 0);
    mica_prologue_type(p, "c_t", d->c.dtype);
    mica_prologue_type(p, "sum_t", MICA_F64);
    mica_prologue_type(p, "out_t", MICA_F64);
    mica_epilogue e = gemm_epilogue(d);
    mica_prologue_epilogue(p, &e);
}

static mica_status build(mica_plan *plan)
{
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    const mica_gemm_desc *d = plan->desc;
    const choice *t = choice_of(&plan->config);
    gemm_shape *g = &s->args.g.shape;
    gemm_shape_make(d, g);
    gemm_args_fill(d, &s->args.g);
    int64_t tiles = tiles_of(g, t);
    if (tiles == 0) return MICA_OK;
    s->a = gemm_sm80_operand(MICA_F64, g, g->a_m, g->m, g->a_k, g->a_batch);
    s->b = gemm_sm80_operand(MICA_F64, g, g->b_n, g->n, g->b_k, g->b_batch);
    bool c_n_fast = gemm_sm80_is_faster(g->c_n, g->n, g->c_m, g->m);
    s->c_vector = c_n_fast ? gemm_sm80_vector(d->c.dtype, g, g->c_n, g->c_m, g->m > 1, g->c_batch)
                           : gemm_sm80_vector(d->c.dtype, g, g->c_m, g->c_n, g->n > 1, g->c_batch);
    int shared = shared_bytes(t, c_n_fast);
    int threads = t->tile_m / t->warp_m * (t->tile_n / t->warp_n) * 32;
    s->grid = (mica_grid){.grid = {tiles < INT32_MAX ? (unsigned)tiles : INT32_MAX},
                          .block = {(unsigned)threads},
                          .dynamic_shared = (unsigned)shared};
    char text[4096];
    mica_text prologue = {text, sizeof text, 0};
    write_prologue(plan, t, c_n_fast, shared, &prologue);
    mica_kernel_spec spec = {.file = "ops/gemm/sm80/sm80_f64.cu",
                             .entry = "gemm_sm80_f64",
                             .prologue = text,
                             .dynamic_shared = shared};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    const mica_gemm_desc *d = plan->desc;
    if (!s->kernel) return MICA_OK;
    gemm_sm80_args a = s->args;
    gemm_args_bind(plan, r, &a.g);
    a.a_aligned = gemm_sm80_is_aligned(a.g.a, MICA_F64, s->a.vector);
    a.b_aligned = gemm_sm80_is_aligned(a.g.b, MICA_F64, s->b.vector);
    a.c_aligned = gemm_sm80_is_aligned(a.g.c, d->c.dtype, s->c_vector);
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &a);
}

const mica_engine gemm_sm80_f64 = {.name = "sm80_f64",
                                   .cuda = true,
                                   .knobs = knobs,
                                   .accepts = accepts,
                                   .configs = configs,
                                   .predict = predict,
                                   .build = build,
                                   .run = run};
