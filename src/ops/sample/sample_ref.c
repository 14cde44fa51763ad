/* SPDX-License-Identifier: Apache-2.0
 * Sampling of tokens: the truth. Where a cumulated weight or count is reached is found byte by byte
 * of the place in the order, by sums over the whole row. */
#include "ops/sample/sample.h"
#include "ops/sample/sample_body.h"

#include <math.h>

typedef struct truth {
    const mica_sample_desc *d;
    mica_sample_args a;
    mica_load_fn x, bias;
    sample_row p; /* of the row */
    int64_t row;
    bool raw; /* x as it came */
    float max;
    uint32_t least;
} truth;

static bool bit_of(const truth *t, mica_sample_operand o, int64_t c)
{
    return o.at && sample_bit(o, t->row, c);
}

/* What is compared and exponentiated. */
static float value_of(const truth *t, int64_t c)
{
    const mica_sample_args *a = &t->a;
    const float v = (float)t->x(a->x.at, t->row * a->x.row + c * a->x.column);
    const bool allowed = t->raw || !a->mask.at || bit_of(t, a->mask, c);
    if (t->d->input == MICA_SAMPLE_PROBABILITIES) return sample_probability(v, allowed);
    if (t->raw) return v == v ? v : SAMPLE_NEVER;
    float bias = 0;
    int count = 0;
    if (a->bias.at) bias = (float)t->bias(a->bias.at, t->row * a->bias.row + c * a->bias.column);
    if (a->counts.at)
        count = ((const int *)a->counts.at)[t->row * a->counts.row + c * a->counts.column];
    return sample_tempered(
        &t->p, sample_penalised(&t->p, v, allowed, bias, count, bit_of(t, a->prompt, c)));
}

static int64_t find_max(truth *t)
{
    int64_t at = -1;
    t->max = SAMPLE_NEVER;
    for (int64_t c = 0; c < t->a.columns; c++) {
        const float v = value_of(t, c);
        if (v > t->max) t->max = v, at = c;
    }
    return at;
}

typedef struct sums {
    uint64_t count, weight;
} sums;
enum { DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS, ALL_BITS = 56 };

/* Adds up those whose place in the order begins with the bits of `prefix` above shift + DIGIT_BITS,
 * by their next digit. */
static void sum_digits(const truth *t, int shift, uint64_t prefix, sums *digits)
{
    for (int64_t c = 0; c < t->a.columns; c++) {
        const float v = value_of(t, c);
        if (v == SAMPLE_NEVER) continue;
        const uint32_t key = sample_key(sample_share((int)t->d->input, v, t->max));
        const uint64_t place = (uint64_t)key * SAMPLE_COLUMNS + (uint64_t)(SAMPLE_COLUMNS - 1 - c);
        if (key < t->least || place >> shift >> DIGIT_BITS != prefix >> shift >> DIGIT_BITS)
            continue;
        sums *s = &digits[place >> shift & (DIGITS - 1)];
        s->count++;
        s->weight += sample_weight(key);
    }
}

static sums sum_all(const truth *t)
{
    sums digits[DIGITS] = {{0, 0}}, all = {0, 0};
    sum_digits(t, ALL_BITS - DIGIT_BITS, 0, digits);
    for (int i = 0; i < DIGITS; i++) all.count += digits[i].count, all.weight += digits[i].weight;
    return all;
}

/* The column at which so many, or so much weight, is reached, and the sums with it. */
static int64_t find(const truth *t, bool counted, uint64_t target, sums *through)
{
    uint64_t prefix = 0;
    sums before = {0, 0};
    for (int shift = ALL_BITS - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        sums digits[DIGITS] = {{0, 0}};
        sum_digits(t, shift, prefix, digits);
        uint64_t i = DIGITS - 1;
        for (;; i--) {
            through->count = before.count + digits[i].count;
            through->weight = before.weight + digits[i].weight;
            if ((counted ? through->count : through->weight) >= target) break;
            before = *through;
        }
        prefix |= i << shift;
    }
    return SAMPLE_COLUMNS - 1 - (int64_t)(prefix % SAMPLE_COLUMNS);
}

static int64_t draw(truth *t, uint64_t *left)
{
    t->least = sample_least(&t->p);
    sums s = sum_all(t), unused;
    if (s.count > (uint64_t)t->p.top_k) find(t, true, (uint64_t)t->p.top_k, &s);
    const uint64_t nucleus = sample_nucleus(&t->p, s.weight);
    if (nucleus < s.weight) find(t, false, nucleus, &s);
    *left = s.weight;
    return find(t, false, sample_target(&t->p, s.weight), &unused);
}

static float logprob_of(truth *t, int64_t token, uint64_t left)
{
    t->raw = t->d->logprobs == MICA_SAMPLE_RAW;
    if (token < 0) return SAMPLE_NEVER;
    if (t->raw) find_max(t);
    t->least = SAMPLE_LEAST;
    if (t->raw || t->p.greedy) left = sum_all(t).weight;
    return sample_logprob((int)t->d->input, value_of(t, token), t->max, left);
}

void mica_sample_reference(const void *desc, const mica_view *views, const double *scalars)
{
    truth t = {.d = desc};
    void *args[MICA_SAMPLE_FREQUENCIES + 1];
    mica_sample_desc viewed = *t.d;
    for (int i = 0; i <= MICA_SAMPLE_FREQUENCIES; i++) {
        args[i] = views[i].data;
        mica_tensor *tensor =
            (mica_tensor *)(void *)((char *)&viewed + mica_op_sample.args[i].tensor);
        if (views[i].data) *tensor = views[i].t;
    }
    mica_sample_args_make(&viewed, &t.a);
    mica_sample_args_scalars(scalars, &t.a);
    mica_sample_args_point(t.d, args, &t.a);
    t.x = views[MICA_SAMPLE_X].load, t.bias = views[MICA_SAMPLE_BIAS].load;
    for (t.row = 0; t.row < t.a.rows; t.row++) {
        t.raw = false;
        sample_row_make(&t.a, t.row, &t.p);
        uint64_t left = 0;
        int64_t token = find_max(&t);
        if (token >= 0 && !t.p.greedy) token = draw(&t, &left);
        mica_put(&views[MICA_SAMPLE_TOKEN], t.row * t.a.token_row, (double)token,
                 fabs((double)token));
        if (!t.a.logprob) continue;
        const double logprob = logprob_of(&t, token, left);
        mica_put(&views[MICA_SAMPLE_LOGPROB], t.row * t.a.logprob_row, logprob, fabs(logprob));
    }
}
