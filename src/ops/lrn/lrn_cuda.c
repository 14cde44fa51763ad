/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda" of lrn: any types and strides. A thread goes along one axis past VEC neighbours and
 * keeps what windows hold along it. Forward each tensor goes through memory once; so it does in the
 * gradient across channels that are not neighbours in memory. Other gradients have two stages,
 * between which two numbers of an element lie in workspace. A last kernel of a block or four for
 * each multiprocessor finds again what sums outside of ordinary numbers are behind, if the others
 * left any. Floor: the bytes at copy bandwidth, and two or three launches. */
#include "ops/lrn/lrn.h"
#include "ops/access/access.h"

enum { BLOCK = 256, MOST_RING = 16, MOST_UNROLLED = 32, REGISTERS = 64 };

typedef struct state {
    mica_lrn_args args;
    mica_kernel *first, *gradient, *careful; /* gradient: of two stages the second */
    mica_grid grid, careful_grid;
    size_t slopes_at, scaled_at, left_at;
    int align;
} state;

/* How threads go through the elements. */
typedef struct walk {
    int march, axes[LRN_AXES - 1]; /* the others, lanes first */
    int vec, ring;
    mica_dtype type, index;
} walk;

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static int64_t width_of(const mica_lrn_args *a, int axis)
{
    return a->before[axis] + a->after[axis] + 1;
}

static bool fits_int(const mica_lrn_desc *d)
{
    const mica_tensor *all[] = {&d->x, &d->means, &d->y, &d->dy, &d->dx, &d->dmeans};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int64_t first;
        if (mica_tensor_given(all[i]) && mica_tensor_span(all[i], &first) > INT32_MAX) return false;
    }
    return mica_tensor_count(&d->x) * 16 <= INT32_MAX;
}

/* Along the first axis with a window that can be kept, but not across the lanes'; else along the
 * longest. */
static int march_of(const mica_lrn_args *a, int row)
{
    int longest = 0;
    for (int i = 1; i < LRN_AXES; i++)
        if (i != row && width_of(a, i) > 1 && width_of(a, i) <= MOST_RING) return i;
    for (int i = 0; i < LRN_AXES; i++)
        if (i != row && (longest == row || a->sizes[i] > a->sizes[longest])) longest = i;
    return longest;
}

/* Elements that lie side by side in all tensors, for which a thread has registers. */
static int vector_of(const mica_lrn_desc *d, const mica_lrn_args *a, int row, int numbers)
{
    const mica_tensor *given[] = {&d->x, &d->means, &d->y, &d->dy, &d->dx, &d->dmeans};
    const mica_lrn_steps *steps[] = {&a->x_step,  &a->means_step, &a->y_step,
                                     &a->dy_step, &a->dx_step,    &a->dmeans_step};
    int64_t all = a->sizes[row];
    int vec = mica_access_of(d->x.dtype);
    if (width_of(a, row) > 1) return 1;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (!mica_tensor_given(given[i])) continue;
        if (steps[i]->at[row] != 1) return 1;
        for (int k = 0; k < LRN_AXES; k++)
            if (k != row) all |= steps[i]->at[k];
    }
    if (d->x.dtype == MICA_F64) numbers *= 2;
    while (vec > 1 && vec * numbers > REGISTERS) vec /= 2;
    return mica_access_fit(vec, all);
}

static walk choose(const mica_lrn_desc *d, const mica_lrn_args *a, bool across)
{
    walk w = {.type = d->x.dtype, .index = fits_int(d) ? MICA_S32 : MICA_S64};
    const int row = mica_lrn_row(a);
    w.march = across ? 1 : march_of(a, row);
    const int64_t width = width_of(a, w.march);
    w.ring = width <= MOST_RING ? (int)width : 1;
    w.axes[0] = row;
    for (int i = LRN_AXES - 1, n = 1; i >= 0; i--)
        if (i != row && i != w.march) w.axes[n++] = i;
    const int64_t numbers = across ? 2 * width + a->before[1] + 1 : w.ring;
    w.vec = vector_of(d, a, row, (int)numbers);
    return w;
}

/* Columns of threads, cut where there are few of them. */
static void cut(mica_lrn_args *a, const walk *w, int units)
{
    int64_t threads = 1;
    for (int i = 0; i < LRN_AXES - 1; i++) {
        const int64_t size = a->sizes[w->axes[i]] / (i == 0 ? w->vec : 1);
        a->column_sizes[i] = size, threads *= size;
        if (size <= INT32_MAX) a->by_size[i] = mica_fastdiv_make((unsigned)size);
    }
    const int64_t length = a->sizes[w->march], least = w->ring > 1 ? 4 * (int64_t)w->ring : 1;
    const int64_t wanted = ceil_div((int64_t)units * 2048, threads);
    int64_t runs = length / least;
    if (runs > wanted) runs = wanted;
    if (runs < 1) runs = 1;
    a->run = ceil_div(length, runs);
    a->runs = ceil_div(length, a->run);
    a->columns = threads * a->runs;
}

static void add_windows(mica_text *p, const mica_lrn_args *a, const walk *w)
{
    static const char *const back[] = {"", "BACK_C", "BACK_D", "BACK_H", "BACK_W"};
    static const char *const ahead[] = {"", "AHEAD_C", "AHEAD_D", "AHEAD_H", "AHEAD_W"};
    double neighbours = 1;
    for (int i = 1; i < LRN_AXES; i++) {
        const bool kept = i == w->march && w->ring > 1;
        mica_prologue_int(p, back[i], kept ? 0 : a->before[i]);
        mica_prologue_int(p, ahead[i], kept ? 0 : a->after[i]);
        if (!kept) neighbours *= (double)width_of(a, i);
    }
    mica_prologue_int(p, "UNROLLED", neighbours <= MOST_UNROLLED);
    mica_prologue_int(p, "RING", w->ring);
    mica_prologue_int(p, "RING_AHEAD", w->ring > 1 ? a->after[w->march] : 0);
}

static void add_walk(mica_text *p, const mica_lrn_desc *d, const mica_lrn_args *a, const walk *w)
{
    static const char *const names[] = {"AXIS0", "AXIS1", "AXIS2", "AXIS3"};
    mica_prologue_int(p, "MARCH", w->march);
    for (int i = 0; i < LRN_AXES - 1; i++) mica_prologue_int(p, names[i], w->axes[i]);
    add_windows(p, a, w);
    mica_prologue_int(p, "VEC", w->vec);
    mica_prologue_int(p, "POWER", mica_lrn_power(d));
    mica_prologue_int(p, "MEANS", mica_tensor_given(&d->means));
    mica_prologue_int(p, "BLOCK", BLOCK);
    mica_prologue_type(p, "x_t", w->type);
    mica_prologue_type(p, "real", mica_dtype_accumulator(w->type));
    mica_prologue_type(p, "int_t", w->index);
}

/* ---- stages ---- */

static mica_status add_forward(mica_plan *plan, state *s, const walk *w)
{
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    mica_kernel_spec spec = {"ops/lrn/lrn_forward.cu", "lrn_forward", buffer, 0};
    add_walk(&p, plan->desc, &s->args, w);
    return mica_plan_add_kernel(plan, &spec, &s->first);
}

static mica_status add_across(mica_plan *plan, state *s, const walk *w)
{
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    mica_kernel_spec spec = {"ops/lrn/lrn_across.cu", "lrn_across", buffer, 0};
    add_walk(&p, plan->desc, &s->args, w);
    mica_prologue_int(&p, "BEFORE", s->args.before[1]);
    mica_prologue_int(&p, "AFTER", s->args.after[1]);
    return mica_plan_add_kernel(plan, &spec, &s->first);
}

/* Workspace is packed as threads go through it. */
static void pack(mica_lrn_args *a, const walk *w)
{
    int64_t step = 1;
    for (int i = 0; i < LRN_AXES - 1; i++)
        a->packed_step.at[w->axes[i]] = step, step *= a->sizes[w->axes[i]];
    a->packed_step.at[w->march] = step;
}

static void swap_windows(mica_lrn_args *a)
{
    for (int i = 0; i < LRN_AXES; i++) {
        const long long before = a->before[i];
        a->before[i] = a->after[i], a->after[i] = before;
    }
}

static mica_status add_stages(mica_plan *plan, state *s, const walk *w)
{
    const mica_lrn_desc *d = plan->desc;
    char first[1024] = "", second[1024] = "";
    mica_text p = {first, sizeof first, 0}, q = {second, sizeof second, 0};
    const size_t bytes = (size_t)mica_tensor_count(&d->x) *
                         (size_t)mica_dtype_bits(mica_dtype_accumulator(w->type)) / 8;
    MICA_TRY(mica_book(plan, "slopes", bytes, &s->slopes_at));
    MICA_TRY(mica_book(plan, "scaled gradients", bytes, &s->scaled_at));
    pack(&s->args, w);
    mica_lrn_args other = s->args;
    swap_windows(&other);
    mica_kernel_spec slopes = {"ops/lrn/lrn_slopes.cu", "lrn_slopes", first, 0};
    mica_kernel_spec gradient = {"ops/lrn/lrn_gradient.cu", "lrn_gradient", second, 0};
    add_walk(&p, d, &s->args, w);
    add_walk(&q, d, &other, w);
    mica_prologue_int(&q, "DMEANS", mica_tensor_given(&d->dmeans));
    MICA_TRY(mica_plan_add_kernel(plan, &slopes, &s->first));
    return mica_plan_add_kernel(plan, &gradient, &s->gradient);
}

static mica_status add_careful(mica_plan *plan, state *s)
{
    enum { CAREFUL_BLOCK = 128, OF_UNIT = 4 };
    const mica_lrn_desc *d = plan->desc;
    char buffer[256] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    mica_kernel_spec spec = {"ops/lrn/lrn_careful.cu", "lrn_careful", buffer, 0};
    int64_t blocks = ceil_div(mica_tensor_count(&d->x), CAREFUL_BLOCK);
    if (blocks > OF_UNIT * (int64_t)plan->device.units) blocks = OF_UNIT * plan->device.units;
    s->careful_grid = (mica_grid){.grid = {(unsigned)blocks}, .block = {CAREFUL_BLOCK}};
    MICA_TRY(mica_book(plan, "whether results are left", sizeof(uint32_t), &s->left_at));
    mica_prologue_int(&p, "BACKWARD", d->pass == MICA_LRN_BWD);
    mica_prologue_int(&p, "BLOCK", CAREFUL_BLOCK);
    mica_prologue_type(&p, "x_t", d->x.dtype);
    mica_prologue_type(&p, "real", mica_dtype_accumulator(d->x.dtype));
    mica_prologue_type(&p, "int_t", fits_int(d) ? MICA_S32 : MICA_S64);
    return mica_plan_add_kernel(plan, &spec, &s->careful);
}

static bool is_one_pass(const mica_lrn_desc *d, const mica_lrn_args *a)
{
    return d->kind == MICA_LRN_ACROSS && mica_lrn_row(a) != 1 && width_of(a, 1) <= MOST_RING;
}

static mica_status build(mica_plan *plan)
{
    const mica_lrn_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_lrn_prepare(d, &s->args);
    if (mica_tensor_count(&d->x) == 0) return MICA_OK;
    const bool fwd = d->pass == MICA_LRN_FWD, across = !fwd && is_one_pass(d, &s->args);
    const walk w = choose(d, &s->args, across);
    cut(&s->args, &w, plan->device.units);
    s->align = mica_access_bytes(w.type, w.vec);
    s->grid = (mica_grid){.grid = {(unsigned)ceil_div(s->args.columns, BLOCK)}, .block = {BLOCK}};
    MICA_TRY(add_careful(plan, s));
    return fwd      ? add_forward(plan, s, &w)
           : across ? add_across(plan, s, &w)
                    : add_stages(plan, s, &w);
}

static bool starts(const void *at, int align)
{
    return !at || mica_access_starts(at, align);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    mica_lrn_args a = s->args;
    a.x = r->args[MICA_LRN_X], a.means = r->args[MICA_LRN_MEANS], a.dy = r->args[MICA_LRN_DY];
    a.y = r->args[MICA_LRN_Y], a.dx = r->args[MICA_LRN_DX], a.dmeans = r->args[MICA_LRN_DMEANS];
    a.whole = starts(a.x, s->align) && starts(a.means, s->align) && starts(a.dy, s->align) &&
              starts(a.y, s->align) && starts(a.dx, s->align) && starts(a.dmeans, s->align);
    if (!s->first) return MICA_OK;
    a.slopes = mica_at(r, s->slopes_at), a.scaled = mica_at(r, s->scaled_at);
    a.left = mica_at(r, s->left_at);
    MICA_TRY(mica_cuda_memset(plan->cuda, a.left, 0, sizeof(uint32_t), r->stream));
    MICA_TRY(mica_kernel_launch(s->first, &s->grid, r->stream, &a));
    if (s->gradient) MICA_TRY(mica_kernel_launch(s->gradient, &s->grid, r->stream, &a));
    return mica_kernel_launch(s->careful, &s->careful_grid, r->stream, &a);
}

const mica_engine mica_lrn_cuda = {
    .name = "cuda", .cuda = true, .reached = 0.6, .start_ms = 3e-3, .build = build, .run = run};
