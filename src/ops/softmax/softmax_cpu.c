/* SPDX-License-Identifier: Apache-2.0
 * Softmax on the CPU. Slices whose axis is contiguous are worked one at a time; otherwise up to
 * MAX_WIDTH neighbouring slices side by side, so that vectors run along memory either way. Data
 * passes through chunks that stay in the first-level cache: a slice that fits one chunk is read
 * once, a longer one twice (the maximum and the sum are formed together, rescaling the sum when the
 * maximum grows). f32 sums for f16, bf16 and f32, combined in double between chunks; f64 operands
 * go through double and libm. Long slices that are too few to share out are cut into parts, by
 * shape alone, so that the threads' number does not show in the bits. */
#include "ops/softmax/softmax.h"
#include "ops/shared/convert.h"
#include "ops/shared/rows.h"
#include "cpu/cpu.h"

#include <math.h>

#define CHUNK        4096 /* elements of a chunk: 16 KiB */
#define MAX_WIDTH    128  /* slices side by side */
#define MAX_PARTS    32
#define SECOND_LEVEL 262144 /* elements of a slice that is worked on three times: 1 MiB */
#define SHORT_SLICE  32     /* contiguous slices below this are also worked side by side */

typedef struct state {
    mica_softmax_shape shape;
    mica_softmax_operands operands; /* tensors: of the plan's descriptor */
    mica_dtype type[3];
    double bytes;
    int64_t width;  /* slices of a tile; 1: along the axis */
    int64_t blocks; /* tiles that cover the last outer dimension */
    int64_t tiles;
    int64_t chunk; /* positions on the axis of one chunk */
    int64_t parts;
    bool wide, log, through_output;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    return 1.5 * mica_roofline_ms(&mica_op_softmax, desc, device) + 3e-4;
}

/* ---- planning ---- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t choose_width(const state *s)
{
    const mica_layout *l = &s->shape.outer;
    int64_t inner = l->rank ? l->dims[l->rank - 1] : 1;
    bool contiguous = true;
    for (int t = 0; t < s->operands.count; t++) contiguous &= s->shape.axis_stride[t] == 1;
    if (inner < 8 || (contiguous && s->shape.n >= SHORT_SLICE)) return 1;
    return least(inner, MAX_WIDTH);
}

/* Whether the elements that vectors run along are neighbouring floats. */
static bool is_float_run(const state *s, int k)
{
    const mica_layout *l = &s->shape.outer;
    int64_t stride = s->width == 1 ? s->shape.axis_stride[k] : l->strides[k][l->rank - 1];
    return s->type[k] == MICA_F32 && stride == 1;
}

static mica_status build(mica_plan *plan)
{
    const mica_softmax_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    s->operands = mica_softmax_operands_of(d);
    mica_softmax_shape_make(&s->shape, d);
    for (int t = 0; t < s->operands.count; t++) s->type[t] = s->operands.tensor[t]->dtype;
    s->bytes = mica_op_bytes(plan->op, d);
    s->wide = mica_softmax_is_wide(&s->operands);
    s->log = d->log;
    const mica_layout *l = &s->shape.outer;
    s->width = s->wide ? 1 : choose_width(s);
    s->chunk = CHUNK / s->width;
    int64_t inner = l->rank ? l->dims[l->rank - 1] : 1;
    s->blocks = (inner + s->width - 1) / s->width;
    s->tiles = s->shape.n && l->count ? l->count / inner * s->blocks : 0;
    s->through_output =
        !s->log && s->shape.n * s->width <= SECOND_LEVEL && is_float_run(s, s->operands.count - 1);
    s->parts = 1;
    if (!s->wide && s->tiles < 16 && s->shape.n >= 4 * CHUNK)
        s->parts = least(s->shape.n / CHUNK, MAX_PARTS);
    return MICA_OK;
}

/* ---- tiles ---- */

/* Up to `width` neighbouring slices. */
typedef struct tile {
    const state *s;
    void *data[3];
    int64_t offset[3], across[3]; /* of the first element; from slice to slice */
    int64_t width;
} tile;

static tile tile_at(const state *s, const mica_run *r, int64_t index)
{
    const mica_layout *l = &s->shape.outer;
    int last = l->rank - 1;
    tile t = {.s = s, .width = 1};
    int64_t first = index % s->blocks * s->width, rest = index / s->blocks;
    if (last >= 0) t.width = least(s->width, l->dims[last] - first);
    for (int k = 0; k < s->operands.count; k++) {
        t.data[k] = r->args[s->operands.arg[k]];
        t.across[k] = last >= 0 ? l->strides[k][last] : 0;
        t.offset[k] = first * t.across[k];
    }
    for (int dim = last - 1; dim >= 0; dim--) {
        for (int k = 0; k < s->operands.count; k++)
            t.offset[k] += rest % l->dims[dim] * l->strides[k][dim];
        rest /= l->dims[dim];
    }
    return t;
}

/* The memory of positions from `from` on, if it can be worked in as it is: rows of t->width floats,
 * *ld apart. Else NULL, and rows in a buffer will lie t->width apart. */
static float *direct(const tile *t, int k, int64_t from, int64_t *ld)
{
    int64_t along = t->s->shape.axis_stride[k];
    bool fits = is_float_run(t->s, k);
    *ld = fits ? along : t->width;
    return fits ? (float *)t->data[k] + t->offset[k] + from * along : NULL;
}

/* n positions of operand k, converted into buffer where needed. */
static const float *fetch(const tile *t, int k, int64_t from, int64_t n, float *buffer, int64_t *ld)
{
    float *in_place = direct(t, k, from, ld);
    if (in_place) return in_place;
    int64_t along = t->s->shape.axis_stride[k], offset = t->offset[k] + from * along;
    if (t->s->width == 1)
        mica_to_f32(t->s->type[k], t->data[k], offset, along, buffer, n);
    else
        for (int64_t i = 0; i < n; i++)
            mica_to_f32(t->s->type[k], t->data[k], offset + i * along, t->across[k],
                        buffer + i * t->width, t->width);
    return buffer;
}

/* Where results of those positions go: into the output itself or a buffer for put(). */
static float *place(const tile *t, int k, int64_t from, float *buffer, int64_t *ld)
{
    float *in_place = direct(t, k, from, ld);
    return in_place ? in_place : buffer;
}

static void put(const tile *t, int k, int64_t from, int64_t n, const float *buffer)
{
    int64_t along = t->s->shape.axis_stride[k], offset = t->offset[k] + from * along;
    if (t->s->width == 1)
        mica_from_f32(t->s->type[k], t->data[k], offset, along, buffer, n);
    else
        for (int64_t i = 0; i < n; i++)
            mica_from_f32(t->s->type[k], t->data[k], offset + i * along, t->across[k],
                          buffer + i * t->width, t->width);
}

/* What the first pass over a slice leaves, by column. */
typedef struct stats {
    float max[MAX_WIDTH];
    double sum[MAX_WIDTH];
} stats;

static void stats_clear(stats *st, int64_t width)
{
    for (int64_t c = 0; c < width; c++) st->max[c] = -INFINITY, st->sum[c] = 0;
}

/* Of -inf alone the exponentials are summed about 0: the sum stays 0 and the results become NaN. */
static float safe(float max)
{
    return max == -INFINITY ? 0 : max;
}

static void raise_max(stats *st, int64_t c, float max)
{
    if (!(max > st->max[c])) return;
    if (st->sum[c] != 0) st->sum[c] *= exp((double)st->max[c] - (double)max);
    st->max[c] = max;
}

static void stats_merge(stats *to, const stats *from, int64_t width)
{
    for (int64_t c = 0; c < width; c++) {
        double sum = from->sum[c];
        raise_max(to, c, from->max[c]);
        if (from->max[c] < to->max[c]) sum *= exp((double)from->max[c] - (double)to->max[c]);
        to->sum[c] += sum;
    }
}

/* ---- forward ---- */

static void forward_max(const tile *t, const float *x, int64_t ld, int64_t n, stats *st)
{
    float max[MAX_WIDTH];
    if (t->s->width == 1) {
        raise_max(st, 0, mica_row_max(x, n));
        return;
    }
    for (int64_t c = 0; c < t->width; c++) max[c] = -INFINITY;
    for (int64_t i = 0; i < n; i++) mica_cols_max(x + i * ld, t->width, max);
    for (int64_t c = 0; c < t->width; c++) raise_max(st, c, max[c]);
}

/* Adds the exponentials about the maximum so far to the sums, and keeps them in e. */
static void forward_exp(const tile *t, const float *x, int64_t ld, int64_t n, stats *st, float *e,
                        int64_t eld)
{
    if (t->s->width == 1) {
        st->sum[0] += (double)mica_row_exp_sum(x, safe(st->max[0]), n, e);
        return;
    }
    float max[MAX_WIDTH], sum[MAX_WIDTH];
    for (int64_t c = 0; c < t->width; c++) max[c] = safe(st->max[c]), sum[c] = 0;
    for (int64_t i = 0; i < n; i++) mica_cols_exp_sum(x + i * ld, max, t->width, e + i * eld, sum);
    for (int64_t c = 0; c < t->width; c++) st->sum[c] += (double)sum[c];
}

/* 1 / sum, or log(sum), by column. */
static void forward_factors(const tile *t, const stats *st, float *by)
{
    for (int64_t c = 0; c < t->width; c++)
        by[c] = t->s->log ? logf((float)st->sum[c]) : 1 / (float)st->sum[c];
}

/* Results of n positions from x. */
static void forward_write(const tile *t, const float *x, int64_t ld, int64_t n, const stats *st,
                          const float *by, float *y, int64_t yld)
{
    static const float zero[MAX_WIDTH];
    if (t->s->width == 1) {
        if (t->s->log)
            mica_row_subtract(x, st->max[0], by[0], n, y);
        else
            mica_row_exp(x, st->max[0], by[0], 0, n, y);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (t->s->log)
            mica_cols_subtract(x + i * ld, st->max, by, t->width, y + i * yld);
        else
            mica_cols_exp(x + i * ld, st->max, by, zero, t->width, y + i * yld);
    }
}

static void forward_scale(const tile *t, const float *e, int64_t eld, int64_t n, const float *by,
                          float *y, int64_t yld)
{
    if (t->s->width == 1)
        mica_row_scale(e, by[0], n, y);
    else
        for (int64_t i = 0; i < n; i++) mica_cols_scale(e + i * eld, by, t->width, y + i * yld);
}

static void forward_part(const tile *t, int64_t from, int64_t to, stats *st)
{
    float x[CHUNK], e[CHUNK];
    int64_t ld;
    for (int64_t a = from; a < to; a += t->s->chunk) {
        int64_t n = least(t->s->chunk, to - a);
        const float *in = fetch(t, 0, a, n, x, &ld);
        forward_max(t, in, ld, n, st);
        forward_exp(t, in, ld, n, st, e, t->width);
    }
}

static void forward_part_write(const tile *t, int64_t from, int64_t to, const stats *st)
{
    float x[CHUNK], y[CHUNK], by[MAX_WIDTH];
    int64_t ld, yld;
    forward_factors(t, st, by);
    for (int64_t a = from; a < to; a += t->s->chunk) {
        int64_t n = least(t->s->chunk, to - a);
        const float *in = fetch(t, 0, a, n, x, &ld);
        float *out = place(t, 1, a, y, &yld);
        forward_write(t, in, ld, n, st, by, out, yld);
        if (out == y) put(t, 1, a, n, y);
    }
}

/* A slice of one chunk: read once, each exponential computed once. */
static void forward_resident(const tile *t, stats *st)
{
    float x[CHUNK], e[CHUNK], by[MAX_WIDTH];
    int64_t n = t->s->shape.n, ld, yld;
    const float *in = fetch(t, 0, 0, n, x, &ld);
    forward_max(t, in, ld, n, st);
    forward_exp(t, in, ld, n, st, e, t->width);
    forward_factors(t, st, by);
    float *out = place(t, 1, 0, e, &yld);
    if (t->s->log)
        forward_write(t, in, ld, n, st, by, out, yld);
    else
        forward_scale(t, e, t->width, n, by, out, yld);
    if (out == e) put(t, 1, 0, n, e);
}

/* A slice that stays in the second-level cache and whose results are floats: the exponentials wait
 * where the results will be, and none is computed twice. */
static void forward_through_output(const tile *t, stats *st)
{
    float x[CHUNK], by[MAX_WIDTH];
    int64_t to = t->s->shape.n, ld, yld;
    for (int64_t a = 0; a < to; a += t->s->chunk) {
        int64_t n = least(t->s->chunk, to - a);
        const float *in = fetch(t, 0, a, n, x, &ld);
        forward_max(t, in, ld, n, st);
    }
    for (int64_t a = 0; a < to; a += t->s->chunk) {
        int64_t n = least(t->s->chunk, to - a);
        const float *in = fetch(t, 0, a, n, x, &ld);
        float *out = direct(t, 1, a, &yld);
        forward_exp(t, in, ld, n, st, out, yld);
    }
    forward_factors(t, st, by);
    float *out = direct(t, 1, 0, &yld);
    forward_scale(t, out, yld, to, by, out, yld);
}

/* ---- backward ---- */

static void backward_add(const tile *t, const float *y, int64_t yld, const float *dy, int64_t dyld,
                         int64_t n, stats *st)
{
    if (t->s->width == 1) {
        st->sum[0] += (double)(t->s->log ? mica_row_sum(dy, n) : mica_row_dot(y, dy, n));
        return;
    }
    float sum[MAX_WIDTH] = {0};
    for (int64_t i = 0; i < n; i++) {
        if (t->s->log)
            mica_cols_sum(dy + i * dyld, t->width, sum);
        else
            mica_cols_dot(y + i * yld, dy + i * dyld, t->width, sum);
    }
    for (int64_t c = 0; c < t->width; c++) st->sum[c] += (double)sum[c];
}

static void backward_write(const tile *t, const float *y, int64_t yld, const float *dy,
                           int64_t dyld, int64_t n, const stats *st, float *dx, int64_t dxld)
{
    float sum[MAX_WIDTH];
    for (int64_t c = 0; c < t->width; c++) sum[c] = (float)st->sum[c];
    if (t->s->width == 1) {
        if (t->s->log)
            mica_row_log_softmax_bwd(y, dy, sum[0], n, dx);
        else
            mica_row_softmax_bwd(y, dy, sum[0], n, dx);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (t->s->log)
            mica_cols_log_softmax_bwd(y + i * yld, dy + i * dyld, sum, t->width, dx + i * dxld);
        else
            mica_cols_softmax_bwd(y + i * yld, dy + i * dyld, sum, t->width, dx + i * dxld);
    }
}

static void backward_part(const tile *t, int64_t from, int64_t to, stats *st)
{
    float yb[CHUNK], dyb[CHUNK];
    int64_t yld = 0, dyld;
    for (int64_t a = from; a < to; a += t->s->chunk) {
        int64_t n = least(t->s->chunk, to - a);
        const float *y = t->s->log ? NULL : fetch(t, 0, a, n, yb, &yld);
        const float *dy = fetch(t, 1, a, n, dyb, &dyld);
        backward_add(t, y, yld, dy, dyld, n, st);
    }
}

static void backward_part_write(const tile *t, int64_t from, int64_t to, const stats *st)
{
    float yb[CHUNK], dyb[CHUNK], dxb[CHUNK];
    int64_t yld, dyld, dxld;
    for (int64_t a = from; a < to; a += t->s->chunk) {
        int64_t n = least(t->s->chunk, to - a);
        const float *y = fetch(t, 0, a, n, yb, &yld), *dy = fetch(t, 1, a, n, dyb, &dyld);
        float *dx = place(t, 2, a, dxb, &dxld);
        backward_write(t, y, yld, dy, dyld, n, st, dx, dxld);
        if (dx == dxb) put(t, 2, a, n, dxb);
    }
}

static void backward_resident(const tile *t, stats *st)
{
    float yb[CHUNK], dyb[CHUNK];
    int64_t n = t->s->shape.n, yld, dyld, dxld;
    const float *y = fetch(t, 0, 0, n, yb, &yld), *dy = fetch(t, 1, 0, n, dyb, &dyld);
    backward_add(t, y, yld, dy, dyld, n, st);
    float *dx = place(t, 2, 0, yb, &dxld);
    backward_write(t, y, yld, dy, dyld, n, st, dx, dxld);
    if (dx == yb) put(t, 2, 0, n, yb);
}

/* ---- f64 ---- */

static void wide_forward(const tile *t)
{
    const mica_softmax_shape *shape = &t->s->shape;
    mica_load_fn load = mica_dtype_load(t->s->type[0]);
    mica_store_fn store = mica_dtype_store(t->s->type[1]);
    int64_t n = shape->n, xs = shape->axis_stride[0], ys = shape->axis_stride[1];
    double max = -INFINITY, sum = 0;
    for (int64_t a = 0; a < n; a++) max = fmax(max, load(t->data[0], t->offset[0] + a * xs));
    for (int64_t a = 0; a < n; a++) sum += exp(load(t->data[0], t->offset[0] + a * xs) - max);
    double by = t->s->log ? log(sum) : 1 / sum;
    for (int64_t a = 0; a < n; a++) {
        double v = load(t->data[0], t->offset[0] + a * xs) - max;
        store(t->data[1], t->offset[1] + a * ys, t->s->log ? v - by : exp(v) * by);
    }
}

static void wide_backward(const tile *t)
{
    const mica_softmax_shape *shape = &t->s->shape;
    mica_load_fn load_y = mica_dtype_load(t->s->type[0]), load_dy = mica_dtype_load(t->s->type[1]);
    mica_store_fn store = mica_dtype_store(t->s->type[2]);
    const int64_t *stride = shape->axis_stride;
    double sum = 0;
    for (int64_t a = 0; a < shape->n; a++) {
        double dy = load_dy(t->data[1], t->offset[1] + a * stride[1]);
        sum += t->s->log ? dy : dy * load_y(t->data[0], t->offset[0] + a * stride[0]);
    }
    for (int64_t a = 0; a < shape->n; a++) {
        double y = load_y(t->data[0], t->offset[0] + a * stride[0]);
        double dy = load_dy(t->data[1], t->offset[1] + a * stride[1]);
        store(t->data[2], t->offset[2] + a * stride[2],
              t->s->log ? dy - exp(y) * sum : y * (dy - sum));
    }
}

/* ---- running ---- */

static void run_tile(const tile *t)
{
    const state *s = t->s;
    bool forward = s->operands.count == 2, resident = s->shape.n <= s->chunk;
    stats st;
    if (s->wide) {
        forward ? wide_forward(t) : wide_backward(t);
        return;
    }
    stats_clear(&st, t->width);
    if (forward && s->through_output) {
        forward_through_output(t, &st);
    } else if (resident) {
        forward ? forward_resident(t, &st) : backward_resident(t, &st);
    } else if (forward) {
        forward_part(t, 0, s->shape.n, &st);
        forward_part_write(t, 0, s->shape.n, &st);
    } else {
        backward_part(t, 0, s->shape.n, &st);
        backward_part_write(t, 0, s->shape.n, &st);
    }
}

static void run_in_parts(const tile *t, int threads)
{
    const state *s = t->s;
    bool forward = s->operands.count == 2;
    stats part[MAX_PARTS], all;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t p = 0; p < s->parts; p++) {
        int64_t from = s->shape.n * p / s->parts, to = s->shape.n * (p + 1) / s->parts;
        stats_clear(&part[p], t->width);
        forward ? forward_part(t, from, to, &part[p]) : backward_part(t, from, to, &part[p]);
    }
    stats_clear(&all, t->width);
    for (int64_t p = 0; p < s->parts; p++) stats_merge(&all, &part[p], t->width);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t p = 0; p < s->parts; p++) {
        int64_t from = s->shape.n * p / s->parts, to = s->shape.n * (p + 1) / s->parts;
        forward ? forward_part_write(t, from, to, &all) : backward_part_write(t, from, to, &all);
    }
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    int threads = mica_cpu_threads_for(s->bytes);
    if (s->parts > 1) {
        for (int64_t i = 0; i < s->tiles; i++) {
            tile t = tile_at(s, r, i);
            run_in_parts(&t, threads);
        }
        return MICA_OK;
    }
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < s->tiles; i++) {
        tile t = tile_at(s, r, i);
        run_tile(&t);
    }
    return MICA_OK;
}

const mica_engine mica_softmax_cpu = {
    .name = "cpu", .accepts = accepts, .predict = predict, .build = build, .run = run};
