/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda": transforms on any GPU, bound by memory. Two kernels:
 *   strided  up to 16 bytes per thread along y's fastest dimension, where x is contiguous too; one
 *            element per thread where it is not
 *   tile     x and y run along different dimensions: tiles through shared memory, narrow ones where
 *            one of the dimensions is short (images of three channels, which are then one run) */
#include "ops/transform/transform.h"
#include "ops/transform/transform_args.h"
#include "ops/shared/layout.h"

#include <stdlib.h>

enum { BLOCK = 256, VECTOR_BYTES = 16, TILE_ELEMENTS = 4096 };
enum { SHORT = 64 }; /* dimensions that a tile takes whole */

typedef struct state {
    mica_kernel *kernel;
    mica_transform_args args;
    mica_grid grid;
    uintptr_t x_align, y_align; /* bytes less one that allow vectors */
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

/* ---- strided ---- */

static int vector_length(const mica_layout *l, int bytes)
{
    int last = l->rank - 1, n = VECTOR_BYTES / bytes;
    if (l->rank == 0 || l->strides[0][last] != 1 || l->strides[1][last] != 1) return 1;
    if (l->rank == 1) return n;
    for (int d = 0; d < last; d++)
        while (l->strides[0][d] % n || l->strides[1][d] % n) n /= 2;
    while (l->dims[last] % n) n /= 2;
    return n;
}

static mica_status build_strided(mica_plan *plan, const mica_transform_desc *d, state *s)
{
    char buffer[512] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    mica_layout *l = &s->args.layout;
    int x_bytes = mica_dtype_bits(d->x.dtype) / 8, y_bytes = mica_dtype_bits(d->y.dtype) / 8;
    int vec = vector_length(l, x_bytes > y_bytes ? x_bytes : y_bytes), last = l->rank - 1;
    bool linear = mica_layout_is_linear(l, 2);
    s->x_align = (uintptr_t)(vec * x_bytes - 1), s->y_align = (uintptr_t)(vec * y_bytes - 1);
    if (vec > 1) {
        l->count = ceil_div(l->count, vec);
        l->dims[last] = ceil_div(l->dims[last], vec);
        l->strides[0][last] = l->strides[1][last] = vec;
    }
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
static int tile_vector(const mica_layout *outer, int tensor, int bytes, int64_t inner, int64_t step,
                       int side)
{
    int n = VECTOR_BYTES / bytes;
    if (inner != 1) return 1;
    while (step % n || side % n) n /= 2;
    for (int d = 0; d < outer->rank; d++)
        while (outer->strides[tensor][d] % n) n /= 2;
    return n;
}

static void choose_vectors(tile_shape *t, const mica_transform_args *a, int x_bytes, int y_bytes)
{
    int all = t->rows * t->cols;
    t->x_vector = tile_vector(&a->layout, 1, x_bytes, a->x_col, t->x_run ? all : a->x_row,
                              t->x_run ? all : t->cols);
    t->y_vector = tile_vector(&a->layout, 0, y_bytes, a->y_row, t->y_run ? all : a->y_col,
                              t->y_run ? all : t->rows);
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
    choose_vectors(&t, a, x_bytes, y_bytes);
    s->x_align = (uintptr_t)(t.x_vector * x_bytes - 1);
    s->y_align = (uintptr_t)(t.y_vector * y_bytes - 1);
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
    a.aligned = ((uintptr_t)a.x & s->x_align) == 0 && ((uintptr_t)a.y & s->y_align) == 0;
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
