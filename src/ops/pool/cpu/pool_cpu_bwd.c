/* SPDX-License-Identifier: Apache-2.0
 * Pooling backward on the CPU: a tile of dx visits the windows that cover it, row by row of dy, in
 * a fixed order. An index that is none of its window's taps meets no element and is lost. */
#include "ops/pool/cpu/pool_cpu.h"
#include "cpu/stream.h"

#include <string.h>

/* The rows of dy and windows [o, o + n) of them that a step works on. */
typedef struct span {
    int64_t d, h, o, n;
} span;

static int64_t offset_of(const long long *strides, const mica_pool_tile *t, const span *r)
{
    return t->n * strides[0] + t->c * strides[1] + r->d * strides[2] + r->h * strides[3] +
           r->o * strides[4];
}

/* Columns of the tile that each window covers, counted from the tile's first. */
static void find_windows(const mica_pool_axis *a, const mica_pool_tile *t, const span *r,
                         int32_t *from, int32_t *to)
{
    for (int64_t i = 0; i < r->n; i++) {
        int64_t first = mica_pool_first(a, r->o + i) - t->w;
        int64_t end = first + (mica_pool_taps(a, r->o + i) - 1) * a->dilation + 1;
        if (first < 0) first += ((-first - 1) / a->dilation + 1) * a->dilation;
        from[i] = (int32_t)(first < t->wn ? first : t->wn);
        to[i] = (int32_t)(end < 0 ? 0 : end < t->wn ? end : t->wn);
    }
}

static void divide(const mica_pool_state *s, const mica_pool_tile *t, const span *r,
                   mica_pool_buffers *b)
{
    bool valid = s->mode == MICA_POOL_AVG_VALID;
    double rows = (double)mica_pool_divisor(&s->axes[0], r->d, valid) *
                  (double)mica_pool_divisor(&s->axes[1], r->h, valid);
    for (int64_t o = 0; o < r->n; o++) {
        double n = (double)mica_pool_divisor(&s->axes[2], r->o + o, valid);
        b->divisor[o] = n;
        if (s->channels)
            mica_pool_divide(s->wide, mica_pool_cell(s->wide, b->source, o * t->cn), t->cn,
                             rows * n);
    }
    if (!s->channels) mica_pool_divide_rows(s->wide, b->source, t->cn, r->n, b->divisor, rows);
}

/* For what follows so many bytes from `at` on. */
static void ask(const void *data, int64_t at, int64_t bytes)
{
    mica_fetch_ahead((const char *)data + at + MICA_AHEAD, bytes < MICA_AHEAD ? bytes : MICA_AHEAD);
}

/* Gradients that need no conversion nor division, and lie as a tile's. */
static bool is_in_place(const mica_pool_state *s, const mica_pool_tile *t)
{
    return s->mode == MICA_POOL_MAX && s->type == (s->wide ? MICA_F64 : MICA_F32) && s->channels &&
           s->y[1] == 1 && s->y[4] == t->cn;
}

/* Indices as columns of the tile; -1 where they lie elsewhere. first: index of the tile's first. */
static void find_hits(const mica_pool_call *k, const mica_pool_tile *t, const span *r,
                      int64_t first, int32_t *hits)
{
    const mica_pool_state *s = k->state;
    int64_t at = offset_of(s->i, t, r), n = s->channels ? t->cn : r->n;
    int64_t outer = s->channels ? r->n : t->cn;
    int64_t outer_step = s->i[s->channels ? 4 : 1], step = s->i[s->channels ? 1 : 4];
    int64_t bytes = s->index_type == MICA_S32 ? 4 : 8;
    mica_pool_join(&outer, &outer_step, &n, &step);
    for (int64_t i = 0; i < outer; i++, at += outer_step, hits += n) {
        if (step == 1) ask(k->indices, at * bytes, n * bytes);
        if (s->index_type == MICA_S32)
            mica_pool_find_hits_s32((const int32_t *)k->indices + at, step, n, first,
                                    (int32_t)t->wn, hits);
        else
            mica_pool_find_hits_s64((const int64_t *)k->indices + at, step, n, first,
                                    (int32_t)t->wn, hits);
    }
}

static void spread(const mica_pool_call *k, const mica_pool_tile *t, const span *r,
                   mica_pool_buffers *b)
{
    const mica_pool_state *s = k->state;
    bool max = s->mode == MICA_POOL_MAX;
    const void *dy = b->source;
    if (is_in_place(s, t))
        dy = mica_pool_cell(s->wide, k->in, offset_of(s->y, t, r));
    else
        mica_pool_load(s, k->in, offset_of(s->y, t, r), s->y, t->cn, r->n, b->source);
    find_windows(&s->axes[2], t, r, b->from, b->to);
    if (max)
        find_hits(k, t, r, (t->d * s->axes[1].x + t->h) * s->axes[2].x + t->w, b->hits);
    else
        divide(s, t, r, b);
    mica_pool_spread p = {.windows = r->n,
                          .channels = t->cn,
                          .step = s->axes[2].dilation,
                          .dx_stride = s->channels ? t->cn : t->wn,
                          .dy_stride = s->channels ? t->cn : r->n,
                          .from = b->from,
                          .to = b->to,
                          .hits = max ? b->hits : NULL};
    if (s->channels)
        mica_pool_spread_channels(s->wide, &p, b->result, dy);
    else
        mica_pool_spread_windows(s->wide, &p, b->result, dy);
}

void mica_pool_backward_tile(const mica_pool_call *k, const mica_pool_tile *t, mica_pool_buffers *b)
{
    const mica_pool_state *s = k->state;
    const mica_pool_axis *ax = s->axes;
    int64_t d_from, d_to, h_from, h_to, o_from, o_to, unused;
    memset(b->result, 0, (size_t)(t->cn * t->wn) * (s->wide ? sizeof(double) : sizeof(float)));
    mica_pool_covering(&ax[0], t->d, &d_from, &d_to);
    mica_pool_covering(&ax[1], t->h, &h_from, &h_to);
    mica_pool_covering(&ax[2], t->w, &o_from, &unused);
    mica_pool_covering(&ax[2], t->w + t->wn - 1, &unused, &o_to);
    int64_t chunk = MICA_POOL_SOURCE / t->cn;
    for (int64_t d = d_from; d < d_to; d++)
        for (int64_t h = h_from; h < h_to; h++) {
            if (!mica_pool_hits(&ax[0], d, t->d) || !mica_pool_hits(&ax[1], h, t->h)) continue;
            for (int64_t o = o_from; o < o_to; o += chunk) {
                span r = {d, h, o, o_to - o < chunk ? o_to - o : chunk};
                spread(k, t, &r, b);
            }
        }
    mica_pool_store_tile(k, t, s->x, b->result);
}
