/* SPDX-License-Identifier: Apache-2.0
 * Fractional max pooling on the CPU, row by row of the result: forward, pieces of some windows
 * whose columns of x fit a buffer; backward, pieces of dx that visit the rows of windows over them
 * in a fixed order. Values are f64, as lp's. */
#include "ops/pool/cpu/pool_cpu.h"
#include "cpu/scratch.h"
#include "ops/convert/cpu/convert.h"

#include <math.h>
#include <string.h>

enum { RUN = 512, COLUMNS = MICA_POOL_SOURCE };

typedef struct job {
    const mica_pool_call *k;
    const void *samples;
    mica_dtype sample_type;
    long long samples_strides[3];
    int missing; /* axes that x lacks */
    double by[3];
} job;

/* A row of the result, and how its plane's windows lie. */
typedef struct row {
    int64_t at[5];
    mica_pool_steps steps[3];
} row;

typedef struct buffers {
    double columns[COLUMNS], best[RUN];
    int64_t winner[RUN], first[RUN];
} buffers;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t offset_of(const long long strides[5], const int64_t at[5])
{
    int64_t offset = 0;
    for (int i = 0; i < 5; i++) offset += at[i] * strides[i];
    return offset;
}

static void place_windows(const job *j, row *r)
{
    const mica_pool_state *s = j->k->state;
    for (int i = 0; i < 3; i++) {
        double sample = 0;
        if (i >= j->missing)
            mica_to_f64(j->sample_type, j->samples,
                        r->at[0] * j->samples_strides[0] + r->at[1] * j->samples_strides[1] +
                            (i - j->missing) * j->samples_strides[2],
                        1, &sample, 1);
        r->steps[i] = mica_pool_steps_of(&s->axes[i], j->by[i], sample, j->sample_type == MICA_F64);
    }
}

static void load_indices(const job *j, int64_t offset, int64_t step, int64_t n, int64_t *to)
{
    const mica_pool_call *k = j->k;
    for (int64_t i = 0; i < n; i++, offset += step)
        to[i] = k->state->index_type == MICA_S32 ? ((const int32_t *)k->indices)[offset]
                                                 : ((const int64_t *)k->indices)[offset];
}

static void store_indices(const job *j, int64_t offset, int64_t step, int64_t n,
                          const int64_t *from)
{
    const mica_pool_call *k = j->k;
    for (int64_t i = 0; i < n; i++, offset += step)
        if (k->state->index_type == MICA_S32)
            ((int32_t *)k->indices)[offset] = (int32_t)from[i];
        else
            ((int64_t *)k->indices)[offset] = from[i];
}

/* ---- forward ---- */

/* Columns [from, from + n) of a row of x, the first of which has the index `index`, to the windows
 * [0, windows). */
static void take_columns(const mica_pool_state *s, buffers *b, int64_t from, int64_t n,
                         int64_t index, int64_t windows)
{
    for (int64_t o = 0; o < windows; o++) {
        const int64_t first = b->first[o] - from, end = least(first + s->axes[2].window, n);
        for (int64_t i = first > 0 ? first : 0; i < end; i++) {
            const double v = b->columns[i], best = b->best[o];
            if (b->winner[o] >= 0 && !(v > best || (v != v && best == best))) continue;
            b->best[o] = v;
            b->winner[o] = index + i;
        }
    }
}

/* Windows [at, at + n), whose columns fit the buffer where there is more than one. */
static void forward_piece(const job *j, const row *r, int64_t n, buffers *b)
{
    const mica_pool_state *s = j->k->state;
    const mica_pool_axis *a = s->axes;
    const int64_t from = b->first[0], span = b->first[n - 1] + a[2].window - from;
    int64_t tap[5] = {r->at[0], r->at[1]};
    for (int64_t o = 0; o < n; o++) b->best[o] = -INFINITY, b->winner[o] = -1;
    for (int64_t d = 0; d < a[0].window; d++)
        for (int64_t h = 0; h < a[1].window; h++) {
            tap[2] = mica_pool_start(&r->steps[0], r->at[2]) + d;
            tap[3] = mica_pool_start(&r->steps[1], r->at[3]) + h;
            for (int64_t c = 0; c < span; c += COLUMNS) {
                const int64_t few = least(span - c, COLUMNS);
                tap[4] = from + c;
                mica_to_f64(s->type, j->k->in, offset_of(s->x, tap), s->x[4], b->columns, few);
                take_columns(s, b, tap[4], few, (tap[2] * a[1].x + tap[3]) * a[2].x + tap[4], n);
            }
        }
    mica_pool_store_run(j->k, offset_of(s->y, r->at), s->y[4], b->best, n);
    if (s->index_type) store_indices(j, offset_of(s->i, r->at), s->i[4], n, b->winner);
}

static void forward_row(const job *j, row *r, buffers *b)
{
    const mica_pool_axis *w = &j->k->state->axes[2];
    for (int64_t n; r->at[4] < w->y; r->at[4] += n) {
        n = least(RUN, w->y - r->at[4]);
        for (int64_t o = 0; o < n; o++) b->first[o] = mica_pool_start(&r->steps[2], r->at[4] + o);
        while (n > 1 && b->first[n - 1] + w->window - b->first[0] > COLUMNS) n /= 2;
        forward_piece(j, r, n, b);
    }
}

/* ---- backward ---- */

/* Windows [o, o + n) of row d, h to the elements from r on, of which the first has the index
 * `element`. */
static void take_windows(const job *j, const row *r, const int64_t window[5], int64_t n,
                         int64_t element, int64_t elements, buffers *b)
{
    const mica_pool_state *s = j->k->state;
    mica_to_f64(s->type, j->k->in, offset_of(s->y, window), s->y[4], b->columns, n);
    load_indices(j, offset_of(s->i, window), s->i[4], n, b->winner);
    for (int64_t o = 0; o < n; o++) {
        if (b->winner[o] < element || b->winner[o] >= element + elements) continue;
        const int64_t i = b->winner[o] - element;
        const int64_t tap = r->at[4] + i - mica_pool_start(&r->steps[2], window[4] + o);
        if (tap >= 0 && tap < s->axes[2].window) b->best[i] += b->columns[o];
    }
}

static void backward_piece(const job *j, const row *r, int64_t n, buffers *b)
{
    const mica_pool_state *s = j->k->state;
    const mica_pool_axis *a = s->axes;
    const int64_t element = (r->at[2] * a[1].x + r->at[3]) * a[2].x + r->at[4];
    int64_t from[3], to[3], window[5] = {r->at[0], r->at[1]};
    for (int i = 0; i < 3; i++) {
        from[i] = mica_pool_behind(&r->steps[i], r->at[i + 2] - a[i].window);
        to[i] = mica_pool_behind(&r->steps[i], r->at[i + 2] + (i == 2 ? n - 1 : 0));
    }
    memset(b->best, 0, (size_t)n * sizeof *b->best);
    for (window[2] = from[0]; window[2] < to[0]; window[2]++)
        for (window[3] = from[1]; window[3] < to[1]; window[3]++)
            for (window[4] = from[2]; window[4] < to[2]; window[4] += RUN)
                take_windows(j, r, window, least(RUN, to[2] - window[4]), element, n, b);
    mica_pool_store_run(j->k, offset_of(s->x, r->at), s->x[4], b->best, n);
}

static void backward_row(const job *j, row *r, buffers *b)
{
    const int64_t columns = j->k->state->axes[2].x;
    for (int64_t n; r->at[4] < columns; r->at[4] += n) {
        n = least(RUN, columns - r->at[4]);
        backward_piece(j, r, n, b);
    }
}

static void do_row(const job *j, int64_t task, const int64_t sizes[4])
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    buffers *b = mica_scratch_take(sizeof *b);
    row r = {.at = {0}};
    for (int i = 3; i >= 0; i--) r.at[i] = task % sizes[i], task /= sizes[i];
    place_windows(j, &r);
    if (j->k->state->backward)
        backward_row(j, &r, b);
    else
        forward_row(j, &r, b);
}

void mica_pool_fractional_run(const mica_plan *plan, const mica_run *run, const mica_pool_call *k)
{
    const mica_pool_desc *d = plan->desc;
    const mica_pool_state *s = k->state;
    job j = {.k = k,
             .samples = run->args[MICA_POOL_SAMPLES],
             .sample_type = d->samples.dtype,
             .missing = 5 - d->x.rank};
    int64_t sizes[4] = {s->n, s->c}, tasks = s->n * s->c;
    for (int i = 0; i < 3; i++) {
        j.samples_strides[i] = d->samples.strides[i];
        j.by[i] = mica_pool_step(&s->axes[i], j.sample_type == MICA_F64);
    }
    for (int i = 0; i < 2; i++) {
        sizes[i + 2] = s->backward ? s->axes[i].x : s->axes[i].y;
        tasks *= sizes[i + 2];
    }
#pragma omp parallel for num_threads(mica_cpu_threads_for(s->bytes)) schedule(static)
    for (int64_t task = 0; task < tasks; task++) do_row(&j, task, sizes);
}
