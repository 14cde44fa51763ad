/* SPDX-License-Identifier: Apache-2.0
 * Test data for layers of experts: weights that keep the size of what they multiply; loads of all
 * kinds; exact data whose every step is a small integer; a router whose logits are exact, so that
 * every engine chooses the same. */
#include "ops/moe/moe.h"
#include "base/random.h"

#include <math.h>

static double value(mica_fill fill, uint64_t seed, uint64_t i)
{
    static const double extreme[] = {0, -0.0, 1, -0.5, 2.5, -1, 0x1p-14, -0x1p-24};
    double u = mica_random_uniform(seed, i);
    switch (fill) {
    case MICA_FILL_SAME_SIGN:
        return 0.5 + u;
    case MICA_FILL_RANGE: /* neighbours nearly cancel */
        u = exp2(5 * mica_random_uniform(seed, i & ~(uint64_t)1) - 4);
        return i & 1 ? -u * (1 + 0x1p-6) : u;
    case MICA_FILL_EXTREME:
        return extreme[mica_random_bits(seed, i) % 8];
    default:
        return mica_random_normal(seed, i);
    }
}

/* Rows of x and w2 have three terms, of dy two: no step makes more than 8 bits hold. */
static double exact_value(int arg, const mica_tensor *t, uint64_t seed, uint64_t i)
{
    const int64_t columns = t->rank && t->dims[t->rank - 1] ? t->dims[t->rank - 1] : 1;
    const uint64_t row = i / (uint64_t)columns, column = i % (uint64_t)columns;
    const uint64_t bits = mica_random_bits(seed, i), rows = mica_random_bits(seed ^ 1, row);
    const uint64_t places[] = {rows % (uint64_t)columns, (rows >> 16) % (uint64_t)columns,
                               (rows >> 32) % (uint64_t)columns};
    int terms = 0;
    switch (arg) {
    case MICA_MOE_X:
    case MICA_MOE_W2:
        terms = 3;
        break;
    case MICA_MOE_DY:
        terms = 2;
        break;
    case MICA_MOE_HIDDEN:
    case MICA_MOE_WEIGHTS:
    case MICA_MOE_LOGITS:
        return (double)(bits % 5) - 2;
    default:
        return (double)(bits % 3) - 1;
    }
    for (int k = 0; k < terms; k++)
        if (column == places[k]) return bits & 1 ? 1 : -1;
    return 0;
}

/* One element in each row that is not 0: a power of two. */
static double router_value(const mica_tensor *t, uint64_t seed, uint64_t i)
{
    const uint64_t row = i / (uint64_t)t->dims[1], column = i % (uint64_t)t->dims[1];
    const uint64_t bits = mica_random_bits(seed, row);
    if (column != row % (uint64_t)t->dims[1]) return 0;
    return (bits & 1 ? 1 : -1) * (bits & 2 ? 1 : 0.5);
}

/* Codes that stand for the exact values, with scales of 1 and -1: those of unsigned types are 1
 * more where there are zero points, else without their sign. */
static double exact_code(const mica_moe_desc *d, int arg, double v)
{
    const bool is_unsigned = d->w1.dtype == MICA_U4 || d->w1.dtype == MICA_U8;
    const mica_tensor *zeros = mica_op_tensor(&mica_op_moe, d, arg - MICA_MOE_W1 + MICA_MOE_ZEROS1);
    if (!is_unsigned) return v;
    return mica_tensor_given(zeros) ? v + 1 : fabs(v);
}

/* The largest of the type. */
static double top_of(mica_dtype type)
{
    switch (type) {
    case MICA_S4:
        return 7;
    case MICA_U4:
        return 15;
    case MICA_S8:
        return 127;
    case MICA_U8:
        return 255;
    case MICA_E2M1:
        return 6;
    default:
        return 8; /* of many exponents: about 1 */
    }
}

/* Of weights in few bits; leaning: more of them are positive. */
static double code_value(mica_dtype type, mica_fill fill, bool leaning, uint64_t seed, uint64_t i)
{
    const double top = top_of(type), u = mica_random_uniform(seed, i);
    const bool is_signed = type != MICA_U4 && type != MICA_U8 && fill != MICA_FILL_SAME_SIGN;
    if (fill == MICA_FILL_RANGE || fill == MICA_FILL_EXTREME) {
        const double v = top * value(fill, seed, i) / 3;
        return is_signed ? v : fabs(v);
    }
    const double least = !is_signed ? 0 : leaning ? -0.2 : -1;
    return floor((least + (1 - least) * u) * (top + 0.99));
}

/* Of scales by `size`, that of a weight, and zero points. */
static double companion(const mica_moe_desc *d, int arg, mica_fill fill, double size, uint64_t seed,
                        uint64_t i)
{
    const uint64_t bits = mica_random_bits(seed, i);
    const double u = mica_random_uniform(seed, i), top = top_of(d->w1.dtype);
    const bool is_unsigned = d->w1.dtype == MICA_U4 || d->w1.dtype == MICA_U8;
    const mica_tensor *t = mica_op_tensor(&mica_op_moe, d, arg);
    if (arg >= MICA_MOE_ZEROS1) {
        if (fill == MICA_FILL_SAME_SIGN) return 0;
        if (fill == MICA_FILL_EXACT) return is_unsigned;
        return floor((is_unsigned ? 0.3 + 0.4 * u : 0.4 * u - 0.2) * top);
    }
    if (fill == MICA_FILL_EXACT) return bits & 1 && t->dtype != MICA_E8M0 ? -1 : 1;
    if (fill == MICA_FILL_EXTREME && bits >> 32 & 1) return bits >> 33 & 1 ? 0 : 0x1p-100;
    return size * exp2(u) * 2 / top;
}

/* Alike, skewed, or all to one. */
static double index_value(const mica_moe_desc *d, mica_fill fill, uint64_t seed, uint64_t i)
{
    const double u = mica_random_uniform(seed, i), experts = (double)d->w1.dims[0];
    const uint64_t bits = mica_random_bits(seed ^ 1, i);
    if (fill == MICA_FILL_SAME_SIGN) return experts - 1;
    if (fill == MICA_FILL_EXTREME && bits % 4 == 0)
        return bits & 8 ? -1 : bits & 16 ? experts : -2147483648.0;
    return floor((fill == MICA_FILL_RANGE ? u * u * u : u) * experts);
}

bool moe_fill(const void *desc, const double *scalars, int arg, mica_fill fill, uint64_t seed,
              double *values)
{
    const mica_moe_desc *d = desc;
    const mica_tensor *t = mica_op_tensor(&mica_op_moe, d, arg);
    const bool weight = arg == MICA_MOE_W1 || arg == MICA_MOE_W2 || arg == MICA_MOE_W3;
    const bool beside = arg >= MICA_MOE_SCALES1, codes = weight && moe_has_codes(d);
    const int of = MICA_MOE_W1 + (beside ? (arg - MICA_MOE_SCALES1) % 3 : 0);
    const int64_t terms = weight   ? t->dims[2]
                          : beside ? mica_op_tensor(&mica_op_moe, d, of)->dims[2]
                                   : 1;
    /* Activations that lie near the border of two codes may be either: of sums that nearly cancel
     * that would be all there is. */
    const bool borders = d->activations == MICA_MOE_ACTIVATIONS_E4M3;
    const bool leaning = borders && fill == MICA_FILL_RANDOM;
    double size = 1 / (double)(terms ? terms : 1);
    (void)scalars;
    if (fill != MICA_FILL_SAME_SIGN && !leaning) size = sqrt(size);
    seed = mica_random_bits(seed, (uint64_t)arg + 1);
    for (int64_t n = 0; n < mica_tensor_count(t); n++) {
        const uint64_t i = (uint64_t)n;
        double v;
        if (arg == MICA_MOE_INDICES)
            v = index_value(d, fill, seed, i);
        else if (arg == MICA_MOE_ROUTER)
            v = router_value(t, seed, i);
        else if (beside)
            v = companion(d, arg, fill, size, seed, i);
        else if (fill == MICA_FILL_EXACT)
            v = exact_value(arg, t, seed, i);
        else if (codes)
            v = code_value(t->dtype, fill, leaning, seed, i);
        else
            v = size * (leaning ? 0.8 + 0.4 * value(fill, seed, i) : value(fill, seed, i));
        if (codes && fill == MICA_FILL_EXACT) v = exact_code(d, arg, v);
        if (borders && fill == MICA_FILL_EXACT && arg != MICA_MOE_INDICES) v = fabs(v);
        /* Experts are liked by Zipf's law. */
        if (arg == MICA_MOE_LOGITS && fill == MICA_FILL_RANDOM)
            v -= log((double)(n % t->dims[1] + 1));
        values[n] = mica_fill_rounded(t->dtype, v);
    }
    return true;
}
