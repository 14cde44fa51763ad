/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of dequantize_weights and repack_weights: codes of a row of K, a span of columns at
 * a time, in buffers of the first-level cache; w is filled by tiles of rows and columns. Bound by
 * the arithmetic of places, but for gptq, whose words of a row lie in step. */
#include "ops/packed_weights/packed_weights.h"
#include "cpu/cpu.h"
#include "ops/convert/cpu/convert.h"

#include <stdlib.h>

#define PACKED __attribute__((always_inline, unused)) static inline
#include "ops/packed_weights/packed_weights_body.h"

/* Columns of a span, rows of a tile; of both an even number. */
enum { SPAN = 128, ROWS = 64 };

typedef struct state {
    mica_packed p;
    double bytes;
} state;

typedef struct work {
    const mica_packed *p;
    mica_packed_args a;
} work;

static uint32_t code_at(const int32_t *words, int64_t at, int bit, int bits, int64_t next)
{
    uint32_t word = (uint32_t)words[at] >> bit;
    if (bit + bits > 32) word |= (uint32_t)words[at + next] << (32 - bit);
    return word & ((1u << bits) - 1);
}

MICA_NARROW_CLONES
static void codes_in_step(const int32_t *words, int64_t step, const int32_t *next, int bit,
                          int bits, int64_t count, uint8_t *codes)
{
    const uint32_t mask = (1u << bits) - 1;
    if (next)
        for (int64_t i = 0; i < count; i++)
            codes[i] = (uint8_t)(((uint32_t)words[i * step] >> bit | (uint32_t)next[i * step]
                                                                         << (32 - bit)) &
                                 mask);
    else
        for (int64_t i = 0; i < count; i++)
            codes[i] = (uint8_t)((uint32_t)words[i * step] >> bit & mask);
}

/* Of row k of K, columns from n on. */
static void weights_of(const work *w, int64_t k, int64_t n, int64_t count, uint8_t *codes)
{
    const mica_packed_args *a = &w->a;
    const int format = w->p->format, bits = w->p->bits;
    if (format == PACKED_GPTQ || format == PACKED_GPTQ_V2) {
        const packed_place at = packed_weight(format, bits, k, n);
        const int32_t *words = a->qweight + at.row * a->qweight_r + n * a->qweight_c;
        codes_in_step(words, a->qweight_c, at.bit + bits > 32 ? words + a->qweight_r : NULL, at.bit,
                      bits, count, codes);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        const packed_place at = packed_weight(format, bits, k, n + i);
        codes[i] = (uint8_t)code_at(a->qweight, at.row * a->qweight_r + at.col * a->qweight_c,
                                    at.bit, bits, a->qweight_r);
    }
}

static void zeros_of(const work *w, int64_t g, int64_t n, int64_t count, uint8_t *zeros)
{
    const mica_packed_args *a = &w->a;
    const int format = w->p->format, bits = w->p->bits;
    for (int64_t i = 0; i < count; i++) {
        zeros[i] = (uint8_t)(1u << (bits - 1));
        if (!w->p->has_zeros) continue;
        const packed_place at = packed_zero(format, bits, g, n + i);
        const uint32_t code = code_at(a->qzeros, at.row * a->qzeros_r + at.col * a->qzeros_c,
                                      at.bit, bits, a->qzeros_c);
        zeros[i] = (uint8_t)((code + (uint32_t)packed_zero_offset(format)) & ((1u << bits) - 1));
    }
}

static int64_t scale_at(const work *w, int64_t g, int64_t n)
{
    const mica_packed_args *a = &w->a;
    return g * a->scales_r + packed_scale_column(w->p->format, w->p->single, n) * a->scales_c;
}

static void scales_of(const work *w, int64_t g, int64_t n, int64_t count, float *scales)
{
    for (int64_t i = 0; i < count; i++)
        mica_to_f32(w->p->scales, w->a.scales, scale_at(w, g, n + i), 1, scales + i, 1);
}

static int64_t index_of(const work *w, int64_t i, int64_t below)
{
    const mica_packed_args *a = &w->a;
    if (!w->p->has_index) return i / a->group;
    const int64_t v = w->p->index == MICA_S64 ? ((const int64_t *)a->index)[i * a->index_r]
                                              : ((const int32_t *)a->index)[i * a->index_r];
    return v >= 0 && v < below ? v : -1;
}

/* ---- numbers ---- */

MICA_NARROW_CLONES
static void multiply(const uint8_t *codes, const uint8_t *zeros, const float *scales, int64_t n,
                     float *v)
{
    for (int64_t i = 0; i < n; i++) v[i] = (float)((int)codes[i] - (int)zeros[i]) * scales[i];
}

/* Rows of K from `first` on, columns from n on. */
static void dequantize(const work *w, int64_t first, int64_t end, int64_t n, int64_t count)
{
    const mica_packed_args *a = &w->a;
    uint8_t codes[SPAN], zeros[SPAN] = {0};
    float scales[SPAN] = {0}, v[SPAN] = {0};
    int64_t group = -1;
    for (int64_t k = first; k < end; k++) {
        const int64_t g = index_of(w, k, a->groups);
        if (g >= 0 && g != group) {
            group = g;
            zeros_of(w, g, n, count, zeros);
            scales_of(w, g, n, count, scales);
        }
        if (g >= 0) {
            weights_of(w, k, n, count, codes);
            multiply(codes, zeros, scales, count, v);
        } else
            for (int64_t i = 0; i < count; i++) v[i] = 0;
        mica_from_f32(w->p->to, a->to, k * a->to_k + n * a->to_n, a->to_n, v, count);
    }
}

/* ---- codes ---- */

static void put_code(void *base, int size, int64_t i, int code)
{
    uint8_t *byte = (uint8_t *)base + (size == 8 ? i : i >> 1);
    if (size == 8)
        *byte = (uint8_t)code;
    else
        *byte = (uint8_t)(i & 1 ? (*byte & 15) | (code & 15) << 4 : (*byte & 0xf0) | (code & 15));
}

static void repack(const work *w, int64_t n, int64_t count)
{
    const mica_packed_args *a = &w->a;
    const mica_packed *p = w->p;
    const int size = mica_dtype_bits(p->to), less = p->has_zeros ? 0 : 1 << (p->bits - 1);
    uint8_t codes[ROWS][SPAN];
    for (int64_t first = 0; first < a->k; first += ROWS) {
        const int rows = a->k - first < ROWS ? (int)(a->k - first) : ROWS;
        for (int r = 0; r < rows; r++) {
            const int64_t k = index_of(w, first + r, a->k);
            if (k >= 0) weights_of(w, k, n, count, codes[r]);
            for (int64_t i = 0; k < 0 && i < count; i++) codes[r][i] = (uint8_t)less;
        }
        for (int64_t i = 0; i < count; i++)
            for (int r = 0; r < rows; r++)
                put_code(a->to, size, (n + i) * a->to_n + (first + r) * a->to_k,
                         codes[r][i] - less);
    }
}

static void repack_groups(const work *w, int64_t n, int64_t count)
{
    const mica_packed_args *a = &w->a;
    const mica_packed *p = w->p;
    const int bytes = p->has_scales ? mica_dtype_bits(p->scales) / 8 : 0;
    uint8_t zeros[SPAN];
    for (int64_t g = 0; g < a->groups; g++) {
        for (int64_t i = 0; p->has_scales && i < count; i++)
            mica_move((const char *)a->scales + scale_at(w, g, n + i) * bytes, 1,
                      (char *)a->w_scales + ((n + i) * a->w_scales_n + g * a->w_scales_g) * bytes,
                      1, bytes, 1);
        if (!p->has_zeros) continue;
        zeros_of(w, g, n, count, zeros);
        for (int64_t i = 0; i < count; i++) {
            const int64_t at = (n + i) * a->w_zeros_n + g * a->w_zeros_g;
            const float v = zeros[i];
            if (p->zeros == p->to)
                put_code(a->w_zeros, mica_dtype_bits(p->to), at, zeros[i]);
            else
                mica_from_f32(p->zeros, a->w_zeros, at, 1, &v, 1);
        }
    }
}

/* ---- the engine ---- */

static mica_status build(mica_plan *plan)
{
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_packed_make(plan->op, plan->desc, NULL, &s->p);
    s->bytes = mica_op_bytes(plan->op, plan->desc) * 8;
    return MICA_OK;
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    const mica_packed *p = &s->p;
    work w = {.p = p, .a = p->a};
    mica_packed_bind(p, run, &w.a);
    const int64_t spans = (w.a.n + SPAN - 1) / SPAN, chunks = (w.a.k + ROWS - 1) / ROWS;
    const int threads = mica_cpu_threads_for(s->bytes);
    if (p->dequantizes) {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t i = 0; i < spans * chunks; i++) {
            const int64_t first = i / spans * ROWS, n = i % spans * SPAN;
            dequantize(&w, first, first + ROWS < w.a.k ? first + ROWS : w.a.k, n,
                       w.a.n - n < SPAN ? w.a.n - n : SPAN);
        }
        return MICA_OK;
    }
    /* Codes of two rows may lie in one byte. */
    const bool apart = mica_packed_rows_whole(p);
#pragma omp parallel for num_threads(apart ? threads : 1) schedule(static)
    for (int64_t i = 0; i < spans; i++)
        repack(&w, i * SPAN, w.a.n - i * SPAN < SPAN ? w.a.n - i * SPAN : SPAN);
    for (int64_t i = 0; i < spans; i++)
        repack_groups(&w, i * SPAN, w.a.n - i * SPAN < SPAN ? w.a.n - i * SPAN : SPAN);
    return MICA_OK;
}

const mica_engine mica_dequantize_weights_cpu = {.name = "cpu",
                                                 .reached = 0.1,
                                                 .start_ms = 3e-4,
                                                 .contract = mica_packed_contract,
                                                 .build = build,
                                                 .run = run};
const mica_engine mica_repack_weights_cpu = {.name = "cpu",
                                             .reached = 0.05,
                                             .start_ms = 3e-4,
                                             .contract = mica_packed_contract,
                                             .build = build,
                                             .run = run};
