/* SPDX-License-Identifier: Apache-2.0
 * Reference of normalisation: two-pass statistics in double precision, sums in twice that, since
 * f64's engines are compared with them, too. Each value travels with a magnitude: what a unit of
 * relative rounding anywhere before it could move it by, so that the tolerance phi * magnitude
 * covers honest engines and no more. u is the accumulator's unit. */
#include "ops/norm/norm.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "cpu/cpu.h"

typedef struct number {
    double value, mag;
} number;

/* A sum and what rounding took from it (two-sum: Knuth, The Art of Computer Programming, 4.2.2). */
typedef struct long_sum {
    double high, low;
} long_sum;

static void add(long_sum *s, double v)
{
    double sum = s->high + v, part = sum - s->high;
    s->low += (s->high - (sum - part)) + (v - part);
    s->high = sum;
}

/* Infinities and NaN stay what they are. */
static double total(long_sum s)
{
    return isfinite(s.low) ? s.high + s.low : s.high;
}

typedef struct truth {
    const mica_norm_desc *d;
    const mica_view *v;
    norm_split sets, channels;
    double beta;
    double unit;  /* of the accumulator */
    double floor; /* magnitude that stands for a product's underflow */
    double phi;   /* of a plain sum over one set: bounds what enters squared */
} truth;

/* One element's place: linear indices into a split, and for the offsets of all arguments the kept
 * index's part and the reduced index along each dimension. */
typedef struct place {
    const norm_split *split;
    int64_t reduced;
    int64_t base[NORM_ARG_COUNT], at[MICA_LAYOUT_RANK];
} place;

static place first_of(const norm_split *split, int64_t kept)
{
    place p = {.split = split};
    for (int arg = 0; arg < NORM_ARG_COUNT; arg++)
        p.base[arg] = mica_norm_offset(&split->kept, arg, kept);
    return p;
}

static void next(place *p)
{
    const norm_space *s = &p->split->reduced;
    p->reduced++;
    for (int d = s->rank - 1; d >= 0 && ++p->at[d] == s->dims[d]; d--) p->at[d] = 0;
}

static int64_t offset_of(const place *p, int arg)
{
    const norm_space *s = &p->split->reduced;
    int64_t offset = p->base[arg];
    for (int d = 0; d < s->rank; d++) offset += p->at[d] * s->strides[arg][d];
    return offset;
}
static double get(const truth *t, int arg, const place *p, double absent)
{
    const mica_view *v = &t->v[arg];
    return v->data ? mica_get(v, offset_of(p, arg)) : absent;
}
static void put(const truth *t, int arg, const place *p, number n)
{
    const mica_view *v = &t->v[arg];
    if (v->data) mica_put(v, offset_of(p, arg), n.value, n.mag);
}

static bool is_infer(const truth *t)
{
    return t->d->mode == MICA_NORM_INFER;
}
static bool is_centred(const truth *t)
{
    return t->d->kind != MICA_NORM_RMS;
}

/* ---- statistics ---- */

typedef struct moments {
    number mean, var, rstd;
} moments;

static number input(const truth *t, const place *p)
{
    bool in_front = mica_norm_is_trailing(t->d);
    double x = get(t, MICA_NORM_X, p, 0), r = in_front ? get(t, MICA_NORM_RESIDUAL, p, 0) : 0;
    return (number){x + r, fabs(x) + fabs(r)};
}

static number reciprocal_root(const truth *t, number var)
{
    double sum = var.value + t->d->eps, rstd = 1 / sqrt(sum) + (sum - sum);
    return (number){rstd, rstd * (4 + 0.5 * var.mag / sum)};
}

/* What is added behind the affine step. */
static double added_behind(const truth *t, const place *p)
{
    return mica_norm_is_trailing(t->d) ? 0 : get(t, MICA_NORM_RESIDUAL, p, 0);
}

/* Of subnormal numbers it is no nearer than they are to each other. */
static number mean_of(const truth *t, place p, int64_t n)
{
    long_sum sum = {0, 0};
    double mag = 0;
    for (; p.reduced < n; next(&p)) {
        number u = input(t, &p);
        add(&sum, u.value);
        mag += u.mag;
    }
    return n ? (number){total(sum) / (double)n, mag / (double)n + t->floor} : (number){0, 0};
}

/* An error e of the mean adds e^2 to the variance of two-pass sums: phi * mean.mag squared. The
 * rounding of x + residual moves each deviation. */
static number variance_of(const truth *t, place p, int64_t n, number mean)
{
    long_sum sum = {0, 0};
    double moved = 0, largest = 0;
    for (; p.reduced < n; next(&p)) {
        number u = input(t, &p);
        double deviation = u.value - mean.value;
        add(&sum, deviation * deviation);
        moved += 2 * fabs(deviation) * u.mag;
        largest = fmax(largest, deviation * deviation);
    }
    if (n == 0) return (number){0, 0};
    double var = total(sum) / (double)n, mag = 3 * var + t->phi * mean.mag * mean.mag;
    /* f32's squares overflow one by one, or in their sum, by its order and what they are about. */
    const double most = t->unit > 0x1p-40 ? FLT_MAX : DBL_MAX;
    if (largest > most / 4 || total(sum) > most / 16) mag = INFINITY;
    if (largest > 4 * most) var = INFINITY;
    return (number){var, mag + (mica_norm_adds_in_front(t->d) ? moved / (double)n : 0)};
}

static moments moments_of(const truth *t, int64_t set)
{
    place p = first_of(&t->sets, set);
    moments m = {{0, 0}, {0, 0}, {0, 0}};
    if (is_infer(t)) {
        m.mean.value = get(t, MICA_NORM_RUNNING_MEAN, &p, 0), m.mean.mag = fabs(m.mean.value);
        m.var.value = m.var.mag = get(t, MICA_NORM_RUNNING_VAR, &p, 0);
    } else {
        int64_t n = t->sets.reduced.count;
        if (is_centred(t)) m.mean = mean_of(t, p, n);
        m.var = variance_of(t, p, n, m.mean);
    }
    m.rstd = reciprocal_root(t, m.var);
    return m;
}

/* (1 - momentum) * running + momentum * statistic, the variance unbiased unless asked for as it is.
 */
static void update_running(const truth *t, const place *p, const moments *m)
{
    double n = (double)t->sets.reduced.count, w = t->d->momentum;
    double unbiased = mica_norm_unbiased(t->d);
    double old_mean = get(t, MICA_NORM_RUNNING_MEAN, p, 0);
    double old_var = get(t, MICA_NORM_RUNNING_VAR, p, 0);
    number mean = {(1 - w) * old_mean + w * m->mean.value,
                   2 * fabs(old_mean) + 2 * w * m->mean.mag};
    number var = {(1 - w) * old_var + w * unbiased * m->var.value,
                  2 * fabs(old_var) + 2 * w * unbiased * m->var.mag};
    if (is_infer(t) || n == 0) mean = (number){old_mean, 0}, var = (number){old_var, 0};
    put(t, MICA_NORM_RUNNING_MEAN, p, mean);
    put(t, MICA_NORM_RUNNING_VAR, p, var);
}

/* ---- forward ---- */

static number activated(const mica_norm_desc *d, number z)
{
    if (d->act == MICA_ACT_IDENTITY) return z;
    /* Rounding of z passes through the slope; slopes exceed 1 a little, squared_relu's without
     * bound. */
    double slope = fabs(mica_act_slope(d->act, z.value, d->act_a, d->act_b));
    double y = mica_act_value(d->act, z.value, d->act_a, d->act_b);
    return (number){y, fmax(z.mag * fmax(slope, 1.2), fabs(y))};
}

static number forward(const truth *t, const place *p, const moments *m, number u)
{
    double scale = get(t, MICA_NORM_SCALE, p, 1), bias = get(t, MICA_NORM_BIAS, p, 0);
    double deviation = u.value - m->mean.value, rstd = m->rstd.value;
    double added = added_behind(t, p);
    number z = {scale * deviation * rstd + bias + added, fabs(bias) + fabs(added)};
    z.mag += t->floor * (1 + fabs(scale));
    z.mag += fabs(scale) * (rstd * (u.mag + m->mean.mag) + fabs(deviation) * m->rstd.mag);
    return activated(t->d, z);
}

static void forward_set(const truth *t, int64_t set)
{
    moments m = moments_of(t, set);
    place p = first_of(&t->sets, set);
    put(t, MICA_NORM_MEAN, &p, m.mean);
    put(t, MICA_NORM_RSTD, &p, m.rstd);
    if (t->d->kind == MICA_NORM_BATCH) update_running(t, &p, &m);
    for (; p.reduced < t->sets.reduced.count; next(&p)) {
        number u = input(t, &p);
        number y = forward(t, &p, &m, u);
        put(t, MICA_NORM_SUM, &p, u);
        put(t, MICA_NORM_Y, &p, y);
    }
}

/* ---- backward ---- */

typedef struct gradient {
    number xhat;
    number dz; /* of the value in front of the activation */
    double scale;
    double rstd;
} gradient;

/* The slope at a z that is known to u * z.mag. Where that interval holds a kink, any slope in it is
 * right: the jump enters without regard to how small phi is. */
static number slope_of(const truth *t, number z)
{
    const mica_norm_desc *d = t->d;
    if (d->act == MICA_ACT_IDENTITY) return (number){1, 1};
    double reach = t->unit * z.mag, at = mica_act_slope(d->act, z.value, d->act_a, d->act_b);
    double low = mica_act_slope(d->act, z.value - reach, d->act_a, d->act_b);
    double high = mica_act_slope(d->act, z.value + reach, d->act_a, d->act_b);
    double jump = fmax(fabs(low - at), fabs(high - at));
    return (number){at, fabs(at) + 1 + jump / t->unit};
}

static gradient gradient_of(const truth *t, const place *p)
{
    double mean = get(t, MICA_NORM_MEAN, p, 0), rstd = get(t, MICA_NORM_RSTD, p, 0);
    if (is_infer(t)) {
        mean = get(t, MICA_NORM_RUNNING_MEAN, p, 0);
        double var = get(t, MICA_NORM_RUNNING_VAR, p, 0);
        rstd = 1 / sqrt(var + t->d->eps) + (var - var);
    }
    double x = get(t, MICA_NORM_X, p, 0), dy = get(t, MICA_NORM_DY, p, 0);
    gradient g = {.scale = get(t, MICA_NORM_SCALE, p, 1), .rstd = rstd};
    g.xhat.value = (x - mean) * rstd;
    g.xhat.mag = 2 * fabs(g.xhat.value) + t->floor;
    double bias = get(t, MICA_NORM_BIAS, p, 0), added = added_behind(t, p);
    number z = {g.scale * g.xhat.value + bias + added, 0};
    z.mag = 2 * fabs(g.scale) * g.xhat.mag + 2 * fabs(bias) + 2 * fabs(added) + t->floor;
    number slope = slope_of(t, z);
    g.dz = (number){dy * slope.value, fabs(dy) * slope.mag + t->floor};
    return g;
}

/* Sums of f = scale * dz (or dz) and of f * xhat. */
typedef struct sums {
    number plain, with_xhat;
} sums;

static sums sum_gradients(const truth *t, place p, bool scaled)
{
    sums s = {{0, 0}, {0, 0}};
    long_sum plain = {0, 0}, with_xhat = {0, 0};
    for (; p.reduced < p.split->reduced.count; next(&p)) {
        gradient g = gradient_of(t, &p);
        double f = scaled ? g.scale : 1;
        add(&plain, f * g.dz.value);
        add(&with_xhat, f * g.dz.value * g.xhat.value);
        s.plain.mag += fabs(f) * g.dz.mag;
        s.with_xhat.mag += fabs(f) * g.dz.mag * g.xhat.mag;
    }
    s.plain.value = total(plain), s.with_xhat.value = total(with_xhat);
    return s;
}

/* dx = rstd (g - mean(g) - xhat mean(g xhat)), g = scale dz; rms has no mean(g); with running
 * statistics both means are absent. */
static void backward_set(const truth *t, int64_t set)
{
    place p = first_of(&t->sets, set);
    sums s = {{0, 0}, {0, 0}};
    if (!is_infer(t)) s = sum_gradients(t, p, true);
    if (!is_centred(t)) s.plain = (number){0, 0};
    double n = (double)t->sets.reduced.count;
    for (; p.reduced < t->sets.reduced.count; next(&p)) {
        gradient g = gradient_of(t, &p);
        double inner =
            g.scale * g.dz.value - s.plain.value / n - g.xhat.value * s.with_xhat.value / n;
        double mag =
            2 * fabs(g.scale) * g.dz.mag + s.plain.mag / n + g.xhat.mag * s.with_xhat.mag / n;
        number dx = {g.rstd * inner, g.rstd * mag};
        double old = t->beta != 0 ? t->beta * get(t, MICA_NORM_DX, &p, 0) : 0;
        put(t, MICA_NORM_DX, &p, (number){dx.value + old, dx.mag + 2 * fabs(old)});
        put(t, MICA_NORM_DRESIDUAL, &p, g.dz);
    }
}

static void backward_channel(const truth *t, int64_t channel)
{
    place p = first_of(&t->channels, channel);
    sums s = sum_gradients(t, p, false);
    put(t, MICA_NORM_DSCALE, &p, s.with_xhat);
    put(t, MICA_NORM_DBIAS, &p, s.plain);
}

/* ---- both ---- */

static bool any_present(const truth *t, int a, int b)
{
    return t->v[a].data || t->v[b].data;
}

static int threads_for(const truth *t)
{
    return mica_cpu_threads_for(64 * (double)mica_tensor_count(&t->d->x));
}

static void forward_all(const truth *t)
{
    int threads = threads_for(t);
    bool wanted = mica_tensor_count(&t->d->x) > 0 ||
                  any_present(t, MICA_NORM_MEAN, MICA_NORM_RSTD) ||
                  any_present(t, MICA_NORM_RUNNING_MEAN, MICA_NORM_RUNNING_VAR);
    int64_t count = wanted ? t->sets.kept.count : 0;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t set = 0; set < count; set++) forward_set(t, set);
}

/* dscale and dbias come first: dx may stand where dy stood. */
static void backward_all(const truth *t)
{
    int threads = threads_for(t);
    bool affine = any_present(t, MICA_NORM_DSCALE, MICA_NORM_DBIAS);
    int64_t channels = affine ? t->channels.kept.count : 0;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t channel = 0; channel < channels; channel++) backward_channel(t, channel);
    bool wanted =
        mica_tensor_count(&t->d->x) > 0 && any_present(t, MICA_NORM_DX, MICA_NORM_DRESIDUAL);
    int64_t count = wanted ? t->sets.kept.count : 0;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t set = 0; set < count; set++) backward_set(t, set);
}

void mica_norm_reference(const void *desc, const mica_view *args, const double *scalars)
{
    /* The views may be packed copies: their own strides hold, not the descriptor's. */
    mica_norm_desc d = *(const mica_norm_desc *)desc;
    for (int i = 0; i < NORM_ARG_COUNT; i++)
        if (args[i].data)
            memcpy((char *)&d + mica_op_norm.args[i].tensor, &args[i].t, sizeof args[i].t);
    truth t = {.d = &d, .v = args, .beta = scalars[MICA_NORM_BETA]};
    mica_norm_split_sets(&d, &t.sets);
    mica_norm_split_channels(&d, &t.channels);
    mica_contract contract;
    mica_op_contract(&mica_op_norm, desc, &contract);
    t.unit = contract.unit;
    t.floor = t.unit == mica_dtype_unit(MICA_F64) ? 0x1p-1021 : 0x1p-125;
    double n = (double)t.sets.reduced.count;
    t.phi = t.unit * fmin(n, 4 * sqrt(n));
    if (t.d->pass == MICA_NORM_FWD)
        forward_all(&t);
    else
        backward_all(&t);
}
