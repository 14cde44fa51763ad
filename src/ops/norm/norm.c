/* SPDX-License-Identifier: Apache-2.0
 * Normalisation: tables, inference, checks. */

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "ops/norm/norm.h"

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const kinds[] = {"layer", "rms", "batch", "group", "instance", NULL};
static const char *const modes[] = {"train", "infer", NULL};

static const mica_field fields[] = {
    MICA_FIELD(mica_norm_desc, pass, ENUM, .spellings = passes, .doc = "fwd: y; bwd: gradients"),
    MICA_FIELD(mica_norm_desc, kind, ENUM, .spellings = kinds,
               .doc = "over which elements the statistics are taken"),
    MICA_FIELD(mica_norm_desc, mode, ENUM, .spellings = modes,
               .doc = "train: statistics of x; infer: running statistics (batch)"),
    MICA_FIELD(mica_norm_desc, x, TENSOR, .zero = "needed",
               .doc = "input; bwd of layer, rms with a residual: the sum"),
    MICA_FIELD(mica_norm_desc, residual, TENSOR, .zero = "none",
               .doc = "added to x first (layer, rms), or behind the affine step"),
    MICA_FIELD(mica_norm_desc, scale, TENSOR, .zero = "none", .doc = "factor"),
    MICA_FIELD(mica_norm_desc, bias, TENSOR, .zero = "none", .doc = "summand"),
    MICA_FIELD(mica_norm_desc, y, TENSOR, .zero = "inferred", .doc = "result"),
    MICA_FIELD(mica_norm_desc, sum, TENSOR, .zero = "inferred with residual",
               .doc = "x + residual"),
    MICA_FIELD(mica_norm_desc, mean, TENSOR, .zero = "none in fwd, inferred in bwd",
               .doc = "of each set: fwd saves it, bwd reads it"),
    MICA_FIELD(mica_norm_desc, rstd, TENSOR, .zero = "none in fwd, inferred in bwd",
               .doc = "1/sqrt(variance + eps) of each set"),
    MICA_FIELD(mica_norm_desc, running_mean, TENSOR, .zero = "none, in mode infer inferred",
               .doc = "batch: average over the batches seen"),
    MICA_FIELD(mica_norm_desc, running_var, TENSOR, .zero = "none, in mode infer inferred",
               .doc = "batch: the same, of unbiased variances"),
    MICA_FIELD(mica_norm_desc, dy, TENSOR, .zero = "inferred", .doc = "gradient of y"),
    MICA_FIELD(mica_norm_desc, dx, TENSOR, .zero = "inferred",
               .doc = "gradient of x, or of x + residual"),
    MICA_FIELD(mica_norm_desc, dscale, TENSOR, .zero = "inferred with scale",
               .doc = "gradient of scale"),
    MICA_FIELD(mica_norm_desc, dbias, TENSOR, .zero = "inferred with bias",
               .doc = "gradient of bias"),
    MICA_FIELD(mica_norm_desc, dresidual, TENSOR, .zero = "none",
               .doc = "gradient of residual (batch, group, instance)"),
    MICA_FIELD(mica_norm_desc, axes, I64, .def = 1,
               .doc = "trailing dimensions of a set (layer, rms)"),
    MICA_FIELD(mica_norm_desc, groups, I64, .zero = "needed for kind group",
               .doc = "groups of channels (group)"),
    MICA_FIELD(mica_norm_desc, eps, F64, .def = 1e-5, .doc = "added to the variance"),
    MICA_FIELD(mica_norm_desc, momentum, F64, .def = 0.1, .doc = "weight of this batch"),
    MICA_FIELD(mica_norm_desc, act, ENUM, .spellings = mica_act_spellings,
               .doc = "activation behind the affine step"),
    MICA_FIELD(mica_norm_desc, act_a, F64, .apart = true, .infinite = true,
               .zero = "the function's own", .doc = "parameter a of the activation"),
    MICA_FIELD(mica_norm_desc, act_b, F64, .infinite = true, .zero = "the function's own",
               .doc = "parameter b of the activation"),
    MICA_FIELD(mica_norm_desc, running_biased, FLAG,
               .doc = "running_var takes the variance itself, not n / (n - 1) of it (batch)"),
};

/* Type of the statistics. */
static mica_dtype stat_type(const mica_norm_desc *d)
{
    return mica_dtype_accumulator(d->x.dtype);
}

static mica_tensor of_sets(const void *desc)
{
    const mica_norm_desc *d = desc;
    int64_t group_dims[] = {d->x.dims[0], d->groups};
    switch (d->kind) {
    case MICA_NORM_BATCH:
        return mica_tensor_packed(stat_type(d), 1, &d->x.dims[1]);
    case MICA_NORM_GROUP:
        return mica_tensor_packed(stat_type(d), 2, group_dims);
    case MICA_NORM_INSTANCE:
        return mica_tensor_packed(stat_type(d), 2, d->x.dims);
    default:
        return mica_tensor_packed(stat_type(d), (int)(d->x.rank - d->axes), d->x.dims);
    }
}

static mica_tensor channel_shape(const mica_norm_desc *d, mica_dtype dtype)
{
    if (mica_norm_is_trailing(d))
        return mica_tensor_packed(dtype, (int)d->axes, d->x.dims + (d->x.rank - d->axes));
    return mica_tensor_packed(dtype, 1, &d->x.dims[1]);
}

static mica_tensor of_channels(const void *desc)
{
    return channel_shape(desc, stat_type(desc));
}

/* Running statistics are updated only by fwd in mode train; in mode infer they are left alone. */
#define AS_X          .types = MICA_FLOATS, .like = "x"
#define STATISTIC(of) .like = "the statistics", .shape = of
static const mica_arg args[] = {
    [MICA_NORM_X] = {"x",
                     offsetof(mica_norm_desc, x),
                     {MICA_IN, MICA_IN},
                     .types = MICA_FLOATS,
                     .need = {MICA_NEEDED, MICA_NEEDED}},
    [MICA_NORM_RESIDUAL] = {"residual",
                            offsetof(mica_norm_desc, residual),
                            {MICA_IN, MICA_IN},
                            AS_X},
    [MICA_NORM_SCALE] = {"scale", offsetof(mica_norm_desc, scale), {MICA_IN, MICA_IN}},
    [MICA_NORM_BIAS] = {"bias", offsetof(mica_norm_desc, bias), {MICA_IN, MICA_IN}},
    [MICA_NORM_Y] =
        {"y", offsetof(mica_norm_desc, y), {MICA_OUT}, .alias = "x", AS_X, .need = {MICA_INFERRED}},
    [MICA_NORM_SUM] = {"sum", offsetof(mica_norm_desc, sum), {MICA_OUT}, true, "residual", AS_X},
    [MICA_NORM_MEAN] = {"mean",
                        offsetof(mica_norm_desc, mean),
                        {MICA_OUT, MICA_IN},
                        STATISTIC(of_sets)},
    [MICA_NORM_RSTD] = {"rstd",
                        offsetof(mica_norm_desc, rstd),
                        {MICA_OUT, MICA_IN},
                        STATISTIC(of_sets)},
    [MICA_NORM_RUNNING_MEAN] = {"running_mean",
                                offsetof(mica_norm_desc, running_mean),
                                {MICA_INOUT, MICA_IN},
                                STATISTIC(of_channels)},
    [MICA_NORM_RUNNING_VAR] = {"running_var",
                               offsetof(mica_norm_desc, running_var),
                               {MICA_INOUT, MICA_IN},
                               STATISTIC(of_channels)},
    [MICA_NORM_DY] = {"dy",
                      offsetof(mica_norm_desc, dy),
                      {MICA_UNUSED, MICA_IN},
                      AS_X,
                      .need = {0, MICA_INFERRED}},
    [MICA_NORM_DX] = {"dx",
                      offsetof(mica_norm_desc, dx),
                      {MICA_UNUSED, MICA_OUT},
                      true,
                      "dy",
                      AS_X,
                      .need = {0, MICA_INFERRED}},
    [MICA_NORM_DSCALE] = {"dscale",
                          offsetof(mica_norm_desc, dscale),
                          {MICA_UNUSED, MICA_OUT},
                          .optional = true},
    [MICA_NORM_DBIAS] = {"dbias",
                         offsetof(mica_norm_desc, dbias),
                         {MICA_UNUSED, MICA_OUT},
                         .optional = true},
    [MICA_NORM_DRESIDUAL] = {"dresidual",
                             offsetof(mica_norm_desc, dresidual),
                             {MICA_UNUSED, MICA_OUT},
                             AS_X},
};
_Static_assert(sizeof args / sizeof *args == NORM_ARG_COUNT, "norm_args.h counts the arguments");

static const mica_scalar scalars[] = {[MICA_NORM_BETA] = {"beta", 0}};

/* ---- inference ---- */

/* What must hold before any shape can be derived. */
static mica_status check_shape(const mica_norm_desc *d, mica_why *why)
{
    const char *kind = kinds[d->kind];
    if (d->mode == MICA_NORM_INFER && d->kind != MICA_NORM_BATCH)
        return mica_invalid(why, "mode=infer with kind=%s: only batch has running statistics",
                            kind);
    if (mica_norm_is_trailing(d) && (d->axes < 1 || d->axes > d->x.rank))
        return mica_invalid(why, "axes is %lld, x has rank %d; 1 to rank are legal",
                            (long long)d->axes, d->x.rank);
    if (!mica_norm_is_trailing(d) && d->axes != 1)
        return mica_invalid(why, "axes is %lld with kind=%s; only layer and rms have it",
                            (long long)d->axes, kind);
    if (!mica_norm_is_trailing(d) && d->x.rank < 2)
        return mica_invalid(why, "x has rank %d, kind=%s needs channels in dimension 1", d->x.rank,
                            kind);
    if (d->kind != MICA_NORM_GROUP && d->groups != 0)
        return mica_invalid(why, "groups is %lld with kind=%s; only group has it",
                            (long long)d->groups, kind);
    if (d->kind == MICA_NORM_GROUP && (d->groups < 1 || d->x.dims[1] % d->groups != 0))
        return mica_invalid(why, "groups is %lld, it must divide the %lld channels",
                            (long long)d->groups, (long long)d->x.dims[1]);
    return MICA_OK;
}

static void clear(mica_tensor *t)
{
    memset(t, 0, sizeof *t);
}
static void infer_as(mica_tensor *t, const mica_tensor *like)
{
    if (mica_tensor_given(t)) return;
    *t = *like;
    mica_tensor_strides_like(t, like);
}
/* Its dimensions follow from its row. */
static void infer_statistic(const mica_norm_desc *d, mica_tensor *t)
{
    if (!mica_tensor_given(t)) t->dtype = stat_type(d);
}

static void infer_forward(mica_norm_desc *d)
{
    if (mica_norm_adds_in_front(d)) infer_as(&d->sum, &d->x);
    if (d->mode == MICA_NORM_INFER) clear(&d->mean), clear(&d->rstd);
}

static void infer_backward(mica_norm_desc *d)
{
    if (mica_tensor_given(&d->scale)) infer_as(&d->dscale, &d->scale);
    if (mica_tensor_given(&d->bias)) infer_as(&d->dbias, &d->bias);
    if (d->act == MICA_ACT_IDENTITY) clear(&d->bias); /* its value enters only act'(z) */
    if (d->act == MICA_ACT_IDENTITY || mica_norm_is_trailing(d)) clear(&d->residual);
    if (d->mode == MICA_NORM_INFER) {
        clear(&d->mean), clear(&d->rstd);
    } else {
        if (d->kind != MICA_NORM_RMS) infer_statistic(d, &d->mean);
        infer_statistic(d, &d->rstd);
        clear(&d->running_mean), clear(&d->running_var);
    }
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_norm_desc *d = desc;
    MICA_TRY(check_shape(d, why));
    mica_act_defaults(d->act, &d->act_a, &d->act_b);
    if (d->pass == MICA_NORM_FWD)
        infer_forward(d);
    else
        infer_backward(d);
    if (d->mode == MICA_NORM_INFER) {
        infer_statistic(d, &d->running_mean);
        infer_statistic(d, &d->running_var);
    }
    return MICA_OK;
}

/* ---- checks ---- */

static mica_status check_vector(const mica_norm_desc *d, int arg, mica_why *why)
{
    const mica_tensor *t = mica_norm_tensor(d, arg);
    if (!mica_tensor_given(t)) return MICA_OK;
    if (t->dtype != MICA_F32 && t->dtype != d->x.dtype)
        return mica_invalid(why, "%s is %s, it must be f32 or x's %s", args[arg].name,
                            mica_dtype_name(t->dtype), mica_dtype_name(d->x.dtype));
    mica_tensor shape = channel_shape(d, t->dtype);
    return mica_tensor_same_dims(t, args[arg].name, &shape,
                                 mica_norm_is_trailing(d) ? "the last axes of x" : "x's channels",
                                 why);
}

static mica_status check_statistic(const mica_norm_desc *d, int arg, mica_why *why)
{
    const mica_tensor *t = mica_norm_tensor(d, arg);
    if (!mica_tensor_given(t) || t->dtype == stat_type(d)) return MICA_OK;
    return mica_invalid(why, "%s is %s, statistics of %s are %s", args[arg].name,
                        mica_dtype_name(t->dtype), mica_dtype_name(d->x.dtype),
                        mica_dtype_name(stat_type(d)));
}

/* Tensors that this kind of normalisation does not have. */
static mica_status check_strangers(const mica_norm_desc *d, mica_why *why)
{
    const char *kind = kinds[d->kind];
    if (mica_tensor_given(&d->sum) && !mica_norm_is_trailing(d))
        return mica_invalid(why, "sum with kind=%s, which adds a residual behind the affine step",
                            kind);
    if (mica_tensor_given(&d->sum) && !mica_tensor_given(&d->residual))
        return mica_invalid(why, "sum is given without a residual: it would be x itself");
    if (mica_tensor_given(&d->dresidual) && mica_norm_is_trailing(d))
        return mica_invalid(why, "dresidual with kind=%s: the residual's gradient is dx itself",
                            kind);
    if (d->kind == MICA_NORM_RMS && mica_tensor_given(&d->mean))
        return mica_invalid(why, "mean with kind=rms, which subtracts none");
    if (d->kind != MICA_NORM_BATCH &&
        (mica_tensor_given(&d->running_mean) || mica_tensor_given(&d->running_var)))
        return mica_invalid(why, "running statistics with kind=%s; only batch has them", kind);
    if (d->running_biased && d->kind != MICA_NORM_BATCH)
        return mica_invalid(why, "running_biased with kind=%s; only batch has running statistics",
                            kind);
    if (d->kind == MICA_NORM_BATCH && d->mode == MICA_NORM_TRAIN &&
        mica_tensor_given(&d->running_var) && !d->running_biased && mica_norm_set_size(d) == 1)
        return mica_invalid(why, "running_var with 1 value per channel: the unbiased variance "
                                 "divides by n - 1, training needs n > 1");
    return MICA_OK;
}

static mica_status check_numbers(const mica_norm_desc *d, mica_why *why)
{
    if (!(d->eps > 0) || isinf(d->eps))
        return mica_invalid(why, "eps is %g, it must be positive and finite", d->eps + 0);
    if (!(d->momentum > 0 && d->momentum <= 1))
        return mica_invalid(why, "momentum is %g, it must be in (0, 1]", d->momentum + 0);
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_norm_desc *d = desc;
    static const int vectors[] = {MICA_NORM_SCALE, MICA_NORM_BIAS, MICA_NORM_DSCALE,
                                  MICA_NORM_DBIAS};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        MICA_TRY(check_vector(d, vectors[i], why));
    MICA_TRY(check_statistic(d, MICA_NORM_MEAN, why));
    MICA_TRY(check_statistic(d, MICA_NORM_RSTD, why));
    MICA_TRY(check_strangers(d, why));
    MICA_TRY(check_statistic(d, MICA_NORM_RUNNING_MEAN, why));
    MICA_TRY(check_statistic(d, MICA_NORM_RUNNING_VAR, why));
    return check_numbers(d, why);
}

/* ---- cost and data ---- */

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_norm_desc *d = desc;
    (void)bytes;
    double n = (double)mica_tensor_count(&d->x);
    if (d->mode == MICA_NORM_INFER)
        *flops = (d->pass == MICA_NORM_FWD ? 4 : 8) * n;
    else
        *flops = (d->pass == MICA_NORM_FWD ? 8 : 14) * n;
}

static int64_t terms(const void *desc)
{
    const mica_norm_desc *d = desc;
    norm_split sets, channels;
    mica_norm_split_sets(d, &sets);
    mica_norm_split_channels(d, &channels);
    int64_t n = d->mode == MICA_NORM_INFER ? 1 : sets.reduced.count;
    bool affine = mica_tensor_given(&d->dscale) || mica_tensor_given(&d->dbias);
    if (affine && channels.reduced.count > n) n = channels.reduced.count;
    return n > 1 ? n : 1;
}

/* A mean of many standard deviations, which one-pass variances do not survive; as far as the type
 * has the digits for it. */
static double far_from_zero(mica_dtype dtype)
{
    return dtype == MICA_F64 || dtype == MICA_F32 ? 1e3 : dtype == MICA_F16 ? 64 : 8;
}

static bool fill(const void *desc, const double *given, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    (void)given;
    const mica_norm_desc *d = desc;
    const mica_tensor *t = mica_norm_tensor(d, arg);
    mica_load_fn load = mica_dtype_load(t->dtype);
    mica_store_fn store = mica_dtype_store(t->dtype);
    int64_t count = mica_tensor_count(t);
    bool positive = arg == MICA_NORM_RSTD || arg == MICA_NORM_RUNNING_VAR;
    /* Tiny sets have no variance to speak of; bwd does not form statistics. */
    bool offset = arg == MICA_NORM_X && kind == MICA_FILL_SAME_SIGN && d->pass == MICA_NORM_FWD &&
                  d->mode == MICA_NORM_TRAIN && mica_norm_set_size(d) > 4;
    if (!positive && !offset) return false;
    seed = mica_random_bits(seed, (uint64_t)arg + 1);
    for (int64_t i = 0; i < count; i++) {
        char element[16];
        store(element, 0,
              positive ? 0.5 + mica_random_uniform(seed, (uint64_t)i)
                       : far_from_zero(d->x.dtype) + mica_random_normal(seed, (uint64_t)i));
        values[i] = load(element, 0);
    }
    return true;
}

static const mica_engine *const engines[] = {&mica_norm_cpu_once, &mica_norm_cpu, &mica_engine_ref,
                                             &mica_norm_cuda, NULL};

const mica_op mica_op_norm = {
    .name = "norm",
    .doc = "layer, RMS, batch, group and instance normalisation",
    .desc_size = sizeof(mica_norm_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = NORM_ARG_COUNT,
    .scalars = scalars,
    .scalar_count = sizeof scalars / sizeof *scalars,
    .infer = infer,
    .check = check,
    .cost = cost,
    .terms = terms,
    .ulps = 8,
    .fill = fill,
    .reference = mica_norm_reference,
    .engines = engines,
};
