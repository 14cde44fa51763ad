/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda" of scans: each element is read once. Threads of a warp, or of a block, share a row;
 * a long row is passed block by block, or, where rows are too few to fill the device, by thread
 * blocks that look back at what those before them are the sum of. Slices that lie side by side have
 * a thread each, or one of several parts, which are then read twice. Floor: the bytes at copy
 * bandwidth. Which way a problem goes depends on its shape alone, not on the device. */
#include "ops/access/access.h"
#include "ops/scan/scan.h"

#include <stdlib.h>

/* Rows that fill a device; blocks of a row that pass sooner than a second kernel starts; bytes of a
 * row that a thread keeps; threads across that fill one, most parts, and elements that make one
 * worth it. */
enum {
    MANY_ROWS = 512,
    FEW_BLOCKS = 4,
    KEPT_BYTES = 64,
    MOST_KEPT = 32,
    FILL = 131072,
    MOST_PARTS = 1024
};
enum { LEAST_PART = 16, FEW_SLICES = 8, BLOCK = 128, STATE_BYTES = 32 };

/* One walk. */
typedef struct walk {
    mica_kernel *kernel, *totals, *reset;
    mica_scan_step step;
    mica_scan_args args;
    mica_grid grid, reset_grid;
    int vector, threads, slices, chunks;
    bool columns, chained;
    bool together;            /* states travel with the numbers that say that they are there */
    bool fits[SCAN_OPERANDS]; /* accesses of `vector` elements */
    size_t states, prefixes, numbers;
} walk;

typedef struct state {
    walk walks[MICA_SCAN_STEPS];
    int count;
    size_t before;
} state;

static bool has(const walk *w, int operand)
{
    return mica_tensor_given(&w->step.tensor[operand]);
}

/* ---- accesses ---- */

/* Steps from access to access of an operand, along a row or across it; odd where there is no run.
 */
static int64_t steps_of(const walk *w, int operand)
{
    const mica_layout *l = &w->args.outer;
    const int last = l->rank - 1;
    if (w->columns)
        return l->strides[operand][last] == 1
                   ? mica_access_steps(l, operand, last) | w->args.along[operand] | l->dims[last]
                   : 1;
    if (w->args.along[operand] != 1) return 1;
    return mica_access_steps(l, operand, l->rank) | (w->step.reverse ? w->args.n : 0);
}

static void choose_vector(walk *w)
{
    mica_dtype types[SCAN_OPERANDS];
    const int operands[] = {SCAN_A, SCAN_OUT, SCAN_B, SCAN_C};
    int count = 0;
    int64_t steps = 0;
    for (int i = 0; i < 4; i++) {
        if (!has(w, operands[i])) continue;
        types[count++] = w->step.tensor[operands[i]].dtype;
        steps |= steps_of(w, operands[i]);
    }
    w->vector = mica_access_fit(mica_access_most(types, count), steps);
    for (int k = 0; k < SCAN_OPERANDS; k++)
        w->fits[k] = has(w, k) && mica_access_fit(w->vector, steps_of(w, k)) == w->vector;
}

/* ---- rows ---- */

static int power_for(int64_t n, int most)
{
    int p = 1;
    while (p < most && p < n) p *= 2;
    return p;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int kept_elements(const walk *w)
{
    const bool heavy = has(w, SCAN_B) || has(w, SCAN_INDEX) || w->step.by == SCAN_EXP;
    const int kept = KEPT_BYTES * 8 / mica_dtype_bits(w->step.tensor[SCAN_A].dtype);
    return kept > MOST_KEPT || heavy ? (heavy ? 8 : MOST_KEPT) : kept;
}

/* What has been put together is one f32. */
static bool is_a_number(const walk *w)
{
    const mica_scan_step *s = &w->step;
    return s->acc == MICA_F32 && !has(w, SCAN_FLAGS) && !has(w, SCAN_INDEX) &&
           (s->by == SCAN_SUM || s->by == SCAN_PRODUCT || s->by == SCAN_MAX);
}

static void choose_rows(walk *w)
{
    mica_scan_args *a = &w->args;
    const int most = w->vector < kept_elements(w) ? kept_elements(w) / w->vector : 1;
    w->threads = power_for(ceil_div(a->n, w->vector), 32);
    w->chunks = power_for(ceil_div(a->n, (int64_t)w->threads * w->vector), most);
    const int64_t each = (int64_t)w->chunks * w->vector;
    if (w->threads == 32) w->threads *= power_for(ceil_div(a->n, 32 * each), SCAN_GROUP / 32);
    w->slices = w->threads < BLOCK ? BLOCK / w->threads : 1;
    a->parts = ceil_div(a->n, w->threads * each);
    w->chained = a->parts > FEW_BLOCKS && a->outer.count < MANY_ROWS;
    w->together = w->chained && is_a_number(w);
    const int64_t blocks =
        w->chained ? a->outer.count * a->parts : ceil_div(a->outer.count, w->slices);
    w->grid = (mica_grid){.grid = {(unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX)},
                          .block = {(unsigned)(w->threads * w->slices)}};
}

/* ---- slices side by side ---- */

static int64_t root_of(int64_t n)
{
    int64_t r = 1;
    while (r * r < n) r *= 2;
    return r;
}

static void choose_columns(walk *w)
{
    mica_scan_args *a = &w->args;
    const int64_t threads = a->outer.count / w->vector;
    int64_t parts = FILL / threads;
    if (parts > root_of(a->n)) parts = root_of(a->n);
    if (parts > a->n / LEAST_PART) parts = a->n / LEAST_PART;
    if (parts > MOST_PARTS) parts = MOST_PARTS;
    if (parts < 1) parts = 1;
    a->per_part = ceil_div(a->n, parts);
    a->parts = ceil_div(a->n, a->per_part);
    const int64_t blocks = ceil_div(threads * a->parts, BLOCK);
    w->grid = (mica_grid){.grid = {(unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX)},
                          .block = {BLOCK}};
}

/* ---- building ---- */

static mica_status add_kernel(mica_plan *plan, const walk *w, const char *file, const char *entry,
                              int phase, mica_kernel **kernel)
{
    const mica_scan_step *s = &w->step;
    const bool sums = s->by == SCAN_SUM || s->by == SCAN_PRODUCT;
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    mica_prologue_int(&p, "BY", s->by);
    mica_prologue_int(&p, "OPPOSITE", s->opposite);
    mica_prologue_int(&p, "EXCLUSIVE", s->exclusive);
    mica_prologue_int(&p, "REVERSE", s->reverse);
    mica_prologue_int(&p, "SEGMENTED", has(w, SCAN_FLAGS));
    mica_prologue_int(&p, "INDEXED", has(w, SCAN_INDEX));
    mica_prologue_int(&p, "WRAP", s->acc == MICA_S64 && sums);
    if (w->columns) {
        mica_prologue_int(&p, "BESIDE", w->vector);
        mica_prologue_int(&p, "PHASE", phase);
    } else {
        mica_prologue_int(&p, "THREADS", w->threads);
        mica_prologue_int(&p, "SLICES", w->slices);
        mica_prologue_int(&p, "CHUNKS", w->chunks);
        mica_prologue_int(&p, "VECTOR", w->vector);
        mica_prologue_int(&p, "CHAINED", w->chained);
        mica_prologue_int(&p, "TOGETHER", w->together);
    }
    const char *const names[] = {"a_t", "b_t", "c_t", "flag_t", "out_t", "index_t"};
    for (int k = 0; k < SCAN_OPERANDS; k++)
        mica_prologue_type(&p, names[k], has(w, k) ? s->tensor[k].dtype : MICA_S32);
    mica_prologue_type(&p, "acc_t", s->acc);
    mica_kernel_spec spec = {file, entry, buffer, 0};
    return mica_plan_add_kernel(plan, &spec, kernel);
}

static mica_status build_columns(mica_plan *plan, walk *w)
{
    const mica_scan_args *a = &w->args;
    const char *file = "ops/scan/scan_columns.cu", *entry = "scan_columns";
    choose_columns(w);
    MICA_TRY(add_kernel(plan, w, file, entry, a->parts > 1 ? 2 : 0, &w->kernel));
    if (a->parts == 1) return MICA_OK;
    MICA_TRY(add_kernel(plan, w, file, entry, 1, &w->totals));
    return mica_book(plan, "sums of parts", (size_t)a->parts * (size_t)a->outer.count * STATE_BYTES,
                     &w->states);
}

static mica_status build_rows(mica_plan *plan, walk *w)
{
    mica_scan_args *a = &w->args;
    choose_rows(w);
    MICA_TRY(add_kernel(plan, w, "ops/scan/scan_rows.cu", "scan_rows", 0, &w->kernel));
    if (!w->chained) return MICA_OK;
    const int64_t blocks = a->outer.count * a->parts;
    const int64_t groups = a->outer.count * ceil_div(a->parts, SCAN_GROUP);
    a->number_count = (1 + blocks + groups) * (w->together ? 2 : 1);
    const int64_t resets = ceil_div(a->number_count, 256);
    w->reset_grid =
        (mica_grid){.grid = {(unsigned)(resets < 1024 ? resets : 1024)}, .block = {256}};
    MICA_TRY(mica_plan_add_kernel(
        plan, &(mica_kernel_spec){"ops/scan/scan_reset.cu", "scan_reset", "", 0}, &w->reset));
    if (!w->together) {
        MICA_TRY(mica_book(plan, "sums of blocks", (size_t)blocks * STATE_BYTES, &w->states));
        MICA_TRY(mica_book(plan, "sums of groups", (size_t)groups * STATE_BYTES, &w->prefixes));
    }
    return mica_book(plan, "blocks that are there", (size_t)a->number_count * sizeof(int),
                     &w->numbers);
}

static mica_status build_walk(mica_plan *plan, walk *w, int64_t axis)
{
    mica_scan_args *a = &w->args;
    mica_scan_split(&w->step, axis, &a->outer, a->along);
    a->n = w->step.tensor[SCAN_A].dims[axis];
    if (a->n == 0 || a->outer.count == 0) return MICA_OK;
    const int last = a->outer.rank - 1;
    w->columns = last >= 0 && a->outer.dims[last] >= FEW_SLICES && a->along[SCAN_A] != 1 &&
                 llabs(a->outer.strides[SCAN_A][last]) < llabs(a->along[SCAN_A]);
    choose_vector(w);
    return w->columns ? build_columns(plan, w) : build_rows(plan, w);
}

static mica_status build(mica_plan *plan)
{
    const mica_scan_desc *d = plan->desc;
    mica_scan_step steps[MICA_SCAN_STEPS];
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    s->count = mica_scan_steps(d, steps);
    for (int i = 0; i < s->count; i++) {
        s->walks[i].step = steps[i];
        MICA_TRY(build_walk(plan, &s->walks[i], d->axis));
    }
    if (s->count == 1) return MICA_OK;
    const mica_tensor *before = &steps[0].tensor[SCAN_OUT];
    const size_t bytes = (size_t)mica_dtype_bits(before->dtype) / 8;
    return mica_book(plan, "products before each element",
                     (size_t)mica_tensor_count(before) * bytes, &s->before);
}

static mica_status run_walk(const walk *w, const mica_run *r, size_t before)
{
    mica_scan_args a = w->args;
    if (!w->kernel) return MICA_OK;
    void *data[SCAN_OPERANDS];
    for (int k = 0; k < SCAN_OPERANDS; k++) {
        data[k] = NULL;
        if (!has(w, k)) continue;
        data[k] = w->step.arg[k] < 0 ? mica_at(r, before) : r->args[w->step.arg[k]];
        const int bytes = mica_access_bytes(w->step.tensor[k].dtype, w->vector);
        if (w->fits[k] && mica_access_starts(data[k], bytes)) a.whole |= 1 << k;
    }
    for (int k = 0; k <= SCAN_FLAGS; k++) a.in[k] = data[k];
    a.out = data[SCAN_OUT], a.index = data[SCAN_INDEX];
    a.states = mica_at(r, w->states);
    if (w->reset) {
        a.prefixes = mica_at(r, w->prefixes), a.numbers = mica_at(r, w->numbers);
        MICA_TRY(mica_kernel_launch(w->reset, &w->reset_grid, r->stream, &a));
    }
    if (w->totals) MICA_TRY(mica_kernel_launch(w->totals, &w->grid, r->stream, &a));
    return mica_kernel_launch(w->kernel, &w->grid, r->stream, &a);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    for (int i = 0; i < s->count; i++) MICA_TRY(run_walk(&s->walks[i], r, s->before));
    return MICA_OK;
}

const mica_engine mica_scan_cuda = {
    .name = "cuda", .cuda = true, .reached = 0.8, .start_ms = 4e-3, .build = build, .run = run};
