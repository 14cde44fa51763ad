/* SPDX-License-Identifier: Apache-2.0
 * Sizes of attention, where sequences lie, which keys a query sees, which it drops. */
#include "ops/attention/attention.h"
#include "kernels/philox.h"

#include <math.h>

void attention_shape_make(const mica_attention_desc *d, attention_shape *s)
{
    bool paged = mica_tensor_given(&d->pages);
    *s = (attention_shape){.sequences =
                               mica_tensor_given(&d->cu_q) ? d->cu_q.dims[0] - 1 : d->q.dims[0],
                           .heads = d->q.dims[1],
                           .kv_heads = d->k.dims[1],
                           .rows = d->q.dims[2],
                           .keys = paged ? d->pages.dims[1] * d->k.dims[2] : d->k.dims[2],
                           .d = d->q.dims[3],
                           .dv = d->v.dims[3],
                           .page = paged ? d->k.dims[2] : 0};
    s->group = s->kv_heads ? s->heads / s->kv_heads : 1;
}

/* ---- sequences ---- */

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

static int64_t number(const mica_tensor *t, const void *data, int64_t i)
{
    return ((const int32_t *)data)[i * t->strides[0]];
}

static attention_span span_of(const mica_tensor *cu, const void *cu_data, const mica_tensor *seq,
                              const void *seq_data, int64_t rows, int64_t n)
{
    if (mica_tensor_given(cu)) {
        int64_t from = clamp(number(cu, cu_data, n), 0, rows);
        int64_t to = clamp(number(cu, cu_data, n + 1), from, rows);
        return (attention_span){0, from, to - from};
    }
    int64_t count = rows;
    if (mica_tensor_given(seq)) count = clamp(number(seq, seq_data, n), 0, rows);
    return (attention_span){n, 0, count};
}

attention_span attention_queries(const mica_attention_desc *d, void *const *args, int64_t n)
{
    return span_of(&d->cu_q, args[MICA_ATTENTION_CU_Q], &d->seq_q, args[MICA_ATTENTION_SEQ_Q],
                   d->q.dims[2], n);
}

attention_span attention_keys(const mica_attention_desc *d, void *const *args, int64_t n)
{
    int64_t rows = d->k.dims[2];
    if (mica_tensor_given(&d->pages)) rows *= d->pages.dims[1];
    return span_of(&d->cu_k, args[MICA_ATTENTION_CU_K], &d->seq_k, args[MICA_ATTENTION_SEQ_K], rows,
                   n);
}

int64_t attention_key_offset(const mica_attention_desc *d, const mica_tensor *t, void *const *args,
                             int64_t n, const attention_span *keys, int64_t h, int64_t j)
{
    const int64_t *s = t->strides;
    if (!mica_tensor_given(&d->pages))
        return keys->batch * s[0] + h * s[1] + (keys->first + j) * s[2];
    int64_t size = t->dims[2];
    int64_t at = n * d->pages.strides[0] + j / size * d->pages.strides[1];
    int64_t page = ((const int32_t *)args[MICA_ATTENTION_PAGES])[at];
    if (page < 0 || page >= t->dims[0]) return -1;
    return page * s[0] + h * s[1] + j % size * s[2];
}

/* ---- who attends to whom ---- */

int64_t attention_shift(const mica_attention_desc *d, int64_t queries, int64_t keys)
{
    return d->diagonal + (d->align == MICA_ATTENTION_ALIGN_BOTTOM_RIGHT ? keys - queries : 0);
}

attention_range attention_range_of(const mica_attention_desc *d, int64_t shift, int64_t keys,
                                   int64_t i)
{
    int64_t diagonal = i + shift, from = 0, to = keys;
    if (d->causal != MICA_ATTENTION_NOT_CAUSAL) to = diagonal + 1;
    /* Compared without adding: a window may be as wide as a number. */
    if (d->window_left && d->window_left <= diagonal) from = diagonal - d->window_left + 1;
    if (d->window_right && d->window_right < keys - diagonal && diagonal + d->window_right < to)
        to = diagonal + d->window_right;
    to = clamp(to, 0, keys);
    return (attention_range){clamp(from, 0, to), to};
}

/* ---- dropout ---- */

attention_dropout attention_dropout_make(const mica_attention_desc *d, const void *rng)
{
    if (d->dropout == 0) return (attention_dropout){.scale = 1};
    const int64_t *number64 = rng;
    uint64_t seed = (uint64_t)number64[0];
    return (attention_dropout){
        .key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
        .offset = (uint32_t)(uint64_t)number64[d->rng.strides[0]],
        .threshold = (uint32_t)(d->dropout * 0x1p32),
        .scale = 1 / (1 - d->dropout),
    };
}

void attention_philox(const attention_dropout *drop, int64_t row, int64_t i, int64_t j,
                      uint32_t word[4])
{
    word[0] = (uint32_t)(uint64_t)(j / 4);
    word[1] = (uint32_t)(uint64_t)i;
    word[2] = (uint32_t)(uint64_t)row;
    word[3] = drop->offset;
    mica_philox(drop->key, word);
}

/* ---- numbers ---- */

double attention_growth(int64_t n)
{
    return fmax(1, fmin((double)n, 4 * sqrt((double)n)));
}

int64_t attention_terms(const void *desc)
{
    const mica_attention_desc *d = desc;
    attention_shape s;
    attention_shape_make(d, &s);
    /* In doubles: beside a dimension of 0 the others may be anything. */
    double n = (double)s.keys, rows = (double)s.rows, heads = (double)s.heads;
    if (d->pass == MICA_ATTENTION_BWD) {
        n = fmax(n, rows * (double)s.group);
        if (mica_tensor_given(&d->dsinks)) n = fmax(n, rows * (double)s.sequences);
        if (mica_tensor_given(&d->dbias))
            n = fmax(n, (double)s.sequences * heads * rows * (double)s.keys /
                            fmax(1, (double)mica_tensor_count(&d->dbias)));
    }
    return (int64_t)fmin(fmax(n, 1), 0x1p60);
}

/* Hopper's unit aligns 32 products and the sum so far to the largest, and cuts them and the result
 * 13 bits behind its point. As engines of gemm declare it: n terms are off by 2 (n + 16) / 16 parts
 * of 2^-14 of their magnitudes. Sums over keys leave the unit after a tile; those over D make
 * scores wrong, and weights by as much of themselves. The unit is such that growth of it covers
 * either. */
double attention_float8_unit(const mica_attention_desc *d)
{
    const double tile = 192;
    double keys = (double)attention_terms(d), depth = (double)d->q.dims[3];
    double values = (fmin(keys, tile) + 16) / attention_growth(attention_terms(d));
    double scores = (depth + 16) / attention_growth(d->q.dims[3]);
    return 0x1p-14 / 8 * fmax(values, scores);
}
