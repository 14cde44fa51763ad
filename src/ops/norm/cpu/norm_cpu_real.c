/* SPDX-License-Identifier: Apache-2.0
 * The CPU engines: in float for x of f32, f16 and bf16, in double for f64. Sums of a tile are
 * formed in `real` and added up in double, part by part in order. */
#include "ops/norm/cpu/norm_cpu.h"
#include "ops/epilogue/cpu/activation_runs.h"
#include "ops/convert/cpu/real.h"

static const mica_dtype real_type = REAL_TYPE;
enum { NARROW = !REAL_F64 }; /* rows of bf16 are read as they are */

static void load_run(mica_dtype type, const void *data, int64_t offset, int64_t stride, real *out,
                     int64_t n)
{
    if (REAL_F64 || type != MICA_F64) {
        real_load(type, data, offset, stride, out, n);
        return;
    }
    const double *p = (const double *)data + offset;
    for (int64_t i = 0; i < n; i++) out[i] = (real)p[i * stride];
}

static void store_run(mica_dtype type, void *data, int64_t offset, int64_t stride, const real *in,
                      int64_t n)
{
    if (REAL_F64 || type != MICA_F64) {
        real_store(type, data, offset, stride, in, n);
        return;
    }
    double *p = (double *)data + offset;
    for (int64_t i = 0; i < n; i++) p[i * stride] = (double)in[i];
}

static void activate(const mica_norm_desc *d, const real *v, real *out, int64_t n)
{
#if REAL_F64
    mica_act_values_f64(d->act, v, out, n, d->act_a, d->act_b);
#else
    mica_act_values_f32(d->act, v, out, n, (float)d->act_a, (float)d->act_b);
#endif
}

static void slopes(const mica_norm_desc *d, const real *v, real *out, int64_t n)
{
#if REAL_F64
    mica_act_slopes_f64(d->act, v, out, n, d->act_a, d->act_b);
#else
    mica_act_slopes_f32(d->act, v, out, n, (float)d->act_a, (float)d->act_b);
#endif
}

#include "ops/norm/cpu/norm_cpu_walks.h"

/* ---- rows ---- */

/* Rows of neighbours without the walks, which cost more than a short row itself; they are read in
 * their own type where that is `real` or bf16: a long row of bf16 stays in the first-level cache,
 * which its copy would fill. Short rows go together, moments first: those of one wait for divisions
 * and roots, meanwhile others are summed. Sums in the order of a walk. */
enum { PLAIN_ROWS = 8, PLAIN_BYTES = 8192, PLAIN_PIECE = 4096 / sizeof(real) };

typedef struct plain_rows {
    work *w;
    int64_t first, rows, most, count, bytes; /* count: elements of a row; bytes: of an element */
    int64_t ahead;                           /* rows to the one that memory is asked for */
    bool centred, narrow, copied, packed;    /* packed: rows of x and of y follow each other */
    operand scale, bias;
    double plain[PLAIN_ROWS], squared[PLAIN_ROWS];
    real mean[PLAIN_ROWS], rstd[PLAIN_ROWS];
} plain_rows;

static const void *plain_row(const plain_rows *p, int64_t i)
{
    const norm_space *rows = &p->w->plane->rows;
    int64_t at = mica_norm_offset(rows, MICA_NORM_X, p->first + i);
    return p->copied ? (const void *)p->w->x
                     : (const char *)p->w->args[MICA_NORM_X] + at * p->bytes;
}

/* A mean to count deviations from: of the row's beginning. */
static real plain_guess(const plain_rows *p, int64_t i)
{
    const void *x = plain_row(p, i);
    int64_t some = p->count < GUESS ? p->count : GUESS;
    if (!p->centred) return 0;
    if (p->narrow) load_run(p->w->s->d->x.dtype, x, 0, 1, p->w->x, some);
    return (real)(row_sum(p->narrow ? p->w->x : x, some) * (1 / (double)some));
}

static void plain_sums(plain_rows *p, int64_t i)
{
    p->plain[i] = p->squared[i] = 0;
    row_deviations(plain_row(p, i), p->narrow, p->mean[i], p->count, &p->plain[i], &p->squared[i]);
}

/* The mean from the sums of deviations; returns the variance. */
static double plain_moments(plain_rows *p, int64_t i, bool *lost)
{
    double n = p->w->s->set_size, shift = p->centred ? p->plain[i] / n : 0;
    double var = p->squared[i] / n - shift * shift;
    p->mean[i] = (real)((double)p->mean[i] + shift);
    *lost = shift * shift > var;
    return var > 0 || var != var ? var : 0;
}

/* Squares that overflowed give NaN, not results of 0. */
INLINE real root_of(double var, double eps)
{
    return (real)(1 / sqrt(var + eps) + (var - var));
}

static void plain_statistics(plain_rows *p)
{
    double eps = p->w->s->d->eps;
    for (int64_t i = 0; i < p->rows; i++) {
        p->mean[i] = plain_guess(p, i);
        plain_sums(p, i);
    }
    for (int64_t i = 0; i < p->rows; i++) {
        bool lost;
        double var = plain_moments(p, i, &lost);
        if (lost) { /* digits were: again about what is the mean by now */
            plain_sums(p, i);
            var = plain_moments(p, i, &lost);
        }
        p->rstd[i] = root_of(var, eps);
    }
}

/* In pieces: between one and the next, memory is asked for what a row to come has there. */
static void plain_results(plain_rows *p, int64_t i)
{
    work *w = p->w;
    const mica_norm_desc *d = w->s->d;
    const char *x = plain_row(p, i);
    int64_t bytes = p->copied ? (int64_t)sizeof(real) : p->bytes, n;
    const operand mean = {&p->mean[i], false}, rstd = {&p->rstd[i], false};
    w->row = p->first + i;
    for (int64_t at = 0; at < p->count; at += n) {
        n = p->count - at < PLAIN_PIECE ? p->count - at : PLAIN_PIECE;
        w->first = at, w->n = n;
        fetch_ahead(w, MICA_NORM_X, p->ahead);
        if (p->count > TILE) affine_of(w, &p->scale, &p->bias);
        int64_t from = p->count > TILE ? 0 : at;
        normalise(x + at * bytes, p->narrow, mean, rstd, part(p->scale, from), part(p->bias, from),
                  n, w->out);
        if (d->act != MICA_ACT_IDENTITY) activate(d, w->out, w->out, n);
        store(w, MICA_NORM_Y, w->out);
    }
}

/* Short rows that follow each other are stored as one run: for each alone, finding where it goes
 * takes longer than to compute it. */
static void plain_results_packed(plain_rows *p)
{
    work *w = p->w;
    const mica_norm_desc *d = w->s->d;
    const char *x = plain_row(p, 0);
    int64_t bytes = p->count * p->bytes;
    for (int64_t i = 0; i < p->rows; i++, x += bytes) {
        const operand mean = {&p->mean[i], false}, rstd = {&p->rstd[i], false};
        if (w->s->past_cache) mica_fetch_ahead(x + p->ahead * bytes, bytes);
        normalise(x, p->narrow, mean, rstd, p->scale, p->bias, p->count, w->out + i * p->count);
    }
    w->row = p->first, w->first = 0, w->n = p->rows * p->count;
    if (d->act != MICA_ACT_IDENTITY) activate(d, w->out, w->out, w->n);
    store(w, MICA_NORM_Y, w->out);
}

static void plain_number(const plain_rows *p, int arg, const real *values)
{
    const work *w = p->w;
    if (!given(w, arg)) return;
    for (int64_t i = 0; i < p->rows; i++)
        store_run(mica_norm_tensor(w->s->d, arg)->dtype, w->args[arg],
                  mica_norm_offset(&w->plane->rows, arg, p->first + i), 1, values + i, 1);
}

static void plain_group(plain_rows *p, int64_t group)
{
    int64_t all = p->w->plane->rows.count;
    const mica_norm_desc *d = p->w->s->d;
    p->first = group * p->most;
    p->rows = all - p->first < p->most ? all - p->first : p->most;
    if (p->copied)
        load_run(d->x.dtype, p->w->args[MICA_NORM_X],
                 mica_norm_offset(&p->w->plane->rows, MICA_NORM_X, p->first), 1, p->w->x, p->count);
    plain_statistics(p);
    if (p->packed)
        plain_results_packed(p);
    else
        for (int64_t i = 0; i < p->rows; i++) plain_results(p, i);
    plain_number(p, MICA_NORM_MEAN, p->mean);
    plain_number(p, MICA_NORM_RSTD, p->rstd);
}

static void plain_begin(plain_rows *p, work *w)
{
    const mica_norm_desc *d = w->s->d;
    int64_t count = w->plane->reduced, bytes = mica_dtype_bits(d->x.dtype) / 8;
    *p = (plain_rows){.w = w, .most = 1, .count = count, .bytes = bytes};
    p->centred = d->kind != MICA_NORM_RMS;
    p->narrow = NARROW && d->x.dtype == MICA_BF16;
    p->copied = d->x.dtype != real_type && !p->narrow;
    while (!p->copied && p->most < PLAIN_ROWS && 2 * p->most * count * bytes <= PLAIN_BYTES)
        p->most *= 2;
    p->ahead = count > 0 ? (MICA_AHEAD + count * bytes - 1) / (count * bytes) : 1;
    if (p->ahead < p->most) p->ahead = p->most;
    const norm_space *rows = &w->plane->rows, *cols = &w->plane->cols;
    p->packed = p->most > 1 && p->most * count <= TILE && rows->rank == 1 && cols->rank == 1 &&
                rows->strides[MICA_NORM_X][0] == count && rows->strides[MICA_NORM_Y][0] == count;
    w->first = 0, w->n = count;
    if (count <= TILE) affine_of(w, &p->scale, &p->bias);
}

static void run_plain_rows(const work *like)
{
    int threads = mica_cpu_threads_for(like->s->bytes);
#pragma omp parallel num_threads(threads)
    {
        mica_scratch scope MICA_SCOPED = mica_scratch_open();
        work *w = mica_scratch_take(sizeof *w);
        plain_rows p;
        begin(w, like);
        plain_begin(&p, w);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < (w->plane->rows.count + p.most - 1) / p.most; i++)
            plain_group(&p, i);
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
    const norm_space *kept = p->side_by_side ? &p->cols : &p->rows;
    r.together = mica_norm_is_per_set(arg) ? p->together : 1;
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
    MICA_ALIGNED real some[NORM_COLUMNS];
    numbers r = numbers_of(w, block, arg);
    for (int64_t i = 0; i < r.n; i++) some[i] = values[i * r.together];
    store_run(r.type, w->args[arg], r.offset, r.stride, some, r.n);
}

static void reciprocal_root(const work *w, const double *var, int64_t width, real *rstd)
{
    for (int64_t i = 0; i < width; i++) rstd[i] = root_of(var[i], w->s->d->eps);
}

/* running = (1 - momentum) * running + momentum * statistic */
static void update_running(work *w, int64_t block, int64_t width, const sums *mean_var)
{
    double m = w->s->d->momentum, unbiased = mica_norm_unbiased(w->s->d);
    real *value = w->out;
    if (w->s->set_size == 0) return;
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

/* A mean to count deviations from: of the set's beginning. */
static void guess_mean(work *w, int64_t block, int64_t width, sums *s)
{
    const norm_plane *p = w->plane;
    int64_t columns = columns_of(p, width), n = p->side_by_side ? NORM_FLUSH * p->fold : GUESS;
    if (n > p->reduced) n = p->reduced;
    clear_sums(s, columns);
    walk_range(w, block, 0, n, step_sum, s);
    combine_folded_columns(p, s, width);
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
    walk(w, block, step_deviations, s, threads);
    w->filled = w->keeps;
    if (!repair_moments(w, columns, s)) return;
    walk(w, block, step_deviations, s, threads);
    (void)repair_moments(w, columns, s);
}

static void running_moments(work *w, int64_t block, int64_t columns)
{
    real *var = w->out;
    MICA_ALIGNED double wide[NORM_COLUMNS];
    load_block(w, block, MICA_NORM_RUNNING_MEAN, w->known->mean);
    load_block(w, block, MICA_NORM_RUNNING_VAR, var);
    for (int64_t i = 0; i < columns; i++) wide[i] = (double)var[i];
    reciprocal_root(w, wide, columns, w->known->rstd);
}

static void forward_block(work *w, int64_t block, int threads)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    known *k = mica_scratch_take(sizeof *k);
    sums *s = mica_scratch_take(sizeof *s);
    int64_t width;
    block_start(w->plane, block, &width);
    w->known = k;
    if (w->s->d->mode == MICA_NORM_INFER) {
        running_moments(w, block, columns_of(w->plane, width));
    } else {
        moments(w, block, width, s, threads);
        reciprocal_root(w, s->squared, columns_of(w->plane, width), k->rstd);
        store_block(w, block, MICA_NORM_MEAN, k->mean);
        store_block(w, block, MICA_NORM_RSTD, k->rstd);
        update_running(w, block, width, s);
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
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    known *k = mica_scratch_take(sizeof *k);
    sums *s = mica_scratch_take(sizeof *s);
    int64_t width;
    block_start(w->plane, block, &width);
    int64_t columns = columns_of(w->plane, width);
    spread(0, columns, k->mean), spread(0, columns, k->plain), spread(0, columns, k->with_xhat);
    w->known = k;
    w->scaled = !batch;
    if (infer)
        running_moments(w, block, columns);
    else
        load_block(w, block, MICA_NORM_RSTD, k->rstd);
    if (!infer && d->kind != MICA_NORM_RMS) load_block(w, block, MICA_NORM_MEAN, k->mean);
    bool affine = given(w, MICA_NORM_DSCALE) || given(w, MICA_NORM_DBIAS);
    if (!infer || (batch && affine)) walk(w, block, step_gradients, s, threads);
    if (batch && (!infer || affine)) batch_sums(w, block, width, s);
    for (int64_t i = 0; !infer && i < columns; i++) {
        k->plain[i] = d->kind == MICA_NORM_RMS ? 0 : (real)(s->plain[i] / w->s->set_size);
        k->with_xhat[i] = (real)(s->squared[i] / w->s->set_size);
    }
    w->from_dresidual = w->s->dresidual_first;
    if (given(w, MICA_NORM_DX) || (given(w, MICA_NORM_DRESIDUAL) && !w->from_dresidual))
        walk(w, block, step_backward, NULL, threads);
    w->from_dresidual = false;
}

/* ---- once ---- */

static void flush_columns(column_sums *c, int64_t n)
{
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < n; i++) {
            c->total[k][i] += (double)c->running[k][i];
            c->running[k][i] = 0;
        }
}

/* The rows of a part, each with its dx, and meanwhile the sums by column. */
static void once_part(work *w, int part, char *memory)
{
    int64_t n = w->plane->reduced, rows = w->plane->blocks, parts = w->s->once_parts;
    column_sums c;
    for (int k = 0; k < 2; k++) {
        c.total[k] = (double *)memory + (2 * part + k) * n;
        c.running[k] = (real *)((double *)memory + 2 * parts * n) + (2 * part + k) * n;
        memset(c.total[k], 0, (size_t)n * sizeof *c.total[k]);
        memset(c.running[k], 0, (size_t)n * sizeof *c.running[k]);
    }
    w->columns = &c;
    int64_t from = rows * part / parts, to = rows * (part + 1) / parts;
    for (int64_t row = from; row < to; row++) {
        backward_block(w, row, 1);
        if ((row - from) % NORM_FLUSH == NORM_FLUSH - 1) flush_columns(&c, n);
    }
    flush_columns(&c, n);
}

/* Totals of all parts, in their order, to dbias and dscale. */
static void store_columns(const work *w, const double *totals)
{
    static const int args[2] = {MICA_NORM_DBIAS, MICA_NORM_DSCALE};
    int64_t n = w->plane->reduced;
    for (int k = 0; k < 2; k++) {
        if (!given(w, args[k])) continue;
        int64_t stride = w->plane->cols.strides[args[k]][0];
        mica_dtype type = mica_norm_tensor(w->s->d, args[k])->dtype;
        for (int64_t i = 0; i < n; i++) {
            double sum = 0;
            for (int part = 0; part < w->s->once_parts; part++)
                sum += totals[(2 * part + k) * n + i];
            real value = (real)sum;
            store_run(type, w->args[args[k]], i * stride, stride, &value, 1);
        }
    }
}

static void run_once(const work *like, char *memory)
{
#pragma omp parallel num_threads(mica_cpu_threads_for(like->s->bytes))
    {
        mica_scratch scope MICA_SCOPED = mica_scratch_open();
        work *w = mica_scratch_take(sizeof *w);
        begin(w, like);
#pragma omp for schedule(static)
        for (int part = 0; part < like->s->once_parts; part++) once_part(w, part, memory);
        mica_stream_end();
    }
    store_columns(like, (const double *)memory);
}

/* ---- running ---- */

static void channels_block(work *w, int64_t block, int threads)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    sums *s = mica_scratch_take(sizeof *s);
    int64_t width;
    block_start(w->plane, block, &width);
    w->known = NULL;
    w->scaled = false;
    walk(w, block, step_gradients, s, threads);
    store_sums(w, block, width, s);
}

typedef void (*block_fn)(work *w, int64_t block, int threads);

/* Blocks are divided among threads; where there are too few of them, their parts are. */
static void run_plane(const work *like, block_fn block)
{
    int threads = mica_cpu_threads_for(like->s->bytes);
    const norm_plane *p = like->plane;
    if (p->parts > 1 && p->blocks < 4 * threads) {
        mica_scratch scope MICA_SCOPED = mica_scratch_open();
        work *w = mica_scratch_take(sizeof *w);
        begin(w, like);
        for (int64_t i = 0; i < p->blocks; i++) block(w, i, threads);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        mica_scratch scope MICA_SCOPED = mica_scratch_open();
        work *w = mica_scratch_take(sizeof *w);
        begin(w, like);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < p->blocks; i++) block(w, i, 1);
        mica_stream_end();
    }
}

static void run_all(const norm_cpu_state *s, void *const *args, void *workspace, double beta)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    work *w = mica_scratch_take(sizeof *w); /* of which only what `begin` copies is used */
    memset(w, 0, offsetof(work, running));
    w->s = s, w->args = args, w->beta = (real)beta;
    if (s->channels_first && (args[MICA_NORM_DSCALE] || args[MICA_NORM_DBIAS])) {
        w->plane = &s->channels;
        run_plane(w, channels_block);
    }
    w->plane = &s->sets;
    if (s->once_parts > 0)
        run_once(w, workspace);
    else if (s->plain_rows)
        run_plain_rows(w);
    else
        run_plane(w, s->d->pass == MICA_NORM_FWD ? forward_block : backward_block);
}

#if REAL_F64
#define RUN_ALL norm_cpu_run_f64
#else
#define RUN_ALL norm_cpu_run_f32
#endif
void RUN_ALL(const norm_cpu_state *s, void *const *args, void *workspace, double beta)
{
    run_all(s, args, workspace, beta);
}
