/* SPDX-License-Identifier: Apache-2.0
 * affine_grid: tables, truth, and the GPU's engine "compose". Forward it is one expression of
 * places, in which the columns of theta repeat by strides of 0. Backward there is a vector of base
 * coordinates for each axis, and for each column of theta a reduction of dgrid times it: dgrid is
 * read once for each, from the cache where it fits. */
#include "ops/affine_grid/affine_grid.h"
#include "mica/pointwise.h"
#include "mica/reduce.h"
#include "base/format.h"
#include "ops/compose/compose.h"

#include <math.h>
#include <string.h>

extern const mica_op mica_op_affine_grid;

static const char *const passes[] = {"fwd", "bwd", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_affine_grid_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradient of theta"),
    FIELD(theta, TENSOR, .zero = "needed", .doc = "fwd: maps, N x 2 x 3 or N x 3 x 4"),
    FIELD(grid, TENSOR, .zero = "needed",
          .doc = "fwd: coordinates, N x 2 or 3 axes x their number"),
    FIELD(dgrid, TENSOR, .zero = "needed", .doc = "bwd: gradient of the grid"),
    FIELD(dtheta, TENSOR, .zero = "inferred", .doc = "bwd: gradient of theta"),
    FIELD(align_corners, FLAG, .doc = "-1 and 1 are centres of the outermost outputs"),
};

#define ARG(member) #member, offsetof(mica_affine_grid_desc, member)
static const mica_arg args[] = {
    [MICA_AFFINE_GRID_THETA] = {ARG(theta),
                                {MICA_IN, MICA_UNUSED},
                                .types = MICA_FLOATS,
                                .need = {MICA_NEEDED}},
    [MICA_AFFINE_GRID_GRID] = {ARG(grid),
                               {MICA_OUT, MICA_UNUSED},
                               .types = MICA_FLOATS,
                               .same = "theta",
                               .need = {MICA_NEEDED}},
    [MICA_AFFINE_GRID_DGRID] = {ARG(dgrid),
                                {MICA_UNUSED, MICA_IN},
                                .types = MICA_FLOATS,
                                .need = {0, MICA_NEEDED}},
    [MICA_AFFINE_GRID_DTHETA] = {ARG(dtheta),
                                 {MICA_UNUSED, MICA_OUT},
                                 .types = MICA_FLOATS,
                                 .same = "dgrid"},
};

static mica_status infer(void *desc, mica_why *why)
{
    mica_affine_grid_desc *d = desc;
    const mica_tensor *grid = mica_affine_grid_of(d);
    const int axes = grid->rank - 2;
    if ((axes != 2 && axes != 3) || grid->dims[axes + 1] != axes)
        return mica_invalid(why, "the grid has rank %d; it takes N x 2 axes x 2 or N x 3 axes x 3",
                            grid->rank);
    if (mica_affine_grid_is_forward(d)) return MICA_OK;
    if (!mica_tensor_given(&d->dtheta)) d->dtheta.dtype = grid->dtype;
    if (d->dtheta.rank) return MICA_OK;
    d->dtheta.rank = 3;
    d->dtheta.dims[0] = grid->dims[0], d->dtheta.dims[1] = axes, d->dtheta.dims[2] = axes + 1;
    mica_tensor_default_strides(&d->dtheta);
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_affine_grid_desc *d = desc;
    const mica_tensor *grid = mica_affine_grid_of(d);
    mica_tensor want = {.rank = 3, .dims = {grid->dims[0], grid->rank - 2, grid->rank - 1}};
    return mica_tensor_same_dims(mica_affine_grid_is_forward(d) ? &d->theta : &d->dtheta,
                                 mica_affine_grid_is_forward(d) ? "theta" : "dtheta", &want,
                                 "a map of the grid", why);
}

static int64_t outputs_of(const mica_affine_grid_desc *d)
{
    int64_t outputs = 1;
    for (int i = 1; i < mica_affine_grid_of(d)->rank - 1; i++)
        outputs *= mica_affine_grid_of(d)->dims[i];
    return outputs;
}

static int64_t terms(const void *desc)
{
    const mica_affine_grid_desc *d = desc;
    if (mica_affine_grid_is_forward(d)) return d->grid.rank - 1;
    return outputs_of(d) > 1 ? outputs_of(d) : 1;
}

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_affine_grid_desc *d = desc;
    *flops = 2.0 * (double)mica_tensor_count(mica_affine_grid_of(d)) *
             (mica_affine_grid_of(d)->rank - 1);
    *bytes = 0;
}

/* ---- truth ---- */

/* Of output o of a sample: x first, and 1. */
static void bases_of(const mica_affine_grid_desc *d, int64_t o, double *base)
{
    const mica_tensor *grid = mica_affine_grid_of(d);
    const int axes = grid->rank - 2;
    for (int a = axes; a > 0; a--) {
        base[axes - a] = mica_affine_grid_base(d, o % grid->dims[a], grid->dims[a]);
        o /= grid->dims[a];
    }
    base[axes] = 1;
}

static void reference(const void *desc, const mica_view *views, const double *scalars)
{
    const mica_affine_grid_desc *d = desc;
    const bool fwd = mica_affine_grid_is_forward(d);
    const mica_view *grid = &views[fwd ? MICA_AFFINE_GRID_GRID : MICA_AFFINE_GRID_DGRID];
    const mica_view *theta = &views[fwd ? MICA_AFFINE_GRID_THETA : MICA_AFFINE_GRID_DTHETA];
    const int axes = grid->t.rank - 2, columns = axes + 1;
    const int64_t outputs = outputs_of(d), count = grid->t.dims[0] * (fwd ? outputs : 1) * axes;
    (void)scalars;
    for (int64_t i = 0; i < count; i++) {
        double base[4];
        if (fwd) {
            long double sum = 0, magnitude = 0;
            bases_of(d, i / axes % outputs, base);
            for (int j = 0; j < columns; j++) {
                const int64_t map = (i / axes / outputs * axes + i % axes) * columns + j;
                const long double v =
                    (long double)base[j] * mica_get(theta, mica_offset(&theta->t, map));
                sum += v, magnitude += fabsl(v);
            }
            mica_put(grid, mica_offset(&grid->t, i), (double)sum, (double)magnitude);
            continue;
        }
        long double sum[4] = {0}, magnitude[4] = {0}; /* past the end of f64 on the way */
        for (int64_t o = 0; o < outputs; o++) {
            const int64_t at = (i / axes * outputs + o) * axes + i % axes;
            const long double g = mica_get(grid, mica_offset(&grid->t, at));
            bases_of(d, o, base);
            for (int j = 0; j < columns; j++)
                sum[j] += g * base[j], magnitude[j] += fabsl(g * base[j]);
        }
        for (int j = 0; j < columns; j++)
            mica_put(theta, mica_offset(&theta->t, i * columns + j), (double)sum[j],
                     (double)magnitude[j]);
    }
}

/* ---- steps ---- */

/* The coordinate of the place along dimension `dim` of what is computed. */
static void add_base(const mica_affine_grid_desc *d, int dim, int64_t size, mica_text *text)
{
    const int64_t n = d->align_corners ? size - 1 : size;
    if (n > 0)
        mica_text_add(text, "(2*i%d-%lld)/%lld", dim, (long long)(size - 1), (long long)n);
    else
        mica_text_add(text, "0.0");
}

/* Column j of theta as a tensor of the grid's dimensions, and where it begins. */
static mica_tensor column_of(const mica_tensor *theta, const mica_tensor *grid)
{
    mica_tensor t = *grid;
    t.dtype = theta->dtype;
    for (int i = 0; i < t.rank; i++) t.strides[i] = 0;
    t.strides[0] = theta->strides[0], t.strides[t.rank - 1] = theta->strides[1];
    return t;
}

static mica_memory column_at(int arg, const mica_tensor *theta, int j)
{
    mica_memory at = mica_compose_arg(arg);
    at.at = j * theta->strides[2] * (mica_dtype_bits(theta->dtype) / 8);
    return at;
}

static void forward(const mica_affine_grid_desc *d, mica_compose *c)
{
    const int axes = d->grid.rank - 2;
    mica_pointwise_desc e = {.y0 = d->grid};
    mica_text text = {e.expr, sizeof e.expr, 0};
    for (int j = 0; j < axes; j++) {
        mica_text_add(&text, "x%d*(", j);
        add_base(d, axes - j, d->grid.dims[axes - j], &text);
        mica_text_add(&text, ")+");
    }
    mica_text_add(&text, "x%d", axes);
    for (int j = 0; j <= axes; j++) (&e.x0)[j] = column_of(&d->theta, &d->grid);
    mica_compose_step(c, "pointwise", &e, sizeof e, NULL);
    for (int j = 0; j <= axes; j++)
        mica_compose_bind(c, MICA_POINTWISE_X0 + j,
                          column_at(MICA_AFFINE_GRID_THETA, &d->theta, j));
    mica_compose_bind(c, MICA_POINTWISE_Y0, mica_compose_arg(MICA_AFFINE_GRID_GRID));
}

/* A vector of the coordinates along axis a, as a tensor of the grid's dimensions. */
static mica_memory make_base(const mica_affine_grid_desc *d, int a, mica_compose *c,
                             mica_tensor *base)
{
    const mica_dtype real = mica_dtype_accumulator(d->dgrid.dtype);
    const int64_t size = d->dgrid.dims[a];
    mica_pointwise_desc e = {.y0 = mica_tensor_packed(real, 1, &size)};
    mica_text text = {e.expr, sizeof e.expr, 0};
    const mica_memory at =
        mica_compose_temporary(c, (size_t)size * (size_t)mica_dtype_bits(real) / 8);
    add_base(d, 0, size, &text);
    mica_compose_step(c, "pointwise", &e, sizeof e, NULL);
    mica_compose_bind(c, MICA_POINTWISE_Y0, at);
    *base = d->dgrid;
    base->dtype = real;
    for (int i = 0; i < base->rank; i++) base->strides[i] = i == a;
    return at;
}

static void backward(const mica_affine_grid_desc *d, mica_compose *c)
{
    const int axes = d->dgrid.rank - 2;
    for (int j = 0; j <= axes; j++) {
        const int64_t dims[] = {d->dtheta.dims[0], axes};
        mica_reduce_desc r = {.x = d->dgrid, .y = mica_tensor_packed(d->dtheta.dtype, 2, dims)};
        mica_memory base = {.arg = -1};
        if (j < axes) {
            base = make_base(d, axes - j, c, &r.x1);
            mica_format(r.map, sizeof r.map, "x0*x1");
        }
        r.y.strides[0] = d->dtheta.strides[0], r.y.strides[1] = d->dtheta.strides[1];
        for (int a = 0; a < axes; a++) r.axes[a] = MICA_REDUCE_AXIS(a + 1);
        mica_compose_step(c, "reduce", &r, sizeof r, NULL);
        mica_compose_bind(c, MICA_REDUCE_X, mica_compose_arg(MICA_AFFINE_GRID_DGRID));
        if (j < axes) mica_compose_bind(c, MICA_REDUCE_X1, base);
        mica_compose_bind(c, MICA_REDUCE_Y, column_at(MICA_AFFINE_GRID_DTHETA, &d->dtheta, j));
    }
}

static void list_steps(const void *desc, mica_compose *c)
{
    const mica_affine_grid_desc *d = desc;
    if (mica_tensor_count(mica_affine_grid_is_forward(d) ? &d->grid : &d->dtheta) == 0) return;
    (mica_affine_grid_is_forward(d) ? forward : backward)(d, c);
}

/* ---- engines ---- */

static const mica_engine compose_cuda = {
    .name = "compose", .cuda = true, MICA_COMPOSED(list_steps)};
static const mica_engine *const engines[] = {&mica_affine_grid_cpu, &mica_engine_ref, &compose_cuda,
                                             NULL};

const mica_op mica_op_affine_grid = {
    .name = "affine_grid",
    .doc = "grids of affine maps, and the gradient of the map",
    .desc_size = sizeof(mica_affine_grid_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .check = check,
    .cost = cost,
    .terms = terms,
    .ulps = 4,
    .reference = reference,
    .engines = engines,
};
