/* SPDX-License-Identifier: Apache-2.0
 * The truth of quantized_gemm: weights as the words of the header make them, rounded to f32 where
 * those say so, and sums in double precision. What formats' own packages and PyTorch make of such
 * products is in tests/judges/quantized_gemm.h. */
#include "ops/quantized_gemm/quantized_gemm.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"

#include <math.h>

enum { CHUNK = 256, ROWS = 64 };

typedef struct truth {
    mica_qgemm g;
    const mica_view *views;
    double alpha;
} truth;

static double of_group(const truth *t, int arg, int64_t by_n, int64_t by_g, int64_t n, int64_t k)
{
    const int64_t at = arg == MICA_QUANTIZED_GEMM_SCALES ? t->g.a.scale_at : t->g.a.zero_at;
    return mica_get(&t->views[arg], at + n * by_n + k / t->g.a.group * by_g);
}

static double code_weight(const truth *t, int64_t n, int64_t k)
{
    const mica_qgemm_args *a = &t->g.a;
    const mica_view *w = &t->views[MICA_QUANTIZED_GEMM_W];
    double v = mica_get(w, a->w_at + n * a->w_n + k * a->w_k);
    if (t->g.has_zeros)
        v = (double)(float)(v - of_group(t, MICA_QUANTIZED_GEMM_ZEROS, a->zero_n, a->zero_g, n, k));
    return (double)(float)(v *
                           of_group(t, MICA_QUANTIZED_GEMM_SCALES, a->scale_n, a->scale_g, n, k));
}

/* Weights of row n from k on, a multiple of 32; few enough to lie in one or several whole blocks,
 * or in a part of one. */
static void block_weights(const truth *t, int64_t n, int64_t k, int count, double *v)
{
    const mica_qgemm *g = &t->g;
    const mica_qgemm_args *a = &g->a;
    const mica_view *w = &t->views[MICA_QUANTIZED_GEMM_W];
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    uint8_t *bytes = mica_scratch_take(MICA_BLOCKS_MOST_BYTES);
    for (int i = 0; i < count; i++) {
        const int64_t block = (k + i) / g->elements;
        const int at = (int)((k + i) % g->elements);
        if (i == 0 || at == 0)
            for (int b = 0; b < g->bytes; b++)
                bytes[b] =
                    (uint8_t)mica_get(w, a->w_at + n * a->w_n + (block * g->bytes + b) * a->w_k);
        float scale = 1;
        if (g->has_scales)
            scale =
                (float)of_group(t, MICA_QUANTIZED_GEMM_SCALES, a->scale_n, a->scale_g, n, k + i);
        v[i] =
            (double)mica_blocks_element((int)(g->blocks - mica_blocks_formats), bytes, at, scale);
    }
}

static void add_chunk(const truth *t, int64_t n, int64_t m0, int rows, int64_t k, double *sum,
                      double *mag)
{
    const mica_qgemm_args *a = &t->g.a;
    const mica_view *x = &t->views[MICA_QUANTIZED_GEMM_X];
    double w[CHUNK];
    const int count = a->k - k < CHUNK ? (int)(a->k - k) : CHUNK;
    if (t->g.blocks)
        block_weights(t, n, k, count, w);
    else
        for (int i = 0; i < count; i++) w[i] = code_weight(t, n, k + i);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < count; i++) {
            const double p = mica_get(x, (m0 + r) * a->x_m + (k + i) * a->x_k) * w[i];
            sum[r] += p;
            mag[r] += fabs(p);
        }
}

/* Rows from `first` to before m. */
static void do_row(const truth *t, int64_t first, int64_t n)
{
    const mica_qgemm_args *a = &t->g.a;
    for (int64_t m0 = first; m0 < a->m; m0 += ROWS) {
        const int rows = a->m - m0 < ROWS ? (int)(a->m - m0) : ROWS;
        double sum[ROWS] = {0}, mag[ROWS] = {0};
        for (int64_t k = 0; k < a->k; k += CHUNK) add_chunk(t, n, m0, rows, k, sum, mag);
        for (int r = 0; r < rows; r++) {
            double v = t->alpha * sum[r], m = fabs(t->alpha) * mag[r];
            if (t->g.has_bias) {
                const double b =
                    mica_get(&t->views[MICA_QUANTIZED_GEMM_BIAS], a->bias_at + n * a->bias_n);
                v += b, m += fabs(b);
            }
            mica_put(&t->views[MICA_QUANTIZED_GEMM_Y], (m0 + r) * a->y_m + n * a->y_n, v, m);
        }
    }
}

void mica_quantized_gemm_reference(const void *desc, const mica_view *views, const double *scalars)
{
    truth t = {.views = views, .alpha = scalars[MICA_QUANTIZED_GEMM_ALPHA]};
    mica_qgemm_make(desc, views, &t.g);
#pragma omp parallel for num_threads(mica_cpu_threads()) schedule(static)
    for (int64_t n = 0; n < t.g.a.n; n++) {
        truth part = t;
        int64_t end = 0;
        for (int64_t i = 0; i < mica_qgemm_groups(&t.g); i++) {
            const int64_t first =
                mica_qgemm_group(&t.g, t.g.grouped ? views[MICA_QUANTIZED_GEMM_ENDS].data : NULL, i,
                                 &end, &part.g.a);
            do_row(&part, first, n);
        }
        for (int64_t m = end; m < t.g.a.m; m++)
            mica_put(&views[MICA_QUANTIZED_GEMM_Y], m * t.g.a.y_m + n * t.g.a.y_n, 0, 0);
    }
}
