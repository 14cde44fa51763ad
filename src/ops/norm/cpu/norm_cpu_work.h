/* SPDX-License-Identifier: Apache-2.0
 * One thread's view of the run it is working on: how it gets at elements and operands, and the
 * steps that a walk applies to each run. Included by norm_cpu_real.c, once for float and once for
 * double.
 */
#include "ops/norm/cpu/norm_cpu_rows.h"

#include "cpu/stream.h"
#include "cpu/scratch.h"

#include <math.h>
#include <string.h>

enum {
    TILE = 8192 / sizeof(real),
    KEPT = 4 * TILE,                /* sets up to this size are converted once */
    PIECE = 1024 / sizeof(real),    /* results written at a time */
    GUESS = 64,                     /* elements whose mean deviations are counted from */
    STREAMED = 1024 / sizeof(real), /* shorter runs are stored as usual */
};

/* What is known of a block's sets when its elements are computed. */
typedef struct known {
    MICA_ALIGNED real mean[NORM_COLUMNS], rstd[NORM_COLUMNS];
    MICA_ALIGNED real plain[NORM_COLUMNS],
        with_xhat[NORM_COLUMNS]; /* bwd: means of g and g * xhat */
} known;

/* Two sums for each result of a block. */
typedef struct sums {
    MICA_ALIGNED double plain[NORM_COLUMNS], squared[NORM_COLUMNS];
} sums;

/* By column, over rows that are worked one after the other: sums since the last flush and before.
 */
typedef struct column_sums {
    real *running[2];
    double *total[2];
} column_sums;

typedef struct work work;
typedef void (*step_fn)(work *w);

/* One thread's view of the run it is working on. */
struct work {
    const norm_cpu_state *s;
    void *const *args;
    const norm_plane *plane;
    real beta;
    known *known;        /* NULL: mean and rstd are operands (walk over channels) */
    bool scaled;         /* bwd: the sums contain scale */
    bool from_dresidual; /* bwd: it stands for dy, behind the activation's slope */
    int64_t row, first, n;
    int64_t count;  /* additions since the last flush */
    bool keeps;     /* the set's input stays in `kept`, if that has to be gathered at all */
    bool filled;    /* it does so by now */
    bool folded[4]; /* operands that have been repeated for each row of a run */
    sums *sums;
    column_sums *columns; /* of dbias and dscale, where they are formed along with dx; or NULL */
    MICA_ALIGNED real running[2][NORM_COLUMNS]; /* side by side: since the last flush */
    MICA_ALIGNED real x[TILE], dy[TILE], out[TILE], z[TILE], added[TILE];
    MICA_ALIGNED real operands[4][TILE]; /* scale, bias, mean, rstd */
    MICA_ALIGNED real kept[KEPT];
};

/* Columns of a block of so many results. */
static int64_t columns_of(const norm_plane *p, int64_t width)
{
    return width * p->fold;
}

/* ---- elements ---- */

static bool given(const work *w, int arg)
{
    return w->args[arg] != NULL;
}

/* Pieces of a run that lie at one stride. Returns the length. */
static int64_t piece(const norm_space *cols, int arg, int64_t first, int64_t n, int64_t *offset,
                     int64_t *stride)
{
    int last = cols->rank - 1;
    *stride = cols->rank ? cols->strides[arg][last] : 1;
    if (cols->rank == 1) { /* no division: short rows are many */
        *offset = first * *stride;
        return n;
    }
    *offset = mica_norm_offset(cols, arg, first);
    int64_t left = cols->rank ? cols->dims[last] - first % cols->dims[last] : 1;
    return left < n ? left : n;
}

/* The run of an argument as an array: where it lies, or gathered into buffer. */
static const real *fetch(const work *w, int arg, real *buffer)
{
    const norm_space *cols = &w->plane->cols;
    mica_dtype type = mica_norm_tensor(w->s->d, arg)->dtype;
    int64_t base = mica_norm_offset(&w->plane->rows, arg, w->row), offset, stride;
    for (int64_t done = 0; done < w->n;) {
        int64_t n = piece(cols, arg, w->first + done, w->n - done, &offset, &stride);
        if (n == w->n && stride == 1 && type == real_type)
            return (const real *)w->args[arg] + base + offset;
        load_run(type, w->args[arg], base + offset, stride, buffer + done, n);
        done += n;
    }
    return buffer;
}

/* Where a run of results should be computed, and, afterwards, its way to memory. */
static real *target(const work *w, int arg, real *buffer)
{
    int64_t base = mica_norm_offset(&w->plane->rows, arg, w->row), offset, stride;
    int64_t n = piece(&w->plane->cols, arg, w->first, w->n, &offset, &stride);
    bool direct = n == w->n && stride == 1 && mica_norm_tensor(w->s->d, arg)->dtype == real_type;
    return direct && !w->s->past_cache ? (real *)w->args[arg] + base + offset : buffer;
}

/* A run of neighbours, past the caches. */
static void stream_run(const work *w, mica_dtype type, int arg, int64_t offset, const real *values,
                       int64_t n)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    real *narrow = mica_scratch_take(TILE * sizeof *narrow);
    int bytes = mica_dtype_bits(type) / 8;
    char *to = (char *)w->args[arg] + offset * bytes;
    if (type != real_type) store_run(type, narrow, 0, 1, values, n);
    mica_stream_copy(to, type != real_type ? narrow : values, (size_t)(n * bytes));
}

static void store(const work *w, int arg, const real *values)
{
    mica_dtype type = mica_norm_tensor(w->s->d, arg)->dtype;
    int64_t base = mica_norm_offset(&w->plane->rows, arg, w->row), offset, stride;
    for (int64_t done = 0; done < w->n;) {
        int64_t n = piece(&w->plane->cols, arg, w->first + done, w->n - done, &offset, &stride);
        int64_t line = (base + offset + done) | n; /* whole lines, if memory is aligned */
        bool lines = n >= STREAMED || line * mica_dtype_bits(type) / 8 % 64 == 0;
        if (w->s->past_cache && stride == 1 && lines && type != MICA_F64)
            stream_run(w, type, arg, base + offset, values + done, n);
        else
            store_run(type, w->args[arg], base + offset, stride, values + done, n);
        done += n;
    }
}

static void spread(real value, int64_t n, real *out)
{
    for (int64_t i = 0; i < n; i++) out[i] = value;
}

/* Copies of the first `width` values, up to n. */
static void repeat(real *values, int64_t width, int64_t n)
{
    for (int64_t i = width; i < n; i++) values[i] = values[i - width];
}

/* Folded planes have one block: what has been gathered once serves all of its runs. */
static operand fold_operand(work *w, int arg, int slot)
{
    real *buffer = w->operands[slot];
    const norm_space *cols = &w->plane->cols;
    if (!w->folded[slot]) {
        load_run(mica_norm_tensor(w->s->d, arg)->dtype, w->args[arg], 0, cols->strides[arg][0],
                 buffer, cols->dims[0]);
        repeat(buffer, cols->dims[0], columns_of(w->plane, cols->dims[0]));
    }
    w->folded[slot] = true;
    return (operand){buffer, true};
}

/* A broadcast argument: an array where it varies along the run, else one value. slot: of operands.
 */
static operand fetch_operand(work *w, int arg, const real *absent, int slot)
{
    real *buffer = w->operands[slot];
    if (!given(w, arg)) return (operand){absent, false};
    if (w->plane->fold > 1 && w->plane->along_cols[arg]) return fold_operand(w, arg, slot);
    if (w->plane->along_cols[arg]) return (operand){fetch(w, arg, buffer), true};
    int64_t at = mica_norm_offset(&w->plane->rows, arg, w->row);
    load_run(mica_norm_tensor(w->s->d, arg)->dtype, w->args[arg], at, 1, buffer, 1);
    return (operand){buffer, false};
}

static const real zero = 0, one = 1;

static operand scale_of(work *w)
{
    return fetch_operand(w, MICA_NORM_SCALE, &one, 0);
}

/* Scale and bias, both arrays or both values. */
static void affine_of(work *w, operand *scale, operand *bias)
{
    *scale = scale_of(w);
    *bias = fetch_operand(w, MICA_NORM_BIAS, &zero, 1);
    if (scale->varies == bias->varies) return;
    operand *single = scale->varies ? bias : scale;
    real *buffer = w->operands[scale->varies ? 1 : 0];
    spread(*single->at, w->n, buffer);
    *single = (operand){buffer, true};
}

static void statistics_of(work *w, operand *mean, operand *rstd)
{
    bool varies = w->plane->side_by_side;
    if (w->known) {
        *mean = (operand){w->known->mean, varies}, *rstd = (operand){w->known->rstd, varies};
        return;
    }
    *mean = fetch_operand(w, MICA_NORM_MEAN, &zero, 2);
    *rstd = fetch_operand(w, MICA_NORM_RSTD, &one, 3);
    if (!rstd->varies || mean->varies) return;
    spread(*mean->at, w->n, w->operands[2]); /* rms: no mean at all */
    *mean = (operand){w->operands[2], true};
}

/* x, or x + residual */
static const real *input_of(work *w)
{
    real *to = w->keeps ? w->kept + w->first : w->x;
    if (w->filled) return to;
    const real *x = fetch(w, MICA_NORM_X, to);
    bool gathered = x == to;
    if (given(w, MICA_NORM_RESIDUAL) && !w->s->behind) {
        add(x, fetch(w, MICA_NORM_RESIDUAL, w->out), w->n, to);
        return to;
    }
    if (!gathered) w->keeps = false; /* it lies well where it is */
    return x;
}

/* ---- steps ---- */

static void flush(work *w, int64_t columns)
{
    for (int64_t i = 0; i < columns; i++) {
        w->sums->plain[i] += (double)w->running[0][i];
        w->sums->squared[i] += (double)w->running[1][i];
        w->running[0][i] = w->running[1][i] = 0;
    }
    w->count = 0;
}

static void step_sum(work *w)
{
    const real *x = input_of(w);
    if (w->plane->side_by_side)
        columns_sum(x, w->n, w->running[0]);
    else
        w->sums->plain[0] += row_sum(x, w->n);
}

static void step_deviations(work *w)
{
    const real *x = input_of(w);
    if (w->plane->side_by_side) {
        columns_deviations(x, w->known->mean, w->n, w->running[0], w->running[1]);
        return;
    }
    row_deviations(x, false, w->known->mean[0], w->n, &w->sums->plain[0], &w->sums->squared[0]);
}

/* Asks for the same run of a row to come, which memory delivers meanwhile. */
static void fetch_ahead(const work *w, int arg, int64_t rows)
{
    const norm_plane *p = w->plane;
    if (!w->s->past_cache || w->row + rows >= p->rows.count) return;
    int64_t offset, stride, bytes = mica_dtype_bits(mica_norm_tensor(w->s->d, arg)->dtype) / 8;
    int64_t n = piece(&p->cols, arg, w->first, w->n, &offset, &stride);
    if (n < w->n || stride != 1) return;
    offset += mica_norm_offset(&p->rows, arg, w->row + rows);
    mica_fetch_ahead((const char *)w->args[arg] + offset * bytes, n * bytes);
}

/* The operand from element `at` of the run on. */
static operand part(operand o, int64_t at)
{
    return (operand){o.varies ? o.at + at : o.at, o.varies};
}

/* Results in pieces: between one and the next, memory is asked for what comes later. */
static void step_forward(work *w)
{
    operand mean, rstd, scale, bias;
    const mica_norm_desc *d = w->s->d;
    const real *x = input_of(w);
    if (given(w, MICA_NORM_SUM)) store(w, MICA_NORM_SUM, x);
    statistics_of(w, &mean, &rstd);
    affine_of(w, &scale, &bias);
    int64_t first = w->first, n = w->n;
    for (int64_t at = 0; at < n; at += PIECE) {
        w->first = first + at, w->n = n - at < PIECE ? n - at : PIECE;
        /* the passes over a set alternate between reading memory and not */
        if (!w->plane->side_by_side) fetch_ahead(w, MICA_NORM_X, 1);
        real *y = target(w, MICA_NORM_Y, w->out);
        normalise(x + at, false, part(mean, at), part(rstd, at), part(scale, at), part(bias, at),
                  w->n, y);
        if (w->s->behind) add(y, fetch(w, MICA_NORM_RESIDUAL, w->added), w->n, y);
        if (d->act != MICA_ACT_IDENTITY) activate(d, y, y, w->n);
        if (y == w->out) store(w, MICA_NORM_Y, y);
    }
    w->first = first, w->n = n;
}

/* Gradient in front of the activation. */
static const real *dz_of(work *w, const real *x, operand mean, operand rstd)
{
    const real *dy = fetch(w, w->from_dresidual ? MICA_NORM_DRESIDUAL : MICA_NORM_DY, w->dy);
    if (w->s->d->act == MICA_ACT_IDENTITY || w->from_dresidual) return dy;
    operand scale, bias;
    affine_of(w, &scale, &bias);
    const real *added = w->s->behind ? fetch(w, MICA_NORM_RESIDUAL, w->added) : NULL;
    if (w->s->d->act == MICA_ACT_RELU && mean.varies == scale.varies) {
        relu_gradient(x, mean, rstd, scale, bias, added, dy, w->n, w->z);
        return w->z;
    }
    normalise(x, false, mean, rstd, scale, bias, w->n, w->z);
    if (added) add(w->z, added, w->n, w->z);
    slopes(w->s->d, w->z, w->z, w->n);
    multiply(w->z, dy, w->n, w->z);
    return w->z;
}

static void step_gradients(work *w)
{
    operand mean, rstd, scale = {&one, false};
    const real *x = fetch(w, MICA_NORM_X, w->x);
    statistics_of(w, &mean, &rstd);
    const real *g = dz_of(w, x, mean, rstd);
    if (w->s->dresidual_first) store(w, MICA_NORM_DRESIDUAL, g);
    if (w->scaled) scale = scale_of(w);
    if (w->plane->side_by_side) {
        /* a part of each row: too short for the hardware to see a stream */
        if (w->plane->fold == 1 && w->plane->blocks > 1) {
            fetch_ahead(w, MICA_NORM_X, 2);
            fetch_ahead(w, MICA_NORM_DY, 2);
        }
        columns_gradients(g, x, mean, rstd, scale, w->n, w->running[0], w->running[1]);
        return;
    }
    row_gradients(g, x, mean, rstd, scale, w->n, &w->sums->plain[0], &w->sums->squared[0]);
}

static void step_backward(work *w)
{
    operand mean, rstd;
    const real *x = fetch(w, MICA_NORM_X, w->x);
    statistics_of(w, &mean, &rstd);
    const real *g = dz_of(w, x, mean, rstd);
    /* first, for dx may lie on its operands */
    if (w->columns)
        columns_gradients(g, x, mean, rstd, (operand){&one, false}, w->n,
                          w->columns->running[0] + w->first, w->columns->running[1] + w->first);
    if (given(w, MICA_NORM_DRESIDUAL) && !w->from_dresidual) store(w, MICA_NORM_DRESIDUAL, g);
    if (!given(w, MICA_NORM_DX)) return;
    real *dx = w->beta != 0 ? w->out : target(w, MICA_NORM_DX, w->out);
    input_gradient(g, x, mean, rstd, scale_of(w), w->known->plain, w->known->with_xhat, w->n, dx);
    if (w->beta != 0) add_multiple(dx, fetch(w, MICA_NORM_DX, w->z), w->beta, w->n, dx);
    if (dx == w->out) store(w, MICA_NORM_DX, dx);
}
