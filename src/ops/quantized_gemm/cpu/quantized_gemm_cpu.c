/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of quantized_gemm. A thread takes rows of w, ROWS at a time; a chunk of them is
 * decoded to f32 in the first-level cache, by the loops of quantize and quantize_blocks, and
 * multiplied with rows of x, several at a time, in vector registers; of groups one after the other,
 * each thread with its rows of every matrix. x is converted to f32 once,
 * into the workspace, unless it is that. Activations are not quantised. Cost: bytes of w at the
 * bandwidth of memory or the decoding, whichever is longer, and 2MNK at about half the rate of f32.
 */
#include "ops/quantized_gemm/quantized_gemm.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "ops/convert/cpu/convert.h"
#include "ops/convert/cpu/functions_f32.h"
#include "ops/quantize/quantize.h"

#include <omp.h>

enum {
    ROWS = 4,     /* of w, and of x, that a kernel multiplies */
    CHUNK = 1024, /* elements of a row; whole blocks of those that hold their scales */
    LINES = 512   /* rows of x for which weights are decoded once */
};

typedef struct state {
    mica_qgemm g;
    bool straight; /* x is f32 side by side */
    bool whole;    /* bytes of a row's blocks lie side by side */
    int64_t chunk;
    size_t rows; /* x in f32, in the workspace */
    mica_load_fn load_scale, load_zero, load_bias;
    mica_store_fn store;
    double bytes;
} state;

typedef struct work {
    const state *s;
    mica_qgemm_args a;
    const float *x;
    int64_t x_m;
    float *w;       /* ROWS chunks */
    uint8_t *bytes; /* of a block */
} work;

/* ---- products of chunks ---- */

#define VECTOR    MICA_NARROW
#define CLONES    MICA_NARROW_CLONES
#define KERNEL(n) n##_narrow
#include "ops/quantized_gemm/cpu/quantized_gemm_kernel.h"
#if defined(__x86_64__)
#define VECTOR    64
#define CLONES    MICA_WIDE
#define KERNEL(n) n##_wide
#include "ops/quantized_gemm/cpu/quantized_gemm_kernel.h"
#else
#define multiply_wide multiply_narrow
#endif

/* ---- weights ---- */

MICA_CLONES
static void scale_codes(float *v, int64_t n, float zero, float scale)
{
    for (int64_t i = 0; i < n; i++) v[i] = (v[i] - zero) * scale;
}

static void code_chunk(const work *k, int64_t n, int64_t first, int64_t count, float *v)
{
    const mica_qgemm *g = &k->s->g;
    const mica_qgemm_args *a = &k->a;
    mica_quantize_codes_f32(g->w, a->w, a->w_at + n * a->w_n + first * a->w_k, a->w_k, v, count);
    for (int64_t i = 0; i < count;) {
        const int64_t group = (first + i) / a->group, next = (group + 1) * a->group - first;
        const int64_t end = next < count ? next : count;
        const int64_t scale_at = a->scale_at + n * a->scale_n + group * a->scale_g;
        const float scale = (float)k->s->load_scale(a->scales, scale_at);
        float zero = 0;
        if (g->has_zeros)
            zero = (float)k->s->load_zero(a->zeros, a->zero_at + n * a->zero_n + group * a->zero_g);
        scale_codes(v + i, end - i, zero, scale);
        i = end;
    }
}

static void block_chunk(const work *k, int64_t n, int64_t first, int64_t count, float *v)
{
    const mica_qgemm *g = &k->s->g;
    const mica_qgemm_args *a = &k->a;
    const int format = (int)(g->blocks - mica_blocks_formats);
    const int64_t number = first / g->elements, blocks = count / g->elements;
    const uint8_t *w = (const uint8_t *)a->w + a->w_at + n * a->w_n + number * g->bytes * a->w_k;
    const float *scale = a->scales;
    mica_blocks_run r = {g->elements, g->bytes, blocks, a->scale_g, NULL};
    if (g->has_scales) r.scale = scale + a->scale_at + n * a->scale_n + number * a->scale_g;
    if (k->s->whole) {
        mica_blocks_decode(format, &r, w, v);
        return;
    }
    r.n = 1;
    for (int64_t b = 0; b < blocks; b++, v += g->elements) {
        for (int i = 0; i < g->bytes; i++) k->bytes[i] = w[(b * g->bytes + i) * a->w_k];
        mica_blocks_decode(format, &r, k->bytes, v);
        if (r.scale) r.scale += a->scale_g;
    }
}

/* ---- rows of w ---- */

/* sums: `lines` x ROWS, of x's rows from m on. */
static void store_sums(const work *k, int64_t m, int64_t lines, int64_t n, int rows,
                       const float *sums)
{
    const mica_qgemm_args *a = &k->a;
    const bool has_bias = k->s->g.has_bias;
    for (int r = 0; r < rows; r++) {
        const float bias =
            has_bias ? (float)k->s->load_bias(a->bias, a->bias_at + (n + r) * a->bias_n) : 0;
        for (int64_t i = 0; i < lines; i++) {
            const float v = a->alpha * sums[i * ROWS + r];
            k->s->store(a->y, (m + i) * a->y_m + (n + r) * a->y_n,
                        (double)(has_bias ? v + bias : v));
        }
    }
}

static void do_rows(const work *k, int64_t m, int64_t lines, int64_t n, int rows, float *sums)
{
    const state *s = k->s;
    const mica_qgemm_args *a = &k->a;
    for (int64_t i = 0; i < lines * ROWS; i++) sums[i] = 0;
    for (int64_t first = 0; first < a->k; first += s->chunk) {
        const int64_t count = a->k - first < s->chunk ? a->k - first : s->chunk;
        for (int r = 0; r < rows; r++)
            (s->g.blocks ? block_chunk : code_chunk)(k, n + r, first, count, k->w + r * s->chunk);
        (mica_cpu_is_wide() ? multiply_wide : multiply_narrow)(k->x + m * k->x_m + first, k->x_m,
                                                               lines, k->w, s->chunk, count, sums);
    }
    store_sums(k, m, lines, n, rows, sums);
}

/* ---- the plan ---- */

static mica_status build(mica_plan *plan)
{
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_qgemm *g = &s->g;
    mica_qgemm_make(plan->desc, NULL, g);
    s->chunk = g->blocks && g->elements > CHUNK ? g->elements : CHUNK;
    s->whole = g->a.w_k == 1;
    s->straight = g->x == MICA_F32 && (g->a.x_k == 1 || g->a.k < 2);
    s->load_scale = g->has_scales ? mica_dtype_load(g->scales) : NULL;
    s->load_zero = g->has_zeros ? mica_dtype_load(g->zeros) : NULL;
    s->load_bias = g->has_bias ? mica_dtype_load(g->bias) : NULL;
    s->store = mica_dtype_store(g->y);
    s->bytes = mica_op_bytes(plan->op, plan->desc) * 8 * (1 + mica_qgemm_expected(g) / 4);
    if (s->straight) return MICA_OK;
    return mica_book(plan, "x in f32", (size_t)(g->a.m * g->a.k) * sizeof(float), &s->rows);
}

/* ---- runs ---- */

static void convert_rows(const state *s, const mica_qgemm_args *a, float *to, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t m = 0; m < a->m; m++)
        mica_to_f32(s->g.x, a->x, m * a->x_m, a->x_k, to + m * a->k, a->k);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    work all = {.s = s, .a = s->g.a};
    mica_qgemm_bind(plan, run, &all.a);
    const mica_qgemm_args *a = &all.a;
    if (a->m == 0 || a->n == 0) return MICA_OK;
    const int threads = mica_cpu_threads_for(s->bytes);
    all.x = s->straight ? a->x : mica_at(run, s->rows);
    all.x_m = s->straight ? a->x_m : a->k;
    if (!s->straight) convert_rows(s, a, mica_at(run, s->rows), threads);
    const int64_t tasks = (a->n - 1) / ROWS + 1;
#pragma omp parallel num_threads(threads)
    {
        mica_scratch scope MICA_SCOPED = mica_scratch_open();
        const int64_t team = omp_get_num_threads(), t = omp_get_thread_num();
        const int64_t end = tasks * (t + 1) / team;
        const int64_t most = a->m < LINES ? a->m : LINES;
        work k = all;
        float *sums = mica_scratch_take((size_t)most * ROWS * sizeof *sums);
        k.w = mica_scratch_zeroed((size_t)s->chunk * ROWS * sizeof *k.w);
        k.bytes = mica_scratch_take(MICA_BLOCKS_MOST_BYTES);
        int64_t last = 0;
        for (int64_t group = 0; group < mica_qgemm_groups(&s->g); group++) {
            const int64_t from = mica_qgemm_group(&s->g, a->ends.groups, group, &last, &k.a);
            for (int64_t m = from; m < last; m += LINES)
                for (int64_t i = tasks * t / team; i < end; i++) {
                    const int64_t left = a->n - i * ROWS, lines = last - m;
                    do_rows(&k, m, lines < LINES ? lines : LINES, i * ROWS,
                            left < ROWS ? (int)left : ROWS, sums);
                }
        }
        const int64_t columns = end * ROWS < a->n ? end * ROWS : a->n;
        for (int64_t m = last; m < a->m; m++)
            for (int64_t n = tasks * t / team * ROWS; n < columns; n++)
                s->store(a->y, m * a->y_m + n * a->y_n, 0);
    }
    return MICA_OK;
}

const mica_engine mica_quantized_gemm_cpu = {
    .name = "cpu", .reached = 0.3, .start_ms = 1e-3, .build = build, .run = run};
