/* SPDX-License-Identifier: Apache-2.0
 * grouped_gemm on Hopper's tensor cores, fed by TMA: bf16, f16, tf32 (f32 with
 * compute=tf32), 8-bit integers and floats, these also with scales of blocks. Good for everything
 * whose operands TMA can address and whose c is stored row by row. Cost: 2MNK at 0.9 of
 * the sustained rate, in whole rounds of tiles over the multiprocessors, a part of a tile lost for
 * each group; groups of few rows run at the speed of memory. */
#include "ops/grouped_gemm/sm90/sm90.h"
#include "ops/gemm/sm90/sm90_operand.h"
#include "ops/access/access.h"

#include <limits.h>
#include <math.h>

enum { KNOB_TILE_M, KNOB_TILE_N };
const char *const grouped_sm90_knobs[] = {"tile_m", "tile_n", NULL};

enum {
    LINE_BYTES = GEMM_SM90_LINE_BYTES,
    KEPT = 3,
    ROWS_OF_TEAM = 64,
    BUFFER_BYTES = 8192,
    LEAST_BUFFERS = 2, /* a piece of sums needs 10 KiB */
    MOST_BUFFERS = 4,
    MOST_STAGES = 16,
    BARRIERS = 512,   /* bytes, with the slots of tiles */
    WIDEST_PART = 192 /* columns of the sums that leave the tensor core together */
};

/* Two warpgroups multiply where a tile has 128 rows or more. */
static const mica_config choices[] = {
    {{128, 256}}, {{256, 128}}, {{128, 192}}, {{128, 128}}, {{64, 256}}, {{64, 128}}, {{64, 64}},
};
/* 8-bit floats hold a second sum, of 192 columns at most. */
static const mica_config promoted[] = {
    {{128, 256}}, {{128, 192}}, {{128, 128}}, {{64, 256}},
    {{64, 192}},  {{64, 128}},  {{64, 64}},   {{64, 32}},
};

/* ---- what TMA can address ---- */

typedef struct operand {
    gemm_sm90_operand item; /* of one group, or of all */
    bool deep;              /* has a matrix per group */
    long long groups, group_stride;
} operand;

typedef struct geometry {
    gemm_shape shape;
    operand a, b;
} geometry;

static mica_status check_operand(operand *o, mica_why *why)
{
    MICA_TRY(gemm_sm90_check_operand(&o->item, why));
    if (!o->deep) return MICA_OK;
    return gemm_sm90_check_stride(&o->item, "groups", o->groups, o->group_stride, 0, why);
}

/* Kernels count bytes of scales with 32 bits. */
static mica_status check_scales(const grouped *g, mica_why *why)
{
    const mica_tensor *a = &g->item.scale_a, *b = &g->item.scale_b;
    const double limit = 0x1p32, groups = 4 * (double)(g->count - 1);
    int64_t first_a, first_b, span_a = mica_tensor_span(a, &first_a);
    int64_t span_b = mica_tensor_span(b, &first_b);
    if (!gemm_has_blocks(&g->item)) return MICA_OK;
    if (first_a < 0 || first_b < 0 || g->group[MICA_GEMM_SCALE_A] < 0 ||
        g->group[MICA_GEMM_SCALE_B] < 0)
        return mica_refuse(why, "strides of scales are negative");
    double all_a = (double)span_a + groups * (double)g->group[MICA_GEMM_SCALE_A];
    double all_b = (double)span_b + groups * (double)g->group[MICA_GEMM_SCALE_B];
    if (all_a < limit && all_b < limit) return MICA_OK;
    return mica_refuse(why, "scales span %.4g and %.4g bytes, the limit is 2^32", all_a, all_b);
}

static mica_status check_sizes(const grouped *g, const gemm_shape *s, mica_why *why)
{
    const long long limit = 1LL << 30;
    if (s->batches == 0 || g->count == 0 || g->limit == 0 || s->k == 0)
        return mica_refuse(why, "the product is empty");
    if (s->m > limit || s->n > limit || s->k > limit || g->count > limit)
        return mica_refuse(why, "M, N, K are %lld, %lld, %lld, groups %lld; the limit is 2^30",
                           s->m, s->n, s->k, (long long)g->count);
    if (mica_dtype_is_integer(g->item.a.dtype) && s->k > 65536)
        return mica_refuse(why, "K is %lld, sums of 65536 products fit 32 bits", s->k);
    if (s->c_n != 1 && s->n != 1)
        return mica_refuse(why, "neighbours in a row of c are %lld apart, the rule is 1", s->c_n);
    double rows = (double)s->m / 64 + (g->form == GROUPED_ROWS ? (double)g->count : 1);
    double tiles = rows * ((double)s->n / 64 + 1);
    if (g->form != GROUPED_ROWS) tiles *= (double)g->count;
    if (tiles > INT_MAX / 2) return mica_refuse(why, "%.3g tiles, the limit is 2^30", tiles);
    return MICA_OK;
}

/* TMA begins at multiples of 16 bytes along a line, and a run begins anywhere. */
static mica_status check_runs(const grouped *g, const geometry *x, mica_why *why)
{
    bool terms = g->form == GROUPED_TERMS;
    if (g->form == GROUPED_ROOMS ||
        (terms ? x->a.item.mn_major && x->b.item.mn_major : !x->a.item.mn_major))
        return MICA_OK;
    return mica_refuse(why,
                       terms ? "terms are neighbours in %s; runs of terms must be runs of lines"
                             : "rows are neighbours in %s; runs of rows must be runs of lines",
                       terms && x->a.item.mn_major ? "b" : "a");
}

static mica_status make_geometry(const grouped *g, geometry *x, mica_why *why)
{
    const mica_gemm_desc *d = &g->item;
    MICA_TRY(gemm_sm90_check_types(d, why));
    gemm_shape_make(d, &x->shape);
    const gemm_shape *s = &x->shape;
    x->a = (operand){{"a", d->a.dtype, s->m, s->a_m, s->k, s->a_k, false, false},
                     g->form == GROUPED_ROOMS,
                     g->count,
                     g->group[MICA_GEMM_A]};
    x->b = (operand){{"b", d->b.dtype, s->n, s->b_n, s->k, s->b_k, false, false},
                     g->form != GROUPED_TERMS,
                     g->count,
                     g->group[MICA_GEMM_B]};
    MICA_TRY(check_sizes(g, s, why));
    MICA_TRY(check_scales(g, why));
    MICA_TRY(check_operand(&x->a, why));
    MICA_TRY(check_operand(&x->b, why));
    return check_runs(g, x, why);
}

mica_status grouped_sm90_accepts(const grouped *g, const mica_device_info *device, mica_why *why)
{
    geometry x;
    if (device->arch != 90)
        return mica_refuse(why, "the device is sm_%d, the kernels are sm_90's", device->arch);
    return make_geometry(g, &x, why);
}

/* ---- configs and model ---- */

static int teams_of(const mica_config *c)
{
    return c->knob[KNOB_TILE_M] > ROWS_OF_TEAM ? 2 : 1;
}

/* Of a slice's operands and of the scales of its blocks. */
static int stage_bytes(const grouped *g, const mica_config *c)
{
    int m = c->knob[KNOB_TILE_M], scales = gemm_has_blocks(&g->item) ? (m + 4) * 4 : 0;
    return (m + c->knob[KNOB_TILE_N]) * LINE_BYTES + scales;
}

/* As many stages as fit beside the least buffers. */
static int stages_of(const grouped *g, const mica_config *c, const mica_device_info *device)
{
    int room = (int)device->shared_bytes - BARRIERS - teams_of(c) * LEAST_BUFFERS * BUFFER_BYTES;
    int count = room / stage_bytes(g, c);
    return count < MOST_STAGES ? count : MOST_STAGES;
}

static int buffers_of(const grouped *g, const mica_config *c, const mica_device_info *device)
{
    int room = (int)device->shared_bytes - BARRIERS - stages_of(g, c, device) * stage_bytes(g, c);
    int count = room / (teams_of(c) * BUFFER_BYTES);
    return count < MOST_BUFFERS ? count : MOST_BUFFERS;
}

/* Rounds of tiles over the multiprocessors times what one takes, or the time of memory, and a part
 * of the shorter one. */
static double whole_ms(double rounds, double tile_ms, double bytes, double gbps, double overlap)
{
    const double start_ms = 3e-3;
    double compute = (rounds > 1 ? rounds : 1) * tile_ms, memory = bytes / (gbps * 1e6);
    return start_ms + fmax(compute, memory) + overlap * fmin(compute, memory);
}

/* Where sizes are data, rounds are not whole ones. */
static bool is_sized(const grouped *g)
{
    return g->form != GROUPED_TERMS && mica_tensor_given(&g->groups);
}

/* Slices of all tiles of a multiprocessor follow each other without a gap; each takes the longer
 * one of its arithmetic and its copy from L2, a part of the other one, and at least, where the ring
 * is short, its share of the latency of memory. Where sizes are data, half a round more is lost at
 * the end; where they are not, what a whole one lacks. The constants are those
 * that gemm's engine had before its warpgroups were in ping-pong: these suit tiles that are shared.
 */
static double model_plain(const grouped *g, const geometry *x, double bytes,
                          const mica_device_info *device, const mica_config *c)
{
    const double latency_ms = 0.9e-3, tile_ms = 0.17e-3, sums_ms = 0.6e-3, barrier_ms = 0.007e-3;
    const double peak = 1.13, fill_gbps = 27800, overlap = 0.42;
    double m = c->knob[KNOB_TILE_M], n = c->knob[KNOB_TILE_N], units = device->units;
    double tiles = grouped_tiles(g, (int)m, (int)n, ROWS_OF_TEAM);
    int size = gemm_sm90_bytes(x->a.item.dtype);
    double rate = peak * device->bf16_tflops * 2e9 / size / units;
    double arithmetic = 2 * m * n * (LINE_BYTES / size) / rate;
    double fill = (m + n) * LINE_BYTES / (fill_gbps * 1e6 / units);
    double slice = fmax(arithmetic, fill) + overlap * fmin(arithmetic, fill) + barrier_ms;
    slice = fmax(slice, latency_ms / stages_of(g, c, device));
    double k = g->form == GROUPED_TERMS ? g->expected : (double)x->shape.k;
    double slices = ceil(k * size / LINE_BYTES);
    double finish = tile_ms + sums_ms * m * n * gemm_sm90_bytes(g->item.c.dtype) / (128 * 256);
    double rounds = is_sized(g) ? tiles / units + 0.5 : ceil(tiles / units);
    return whole_ms(rounds, slices * slice + finish, bytes, device->copy_gbps, 0.1);
}

/* Sums that leave the tensor core every slice: each takes its arithmetic and what handing it on
 * takes. A tile that has rows for one team only is filled like a whole one. Fitted to 36 problems
 * with scales of blocks on an H100. */
static double model_promoted(const grouped *g, const geometry *x, double bytes,
                             const mica_device_info *device, const mica_config *c)
{
    const double latency_ms = 1.11e-3, tile_ms = 0.41e-3, sums_ms = 0.49e-3, handing_ms = 0.114e-3;
    const double peak = 0.862, reading = 0.9, started = 0.15; /* a part of a round */
    double m = c->knob[KNOB_TILE_M], n = c->knob[KNOB_TILE_N], units = device->units;
    double tiles = grouped_tiles(g, (int)m, (int)n, (int)m);
    double rate = peak * device->bf16_tflops * 2e9 / units;
    double slice =
        fmax(handing_ms + 2 * m * n * LINE_BYTES / rate, latency_ms / stages_of(g, c, device));
    double slices = ceil((double)x->shape.k / LINE_BYTES);
    double finish = tile_ms + sums_ms * m * n * gemm_sm90_bytes(g->item.c.dtype) / (128 * 256);
    double rounds = is_sized(g) ? fmax(tiles / units, 1) + started : ceil(tiles / units);
    return whole_ms(rounds, slices * slice + finish, bytes, reading * device->copy_gbps, 0.05);
}

static double model(const grouped *g, const geometry *x, double bytes,
                    const mica_device_info *device, const mica_config *c)
{
    bool small = gemm_sm90_promotes(x->a.item.dtype);
    return (small ? model_promoted : model_plain)(g, x, bytes, device, c);
}

double grouped_sm90_predict(const grouped *g, double bytes, const mica_device_info *device,
                            const mica_config *c)
{
    geometry x;
    mica_why why;
    if (make_geometry(g, &x, &why) != MICA_OK) return 0;
    return model(g, &x, bytes, device, c);
}

/* Others would only be compiled and timed for nothing. */
int grouped_sm90_configs(const grouped *g, double bytes, const mica_device_info *device,
                         mica_config *out)
{
    geometry x;
    mica_why why;
    if (make_geometry(g, &x, &why) != MICA_OK) return 0;
    bool small = gemm_sm90_promotes(x.a.item.dtype);
    const mica_config *list = small ? promoted : choices;
    int all =
        small ? (int)(sizeof promoted / sizeof *promoted) : (int)(sizeof choices / sizeof *choices);
    double ms[KEPT];
    int count = 0;
    for (int i = 0; i < all; i++) {
        double t = model(g, &x, bytes, device, &list[i]);
        count = mica_config_keep(out, ms, count, KEPT, &list[i], t);
    }
    return count;
}

void grouped_sm90_contract(const grouped *g, mica_contract *c)
{
    gemm_sm90_contract(&g->item, c);
}

/* ---- plans ---- */

/* Columns of a box of c: 128 bytes, or what is left of the tile. */
static int box_of(mica_dtype c, const mica_config *config)
{
    int widest = LINE_BYTES / gemm_sm90_bytes(c), rest = config->knob[KNOB_TILE_N] % widest;
    return rest ? rest : widest;
}

/* Whether TMA can store c, and the epilogue is short enough to be unrolled for
 * all of them. */
static bool is_light(const grouped *g, const gemm_shape *s)
{
    const mica_gemm_desc *d = &g->item;
    int bytes = gemm_sm90_bytes(d->c.dtype);
    bool several = s->m > 1 || g->form == GROUPED_ROWS;
    bool tiled = !several || (s->c_m >= s->n && s->c_m * bytes % 16 == 0);
    /* TMA writes whole 16 bytes: a row of 10 would spoil what lies behind it. */
    tiled = tiled && s->n * bytes % 16 == 0;
    if (g->form != GROUPED_ROWS && g->count > 1)
        tiled = tiled && g->group[MICA_GEMM_C] > 0 && g->group[MICA_GEMM_C] * bytes % 16 == 0;
    return tiled && gemm_is_short(d);
}

/* Columns of one instruction. */
static int part_of(const grouped *g, const mica_config *c)
{
    int n = c->knob[KNOB_TILE_N];
    return gemm_sm90_promotes(g->item.a.dtype) && n > WIDEST_PART ? n / 2 : n;
}

static void write_prologue(const grouped *g, const geometry *x, const mica_config *c,
                           const mica_device_info *device, mica_text *p)
{
    const mica_gemm_desc *d = &g->item;
    bool whole = mica_dtype_is_integer(d->a.dtype), blocks = gemm_has_blocks(d);
    mica_prologue_int(p, "TILE_M", c->knob[KNOB_TILE_M]);
    mica_prologue_int(p, "TILE_N", c->knob[KNOB_TILE_N]);
    mica_prologue_int(p, "STAGES", stages_of(g, c, device));
    mica_prologue_int(p, "TEAMS", teams_of(c));
    mica_prologue_int(p, "BUFFERS", buffers_of(g, c, device));
    mica_prologue_int(p, "A_MN_MAJOR", x->a.item.mn_major);
    mica_prologue_int(p, "B_MN_MAJOR", x->b.item.mn_major);
    mica_prologue_int(p, "PROMOTE", gemm_sm90_promotes(d->a.dtype));
    mica_prologue_int(p, "BLOCKS", blocks);
    mica_prologue_int(p, "LIGHT", is_light(g, &x->shape));
    mica_prologue_int(p, "HAS_SCALE_A", !blocks && mica_tensor_given(&d->scale_a));
    mica_prologue_int(p, "HAS_SCALE_B", !blocks && mica_tensor_given(&d->scale_b));
    grouped_prologue(g, p);
    mica_prologue_type(p, "a_t", d->a.dtype);
    mica_prologue_type(p, "b_t", d->b.dtype);
    mica_prologue_type(p, "c_t", d->c.dtype);
    mica_prologue_type(p, "sum_t", whole ? MICA_S32 : MICA_F32);
    mica_prologue_type(p, "out_t", gemm_epilogue_type(d));
    mica_epilogue e = gemm_epilogue(d);
    mica_prologue_epilogue(p, &e);
    mica_prologue_wgmma(p, "mma",
                        &(mica_wgmma){.n = part_of(g, c),
                                      .a = d->a.dtype,
                                      .b = d->b.dtype,
                                      .a_mn_major = x->a.item.mn_major,
                                      .b_mn_major = x->b.item.mn_major});
}

/* Returns the bytes of one slice. */
static int fill_map(const operand *o, int tile, mica_tensor_map_spec *m)
{
    int slice = gemm_sm90_fill_map(&o->item, tile, m);
    if (o->deep) {
        m->rank = 3;
        m->dims[2] = o->groups;
        m->stride_bytes[2] =
            gemm_map_stride(o->groups, o->group_stride, 16, gemm_sm90_bytes(o->item.dtype));
        m->box[2] = 1;
    }
    return slice;
}

static void fill_c_map(const grouped *g, const gemm_shape *s, const mica_config *c,
                       mica_tensor_map_spec *m)
{
    mica_dtype dtype = g->item.c.dtype;
    operand o = {{"c", dtype, s->m, s->c_m, s->n, 1, false, false},
                 g->form != GROUPED_ROWS,
                 g->count,
                 g->group[MICA_GEMM_C]};
    fill_map(&o, ROWS_OF_TEAM, m);
    m->tf32 = false;
    m->box[0] = (uint32_t)box_of(dtype, c);
    m->box[1] = ROWS_OF_TEAM;
    m->swizzle_bytes = box_of(dtype, c) * gemm_sm90_bytes(dtype);
}

/* Bytes to which every vector of four elements of c is aligned if c itself is; 0: not all are. */
static int vector_bytes(const grouped *g, const gemm_shape *s)
{
    const bool several = s->m > 1 || g->form == GROUPED_ROWS;
    const int64_t steps = (several ? s->c_m : 0) | g->group[MICA_GEMM_C];
    return mica_access_fit(4, steps) == 4 ? mica_access_bytes(g->item.c.dtype, 4) : 0;
}

static void fill_args(const grouped *g, const geometry *x, const mica_config *c, int units,
                      grouped_sm90_state *s)
{
    grouped_sm90_args *a = &s->args;
    int m = c->knob[KNOB_TILE_M], n = c->knob[KNOB_TILE_N];
    grouped_args_fill(g, &a->grouped);
    a->across = (int)x->shape.n;
    a->tiles_lines = (int)ceiling(x->shape.m, m);
    a->tiles_across = (int)ceiling(x->shape.n, n);
    a->band = gemm_sm90_band(m, n, units);
    a->slices = (int)ceiling(x->shape.k, LINE_BYTES / gemm_sm90_bytes(x->a.item.dtype));
    a->stage_bytes = fill_map(&x->a, m, &s->a) + fill_map(&x->b, n, &s->b);
    s->c_vector = vector_bytes(g, &x->shape);
    s->light = is_light(g, &x->shape);
    if (s->light) fill_c_map(g, &x->shape, c, &s->c);
}

mica_status grouped_sm90_build(mica_plan *plan, const grouped *g)
{
    geometry x;
    mica_why why;
    grouped_sm90_state *s = plan->state;
    const mica_config *c = &plan->config;
    const mica_device_info *device = &plan->device;
    MICA_TRY(make_geometry(g, &x, &why));
    fill_args(g, &x, c, device->units, s);
    int teams = teams_of(c), stages = stages_of(g, c, device);
    int shared =
        stage_bytes(g, c) * stages + teams * buffers_of(g, c, device) * BUFFER_BYTES + BARRIERS;
    s->grid = (mica_grid){.grid = {(unsigned)device->units},
                          .block = {128u * (unsigned)(teams + 1)},
                          .dynamic_shared = (unsigned)shared};
    char text[8192];
    mica_text prologue = {text, sizeof text, 0};
    write_prologue(g, &x, c, device, &prologue);
    return mica_plan_add_kernel(plan,
                                &(mica_kernel_spec){.file = "ops/grouped_gemm/sm90/sm90.cu",
                                                    .entry = "grouped_sm90",
                                                    .prologue = text,
                                                    .dynamic_shared = shared},
                                &s->kernel);
}

mica_status grouped_sm90_run(const mica_plan *plan, const mica_run *r, const void *groups)
{
    const grouped_sm90_state *s = plan->state;
    void *a = r->args[MICA_GEMM_A], *b = r->args[MICA_GEMM_B], *c = r->args[MICA_GEMM_C];
    if (!mica_access_starts(a, 16) || !mica_access_starts(b, 16))
        return mica_plan_child_run(s->fallback, r);
    grouped_sm90_args args = s->args;
    MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->a, a, &args.a));
    MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->b, b, &args.b));
    gemm_args_bind(plan, r, &args.grouped.gemm);
    args.grouped.groups = groups;
    args.plain = args.grouped.gemm.alpha == 1;
    args.whole = mica_access_starts(c, s->c_vector);
    args.light = s->light && args.grouped.gemm.beta == 0 && mica_access_starts(c, 16);
    if (args.light) MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->c, c, &args.c));
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &args);
}

/* ---- the engine of grouped_gemm ---- */

static double bytes_moved(const void *desc)
{
    return mica_op_bytes(&mica_op_grouped_gemm, desc);
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    grouped g;
    grouped_make(desc, &g);
    return grouped_sm90_accepts(&g, device, why);
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    grouped g;
    grouped_make(desc, &g);
    return grouped_sm90_configs(&g, bytes_moved(desc), device, out);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    grouped g;
    grouped_make(desc, &g);
    return grouped_sm90_predict(&g, bytes_moved(desc), device, c);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)config;
    grouped g;
    grouped_make(desc, &g);
    grouped_sm90_contract(&g, c);
}

static mica_status build(mica_plan *plan)
{
    grouped_sm90_state *s;
    grouped g;
    size_t workspace;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    grouped_make(plan->desc, &g);
    MICA_TRY(grouped_sm90_build(plan, &g));
    return mica_plan_child_create(plan, "grouped_gemm", plan->desc, sizeof(mica_grouped_gemm_desc),
                                  grouped_cuda.name, &s->fallback, &workspace);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    return grouped_sm90_run(plan, r, r->args[MICA_GROUPED_GEMM_GROUPS]);
}

const mica_engine grouped_sm90 = {.name = "sm90",
                                  .cuda = true,
                                  .knobs = grouped_sm90_knobs,
                                  .accepts = accepts,
                                  .configs = configs,
                                  .predict = predict,
                                  .contract = contract,
                                  .build = build,
                                  .run = run};
