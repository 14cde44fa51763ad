/* SPDX-License-Identifier: Apache-2.0
 * Loops over one run of elements in the arithmetic type `real`. Included by norm_cpu_real.c, once
 * for float and once for double. Outputs may lie on inputs, element by element.
 * Operands come as `per` pairs: an array where they vary along the run, one value where not; the
 * flags are constants in each inlined copy, so the loops vectorise. */

#include <string.h>

#include "ops/convert/cpu/bf16.h"

#define INLINE __attribute__((always_inline)) static inline
/* Equal addresses in and out are the only overlap there is. */
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

typedef struct operand {
    const real *at;
    bool varies;
} operand;

/* Element i of a row of `real`, or of a narrow one, which is bf16. */
INLINE real element(const void *x, int64_t i, const bool narrow)
{
    return narrow ? (real)mica_bf16_value(((const uint16_t *)x)[i]) : ((const real *)x)[i];
}

/* ---- sums along the run ---- */

/* Elements of one chain of additions in `real` (four lanes of f32 or two of f64, or more) before it
 * moves to double. */
enum { CHAIN = 16 / sizeof(real) * NORM_FLUSH };

/* Sums of short rows in lanes, which are added in pairs: what a reduction clause adds one after the
 * other costs more than the row itself. The lanes lie in vectors that every machine keeps in
 * registers. */
enum {
    LANES = 64 / sizeof(real),
    STEP = MICA_NARROW / sizeof(real), /* lanes of a vector */
    PARTS = LANES / STEP
};
typedef real vector __attribute__((vector_size(MICA_NARROW), aligned(sizeof(real)), may_alias));
typedef vector lanes[PARTS];
typedef real half_lanes __attribute__((vector_size(32)));
typedef real few_lanes __attribute__((vector_size(16)));

INLINE const vector *vector_at(const real *x)
{
    return (const vector *)x;
}

/* STEP neighbours, from element i on. */
INLINE void load_vector(const void *x, int64_t i, const bool narrow, vector *to)
{
    typedef uint16_t halves __attribute__((vector_size(2 * STEP), aligned(2), may_alias));
    typedef uint32_t words __attribute__((vector_size(4 * STEP)));
    typedef float floats __attribute__((vector_size(4 * STEP)));
    if (!narrow) {
        *to = *vector_at((const real *)x + i);
        return;
    }
    words bits = __builtin_convertvector(*(const halves *)((const uint16_t *)x + i), words) << 16;
    *to = __builtin_convertvector((floats)bits, vector);
}

/* The lanes of v and n < LANES further values. */
INLINE double lanes_sum(const vector *v, const real *more, int64_t n)
{
    half_lanes half[2];
    few_lanes few[2];
    real last[16 / sizeof(real)], sum = 0;
    memcpy(half, v, sizeof half);
    half[0] += half[1];
    memcpy(few, half, sizeof few);
    few[0] += few[1];
    memcpy(last, few, sizeof last);
    for (int64_t l = 0; l < n; l++) sum += more[l];
    for (size_t l = 0; l < sizeof last / sizeof *last; l++) sum += last[l];
    return (double)sum;
}

/* Of so few that one chain suffices. */
CLONES
static double row_sum(const real *x, int64_t n)
{
    lanes sum = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
#pragma GCC unroll 4
        for (int v = 0; v < PARTS; v++) sum[v] += *vector_at(x + i + v * STEP);
    return lanes_sum(sum, x + i, n - i);
}

/* A lane of two pairs of sums takes half of NORM_FLUSH additions; with those of the pairs, of lanes
 * and of what is left over there are fewer than NORM_FLUSH before sums move to double. */
INLINE void row_deviations_as(const bool narrow, const void *x, real mean, int64_t n, double *plain,
                              double *squared)
{
    const int64_t most = LANES * NORM_FLUSH;
    for (int64_t from = 0; from < n; from += most) {
        int64_t end = n - from < most ? n : from + most, i = from;
        lanes s = {0}, q = {0}, t = {0}, r = {0};
        MICA_ALIGNED real rest[2][LANES];
        for (; i + 2 * LANES <= end; i += 2 * LANES)
#pragma GCC unroll 4
            for (int v = 0; v < PARTS; v++) {
                vector d, e;
                load_vector(x, i + v * STEP, narrow, &d);
                load_vector(x, i + LANES + v * STEP, narrow, &e);
                d -= mean, e -= mean;
                s[v] += d, t[v] += e;
                q[v] += d * d, r[v] += e * e;
            }
        bool more = i + LANES <= end;
#pragma GCC unroll 4
        for (int v = 0; v < PARTS; v++) {
            s[v] += t[v], q[v] += r[v];
            if (!more) continue;
            vector d;
            load_vector(x, i + v * STEP, narrow, &d);
            d -= mean;
            s[v] += d, q[v] += d * d;
        }
        if (more) i += LANES;
        for (int64_t l = 0; i + l < end; l++) {
            rest[0][l] = element(x, i + l, narrow) - mean;
            rest[1][l] = rest[0][l] * rest[0][l];
        }
        *plain += lanes_sum(s, rest[0], end - i), *squared += lanes_sum(q, rest[1], end - i);
    }
}

MICA_NARROW_CLONES
static void row_deviations(const void *x, bool narrow, real mean, int64_t n, double *plain,
                           double *squared)
{
    if (NARROW && narrow)
        row_deviations_as(true, x, mean, n, plain, squared);
    else
        row_deviations_as(false, x, mean, n, plain, squared);
}

INLINE void row_gradients_as(const bool stats, const bool affine, const real *g, const real *x,
                             const real *mean, const real *rstd, const real *scale, int64_t n,
                             double *plain, double *with_xhat)
{
    const vector none = {0}, m = none + *mean, r = none + *rstd, w = none + *scale;
    for (int64_t from = 0; from < n; from += CHAIN) {
        int64_t end = n - from < CHAIN ? n : from + CHAIN, i = from;
        lanes s = {0}, q = {0};
        MICA_ALIGNED real rest[2][LANES];
        for (; i + LANES <= end; i += LANES)
#pragma GCC unroll 4
            for (int v = 0; v < PARTS; v++) {
                int64_t at = i + v * STEP;
                vector f = *vector_at(g + at) * (affine ? *vector_at(scale + at) : w);
                s[v] += f;
                q[v] += f * ((*vector_at(x + at) - (stats ? *vector_at(mean + at) : m)) *
                             (stats ? *vector_at(rstd + at) : r));
            }
        for (int64_t l = 0; i + l < end; l++) {
            real f = g[i + l] * scale[affine ? i + l : 0];
            rest[0][l] = f;
            rest[1][l] = f * ((x[i + l] - mean[stats ? i + l : 0]) * rstd[stats ? i + l : 0]);
        }
        *plain += lanes_sum(s, rest[0], end - i), *with_xhat += lanes_sum(q, rest[1], end - i);
    }
}

MICA_NARROW_CLONES
static void row_gradients(const real *g, const real *x, operand mean, operand rstd, operand scale,
                          int64_t n, double *s, double *q)
{
    if (mean.varies && scale.varies)
        row_gradients_as(true, true, g, x, mean.at, rstd.at, scale.at, n, s, q);
    else if (mean.varies)
        row_gradients_as(true, false, g, x, mean.at, rstd.at, scale.at, n, s, q);
    else if (scale.varies)
        row_gradients_as(false, true, g, x, mean.at, rstd.at, scale.at, n, s, q);
    else
        row_gradients_as(false, false, g, x, mean.at, rstd.at, scale.at, n, s, q);
}

/* ---- sums across runs: one per column ---- */

CLONES
static void columns_sum(const real *x, int64_t n, real *sum)
{
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) sum[i] += x[i];
}

CLONES
static void columns_deviations(const real *x, const real *mean, int64_t n, real *plain,
                               real *squared)
{
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        real d = x[i] - mean[i];
        plain[i] += d;
        squared[i] += d * d;
    }
}

INLINE void columns_gradients_as(const bool stats, const bool affine, const real *g, const real *x,
                                 const real *mean, const real *rstd, const real *scale, int64_t n,
                                 real *plain, real *with_xhat)
{
    const real m = *mean, r = *rstd, w = *scale;
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        real f = g[i] * (affine ? scale[i] : w);
        plain[i] += f;
        with_xhat[i] += f * ((x[i] - (stats ? mean[i] : m)) * (stats ? rstd[i] : r));
    }
}

CLONES
static void columns_gradients(const real *g, const real *x, operand mean, operand rstd,
                              operand scale, int64_t n, real *s, real *q)
{
    if (mean.varies && scale.varies)
        columns_gradients_as(true, true, g, x, mean.at, rstd.at, scale.at, n, s, q);
    else if (mean.varies)
        columns_gradients_as(true, false, g, x, mean.at, rstd.at, scale.at, n, s, q);
    else if (scale.varies)
        columns_gradients_as(false, true, g, x, mean.at, rstd.at, scale.at, n, s, q);
    else
        columns_gradients_as(false, false, g, x, mean.at, rstd.at, scale.at, n, s, q);
}

/* ---- element by element ---- */

CLONES
static void multiply(const real *a, const real *b, int64_t n, real *out)
{
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) out[i] = a[i] * b[i];
}

CLONES
static void add(const real *a, const real *b, int64_t n, real *out)
{
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

CLONES
static void add_multiple(const real *a, const real *b, real factor, int64_t n, real *out)
{
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) out[i] = a[i] + factor * b[i];
}

INLINE void normalise_as(const bool stats, const bool affine, const bool narrow, const void *x,
                         const real *mean, const real *rstd, const real *scale, const real *bias,
                         int64_t n, real *out)
{
    const real m = *mean, r = *rstd, w = *scale, b = *bias;
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        real xhat = (element(x, i, narrow) - (stats ? mean[i] : m)) * (stats ? rstd[i] : r);
        out[i] = xhat * (affine ? scale[i] : w) + (affine ? bias[i] : b);
    }
}

/* scale and bias vary alike, or the caller spreads one of them; narrow: where mean does not vary.
 */
CLONES
static void normalise(const void *x, bool narrow, operand mean, operand rstd, operand scale,
                      operand bias, int64_t n, real *out)
{
    if (mean.varies && scale.varies)
        normalise_as(true, true, false, x, mean.at, rstd.at, scale.at, bias.at, n, out);
    else if (mean.varies)
        normalise_as(true, false, false, x, mean.at, rstd.at, scale.at, bias.at, n, out);
    else if (NARROW && narrow && scale.varies)
        normalise_as(false, true, true, x, mean.at, rstd.at, scale.at, bias.at, n, out);
    else if (NARROW && narrow)
        normalise_as(false, false, true, x, mean.at, rstd.at, scale.at, bias.at, n, out);
    else if (scale.varies)
        normalise_as(false, true, false, x, mean.at, rstd.at, scale.at, bias.at, n, out);
    else
        normalise_as(false, false, false, x, mean.at, rstd.at, scale.at, bias.at, n, out);
}

INLINE void relu_gradient_as(const bool vary, const real *x, const real *mean, const real *rstd,
                             const real *scale, const real *bias, const real *added, const real *dy,
                             int64_t n, real *out)
{
    const real m = *mean, r = *rstd, w = *scale, b = *bias;
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        real xhat = (x[i] - (vary ? mean[i] : m)) * (vary ? rstd[i] : r);
        real z = xhat * (vary ? scale[i] : w) + (vary ? bias[i] : b) + (added ? added[i] : 0);
        out[i] = dy[i] * (z > 0 ? 1 : z <= 0 ? 0 : z); /* NaN passes, of both */
    }
}

/* dy behind a ReLU of what normalise gives (and added, or NULL), in one pass, for statistics and
 * affine parameters that vary alike, as those of batch do. */
CLONES
static void relu_gradient(const real *x, operand mean, operand rstd, operand scale, operand bias,
                          const real *added, const real *dy, int64_t n, real *out)
{
    if (mean.varies && added)
        relu_gradient_as(true, x, mean.at, rstd.at, scale.at, bias.at, added, dy, n, out);
    else if (mean.varies)
        relu_gradient_as(true, x, mean.at, rstd.at, scale.at, bias.at, NULL, dy, n, out);
    else if (added)
        relu_gradient_as(false, x, mean.at, rstd.at, scale.at, bias.at, added, dy, n, out);
    else
        relu_gradient_as(false, x, mean.at, rstd.at, scale.at, bias.at, NULL, dy, n, out);
}

INLINE void input_gradient_as(const bool stats, const bool affine, const real *g, const real *x,
                              const real *mean, const real *rstd, const real *scale,
                              const real *plain, const real *with_xhat, int64_t n, real *out)
{
    const real m = *mean, r = *rstd, w = *scale, p = *plain, q = *with_xhat;
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        real xhat = (x[i] - (stats ? mean[i] : m)) * (stats ? rstd[i] : r);
        out[i] = (stats ? rstd[i] : r) * (g[i] * (affine ? scale[i] : w) - (stats ? plain[i] : p) -
                                          xhat * (stats ? with_xhat[i] : q));
    }
}

/* plain and with_xhat: means over the set; they vary as mean does. */
CLONES
static void input_gradient(const real *g, const real *x, operand mean, operand rstd, operand scale,
                           const real *plain, const real *with_xhat, int64_t n, real *out)
{
    if (mean.varies && scale.varies)
        input_gradient_as(true, true, g, x, mean.at, rstd.at, scale.at, plain, with_xhat, n, out);
    else if (mean.varies)
        input_gradient_as(true, false, g, x, mean.at, rstd.at, scale.at, plain, with_xhat, n, out);
    else if (scale.varies)
        input_gradient_as(false, true, g, x, mean.at, rstd.at, scale.at, plain, with_xhat, n, out);
    else
        input_gradient_as(false, false, g, x, mean.at, rstd.at, scale.at, plain, with_xhat, n, out);
}
