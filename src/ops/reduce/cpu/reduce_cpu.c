/* SPDX-License-Identifier: Apache-2.0
 * The walks over slices on the CPU. */
#include "ops/reduce/reduce.h"
#include "ops/convert/cpu/convert.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "cpu/stream.h"

#include <string.h>

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- planning ---- */

void mica_reduce_walk_make(mica_reduce_walk *p, const mica_reduce *op, const void *desc,
                           double bytes, const mica_device_info *device)
{
    mica_reduce_split split;
    mica_tiling *t = &p->tiling;
    memset(p, 0, sizeof *p);
    p->op = op;
    p->set.out = -1;
    op->operands(desc, &p->set);
    mica_reduce_split_make(&split, &p->set);
    const unsigned walked = p->set.first | p->set.again;
    bool contiguous = true;
    for (int k = 0; k < p->set.count; k++) {
        t->type[k] = p->set.at[k].tensor.dtype;
        t->along[k] = split.along[k];
        if (walked >> k & 1 || k == p->set.out) contiguous &= t->along[k] == 1;
    }
    t->outer = split.kept;
    t->operands = p->set.count;
    t->n = split.n;
    t->past_cache = mica_stream_pays(bytes, device->cache_bytes);
    t->light = p->set.light;
    p->rows = split.rows;
    p->length = split.length;
    p->bytes = bytes;
    p->real = op->real(desc);
    const bool single = p->real != MICA_F32;
    mica_tiling_make(t, contiguous, single);
    p->kept = op->keep && !single && p->rows.count == 1 && mica_tiling_is_kept(t, p->set.out);
    p->parts = 1;
    /* What goes its own way does so in one go, and states that do not merge are whole. */
    if (op->merge && t->tiles < 16 && p->length >= 4 * MICA_TILE_CHUNK && !(single && op->whole))
        p->parts = least(p->length / MICA_TILE_CHUNK, MICA_REDUCE_PARTS);
}

void mica_reduce_bind(const mica_reduce_walk *p, const mica_run *run, void **data)
{
    for (int k = 0; k < MICA_REDUCE_OPERANDS; k++) {
        const int arg = k < p->set.count ? p->set.at[k].arg : -1;
        data[k] = arg < 0 ? NULL : run->args[arg];
    }
}

/* ---- chunks ---- */

/* A few lines more than a chunk: of equal places 4096 bytes apart, loads wait for stores that are
 * not theirs. */
enum { BUFFER = MICA_TILE_CHUNK * sizeof(double) + 17 * 64 };

/* Where a thread's chunks wait. */
typedef struct buffers {
    MICA_ALIGNED char of[2][BUFFER];
} buffers;

static const void *fetch_wide(const mica_reduce_tile *t, int64_t from, int64_t n, void *buffer)
{
    const mica_tile *m = &t->tile;
    const int64_t step = m->s->along[0], at = m->offset[0] + from * step;
    if (t->walk->real == m->s->type[0] && step == 1) return (const char *)m->data[0] + at * 8;
    if (t->walk->real == MICA_S64)
        mica_to_s64(m->s->type[0], m->data[0], at, step, buffer, n);
    else
        mica_to_f64(m->s->type[0], m->data[0], at, step, buffer, n);
    return buffer;
}

/* n positions from `from` on of the operands in `which`. */
static void fetch(const mica_reduce_tile *t, unsigned which, int64_t from, int64_t n, buffers *b,
                  mica_reduce_chunk *c)
{
    c->from = from, c->n = n;
    if (t->walk->op->map && t->walk->op->map(t, from, n, b->of[0])) {
        c->wide = b->of[0], c->in[0] = (const float *)(const void *)b->of[0];
        c->ld[0] = t->tile.width;
        return;
    }
    if (t->walk->real != MICA_F32) {
        c->wide = fetch_wide(t, from, n, b->of[0]);
        return;
    }
    for (int k = 0; k < t->walk->set.count; k++)
        if (which >> k & 1)
            c->in[k] = mica_tile_fetch(&t->tile, k, from, n, (float *)(void *)b->of[k], &c->ld[k]);
}

/* Row `row` of the slices of a tile. */
static mica_reduce_tile at_row(const mica_reduce_tile *t, int64_t row)
{
    const mica_layout *l = &t->walk->rows;
    mica_reduce_tile r = *t;
    for (int d = l->rank - 1; d >= 0; d--) {
        for (int k = 0; k < t->walk->set.count; k++)
            r.tile.offset[k] += row % l->dims[d] * l->strides[k][d];
        row /= l->dims[d];
    }
    return r;
}

/* Positions [from, to) of the slices of a tile are added, or written from a whole state. */
static void walk(const mica_reduce_tile *t, int64_t from, int64_t to, void *add,
                 const void *finished)
{
    const mica_reduce *op = t->walk->op;
    const mica_reduce_set *set = &t->walk->set;
    const int64_t n = t->walk->tiling.n, chunk = t->walk->tiling.chunk;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    buffers *b = mica_scratch_take(sizeof *b);
    int64_t ld;
    for (int64_t at = from, m; at < to; at += m) {
        const bool one_row = n == t->walk->length;
        const int64_t row = one_row ? 0 : at / n, a = at - row * n;
        mica_reduce_tile of_row;
        const mica_reduce_tile *r = t;
        mica_reduce_chunk c; /* not zeroed, as tiles are not */
        if (!one_row) of_row = at_row(t, row), r = &of_row;
        c.seen = at;
        m = least(least(chunk, n - a), to - at);
        fetch(r, add ? set->first : set->again, a, m, b, &c);
        if (add) {
            if (op->asks && !t->walk->rows.rank && t->walk->real == MICA_F32)
                mica_tile_ask(&r->tile, 0, a, m);
            op->add(r, &c, add);
            continue;
        }
        /* Elements may be written over the first operand's. */
        float *buffer = (float *)(void *)b->of[0];
        float *out = mica_tile_place(&r->tile, set->out, a, buffer, &ld);
        op->write(r, &c, finished, out, ld);
        if (out == buffer) mica_tile_put(&r->tile, set->out, a, m, buffer);
    }
}

/* A tile that is kept: read once. What `keep` left waits where the results will be, if that is
 * memory of floats; its lines come while the work goes on. */
static void do_kept(const mica_reduce_tile *t, void *state)
{
    const mica_reduce *op = t->walk->op;
    const mica_tiling *s = &t->walk->tiling;
    const int out = t->walk->set.out;
    const int64_t width = t->tile.width;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float *kept = mica_scratch_take(MICA_TILE_KEPT * sizeof *kept);
    float *about = mica_scratch_take(MICA_TILE_SHIFTS * sizeof *about);
    buffers *b = mica_scratch_take(sizeof *b);
    int64_t ld;
    for (int64_t i = 0, a = 0; a < s->n; i++, a += s->chunk) {
        const int64_t n = least(s->chunk, s->n - a);
        mica_reduce_chunk c = {.seen = a};
        fetch(t, t->walk->set.first, a, n, b, &c);
        float *e = mica_tile_place(&t->tile, out, a, kept, &ld);
        if (e == kept) e += a * width, mica_tile_ask_place(&t->tile, out, a, n);
        op->keep(t, &c, state, e, ld, about + i * width);
    }
    op->finish(t, state);
    for (int64_t i = 0, a = 0; a < s->n; i++, a += s->chunk) {
        const int64_t n = least(s->chunk, s->n - a);
        const mica_reduce_chunk c = {.from = a, .n = n, .seen = a};
        float *e = mica_tile_place(&t->tile, out, a, kept, &ld);
        const bool buffered = e == kept;
        if (buffered) e += a * width;
        op->rescale(t, &c, state, about + i * width, e, ld);
        if (buffered) mica_tile_put(&t->tile, out, a, n, e);
    }
}

/* A tile of one chunk is read once. */
static void do_resident(const mica_reduce_tile *t, void *state)
{
    const mica_reduce *op = t->walk->op;
    const mica_reduce_set *set = &t->walk->set;
    const int64_t n = t->walk->length;
    mica_reduce_chunk c = {0};
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    buffers *b = mica_scratch_take(sizeof *b);
    int64_t ld;
    fetch(t, set->first | set->again, 0, n, b, &c);
    op->add(t, &c, state);
    op->finish(t, state);
    float *buffer = (float *)(void *)b->of[0];
    float *out = mica_tile_place(&t->tile, set->out, 0, buffer, &ld);
    op->write(t, &c, state, out, ld);
    if (out == buffer) mica_tile_put(&t->tile, set->out, 0, n, buffer);
}

/* ---- tiles ---- */

typedef struct whole_state {
    _Alignas(64) char bytes[MICA_REDUCE_STATE];
} whole_state;

void mica_reduce_do_tile(const mica_reduce_tile *t)
{
    const mica_reduce *op = t->walk->op;
    if (op->whole && op->whole(t)) return;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    whole_state *s = mica_scratch_take(sizeof *s);
    op->init(t, s);
    if (t->walk->kept) {
        do_kept(t, s);
        return;
    }
    if (op->write && t->walk->length <= t->walk->tiling.chunk && t->walk->rows.count == 1) {
        do_resident(t, s);
        return;
    }
    walk(t, 0, t->walk->length, s, NULL);
    op->finish(t, s);
    if (op->write) walk(t, 0, t->walk->length, NULL, s);
}

static void run_in_parts(const mica_reduce_tile *t, int threads)
{
    const mica_reduce *op = t->walk->op;
    const int64_t length = t->walk->length, parts = t->walk->parts;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    whole_state *part = mica_scratch_take((size_t)parts * sizeof *part);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t p = 0; p < parts; p++) {
        op->init(t, &part[p]);
        walk(t, length * p / parts, length * (p + 1) / parts, &part[p], NULL);
    }
    for (int64_t p = 1; p < parts; p++) op->merge(t, &part[0], &part[p]);
    op->finish(t, &part[0]);
    if (!op->write) return;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t p = 0; p < parts; p++) {
        walk(t, length * p / parts, length * (p + 1) / parts, NULL, &part[0]);
        mica_stream_end();
    }
}

void mica_reduce_run(const mica_reduce_walk *p, const void *desc, const void *of_run,
                     void *const *data)
{
    const int threads = mica_cpu_threads_for(p->bytes);
    const mica_tiling *s = &p->tiling;
    if (p->parts > 1) {
        for (int64_t i = 0; i < s->tiles; i++)
            run_in_parts(&(mica_reduce_tile){p, desc, of_run, mica_tile_at(s, data, i)}, threads);
        return;
    }
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < s->tiles; i++)
            mica_reduce_do_tile(&(mica_reduce_tile){p, desc, of_run, mica_tile_at(s, data, i)});
        mica_stream_end();
    }
}
