/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda": pooling on any GPU, any strides and types, no workspace. Kernels:
 *   forward   a thread per window, up to 16 bytes of channels each where those are adjacent
 *   backward  a thread per element (or channels of it) gathers from the windows over it; per stride
 *             elements where windows are constants
 *   rows      the same two where columns are adjacent and windows small: a thread has a strip of
 *             windows, or of elements, in one row
 *   reduce    large windows: threads of a warp share a window, or warps the windows of some
 *             channels; small packed planes that are windows go through shared memory
 *   fractional  windows that samples place: a thread per window; backward as above
 *   lp        norms: a thread, or a warp, per window; backward as above
 *   spread    backward where each window is all of x's plane: what the elements receive is known
 * Bound by memory where the cache answers the overlap and the windows are constants. */
#include "ops/pool/pool.h"
#include "ops/access/access.h"

#include <stdlib.h>

enum { BLOCK = 256, WARP = 32 };
enum { LARGE_WINDOW = 32, HUGE_WINDOW = 512, FEW_THREADS = 1 << 16 };
enum { BAKED_SIDE = 8, BAKED_TAPS = 27, STRIP_COLUMNS = 40 };
enum { FILLING_BLOCKS = 256, TAPS_PER_THREAD = 8 };
enum { STAGED_ACCESS = 8, STAGED_TAPS = 1024, STAGED_BYTES = 32768, SPREAD_ROWS = 8 };

typedef struct state {
    mica_kernel *kernel;
    mica_pool_args args;
    mica_pool_lp_args norm; /* what norms need beside them */
    mica_pool_fractional_args fractional;
    mica_grid grid;
    bool backward, indices, lp, samples;
    int x_align, y_align, index_align; /* bytes that vectors ask for */
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* ---- what the kernel is compiled for ---- */

static bool small_tensor(const mica_tensor *t)
{
    int64_t first, span = mica_tensor_span(t, &first);
    return !mica_tensor_given(t) ||
           (span <= INT32_MAX && mica_tensor_count(t) <= INT32_MAX - BLOCK);
}

/* Whether every size, offset and intermediate of the index arithmetic stays below 2^31. */
static bool fits_int(const mica_pool_desc *d, const mica_pool_axis axes[3])
{
    bool fits = small_tensor(&d->x) && small_tensor(&d->y) && small_tensor(&d->indices) &&
                small_tensor(&d->input) && small_tensor(&d->output) && small_tensor(&d->samples);
    int64_t most = INT32_MAX / 4;
    for (int a = 0; a < 3; a++) {
        const mica_pool_axis *x = &axes[a];
        fits = fits && x->x < most && x->y < most && x->end < most && x->stride < most &&
               x->pad < most && (x->window - 1) < most / x->dilation && x->dilation < most;
        if (x->adaptive) fits = fits && x->x + 1 < most / (x->y + 1);
    }
    return fits && mica_pool_plane(axes) < INT32_MAX && d->divisor <= INT32_MAX;
}

static mica_dtype accumulator(const mica_pool_desc *d)
{
    mica_dtype t = d->x.dtype;
    if (t == MICA_F64 || t == MICA_S32) return MICA_F64;
    /* Sums of 8-bit integers are exact in f64 */
    return mica_dtype_is_integer(t) && d->mode != MICA_POOL_MAX ? MICA_F64 : MICA_F32;
}

/* How the kernel walks. */
typedef struct form {
    bool channels; /* neighbouring threads are neighbours in C, else in W */
    bool small;    /* 32 bits hold every size and offset */
    bool baked;    /* windows are constants of the kernel */
} form;

static bool is_dilated(const mica_pool_desc *d)
{
    bool dilated = false;
    for (int i = 0; i < 3; i++) dilated |= d->dilation[i] != 1;
    return dilated;
}

static bool bakes(const mica_pool_desc *d, const mica_pool_axis axes[3])
{
    int64_t taps = 1;
    for (int i = 0; i < 3; i++) {
        const mica_pool_axis *a = &axes[i];
        if (a->window > BAKED_SIDE || a->stride > BAKED_SIDE || a->pad > BAKED_SIDE) return false;
        taps *= a->window;
    }
    return taps <= BAKED_TAPS && !d->adaptive && !is_dilated(d) && d->divisor <= INT32_MAX;
}

static void add_window(mica_text *p, const mica_pool_axis axes[3], bool baked)
{
    static const char *const names[3][3] = {{"WINDOW_D", "STRIDE_D", "PAD_D"},
                                            {"WINDOW_H", "STRIDE_H", "PAD_H"},
                                            {"WINDOW_W", "STRIDE_W", "PAD_W"}};
    mica_prologue_int(p, "BAKED", baked);
    for (int i = 0; i < 3; i++) {
        mica_prologue_int(p, names[i][0], baked ? axes[i].window : 1);
        mica_prologue_int(p, names[i][1], baked ? axes[i].stride : 1);
        mica_prologue_int(p, names[i][2], baked ? axes[i].pad : 0);
    }
}

static void add_constants(mica_text *p, const mica_pool_desc *d, const mica_pool_args *a,
                          const form *f)
{
    mica_prologue_int(p, "MAX", MICA_POOL_MAX);
    mica_prologue_int(p, "AVG", MICA_POOL_AVG);
    mica_prologue_int(p, "AVG_VALID", MICA_POOL_AVG_VALID);
    mica_prologue_int(p, "MODE", d->mode);
    mica_prologue_int(p, "ADAPTIVE", d->adaptive);
    mica_prologue_int(p, "DILATED", is_dilated(d));
    mica_prologue_int(p, "DIVISOR_GIVEN", d->divisor != 0);
    mica_prologue_int(p, "CHANNELS", f->channels);
    mica_prologue_int(p, "INDICES", mica_tensor_given(&d->indices));
    add_window(p, a->axes, f->baked);
    mica_prologue_type(p, "value_t", d->x.dtype);
    mica_prologue_type(p, "acc_t", accumulator(d));
    mica_prologue_type(p, "int_t", f->small ? MICA_S32 : MICA_S64);
    mica_prologue_type(p, "index_t", d->indices.dtype ? d->indices.dtype : MICA_S64);
}

/* Channels of one access: they are adjacent in x and y, and all other strides keep them aligned. */
static int vector_length(const mica_pool_desc *d, const mica_pool_args *a)
{
    int64_t steps = a->c;
    if (a->y[1] != 1 || (mica_tensor_given(&d->indices) && a->i[1] != 1)) return 1;
    for (int i = 0; i < 5; i++)
        if (i != 1) steps |= a->x[i] | a->y[i] | a->i[i];
    return mica_access_along(d->x.dtype, a->x[1], steps);
}

/* From now on channels are counted in vectors. */
static void take_vectors(const mica_pool_desc *d, state *s, int vec)
{
    mica_pool_args *a = &s->args;
    a->c /= vec;
    a->x[1] *= vec, a->y[1] *= vec, a->i[1] *= vec;
    s->x_align = s->y_align = mica_access_bytes(d->x.dtype, vec);
    if (s->indices) s->index_align = mica_access_bytes(d->indices.dtype, vec);
}

/* Work items stand for channels (or vectors or groups of them) of x's elements, or of windows. */
static void set_sizes(mica_pool_args *a, bool of_x, int64_t channels)
{
    for (int i = 0; i < 4; i++) {
        a->sizes[i] = i == 3 ? channels : of_x ? a->axes[i].x : a->axes[i].y;
        if (a->sizes[i] <= INT32_MAX) a->by_size[i] = mica_fastdiv_make((unsigned)a->sizes[i]);
    }
}

/* ---- launches ---- */

static mica_status add_kernel(mica_plan *plan, const mica_kernel_spec *spec, state *s,
                              mica_grid grid)
{
    s->grid = grid;
    return mica_plan_add_kernel(plan, spec, &s->kernel);
}

/* Groups of stride elements along W, of which the first reach back into the padding. */
static int64_t elements_beside(const mica_pool_axis *w)
{
    return (w->x - 1 + w->pad) / w->stride + 1 - w->pad / w->stride;
}

static mica_status build_plain(mica_plan *plan, const mica_pool_desc *d, state *s, mica_text *p,
                               const form *f)
{
    mica_pool_args *a = &s->args;
    int vec = f->channels ? vector_length(d, a) : 1;
    take_vectors(d, s, vec);
    set_sizes(a, s->backward, a->c);
    a->count = mica_tensor_count(s->backward ? &d->x : &d->y) / vec;
    if (s->backward && f->baked) {
        int64_t groups = elements_beside(&a->axes[2]);
        a->count = a->count / a->sizes[2] * groups;
        a->sizes[2] = groups;
        if (groups <= INT32_MAX) a->by_size[2] = mica_fastdiv_make((unsigned)groups);
    }
    mica_prologue_int(p, "VEC", vec);
    mica_prologue_int(p, "BLOCK", BLOCK);
    mica_kernel_spec spec = {"ops/pool/pool_cuda.cu", "pool", p->data, 0};
    if (s->backward) spec.file = "ops/pool/pool_bwd_cuda.cu", spec.entry = "pool_bwd";
    mica_grid grid = {.grid = {(unsigned)ceil_div(a->count, BLOCK)}, .block = {BLOCK}};
    return add_kernel(plan, &spec, s, grid);
}

/* ---- rows ---- */

/* Columns that a thread has: those of one access of the result. */
static int strip_length(const mica_pool_desc *d, const mica_pool_axis *w)
{
    int n = mica_access_of(d->x.dtype);
    if (n > 8) n = 8;
    if (d->pass == MICA_POOL_BWD) return n > w->stride ? n : (int)w->stride;
    while (n > 1 && (n - 1) * w->stride + w->window > STRIP_COLUMNS) n /= 2;
    return n;
}

/* Columns of one access to a tensor whose rows are read in pieces of `own`. */
static int row_vector(const mica_tensor *t, const long long strides[5], int64_t columns,
                      int64_t own)
{
    int64_t steps = columns | own;
    for (int i = 0; i < 4; i++) steps |= strides[i];
    return mica_access_fit(mica_access_of(t->dtype), steps);
}

/* Small windows along rows of neighbouring columns. */
static bool wants_rows(const mica_pool_desc *d, const mica_pool_args *a, const form *f)
{
    const mica_pool_axis *w = &a->axes[2];
    bool backward = d->pass == MICA_POOL_BWD, beside = true;
    const struct {
        const mica_tensor *tensor;
        long long stride;
    } columns[] = {{&d->x, a->x[4]}, {&d->y, a->y[4]}, {&d->indices, a->i[4]}};
    for (int i = 0; i < 3; i++) {
        const mica_tensor *t = columns[i].tensor;
        if (!mica_tensor_given(t)) continue;
        beside = beside && (columns[i].stride == 1 || t->dims[t->rank - 1] == 1);
    }
    bool whole = !backward || strip_length(d, w) % w->stride == 0;
    return f->baked && !f->channels && beside && whole && mica_tensor_count(&d->x) > 0 &&
           mica_tensor_count(&d->y) > 0 && mica_pool_plane(a->axes) < INT32_MAX / 4;
}

static mica_status build_rows(mica_plan *plan, const mica_pool_desc *d, state *s, mica_text *p)
{
    mica_pool_args *a = &s->args;
    const mica_pool_axis *w = &a->axes[2];
    int outs = strip_length(d, w);
    int64_t x_own = s->backward ? outs : outs * w->stride,
            y_own = s->backward ? outs / w->stride : outs;
    int x = row_vector(&d->x, a->x, w->x, x_own), y = row_vector(&d->y, a->y, w->y, y_own);
    int i = s->indices ? row_vector(&d->indices, a->i, w->y, y_own) : 1;
    const mica_tensor *out = s->backward ? &d->x : &d->y;
    int64_t columns = s->backward ? w->x : w->y;
    a->count = mica_tensor_count(out) / columns * ceil_div(columns, outs);
    s->x_align = mica_access_bytes(d->x.dtype, x), s->y_align = mica_access_bytes(d->y.dtype, y);
    if (s->indices) s->index_align = mica_access_bytes(d->indices.dtype, i);
    mica_prologue_int(p, "OUTS", outs);
    mica_prologue_int(p, "X_VECTOR", x);
    mica_prologue_int(p, "Y_VECTOR", y);
    mica_prologue_int(p, "INDEX_VECTOR", i);
    mica_prologue_int(p, "BLOCK", BLOCK);
    mica_kernel_spec spec = {"ops/pool/pool_rows_cuda.cu", "pool_rows", p->data, 0};
    if (s->backward) spec.file = "ops/pool/pool_rows_bwd_cuda.cu", spec.entry = "pool_rows_bwd";
    mica_grid grid = {.grid = {(unsigned)ceil_div(a->count, BLOCK)}, .block = {BLOCK}};
    return add_kernel(plan, &spec, s, grid);
}

/* ---- large windows ---- */

/* The stride between the plane's elements if they are evenly spaced and every window has them all;
 * else 0. */
static int64_t flat_step(const mica_pool_args *a)
{
    int64_t step = 0, inside = 1;
    for (int i = 2; i >= 0; i--) {
        const mica_pool_axis *x = &a->axes[i];
        bool all =
            x->y == 1 && (x->adaptive || (x->pad == 0 && x->window >= x->x && x->dilation == 1));
        if (!all) return 0;
        if (x->x == 1) continue;
        if (step == 0) step = a->x[2 + i];
        if (a->x[2 + i] != step * inside) return 0;
        inside *= x->x;
    }
    return step;
}

static int group_of(int64_t taps)
{
    int n = 4;
    while (n < WARP && n * TAPS_PER_THREAD < taps) n *= 2;
    return n;
}

/* The step from one channel's plane or window to the next if images go on with it, else 0. */
static int64_t channel_step(const mica_pool_args *a, const long long strides[5])
{
    if (a->c == 1) return strides[0];
    return a->n == 1 || strides[0] == a->c * strides[1] ? strides[1] : 0;
}

/* Whether x's planes are windows and lie packed, one behind the other. */
static bool is_packed(const mica_pool_args *a)
{
    return flat_step(a) == 1 && channel_step(a, a->x) == mica_pool_plane(a->axes);
}

/* Threads of a window whose planes a block of `threads` stages: few, for planes of odd sizes then
 * meet in different banks, but enough blocks, and room for several beside each other. */
static int staged_group(const mica_pool_args *a, int64_t windows, int64_t bytes, int threads)
{
    int n = 1;
    int64_t plane = mica_pool_plane(a->axes) * bytes;
    while (n < WARP / 2 &&
           (threads / n * plane > STAGED_BYTES || ceil_div(windows, threads / n) < FILLING_BLOCKS))
        n *= 2;
    return n;
}

static mica_status build_reduce(mica_plan *plan, const mica_pool_desc *d, state *s, mica_text *p,
                                bool channels)
{
    mica_pool_args *a = &s->args;
    int64_t windows = mica_tensor_count(&d->y), step = flat_step(a),
            plane = mica_pool_plane(a->axes);
    int vec = channels ? vector_length(d, a)
                       : mica_access_along(d->x.dtype, step, plane | a->x[0] | a->x[1]);
    int group = WARP, warps = channels && plane >= HUGE_WINDOW ? 16 : 8;
    const int bytes = mica_dtype_bits(d->x.dtype) / 8;
    int64_t staged = 0; /* bytes */
    if (vec > 8) vec = 8;
    if (step != 0) a->x[4] = step;
    if (channels) {
        int64_t images = windows / a->c;
        while (vec > 1 && images * ceil_div(a->c, WARP * vec) < FILLING_BLOCKS && vec * bytes > 4)
            vec /= 2;
        take_vectors(d, s, vec);
        a->count = images * ceil_div(a->c, WARP);
    } else if (is_packed(a) && vec * bytes < STAGED_ACCESS && plane <= STAGED_TAPS) {
        vec = 1;
        group = staged_group(a, windows, bytes, WARP * warps);
        staged = WARP * warps / group * plane * bytes;
        s->x_align = MICA_ACCESS_BYTES;
        a->plane = plane;
        a->count = windows;
    } else {
        if (step != 0 && windows >= FEW_THREADS) group = group_of(plane / vec);
        s->x_align = mica_access_bytes(d->x.dtype, vec);
        a->count = windows;
    }
    set_sizes(a, false, channels ? ceil_div(a->c, WARP) : a->c);
    mica_prologue_int(p, "WARPS", warps);
    mica_prologue_int(p, "GROUP", group);
    mica_prologue_int(p, "FLAT", step != 0);
    mica_prologue_int(p, "STAGED", staged != 0);
    mica_prologue_int(p, "VEC", vec);
    mica_kernel_spec spec = {"ops/pool/pool_reduce_cuda.cu", "pool_reduce", p->data, staged};
    int64_t blocks = channels ? a->count : ceil_div(a->count, WARP * warps / group);
    mica_grid grid = {.grid = {(unsigned)blocks},
                      .block = {WARP, (unsigned)warps},
                      .dynamic_shared = (unsigned)staged};
    return add_kernel(plan, &spec, s, grid);
}

/* Threads that share a window pay where there are few windows, or where single threads would each
 * walk a run of their own. */
static bool wants_reduce(const mica_pool_desc *d, const mica_pool_axis axes[3], bool channels)
{
    double taps = 1;
    for (int a = 0; a < 3; a++)
        taps *= axes[a].adaptive ? (double)axes[a].x / (double)axes[a].y : (double)axes[a].window;
    if (taps < LARGE_WINDOW) return false;
    bool few = mica_tensor_count(&d->y) < FEW_THREADS;
    bool apart = axes[2].adaptive || axes[2].stride >= axes[2].window;
    return few || (!channels && apart) || taps >= HUGE_WINDOW;
}

/* ---- norms ---- */

/* As vector_length, of four tensors. */
static int norm_vector(const mica_pool_desc *d, const state *s)
{
    const mica_pool_lp_args *n = &s->norm;
    int vec = vector_length(d, &s->args);
    if (!s->backward) return vec;
    int64_t steps = vec;
    if (n->input_strides[1] != 1 || n->output_strides[1] != 1) return 1;
    for (int i = 0; i < 5; i++)
        if (i != 1) steps |= n->input_strides[i] | n->output_strides[i];
    return mica_access_fit(vec, steps);
}

static mica_status build_norm(mica_plan *plan, const mica_pool_desc *d, state *s, mica_text *p,
                              const form *f, bool shared)
{
    enum { MOST_WHOLE = 8 };
    mica_pool_args *a = &s->args;
    mica_pool_strides(&d->input, s->norm.input_strides);
    mica_pool_strides(&d->output, s->norm.output_strides);
    s->norm.p = d->p;
    int vec = f->channels ? norm_vector(d, s) : 1, group = shared ? WARP : 1;
    take_vectors(d, s, vec);
    s->norm.input_strides[1] *= vec, s->norm.output_strides[1] *= vec;
    set_sizes(a, s->backward, a->c);
    a->count = mica_tensor_count(s->backward ? &d->x : &d->y) / vec;
    bool whole = d->p <= MOST_WHOLE && d->p == (double)(int)d->p;
    mica_prologue_int(p, "POWER", whole ? (int)d->p : 0);
    mica_prologue_int(p, "SIGNED", d->signed_powers);
    mica_prologue_int(p, "RESCALE", d->rescale);
    mica_prologue_int(p, "VEC", vec);
    mica_prologue_int(p, "BLOCK", BLOCK);
    mica_kernel_spec spec = {"ops/pool/pool_lp_cuda.cu", "pool_lp", p->data, 0};
    if (s->backward)
        spec.file = "ops/pool/pool_lp_bwd_cuda.cu", spec.entry = "pool_lp_bwd";
    else
        mica_prologue_int(p, "GROUP", group);
    mica_grid grid = {.grid = {(unsigned)ceil_div(a->count, BLOCK / group)}, .block = {BLOCK}};
    return add_kernel(plan, &spec, s, grid);
}

/* ---- windows that samples place ---- */

static mica_status build_fractional(mica_plan *plan, const mica_pool_desc *d, state *s,
                                    mica_text *p)
{
    mica_pool_args *a = &s->args;
    mica_pool_fractional_args *f = &s->fractional;
    f->first = 5 - d->x.rank;
    f->wide = d->samples.dtype == MICA_F64;
    for (int i = 0; i < 3; i++) {
        f->samples_strides[i] = d->samples.strides[i];
        f->by[i] = mica_pool_step(&a->axes[i], f->wide);
    }
    set_sizes(a, s->backward, a->c);
    a->count = mica_tensor_count(s->backward ? &d->x : &d->y);
    mica_prologue_int(p, "AXES", d->x.rank - 2);
    mica_prologue_int(p, "WIDE", f->wide);
    mica_prologue_type(p, "sample_t", d->samples.dtype);
    mica_prologue_int(p, "BLOCK", BLOCK);
    mica_kernel_spec spec = {"ops/pool/pool_fractional_cuda.cu", "pool_fractional", p->data, 0};
    if (s->backward)
        spec.file = "ops/pool/pool_fractional_bwd_cuda.cu", spec.entry = "pool_fractional_bwd";
    mica_grid grid = {.grid = {(unsigned)ceil_div(a->count, BLOCK)}, .block = {BLOCK}};
    return add_kernel(plan, &spec, s, grid);
}

/* ---- gradients of windows that are planes ---- */

static bool wants_spread(const mica_pool_desc *d, const mica_pool_args *a, bool channels)
{
    if (channels) return flat_step(a) != 0;
    bool indices = mica_tensor_given(&d->indices);
    return is_packed(a) && channel_step(a, a->y) != 0 && (!indices || channel_step(a, a->i) != 0);
}

static mica_status build_spread(mica_plan *plan, const mica_pool_desc *d, state *s, mica_text *p,
                                bool channels)
{
    mica_pool_args *a = &s->args;
    int vec = channels ? vector_length(d, a) : mica_access_of(d->x.dtype);
    a->plane = mica_pool_plane(a->axes);
    a->elements = mica_tensor_count(&d->x);
    a->divisor = 1;
    for (int i = 0; i < 3; i++)
        a->divisor *= (double)mica_pool_divisor(&a->axes[i], 0, d->mode == MICA_POOL_AVG_VALID);
    if (channels) {
        a->x[4] = flat_step(a);
        take_vectors(d, s, vec);
        a->count = a->n * a->c * ceil_div(a->plane, SPREAD_ROWS);
    } else {
        while (vec > a->plane) vec /= 2;
        if (a->plane <= INT32_MAX) a->by_plane = mica_fastdiv_make((unsigned)a->plane);
        a->y[1] = channel_step(a, a->y);
        a->i[1] = channel_step(a, a->i);
        s->x_align = mica_access_bytes(d->x.dtype, vec);
        a->count = ceil_div(a->elements, vec);
    }
    mica_prologue_int(p, "ROWS", SPREAD_ROWS);
    mica_prologue_int(p, "VEC", vec);
    mica_prologue_int(p, "BLOCK", BLOCK);
    mica_kernel_spec spec = {"ops/pool/pool_spread_cuda.cu", "pool_spread", p->data, 0};
    mica_grid grid = {.grid = {(unsigned)ceil_div(a->count, BLOCK)}, .block = {BLOCK}};
    return add_kernel(plan, &spec, s, grid);
}

/* ---- the engine ---- */

static mica_status build(mica_plan *plan)
{
    const mica_pool_desc *d = plan->desc;
    char buffer[1024] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    s->backward = d->pass == MICA_POOL_BWD;
    s->indices = mica_tensor_given(&d->indices);
    s->lp = d->mode == MICA_POOL_LP;
    s->x_align = s->y_align = s->index_align = 1;
    if (mica_tensor_count(s->backward ? &d->x : &d->y) == 0) return MICA_OK;
    mica_pool_args *a = &s->args;
    mica_pool_axes(d, a->axes);
    mica_pool_strides(&d->x, a->x);
    mica_pool_strides(&d->y, a->y);
    mica_pool_strides(&d->indices, a->i);
    a->n = d->x.dims[0], a->c = d->x.dims[1];
    form f = {.small = fits_int(d, a->axes)};
    f.channels =
        d->x.dims[1] > 1 && (d->x.dims[d->x.rank - 1] <= 1 || llabs(a->x[1]) < llabs(a->x[4]));
    s->samples = mica_tensor_given(&d->samples);
    if (s->samples) {
        f.baked = bakes(d, a->axes);
        add_constants(&p, d, a, &f);
        return build_fractional(plan, d, s, &p);
    }
    bool reduce = !s->backward && wants_reduce(d, a->axes, f.channels);
    bool spread = s->backward && !s->lp && wants_spread(d, a, f.channels);
    f.baked = !reduce && !spread && !s->lp && bakes(d, a->axes);
    bool rows = !reduce && !spread && wants_rows(d, a, &f);
    f.small |= rows; /* offsets of rows have 64 bits anyway */
    add_constants(&p, d, a, &f);
    if (s->lp) return build_norm(plan, d, s, &p, &f, reduce);
    if (reduce) return build_reduce(plan, d, s, &p, f.channels);
    if (spread) return build_spread(plan, d, s, &p, f.channels);
    return rows ? build_rows(plan, d, s, &p) : build_plain(plan, d, s, &p, &f);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    mica_pool_args a = s->args;
    if (!s->kernel) return MICA_OK;
    a.in = r->args[s->backward ? MICA_POOL_Y : MICA_POOL_X];
    a.out = r->args[s->backward ? MICA_POOL_X : MICA_POOL_Y];
    a.indices = s->indices ? r->args[MICA_POOL_INDICES] : NULL;
    a.alpha = mica_run_scalar(plan, r, MICA_POOL_ALPHA);
    a.beta = mica_run_scalar(plan, r, MICA_POOL_BETA);
    a.scaled = a.alpha != 1 || a.beta != 0;
    a.aligned = mica_access_starts(r->args[MICA_POOL_X], s->x_align) &&
                mica_access_starts(r->args[MICA_POOL_Y], s->y_align) &&
                mica_access_starts(a.indices, s->index_align);
    if (s->samples) {
        mica_pool_fractional_args f = s->fractional;
        f.pool = a;
        f.samples = r->args[MICA_POOL_SAMPLES];
        return mica_kernel_launch(s->kernel, &s->grid, r->stream, &f);
    }
    if (!s->lp) return mica_kernel_launch(s->kernel, &s->grid, r->stream, &a);
    mica_pool_lp_args norm = s->norm;
    if (s->backward) norm.input = r->args[MICA_POOL_INPUT], norm.output = r->args[MICA_POOL_OUTPUT];
    a.aligned = a.aligned && mica_access_starts(norm.input, s->x_align) &&
                mica_access_starts(norm.output, s->y_align);
    norm.pool = a;
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &norm);
}

/* reached: the median of the lines in bench/results/h200. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    const double start_ms = 3e-3, reached = 0.5;
    (void)config;
    return start_ms + mica_roofline_ms(&mica_op_pool, desc, device) / reached;
}

const mica_engine mica_pool_cuda = {.name = "cuda",
                                    .cuda = true,
                                    .accepts = accepts,
                                    .predict = predict,
                                    .build = build,
                                    .run = run};
