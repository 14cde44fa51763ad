/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu": a thread per row, one look at the sums of its parts and one at their rows, in
 * pieces that stay in the first cache. f64 in f64, all else in f32. Any strides; no workspace. */
#include "ops/attention_merge/attention_merge.h"
#include "ops/convert/cpu/convert.h"
#include "cpu/cpu.h"

#include <math.h>

enum { PIECE = 512 };

typedef struct state {
    mica_layout rows;
    double bytes;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    return 2 * mica_roofline_ms(&mica_op_attention_merge, desc, device) + 1e-3;
}

static mica_status build(mica_plan *plan)
{
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    attention_merge_rows(plan->desc, &s->rows);
    s->bytes = mica_op_bytes(plan->op, plan->desc);
    return MICA_OK;
}

/* One row: where it is in each tensor, and what its weights are measured against. */
typedef struct row {
    int64_t at[MERGE_TENSORS];
    double max, sum;
} row;

static double stat(const mica_attention_merge_desc *d, const void *lses, int64_t offset)
{
    return d->lses.dtype == MICA_F64 ? ((const double *)lses)[offset]
                                     : (double)((const float *)lses)[offset];
}

static void find_row(const mica_attention_merge_desc *d, const mica_layout *l, const void *lses,
                     int64_t i, row *r)
{
    for (int t = 0; t < MERGE_TENSORS; t++) r->at[t] = 0;
    for (int a = l->rank - 1; a >= 0; a--) {
        for (int t = 0; t < MERGE_TENSORS; t++) r->at[t] += i % l->dims[a] * l->strides[t][a];
        i /= l->dims[a];
    }
    int64_t parts = d->lses.dims[0], step = d->lses.strides[0];
    r->max = -INFINITY, r->sum = 0;
    for (int64_t p = 0; p < parts; p++)
        r->max = fmax(r->max, stat(d, lses, r->at[MERGE_LSES] + p * step));
    for (int64_t p = 0; p < parts; p++) {
        double l = stat(d, lses, r->at[MERGE_LSES] + p * step);
        if (l != -INFINITY) r->sum += exp(l - r->max); /* NaN and +inf make it NaN */
    }
}

/* Whether part p saw keys, and what its columns count: 0 does not make them vanish. */
static bool find_weight(const mica_attention_merge_desc *d, const void *lses, const row *r,
                        int64_t p, double *w)
{
    double l = stat(d, lses, r->at[MERGE_LSES] + p * d->lses.strides[0]);
    *w = exp(l - r->max) / r->sum;
    return l != -INFINITY;
}

static void merge_f32(const mica_attention_merge_desc *d, const mica_run *run, const row *r,
                      int64_t first, int64_t n)
{
    int last = d->outs.rank - 1;
    int64_t step = d->outs.strides[last], to = d->out.strides[d->out.rank - 1];
    const void *lses = run->args[MICA_ATTENTION_MERGE_LSES];
    MICA_ALIGNED float sums[PIECE] = {0}, buffer[PIECE];
    for (int64_t p = 0; p < d->outs.dims[0]; p++) {
        double weight;
        if (!find_weight(d, lses, r, p, &weight)) continue;
        float w = (float)weight;
        int64_t from = r->at[MERGE_OUTS] + p * d->outs.strides[0] + first * step;
        const float *x = mica_run_f32(d->outs.dtype, run->args[MICA_ATTENTION_MERGE_OUTS], from,
                                      step, buffer, n);
        for (int64_t c = 0; c < n; c++) sums[c] += w * x[c];
    }
    mica_from_f32(d->out.dtype, run->args[MICA_ATTENTION_MERGE_OUT], r->at[MERGE_OUT] + first * to,
                  to, sums, n);
}

static void merge_f64(const mica_attention_merge_desc *d, const mica_run *run, const row *r,
                      int64_t first, int64_t n)
{
    int last = d->outs.rank - 1;
    int64_t step = d->outs.strides[last], to = d->out.strides[d->out.rank - 1];
    const void *lses = run->args[MICA_ATTENTION_MERGE_LSES];
    MICA_ALIGNED double sums[PIECE] = {0};
    for (int64_t p = 0; p < d->outs.dims[0]; p++) {
        double w;
        if (!find_weight(d, lses, r, p, &w)) continue;
        const double *x = (const double *)run->args[MICA_ATTENTION_MERGE_OUTS] + r->at[MERGE_OUTS] +
                          p * d->outs.strides[0] + first * step;
        for (int64_t c = 0; c < n; c++) sums[c] += w * x[c * step];
    }
    double *out = (double *)run->args[MICA_ATTENTION_MERGE_OUT] + r->at[MERGE_OUT] + first * to;
    for (int64_t c = 0; c < n; c++) out[c * to] = sums[c];
}

static void put_lse(const mica_attention_merge_desc *d, void *lse, const row *r)
{
    double v = r->sum != 0 ? r->max + log(r->sum) : -INFINITY;
    if (d->lse.dtype == MICA_F64)
        ((double *)lse)[r->at[MERGE_LSE]] = v;
    else
        ((float *)lse)[r->at[MERGE_LSE]] = (float)v;
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const mica_attention_merge_desc *d = plan->desc;
    const state *s = plan->state;
    int64_t columns = d->outs.dims[d->outs.rank - 1];
#pragma omp parallel for num_threads(mica_cpu_threads_for(s->bytes))
    for (int64_t i = 0; i < s->rows.count; i++) {
        row r;
        find_row(d, &s->rows, run->args[MICA_ATTENTION_MERGE_LSES], i, &r);
        for (int64_t c = 0; c < columns; c += PIECE) {
            int64_t n = columns - c < PIECE ? columns - c : PIECE;
            if (d->outs.dtype == MICA_F64)
                merge_f64(d, run, &r, c, n);
            else
                merge_f32(d, run, &r, c, n);
        }
        if (mica_tensor_given(&d->lse)) put_lse(d, run->args[MICA_ATTENTION_MERGE_LSE], &r);
    }
    return MICA_OK;
}

const mica_engine mica_attention_merge_cpu = {
    .name = "cpu", .accepts = accepts, .predict = predict, .build = build, .run = run};
