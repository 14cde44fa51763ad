/* SPDX-License-Identifier: Apache-2.0
 * Attention backward on the CPU, deterministic, weights being formed anew from lse: all gradients
 * in one pass over blocks of keys, parts of which add up dq on their own, in order at the end; or
 * dq in a pass of its own, by blocks of rows (seven products instead of five, but nothing is shared
 * between threads, and nothing kept). Where blocks are keys, these lie in the lanes and rows of
 * queries are tiles: the same products with the roles exchanged. dbias takes a pass of its own,
 * each thread summing what is its own in order. */
#include "ops/attention/cpu/attention_cpu.h"
#include "ops/convert/cpu/convert.h"
#include "cpu/cpu.h"

#include <math.h>
#include <omp.h>
#include <string.h>

typedef struct scratch {
    float *x, *y, *dx, *dy;           /* panels of the block: [column][lane] */
    uint16_t *x16, *y16;              /* x and y of bf16 */
    float *keys, *dq;                 /* one pass: k by panels of columns, [key][lane]; sums */
    float *s, *dp, *keep, *slope;     /* of one panel and one tile */
    void *tile_x, *tile_y;            /* rows of a tile */
    uint16_t *turned_x, *turned_y;    /* of bf16: by columns */
    float *bias;                      /* sums of dbias */
    float shift[BLOCK], delta[BLOCK]; /* of rows */
    attention_panel panels[MOST_PANELS];
} scratch;

/* Columns of a sum: those of bf16 are filled up. */
static int64_t columns_of(const attention_cpu *p, int64_t columns)
{
    return p->bf16 ? mica_matrix_lines(columns) : columns;
}

static int64_t column_panels(const attention_shape *s)
{
    return ceiling(s->d, LANES);
}

int64_t attention_sum_floats(const attention_shape *s)
{
    return column_panels(s) * s->group * s->rows * LANES;
}

static void *take(char **at, int64_t count, size_t bytes)
{
    void *part = *at;
    *at += (size_t)count * bytes;
    return part;
}

/* Where its parts lie from `base` on; returns their end. */
static char *scratch_place(const attention_cpu *p, char *base, scratch *w)
{
    const size_t number = sizeof(float), half = sizeof(uint16_t);
    const attention_shape *s = &p->s;
    float **tiles[] = {&w->s, &w->dp, &w->keep, &w->slope};
    char *at = base;
    *w = (scratch){0};
    w->dx = take(&at, columns_of(p, s->d) * p->block, number);
    w->dy = take(&at, columns_of(p, s->dv) * p->block, number);
    for (int i = 0; i < 4; i++) *tiles[i] = take(&at, TILE * LANES, number);
    if (p->bf16) {
        w->x16 = take(&at, p->block / LANES * attention_panel_numbers(s->d), half);
        w->y16 = take(&at, p->block / LANES * attention_panel_numbers(s->dv), half);
        w->tile_x = take(&at, attention_tile_numbers(s->d), half);
        w->tile_y = take(&at, attention_tile_numbers(s->dv), half);
        w->turned_x = take(&at, attention_turned_numbers(s->d), half);
        w->turned_y = take(&at, attention_turned_numbers(s->dv), half);
    } else {
        w->x = take(&at, s->d * p->block, number);
        w->y = take(&at, s->dv * p->block, number);
        w->tile_x = take(&at, s->d * p->tile, number);
        w->tile_y = take(&at, s->dv * p->tile, number);
    }
    if (p->chunks) w->keys = take(&at, column_panels(s) * p->block * LANES, number);
    if (p->chunks == 1) w->dq = take(&at, attention_sum_floats(s), number);
    w->bias = (float *)(void *)at;
    return at;
}

size_t attention_backward_scratch(const attention_cpu *p)
{
    char nowhere[1];
    scratch w;
    return (size_t)(scratch_place(p, nowhere, &w) - nowhere);
}

static void scratch_make(const attention_job *job, scratch *w)
{
    size_t thread = (size_t)omp_get_thread_num();
    (void)scratch_place(job->p, job->scratch + thread * job->p->scratch_bytes, w);
}

static void open_unit(const attention_job *job)
{
    if (job->p->bf16) mica_matrix_begin(job->p->unit);
}

static void close_unit(const attention_job *job)
{
    if (job->p->bf16) mica_matrix_end(job->p->unit);
}

/* Index of a row in job->delta: that of q, packed. */
static int64_t row_index(const attention_rows *r, int64_t row)
{
    const attention_shape *s = &r->job->p->s;
    int64_t line = r->queries.batch * s->heads + attention_row_head(r, row);
    return line * s->rows + r->queries.first + attention_row_query(r, row);
}

/* lse and delta of the rows; a row without keys is shifted out of all weights. */
static void load_rows(const attention_rows *r, scratch *w)
{
    const mica_tensor *lse = &r->job->d->lse;
    const float *data = r->job->args[MICA_ATTENTION_LSE];
    for (int64_t row = 0; row < r->count; row++) {
        float value = data[attention_row_offset(r, lse, row)];
        w->shift[row] = value == -INFINITY ? INFINITY : value;
        w->delta[row] = r->job->delta[row_index(r, row)];
    }
    for (int64_t row = r->count; row < BLOCK; row++) w->shift[row] = INFINITY, w->delta[row] = 0;
}

/* c = the rows of a, of `columns` each, times panel `index` of b or b16. */
static void multiply(const attention_job *job, attention_tile a, int64_t rows, int64_t columns,
                     const float *b, const uint16_t *b16, int64_t index, float *c)
{
    if (job->p->bf16) {
        b16 += index * attention_panel_numbers(columns);
        attention_multiply_rows16(job, &a, rows, columns, b16, LANES, c);
        return;
    }
    attention_multiply(&(attention_product){.a = a.rows,
                                            .b = b + index * LANES * columns,
                                            .c = c,
                                            .a_row = a.ld,
                                            .a_step = 1,
                                            .rows = rows,
                                            .depth = columns,
                                            .lanes = LANES,
                                            .wide = job->p->wide});
}

/* s = products of q and k. A panel of floats has the scale in it. */
static void multiply_scores(const attention_rows *r, attention_tile a, int64_t rows, scratch *w,
                            int64_t index)
{
    multiply(r->job, a, rows, r->job->p->s.d, w->x, w->x16, index, w->s);
    if (r->job->p->bf16) attention_scale(w->s, rows, r->scale);
}

/* Panel `index` of sums += the columns of a times b. */
static void add_product(const attention_job *job, attention_tile a, int64_t rows, int64_t columns,
                        const float *b, float *sums, int64_t index)
{
    float *c = sums + index * LANES * columns_of(job->p, columns);
    if (job->p->bf16) {
        MICA_ALIGNED uint16_t rounded[TILE * LANES];
        attention_round16(job, b, rows, LANES, rounded);
        attention_add_columns16(job, &a, rows, columns, rounded, LANES, c);
        return;
    }
    attention_multiply(&(attention_product){.a = a.rows,
                                            .b = b,
                                            .c = c,
                                            .a_row = 1,
                                            .a_step = a.ld,
                                            .rows = columns,
                                            .depth = rows,
                                            .lanes = LANES,
                                            .add = true,
                                            .wide = job->p->wide});
}

static void fill_keep(const attention_job *job, scratch *w)
{
    for (int i = 0; i < TILE * LANES; i++) w->keep[i] = (float)job->drop.scale;
}

static attention_gradients gradients_of(const attention_rows *r, scratch *w, int64_t n)
{
    const mica_attention_desc *d = r->job->d;
    return (attention_gradients){.s = w->s,
                                 .dp = w->dp,
                                 .keep = d->dropout > 0 ? w->keep : NULL,
                                 .slope = d->soft_cap > 0 ? w->slope : NULL,
                                 .scale = r->scale,
                                 .n = n};
}

/* ---- rows in the lanes: dq and dbias ---- */

static void load_panel(const attention_rows *r, const attention_panel *p, scratch *w)
{
    const mica_attention_desc *d = r->job->d;
    const attention_shape *s = &r->job->p->s;
    int64_t index = p->row / LANES;
    if (r->job->p->bf16) {
        attention_load_panel16(r, p, &d->q, MICA_ATTENTION_Q, w->tile_x,
                               w->x16 + index * attention_panel_numbers(s->d));
        attention_load_panel16(r, p, &d->dout, MICA_ATTENTION_DOUT, w->tile_y,
                               w->y16 + index * attention_panel_numbers(s->dv));
        return;
    }
    attention_load_panel(r, p, &d->q, MICA_ATTENTION_Q, r->scale, w->x + p->row * s->d, true);
    attention_load_panel(r, p, &d->dout, MICA_ATTENTION_DOUT, 1, w->y + p->row * s->dv, true);
}

static void begin_rows(const attention_rows *r, scratch *w)
{
    const attention_job *job = r->job;
    load_rows(r, w);
    for (int64_t row = 0; row < r->count; row += LANES) {
        attention_panel *p = &w->panels[row / LANES];
        attention_panel_make(r, row, p);
        load_panel(r, p, w);
    }
    memset(w->dx, 0, (size_t)(job->p->block * columns_of(job->p, job->p->s.d)) * sizeof *w->dx);
}

/* Weights and ds of panel p and n keys from j on. raw: ds as a score's gradient. */
static void panel_gradients(const attention_rows *r, scratch *w, const attention_panel *p,
                            int64_t j, int64_t n, attention_tile k, attention_tile v, bool raw)
{
    const attention_job *job = r->job;
    multiply_scores(r, k, n, w, p->row / LANES);
    multiply(job, v, n, job->p->s.dv, w->y, w->y16, p->row / LANES, w->dp);
    attention_finish_scores(r, p, j, n, w->s, w->slope);
    if (job->d->dropout > 0) {
        fill_keep(job, w);
        attention_drop(r, p, j, n, w->keep);
    }
    attention_gradients g = gradients_of(r, w, n);
    g.shift = w->shift + p->row;
    g.delta = w->delta + p->row;
    if (raw) g.scale = 1, g.slope = NULL;
    attention_gradients_by_lane(&g);
}

/* ---- dq ---- */

static void store_dq(const attention_rows *r, const scratch *w)
{
    const mica_tensor *t = &r->job->d->dq;
    MICA_ALIGNED float result[ATTENTION_MAX_DIM];
    int64_t n = t->dims[3], panel = LANES * columns_of(r->job->p, n);
    for (int64_t row = 0; row < r->count; row++) {
        const float *from = w->dx + row / LANES * panel + row % LANES;
        for (int64_t c = 0; c < n; c++) result[c] = from[c * LANES];
        mica_from_f32(t->dtype, r->job->args[MICA_ATTENTION_DQ], attention_row_offset(r, t, row),
                      t->strides[3], result, n);
    }
}

static attention_tile load_tile(const attention_rows *r, int arg, int64_t j, int64_t n, void *to)
{
    const mica_attention_desc *d = r->job->d;
    return attention_load_tile(r->job, arg == MICA_ATTENTION_K ? &d->k : &d->v, arg, r->n, &r->keys,
                               r->kv_head, j, n, to);
}

static void query_block(const attention_job *job, int64_t n, int64_t kv_head, int64_t block)
{
    scratch w;
    attention_rows r;
    int64_t d = job->p->s.d, tile = job->p->tile;
    scratch_make(job, &w);
    attention_rows_make(job, n, kv_head, block * job->p->block, job->p->block, &r);
    begin_rows(&r, &w);
    open_unit(job);
    for (int64_t j = r.from / tile * tile; j < r.to; j += tile) {
        int64_t count = smaller(r.keys.count - j, tile);
        attention_tile k = load_tile(&r, MICA_ATTENTION_K, j, count, w.tile_x);
        attention_tile v = load_tile(&r, MICA_ATTENTION_V, j, count, w.tile_y);
        if (job->p->bf16) attention_transpose_tile(job, &k, count, d, w.turned_x);
        for (int64_t row = 0; row < r.count; row += LANES) {
            const attention_panel *p = &w.panels[row / LANES];
            if (!attention_panel_sees(p, j, j + count)) continue;
            panel_gradients(&r, &w, p, j, count, k, v, false);
            add_product(job, k, count, d, w.dp, w.dx, row / LANES);
        }
    }
    close_unit(job);
    store_dq(&r, &w);
}

/* ---- dk and dv: keys in the lanes ---- */

/* The keys of panel `index` once more, by panels of columns: dq is a sum of theirs. */
static void load_columns(const attention_job *job, attention_tile tile, int64_t n, scratch *w,
                         int64_t index)
{
    int64_t d = job->p->s.d;
    float *to = w->keys + index * LANES * LANES * column_panels(&job->p->s);
    for (int64_t c = 0; c < d; c += LANES, to += LANES * LANES)
        for (int64_t l = 0; l < n; l++)
            for (int64_t i = 0; i < LANES; i++)
                to[l * LANES + i] = c + i < d ? tile.rows[l * tile.ld + c + i] : 0;
}

/* A panel of up to 32 keys of k or v: to[column][lane]; `index` of to or to16. Returns them as
 * they lie. */
static attention_tile load_keys(const attention_rows *r, int arg, int64_t j, int64_t n,
                                float factor, void *buffer, float *to, uint16_t *to16,
                                int64_t index)
{
    const mica_attention_desc *d = r->job->d;
    int64_t columns = arg == MICA_ATTENTION_K ? d->k.dims[3] : d->v.dims[3];
    attention_tile tile = load_tile(r, arg, j, n, buffer);
    if (r->job->p->bf16) {
        attention_pack_panel16(r->job, &tile, n, columns,
                               to16 + index * attention_panel_numbers(columns));
        return tile;
    }
    to += index * LANES * columns;
    memset(to, 0, (size_t)(columns * LANES) * sizeof *to);
    for (int64_t l = 0; l < n; l++)
        for (int64_t c = 0; c < columns; c++)
            to[c * LANES + l] = factor * tile.rows[l * tile.ld + c];
    return tile;
}

static attention_tile load_queries16(const attention_rows *r, const mica_tensor *t, int arg,
                                     bool one_head, uint16_t *buffer)
{
    const uint16_t *data = r->job->args[arg];
    int64_t ld = mica_matrix_depth(t->dims[3]);
    if (one_head && attention_lies_in_tiles(t, r->count))
        return (attention_tile){.rows16 = data + attention_row_offset(r, t, 0),
                                .ld = t->strides[2]};
    for (int64_t row = 0; row < r->count; row++)
        attention_copy_row16(t, data, attention_row_offset(r, t, row), buffer + row * ld);
    return attention_finish_tile16(t, r->count, buffer);
}

/* The rows of r in a tensor: in place where they are floats one below the other, or bf16. */
static attention_tile load_queries(const attention_rows *r, const mica_tensor *t, int arg, void *to)
{
    int64_t columns = t->dims[3];
    const void *data = r->job->args[arg];
    float *buffer = to;
    bool one_head = attention_row_head(r, 0) == attention_row_head(r, r->count - 1);
    if (r->job->p->bf16) return load_queries16(r, t, arg, one_head, to);
    if (one_head && t->dtype == MICA_F32 && (t->strides[3] == 1 || columns == 1))
        return (attention_tile){.rows = (const float *)data + attention_row_offset(r, t, 0),
                                .ld = t->strides[2]};
    for (int64_t row = 0; row < r->count; row++)
        mica_to_f32(t->dtype, data, attention_row_offset(r, t, row), t->strides[3],
                    buffer + row * columns, columns);
    return (attention_tile){.rows = buffer, .ld = columns};
}

static void store_keys(const attention_rows *r, const mica_tensor *t, int arg, int64_t j,
                       int64_t count, const float *from)
{
    MICA_ALIGNED float result[ATTENTION_MAX_DIM];
    int64_t n = t->dims[3], panel = LANES * columns_of(r->job->p, n);
    for (int64_t l = 0; l < count; l++) {
        const float *lane = from + l / LANES * panel + l % LANES;
        for (int64_t c = 0; c < n; c++) result[c] = lane[c * LANES];
        int64_t at =
            attention_key_offset(r->job->d, t, r->job->args, r->n, &r->keys, r->kv_head, j + l);
        mica_from_f32(t->dtype, r->job->args[arg], at, t->strides[3], result, n);
    }
}

/* dq of the rows += their ds times the n keys of panel `index`. */
static void add_keys(const attention_rows *r, const scratch *w, int64_t index, int64_t n, float *dq)
{
    const attention_shape *s = &r->job->p->s;
    const float *keys = w->keys + index * LANES * LANES * column_panels(s);
    for (int64_t c = 0; c < s->d; c += LANES) {
        attention_multiply(
            &(attention_product){.a = w->dp,
                                 .b = keys + c * LANES,
                                 .c = dq + (c * s->group * s->rows) + r->first * LANES,
                                 .a_row = LANES,
                                 .a_step = 1,
                                 .rows = r->count,
                                 .depth = n,
                                 .lanes = s->d - c > LANES / 2 ? LANES : LANES / 2,
                                 .add = true,
                                 .wide = r->job->p->wide});
    }
}

/* Rows of a tile and up to 32 keys from j on, which are panel `index` of the block. */
static void key_panel(const attention_rows *r, scratch *w, int64_t index, int64_t j, int64_t keys,
                      attention_tile q, attention_tile dout, float *dq)
{
    const attention_job *job = r->job;
    const attention_shape *s = &job->p->s;
    int64_t n = keys < LANES ? keys : LANES;
    multiply_scores(r, q, r->count, w, index);
    multiply(job, dout, r->count, s->dv, w->y, w->y16, index, w->dp);
    attention_finish_rows(r, j, (int)n, w->s, w->slope);
    if (job->d->dropout > 0) {
        fill_keep(job, w);
        attention_drop_rows(r, j, (int)n, w->keep);
    }
    attention_gradients g = gradients_of(r, w, r->count);
    g.shift = w->shift;
    g.delta = w->delta;
    attention_gradients_by_row(&g);
    add_product(job, dout, r->count, s->dv, w->s, w->dy, index);
    add_product(job, q, r->count, s->d, w->dp, w->dx, index);
    if (dq) add_keys(r, w, index, n, dq);
}

/* dq: sums of all rows, to which the block's keys add theirs, or NULL. */
static void key_block_with(const attention_job *job, int64_t n, int64_t kv_head, int64_t block,
                           float *dq)
{
    scratch w;
    attention_rows r;
    const attention_shape *s = &job->p->s;
    int64_t j = block * job->p->block, tile = job->p->tile;
    scratch_make(job, &w);
    attention_rows_make(job, n, kv_head, 0, tile, &r);
    int64_t count = smaller(r.keys.count - j, job->p->block);
    for (int64_t l = 0; l < count; l += LANES) {
        int64_t left = count - l < LANES ? count - l : LANES;
        attention_tile k =
            load_keys(&r, MICA_ATTENTION_K, j + l, left, r.scale, w.tile_x, w.x, w.x16, l / LANES);
        if (dq) load_columns(job, k, left, &w, l / LANES);
        load_keys(&r, MICA_ATTENTION_V, j + l, left, 1, w.tile_y, w.y, w.y16, l / LANES);
    }
    memset(w.dx, 0, (size_t)(job->p->block * columns_of(job->p, s->d)) * sizeof *w.dx);
    memset(w.dy, 0, (size_t)(job->p->block * columns_of(job->p, s->dv)) * sizeof *w.dy);
    open_unit(job);
    int64_t rows = r.queries.count * s->group;
    for (int64_t first = 0; first < rows; first += tile) {
        attention_rows_make(job, n, kv_head, first, tile, &r);
        if (r.from >= j + count || r.to <= j) continue;
        load_rows(&r, &w);
        attention_tile q = load_queries(&r, &job->d->q, MICA_ATTENTION_Q, w.tile_x);
        attention_tile dout = load_queries(&r, &job->d->dout, MICA_ATTENTION_DOUT, w.tile_y);
        if (job->p->bf16) {
            attention_transpose_tile(job, &q, r.count, s->d, w.turned_x);
            attention_transpose_tile(job, &dout, r.count, s->dv, w.turned_y);
        }
        for (int64_t l = 0; l < count; l += LANES)
            if (r.from < j + l + LANES && r.to > j + l)
                key_panel(&r, &w, l / LANES, j + l, count - l, q, dout, dq);
    }
    close_unit(job);
    store_keys(&r, &job->d->dk, MICA_ATTENTION_DK, j, count, w.dx);
    store_keys(&r, &job->d->dv, MICA_ATTENTION_DV, j, count, w.dy);
}

static void key_block(const attention_job *job, int64_t n, int64_t kv_head, int64_t block)
{
    key_block_with(job, n, kv_head, block, NULL);
}

/* ---- all three in one pass ---- */

/* dq of up to a block of rows: what the chunks of the keys have of them, added in their order. */
static void store_sums(const attention_job *job, int64_t n, int64_t kv_head, int64_t first,
                       const float *sums)
{
    const mica_tensor *t = &job->d->dq;
    const attention_shape *s = &job->p->s;
    MICA_ALIGNED float result[ATTENTION_MAX_DIM];
    attention_rows r;
    attention_rows_make(job, n, kv_head, first, job->p->block, &r);
    for (int64_t row = 0; row < r.count; row++) {
        for (int64_t c = 0; c < s->d; c += LANES) {
            int64_t at = c * s->group * s->rows + (first + row) * LANES,
                    left = smaller(s->d - c, LANES);
            for (int64_t i = 0; i < left; i++) result[c + i] = 0;
            for (int64_t k = 0; k < job->p->chunks; k++)
                for (int64_t i = 0; i < left; i++)
                    result[c + i] += sums[k * attention_sum_floats(s) + at + i];
        }
        mica_from_f32(t->dtype, job->args[MICA_ATTENTION_DQ], attention_row_offset(&r, t, row),
                      t->strides[3], result, s->d);
    }
}

static int64_t count_rows(const attention_job *job, int64_t n)
{
    return attention_queries(job->d, job->args, n).count * job->p->s.group;
}

/* Chunk `chunk` of the keys of a key head. */
static void key_chunk(const attention_job *job, int64_t n, int64_t kv_head, int64_t chunk)
{
    const attention_cpu *p = job->p;
    scratch w;
    scratch_make(job, &w);
    int64_t index = (n * p->s.kv_heads + kv_head) * p->chunks + chunk;
    int64_t floats = attention_sum_floats(&p->s), rows = count_rows(job, n);
    float *dq = p->chunks > 1 ? job->sums + index * floats : w.dq;
    int64_t blocks = ceiling(attention_keys(job->d, job->args, n).count, p->block);
    int64_t from = chunk * p->chunk_blocks, to = smaller(from + p->chunk_blocks, blocks);
    memset(dq, 0, (size_t)floats * sizeof *dq);
    for (int64_t block = from; block < to; block++) key_block_with(job, n, kv_head, block, dq);
    if (p->chunks > 1) return;
    for (int64_t first = 0; first < rows; first += p->block) store_sums(job, n, kv_head, first, dq);
}

static void each_chunk(const attention_job *job)
{
    const attention_cpu *p = job->p;
    int64_t heads = p->s.sequences * p->s.kv_heads;
#pragma omp parallel for num_threads(job->threads) schedule(dynamic)
    for (int64_t i = 0; i < heads * p->chunks; i++)
        key_chunk(job, i / p->chunks / p->s.kv_heads, i / p->chunks % p->s.kv_heads, i % p->chunks);
    if (p->chunks == 1) return;
    int64_t blocks = ceiling(p->s.group * p->s.rows, p->block);
#pragma omp parallel for num_threads(job->threads)
    for (int64_t i = 0; i < heads * blocks; i++) {
        int64_t head = i / blocks, n = head / p->s.kv_heads, first = i % blocks * p->block;
        if (first < count_rows(job, n))
            store_sums(job, n, head % p->s.kv_heads, first,
                       job->sums + head * p->chunks * attention_sum_floats(&p->s));
    }
}

/* ---- dbias ---- */

size_t attention_bias_floats(const mica_attention_desc *d, const attention_shape *s)
{
    if (!mica_tensor_given(&d->dbias)) return 0;
    return (size_t)((d->dbias.dims[2] == 1 ? 1 : LANES) * (d->dbias.dims[3] == 1 ? 1 : s->keys));
}

/* Adds the ds of a panel's rows and n keys to the sums. */
static void add_bias(const attention_job *job, scratch *w, const attention_panel *p, int64_t j,
                     int64_t n)
{
    const mica_tensor *t = &job->d->dbias;
    int64_t columns = t->dims[3] == 1 ? 1 : t->dims[3];
    for (int64_t i = 0; i < n; i++)
        for (int l = 0; l < p->count; l++)
            w->bias[(t->dims[2] == 1 ? 0 : l * columns) + (t->dims[3] == 1 ? 0 : j + i)] +=
                w->dp[i * LANES + l];
}

/* Rows first to first + LANES of head h of sequence n. */
static void bias_panel(const attention_job *job, scratch *w, int64_t n, int64_t h, int64_t first)
{
    attention_rows r;
    int64_t queries = attention_queries(job->d, job->args, n).count, tile = job->p->tile;
    if (first >= queries) return;
    int64_t limit = queries - first < LANES ? queries - first : LANES, group = job->p->s.group;
    attention_rows_make(job, n, h / group, h % group * queries + first, limit, &r);
    begin_rows(&r, w);
    open_unit(job);
    for (int64_t j = r.from / tile * tile; j < r.to; j += tile) {
        int64_t count = smaller(r.keys.count - j, tile);
        attention_tile k = load_tile(&r, MICA_ATTENTION_K, j, count, w->tile_x);
        attention_tile v = load_tile(&r, MICA_ATTENTION_V, j, count, w->tile_y);
        panel_gradients(&r, w, &w->panels[0], j, count, k, v, true);
        add_bias(job, w, &w->panels[0], j, count);
    }
    close_unit(job);
}

/* What a task owns: rows first to first + LANES (or all) of item n (or all) and head h (or all). */
static void bias_block(const attention_job *job, int64_t n, int64_t h, int64_t first)
{
    scratch w;
    const attention_shape *s = &job->p->s;
    const mica_tensor *t = &job->d->dbias;
    size_t floats = attention_bias_floats(job->d, s);
    scratch_make(job, &w);
    memset(w.bias, 0, floats * sizeof *w.bias);
    bool all_rows = t->dims[2] == 1;
    for (int64_t a = t->dims[0] == 1 ? 0 : n; a < (t->dims[0] == 1 ? s->sequences : n + 1); a++)
        for (int64_t b = t->dims[1] == 1 ? 0 : h; b < (t->dims[1] == 1 ? s->heads : h + 1); b++)
            for (int64_t i = first; i < (all_rows ? s->rows : first + 1); i += LANES)
                bias_panel(job, &w, a, b, i);
    int64_t columns = t->dims[3], rows = all_rows ? 1 : t->dims[2] - first;
    if (rows > LANES) rows = LANES;
    for (int64_t i = 0; i < rows; i++)
        mica_from_f32(t->dtype, job->args[MICA_ATTENTION_DBIAS],
                      attention_at(t, n, h, first + i, 0), t->strides[3], w.bias + i * columns,
                      columns);
}

/* ---- sums by row, and dsinks ---- */

static void find_delta(const attention_job *job)
{
    const mica_attention_desc *d = job->d;
    const attention_shape *s = &job->p->s;
    int64_t rows = mica_tensor_count(&d->lse);
#pragma omp parallel for num_threads(job->threads)
    for (int64_t a = 0; a < rows; a++) {
        MICA_ALIGNED float x[ATTENTION_MAX_DIM], y[ATTENTION_MAX_DIM];
        float sum = 0;
        int64_t at[2] = {0}, i = a % s->rows, h = a / s->rows % s->heads,
                b = a / s->rows / s->heads;
        const mica_tensor *t[] = {&d->out, &d->dout};
        for (int k = 0; k < 2; k++)
            at[k] = b * t[k]->strides[0] + h * t[k]->strides[1] + i * t[k]->strides[2];
        mica_to_f32(t[0]->dtype, job->args[MICA_ATTENTION_OUT], at[0], t[0]->strides[3], x, s->dv);
        mica_to_f32(t[1]->dtype, job->args[MICA_ATTENTION_DOUT], at[1], t[1]->strides[3], y, s->dv);
        for (int64_t c = 0; c < s->dv; c++) sum += x[c] * y[c];
        job->delta[a] = sum;
    }
}

static void sink_gradient(const attention_job *job, int64_t h)
{
    const mica_attention_desc *d = job->d;
    const attention_shape *s = &job->p->s;
    const float *lse = job->args[MICA_ATTENTION_LSE];
    float sink, result;
    double sum = 0;
    mica_to_f32(d->sinks.dtype, job->args[MICA_ATTENTION_SINKS], h * d->sinks.strides[0], 1, &sink,
                1);
    for (int64_t n = 0; n < s->sequences; n++) {
        attention_span q = attention_queries(d, job->args, n);
        for (int64_t i = q.first; i < q.first + q.count; i++) {
            float l =
                lse[q.batch * d->lse.strides[0] + h * d->lse.strides[1] + i * d->lse.strides[2]];
            if (l == -INFINITY) continue;
            float p = sink == l ? 1 : expf(sink - l);
            sum -= (double)(p * job->delta[(q.batch * s->heads + h) * s->rows + i]);
        }
    }
    result = (float)sum;
    mica_from_f32(d->dsinks.dtype, job->args[MICA_ATTENTION_DSINKS], h * d->dsinks.strides[0], 1,
                  &result, 1);
}

/* ---- all of them ---- */

static void clear(const attention_job *job, const mica_tensor *t, int arg)
{
    MICA_ALIGNED float zeros[ATTENTION_MAX_DIM] = {0};
    int64_t n = t->dims[3], rows = n ? mica_tensor_count(t) / n : 0;
    mica_tensor lines = *t;
    lines.rank = 3;
#pragma omp parallel for num_threads(job->threads)
    for (int64_t a = 0; a < rows; a++)
        mica_from_f32(t->dtype, job->args[arg], mica_offset(&lines, a), t->strides[3], zeros, n);
}

/* Rows that belong to no sequence. */
static void clear_strangers(const attention_job *job)
{
    const mica_attention_desc *d = job->d;
    if (mica_tensor_given(&d->cu_q) || mica_tensor_given(&d->seq_q))
        clear(job, &d->dq, MICA_ATTENTION_DQ);
    if (!mica_tensor_given(&d->cu_k) && !mica_tensor_given(&d->seq_k)) return;
    clear(job, &d->dk, MICA_ATTENTION_DK);
    clear(job, &d->dv, MICA_ATTENTION_DV);
}

/* Runs body for every block of every sequence and key head. */
typedef void (*block_fn)(const attention_job *job, int64_t n, int64_t kv_head, int64_t block);

static void each_block(const attention_job *job, bool keys, block_fn body)
{
    const attention_shape *s = &job->p->s;
    attention_count_blocks(job, keys);
    int64_t blocks = job->starts[s->sequences];
#pragma omp parallel for num_threads(job->threads) schedule(dynamic)
    for (int64_t i = 0; i < blocks * s->kv_heads; i++) {
        int64_t n = attention_find(job->starts, s->sequences, i / s->kv_heads);
        body(job, n, i % s->kv_heads, i / s->kv_heads - job->starts[n]);
    }
}

static void each_bias_block(const attention_job *job)
{
    const int64_t *dims = job->d->dbias.dims;
    int64_t panels = (dims[2] + LANES - 1) / LANES, tasks = dims[0] * dims[1] * panels;
#pragma omp parallel for num_threads(job->threads) schedule(dynamic)
    for (int64_t i = 0; i < tasks; i++)
        bias_block(job, i / panels / dims[1], i / panels % dims[1], i % panels * LANES);
}

void attention_backward_run(const attention_job *job)
{
    const mica_attention_desc *d = job->d;
    const attention_shape *s = &job->p->s;
    find_delta(job);
    clear_strangers(job);
    if (job->p->chunks) {
        each_chunk(job);
    } else {
        if (mica_tensor_count(&d->dq)) each_block(job, false, query_block);
        if (mica_tensor_count(&d->dk) || mica_tensor_count(&d->dv))
            each_block(job, true, key_block);
    }
    if (mica_tensor_given(&d->dbias) && mica_tensor_count(&d->dbias)) each_bias_block(job);
    if (!mica_tensor_given(&d->dsinks)) return;
#pragma omp parallel for num_threads(job->threads)
    for (int64_t h = 0; h < s->heads; h++) sink_gradient(job, h);
}
