/* SPDX-License-Identifier: Apache-2.0
 * Softmax: fields, arguments, inference, checks, cost, fills. */
#include "ops/softmax/softmax.h"
#include "base/random.h"

#include <math.h>

static const char *const passes[] = {"fwd", "bwd", NULL};
static const mica_field fields[] = {
    MICA_FIELD(mica_softmax_desc, pass, ENUM, .spellings = passes, .doc = "fwd or bwd"),
    MICA_FIELD(mica_softmax_desc, x, TENSOR, .zero = "needed in fwd", .doc = "fwd: logits"),
    MICA_FIELD(mica_softmax_desc, y, TENSOR, .zero = "inferred in fwd, needed in bwd",
               .doc = "result; bwd reads it instead of x"),
    MICA_FIELD(mica_softmax_desc, dy, TENSOR, .zero = "inferred", .doc = "bwd: gradient of y"),
    MICA_FIELD(mica_softmax_desc, dx, TENSOR, .zero = "inferred", .doc = "bwd: gradient of x"),
    MICA_FIELD(mica_softmax_desc, axis, I64, .zero = "axis 0",
               .doc = "normalised axis; negative: from the end"),
    MICA_FIELD(mica_softmax_desc, log, FLAG, .doc = "logarithm of softmax"),
};

#define ARG(member, ...)                                                                           \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_softmax_desc, member), .types = MICA_FLOATS,      \
        __VA_ARGS__                                                                                \
    }
static const mica_arg args[] = {
    [MICA_SOFTMAX_X] = ARG(x, .dir = {MICA_IN, MICA_UNUSED}, .need = {MICA_NEEDED}),
    [MICA_SOFTMAX_Y] = ARG(y, .dir = {MICA_OUT, MICA_IN}, .need = {MICA_INFERRED, MICA_NEEDED},
                           .like = "x", .alias = "x"),
    [MICA_SOFTMAX_DY] =
        ARG(dy, .dir = {MICA_UNUSED, MICA_IN}, .need = {0, MICA_INFERRED}, .like = "y"),
    [MICA_SOFTMAX_DX] = ARG(dx, .dir = {MICA_UNUSED, MICA_OUT}, .need = {0, MICA_INFERRED},
                            .like = "y", .alias = "dy"),
};

mica_softmax_operands mica_softmax_operands_of(const mica_softmax_desc *d)
{
    if (d->pass == MICA_SOFTMAX_FWD)
        return (mica_softmax_operands){2, {MICA_SOFTMAX_X, MICA_SOFTMAX_Y}, {&d->x, &d->y}};
    return (mica_softmax_operands){
        3, {MICA_SOFTMAX_Y, MICA_SOFTMAX_DY, MICA_SOFTMAX_DX}, {&d->y, &d->dy, &d->dx}};
}

mica_tensor mica_softmax_without_axis(const mica_tensor *t, int64_t axis)
{
    mica_tensor slice = *t;
    slice.dims[axis] = 1;
    return slice;
}

void mica_softmax_shape_make(mica_softmax_shape *s, const mica_softmax_desc *d)
{
    mica_softmax_operands o = mica_softmax_operands_of(d);
    mica_tensor slices[3];
    const mica_tensor *pointers[3];
    for (int t = 0; t < o.count; t++) {
        slices[t] = mica_softmax_without_axis(o.tensor[t], d->axis);
        pointers[t] = &slices[t];
        s->axis_stride[t] = o.tensor[t]->strides[d->axis];
    }
    mica_layout_make(&s->outer, pointers, o.count);
    s->n = o.tensor[0]->dims[d->axis];
}

bool mica_softmax_is_wide(const mica_softmax_operands *o)
{
    for (int t = 0; t < o->count; t++)
        if (o->tensor[t]->dtype == MICA_F64) return true;
    return false;
}

/* ---- inference and checks ---- */

static mica_status infer(void *desc, mica_why *why)
{
    mica_softmax_desc *d = desc;
    (void)why;
    const int rank = d->pass == MICA_SOFTMAX_FWD ? d->x.rank : d->y.rank;
    if (d->axis < 0 && d->axis >= -rank) d->axis += rank;
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_softmax_desc *d = desc;
    int rank = d->y.rank;
    if (d->axis < 0 || d->axis >= rank)
        return mica_invalid(why, "axis is %lld, %s has rank %d: -%d to %d are legal",
                            (long long)d->axis, d->pass == MICA_SOFTMAX_FWD ? "x" : "y", rank, rank,
                            rank - 1);
    return MICA_OK;
}

/* fwd: compare, subtract, exp, add, scale; bwd: multiply, add, subtract, multiply. */
static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_softmax_desc *d = desc;
    (void)bytes;
    mica_softmax_operands o = mica_softmax_operands_of(d);
    *flops = (d->pass == MICA_SOFTMAX_FWD ? 5 : 4) * (double)mica_tensor_count(o.tensor[0]);
}

static int64_t terms(const void *desc)
{
    const mica_softmax_desc *d = desc;
    mica_softmax_operands o = mica_softmax_operands_of(d);
    int64_t n = o.tensor[0]->dims[d->axis];
    return n > 0 ? n : 1;
}

/* bwd with y of ones and zeros (log: all zeros, whose exp is 1) is sums of integers. */
static bool exact(const void *desc)
{
    return ((const mica_softmax_desc *)desc)->pass == MICA_SOFTMAX_BWD;
}

/* ---- fills ---- */

/* At most this many elements of a slice differ from zero in fill EXACT: sums stay below 128, which
 * bf16 holds. */
#define EXACT_ENTRIES 16

static double logit(mica_fill fill, uint64_t seed, uint64_t i)
{
    switch (fill) {
    case MICA_FILL_EXTREME:
        return mica_random_bits(seed, i / 3) % 4 ? -120 : 120;
    case MICA_FILL_RANGE:
        return 8 * mica_random_normal(seed, i);
    default:
        return mica_random_normal(seed, i);
    }
}

/* One slice of results of a forward pass; values are `inner` apart. */
static void fill_result(const mica_softmax_desc *d, mica_fill fill, uint64_t seed, int64_t first,
                        int64_t inner, double *values)
{
    int64_t n = d->y.dims[d->axis];
    double max = -INFINITY, sum = 0;
    for (int64_t a = 0; a < n; a++)
        max = fmax(max, logit(fill, seed, (uint64_t)(first + a * inner)));
    for (int64_t a = 0; a < n; a++)
        sum += exp(logit(fill, seed, (uint64_t)(first + a * inner)) - max);
    for (int64_t a = 0; a < n; a++) {
        double v = logit(fill, seed, (uint64_t)(first + a * inner)) - max;
        values[first + a * inner] = d->log ? v - log(sum) : exp(v) / sum;
    }
}

/* Whether position a is one of the few of its slice that fill EXACT uses. */
static bool is_entry(int64_t a, int64_t slice, int64_t n)
{
    int64_t period = (n + EXACT_ENTRIES - 1) / EXACT_ENTRIES;
    return (a + slice) % period == 0;
}

static bool fill_slices(const void *desc, const double *scalars, int arg, mica_fill fill,
                        uint64_t seed, double *values)
{
    (void)scalars;
    const mica_softmax_desc *d = desc;
    bool result = arg == MICA_SOFTMAX_Y;
    if (d->pass == MICA_SOFTMAX_FWD) return false;
    /* The sum over dy of the logarithm's backward pass must stay small too. */
    if (!result && !(fill == MICA_FILL_EXACT && d->log)) return false;
    const mica_tensor *t = result ? &d->y : &d->dy;
    int64_t n = t->dims[d->axis], inner = 1;
    for (int i = (int)d->axis + 1; i < t->rank; i++) inner *= t->dims[i];
    int64_t count = mica_tensor_count(t), slices = n ? count / n : 0;
    for (int64_t s = 0; s < slices; s++) {
        int64_t first = s / inner * inner * n + s % inner;
        if (fill != MICA_FILL_EXACT) {
            fill_result(d, fill, seed, first, inner, values);
            continue;
        }
        for (int64_t a = 0; a < n; a++) {
            int64_t i = first + a * inner;
            double entry = result ? 1 : floor(7 * mica_random_uniform(seed, (uint64_t)i)) - 3;
            values[i] = is_entry(a, s, n) && !(result && d->log) ? entry : 0;
        }
    }
    char element[16];
    for (int64_t i = 0; i < count; i++) {
        mica_dtype_store(t->dtype)(element, 0, values[i]);
        values[i] = mica_dtype_load(t->dtype)(element, 0);
    }
    return true;
}

static const mica_engine *const engines[] = {&mica_softmax_cpu, &mica_engine_ref,
                                             &mica_softmax_columns, &mica_softmax_cuda, NULL};

const mica_op mica_op_softmax = {
    .name = "softmax",
    .doc = "softmax or its logarithm over one axis, and its gradient",
    .desc_size = sizeof(mica_softmax_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .check = check,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .ulps = MICA_SOFTMAX_ULPS,
    .fill = fill_slices,
    .reference = mica_softmax_reference,
    .engines = engines,
};
