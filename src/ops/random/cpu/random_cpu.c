/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of random and dropout: pieces of rows, the words of several counters at once in
 * vector loops, then numbers of them. f32 arithmetic and dropout are vectorised; truncated
 * normals, integers and permutations are made one by one. Elements whose indices are not
 * neighbours (steps) each cost a counter. */
#include "ops/random/random.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "cpu/stream.h"
#include "ops/random/random_body.h"
#include "ops/convert/cpu/convert.h"

#include <omp.h>

enum { PIECE = 512, WORDS = 4 * (PIECE / 2 + 2) };

typedef struct state {
    mica_random_set set;
    mica_layout layout;
    int64_t per_row, pieces;
    double bytes; /* of traffic, to choose threads */
    bool past;    /* results do not fit the caches */
} state;

static mica_status build(mica_plan *plan)
{
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_random_set_make(plan->op, plan->desc, NULL, &s->set);
    mica_random_layout(&s->set, &s->layout);
    const mica_layout *l = &s->layout;
    if (l->count == 0) return MICA_OK;
    s->per_row = (l->dims[l->rank - 1] - 1) / PIECE + 1;
    s->pieces = l->count / l->dims[l->rank - 1] * s->per_row;
    s->bytes = mica_op_bytes(plan->op, plan->desc);
    s->past = mica_stream_pays(s->bytes, plan->device.cache_bytes);
    s->bytes += (double)l->count * 16; /* arithmetic */
    return MICA_OK;
}

/* ---- vector loops ---- */

/* Of counters that differ in the first word. */
MICA_CLONES
static void philox_run(const mica_random_stream *stream, const uint32_t from[3], int64_t n,
                       uint32_t *to)
{
    const uint32_t low = from[0], high = from[1], third = from[2];
    for (int64_t b = 0; b < n; b++) {
        uint32_t w[4] = {low + (uint32_t)b, high, third, stream->offset};
        mica_philox(stream->key, w);
        for (int k = 0; k < 4; k++) to[4 * b + k] = w[k];
    }
}

MICA_CLONES
static void uniform_f32(float low, float high, float span, int digits, const uint32_t *w, float *v,
                        int64_t n)
{
    for (int64_t i = 0; i < n; i++) v[i] = random_uniform32(low, high, span, digits, w[i]);
}

MICA_CLONES
static void normal_f32(float mean, float std, const uint32_t *w, float *v, int64_t n)
{
    for (int64_t i = 0; i < n; i += 2) random_normal32(mean, std, w[i], w[i + 1], v + i);
}

MICA_CLONES
static void exponential_f32(float scale, const uint32_t *w, float *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) v[i] = random_exponential32(scale, w[i]);
}

MICA_CLONES
static void bernoulli_f32(uint32_t threshold, const uint32_t *w, float *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) v[i] = w[i] < threshold;
}

MICA_MEMORY_CLONES
static void uniform_f64(double low, double high, double span, const uint32_t *w, double *v,
                        int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        v[i] = random_uniform64(low, high, span, random_wide(w + 2 * i));
}

/* What would have to be drawn again is left as it is; returns how much that is. */
MICA_MEMORY_CLONES
static int64_t integers(const mica_random_numbers *m, const uint32_t *w, int64_t *v, int64_t n)
{
    const uint64_t range = m->range, rejected = m->rejected, from = (uint64_t)m->from;
    int64_t again = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint64_t x = random_wide(w + 2 * i);
        v[i] = (int64_t)(from + random_high(x, range));
        again += x * range < rejected;
    }
    return again;
}

MICA_CLONES
static void drop_f32(uint32_t threshold, float scale, const uint32_t *w, const float *x,
                     const float *add, float *y, int64_t n)
{
    if (add) {
        MICA_INDEPENDENT
        for (int64_t i = 0; i < n; i++)
            y[i] = add32(w[i] >= threshold ? mul32(x[i], scale) : 0, add[i]);
        return;
    }
    MICA_INDEPENDENT
    for (int64_t i = 0; i < n; i++) y[i] = w[i] >= threshold ? mul32(x[i], scale) : 0;
}

MICA_MEMORY_CLONES
static void drop_f64(uint32_t threshold, double scale, const uint32_t *w, const double *x,
                     const double *add, double *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const double v = w[i] >= threshold ? mul64(x[i], scale) : 0;
        y[i] = add ? add64(v, add[i]) : v;
    }
}

MICA_MEMORY_CLONES
static void keep_bytes(uint32_t threshold, const uint32_t *w, uint8_t *keep, int64_t n)
{
    for (int64_t i = 0; i < n; i++) keep[i] = w[i] >= threshold;
}

/* ---- words and numbers of neighbours ---- */

/* Of the counters from `block` on; by rows all in one. */
static void words_of(const mica_random_stream *stream, uint64_t block, int64_t n, uint32_t *to)
{
    if (stream->rows) {
        const uint64_t i = 4 * block;
        const uint32_t from[] = {(uint32_t)(i & ((1u << RANDOM_ROW_AT) - 1)) / 4,
                                 (uint32_t)(i >> RANDOM_ROW_AT) &
                                     ((1u << (RANDOM_MATRIX_AT - RANDOM_ROW_AT)) - 1),
                                 (uint32_t)(i >> RANDOM_MATRIX_AT)};
        philox_run(stream, from, n, to);
        return;
    }
    while (n) {
        const int64_t left = (int64_t)(UINT32_MAX - (uint32_t)block) + 1,
                      some = n < left ? n : left;
        philox_run(stream, (uint32_t[]){(uint32_t)block, (uint32_t)(block >> 32), 0}, some, to);
        block += (uint64_t)some, n -= some, to += 4 * some;
    }
}

const uint32_t *mica_random_words(const mica_random_stream *stream, int64_t i, int64_t step,
                                  int64_t n, uint32_t *to)
{
    if (step == 1) {
        words_of(stream, (uint64_t)i / 4, (i % 4 + n - 1) / 4 + 1, to);
        return to + i % 4;
    }
    for (int64_t j = 0; j < n; j++) {
        const int64_t at = i + j * step;
        uint32_t w[4];
        random_words(stream->key, stream->offset, (uint64_t)at / 4, 0, w);
        to[j] = w[at % 4];
    }
    return to;
}

static void floats_of(const mica_random_set *s, const uint32_t *w, float *v, int64_t n)
{
    const mica_random_numbers *m = &s->numbers;
    if (s->draw == MICA_RANDOM_DRAW_UNIFORM)
        uniform_f32((float)m->low, (float)m->high, (float)m->span, s->digits, w, v, n);
    else if (s->draw == MICA_RANDOM_DRAW_NORMAL)
        normal_f32((float)m->mean, (float)m->std, w, v, n);
    else if (s->draw == MICA_RANDOM_DRAW_EXPONENTIAL)
        exponential_f32((float)m->scale, w, v, n);
    else if (m->threshold >> 32)
        for (int64_t i = 0; i < n; i++) v[i] = 1;
    else
        bernoulli_f32((uint32_t)m->threshold, w, v, n);
}

static void doubles_of(const mica_random_set *s, const uint32_t *w, double *v, int64_t n)
{
    const bool is_f64 = s->at[MICA_RANDOM_PLACE_OUT].dtype == MICA_F64;
    const mica_random_numbers *m = &s->numbers;
    if (s->draw == MICA_RANDOM_DRAW_UNIFORM) {
        uniform_f64(m->low, m->high, m->span, w, v, n);
    } else if (s->draw == MICA_RANDOM_DRAW_NORMAL) {
        for (int64_t i = 0; i < n; i += 2) random_normal64(m->mean, m->std, w + 2 * i, v + i);
    } else {
        const int per = s->per_block;
        for (int64_t i = 0; i < n; i++)
            v[i] = random_f64(s->draw, is_f64, m, (int)(i % per), w + i / per * 4);
    }
}

/* What a thread works with. */
typedef struct work {
    const state *s;
    mica_random_stream stream;
    char *memory[MICA_RANDOM_PLACES];
    uint32_t *words;  /* WORDS */
    char *values;     /* PIECE + 16 elements of up to 8 bytes */
    char *buffers[3]; /* PIECE elements each */
} work;

/* Numbers, in the set's type, or of dropout words, of n elements from index i on. */
__attribute__((noinline)) static const char *draw_run(const work *k, int64_t i, int64_t n)
{
    const mica_random_set *s = &k->s->set;
    const int64_t per = s->per_block, block = i / per, skip = i % per;
    const int64_t blocks = (skip + n - 1) / per + 1;
    if (s->draw != MICA_RANDOM_DRAW_PERMUTATION)
        words_of(&k->stream, (uint64_t)block, blocks, k->words);
    if (s->dropout) return (const char *)(k->words + skip);
    if (s->real == MICA_F32) {
        floats_of(s, k->words, (float *)k->values, blocks * per);
        return k->values + skip * (int64_t)sizeof(float);
    }
    if (s->real == MICA_F64) {
        doubles_of(s, k->words, (double *)k->values, blocks * per);
        return k->values + skip * (int64_t)sizeof(double);
    }
    int64_t *v = (int64_t *)k->values;
    if (s->draw == MICA_RANDOM_DRAW_INTEGERS &&
        integers(&s->numbers, k->words + 2 * skip, v, n) == 0)
        return k->values;
    for (int64_t j = 0; j < n; j++) {
        const int64_t at = skip + j, own = at / per;
        v[j] = random_s64(s->draw, s->bytes, &s->numbers, k->stream.key, k->stream.offset,
                          (uint64_t)(block + own), (int)(at % per), k->words + own * 4);
    }
    return k->values;
}

/* The same of indices `step` apart. */
static const char *draw_apart(const work *k, int64_t i, int64_t step, int64_t n)
{
    const size_t size = k->s->set.dropout || k->s->set.real == MICA_F32 ? 4 : 8;
    char *to = k->buffers[0];
    if (step == 1) return draw_run(k, i, n);
    for (int64_t j = 0; j < n; j++)
        memcpy(to + (size_t)j * size, step || j == 0 ? draw_run(k, i + j * step, 1) : to, size);
    return to;
}

/* ---- pieces ---- */

typedef struct piece {
    int64_t at[MICA_RANDOM_PLACES], step[MICA_RANDOM_PLACES], n;
} piece;

static piece piece_of(const state *s, int64_t i)
{
    const mica_layout *l = &s->layout;
    const int last = l->rank - 1;
    piece p = {0};
    const int64_t from = i % s->per_row * PIECE;
    i /= s->per_row;
    p.n = l->dims[last] - from < PIECE ? l->dims[last] - from : PIECE;
    for (int t = 0; t < MICA_RANDOM_PLACES; t++) {
        p.step[t] = l->strides[t][last];
        p.at[t] = from * p.step[t];
    }
    for (int d = last - 1; d >= 0; d--) {
        const int64_t c = i % l->dims[d];
        i /= l->dims[d];
        for (int t = 0; t < MICA_RANDOM_PLACES; t++) p.at[t] += c * l->strides[t][d];
    }
    return p;
}

static void store(const work *k, const piece *p, mica_dtype real, const void *values)
{
    const mica_dtype type = k->s->set.at[MICA_RANDOM_PLACE_OUT].dtype;
    const int64_t at = p->at[MICA_RANDOM_PLACE_OUT], step = p->step[MICA_RANDOM_PLACE_OUT];
    const int64_t size = k->s->set.bytes;
    char *to = k->memory[MICA_RANDOM_PLACE_OUT];
    if (real == MICA_S64)
        mica_move(values, 8 / size, to + at * size, step, size, p->n);
    else if (real == MICA_F64)
        mica_from_f64(type, to, at, step, values, p->n);
    else if (k->s->past && step == 1)
        mica_stream_f32(type, to, at, values, p->n);
    else
        mica_from_f32(type, to, at, step, values, p->n);
}

/* Words as they would be if they were drawn: all ones of what is kept. */
static uint32_t *mask_words(const work *k, const piece *p)
{
    const mica_random_set *s = &k->s->set;
    const bool bits = mica_tensor_given(&s->at[MICA_RANDOM_PLACE_BITS]);
    const int place = bits ? MICA_RANDOM_PLACE_BITS : MICA_RANDOM_PLACE_MASK;
    const uint8_t *from = (const uint8_t *)k->memory[place];
    for (int64_t i = 0; i < p->n; i++) {
        const int64_t at = p->at[place] + i * p->step[place];
        k->words[i] = bits ? 0u - (from[at >> 3] >> (at & 7) & 1) : 0u - (from[at] != 0);
    }
    return k->words;
}

static void save_mask(const work *k, const piece *p, uint32_t threshold, const uint32_t *w)
{
    const mica_random_set *s = &k->s->set;
    uint8_t *keep = (uint8_t *)k->values;
    const int64_t mask = p->at[MICA_RANDOM_PLACE_MASK], bits = p->at[MICA_RANDOM_PLACE_BITS];
    keep_bytes(threshold, w, keep, p->n);
    if (mica_tensor_given(&s->at[MICA_RANDOM_PLACE_MASK]))
        mica_move((char *)keep, 1, k->memory[MICA_RANDOM_PLACE_MASK] + mask,
                  p->step[MICA_RANDOM_PLACE_MASK], 1, p->n);
    if (!mica_tensor_given(&s->at[MICA_RANDOM_PLACE_BITS])) return;
    for (int64_t i = 0; i < p->n; i += 8) {
        unsigned byte = 0;
        for (int64_t c = 0; c < 8 && i + c < p->n; c++) byte |= (unsigned)keep[i + c] << c;
        ((uint8_t *)k->memory[MICA_RANDOM_PLACE_BITS])[(bits + i) >> 3] = (uint8_t)byte;
    }
}

/* An operand in the arithmetic's type; NULL: absent. */
static const void *load(const work *k, const piece *p, int place, char *buffer)
{
    const mica_random_set *s = &k->s->set;
    const mica_dtype type = s->at[place].dtype;
    if (type == MICA_NONE) return NULL;
    if (s->real == MICA_F32)
        return mica_run_f32(type, k->memory[place], p->at[place], p->step[place], (float *)buffer,
                            p->n);
    mica_to_f64(type, k->memory[place], p->at[place], p->step[place], (double *)buffer, p->n);
    return buffer;
}

static void drop_piece(const work *k, const piece *p)
{
    const mica_random_set *s = &k->s->set;
    const bool all = s->rng >= 0 && s->numbers.threshold >> 32;
    const uint32_t threshold = s->rng < 0 || all ? 1 : (uint32_t)s->numbers.threshold;
    const uint32_t *w = k->words;
    if (s->rng < 0)
        w = mask_words(k, p);
    else if (all)
        memset(k->words, 0, PIECE * sizeof *k->words);
    else
        w = (const uint32_t *)draw_apart(k, s->numbers.first + p->at[MICA_RANDOM_PLACE_INDEX],
                                         p->step[MICA_RANDOM_PLACE_INDEX], p->n);
    if (s->saves) save_mask(k, p, threshold, w);
    const void *x = load(k, p, MICA_RANDOM_PLACE_IN, k->buffers[1]);
    const void *add = load(k, p, MICA_RANDOM_PLACE_ADD, k->buffers[2]);
    void *to = k->values;
    if (s->real == MICA_F64) {
        drop_f64(threshold, s->numbers.scale, w, x, add, to, p->n);
    } else {
        const bool direct = s->at[MICA_RANDOM_PLACE_OUT].dtype == MICA_F32 &&
                            p->step[MICA_RANDOM_PLACE_OUT] == 1 && !k->s->past;
        if (direct)
            to = (float *)(void *)k->memory[MICA_RANDOM_PLACE_OUT] + p->at[MICA_RANDOM_PLACE_OUT];
        drop_f32(threshold, (float)s->numbers.scale, w, x, add, to, p->n);
        if (direct) return;
    }
    store(k, p, s->real, to);
}

static void do_pieces(const state *s, const mica_run *run, int64_t first, int64_t end)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    work k = {.s = s};
    if (s->set.rng >= 0) k.stream = mica_random_stream_of(run->args[s->set.rng], s->set.rng_stride);
    k.stream.rows = s->set.rows;
    for (int t = 1; t < MICA_RANDOM_PLACES; t++)
        if (mica_tensor_given(&s->set.at[t])) k.memory[t] = run->args[s->set.arg[t]];
    k.words = mica_scratch_take(WORDS * sizeof *k.words);
    k.values = mica_scratch_take((PIECE + 32) * sizeof(double));
    for (int b = 0; b < 3; b++) k.buffers[b] = mica_scratch_take(PIECE * sizeof(double));
    for (int64_t i = first; i < end; i++) {
        const piece p = piece_of(s, i);
        if (s->set.dropout)
            drop_piece(&k, &p);
        else
            store(&k, &p, s->set.real,
                  draw_apart(&k, s->set.numbers.first + p.at[MICA_RANDOM_PLACE_INDEX],
                             p.step[MICA_RANDOM_PLACE_INDEX], p.n));
    }
    mica_stream_end();
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
#pragma omp parallel num_threads(mica_cpu_threads_for(s->bytes))
    {
        const int64_t threads = omp_get_num_threads(), t = omp_get_thread_num();
        const int64_t each = s->pieces / threads, rest = s->pieces % threads;
        const int64_t first = t * each + (t < rest ? t : rest);
        do_pieces(s, run, first, first + each + (t < rest));
    }
    return MICA_OK;
}

const mica_engine mica_random_cpu = {
    .name = "cpu", .reached = 0.4, .start_ms = 2e-4, .build = build, .run = run};
