/* SPDX-License-Identifier: Apache-2.0
 * Random numbers: tables, inference, checks. */
#include "ops/random/random.h"

#include <math.h>

extern const mica_op mica_op_random;

static const char *const kinds[] = {"bits",      "uniform",     "normal",   "truncated_normal",
                                    "bernoulli", "exponential", "integers", "permutation",
                                    NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_random_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(kind, ENUM, .spellings = kinds, .doc = "what is drawn"),
    FIELD(y, TENSOR, .zero = "needed", .doc = "the numbers"),
    FIELD(rng, TENSOR, .zero = "inferred", .doc = "s64, {seed, offset}"),
    FIELD(first, I64, .doc = "index of the first element"),
    FIELD(steps, AXES, .count = MICA_MAX_RANK, .permutation = true, .zero = "packed",
          .doc = "of the index along each dimension"),
    FIELD(low, F64, .apart = true, .zero = "0, of truncated_normal -2", .doc = "lower bound"),
    FIELD(high, F64, .apart = true, .zero = "1, of truncated_normal 2", .doc = "upper bound"),
    FIELD(mean, F64, .doc = "normal, truncated_normal: mean (before it is truncated)"),
    FIELD(std, F64, .def = 1, .doc = "normal, truncated_normal: standard deviation"),
    FIELD(p, F64, .def = 0.5, .doc = "bernoulli: share of ones"),
    FIELD(rate, F64, .def = 1, .doc = "exponential: 1 / mean"),
    FIELD(from, I64, .doc = "integers: the lowest"),
    FIELD(to, I64, .doc = "integers: above the highest"),
    FIELD(n, I64, .apart = true, .zero = "as y has", .doc = "permutation: of how many"),
};

static const mica_arg args[] = {
    [MICA_RANDOM_Y] = {"y",
                       offsetof(mica_random_desc, y),
                       {MICA_OUT},
                       .types = MICA_REALS,
                       .need = {MICA_NEEDED}},
    [MICA_RANDOM_RNG] = {"rng",
                         offsetof(mica_random_desc, rng),
                         {MICA_IN},
                         .types = MICA_TYPE(S64)},
};

/* whole bytes */
#define BITS_TYPES (MICA_INDICES | MICA_TYPE(S8) | MICA_TYPE(U8) | MICA_TYPE(U32))
#define REAL_TYPES (MICA_FLOATS | MICA_TYPE(E4M3) | MICA_TYPE(E5M2))
static const uint32_t types[] = {
    [MICA_RANDOM_BITS] = BITS_TYPES,      [MICA_RANDOM_UNIFORM] = REAL_TYPES,
    [MICA_RANDOM_NORMAL] = REAL_TYPES,    [MICA_RANDOM_TRUNCATED_NORMAL] = REAL_TYPES,
    [MICA_RANDOM_BERNOULLI] = MICA_REALS, [MICA_RANDOM_EXPONENTIAL] = REAL_TYPES,
    [MICA_RANDOM_INTEGERS] = BITS_TYPES,  [MICA_RANDOM_PERMUTATION] = MICA_INDICES | MICA_TYPE(U32),
};

static mica_status infer(void *desc, mica_why *why)
{
    mica_random_desc *d = desc;
    const bool truncated = d->kind == MICA_RANDOM_TRUNCATED_NORMAL;
    (void)why;
    if (mica_left_out(d->low)) d->low = truncated ? -2 : 0;
    if (mica_left_out(d->high)) d->high = truncated ? 2 : 1;
    if (d->kind == MICA_RANDOM_PERMUTATION && d->n == 0) d->n = mica_tensor_count(&d->y);
    mica_random_infer_rng(&d->rng);
    return MICA_OK;
}

/* Ends of an integer type, as far as s64 has them. */
static void ends_of(mica_dtype type, int64_t *lowest, int64_t *highest)
{
    const int bits = mica_dtype_bits(type);
    const bool is_signed = type != MICA_U8 && type != MICA_U32;
    *highest = INT64_MAX >> (64 - bits);
    *lowest = is_signed ? -*highest - 1 : 0;
    if (!is_signed) *highest = *highest * 2 + 1;
}

static mica_status check_bounds(const mica_random_desc *d, mica_why *why)
{
    if (!(d->low < d->high) || !isfinite(d->low) || !isfinite(d->high) ||
        !isfinite(d->high - d->low))
        return mica_invalid(why, "low is %g and high %g, they must be finite and low below high",
                            d->low, d->high);
    if (d->kind == MICA_RANDOM_UNIFORM && d->y.dtype != MICA_F64 &&
        !((float)d->low < (float)d->high))
        return mica_invalid(why, "low is %.17g and high %.17g, the same number in f32", d->low,
                            d->high);
    if (d->kind == MICA_RANDOM_UNIFORM && d->y.dtype != MICA_F64 &&
        !isfinite((float)(d->high - d->low)))
        return mica_invalid(why, "low is %g and high %g, their difference must be finite in f32",
                            d->low, d->high);
    return MICA_OK;
}

static mica_status check_normal(const mica_random_desc *d, mica_why *why)
{
    const bool truncated = d->kind == MICA_RANDOM_TRUNCATED_NORMAL;
    if (!isfinite(d->mean) || !isfinite(d->std) || d->std < 0 || (truncated && d->std == 0))
        return mica_invalid(why, "mean is %g and std %g, they must be finite and std %s 0", d->mean,
                            d->std, truncated ? "above" : "at least");
    if (!truncated) return MICA_OK;
    const double from = (d->low - d->mean) / d->std, to = (d->high - d->mean) / d->std;
    if (from > 37 || to < -37)
        return mica_invalid(why,
                            "low is %g and high %g, %g and %g std from the mean: no more than "
                            "37 for one of them",
                            d->low, d->high, from, to);
    return MICA_OK;
}

static mica_status check_integers(const mica_random_desc *d, mica_why *why)
{
    int64_t lowest, highest;
    ends_of(d->y.dtype, &lowest, &highest);
    if (d->from < d->to && d->from >= lowest && d->to - 1 <= highest) return MICA_OK;
    return mica_invalid(why,
                        "from is %lld and to %lld, from must be below to and numbers of %s lie "
                        "between %lld and %lld",
                        (long long)d->from, (long long)d->to, mica_dtype_name(d->y.dtype),
                        (long long)lowest, (long long)highest);
}

static mica_status check_permutation(const mica_random_desc *d, mica_why *why)
{
    const mica_tensor index = mica_random_index(&d->y, d->steps);
    int64_t lowest, highest, last = d->first;
    ends_of(d->y.dtype, &lowest, &highest);
    for (int i = 0; i < index.rank; i++)
        if (index.strides[i] > 0) last += index.strides[i] * (index.dims[i] - 1);
    if (d->n < 0 || d->n > MICA_MOST_ELEMENTS || d->n - 1 > highest)
        return mica_invalid(why, "n is %lld, it must be at least 0, at most 2^48, and fit %s",
                            (long long)d->n, mica_dtype_name(d->y.dtype));
    if (mica_tensor_count(&d->y) && last >= d->n)
        return mica_invalid(why, "the last index is %lld, it must be below n, which is %lld",
                            (long long)last, (long long)d->n);
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_random_desc *d = desc;
    if (!(types[d->kind] >> d->y.dtype & 1)) {
        char list[128];
        mica_text text = {list, sizeof list, 0};
        mica_types_text(types[d->kind], &text);
        return mica_invalid(why, "y is %s, of kind %s it must be %s", mica_dtype_name(d->y.dtype),
                            kinds[d->kind], list);
    }
    MICA_TRY(mica_random_check_rng(&d->rng, why));
    MICA_TRY(mica_random_check_index(&d->y, d->first, d->steps, why));
    MICA_TRY(mica_random_check_share(d->p, why));
    if (!(d->rate > 0) || !isfinite(d->rate) || !isfinite(1 / d->rate))
        return mica_invalid(why, "rate is %g, it must be finite and above 0", d->rate);
    MICA_TRY(check_bounds(d, why));
    MICA_TRY(check_normal(d, why));
    if (d->kind == MICA_RANDOM_INTEGERS) return check_integers(d, why);
    return d->kind == MICA_RANDOM_PERMUTATION ? check_permutation(d, why) : MICA_OK;
}

/* Probability of less than x std above the mean. */
static double below(double x)
{
    return 0.5 * erfc(-x * 0.7071067811865476);
}

static void describe(const void *desc, mica_random_set *set)
{
    const mica_random_desc *d = desc;
    const bool whole = d->kind == MICA_RANDOM_BITS || d->kind == MICA_RANDOM_INTEGERS ||
                       d->kind == MICA_RANDOM_PERMUTATION;
    const bool f64 =
        d->y.dtype == MICA_F64 || d->kind == MICA_RANDOM_TRUNCATED_NORMAL ||
        (!mica_dtype_is_float(d->y.dtype) && d->y.dtype != MICA_S8 && d->y.dtype != MICA_U8);
    set->draw = (mica_random_draw)d->kind;
    set->at[MICA_RANDOM_PLACE_INDEX] = mica_random_index(&d->y, d->steps);
    set->at[MICA_RANDOM_PLACE_OUT] = d->y;
    set->arg[MICA_RANDOM_PLACE_OUT] = MICA_RANDOM_Y;
    set->rng = MICA_RANDOM_RNG;
    set->rng_stride = d->rng.strides[0];
    set->real = whole ? MICA_S64 : f64 ? MICA_F64 : MICA_F32;
    set->numbers = (mica_random_numbers){
        .low = d->low,
        .high = d->high,
        .span = d->high - d->low,
        .mean = d->mean,
        .std = d->std,
        .scale = 1 / d->rate,
        .first = d->first,
        .from = d->from,
        .count = d->n,
        .threshold = (unsigned long long)(d->p * 0x1p32),
        .range = (unsigned long long)d->to - (unsigned long long)d->from,
    };
    mica_random_numbers *n = &set->numbers;
    if (n->range) n->rejected = (0 - n->range) % n->range;
    const double from = (d->low - d->mean) / d->std, to = (d->high - d->mean) / d->std;
    n->upper = from > 0;
    n->tail = below(n->upper ? -to : from);
    n->mass = below(n->upper ? -from : to) - n->tail;
}

static bool fill(const void *desc, const double *scalars, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_random_desc *d = desc;
    (void)scalars, (void)kind;
    return arg == MICA_RANDOM_RNG && mica_random_fill_rng(d->rng, seed, values);
}

/* The truth is the same arithmetic. */
static bool exact(const void *desc)
{
    (void)desc;
    return true;
}

const mica_op mica_op_random = {
    .name = "random",
    .doc = "Random numbers that depend on seed, offset and index alone",
    .desc_size = sizeof(mica_random_desc),
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
