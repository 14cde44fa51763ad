/* SPDX-License-Identifier: Apache-2.0
 * Tiles of slices, and their statistics. */
#include "ops/reduce/cpu/tile.h"
#include "cpu/cpu.h"
#include "ops/convert/cpu/convert.h"
#include "ops/reduce/cpu/rows.h"
#include "cpu/stream.h"

#include <math.h>

/* Contiguous slices below this are worked side by side: a row has costs of its own. */
enum { SHORT_SLICE = 32 };
enum { PIECE = 512 };         /* exponentials that are added in f32 */
enum { ASKED = 8 };           /* positions of several slices that are asked for at once */
enum { LEAST_STREAM = 1024 }; /* bytes: of shorter runs past the caches too many lines are parts */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void mica_tiling_make(mica_tiling *s, bool contiguous, bool single)
{
    const mica_layout *l = &s->outer;
    int64_t inner = l->rank ? l->dims[l->rank - 1] : 1;
    bool by_row = single || inner < 8 || (contiguous && s->n >= SHORT_SLICE);
    s->width = by_row ? 1 : least(inner, MICA_TILE_WIDTH);
    /* narrower, if then it is kept */
    while (s->width >= 64 && s->n > MICA_TILE_KEPT / s->width && s->n <= MICA_TILE_KEPT / 32)
        s->width /= 2;
    s->chunk = MICA_TILE_CHUNK / s->width;
    s->chunks = (s->n + s->chunk - 1) / s->chunk;
    s->past_cache &= s->width > 1 || s->light;
    s->blocks = (inner + s->width - 1) / s->width;
    s->tiles = l->count ? l->count / inner * s->blocks : 0;
}

bool mica_tiling_is_float_run(const mica_tiling *s, int k)
{
    int64_t stride = s->width == 1 ? s->along[k] : s->outer.strides[k][s->outer.rank - 1];
    return s->type[k] == MICA_F32 && stride == 1;
}

bool mica_tiling_is_kept(const mica_tiling *s, int k)
{
    bool in_place = s->width == 1 && mica_tiling_is_float_run(s, k);
    return s->n <= (in_place ? 4 * MICA_TILE_KEPT : MICA_TILE_KEPT / s->width);
}

enum { FEW = 4 }; /* operands whose loop is unrolled: most have no more */

static void place_first(mica_tile *t, void *const *data, int k, int last, int64_t first)
{
    const mica_layout *l = &t->s->outer;
    t->data[k] = data[k];
    t->across[k] = last >= 0 ? l->strides[k][last] : 0;
    t->offset[k] = first * t->across[k];
}

mica_tile mica_tile_at(const mica_tiling *s, void *const *data, int64_t index)
{
    const mica_layout *l = &s->outer;
    int last = l->rank - 1;
    mica_tile t; /* not zeroed: that costs what a short slice does */
    int64_t first = index % s->blocks * s->width, rest = index / s->blocks;
    t.s = s, t.width = 1;
    if (last >= 0) t.width = least(s->width, l->dims[last] - first);
    for (int k = 0; k < FEW; k++) place_first(&t, data, k, last, first);
    for (int k = FEW; k < s->operands; k++) place_first(&t, data, k, last, first);
    for (int dim = last - 1; dim >= 0; dim--) {
        const int64_t i = rest % l->dims[dim];
        for (int k = 0; k < FEW; k++) t.offset[k] += i * l->strides[k][dim];
        for (int k = FEW; k < s->operands; k++) t.offset[k] += i * l->strides[k][dim];
        rest /= l->dims[dim];
    }
    return t;
}

/* ---- memory ---- */

float *mica_tile_direct(const mica_tile *t, int k, int64_t from, int64_t *ld)
{
    int64_t along = t->s->along[k];
    bool fits = mica_tiling_is_float_run(t->s, k);
    *ld = fits ? along : t->width;
    return fits ? (float *)t->data[k] + t->offset[k] + from * along : NULL;
}

const float *mica_tile_fetch(const mica_tile *t, int k, int64_t from, int64_t n, float *buffer,
                             int64_t *ld)
{
    float *in_place = mica_tile_direct(t, k, from, ld);
    if (in_place) return in_place;
    int64_t along = t->s->along[k], offset = t->offset[k] + from * along;
    if (t->s->width == 1)
        mica_to_f32(t->s->type[k], t->data[k], offset, along, buffer, n);
    else
        for (int64_t i = 0; i < n; i++)
            mica_to_f32(t->s->type[k], t->data[k], offset + i * along, t->across[k],
                        buffer + i * t->width, t->width);
    return buffer;
}

float *mica_tile_place(const mica_tile *t, int k, int64_t from, float *buffer, int64_t *ld)
{
    float *in_place = mica_tile_direct(t, k, from, ld);
    if (in_place && !t->s->past_cache) return in_place;
    *ld = t->width;
    return buffer;
}

static void put_run(const mica_tile *t, int k, int64_t offset, int64_t stride, int64_t n,
                    const float *from)
{
    int64_t bytes = mica_dtype_bits(t->s->type[k]) / 8;
    bool lines = ((int64_t)(uintptr_t)t->data[k] | offset * bytes | n * bytes) % 64 == 0;
    if (t->s->past_cache && stride == 1 && (lines || n * bytes >= LEAST_STREAM))
        mica_stream_f32(t->s->type[k], t->data[k], offset, from, n);
    else
        mica_from_f32(t->s->type[k], t->data[k], offset, stride, from, n);
}

void mica_tile_put(const mica_tile *t, int k, int64_t from, int64_t n, const float *buffer)
{
    int64_t along = t->s->along[k], offset = t->offset[k] + from * along;
    if (t->s->width == 1)
        put_run(t, k, offset, along, n, buffer);
    else
        for (int64_t i = 0; i < n; i++)
            put_run(t, k, offset + i * along, t->across[k], t->width, buffer + i * t->width);
}

/* Position of its slice a chunk after `from`; offset: of the slice. */
static int64_t later(const mica_tile *t, int k, int64_t from, int64_t *offset)
{
    const mica_tiling *s = t->s;
    int64_t at = from + s->chunk;
    *offset = t->offset[k];
    if (at < s->n) return at;
    *offset += t->width * t->across[k];
    return at - s->chunks * s->chunk;
}

const void *mica_tile_later(const mica_tile *t, int k, int64_t from)
{
    int64_t offset, at = later(t, k, from, &offset);
    int64_t bytes = mica_dtype_bits(t->s->type[k]) / 8;
    return (const char *)t->data[k] + (offset + at * t->s->along[k]) * bytes;
}

void mica_tile_ask(const mica_tile *t, int k, int64_t from, int64_t n)
{
    const mica_tiling *s = t->s;
    int64_t bytes = mica_dtype_bits(s->type[k]) / 8, along = s->along[k];
    int64_t offset, at = later(t, k, from, &offset);
    const char *data = (const char *)t->data[k] + offset * bytes;
    if (s->width == 1 && along == 1)
        mica_fetch_ahead(data + at * bytes, n * bytes);
    else if (s->width > 1 && along == 1) /* short rows: of all of them a part */
        mica_fetch_ahead(data + at * t->width * bytes, n * t->width * bytes);
    else if (t->across[k] == 1)
        for (int64_t i = 0; i < n; i++)
            mica_fetch_ahead(data + (at + i) * along * bytes, t->width * bytes);
}

void mica_tile_ask_place(const mica_tile *t, int k, int64_t from, int64_t n)
{
    int64_t bytes = mica_dtype_bits(t->s->type[k]) / 8, along = t->s->along[k];
    const char *data = (const char *)t->data[k] + (t->offset[k] + from * along) * bytes;
    if (t->s->past_cache) return;
    if (t->s->width == 1 && along == 1)
        mica_fetch_ahead(data, n * bytes);
    else if (t->s->width > 1 && t->across[k] == 1)
        for (int64_t i = 0; i < n; i++)
            mica_fetch_ahead(data + i * along * bytes, t->width * bytes);
}

/* ---- statistics ---- */

void mica_slices_clear(mica_stats_of_slices *st, int64_t width)
{
    for (int64_t c = 0; c < width; c++) st->max[c] = -INFINITY, st->sum[c] = 0;
}

/* Of -inf alone the exponentials are summed about 0: the sum stays 0 and the results become NaN. */
static float safe(float max)
{
    return max == -INFINITY ? 0 : max;
}

static void raise_max(mica_stats_of_slices *st, int64_t c, float max)
{
    if (!(max > st->max[c])) return;
    if (st->sum[c] != 0) st->sum[c] *= exp((double)st->max[c] - (double)max);
    st->max[c] = max;
}

void mica_slices_merge(mica_stats_of_slices *to, const mica_stats_of_slices *from, int64_t width)
{
    for (int64_t c = 0; c < width; c++) {
        double sum = from->sum[c];
        raise_max(to, c, from->max[c]);
        if (from->max[c] < to->max[c]) sum *= exp((double)from->max[c] - (double)to->max[c]);
        to->sum[c] += sum;
    }
}

void mica_slices_max(const mica_tile *t, const float *x, int64_t ld, int64_t n,
                     mica_stats_of_slices *st)
{
    MICA_ALIGNED float max[MICA_TILE_WIDTH];
    if (t->s->width == 1) {
        raise_max(st, 0, mica_row_max(x, n));
        return;
    }
    for (int64_t c = 0; c < t->width; c++) max[c] = st->max[c];
    mica_cols_max(x, ld, n, t->width, max);
    mica_cols_rescale(st->sum, st->max, max, t->width);
    for (int64_t c = 0; c < t->width; c++) st->max[c] = max[c];
}

static void row_exp(const mica_tile *t, const float *x, int64_t from, int64_t n,
                    mica_stats_of_slices *st, float *e)
{
    float shift = safe(st->max[0]);
    int64_t bytes = mica_dtype_bits(t->s->type[0]) / 8;
    for (int64_t i = 0; i < n; i += PIECE) {
        const void *next = t->s->along[0] == 1 ? mica_tile_later(t, 0, from + i) : x;
        st->sum[0] +=
            (double)mica_row_exp_sum(x + i, shift, least(n - i, PIECE), e + i, next, bytes);
    }
}

void mica_slices_exp(const mica_tile *t, const float *x, int64_t ld, int64_t from, int64_t n,
                     mica_stats_of_slices *st, float *e, int64_t eld)
{
    if (t->s->width == 1) {
        row_exp(t, x, from, n, st, e);
        return;
    }
    MICA_ALIGNED float max[MICA_TILE_WIDTH], sum[MICA_TILE_WIDTH];
    for (int64_t c = 0; c < t->width; c++) max[c] = safe(st->max[c]), sum[c] = 0;
    for (int64_t i = 0; i < n; i += ASKED) {
        int64_t m = least(n - i, ASKED);
        mica_tile_ask(t, 0, from + i, m);
        mica_cols_exp_sum(x + i * ld, ld, m, max, t->width, e + i * eld, eld, sum);
    }
    for (int64_t c = 0; c < t->width; c++) st->sum[c] += (double)sum[c];
}
