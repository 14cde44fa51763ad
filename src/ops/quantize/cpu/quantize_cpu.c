/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of quantize and dequantize: pieces of rows through buffers of the first-level cache,
 * scales spread to one for each element, one vector loop each way. Scales that are made follow from
 * child plans (what a block holds) in a pass of its own. Of four bits, whole bytes of neighbours
 * are packed and unpacked by vector loops, in f32, and others one by one; results of four bits that
 * begin within bytes are written by one thread. */
#include "ops/quantize/quantize.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "ops/convert/cpu/convert.h"
#include "ops/quantize/quantize_rounded.h"
#include "ops/random/random.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#define real         float
#define rint_of      near_f32
#define sign_of      copysignf
#define CODE_NAME(n) n##_f32
#include "ops/quantize/cpu/quantize_loops.h"
#undef real
#undef rint_of
#undef sign_of
#undef CODE_NAME
#define real         double
#define rint_of      near_f64
#define sign_of      copysign
#define CODE_NAME(n) n##_f64
#include "ops/quantize/cpu/quantize_loops.h"
#undef real

enum { PIECE = 512 };

typedef struct state {
    mica_quantize_set set;
    mica_quantize_box boxes[MICA_QUANTIZE_BOXES];
    int count;
    mica_quantize_extremes extremes;
    mica_layout blocks;
    int64_t pieces[MICA_QUANTIZE_BOXES];
    bool shares_bytes; /* two threads might write halves of one byte */
    mica_load_fn load_scale, load_zero, load_code;
    mica_store_fn store_scale, store_zero, store_code;
    double bytes;
} state;

/* ---- four bits ---- */

/* Of neighbours, from the first of a byte on. */
MICA_CLONES
static void unpack_integers(const uint8_t *from, int offset, float *to, int64_t pairs)
{
    for (int64_t i = 0; i < pairs; i++) {
        to[2 * i] = (float)((int)((from[i] & 15) ^ offset) - offset);
        to[2 * i + 1] = (float)((int)((from[i] >> 4) ^ offset) - offset);
    }
}

QUANTIZE float e2m1_of(int nibble)
{
    const int m = nibble & 7;
    const float a = m < 4 ? (float)m * 0.5f : (float)(m < 6 ? m - 2 : 2 * m - 8);
    return nibble & 8 ? -a : a;
}
MICA_CLONES
static void unpack_e2m1(const uint8_t *from, float *to, int64_t pairs)
{
    for (int64_t i = 0; i < pairs; i++) {
        to[2 * i] = e2m1_of(from[i] & 15);
        to[2 * i + 1] = e2m1_of(from[i] >> 4);
    }
}

MICA_CLONES
static void pack_integers(const float *from, uint8_t *to, int64_t pairs)
{
    for (int64_t i = 0; i < pairs; i++)
        to[i] = (uint8_t)(((int)from[2 * i] & 15) | ((int)from[2 * i + 1] & 15) << 4);
}

/* Halfway between two the one with an even last bit. */
QUANTIZE int e2m1_nibble(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    const float a = fabsf(v);
    return (int)(bits >> 28 & 8) | ((a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) +
                                    (a > 2.5f) + (a >= 3.5f) + (a > 5));
}
MICA_CLONES
static void pack_e2m1(const float *from, uint8_t *to, int64_t pairs)
{
    for (int64_t i = 0; i < pairs; i++)
        to[i] = (uint8_t)(e2m1_nibble(from[2 * i]) | e2m1_nibble(from[2 * i + 1]) << 4);
}

/* Whole bytes of neighbours, from the first half of one on; how many elements these were. */
static int64_t unpack_pairs(mica_dtype type, const void *data, int64_t at, int64_t step, float *v,
                            int64_t n)
{
    const uint8_t *from = (const uint8_t *)data + (at >> 1);
    const int64_t pairs = mica_dtype_bits(type) < 8 && step == 1 && !(at & 1) ? n / 2 : 0;
    if (type == MICA_E2M1)
        unpack_e2m1(from, v, pairs);
    else
        unpack_integers(from, type == MICA_S4 ? 8 : 0, v, pairs);
    return 2 * pairs;
}

void mica_quantize_codes_f32(mica_dtype type, const void *data, int64_t at, int64_t step, float *v,
                             int64_t n)
{
    if (mica_dtype_bits(type) >= 8) {
        mica_to_f32(type, data, at, step, v, n);
        return;
    }
    const mica_load_fn load = mica_dtype_load(type);
    for (int64_t i = unpack_pairs(type, data, at, step, v, n); i < n; i++)
        v[i] = (float)load(data, at + i * step);
}

/* ---- pieces ---- */

typedef struct work {
    const state *s;
    void *memory[MICA_QUANTIZE_PLACES];
    double global_scale;
    void *in, *out, *scale, *zero; /* PIECE elements of `real` */
    uint32_t *words;               /* PIECE + 8; NULL: to nearest */
    mica_random_stream stream;
} work;

static void put(const work *k, void *to, int64_t i, double v)
{
    if (k->s->set.real == MICA_F64)
        ((double *)to)[i] = v;
    else
        ((float *)to)[i] = (float)v;
}

static void put_all(const work *k, void *to, int64_t i, int64_t end, double v)
{
    if (k->s->set.real == MICA_F64)
        for (double *d = to; i < end; i++) d[i] = v;
    else
        for (float *f = to; i < end; i++) f[i] = (float)v;
}

/* Of elements `from` and so on of a row whose first block has its scale at `at`. */
static void spread(const work *k, const mica_quantize_box *b, mica_load_fn load, int place,
                   int64_t at, int64_t step, int64_t from, int64_t n, double factor, void *to)
{
    const bool given = k->s->set.arg[place] >= 0;
    for (int64_t i = 0; i < n;) {
        const int64_t group = (from + i) / b->group;
        int64_t end = (group + 1) * b->group - from;
        double v = given ? load(k->memory[place], at + group * step) : 0;
        if (place == MICA_QUANTIZE_PLACE_SCALE && k->s->set.global_arg >= 0)
            v = k->s->set.real == MICA_F64 ? v * factor : (double)((float)v * (float)factor);
        end = end < n ? end : n;
        put_all(k, to, i, end, v);
        i = end;
    }
}

/* Neighbours from the first half of a byte on, in f32: those that are whole bytes. */
static int64_t whole_pairs(const work *k, mica_dtype type, int64_t at, int64_t step, int64_t n)
{
    return mica_dtype_bits(type) < 8 && k->s->set.real == MICA_F32 && step == 1 && !(at & 1) ? n / 2
                                                                                             : 0;
}

static void load_run(const work *k, int place, int64_t at, int64_t step, int64_t n)
{
    const mica_dtype type = k->s->set.at[place].dtype;
    if (mica_dtype_bits(type) < 8 || type == MICA_S32) {
        int64_t i = 0;
        if (k->s->set.real == MICA_F32)
            i = unpack_pairs(type, k->memory[place], at, step, k->in, n);
        for (; i < n; i++) put(k, k->in, i, k->s->load_code(k->memory[place], at + i * step));
    } else if (k->s->set.real == MICA_F64) {
        mica_to_f64(type, k->memory[place], at, step, k->in, n);
    } else {
        mica_to_f32(type, k->memory[place], at, step, k->in, n);
    }
}

static void store_run(const work *k, int place, int64_t at, int64_t step, int64_t n)
{
    const mica_dtype type = k->s->set.at[place].dtype;
    const bool wide = k->s->set.real == MICA_F64;
    if (mica_dtype_bits(type) < 8) {
        const int64_t pairs = whole_pairs(k, type, at, step, n);
        uint8_t *to = (uint8_t *)k->memory[place] + (at >> 1);
        if (pairs && type == MICA_E2M1)
            pack_e2m1(k->out, to, pairs);
        else if (pairs)
            pack_integers(k->out, to, pairs);
        for (int64_t i = 2 * pairs; i < n; i++)
            k->s->store_code(k->memory[place], at + i * step,
                             wide ? ((double *)k->out)[i] : (double)((float *)k->out)[i]);
    } else if (wide) {
        mica_from_f64(type, k->memory[place], at, step, k->out, n);
    } else {
        mica_from_f32(type, k->memory[place], at, step, k->out, n);
    }
}

static const uint32_t *draw(const work *k, const mica_quantize_box *b, const int64_t *row,
                            int64_t from, int64_t n)
{
    const mica_layout *l = &b->layout;
    const int64_t step = l->strides[MICA_QUANTIZE_PLACE_INDEX][l->rank - 1];
    const int64_t index = k->s->set.first_index + row[MICA_QUANTIZE_PLACE_INDEX] + from * step;
    return mica_random_words(&k->stream, index, step, n, k->words);
}

static void do_piece(const work *k, const mica_quantize_box *b, const int64_t *row, int64_t from,
                     int64_t n)
{
    const mica_quantize_set *s = &k->s->set;
    const mica_layout *l = &b->layout;
    const int in = s->quantizes ? MICA_QUANTIZE_PLACE_VALUE : MICA_QUANTIZE_PLACE_CODE,
              out = s->quantizes ? MICA_QUANTIZE_PLACE_CODE : MICA_QUANTIZE_PLACE_VALUE;
    const int64_t in_step = l->strides[in][l->rank - 1], out_step = l->strides[out][l->rank - 1];
    spread(k, b, k->s->load_scale, MICA_QUANTIZE_PLACE_SCALE, row[MICA_QUANTIZE_PLACE_SCALE],
           b->scale_step, from, n, k->global_scale, k->scale);
    spread(k, b, k->s->load_zero, MICA_QUANTIZE_PLACE_ZERO, row[MICA_QUANTIZE_PLACE_ZERO],
           b->zero_step, from, n, 1, k->zero);
    load_run(k, in, row[in] + from * in_step, in_step, n);
    const uint32_t *word = k->words ? draw(k, b, row, from, n) : NULL;
    if (word && s->real == MICA_F64)
        chance_run_f64(s->code, k->in, k->scale, k->zero, word, k->out, n);
    else if (word)
        chance_run_f32(s->code, k->in, k->scale, k->zero, word, k->out, n);
    else if (s->quantizes && s->real == MICA_F64)
        coded_run_f64(s->code, k->in, k->scale, k->zero, k->out, n);
    else if (s->quantizes)
        coded_run_f32(s->code, k->in, k->scale, k->zero, k->out, n);
    else if (s->real == MICA_F64)
        decoded_run_f64(k->in, k->scale, k->zero, k->out, n);
    else
        decoded_run_f32(k->in, k->scale, k->zero, k->out, n);
    store_run(k, out, row[out] + from * out_step, out_step, n);
}

static void do_box(const work *k, const mica_quantize_box *b, int64_t first, int64_t end)
{
    const mica_layout *l = &b->layout;
    const int last = l->rank - 1;
    const int64_t per_row = (l->dims[last] - 1) / PIECE + 1;
    for (int64_t i = first; i < end; i++) {
        int64_t row[MICA_QUANTIZE_PLACES], rest = i / per_row;
        const int64_t from = i % per_row * PIECE;
        for (int p = 0; p < MICA_QUANTIZE_PLACES; p++) row[p] = b->first[p];
        for (int d = last - 1; d >= 0; d--) {
            const int64_t c = rest % l->dims[d];
            rest /= l->dims[d];
            for (int p = 0; p < MICA_QUANTIZE_PLACES; p++) row[p] += c * l->strides[p][d];
        }
        do_piece(k, b, row, from, l->dims[last] - from < PIECE ? l->dims[last] - from : PIECE);
    }
}

/* ---- the plan ---- */

static int64_t count_pieces(const mica_quantize_box *b)
{
    const mica_layout *l = &b->layout;
    int64_t n = (l->dims[l->rank - 1] - 1) / PIECE + 1;
    for (int d = 0; d < l->rank - 1; d++) n *= l->dims[d];
    return n;
}

static bool shares_bytes(const state *s)
{
    const int place = MICA_QUANTIZE_PLACE_CODE;
    if (!s->set.quantizes || mica_dtype_bits(s->set.at[place].dtype) >= 8) return false;
    for (int b = 0; b < s->count; b++) {
        const mica_layout *l = &s->boxes[b].layout;
        const int last = l->rank - 1;
        if (l->strides[place][last] != 1 || s->boxes[b].first[place] & 1) return true;
        for (int d = 0; d < last; d++)
            if (l->strides[place][d] & 1) return true;
    }
    return false;
}

static void find_conversions(state *s)
{
    const mica_dtype scale = s->set.at[MICA_QUANTIZE_PLACE_SCALE].dtype,
                     zero = s->set.at[MICA_QUANTIZE_PLACE_ZERO].dtype,
                     code = s->set.at[MICA_QUANTIZE_PLACE_CODE].dtype;
    s->load_scale = mica_dtype_load(scale), s->store_scale = mica_dtype_store(scale);
    s->load_zero = mica_dtype_load(zero), s->store_zero = mica_dtype_store(zero);
    s->load_code = mica_dtype_load(code), s->store_code = mica_dtype_store(code);
}

static mica_status build(mica_plan *plan)
{
    state *s;
    mica_why why;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_quantize_set_make(plan->op, plan->desc, NULL, &s->set);
    MICA_TRY(mica_quantize_cut(&s->set, s->boxes, &s->count, &why));
    for (int b = 0; b < s->count; b++) s->pieces[b] = count_pieces(&s->boxes[b]);
    s->shares_bytes = shares_bytes(s);
    find_conversions(s);
    s->bytes = mica_op_bytes(plan->op, plan->desc) * 2;
    if (s->count == 0 || s->set.pass == MICA_QUANTIZE_GIVEN) return MICA_OK;
    mica_quantize_block_layout(&s->set, &s->blocks);
    return mica_quantize_extremes_build(plan, &s->set, s->boxes, s->count, &s->extremes);
}

/* ---- runs ---- */

static void prepare(work *k, const mica_run *run)
{
    const mica_quantize_set *s = &k->s->set;
    for (int p = 0; p < MICA_QUANTIZE_PLACES; p++)
        if (s->arg[p] >= 0) k->memory[p] = run->args[s->arg[p]];
    k->global_scale = 1;
    if (s->global_arg >= 0) k->global_scale = (double)*(const float *)run->args[s->global_arg];
    if (s->rng_arg >= 0) k->stream = mica_random_stream_of(run->args[s->rng_arg], s->rng_stride);
}

/* ---- scales that are made ---- */

static double extreme(const work *k, const mica_run *run, int kind, int64_t at)
{
    const void *p = mica_at(run, k->s->extremes.buffer[kind]);
    return k->s->set.real == MICA_F64 ? ((const double *)p)[at] : (double)((const float *)p)[at];
}

static double scale_of(const work *k, double high, double low)
{
    const mica_quantize_set *s = &k->s->set;
    const bool wide = s->real == MICA_F64,
               power = s->at[MICA_QUANTIZE_PLACE_SCALE].dtype == MICA_E8M0;
    if (s->pass == MICA_QUANTIZE_MINMAX)
        return wide ? scale_of_ends_f64(s->code, low, high)
                    : (double)scale_of_ends_f32(s->code, (float)low, (float)high);
    const double v =
        wide ? scale_of_amax_f64(s->code, power, high, k->global_scale)
             : (double)scale_of_amax_f32(s->code, power, (float)high, (float)k->global_scale);
    return power ? mica_quantize_power(v, CODE_EXPONENT(s->code)) : v;
}

static void make_scales(const work *k, const mica_run *run, int64_t first, int64_t last)
{
    const mica_quantize_set *s = &k->s->set;
    const mica_layout *l = &k->s->blocks;
    const bool ends = s->pass == MICA_QUANTIZE_MINMAX;
    for (int64_t i = first; i < last; i++) {
        int64_t at[3] = {0}, rest = i;
        for (int d = l->rank - 1; d >= 0; d--) {
            const int64_t c = rest % l->dims[d];
            rest /= l->dims[d];
            for (int t = 0; t < 3; t++) at[t] += c * l->strides[t][d];
        }
        const double high = extreme(k, run, 0, at[0]), low = ends ? extreme(k, run, 1, at[0]) : 0;
        k->s->store_scale(k->memory[MICA_QUANTIZE_PLACE_SCALE], at[1], scale_of(k, high, low));
        if (!ends) continue;
        const double scale = k->s->load_scale(k->memory[MICA_QUANTIZE_PLACE_SCALE], at[1]);
        k->s->store_zero(k->memory[MICA_QUANTIZE_PLACE_ZERO], at[2],
                         s->real == MICA_F64
                             ? zero_of_ends_f64(s->code, low, scale)
                             : (double)zero_of_ends_f32(s->code, (float)low, (float)scale));
    }
}

/* The part of n things that this thread of a team does. */
static int64_t part_of(int64_t n, int64_t *end)
{
    const int64_t team = omp_get_num_threads(), t = omp_get_thread_num();
    const int64_t each = n / team, more = n % team, first = t * each + (t < more ? t : more);
    *end = first + each + (t < more);
    return first;
}

/* Zero points of four bits may share bytes. */
static mica_status run_scales(const state *s, const mica_run *run)
{
    const bool one = s->set.pass == MICA_QUANTIZE_MINMAX &&
                     mica_dtype_bits(s->set.at[MICA_QUANTIZE_PLACE_ZERO].dtype) < 8;
    MICA_TRY(mica_quantize_extremes_run(&s->extremes, run));
#pragma omp parallel num_threads(one ? 1 : mica_cpu_threads_for((double)s->blocks.count * 256))
    {
        work k = {.s = s};
        int64_t end;
        prepare(&k, run);
        const int64_t first = part_of(s->blocks.count, &end);
        make_scales(&k, run, first, end);
    }
    return MICA_OK;
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    if (s->count == 0) return MICA_OK;
    if (s->set.pass != MICA_QUANTIZE_GIVEN) MICA_TRY(run_scales(s, run));
    const int threads = s->shares_bytes ? 1 : mica_cpu_threads_for(s->bytes);
#pragma omp parallel num_threads(threads)
    {
        mica_scratch scope MICA_SCOPED = mica_scratch_open();
        double *const line = mica_scratch_take(4 * PIECE * sizeof *line);
        work k = {.s = s,
                  .in = line,
                  .out = line + PIECE,
                  .scale = line + 2 * PIECE,
                  .zero = line + 3 * PIECE};
        if (s->set.rng_arg >= 0) k.words = mica_scratch_take((PIECE + 8) * sizeof *k.words);
        prepare(&k, run);
        for (int b = 0; b < s->count; b++) {
            int64_t end;
            const int64_t first = part_of(s->pieces[b], &end);
            do_box(&k, &s->boxes[b], first, end);
        }
    }
    return MICA_OK;
}

const mica_engine mica_quantize_cpu = {.name = "cpu",
                                       .reached = 0.3,
                                       .start_ms = 3e-4,
                                       .contract = mica_quantize_contract,
                                       .build = build,
                                       .run = run};
const mica_engine mica_dequantize_cpu = {.name = "cpu",
                                         .reached = 0.3,
                                         .start_ms = 3e-4,
                                         .contract = mica_quantize_contract,
                                         .build = build,
                                         .run = run};
