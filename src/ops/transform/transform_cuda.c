/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda": transforms on any GPU, bound by memory. Two kernels:
 *   strided  up to 16 bytes per thread along y's fastest dimension, where x is contiguous too; one
 *            element per thread where it is not
 *   tile     x and y run along different dimensions: tiles through shared memory, narrow ones where
 *            one of the dimensions is short (images of three channels, which are then one run) */
#include "ops/transform/transform.h"
#include "ops/transform/transform_args.h"
#include "ops/access/layout.h"
#include "ops/access/access.h"

#include <stdlib.h>

enum { BLOCK = 256, TILE_ELEMENTS = 4096 };
enum { SHORT = 64 }; /* dimensions that a tile takes whole */

typedef struct state {
    mica_kernel *kernel;
    mica_transform_args args;
    mica_grid grid;
    int x_align, y_align; /* bytes that vectors ask for */
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

static int fastest(const mica_layout *l, int tensor)
{
    int best = l->rank - 1;
    for (int d = l->rank - 2; d >= 0; d--)
        if (llabs(l->strides[tensor][d]) < llabs(l->strides[tensor][best])) best = d;
    return best;
}

/* ---- prologues ---- */

/* A type that holds every value of x, for conversions without scaling. */
static mica_dtype plain_type(mica_dtype x)
{
    if (mica_dtype_is_float(x)) return x == MICA_F64 ? MICA_F64 : MICA_F32;
    return x == MICA_S64 || x == MICA_U32 ? MICA_S64 : MICA_S32;
}

static void add_types(mica_text *p, const mica_transform_desc *d)
{
    mica_prologue_type(p, "x_t", d->x.dtype);
    mica_prologue_type(p, "y_t", d->y.dtype);
    mica_prologue_type(p, "plain_t", plain_type(d->x.dtype));
    mica_prologue_int(p, "SAME", d->x.dtype == d->y.dtype);
    mica_prologue_int(p, "BLOCK", BLOCK);
}

static void set_alignment(state *s, const mica_transform_desc *d, int x_vector, int y_vector)
{
    s->x_align = mica_access_bytes(d->x.dtype, x_vector);
    s->y_align = mica_access_bytes(d->y.dtype, y_vector);
}

/* ---- strided ---- */

static mica_status build_strided(mica_plan *plan, const mica_transform_desc *d, state *s)
{
    char buffer[512] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    mica_layout *l = &s->args.layout;
    const mica_dtype types[] = {d->x.dtype, d->y.dtype};
    const int vec = mica_access_layout(mica_access_most(types, 2), l, 3);
    bool linear = mica_layout_is_linear(l, 2);
    set_alignment(s, d, vec, vec);
    mica_access_count(l, vec, 2);
    s->grid = (mica_grid){.grid = {(unsigned)ceil_div(l->count, BLOCK)}, .block = {BLOCK}};
    add_types(&p, d);
    mica_prologue_int(&p, "LINEAR", linear);
    mica_prologue_int(&p, "VEC", vec);
    mica_kernel_spec spec = {"ops/transform/transform_cuda.cu", "transform", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

/* ---- tiles ---- */

/* Rows run along y, columns along x. */
typedef struct tile_shape {
    int rows, cols;
    bool x_run, y_run; /* all of the tile lies together in x, in y */
    int x_vector, y_vector;
} tile_shape;

static int power_of_two_to(int64_t n, int most)
{
    int p = 1;
    while (2 * p <= n && p < most) p *= 2;
    return p;
}

static int power_of_two_over(int64_t n, int most)
{
    int p = 1;
    while (p < n && p < most) p *= 2;
    return p;
}

/* Elements along a run: 128 bytes or more. */
static int tile_side(int bytes)
{
    return bytes == 1 ? 128 : bytes == 8 ? 32 : 64;
}

/* A short dimension whose neighbours follow each other: tiles take all of it as one run. */
static bool is_run(int64_t n, int64_t inner, int64_t outer)
{
    return n <= SHORT && (n & (n - 1)) != 0 && inner == 1 && outer == n;
}

static tile_shape choose_tile(const mica_transform_args *a, int x_bytes, int y_bytes)
{
    tile_shape t = {.x_run = is_run(a->cols, a->x_col, a->x_row),
                    .y_run = is_run(a->rows, a->y_row, a->y_col)};
    int most = x_bytes == 8 ? TILE_ELEMENTS / 2 : TILE_ELEMENTS;
    t.cols = t.x_run ? (int)a->cols : power_of_two_over(a->cols, tile_side(x_bytes));
    t.rows = t.y_run ? (int)a->rows : power_of_two_over(a->rows, tile_side(y_bytes));
    if (!t.y_run && t.cols < SHORT)
        t.rows = power_of_two_over(a->rows, power_of_two_to(most / t.cols, most));
    else if (!t.x_run && t.rows < SHORT)
        t.cols = power_of_two_over(a->cols, power_of_two_to(most / t.rows, most));
    return t;
}

/* Widest access that starts at a multiple of itself everywhere in the tensor: in a run at steps of
 * the tile, else at steps of rows. */
static void choose_vectors(tile_shape *t, const mica_transform_args *a,
                           const mica_transform_desc *d)
{
    const mica_layout *outer = &a->layout;
    const int64_t all = t->rows * t->cols;
    t->x_vector = mica_access_along(d->x.dtype, a->x_col,
                                    (t->x_run ? all : a->x_row | t->cols) |
                                        mica_access_steps(outer, 1, outer->rank));
    t->y_vector = mica_access_along(d->y.dtype, a->y_row,
                                    (t->y_run ? all : a->y_col | t->rows) |
                                        mica_access_steps(outer, 0, outer->rank));
}

/* Takes dimension d out of the layout. */
static void remove_dim(mica_layout *l, int d)
{
    l->count = 1;
    l->rank--;
    for (int i = d; i < l->rank; i++) {
        l->dims[i] = l->dims[i + 1];
        for (int t = 0; t < 2; t++) l->strides[t][i] = l->strides[t][i + 1];
    }
    for (int i = 0; i < l->rank; i++) l->count *= l->dims[i];
}

static mica_status build_tile(mica_plan *plan, const mica_transform_desc *d, state *s, int x_fast)
{
    char buffer[512] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    mica_transform_args *a = &s->args;
    mica_layout *l = &a->layout;
    int y_fast = l->rank - 1;
    a->rows = l->dims[y_fast], a->cols = l->dims[x_fast];
    a->y_row = l->strides[0][y_fast], a->x_row = l->strides[1][y_fast];
    a->y_col = l->strides[0][x_fast], a->x_col = l->strides[1][x_fast];
    remove_dim(l, y_fast);
    remove_dim(l, x_fast);
    int x_bytes = mica_dtype_bits(d->x.dtype) / 8, y_bytes = mica_dtype_bits(d->y.dtype) / 8;
    tile_shape t = choose_tile(a, x_bytes, y_bytes);
    choose_vectors(&t, a, d);
    set_alignment(s, d, t.x_vector, t.y_vector);
    a->row_tiles = ceil_div(a->rows, t.rows), a->col_tiles = ceil_div(a->cols, t.cols);
    int64_t blocks = a->row_tiles * a->col_tiles * l->count;
    s->grid = (mica_grid){.grid = {(unsigned)blocks}, .block = {BLOCK}};
    add_types(&p, d);
    mica_prologue_int(&p, "TILE_ROWS", t.rows);
    mica_prologue_int(&p, "TILE_COLS", t.cols);
    mica_prologue_int(&p, "X_RUN", t.x_run);
    mica_prologue_int(&p, "Y_RUN", t.y_run);
    mica_prologue_int(&p, "X_VECTOR", t.x_vector);
    mica_prologue_int(&p, "Y_VECTOR", t.y_vector);
    mica_kernel_spec spec = {"ops/transform/transform_tile_cuda.cu", "transform_tile", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

/* ---- the engine ---- */

static mica_status build(mica_plan *plan)
{
    const mica_transform_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_tensor x = mica_transform_source(d, &d->x);
    const mica_tensor *tensors[] = {&d->y, &x};
    mica_layout *l = &s->args.layout;
    mica_layout_make(l, tensors, 2);
    s->args.count = l->count;
    if (l->count == 0) return MICA_OK;
    int x_fast = l->rank ? fastest(l, 1) : 0;
    bool tiled = l->rank > 1 && x_fast != l->rank - 1 && l->strides[1][x_fast] != 0;
    return tiled ? build_tile(plan, d, s, x_fast) : build_strided(plan, d, s);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    if (s->args.count == 0) return MICA_OK;
    mica_transform_args a = s->args;
    a.x = run->args[MICA_TRANSFORM_X];
    a.y = run->args[MICA_TRANSFORM_Y];
    a.alpha = mica_run_scalar(plan, run, MICA_TRANSFORM_ALPHA);
    a.beta = mica_run_scalar(plan, run, MICA_TRANSFORM_BETA);
    a.scaled = a.alpha != 1 || a.beta != 0;
    a.aligned = mica_access_starts(a.x, s->x_align) && mica_access_starts(a.y, s->y_align);
    return mica_kernel_launch(s->kernel, &s->grid, run->stream, &a);
}

/* reached: the median of the lines in bench/results/h200. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    const double start_ms = 3e-3, reached = 0.88;
    (void)config;
    return start_ms + mica_roofline_ms(&mica_op_transform, desc, device) / reached;
}

const mica_engine mica_transform_cuda = {
    .name = "cuda",
    .cuda = true,
    .accepts = accepts,
    .predict = predict,
    .contract = mica_transform_contract,
    .build = build,
    .run = run,
};
