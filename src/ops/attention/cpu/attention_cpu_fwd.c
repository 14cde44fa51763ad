/* SPDX-License-Identifier: Apache-2.0
 * Attention forward on the CPU: blocks of rows walk along the keys, tile by tile, and keep the
 * maximum, the sum and the result of what they have seen. Few rows with many keys take these in
 * parts, which are merged in order: results depend on sizes, never on threads. */
#include "ops/attention/cpu/attention_cpu.h"
#include "ops/convert/cpu/convert.h"
#include "cpu/cpu.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* By how much scores may exceed the maximum that weights of bf16 are about, before what is summed
 * is rescaled: e^4 times as large they round as well. */
static const float SLACK = 4;

/* What a thread holds for a block. */
typedef struct scratch {
    float *q, *acc;             /* of each panel: [column][lane] */
    uint16_t *q16;              /* or of bf16 */
    float *s;                   /* of one panel */
    void *k, *v;                /* tiles */
    uint16_t *turned, *weights; /* of bf16: values by columns; weights of each panel */
    attention_panel panels[MOST_PANELS];
    attention_lanes lanes[MOST_PANELS];
    int64_t acc_row, acc_column, acc_panel; /* strides of acc: within a panel, and of panels */
} scratch;

/* Where its parts lie from `base` on; returns how many bytes they take. */
static size_t scratch_place(const attention_cpu *p, char *base, scratch *w)
{
    const attention_shape *s = &p->s;
    size_t at = 0, number = p->bf16 ? sizeof(uint16_t) : sizeof(float);
    int64_t dv = p->bf16 ? mica_matrix_lines(s->dv) : s->dv;
    int64_t panel = p->bf16 ? attention_panel_numbers(s->d) : s->d * LANES;
    int64_t k = p->bf16 ? attention_tile_numbers(s->d) : s->d * p->tile;
    int64_t v = p->bf16 ? attention_tile_numbers(s->dv) : s->dv * p->tile;
    w->q = (float *)(void *)base, w->q16 = (uint16_t *)(void *)base;
    at += (size_t)(p->block / LANES * panel) * number;
    w->acc = (float *)(void *)(base + at), at += (size_t)(dv * p->block) * sizeof(float);
    w->s = (float *)(void *)(base + at), at += TILE * LANES * sizeof(float);
    w->k = base + at, at += (size_t)k * number;
    w->v = base + at, at += (size_t)v * number;
    w->turned = (uint16_t *)(void *)(base + at);
    if (p->bf16) at += (size_t)attention_turned_numbers(s->dv) * number;
    w->weights = (uint16_t *)(void *)(base + at);
    if (p->bf16) at += TILE * BLOCK * number;
    w->acc_row = p->few ? s->dv : 1;
    w->acc_column = p->few ? 1 : LANES;
    w->acc_panel = LANES * dv;
    return at;
}

size_t attention_forward_scratch(const attention_cpu *p)
{
    char nowhere[1];
    scratch w;
    return scratch_place(p, nowhere, &w);
}

size_t attention_partial_floats(const attention_shape *s)
{
    int64_t rows = s->group * s->rows < BLOCK ? s->group * s->rows : BLOCK;
    return (size_t)((s->dv + 2) * rows);
}

static void scratch_make(const attention_job *job, int thread, scratch *w)
{
    (void)scratch_place(job->p, job->scratch + (size_t)thread * job->p->scratch_bytes, w);
}

/* ---- a block ---- */

static int panels_of(const attention_rows *r)
{
    return (int)((r->count + LANES - 1) / LANES);
}

static void begin(const attention_rows *r, scratch *w)
{
    const attention_job *job = r->job;
    const attention_shape *s = &job->p->s;
    memset(w->s, 0, TILE * LANES * sizeof *w->s); /* lanes that no product reaches */
    for (int p = 0; p < panels_of(r); p++) {
        attention_panel_make(r, p * LANES, &w->panels[p]);
        if (job->p->bf16)
            attention_load_panel16(r, &w->panels[p], &job->d->q, MICA_ATTENTION_Q, w->k,
                                   w->q16 + p * attention_panel_numbers(s->d));
        else
            attention_load_panel(r, &w->panels[p], &job->d->q, MICA_ATTENTION_Q, r->scale,
                                 w->q + p * LANES * s->d, !job->p->few);
        for (int l = 0; l < LANES; l++) {
            w->lanes[p].max[l] = -INFINITY;
            w->lanes[p].sum[l] = 0;
        }
        memset(w->acc + p * w->acc_panel, 0, (size_t)w->acc_panel * sizeof *w->acc);
    }
}

/* s = keys times the rows of a panel */
static void multiply_keys(const attention_rows *r, scratch *w, int index, int64_t n,
                          const attention_tile *k)
{
    const attention_job *job = r->job;
    const attention_cpu *plan = job->p;
    const attention_panel *p = &w->panels[index];
    int64_t d = plan->s.d;
    if (plan->bf16) {
        attention_multiply_rows16(job, k, n, d, w->q16 + index * attention_panel_numbers(d),
                                  p->lanes, w->s);
        return;
    }
    const attention_product scores = {.a = k->rows,
                                      .a16 = k->rows16,
                                      .b = w->q + index * LANES * d,
                                      .c = w->s,
                                      .a_row = k->ld,
                                      .a_step = 1,
                                      .rows = n,
                                      .depth = d,
                                      .lanes = plan->few ? p->count : p->lanes,
                                      .wide = plan->wide};
    if (plan->few)
        attention_multiply_few(&scores);
    else
        attention_multiply(&scores);
}

/* Scores that are products alone, or none. */
static bool is_plain(const attention_rows *r)
{
    const mica_attention_desc *d = r->job->d;
    return r->scale > 0 && d->soft_cap == 0 && !mica_tensor_given(&d->slopes) &&
           !mica_tensor_given(&d->bias);
}

/* The weights of one panel and n keys from j on. */
static void weigh(const attention_rows *r, scratch *w, int index, int64_t j, int64_t n,
                  const attention_tile *k)
{
    const attention_panel *p = &w->panels[index];
    /* Numbers of bf16 were not scaled, lest they be rounded; the scores are, at once or as
     * exponents.
     */
    bool scaled = !r->job->p->bf16, late = !scaled && is_plain(r);
    multiply_keys(r, w, index, n, k);
    if (!scaled && !late) attention_scale(w->s, n, r->scale);
    attention_finish_scores(r, p, j, n, w->s, NULL);
    if (r->job->p->few)
        attention_softmax_few(w->s, n, p->count, &w->lanes[index]);
    else
        attention_softmax(w->s, n, late ? r->scale : 1, scaled ? 0 : SLACK, &w->lanes[index]);
    if (r->job->d->dropout > 0) attention_drop(r, p, j, n, w->s);
    if (r->job->p->bf16)
        attention_round16(r->job, w->s, n, p->lanes, w->weights + index * TILE * LANES);
}

/* acc += weights times values */
static void add_values(const attention_rows *r, scratch *w, int index, int64_t n,
                       const attention_tile *v)
{
    const attention_job *job = r->job;
    const attention_cpu *plan = job->p;
    const attention_panel *p = &w->panels[index];
    const attention_lanes *lanes = &w->lanes[index];
    float *acc = w->acc + index * w->acc_panel;
    if (lanes->changed && plan->few)
        attention_rescale_few(acc, plan->s.dv, lanes->factor, p->count);
    if (lanes->changed && !plan->few) attention_rescale(acc, plan->s.dv, lanes->factor);
    if (plan->bf16) {
        attention_add_columns16(job, v, n, plan->s.dv, w->weights + index * TILE * LANES, p->lanes,
                                acc);
        return;
    }
    const attention_product sums = {.a = v->rows,
                                    .a16 = v->rows16,
                                    .b = w->s,
                                    .c = acc,
                                    .a_row = 1,
                                    .a_step = v->ld,
                                    .rows = plan->s.dv,
                                    .depth = n,
                                    .lanes = plan->few ? p->count : p->lanes,
                                    .add = true,
                                    .wide = plan->wide};
    if (plan->few)
        attention_multiply_few(&sums);
    else
        attention_multiply(&sums);
}

/* All panels that see one of n keys from j on. Weights of bf16 first, then values: so the one tile
 * and then the other stays in the first cache. */
static void add_tile(const attention_rows *r, scratch *w, int64_t j, int64_t n,
                     const attention_tile *k, const attention_tile *v)
{
    bool sees[MOST_PANELS], apart = r->job->p->bf16;
    for (int p = 0; p < panels_of(r); p++) {
        sees[p] = attention_panel_sees(&w->panels[p], j, j + n);
        if (sees[p]) weigh(r, w, p, j, n, k);
        if (sees[p] && !apart) add_values(r, w, p, n, v);
    }
    for (int p = 0; p < panels_of(r) && apart; p++)
        if (sees[p]) add_values(r, w, p, n, v);
}

/* Keys [from, to); tiles begin at multiples of their size whatever the rows, so that a row's result
 * does not depend on its neighbours. */
static void walk(const attention_rows *r, scratch *w, int64_t from, int64_t to)
{
    const attention_job *job = r->job;
    int64_t tile = job->p->tile;
    if (job->p->bf16) mica_matrix_begin(job->p->unit);
    for (int64_t j = from / tile * tile; j < to; j += tile) {
        int64_t n = r->keys.count - j < tile ? r->keys.count - j : tile;
        attention_tile k = attention_load_tile(job, &job->d->k, MICA_ATTENTION_K, r->n, &r->keys,
                                               r->kv_head, j, n, w->k);
        attention_tile v = attention_load_tile(job, &job->d->v, MICA_ATTENTION_V, r->n, &r->keys,
                                               r->kv_head, j, n, w->v);
        if (job->p->bf16) attention_transpose_tile(job, &v, n, job->p->s.dv, w->turned);
        add_tile(r, w, j, n, &k, &v);
    }
    if (job->p->bf16) mica_matrix_end(job->p->unit);
}

/* ---- results ---- */

static float value_scale(const attention_rows *r)
{
    const mica_tensor *t = &r->job->d->scale_v;
    if (!mica_tensor_given(t)) return 1;
    const float *scales = r->job->args[MICA_ATTENTION_SCALE_V];
    return scales[t->dims[0] == 1 ? 0 : r->kv_head * t->strides[0]];
}

/* Takes the sink into maximum and sum; returns by how much results have become less. */
static float add_sink(const attention_rows *r, int64_t head, float *max, float *sum)
{
    const mica_tensor *t = &r->job->d->sinks;
    if (!mica_tensor_given(t)) return 1;
    float sink;
    mica_to_f32(t->dtype, r->job->args[MICA_ATTENTION_SINKS], head * t->strides[0], 1, &sink, 1);
    float most = fmaxf(*max, sink), shift = most == -INFINITY ? 0 : most;
    float factor = expf(*max - shift);
    *sum = *sum * factor + (sink == shift ? 1 : expf(sink - shift)); /* +inf takes all */
    *max = most;
    return factor;
}

/* Sums of a row: column c at [c * *step]. Panels of bf16 are transposed when their first row comes.
 */
static const float *row_sums(const attention_rows *r, const scratch *w, int64_t row, int64_t *step)
{
    const float *panel = w->acc + row / LANES * w->acc_panel;
    int64_t l = row % LANES, columns = mica_matrix_lines(r->job->p->s.dv);
    *step = w->acc_column;
    if (!r->job->p->bf16) return panel + l * w->acc_row;
    *step = 1;
    if (l == 0)
        mica_matrix_transpose_f32(r->job->p->unit, panel, LANES, columns, LANES, w->v, columns);
    return (const float *)w->v + l * columns;
}

static void finish(const attention_rows *r, scratch *w)
{
    const attention_job *job = r->job;
    const mica_tensor *out = &job->d->out, *lse = &job->d->lse;
    MICA_ALIGNED float result[ATTENTION_MAX_DIM];
    float base = value_scale(r) * (float)job->drop.scale;
    int64_t dv = job->p->s.dv, step;
    for (int64_t row = 0; row < r->count; row++) {
        int64_t p = row / LANES, l = row % LANES;
        float max = w->lanes[p].max[l], sum = w->lanes[p].sum[l];
        float factor = base * add_sink(r, attention_row_head(r, row), &max, &sum) / sum;
        const float *acc = row_sums(r, w, row, &step);
        for (int64_t c = 0; c < dv; c++) result[c] = sum != 0 ? factor * acc[c * step] : 0;
        mica_from_f32(out->dtype, job->args[MICA_ATTENTION_OUT], attention_row_offset(r, out, row),
                      out->strides[3], result, dv);
        if (!mica_tensor_given(lse)) continue;
        ((float *)job->args[MICA_ATTENTION_LSE])[attention_row_offset(r, lse, row)] =
            sum != 0 ? (float)((double)max + log((double)sum)) : -INFINITY;
    }
}

/* ---- parts ---- */

static float *partial_at(const attention_job *job, int64_t unit)
{
    return (float *)(void *)(job->partial + (size_t)unit * job->p->partial_bytes);
}

/* By row: maximum, sum, result. */
static void keep(const attention_rows *r, const scratch *w, float *to)
{
    int64_t dv = r->job->p->s.dv;
    for (int64_t row = 0; row < r->count; row++, to += dv + 2) {
        const attention_lanes *lanes = &w->lanes[row / LANES];
        const float *acc = w->acc + row / LANES * w->acc_panel + row % LANES * w->acc_row;
        to[0] = lanes->max[row % LANES];
        to[1] = lanes->sum[row % LANES];
        for (int64_t c = 0; c < dv; c++) to[2 + c] = acc[c * w->acc_column];
    }
}

/* Adds a part to what w holds. */
static void merge(const attention_rows *r, scratch *w, const float *part)
{
    int64_t dv = r->job->p->s.dv;
    for (int64_t row = 0; row < r->count; row++, part += dv + 2) {
        int64_t l = row % LANES;
        attention_lanes *lanes = &w->lanes[row / LANES];
        float *acc = w->acc + row / LANES * w->acc_panel + l * w->acc_row;
        float most = fmaxf(lanes->max[l], part[0]), shift = most == -INFINITY ? 0 : most;
        float mine = expf(lanes->max[l] - shift), other = expf(part[0] - shift);
        lanes->max[l] = most;
        lanes->sum[l] = lanes->sum[l] * mine + part[1] * other;
        for (int64_t c = 0; c < dv; c++, acc += w->acc_column)
            *acc = *acc * mine + part[2 + c] * other;
    }
}

/* The parts of a sequence that have keys its rows see, [*first, *end). */
static void parts_of(const attention_rows *r, int64_t *first, int64_t *end)
{
    int64_t part = r->job->p->part;
    *first = r->from / part;
    *end = r->to > r->from ? (r->to + part - 1) / part : *first;
}

/* ---- all of them ---- */

/* Rows that belong to no sequence. */
static void clear(const attention_job *job)
{
    const mica_attention_desc *d = job->d;
    if (!mica_tensor_given(&d->cu_q) && !mica_tensor_given(&d->seq_q)) return;
    const attention_shape *s = &job->p->s;
    MICA_ALIGNED float zeros[ATTENTION_MAX_DIM] = {0};
    float none = -INFINITY;
    int64_t lines = d->q.dims[0] * s->heads;
#pragma omp parallel for num_threads(job->threads)
    for (int64_t a = 0; a < lines * s->rows; a++) {
        int64_t b = a / s->rows / s->heads, h = a / s->rows % s->heads, i = a % s->rows;
        const int64_t *o = d->out.strides, *l = d->lse.strides;
        mica_from_f32(d->out.dtype, job->args[MICA_ATTENTION_OUT], b * o[0] + h * o[1] + i * o[2],
                      o[3], zeros, s->dv);
        if (mica_tensor_given(&d->lse))
            ((float *)job->args[MICA_ATTENTION_LSE])[b * l[0] + h * l[1] + i * l[2]] = none;
    }
}

static int64_t sequence_of(const attention_job *job, int64_t block)
{
    return attention_find(job->starts, job->p->s.sequences, block);
}

static void whole_block(const attention_job *job, int64_t task)
{
    scratch w;
    attention_rows r;
    int64_t heads = job->p->s.kv_heads, n = sequence_of(job, task / heads);
    /* Later blocks see more keys where a diagonal cuts: they come first. */
    int64_t blocks = job->starts[n + 1] - job->starts[n];
    int64_t block = blocks - 1 - (task / heads - job->starts[n]);
    scratch_make(job, omp_get_thread_num(), &w);
    attention_rows_make(job, n, task % heads, block * job->p->block, job->p->block, &r);
    begin(&r, &w);
    walk(&r, &w, r.from, r.to);
    finish(&r, &w);
}

static void one_part(const attention_job *job, int64_t task)
{
    scratch w;
    attention_rows r;
    int64_t parts = job->p->parts, heads = job->p->s.kv_heads, part = task % parts, first, end;
    int64_t n = sequence_of(job, task / parts / heads);
    attention_rows_make(job, n, task / parts % heads, 0, job->p->block, &r);
    parts_of(&r, &first, &end);
    if (part < first || part >= end) return;
    scratch_make(job, omp_get_thread_num(), &w);
    begin(&r, &w);
    int64_t from = part * job->p->part, to = from + job->p->part;
    walk(&r, &w, r.from > from ? r.from : from, r.to < to ? r.to : to);
    keep(&r, &w, partial_at(job, task));
}

static void merge_parts(const attention_job *job, int64_t task)
{
    scratch w;
    attention_rows r;
    int64_t heads = job->p->s.kv_heads, first, end;
    scratch_make(job, omp_get_thread_num(), &w);
    attention_rows_make(job, sequence_of(job, task / heads), task % heads, 0, job->p->block, &r);
    parts_of(&r, &first, &end);
    begin(&r, &w);
    for (int64_t part = first; part < end; part++)
        merge(&r, &w, partial_at(job, task * job->p->parts + part));
    finish(&r, &w);
}

void attention_forward_run(const attention_job *job)
{
    clear(job);
    attention_count_blocks(job, false);
    int64_t tasks = job->starts[job->p->s.sequences] * job->p->s.kv_heads, parts = job->p->parts;
    if (parts <= 1) {
#pragma omp parallel for num_threads(job->threads) schedule(dynamic)
        for (int64_t i = 0; i < tasks; i++) whole_block(job, i);
        return;
    }
#pragma omp parallel num_threads(job->threads)
    {
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < tasks * parts; i++) one_part(job, i);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < tasks; i++) merge_parts(job, i);
    }
}
