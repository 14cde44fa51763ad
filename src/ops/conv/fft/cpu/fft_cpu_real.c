/* SPDX-License-Identifier: Apache-2.0
 * The loops of the CPU engine "fft": transforms of tiles, a vector of signals at once, and tiles to
 * and from tensors. */
#include <math.h>
#include <string.h>

#include "ops/conv/cpu/conv_cpu.h"
#include "ops/conv/fft/cpu/fft_cpu.h"
#include "ops/convert/cpu/real.h"

/* The end of a line of results. */
static inline void finish(const mica_conv_job *job, const mica_conv_line *line, real *v)
{
#if REAL_F64
    mica_conv_cpu_epilogue_f64(job, line, v);
#else
    mica_conv_cpu_epilogue_f32(job, line, v);
#endif
}

#define INLINE __attribute__((always_inline)) static inline

enum { LANES = 64 / sizeof(real), RUN = MICA_CONV_LINE, SMALL = 64 };
typedef struct point {
    real re[LANES], im[LANES];
} point;

_Static_assert(sizeof(point) == CONV_FFT_POINT, "what the workspace is made for");

/* ---- roots of unity ---- */

/* exp(-2 pi i j / points), by angles of at most an eighth of a turn: exact at the quarters. */
static void root(int points, int j, real *to)
{
    const double turn = 6.283185307179586476925286766559;
    int quarter = 4 * j / points;
    double rest = (double)(4 * j - quarter * points) / (4.0 * points), c, s;
    if (rest <= 0.125) {
        c = cos(turn * rest);
        s = sin(turn * rest);
    } else {
        c = sin(turn * (0.25 - rest));
        s = cos(turn * (0.25 - rest));
    }
    const double all[4][2] = {{c, -s}, {-s, -c}, {-c, s}, {s, c}};
    to[0] = (real)all[quarter][0];
    to[1] = (real)all[quarter][1];
}

static void make_roots(int points, void *table)
{
    real *to = table;
    for (int j = 0; j < points; j++) root(points, j, to + 2 * (int64_t)j);
}

/* ---- transforms ---- */

/* A point of one signal. Loops over the signals of points are the compiler's to vectorise, as wide
 * as the machine is. */
typedef struct value {
    real re, im;
} value;

INLINE value value_of(const point *p, int lane)
{
    return (value){p->re[lane], p->im[lane]};
}

INLINE void set(point *p, int lane, value v)
{
    p->re[lane] = v.re;
    p->im[lane] = v.im;
}

INLINE value times(value a, real c, real s)
{
    return (value){a.re * c - a.im * s, a.im * c + a.re * s};
}

INLINE value plus(value a, value b)
{
    return (value){a.re + b.re, a.im + b.im};
}

INLINE value minus(value a, value b)
{
    return (value){a.re - b.re, a.im - b.im};
}

INLINE value times_i(value a)
{
    return (value){-a.im, a.re};
}

/* One step of radix 4 on each of `blocks` runs of n points; w: every `every`th root is one of n.
 * Its four results stand in the order of reversed bits. */
INLINE void step_forward(point *x, int64_t pitch, int n, int blocks, const real *w, int every)
{
    const int64_t next = n / 4 * pitch;
    for (int j = 0; j < n / 4; j++) {
        const real *w1 = w + 2 * (int64_t)j * every, *w2 = w + 4 * (int64_t)j * every;
        const real *w3 = w + 6 * (int64_t)j * every;
        for (int b = 0; b < blocks; b++) {
            point *at = x + ((int64_t)b * n + j) * pitch;
#pragma omp simd
            for (int l = 0; l < LANES; l++) {
                value p = value_of(&at[0], l), q = value_of(&at[next], l);
                value r = value_of(&at[2 * next], l), t = value_of(&at[3 * next], l);
                value ac = plus(p, r), bd = plus(q, t), c = minus(p, r), d = times_i(minus(q, t));
                set(&at[0], l, plus(ac, bd));
                set(&at[next], l, times(minus(ac, bd), w2[0], w2[1]));
                set(&at[2 * next], l, times(minus(c, d), w1[0], w1[1]));
                set(&at[3 * next], l, times(plus(c, d), w3[0], w3[1]));
            }
        }
    }
}

/* Its inverse, but for a factor of 4. */
INLINE void step_inverse(point *x, int64_t pitch, int n, int blocks, const real *w, int every)
{
    const int64_t next = n / 4 * pitch;
    for (int j = 0; j < n / 4; j++) {
        const real *w1 = w + 2 * (int64_t)j * every, *w2 = w + 4 * (int64_t)j * every;
        const real *w3 = w + 6 * (int64_t)j * every;
        for (int b = 0; b < blocks; b++) {
            point *at = x + ((int64_t)b * n + j) * pitch;
#pragma omp simd
            for (int l = 0; l < LANES; l++) {
                value u0 = value_of(&at[0], l), u1 = times(value_of(&at[next], l), w2[0], -w2[1]);
                value u2 = times(value_of(&at[2 * next], l), w1[0], -w1[1]);
                value u3 = times(value_of(&at[3 * next], l), w3[0], -w3[1]);
                value ac = plus(u0, u1), bd = minus(u0, u1);
                value c = plus(u2, u3), d = times_i(minus(u2, u3));
                set(&at[0], l, plus(ac, c));
                set(&at[next], l, plus(bd, d));
                set(&at[2 * next], l, minus(ac, c));
                set(&at[3 * next], l, minus(bd, d));
            }
        }
    }
}

INLINE void pairs(point *x, int64_t pitch, int n)
{
    for (int i = 0; i < n; i += 2) {
        point *a = x + i * pitch, *b = a + pitch;
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            value p = value_of(a, l), q = value_of(b, l);
            set(a, l, plus(p, q));
            set(b, l, minus(p, q));
        }
    }
}

/* Runs of more than SMALL points one quarter after the other, so that they are in the cache. */
MICA_CLONES
static void line_forward(point *x, int64_t pitch, int n, const real *w, int every)
{
    if (n > SMALL) {
        step_forward(x, pitch, n, 1, w, every);
        for (int i = 0; i < 4; i++)
            line_forward(x + i * (n / 4) * pitch, pitch, n / 4, w, 4 * every);
        return;
    }
    int len = n;
    for (; len >= 4; len /= 4, every *= 4) step_forward(x, pitch, len, n / len, w, every);
    if (len == 2) pairs(x, pitch, n);
}

MICA_CLONES
static void line_inverse(point *x, int64_t pitch, int n, const real *w, int every)
{
    if (n > SMALL) {
        for (int i = 0; i < 4; i++)
            line_inverse(x + i * (n / 4) * pitch, pitch, n / 4, w, 4 * every);
        step_inverse(x, pitch, n, 1, w, every);
        return;
    }
    int len = 1;
    while (4 * len <= n) len *= 4;
    if (len < n) pairs(x, pitch, n);
    for (len = len < n ? 8 : 4; len <= n; len *= 4)
        step_inverse(x, pitch, len, n / len, w, every * (n / len));
}

static int reversed(int i, int n)
{
    int r = 0;
    for (; n > 1; n /= 2, i /= 2) r = 2 * r + i % 2;
    return r;
}

INLINE void double_conjugate(point *x)
{
#pragma omp simd
    for (int l = 0; l < LANES; l++) set(x, l, (value){x->re[l] * 2, x->im[l] * -2});
}

/* Values i and `other`, which belong together: their difference by -i w (sign -1) or by i / w. */
INLINE void mix(point *x, int i, int other, const real *w, real sign)
{
    point *p = x + i, *q = x + other;
    const real c = w[1], s = sign * w[0];
#pragma omp simd
    for (int l = 0; l < LANES; l++) {
        value a = value_of(p, l), b = {q->re[l], -q->im[l]};
        value even = plus(a, b), odd = times(minus(a, b), c, s);
        set(p, l, plus(even, odd));
        set(q, l, (value){even.re - odd.re, odd.im - even.im});
    }
}

/* From the transform of pairs of neighbours as complex numbers, in the order of reversed bits, to
 * twice the spectrum of the numbers themselves: values k and half - k belong together, which are
 * mirrored within each run from a power of 2 to the next. The last value goes behind the others. */
MICA_CLONES
static void split_row(point *x, int half, const real *w, int every)
{
#pragma omp simd
    for (int l = 0; l < LANES; l++) {
        value first = value_of(x, l);
        set(&x[0], l, (value){(first.re + first.im) * 2, 0});
        set(&x[half], l, (value){(first.re - first.im) * 2, 0});
    }
    if (half > 1) double_conjugate(&x[1]);
    for (int run = 2; run < half; run *= 2)
        for (int i = run; i < run + run / 2; i++)
            mix(x, i, i ^ (run - 1), w + 2 * (int64_t)reversed(i, half) * every, -1);
}

/* Back, but for a factor of 2. */
MICA_CLONES
static void merge_row(point *x, int half, const real *w, int every)
{
#pragma omp simd
    for (int l = 0; l < LANES; l++) {
        real first = x[0].re[l], last = x[half].re[l];
        set(&x[0], l, (value){first + last, first - last});
    }
    if (half > 1) double_conjugate(&x[1]);
    for (int run = 2; run < half; run *= 2)
        for (int i = run; i < run + run / 2; i++)
            mix(x, i, i ^ (run - 1), w + 2 * (int64_t)reversed(i, half) * every, 1);
}

static int longer(const conv_fft_division *d)
{
    return d->axis[0].points > d->axis[1].points ? d->axis[0].points : d->axis[1].points;
}

static void forward(const conv_fft_division *d, const void *roots, void *points)
{
    int rows = d->axis[0].points, pitch = d->half + 1, all = longer(d);
    point *x = points;
    for (int r = 0; r < rows; r++) {
        line_forward(x + r * pitch, 1, d->half, roots, all / d->half);
        split_row(x + r * pitch, d->half, roots, all / (2 * d->half));
    }
    for (int c = 0; c < pitch && rows > 1; c++) line_forward(x + c, pitch, rows, roots, all / rows);
}

static void inverse(const conv_fft_division *d, const void *roots, void *points)
{
    int rows = d->axis[0].points, pitch = d->half + 1, all = longer(d);
    point *x = points;
    for (int c = 0; c < pitch && rows > 1; c++) line_inverse(x + c, pitch, rows, roots, all / rows);
    for (int r = 0; r < rows; r++) {
        merge_row(x + r * pitch, d->half, roots, all / (2 * d->half));
        line_inverse(x + r * pitch, 1, d->half, roots, all / d->half);
    }
}

/* ---- spectra ---- */

/* a times the conjugate of b */
INLINE value product(const point *a, const point *b, int l)
{
    return (value){a->re[l] * b->re[l] + a->im[l] * b->im[l],
                   a->im[l] * b->re[l] - a->re[l] * b->im[l]};
}

MICA_CLONES
static void multiply(const conv_fft_division *d, const void *a, const void *b, bool add, void *c)
{
    const point *x = a, *f = b;
    point *y = c;
    for (int i = 0; i < d->bins; i++) {
        if (add) {
#pragma omp simd
            for (int l = 0; l < LANES; l++)
                set(&y[i], l, plus(value_of(&y[i], l), product(&x[i], &f[i], l)));
        } else {
#pragma omp simd
            for (int l = 0; l < LANES; l++) set(&y[i], l, product(&x[i], &f[i], l));
        }
    }
}

MICA_CLONES
static void add_points(const conv_fft_division *d, const void *from, void *to)
{
    const real *x = from;
    real *y = to;
    for (int64_t i = 0; i < 2 * LANES * (int64_t)d->bins; i++) y[i] += x[i];
}

static void fold(const conv_fft_division *d, int every, void *points)
{
    real *x = points;
    for (int64_t i = 0; i < 2 * (int64_t)d->bins; i++, x += LANES)
        for (int l = every; l < LANES; l++) x[l % every] += x[l];
}

/* A call for 64 bytes costs more than they do. */
INLINE void copy_lanes(real *to, const real *from, int count)
{
    if (count == LANES)
        memcpy(to, from, LANES * sizeof *to);
    else
        memcpy(to, from, (size_t)count * sizeof *to);
}

static void to_plane(const conv_fft_division *d, const void *points, const conv_fft_plane *plane,
                     int count)
{
    const point *x = points;
    real *to = (real *)plane->data + plane->at;
    for (int i = 0; i < d->bins; i++, to += plane->pitch) {
        MICA_ALIGNED real negative[LANES];
        for (int l = 0; l < LANES; l++) negative[l] = -x[i].re[l];
        copy_lanes(to, plane->turned ? x[i].im : x[i].re, count);
        copy_lanes(to + plane->im, plane->turned ? negative : x[i].im, count);
    }
}

static void from_plane(const conv_fft_division *d, const conv_fft_plane *plane, int count,
                       void *points)
{
    point *x = points;
    const real *from = (const real *)plane->data + plane->at;
    for (int i = 0; i < d->bins; i++, from += plane->pitch) {
        if (count < LANES) x[i] = (point){{0}, {0}};
        copy_lanes(x[i].re, from, count);
        copy_lanes(x[i].im, from + plane->im, count);
    }
}

/* ---- tensors ---- */

/* [LANES][LANES] with rows and columns exchanged: as many perfect shuffles as an index has bits. */
INLINE void transpose(real *a, real *b)
{
    real *from = a, *to = b;
    for (int n = 1; n < LANES; n *= 2) {
        for (int i = 0; i < LANES * LANES / 2; i++) {
            to[2 * i] = from[i];
            to[2 * i + 1] = from[i + LANES * LANES / 2];
        }
        real *other = from;
        from = to;
        to = other;
    }
    if (from != a) memcpy(a, from, sizeof(real) * LANES * LANES);
}

/* Columns of `rows`, one row per lane, to points. */
MICA_CLONES
static void columns_to_points(const real (*rows)[RUN], int count, point *to)
{
    MICA_ALIGNED real a[LANES * LANES], b[LANES * LANES];
    for (int first = 0; first < count; first += LANES) {
        for (int l = 0; l < LANES; l++)
            memcpy(a + l * LANES, rows[l] + first, sizeof(real) * LANES);
        transpose(a, b);
        memcpy(to + first / 2, a, sizeof a); /* columns are re and im by turns */
    }
}

MICA_CLONES
static void points_to_columns(const point *from, int count, real scale, real (*rows)[RUN])
{
    MICA_ALIGNED real a[LANES * LANES], b[LANES * LANES];
    for (int first = 0; first < count; first += LANES) {
        memcpy(a, from + first / 2, sizeof a);
        for (int i = 0; i < LANES * LANES; i++) a[i] *= scale;
        transpose(a, b);
        for (int l = 0; l < LANES; l++)
            memcpy(rows[l] + first, a + l * LANES, sizeof(real) * LANES);
    }
}

/* The element at a position, or -1. */
static int64_t element_at(const conv_fft_tensor *t, int axis, int64_t position)
{
    int64_t spacing = t->spacing[axis];
    if (position < 0 || position % spacing || position / spacing >= t->size[axis]) return -1;
    return position / spacing;
}

/* Positions x to before x + n of a row, those from `end` on not. */
static void load_run(const conv_fft_tensor *t, mica_dtype type, const void *data, int64_t offset,
                     int64_t x, int64_t end, int n, real *to)
{
    MICA_ALIGNED real run[RUN];
    int64_t spacing = t->spacing[1], s = t->s[1];
    memset(to, 0, (size_t)n * sizeof *to);
    if (end > x + n) end = x + n;
    int64_t first = x > 0 ? (x + spacing - 1) / spacing : 0;
    int64_t after = end > 0 ? (end + spacing - 1) / spacing : 0;
    if (after > t->size[1]) after = t->size[1];
    if (after <= first) return;
    real *at = to + (first * spacing - x);
    if (spacing == 1) {
        real_load(type, data, offset + first * s, s, at, after - first);
        return;
    }
    real_load(type, data, offset + first * s, s, run, after - first);
    for (int64_t i = 0; i < after - first; i++) at[i * spacing] = run[i];
}

static void load_neighbours(const conv_fft_tensor *t, mica_dtype type, const void *data,
                            const conv_fft_lanes *lanes, int64_t row, int64_t end, int n, point *to)
{
    real *at = (real *)to;
    memset(at, 0, (size_t)n * sizeof(real) * LANES);
    for (int i = 0; i < n; i++) {
        int64_t x = lanes->start[0][1] + i, e = x < end ? element_at(t, 1, x) : -1;
        if (e >= 0)
            real_load(type, data, lanes->offset[0] + row * t->s[0] + e * t->s[1], 1,
                      at + (int64_t)i * LANES, lanes->count);
    }
}

static void load(const conv_fft_division *d, const conv_fft_tensor *t, mica_dtype type,
                 const void *data, const conv_fft_lanes *lanes, const int64_t *take, void *points)
{
    int cols = d->axis[1].points, pitch = d->half + 1;
    point *to = points;
    for (int r = 0; r < d->axis[0].points; r++, to += pitch) {
        int64_t row[LANES];
        bool any = false;
        for (int l = 0; l < LANES; l++) {
            bool here = l < lanes->count && lanes->exists[l] && r < take[0];
            row[l] = here ? element_at(t, 0, lanes->start[l][0] + r) : -1;
            any |= row[l] >= 0;
        }
        if (!any) {
            memset(to, 0, (size_t)d->half * sizeof *to);
            continue;
        }
        if (lanes->neighbours) {
            load_neighbours(t, type, data, lanes, row[0], lanes->start[0][1] + take[1], cols, to);
            continue;
        }
        for (int c = 0; c < cols; c += RUN) {
            MICA_ALIGNED real run[LANES][RUN];
            int n = cols - c < RUN ? cols - c : RUN;
            for (int l = 0; l < LANES; l++) {
                if (row[l] < 0)
                    memset(run[l], 0, sizeof run[l]);
                else
                    load_run(t, type, data, lanes->offset[l] + row[l] * t->s[0],
                             lanes->start[l][1] + c, lanes->start[l][1] + take[1], n, run[l]);
            }
            columns_to_points((const real(*)[RUN])run, n, to + c / 2);
        }
    }
}

/* Results at positions x to before x + n of lane l's row. */
static void store_run(const conv_fft_problem *p, const mica_conv_job *job,
                      const conv_fft_lanes *lanes, int l, int64_t row, int64_t x, int n, real *v)
{
    const conv_fft_tensor *t = &p->result;
    int64_t spacing = t->spacing[1], first = (x + spacing - 1) / spacing, count = 0;
    if (spacing == 1)
        count = t->size[1] - first < n ? t->size[1] - first : n;
    else
        for (int64_t i = first * spacing - x; i < n && first + count < t->size[1]; i += spacing)
            v[count++] = v[i];
    if (count <= 0) return;
    mica_conv_line line = {.n = count,
                           .offset = lanes->offset[l] + row * t->s[0] + first * t->s[1],
                           .step = t->s[1],
                           .residual = lanes->residual[l] + row * p->residual_s[0] +
                                       first * p->residual_s[1],
                           .residual_step = p->residual_s[1],
                           .channel = lanes->channel[l]};
    finish(job, &line, v);
}

static void store_neighbours(const conv_fft_problem *p, const mica_conv_job *job,
                             const conv_fft_lanes *lanes, int64_t row, int64_t n, real scale,
                             const point *from)
{
    const conv_fft_tensor *t = &p->result;
    for (int64_t i = 0; i < n; i++) {
        int64_t e = element_at(t, 1, lanes->start[0][1] + i);
        if (e < 0) continue;
        MICA_ALIGNED real v[LANES];
        memcpy(v, (const real *)from + i * LANES, sizeof v);
        for (int l = 0; l < LANES; l++) v[l] *= scale;
        mica_conv_line line = {.n = lanes->count,
                               .offset = lanes->offset[0] + row * t->s[0] + e * t->s[1],
                               .step = 1,
                               .residual = lanes->residual[0] + row * p->residual_s[0] +
                                           e * p->residual_s[1],
                               .residual_step = p->residual_c,
                               .channel = lanes->channel[0],
                               .channel_step = 1};
        finish(job, &line, v);
    }
}

static void store(const conv_fft_division *d, const conv_fft_problem *p, const mica_conv_job *job,
                  const conv_fft_lanes *lanes, const int64_t *take, const void *points)
{
    const real scale = (real)d->scale;
    const point *from = points;
    for (int r = 0; r < take[0]; r++, from += d->half + 1) {
        int64_t row = element_at(&p->result, 0, lanes->start[0][0] + r);
        if (lanes->neighbours) {
            if (row >= 0) store_neighbours(p, job, lanes, row, take[1], scale, from);
            continue;
        }
        for (int c = 0; c < take[1]; c += RUN) {
            MICA_ALIGNED real run[LANES][RUN];
            int64_t left = take[1] - c;
            int n = left < RUN ? (int)left : RUN, whole = (n + LANES - 1) / LANES * LANES;
            points_to_columns(from + c / 2, whole, scale, run);
            for (int l = 0; l < lanes->count; l++) {
                row = element_at(&p->result, 0, lanes->start[l][0] + r);
                if (lanes->exists[l] && row >= 0)
                    store_run(p, job, lanes, l, row, lanes->start[l][1] + c, n, run[l]);
            }
        }
    }
}

#if REAL_F64
#define LOOPS conv_fft_loops_f64
#else
#define LOOPS conv_fft_loops_f32
#endif
const conv_fft_loops LOOPS = {.lanes = LANES,
                              .roots = make_roots,
                              .load = load,
                              .forward = forward,
                              .inverse = inverse,
                              .multiply = multiply,
                              .add = add_points,
                              .fold = fold,
                              .store = store,
                              .to_plane = to_plane,
                              .from_plane = from_plane};
