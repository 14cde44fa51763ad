/* SPDX-License-Identifier: Apache-2.0
 * gemm on Hopper's tensor cores, fed by TMA: bf16, f16, tf32 (f32 with compute=tf32),
 * 8-bit integers and floats. Good for everything whose operands TMA can address; of
 * tf32's one need not be contiguous along K: a warpgroup's 64 lines of it go through registers,
 * which the tensor core takes as the left operand, so that c may have to be stored along those
 * lines. Cost: 2MNK at 0.9 of the sustained rate for full tiles, in whole rounds of tiles over the
 * multiprocessors; few rows run at the speed of memory. Gates, aux, amax and 8-bit results have a
 * kernel of their own. */
#include "ops/gemm/sm90/sm90_tiles.h"
#include "ops/gemm/sm90/sm90_full_args.h"
#include "ops/access/access.h"

static const char *const knobs[] = {"tile_m", "tile_n", "stages", "depth",
                                    "split",  "lines",  "turns",  NULL};

typedef struct state {
    gemm_sm90_full_args args; /* all but maps, pointers and scalars */
    mica_tensor_map_spec a, b, c, residual;
    bool swapped, light, boxed_residual;
    bool extra;   /* else the plain kernel gets the product's arguments only */
    int c_vector; /* bytes of alignment that vectors of c need; 0: c has no vectors */
    mica_kernel *kernel;
    mica_plan *fallback;
    mica_grid grid;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    gemm_sm90_geometry g;
    if (device->arch != 90)
        return mica_refuse(why, "the device is sm_%d, the kernels are sm_90's", device->arch);
    return gemm_sm90_plan_geometry(desc, &g, why);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)config;
    gemm_sm90_contract(desc, c);
}

/* ---- plans ---- */

static void write_prologue(const mica_gemm_desc *d, const gemm_sm90_geometry *g,
                           const mica_config *c, const mica_device_info *device, mica_text *p)
{
    bool whole = mica_dtype_is_integer(d->a.dtype);
    mica_prologue_int(p, "TILE_M", c->knob[KNOB_TILE_M]);
    mica_prologue_int(p, "LINES", gemm_sm90_tile_rows(c));
    mica_prologue_int(p, "TILE_N", c->knob[KNOB_TILE_N]);
    mica_prologue_int(p, "STAGES", c->knob[KNOB_STAGES]);
    mica_prologue_int(p, "GROUPS", gemm_sm90_groups(c));
    mica_prologue_int(p, "TURNS", c->knob[KNOB_PINGPONG]);
    mica_prologue_int(p, "DEPTH", c->knob[KNOB_DEPTH]);
    mica_prologue_int(p, "SPLIT", c->knob[KNOB_SPLIT]);
    mica_prologue_int(p, "BUFFERS", gemm_sm90_buffers(c, device));
    mica_prologue_int(p, "A_MN_MAJOR", g->a.mn_major);
    mica_prologue_int(p, "B_MN_MAJOR", g->b.mn_major);
    mica_prologue_int(p, "SWAPPED", g->swapped);
    mica_prologue_int(p, "ALONG_LINES", gemm_sm90_c_along_m(g));
    mica_prologue_int(p, "PROMOTE", gemm_sm90_promotes(d->a.dtype));
    mica_prologue_int(p, "LIGHT", gemm_sm90_is_light(d, g, c));
    mica_prologue_int(p, "RESIDUAL", gemm_sm90_brings_residual(d, g, c));
    mica_prologue_int(p, "BATCH_RANK", g->shape.batch_rank);
    mica_prologue_int(p, "HAS_SCALE_A", mica_tensor_given(&d->scale_a));
    mica_prologue_int(p, "HAS_SCALE_B", mica_tensor_given(&d->scale_b));
    mica_prologue_type(p, "a_t", g->a.dtype);
    mica_prologue_type(p, "b_t", g->b.dtype);
    mica_prologue_type(p, "c_t", d->c.dtype);
    mica_prologue_type(p, "sum_t", whole ? MICA_S32 : MICA_F32);
    mica_prologue_type(p, "out_t", gemm_epilogue_type(d));
    mica_epilogue e = gemm_epilogue(d);
    mica_prologue_int(p, "PACKED_VECTORS", mica_epilogue_is_packed(&e));
    mica_prologue_epilogue(p, &e);
    if (gemm_has_full_epilogue(d)) {
        mica_prologue_int(p, "HALVES", g->halves);
        gemm_full_prologue(d, p);
    }
    mica_prologue_wgmma(p, "mma",
                        &(mica_wgmma){.n = c->knob[KNOB_TILE_N],
                                      .a = g->a.dtype,
                                      .b = g->b.dtype,
                                      .a_mn_major = g->a.mn_major,
                                      .b_mn_major = g->b.mn_major,
                                      .a_in_registers = gemm_sm90_by_registers(g)});
}

/* Returns the bytes of one slice. */
static int fill_map(const gemm_sm90_operand *o, const gemm_shape *s, const long long *batch,
                    int tile, mica_tensor_map_spec *m)
{
    int bytes = gemm_sm90_fill_map(o, tile, m);
    gemm_map_batch(s, batch, gemm_sm90_bytes(o->dtype), m);
    return bytes;
}

/* Of c, or of a residual that lies as c may. */
static void fill_box_map(const mica_gemm_desc *d, const gemm_sm90_geometry *g, const mica_config *c,
                         const gemm_sm90_operand *o, const long long *batch,
                         mica_tensor_map_spec *m)
{
    int bytes = gemm_sm90_bytes(o->dtype);
    int box = gemm_sm90_c_along_m(g) ? LINE_BYTES / bytes : gemm_sm90_box(d, c);
    fill_map(o, &g->shape, batch, ROWS_OF_GROUP, m);
    m->tf32 = false;
    m->box[0] = (uint32_t)box;
    m->box[1] = (uint32_t)(gemm_sm90_c_along_m(g) ? gemm_sm90_n_of_buffer(d) : ROWS_OF_GROUP);
    m->swizzle_bytes = box * bytes;
}

static void fill_box_maps(const mica_gemm_desc *d, const gemm_sm90_geometry *g,
                          const mica_config *c, state *s)
{
    gemm_sm90_operand out = {"c", d->c.dtype, g->a.lines, g->c_m, g->b.lines, 1, false, false};
    if (gemm_sm90_c_along_m(g))
        out = (gemm_sm90_operand){"c", d->c.dtype, g->b.lines, g->c_n, g->a.lines, 1, false, false};
    gemm_sm90_operand in = {"residual", d->residual.dtype, g->a.lines, g->r_m, g->b.lines, 1, false,
                            false};
    s->light = gemm_sm90_is_light(d, g, c);
    s->boxed_residual = gemm_sm90_brings_residual(d, g, c);
    if (s->light) fill_box_map(d, g, c, &out, g->shape.c_batch, &s->c);
    if (s->boxed_residual) fill_box_map(d, g, c, &in, g->shape.r_batch, &s->residual);
}

/* Bytes to which every vector of four elements of c is aligned if c itself is; 0: not all are. */
static int vector_bytes(const mica_gemm_desc *d, const gemm_sm90_geometry *g)
{
    int64_t steps = mica_access_step(g->c_m, g->a.lines);
    for (int i = 0; i < g->shape.batch_rank; i++) steps |= g->shape.c_batch[i];
    return g->c_n == 1 && mica_access_fit(4, steps) == 4 ? mica_access_bytes(d->c.dtype, 4) : 0;
}

static void fill_args(const mica_gemm_desc *d, const gemm_sm90_geometry *g, const mica_config *c,
                      int units, state *s)
{
    gemm_sm90_args *a = &s->args.product;
    int m = gemm_sm90_tile_rows(c), n = c->knob[KNOB_TILE_N], parts = g->halves ? 2 : 1;
    a->gemm.shape = g->shape;
    gemm_args_fill(d, &a->gemm);
    gemm_full_fill(d, &s->args.x);
    s->extra = gemm_has_full_epilogue(d);
    a->lines = g->a.lines;
    a->across = g->b.lines;
    a->c_m = g->c_m;
    a->c_n = g->c_n;
    a->tiles_lines = (int)ceiling(a->lines, m);
    int tiles_across = (int)ceiling(a->across, n);
    a->tiles = (int)(a->tiles_lines * (long long)tiles_across * g->shape.batches);
    int high = gemm_sm90_band(c->knob[KNOB_TILE_M], n, units);
    if (high > a->tiles_lines) high = a->tiles_lines;
    a->plane = mica_fastdiv_make((unsigned)(a->tiles_lines * tiles_across));
    a->band = mica_fastdiv_make((unsigned)(high * tiles_across));
    a->high = mica_fastdiv_make((unsigned)high);
    a->last_high = mica_fastdiv_make((unsigned)((a->tiles_lines - 1) % high + 1));
    int depth = c->knob[KNOB_DEPTH];
    a->fills = (int)gemm_sm90_fills(g, c);
    int slice_bytes = fill_map(&g->a, &g->shape, g->a_batch, m, &s->a) +
                      parts * fill_map(&g->b, &g->shape, g->b_batch, n / parts, &s->b);
    a->stage_bytes = depth * slice_bytes;
    if (g->halves) a->partner = (int)(a->across / 2);
    s->swapped = g->swapped;
    s->c_vector = vector_bytes(d, g);
    fill_box_maps(d, g, c, s);
}

/* Pointers that TMA cannot take are only known when running: the engine for any device
 * takes those. */
static mica_status add_fallback(mica_plan *plan, state *s)
{
    size_t workspace;
    return mica_plan_child_create(plan, "gemm", plan->desc, sizeof(mica_gemm_desc), gemm_cuda.name,
                                  &s->fallback, &workspace);
}

/* Persistent blocks, or one tile each where its K is split. */
static int blocks_of(const mica_config *c, const gemm_sm90_args *args,
                     const mica_device_info *device)
{
    int split = c->knob[KNOB_SPLIT];
    if (split > 1) return args->tiles * split;
    return args->tiles < device->units ? args->tiles : device->units;
}

static mica_status build(mica_plan *plan)
{
    state *s;
    gemm_sm90_geometry g;
    mica_why why;
    const mica_gemm_desc *d = plan->desc;
    MICA_TRY(gemm_sm90_plan_geometry(d, &g, &why));
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    fill_args(d, &g, &plan->config, plan->device.units, s);
    int threads = 128 * (gemm_sm90_groups(&plan->config) + 1);
    int split = plan->config.knob[KNOB_SPLIT];
    int shared = gemm_sm90_ring_bytes(&plan->config) +
                 gemm_sm90_groups(&plan->config) * gemm_sm90_buffers(&plan->config, &plan->device) *
                     BUFFER_BYTES;
    s->grid =
        (mica_grid){.grid = {(unsigned)blocks_of(&plan->config, &s->args.product, &plan->device)},
                    .block = {(unsigned)threads},
                    .cluster = split > 1 ? (unsigned)split : 0,
                    .dynamic_shared = (unsigned)shared};
    char text[8192];
    mica_text prologue = {text, sizeof text, 0};
    write_prologue(d, &g, &plan->config, &plan->device, &prologue);
    MICA_TRY(
        mica_plan_add_kernel(plan,
                             &(mica_kernel_spec){.file = s->extra ? "ops/gemm/sm90/sm90_full.cu"
                                                                  : "ops/gemm/sm90/sm90.cu",
                                                 .entry = s->extra ? "gemm_sm90_full" : "gemm_sm90",
                                                 .prologue = text,
                                                 .dynamic_shared = shared},
                             &s->kernel));
    return add_fallback(plan, s);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    void *a = r->args[MICA_GEMM_A], *b = r->args[MICA_GEMM_B];
    if (!mica_access_starts(a, 16) || !mica_access_starts(b, 16))
        return mica_plan_child_run(s->fallback, r);
    if (s->extra) MICA_TRY(gemm_full_begin(plan, r));
    gemm_sm90_full_args args = s->args;
    gemm_sm90_args *p = &args.product;
    MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->a, s->swapped ? b : a, &p->a));
    MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->b, s->swapped ? a : b, &p->b));
    gemm_args_bind(plan, r, &p->gemm);
    gemm_full_bind(plan, r, &args.x);
    p->plain = p->gemm.alpha == 1;
    p->whole = mica_access_starts(p->gemm.c, s->c_vector);
    void *residual = r->args[MICA_GEMM_RESIDUAL];
    p->light = s->light && p->gemm.beta == 0 && mica_access_starts(p->gemm.c, 16) &&
               (!s->boxed_residual || mica_access_starts(residual, 16));
    if (p->light) MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->c, p->gemm.c, &p->c));
    if (p->light && s->boxed_residual)
        MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->residual, residual, &p->residual));
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, s->extra ? (void *)&args : p);
}

const mica_engine gemm_sm90 = {.name = "sm90",
                               .cuda = true,
                               .knobs = knobs,
                               .accepts = accepts,
                               .configs = gemm_sm90_configs,
                               .predict = gemm_sm90_predict,
                               .contract = contract,
                               .build = build,
                               .run = run};
