/* SPDX-License-Identifier: Apache-2.0
 * Cross-entropy: tables, inference, checks, fill of labels. */
#include "ops/cross_entropy/cross_entropy.h"
#include "base/random.h"

#include <math.h>
#include <string.h>

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const reductions[] = {"mean", "sum", "none", NULL};
static const char *const inputs[] = {"logits", "log_probs", NULL};
static const char *const targets[] = {"classes", "probabilities", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_cross_entropy_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradient of x"),
    FIELD(x, TENSOR, .zero = "needed",
          .doc = "logits or log-probabilities, N x C or N x C x spatial"),
    FIELD(labels, TENSOR, .zero = "inferred with targets=classes",
          .doc = "classes, N or N x spatial, s32 or s64"),
    FIELD(loss, TENSOR, .zero = "inferred",
          .doc = "fwd: one element, or as labels with reduction=none"),
    FIELD(lse, TENSOR, .zero = "none", .doc = "fwd: log(sum(exp(x))) of each row"),
    FIELD(dloss, TENSOR, .zero = "inferred", .doc = "bwd: gradient of the loss"),
    FIELD(dx, TENSOR, .zero = "inferred", .doc = "bwd: gradient of x"),
    FIELD(reduction, ENUM, .spellings = reductions, .doc = "mean over counted rows, sum or none"),
    FIELD(smoothing, F64, .zero = "none",
          .doc = "weight of the uniform distribution in the target, 0 to 1"),
    FIELD(ignore, FLAG, .doc = "rows labelled ignore_index do not count"),
    FIELD(ignore_index, I64, .zero = "class 0", .doc = "such as -100"),
    FIELD(input, ENUM, .spellings = inputs, .doc = "what x is"),
    FIELD(targets, ENUM, .spellings = targets, .doc = "labels, or target"),
    FIELD(target, TENSOR, .zero = "inferred with targets=probabilities", .doc = "those, as x"),
    FIELD(weight, TENSOR, .zero = "none", .doc = "of classes"),
    FIELD(dtarget, TENSOR, .zero = "not wanted",
          .doc = "bwd, targets=probabilities: gradient of target"),
};

/* ---- shapes ---- */

mica_tensor mica_cross_entropy_without_classes(const mica_tensor *t)
{
    mica_tensor r = *t;
    r.rank = t->rank - 1;
    for (int i = 1; i < r.rank; i++) {
        r.dims[i] = t->dims[i + 1];
        r.strides[i] = t->strides[i + 1];
    }
    r.dims[r.rank] = r.strides[r.rank] = 0;
    return r;
}

/* ---- arguments ---- */

static mica_tensor labels_shape(const void *desc)
{
    const mica_cross_entropy_desc *d = desc;
    const mica_tensor rows = mica_cross_entropy_without_classes(&d->x);
    return mica_tensor_packed(MICA_S64, rows.rank, rows.dims);
}

static mica_tensor rows_shape(const void *desc)
{
    mica_tensor rows = labels_shape(desc);
    rows.dtype = ((const mica_cross_entropy_desc *)desc)->x.dtype;
    return rows;
}

static mica_tensor weight_shape(const void *desc)
{
    const mica_cross_entropy_desc *d = desc;
    return mica_tensor_packed(d->x.dtype, 1, &d->x.dims[1]);
}

/* A loss of each row, or one element, in any number of dimensions. */
static mica_tensor loss_shape(const void *desc)
{
    const mica_cross_entropy_desc *d = desc;
    const mica_tensor *loss = d->pass == MICA_CROSS_ENTROPY_FWD ? &d->loss : &d->dloss;
    if (d->reduction == MICA_REDUCE_NONE) return rows_shape(desc);
    return loss->rank ? *loss : mica_tensor_packed(d->x.dtype, 1, (int64_t[]){1});
}

#define ARG(member, FWD, BWD, FWD_NEED, BWD_NEED, ...)                                             \
    {                                                                                              \
#member, offsetof(mica_cross_entropy_desc, member),                                        \
            {FWD, BWD }, .need = {FWD_NEED, BWD_NEED }, __VA_ARGS__                                \
    }
#define OF_ROWS            .like = "x", .words = "x without its classes"
#define OF_TARGETS(TARGET) .when = "targets", .values = 1u << MICA_CROSS_ENTROPY_##TARGET
static const mica_arg args[] = {
    [MICA_CROSS_ENTROPY_X] =
        ARG(x, MICA_IN, MICA_IN, MICA_NEEDED, MICA_NEEDED, .types = MICA_FLOATS, .alias = "dx"),
    [MICA_CROSS_ENTROPY_LABELS] =
        ARG(labels, MICA_IN, MICA_IN, MICA_INFERRED, MICA_INFERRED, .types = MICA_INDICES,
            .shape = labels_shape, OF_ROWS, OF_TARGETS(CLASSES)),
    [MICA_CROSS_ENTROPY_LOSS] =
        ARG(loss, MICA_OUT, MICA_UNUSED, MICA_INFERRED, 0, .types = MICA_FLOATS,
            .shape = loss_shape, .state = true, OF_ROWS),
    [MICA_CROSS_ENTROPY_LSE] = ARG(lse, MICA_OUT, MICA_UNUSED, 0, 0, .types = MICA_FLOATS,
                                   .shape = rows_shape, .state = true, OF_ROWS),
    [MICA_CROSS_ENTROPY_DLOSS] =
        ARG(dloss, MICA_UNUSED, MICA_IN, 0, MICA_INFERRED, .types = MICA_FLOATS,
            .shape = loss_shape, .state = true, OF_ROWS),
    [MICA_CROSS_ENTROPY_DX] =
        ARG(dx, MICA_UNUSED, MICA_OUT, 0, MICA_INFERRED, .types = MICA_FLOATS, .like = "x"),
    [MICA_CROSS_ENTROPY_TARGET] = ARG(target, MICA_IN, MICA_IN, MICA_INFERRED, MICA_INFERRED,
                                      .types = MICA_FLOATS, .like = "x", OF_TARGETS(PROBABILITIES)),
    [MICA_CROSS_ENTROPY_WEIGHT] =
        ARG(weight, MICA_IN, MICA_IN, 0, 0, .types = MICA_FLOATS, .shape = weight_shape,
            .like = "x", .words = "the classes of x"),
    [MICA_CROSS_ENTROPY_DTARGET] = ARG(dtarget, MICA_UNUSED, MICA_OUT, 0, 0, .types = MICA_FLOATS,
                                       .like = "target", OF_TARGETS(PROBABILITIES)),
};

/* What stands for a tensor that is absent or has one element for all rows. */
static mica_tensor shared_by_all(const mica_tensor *rows)
{
    mica_tensor t = *rows;
    memset(t.strides, 0, sizeof t.strides);
    return t;
}

void mica_cross_entropy_rows_make(mica_cross_entropy_rows *rows, const mica_cross_entropy_desc *d)
{
    bool fwd = d->pass == MICA_CROSS_ENTROPY_FWD, each = d->reduction == MICA_REDUCE_NONE;
    const mica_tensor *loss = fwd ? &d->loss : &d->dloss;
    const bool given = d->targets == MICA_CROSS_ENTROPY_PROBABILITIES;
    mica_tensor x = mica_cross_entropy_without_classes(&d->x), shared = shared_by_all(&x);
    mica_tensor labels = given ? shared : d->labels, third = each ? *loss : shared;
    mica_tensor fourth = shared, target = shared, dtarget = shared;
    if (fwd && mica_tensor_given(&d->lse)) fourth = d->lse;
    if (!fwd) fourth = mica_cross_entropy_without_classes(&d->dx);
    if (given) target = mica_cross_entropy_without_classes(&d->target);
    if (mica_tensor_given(&d->dtarget)) dtarget = mica_cross_entropy_without_classes(&d->dtarget);
    mica_layout_make(&rows->layout,
                     (const mica_tensor *[]){&x, &labels, &third, &fourth, &target, &dtarget}, 6);
    rows->classes = d->x.dims[1];
    rows->x_stride = d->x.strides[1];
    rows->dx_stride = fwd ? 0 : d->dx.strides[1];
    rows->target_stride = d->target.strides[1];
    rows->dtarget_stride = d->dtarget.strides[1];
}

bool mica_cross_entropy_is_wide(const mica_cross_entropy_desc *d)
{
    const mica_tensor *t[] = {&d->x,  &d->loss,   &d->lse,    &d->dloss,
                              &d->dx, &d->target, &d->weight, &d->dtarget};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        if (t[i]->dtype == MICA_F64) return true;
    return false;
}

bool mica_cross_entropy_is_plain(const mica_cross_entropy_desc *d)
{
    return d->input == MICA_CROSS_ENTROPY_LOGITS && d->targets == MICA_CROSS_ENTROPY_CLASSES &&
           !mica_tensor_given(&d->weight);
}

/* ---- inference and checks ---- */

static mica_status infer(void *desc, mica_why *why)
{
    mica_cross_entropy_desc *d = desc;
    if (d->x.rank < 2)
        return mica_invalid(why, "x has rank %d, it must be N x C or N x C x spatial", d->x.rank);
    if (!d->ignore) d->ignore_index = 0;
    const bool classes = d->targets == MICA_CROSS_ENTROPY_CLASSES;
    if (classes && (mica_tensor_given(&d->target) || mica_tensor_given(&d->dtarget)))
        return mica_invalid(why, "%s is for targets=probabilities, this is classes",
                            mica_tensor_given(&d->target) ? "target" : "dtarget");
    if (!classes && mica_tensor_given(&d->labels))
        return mica_invalid(why, "labels is for targets=classes, this is probabilities");
    if (!classes && d->ignore)
        return mica_invalid(why, "ignore is for targets=classes, this is probabilities");
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_cross_entropy_desc *d = desc;
    bool fwd = d->pass == MICA_CROSS_ENTROPY_FWD;
    const int64_t losses = mica_tensor_count(fwd ? &d->loss : &d->dloss);
    if (d->reduction != MICA_REDUCE_NONE && losses != 1)
        return mica_invalid(why, "%s has %lld elements, reduction=%s needs one",
                            fwd ? "loss" : "dloss", (long long)losses, reductions[d->reduction]);
    if (!(d->smoothing >= 0 && d->smoothing <= 1))
        return mica_invalid(why, "smoothing is %g, 0 to 1 are legal", d->smoothing);
    if (fwd && d->input == MICA_CROSS_ENTROPY_LOG_PROBS && mica_tensor_given(&d->lse))
        return mica_invalid(why, "lse is for input=logits, this is log_probs");
    return MICA_OK;
}

/* fwd: compare, subtract, exp, add; bwd: also exp, scale and subtract. */
static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_cross_entropy_desc *d = desc;
    (void)bytes;
    *flops = (d->pass == MICA_CROSS_ENTROPY_FWD ? 4 : 7) * (double)mica_tensor_count(&d->x);
}

/* Sums over the classes of a row; those over rows are formed in double. */
static int64_t terms(const void *desc)
{
    const mica_cross_entropy_desc *d = desc;
    return d->x.dims[1] > 0 ? d->x.dims[1] : 1;
}

/* ---- fills ---- */

/* Every second row far from zero, where logits differ little or not at all. */
static void fill_logits(const mica_cross_entropy_desc *d, uint64_t seed, double *values)
{
    mica_fill_general(&mica_op_cross_entropy, d, MICA_CROSS_ENTROPY_X, MICA_FILL_RANGE, seed,
                      values);
    const int64_t count = mica_tensor_count(&d->x), classes = d->x.dims[1];
    const int64_t pixels = count > 0 ? count / d->x.dims[0] / classes : 1;
    const int most = d->x.dtype == MICA_F16 ? 15 : d->x.dtype == MICA_F64 ? 1023 : 127;
    for (int64_t i = 0; i < count; i++) {
        const uint64_t row = (uint64_t)(i / pixels / classes * pixels + i % pixels);
        if (row % 2) continue;
        const double u = mica_random_uniform(seed ^ 0xfa2, row);
        const double far =
            exp2(row % 4 ? u * (most < 30 ? most : 30) : most - 1) * (row % 8 < 4 ? 1 : -1);
        char element[16];
        mica_dtype_store(d->x.dtype)(element, 0, far + mica_random_normal(seed, (uint64_t)i));
        values[i] = mica_dtype_load(d->x.dtype)(element, 0);
    }
}

/* Probabilities and weights: above 0, so that their sums are. */
static void fill_shares(const mica_tensor *t, mica_fill fill, uint64_t seed, double *values)
{
    const int64_t count = mica_tensor_count(t);
    seed = mica_random_bits(seed, 0x5ca1e);
    for (int64_t i = 0; i < count; i++) {
        char element[16];
        const double u = mica_random_uniform(seed, (uint64_t)i);
        const double v = fill == MICA_FILL_EXTREME ? exp2(-6 * u) : 0.03 + 0.97 * u;
        mica_dtype_store(t->dtype)(element, 0, v);
        values[i] = mica_dtype_load(t->dtype)(element, 0);
    }
}

static bool fill_input(const void *desc, const double *scalars, int arg, mica_fill fill,
                       uint64_t seed, double *values)
{
    (void)scalars;
    const mica_cross_entropy_desc *d = desc;
    if (arg == MICA_CROSS_ENTROPY_X && fill == MICA_FILL_RANGE &&
        d->input == MICA_CROSS_ENTROPY_LOGITS) {
        fill_logits(d, seed, values);
        return true;
    }
    if (arg == MICA_CROSS_ENTROPY_TARGET || arg == MICA_CROSS_ENTROPY_WEIGHT) {
        fill_shares(mica_op_tensor(&mica_op_cross_entropy, d, arg), fill, seed, values);
        return true;
    }
    if (arg != MICA_CROSS_ENTROPY_LABELS) return false;
    int64_t count = mica_tensor_count(&d->labels), classes = d->x.dims[1];
    double last = (double)(classes > 0 ? classes - 1 : 0);
    seed = mica_random_bits(seed, 0x1abe1);
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = mica_random_bits(seed, (uint64_t)i);
        double label = floor(mica_random_uniform(seed ^ 1, (uint64_t)i) * (last + 1));
        if (fill == MICA_FILL_EXTREME) label = bits & 1 ? 0 : last;
        /* A fifth is ignored, but never the first row: a mean over no rows is NaN. */
        if (d->ignore && i > 0 && bits % 5 == 0) label = (double)d->ignore_index;
        values[i] = label;
    }
    return true;
}

static const mica_engine *const engines[] = {&mica_cross_entropy_cpu,
                                             &mica_cross_entropy_targets_cpu, &mica_engine_ref,
                                             &mica_cross_entropy_cuda, NULL};

const mica_op mica_op_cross_entropy = {
    .name = "cross_entropy",
    .doc = "cross-entropy of logits or log-probabilities, and its gradient",
    .desc_size = sizeof(mica_cross_entropy_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .check = check,
    .cost = cost,
    .terms = terms,
    .ulps = 6, /* of exp, log, a division and products */
    .fill = fill_input,
    .reference = mica_cross_entropy_reference,
    .engines = engines,
};
