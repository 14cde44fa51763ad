/* SPDX-License-Identifier: Apache-2.0
 * gemm of f32 on Hopper where c has few rows or few columns (classifiers, decoding in f32): exact
 * multiply-adds beside TMA that keeps memory busy. Good for 5 to 32 lines; no workspace.
 * Cost: the wide operand at the bandwidth of memory up to some 16 lines, beyond at the rate of
 * multiply-adds. Pointers that TMA cannot take go to the engine for any device. */
#include "ops/gemm/skinny/sm90_skinny_args.h"
#include "ops/gemm/skinny/skinny.h"
#include "ops/access/access.h"

#include <math.h>

enum { KNOB_LINES, KNOB_SPLIT };
static const char *const knobs[] = {"lines", "split", NULL};

enum { MOST_FEW = 32, MOST_LINES = 128, MOST_BATCH = 3, MOST_SPLIT = 8, KEPT = 3 };
enum { SLICE = 32, FEW_PITCH = 36, TURNS = 4, THREADS = 384, MOST_STAGES = 16 };
enum { ALIGNING = 1024, BARRIERS = 512 }; /* bytes of shared memory beside the ring and sums */

typedef struct state {
    gemm_sm90_skinny_args args; /* all but the map, pointers and scalars */
    bool swapped;               /* the wide operand is a */
    mica_tensor_map_spec wide;
    mica_kernel *kernel;
    mica_plan *fallback;
    mica_grid grid;
} state;

/* ---- which problems ---- */

static mica_status check_stride(const skinny_geometry *g, const char *what, long long dim,
                                long long stride, mica_why *why)
{
    long long bytes = stride * 4;
    if (dim == 1 || (stride > 0 && bytes < 1LL << 40)) return MICA_OK;
    return mica_refuse(why, "%s of %s are %lld bytes apart, TMA takes 1 to 2^40", what,
                       g->wide.name, bytes);
}

/* What TMA can address; multiples of 16 bytes are skinny_check_aligned's rule. */
static mica_status check_wide(const skinny_geometry *g, mica_why *why)
{
    const gemm_shape *s = &g->shape;
    const long long limit = 1LL << 30;
    if (s->batch_rank > MOST_BATCH)
        return mica_refuse(why, "%d batch dimensions, tensor maps hold %d", s->batch_rank,
                           MOST_BATCH);
    if (g->wide.lines > limit || s->k > limit)
        return mica_refuse(why, "%s is %lld x %lld, the limit is 2^30", g->wide.name, g->wide.lines,
                           s->k);
    if ((double)(g->wide.lines / 8 + 1) * (double)s->batches > limit)
        return mica_refuse(why, "%lld items of %lld lines, the limit is 2^33 lines", s->batches,
                           g->wide.lines);
    MICA_TRY(check_stride(g, "lines", g->wide.lines, g->wide.line_stride, why));
    MICA_TRY(check_stride(g, "elements along K", s->k, g->wide.k_stride, why));
    for (int i = 0; i < s->batch_rank; i++) /* stride 0: the same item for all */
        MICA_TRY(check_stride(g, "batch items", g->wide.batch[i] ? s->batch[i] : 1,
                              g->wide.batch[i], why));
    return MICA_OK;
}

static mica_status plan_geometry(const mica_gemm_desc *d, const mica_device_info *device,
                                 skinny_geometry *g, mica_why *why)
{
    if (device->arch != 90)
        return mica_refuse(why, "the device is sm_%d, the kernel is sm_90's", device->arch);
    if (d->a.dtype != MICA_F32)
        return mica_refuse(why, "a is %s, this engine takes f32", mica_dtype_name(d->a.dtype));
    MICA_TRY(skinny_geometry_make(d, device, g, why));
    MICA_TRY(skinny_check_aligned(g, why));
    if (g->few.lines > MOST_FEW)
        return mica_refuse(why, "c is %lld x %lld, one of them must be at most %d", g->shape.m,
                           g->shape.n, MOST_FEW);
    return check_wide(g, why);
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    skinny_geometry g;
    MICA_TRY(gemm_refuse_full_epilogue(desc, why));
    return plan_geometry(desc, device, &g, why);
}

/* ---- configs and model ---- */

/* Lines of the few that are computed. */
static int few_held(const skinny_geometry *g)
{
    int step = g->few.lines > 16 ? 4 : 2;
    return g->few.lines == 1 ? 1 : (int)ceiling(g->few.lines, step) * step;
}

static long long tiles_of(const skinny_geometry *g, const mica_config *c)
{
    return ceiling(g->wide.lines, c->knob[KNOB_LINES]) * g->shape.batches;
}

static int stage_bytes(const skinny_geometry *g, const mica_config *c)
{
    return (c->knob[KNOB_LINES] * SLICE + few_held(g) * FEW_PITCH) * 4;
}

/* Where the sums of all groups of warps meet. */
static int parts_bytes(const skinny_geometry *g, const mica_config *c)
{
    return TURNS * few_held(g) * (c->knob[KNOB_LINES] + 1) * 4;
}

static int stages_of(const skinny_geometry *g, const mica_device_info *device, const mica_config *c)
{
    int room = (int)device->shared_bytes - ALIGNING - BARRIERS - parts_bytes(g, c);
    int stages = room / stage_bytes(g, c) / TURNS * TURNS;
    return stages < MOST_STAGES ? stages : MOST_STAGES;
}

/* Of a multiprocessor: shared memory gives the few to all lanes, and its own lines to each. */
static double stage_cycles(const skinny_geometry *g, const mica_config *c)
{
    int lines = c->knob[KNOB_LINES], own = lines > 64 ? 4 : lines > 32 ? 2 : 1;
    return SLICE / 4 * (4.6 * few_held(g) + 15.4 * own);
}

/* Rounds of blocks, each at the speed of memory or of arithmetic; what the first stage waits for,
 * and what follows the last. Constants are fitted to an H200: 9 problems by 2 to 6 configs. Where K
 * is split it errs: 86 us and 133 for what took 130 and 90. */
static double model(const skinny_geometry *g, const mica_device_info *device, const mica_config *c)
{
    const double start_ms = 4e-3, cluster_ms = 1.5e-3, finish_ms = 0.8e-3, fewer = 0.06;
    const double flop_per_cycle = 256;
    int split = c->knob[KNOB_SPLIT];
    double blocks = (double)tiles_of(g, c) * split, units = device->units;
    double active = fmin(blocks, units), rounds = ceil(blocks / units);
    double rate = device->copy_gbps * 1e6 * pow(active / units, fewer) / active;
    double stages = ceil((double)g->shape.k / SLICE / split);
    double hertz_ms = device->f32_tflops * 1e9 / flop_per_cycle / units;
    double stage = fmax(stage_bytes(g, c) / rate, stage_cycles(g, c) / hertz_ms);
    return start_ms + rounds * (stages * stage + finish_ms) + (split > 1 ? cluster_ms : 0);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    skinny_geometry g;
    mica_why why;
    if (plan_geometry(desc, device, &g, &why) != MICA_OK) return 0;
    return model(&g, device, c);
}

/* K is split where tiles are few, some stages of each group for each block. */
static bool suits(const skinny_geometry *g, const mica_device_info *device, const mica_config *c)
{
    int split = c->knob[KNOB_SPLIT];
    if (stages_of(g, device, c) < TURNS) return false;
    return split == 1 || (ceiling(g->shape.k, SLICE) >= 2LL * TURNS * split &&
                          tiles_of(g, c) * split <= device->units);
}

/* Tiles that deal the lines out evenly; the best few of the model. */
static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    skinny_geometry g;
    mica_why why;
    if (plan_geometry(desc, device, &g, &why) != MICA_OK) return 0;
    double ms[KEPT];
    int count = 0;
    for (int lines = MOST_LINES; lines >= 16; lines -= lines > 64 ? 8 : 16)
        for (int split = 1; split <= MOST_SPLIT; split *= 2) {
            mica_config c = {{lines, split}};
            if (suits(&g, device, &c))
                count = mica_config_keep(out, ms, count, KEPT, &c, model(&g, device, &c));
        }
    return count;
}

/* ---- plans ---- */

static void fill_map(const skinny_geometry *g, int lines, mica_tensor_map_spec *m)
{
    const gemm_shape *s = &g->shape;
    const skinny_operand *w = &g->wide;
    bool k_major = g->k_major;
    *m = (mica_tensor_map_spec){.dtype = w->dtype, .swizzle_bytes = k_major ? SLICE * 4 : 0};
    m->dims[0] = k_major ? s->k : w->lines;
    m->dims[1] = k_major ? w->lines : s->k;
    m->stride_bytes[1] =
        gemm_map_stride(m->dims[1], k_major ? w->line_stride : w->k_stride, m->dims[0], 4);
    m->box[0] = (uint32_t)(k_major ? SLICE : lines);
    m->box[1] = (uint32_t)(k_major ? lines : SLICE);
    gemm_map_batch(s, w->batch, 4, m);
}

static void write_prologue(const mica_gemm_desc *d, const skinny_geometry *g, const mica_config *c,
                           int stages, mica_text *p)
{
    const gemm_shape *s = &g->shape;
    mica_prologue_int(p, "LINES", c->knob[KNOB_LINES]);
    mica_prologue_int(p, "STAGES", stages);
    mica_prologue_int(p, "FEW", few_held(g));
    mica_prologue_int(p, "SPLIT", c->knob[KNOB_SPLIT]);
    mica_prologue_int(p, "BATCH_RANK", s->batch_rank);
    mica_prologue_int(p, "K_MAJOR", g->k_major);
    mica_prologue_int(p, "FEW_K_MAJOR", g->few_k_major);
    mica_prologue_int(p, "FEW_FIRST", (g->swapped ? s->c_n : s->c_m) == 1);
    skinny_prologue(d, g, p);
}

static mica_status add_kernel(mica_plan *plan, const skinny_geometry *g, state *s)
{
    const mica_config *c = &plan->config;
    int stages = stages_of(g, &plan->device, c), split = c->knob[KNOB_SPLIT];
    int shared = stages * stage_bytes(g, c) + parts_bytes(g, c) + ALIGNING;
    int most = plan->device.units;
    int blocks = split > 1 || s->args.tiles < most ? s->args.tiles * split : most;
    s->grid = (mica_grid){.grid = {(unsigned)blocks},
                          .block = {THREADS},
                          .cluster = split > 1 ? (unsigned)split : 0,
                          .dynamic_shared = (unsigned)shared};
    char text[4096];
    mica_text prologue = {text, sizeof text, 0};
    write_prologue(plan->desc, g, c, stages, &prologue);
    return mica_plan_add_kernel(plan,
                                &(mica_kernel_spec){.file = "ops/gemm/skinny/sm90_skinny.cu",
                                                    .entry = "gemm_sm90_skinny",
                                                    .prologue = text,
                                                    .dynamic_shared = shared},
                                &s->kernel);
}

static mica_status build(mica_plan *plan)
{
    state *s;
    skinny_geometry g;
    mica_why why;
    size_t workspace;
    MICA_TRY(plan_geometry(plan->desc, &plan->device, &g, &why));
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    skinny_args_fill(plan->desc, &g, &s->args.skinny);
    s->args.tiles = (int)tiles_of(&g, &plan->config);
    s->args.fills = (int)ceiling(g.shape.k, SLICE);
    s->swapped = g.swapped;
    fill_map(&g, plan->config.knob[KNOB_LINES], &s->wide);
    MICA_TRY(add_kernel(plan, &g, s));
    return mica_plan_child_create(plan, "gemm", plan->desc, sizeof(mica_gemm_desc), gemm_cuda.name,
                                  &s->fallback, &workspace);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    void *wide = r->args[s->swapped ? MICA_GEMM_A : MICA_GEMM_B];
    if (!mica_access_starts(wide, 16)) return mica_plan_child_run(s->fallback, r);
    gemm_sm90_skinny_args args = s->args;
    gemm_args_bind(plan, r, &args.skinny.gemm);
    MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->wide, wide, &args.wide));
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &args);
}

const mica_engine gemm_sm90_skinny = {.name = "sm90_skinny",
                                      .cuda = true,
                                      .knobs = knobs,
                                      .accepts = accepts,
                                      .configs = configs,
                                      .predict = predict,
                                      .build = build,
                                      .run = run};
