/* SPDX-License-Identifier: Apache-2.0
 * Sums of what experts made of a token: tables, checks, fills, the truth. */
#include "ops/moe_permute/moe_permute.h"
#include "base/random.h"

#include <math.h>

static const char *const passes[] = {"fwd", "bwd", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_moe_unpermute_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradients"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "rows x columns"),
    FIELD(places, TENSOR, .zero = "needed", .doc = "rows of choices, or -1: tokens x k"),
    FIELD(weights, TENSOR, .zero = "none, as if all were 1", .doc = "of choices: tokens x k"),
    FIELD(y, TENSOR, .zero = "inferred", .doc = "fwd: tokens x columns"),
    FIELD(rows, TENSOR, .zero = "inferred", .doc = "bwd: choices of rows, or -1"),
    FIELD(dy, TENSOR, .zero = "inferred", .doc = "bwd: gradient of y"),
    FIELD(dx, TENSOR, .zero = "inferred", .doc = "bwd: gradient of x"),
    FIELD(dweights, TENSOR, .zero = "not wanted", .doc = "bwd: gradient of the weights"),
};

static int64_t dim(const void *desc, char letter)
{
    const mica_moe_unpermute_desc *d = desc;
    return letter == 'T'   ? d->places.dims[0]
           : letter == 'K' ? d->places.dims[1]
           : letter == 'R' ? d->x.dims[0]
                           : d->x.dims[1];
}

#define ARG(member, FWD, BWD, FWD_NEED, BWD_NEED, ...)                                             \
    {                                                                                              \
#member, offsetof(mica_moe_unpermute_desc, member),                                        \
            {FWD, BWD }, .need = {FWD_NEED, BWD_NEED }, __VA_ARGS__                                \
    }
#define OF_X .types = MICA_FLOATS, .like = "x"
static const mica_arg args[] = {
    [MICA_MOE_UNPERMUTE_X] =
        ARG(x, MICA_IN, MICA_IN, MICA_NEEDED, MICA_NEEDED, .types = MICA_FLOATS),
    [MICA_MOE_UNPERMUTE_PLACES] =
        ARG(places, MICA_IN, MICA_IN, MICA_NEEDED, MICA_NEEDED, .types = MICA_INDICES),
    [MICA_MOE_UNPERMUTE_WEIGHTS] = ARG(weights, MICA_IN, MICA_IN, 0, 0, OF_X, .dims = "TxK"),
    [MICA_MOE_UNPERMUTE_Y] = ARG(y, MICA_OUT, MICA_UNUSED, MICA_INFERRED, 0, OF_X, .dims = "TxD"),
    [MICA_MOE_UNPERMUTE_ROWS] = ARG(rows, MICA_UNUSED, MICA_IN, 0, MICA_INFERRED,
                                    .types = MICA_INDICES, .like = "places", .dims = "R"),
    [MICA_MOE_UNPERMUTE_DY] = ARG(dy, MICA_UNUSED, MICA_IN, 0, MICA_INFERRED, OF_X, .dims = "TxD"),
    [MICA_MOE_UNPERMUTE_DX] = ARG(dx, MICA_UNUSED, MICA_OUT, 0, MICA_INFERRED, OF_X),
    [MICA_MOE_UNPERMUTE_DWEIGHTS] = ARG(dweights, MICA_UNUSED, MICA_OUT, 0, 0, OF_X, .dims = "TxK"),
};

static mica_status infer(void *desc, mica_why *why)
{
    const mica_moe_unpermute_desc *d = desc;
    if (d->x.rank != 2)
        return mica_invalid(why, "x has rank %d, it must be rows x columns", d->x.rank);
    if (d->places.rank != 2)
        return mica_invalid(why, "places has rank %d, it must be tokens x k", d->places.rank);
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_moe_unpermute_desc *d = desc;
    for (int i = 0; d->x.dtype != MICA_F64 && i < mica_op_moe_unpermute.arg_count; i++)
        if (mica_op_tensor(&mica_op_moe_unpermute, d, i)->dtype == MICA_F64)
            return mica_invalid(why, "%s is f64, x is %s; f64 is for f64 x", args[i].name,
                                mica_dtype_name(d->x.dtype));
    return MICA_OK;
}

/* A product and a sum for each element of a choice, twice in bwd. */
static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_moe_unpermute_desc *d = desc;
    (void)bytes;
    *flops = 2.0 * (double)mica_tensor_count(&d->places) * (double)d->x.dims[1] * (1 + d->pass);
}

static int64_t terms(const void *desc)
{
    const mica_moe_unpermute_desc *d = desc;
    const int64_t n = d->pass == MICA_MOE_UNPERMUTE_FWD ? d->places.dims[1] : d->x.dims[1];
    return n > 0 ? n : 1;
}

static bool exact(const void *desc)
{
    (void)desc;
    return true;
}

/* Most of the choices have a row of their own, in an order that mixes tokens. */
static bool fill_maps(const void *desc, const double *scalars, int arg, mica_fill fill,
                      uint64_t seed, double *values)
{
    const mica_moe_unpermute_desc *d = desc;
    const bool rows = arg == MICA_MOE_UNPERMUTE_ROWS;
    (void)scalars;
    if (!rows && arg != MICA_MOE_UNPERMUTE_PLACES) return false;
    const int64_t choices = mica_tensor_count(&d->places), n = d->x.dims[0];
    const int64_t count = rows ? n : choices, most = rows ? choices : n;
    for (int64_t i = 0; i < count; i++) {
        const uint64_t bits = mica_random_bits(seed, (uint64_t)i);
        values[i] =
            most ? (double)(bits >> 8) - floor((double)(bits >> 8) / (double)most) * (double)most
                 : -1;
        if (values[i] >= (double)most || values[i] < 0) values[i] = most ? 0 : -1;
        if (fill != MICA_FILL_EXACT && bits % 8 == 0) values[i] = -1;
        if (fill == MICA_FILL_EXTREME && bits % 8 == 1) values[i] = bits & 8 ? (double)most : -7;
    }
    return true;
}

/* ---- the truth ---- */

static int64_t place_of(const mica_view *places, int64_t c, int64_t rows)
{
    const int64_t r = moe_map_get(&places->t, places->data, moe_choice_offset(&places->t, c));
    return r >= 0 && r < rows ? r : -1;
}

static double weight_of(const mica_view *w, int64_t c)
{
    return w->data ? mica_get(w, moe_choice_offset(&w->t, c)) : 1;
}

static double element(const mica_view *v, int64_t row, int64_t column)
{
    return mica_get(v, row * v->t.strides[0] + column * v->t.strides[1]);
}

static void put(const mica_view *v, int64_t row, int64_t column, double value, double magnitude)
{
    mica_put(v, row * v->t.strides[0] + column * v->t.strides[1], value, magnitude);
}

static void backward(const mica_moe_unpermute_desc *d, const mica_view *args)
{
    const mica_view *x = &args[MICA_MOE_UNPERMUTE_X], *places = &args[MICA_MOE_UNPERMUTE_PLACES];
    const mica_view *w = &args[MICA_MOE_UNPERMUTE_WEIGHTS], *dy = &args[MICA_MOE_UNPERMUTE_DY];
    const mica_view *rows = &args[MICA_MOE_UNPERMUTE_ROWS],
                    *dw = &args[MICA_MOE_UNPERMUTE_DWEIGHTS];
    const int64_t choices = mica_tensor_count(&d->places), k = d->places.dims[1];
    for (int64_t r = 0; r < d->x.dims[0]; r++) {
        const int64_t c = moe_map_get(&rows->t, rows->data, r * rows->t.strides[0]);
        const bool there = c >= 0 && c < choices;
        for (int64_t i = 0; i < d->x.dims[1]; i++) {
            const double v = there ? weight_of(w, c) * element(dy, c / k, i) : 0;
            put(&args[MICA_MOE_UNPERMUTE_DX], r, i, v, fabs(v));
        }
    }
    for (int64_t c = 0; dw->data && c < choices; c++) {
        const int64_t r = place_of(places, c, d->x.dims[0]);
        long double sum = 0;
        double magnitude = 0;
        for (int64_t i = 0; r >= 0 && i < d->x.dims[1]; i++) {
            const long double v =
                (long double)element(x, r, i) * (long double)element(dy, c / k, i);
            sum += v;
            magnitude += (double)fabsl(v);
        }
        put(dw, c / k, c % k, (double)sum, magnitude);
    }
}

void moe_unpermute_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_moe_unpermute_desc *d = desc;
    const mica_view *x = &args[MICA_MOE_UNPERMUTE_X], *places = &args[MICA_MOE_UNPERMUTE_PLACES];
    const int64_t k = d->places.dims[1];
    (void)scalars;
    if (d->pass == MICA_MOE_UNPERMUTE_BWD) {
        backward(d, args);
        return;
    }
    for (int64_t t = 0; t < d->places.dims[0]; t++)
        for (int64_t i = 0; i < d->x.dims[1]; i++) {
            long double sum = 0;
            double magnitude = 0;
            for (int64_t c = t * k; c < (t + 1) * k; c++) {
                const int64_t r = place_of(places, c, d->x.dims[0]);
                if (r < 0) continue;
                const long double v = (long double)weight_of(&args[MICA_MOE_UNPERMUTE_WEIGHTS], c) *
                                      (long double)element(x, r, i);
                sum += v;
                magnitude += (double)fabsl(v);
            }
            put(&args[MICA_MOE_UNPERMUTE_Y], t, i, (double)sum, magnitude);
        }
}

static const mica_engine *const engines[] = {&moe_unpermute_cpu, &mica_engine_ref,
                                             &moe_unpermute_cuda, NULL};

const mica_op mica_op_moe_unpermute = {
    .name = "moe_unpermute",
    .doc = "weighted sums of what experts made of each token, and the gradients",
    .desc_size = sizeof(mica_moe_unpermute_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .dim = dim,
    .check = check,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .fill = fill_maps,
    .reference = moe_unpermute_reference,
    .engines = engines,
};
