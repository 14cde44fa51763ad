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
    const int64_t terms = weight ? t->dims[2] : 1;
    double size = 1 / (double)(terms ? terms : 1);
    (void)scalars;
    if (fill != MICA_FILL_SAME_SIGN) size = sqrt(size);
    seed = mica_random_bits(seed, (uint64_t)arg + 1);
    for (int64_t n = 0; n < mica_tensor_count(t); n++) {
        const uint64_t i = (uint64_t)n;
        double v;
        if (arg == MICA_MOE_INDICES)
            v = index_value(d, fill, seed, i);
        else if (arg == MICA_MOE_ROUTER)
            v = router_value(t, seed, i);
        else if (fill == MICA_FILL_EXACT)
            v = exact_value(arg, t, seed, i);
        else
            v = size * value(fill, seed, i);
        /* Experts are liked by Zipf's law. */
        if (arg == MICA_MOE_LOGITS && fill == MICA_FILL_RANDOM)
            v -= log((double)(n % t->dims[1] + 1));
        values[n] = mica_fill_rounded(t->dtype, v);
    }
    return true;
}
