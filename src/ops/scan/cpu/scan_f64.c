/* SPDX-License-Identifier: Apache-2.0
 * Floats, and what only they have: logarithms of sums of exponentials, and gradients. */
#include <math.h>

#define real      double
#define held      double
#define NUMBERS   f64
#define LOWEST    (-(double)INFINITY)
#define IS_NAN(v) ((v) != (v))
#include "ops/scan/cpu/scan_loops.h"

/* ---- exponentials ---- */

/* About an infinite maximum the sum is 1, or NaN if one is there. */
static double exponential(double v, double max)
{
    if (isinf(max)) return max > 0 && v == max;
    return exp(v - max);
}

/* A maximum passes NaN by, the sum has it. */
static void join_exponentials(double *sum, double *max, double other_sum, double other_max)
{
    const double top = other_max > *max ? other_max : *max;
    if (*max < top) *sum = *sum == 0 ? 0 : *sum * exponential(*max, top);
    if (other_max < top) other_sum = other_sum == 0 ? 0 : other_sum * exponential(other_max, top);
    *sum += other_sum, *max = top;
    if (top == (double)INFINITY && !IS_NAN(*sum)) *sum = 1;
}

static double log_of(double sum, double max)
{
    return IS_NAN(sum) ? sum : isinf(max) ? max : max + log(sum);
}

static void exponentials(const mica_scan_step *s, const mica_scan_chunk *c, mica_scan_state *state)
{
    const int64_t width = c->width;
    for (int64_t k = 0; k < c->m; k++) {
        const int64_t i = s->reverse ? c->m - 1 - k : k;
        double *x = (double *)c->a + i * width, *sum = state->a.f64, *max = state->b.f64;
        for (int64_t j = 0; j < width; j++) {
            const double v = x[j];
            if (c->heads && c->heads[i * width + j]) sum[j] = 0, max[j] = LOWEST, state->cut[j] = 1;
            if (s->exclusive && !c->silent) x[j] = log_of(sum[j], max[j]);
            join_exponentials(&sum[j], &max[j], IS_NAN(v) ? v : v > LOWEST, IS_NAN(v) ? LOWEST : v);
            if (!s->exclusive && !c->silent) x[j] = log_of(sum[j], max[j]);
        }
    }
}

/* a: dy; b: x; c: y. Where y is infinite nothing is added; NaN of it stays. */
static void exponential_slopes(const mica_scan_step *s, const mica_scan_chunk *c,
                               mica_scan_state *state)
{
    const int64_t width = c->width;
    for (int64_t k = 0; k < c->m; k++) {
        const int64_t i = s->reverse ? c->m - 1 - k : k;
        double *a = (double *)c->a + i * width, *sum = state->a.f64, *max = state->b.f64;
        const double *x = (const double *)c->b + i * width, *y = (const double *)c->c + i * width;
        for (int64_t j = 0; j < width; j++) {
            const bool none = isinf(y[j]);
            const double dy = IS_NAN(y[j]) ? y[j] : none ? 0 : a[j];
            const double about = none || IS_NAN(y[j]) ? LOWEST : -y[j];
            if (c->heads && c->heads[i * width + j]) sum[j] = 0, max[j] = LOWEST, state->cut[j] = 1;
            if (!s->exclusive) join_exponentials(&sum[j], &max[j], dy, about);
            if (!c->silent) {
                const bool nan = IS_NAN(x[j]) || x[j] == (double)INFINITY;
                const double zero = nan || IS_NAN(sum[j]) ? (double)NAN : 0;
                a[j] = isinf(max[j]) || (sum[j] == 0 && !nan) ? zero : sum[j] * exp(x[j] + max[j]);
            }
            if (s->exclusive) join_exponentials(&sum[j], &max[j], dy, about);
        }
    }
}

/* ---- gradients of products and of maxima ---- */

/* a: dy; b: x; c: the product of what is before. */
static void maps(const mica_scan_step *s, const mica_scan_chunk *c, mica_scan_state *state)
{
    const int64_t width = c->width;
    for (int64_t k = 0; k < c->m; k++) {
        const int64_t i = s->reverse ? c->m - 1 - k : k;
        double *a = (double *)c->a + i * width, *w = state->a.f64, *factor = state->b.f64;
        const double *x = (const double *)c->b + i * width;
        for (int64_t j = 0; j < width; j++) {
            if (c->heads && c->heads[i * width + j]) w[j] = 0, factor[j] = 1, state->cut[j] = 1;
            const double dy = a[j], shown = s->exclusive ? w[j] : dy + w[j];
            w[j] = s->exclusive ? dy + x[j] * w[j] : x[j] * shown;
            factor[j] *= x[j];
            if (!c->silent) a[j] = shown * ((const double *)c->c)[i * width + j];
        }
    }
}

static void runs(const mica_scan_step *s, const mica_scan_chunk *c, mica_scan_state *state)
{
    const int64_t width = c->width;
    for (int64_t k = 0; k < c->m; k++) {
        const int64_t i = s->reverse ? c->m - 1 - k : k;
        double *a = (double *)c->a + i * width, *run = state->a.f64;
        for (int64_t j = 0; j < width; j++) {
            const double v = a[j];
            const bool shown = c->shown[i * width + j];
            if (s->exclusive) a[j] = shown ? run[j] : 0;
            if (c->heads[i * width + j]) run[j] = 0, state->cut[j] = 1;
            run[j] += v;
            if (!s->exclusive) a[j] = shown ? run[j] : 0;
        }
    }
}

/* ---- all of them ---- */

static void chunk(const mica_scan_step *s, const mica_scan_chunk *c, mica_scan_state *state)
{
    switch (s->by) {
    case SCAN_EXP:
        exponentials(s, c, state);
        break;
    case SCAN_EXP_SLOPES:
        exponential_slopes(s, c, state);
        break;
    case SCAN_MAPS:
        maps(s, c, state);
        break;
    case SCAN_RUNS:
        runs(s, c, state);
        break;
    default:
        simple_chunk(s, c, state);
    }
}

static void merge(const mica_scan_step *s, mica_scan_state *to, const mica_scan_state *later,
                  int64_t width)
{
    const bool logs = s->by == SCAN_EXP || s->by == SCAN_EXP_SLOPES;
    if (!logs && s->by != SCAN_MAPS) {
        simple_merge(s, to, later, width);
        return;
    }
    for (int64_t j = 0; j < width; j++) {
        const double sum = later->a.f64[j], about = later->b.f64[j];
        if (later->cut[j]) {
            to->a.f64[j] = sum, to->b.f64[j] = about, to->cut[j] = 1;
        } else if (logs) {
            join_exponentials(&to->a.f64[j], &to->b.f64[j], sum, about);
        } else {
            to->a.f64[j] = sum + about * to->a.f64[j];
            to->b.f64[j] *= about;
        }
    }
}

const mica_scan_loops mica_scan_loops_f64 = {clear, chunk, merge};
