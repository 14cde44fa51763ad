/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda": resizing on any GPU, any strides and types, forward and backward alike. A first
 * kernel makes the weights of the three axes in workspace (kilobytes), a second adds up: by vectors
 * of channels where those are adjacent, by strips of columns where those are and weights are few,
 * else element by element. Floor: the bytes at copy bandwidth, and two launches. */
#include "ops/resize/resize.h"
#include "ops/access/access.h"

enum { BLOCK = 256, TABLE_BLOCK = 64 };
enum { FEW_WEIGHTS = 64, FEW_COLUMNS = 8, STRIP_WEIGHTS = 16, PLANES = 4, FILLING = 30000 };

typedef struct state {
    mica_kernel *table, *kernel;
    mica_resize_args args;
    mica_grid table_grid, grid;
    size_t first[3], weights[3];
    bool backward, few;
    int in_align, out_align; /* bytes that vectors ask for */
} state;

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static bool fits_int(const mica_tensor *t)
{
    int64_t first, span = mica_tensor_span(t, &first);
    return span <= INT32_MAX && mica_tensor_count(t) <= INT32_MAX - BLOCK;
}

static mica_dtype accumulator(mica_dtype t)
{
    return t == MICA_F64 || mica_dtype_is_integer(t) ? MICA_F64 : MICA_F32;
}

/* ---- tables ---- */

/* Few weights are constants of the kernels, padded to powers of two: there are fewer kernels then.
 */
static void choose_most(state *s)
{
    mica_resize_args *a = &s->args;
    double all = 1;
    int64_t padded[3];
    for (int i = 0; i < 3; i++) {
        a->table[i].rows = s->backward ? a->axes[i].x : a->axes[i].y;
        a->table[i].most = mica_resize_most(&a->axes[i], s->backward);
        padded[i] = 1;
        while (padded[i] < a->table[i].most) padded[i] *= 2;
        all *= (double)padded[i];
    }
    s->few = all <= FEW_WEIGHTS && padded[2] <= FEW_COLUMNS;
    for (int i = 0; i < 3 && s->few; i++) a->table[i].most = padded[i];
}

static mica_status add_table(mica_plan *plan, state *s, mica_dtype acc, mica_dtype index)
{
    static const char *const names[3][2] = {{"places of d", "weights of d"},
                                            {"places of h", "weights of h"},
                                            {"places of w", "weights of w"}};
    mica_resize_args *a = &s->args;
    char buffer[256] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    int64_t rows = 0;
    choose_most(s);
    for (int i = 0; i < 3; i++) {
        const mica_resize_table *t = &a->table[i];
        rows += t->rows;
        MICA_TRY(mica_book(plan, names[i][0], (size_t)t->rows * (size_t)mica_dtype_bits(index) / 8,
                           &s->first[i]));
        MICA_TRY(mica_book(plan, names[i][1],
                           (size_t)t->rows * (size_t)t->most * (size_t)mica_dtype_bits(acc) / 8,
                           &s->weights[i]));
    }
    mica_prologue_int(&p, "BACKWARD", s->backward);
    mica_prologue_int(&p, "BLOCK", TABLE_BLOCK);
    mica_prologue_type(&p, "acc_t", acc);
    mica_prologue_type(&p, "int_t", index);
    s->table_grid =
        (mica_grid){.grid = {(unsigned)ceil_div(rows, TABLE_BLOCK)}, .block = {TABLE_BLOCK}};
    mica_kernel_spec spec = {"ops/resize/resize_table.cu", "resize_table", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->table);
}

/* ---- the sums ---- */

static void set_size(mica_resize_args *a, int i, int64_t size)
{
    a->sizes[i] = size;
    if (size <= INT32_MAX) a->by_size[i] = mica_fastdiv_make((unsigned)size);
}

static bool is_channels_last(const mica_resize_args *a)
{
    return a->from[1] == 1 && a->to[1] == 1;
}

/* Steps from vector to vector of channels. */
static int64_t other_steps(const long long strides[5])
{
    return strides[0] | strides[2] | strides[3] | strides[4];
}

static void take_channels(state *s, mica_dtype type, int vec)
{
    mica_resize_args *a = &s->args;
    a->sizes[3] /= vec;
    a->from[1] *= vec, a->to[1] *= vec;
    a->count /= vec;
    s->in_align = s->out_align = mica_access_bytes(type, vec);
}

static void add_types(mica_text *p, const state *s, mica_dtype type, mica_dtype index)
{
    const mica_resize_args *a = &s->args;
    mica_prologue_int(p, "MOST_D", s->few ? a->table[0].most : 0);
    mica_prologue_int(p, "MOST_H", s->few ? a->table[1].most : 0);
    mica_prologue_int(p, "MOST_W", s->few ? a->table[2].most : 0);
    mica_prologue_int(p, "EXTRAPOLATES",
                      a->axes[0].extrapolates || a->axes[1].extrapolates ||
                          a->axes[2].extrapolates);
    mica_prologue_int(p, "BLOCK", BLOCK);
    mica_prologue_type(p, "value_t", type);
    mica_prologue_type(p, "acc_t", accumulator(type));
    mica_prologue_type(p, "int_t", index);
}

static mica_status add_points(mica_plan *plan, state *s, mica_dtype type, mica_text *p)
{
    mica_resize_args *a = &s->args;
    const bool channels = is_channels_last(a);
    int vec = 1;
    if (channels) {
        vec = mica_access_along(type, 1, other_steps(a->from) | other_steps(a->to) | a->sizes[3]);
        if (vec > 8) vec = 8;
        take_channels(s, type, vec);
    }
    for (int i = 0; i < 4; i++) set_size(a, i, a->sizes[i]);
    mica_prologue_int(p, "CHANNELS", channels);
    mica_prologue_int(p, "VEC", vec);
    mica_kernel_spec spec = {"ops/resize/resize_points.cu", "resize_points", p->data, 0};
    s->grid = (mica_grid){.grid = {(unsigned)ceil_div(a->count, BLOCK)}, .block = {BLOCK}};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

/* Columns of a thread: an access of them, but four, past which loads of a warp lie far apart. */
static int strip_length(const mica_resize_args *a, mica_dtype type)
{
    int outs = type == MICA_F64 ? 2 : 4;
    while (outs > 1 && outs * a->table[2].most > STRIP_WEIGHTS) outs /= 2;
    return outs;
}

static bool wants_rows(const state *s, mica_dtype type)
{
    const mica_resize_args *a = &s->args;
    return s->few && !is_channels_last(a) && a->from[4] == 1 && a->to[4] == 1 &&
           strip_length(a, type) > 1;
}

static mica_status add_rows(mica_plan *plan, state *s, mica_dtype type, mica_text *p)
{
    mica_resize_args *a = &s->args;
    const int outs = strip_length(a, type);
    const int64_t strips = a->sizes[0] * a->sizes[1] * ceil_div(a->sizes[2], outs);
    const int planes = strips * a->planes / PLANES >= FILLING ? PLANES : 1;
    const int vec = mica_access_fit(outs, a->to[0] | a->to[1] | a->to[2] | a->to[3]);
    s->out_align = mica_access_bytes(type, vec);
    a->count = strips * ceil_div(a->planes, planes);
    for (int i = 0; i < 4; i++) set_size(a, i, i == 2 ? ceil_div(a->sizes[2], outs) : a->sizes[i]);
    mica_prologue_int(p, "OUTS", outs);
    mica_prologue_int(p, "PLANES", planes);
    mica_prologue_int(p, "VEC", vec);
    mica_kernel_spec spec = {"ops/resize/resize_rows.cu", "resize_rows", p->data, 0};
    s->grid = (mica_grid){.grid = {(unsigned)ceil_div(a->count, BLOCK)}, .block = {BLOCK}};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static mica_status build(mica_plan *plan)
{
    const mica_resize_desc *d = plan->desc;
    state *s;
    char buffer[768] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_resize_args *a = &s->args;
    s->backward = d->pass == MICA_RESIZE_BWD;
    const mica_tensor *in = s->backward ? &d->y : &d->x, *out = s->backward ? &d->x : &d->y;
    a->count = mica_tensor_count(out);
    if (a->count == 0) return MICA_OK;
    mica_resize_axes(d, a->axes);
    mica_resize_strides(in, a->from);
    mica_resize_strides(out, a->to);
    for (int i = 0; i < 3; i++) a->sizes[i] = s->backward ? a->axes[i].x : a->axes[i].y;
    a->sizes[3] = d->x.dims[1];
    a->planes = d->x.dims[0] * d->x.dims[1];
    a->extrapolation = s->backward ? 0 : d->extrapolation;
    const mica_dtype type = d->x.dtype;
    const mica_dtype index = fits_int(in) && fits_int(out) ? MICA_S32 : MICA_S64;
    MICA_TRY(add_table(plan, s, accumulator(type), index));
    add_types(&p, s, type, index);
    return wants_rows(s, type) ? add_rows(plan, s, type, &p) : add_points(plan, s, type, &p);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    if (s->args.count == 0) return MICA_OK;
    mica_resize_args a = s->args;
    a.in = r->args[s->backward ? MICA_RESIZE_Y : MICA_RESIZE_X];
    a.out = r->args[s->backward ? MICA_RESIZE_X : MICA_RESIZE_Y];
    a.whole = mica_access_starts(a.out, s->out_align) &&
              (s->in_align == 0 || mica_access_starts(a.in, s->in_align));
    for (int i = 0; i < 3; i++) {
        a.table[i].first = mica_at(r, s->first[i]);
        a.table[i].weights = mica_at(r, s->weights[i]);
    }
    MICA_TRY(mica_kernel_launch(s->table, &s->table_grid, r->stream, &a));
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &a);
}

const mica_engine mica_resize_cuda = {
    .name = "cuda", .cuda = true, .reached = 0.6, .start_ms = 5e-3, .build = build, .run = run};
