/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda" of the family `reduce`: each element is read once. Threads along a contiguous row
 * take vectors, those of slices that lie side by side have some for themselves. Slices that are too
 * few to fill the device are cut into parts, whose states pass through the workspace to a second
 * kernel. Memory-bound where one or the other is contiguous; correct for any strides and types. */
#include "ops/reduce/reduce_op.h"
#include "ops/reduce/map.h"
#include "base/memory.h"
#include "ops/access/access.h"
#include "ops/access/slices.h"

/* Values a thread reads ahead, blocks that fill a multiprocessor, accesses of a thread that make a
 * part worth its merging, and most parts of a slice. */
enum { KEEP = 32, RESIDENT = 8, LEAST = 16, MOST_PARTS = 1024, BESIDE_SLICES = 32, MERGED = 4 };
/* Threads of a block, elements of one of them that make up for a costly merging. */
enum { BLOCK = 128, MOST_THREADS = 256, WORTH_MERGING = 128 };
/* The largest state, and half of what shared memory is always there. */
enum { STATE_BYTES = 24, MOST_SHARED = 24576 };

typedef struct state {
    mica_kernel *kernel, *merge;
    mica_slices slices;
    int beside;   /* slices of a thread */
    int bytes;    /* of an element */
    bool ordered; /* positions: see is_ordered */
    int inputs;   /* of a map; 0: there is none */
    int input_arg[MICA_EXPR_X];
    mica_reduce_map_args map; /* its `reduce` holds for all */
    mica_grid grid, merge_grid;
    size_t parts;
} state;

/* Rows must start at whole accesses, too. */
static int fit_rows(const mica_layout *rows, int vector)
{
    return mica_access_fit(vector, mica_access_steps(rows, 0, rows->rank));
}

/* A warp or more for a long slice; a few accesses at least for each thread. */
static void choose_along(state *s, const mica_reduce_split *split, int by)
{
    mica_slices *g = &s->slices;
    const bool costly = by == REDUCE_EXP || by == REDUCE_MOMENTS || by == REDUCE_ARG;
    int threads = g->threads;
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    while (costly && threads > 32 && split->length / threads < WORTH_MERGING) threads /= 2;
    if (threads < 32 && (g->ragged || (split->rows.count > 1 && split->length / g->vector >= 128)))
        threads = 32;
    if (threads != g->threads)
        g->threads = threads, g->slices = threads < BLOCK ? BLOCK / threads : 1;
}

/* Blocks of 256 threads for long slices, as narrow as the slices are few. */
static void choose_beside(state *s, const mica_reduce_split *split, const mica_slices *beside,
                          int state_bytes)
{
    s->beside = fit_rows(&split->rows, beside->vector);
    const int64_t groups = split->kept.count / s->beside;
    int threads = 1, slices = BESIDE_SLICES;
    while (slices > 1 && slices / 2 >= groups) slices /= 2;
    while (threads * slices < MOST_THREADS && threads * 64 < split->length) threads *= 2;
    while (threads * slices < BLOCK) slices *= 2;
    while (threads > 4 && slices * threads * s->beside * state_bytes > MOST_SHARED) threads /= 2;
    while (slices * threads * s->beside * state_bytes > MOST_SHARED) s->beside /= 2;
    s->slices = (mica_slices){.threads = threads, .slices = slices, .vector = 1};
}

/* Enough threads for each slice that few slices keep the device busy. */
static void choose(state *s, const mica_reduce_split *split, int by, int state_bytes)
{
    mica_slices *g = &s->slices;
    const int64_t along = split->along[0], n = split->n;
    s->beside = 1;
    mica_slices_choose(g, &split->kept, n > 0 ? n : 1, &along, &s->bytes, 1, KEEP);
    if (g->ragged && split->rows.count != 1) g->vector = 1, g->ragged = false;
    g->items = 0;
    if (!g->ragged) g->vector = fit_rows(&split->rows, g->vector);
    if (g->along) choose_along(s, split, by);
    mica_slices beside;
    if (along != 1 && mica_slices_beside(&beside, &split->kept, &along, &s->bytes, 1))
        choose_beside(s, split, &beside, state_bytes);
}

/* A map is worked element by element: its inputs may lie in different ways. */
static void take_inputs(state *s, const mica_reduce_set *set, const mica_reduce_split *split)
{
    mica_slices *g = &s->slices;
    if (s->beside > 1) {
        while (g->slices * 2 <= 32 && g->slices * g->threads < 128) g->slices *= 2;
        s->beside = 1;
    }
    g->vector = 1, g->ragged = false;
    for (int at = 0; at < set->count; at++) {
        if (set->at[at].arg == MICA_REDUCE_Y) continue;
        s->input_arg[s->inputs] = set->at[at].arg;
        s->map.along[s->inputs++] = split->along[at];
    }
}

static void choose_parts(state *s, int units)
{
    mica_reduce_args *a = &s->map.reduce;
    const int64_t each = (int64_t)s->slices.slices * s->beside;
    const int64_t blocks = (a->kept.count + each - 1) / each;
    int64_t parts = blocks > 0 ? (int64_t)units * RESIDENT / blocks : 1;
    const int64_t most = a->vectors / ((int64_t)s->slices.threads * LEAST);
    if (parts > most) parts = most;
    if (parts > MOST_PARTS) parts = MOST_PARTS;
    if (parts < 1) parts = 1;
    a->per_part = (a->vectors + parts - 1) / parts;
    if (a->per_part < 1) a->per_part = 1;
    a->part_count = (int)(a->vectors > 0 ? (a->vectors + a->per_part - 1) / a->per_part : 1);
    s->grid = (mica_grid){
        .grid = {(unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX), (unsigned)a->part_count},
        .block = {(unsigned)(s->slices.threads * s->slices.slices)}};
}

/* Squares of f32 have exponents that f32 lacks, of deviations, too; counts are integers. */
static mica_dtype acc_of(const mica_reduce_desc *d)
{
    const mica_reduce_row *row = mica_reduce_row_of(d);
    if (row->result == REDUCE_COUNTS && row->by == REDUCE_SUM) return MICA_S64;
    const bool squares = row->by == REDUCE_SQUARES || row->by == REDUCE_MOMENTS;
    return squares ? MICA_F64 : mica_reduce_real(d);
}

static int state_bytes(const mica_reduce_desc *d)
{
    const int by = mica_reduce_row_of(d)->by, bytes = mica_dtype_bits(acc_of(d)) / 8;
    return by == REDUCE_MOMENTS ? STATE_BYTES
           : by == REDUCE_ARG   ? 16
           : by == REDUCE_EXP   ? 2 * bytes
                                : bytes;
}

/* Whether numbers of accesses take 64 bits. */
static bool is_far(const mica_reduce_args *a)
{
    return a->length > INT32_MAX;
}

/* Whether positions of a slice's elements are their numbers in the walk. */
static bool is_ordered(const mica_reduce_split *split, int count)
{
    const mica_layout *rows = &split->rows;
    int64_t number = split->n;
    bool ordered = count > 2 && (split->along[2] == 1 || split->n <= 1);
    for (int d = rows->rank - 1; d >= 0; d--) {
        ordered &= rows->strides[2][d] == number;
        number *= rows->dims[d];
    }
    return ordered;
}

/* Inputs of a map: as many as the expression has, in its order; the program's operands are they. */
static void map_prologue(const mica_reduce_desc *d, mica_expr_program *program, mica_text *p)
{
    mica_dtype types[MICA_EXPR_X];
    int count = 0;
    mica_reduce_map_program(d, program);
    for (int k = 0; k < MICA_EXPR_X; k++) {
        if (!mica_reduce_map_input(d, k)) continue;
        types[count] = mica_reduce_map_input(d, k)->dtype;
        program->operand[k] = count++;
    }
    program->result_operand[0] = count;
    mica_expr_prologue(program, p);
    mica_prologue_types(p, "operand_t", types, count);
    mica_prologue_int(p, "INPUTS", count);
    mica_prologue_type(p, "real", program->f64 ? MICA_F64 : MICA_F32);
}

static mica_status add_kernel(mica_plan *plan, state *s, const mica_slices *slices, int beside,
                              const char *file, const char *entry, mica_kernel **kernel)
{
    const mica_reduce_desc *d = plan->desc;
    const mica_reduce_row *row = mica_reduce_row_of(d);
    enum { PROLOGUE = 1 << 16 };
    mica_expr_program *program = mica_alloc(sizeof *program + PROLOGUE);
    if (!program) return mica_fail_memory(sizeof *program + PROLOGUE);
    char *buffer = (char *)(program + 1);
    mica_text p = {buffer, PROLOGUE, 0};
    *buffer = 0;
    mica_slices_prologue(&p, slices);
    mica_prologue_int(&p, "BESIDE", beside);
    const mica_layout *rows = &s->map.reduce.rows;
    mica_prologue_int(&p, "ROWS", rows->count <= 1 ? 0 : rows->rank == 1 ? 1 : 2);
    mica_prologue_int(&p, "FAR", is_far(&s->map.reduce));
    mica_prologue_int(&p, "INDEXED", row->by == REDUCE_ARG);
    mica_prologue_int(&p, "ORDERED", s->ordered);
    mica_prologue_int(&p, "BY", row->by);
    mica_prologue_int(&p, "FRONT", row->front);
    mica_prologue_int(&p, "BEHIND", row->behind);
    mica_prologue_int(&p, "FROM_ZERO", row->front == REDUCE_ABS || row->result == REDUCE_TRUTHS);
    if (s->inputs && kernel == &s->kernel) map_prologue(d, program, &p);
    mica_prologue_type(&p, "x_t", s->inputs ? mica_reduce_map_real(d) : d->x.dtype);
    mica_prologue_type(&p, "y_t", d->y.dtype);
    mica_prologue_type(&p, "acc_t", acc_of(d));
    mica_kernel_spec spec = {file, entry, buffer, 0};
    const mica_status status = mica_plan_add_kernel(plan, &spec, kernel);
    mica_release(program);
    return status;
}

static mica_status build(mica_plan *plan)
{
    const mica_reduce_desc *d = plan->desc;
    const mica_reduce_row *row = mica_reduce_row_of(d);
    mica_reduce_set set = {.out = -1};
    mica_reduce_split split;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_reduce_operands(d, &set);
    mica_reduce_split_make(&split, &set);
    s->bytes = mica_dtype_bits(d->x.dtype) / 8;
    s->ordered = row->by == REDUCE_ARG && is_ordered(&split, set.count);
    choose(s, &split, row->by, state_bytes(d));
    if (mica_reduce_is_mapped(d)) take_inputs(s, &set, &split);
    mica_reduce_args *a = &s->map.reduce;
    a->kept = split.kept, a->rows = split.rows;
    /* Of rows the second place is the index. */
    for (int i = 0; i < MICA_LAYOUT_RANK && !s->inputs; i++)
        a->rows.strides[1][i] = split.rows.strides[2][i];
    a->n = split.n, a->along = split.along[0], a->index_along = split.along[2];
    a->length = split.length, a->correction = d->correction;
    /* Of a ragged slice as many as there may be. */
    a->vectors = split.length / s->slices.vector + (s->slices.ragged ? 2 : 0);
    if (split.n > 0 && !is_far(a))
        a->per_row = mica_fastdiv_make((unsigned)(split.n / s->slices.vector));
    choose_parts(s, plan->device.units);
    const char *file = s->inputs ? "ops/reduce/reduce_map.cu" : "ops/reduce/reduce_op.cu";
    MICA_TRY(add_kernel(plan, s, &s->slices, s->beside, file, s->inputs ? "reduce_map" : "reduce",
                        &s->kernel));
    if (a->part_count == 1) return MICA_OK;
    const mica_slices warps = {.threads = 32, .slices = MERGED, .along = true, .vector = 1};
    MICA_TRY(
        add_kernel(plan, s, &warps, 1, "ops/reduce/reduce_merge.cu", "reduce_merge", &s->merge));
    s->merge_grid = mica_slices_grid(&warps, a->kept.count);
    return mica_book(plan, "parts of slices",
                     (size_t)a->part_count * (size_t)a->kept.count * STATE_BYTES, &s->parts);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    mica_reduce_map_args map = s->map;
    mica_reduce_args args = map.reduce;
    if (args.kept.count == 0) return MICA_OK;
    args.x = r->args[MICA_REDUCE_X], args.y = r->args[MICA_REDUCE_Y];
    const int start = s->slices.ragged ? s->bytes : s->bytes * s->slices.vector * s->beside;
    args.whole = (uintptr_t)args.x % (uintptr_t)start == 0;
    if (s->merge) args.parts = mica_at(r, s->parts);
    map.reduce = args;
    for (int k = 0; k < s->inputs; k++) map.inputs[k] = r->args[s->input_arg[k]];
    MICA_TRY(mica_kernel_launch(s->kernel, &s->grid, r->stream, s->inputs ? (void *)&map : &args));
    return s->merge ? mica_kernel_launch(s->merge, &s->merge_grid, r->stream, &args) : MICA_OK;
}

const mica_engine mica_reduce_cuda = {.name = "cuda",
                                      .cuda = true,
                                      .reached = 0.8,
                                      .start_ms = 4e-3,
                                      .accepts = mica_reduce_accepts,
                                      .build = build,
                                      .run = run};
