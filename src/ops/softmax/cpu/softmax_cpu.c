/* SPDX-License-Identifier: Apache-2.0
 * Softmax on the CPU: the maximum and the sum are a state of ops/reduce, formed together, the sum
 * being rescaled when the maximum grows. Exponentials are kept, if they fit the second-level cache,
 * until the sum is known; else they are formed twice. f32 sums for f16, bf16 and f32, combined in
 * double between chunks; f64 operands go through double. Cost: memory's, or some 14 cycles per
 * vector for exp, in short types the more. */
#include "ops/softmax/softmax.h"
#include "ops/reduce/reduce.h"
#include "ops/convert/cpu/convert.h"
#include "ops/reduce/cpu/rows.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "cpu/stream.h"

#include <math.h>
#include <string.h>

/* by: 1 / sum, or log(sum), or, backward, the sum. */
typedef struct slices {
    mica_stats_of_slices st;
    float by[MICA_TILE_WIDTH];
} slices;

static bool is_log(const mica_reduce_tile *t)
{
    return ((const mica_softmax_desc *)t->desc)->log;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void operands(const void *desc, mica_reduce_set *set)
{
    const mica_softmax_desc *d = desc;
    const mica_softmax_operands o = mica_softmax_operands_of(d);
    for (int k = 0; k < o.count; k++) set->at[k] = (mica_reduce_operand){*o.tensor[k], o.arg[k]};
    set->count = o.count;
    set->axes = 1u << d->axis;
    set->again = (1u << (o.count - 1)) - 1;
    set->first = o.count == 3 && d->log ? 2 : set->again; /* the logarithm's sum is that of dy */
    set->out = o.count - 1;
    set->light = d->log == (o.count == 2); /* one exponential or none */
}

static mica_dtype real(const void *desc)
{
    const mica_softmax_operands o = mica_softmax_operands_of(desc);
    return mica_softmax_is_wide(&o) ? MICA_F64 : MICA_F32;
}

static void init(const mica_reduce_tile *t, void *state)
{
    mica_slices_clear(&((slices *)state)->st, t->tile.width);
}

static void merge(const mica_reduce_tile *t, void *to, const void *from)
{
    mica_slices_merge(&((slices *)to)->st, &((const slices *)from)->st, t->tile.width);
}

/* ---- forward ---- */

static void forward_add(const mica_reduce_tile *t, const mica_reduce_chunk *c, void *state)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float *e = mica_scratch_take(MICA_TILE_CHUNK * sizeof *e);
    slices *s = state;
    mica_slices_max(&t->tile, c->in[0], c->ld[0], c->n, &s->st);
    mica_slices_exp(&t->tile, c->in[0], c->ld[0], c->from, c->n, &s->st, e, t->tile.width);
}

static void forward_finish(const mica_reduce_tile *t, void *state)
{
    slices *s = state;
    if (is_log(t))
        mica_logs(s->st.sum, t->tile.width, s->by);
    else
        for (int64_t c = 0; c < t->tile.width; c++) s->by[c] = 1 / (float)s->st.sum[c];
}

static void forward_write(const mica_reduce_tile *t, const mica_reduce_chunk *c, const void *state,
                          float *y, int64_t yld)
{
    static const float zero[MICA_TILE_WIDTH];
    const slices *s = state;
    const float *x = c->in[0];
    if (t->walk->tiling.width == 1) {
        if (is_log(t))
            mica_row_subtract(x, s->st.max[0], s->by[0], c->n, y);
        else
            mica_row_exp(x, s->st.max[0], s->by[0], 0, c->n, y);
        return;
    }
    for (int64_t i = 0; i < c->n; i++) {
        const float *from = x + i * c->ld[0];
        if (is_log(t))
            mica_cols_subtract(from, s->st.max, s->by, t->tile.width, y + i * yld);
        else
            mica_cols_exp(from, s->st.max, s->by, zero, t->tile.width, y + i * yld);
    }
}

/* Each exponential is formed once, about the maximum at the time. */
static void forward_keep(const mica_reduce_tile *t, const mica_reduce_chunk *c, void *state,
                         float *e, int64_t ld, float *about)
{
    slices *s = state;
    mica_slices_max(&t->tile, c->in[0], c->ld[0], c->n, &s->st);
    memcpy(about, s->st.max, (size_t)t->tile.width * sizeof *about);
    mica_slices_exp(&t->tile, c->in[0], c->ld[0], c->from, c->n, &s->st, e, ld);
}

static void forward_rescale(const mica_reduce_tile *t, const mica_reduce_chunk *c,
                            const void *state, const float *about, float *e, int64_t ld)
{
    MICA_ALIGNED double one[MICA_TILE_WIDTH];
    MICA_ALIGNED float factor[MICA_TILE_WIDTH];
    const mica_stats_of_slices *st = &((const slices *)state)->st;
    const int64_t width = t->tile.width;
    for (int64_t k = 0; k < width; k++) one[k] = 1;
    mica_cols_factors(st->sum, st->max, about, one, width, factor);
    if (t->walk->tiling.width == 1)
        mica_row_scale(e, factor[0], c->n, e);
    else
        mica_cols_scale(e, ld, c->n, factor, width, e, ld);
}

/* A row of one chunk: nothing but three loops, for short rows are many. */
static void forward_row(const mica_tile *t)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float *x = mica_scratch_take((MICA_TILE_CHUNK + 272) * sizeof *x); /* apart from y in a page */
    float *y = mica_scratch_take(MICA_TILE_CHUNK * sizeof *y);
    int64_t n = t->s->n, ld;
    const float *in = mica_tile_fetch(t, 0, 0, n, x, &ld);
    float *out = mica_tile_place(t, 1, 0, y, &ld);
    int64_t bytes = mica_dtype_bits(t->s->type[0]) / 8;
    const void *next = t->s->along[0] == 1 ? mica_tile_later(t, 0, 0) : in;
    mica_row_softmax(in, n, out, next, bytes);
    if (out == y) mica_tile_put(t, 1, 0, n, y);
}

/* ---- backward ---- */

static void backward_add(const mica_reduce_tile *t, const mica_reduce_chunk *c, void *state)
{
    double *total = ((slices *)state)->st.sum;
    const float *y = c->in[0], *dy = c->in[1];
    const bool log = is_log(t);
    /* Of a tile that is read once, half now and half before it is written. */
    const bool once = t->walk->length <= t->walk->tiling.chunk;
    if (!once) mica_tile_ask(&t->tile, 1, c->from, c->n);
    if (once || !log) mica_tile_ask(&t->tile, 0, c->from, c->n);
    if (t->walk->tiling.width == 1) {
        total[0] += (double)(log ? mica_row_sum(dy, c->n) : mica_row_dot(y, dy, c->n));
        return;
    }
    MICA_ALIGNED float sum[MICA_TILE_WIDTH] = {0};
    for (int64_t i = 0; i < c->n; i++) {
        if (log)
            mica_cols_sum(dy + i * c->ld[1], t->tile.width, sum);
        else
            mica_cols_dot(y + i * c->ld[0], dy + i * c->ld[1], t->tile.width, sum);
    }
    for (int64_t k = 0; k < t->tile.width; k++) total[k] += (double)sum[k];
}

static void backward_finish(const mica_reduce_tile *t, void *state)
{
    slices *s = state;
    for (int64_t c = 0; c < t->tile.width; c++) s->by[c] = (float)s->st.sum[c];
}

static void backward_write(const mica_reduce_tile *t, const mica_reduce_chunk *c, const void *state,
                           float *dx, int64_t dxld)
{
    const slices *s = state;
    const float *y = c->in[0], *dy = c->in[1];
    const bool log = is_log(t);
    /* read here for the first time, in one go if converted */
    const bool once = t->walk->length <= t->walk->tiling.chunk;
    if (once) mica_tile_ask(&t->tile, 1, c->from, c->n);
    if (!once && log && t->tile.s->type[0] != MICA_F32) mica_tile_ask(&t->tile, 0, c->from, c->n);
    if (t->walk->tiling.width == 1) {
        if (log)
            mica_row_log_softmax_bwd(y, dy, s->by[0], c->n, dx);
        else
            mica_row_softmax_bwd(y, dy, s->by[0], c->n, dx);
        return;
    }
    for (int64_t i = 0; i < c->n; i++) {
        const float *yi = y + i * c->ld[0], *dyi = dy + i * c->ld[1];
        if (log)
            mica_cols_log_softmax_bwd(yi, dyi, s->by, t->tile.width, dx + i * dxld);
        else
            mica_cols_softmax_bwd(yi, dyi, s->by, t->tile.width, dx + i * dxld);
    }
}

/* ---- f64 ---- */

enum { WIDE_CHUNK = 512, WIDE_KEPT = 16384 };

static const double *wide_fetch(const mica_tile *t, int64_t from, int64_t n, double *buffer)
{
    int64_t step = t->s->along[0], at = t->offset[0] + from * step;
    if (t->s->type[0] == MICA_F64 && step == 1) return (const double *)t->data[0] + at;
    mica_to_f64(t->s->type[0], t->data[0], at, step, buffer, n);
    return buffer;
}

static void wide_put(const mica_tile *t, int64_t from, int64_t n, const double *values)
{
    int64_t step = t->s->along[1], at = t->offset[1] + from * step;
    if (t->s->past_cache && step == 1 && t->s->type[1] == MICA_F64)
        mica_stream_copy((double *)t->data[1] + at, values, (size_t)n * sizeof *values);
    else
        mica_from_f64(t->s->type[1], t->data[1], at, step, values, n);
}

static void wide_forward(const mica_reduce_tile *j)
{
    const mica_tile *t = &j->tile;
    int64_t n = t->s->n;
    MICA_ALIGNED double in[WIDE_CHUNK], out[WIDE_CHUNK];
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    double *e = mica_scratch_take(WIDE_KEPT * sizeof *e);
    double max = -INFINITY, sum = 0;
    bool kept = n <= WIDE_KEPT && !is_log(j);
    for (int64_t a = 0; a < n; a += WIDE_CHUNK) {
        int64_t m = least(n - a, WIDE_CHUNK);
        max = fmax(max, mica_row_max_f64(wide_fetch(t, a, m, in), m));
    }
    for (int64_t a = 0; a < n; a += WIDE_CHUNK) {
        int64_t m = least(n - a, WIDE_CHUNK);
        mica_tile_ask(t, 0, a, m);
        sum += mica_row_exp_sum_f64(wide_fetch(t, a, m, in), max, m, kept ? e + a : out);
    }
    double by = is_log(j) ? log(sum) : 1 / sum;
    for (int64_t a = 0; a < n; a += WIDE_CHUNK) {
        int64_t m = least(n - a, WIDE_CHUNK);
        if (kept)
            mica_row_scale_f64(e + a, by, m, out);
        else if (is_log(j))
            mica_row_subtract_f64(wide_fetch(t, a, m, in), max, by, m, out);
        else
            mica_row_exp_f64(wide_fetch(t, a, m, in), max, by, m, out);
        wide_put(t, a, m, out);
    }
}

static void wide_backward(const mica_reduce_tile *j)
{
    const mica_tile *t = &j->tile;
    mica_load_fn load_y = mica_dtype_load(t->s->type[0]), load_dy = mica_dtype_load(t->s->type[1]);
    mica_store_fn store = mica_dtype_store(t->s->type[2]);
    const int64_t *stride = t->s->along;
    double sum = 0;
    for (int64_t a = 0; a < t->s->n; a++) {
        double dy = load_dy(t->data[1], t->offset[1] + a * stride[1]);
        sum += is_log(j) ? dy : dy * load_y(t->data[0], t->offset[0] + a * stride[0]);
    }
    for (int64_t a = 0; a < t->s->n; a++) {
        double y = load_y(t->data[0], t->offset[0] + a * stride[0]);
        double dy = load_dy(t->data[1], t->offset[1] + a * stride[1]);
        store(t->data[2], t->offset[2] + a * stride[2],
              is_log(j) ? dy - exp(y) * sum : y * (dy - sum));
    }
}

/* ---- running ---- */

static bool forward_whole(const mica_reduce_tile *t)
{
    const mica_tiling *s = &t->walk->tiling;
    const bool wide = t->walk->real == MICA_F64;
    if (wide)
        wide_forward(t);
    else if (!is_log(t) && s->width == 1 && s->n <= s->chunk)
        forward_row(&t->tile);
    else
        return false;
    return true;
}

static bool backward_whole(const mica_reduce_tile *t)
{
    if (t->walk->real != MICA_F64) return false;
    wide_backward(t);
    return true;
}

static const mica_reduce forward = {.operands = operands,
                                    .real = real,
                                    .init = init,
                                    .add = forward_add,
                                    .merge = merge,
                                    .finish = forward_finish,
                                    .write = forward_write,
                                    .whole = forward_whole,
                                    .keep = forward_keep,
                                    .rescale = forward_rescale};
static const mica_reduce forward_log = {.operands = operands,
                                        .real = real,
                                        .init = init,
                                        .add = forward_add,
                                        .merge = merge,
                                        .finish = forward_finish,
                                        .write = forward_write,
                                        .whole = forward_whole};
static const mica_reduce backward = {.operands = operands,
                                     .real = real,
                                     .init = init,
                                     .add = backward_add,
                                     .merge = merge,
                                     .finish = backward_finish,
                                     .write = backward_write,
                                     .whole = backward_whole};

typedef struct state {
    mica_reduce_walk walk;
    bool packed; /* short rows of floats at one distance, forward */
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    return mica_softmax_refuse_variant(desc, why);
}

static mica_status build(mica_plan *plan)
{
    const mica_softmax_desc *d = plan->desc;
    const bool fwd = d->pass == MICA_SOFTMAX_FWD;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_reduce_walk_make(&s->walk, fwd ? d->log ? &forward_log : &forward : &backward, d,
                          mica_op_bytes(plan->op, d), &plan->device);
    const mica_tiling *t = &s->walk.tiling;
    s->packed = fwd && !d->log && s->walk.real == MICA_F32 && t->width == 1 && t->n <= t->chunk &&
                t->outer.rank == 1 && mica_tiling_is_float_run(t, 0) &&
                mica_tiling_is_float_run(t, 1);
    return MICA_OK;
}

static void run_packed(const mica_tiling *t, void *const *data, int threads)
{
    int64_t x_step = t->outer.strides[0][0], y_step = t->outer.strides[1][0];
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < t->tiles; i++) {
        const float *x = (const float *)data[0] + i * x_step;
        mica_row_softmax(x, t->n, (float *)data[1] + i * y_step, x + x_step, sizeof *x);
    }
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    void *data[MICA_REDUCE_OPERANDS];
    mica_reduce_bind(&s->walk, r, data);
    if (s->packed)
        run_packed(&s->walk.tiling, data, mica_cpu_threads_for(s->walk.bytes));
    else
        mica_reduce_run(&s->walk, plan->desc, NULL, data);
    return MICA_OK;
}

const mica_engine mica_softmax_cpu = {.name = "cpu",
                                      .reached = 1 / 1.5,
                                      .start_ms = 3e-4,
                                      .accepts = accepts,
                                      .build = build,
                                      .run = run};
