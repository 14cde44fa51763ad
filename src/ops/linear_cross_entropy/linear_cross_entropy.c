/* SPDX-License-Identifier: Apache-2.0
 * Cross-entropy of a linear layer: tables, checks, fill of labels. */
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "base/random.h"

#include <string.h>

static const char *const reductions[] = {"mean", "sum", "none", NULL};

#define FIELD(member, kind, ...)                                                                   \
    MICA_FIELD(mica_linear_cross_entropy_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(x, TENSOR, .zero = "needed", .doc = "rows, N x K"),
    FIELD(w, TENSOR, .zero = "needed", .doc = "weights of classes, V x K"),
    FIELD(labels, TENSOR, .zero = "inferred", .doc = "classes, N, s32 or s64"),
    FIELD(loss, TENSOR, .zero = "inferred", .doc = "one element, or N with reduction=none"),
    FIELD(lse, TENSOR, .zero = "none", .doc = "log(sum(exp(logits))) of each row"),
    FIELD(dx, TENSOR, .zero = "not wanted", .doc = "gradient of x"),
    FIELD(dw, TENSOR, .zero = "not wanted", .doc = "gradient of w"),
    FIELD(reduction, ENUM, .spellings = reductions, .doc = "mean over counted rows, sum or none"),
    FIELD(smoothing, F64, .zero = "none",
          .doc = "weight of the uniform distribution in the target, 0 to 1"),
    FIELD(ignore, FLAG, .doc = "rows labelled ignore_index do not count"),
    FIELD(ignore_index, I64, .zero = "class 0", .doc = "such as -100"),
    FIELD(chunk, I64, .def = 4096, .positive = true, .doc = "classes whose logits are in memory"),
};

static mica_tensor labels_shape(const void *desc)
{
    const mica_linear_cross_entropy_desc *d = desc;
    return mica_tensor_packed(MICA_S64, 1, d->x.dims);
}

static mica_tensor loss_shape(const void *desc)
{
    const mica_linear_cross_entropy_desc *d = desc;
    if (d->reduction == MICA_REDUCE_NONE) return mica_tensor_packed(d->x.dtype, 1, d->x.dims);
    return d->loss.rank ? d->loss : mica_tensor_packed(d->x.dtype, 1, (int64_t[]){1});
}

static mica_tensor rows_shape(const void *desc)
{
    const mica_linear_cross_entropy_desc *d = desc;
    return mica_tensor_packed(d->x.dtype, 1, d->x.dims);
}

#define ARG(member, DIR, ...)                                                                      \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_linear_cross_entropy_desc, member), .dir = {DIR}, \
        __VA_ARGS__                                                                                \
    }
#define OF_ROWS .like = "x", .words = "the rows of x"
static const mica_arg args[] = {
    [MICA_LINEAR_CROSS_ENTROPY_X] = ARG(x, MICA_IN, .types = MICA_FLOATS, .need = {MICA_NEEDED}),
    [MICA_LINEAR_CROSS_ENTROPY_W] =
        ARG(w, MICA_IN, .types = MICA_FLOATS, .need = {MICA_NEEDED}, .same = "x"),
    [MICA_LINEAR_CROSS_ENTROPY_LABELS] =
        ARG(labels, MICA_IN, .types = MICA_INDICES, .need = {MICA_INFERRED}, .shape = labels_shape,
            OF_ROWS),
    [MICA_LINEAR_CROSS_ENTROPY_LOSS] =
        ARG(loss, MICA_OUT, .types = MICA_FLOATS, .need = {MICA_INFERRED}, .shape = loss_shape,
            .state = true, OF_ROWS),
    [MICA_LINEAR_CROSS_ENTROPY_LSE] =
        ARG(lse, MICA_OUT, .types = MICA_FLOATS, .shape = rows_shape, .state = true, OF_ROWS),
    [MICA_LINEAR_CROSS_ENTROPY_DX] = ARG(dx, MICA_OUT, .types = MICA_FLOATS, .like = "x"),
    [MICA_LINEAR_CROSS_ENTROPY_DW] = ARG(dw, MICA_OUT, .types = MICA_FLOATS, .like = "w"),
};

/* What products of x's type are rounded to. */
static mica_status check_gradient(const mica_linear_cross_entropy_desc *d, const char *name,
                                  const mica_tensor *t, mica_why *why)
{
    if (!mica_tensor_given(t) || t->dtype == d->x.dtype || t->dtype == MICA_F32) return MICA_OK;
    return mica_invalid(why, "%s is %s, it must be %s, as x, or f32", name,
                        mica_dtype_name(t->dtype), mica_dtype_name(d->x.dtype));
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_linear_cross_entropy_desc *d = desc;
    MICA_TRY(check_gradient(d, "dx", &d->dx, why));
    MICA_TRY(check_gradient(d, "dw", &d->dw, why));
    if (d->x.rank != 2 || d->w.rank != 2)
        return mica_invalid(why, "%s has rank %d, it must be 2", d->x.rank != 2 ? "x" : "w",
                            d->x.rank != 2 ? d->x.rank : d->w.rank);
    if (d->x.dims[1] != d->w.dims[1])
        return mica_invalid(why, "x has rows of %lld elements, w of %lld", (long long)d->x.dims[1],
                            (long long)d->w.dims[1]);
    if (d->w.dims[0] == 0) return mica_invalid(why, "w has no rows: there are no classes");
    if (!(d->smoothing >= 0 && d->smoothing <= 1))
        return mica_invalid(why, "smoothing is %g, it must be 0 to 1", d->smoothing);
    if (d->reduction != MICA_REDUCE_NONE && mica_tensor_count(&d->loss) != 1)
        return mica_invalid(why, "loss has %lld elements, of a mean or sum it has one",
                            (long long)mica_tensor_count(&d->loss));
    return MICA_OK;
}

/* Logits, and with gradients them again and a product for each. */
static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_linear_cross_entropy_desc *d = desc;
    const bool dx = mica_tensor_given(&d->dx), dw = mica_tensor_given(&d->dw);
    const double product = 2 * (double)mica_tensor_count(&d->w) * (double)d->x.dims[0];
    (void)bytes;
    *flops = product * (1 + dx + dw);
}

static int64_t terms(const void *desc)
{
    const mica_linear_cross_entropy_desc *d = desc;
    int64_t n = d->x.dims[1];
    if (mica_tensor_given(&d->dx) && d->w.dims[0] > n) n = d->w.dims[0];
    if (mica_tensor_given(&d->dw) && d->x.dims[0] > n) n = d->x.dims[0];
    return n > 0 ? n : 1;
}

/* Some ignored, the rest classes. */
static bool fill(const void *desc, const double *scalars, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_linear_cross_entropy_desc *d = desc;
    (void)scalars, (void)kind;
    if (arg != MICA_LINEAR_CROSS_ENTROPY_LABELS) return false;
    for (int64_t i = 0; i < d->x.dims[0]; i++) {
        const uint64_t bits = mica_random_bits(seed, (uint64_t)i);
        const bool ignored = d->ignore && i && bits >> 60 == 0;
        values[i] = ignored ? (double)d->ignore_index : (double)(bits % (uint64_t)d->w.dims[0]);
    }
    return true;
}

static const mica_engine *const engines[] = {&mica_linear_cross_entropy_compose, &mica_engine_ref,
                                             &mica_linear_cross_entropy_compose_cuda, NULL};

const mica_op mica_op_linear_cross_entropy = {
    .name = "linear_cross_entropy",
    .doc = "Cross-entropy of a linear layer and its gradients, never its logits",
    .desc_size = sizeof(mica_linear_cross_entropy_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .check = check,
    .cost = cost,
    .terms = terms,
    .ulps = 8,
    .fill = fill,
    .reference = mica_linear_cross_entropy_reference,
    .engines = engines,
};
