/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda" of random and dropout: one pass, a vector of 8 (of bytes 16) elements of a row per
 * thread, whose counters it computes itself. Bound by memory where indices are neighbours and rows
 * begin where a counter does; about 100 instructions per counter else. Where memory runs along
 * another dimension (channels last), a thread has a vector along that for each lane of its
 * counters. */
#include "ops/random/random.h"
#include "ops/access/access.h"

enum { BLOCK = 256, NEIGHBOURS = 8 };

typedef struct state {
    mica_kernel *kernel;
    mica_random_set set;
    mica_random_args args;
    bool aligned[MICA_RANDOM_PLACES]; /* whether rows of it begin at whole vectors */
    bool strides_fit;                 /* all operands lie so */
    int vector;
    mica_grid grid;
} state;

/* Whether each row of the place begins at a multiple of `unit`, and elements are neighbours. */
static bool rows_fit(const mica_layout *l, int place, int64_t first, int64_t unit)
{
    const int last = l->rank - 1;
    if (l->strides[place][last] != 1 || first % unit) return false;
    for (int d = 0; d < last; d++)
        if (l->strides[place][d] % unit) return false;
    return true;
}

static bool is_operand(const state *s, int place)
{
    return place != MICA_RANDOM_PLACE_INDEX && place != MICA_RANDOM_PLACE_BITS &&
           mica_tensor_given(&s->set.at[place]);
}

/* Whether memory runs along another dimension than indices do, whose counters are then shared by
 * rows of it: that dimension becomes the last. */
static bool choose_patch(const state *s, mica_layout *l)
{
    const mica_random_set *set = &s->set;
    const int last = l->rank - 1;
    int along = last;
    if (last < 1 || set->draw == MICA_RANDOM_DRAW_NONE ||
        set->draw == MICA_RANDOM_DRAW_PERMUTATION || set->per_block > 4 ||
        mica_tensor_given(&set->at[MICA_RANDOM_PLACE_BITS]) || l->dims[last] % set->per_block ||
        !rows_fit(l, MICA_RANDOM_PLACE_INDEX, set->numbers.first, set->per_block))
        return false;
    for (int d = 0; d < last; d++)
        if (l->strides[MICA_RANDOM_PLACE_OUT][d] == 1 && l->dims[d] >= NEIGHBOURS) along = d;
    if (along == last) return false;
    for (int k = 0; k < MICA_RANDOM_PLACES; k++)
        if (is_operand(s, k) && l->strides[k][along] != 1) return false;
    const int64_t dim = l->dims[along];
    for (int d = along; d < last; d++) l->dims[d] = l->dims[d + 1];
    l->dims[last] = dim;
    for (int k = 0; k < MICA_RANDOM_PLACES; k++) {
        const int64_t stride = l->strides[k][along];
        for (int d = along; d < last; d++) l->strides[k][d] = l->strides[k][d + 1];
        l->strides[k][last] = stride;
    }
    return true;
}

/* The dimension before the last in patches of so many. */
static void count_patches(mica_layout *l, int patch)
{
    const int d = l->rank - 2;
    l->count /= patch;
    l->dims[d] /= patch;
    for (int k = 0; k < MICA_RANDOM_PLACES; k++) l->strides[k][d] *= patch;
}

static mica_status add_kernel(mica_plan *plan, state *s, bool counters, bool patched)
{
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    const mica_random_set *set = &s->set;
    const mica_tensor *in = &set->at[MICA_RANDOM_PLACE_IN], *add = &set->at[MICA_RANDOM_PLACE_ADD];
    mica_prologue_int(&p, "DRAW", set->draw);
    mica_prologue_int(&p, "PER_BLOCK", set->per_block);
    mica_prologue_int(&p, "DIGITS", set->draw == MICA_RANDOM_DRAW_UNIFORM ? set->digits : 0);
    mica_prologue_int(&p, "ALIGNED", counters);
    mica_prologue_int(&p, "PATCH", patched ? set->per_block : 1);
    mica_prologue_int(&p, "DROPOUT", set->dropout);
    mica_prologue_int(&p, "SAVES", set->saves);
    mica_prologue_int(&p, "ROWS", set->rows);
    mica_prologue_int(&p, "HAS_ADD", mica_tensor_given(add));
    mica_prologue_int(&p, "VECTOR", s->vector);
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_type(&p, "out_t", set->at[MICA_RANDOM_PLACE_OUT].dtype);
    mica_prologue_type(&p, "in_t", mica_tensor_given(in) ? in->dtype : MICA_F32);
    mica_prologue_type(&p, "add_t", mica_tensor_given(add) ? add->dtype : MICA_F32);
    mica_prologue_type(&p, "real", set->real);
    mica_kernel_spec spec = {"ops/random/random.cu", "random_numbers", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static mica_status build(mica_plan *plan)
{
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_random_set_make(plan->op, plan->desc, NULL, &s->set);
    mica_layout *l = &s->args.layout;
    mica_random_layout(&s->set, l);
    if (l->count == 0) return MICA_OK;
    s->vector = s->set.draw == MICA_RANDOM_DRAW_PERMUTATION ? 1
                : s->set.per_block > NEIGHBOURS             ? s->set.per_block
                                                            : NEIGHBOURS;
    const int last = l->rank - 1;
    const bool patched = choose_patch(s, l);
    const bool counters =
        rows_fit(l, MICA_RANDOM_PLACE_INDEX, s->set.numbers.first, s->set.per_block) &&
        s->vector % s->set.per_block == 0;
    s->strides_fit = true;
    for (int k = 0; k < MICA_RANDOM_PLACES; k++)
        if (is_operand(s, k)) s->strides_fit &= rows_fit(l, k, 0, s->vector);
    if (patched) count_patches(l, s->set.per_block);
    s->args.columns = l->dims[last];
    s->args.numbers = s->set.numbers;
    s->args.rng_stride = s->set.rng_stride;
    l->count = l->count / l->dims[last] * ((l->dims[last] - 1) / s->vector + 1);
    l->dims[last] = (l->dims[last] - 1) / s->vector + 1;
    for (int k = 0; k < MICA_RANDOM_PLACES; k++) l->strides[k][last] *= s->vector;
    s->grid = (mica_grid){.grid = {(unsigned)((l->count + BLOCK - 1) / BLOCK)}, .block = {BLOCK}};
    return add_kernel(plan, s, counters, patched);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    mica_random_args a = s->args;
    uintptr_t off = 0;
    if (!s->kernel) return MICA_OK;
    for (int k = 0; k < MICA_RANDOM_PLACES; k++) {
        if (k == MICA_RANDOM_PLACE_INDEX || !mica_tensor_given(&s->set.at[k])) continue;
        a.at[k] = run->args[s->set.arg[k]];
        const int64_t bytes = s->vector * mica_dtype_bits(s->set.at[k].dtype) / 8;
        const int64_t most = bytes < MICA_ACCESS_BYTES ? bytes : MICA_ACCESS_BYTES;
        if (is_operand(s, k)) off |= (uintptr_t)a.at[k] % (uintptr_t)most;
    }
    a.whole = s->strides_fit && off == 0;
    if (s->set.rng >= 0) a.rng = run->args[s->set.rng];
    return mica_kernel_launch(s->kernel, &s->grid, run->stream, &a);
}

const mica_engine mica_random_cuda = {
    .name = "cuda", .cuda = true, .reached = 0.8, .start_ms = 3e-3, .build = build, .run = run};
