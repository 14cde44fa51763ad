/* SPDX-License-Identifier: Apache-2.0
 * The CPU engine in the arithmetic type `real`. norm_cpu_f32.c and norm_cpu_f64.c include it with
 *     real, real_type (its dtype), load_run, store_run, activate, slopes
 * defined. Sums of a tile are formed in `real` and added up in double, part by part in order. */
#include "ops/norm/norm_cpu_rows.h"

#include "cpu/stream.h"

#include <math.h>
#include <string.h>

enum {
    TILE = 8192 / sizeof(real),
    KEPT = 4 * TILE,                /* sets up to this size are converted and added up once */
    STREAMED = 1024 / sizeof(real), /* shorter runs are stored as usual */
};

/* What is known of a block's sets when its elements are computed. */
typedef struct known {
    real mean[NORM_COLUMNS], rstd[NORM_COLUMNS];
    real plain[NORM_COLUMNS], with_xhat[NORM_COLUMNS]; /* bwd: means of g and g * xhat */
} known;

/* Two sums for each result of a block. */
typedef struct sums {
    double plain[NORM_COLUMNS], squared[NORM_COLUMNS];
} sums;

typedef struct work work;
typedef void (*step_fn)(work *w);

/* One thread's view of the run it is working on. */
struct work {
    const norm_cpu_state *s;
    void *const *args;
    const norm_plane *plane;
    known *known; /* NULL: mean and rstd are operands (walk over channels) */
    bool scaled;  /* bwd: the sums contain scale */
    int64_t row, first, n;
    int64_t count;  /* additions since the last flush */
    bool keeps;     /* the set's input stays in `kept`, if that has to be gathered at all */
    bool filled;    /* it does so by now */
    bool folded[2]; /* scale and bias have been repeated for each row of a run */
    sums *sums;
    real running[2][NORM_COLUMNS]; /* side by side: since the last flush */
    real x[TILE], dy[TILE], out[TILE], z[TILE];
    real operands[4][TILE]; /* scale, bias, mean, rstd */
    real kept[KEPT];
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
    _Alignas(64) real narrow[TILE];
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
static operand fold_operand(work *w, int arg, real *buffer)
{
    bool *folded = &w->folded[arg == MICA_NORM_BIAS];
    const norm_space *cols = &w->plane->cols;
    if (!*folded) {
        load_run(mica_norm_tensor(w->s->d, arg)->dtype, w->args[arg], 0, cols->strides[arg][0],
                 buffer, cols->dims[0]);
        repeat(buffer, cols->dims[0], columns_of(w->plane, cols->dims[0]));
    }
    *folded = true;
    return (operand){buffer, true};
}

/* A broadcast argument: an array where it varies along the run, else one value. */
static operand fetch_operand(work *w, int arg, const real *absent, real *buffer)
{
    if (!given(w, arg)) return (operand){absent, false};
    if (w->plane->fold > 1 && w->plane->along_cols[arg]) return fold_operand(w, arg, buffer);
    if (w->plane->along_cols[arg]) return (operand){fetch(w, arg, buffer), true};
    int64_t at = mica_norm_offset(&w->plane->rows, arg, w->row);
    load_run(mica_norm_tensor(w->s->d, arg)->dtype, w->args[arg], at, 1, buffer, 1);
    return (operand){buffer, false};
}

static const real zero = 0, one = 1;

static operand scale_of(work *w)
{
    return fetch_operand(w, MICA_NORM_SCALE, &one, w->operands[0]);
}

/* Scale and bias, both arrays or both values. */
static void affine_of(work *w, operand *scale, operand *bias)
{
    *scale = scale_of(w);
    *bias = fetch_operand(w, MICA_NORM_BIAS, &zero, w->operands[1]);
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
    *mean = fetch_operand(w, MICA_NORM_MEAN, &zero, w->operands[2]);
    *rstd = fetch_operand(w, MICA_NORM_RSTD, &one, w->operands[3]);
    if (!rstd->varies || mean->varies) return;
    spread(*mean->at, w->n, w->operands[2]); /* rms: no mean at all */
    *mean = (operand){w->operands[2], true};
}

/* x + residual */
static const real *input_of(work *w)
{
    real *to = w->keeps ? w->kept + w->first : w->x;
    if (w->filled) return to;
    const real *x = fetch(w, MICA_NORM_X, to);
    bool gathered = x == to;
    if (given(w, MICA_NORM_RESIDUAL)) {
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
    row_deviations(x, w->known->mean[0], w->n, &w->sums->plain[0], &w->sums->squared[0]);
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
    const char *from = (const char *)w->args[arg] + offset * bytes;
    for (int64_t i = 0; i < n * bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
}

static void step_forward(work *w)
{
    operand mean, rstd, scale, bias;
    const mica_norm_desc *d = w->s->d;
    const real *x = input_of(w);
    /* the passes over a set alternate between reading memory and not */
    if (!w->plane->side_by_side) fetch_ahead(w, MICA_NORM_X, 1);
    if (given(w, MICA_NORM_SUM)) store(w, MICA_NORM_SUM, x);
    statistics_of(w, &mean, &rstd);
    affine_of(w, &scale, &bias);
    real *y = target(w, MICA_NORM_Y, w->out);
    normalise(x, mean, rstd, scale, bias, w->n, y);
    if (d->act != MICA_ACT_IDENTITY) activate(d, y, y, w->n);
    if (y == w->out) store(w, MICA_NORM_Y, y);
}

/* Gradient in front of the activation. */
static const real *dz_of(work *w, const real *x, operand mean, operand rstd)
{
    const real *dy = fetch(w, MICA_NORM_DY, w->dy);
    if (w->s->d->act == MICA_ACT_IDENTITY) return dy;
    operand scale, bias;
    affine_of(w, &scale, &bias);
    normalise(x, mean, rstd, scale, bias, w->n, w->z);
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
    real *dx = target(w, MICA_NORM_DX, w->out);
    input_gradient(g, x, mean, rstd, scale_of(w), w->known->plain, w->known->with_xhat, w->n, dx);
    if (dx == w->out) store(w, MICA_NORM_DX, dx);
}

/* ---- walks ---- */

/* First kept index of a block, and its width. */
static int64_t block_start(const norm_plane *p, int64_t block, int64_t *width)
{
    *width = 1;
    if (!p->side_by_side) return block;
    int last = p->cols.rank - 1;
    int64_t run = p->cols.rank ? p->cols.dims[last] : 1;
    int64_t start = block % p->blocks_per_run * p->block;
    *width = run - start < p->block ? run - start : p->block;
    return block / p->blocks_per_run * run + start;
}

/* Applies the step to reduced indices of a block; sums, if there are any, go to *to. */
static void walk_range(work *w, int64_t block, int64_t from, int64_t end, step_fn step, sums *to)
{
    const norm_plane *p = w->plane;
    int64_t width, start = block_start(p, block, &width);
    w->sums = to;
    if (!p->side_by_side) {
        w->row = start;
        for (w->first = from; w->first < end; w->first += TILE) {
            w->n = end - w->first < TILE ? end - w->first : TILE;
            step(w);
        }
        return;
    }
    w->first = start;
    for (w->row = from; w->row < end; w->row += p->fold) {
        w->n = columns_of(p, width);
        if (end - w->row < p->fold) w->n = (end - w->row) * width;
        step(w);
        if (to && ++w->count == NORM_FLUSH) flush(w, columns_of(p, width));
    }
    if (to) flush(w, columns_of(p, width));
}

static void walk_part(work *w, int64_t block, int part, step_fn step, sums *to)
{
    int64_t from = part * w->plane->part_size, end = from + w->plane->part_size;
    walk_range(w, block, from, end < w->plane->reduced ? end : w->plane->reduced, step, to);
}

static void clear_sums(sums *s, int64_t columns)
{
    memset(s->plain, 0, (size_t)columns * sizeof *s->plain);
    memset(s->squared, 0, (size_t)columns * sizeof *s->squared);
}

static void add_sums(sums *to, const sums *s, int64_t columns)
{
    for (int64_t i = 0; i < columns; i++) {
        to->plain[i] += s->plain[i];
        to->squared[i] += s->squared[i];
    }
}

/* Every column receives the sum of `count` columns that are `step` apart, the first being *v. */
static void unite_columns(double *v, int64_t count, int64_t step)
{
    double total = 0;
    for (int64_t i = 0; i < count; i++) total += v[i * step];
    for (int64_t i = 0; i < count; i++) v[i * step] = total;
}

/* The columns of each result. */
static void unite(const norm_plane *p, sums *s, int64_t width)
{
    for (int64_t i = 0; p->fold > 1 && i < width; i++) {
        unite_columns(s->plain + i, p->fold, width);
        unite_columns(s->squared + i, p->fold, width);
    }
    for (int64_t i = 0; p->together > 1 && i < width; i += p->together) {
        unite_columns(s->plain + i, p->together, 1);
        unite_columns(s->squared + i, p->together, 1);
    }
}

/* Fields of a fresh work, but for its buffers. */
static void begin(work *w, const work *like)
{
    memcpy(w, like, offsetof(work, running));
    memset(w->running, 0, sizeof w->running);
}

/* Every part of a block by threads of its own. */
static void walk_parts_parallel(const work *w, int64_t block, step_fn step, sums *to, int threads)
{
    const norm_plane *p = w->plane;
    int64_t width;
    block_start(p, block, &width);
    int64_t columns = columns_of(p, width);
    sums partial[NORM_PARTS];
#pragma omp parallel num_threads(threads)
    {
        work mine;
        begin(&mine, w);
#pragma omp for schedule(static)
        for (int part = 0; part < p->parts; part++) {
            if (to) clear_sums(&partial[part], columns);
            walk_part(&mine, block, part, step, to ? &partial[part] : NULL);
        }
        mica_stream_end();
    }
    for (int part = 0; to && part < p->parts; part++) add_sums(to, &partial[part], columns);
}

/* The same sums in the same order, with one thread (threads == 1) or several. */
static void walk(work *w, int64_t block, step_fn step, sums *to, int threads)
{
    int64_t width;
    block_start(w->plane, block, &width);
    int64_t columns = columns_of(w->plane, width);
    if (to) clear_sums(to, columns);
    if (threads > 1 && w->plane->parts > 1) walk_parts_parallel(w, block, step, to, threads);
    sums partial;
    for (int part = 0; part < w->plane->parts && !(threads > 1 && w->plane->parts > 1); part++) {
        if (to) clear_sums(&partial, columns);
        walk_part(w, block, part, step, to ? &partial : NULL);
        if (to) add_sums(to, &partial, columns);
    }
    if (to) unite(w->plane, to, width);
}

/* ---- rows ---- */

/* A short row of neighbours, statistics and result in one go: the walks above cost more than the
 * row itself. The same sums in the same order. */
static void plain_row(work *w, int64_t row, operand scale, operand bias)
{
    const norm_cpu_state *s = w->s;
    const norm_space *rows = &w->plane->rows;
    const mica_norm_desc *d = s->d;
    double n = s->set_size, plain = 0, squared = 0;
    bool centred = d->kind != MICA_NORM_RMS;
    int64_t at = mica_norm_offset(rows, MICA_NORM_X, row), count = w->plane->reduced;
    const real *x = (const real *)w->args[MICA_NORM_X] + at;
    if (d->x.dtype != real_type) load_run(d->x.dtype, w->args[MICA_NORM_X], at, 1, w->x, count);
    if (d->x.dtype != real_type) x = w->x;
    real mean = centred ? (real)(row_sum(x, count) / n) : 0;
    row_deviations(x, mean, count, &plain, &squared);
    double shift = centred ? plain / n : 0, var = squared / n - shift * shift;
    if (shift * shift > var) { /* digits were lost: again about what is the mean by now */
        mean = (real)((double)mean + shift);
        plain = squared = 0;
        row_deviations(x, mean, count, &plain, &squared);
        shift = centred ? plain / n : 0, var = squared / n - shift * shift;
    }
    mean = (real)((double)mean + shift);
    real rstd = (real)(1 / sqrt((var > 0 || var != var ? var : 0) + d->eps));
    normalise(x, (operand){&mean, false}, (operand){&rstd, false}, scale, bias, count, w->out);
    if (d->act != MICA_ACT_IDENTITY) activate(d, w->out, w->out, count);
    w->row = row;
    store(w, MICA_NORM_Y, w->out);
    if (given(w, MICA_NORM_MEAN))
        store_run(d->mean.dtype, w->args[MICA_NORM_MEAN],
                  mica_norm_offset(rows, MICA_NORM_MEAN, row), 1, &mean, 1);
    if (given(w, MICA_NORM_RSTD))
        store_run(d->rstd.dtype, w->args[MICA_NORM_RSTD],
                  mica_norm_offset(rows, MICA_NORM_RSTD, row), 1, &rstd, 1);
}

static void run_plain_rows(const work *like)
{
    int threads = mica_cpu_threads_for(like->s->bytes);
#pragma omp parallel num_threads(threads)
    {
        work w;
        operand scale, bias;
        begin(&w, like);
        w.n = w.plane->reduced;
        affine_of(&w, &scale, &bias);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < w.plane->rows.count; row++) plain_row(&w, row, scale, bias);
        mica_stream_end();
    }
}

/* ---- blocks ---- */

/* One number of each of the block's sets or channels: where they lie in the argument. */
typedef struct numbers {
    mica_dtype type;
    int64_t offset, stride, n;
    int64_t together; /* columns that share one */
    int64_t width;
} numbers;

static numbers numbers_of(const work *w, int64_t block, int arg)
{
    const norm_plane *p = w->plane;
    numbers r = {.type = mica_norm_tensor(w->s->d, arg)->dtype, .stride = 1};
    int64_t start = block_start(p, block, &r.width);
    bool of_set = arg == MICA_NORM_MEAN || arg == MICA_NORM_RSTD;
    const norm_space *kept = p->side_by_side ? &p->cols : &p->rows;
    r.together = of_set ? p->together : 1;
    if (r.together > 1) kept = &p->sets;
    if (p->side_by_side && kept->rank) r.stride = kept->strides[arg][kept->rank - 1];
    r.offset = mica_norm_offset(kept, arg, start / r.together);
    r.n = r.width / r.together;
    return r;
}

static void load_block(work *w, int64_t block, int arg, real *out)
{
    numbers r = numbers_of(w, block, arg);
    load_run(r.type, w->args[arg], r.offset, r.stride, out, r.n);
    for (int64_t i = r.width - 1; r.together > 1 && i >= 0; i--) out[i] = out[i / r.together];
    repeat(out, r.width, columns_of(w->plane, r.width));
}

static void store_block(work *w, int64_t block, int arg, const real *values)
{
    if (!given(w, arg)) return;
    real some[NORM_COLUMNS];
    numbers r = numbers_of(w, block, arg);
    for (int64_t i = 0; i < r.n; i++) some[i] = values[i * r.together];
    store_run(r.type, w->args[arg], r.offset, r.stride, some, r.n);
}

static void reciprocal_root(const work *w, const double *var, int64_t width, real *rstd)
{
    for (int64_t i = 0; i < width; i++) rstd[i] = (real)(1 / sqrt(var[i] + w->s->d->eps));
}

/* running = (1 - momentum) * running + momentum * statistic */
static void update_running(work *w, int64_t block, int64_t width, const sums *mean_var)
{
    double n = w->s->set_size, m = w->s->d->momentum, unbiased = n > 1 ? n / (n - 1) : 1;
    real *value = w->out;
    if (n == 0) return;
    if (given(w, MICA_NORM_RUNNING_MEAN)) {
        load_block(w, block, MICA_NORM_RUNNING_MEAN, value);
        for (int64_t i = 0; i < width; i++)
            value[i] = (real)((1 - m) * (double)value[i] + m * mean_var->plain[i]);
        store_block(w, block, MICA_NORM_RUNNING_MEAN, value);
    }
    if (given(w, MICA_NORM_RUNNING_VAR)) {
        load_block(w, block, MICA_NORM_RUNNING_VAR, value);
        for (int64_t i = 0; i < width; i++)
            value[i] = (real)((1 - m) * (double)value[i] + m * unbiased * mean_var->squared[i]);
        store_block(w, block, MICA_NORM_RUNNING_VAR, value);
    }
}

/* A mean to count deviations from: of the whole set where it stays at hand, else of its beginning.
 */
static void guess_mean(work *w, int64_t block, int64_t width, sums *s)
{
    const norm_plane *p = w->plane;
    int64_t columns = columns_of(p, width), n = p->side_by_side ? NORM_FLUSH * p->fold : TILE;
    if (w->keeps || n > p->reduced) n = p->reduced;
    clear_sums(s, columns);
    walk_range(w, block, 0, n, step_sum, s);
    unite(p, s, width);
    double count = n > 0 ? (double)n * (double)p->together : 1;
    for (int64_t i = 0; i < columns; i++) w->known->mean[i] = (real)(s->plain[i] / count);
}

/* The sums of deviations from known->mean and of their squares repair both moments. Afterwards
 * s->plain holds means, s->squared variances. Returns whether the repair was so large that digits
 * of a variance were lost. */
static bool repair_moments(work *w, int64_t columns, sums *s)
{
    double n = w->s->set_size > 0 ? w->s->set_size : 1;
    real *mean = w->known->mean;
    bool centred = w->s->d->kind != MICA_NORM_RMS, lost = false;
    for (int64_t i = 0; i < columns; i++) {
        double shift = centred ? s->plain[i] / n : 0;
        double var = s->squared[i] / n - shift * shift;
        s->plain[i] = (double)mean[i] + shift;
        s->squared[i] = var > 0 || var != var ? var : 0;
        mean[i] = (real)s->plain[i];
        lost |= shift * shift > var;
    }
    return lost;
}

/* One pass about a guess of the mean, which is nearly always good enough; else, as the guess is the
 * mean by then, a second one. */
static void moments(work *w, int64_t block, int64_t width, sums *s, int threads)
{
    int64_t columns = columns_of(w->plane, width);
    w->filled = false;
    w->keeps = !w->plane->side_by_side && w->plane->parts == 1 && w->plane->reduced <= KEPT;
    if (w->s->d->kind != MICA_NORM_RMS)
        guess_mean(w, block, width, s);
    else
        spread(0, columns, w->known->mean);
    w->filled = w->keeps && w->s->d->kind != MICA_NORM_RMS;
    walk(w, block, step_deviations, s, threads);
    w->filled = w->keeps;
    if (!repair_moments(w, columns, s)) return;
    walk(w, block, step_deviations, s, threads);
    (void)repair_moments(w, columns, s);
}

static void running_moments(work *w, int64_t block, int64_t columns)
{
    real *var = w->out;
    double wide[NORM_COLUMNS];
    load_block(w, block, MICA_NORM_RUNNING_MEAN, w->known->mean);
    load_block(w, block, MICA_NORM_RUNNING_VAR, var);
    for (int64_t i = 0; i < columns; i++) wide[i] = (double)var[i];
    reciprocal_root(w, wide, columns, w->known->rstd);
}

static void forward_block(work *w, int64_t block, int threads)
{
    known k;
    int64_t width;
    sums s;
    block_start(w->plane, block, &width);
    w->known = &k;
    if (w->s->d->mode == MICA_NORM_INFER) {
        running_moments(w, block, columns_of(w->plane, width));
    } else {
        moments(w, block, width, &s, threads);
        reciprocal_root(w, s.squared, columns_of(w->plane, width), k.rstd);
        store_block(w, block, MICA_NORM_MEAN, k.mean);
        store_block(w, block, MICA_NORM_RSTD, k.rstd);
        update_running(w, block, width, &s);
    }
    walk(w, block, step_forward, NULL, threads);
}

static void store_sums(work *w, int64_t block, int64_t width, const sums *s)
{
    real *value = w->out;
    for (int64_t i = 0; i < width; i++) value[i] = (real)s->plain[i];
    store_block(w, block, MICA_NORM_DBIAS, value);
    for (int64_t i = 0; i < width; i++) value[i] = (real)s->squared[i];
    store_block(w, block, MICA_NORM_DSCALE, value);
}

/* Batch: a set is a channel, so its sums are dbias and dscale as they stand, and scale, constant in
 * the set, multiplies them afterwards. */
static void batch_sums(work *w, int64_t block, int64_t width, sums *s)
{
    real *scale = w->out;
    int64_t columns = columns_of(w->plane, width);
    store_sums(w, block, width, s);
    spread(1, columns, scale);
    if (given(w, MICA_NORM_SCALE)) load_block(w, block, MICA_NORM_SCALE, scale);
    for (int64_t i = 0; i < columns; i++) {
        s->plain[i] *= (double)scale[i];
        s->squared[i] *= (double)scale[i];
    }
}

static void backward_block(work *w, int64_t block, int threads)
{
    const mica_norm_desc *d = w->s->d;
    bool infer = d->mode == MICA_NORM_INFER, batch = d->kind == MICA_NORM_BATCH;
    known k;
    int64_t width;
    sums s;
    block_start(w->plane, block, &width);
    int64_t columns = columns_of(w->plane, width);
    spread(0, columns, k.mean), spread(0, columns, k.plain), spread(0, columns, k.with_xhat);
    w->known = &k;
    w->scaled = !batch;
    if (infer)
        running_moments(w, block, columns);
    else
        load_block(w, block, MICA_NORM_RSTD, k.rstd);
    if (!infer && d->kind != MICA_NORM_RMS) load_block(w, block, MICA_NORM_MEAN, k.mean);
    bool affine = given(w, MICA_NORM_DSCALE) || given(w, MICA_NORM_DBIAS);
    if (!infer || (batch && affine)) walk(w, block, step_gradients, &s, threads);
    if (batch && (!infer || affine)) batch_sums(w, block, width, &s);
    for (int64_t i = 0; !infer && i < columns; i++) {
        k.plain[i] = d->kind == MICA_NORM_RMS ? 0 : (real)(s.plain[i] / w->s->set_size);
        k.with_xhat[i] = (real)(s.squared[i] / w->s->set_size);
    }
    if (given(w, MICA_NORM_DX)) walk(w, block, step_backward, NULL, threads);
}

static void channels_block(work *w, int64_t block, int threads)
{
    int64_t width;
    sums s;
    block_start(w->plane, block, &width);
    w->known = NULL;
    w->scaled = false;
    walk(w, block, step_gradients, &s, threads);
    store_sums(w, block, width, &s);
}

typedef void (*block_fn)(work *w, int64_t block, int threads);

/* Blocks are shared out to threads; where there are too few of them, their parts are. */
static void run_plane(const work *like, block_fn block)
{
    int threads = mica_cpu_threads_for(like->s->bytes);
    const norm_plane *p = like->plane;
    if (p->parts > 1 && p->blocks < 4 * threads) {
        work w;
        begin(&w, like);
        for (int64_t i = 0; i < p->blocks; i++) block(&w, i, threads);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        work w;
        begin(&w, like);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < p->blocks; i++) block(&w, i, 1);
        mica_stream_end();
    }
}

static void run_all(const norm_cpu_state *s, void *const *args)
{
    work w;
    memset(&w, 0, offsetof(work, running));
    w.s = s, w.args = args;
    if (s->channels_first && (args[MICA_NORM_DSCALE] || args[MICA_NORM_DBIAS])) {
        w.plane = &s->channels;
        run_plane(&w, channels_block);
    }
    w.plane = &s->sets;
    if (s->plain_rows)
        run_plain_rows(&w);
    else
        run_plane(&w, s->d->pass == MICA_NORM_FWD ? forward_block : backward_block);
}
