/* SPDX-License-Identifier: Apache-2.0
 * Plans of sums over taps. */
#include "ops/taps/taps.h"
#include "ops/access/access.h"

enum { BLOCK = 256, PLANE_GROUP = 8 };

mica_taps_strides mica_taps_strides_of(const mica_tensor *t)
{
    mica_taps_strides s = {.n = mica_access_step(t->strides[0], t->dims[0]),
                           .c = mica_access_step(t->strides[1], t->dims[1])};
    for (int a = 0; a + 2 < t->rank && a < MICA_TAPS_AXES; a++)
        s.at[a] = mica_access_step(t->strides[a + 2], t->dims[a + 2]);
    return s;
}

mica_taps_shape mica_taps_shape_of(const mica_tensor *in, const mica_tensor *out)
{
    mica_taps_shape s = {.n = out->dims[0], .c = out->dims[1], .in_count = 1, .out_count = 1};
    for (int a = 0; a < MICA_TAPS_AXES; a++) {
        s.in[a] = a + 2 < in->rank ? in->dims[a + 2] : 1;
        s.out[a] = a + 2 < out->rank ? out->dims[a + 2] : 1;
        s.in_count *= s.in[a], s.out_count *= s.out[a];
    }
    return s;
}

static bool is_wide(const mica_taps *t)
{
    return t->args.lists.entries >= UINT32_MAX || t->args.lists.cells >= UINT32_MAX;
}

void mica_taps_prologue(const mica_taps *taps, mica_dtype real, mica_text *text)
{
    mica_text_add(text, "typedef %s mark;\n", is_wide(taps) ? "unsigned long long" : "unsigned");
    mica_prologue_type(text, "real", real);
}

static mica_grid grid_of(int64_t threads)
{
    return (mica_grid){.grid = {(unsigned)((threads - 1) / BLOCK + 1)}, .block = {BLOCK}};
}

static mica_status book(mica_plan *plan, mica_taps *t, mica_dtype real)
{
    const int64_t mark = is_wide(t) ? 8 : 4, number = mica_dtype_bits(real) / 8;
    const int64_t e = t->args.lists.entries, cells = t->args.lists.cells;
    const struct {
        const char *name;
        int64_t bytes;
    } rows[MICA_TAPS_BOOKED] = {
        [MICA_TAPS_CELLS] = {"cells of taps", e * mark},
        [MICA_TAPS_SLOTS] = {"taps by arrival", e * mark},
        [MICA_TAPS_WEIGHTS] = {"weights of taps", e * number},
        [MICA_TAPS_COUNTS] = {"taps of each cell", (cells + 1) * mark},
        [MICA_TAPS_STARTS] = {"lists of cells", cells * mark},
        [MICA_TAPS_PLACED] = {"taps by cell", e * mark},
        [MICA_TAPS_OUTPUTS] = {"outputs by cell", e * mark},
        [MICA_TAPS_FACTORS] = {"weights by cell", e * number},
    };
    t->count_bytes = rows[MICA_TAPS_COUNTS].bytes;
    for (int i = 0; i < MICA_TAPS_BOOKED; i++)
        MICA_TRY(mica_book(plan, rows[i].name, (size_t)rows[i].bytes, &t->at[i]));
    return MICA_OK;
}

static mica_status add_sum(mica_plan *plan, mica_taps *t, const mica_tensor *from,
                           const mica_tensor *to, mica_dtype real)
{
    char buffer[512] = "";
    mica_text text = {buffer, sizeof buffer, 0};
    const mica_taps_shape *s = &t->args.shape;
    const mica_taps_strides *step = &t->args.from_step;
    const int axes = from->rank - 2;
    const mica_dtype types[] = {from->dtype, to->dtype};
    const bool last = s->c > 1 && step->c == 1 && t->args.to_step.c == 1;
    int64_t steps = step->n | t->args.to_step.n;
    bool packed = true;
    for (int a = 0; a < axes; a++) {
        steps |= step->at[a] | t->args.to_step.at[a];
        if (a > 0)
            packed &= s->out[a - 1] == 1 || step->at[a - 1] == step->at[axes - 1] * s->out[a];
        if (a > 0 && a < axes - 1) packed &= s->out[a] > 1;
    }
    packed &= s->out[axes - 1] > 1 || s->out_count == 1;
    int group = PLANE_GROUP;
    if (last) group = mica_access_fit(mica_access_most(types, 2), steps);
    while (!last && group > 1 && group / 2 >= s->c) group /= 2;
    t->vector_bytes = last ? mica_access_bytes(from->dtype, group) : 0;
    const int64_t groups = (s->c - 1) / group + 1;
    t->sum_grid = grid_of(t->args.lists.cells * groups);
    if (!last) t->sum_grid = grid_of(((t->args.lists.cells - 1) / BLOCK + 1) * groups * BLOCK);
    mica_taps_prologue(t, real, &text);
    mica_prologue_int(&text, "AXES", axes);
    mica_prologue_int(&text, "CHANNELS_LAST", last);
    mica_prologue_int(&text, "PACKED", packed);
    mica_prologue_int(&text, "GROUP", group);
    mica_prologue_int(&text, "BLOCK", BLOCK);
    mica_prologue_type(&text, "from_t", from->dtype);
    mica_prologue_type(&text, "to_t", to->dtype);
    mica_kernel_spec spec = {"ops/taps/taps_sum.cu", "taps_sum", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &t->sum);
}

mica_status mica_taps_build(mica_plan *plan, mica_taps *t, const mica_tensor *from,
                            const mica_tensor *to, int each, mica_dtype real)
{
    char buffer[256] = "";
    mica_text text = {buffer, sizeof buffer, 0};
    t->args.shape = mica_taps_shape_of(to, from);
    t->args.from_step = mica_taps_strides_of(from);
    t->args.to_step = mica_taps_strides_of(to);
    t->args.lists.entries = t->args.shape.n * t->args.shape.out_count * each;
    t->args.lists.cells = t->args.shape.n * t->args.shape.in_count;
    if (t->args.lists.cells * t->args.shape.c == 0) return MICA_OK;
    MICA_TRY(book(plan, t, real));
    t->open_grid = grid_of(t->args.lists.cells);
    if (t->args.lists.entries) t->entry_grid = grid_of(t->args.lists.entries);
    mica_taps_prologue(t, real, &text);
    mica_prologue_int(&text, "TAPS", each);
    mica_prologue_int(&text, "BLOCK", BLOCK);
    const mica_kernel_spec open = {"ops/taps/taps_open.cu", "taps_open", buffer, 0};
    const mica_kernel_spec place = {"ops/taps/taps_place.cu", "taps_place", buffer, 0};
    const mica_kernel_spec order = {"ops/taps/taps_order.cu", "taps_order", buffer, 0};
    MICA_TRY(mica_plan_add_kernel(plan, &open, &t->open));
    MICA_TRY(mica_plan_add_kernel(plan, &place, &t->place));
    MICA_TRY(mica_plan_add_kernel(plan, &order, &t->order));
    return add_sum(plan, t, from, to, real);
}

mica_status mica_taps_begin(const mica_plan *plan, const mica_taps *t, const mica_run *run,
                            mica_taps_lists *lists)
{
    *lists = t->args.lists;
    if (!t->sum) return MICA_OK;
    lists->cells_of_entries = mica_at(run, t->at[MICA_TAPS_CELLS]);
    lists->slots = mica_at(run, t->at[MICA_TAPS_SLOTS]);
    lists->weights = mica_at(run, t->at[MICA_TAPS_WEIGHTS]);
    lists->counts = mica_at(run, t->at[MICA_TAPS_COUNTS]);
    lists->starts = mica_at(run, t->at[MICA_TAPS_STARTS]);
    lists->placed = mica_at(run, t->at[MICA_TAPS_PLACED]);
    lists->outputs = mica_at(run, t->at[MICA_TAPS_OUTPUTS]);
    lists->factors = mica_at(run, t->at[MICA_TAPS_FACTORS]);
    return mica_cuda_memset(plan->cuda, lists->counts, 0, t->count_bytes, run->stream);
}

mica_status mica_taps_end(const mica_taps *t, const mica_run *run, const mica_taps_lists *lists,
                          const void *from, void *to)
{
    if (!t->sum) return MICA_OK;
    mica_taps_args a = t->args;
    a.lists = *lists;
    a.from = from, a.to = to;
    a.whole = mica_access_starts(from, t->vector_bytes) && mica_access_starts(to, t->vector_bytes);
    MICA_TRY(mica_kernel_launch(t->open, &t->open_grid, run->stream, &a));
    if (a.lists.entries) {
        MICA_TRY(mica_kernel_launch(t->place, &t->entry_grid, run->stream, &a));
        MICA_TRY(mica_kernel_launch(t->order, &t->entry_grid, run->stream, &a));
    }
    return mica_kernel_launch(t->sum, &t->sum_grid, run->stream, &a);
}
