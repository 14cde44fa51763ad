/* SPDX-License-Identifier: Apache-2.0
 * Test data that is legal and telling for any operation. */
#include "ops/op.h"
#include "base/random.h"

#include <float.h>
#include <math.h>

/* Exponents of two that fill RANGE spreads over, so that products and sums stay finite. */
static int range_exponent(mica_dtype d)
{
    switch (d) {
    case MICA_F64:
        return 60;
    case MICA_F32:
    case MICA_BF16:
        return 24;
    case MICA_F16:
        return 4;
    default:
        return 2;
    }
}

/* Largest small integer of fill EXACT: exact in the type, and squares of it sum far. */
static int exact_bound(mica_dtype d)
{
    switch (d) {
    case MICA_E4M3:
    case MICA_E5M2:
    case MICA_E2M1:
    case MICA_S4:
        return 2;
    case MICA_S8:
    case MICA_U8:
        return 8;
    case MICA_BOOL:
        return 1;
    default:
        return 4;
    }
}

static bool is_unsigned(mica_dtype d)
{
    return d == MICA_U8 || d == MICA_U32 || d == MICA_U4 || d == MICA_BOOL;
}

/* Terms x bound^2 must stay below 2^22, so that sums with random signs never leave 24 bits. */
static double exact_density(const mica_op *op, const void *desc, int bound)
{
    double terms = op->terms ? (double)op->terms(desc) : 1;
    double most = 4194304.0 / (bound * bound);
    return terms > most ? most / terms : 1;
}

static double exact_value(double bound, double density, bool positive, uint64_t seed, uint64_t i)
{
    if (mica_random_uniform(seed ^ 0x5eed, i) >= density) return 0;
    double u = mica_random_uniform(seed, i);
    return positive ? floor(u * (bound + 1)) : floor(u * (2 * bound + 1)) - bound;
}

static double integer_value(mica_dtype d, mica_fill fill, uint64_t seed, uint64_t i)
{
    double u = mica_random_uniform(seed, i);
    double high = d == MICA_BOOL ? 1
                  : d == MICA_S4 ? 7
                  : d == MICA_U4 ? 15
                  : d == MICA_S8 ? 127
                  : d == MICA_U8 ? 255
                                 : 1000;
    if (fill == MICA_FILL_EXTREME)
        return u < 0.3 ? 0 : u < 0.6 || is_unsigned(d) ? high : -high - 1;
    if (is_unsigned(d) || fill == MICA_FILL_SAME_SIGN) return floor(u * (high + 1));
    return floor(u * (2 * high + 2)) - high - 1;
}

static double extreme_value(mica_dtype d, uint64_t seed, uint64_t i)
{
    double tiny = d == MICA_F64    ? 0x1p-1074
                  : d == MICA_F16  ? 0x1p-24
                  : d == MICA_E4M3 ? 0x1p-9
                  : d == MICA_E5M2 ? 0x1p-16
                                   : 0x1p-133;
    switch (mica_random_bits(seed, i / 3) % 10) { /* runs of three equal values */
    case 0:
        return 0.0;
    case 1:
        return -0.0;
    case 2:
        return tiny;
    case 3:
        return -3 * tiny;
    case 4:
        return 120;
    case 5:
        return -120;
    case 6:
        return 1;
    case 7:
        return 2.5; /* halves: rounding to integers is to even */
    case 8:
        return -0.5;
    default:
        return -1;
    }
}

static double largest_of(mica_dtype d)
{
    static const double largest[MICA_DTYPE_COUNT] = {
        [MICA_F64] = DBL_MAX, [MICA_F32] = FLT_MAX,   [MICA_F16] = 65504, [MICA_BF16] = 0x1.fep127,
        [MICA_E4M3] = 448,    [MICA_E5M2] = 0x1.cp15, [MICA_E2M1] = 6};
    return largest[d];
}

double mica_fill_rounded(mica_dtype d, double v)
{
    char element[16];
    mica_dtype_store(d)(element, 0, v);
    return mica_dtype_load(d)(element, 0);
}

double mica_fill_edge(mica_dtype d, uint64_t seed, uint64_t i)
{
    static const double tails[] = {-3, -5.5, -6, -8, -9, -13, -20, -38, -88, -700, 20, 38, 88, 700};
    enum { TAILS = sizeof tails / sizeof *tails };
    const double largest = largest_of(d);
    uint64_t bits = mica_random_bits(seed, i), which = bits % 24;
    double sign = bits >> 40 & 1 ? -1 : 1;
    switch (which) {
    case 0:
        return NAN;
    case 1:
        return sign * INFINITY;
    case 2:
        return sign * largest;
    case 3:
        return sign * 0.75 * largest;
    case 4:
        return sign * 0.5 * largest;
    case 5: /* whose square is near the end */
        return sign * sqrt(largest) * 0.999;
    case 6:
        return sign * sqrt(largest) * 1.001;
    case 7:
        return sign * sqrt(largest) * 64;
    case 8:
        return sign * 1e4;
    default:
        return which < 16 ? tails[(bits >> 8) % TAILS] : mica_random_normal(seed, i);
    }
}

static double float_value(mica_dtype d, mica_fill fill, uint64_t seed, uint64_t i)
{
    switch (fill) {
    case MICA_FILL_SAME_SIGN:
        return 0.5 + mica_random_uniform(seed, i);
    case MICA_FILL_EXTREME:
        return extreme_value(d, seed, i);
    case MICA_FILL_RANGE: {
        /* Every second element cancels the one before it, but for a small rest. */
        double u = mica_random_uniform(seed, i & ~(uint64_t)1), span = range_exponent(d);
        double v = exp2((2 * u - 1) * span);
        if (mica_random_bits(seed + 1, i & ~(uint64_t)1) & 1) v = -v;
        return i & 1 ? -v * (1 + 0x1p-6) : v;
    }
    default:
        return mica_random_normal(seed, i);
    }
}

/* ---- factors ---- */

static double factor(mica_dtype type, mica_fill fill, uint64_t seed, uint64_t i)
{
    const uint64_t bits = mica_random_bits(seed, i);
    if (is_unsigned(type)) return bits % 64 ? 1 : 0;
    if (mica_dtype_is_integer(type) || fill == MICA_FILL_EXACT) return bits & 1 ? 1 : -1;
    if (fill == MICA_FILL_EXTREME) return bits % 256 == 0 ? 0 : bits & 1 ? 1 : -1;
    return (bits & 1 ? 1 : -1) * (1 + 0.01 * mica_random_normal(seed ^ 1, i));
}

void mica_fill_factors(mica_dtype type, mica_fill fill, uint64_t seed, int64_t count,
                       double *values)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = mica_fill_rounded(type, factor(type, fill, seed, (uint64_t)i));
}

/* ---- edges ---- */

/* The floating-point input that the seed picks; -1: there is none. */
static int picked_input(const mica_op *op, const void *desc, uint64_t seed)
{
    int inputs[MICA_MAX_ARGS], count = 0;
    for (int i = 0; i < op->arg_count; i++) {
        mica_dir dir = mica_op_dir(op, desc, i);
        if ((dir == MICA_IN || dir == MICA_INOUT) &&
            mica_dtype_is_float(mica_op_tensor(op, desc, i)->dtype))
            inputs[count++] = i;
    }
    return count ? inputs[mica_random_bits(seed, 0xed6e) % (uint64_t)count] : -1;
}

/* Ordinary numbers, but for the input that is picked: one NaN or infinity in it; or a third of its
 * rows the lowest number; or all of them large and equal; or an eighth of them edges. */
static double edge_value(const mica_tensor *t, uint64_t seed, uint64_t own, uint64_t i)
{
    static const double singles[] = {NAN, INFINITY, -INFINITY};
    uint64_t kind = mica_random_bits(seed, 0xed6f) % 6, count = (uint64_t)mica_tensor_count(t);
    uint64_t row = i / (uint64_t)(t->rank && t->dims[t->rank - 1] ? t->dims[t->rank - 1] : 1);
    double ordinary = mica_random_normal(own, i);
    switch (kind) {
    case 3:
        return mica_random_bits(own, row) % 3 ? ordinary : -largest_of(t->dtype);
    case 4:
        return t->dtype == MICA_F16 || t->dtype == MICA_E5M2 ? 30000 : 0x1p26;
    case 5:
        return mica_random_bits(own ^ 8, i) % 8 ? ordinary : mica_fill_edge(t->dtype, own, i);
    default:
        return i == mica_random_bits(own, 0xed70) % count ? singles[kind] : ordinary;
    }
}

void mica_fill_general(const mica_op *op, const void *desc, int arg, mica_fill fill, uint64_t seed,
                       double *values)
{
    const mica_tensor *t = mica_op_tensor(op, desc, arg);
    int64_t count = mica_tensor_count(t);
    int bound = exact_bound(t->dtype);
    double density = exact_density(op, desc, bound);
    const uint64_t given = seed;
    const bool picked = fill == MICA_FILL_EDGES && arg == picked_input(op, desc, seed);
    seed = mica_random_bits(seed, (uint64_t)arg + 1);
    for (int64_t i = 0; i < count; i++) {
        double v;
        if (picked)
            v = edge_value(t, given, seed, (uint64_t)i);
        else if (fill == MICA_FILL_EXACT)
            v = exact_value(bound, density, is_unsigned(t->dtype), seed, (uint64_t)i);
        else if (mica_dtype_is_integer(t->dtype))
            v = integer_value(t->dtype, fill, seed, (uint64_t)i);
        else
            v = float_value(t->dtype, fill, seed, (uint64_t)i);
        values[i] = mica_fill_rounded(t->dtype, v);
    }
}
