/* SPDX-License-Identifier: Apache-2.0
 * Softmax's variants: what engines share, and the truth, in long double. Magnitudes as in
 * softmax_ref.c, with those of the steps that make a logit beside its distance from the maximum;
 * which element `hard` selects is decided by logits as engines round them. */
#include "ops/softmax/variants/variants.h"
#include "ops/random/random.h"
#include "ops/reduce/cpu/rows.h"
#include "ops/softmax/variants/variants_body.h"
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

/* ---- what engines share ---- */

void mica_softmax_variant_make(mica_softmax_variant *v, const mica_softmax_desc *d,
                               const mica_view *views)
{
    const bool fwd = d->pass == MICA_SOFTMAX_FWD;
    const struct {
        const mica_tensor *tensor;
        int arg;
    } places[MICA_SOFTMAX_PLACES] = {
        [MICA_SOFTMAX_PLACE_OUT] = {fwd ? &d->y : &d->dx, fwd ? MICA_SOFTMAX_Y : MICA_SOFTMAX_DX},
        [MICA_SOFTMAX_PLACE_IN] = {fwd ? &d->x : &d->y, fwd ? MICA_SOFTMAX_X : MICA_SOFTMAX_Y},
        [MICA_SOFTMAX_PLACE_GRAD] = {fwd ? NULL : &d->dy, MICA_SOFTMAX_DY},
        [MICA_SOFTMAX_PLACE_MASK] = {&d->mask, MICA_SOFTMAX_MASK},
    };
    mica_tensor slices[MICA_SOFTMAX_PLACES];
    const mica_tensor *list[MICA_SOFTMAX_PLACES];
    memset(v, 0, sizeof *v);
    for (int p = 0; p < MICA_SOFTMAX_PLACES; p++) {
        const mica_tensor *t = places[p].tensor;
        const bool given = t && mica_tensor_given(t);
        mica_tensor strided = given ? *t : *places[MICA_SOFTMAX_PLACE_IN].tensor;
        v->arg[p] = places[p].arg;
        v->type[p] = given ? t->dtype : MICA_NONE;
        v->wide |= given && t->dtype == MICA_F64;
        if (given && views) strided = views[v->arg[p]].t;
        if (!given) memset(strided.strides, 0, sizeof strided.strides);
        if (p == MICA_SOFTMAX_PLACE_INDEX) mica_tensor_default_strides(&strided);
        v->along[p] = strided.strides[d->axis];
        slices[p] = mica_softmax_without_axis(&strided, d->axis);
        list[p] = &slices[p];
    }
    mica_layout_make(&v->outer, list, MICA_SOFTMAX_PLACES);
    v->n = d->pass == MICA_SOFTMAX_FWD ? d->x.dims[d->axis] : d->y.dims[d->axis];
    const mica_dtype mask = v->type[MICA_SOFTMAX_PLACE_MASK];
    v->mask = mask == MICA_NONE           ? MICA_SOFTMAX_MASK_NONE
              : mica_dtype_is_float(mask) ? MICA_SOFTMAX_MASK_ADDED
                                          : MICA_SOFTMAX_MASK_BYTES;
    v->noise = fwd && d->kind == MICA_SOFTMAX_KIND_GUMBEL;
    v->rng_stride = d->rng.strides[0];
    v->scale = d->scale;
    v->by = fwd ? 1 / d->tau : d->scale / d->tau;
}

void mica_softmax_variant_slice(const mica_softmax_variant *v, int64_t slice, int64_t *at)
{
    memset(at, 0, MICA_SOFTMAX_PLACES * sizeof *at);
    for (int d = v->outer.rank - 1; d >= 0; d--) {
        const int64_t c = slice % v->outer.dims[d];
        slice /= v->outer.dims[d];
        for (int p = 0; p < MICA_SOFTMAX_PLACES; p++) at[p] += c * v->outer.strides[p][d];
    }
}

/* ---- the truth ---- */

typedef struct slice {
    const mica_softmax_desc *d;
    const mica_softmax_variant *v;
    const mica_view *views;
    mica_random_stream stream;
    int64_t at[MICA_SOFTMAX_PLACES];
} slice;

static double value(const slice *s, int place, int64_t a)
{
    return mica_get(&s->views[s->v->arg[place]], s->at[place] + a * s->v->along[place]);
}

static void put(const slice *s, int64_t a, double v, double magnitude)
{
    mica_put(&s->views[s->v->arg[MICA_SOFTMAX_PLACE_OUT]],
             s->at[MICA_SOFTMAX_PLACE_OUT] + a * s->v->along[MICA_SOFTMAX_PLACE_OUT], v, magnitude);
}

static bool is_kept(const slice *s, int64_t a)
{
    if (s->v->mask == MICA_SOFTMAX_MASK_NONE) return true;
    const double m = value(s, MICA_SOFTMAX_PLACE_MASK, a);
    return s->v->mask == MICA_SOFTMAX_MASK_ADDED ? m != -INFINITY : m != 0;
}

static double noise(const slice *s, int64_t a)
{
    const int64_t i = s->at[MICA_SOFTMAX_PLACE_INDEX] + a * s->v->along[MICA_SOFTMAX_PLACE_INDEX];
    if (!s->v->noise) return 0;
    return s->v->wide ? gumbel_at64(s->stream.key, s->stream.offset, i)
                      : (double)gumbel_at32(s->stream.key, s->stream.offset, i);
}

static double addend(const slice *s, int64_t a)
{
    return s->v->mask == MICA_SOFTMAX_MASK_ADDED ? value(s, MICA_SOFTMAX_PLACE_MASK, a) : 0;
}

/* Of an element that is kept; error: what it is off by, in units. */
static long double logit(const slice *s, int64_t a, double *error)
{
    long double z = (long double)value(s, MICA_SOFTMAX_PLACE_IN, a) * (long double)s->d->scale;
    *error = s->d->scale == 1 ? 0 : (double)fabsl(z);
    if (s->v->mask == MICA_SOFTMAX_MASK_ADDED)
        z += (long double)addend(s, a), *error += (double)fabsl(z);
    if (s->v->noise) z += (long double)noise(s, a), *error += (double)fabsl(z);
    z /= (long double)s->d->tau;
    *error = *error / s->d->tau + (s->d->tau == 1 ? 0 : 2 * (double)fabsl(z));
    return z;
}

static double rounded_logit(const slice *s, int64_t a)
{
    const double x = value(s, MICA_SOFTMAX_PLACE_IN, a), more = addend(s, a), g = noise(s, a);
    if (s->v->wide) return logit64(x, s->v->scale, more, g, s->v->by);
    return (double)logit32((float)x, (float)s->v->scale, (float)more, (float)g, (float)s->v->by);
}

static double growth(int64_t n)
{
    return fmax(1, fmin((double)n, 4 * sqrt((double)n)));
}

/* What is left out has its value in every case. */
static void put_all(const slice *s, double kept)
{
    for (int64_t a = 0; a < s->v->n; a++)
        put(s, a, is_kept(s, a) ? kept : s->d->log ? -INFINITY : 0, 0);
}

static void choose(const slice *s)
{
    double max = -INFINITY;
    int64_t place = 0;
    for (int64_t a = 0; a < s->v->n; a++) {
        const double z = is_kept(s, a) ? rounded_logit(s, a) : -INFINITY;
        if (z > max) max = z, place = a;
    }
    for (int64_t a = 0; a < s->v->n; a++) put(s, a, a == place, 0);
}

/* By Newton's method from the left, which ends where the same elements stay. */
static void sparsemax(const slice *s, long double max)
{
    long double t = -1;
    double worst = 0;
    for (int64_t count = 0, last = INT64_MAX;; last = count) {
        long double sum = 0;
        worst = 0, count = 0;
        for (int64_t a = 0; a < s->v->n; a++) {
            double error;
            if (!is_kept(s, a)) continue;
            const long double v = logit(s, a, &error) - max;
            if (v > t) sum += v, count++, worst = fmax(worst, error);
        }
        if (count >= last) break;
        t = (sum - 1) / (long double)count;
    }
    const double by = 1 / growth(s->v->n);
    for (int64_t a = 0; a < s->v->n; a++) {
        double error;
        const long double v = logit(s, a, &error) - max - t;
        if (is_kept(s, a))
            put(s, a, v > 0 ? (double)v : 0, 1 + fmax((double)v, 0) + (error + worst + 1) * by);
        else
            put(s, a, 0, 0);
    }
}

static void softmax(const slice *s, long double max)
{
    long double sum = 0;
    double spread = 0, error;
    for (int64_t a = 0; a < s->v->n; a++) {
        if (!is_kept(s, a)) continue;
        const long double v = logit(s, a, &error) - max, e = expl(v);
        sum += e;
        if (e > 0) spread += (double)(e * (fabsl(v) + (long double)error));
    }
    spread /= (double)sum;
    const double by = 1 / growth(s->v->n);
    for (int64_t a = 0; a < s->v->n; a++) {
        if (!is_kept(s, a)) {
            put(s, a, s->d->log ? -INFINITY : 0, 0);
            continue;
        }
        const long double v = logit(s, a, &error) - max;
        const double off = (double)fabsl(v) + error;
        if (s->d->log) {
            const double log_sum = (double)logl(sum);
            put(s, a, (double)(v - logl(sum)), 1 + (off + log_sum + spread) * by);
        } else {
            const double p = (double)(expl(v) / sum);
            put(s, a, p, p > 0 ? p * (1 + (off + spread) * by) : p);
        }
    }
}

static void forward(const slice *s)
{
    long double max = -INFINITY;
    bool nan = false;
    for (int64_t a = 0; a < s->v->n; a++) {
        double error;
        if (!is_kept(s, a)) continue;
        const long double z = logit(s, a, &error);
        nan |= isnan(z) != 0;
        if (z > max) max = z;
    }
    if (nan || isinf(max))
        put_all(s, NAN);
    else if (s->d->hard)
        choose(s);
    else if (s->d->kind == MICA_SOFTMAX_KIND_SPARSEMAX)
        sparsemax(s, max);
    else
        softmax(s, max);
}

static void backward(const slice *s)
{
    const bool sparse = s->d->kind == MICA_SOFTMAX_KIND_SPARSEMAX;
    const double f = s->d->scale / s->d->tau;
    long double sum = 0;
    double magnitude = 0;
    int64_t count = 0;
    for (int64_t a = 0; a < s->v->n; a++) {
        const double y = value(s, MICA_SOFTMAX_PLACE_IN, a);
        if (!is_kept(s, a) || (sparse && !(y > 0))) continue;
        const double g = value(s, MICA_SOFTMAX_PLACE_GRAD, a), v = s->d->log || sparse ? g : g * y;
        sum += (long double)v;
        magnitude += fabs(v);
        count++;
    }
    if (sparse && count) sum /= (long double)count, magnitude /= (double)count;
    for (int64_t a = 0; a < s->v->n; a++) {
        const double y = value(s, MICA_SOFTMAX_PLACE_IN, a);
        if (!is_kept(s, a) || (sparse && !(y > 0))) {
            put(s, a, 0, 0);
            continue;
        }
        const double g = value(s, MICA_SOFTMAX_PLACE_GRAD, a), total = (double)sum;
        const double p = s->d->log ? exp(y) : 1, weight = s->d->log || sparse ? 1 : y;
        const double units = s->d->log ? 1 + 2 * MICA_EXP_ULPS / growth(s->v->n) : 1;
        put(s, a, f * weight * (g - p * total),
            fabs(f * weight) * (fabs(g) + units * p * magnitude));
    }
}

void mica_softmax_variants_reference(const mica_softmax_desc *d, const mica_view *args)
{
    mica_softmax_variant v;
    mica_softmax_variant_make(&v, d, args);
    mica_random_stream stream = {0};
    if (v.noise)
        stream =
            mica_random_stream_of(args[MICA_SOFTMAX_RNG].data, args[MICA_SOFTMAX_RNG].t.strides[0]);
    const int64_t count = v.n ? v.outer.count : 0;
#pragma omp parallel for num_threads(mica_cpu_threads())
    for (int64_t i = 0; i < count; i++) {
        slice s = {.d = d, .v = &v, .views = args, .stream = stream};
        mica_softmax_variant_slice(&v, i, s.at);
        if (d->pass == MICA_SOFTMAX_FWD)
            forward(&s);
        else
            backward(&s);
    }
}
