/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda" of grid_sample: any types and strides; vectors of channels where those are
 * neighbours, else neighbouring outputs. Memory-bound where neighbouring outputs sample
 * neighbours. The gradient of x is a sum over lists of taps (ops/taps), that of the grid a kernel
 * of its own; there are no atomics whose order changes bits. */
#include "ops/grid_sample/grid_sample.h"
#include "ops/access/access.h"
#include "ops/taps/taps.h"

enum { BLOCK = 256, WARP = 32, PLANE_GROUP = 16, MOST_PLANES = 64, SLOPE_BLOCK = 128 };

typedef struct state {
    mica_grid_sample_args args;
    mica_kernel *forward, *slopes, *emit;
    mica_grid grid, slopes_grid, emit_grid;
    mica_taps taps;
    int vector_bytes; /* 0: channels are no neighbours */
    bool dx;
} state;

static void add_constants(mica_text *p, const mica_grid_sample_desc *d, const mica_taps_strides *x,
                          const mica_taps_shape *shape, int block)
{
    double span = 1;
    for (int a = 0; a < MICA_TAPS_AXES; a++)
        span += (double)(shape->in[a] - 1) * (double)(x->at[a] < 0 ? -x->at[a] : x->at[a]);
    mica_prologue_int(p, "AXES", d->grid.rank - 2);
    mica_prologue_int(p, "MODE", (int)d->mode);
    mica_prologue_int(p, "BLOCK", block);
    mica_prologue_type(p, "grid_t", d->grid.dtype);
    mica_prologue_type(p, "offset_t", span < 0x1p31 ? MICA_S32 : MICA_S64);
}

static mica_status build_forward(mica_plan *plan, state *s)
{
    const mica_grid_sample_desc *d = plan->desc;
    char buffer[512] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    const mica_grid_sample_args *a = &s->args;
    const bool last = s->vector_bytes > 0;
    const int64_t c = a->shape.c, outputs = a->shape.n * a->shape.out_count;
    int group = PLANE_GROUP;
    if (last) group = s->vector_bytes * 8 / mica_dtype_bits(d->x.dtype);
    while (!last && group > 1 && group / 2 >= c) group /= 2;
    while (!last && group < MOST_PLANES && group < c &&
           (outputs / BLOCK) * (c / group) > 16 * (int64_t)plan->device.units)
        group *= 2;
    const int64_t groups = (c - 1) / group + 1;
    const int64_t blocks =
        last ? (outputs * groups - 1) / BLOCK + 1 : ((outputs - 1) / BLOCK + 1) * groups;
    s->grid = (mica_grid){.grid = {(unsigned)blocks}, .block = {BLOCK}};
    add_constants(&p, d, &a->x_step, &a->shape, BLOCK);
    mica_prologue_int(&p, "CHANNELS_LAST", last);
    mica_prologue_int(&p, "GROUP", group);
    mica_prologue_type(&p, "x_t", d->x.dtype);
    mica_prologue_type(&p, "real", mica_grid_sample_real(d));
    mica_kernel_spec spec = {"ops/grid_sample/grid_sample_forward.cu", "grid_sample_forward",
                             buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->forward);
}

static mica_status build_slopes(mica_plan *plan, state *s)
{
    const mica_grid_sample_desc *d = plan->desc;
    char buffer[512] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    const mica_grid_sample_args *a = &s->args;
    const bool last = s->vector_bytes > 0;
    int group = last ? s->vector_bytes * 8 / mica_dtype_bits(d->x.dtype) : 1, lanes = 1;
    if (mica_grid_sample_taps(d) == 4 && group > 4) group = 4; /* of 16 taps, or registers spill */
    while (last && lanes < WARP && lanes * group < a->shape.c) lanes *= 2;
    const int64_t of_block = last ? SLOPE_BLOCK / lanes : WARP;
    const int64_t outputs = a->shape.n * a->shape.out_count;
    s->slopes_grid =
        (mica_grid){.grid = {(unsigned)((outputs - 1) / of_block + 1)}, .block = {SLOPE_BLOCK}};
    add_constants(&p, d, &a->x_step, &a->shape, SLOPE_BLOCK);
    mica_prologue_int(&p, "CHANNELS_LAST", last);
    mica_prologue_int(&p, "GROUP", group);
    mica_prologue_int(&p, "LANES", lanes);
    mica_prologue_type(&p, "x_t", d->x.dtype);
    mica_prologue_type(&p, "dgrid_t", d->dgrid.dtype);
    mica_prologue_type(&p, "real", mica_grid_sample_real(d));
    mica_kernel_spec spec = {"ops/grid_sample/grid_sample_slopes.cu", "grid_sample_slopes", buffer,
                             0};
    return mica_plan_add_kernel(plan, &spec, &s->slopes);
}

static mica_status build_gradient(mica_plan *plan, state *s)
{
    const mica_grid_sample_desc *d = plan->desc;
    char buffer[512] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    const mica_dtype real = mica_grid_sample_real(d);
    MICA_TRY(mica_taps_build(plan, &s->taps, &d->dy, &d->dx, mica_grid_sample_all_taps(d), real));
    const int64_t outputs = s->args.shape.n * s->args.shape.out_count;
    if (!s->taps.sum || outputs == 0) return MICA_OK;
    s->emit_grid = (mica_grid){.grid = {(unsigned)((outputs - 1) / BLOCK + 1)}, .block = {BLOCK}};
    add_constants(&p, d, &s->args.x_step, &s->args.shape, BLOCK);
    mica_taps_prologue(&s->taps, real, &p);
    mica_kernel_spec spec = {"ops/grid_sample/grid_sample_emit.cu", "grid_sample_emit", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->emit);
}

/* Whether a sample's channels are neighbours, aligned for vectors everywhere. */
static int vector_of(const mica_grid_sample_desc *d, const mica_grid_sample_args *a)
{
    if (a->shape.c < 2 || a->x_step.c != 1 || a->y_step.c != 1) return 0;
    int64_t steps = a->x_step.n | a->y_step.n;
    for (int i = 0; i < MICA_TAPS_AXES; i++) steps |= a->x_step.at[i] | a->y_step.at[i];
    const mica_dtype type = mica_grid_sample_image(d)->dtype;
    return mica_access_bytes(type, mica_access_fit(mica_access_of(type), steps));
}

static mica_status build(mica_plan *plan)
{
    const mica_grid_sample_desc *d = plan->desc;
    const mica_tensor *x = mica_grid_sample_image(d), *y = mica_grid_sample_output(d);
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    s->args.shape = mica_taps_shape_of(x, y);
    s->args.x_step = mica_taps_strides_of(x);
    s->args.y_step = mica_taps_strides_of(y);
    s->args.grid_step = mica_grid_sample_grid_strides(&d->grid);
    s->args.padding = (int)d->padding, s->args.align = d->align_corners;
    s->vector_bytes = vector_of(d, &s->args);
    s->dx = mica_tensor_given(&d->dx);
    const bool some = s->args.shape.n * s->args.shape.out_count > 0;
    if (mica_grid_sample_is_forward(d))
        return some && s->args.shape.c ? build_forward(plan, s) : MICA_OK;
    if (mica_tensor_given(&d->dgrid) && some) {
        s->args.dgrid_step = mica_grid_sample_grid_strides(&d->dgrid);
        MICA_TRY(build_slopes(plan, s));
    }
    return s->dx ? build_gradient(plan, s) : MICA_OK;
}

static mica_status run_gradient(const mica_plan *plan, const mica_run *run,
                                mica_grid_sample_args *a)
{
    const state *s = plan->state;
    MICA_TRY(mica_taps_begin(plan, &s->taps, run, &a->lists));
    if (s->emit) MICA_TRY(mica_kernel_launch(s->emit, &s->emit_grid, run->stream, a));
    return mica_taps_end(&s->taps, run, &a->lists, a->dy, run->args[MICA_GRID_SAMPLE_DX]);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    mica_grid_sample_args a = s->args;
    a.x = run->args[MICA_GRID_SAMPLE_X];
    a.grid = run->args[MICA_GRID_SAMPLE_GRID];
    a.y = run->args[MICA_GRID_SAMPLE_Y];
    a.dy = run->args[MICA_GRID_SAMPLE_DY];
    a.dgrid = run->args[MICA_GRID_SAMPLE_DGRID];
    const void *y = s->forward ? a.y : a.dy;
    a.whole = mica_access_starts(a.x, s->vector_bytes) && mica_access_starts(y, s->vector_bytes);
    if (s->forward) MICA_TRY(mica_kernel_launch(s->forward, &s->grid, run->stream, &a));
    if (s->slopes) MICA_TRY(mica_kernel_launch(s->slopes, &s->slopes_grid, run->stream, &a));
    return s->dx ? run_gradient(plan, run, &a) : MICA_OK;
}

const mica_engine mica_grid_sample_cuda = {.name = "cuda",
                                           .cuda = true,
                                           .reached = 0.6,
                                           .start_ms = 3e-3,
                                           .contract = mica_grid_sample_contract,
                                           .build = build,
                                           .run = run};
