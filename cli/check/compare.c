/* SPDX-License-Identifier: Apache-2.0
 * Comparison with the reference. */
#include "check/compare.h"
#include "bench/stats.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* ---- types ---- */

static const int units[] = {0,
#define MICA_X(name, text, bits, unit) unit,
                            MICA_DTYPES(MICA_X)
#undef MICA_X
};

double cli_unit(mica_dtype d)
{
    return units[d] ? ldexp(1, units[d]) : 0;
}

double cli_tiny(mica_dtype d)
{
    static const double tiny[MICA_DTYPE_COUNT] = {
        [MICA_F64] = 0x1p-1074, [MICA_F32] = 0x1p-149, [MICA_F16] = 0x1p-24, [MICA_BF16] = 0x1p-133,
        [MICA_E4M3] = 0x1p-9,   [MICA_E5M2] = 0x1p-16, [MICA_E2M1] = 0.5};
    return tiny[d];
}

/* The largest finite number of a type that overflows to infinity. */
static double largest(mica_dtype d)
{
    static const double number[MICA_DTYPE_COUNT] = {[MICA_F64] = DBL_MAX,
                                                    [MICA_F32] = FLT_MAX,
                                                    [MICA_F16] = 65504,
                                                    [MICA_BF16] = 0x1.fep127,
                                                    [MICA_E5M2] = 57344};
    return number[d];
}

double cli_quantize(mica_dtype d, double v)
{
    if (d == MICA_F64) return v;
    if (d == MICA_F32) return (double)(float)v;
    const mica_tensor one = {.dtype = d, .rank = 1, .dims = {1}, .strides = {1}};
    unsigned char element[16] = {0};
    double q = NAN;
    if (mica_tensor_store(&one, &v, element) != MICA_OK ||
        mica_tensor_load(&one, element, &q) != MICA_OK)
        return NAN;
    return q;
}

/* ---- one element ---- */

double cli_element_error(cli_tolerance t, double magnitude)
{
    if (t.exact) return 0;
    magnitude = fmax(magnitude, t.least);
    /* No term, no error. */
    return magnitude != 0 ? t.phi * magnitude + t.floor : 0;
}

double cli_element_tolerance(mica_dtype d, cli_tolerance t, double want, double magnitude)
{
    if (t.exact) return 0;
    double u = cli_unit(d);
    return u * fabs(want) + (1 + u) * cli_element_error(t, magnitude) + cli_tiny(d);
}

/* y is R as the type rounds it, or lies between the roundings of the ends of the interval: rounding
 * is monotone, overflow and saturation included; only bool's is not (-1 and 1 are both 1). */
static bool rounds_from(mica_dtype d, double got, double want, double tolerance)
{
    return got == cli_quantize(d, want) ||
           (got >= cli_quantize(d, want - tolerance) && got <= cli_quantize(d, want + tolerance));
}

/* Whether the type saturates on all that the value may have been. */
static bool saturates(mica_dtype d, double want, double error)
{
    return cli_quantize(d, fabs(want) + error) < fabs(want) - error;
}

/* Whether the type has overflowed for sure, to infinity. */
static bool overflows(mica_dtype d, double want, double error)
{
    double least = fabs(want) - error;
    return least > largest(d) && isinf(cli_quantize(d, least));
}

bool cli_element_passes(mica_dtype d, cli_tolerance t, double got, double want, double magnitude,
                        double *margin)
{
    bool integer = cli_unit(d) == 0;
    *margin = 0;
    /* Terms that pass the accumulator's end on the way: infinite or NaN, by their order. */
    const bool past = t.most > 0 && !integer && !(magnitude < t.most / 4);
    if (past && (t.hides || !isfinite(got))) return true;
    if (t.hides && isnan(want)) return true;
    if (!integer && (isnan(want) || isinf(want) || isnan(got))) {
        bool ok = isnan(want) ? isnan(got) : got == cli_quantize(d, want);
        *margin = ok ? 0 : INFINITY;
        return ok;
    }
    double tolerance = cli_element_tolerance(d, t, want, magnitude);
    if (integer || t.exact) {
        /* Storing to bool is not monotone, and there is no nearly true. */
        bool between = isfinite(want) && isfinite(tolerance) && d != MICA_BOOL;
        bool ok = between ? rounds_from(d, got, want, tolerance) : got == cli_quantize(d, want);
        *margin = ok ? 0 : INFINITY;
        return ok;
    }
    double error = cli_element_error(t, magnitude);
    *margin = fabs(got - want) / tolerance;
    /* Half a step from the largest number lies infinity: how far it is from R says nothing. */
    bool edge = isinf(got) || overflows(d, want, error);
    if (!edge && *margin <= 1) return true;
    if (isfinite(tolerance) && (edge || saturates(d, want, error)) &&
        rounds_from(d, got, want, error)) {
        *margin = 0;
        return true;
    }
    if (edge) *margin = INFINITY;
    return false;
}

void cli_compare(mica_dtype d, cli_tolerance t, int64_t count, const double *got,
                 const double *want, const double *magnitudes, cli_comparison *r)
{
    *r = (cli_comparison){.count = count};
    for (int64_t i = 0; i < count; i++) {
        double margin;
        bool ok = cli_element_passes(d, t, got[i], want[i], magnitudes[i], &margin);
        if (!(margin <= r->margin)) r->margin = isnan(margin) ? INFINITY : margin;
        if (ok) continue;
        if (r->wrong++ >= CLI_SHOWN) continue;
        double tolerance = cli_element_tolerance(d, t, want[i], magnitudes[i]);
        r->first[r->shown].index = i;
        r->first[r->shown].got = got[i];
        r->first[r->shown].want = want[i];
        r->first[r->shown++].tolerance = tolerance;
    }
}

/* ---- could it have failed? ---- */

enum { SAMPLE = 1 << 16 };

void cli_trust(mica_dtype d, cli_tolerance t, int64_t count, const double *want,
               const double *magnitudes, char *text, size_t size)
{
    *text = 0;
    if (count <= 1) return;
    double *values = cli_alloc((SAMPLE + 1) * sizeof *values);
    double *tolerances = cli_alloc((SAMPLE + 1) * sizeof *tolerances);
    int64_t seen = 0, fed = 0, used = 0;
    int64_t step = count / SAMPLE + 1; /* large outputs are judged by a sample */
    for (int64_t i = 0; i < count; i += step) {
        seen++;
        /* No term entered a structural zero (padding, a stride's hole): it is checked exactly. */
        if (magnitudes[i] == 0 && want[i] == 0) continue;
        fed++;
        if (want[i] == 0 || !isfinite(want[i])) continue;
        values[used] = fabs(want[i]);
        tolerances[used++] = cli_element_tolerance(d, t, want[i], magnitudes[i]);
    }
    /* Where zeros are compared with tolerance zero, a few results of another kind are enough. */
    if (fed == 0 || used * (t.exact ? 20 : 10) < fed) {
        snprintf(text, size, "%lld of %lld results are zero or not finite",
                 (long long)(seen - used), (long long)seen);
    } else if (!t.exact && cli_unit(d) > 0) {
        double value = cli_median(values, (size_t)used);
        double tolerance = cli_median(tolerances, (size_t)used);
        if (!(tolerance < value / 4))
            snprintf(text, size, "the median tolerance is %.3g, the median |result| %.3g",
                     tolerance, value);
    }
    free(values);
    free(tolerances);
}
