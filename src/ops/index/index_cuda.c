/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda" of index, bound by memory: all copies of an operation in one launch, vectors of up
 * to 16 bytes where dimensions allow; sums by their owners, in a second one (index_fold.cu,
 * index_combine.cu). */
#include "ops/index/index.h"
#include "ops/access/access.h"
#include "ops/convert/cpu/convert.h"

#include <string.h>

enum { BLOCK = 256, PER_THREAD = 4, SUM_BYTES = 32768, MOST_COLUMNS = 128, WARP = 32 };

typedef struct state {
    mica_kernel *copy, *sum;
    mica_index_args copies;
    mica_index_map map[MICA_INDEX_PIECES], summed;
    mica_index_fold_args fold;
    mica_index_combine_args combine;
    mica_dtype type; /* of what is copied */
    int vector, size;
    mica_grid copy_grid, sum_grid;
} state;

static void add_index(mica_text *p, const mica_plan *plan, const mica_index_map *m)
{
    mica_prologue_int(p, "PARTS", m->parts);
    mica_prologue_int(p, "FLAT", m->flat);
    mica_prologue_int(p, "NEGATIVE", m->negative);
    mica_prologue_int(p, "SKIPS", m->skips);
    mica_prologue_type(p, "index_t",
                       m->parts ? mica_op_tensor(plan->op, plan->desc, m->index)->dtype : MICA_S32);
}

/* ---- copies ---- */

/* Elements of an access: neighbours in both tensors, at multiples of it in each row. */
static int vector_of(const mica_index_map *m, const mica_index_form *f, int size)
{
    const int last = f->rank - 1;
    const bool filled = m->there < 0;
    if (f->rank == 0) return 1;
    const mica_index_dim *run = &f->at[last];
    if (run->border != MICA_INDEX_INSIDE || run->index || run->here != 1 ||
        (run->there != 1 && !filled))
        return 1;
    int64_t steps = run->size | m->here_shift | m->there_shift;
    for (int d = 0; d < last; d++) steps |= f->at[d].here | f->at[d].there;
    for (int i = 0; i < m->parts; i++) steps |= m->part[i].stride;
    return mica_access_fit(MICA_ACCESS_BYTES / size, steps);
}

static void fill_piece(mica_index_piece *p, const mica_index_form *f, int vector, int64_t *blocks)
{
    const int64_t tile = (int64_t)BLOCK * PER_THREAD;
    p->rank = f->rank;
    p->count = f->count / vector;
    p->fits_int = p->count <= INT32_MAX;
    p->first_block = *blocks;
    for (int d = 0; d < f->rank; d++) {
        const int64_t each = d == f->rank - 1 ? vector : 1;
        p->size[d] = f->at[d].size / each;
        p->here_step[d] = f->at[d].here * each;
        p->there_step[d] = f->at[d].there * each;
    }
    *blocks += (p->count + tile - 1) / tile;
}

static mica_status build_copies(mica_plan *plan, state *s, const mica_index_set *set)
{
    static const mica_dtype units[] = {MICA_U8, MICA_BF16, MICA_U32, MICA_S64};
    char buffer[1024] = "";
    mica_text text = {buffer, sizeof buffer, 0};
    mica_index_form form[MICA_INDEX_PIECES];
    int64_t blocks = 0;
    int bordered = 0;
    s->vector = MICA_ACCESS_BYTES;
    for (int i = 0; i < set->count; i++) {
        const mica_index_map *m = &set->map[i];
        mica_index_form f;
        if (m->work != MICA_INDEX_COPY) continue;
        mica_index_form_make(m, false, &f);
        if (f.count == 0) continue;
        s->type = mica_op_tensor(plan->op, plan->desc, m->here)->dtype;
        s->size = mica_dtype_bits(s->type) / 8;
        const int vector = vector_of(m, &f, s->size);
        if (vector < s->vector) s->vector = vector;
        for (int d = 0; d < f.rank; d++) bordered |= (f.at[d].border != MICA_INDEX_INSIDE) << d;
        memcpy(s->copies.at, f.at, sizeof f.at);
        form[s->copies.pieces] = f;
        s->map[s->copies.pieces++] = *m;
    }
    if (s->copies.pieces == 0) return MICA_OK;
    for (int i = 0; i < s->copies.pieces; i++)
        fill_piece(&s->copies.piece[i], &form[i], s->vector, &blocks);
    const mica_index_map *m = &s->map[0];
    memcpy(s->copies.part, m->part, sizeof m->part);
    s->copies.part_step = m->part_step;
    add_index(&text, plan, m);
    mica_prologue_int(&text, "PIECES", s->copies.pieces > 1 ? MICA_INDEX_PIECES : 1);
    mica_prologue_int(&text, "BORDERED", bordered);
    mica_prologue_int(&text, "VECTOR", s->vector);
    mica_prologue_int(&text, "BLOCK", BLOCK);
    mica_prologue_int(&text, "PER_THREAD", PER_THREAD);
    mica_prologue_type(&text, "element_t", units[__builtin_ctz((unsigned)s->size)]);
    s->copy_grid = (mica_grid){.grid = {(unsigned)blocks}, .block = {BLOCK}};
    mica_kernel_spec spec = {"ops/index/index_copy.cu", "index_copy", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->copy);
}

/* ---- sums ---- */

static mica_dtype real_of(const mica_plan *plan, const mica_index_map *m)
{
    const bool f32 = mica_runs_f32(mica_op_tensor(plan->op, plan->desc, m->here)->dtype) &&
                     mica_runs_f32(mica_op_tensor(plan->op, plan->desc, m->there)->dtype);
    return f32 ? MICA_F32 : MICA_F64;
}

static mica_status build_fold(mica_plan *plan, state *s, const mica_index_map *m)
{
    char buffer[512] = "";
    mica_text text = {buffer, sizeof buffer, 0};
    mica_index_form *f = &s->fold.form;
    int bordered = 0;
    mica_index_form_make(m, false, f);
    if (f->count == 0) return MICA_OK;
    for (int d = 0; d < f->rank; d++) bordered |= (f->at[d].border != MICA_INDEX_INSIDE) << d;
    mica_prologue_int(&text, "RANK", f->rank);
    mica_prologue_int(&text, "BORDERED", bordered);
    mica_prologue_int(&text, "BLOCK", BLOCK);
    mica_prologue_type(&text, "here_t", mica_op_tensor(plan->op, plan->desc, m->here)->dtype);
    mica_prologue_type(&text, "there_t", mica_op_tensor(plan->op, plan->desc, m->there)->dtype);
    mica_prologue_type(&text, "real", real_of(plan, m));
    s->sum_grid =
        (mica_grid){.grid = {(unsigned)((f->count + BLOCK - 1) / BLOCK)}, .block = {BLOCK}};
    mica_kernel_spec spec = {"ops/index/index_fold.cu", "index_fold", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->sum);
}

/* Dimensions that both tensors have are columns, the others the updates of each. */
static void split_map(const mica_index_map *m, mica_index_map *columns, mica_index_map *updates)
{
    *columns = *updates = *m;
    columns->rank = updates->rank = 0;
    for (int d = 0; d < m->rank; d++) {
        mica_index_map *to = m->at[d].there ? columns : updates;
        to->at[to->rank++] = m->at[d];
    }
}

static mica_status build_combine(mica_plan *plan, state *s, const mica_index_map *m)
{
    char buffer[512] = "";
    mica_text text = {buffer, sizeof buffer, 0};
    mica_index_map columns, updates;
    mica_index_combine_args *a = &s->combine;
    const mica_dtype real = real_of(plan, m);
    split_map(m, &columns, &updates);
    mica_index_form_make(&columns, false, &a->columns);
    mica_index_form_make(&updates, true, &a->updates);
    a->cells = 1;
    for (int i = 0; i < m->parts; i++) a->cells *= m->part[i].extent;
    if (a->columns.count == 0 || a->updates.count == 0 || a->cells == 0) return MICA_OK;
    memcpy(a->part, m->part, sizeof m->part);
    a->part_step = m->part_step;
    a->skip = m->skip;
    int side = 1;
    while (side < MOST_COLUMNS && side < a->columns.count) side *= 2;
    const int lanes = side < WARP ? WARP : 1;
    const bool last = m->reduce == MICA_INDEX_LAST;
    const int each = last ? 8 : mica_dtype_bits(real) / 8 + 1, room = SUM_BYTES / each / side;
    a->cell_tiles = (a->cells + room - 1) / room;
    add_index(&text, plan, m);
    mica_prologue_int(&text, "COLUMNS", side);
    mica_prologue_int(&text, "LANES", lanes);
    mica_prologue_int(&text, "ROOM", room);
    mica_prologue_int(&text, "THREADS", side * lanes);
    mica_prologue_int(&text, "REDUCE", m->reduce);
    mica_prologue_type(&text, "element_t", mica_op_tensor(plan->op, plan->desc, m->here)->dtype);
    mica_prologue_type(&text, "real", real);
    const int64_t blocks = (a->columns.count + side - 1) / side * a->cell_tiles;
    s->sum_grid = (mica_grid){.grid = {(unsigned)blocks}, .block = {(unsigned)(side * lanes)}};
    mica_kernel_spec spec = {"ops/index/index_combine.cu", "index_combine", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->sum);
}

/* ---- the engine ---- */

static mica_status build(mica_plan *plan)
{
    mica_index_set set;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    if (mica_index_has_nibbles(plan->op, plan->desc))
        return mica_fail(MICA_UNSUPPORTED, "a type of less than a byte; kernels move whole bytes");
    mica_index_maps(plan->op, plan->desc, &set);
    MICA_TRY(build_copies(plan, s, &set));
    const mica_index_map *m = &set.map[set.count - 1];
    s->summed = *m;
    if (m->work == MICA_INDEX_FOLD) return build_fold(plan, s, m);
    if (m->work == MICA_INDEX_COMBINE) return build_combine(plan, s, m);
    return MICA_OK;
}

static mica_status run_copies(const mica_plan *plan, const mica_run *run, const state *s)
{
    mica_index_args a = s->copies;
    uintptr_t off = 0;
    for (int i = 0; i < a.pieces; i++) {
        const mica_index_map *m = &s->map[i];
        a.piece[i].here = (char *)run->args[m->here] + m->here_shift * s->size;
        if (m->there >= 0)
            a.piece[i].there = (const char *)run->args[m->there] + m->there_shift * s->size;
        off |= (uintptr_t)a.piece[i].here | (uintptr_t)a.piece[i].there;
        if (m->index >= 0) a.index = run->args[m->index];
    }
    if (a.pieces == 1 && a.piece[0].here == a.piece[0].there) return MICA_OK; /* in place */
    a.whole = off % (uintptr_t)(s->vector * s->size) == 0;
    mica_index_value(plan, run, s->type, a.value);
    return mica_kernel_launch(s->copy, &s->copy_grid, run->stream, &a);
}

static void *place(const mica_plan *plan, const mica_run *run, int arg, int64_t shift)
{
    const int64_t size = mica_dtype_bits(mica_op_tensor(plan->op, plan->desc, arg)->dtype) / 8;
    return (char *)run->args[arg] + shift * size;
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    const mica_index_map *m = &s->summed;
    if (s->copy) MICA_TRY(run_copies(plan, run, s));
    if (!s->sum) return MICA_OK;
    void *here = place(plan, run, m->here, m->here_shift);
    void *there = place(plan, run, m->there, m->there_shift);
    if (m->work == MICA_INDEX_FOLD) {
        mica_index_fold_args a = s->fold;
        a.here = here, a.there = there;
        return mica_kernel_launch(s->sum, &s->sum_grid, run->stream, &a);
    }
    mica_index_combine_args a = s->combine;
    a.here = here, a.there = there, a.index = run->args[m->index];
    return mica_kernel_launch(s->sum, &s->sum_grid, run->stream, &a);
}

const mica_engine mica_index_cuda = {
    .name = "cuda", .cuda = true, .reached = 0.8, .start_ms = 3e-3, .build = build, .run = run};
