/* SPDX-License-Identifier: Apache-2.0
 * Softmax: fields, arguments, inference, checks, cost, fills. */
#include "ops/softmax/softmax.h"
#include "base/random.h"
#include "ops/random/random.h"

#include <math.h>

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const kinds[] = {"softmax", "sparsemax", "gumbel", NULL};
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
    MICA_FIELD(mica_softmax_desc, kind, ENUM, .spellings = kinds,
               .doc = "softmax, sparsemax, or softmax of logits with Gumbel noise"),
    MICA_FIELD(mica_softmax_desc, scale, F64, .def = 1, .doc = "factor of the logits"),
    MICA_FIELD(mica_softmax_desc, mask, TENSOR, .zero = "none",
               .doc =
                   "bool or u8: elements where it is 0 are left out; floats are added to logits"),
    MICA_FIELD(mica_softmax_desc, tau, F64, .def = 1, .doc = "gumbel: temperature"),
    MICA_FIELD(mica_softmax_desc, hard, FLAG, .doc = "gumbel: one-hot"),
    MICA_FIELD(mica_softmax_desc, rng, TENSOR, .zero = "inferred where it is used",
               .doc = "gumbel: s64, {seed, offset}"),
};

/* x or y: of whose dimensions everything is. */
static mica_tensor as_operand(const void *desc)
{
    const mica_softmax_desc *d = desc;
    return d->pass == MICA_SOFTMAX_FWD ? d->x : d->y;
}

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
    [MICA_SOFTMAX_MASK] = {.name = "mask",
                           .tensor = offsetof(mica_softmax_desc, mask),
                           .dir = {MICA_IN, MICA_IN},
                           .types = MICA_TYPE(BOOL) | MICA_TYPE(U8) | MICA_FLOATS,
                           .like = "x or y",
                           .shape = as_operand},
    [MICA_SOFTMAX_RNG] = {.name = "rng",
                          .tensor = offsetof(mica_softmax_desc, rng),
                          .dir = {MICA_IN, MICA_UNUSED},
                          .types = MICA_TYPE(S64),
                          .when = "kind",
                          .values = 1 << MICA_SOFTMAX_KIND_GUMBEL},
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

bool mica_softmax_is_variant(const mica_softmax_desc *d)
{
    return d->kind != MICA_SOFTMAX_KIND_SOFTMAX || d->scale != 1 || mica_tensor_given(&d->mask);
}

mica_status mica_softmax_refuse_variant(const mica_softmax_desc *d, mica_why *why)
{
    if (d->kind != MICA_SOFTMAX_KIND_SOFTMAX)
        return mica_refuse(why, "kind is %s, this engine knows softmax", kinds[d->kind]);
    if (d->scale != 1) return mica_refuse(why, "scale is %g, this engine knows 1", d->scale);
    if (mica_tensor_given(&d->mask)) return mica_refuse(why, "this engine knows no mask");
    return MICA_OK;
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
    if (d->kind == MICA_SOFTMAX_KIND_GUMBEL && d->pass == MICA_SOFTMAX_FWD)
        mica_random_infer_rng(&d->rng);
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
    const bool gumbel = d->kind == MICA_SOFTMAX_KIND_GUMBEL;
    if (d->log && d->kind == MICA_SOFTMAX_KIND_SPARSEMAX)
        return mica_invalid(why, "log of a sparsemax, which has zeros");
    if (d->hard && !gumbel)
        return mica_invalid(why, "hard is for kind gumbel, this is %s", kinds[d->kind]);
    if (d->hard && d->log) return mica_invalid(why, "log of a hard choice, which has zeros");
    if (d->hard && d->pass == MICA_SOFTMAX_BWD)
        return mica_invalid(why, "hard in bwd, which takes y as it is without");
    if (!gumbel && d->tau != 1)
        return mica_invalid(why, "tau is %g for kind gumbel, this is %s", d->tau, kinds[d->kind]);
    if (!(d->tau >= 1e-30 && d->tau <= 1e30))
        return mica_invalid(why, "tau is %g, it must lie between 1e-30 and 1e30", d->tau);
    return mica_random_check_rng(&d->rng, why);
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
    const mica_softmax_desc *d = desc;
    int e;
    if (d->pass == MICA_SOFTMAX_FWD) return d->hard;
    /* sparsemax divides by how many there are */
    return d->kind != MICA_SOFTMAX_KIND_SPARSEMAX && fabs(frexp(d->scale / d->tau, &e)) == 0.5;
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

/* The threshold of a sparsemax of such logits, which are `inner` apart. */
static double threshold(mica_fill fill, uint64_t seed, int64_t first, int64_t inner, int64_t n,
                        double max)
{
    double t = max - 1;
    for (int64_t count = 0, last = INT64_MAX;; last = count) {
        double sum = 0;
        count = 0;
        for (int64_t a = 0; a < n; a++) {
            const double v = logit(fill, seed, (uint64_t)(first + a * inner));
            if (v > t) sum += v - max, count++;
        }
        if (count >= last) return t;
        t = max + (sum - 1) / (double)count;
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
    const bool sparse = d->kind == MICA_SOFTMAX_KIND_SPARSEMAX;
    const double t = sparse ? threshold(fill, seed, first, inner, n, max) : 0;
    for (int64_t a = 0; a < n; a++) {
        double v = logit(fill, seed, (uint64_t)(first + a * inner)) - max;
        values[first + a * inner] = sparse   ? fmax(v + max - t, 0)
                                    : d->log ? v - log(sum)
                                             : exp(v) / sum;
    }
}

/* Whether position a is one of the few of its slice that fill EXACT uses. */
static bool is_entry(int64_t a, int64_t slice, int64_t n)
{
    int64_t period = (n + EXACT_ENTRIES - 1) / EXACT_ENTRIES;
    return (a + slice) % period == 0;
}

static void as_stored(const mica_tensor *t, double *values)
{
    char element[16];
    for (int64_t i = 0; i < mica_tensor_count(t); i++) {
        mica_dtype_store(t->dtype)(element, 0, values[i]);
        values[i] = mica_dtype_load(t->dtype)(element, 0);
    }
}

/* Three elements in four are kept, of each seventh slice none. */
static void fill_mask(const mica_softmax_desc *d, mica_fill fill, uint64_t seed, double *values)
{
    const mica_tensor *t = &d->mask;
    const bool adds = mica_dtype_is_float(t->dtype);
    /* A sparsemax has few elements that differ by much. */
    const double unit = d->kind == MICA_SOFTMAX_KIND_SPARSEMAX ? 0.0625 : 1;
    int64_t inner = 1;
    for (int i = (int)d->axis + 1; i < t->rank; i++) inner *= t->dims[i];
    for (int64_t i = 0; i < mica_tensor_count(t); i++) {
        const int64_t slice = i / (inner * t->dims[d->axis]) * inner + i % inner;
        const uint64_t bits = mica_random_bits(seed, (uint64_t)i);
        const bool kept = bits % 4 != 0 && slice % 7 != 3;
        const double more = fill == MICA_FILL_EXACT ? (double)(bits >> 8 & 3)
                                                    : mica_random_normal(seed ^ 1, (uint64_t)i);
        values[i] = adds ? kept ? unit * more : -INFINITY : kept;
    }
    as_stored(t, values);
}

/* Of variants: with a scale, other logits would leave f32. */
static bool fill_logits(const mica_softmax_desc *d, mica_fill fill, uint64_t seed, double *values)
{
    if (!mica_softmax_is_variant(d) || fill == MICA_FILL_EXACT || fill == MICA_FILL_EDGES)
        return false;
    for (int64_t i = 0; i < mica_tensor_count(&d->x); i++)
        values[i] = logit(fill, seed, (uint64_t)i);
    as_stored(&d->x, values);
    return true;
}

static bool fill_slices(const void *desc, const double *scalars, int arg, mica_fill fill,
                        uint64_t seed, double *values)
{
    (void)scalars;
    const mica_softmax_desc *d = desc;
    if (arg == MICA_SOFTMAX_RNG) return mica_random_fill_rng(d->rng, seed, values);
    if (arg == MICA_SOFTMAX_MASK) {
        fill_mask(d, fill, seed, values);
        return true;
    }
    if (arg == MICA_SOFTMAX_X) return fill_logits(d, fill, seed, values);
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
    as_stored(t, values);
    return true;
}

static const mica_engine *const engines[] = {&mica_softmax_cpu,
                                             &mica_softmax_variants_cpu,
                                             &mica_engine_ref,
                                             &mica_softmax_columns,
                                             &mica_softmax_cuda,
                                             &mica_softmax_variants_cuda,
                                             NULL};

const mica_op mica_op_softmax = {
    .name = "softmax",
    .doc = "softmax, its logarithm, sparsemax or Gumbel-softmax over one axis, and the gradient",
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
