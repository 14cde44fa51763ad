/* SPDX-License-Identifier: Apache-2.0
 * Rows, panels and tiles of attention on the CPU: what they are, and how scores are completed. */
#include "cpu/cpu.h"
#include "ops/attention/cpu/attention_cpu.h"
#include "ops/convert/cpu/convert.h"

#include <math.h>
#include <string.h>

/* ---- rows ---- */

static float scale_of(const attention_job *job, const mica_tensor *t, int arg, int64_t kv_head)
{
    if (!mica_tensor_given(t)) return 1;
    return ((const float *)job->args[arg])[t->dims[0] == 1 ? 0 : kv_head * t->strides[0]];
}

void attention_rows_make(const attention_job *job, int64_t n, int64_t kv_head, int64_t first,
                         int64_t limit, attention_rows *r)
{
    const mica_attention_desc *d = job->d;
    *r = (attention_rows){.job = job, .n = n, .kv_head = kv_head, .first = first};
    r->queries = attention_queries(d, job->args, n);
    r->keys = attention_keys(d, job->args, n);
    r->shift = attention_shift(d, r->queries.count, r->keys.count);
    int64_t all = r->queries.count * job->p->s.group;
    r->count = all - first < limit ? all - first : limit;
    r->from = r->keys.count;
    for (int64_t row = 0; row < r->count; row++) {
        int64_t i = attention_row_query(r, row);
        attention_range range = attention_range_of(d, r->shift, r->keys.count, i);
        if (range.from >= range.to) continue;
        if (range.from < r->from) r->from = range.from;
        if (range.to > r->to) r->to = range.to;
    }
    r->scale =
        (float)(d->scale * (double)scale_of(job, &d->scale_q, MICA_ATTENTION_SCALE_Q, kv_head) *
                (double)scale_of(job, &d->scale_k, MICA_ATTENTION_SCALE_K, kv_head));
}

void attention_panel_make(const attention_rows *r, int64_t row, attention_panel *p)
{
    const mica_attention_desc *d = r->job->d;
    *p = (attention_panel){.row = row, .any_from = r->keys.count, .all_to = r->keys.count};
    p->count = (int)(r->count - row < LANES ? r->count - row : LANES);
    p->lanes = p->count > LANES / 2 ? LANES : LANES / 2;
    const float *slopes = r->job->args[MICA_ATTENTION_SLOPES];
    for (int l = 0; l < p->count; l++) {
        int64_t i = attention_row_query(r, row + l);
        attention_range range = attention_range_of(d, r->shift, r->keys.count, i);
        p->from[l] = range.from;
        p->to[l] = range.to;
        if (range.from < range.to) {
            p->any_from = smaller(p->any_from, range.from);
            p->any_to = larger(p->any_to, range.to);
        }
        p->all_from = larger(p->all_from, range.from);
        p->all_to = smaller(p->all_to, range.to);
        p->diagonal[l] = (float)(i + r->shift);
        if (mica_tensor_given(&d->slopes))
            p->slope[l] = slopes[attention_row_head(r, row + l) * d->slopes.strides[0]];
    }
}

bool attention_panel_sees(const attention_panel *p, int64_t j, int64_t end)
{
    return p->any_from < end && p->any_to > j;
}

int64_t attention_row_offset(const attention_rows *r, const mica_tensor *t, int64_t row)
{
    return r->queries.batch * t->strides[0] + attention_row_head(r, row) * t->strides[1] +
           (r->queries.first + attention_row_query(r, row)) * t->strides[2];
}

void attention_load_panel(const attention_rows *r, const attention_panel *p, const mica_tensor *t,
                          int arg, float factor, float *to, bool lanes)
{
    MICA_ALIGNED float buffer[ATTENTION_MAX_DIM];
    int64_t n = t->dims[3];
    if (p->count < LANES && lanes) memset(to, 0, (size_t)(n * LANES) * sizeof *to);
    for (int l = 0; l < p->count; l++) {
        const float *row =
            mica_run_f32(t->dtype, r->job->args[arg], attention_row_offset(r, t, p->row + l),
                         t->strides[3], buffer, n);
        float *first = lanes ? to + l : to + l * n;
        int64_t step = lanes ? LANES : 1;
        for (int64_t c = 0; c < n; c++) first[c * step] = factor * row[c];
    }
}

void attention_load_panel16(const attention_rows *r, const attention_panel *p, const mica_tensor *t,
                            int arg, uint16_t *buffer, uint16_t *to)
{
    int64_t ld = mica_matrix_depth(t->dims[3]);
    for (int l = 0; l < p->count; l++)
        attention_copy_row16(t, r->job->args[arg], attention_row_offset(r, t, p->row + l),
                             buffer + l * ld);
    attention_tile tile = attention_finish_tile16(t, p->count, buffer);
    attention_pack_panel16(r->job, &tile, p->count, t->dims[3], to);
}

/* ---- tiles ---- */

static attention_tile load_tile16(const attention_job *job, const mica_tensor *t, int arg,
                                  int64_t n_seq, const attention_span *keys, int64_t h, int64_t j,
                                  int64_t n, uint16_t *buffer)
{
    const uint16_t *data = job->args[arg];
    int64_t ld = mica_matrix_depth(t->dims[3]);
    if (!mica_tensor_given(&job->d->pages) && attention_lies_in_tiles(t, n)) {
        int64_t at = attention_key_offset(job->d, t, job->args, n_seq, keys, h, j);
        return (attention_tile){.rows16 = data + at, .ld = t->strides[2]};
    }
    for (int64_t i = 0; i < n; i++)
        attention_copy_row16(t, data,
                             attention_key_offset(job->d, t, job->args, n_seq, keys, h, j + i),
                             buffer + i * ld);
    return attention_finish_tile16(t, n, buffer);
}

attention_tile attention_load_tile(const attention_job *job, const mica_tensor *t, int arg,
                                   int64_t n_seq, const attention_span *keys, int64_t h, int64_t j,
                                   int64_t n, void *buffer)
{
    if (job->p->bf16) return load_tile16(job, t, arg, n_seq, keys, h, j, n, buffer);
    int64_t columns = t->dims[3];
    bool paged = mica_tensor_given(&job->d->pages);
    if (!paged && job->p->few && job->p->wide && t->dtype == MICA_BF16 &&
        (t->strides[3] == 1 || columns == 1)) {
        int64_t at = attention_key_offset(job->d, t, job->args, n_seq, keys, h, j);
        return (attention_tile){.rows16 = (const uint16_t *)job->args[arg] + at,
                                .ld = t->strides[2]};
    }
    if (!paged && t->dtype == MICA_F32 && (t->strides[3] == 1 || columns == 1)) {
        int64_t at = attention_key_offset(job->d, t, job->args, n_seq, keys, h, j);
        return (attention_tile){.rows = (const float *)job->args[arg] + at, .ld = t->strides[2]};
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t at = attention_key_offset(job->d, t, job->args, n_seq, keys, h, j + i);
        float *to = (float *)buffer + i * columns;
        if (at < 0)
            memset(to, 0, (size_t)columns * sizeof *to);
        else
            mica_to_f32(t->dtype, job->args[arg], at, t->strides[3], to, columns);
    }
    return (attention_tile){.rows = buffer, .ld = columns};
}

/* ---- scores ---- */

static void add_bias(const attention_rows *r, const attention_panel *p, int64_t j, int64_t n,
                     float *s)
{
    const mica_tensor *t = &r->job->d->bias;
    MICA_ALIGNED float values[TILE];
    int64_t step = t->dims[3] == 1 ? 0 : t->strides[3];
    for (int l = 0; l < p->count; l++) {
        int64_t row = p->row + l;
        int64_t at =
            attention_at(t, r->n, attention_row_head(r, row), attention_row_query(r, row), j);
        mica_to_f32(t->dtype, r->job->args[MICA_ATTENTION_BIAS], at, step, values, n);
        for (int64_t i = 0; i < n; i++) s[i * LANES + l] += values[i];
    }
}

static void apply_mask(const attention_rows *r, const attention_panel *p, int64_t j, int64_t n,
                       float *s)
{
    const mica_tensor *t = &r->job->d->mask;
    const uint8_t *mask = r->job->args[MICA_ATTENTION_MASK];
    int64_t step = t->dims[3] == 1 ? 0 : t->strides[3];
    for (int l = 0; l < p->count; l++) {
        int64_t row = p->row + l;
        const uint8_t *m = mask + attention_at(t, r->n, attention_row_head(r, row),
                                               attention_row_query(r, row), j);
        for (int64_t i = 0; i < n; i++)
            if (!m[i * step]) s[i * LANES + l] = -INFINITY;
    }
}

/* Keys whose page is absent. */
static void apply_pages(const attention_rows *r, int64_t j, int64_t n, float *s)
{
    const attention_job *job = r->job;
    for (int64_t i = 0; i < n; i++) {
        if (attention_key_offset(job->d, &job->d->k, job->args, r->n, &r->keys, r->kv_head,
                                 j + i) >= 0)
            continue;
        for (int l = 0; l < LANES; l++) s[i * LANES + l] = -INFINITY;
    }
}

static void apply_range(const attention_panel *p, int64_t j, int64_t n, float *s)
{
    int32_t from[LANES] = {0}, to[LANES] = {0};
    if (p->all_from <= j && p->all_to >= j + n) return;
    for (int l = 0; l < p->count; l++) {
        int64_t low = p->from[l] - j, high = p->to[l] - j;
        from[l] = (int32_t)(low < 0 ? 0 : low < n ? low : n);
        to[l] = (int32_t)(high < 0 ? 0 : high < n ? high : n);
    }
    attention_limit(s, n, from, to);
}

void attention_finish_scores(const attention_rows *r, const attention_panel *p, int64_t j,
                             int64_t n, float *s, float *slope)
{
    const mica_attention_desc *d = r->job->d;
    if (d->soft_cap > 0) attention_cap(s, n, (float)d->soft_cap, slope);
    if (mica_tensor_given(&d->slopes)) attention_alibi(s, n, (float)j, p->slope, p->diagonal);
    if (mica_tensor_given(&d->bias)) add_bias(r, p, j, n, s);
    if (mica_tensor_given(&d->mask)) apply_mask(r, p, j, n, s);
    if (mica_tensor_given(&d->pages)) apply_pages(r, j, n, s);
    apply_range(p, j, n, s);
}

void attention_drop(const attention_rows *r, const attention_panel *p, int64_t j, int64_t n,
                    float *w)
{
    const attention_dropout *drop = &r->job->drop;
    for (int l = 0; l < p->count; l++) {
        int64_t i = attention_row_query(r, p->row + l);
        int64_t row = r->n * r->job->p->s.heads + attention_row_head(r, p->row + l);
        uint32_t word[4];
        for (int64_t k = 0; k < n; k++) {
            if (k % 4 == 0) attention_philox(drop, row, i, j + k, word);
            if (word[k % 4] < drop->threshold) w[k * LANES + l] = 0;
        }
    }
}

/* ---- the same with keys in the lanes ---- */

static void finish_row(const attention_rows *r, int64_t row, int64_t j, int n, float *s)
{
    const mica_attention_desc *d = r->job->d;
    int64_t h = attention_row_head(r, row), i = attention_row_query(r, row);
    if (mica_tensor_given(&d->slopes)) {
        const float *slopes = r->job->args[MICA_ATTENTION_SLOPES];
        float slope = slopes[h * d->slopes.strides[0]], diagonal = (float)(i + r->shift);
        for (int l = 0; l < n; l++) s[l] -= slope * fabsf((float)(j + l) - diagonal);
    }
    if (mica_tensor_given(&d->bias)) {
        const mica_tensor *t = &d->bias;
        MICA_ALIGNED float values[LANES];
        mica_to_f32(t->dtype, r->job->args[MICA_ATTENTION_BIAS], attention_at(t, r->n, h, i, j),
                    t->dims[3] == 1 ? 0 : t->strides[3], values, n);
        for (int l = 0; l < n; l++) s[l] += values[l];
    }
    if (mica_tensor_given(&d->mask)) {
        const mica_tensor *t = &d->mask;
        const uint8_t *m = r->job->args[MICA_ATTENTION_MASK];
        m += attention_at(t, r->n, h, i, j);
        for (int l = 0; l < n; l++)
            if (!m[t->dims[3] == 1 ? 0 : l * t->strides[3]]) s[l] = -INFINITY;
    }
    attention_range range = attention_range_of(d, r->shift, r->keys.count, i);
    int64_t from = range.from - j, to = smaller(range.to - j, n);
    if (from <= 0 && to >= LANES) return;
    for (int l = 0; l < LANES; l++)
        if (l < from || l >= to) s[l] = -INFINITY;
}

void attention_finish_rows(const attention_rows *r, int64_t j, int n, float *s, float *slope)
{
    const mica_attention_desc *d = r->job->d;
    if (d->soft_cap > 0) attention_cap(s, r->count, (float)d->soft_cap, slope);
    for (int64_t row = 0; row < r->count; row++) finish_row(r, row, j, n, s + row * LANES);
}

void attention_drop_rows(const attention_rows *r, int64_t j, int n, float *w)
{
    const attention_dropout *drop = &r->job->drop;
    for (int64_t row = 0; row < r->count; row++) {
        int64_t line = r->n * r->job->p->s.heads + attention_row_head(r, row);
        uint32_t word[4];
        for (int l = 0; l < n; l++) {
            if (l % 4 == 0) attention_philox(drop, line, attention_row_query(r, row), j + l, word);
            if (word[l % 4] < drop->threshold) w[row * LANES + l] = 0;
        }
    }
}

int64_t attention_find(const int64_t *starts, int64_t count, int64_t i)
{
    int64_t low = 0, high = count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (starts[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}

void attention_count_blocks(const attention_job *job, bool keys)
{
    const attention_shape *s = &job->p->s;
    int64_t blocks = 0;
    for (int64_t n = 0; n < s->sequences; n++) {
        int64_t rows = keys ? attention_keys(job->d, job->args, n).count
                            : attention_queries(job->d, job->args, n).count * s->group;
        job->starts[n] = blocks;
        blocks += (rows + job->p->block - 1) / job->p->block;
    }
    job->starts[s->sequences] = blocks;
}
