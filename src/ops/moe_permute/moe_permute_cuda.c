/* SPDX-License-Identifier: Apache-2.0
 * Engines "cuda" of moe_permute and moe_unpermute. Choices are sorted by counting: chunks of them,
 * each by a warp, are counted by expert, the counts summed up, and the choices of each chunk placed
 * in their order; nothing depends on which block comes first. Rows are copied, and added up, in
 * vectors where columns are neighbours. Any strides. */
#include "ops/moe_permute/moe_permute.h"
#include "ops/moe_permute/moe_permute_args.h"
#include "ops/access/access.h"

enum {
    WARP = 32,
    BLOCK = 256,
    SCAN_BLOCK = 1024,
    BLOCKS_PER_UNIT = 16,
    LEAST_CHUNK = 256,
    CHUNKS = 1024
};
enum { COUNT, SCAN, PLACE, MOVE, DOTS, KERNELS };

typedef struct state {
    mica_kernel *kernel[KERNELS]; /* NULL: not needed */
    mica_grid grid[KERNELS];
    mica_moe_permute_args args, dots;    /* dots: of the gradient of weights */
    int x_align, y_align, dots_align[2]; /* bytes that vectors ask for */
    size_t counts;                       /* of the workspace */
} state;

static int power_of_two(int64_t least, int most)
{
    int v = 1;
    while (v < least && v < most) v *= 2;
    return v;
}

static mica_dtype type_or(const mica_tensor *t, mica_dtype other)
{
    return mica_tensor_given(t) ? t->dtype : other;
}

/* Elements of one access in both, whose rows have equal columns. */
static int vector_of(const mica_tensor *a, const mica_tensor *b)
{
    const mica_dtype types[] = {a->dtype, b->dtype};
    const int width = mica_access_fit(mica_access_most(types, 2), a->dims[1]);
    return mica_access_rows(mica_access_rows(width, a), b);
}

/* Rows of `count` in vectors: a grid, and what kernels are told of it. */
static void add_rows(mica_text *p, state *s, int64_t columns, int vector, int units)
{
    const int threads = power_of_two((columns + vector - 1) / vector, BLOCK);
    const int64_t each = BLOCK / threads, needed = (s->args.count + each - 1) / each;
    const int64_t most = (int64_t)units * BLOCKS_PER_UNIT;
    mica_prologue_int(p, "BLOCK", BLOCK);
    mica_prologue_int(p, "THREADS", threads);
    mica_prologue_int(p, "VECTOR", vector);
    s->grid[MOVE] =
        (mica_grid){.grid = {(unsigned)(needed < most ? needed : most)}, .block = {BLOCK}};
}

/* ---- moe_permute ---- */

static mica_status add_sort(mica_plan *plan, state *s)
{
    static const char *const files[] = {"ops/moe_permute/moe_permute_count.cu",
                                        "ops/moe_permute/moe_permute_scan.cu",
                                        "ops/moe_permute/moe_permute_place.cu"};
    static const char *const entries[] = {"moe_permute_count", "moe_permute_scan",
                                          "moe_permute_place"};
    const mica_moe_permute_desc *d = plan->desc;
    for (int k = COUNT; k <= PLACE; k++) {
        char buffer[512] = "";
        mica_text p = {buffer, sizeof buffer, 0};
        mica_prologue_int(&p, "EXPERTS", power_of_two(d->experts, MOE_PERMUTE_EXPERTS));
        if (k == SCAN) mica_prologue_int(&p, "BLOCK", SCAN_BLOCK);
        if (k != COUNT) mica_prologue_type(&p, "offset_t", d->offsets.dtype);
        if (k != SCAN) mica_prologue_type(&p, "row_t", d->rows.dtype);
        if (k == PLACE) mica_prologue_type(&p, "place_t", d->places.dtype);
        const mica_kernel_spec spec = {files[k], entries[k], buffer, 0};
        s->grid[k] = (mica_grid){.grid = {k == SCAN ? 1 : (unsigned)s->args.chunks},
                                 .block = {k == SCAN ? SCAN_BLOCK : WARP}};
        MICA_TRY(mica_plan_add_kernel(plan, &spec, &s->kernel[k]));
    }
    return mica_book(plan, "counts", (size_t)s->args.chunks * (size_t)d->experts * sizeof(int64_t),
                     &s->counts);
}

/* Numbers are copied as what has their size. */
static mica_dtype bits_of(mica_dtype type)
{
    const int bits = mica_dtype_bits(type);
    return bits == 8 ? MICA_U8 : bits == 16 ? MICA_F16 : bits == 32 ? MICA_U32 : MICA_S64;
}

static mica_status add_copy(mica_plan *plan, state *s)
{
    const mica_moe_permute_desc *d = plan->desc;
    const int vector = vector_of(&d->x, &d->y);
    char buffer[512] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    if (mica_tensor_count(&d->y) == 0) return MICA_OK;
    add_rows(&p, s, d->x.dims[1], vector, plan->device.units);
    mica_prologue_int(&p, "SCALED", 0);
    mica_prologue_int(&p, "WEIGHTED", 0);
    mica_prologue_type(&p, "x_t", bits_of(d->x.dtype));
    mica_prologue_type(&p, "y_t", bits_of(d->x.dtype));
    mica_prologue_type(&p, "row_t", d->rows.dtype);
    mica_prologue_type(&p, "weight_t", MICA_F32);
    mica_prologue_type(&p, "acc_t", MICA_F32);
    s->x_align = s->y_align = mica_access_bytes(d->x.dtype, vector);
    const mica_kernel_spec spec = {"ops/moe_permute/moe_permute_rows.cu", "moe_permute_rows",
                                   buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel[MOVE]);
}

static mica_status build_permute(mica_plan *plan)
{
    const mica_moe_permute_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_moe_permute_args *a = &s->args;
    a->choices = mica_tensor_count(&d->indices);
    a->chunk = (a->choices + CHUNKS - 1) / CHUNKS;
    a->chunk = a->chunk < LEAST_CHUNK ? LEAST_CHUNK : (a->chunk + WARP - 1) / WARP * WARP;
    a->chunks = (int)((a->choices + a->chunk - 1) / a->chunk);
    if (a->chunks == 0) a->chunks = 1; /* no choices: the maps are written all the same */
    a->capacity = d->capacity;
    a->count = a->all_rows = d->rows.dims[0];
    a->columns = d->x.dims[1];
    a->experts = (int)d->experts, a->k = (int)d->indices.dims[1], a->align = (int)d->align;
    a->index_token = d->indices.strides[0], a->index_slot = d->indices.strides[1];
    a->place_token = d->places.strides[0], a->place_slot = d->places.strides[1];
    a->offset_expert = d->offsets.strides[0], a->row_row = d->rows.strides[0];
    a->x_row = d->x.strides[0], a->x_column = d->x.strides[1];
    a->y_row = d->y.strides[0], a->y_column = d->y.strides[1];
    MICA_TRY(add_sort(plan, s));
    return mica_tensor_given(&d->x) ? add_copy(plan, s) : MICA_OK;
}

static mica_status run_permute(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    mica_moe_permute_args a = s->args;
    a.indices = run->args[MICA_MOE_PERMUTE_INDICES];
    a.x = run->args[MICA_MOE_PERMUTE_X];
    a.offsets = run->args[MICA_MOE_PERMUTE_OFFSETS];
    a.rows = run->args[MICA_MOE_PERMUTE_ROWS];
    a.places = run->args[MICA_MOE_PERMUTE_PLACES];
    a.y = run->args[MICA_MOE_PERMUTE_Y];
    a.counts = mica_at(run, s->counts);
    a.whole = mica_access_starts(a.x, s->x_align) && mica_access_starts(a.y, s->y_align);
    for (int k = COUNT; k <= MOVE; k++)
        if (s->kernel[k]) MICA_TRY(mica_kernel_launch(s->kernel[k], &s->grid[k], run->stream, &a));
    return MICA_OK;
}

/* ---- moe_unpermute ---- */

static mica_status add_sums(mica_plan *plan, state *s)
{
    const mica_moe_unpermute_desc *d = plan->desc;
    const bool fwd = d->pass == MICA_MOE_UNPERMUTE_FWD;
    const mica_tensor *from = fwd ? &d->x : &d->dy, *to = fwd ? &d->y : &d->dx;
    const int vector = vector_of(from, to);
    mica_moe_permute_args *a = &s->args;
    char buffer[512] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    a->count = to->dims[0];
    a->x_row = from->strides[0], a->x_column = from->strides[1];
    a->y_row = to->strides[0], a->y_column = to->strides[1];
    if (mica_tensor_count(to) == 0) return MICA_OK;
    add_rows(&p, s, d->x.dims[1], vector, plan->device.units);
    mica_prologue_int(&p, "SCALED", 1);
    mica_prologue_int(&p, "WEIGHTED", mica_tensor_given(&d->weights));
    mica_prologue_type(&p, "x_t", from->dtype);
    mica_prologue_type(&p, "y_t", to->dtype);
    mica_prologue_type(&p, "place_t", d->places.dtype);
    mica_prologue_type(&p, "row_t", type_or(&d->rows, MICA_S32));
    mica_prologue_type(&p, "weight_t", type_or(&d->weights, MICA_F32));
    mica_prologue_type(&p, "acc_t", d->x.dtype == MICA_F64 ? MICA_F64 : MICA_F32);
    s->x_align = mica_access_bytes(from->dtype, vector);
    s->y_align = mica_access_bytes(to->dtype, vector);
    mica_kernel_spec spec = {"ops/moe_permute/moe_permute_rows.cu", "moe_permute_rows", buffer, 0};
    if (fwd) spec.file = "ops/moe_permute/moe_unpermute.cu", spec.entry = "moe_unpermute";
    return mica_plan_add_kernel(plan, &spec, &s->kernel[MOVE]);
}

static mica_status add_dots(mica_plan *plan, state *s)
{
    const mica_moe_unpermute_desc *d = plan->desc;
    const int vector = vector_of(&d->x, &d->dy);
    char buffer[512] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    if (mica_tensor_count(&d->dweights) == 0) return MICA_OK;
    s->dots = s->args;
    s->dots.x_row = d->x.strides[0], s->dots.x_column = d->x.strides[1];
    s->dots.dy_row = d->dy.strides[0], s->dots.dy_column = d->dy.strides[1];
    s->dots.y_row = d->dweights.strides[0], s->dots.y_column = d->dweights.strides[1];
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_int(&p, "VECTOR", vector);
    mica_prologue_type(&p, "x_t", d->x.dtype);
    mica_prologue_type(&p, "dy_t", d->dy.dtype);
    mica_prologue_type(&p, "y_t", d->dweights.dtype);
    mica_prologue_type(&p, "place_t", d->places.dtype);
    mica_prologue_type(&p, "acc_t", d->x.dtype == MICA_F64 ? MICA_F64 : MICA_F32);
    s->dots_align[0] = mica_access_bytes(d->x.dtype, vector);
    s->dots_align[1] = mica_access_bytes(d->dy.dtype, vector);
    const int64_t needed = (s->args.choices + BLOCK / WARP - 1) / (BLOCK / WARP);
    const int64_t most = (int64_t)plan->device.units * BLOCKS_PER_UNIT;
    s->grid[DOTS] =
        (mica_grid){.grid = {(unsigned)(needed < most ? needed : most)}, .block = {BLOCK}};
    const mica_kernel_spec spec = {"ops/moe_permute/moe_unpermute_dots.cu", "moe_unpermute_dots",
                                   buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel[DOTS]);
}

static mica_status build_unpermute(mica_plan *plan)
{
    const mica_moe_unpermute_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_moe_permute_args *a = &s->args;
    a->choices = mica_tensor_count(&d->places);
    a->k = (int)d->places.dims[1];
    a->all_rows = d->x.dims[0];
    a->columns = d->x.dims[1];
    a->place_token = d->places.strides[0], a->place_slot = d->places.strides[1];
    a->weight_token = d->weights.strides[0], a->weight_slot = d->weights.strides[1];
    a->row_row = d->rows.strides[0];
    MICA_TRY(add_sums(plan, s));
    return mica_tensor_given(&d->dweights) ? add_dots(plan, s) : MICA_OK;
}

static mica_status run_unpermute(const mica_plan *plan, const mica_run *run)
{
    const mica_moe_unpermute_desc *d = plan->desc;
    const state *s = plan->state;
    const bool fwd = d->pass == MICA_MOE_UNPERMUTE_FWD;
    mica_moe_permute_args a = s->args, dots = s->dots;
    void *const *args = run->args;
    a.x = args[fwd ? MICA_MOE_UNPERMUTE_X : MICA_MOE_UNPERMUTE_DY];
    a.y = args[fwd ? MICA_MOE_UNPERMUTE_Y : MICA_MOE_UNPERMUTE_DX];
    a.places = args[MICA_MOE_UNPERMUTE_PLACES];
    a.rows = args[MICA_MOE_UNPERMUTE_ROWS];
    a.weights = args[MICA_MOE_UNPERMUTE_WEIGHTS];
    a.whole = mica_access_starts(a.x, s->x_align) && mica_access_starts(a.y, s->y_align);
    if (s->kernel[MOVE])
        MICA_TRY(mica_kernel_launch(s->kernel[MOVE], &s->grid[MOVE], run->stream, &a));
    if (!s->kernel[DOTS]) return MICA_OK;
    dots.x = args[MICA_MOE_UNPERMUTE_X];
    dots.dy = args[MICA_MOE_UNPERMUTE_DY];
    dots.y = args[MICA_MOE_UNPERMUTE_DWEIGHTS];
    dots.places = args[MICA_MOE_UNPERMUTE_PLACES];
    dots.whole = mica_access_starts(dots.x, s->dots_align[0]) &&
                 mica_access_starts(dots.dy, s->dots_align[1]);
    return mica_kernel_launch(s->kernel[DOTS], &s->grid[DOTS], run->stream, &dots);
}

const mica_engine moe_permute_cuda = {.name = "cuda",
                                      .cuda = true,
                                      .reached = 0.8,
                                      .start_ms = 1e-2,
                                      .build = build_permute,
                                      .run = run_permute};
const mica_engine moe_unpermute_cuda = {.name = "cuda",
                                        .cuda = true,
                                        .reached = 0.8,
                                        .start_ms = 5e-3,
                                        .build = build_unpermute,
                                        .run = run_unpermute};
