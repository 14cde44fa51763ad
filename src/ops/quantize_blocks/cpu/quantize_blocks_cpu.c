/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of quantize_blocks and dequantize_blocks: neighbouring blocks through buffers of the
 * first-level cache, straight from bytes and to f32 where those lie side by side. */
#include "ops/quantize_blocks/quantize_blocks.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "ops/convert/cpu/convert.h"

#include <omp.h>

#define PIECE 16
#include "ops/quantize_blocks/quantize_blocks_host.h"

/* Elements of a buffer. */
enum { MOST = MICA_BLOCKS_MOST };

typedef mica_blocks_run run_of;

FORMATS void decode_run(decode_fn decode, const run_of *r, const uint8_t *x, float *v)
{
    const float one = 1;
    for (int64_t k = 0; k < r->n; k++) {
        const float scale = r->scale ? r->scale[k * r->scale_step] : one;
        for (int i = 0; i < r->elements; i += PIECE)
            decode(x + k * r->bytes, i, scale, v + k * r->elements + i);
    }
}

FORMATS void encode_run(encode_fn encode, const run_of *r, const float *v, uint8_t *y)
{
    for (int64_t k = 0; k < r->n; k++) encode(v + k * r->elements, y + k * r->bytes);
}

#define FORMAT(KIND, name, size, length, ...)                                                      \
    MICA_NARROW_CLONES                                                                             \
    static void decode_run_##name(const run_of *r, const uint8_t *x, float *v)                     \
    {                                                                                              \
        decode_run(decode_##name, r, x, v);                                                        \
    }
#include "ops/quantize_blocks/formats.def"

#define NOTHING_READ(name)
#define NOTHING_ASIDE(name)
#define NOTHING_BOTH(name)                                                                         \
    MICA_NARROW_CLONES                                                                             \
    static void encode_run_##name(const run_of *r, const float *v, uint8_t *y)                     \
    {                                                                                              \
        encode_run(encode_##name, r, v, y);                                                        \
    }
#define FORMAT(KIND, name, elements, bytes, scale, second, way, doc) NOTHING_##way(name)
#include "ops/quantize_blocks/formats.def"

#define ENCODER_READ(name)  NULL
#define ENCODER_ASIDE(name) NULL
#define ENCODER_BOTH(name)  encode_run_##name
#define FORMAT(KIND, name, elements, bytes, scale, second, way, doc)                               \
    [MICA_BLOCK_FORMAT_##KIND] = {decode_run_##name, ENCODER_##way(name)},
static const struct coder {
    void (*decode)(const run_of *r, const uint8_t *x, float *v);
    void (*encode)(const run_of *r, const float *v, uint8_t *y);
} coders[] = {
#include "ops/quantize_blocks/formats.def"
};

void mica_blocks_decode(int format, const mica_blocks_run *r, const uint8_t *x, float *v)
{
    coders[format].decode(r, x, v);
}

typedef struct state {
    mica_blocks b;
    mica_layout layout;
    int64_t group; /* blocks of a run */
    struct coder coder;
    double bytes;
} state;

static mica_status build(mica_plan *plan)
{
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_blocks_make(plan->op, plan->desc, NULL, &s->b);
    mica_blocks_layout(&s->b, &s->layout);
    s->coder = coders[s->b.format - mica_blocks_formats];
    s->bytes = mica_op_bytes(plan->op, plan->desc) * 4;
    const mica_layout *l = &s->layout;
    const int last = l->rank - 1;
    const bool follow = s->b.step[0] == 1 && s->b.step[1] == 1 &&
                        l->strides[MICA_BLOCKS_PLACE_CODE][last] == s->b.bytes &&
                        l->strides[MICA_BLOCKS_PLACE_VALUE][last] == s->b.elements;
    s->group = follow ? MOST / s->b.elements : 1;
    return MICA_OK;
}

typedef struct work {
    const state *s;
    char *memory[MICA_BLOCKS_PLACES];
    float *v;
    uint8_t *bytes;
} work;

static void store(const work *k, int64_t at, int64_t n)
{
    const mica_blocks *b = &k->s->b;
    const mica_dtype type = b->at[MICA_BLOCKS_PLACE_VALUE].dtype;
    char *y = k->memory[MICA_BLOCKS_PLACE_VALUE];
    if (type != MICA_F64) {
        mica_from_f32(type, y, at, b->step[1], k->v, n);
        return;
    }
    for (int64_t i = 0; i < n; i++) ((double *)(void *)y)[at + i * b->step[1]] = (double)k->v[i];
}

static void decode(const work *k, const run_of *r, const int64_t *at)
{
    const mica_blocks *b = &k->s->b;
    const mica_dtype type = b->at[MICA_BLOCKS_PLACE_VALUE].dtype;
    const uint8_t *x = (const uint8_t *)k->memory[MICA_BLOCKS_PLACE_CODE] + at[0];
    float *y = (float *)(void *)k->memory[MICA_BLOCKS_PLACE_VALUE] + at[1];
    const bool straight = type == MICA_F32 && b->step[1] == 1;
    if (b->step[0] != 1) {
        for (int i = 0; i < b->bytes; i++) k->bytes[i] = x[i * b->step[0]];
        x = k->bytes;
    }
    k->s->coder.decode(r, x, straight ? y : k->v);
    if (!straight) store(k, at[1], r->n * b->elements);
}

/* f64 rounds to f32 first. */
static const float *elements_of(const work *k, int64_t at, int64_t n)
{
    const mica_blocks *b = &k->s->b;
    const mica_dtype type = b->at[MICA_BLOCKS_PLACE_VALUE].dtype;
    const char *x = k->memory[MICA_BLOCKS_PLACE_VALUE];
    if (type != MICA_F64) return mica_run_f32(type, x, at, b->step[1], k->v, n);
    for (int64_t i = 0; i < n; i++)
        k->v[i] = (float)((const double *)(const void *)x)[at + i * b->step[1]];
    return k->v;
}

static void encode(const work *k, const run_of *r, const int64_t *at)
{
    const mica_blocks *b = &k->s->b;
    uint8_t *y = (uint8_t *)k->memory[MICA_BLOCKS_PLACE_CODE] + at[0];
    const float *x = elements_of(k, at[1], r->n * b->elements);
    k->s->coder.encode(r, x, b->step[0] == 1 ? y : k->bytes);
    if (b->step[0] == 1) return;
    for (int i = 0; i < b->bytes; i++) y[i * b->step[0]] = k->bytes[i];
}

/* Runs of a row from the first-th to the end. */
static void do_runs(const work *k, int64_t first, int64_t end)
{
    const state *s = k->s;
    const mica_layout *l = &s->layout;
    const int last = l->rank - 1;
    const int64_t per_row = (l->dims[last] - 1) / s->group + 1;
    for (int64_t i = first; i < end; i++) {
        const int64_t from = i % per_row * s->group, left = l->dims[last] - from;
        int64_t at[MICA_BLOCKS_PLACES], rest = i / per_row;
        for (int p = 0; p < MICA_BLOCKS_PLACES; p++) at[p] = from * l->strides[p][last];
        for (int d = last - 1; d >= 0; d--) {
            const int64_t c = rest % l->dims[d];
            rest /= l->dims[d];
            for (int p = 0; p < MICA_BLOCKS_PLACES; p++) at[p] += c * l->strides[p][d];
        }
        const float *scale = (const float *)(const void *)k->memory[MICA_BLOCKS_PLACE_SCALE];
        const run_of r = {s->b.elements, s->b.bytes, left < s->group ? left : s->group,
                          l->strides[MICA_BLOCKS_PLACE_SCALE][last],
                          scale ? scale + at[MICA_BLOCKS_PLACE_SCALE] : NULL};
        if (s->b.encodes)
            encode(k, &r, at);
        else
            decode(k, &r, at);
    }
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    const mica_layout *l = &s->layout;
    if (l->count == 0) return MICA_OK;
    const int64_t row = l->dims[l->rank - 1], runs = l->count / row * ((row - 1) / s->group + 1);
#pragma omp parallel num_threads(mica_cpu_threads_for(s->bytes))
    {
        mica_scratch scope MICA_SCOPED = mica_scratch_open();
        const int64_t team = omp_get_num_threads(), t = omp_get_thread_num();
        work k = {.s = s};
        for (int p = 0; p < MICA_BLOCKS_PLACES; p++)
            if (s->b.arg[p] >= 0) k.memory[p] = run->args[s->b.arg[p]];
        k.v = mica_scratch_take(MOST * sizeof *k.v);
        k.bytes = mica_scratch_take(MICA_BLOCKS_MOST_BYTES);
        do_runs(&k, runs * t / team, runs * (t + 1) / team);
    }
    return MICA_OK;
}

const mica_engine mica_quantize_blocks_cpu = {.name = "cpu",
                                              .reached = 0.1,
                                              .start_ms = 3e-4,
                                              .contract = mica_blocks_contract,
                                              .build = build,
                                              .run = run};
const mica_engine mica_dequantize_blocks_cpu = {.name = "cpu",
                                                .reached = 0.3,
                                                .start_ms = 3e-4,
                                                .contract = mica_blocks_contract,
                                                .build = build,
                                                .run = run};
