/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of sample: a row per thread. The row's weights are put into bins by the leading bits
 * of their keys once; where a cumulated weight or count is reached is first found among bins, then
 * in the elements of one, bit by bit. typical_p is found digit by digit of deviations, the largest
 * values by a heap. Any strides; 12 bytes of workspace per column and thread. */
#include "ops/sample/sample.h"
#include "ops/convert/cpu/convert.h"
#include "ops/sample/sample_body.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"

#include <omp.h>

enum { PIECE = 1024, SHIFT = 18, BINS = (SAMPLE_BITS << (23 - SHIFT)) + 1 };

typedef struct state {
    mica_sample_args a;
    size_t room, keys, list; /* bookings, and what a thread has of them */
    int threads;
    double bytes;
} state;

typedef struct bin {
    uint64_t count, weight;
} bin;

typedef struct work {
    const mica_sample_desc *d;
    mica_sample_args a;
    int64_t row;
    sample_row p;
    float *x, *bias; /* PIECE */
    bin *bins;
    union {
        float *values; /* then: */
        uint32_t *keys;
    };
    union {
        uint64_t *list;
        uint32_t *deviations;
    };
    float max;
    sample_left left;
} work;

static mica_status build(mica_plan *plan)
{
    const mica_sample_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_sample_args_make(d, &s->a);
    s->bytes = (double)mica_tensor_count(&d->x) * 64;
    s->threads = mica_cpu_threads_planned(s->bytes);
    if (s->threads > s->a.rows) s->threads = (int)s->a.rows;
    s->room = (size_t)s->a.columns * (sizeof(uint32_t) + sizeof(uint64_t)) + 64;
    s->room -= s->room % 64;
    return mica_book(plan, "weights", (size_t)s->threads * s->room, &s->list);
}

/* ---- loops ---- */

/* Probabilities, and logits of rows without penalties. */
MICA_CLONES static void take_values(int probabilities, const sample_row *p, const float *x,
                                    const float *bias, float *v, int n)
{
    if (probabilities)
        for (int i = 0; i < n; i++) v[i] = sample_probability(x[i], 1);
    else
        for (int i = 0; i < n; i++)
            v[i] = sample_tempered(p, sample_penalised(p, x[i], 1, bias[i], 0, 0));
}

MICA_CLONES static float max_of(const float *v, int64_t n)
{
    float lane[16];
    for (int k = 0; k < 16; k++) lane[k] = SAMPLE_NEVER;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++) lane[k] = v[i + k] > lane[k] ? v[i + k] : lane[k];
    for (; i < n; i++) lane[0] = v[i] > lane[0] ? v[i] : lane[0];
    for (int k = 1; k < 16; k++) lane[0] = lane[k] > lane[0] ? lane[k] : lane[0];
    return lane[0];
}

/* Keys in place of values; those that are left out are 0. */
MICA_CLONES static void take_keys(int probabilities, const float *v, float max, uint32_t least,
                                  uint32_t *keys, int64_t n)
{
    if (probabilities) {
        for (int64_t i = 0; i < n; i++) {
            const uint32_t key = sample_key(sample_share(1, v[i], max));
            keys[i] = key < least ? 0 : key;
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const uint32_t key = sample_key(sample_exp(v[i], max));
        keys[i] = key < least ? 0 : key;
    }
}

/* Distances of keys in their place, of those that are 0 anything. */
MICA_CLONES static void take_deviations(const uint32_t *keys, uint32_t mean, uint32_t *to,
                                        int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = sample_deviation(keys[i] ? keys[i] : SAMPLE_LEAST, mean);
}

/* ---- a row ---- */

/* The values of a row from column c on. */
static void take_piece(const work *w, int64_t c, int n, bool raw, float *to)
{
    const mica_sample_args *a = &w->a;
    const float *x = mica_run_f32(w->d->x.dtype, a->x.at, w->row * a->x.row + c * a->x.column,
                                  a->x.column, w->x, n);
    const bool probabilities = w->d->input == MICA_SAMPLE_PROBABILITIES;
    if (raw && !probabilities) {
        for (int i = 0; i < n; i++) to[i] = x[i] == x[i] ? x[i] : SAMPLE_NEVER;
        return;
    }
    const float *bias = w->bias;
    if (!raw && a->bias.at)
        bias = mica_run_f32(w->d->bias.dtype, a->bias.at, w->row * a->bias.row + c * a->bias.column,
                            a->bias.column, w->bias, n);
    if (raw || !a->counts.at)
        take_values(probabilities, &w->p, x, bias, to, n);
    else
        for (int i = 0; i < n; i++) {
            const int count =
                ((const int *)a->counts.at)[w->row * a->counts.row + (c + i) * a->counts.column];
            const bool in_prompt = a->prompt.at && sample_bit(a->prompt, w->row, c + i);
            const float v = sample_penalised(&w->p, x[i], 1, bias[i], count, in_prompt);
            to[i] = sample_tempered(&w->p, v);
        }
    if (!raw && a->mask.at)
        for (int i = 0; i < n; i++)
            if (!sample_bit(a->mask, w->row, c + i)) to[i] = SAMPLE_NEVER;
}

static void take_row(work *w, bool raw)
{
    for (int64_t c = 0; c < w->a.columns; c += PIECE) {
        const int64_t left = w->a.columns - c;
        take_piece(w, c, left < PIECE ? (int)left : PIECE, raw, w->values + c);
    }
    w->max = max_of(w->values, w->a.columns);
}

/* Weights of a row of values, whose maximum is not -inf. */
static bin sum_keys(work *w)
{
    bin all = {0, 0};
    memset(w->bins, 0, BINS * sizeof *w->bins);
    for (int64_t c = 0; c < w->a.columns; c++) {
        const uint32_t key = w->keys[c];
        if (key == 0) continue;
        bin *b = &w->bins[(key - SAMPLE_LEAST) >> SHIFT];
        b->count++;
        b->weight += sample_weight(key);
    }
    for (int i = 0; i < BINS; i++) all.count += w->bins[i].count, all.weight += w->bins[i].weight;
    return all;
}

static bin sum_up(work *w, uint32_t least)
{
    take_keys(w->d->input == MICA_SAMPLE_PROBABILITIES, w->values, w->max, least, w->keys,
              w->a.columns);
    return sum_keys(w);
}

static uint64_t measure(const bin *b, bool counted)
{
    return counted ? b->count : b->weight;
}

/* Of n elements of the list those with the bit come first; their sums. */
static bin split(uint64_t *list, int64_t n, uint64_t bit, int64_t *ones)
{
    bin b = {0, 0};
    int64_t k = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint64_t e = list[i];
        if (!(e & bit)) continue;
        list[i] = list[k], list[k++] = e;
        b.weight += sample_weight((uint32_t)(e >> 32));
    }
    b.count = (uint64_t)k;
    *ones = k;
    return b;
}

/* The element at which so many, or so much weight, is reached, and the sums up to it. */
static int64_t find(work *w, bool counted, uint64_t target, bin *through)
{
    int i = BINS - 1;
    bin before = {0, 0};
    for (; measure(&before, counted) + measure(&w->bins[i], counted) < target; i--)
        before.count += w->bins[i].count, before.weight += w->bins[i].weight;
    uint64_t *list = w->list;
    int64_t n = 0;
    for (int64_t c = 0; c < w->a.columns; c++) {
        const uint32_t key = w->keys[c];
        if (key && (int)((key - SAMPLE_LEAST) >> SHIFT) == i)
            list[n++] = (uint64_t)key << 32 | (uint32_t)(SAMPLE_COLUMNS - c);
    }
    for (uint64_t bit = (uint64_t)1 << (31 + SHIFT); bit && n > 1; bit /= 2) {
        int64_t ones;
        const bin b = split(list, n, bit, &ones);
        if (measure(&before, counted) + measure(&b, counted) >= target) {
            n = ones;
            continue;
        }
        before.count += b.count, before.weight += b.weight;
        list += ones, n -= ones;
    }
    through->count = before.count + 1;
    through->weight = before.weight + sample_weight((uint32_t)(list[0] >> 32));
    return SAMPLE_COLUMNS - (int64_t)(uint32_t)list[0];
}

/* All behind the place are left out. */
static void cut_at(work *w, bool counted, uint64_t target, bin *s)
{
    const int64_t c = find(w, counted, target, s);
    w->left.cut = sample_element(w->keys[c], c);
}

/* The least deviation up to which the weights reach the target, by three digits of ten bits. */
static uint32_t reach_deviation(const work *w, uint64_t target)
{
    uint64_t digits[1024];
    uint64_t before = 0;
    uint32_t prefix = 0;
    for (int shift = 20; shift >= 0; shift -= 10) {
        memset(digits, 0, sizeof digits);
        for (int64_t c = 0; c < w->a.columns; c++) {
            const uint32_t deviation = w->deviations[c];
            if (w->keys[c] && deviation >> shift >> 10 == prefix >> shift >> 10)
                digits[deviation >> shift & 1023] += sample_weight(w->keys[c]);
        }
        uint32_t i = 0;
        for (; before + digits[i] < target; i++) before += digits[i];
        prefix |= i << shift;
    }
    return prefix;
}

/* Keys that are not typical become 0; the sums of the others. */
static bin leave_typical(work *w, uint64_t sum)
{
    uint64_t high = 0, low = 0;
    for (int64_t c = 0; c < w->a.columns; c++) {
        if (sample_element(w->keys[c], c) < w->left.cut) w->keys[c] = 0;
        const uint64_t moment = w->keys[c] ? sample_moment(w->keys[c]) : 0;
        high += moment >> 32, low += moment & 0xffffffffu;
    }
    w->left.mean = sample_mean(high, low, sum);
    take_deviations(w->keys, w->left.mean, w->deviations, w->a.columns);
    w->left.deviation = reach_deviation(w, sample_reached(w->p.typical_p, sum));
    for (int64_t c = 0; c < w->a.columns; c++)
        if (w->deviations[c] > w->left.deviation) w->keys[c] = 0;
    return sum_keys(w);
}

static int64_t draw(work *w, uint64_t *left)
{
    w->left = sample_left_from(sample_least(&w->p));
    bin s = sum_up(w, w->left.least), unused;
    if (s.count > (uint64_t)w->p.top_k) cut_at(w, true, (uint64_t)w->p.top_k, &s);
    const uint64_t nucleus = sample_reached(w->p.top_p, s.weight);
    if (nucleus < s.weight) cut_at(w, false, nucleus, &s);
    if (w->p.typical_p < 1) s = leave_typical(w, s.weight);
    *left = s.weight;
    return find(w, false, sample_target(&w->p, s.weight), &unused);
}

/* Leaves the maximum and the sum of weights by which others have theirs. */
static float logprob_of(work *w, int64_t token, uint64_t *left)
{
    const bool raw = w->d->logprobs == MICA_SAMPLE_RAW;
    float own;
    if (token < 0) return SAMPLE_NEVER;
    if (raw) take_row(w, true);
    take_piece(w, token, 1, raw, &own);
    if (raw || w->p.greedy) *left = sum_up(w, SAMPLE_LEAST).weight;
    return sample_logprob((int)w->d->input, own, w->max, *left);
}

/* ---- the largest ---- */

/* The element at i goes down a heap of n whose smallest is on top. */
static void sink(uint64_t *heap, int64_t i, int64_t n)
{
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[i] <= heap[child]) return;
        const uint64_t e = heap[i];
        heap[i] = heap[child], heap[child] = e;
    }
}

/* Values of a row, or of what is left of it: the largest, in order, into the list. How many. */
static int64_t take_top(work *w, bool all)
{
    const bool probabilities = w->d->input == MICA_SAMPLE_PROBABILITIES;
    uint64_t *heap = w->list;
    int64_t n = 0;
    for (int64_t c = 0; c < w->a.columns; c++) {
        const float v = w->values[c];
        const uint64_t rank = sample_rank(v, c);
        if (v == SAMPLE_NEVER || (n == w->a.top && rank < heap[0])) continue;
        const uint32_t key = all ? 1 : sample_key(sample_share(probabilities, v, w->max));
        if (!all && (key == 0 || !sample_is_left(&w->left, key, c))) continue;
        if (n < w->a.top) {
            heap[n++] = rank;
            for (int64_t i = n == w->a.top ? n / 2 : 0; i-- > 0;) sink(heap, i, n);
        } else {
            heap[0] = rank;
            sink(heap, 0, n);
        }
    }
    for (int64_t i = n < w->a.top ? n / 2 : 0; i-- > 0;) sink(heap, i, n);
    for (int64_t k = n - 1; k > 0; k--) { /* the smallest to the end */
        const uint64_t e = heap[0];
        heap[0] = heap[k], heap[k] = e;
        sink(heap, 0, k);
    }
    return n;
}

static void put_top(work *w, bool none, uint64_t left)
{
    const mica_sample_args *a = &w->a;
    const bool raw = w->d->logprobs == MICA_SAMPLE_RAW;
    int64_t n = 0;
    if (!none) {
        take_row(w, raw);
        n = take_top(w, raw || w->p.greedy);
    }
    for (int64_t i = 0; i < a->top; i++) {
        const int64_t token = i < n ? sample_rank_column(w->list[i]) : -1;
        const int64_t at = w->row * a->top_token_row + i * a->top_token_column;
        if (a->top_token && a->long_top) ((int64_t *)a->top_token)[at] = token;
        if (a->top_token && !a->long_top) ((int32_t *)a->top_token)[at] = (int32_t)token;
        if (a->top_logprob)
            a->top_logprob[w->row * a->top_logprob_row + i * a->top_logprob_column] =
                i < n ? sample_logprob((int)w->d->input, w->values[token], w->max, left)
                      : SAMPLE_NEVER;
    }
}

static void do_row(work *w)
{
    const mica_sample_args *a = &w->a;
    uint64_t left = 0;
    int64_t token = -1;
    sample_row_make(a, w->row, &w->p);
    take_row(w, false);
    if (w->max > SAMPLE_NEVER) {
        token = 0;
        if (w->p.greedy)
            while (w->values[token] != w->max) token++;
        else
            token = draw(w, &left);
    }
    if (w->d->token.dtype == MICA_S64)
        ((int64_t *)a->token)[w->row * a->token_row] = token;
    else
        ((int32_t *)a->token)[w->row * a->token_row] = (int32_t)token;
    if (!a->logprob && !a->top) return;
    const float logprob = logprob_of(w, token, &left);
    if (a->logprob) a->logprob[w->row * a->logprob_row] = logprob;
    if (a->top) put_top(w, token < 0, left);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    mica_sample_args a = s->a;
    mica_sample_args_scalars(run->scalars, &a);
    mica_sample_args_point(plan->desc, run->args, &a);
    if (a.rows == 0) return MICA_OK;
    int threads = mica_cpu_threads_for(s->bytes);
    if (threads > s->threads) threads = s->threads;
#pragma omp parallel num_threads(threads)
    {
        mica_scratch scope MICA_SCOPED = mica_scratch_open();
        work w = {.d = plan->desc, .a = a};
        char *room = (char *)mica_at(run, s->list) + (size_t)omp_get_thread_num() * s->room;
        w.x = mica_scratch_take(PIECE * sizeof *w.x);
        w.bias = mica_scratch_zeroed(PIECE * sizeof *w.bias);
        w.bins = mica_scratch_take(BINS * sizeof *w.bins);
        w.list = (uint64_t *)(void *)room;
        w.keys = (uint32_t *)(void *)(w.list + a.columns);
#pragma omp for schedule(dynamic)
        for (int64_t r = 0; r < a.rows; r++) {
            w.row = r;
            do_row(&w);
        }
    }
    return MICA_OK;
}

const mica_engine mica_sample_cpu = {
    .name = "cpu", .reached = 0.1, .start_ms = 2e-4, .build = build, .run = run};
