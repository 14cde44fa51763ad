/* SPDX-License-Identifier: Apache-2.0
 * Engine "winner" of max_unpool forward, in time linear in x and y: a workspace of a number per
 * element of y, in which each element of x leaves its position where it goes to and the largest
 * stays; then y from its winners. "cuda" reads all indices once for each tile of a plane. */
#include "mica/max_unpool.h"
#include "ops/op.h"
#include "ops/max_unpool/max_unpool_args.h"

#include <stdlib.h>

extern const mica_engine mica_max_unpool_winner;

enum { BLOCK = 256, ONE_TILE = 4096, MOST_COLUMNS = 128 };

typedef struct state {
    mica_kernel *mark, *store;
    mica_grid mark_grid, store_grid;
    mica_max_unpool_args args;
    size_t winners;
    int64_t bytes;
} state;

/* "cuda" has a plane's cells in tiles, of few columns more of them. */
static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_max_unpool_desc *d = desc;
    int64_t cells = 1, side = 1;
    (void)device;
    if (d->pass != MICA_MAX_UNPOOL_FWD)
        return mica_refuse(why, "pass is bwd, which has no winners");
    for (int i = 2; i < d->y.rank; i++) cells *= d->y.dims[i];
    while (side < MOST_COLUMNS && side < d->y.dims[0] * d->y.dims[1]) side *= 2;
    if (cells <= ONE_TILE / side)
        return mica_refuse(why, "a plane of y is %lld elements, one tile of cuda holds %lld",
                           (long long)cells, (long long)(ONE_TILE / side));
    return MICA_OK;
}

static void set_steps(const mica_tensor *t, long long *step, long long *extent)
{
    const int front = MICA_MAX_UNPOOL_AXES - t->rank;
    for (int i = 0; i < MICA_MAX_UNPOOL_AXES; i++) step[i] = 0;
    for (int i = 0; i < 3 && extent; i++) extent[i] = 1;
    for (int i = 0; i < t->rank; i++) {
        const int axis = i < 2 ? i : i + front;
        step[axis] = t->strides[i];
        if (extent && axis >= 2) extent[axis - 2] = t->dims[i];
    }
}

static mica_status add_kernel(mica_plan *plan, const state *s, const char *file, const char *entry,
                              mica_kernel **kernel)
{
    static const mica_dtype units[] = {MICA_U8, MICA_BF16, MICA_U32, MICA_S64};
    const mica_max_unpool_desc *d = plan->desc;
    const mica_max_unpool_args *a = &s->args;
    char buffer[512] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    const long long most = a->update_count > a->cell_count ? a->update_count : a->cell_count;
    const bool last = llabs(d->y.strides[1]) < llabs(d->y.strides[d->y.rank - 1]);
    mica_prologue_int(&p, "CHANNELS_LAST", a->channels > 1 && last);
    mica_prologue_int(&p, "WIDE", most > INT32_MAX);
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_type(&p, "winner_t", a->updates > INT32_MAX ? MICA_S64 : MICA_S32);
    mica_prologue_type(&p, "index_t", d->indices.dtype);
    mica_prologue_type(&p, "element_t",
                       units[__builtin_ctz((unsigned)mica_dtype_bits(d->x.dtype) / 8)]);
    const mica_kernel_spec spec = {file, entry, buffer, 0};
    return mica_plan_add_kernel(plan, &spec, kernel);
}

static mica_grid grid_of(long long count)
{
    return (mica_grid){.grid = {(unsigned)((count + BLOCK - 1) / BLOCK)}, .block = {BLOCK}};
}

static mica_status build(mica_plan *plan)
{
    const mica_max_unpool_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_max_unpool_args *a = &s->args;
    set_steps(&d->x, a->x_step, a->window);
    set_steps(&d->indices, a->index_step, NULL);
    set_steps(&d->y, a->y_step, a->plane);
    a->channels = d->y.dims[1];
    a->updates = a->window[0] * a->window[1] * a->window[2];
    a->cells = a->plane[0] * a->plane[1] * a->plane[2];
    a->update_count = mica_tensor_count(&d->x), a->cell_count = mica_tensor_count(&d->y);
    if (a->cell_count == 0) return MICA_OK;
    s->bytes = a->cell_count * (a->updates > INT32_MAX ? 8 : 4);
    s->mark_grid = grid_of(a->update_count), s->store_grid = grid_of(a->cell_count);
    MICA_TRY(mica_book(plan, "winners", (size_t)s->bytes, &s->winners));
    MICA_TRY(
        add_kernel(plan, s, "ops/max_unpool/max_unpool_store.cu", "max_unpool_store", &s->store));
    if (a->update_count == 0) return MICA_OK;
    return add_kernel(plan, s, "ops/max_unpool/max_unpool_mark.cu", "max_unpool_mark", &s->mark);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    mica_max_unpool_args a = s->args;
    if (!s->store) return MICA_OK;
    a.x = r->args[MICA_MAX_UNPOOL_X], a.indices = r->args[MICA_MAX_UNPOOL_INDICES];
    a.y = r->args[MICA_MAX_UNPOOL_Y], a.winners = mica_at(r, s->winners);
    MICA_TRY(mica_cuda_memset(plan->cuda, a.winners, 0xff, s->bytes, r->stream));
    if (s->mark) MICA_TRY(mica_kernel_launch(s->mark, &s->mark_grid, r->stream, &a));
    return mica_kernel_launch(s->store, &s->store_grid, r->stream, &a);
}

/* Before "cuda" in the list and predicted as long, so that it comes first. */
const mica_engine mica_max_unpool_winner = {.name = "winner",
                                            .cuda = true,
                                            .reached = 0.8,
                                            .start_ms = 3e-3,
                                            .accepts = accepts,
                                            .build = build,
                                            .run = run};
