/* SPDX-License-Identifier: Apache-2.0
 * Quantised rows behind norms and activations: tables, inference, checks, fills. */
#include "ops/quantize/rows/quantize_rows.h"
#include "base/random.h"

#include <math.h>

static const char *const passes[] = {"given", "amax", NULL};
static const char *const norms[] = {"none", "rms", "layer", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_quantize_rows_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "where scales come from"),
    FIELD(norm, ENUM, .spellings = norms, .doc = "in front of the codes"),
    FIELD(act, ENUM, .spellings = mica_act_spellings, .doc = "without norm: the function"),
    FIELD(gated, FLAG, .doc = "without norm: act(first half of a row) * second half"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "input"),
    FIELD(residual, TENSOR, .zero = "none", .doc = "added to x in front of the norm"),
    FIELD(weight, TENSOR, .zero = "none", .doc = "factor of each column behind the norm"),
    FIELD(bias, TENSOR, .zero = "none", .doc = "added to each column behind the norm"),
    FIELD(y, TENSOR, .zero = "needed", .doc = "quantised; a type alone suffices"),
    FIELD(scale, TENSOR, .zero = "inferred", .doc = "f32, one for each group, or one for all"),
    FIELD(sum, TENSOR, .zero = "inferred with residual", .doc = "x + residual"),
    FIELD(group, I64, .zero = "all", .doc = "columns that share a scale"),
    FIELD(eps, F64, .def = 1e-5, .doc = "added to the variance"),
    FIELD(act_a, F64, .apart = true, .infinite = true, .zero = "the function's own",
          .doc = "first parameter of the function"),
    FIELD(act_b, F64, .infinite = true, .zero = "the function's own",
          .doc = "second parameter of the function"),
};

/* ---- shapes ---- */

mica_tensor mica_quantize_rows_value(const mica_quantize_rows_desc *d, mica_dtype type)
{
    mica_tensor t = {.dtype = type, .rank = d->x.rank};
    for (int i = 0; i < t.rank; i++) t.dims[i] = d->x.dims[i];
    if (d->gated) t.dims[t.rank - 1] /= 2;
    mica_tensor_default_strides(&t);
    return t;
}

quantize_rows_sizes mica_quantize_rows_sizes(const mica_quantize_rows_desc *d)
{
    const mica_tensor v = mica_quantize_rows_value(d, MICA_F32);
    quantize_rows_sizes s = {.rows = 1, .columns = v.dims[v.rank - 1]};
    for (int i = 0; i < v.rank - 1; i++) s.rows *= v.dims[i];
    s.group = d->group ? d->group : s.columns;
    s.groups = s.columns ? (s.columns - 1) / s.group + 1 : 0;
    s.one_scale = mica_tensor_count(&d->scale) == 1;
    return s;
}

static mica_tensor shape_of_value(const void *desc)
{
    return mica_quantize_rows_value(desc, MICA_F32);
}

static mica_tensor shape_of_scale(const void *desc)
{
    const mica_quantize_rows_desc *d = desc;
    if (d->pass == MICA_QUANTIZE_ROWS_GIVEN && d->scale.rank && mica_tensor_given(&d->scale) &&
        mica_tensor_count(&d->scale) == 1)
        return d->scale;
    mica_tensor t = mica_quantize_rows_value(d, MICA_F32);
    t.dims[t.rank - 1] = mica_quantize_rows_sizes(d).groups;
    mica_tensor_default_strides(&t);
    return t;
}

static mica_tensor shape_of_column(const void *desc)
{
    const mica_quantize_rows_desc *d = desc;
    return mica_tensor_packed(MICA_F32, 1, &d->x.dims[d->x.rank - 1]);
}

#define EACH(what)                                                                                 \
    {                                                                                              \
        what, what                                                                                 \
    }
#define ARG(member, given, amax, ...)                                                              \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_quantize_rows_desc, member),                      \
        .dir = {given, amax}, __VA_ARGS__                                                          \
    }
#define VALUES (MICA_TYPE(F32) | MICA_TYPE(F16) | MICA_TYPE(BF16))
#define CODES  (MICA_TYPE(E4M3) | MICA_TYPE(E5M2) | MICA_TYPE(S8) | MICA_TYPE(U8))
#define COLUMN .types = VALUES, .like = "x", .shape = shape_of_column, .words = "the columns of x"
static const mica_arg args[] = {
    [MICA_QUANTIZE_ROWS_X] = ARG(x, MICA_IN, MICA_IN, .types = VALUES, .need = EACH(MICA_NEEDED)),
    [MICA_QUANTIZE_ROWS_RESIDUAL] =
        ARG(residual, MICA_IN, MICA_IN, .types = VALUES, .like = "x", .alias = "sum"),
    [MICA_QUANTIZE_ROWS_WEIGHT] = ARG(weight, MICA_IN, MICA_IN, COLUMN),
    [MICA_QUANTIZE_ROWS_BIAS] = ARG(bias, MICA_IN, MICA_IN, COLUMN),
    [MICA_QUANTIZE_ROWS_Y] =
        ARG(y, MICA_OUT, MICA_OUT, .types = CODES, .need = EACH(MICA_NEEDED), .like = "x",
            .shape = shape_of_value, .words = "x, half of its columns if gated"),
    [MICA_QUANTIZE_ROWS_SCALE] =
        ARG(scale, MICA_IN, MICA_OUT, .types = MICA_TYPE(F32), .need = EACH(MICA_INFERRED),
            .like = "x", .shape = shape_of_scale, .words = "the groups of x's rows"),
    [MICA_QUANTIZE_ROWS_SUM] =
        ARG(sum, MICA_OUT, MICA_OUT, .types = VALUES, .like = "x", .with = "residual"),
};

/* ---- inference and checks ---- */

static mica_status infer(void *desc, mica_why *why)
{
    mica_quantize_rows_desc *d = desc;
    if (d->x.rank < 1) return mica_invalid(why, "x has rank 0, it must have rows");
    const int64_t across = d->x.dims[d->x.rank - 1];
    if (d->norm && (d->act || d->gated))
        return mica_invalid(why, "%s with norm=%s: it is for norm=none", d->gated ? "gated" : "act",
                            norms[d->norm]);
    const struct {
        const mica_tensor *t;
        const char *name;
    } of_norm[] = {{&d->residual, "residual"}, {&d->weight, "weight"}, {&d->bias, "bias"}};
    for (int i = 0; i < 3 && !d->norm; i++)
        if (of_norm[i].t->dtype)
            return mica_invalid(why, "%s with norm=none: it is for norm=rms or layer",
                                of_norm[i].name);
    if (d->gated && across % 2)
        return mica_invalid(why, "x has %lld columns, gating needs an even number",
                            (long long)across);
    if (d->group < 0)
        return mica_invalid(why, "group is %lld, it must be at least 1; 0 is all columns",
                            (long long)d->group);
    const int64_t columns = d->gated ? across / 2 : across;
    if (d->group >= columns) d->group = 0;
    mica_act_defaults(d->act, &d->act_a, &d->act_b);
    if (mica_tensor_given(&d->residual) && !d->sum.dtype && d->sum.rank == 0)
        d->sum = mica_tensor_packed(d->x.dtype, d->x.rank, d->x.dims);
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_quantize_rows_desc *d = desc;
    if (!(d->eps > 0) || isinf(d->eps))
        return mica_invalid(why, "eps is %g, it must be positive and finite", d->eps + 0);
    for (int arg = MICA_QUANTIZE_ROWS_WEIGHT; arg <= MICA_QUANTIZE_ROWS_BIAS; arg++) {
        const mica_dtype own = mica_op_tensor(&mica_op_quantize_rows, desc, arg)->dtype;
        if (own && own != MICA_F32 && own != d->x.dtype)
            return mica_invalid(why, "%s is %s, it must be f32 or x's %s", args[arg].name,
                                mica_dtype_name(own), mica_dtype_name(d->x.dtype));
    }
    return MICA_OK;
}

/* ---- cost and data ---- */

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_quantize_rows_desc *d = desc;
    (void)bytes;
    *flops = 12 * (double)mica_tensor_count(&d->x);
}

static int64_t terms(const void *desc)
{
    const mica_quantize_rows_desc *d = desc;
    return d->norm ? d->x.dims[d->x.rank - 1] : 1;
}

/* Edges whose squares and products are f32's own. */
static double within(double v)
{
    const double most = 1e15, least = 1e-15;
    if (isnan(v) || isinf(v) || v == 0) return v;
    return copysign(fmin(fmax(fabs(v), least), most), v);
}

static bool fill(const void *desc, const double *scalars, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_quantize_rows_desc *d = desc;
    const mica_tensor *t = mica_op_tensor(&mica_op_quantize_rows, desc, arg);
    const int64_t count = mica_tensor_count(t);
    (void)scalars;
    if (arg == MICA_QUANTIZE_ROWS_SCALE) {
        const double top = d->y.dtype == MICA_E4M3   ? 448
                           : d->y.dtype == MICA_E5M2 ? 57344
                           : d->y.dtype == MICA_U8   ? 255
                                                     : 127;
        for (int64_t i = 0; i < count; i++) {
            const double u = mica_random_uniform(seed, (uint64_t)i);
            const double v = kind == MICA_FILL_EXACT ? ldexp(1, (int)floor(u * 3) - 1)
                                                     : 2.5 / top * exp2(3 * u - 2);
            values[i] = mica_fill_rounded(t->dtype, v);
        }
        return true;
    }
    if (kind != MICA_FILL_EDGES && kind != MICA_FILL_EXTREME) return false;
    mica_fill_general(&mica_op_quantize_rows, desc, arg, kind, seed, values);
    for (int64_t i = 0; i < count; i++) values[i] = mica_fill_rounded(t->dtype, within(values[i]));
    return true;
}

static const mica_engine *const engines[] = {&mica_quantize_rows_compose, &mica_engine_ref,
                                             &mica_quantize_rows_fused,
                                             &mica_quantize_rows_compose_cuda, NULL};

const mica_op mica_op_quantize_rows = {
    .name = "quantize_rows",
    .doc = "Rows in 8 bits with scales, behind a normalisation or a (gated) activation",
    .desc_size = sizeof(mica_quantize_rows_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .check = check,
    .cost = cost,
    .terms = terms,
    .ulps = 8,
    .fill = fill,
    .reference = mica_quantize_rows_reference,
    .engines = engines,
};
