/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda" of roi_align: any types and strides; vectors of channels where those are
 * neighbours. Forward a block has a region and some channels; backward a tile of dx, which it
 * gathers. Memory-bound: y or dx once, and what is read, mostly from caches. No workspace. */
#include "ops/roi_align/roi_align.h"
#include "ops/access/access.h"

enum { BLOCK = 256, PLANE_GROUP = 4, TABLE = 512, WAVES = 8, TILE_W = 32, TILE_OF_LANES = 4 };

typedef struct state {
    mica_roi_align_args args;
    mica_kernel *kernel;
    mica_grid grid;
    int vector_bytes; /* 0: channels are no neighbours */
} state;

static int64_t parts(int64_t n, int64_t of)
{
    return (n + of - 1) / of;
}

/* Channels of a thread that are neighbours, aligned for vectors everywhere; 0: they are not. */
static int vector_of(const mica_roi_align_desc *d, const mica_roi_align_args *a)
{
    const mica_roi_align_strides *x = &a->x_step, *y = &a->y_step;
    if (a->c < 2 || x->c != 1 || y->c != 1) return 0;
    const int64_t steps = x->n | x->h | x->w | y->n | y->h | y->w;
    return mica_access_fit(mica_access_of(mica_roi_align_image(d)->dtype), steps);
}

static int64_t shape_forward(mica_text *p, const mica_plan *plan, const mica_roi_align_args *a,
                             int group)
{
    int64_t chunk = parts(a->c, group) * group;
    while (chunk > group && a->k * parts(a->c, chunk) < (int64_t)WAVES * plan->device.units &&
           a->bins_h * a->bins_w * parts(chunk, group) > BLOCK)
        chunk = parts(parts(chunk, 2), group) * group;
    mica_prologue_int(p, "CHUNK", chunk);
    mica_prologue_int(p, "TABLE", TABLE);
    const double items = (double)a->bins_h * (double)a->bins_w * (double)parts(chunk, group);
    mica_text_add(p, "typedef %s item_t;\n", items < 0x1p31 ? "unsigned" : "unsigned long long");
    return a->k * parts(a->c, chunk);
}

static int64_t shape_backward(mica_text *p, const mica_roi_align_args *a, int group, bool last)
{
    int lanes = 1;
    while (last && lanes * group < a->c && lanes < BLOCK / TILE_OF_LANES / TILE_OF_LANES)
        lanes *= 2;
    const int wide = last ? TILE_OF_LANES : TILE_W, high = BLOCK / lanes / wide;
    mica_prologue_int(p, "TILE_H", high);
    mica_prologue_int(p, "TILE_W", wide);
    mica_prologue_int(p, "LANES", lanes);
    return a->n * parts(a->h, high) * parts(a->w, wide) * parts(a->c, lanes * group);
}

static mica_status build(mica_plan *plan)
{
    const mica_roi_align_desc *d = plan->desc;
    const bool fwd = mica_roi_align_is_forward(d);
    const mica_dtype type = mica_roi_align_image(d)->dtype;
    char buffer[768] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_roi_align_args *a = &s->args;
    mica_roi_align_args_make(d, a);
    const bool some = a->c > 0 && (fwd ? a->k * a->bins_h * a->bins_w : a->n * a->h * a->w) > 0;
    if (!some) return MICA_OK;
    int group = vector_of(d, a);
    const bool last = group > 0;
    s->vector_bytes = last ? mica_access_bytes(type, group) : 0;
    if (!last) group = PLANE_GROUP;
    while (!last && group > 1 && group / 2 >= a->c) group /= 2;
    const int64_t blocks =
        fwd ? shape_forward(&p, plan, a, group) : shape_backward(&p, a, group, last);
    s->grid = (mica_grid){.grid = {(unsigned)blocks}, .block = {BLOCK}};
    mica_prologue_int(&p, "MODE", (int)d->mode);
    mica_prologue_int(&p, "BATCH", mica_tensor_given(&d->batch));
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_int(&p, "GROUP", group);
    if (fwd) mica_prologue_int(&p, "CHANNELS_LAST", last);
    if (fwd) mica_prologue_int(&p, "ARGMAX", mica_tensor_given(&d->argmax));
    mica_prologue_type(&p, "x_t", type);
    mica_prologue_type(&p, "rois_t", d->rois.dtype);
    mica_prologue_type(&p, "batch_t", mica_tensor_given(&d->batch) ? d->batch.dtype : MICA_S32);
    mica_prologue_type(&p, "argmax_t", mica_tensor_given(&d->argmax) ? d->argmax.dtype : MICA_S32);
    mica_prologue_type(&p, "real", mica_roi_align_real(d));
    const mica_kernel_spec forward = {"ops/roi_align/roi_align_forward.cu", "roi_align_forward",
                                      buffer, 0};
    const mica_kernel_spec backward = {"ops/roi_align/roi_align_backward.cu", "roi_align_backward",
                                       buffer, 0};
    return mica_plan_add_kernel(plan, fwd ? &forward : &backward, &s->kernel);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    mica_roi_align_args a = s->args;
    if (!s->kernel) return MICA_OK;
    mica_roi_align_args_point(plan->desc, run->args, &a);
    const bool fwd = mica_roi_align_is_forward(plan->desc);
    a.whole = mica_access_starts(fwd ? a.x : a.dx, s->vector_bytes) &&
              mica_access_starts(fwd ? a.y : a.dy, s->vector_bytes);
    return mica_kernel_launch(s->kernel, &s->grid, run->stream, &a);
}

const mica_engine mica_roi_align_cuda = {.name = "cuda",
                                         .cuda = true,
                                         .reached = 0.4,
                                         .start_ms = 3e-3,
                                         .contract = mica_roi_align_contract,
                                         .build = build,
                                         .run = run};
