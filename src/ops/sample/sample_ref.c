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
    sample_left left;
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

/* The key of what is left, else 0. */
static uint32_t key_at(const truth *t, int64_t c)
{
    const float v = value_of(t, c);
    if (v == SAMPLE_NEVER) return 0;
    const uint32_t key = sample_key(sample_share((int)t->d->input, v, t->max));
    return key && sample_is_left(&t->left, key, c) ? key : 0;
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
        const uint32_t key = key_at(t, c);
        const uint64_t place = (uint64_t)key * SAMPLE_COLUMNS + (uint64_t)(SAMPLE_COLUMNS - 1 - c);
        if (key == 0 || place >> shift >> DIGIT_BITS != prefix >> shift >> DIGIT_BITS) continue;
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

/* All behind the column are left out. */
static void cut_at(truth *t, bool counted, uint64_t target, sums *s)
{
    const int64_t c = find(t, counted, target, s);
    t->left.cut = sample_element(key_at(t, c), c);
}

/* The least deviation up to which the weights reach what typical_p asks for, bit by bit. */
static uint64_t leave_typical(truth *t, uint64_t sum)
{
    uint64_t high = 0, low = 0;
    for (int64_t c = 0; c < t->a.columns; c++) {
        const uint32_t key = key_at(t, c);
        const uint64_t moment = key ? sample_moment(key) : 0;
        high += moment >> 32, low += moment & 0xffffffffu;
    }
    t->left.mean = sample_mean(high, low, sum);
    const uint64_t target = sample_reached(t->p.typical_p, sum);
    uint32_t below = 0; /* deviations below it do not reach the target */
    for (int bit = 28; bit >= 0; bit--) {
        t->left.deviation = below + (1u << bit) - 1;
        if (sum_all(t).weight < target) below += 1u << bit;
        t->left.deviation = UINT32_MAX;
    }
    t->left.deviation = below;
    return sum_all(t).weight;
}

static int64_t draw(truth *t, uint64_t *left)
{
    t->left = sample_left_from(sample_least(&t->p));
    sums s = sum_all(t), unused;
    if (s.count > (uint64_t)t->p.top_k) cut_at(t, true, (uint64_t)t->p.top_k, &s);
    const uint64_t nucleus = sample_reached(t->p.top_p, s.weight);
    if (nucleus < s.weight) cut_at(t, false, nucleus, &s);
    if (t->p.typical_p < 1) s.weight = leave_typical(t, s.weight);
    *left = s.weight;
    return find(t, false, sample_target(&t->p, s.weight), &unused);
}

/* The token's log-probability; the maximum and the sum of weights by which others have theirs. */
static float logprob_of(truth *t, int64_t token, uint64_t *left)
{
    const bool all = t->d->logprobs == MICA_SAMPLE_RAW || t->p.greedy;
    t->raw = t->d->logprobs == MICA_SAMPLE_RAW;
    if (token < 0) return SAMPLE_NEVER;
    if (t->raw) find_max(t);
    const sample_left drawn = t->left;
    t->left = sample_left_from(SAMPLE_LEAST);
    if (all) *left = sum_all(t).weight;
    const float logprob = sample_logprob((int)t->d->input, value_of(t, token), t->max, *left);
    t->left = all ? sample_left_from(0) : drawn;
    return logprob;
}

/* One after the other: each is the largest of those behind the one before. */
static void put_top(const truth *t, const mica_view *views, bool none, uint64_t left)
{
    uint64_t last = UINT64_MAX;
    for (int64_t i = 0; i < t->a.top; i++) {
        uint64_t next = 0;
        for (int64_t c = 0; !none && c < t->a.columns; c++) {
            const float v = value_of(t, c);
            const uint64_t rank = sample_rank(v, c);
            if (v == SAMPLE_NEVER || rank >= last || rank <= next) continue;
            if (t->left.least == 0 || key_at(t, c)) next = rank;
        }
        last = next;
        const int64_t token = next ? sample_rank_column(next) : -1;
        const double logprob =
            next ? sample_logprob((int)t->d->input, value_of(t, token), t->max, left)
                 : SAMPLE_NEVER;
        if (t->a.top_token)
            mica_put(&views[MICA_SAMPLE_TOP_TOKENS],
                     t->row * t->a.top_token_row + i * t->a.top_token_column, (double)token,
                     fabs((double)token));
        if (t->a.top_logprob)
            mica_put(&views[MICA_SAMPLE_TOP_LOGPROBS],
                     t->row * t->a.top_logprob_row + i * t->a.top_logprob_column, logprob,
                     fabs(logprob));
    }
}

void mica_sample_reference(const void *desc, const mica_view *views, const double *scalars)
{
    truth t = {.d = desc};
    enum { ARGS = MICA_SAMPLE_TOP_LOGPROBS + 1 };
    void *args[ARGS];
    mica_sample_desc viewed = *t.d;
    for (int i = 0; i < ARGS; i++) {
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
        if (!t.a.logprob && !t.a.top) continue;
        const double logprob = logprob_of(&t, token, &left);
        put_top(&t, views, token < 0, left);
        if (!t.a.logprob) continue;
        mica_put(&views[MICA_SAMPLE_LOGPROB], t.row * t.a.logprob_row, logprob, fabs(logprob));
    }
}
