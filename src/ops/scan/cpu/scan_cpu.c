/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of scans: any types and strides. A tile is one slice along a contiguous axis, or
 * neighbouring slices side by side; its positions pass in chunks that stay in the first-level
 * cache. Long slices that are too few for the threads are cut into parts, by shape alone, and read
 * twice: for the states of the parts, then from what comes before each. Memory-bound but for
 * logsumexp and its gradient. Workspace: for the gradient of products, what is before each element.
 */
#include "ops/scan/cpu/scan_cpu.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "cpu/stream.h"
#include "ops/convert/cpu/convert.h"

#include <string.h>

/* Axes of fewer positions go side by side, and fewer neighbours one by one. */
enum { SHORT_AXIS = 16, FEW_SLICES = 8, FEW_TILES = 16, MOST_PARTS = 32 };
enum { LEAST_STREAM = 1024 }; /* bytes: of shorter runs past the caches too many lines are parts */

typedef struct walk {
    mica_scan_step step;
    mica_layout outer;
    long long along[SCAN_OPERANDS];
    int64_t n, width, blocks, tiles, parts;
    double bytes;
    bool past_cache;
    const mica_scan_loops *loops;
} walk;

typedef struct state {
    walk walks[MICA_SCAN_STEPS];
    int count;
    size_t before;
} state;

/* Neighbouring slices of a walk, `across` apart. */
typedef struct tile {
    const walk *w;
    char *data[SCAN_OPERANDS];
    int64_t across[SCAN_OPERANDS], width;
} tile;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t size_of(const walk *w, int operand)
{
    return mica_dtype_bits(w->step.tensor[operand].dtype) / 8;
}

static bool has(const walk *w, int operand)
{
    return mica_tensor_given(&w->step.tensor[operand]);
}

/* ---- planning ---- */

static void make_walk(walk *w, int64_t axis, const mica_device_info *device, double bytes)
{
    const mica_scan_step *s = &w->step;
    mica_scan_split(s, axis, &w->outer, w->along);
    w->n = s->tensor[SCAN_A].dims[axis];
    w->bytes = bytes;
    w->past_cache = mica_stream_pays(bytes, device->cache_bytes);
    w->loops = s->acc == MICA_S64 ? &mica_scan_loops_s64 : &mica_scan_loops_f64;
    const int last = w->outer.rank - 1;
    const int64_t inner = last >= 0 ? w->outer.dims[last] : 1;
    const bool contiguous = w->along[SCAN_A] == 1 && w->along[SCAN_OUT] == 1;
    const bool rows = inner < FEW_SLICES || (contiguous && w->n >= SHORT_AXIS);
    w->width = rows ? 1 : least(inner, MICA_SCAN_WIDTH);
    w->blocks = (inner + w->width - 1) / w->width;
    w->tiles = w->outer.count ? w->outer.count / inner * w->blocks : 0;
    w->parts = 1;
    const int64_t chunks = w->n * w->width / MICA_SCAN_CHUNK;
    if (w->tiles < FEW_TILES && chunks >= 8) w->parts = least(chunks / 2, MOST_PARTS);
}

static mica_status build(mica_plan *plan)
{
    const mica_scan_desc *d = plan->desc;
    mica_scan_step steps[MICA_SCAN_STEPS];
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    s->count = mica_scan_steps(d, steps);
    for (int i = 0; i < s->count; i++) {
        s->walks[i].step = steps[i];
        make_walk(&s->walks[i], d->axis, &plan->device, mica_op_bytes(plan->op, d));
    }
    if (s->count == 1) return MICA_OK;
    /* Workspace is computed in what the CPU computes in. */
    steps[0].tensor[SCAN_OUT].dtype = MICA_F64;
    s->walks[0].step.tensor[SCAN_OUT].dtype = s->walks[1].step.tensor[SCAN_C].dtype = MICA_F64;
    return mica_book(plan, "products before each element",
                     (size_t)mica_tensor_count(&d->x) * sizeof(double), &s->before);
}

/* ---- tiles ---- */

static tile tile_at(const walk *w, char *const *data, int64_t index)
{
    const mica_layout *l = &w->outer;
    const int last = l->rank - 1;
    tile t = {.w = w, .width = 1};
    const int64_t first = index % w->blocks * w->width;
    int64_t offset[SCAN_OPERANDS];
    if (last >= 0) t.width = least(w->width, l->dims[last] - first);
    for (int k = 0; k < SCAN_OPERANDS; k++) {
        int64_t rest = index / w->blocks;
        t.across[k] = last >= 0 ? l->strides[k][last] : 0;
        offset[k] = first * t.across[k];
        for (int dim = last - 1; dim >= 0; dim--) {
            offset[k] += rest % l->dims[dim] * l->strides[k][dim];
            rest /= l->dims[dim];
        }
        t.data[k] = has(w, k) ? data[k] + offset[k] * size_of(w, k) : NULL;
    }
    return t;
}

/* ---- chunks ---- */

typedef struct buffers {
    MICA_ALIGNED double a[MICA_SCAN_CHUNK], b[MICA_SCAN_CHUNK], c[MICA_SCAN_CHUNK];
    MICA_ALIGNED int64_t index[MICA_SCAN_CHUNK];
    MICA_ALIGNED uint8_t heads[MICA_SCAN_CHUNK], shown[MICA_SCAN_CHUNK];
} buffers;

static void load_run(const walk *w, int k, const char *data, int64_t offset, int64_t stride,
                     void *to, int64_t n)
{
    const mica_dtype type = w->step.tensor[k].dtype;
    if (w->step.acc != MICA_S64) {
        mica_to_f64(type, data, offset, stride, to, n);
        return;
    }
    mica_to_s64(type, data, offset, stride, to, n);
}

/* m positions from `from` on. */
static void load(const tile *t, int k, int64_t from, int64_t m, double *to)
{
    const walk *w = t->w;
    const int64_t along = w->along[k];
    if (w->width == 1) {
        load_run(w, k, t->data[k], from * along, along, to, m);
        return;
    }
    for (int64_t i = 0; i < m; i++)
        load_run(w, k, t->data[k], (from + i) * along, t->across[k], to + i * t->width, t->width);
}

static void store_run(const tile *t, int64_t offset, int64_t stride, const double *from, int64_t n)
{
    const walk *w = t->w;
    const mica_dtype type = w->step.tensor[SCAN_OUT].dtype;
    char *data = t->data[SCAN_OUT];
    const int64_t bytes = size_of(w, SCAN_OUT);
    if (w->step.acc == MICA_S64) {
        const int64_t *v = (const int64_t *)(const void *)from;
        if (w->step.by == SCAN_MAX)
            mica_from_s64(type, data, offset, stride, v, n);
        else
            mica_wrap_s64(type, data, offset, stride, v, n);
        return;
    }
    const bool lines = ((int64_t)(uintptr_t)data | offset * bytes | n * bytes) % 64 == 0;
    if (w->past_cache && stride == 1 && (lines || n * bytes >= LEAST_STREAM))
        mica_stream_f64(type, data, offset, from, n);
    else
        mica_from_f64(type, data, offset, stride, from, n);
}

static void store(const tile *t, int64_t from, int64_t m, const double *a)
{
    const int64_t along = t->w->along[SCAN_OUT];
    if (t->w->width == 1) {
        store_run(t, from * along, along, a, m);
        return;
    }
    for (int64_t i = 0; i < m; i++)
        store_run(t, (from + i) * along, t->across[SCAN_OUT], a + i * t->width, t->width);
}

static void store_index(const tile *t, int64_t from, int64_t m, const int64_t *index)
{
    const walk *w = t->w;
    const int64_t along = w->along[SCAN_INDEX];
    for (int64_t i = 0; i < m; i++)
        mica_from_s64(w->step.tensor[SCAN_INDEX].dtype, t->data[SCAN_INDEX], (from + i) * along,
                      t->across[SCAN_INDEX], index + i * t->width, t->width);
}

/* Opposites of maxima; integers have a complement where they have no opposite. */
static void oppose(const walk *w, double *a, int64_t n)
{
    int64_t *whole = (int64_t *)(void *)a;
    if (w->step.acc == MICA_S64)
        for (int64_t i = 0; i < n; i++) whole[i] = ~whole[i];
    else
        for (int64_t i = 0; i < n; i++) a[i] = -a[i];
}

/* Where segments begin, in the scan's order: of a reverse one behind the element with the flag. */
static void find_heads(const tile *t, int64_t from, int64_t m, double *flags, uint8_t *heads)
{
    const walk *w = t->w;
    const int64_t shift = w->step.reverse ? 1 : 0, inside = least(m, w->n - from - shift);
    memset(heads, 0, (size_t)(m * t->width));
    if (inside <= 0) return;
    load(t, SCAN_FLAGS, from + shift, inside, flags);
    for (int64_t i = 0; i < inside * t->width; i++) {
        int64_t bits;
        memcpy(&bits, &flags[i], sizeof bits); /* of zeros, as of integers */
        heads[i] = bits != 0;
    }
}

static int64_t index_at(const tile *t, int64_t position, int64_t slice)
{
    const int64_t at = position * t->w->along[SCAN_B] + slice * t->across[SCAN_B];
    if (t->w->step.tensor[SCAN_B].dtype == MICA_S64)
        return ((const int64_t *)(const void *)t->data[SCAN_B])[at];
    return ((const int32_t *)(const void *)t->data[SCAN_B])[at];
}

/* Which elements an index points to: of exclusive scans that of the element one step later in
 * forward's order, which comes one step earlier here. Behind such an element a run begins; of
 * exclusive ones with it. Where the index is -1 nothing is added. */
static void find_runs(const tile *t, int64_t from, int64_t m, buffers *b)
{
    const walk *w = t->w;
    const int64_t before = w->step.reverse ? 1 : -1;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < t->width; j++) {
            const int64_t at = from + i, earlier = at + before, e = i * t->width + j;
            const bool first = earlier < 0 || earlier >= w->n;
            const int64_t index = index_at(t, at, j);
            if (w->step.exclusive) {
                b->shown[e] = b->heads[e] = !first && index_at(t, earlier, j) == at;
                if (index < 0) b->a[e] = 0;
            } else {
                b->shown[e] = index == at;
                b->heads[e] = first || index_at(t, earlier, j) == earlier;
            }
        }
}

static void do_chunk(const tile *t, int64_t from, int64_t m, buffers *b, mica_scan_state *seen,
                     bool silent)
{
    const walk *w = t->w;
    const mica_scan_step *s = &w->step;
    mica_scan_chunk c = {.a = b->a, .from = from, .m = m, .width = t->width, .silent = silent};
    load(t, SCAN_A, from, m, b->a);
    if (s->opposite) oppose(w, b->a, m * t->width);
    if (s->by == SCAN_RUNS) {
        find_runs(t, from, m, b);
        c.heads = b->heads, c.shown = b->shown;
    } else {
        if (has(w, SCAN_B)) load(t, SCAN_B, from, m, b->b), c.b = b->b;
        if (has(w, SCAN_C) && (!silent || s->by != SCAN_MAPS))
            load(t, SCAN_C, from, m, b->c), c.c = b->c;
    }
    if (has(w, SCAN_INDEX)) c.index = b->index;
    if (has(w, SCAN_FLAGS)) {
        find_heads(t, from, m, (double *)(void *)b->index, b->heads);
        c.heads = b->heads;
    }
    w->loops->chunk(s, &c, seen);
    if (silent) return;
    if (s->opposite) oppose(w, b->a, m * t->width);
    store(t, from, m, b->a);
    if (c.index) store_index(t, from, m, c.index);
}

/* Steps [from, to) of the scan, `seen` being what comes before them. */
static void do_part(const tile *t, int64_t from, int64_t to, mica_scan_state *seen, bool silent)
{
    const int64_t most = MICA_SCAN_CHUNK / t->width, n = t->w->n;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    buffers *b = mica_scratch_take(sizeof *b);
    for (int64_t k = from, m; k < to; k += m) {
        m = least(most, to - k);
        do_chunk(t, t->w->step.reverse ? n - k - m : k, m, b, seen, silent);
    }
}

static void do_tile(const tile *t)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    mica_scan_state *seen = mica_scratch_take(sizeof *seen);
    t->w->loops->clear(&t->w->step, seen, t->width);
    do_part(t, 0, t->w->n, seen, false);
}

static void do_in_parts(const tile *t, int threads)
{
    const walk *w = t->w;
    const int64_t parts = w->parts;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    mica_scan_state *part = mica_scratch_take((size_t)parts * sizeof *part);
    mica_scan_state *sum = mica_scratch_take(sizeof *sum);
    /* First of the part before each, then of all parts before it. */
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t p = 0; p < parts; p++) {
        w->loops->clear(&w->step, &part[p], t->width);
        if (p > 0) do_part(t, w->n * (p - 1) / parts, w->n * p / parts, &part[p], true);
    }
    for (int64_t p = 1; p < parts; p++) {
        memcpy(sum, &part[p - 1], sizeof *sum);
        w->loops->merge(&w->step, sum, &part[p], t->width);
        memcpy(&part[p], sum, sizeof *sum);
    }
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t p = 0; p < parts; p++) {
        do_part(t, w->n * p / parts, w->n * (p + 1) / parts, &part[p], false);
        mica_stream_end();
    }
}

static void do_walk(const walk *w, char *const *data)
{
    const int threads = mica_cpu_threads_for(w->bytes);
    if (w->parts > 1) {
        for (int64_t i = 0; i < w->tiles; i++) {
            const tile t = tile_at(w, data, i);
            do_in_parts(&t, threads);
        }
        return;
    }
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < w->tiles; i++) {
            const tile t = tile_at(w, data, i);
            do_tile(&t);
        }
        mica_stream_end();
    }
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    for (int i = 0; i < s->count; i++) {
        const walk *w = &s->walks[i];
        char *data[SCAN_OPERANDS];
        for (int k = 0; k < SCAN_OPERANDS; k++)
            data[k] = !has(w, k)            ? NULL
                      : w->step.arg[k] >= 0 ? r->args[w->step.arg[k]]
                                            : mica_at(r, s->before);
        do_walk(w, data);
    }
    return MICA_OK;
}

const mica_engine mica_scan_cpu = {
    .name = "cpu", .reached = 0.7, .start_ms = 3e-4, .build = build, .run = run};
