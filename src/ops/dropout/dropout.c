/* SPDX-License-Identifier: Apache-2.0
 * Dropout: tables, inference, checks. */
#include "ops/random/random.h"

#include <math.h>
#include <string.h>

extern const mica_op mica_op_dropout;

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const numberings[] = {"index", "attention", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_dropout_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradient of x"),
    FIELD(p, F64, .def = 0.5, .doc = "share that is dropped"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "fwd: input"),
    FIELD(residual, TENSOR, .zero = "none", .doc = "fwd: added behind the dropout"),
    FIELD(y, TENSOR, .zero = "inferred", .doc = "fwd: output"),
    FIELD(dy, TENSOR, .zero = "needed", .doc = "bwd: gradient of y"),
    FIELD(dx, TENSOR, .zero = "inferred", .doc = "bwd: gradient of x"),
    FIELD(mask, TENSOR, .zero = "none", .doc = "1 kept, 0 dropped: result of fwd, operand of bwd"),
    FIELD(bits, TENSOR, .zero = "none",
          .doc = "the same, a bit for each, the last dimension an eighth"),
    FIELD(rng, TENSOR, .zero = "inferred where it is used", .doc = "s64, {seed, offset}"),
    FIELD(first, I64, .doc = "index of the first element"),
    FIELD(steps, AXES, .count = MICA_MAX_RANK, .permutation = true, .zero = "packed",
          .doc = "of the index along each dimension"),
    FIELD(numbering, ENUM, .spellings = numberings, .doc = "which words elements take"),
};

/* x or dy: what is dropped. */
static const mica_tensor *input(const mica_dropout_desc *d)
{
    return d->pass == MICA_DROPOUT_BWD ? &d->dy : &d->x;
}

static mica_tensor as_input(const void *desc)
{
    return *input(desc);
}

/* An eighth of the last dimension. */
static mica_tensor as_bits(const void *desc)
{
    mica_tensor t = *input(desc);
    t.rank += t.rank == 0;
    if (t.rank == 1 && input(desc)->rank == 0) t.dims[0] = 1;
    t.dims[t.rank - 1] = (t.dims[t.rank - 1] + 7) / 8;
    memset(t.strides, 0, sizeof t.strides);
    t.strided = 0;
    mica_tensor_default_strides(&t);
    return t;
}

#define ARG(member, fwd, bwd, ...)                                                                 \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_dropout_desc, member), .dir = {fwd, bwd},         \
        __VA_ARGS__                                                                                \
    }
static const mica_arg args[] = {
    [MICA_DROPOUT_X] = ARG(x, MICA_IN, MICA_UNUSED, .types = MICA_FLOATS, .need = {MICA_NEEDED}),
    [MICA_DROPOUT_RESIDUAL] =
        ARG(residual, MICA_IN, MICA_UNUSED, .types = MICA_FLOATS, .like = "x", .refused = true),
    [MICA_DROPOUT_Y] = ARG(y, MICA_OUT, MICA_UNUSED, .types = MICA_FLOATS, .like = "x",
                           .need = {MICA_INFERRED}, .alias = "x"),
    [MICA_DROPOUT_DY] =
        ARG(dy, MICA_UNUSED, MICA_IN, .types = MICA_FLOATS, .need = {MICA_IF_GIVEN, MICA_NEEDED}),
    [MICA_DROPOUT_DX] = ARG(dx, MICA_UNUSED, MICA_OUT, .types = MICA_FLOATS, .like = "dy",
                            .need = {MICA_INFERRED, MICA_INFERRED}, .alias = "dy"),
    [MICA_DROPOUT_MASK] = ARG(mask, MICA_OUT, MICA_IN, .types = MICA_TYPE(U8) | MICA_TYPE(BOOL),
                              .like = "x or dy", .shape = as_input),
    [MICA_DROPOUT_BITS] = ARG(bits, MICA_OUT, MICA_IN, .types = MICA_TYPE(U8), .like = "x or dy",
                              .shape = as_bits, .words = "x or dy, the last dimension an eighth"),
    [MICA_DROPOUT_RNG] = ARG(rng, MICA_IN, MICA_IN, .types = MICA_TYPE(S64)),
};

static bool has_mask(const mica_dropout_desc *d)
{
    return d->pass == MICA_DROPOUT_BWD &&
           (mica_tensor_given(&d->mask) || mica_tensor_given(&d->bits));
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_dropout_desc *d = desc;
    if (!has_mask(d)) {
        mica_random_infer_rng(&d->rng);
        return MICA_OK;
    }
    if (mica_tensor_given(&d->rng))
        return mica_invalid(why, "rng and a mask: bwd takes one of them");
    d->first = 0;
    memset(d->steps, 0, sizeof d->steps);
    d->numbering = MICA_DROPOUT_BY_INDEX;
    return MICA_OK;
}

/* Steps of the index that hold column, row and matrix apart. */
static void row_steps(const mica_tensor *t, int64_t *steps)
{
    for (int i = 0; i < MICA_MAX_RANK; i++) steps[i] = 0;
    int64_t step = (int64_t)1 << RANDOM_MATRIX_AT;
    for (int i = t->rank - 1; i >= 0; i--) {
        const int back = t->rank - 1 - i;
        steps[i] = back == 0 ? 1 : back == 1 ? (int64_t)1 << RANDOM_ROW_AT : step;
        if (back > 1) step *= t->dims[i];
    }
}

static mica_status check_numbering(const mica_dropout_desc *d, mica_why *why)
{
    const mica_tensor *t = input(d);
    bool given = d->first != 0;
    int64_t matrices = 1;
    for (int i = 0; i < MICA_MAX_RANK; i++) given |= d->steps[i] != 0;
    if (given) return mica_invalid(why, "first or steps with numbering=attention, which has none");
    if (mica_tensor_count(t) == 0) return MICA_OK;
    for (int i = 0; i < t->rank - 2; i++) matrices *= t->dims[i];
    const int64_t rows = t->rank > 1 ? t->dims[t->rank - 2] : 1;
    const int64_t columns = t->rank ? t->dims[t->rank - 1] : 1;
    if (matrices <= (int64_t)1 << (RANDOM_INDEX_BITS - RANDOM_MATRIX_AT) &&
        rows <= (int64_t)1 << (RANDOM_MATRIX_AT - RANDOM_ROW_AT) &&
        columns <= (int64_t)1 << RANDOM_ROW_AT)
        return MICA_OK;
    return mica_invalid(why,
                        "numbering=attention of %lld matrices of %lld x %lld, at most 2^18 of "
                        "2^20 x 2^24",
                        (long long)matrices, (long long)rows, (long long)columns);
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_dropout_desc *d = desc;
    if (has_mask(d) && mica_tensor_given(&d->mask) && mica_tensor_given(&d->bits))
        return mica_invalid(why, "mask and bits: bwd takes one of them");
    if (mica_tensor_given(&d->bits) && d->bits.dims[d->bits.rank - 1] > 1 &&
        d->bits.strides[d->bits.rank - 1] != 1)
        return mica_invalid(why, "the last stride of bits is %lld, it must be 1",
                            (long long)d->bits.strides[d->bits.rank - 1]);
    MICA_TRY(mica_random_check_rng(&d->rng, why));
    MICA_TRY(mica_random_check_share(d->p, why));
    if (d->numbering == MICA_DROPOUT_BY_ATTENTION) return check_numbering(d, why);
    return mica_random_check_index(input(d), d->first, d->steps, why);
}

static void place(mica_random_set *set, int at, const mica_tensor *tensor, int arg)
{
    set->at[at] = *tensor;
    set->arg[at] = arg;
}

static void describe(const void *desc, mica_random_set *set)
{
    const mica_dropout_desc *d = desc;
    const bool bwd = d->pass == MICA_DROPOUT_BWD;
    place(set, MICA_RANDOM_PLACE_IN, input(d), bwd ? MICA_DROPOUT_DY : MICA_DROPOUT_X);
    place(set, MICA_RANDOM_PLACE_OUT, bwd ? &d->dx : &d->y, bwd ? MICA_DROPOUT_DX : MICA_DROPOUT_Y);
    place(set, MICA_RANDOM_PLACE_ADD, &d->residual, MICA_DROPOUT_RESIDUAL);
    place(set, MICA_RANDOM_PLACE_MASK, &d->mask, MICA_DROPOUT_MASK);
    if (mica_tensor_given(&d->bits)) {
        mica_tensor bits = *input(d);
        for (int i = 0; i < bits.rank; i++)
            bits.strides[i] = i == bits.rank - 1 ? 1 : 8 * d->bits.strides[i];
        place(set, MICA_RANDOM_PLACE_BITS, &bits, MICA_DROPOUT_BITS);
    }
    int64_t steps[MICA_MAX_RANK];
    set->rows = d->numbering == MICA_DROPOUT_BY_ATTENTION;
    if (set->rows) row_steps(input(d), steps);
    set->at[MICA_RANDOM_PLACE_INDEX] = mica_random_index(input(d), set->rows ? steps : d->steps);
    set->rng = has_mask(d) ? -1 : MICA_DROPOUT_RNG;
    set->draw = has_mask(d) ? MICA_RANDOM_DRAW_NONE : MICA_RANDOM_DRAW_BERNOULLI;
    set->rng_stride = d->rng.strides[0];
    set->dropout = true;
    set->saves = !bwd;
    set->real = input(d)->dtype == MICA_F64 || set->at[MICA_RANDOM_PLACE_OUT].dtype == MICA_F64 ||
                        d->residual.dtype == MICA_F64
                    ? MICA_F64
                    : MICA_F32;
    set->numbers.first = d->first;
    set->numbers.threshold = (unsigned long long)(d->p * 0x1p32);
    set->numbers.scale = d->p < 1 ? 1 / (1 - d->p) : 0;
}

static bool fill(const void *desc, const double *scalars, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_dropout_desc *d = desc;
    (void)scalars, (void)kind;
    return arg == MICA_DROPOUT_RNG && mica_random_fill_rng(d->rng, seed, values);
}

/* Products with a power of 2. */
static bool exact(const void *desc)
{
    const mica_dropout_desc *d = desc;
    int e;
    return d->p == 1 || frexp(1 / (1 - d->p), &e) == 0.5;
}

const mica_op mica_op_dropout = {
    .name = "dropout",
    .doc = "Dropout, also with a residual, and its gradient",
    .desc_size = sizeof(mica_dropout_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .check = check,
    .exact = exact,
    .fill = fill,
    .random = describe,
    .engines = mica_random_engines,
};
