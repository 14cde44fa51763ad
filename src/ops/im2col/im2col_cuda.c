/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda" of im2col, one launch, bound by memory: the matrix is written, or read, once and
 * whole where its rows are windows. Divisions are a thread's own, once for several taps or
 * channels, which are as many as leave threads for the whole device. */
#include "ops/im2col/im2col.h"
#include "ops/access/access.h"

#include <stdlib.h>

enum { BLOCK = 256, MOST_VECTOR = 4, MOST_GROUP = 8, THREADS_PER_UNIT = 2048 };

typedef struct state {
    mica_im2col_args args;
    mica_kernel *kernel;
    mica_grid grid;
    int align; /* bytes that vectors of the matrix ask for */
} state;

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Whether positions, padding and all, or counts take more than 31 bits. */
static bool is_wide(const mica_im2col_args *a)
{
    double most = (double)a->n * (double)a->c * (double)a->taps * (double)a->windows, elements = 1;
    for (int i = 0; i < MICA_IM2COL_AXES; i++) {
        const mica_im2col_axis *x = &a->axis[i];
        const double reach = (double)x->in + (double)x->out * (double)x->stride +
                             (double)x->pad * 2 + (double)x->taps * (double)x->dilation +
                             (double)x->apart * (double)x->dilation;
        elements *= (double)x->in;
        if (reach > most) most = reach;
    }
    elements *= (double)a->n * (double)a->c;
    return most > INT32_MAX - BLOCK || elements > INT32_MAX - BLOCK;
}

static mica_status add_kernel(mica_plan *plan, state *s, mica_text *p, const char *file,
                              const char *entry)
{
    const mica_im2col_desc *d = plan->desc;
    mica_prologue_int(p, "AXES", mica_im2col_image(d)->rank - 2);
    mica_prologue_int(p, "WIDE", is_wide(&s->args));
    mica_prologue_int(p, "BLOCK", BLOCK);
    s->grid = (mica_grid){.grid = {(unsigned)ceil_div(s->args.count, BLOCK)}, .block = {BLOCK}};
    const mica_kernel_spec spec = {file, entry, p->data, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static mica_status build_forward(mica_plan *plan, state *s)
{
    static const mica_dtype units[] = {MICA_U8, MICA_BF16, MICA_U32, MICA_S64};
    const mica_im2col_desc *d = plan->desc;
    mica_im2col_args *a = &s->args;
    char buffer[256] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    const bool pairs = llabs(a->matrix_k) < llabs(a->matrix_l) && a->windows > 1;
    const int64_t steps = mica_access_step(a->matrix_n, a->n) |
                          mica_access_step(a->matrix_k, a->c * a->taps) | a->windows;
    int vector = pairs ? 1 : mica_access_along(d->x.dtype, a->matrix_l, steps);
    if (vector > MOST_VECTOR) vector = MOST_VECTOR; /* loads are single: more share fewer lines */
    s->align = mica_access_bytes(d->x.dtype, vector);
    const int64_t runs = a->n * a->c * (a->windows / vector);
    a->each = a->taps;
    while (a->each > 1 &&
           runs * ceil_div(a->taps, a->each) < (int64_t)THREADS_PER_UNIT * plan->device.units)
        a->each = (a->each + 1) / 2;
    a->parts = ceil_div(a->taps, a->each);
    a->count = pairs ? runs * a->taps : runs * a->parts;
    mica_prologue_int(&p, "VECTOR", vector);
    mica_prologue_int(&p, "PAIRS_FAST", pairs);
    mica_prologue_type(&p, "element_t",
                       units[__builtin_ctz((unsigned)mica_dtype_bits(d->x.dtype) / 8)]);
    return add_kernel(plan, s, &p, "ops/im2col/im2col.cu", "im2col");
}

static mica_status build_backward(mica_plan *plan, state *s)
{
    const mica_im2col_desc *d = plan->desc;
    mica_im2col_args *a = &s->args;
    char buffer[256] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    const int64_t elements = a->n * a->axis[0].in * a->axis[1].in * a->axis[2].in;
    int group = MOST_GROUP;
    while (group > 1 && (group / 2 >= a->c || elements * ceil_div(a->c, group) <
                                                  (int64_t)THREADS_PER_UNIT * plan->device.units))
        group /= 2;
    a->parts = ceil_div(a->c, group);
    a->count = elements * a->parts;
    mica_prologue_int(&p, "GROUP", group);
    mica_prologue_type(&p, "x_t", d->dx.dtype);
    mica_prologue_type(&p, "real", mica_dtype_accumulator(d->dx.dtype));
    return add_kernel(plan, s, &p, "ops/im2col/col2im.cu", "col2im");
}

static mica_status build(mica_plan *plan)
{
    const mica_im2col_desc *d = plan->desc;
    const mica_tensor *image = mica_im2col_image(d), *matrix = mica_im2col_matrix(d);
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    s->args = mica_im2col_sizes(d, image, matrix);
    if (mica_tensor_count(mica_im2col_is_forward(d) ? matrix : image) == 0) return MICA_OK;
    return mica_im2col_is_forward(d) ? build_forward(plan, s) : build_backward(plan, s);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    const bool fwd = mica_im2col_is_forward(plan->desc);
    mica_im2col_args a = s->args;
    if (!s->kernel) return MICA_OK;
    a.from = run->args[fwd ? MICA_IM2COL_X : MICA_IM2COL_DY];
    a.to = run->args[fwd ? MICA_IM2COL_Y : MICA_IM2COL_DX];
    a.whole = mica_access_starts(a.to, s->align);
    return mica_kernel_launch(s->kernel, &s->grid, run->stream, &a);
}

const mica_engine mica_im2col_cuda = {.name = "cuda",
                                      .cuda = true,
                                      .reached = 0.7,
                                      .start_ms = 3e-3,
                                      .contract = mica_im2col_contract,
                                      .build = build,
                                      .run = run};
