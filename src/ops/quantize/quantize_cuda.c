/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda" of quantize and dequantize: a vector of 8 or 16 elements of a row per thread, which
 * reads its scale, or all of theirs. Bound by memory. Scales that are made take two more launches:
 * child plans of reduce for what blocks hold, and a kernel for scales and zero points. */
#include "ops/quantize/quantize.h"
#include "ops/access/access.h"
#include "cpu/scratch.h"

/* Threads take twice as many elements where enough threads remain. */
enum { BLOCK = 256, VECTOR = 8, WIDE = 16, MANY = 1 << 22 };

typedef struct state {
    mica_quantize_set set;
    int count;
    mica_quantize_part parts[MICA_QUANTIZE_BOXES];
    mica_quantize_extremes extremes;
    mica_kernel *scales;
    mica_quantize_scales_args scales_args;
    mica_grid scales_grid;
} state;

static bool is_nibble(mica_dtype d)
{
    return mica_dtype_bits(d) < 8;
}

static bool rows_fit(const mica_quantize_box *b, int place, int64_t unit)
{
    const mica_layout *l = &b->layout;
    if (l->strides[place][l->rank - 1] != 1 || b->first[place] % unit) return false;
    for (int d = 0; d < l->rank - 1; d++)
        if (l->strides[place][d] % unit) return false;
    return true;
}

static bool fit(const mica_quantize_box *b, int unit)
{
    return rows_fit(b, MICA_QUANTIZE_PLACE_CODE, unit) &&
           rows_fit(b, MICA_QUANTIZE_PLACE_VALUE, unit);
}

/* Whether rows begin at whole bytes and neighbours lie side by side: else elements of 4 bits are
 * put by atomic operations on the word around them. */
static bool in_whole_bytes(const mica_layout *l, int place, int64_t first)
{
    const int last = l->rank - 1;
    if (first & 1 || (l->dims[last] > 1 && l->strides[place][last] != 1)) return false;
    for (int d = 0; d < last; d++)
        if (l->strides[place][d] & 1) return false;
    return true;
}

/* Whether indices of rows are neighbours from a multiple of 4 on. */
static bool counts(const mica_layout *l)
{
    const long long *steps = l->strides[MICA_QUANTIZE_PLACE_INDEX];
    if (steps[l->rank - 1] != 1) return false;
    for (int d = 0; d < l->rank - 1; d++)
        if (steps[d] & 3) return false;
    return true;
}

/* ---- kernels ---- */

static mica_dtype stored(mica_dtype d)
{
    return is_nibble(d) ? MICA_U8 : d;
}

void mica_quantize_scale_prologue(mica_text *p, mica_dtype d)
{
    if (d == MICA_E8M0)
        mica_text_add(p, "struct e8m0;\ntypedef e8m0 scale_t;\n");
    else
        mica_prologue_type(p, "scale_t", d);
}

static void scale_type(mica_text *p, const mica_quantize_set *s)
{
    const mica_dtype d = s->at[MICA_QUANTIZE_PLACE_SCALE].dtype;
    mica_prologue_int(p, "POWER", d == MICA_E8M0);
    mica_quantize_scale_prologue(p, d);
}

void mica_quantize_prologue(mica_text *p, const mica_quantize_set *s)
{
    mica_prologue_int(p, "CODE", s->code);
    mica_prologue_int(p, "HAS_ZERO", s->arg[MICA_QUANTIZE_PLACE_ZERO] >= 0);
    mica_prologue_int(p, "HAS_GLOBAL", s->global_arg >= 0);
    mica_prologue_type(p, "code_t", stored(s->at[MICA_QUANTIZE_PLACE_CODE].dtype));
    mica_prologue_type(p, "value_t", s->at[MICA_QUANTIZE_PLACE_VALUE].dtype);
    mica_prologue_type(p, "real", s->real);
    scale_type(p, s);
    mica_prologue_int(p, "CHANCE", s->rng_arg >= 0);
}

void mica_quantize_begin(const mica_quantize_set *s, const mica_quantize_box *b,
                         mica_quantize_part *to)
{
    mica_quantize_memory *m = &to->args.memory;
    for (int k = 0; k < MICA_QUANTIZE_PLACES; k++) m->first[k] = b->first[k];
    m->first[MICA_QUANTIZE_PLACE_INDEX] += s->first_index;
    m->rng_stride = s->rng_stride;
}

static mica_status add_part(mica_plan *plan, const mica_quantize_set *s, const mica_quantize_box *b,
                            mica_quantize_part *to)
{
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    mica_quantize_args *a = &to->args.each;
    mica_layout *l = &a->layout;
    const int last = b->layout.rank - 1;
    *l = b->layout;
    mica_quantize_begin(s, b, to);
    a->group = b->group, a->scale_step = b->scale_step, a->zero_step = b->zero_step;
    a->columns = l->dims[last];
    const bool one_scale = b->group % WIDE == 0 || b->group == a->columns;
    const bool wide = one_scale && fit(b, WIDE) && l->count >= MANY;
    const int vector = to->vector = wide ? WIDE : VECTOR;
    to->fits = fit(b, vector);
    const bool whole_bytes =
        in_whole_bytes(&b->layout, MICA_QUANTIZE_PLACE_CODE, b->first[MICA_QUANTIZE_PLACE_CODE]);
    const bool counters =
        (a->memory.first[MICA_QUANTIZE_PLACE_INDEX] & 3) == 0 && counts(&b->layout);
    mica_access_count(l, vector, MICA_QUANTIZE_PLACES);
    to->grid = (mica_grid){.grid = {(unsigned)((l->count - 1) / BLOCK + 1)}, .block = {BLOCK}};
    mica_prologue_int(&p, "QUANTIZES", s->quantizes);
    mica_prologue_int(&p, "WHOLE_BYTES", whole_bytes);
    mica_prologue_int(&p, "VECTOR", vector);
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_int(&p, "COUNTERS", counters);
    mica_prologue_int(&p, "ONE_SCALE", b->group % vector == 0 || b->group == a->columns);
    mica_quantize_prologue(&p, s);
    mica_kernel_spec spec = {"ops/quantize/quantize.cu", "quantize", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &to->kernel);
}

static mica_status add_scales(mica_plan *plan, state *s)
{
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    const mica_quantize_set *set = &s->set;
    mica_quantize_scales_args *a = &s->scales_args;
    mica_layout *l = &a->layout;
    const bool ends = set->pass == MICA_QUANTIZE_MINMAX;
    const bool nibbles = ends && is_nibble(set->at[MICA_QUANTIZE_PLACE_CODE].dtype);
    mica_quantize_block_layout(set, l);
    const int pairs = nibbles && in_whole_bytes(l, 2, 0) ? 2 : 1;
    const int last = l->rank - 1;
    a->columns = l->dims[last];
    a->step[0] = l->strides[0][last], a->step[1] = l->strides[1][last];
    mica_access_count(l, pairs, 3);
    s->scales_grid =
        (mica_grid){.grid = {(unsigned)((l->count - 1) / BLOCK + 1)}, .block = {BLOCK}};
    mica_prologue_int(&p, "CODE", set->code);
    mica_prologue_int(&p, "ENDS", ends);
    mica_prologue_int(&p, "PAIRS", pairs);
    mica_prologue_int(&p, "NIBBLES", nibbles);
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_int(&p, "HAS_GLOBAL", set->global_arg >= 0);
    mica_prologue_type(&p, "zero_t", stored(set->at[MICA_QUANTIZE_PLACE_CODE].dtype));
    mica_prologue_type(&p, "real", set->real);
    scale_type(&p, set);
    mica_kernel_spec spec = {"ops/quantize/quantize_scales.cu", "quantize_scales", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->scales);
}

/* ---- the engine ---- */

static mica_status build(mica_plan *plan)
{
    state *s;
    mica_why why;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    mica_quantize_box *boxes = mica_scratch_take(MICA_QUANTIZE_BOXES * sizeof *boxes);
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_quantize_set_make(plan->op, plan->desc, NULL, &s->set);
    MICA_TRY(mica_quantize_cut(&s->set, boxes, &s->count, &why));
    for (int b = 0; b < s->count; b++) MICA_TRY(add_part(plan, &s->set, &boxes[b], &s->parts[b]));
    if (s->count == 0 || s->set.pass == MICA_QUANTIZE_GIVEN) return MICA_OK;
    MICA_TRY(add_scales(plan, s));
    return mica_quantize_extremes_build(plan, &s->set, boxes, s->count, &s->extremes);
}

static bool is_aligned(const mica_quantize_set *s, int place, const void *at, int vector)
{
    const int bits = vector * mica_dtype_bits(s->at[place].dtype), bytes = bits / 8;
    return mica_access_starts(at, bytes < MICA_ACCESS_BYTES ? bytes : MICA_ACCESS_BYTES);
}

mica_status mica_quantize_launch(const mica_quantize_set *s, const mica_quantize_part *parts,
                                 int count, const mica_run *run)
{
    for (int b = 0; b < count; b++) {
        const mica_quantize_part *p = &parts[b];
        mica_quantize_part_args a = p->args;
        mica_quantize_memory *m = &a.memory;
        for (int k = 0; k < MICA_QUANTIZE_PLACES; k++)
            if (s->arg[k] >= 0) m->at[k] = run->args[s->arg[k]];
        if (s->global_arg >= 0) m->global_scale = run->args[s->global_arg];
        if (s->rng_arg >= 0) m->rng = run->args[s->rng_arg];
        m->whole = p->fits;
        for (int k = MICA_QUANTIZE_PLACE_CODE; k <= MICA_QUANTIZE_PLACE_VALUE; k++)
            m->whole = m->whole && is_aligned(s, k, m->at[k], p->vector);
        MICA_TRY(mica_kernel_launch(p->kernel, &p->grid, run->stream, &a));
    }
    return MICA_OK;
}

static mica_status run_scales(const state *s, const mica_run *run)
{
    mica_quantize_scales_args a = s->scales_args;
    MICA_TRY(mica_quantize_extremes_run(&s->extremes, run));
    a.amax = mica_at(run, s->extremes.buffer[0]);
    if (s->extremes.kinds > 1) a.low = mica_at(run, s->extremes.buffer[1]);
    a.scale = run->args[MICA_QUANTIZE_SCALE];
    a.zero = run->args[MICA_QUANTIZE_ZERO];
    if (s->set.global_arg >= 0) a.global_scale = run->args[s->set.global_arg];
    return mica_kernel_launch(s->scales, &s->scales_grid, run->stream, &a);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    if (s->count && s->set.pass != MICA_QUANTIZE_GIVEN) MICA_TRY(run_scales(s, run));
    return mica_quantize_launch(&s->set, s->parts, s->count, run);
}

const mica_engine mica_quantize_cuda = {.name = "cuda",
                                        .cuda = true,
                                        .reached = 0.8,
                                        .start_ms = 3e-3,
                                        .contract = mica_quantize_contract,
                                        .build = build,
                                        .run = run};
const mica_engine mica_dequantize_cuda = {.name = "cuda",
                                          .cuda = true,
                                          .reached = 0.8,
                                          .start_ms = 3e-3,
                                          .contract = mica_quantize_contract,
                                          .build = build,
                                          .run = run};
