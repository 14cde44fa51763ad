/* SPDX-License-Identifier: Apache-2.0
 * grid_sample: tables, inference, checks. */
#include "ops/grid_sample/grid_sample.h"
#include "base/random.h"

#include <math.h>
#include <string.h>

extern const mica_op mica_op_grid_sample;

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const modes[] = {"bilinear", "nearest", "bicubic", NULL};
static const char *const paddings[] = {"zeros", "border", "reflection", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_grid_sample_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradients of x and the grid"),
    FIELD(mode, ENUM, .spellings = modes, .doc = "neighbours, the nearest element, 4 x 4 elements"),
    FIELD(padding, ENUM, .spellings = paddings, .doc = "what lies beside x"),
    FIELD(x, TENSOR, .zero = "in bwd without dgrid none, else needed",
          .doc = "input, N x C x 2 or 3 axes"),
    FIELD(grid, TENSOR, .zero = "needed",
          .doc = "coordinates of -1 to 1, N x output axes x their number; f32, or as x"),
    FIELD(y, TENSOR, .zero = "inferred, order in memory as x", .doc = "N x C x output axes"),
    FIELD(dy, TENSOR, .zero = "inferred", .doc = "bwd: gradient of y"),
    FIELD(dx, TENSOR, .zero = "none, then dgrid is needed", .doc = "bwd: gradient of x"),
    FIELD(dgrid, TENSOR, .zero = "none, then dx is needed", .doc = "bwd: gradient of the grid"),
    FIELD(align_corners, FLAG, .doc = "-1 and 1 are centres of the outermost elements"),
};

#define ARG(member) #member, offsetof(mica_grid_sample_desc, member)
static const mica_arg args[] = {
    [MICA_GRID_SAMPLE_X] = {ARG(x),
                            {MICA_IN, MICA_IN},
                            .types = MICA_FLOATS,
                            .need = {MICA_NEEDED}},
    [MICA_GRID_SAMPLE_GRID] = {ARG(grid),
                               {MICA_IN, MICA_IN},
                               .types = MICA_FLOATS,
                               .need = {MICA_NEEDED, MICA_NEEDED}},
    [MICA_GRID_SAMPLE_Y] = {ARG(y), {MICA_OUT, MICA_UNUSED}, .types = MICA_FLOATS, .same = "x"},
    [MICA_GRID_SAMPLE_DY] = {ARG(dy), {MICA_UNUSED, MICA_IN}, .types = MICA_FLOATS},
    [MICA_GRID_SAMPLE_DX] = {ARG(dx), {MICA_UNUSED, MICA_OUT}, .types = MICA_FLOATS, .same = "dy"},
    [MICA_GRID_SAMPLE_DGRID] = {ARG(dgrid),
                                {MICA_UNUSED, MICA_OUT},
                                .types = MICA_FLOATS,
                                .like = "grid",
                                .same = "grid",
                                .with = "x"},
};

int mica_grid_sample_all_taps(const mica_grid_sample_desc *d)
{
    const int taps = mica_grid_sample_taps(d);
    return d->grid.rank == 5 ? taps * taps * taps : taps * taps;
}

mica_taps_strides mica_grid_sample_grid_strides(const mica_tensor *grid)
{
    mica_taps_strides s = {.n = grid->dims[0] > 1 ? grid->strides[0] : 0,
                           .c = grid->strides[grid->rank - 1]};
    for (int a = 0; a < grid->rank - 2; a++)
        s.at[a] = grid->dims[a + 1] > 1 ? grid->strides[a + 1] : 0;
    return s;
}

/* ---- inference ---- */

/* Sizes that y has. */
static void output_dims(const mica_grid_sample_desc *d, mica_tensor *y)
{
    const mica_tensor *x = mica_grid_sample_image(d);
    y->rank = x->rank;
    y->dims[0] = d->grid.dims[0], y->dims[1] = x->dims[1];
    for (int i = 2; i < y->rank; i++) y->dims[i] = d->grid.dims[i - 1];
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_grid_sample_desc *d = desc;
    const bool fwd = mica_grid_sample_is_forward(d);
    if (!fwd && !mica_tensor_given(&d->dx) && !mica_tensor_given(&d->dgrid))
        return mica_invalid(why, "neither dx nor dgrid is given, one of them is needed");
    if (!fwd && !mica_tensor_given(&d->dgrid)) d->x = (mica_tensor){0};
    const mica_tensor *x = mica_grid_sample_image(d);
    const int axes = x->rank - 2;
    if (axes != 2 && axes != 3)
        return mica_invalid(why, "x has rank %d; sampling takes N x C and two or three axes",
                            x->rank);
    if (d->grid.rank != x->rank || d->grid.dims[x->rank - 1] != axes)
        return mica_invalid(
            why, "the grid has rank %d and %lld coordinates; it takes rank %d and %d", d->grid.rank,
            (long long)(d->grid.rank ? d->grid.dims[d->grid.rank - 1] : 0), x->rank, axes);
    mica_tensor *y = fwd ? &d->y : &d->dy;
    if (!mica_tensor_given(y)) y->dtype = x->dtype;
    if (y->rank == 0) {
        output_dims(d, y);
        mica_tensor_strides_like(y, x);
    }
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_grid_sample_desc *d = desc;
    const mica_tensor *x = mica_grid_sample_image(d), *y = mica_grid_sample_output(d);
    const bool fwd = mica_grid_sample_is_forward(d);
    mica_tensor want = {0};
    if (d->mode == MICA_GRID_SAMPLE_BICUBIC && x->rank != 4)
        return mica_invalid(why, "x has %d axes, bicubic takes two", x->rank - 2);
    if (d->grid.dtype != MICA_F32 && d->grid.dtype != x->dtype)
        return mica_invalid(why, "the grid is %s, it must be f32 or %s as x",
                            mica_dtype_name(d->grid.dtype), mica_dtype_name(x->dtype));
    if (y->dtype != x->dtype)
        return mica_invalid(why, "%s is %s, x is %s; they must agree", fwd ? "y" : "dy",
                            mica_dtype_name(y->dtype), mica_dtype_name(x->dtype));
    if (x->dims[0] != d->grid.dims[0])
        return mica_invalid(why, "x has %lld samples, the grid %lld", (long long)x->dims[0],
                            (long long)d->grid.dims[0]);
    output_dims(d, &want);
    MICA_TRY(mica_tensor_same_dims(y, fwd ? "y" : "dy", &want, "what the grid samples", why));
    if (mica_tensor_count(&d->grid) > 0)
        for (int i = 2; i < x->rank; i++)
            if (x->dims[i] == 0)
                return mica_invalid(why, "axis %d of x has no element to sample", i - 2);
    if (!fwd && mica_tensor_given(&d->dx) && mica_tensor_given(&d->x))
        return mica_tensor_same_dims(&d->dx, "dx", &d->x, "x", why);
    return MICA_OK;
}

/* ---- numbers ---- */

static int64_t terms(const void *desc)
{
    const mica_grid_sample_desc *d = desc;
    const int64_t taps = mica_grid_sample_all_taps(d);
    if (mica_grid_sample_is_forward(d)) return taps;
    const mica_tensor *y = &d->dy;
    int64_t most = 1, outputs = 1;
    for (int i = 2; i < y->rank; i++) outputs *= y->dims[i];
    if (mica_tensor_given(&d->dx)) most = outputs * taps;
    if (mica_tensor_given(&d->dgrid) && most < y->dims[1] * taps) most = y->dims[1] * taps;
    return most > 0 ? most : 1;
}

/* Coordinates then are halves and quarters, and weights as well. */
static bool exact(const void *desc)
{
    const mica_grid_sample_desc *d = desc;
    if (mica_tensor_given(&d->dgrid) || d->mode == MICA_GRID_SAMPLE_BICUBIC) return false;
    const mica_tensor *x = mica_grid_sample_image(d);
    if (d->mode == MICA_GRID_SAMPLE_NEAREST) return true;
    for (int i = 2; i < x->rank; i++) {
        const int64_t n = x->dims[i] - d->align_corners;
        if (n < 1 || n > 64 || (n & (n - 1))) return false;
    }
    return true;
}

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_grid_sample_desc *d = desc;
    *flops =
        2.0 * (double)mica_tensor_count(mica_grid_sample_output(d)) * mica_grid_sample_all_taps(d);
    if (!mica_grid_sample_is_forward(d) && mica_tensor_given(&d->dgrid) &&
        mica_tensor_given(&d->dx))
        *flops *= 2;
    *bytes = 0;
}

/* Mostly inside, in quarters of elements where that must be exact; some on borders and beside. */
static bool fill(const void *desc, const double *scalars, int arg, mica_fill fill, uint64_t seed,
                 double *values)
{
    const mica_grid_sample_desc *d = desc;
    (void)scalars;
    if (arg != MICA_GRID_SAMPLE_GRID || fill == MICA_FILL_EDGES) return false;
    const mica_tensor *x = mica_grid_sample_image(d);
    const int axes = x->rank - 2;
    const int64_t count = mica_tensor_count(&d->grid);
    for (int64_t i = 0; i < count; i++) {
        const int64_t size = x->dims[x->rank - 1 - i % axes];
        const double n = (double)(d->align_corners ? size - 1 : size);
        const double bits = (double)(mica_random_bits(seed ^ 1, (uint64_t)i) % 16);
        double u = mica_random_uniform(seed, (uint64_t)i) * (n + 2) - 1;
        if (fill == MICA_FILL_EXACT) u = floor(u * 4) / 4;
        if (fill == MICA_FILL_EXTREME) u = bits < 4 ? rint(u) : bits < 6 ? floor(u) + 0.5 : u;
        if (bits == 15) u = u * 3 - n;
        values[i] = mica_fill_rounded(d->grid.dtype, n > 0 ? 2 * u / n - 1 : u);
    }
    return true;
}

void mica_grid_sample_contract(const void *desc, const mica_config *config, mica_contract *contract)
{
    const mica_grid_sample_desc *d = desc;
    (void)config;
    if (d->mode != MICA_GRID_SAMPLE_NEAREST || !mica_grid_sample_is_forward(d)) return;
    contract->n_seq = contract->n_outer = 0;
    contract->ulps = 0;
}

static const mica_engine *const engines[] = {&mica_grid_sample_cpu, &mica_engine_ref,
                                             &mica_grid_sample_cuda, NULL};

const mica_op mica_op_grid_sample = {
    .name = "grid_sample",
    .doc = "samples at the places that a grid names, and gradients",
    .desc_size = sizeof(mica_grid_sample_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .check = check,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .ulps = 8,
    .fill = fill,
    .reference = mica_grid_sample_reference,
    .engines = engines,
};
