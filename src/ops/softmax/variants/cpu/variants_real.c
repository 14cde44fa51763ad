/* SPDX-License-Identifier: Apache-2.0
 * One slice of softmax's variants on the CPU. What is left out has the logit -inf, and so neither a
 * maximum nor an exponential; only where the slice has none that is finite is the mask asked again.
 */
#include "ops/softmax/variants/cpu/variants_cpu.h"
#include "ops/convert/cpu/real.h"
#include "ops/reduce/cpu/rows.h"
#include "ops/softmax/variants/variants_body.h"
#include "cpu/scratch.h"

#include <math.h>

#if REAL_F64
#define SLICE_OF  mica_softmax_variant_f64
#define LOGIT     logit64
#define NOISE_AT  gumbel_at64
#define PER_BLOCK 2
#else
#define SLICE_OF  mica_softmax_variant_f32
#define LOGIT     logit32
#define NOISE_AT  gumbel_at32
#define PER_BLOCK 4
#endif

enum { CHUNK = 1024, KEPT = 16384, LANES = 8, WORDS = 4 * (CHUNK / PER_BLOCK + 2) };

typedef struct slice {
    const mica_softmax_variant_run *r;
    const mica_softmax_variant *v;
    int64_t at[MICA_SOFTMAX_PLACES];
    real *kept;           /* NULL: logits are formed each time */
    real *values, *other; /* of a chunk */
    uint32_t *words;
    real max, by; /* by: of the sum */
    bool log;
} slice;

/* ---- the mask, and noise ---- */

/* Puts `with` where an element is left out. */
MICA_MEMORY_CLONES static void leave_out(const uint8_t *mask, int64_t step, real with, real *v,
                                         int64_t n)
{
    for (int64_t i = 0; i < n; i++) v[i] = mask[i * step] ? v[i] : with;
}

MICA_MEMORY_CLONES static void leave_out_added(const real *mask, real with, real *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) v[i] = mask[i] == -(real)INFINITY ? with : v[i];
}

static void load(const slice *s, int place, int64_t from, int64_t n, real *to)
{
    const int64_t step = s->v->along[place];
    real_load(s->v->type[place], s->r->data[place], s->at[place] + from * step, step, to, n);
}

static void store(const slice *s, int64_t from, int64_t n, const real *values)
{
    const int place = MICA_SOFTMAX_PLACE_OUT;
    const int64_t step = s->v->along[place];
    real_store(s->v->type[place], s->r->data[place], s->at[place] + from * step, step, values, n);
}

/* s->other: may be overwritten. */
static void mask_out(const slice *s, int64_t from, int64_t n, real with, real *v)
{
    const int place = MICA_SOFTMAX_PLACE_MASK;
    const int64_t step = s->v->along[place];
    if (s->v->mask == MICA_SOFTMAX_MASK_BYTES) {
        const uint8_t *mask = (const uint8_t *)s->r->data[place] + s->at[place] + from * step;
        leave_out(mask, step, with, v, n);
    } else if (s->v->mask == MICA_SOFTMAX_MASK_ADDED) {
        load(s, place, from, n, s->other);
        leave_out_added(s->other, with, v, n);
    }
}

/* Words of the counters from `block` on. */
CLONES static void draw_words(const mica_softmax_variant_run *r, int64_t block, int64_t n,
                              uint32_t *to)
{
    for (int64_t b = 0; b < n; b++) {
        uint32_t w[4];
        random_words(r->key, r->offset, (uint64_t)(block + b), 0, w);
        for (int k = 0; k < 4; k++) to[4 * b + k] = w[k];
    }
}

CLONES static void noise_of_words(const uint32_t *w, real *g, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
#if REAL_F64
        g[i] = gumbel64(random_wide(w + 2 * i));
#else
        g[i] = gumbel32(w[i]);
#endif
}

static void noise_apart(const mica_softmax_variant_run *r, int64_t index, int64_t step, real *g,
                        int64_t n)
{
    for (int64_t i = 0; i < n; i++) g[i] = NOISE_AT(r->key, r->offset, index + i * step);
}

static void noise(const slice *s, int64_t from, int64_t n, real *g)
{
    const int64_t step = s->v->along[MICA_SOFTMAX_PLACE_INDEX];
    const int64_t index = s->at[MICA_SOFTMAX_PLACE_INDEX] + from * step;
    if (step != 1) {
        noise_apart(s->r, index, step, g, n);
        return;
    }
    const int64_t first = index / PER_BLOCK, last = (index + n - 1) / PER_BLOCK;
    draw_words(s->r, first, last - first + 1, s->words);
    noise_of_words(s->words + index % PER_BLOCK * (4 / PER_BLOCK), g, n);
}

/* ---- logits ---- */

MICA_MEMORY_CLONES static void add_up(real scale, real by, const real *more, const real *g, real *z,
                                      int64_t n)
{
    if (more && g)
        for (int64_t i = 0; i < n; i++) z[i] = LOGIT(z[i], scale, more[i], g[i], by);
    else if (more || g)
        for (int64_t i = 0; i < n; i++) z[i] = LOGIT(z[i], scale, (more ? more : g)[i], 0, by);
    else
        for (int64_t i = 0; i < n; i++) z[i] = LOGIT(z[i], scale, 0, 0, by);
}

static void form(const slice *s, int64_t from, int64_t n, real *z)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    real *g = s->v->noise ? mica_scratch_take(CHUNK * sizeof *g) : NULL;
    const bool adds = s->v->mask == MICA_SOFTMAX_MASK_ADDED;
    load(s, MICA_SOFTMAX_PLACE_IN, from, n, z);
    if (g) noise(s, from, n, g);
    if (adds) load(s, MICA_SOFTMAX_PLACE_MASK, from, n, s->other);
    add_up((real)s->v->scale, (real)s->v->by, adds ? s->other : NULL, g, z, n);
    mask_out(s, from, n, -(real)INFINITY, z);
}

static int64_t chunk_at(const slice *s, int64_t from)
{
    return s->v->n - from < CHUNK ? s->v->n - from : CHUNK;
}

static const real *logits(const slice *s, int64_t from, int64_t n)
{
    if (s->kept) return s->kept + from;
    form(s, from, n, s->values);
    return s->values;
}

MICA_MEMORY_CLONES static int64_t count_nan(const real *v, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += v[i] != v[i];
    return count;
}

static real row_max(const real *z, int64_t n)
{
#if REAL_F64
    return mica_row_max_f64(z, n);
#else
    return mica_row_max(z, n);
#endif
}

/* The maximum; false where the slice has none that is finite, or a NaN. */
static bool find_max(slice *s)
{
    int64_t bad = 0;
    s->max = -(real)INFINITY;
    for (int64_t from = 0, n; from < s->v->n; from += n) {
        n = chunk_at(s, from);
        real *z = s->kept ? s->kept + from : s->values;
        form(s, from, n, z);
        bad += count_nan(z, n);
        const real max = row_max(z, n);
        if (max > s->max) s->max = max;
    }
    return !bad && isfinite(s->max);
}

/* ---- forward ---- */

static void put_bad(const slice *s)
{
    for (int64_t from = 0, n; from < s->v->n; from += n) {
        n = chunk_at(s, from);
        for (int64_t i = 0; i < n; i++) s->values[i] = (real)NAN;
        mask_out(s, from, n, s->log ? -(real)INFINITY : 0, s->values);
        store(s, from, n, s->values);
    }
}

static double exp_sum(const real *z, real max, int64_t n, real *e)
{
#if REAL_F64
    return mica_row_exp_sum_f64(z, max, n, e);
#else
    return (double)mica_row_exp_sum(z, max, n, e, z, sizeof *z);
#endif
}

static void scaled(const real *e, real by, int64_t n, real *y)
{
#if REAL_F64
    mica_row_scale_f64(e, by, n, y);
#else
    mica_row_scale(e, by, n, y);
#endif
}

static void logarithms(const real *z, real max, real log_sum, int64_t n, real *y)
{
#if REAL_F64
    mica_row_subtract_f64(z, max, log_sum, n, y);
#else
    mica_row_subtract(z, max, log_sum, n, y);
#endif
}

/* Kept logits make way for their exponentials. */
static void softmax(slice *s)
{
    double sum = 0;
    for (int64_t from = 0, n; from < s->v->n; from += n) {
        n = chunk_at(s, from);
        const real *z = logits(s, from, n);
        sum += exp_sum(z, s->max, n, s->kept && !s->log ? s->kept + from : s->values);
    }
    s->by = (real)(s->log ? log(sum) : 1 / sum);
    for (int64_t from = 0, n; from < s->v->n; from += n) {
        n = chunk_at(s, from);
        const real *z = logits(s, from, n);
        if (s->log) {
            logarithms(z, s->max, s->by, n, s->values);
        } else {
            if (!s->kept) exp_sum(z, s->max, n, s->values);
            scaled(s->kept ? z : s->values, s->by, n, s->values);
        }
        store(s, from, n, s->values);
    }
}

MICA_MEMORY_CLONES static int64_t above(const real *z, real max, double t, double *sum, int64_t n)
{
    MICA_ALIGNED double lane[LANES] = {0};
    int64_t count = 0;
    for (int64_t i = 0; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            const double v = (double)(z[i + l] - max);
            lane[l] += v > t ? v : 0;
            count += v > t;
        }
    for (int64_t i = n / LANES * LANES; i < n; i++) {
        const double v = (double)(z[i] - max);
        lane[0] += v > t ? v : 0;
        count += v > t;
    }
    for (int l = 0; l < LANES; l++) *sum += lane[l];
    return count;
}

MICA_MEMORY_CLONES static void exceed(const real *z, real max, double t, real *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const double v = (double)(z[i] - max) - t;
        y[i] = v > 0 ? (real)v : 0;
    }
}

/* By Newton's method from the left, which ends where the same elements stay. */
static void sparsemax(slice *s)
{
    double t = -1;
    for (int64_t count = 0, last = INT64_MAX;; last = count) {
        double sum = 0;
        count = 0;
        for (int64_t from = 0, n; from < s->v->n; from += n) {
            n = chunk_at(s, from);
            count += above(logits(s, from, n), s->max, t, &sum, n);
        }
        if (count >= last) break;
        t = (sum - 1) / (double)count;
    }
    for (int64_t from = 0, n; from < s->v->n; from += n) {
        n = chunk_at(s, from);
        exceed(logits(s, from, n), s->max, t, s->values, n);
        store(s, from, n, s->values);
    }
}

static void choose(slice *s)
{
    int64_t place = -1;
    for (int64_t from = 0, n; from < s->v->n && place < 0; from += n) {
        n = chunk_at(s, from);
        const real *z = logits(s, from, n);
        for (int64_t i = 0; i < n && place < 0; i++)
            if (z[i] == s->max) place = from + i;
    }
    for (int64_t from = 0, n; from < s->v->n; from += n) {
        n = chunk_at(s, from);
        for (int64_t i = 0; i < n; i++) s->values[i] = from + i == place;
        store(s, from, n, s->values);
    }
}

static void forward(slice *s)
{
    if (!find_max(s))
        put_bad(s);
    else if (s->r->d->hard)
        choose(s);
    else if (s->r->d->kind == MICA_SOFTMAX_KIND_SPARSEMAX)
        sparsemax(s);
    else
        softmax(s);
}

/* ---- backward ---- */

MICA_MEMORY_CLONES static double sum_of(const real *y, const real *dy, int64_t n)
{
    MICA_ALIGNED double lane[LANES] = {0};
    double sum = 0;
    for (int64_t i = 0; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += y ? (double)y[i + l] * (double)dy[i + l] : (double)dy[i + l];
    for (int64_t i = n / LANES * LANES; i < n; i++)
        sum += y ? (double)y[i] * (double)dy[i] : (double)dy[i];
    for (int l = 0; l < LANES; l++) sum += lane[l];
    return sum;
}

/* Of a sparsemax: y becomes 1 where it is above 0, and dy 0 elsewhere; how many are above. */
MICA_MEMORY_CLONES static int64_t support(real *y, real *dy, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        const bool in = y[i] > 0;
        y[i] = in ? 1 : 0;
        dy[i] = in ? dy[i] : 0;
        count += in;
    }
    return count;
}

MICA_MEMORY_CLONES static void weigh(const real *y, real *dy, real sum, real factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++) dy[i] = y[i] * (dy[i] - sum) * factor;
}

static void weigh_logarithm(const real *y, real *dy, real sum, real factor, int64_t n)
{
#if REAL_F64
    for (int64_t i = 0; i < n; i++) dy[i] = (dy[i] - exp(y[i]) * sum) * factor;
#else
    mica_row_log_softmax_bwd(y, dy, sum, n, dy);
    mica_row_scale(dy, factor, n, dy);
#endif
}

static int64_t load_both(const slice *s, int64_t from, int64_t n, real *dy)
{
    load(s, MICA_SOFTMAX_PLACE_IN, from, n, s->values);
    load(s, MICA_SOFTMAX_PLACE_GRAD, from, n, dy);
    mask_out(s, from, n, 0, s->values);
    mask_out(s, from, n, 0, dy);
    return s->r->d->kind == MICA_SOFTMAX_KIND_SPARSEMAX ? support(s->values, dy, n) : n;
}

static void backward(slice *s)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    real *dy = mica_scratch_take(CHUNK * sizeof *dy);
    const bool sparse = s->r->d->kind == MICA_SOFTMAX_KIND_SPARSEMAX;
    double sum = 0;
    int64_t count = 0;
    for (int64_t from = 0, n; from < s->v->n; from += n) {
        n = chunk_at(s, from);
        count += load_both(s, from, n, dy);
        sum += sum_of(s->log || sparse ? NULL : s->values, dy, n);
    }
    if (sparse) sum = count ? sum / (double)count : 0;
    for (int64_t from = 0, n; from < s->v->n; from += n) {
        n = chunk_at(s, from);
        load_both(s, from, n, dy);
        if (s->log)
            weigh_logarithm(s->values, dy, (real)sum, (real)s->v->by, n);
        else
            weigh(s->values, dy, (real)sum, (real)s->v->by, n);
        mask_out(s, from, n, 0, dy);
        store(s, from, n, dy);
    }
}

void SLICE_OF(const mica_softmax_variant_run *r, int64_t slice_index)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    slice s = {.r = r, .v = r->v, .log = r->d->log};
    const bool fwd = r->d->pass == MICA_SOFTMAX_FWD;
    mica_softmax_variant_slice(r->v, slice_index, s.at);
    s.values = mica_scratch_take(CHUNK * sizeof *s.values);
    s.other = mica_scratch_take(CHUNK * sizeof *s.other);
    if (r->v->noise) s.words = mica_scratch_take(WORDS * sizeof *s.words);
    if (fwd && r->v->n <= KEPT) s.kept = mica_scratch_take(KEPT * sizeof *s.kept);
    if (fwd)
        forward(&s);
    else
        backward(&s);
}
