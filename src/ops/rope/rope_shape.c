/* SPDX-License-Identifier: Apache-2.0
 * What rope and kv_append have in common: checks of the fields about angles, rows, positions. */
#include "ops/rope/rope.h"

#include <math.h>

/* ---- inference and checks ---- */

void rope_infer_tensor(mica_tensor *t, mica_dtype type, int rank, const int64_t *dims,
                       const mica_tensor *order)
{
    if (t->rank) return;
    if (mica_tensor_given(t)) type = t->dtype;
    *t = mica_tensor_packed(type, rank, dims);
    if (order) mica_tensor_strides_like(t, order);
}

mica_status rope_check_type(const mica_tensor *t, const char *name, bool legal, const char *rule,
                            mica_why *why)
{
    if (!mica_tensor_given(t) || legal) return MICA_OK;
    return mica_invalid(why, "%s is %s, it must be %s", name, mica_dtype_name(t->dtype), rule);
}

mica_status rope_check_dims(const mica_tensor *t, const char *name, int rank, const int64_t *dims,
                            mica_why *why)
{
    if (!mica_tensor_given(t)) return MICA_OK;
    if (t->rank != rank)
        return mica_invalid(why, "%s has rank %d, it must have %d", name, t->rank, rank);
    for (int i = 0; i < rank; i++)
        if (t->dims[i] != dims[i])
            return mica_invalid(why, "dimension %d of %s is %lld, it must be %lld", i, name,
                                (long long)t->dims[i], (long long)dims[i]);
    return MICA_OK;
}

static mica_status check_tables(const rope_angles *a, mica_dtype type, mica_why *why)
{
    if (mica_tensor_given(a->cos) != mica_tensor_given(a->sin))
        return mica_invalid(why, "cos and sin: both or none");
    if (!mica_tensor_given(a->cos)) return MICA_OK;
    if (mica_tensor_given(a->inv_freq))
        return mica_invalid(why, "inv_freq and cos exclude each other");
    const mica_tensor *tables[] = {a->cos, a->sin};
    for (int i = 0; i < 2; i++) {
        mica_dtype t = tables[i]->dtype;
        MICA_TRY(rope_check_type(
            tables[i], i ? "sin" : "cos", t == type || (t == MICA_F32 && type != MICA_F64),
            type == MICA_F64 ? "f64 with f64" : "f32 or of q's (k's) type", why));
    }
    if (a->cos->dtype != a->sin->dtype)
        return mica_invalid(why, "cos is %s, sin %s; they must agree",
                            mica_dtype_name(a->cos->dtype), mica_dtype_name(a->sin->dtype));
    if (a->cos->rank != 2 || a->cos->dims[0] < 1)
        return mica_invalid(why, "cos has rank %d and %lld rows, it is positions x rotary_dim / 2",
                            a->cos->rank, a->cos->rank ? (long long)a->cos->dims[0] : 0);
    const int64_t dims[] = {a->cos->dims[0], a->pairs};
    MICA_TRY(rope_check_dims(a->cos, "cos", 2, dims, why));
    return rope_check_dims(a->sin, "sin", 2, dims, why);
}

mica_status rope_check_angles(const rope_angles *a, int64_t rotary_dim, mica_dtype type,
                              mica_why *why)
{
    if (rotary_dim < 0 || rotary_dim > a->columns || rotary_dim % 2)
        return mica_invalid(why, "rotary_dim is %lld, it must be even and at most D, %lld",
                            (long long)rotary_dim, (long long)a->columns);
    if (!(a->theta > 0) || !isfinite(a->theta))
        return mica_invalid(why, "theta is %g, it must be positive and finite", a->theta + 0);
    if (!isfinite(a->factor))
        return mica_invalid(why, "factor is %g, it must be finite", a->factor);
    bool given = mica_tensor_given(a->inv_freq) || mica_tensor_given(a->cos);
    if (given && a->theta != 10000)
        return mica_invalid(why, "theta is %g, but inv_freq or cos say what the angles are",
                            a->theta);
    MICA_TRY(rope_check_dims(a->inv_freq, "inv_freq", 1, &a->pairs, why));
    MICA_TRY(check_tables(a, type, why));
    const mica_tensor *p = a->positions;
    const int64_t dims[] = {a->batches, a->rows};
    return rope_check_dims(p, "positions", p->rank == 1 ? 1 : 2, p->rank == 1 ? dims + 1 : dims,
                           why);
}

mica_status rope_check_offsets(const mica_tensor *cu, const char *cu_name, const mica_tensor *rows,
                               const char *rows_name, mica_why *why)
{
    if (!mica_tensor_given(cu)) return MICA_OK;
    if (cu->rank != 1 || cu->dims[0] < 1)
        return mica_invalid(why, "%s has rank %d and %lld elements, it is a list of N + 1", cu_name,
                            cu->rank, (long long)mica_tensor_count(cu));
    if (rows->dims[0] != 1)
        return mica_invalid(why, "with %s %s is 1 x H x rows x D, it begins with %lld", cu_name,
                            rows_name, (long long)rows->dims[0]);
    return MICA_OK;
}

/* ---- rows and positions ---- */

static int64_t number(const mica_tensor *t, const void *data, int64_t offset)
{
    return t->dtype == MICA_S64 ? ((const int64_t *)data)[offset] : ((const int32_t *)data)[offset];
}

bool rope_by_theta(const rope_angles *a)
{
    return a->rotates && !mica_tensor_given(a->inv_freq) && !mica_tensor_given(a->cos);
}

/* Two numbers whose sum has twice the digits. */
typedef struct twice {
    long double high, low;
} twice;

static twice multiply(twice a, twice b)
{
    long double high = a.high * b.high;
    long double low = fmal(a.high, b.high, -high) + (a.high * b.low + a.low * b.high);
    return (twice){high + low, low - ((high + low) - high)};
}

static twice power(long double base, int64_t n)
{
    twice r = {1, 0}, b = {base, 0};
    for (; n > 0; n /= 2) {
        if (n % 2) r = multiply(r, b);
        b = multiply(b, b);
    }
    return r;
}

/* theta^(-i/n): the exponent is no number of any type, and what rounding it changes grows with the
 * position. So a step of Newton's brings f^n theta^i to 1. */
double rope_frequency(const rope_angles *a, int64_t i, double *below)
{
    int64_t n = a->pairs, rest = i;
    *below = 0;
    if (i == 0) return 1;
    for (int64_t r; rest; rest = r) r = n % rest, n = rest; /* the common divisor */
    int64_t divisor = n;
    n = a->pairs / divisor, i /= divisor;
    long double f = powl((long double)a->theta, -(long double)i / (long double)n);
    twice one = multiply(power(f, n), power((long double)a->theta, i));
    long double off = -f * ((one.high - 1) + one.low) / (long double)n;
    if (!(fabsl(off) < f * 1e-12L)) off = 0; /* powers that leave the type */
    double high = (double)(f + off);
    *below = (double)((f - (long double)high) + off);
    return high;
}

int64_t rope_kept(const rope_angles *a)
{
    const int64_t most = 4096;
    return rope_by_theta(a) && a->pairs <= most ? a->pairs : 0;
}

rope_row rope_row_of(const rope_angles *a, const rope_data *data, int64_t b, int64_t s)
{
    if (!mica_tensor_given(a->cu)) return (rope_row){b, s};
    const int32_t *cu = data->cu;
    int64_t step = a->cu->strides[0], low = -1, high = a->sequences;
    /* cu[low] <= s < cu[high]; before the first and behind the last stand such numbers */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (cu[middle * step] <= s)
            low = middle;
        else
            high = middle;
    }
    if (low < 0 || s >= cu[(low + 1) * step]) return (rope_row){-1, 0};
    int64_t first = cu[low * step];
    return (rope_row){low, s - (first > 0 ? first : 0)};
}

double rope_position(const rope_angles *a, const rope_data *data, const rope_row *row, int64_t b,
                     int64_t s)
{
    const mica_tensor *p = a->positions;
    if (mica_tensor_given(p)) {
        int64_t at = p->rank == 2 ? b * p->strides[0] + s * p->strides[1] : s * p->strides[0];
        return (double)number(p, data->positions, at);
    }
    if (row->sequence < 0) return 0;
    double first = 0;
    if (mica_tensor_given(a->start))
        first = (double)number(a->start, data->start, row->sequence * a->start->strides[0]);
    return first + (double)row->index;
}

int64_t rope_table_row(const rope_angles *a, double position)
{
    double last = (double)(a->cos->dims[0] - 1);
    return (int64_t)(position < 0 ? 0 : position > last ? last : position);
}

/* ---- numbers ---- */

mica_dtype rope_accumulator(mica_dtype from, mica_dtype to)
{
    return from == MICA_F64 || to == MICA_F64 ? MICA_F64 : MICA_F32;
}

bool rope_exact(const rope_angles *a)
{
    int exponent;
    if (!a->rotates) return true;
    return mica_tensor_given(a->cos) && fabs(frexp(a->factor, &exponent)) == 0.5;
}

/* Functions of which each is good to a unit in the last place, and the factor's rounding. */
void rope_contract(const rope_angles *a, mica_dtype accumulator, mica_contract *contract)
{
    contract->unit = mica_dtype_unit(accumulator);
    contract->ulps = !a->rotates ? 1 : mica_tensor_given(a->cos) ? 1 : 3;
}
