/* SPDX-License-Identifier: Apache-2.0
 * Engine "once" of quantize: scales and codes of blocks that the registers of a group of threads
 * hold, in one launch that reads and writes every element once: 1 + 1/2 of a copy's traffic for 8
 * bits of 16. Wider blocks, and those whose rows are no neighbours in memory, take engine "cuda".
 */
#include "ops/quantize/quantize.h"
#include "ops/access/slices.h"
#include "cpu/scratch.h"

enum { VECTOR = 8, THREADS = 512, KEPT_BYTES = 128, GROUP = 128, FEW = 2 };

typedef struct state {
    mica_quantize_set set;
    int count;
    mica_quantize_part parts[MICA_QUANTIZE_BOXES];
} state;

/* ---- blocks ---- */

static mica_tensor chosen(const mica_quantize_box *b, int place, bool inner)
{
    mica_tensor t = {.dtype = b->at[place].dtype};
    for (int d = 0; d < b->at[place].rank; d++) {
        if ((b->inner >> d & 1) != inner) continue;
        t.dims[t.rank] = b->at[place].dims[d];
        t.strides[t.rank++] = b->at[place].strides[d];
    }
    return t;
}

static void layout_of(const mica_quantize_box *b, bool inner, int places, mica_layout *l)
{
    mica_tensor tensors[MICA_QUANTIZE_PLACES];
    const mica_tensor *list[MICA_QUANTIZE_PLACES];
    for (int k = 0; k < places; k++) tensors[k] = chosen(b, k, inner), list[k] = &tensors[k];
    mica_layout_make(l, list, places);
    if (l->rank == 0) l->rank = 1, l->dims[0] = 1;
}

static int power_of_two_from(int64_t least)
{
    int p = 1;
    while (p < least) p *= 2;
    return p;
}

/* Rows of a block, and its threads. */
static mica_status make(const mica_quantize_set *set, const mica_quantize_box *b,
                        mica_quantize_part *p, mica_slices *s, mica_why *why)
{
    mica_layout rows;
    layout_of(b, true, 3, &rows);
    if (rows.rank > 2)
        return mica_refuse(why, "blocks of %d dimensions apart in memory, this engine takes 2",
                           rows.rank);
    const int last = rows.rank - 1;
    for (int k = 0; k < 2; k++)
        if (rows.dims[last] > 1 && rows.strides[k][last] != 1)
            return mica_refuse(
                why, "elements of a block are %lld apart in memory, this engine takes neighbours",
                rows.strides[k][last]);
    mica_quantize_once_args *a = &p->args.once;
    *a = (mica_quantize_once_args){.rows = last ? rows.dims[0] : 1,
                                   .columns = rows.dims[last],
                                   .column_step = rows.strides[MICA_QUANTIZE_PLACE_INDEX][last]};
    for (int k = 0; k < 3; k++) a->row_step[k] = last ? rows.strides[k][0] : 0;
    mica_quantize_begin(set, b, p);
    p->vector = VECTOR;
    layout_of(b, false, MICA_QUANTIZE_PLACES, &a->blocks);
    const int64_t across = (a->columns - 1) / VECTOR + 1;
    const int bytes = VECTOR * mica_dtype_bits(set->at[MICA_QUANTIZE_PLACE_VALUE].dtype) / 8;
    const int most = KEPT_BYTES / bytes;
    if (across > (int64_t)THREADS * most || a->rows > (int64_t)THREADS * most ||
        across * a->rows > (int64_t)THREADS * most)
        return mica_refuse(why, "a block of %lld elements, this engine holds %d in %d threads",
                           (long long)(a->columns * a->rows), THREADS * most * VECTOR, THREADS);
    a->vectors = (int)across;
    const int64_t vectors = across * a->rows;
    *s = (mica_slices){.along = true, .vector = VECTOR};
    s->threads = power_of_two_from((vectors + FEW - 1) / FEW);
    if (s->threads > 32) s->threads = power_of_two_from((vectors + most - 1) / most);
    if (s->threads < 32 && vectors >= 32) s->threads = 32;
    if (s->threads > THREADS) s->threads = THREADS;
    s->items = power_of_two_from((vectors + s->threads - 1) / s->threads);
    s->slices = s->threads < GROUP ? GROUP / s->threads : 1;
    p->grid = mica_slices_grid(s, a->blocks.count);
    return MICA_OK;
}

/* Whether rows of all blocks begin at multiples of a unit. */
static bool rows_fit(const mica_quantize_once_args *a, int place, int64_t unit)
{
    bool fits = a->memory.first[place] % unit == 0 && a->row_step[place] % unit == 0;
    for (int d = 0; d < a->blocks.rank; d++) fits = fits && a->blocks.strides[place][d] % unit == 0;
    return fits;
}

static bool in_whole_bytes(const mica_quantize_once_args *a)
{
    int64_t steps = a->memory.first[0] | a->row_step[0];
    for (int d = 0; d < a->blocks.rank; d++) steps |= a->blocks.strides[0][d];
    return !(steps & 1);
}

/* ---- the engine ---- */

static mica_status add_part(mica_plan *plan, const mica_quantize_set *set, const mica_slices *s,
                            mica_quantize_part *p)
{
    char buffer[1024] = "";
    mica_text text = {buffer, sizeof buffer, 0};
    const mica_quantize_once_args *a = &p->args.once;
    p->fits = rows_fit(a, MICA_QUANTIZE_PLACE_CODE, VECTOR) &&
              rows_fit(a, MICA_QUANTIZE_PLACE_VALUE, VECTOR);
    mica_slices_prologue(&text, s);
    mica_prologue_int(&text, "ROWS", a->rows > 1);
    mica_prologue_int(&text, "ENDS", set->pass == MICA_QUANTIZE_MINMAX);
    mica_prologue_int(&text, "WHOLE_BYTES", in_whole_bytes(a));
    mica_prologue_int(&text, "COUNTERS",
                      a->column_step == 1 && rows_fit(a, MICA_QUANTIZE_PLACE_INDEX, 4));
    mica_quantize_prologue(&text, set);
    mica_kernel_spec spec = {"ops/quantize/quantize_once.cu", "quantize_once", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &p->kernel);
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    mica_quantize_set set;
    int count;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    mica_quantize_box *boxes = mica_scratch_take(MICA_QUANTIZE_BOXES * sizeof *boxes);
    mica_quantize_part *p = mica_scratch_take(sizeof *p);
    mica_slices slices;
    mica_quantize_set_make(&mica_op_quantize, desc, NULL, &set);
    if (set.pass == MICA_QUANTIZE_GIVEN)
        return mica_refuse(why, "scales are given: there is nothing to find first");
    if (set.real != MICA_F32)
        return mica_refuse(why, "x is %s, this engine takes f32, f16, bf16",
                           mica_dtype_name(set.at[MICA_QUANTIZE_PLACE_VALUE].dtype));
    MICA_TRY(mica_quantize_cut(&set, boxes, &count, why));
    for (int b = 0; b < count; b++) MICA_TRY(make(&set, &boxes[b], p, &slices, why));
    return MICA_OK;
}

static mica_status build(mica_plan *plan)
{
    state *s;
    mica_why why;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    mica_quantize_box *boxes = mica_scratch_take(MICA_QUANTIZE_BOXES * sizeof *boxes);
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_quantize_set_make(plan->op, plan->desc, NULL, &s->set);
    MICA_TRY(mica_quantize_cut(&s->set, boxes, &s->count, &why));
    for (int b = 0; b < s->count; b++) {
        mica_slices slices;
        MICA_TRY(make(&s->set, &boxes[b], &s->parts[b], &slices, &why));
        MICA_TRY(add_part(plan, &s->set, &slices, &s->parts[b]));
    }
    return MICA_OK;
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    return mica_quantize_launch(&s->set, s->parts, s->count, run);
}

const mica_engine mica_quantize_once = {.name = "once",
                                        .cuda = true,
                                        .reached = 0.85,
                                        .start_ms = 3e-3,
                                        .contract = mica_quantize_contract,
                                        .accepts = accepts,
                                        .build = build,
                                        .run = run};
