/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu": one pass over memory in pieces of a row, shared out to threads. Operands of the
 * arithmetic's own type are read where they lie, and stepped there if they are results as well;
 * other types and strides pass through buffers in the first-level cache; where operands disagree
 * about which dimension is the fastest, in tiles of it and their own. Any types and strides, no
 * workspace. Memory-bound: pieces are so short that the memory works on the next ones while this
 * one is computed. */
#include "ops/pointwise/pointwise.h"
#include "ops/convert/cpu/convert.h"
#include "cpu/cpu.h"
#include "cpu/stream.h"
#include "cpu/scratch.h"

#include <omp.h>
#include <string.h>

/* Bytes of a piece of the arithmetic's type: of one where results pass through buffers, and of one
 * that is worked on where it lies; of the tiles of all operands together, at most. */
enum { PIECE = 1024, LONG_PIECE = 4096, TILE_ROWS = 16, TILE_COLS = 256, TILES = 1 << 17 };

/* An operand that is there. */
typedef struct lane {
    int k, slot;
    mica_dtype type;
    int64_t bytes, stride,
        row_step;  /* of an element; between neighbours in a row and in a column */
    int64_t tile;  /* of an upright one: offset in a thread's tiles */
    int64_t shift; /* bytes from the argument's first element to its own */
    int arg;
    bool read, written, follows;
    bool index;   /* not in memory */
    bool upright; /* its neighbours lie in a column of the tile */
    bool direct;  /* worked on where it lies */
    bool ahead;   /* asked for ahead of its use */
    bool past;    /* stored past the caches */
    char *memory; /* of a run: its first element */
} lane;

typedef struct state {
    mica_pointwise_set set;
    mica_layout layout;
    int slots;
    lane lanes[MICA_POINTWISE_OPERANDS];
    int count;
    mica_dtype real;
    mica_pointwise_block block, raw;
    int tiled; /* this dimension, with the last, makes tiles; -1: pieces are of one row */
    int64_t step[MICA_LAYOUT_RANK];           /* elements of a piece along each dimension */
    int64_t counts[MICA_LAYOUT_RANK];         /* pieces along each dimension */
    int64_t advance[MICA_POINTWISE_OPERANDS]; /* from a piece to the next of its row, by slot */
    int64_t pieces;
    bool past_cache;
    double bytes;
} state;

/* ---- planning ---- */

/* Between neighbours along dimension d; -1: there is none. */
static int64_t stride_of(const state *s, int slot, int d)
{
    return d >= 0 ? s->layout.strides[slot][d] : 1;
}

/* The dimension along which an operand has its neighbours, if that is not the last; else -1. */
static int find_tiled(const state *s, const int *slots)
{
    const int last = s->layout.rank - 1;
    for (int k = 0; k < s->set.count; k++)
        for (int d = 0; d < last && slots[k] >= 0 && !s->set.at[k].index; d++)
            if (stride_of(s, slots[k], d) == 1 && stride_of(s, slots[k], last) != 1) return d;
    return -1;
}

/* real: the type of the blocks. */
static void add_lane(state *s, int k, int slot, mica_dtype real)
{
    const mica_pointwise_operand *o = &s->set.at[k];
    const bool tiles = s->tiled >= 0;
    lane *l = &s->lanes[s->count++];
    *l = (lane){.k = k,
                .slot = slot,
                .arg = o->arg,
                .type = o->tensor.dtype,
                .bytes = mica_dtype_bits(o->tensor.dtype) / 8,
                .stride = stride_of(s, slot, s->layout.rank - 1),
                .row_step = tiles ? stride_of(s, slot, s->tiled) : 0,
                .read = o->read,
                .written = o->written,
                .follows = o->follows,
                .index = o->index};
    l->shift = o->shift * l->bytes;
    l->upright = tiles && l->row_step == 1 && l->stride != 1 && !l->index;
    l->direct = !l->upright && l->read && l->stride == 1 && l->type == real && !l->index;
    l->ahead = !tiles && l->read && l->stride == 1 && !l->index;
    /* What was read is in the cache; other results go past it if they do not fit. */
    l->past = s->past_cache && l->stride == 1 && !l->read;
}

static void choose_steps(state *s, int64_t size)
{
    const int last = s->layout.rank - 1;
    int upright = 0;
    bool in_place = true;
    for (const lane *l = s->lanes; l < s->lanes + s->count; l++) {
        upright += l->upright;
        in_place &= l->read || l->follows;
    }
    /* What is stepped where it lies is read by the hardware well ahead of its use. */
    for (lane *l = s->lanes; l < s->lanes + s->count; l++) l->ahead &= !(in_place && l->direct);
    for (int d = 0; d < last; d++) s->step[d] = d == s->tiled ? TILE_ROWS : 1;
    if (last < 0) return;
    s->step[last] = (in_place ? LONG_PIECE : PIECE) / size;
    if (s->tiled < 0) return;
    s->step[last] = TILE_COLS < LONG_PIECE / size ? TILE_COLS : LONG_PIECE / size;
    while (upright * TILE_ROWS * s->step[last] * size > TILES) s->step[last] /= 2;
    int64_t tile = 0;
    for (lane *l = s->lanes; l < s->lanes + s->count; l++) {
        l->tile = tile;
        if (l->upright) tile += TILE_ROWS * s->step[last] * size;
    }
}

static bool all_of(const mica_pointwise_set *set, mica_dtype type)
{
    for (int k = 0; k < set->count; k++)
        if (mica_tensor_given(&set->at[k].tensor) && set->at[k].tensor.dtype != type) return false;
    return true;
}

mica_status mica_pointwise_cpu_build(mica_plan *plan)
{
    const mica_pointwise *p = plan->op->pointwise;
    int slots[MICA_POINTWISE_OPERANDS];
    state *s;
    MICA_TRY(mica_pointwise_state(plan, sizeof *s, &s));
    mica_pointwise_operands(plan->op, plan->desc, &s->set);
    s->slots = mica_pointwise_layout(&s->set, &s->layout, slots);
    s->real = mica_pointwise_real(&s->set);
    s->block = s->real == MICA_F64 ? p->f64 : p->f32;
    s->bytes = mica_op_bytes(plan->op, plan->desc);
    s->past_cache = mica_stream_pays(s->bytes, plan->device.cache_bytes);
    s->tiled = find_tiled(s, slots);
    const mica_dtype first = s->set.at[0].tensor.dtype;
    if (p->raw && s->tiled < 0 && all_of(&s->set, first)) s->raw = p->raw(plan->desc);
    const mica_dtype blocks = s->raw ? first : s->real;
    for (int k = 0; k < s->set.count; k++)
        if (slots[k] >= 0) add_lane(s, k, slots[k], blocks);
    choose_steps(s, mica_dtype_bits(blocks) / 8);
    s->pieces = s->layout.count > 0;
    const int last = s->layout.rank - 1;
    for (int d = 0; d <= last; d++) {
        s->counts[d] = (s->layout.dims[d] - 1) / s->step[d] + 1;
        s->pieces *= s->counts[d];
    }
    for (int t = 0; t < s->slots && last >= 0; t++)
        s->advance[t] = s->step[last] * s->layout.strides[t][last];
    return MICA_OK;
}

/* ---- the walk ---- */

typedef struct walk {
    const state *s;
    int64_t index[MICA_LAYOUT_RANK];     /* of the piece along each dimension */
    int64_t at[MICA_POINTWISE_OPERANDS]; /* offset of its first element, by slot */
    int64_t n, rows;                     /* elements of a row, rows of a tile */
} walk;

static int64_t extent(const walk *w, int d)
{
    const state *s = w->s;
    if (d < 0) return 1;
    int64_t left = s->layout.dims[d] - w->index[d] * s->step[d];
    return left < s->step[d] ? left : s->step[d];
}

static void begin(walk *w, const state *s, int64_t piece)
{
    memset(w, 0, sizeof *w);
    w->s = s;
    for (int d = s->layout.rank - 1; d >= 0; d--) {
        w->index[d] = piece % s->counts[d];
        piece /= s->counts[d];
        for (int t = 0; t < s->slots; t++)
            w->at[t] += w->index[d] * s->step[d] * s->layout.strides[t][d];
    }
    w->n = extent(w, s->layout.rank - 1);
    w->rows = extent(w, s->tiled);
}

/* On along dimension d and, where its end is reached, along those before it. */
static void advance(walk *w, int d)
{
    const state *s = w->s;
    for (; d >= 0; d--) {
        const bool over = ++w->index[d] == s->counts[d];
        const int64_t steps = over ? s->counts[d] - 1 : -1;
        for (int t = 0; t < s->slots; t++) w->at[t] -= steps * s->step[d] * s->layout.strides[t][d];
        if (!over) break;
        w->index[d] = 0;
    }
    w->n = extent(w, s->layout.rank - 1);
    w->rows = extent(w, s->tiled);
}

/* Most steps are those to a whole piece of the same row. */
static inline void next(walk *w)
{
    const state *s = w->s;
    const int last = s->layout.rank - 1;
    if (s->tiled >= 0 || w->index[last] + 2 >= s->counts[last]) {
        advance(w, last);
        return;
    }
    w->index[last]++;
    for (int t = 0; t < s->slots; t++) w->at[t] += s->advance[t];
}

/* ---- one piece ---- */

typedef struct run_of {
    const state *s;
    const void *what;
    lane lanes[MICA_POINTWISE_OPERANDS];
    int count;
    mica_dtype real; /* or the type of all operands, for a raw block */
    int64_t size;    /* of it */
    mica_pointwise_block block;
    mica_pointwise_numbers numbers;
    double alpha, beta;
    bool scaled;
} run_of;

/* What a thread works with. */
typedef struct work {
    const run_of *r;
    void *v[MICA_POINTWISE_OPERANDS];
    char (*buffers)[LONG_PIECE]; /* one for each operand, and one more */
    char *tiles;
    walk w;
} work;

/* Places: as s64. */
static void count_up(int64_t first, int64_t stride, int64_t *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = first + i * stride;
}

static void load(const run_of *r, const lane *l, int64_t at, int64_t stride, void *to, int64_t n)
{
    if (l->index)
        count_up(at, stride, to, n);
    else if (l->type == r->real && stride == 1)
        memcpy(to, l->memory + at * l->bytes, (size_t)(n * l->bytes));
    else if (l->type == r->real)
        mica_move(l->memory + at * l->bytes, stride, to, 1, l->bytes, n);
    else if (r->real == MICA_F64)
        mica_to_f64(l->type, l->memory, at, stride, to, n);
    else
        mica_to_f32(l->type, l->memory, at, stride, to, n);
}

static void store_past(const run_of *r, const lane *l, int64_t at, const void *from, int64_t n)
{
    if (l->type == r->real)
        mica_stream_copy(l->memory + at * l->bytes, from, (size_t)(n * l->bytes));
    else if (r->real == MICA_F64)
        mica_stream_f64(l->type, l->memory, at, from, n);
    else
        mica_stream_f32(l->type, l->memory, at, from, n);
}

static void store(const run_of *r, const lane *l, int64_t at, int64_t stride, const void *from,
                  int64_t n)
{
    if (l->type == r->real && stride == 1)
        memcpy(l->memory + at * l->bytes, from, (size_t)(n * l->bytes));
    else if (l->type == r->real)
        mica_move(from, 1, l->memory + at * l->bytes, stride, l->bytes, n);
    else if (r->real == MICA_F64)
        mica_from_f64(l->type, l->memory, at, stride, from, n);
    else
        mica_from_f32(l->type, l->memory, at, stride, from, n);
}

MICA_CLONES
static void scale_f32(float *v, float alpha, const float *old, float beta, int64_t n)
{
    for (int64_t i = 0; i < n; i++) v[i] = alpha * v[i] + beta * old[i];
}

MICA_CLONES
static void scale_f64(double *v, double alpha, const double *old, double beta, int64_t n)
{
    for (int64_t i = 0; i < n; i++) v[i] = alpha * v[i] + beta * old[i];
}

/* v = alpha v + beta old; at: of old in memory, unless it is in a tile. */
static void scale(const work *w, const lane *l, void *v, int64_t at, const char *tile)
{
    const run_of *r = w->r;
    const int64_t n = w->w.n;
    char *old = w->buffers[MICA_POINTWISE_OPERANDS];
    if (r->beta == 0)
        memset(old, 0, (size_t)(n * r->size));
    else if (tile)
        memcpy(old, tile, (size_t)(n * r->size));
    else
        load(r, l, at, l->stride, old, n);
    if (r->real == MICA_F64)
        scale_f64(v, r->alpha, (double *)old, r->beta, n);
    else
        scale_f32(v, (float)r->alpha, (float *)old, (float)r->beta, n);
}

/* What an operand of that type holds once `values` are stored in it. */
static const void *as_stored(const work *w, mica_dtype type, const void *values)
{
    char *held = w->buffers[MICA_POINTWISE_OPERANDS], *to = w->buffers[MICA_POINTWISE_OPERANDS + 1];
    const int64_t n = w->w.n;
    if (type == w->r->real) return values;
    if (w->r->real == MICA_F64) {
        mica_from_f64(type, held, 0, 1, values, n);
        mica_to_f64(type, held, 0, 1, (double *)to, n);
    } else {
        mica_from_f32(type, held, 0, 1, values, n);
        mica_to_f32(type, held, 0, 1, (float *)to, n);
    }
    return to;
}

static void put(const work *w, const lane *l, int64_t row)
{
    const run_of *r = w->r;
    const int64_t n = w->w.n, at = w->w.at[l->slot] + row * l->row_step;
    const void *values = w->v[l->k];
    char *tile = l->upright ? w->tiles + l->tile + row * n * r->size : NULL;
    if (l->follows) values = as_stored(w, (l - 1)->type, w->v[l->k - 1]);
    if (r->scaled) scale(w, l, w->v[l->k], at, tile);
    if (tile) {
        if (values != tile) memcpy(tile, values, (size_t)(n * r->size));
    } else if (l->past) {
        store_past(r, l, at, values, n);
    } else if (!l->direct) {
        store(r, l, at, l->stride, values, n);
    }
}

static void do_row(work *w, int64_t row)
{
    const run_of *r = w->r;
    const int64_t n = w->w.n;
    for (const lane *l = r->lanes; l < r->lanes + r->count; l++) {
        const int64_t at = w->w.at[l->slot] + row * l->row_step;
        void **v = &w->v[l->k];
        if (l->ahead) mica_fetch_ahead(l->memory + at * l->bytes + MICA_AHEAD, n * l->bytes);
        if (l->direct) {
            *v = l->memory + at * l->bytes;
        } else if (!l->upright) {
            if (l->read) load(r, l, at, l->stride, *v, n);
        } else if (!r->scaled) {
            *v = w->tiles + l->tile + row * n * r->size;
        } else if (l->read) {
            memcpy(*v, w->tiles + l->tile + row * n * r->size, (size_t)(n * r->size));
        }
    }
    r->block(r->what, r->s->set.variant, w->v, &r->numbers, n);
    for (const lane *l = r->lanes; l < r->lanes + r->count; l++)
        if (l->written && (!l->direct || r->scaled)) put(w, l, row);
}

/* ---- tiles ---- */

/* Between the columns of a piece in memory and a tile. */
static void move_columns(const work *w, const lane *l, bool in)
{
    const run_of *r = w->r;
    _Alignas(64) char column[TILE_ROWS * sizeof(double)];
    const int64_t at = w->w.at[l->slot], n = w->w.n, rows = w->w.rows;
    for (int64_t c = 0; in && c < n; c++)
        mica_fetch_ahead(l->memory + (at + c * l->stride) * l->bytes, rows * l->bytes);
    for (int64_t c = 0; c < n; c++) {
        char *tile = w->tiles + l->tile + c * r->size;
        char *memory = l->memory + (at + c * l->stride) * l->bytes;
        if (l->type == r->real) {
            mica_move(in ? memory : tile, in ? 1 : n, in ? tile : memory, in ? n : 1, r->size,
                      rows);
        } else if (in) {
            load(r, l, at + c * l->stride, 1, column, rows);
            mica_move(column, 1, tile, n, r->size, rows);
        } else {
            mica_move(tile, n, column, 1, r->size, rows);
            store(r, l, at + c * l->stride, 1, column, rows);
        }
    }
}

static void do_tile(work *w)
{
    const run_of *r = w->r;
    const lane *end = r->lanes + r->count;
    for (const lane *l = r->lanes; l < end; l++)
        if (l->upright && (l->read || r->beta != 0)) move_columns(w, l, true);
    for (int64_t row = 0; row < w->w.rows; row++) {
        for (const lane *l = r->lanes; l < end && row + 1 < w->w.rows; l++)
            if (l->stride == 1)
                mica_fetch_ahead(l->memory +
                                     (w->w.at[l->slot] + (row + 1) * l->row_step) * l->bytes,
                                 w->w.n * l->bytes);
        do_row(w, row);
    }
    for (const lane *l = r->lanes; l < end; l++)
        if (l->upright && l->written) move_columns(w, l, false);
}

/* ---- runs ---- */

/* Whether a result lies on an operand: a block of several loops must not write there too early. */
static bool lies_on_operand(const run_of *r, const lane *result)
{
    for (const lane *l = r->lanes; l < r->lanes + r->count; l++)
        if (l->read && l->memory == result->memory) return true;
    return false;
}

static mica_status begin_run(const mica_plan *plan, const mica_run *run, run_of *r)
{
    const state *s = plan->state;
    r->s = s;
    r->what = mica_pointwise_what(plan, sizeof *s);
    MICA_TRY(mica_pointwise_begin(plan, run, s->real, &r->numbers, &r->alpha, &r->beta));
    r->scaled = r->alpha != 1 || r->beta != 0;
    const bool raw = s->raw && !r->scaled;
    r->real = raw ? s->lanes[0].type : s->real;
    r->block = raw ? s->raw : s->block;
    r->size = mica_dtype_bits(r->real) / 8;
    r->count = s->count;
    memcpy(r->lanes, s->lanes, (size_t)s->count * sizeof *s->lanes);
    for (lane *l = r->lanes; l < r->lanes + r->count; l++)
        l->memory = l->index ? NULL : (char *)run->args[l->arg] + l->shift;
    for (lane *l = r->lanes; l < r->lanes + r->count; l++) {
        l->direct &= l->type == r->real;
        if (!l->read && !l->past && !l->follows && !l->upright && l->type == r->real)
            l->direct = l->stride == 1 && !r->scaled && !lies_on_operand(r, l);
    }
    return MICA_OK;
}

static void do_pieces(const run_of *r, int64_t first, int64_t count)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    char(*buffers)[LONG_PIECE] = mica_scratch_take((MICA_POINTWISE_OPERANDS + 2) * sizeof *buffers);
    char *tiles = mica_scratch_take(TILES);
    work w = {.r = r, .buffers = buffers, .tiles = tiles};
    if (count == 0) return;
    for (int i = 0; i < r->count; i++) w.v[r->lanes[i].k] = buffers[r->lanes[i].k];
    begin(&w.w, r->s, first);
    for (int64_t i = 0; i < count; i++) {
        if (i) next(&w.w);
        if (r->s->tiled >= 0)
            do_tile(&w);
        else
            do_row(&w, 0);
    }
    mica_stream_end();
}

mica_status mica_pointwise_cpu_run(const mica_plan *plan, const mica_run *mica)
{
    const state *s = plan->state;
    run_of r;
    MICA_TRY(begin_run(plan, mica, &r));
#pragma omp parallel num_threads(mica_cpu_threads_for(s->bytes))
    {
        int64_t threads = omp_get_num_threads(), t = omp_get_thread_num();
        int64_t each = s->pieces / threads, rest = s->pieces % threads;
        do_pieces(&r, t * each + (t < rest ? t : rest), each + (t < rest));
    }
    return MICA_OK;
}

const mica_engine mica_pointwise_cpu = {MICA_POINTWISE_CPU};
