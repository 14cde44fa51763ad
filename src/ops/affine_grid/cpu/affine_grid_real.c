/* SPDX-License-Identifier: Apache-2.0
 * Grids of affine maps in f32, and in f64: a piece of a row at a time. */
#include "ops/affine_grid/cpu/affine_grid_cpu.h"
#include "cpu/scratch.h"
#include "ops/convert/cpu/real.h"

#if REAL_F64
#define FORWARD  mica_affine_grid_forward_f64
#define BACKWARD mica_affine_grid_backward_f64
#else
#define FORWARD  mica_affine_grid_forward_f32
#define BACKWARD mica_affine_grid_backward_f32
#endif

enum { COLUMNS = MICA_AFFINE_AXES + 1 };

CLONES static void find_bases(real *restrict base, int64_t first, int64_t last, real by, int64_t n)
{
    for (int64_t i = 0; i < n; i++) base[i] = (real)(2 * (first + i) - last) / by;
}

/* Coordinates side by side: two or three of each output. */
CLONES static void fill_2(real *restrict to, const real *restrict base, const real *f,
                          const real *rest, int64_t n)
{
    const real f0 = f[0], f1 = f[1], r0 = rest[0], r1 = rest[1];
    for (int64_t i = 0; i < n; i++) {
        to[2 * i] = base[i] * f0 + r0;
        to[2 * i + 1] = base[i] * f1 + r1;
    }
}

CLONES static void fill_3(real *restrict to, const real *restrict base, const real *f,
                          const real *rest, int64_t n)
{
    const real f0 = f[0], f1 = f[1], f2 = f[2], r0 = rest[0], r1 = rest[1], r2 = rest[2];
    for (int64_t i = 0; i < n; i++) {
        to[3 * i] = base[i] * f0 + r0;
        to[3 * i + 1] = base[i] * f1 + r1;
        to[3 * i + 2] = base[i] * f2 + r2;
    }
}

/* A row: its sample, its base coordinates but the last axis's (that of x, which is base[0]), 1 as
 * the last, and where it begins. */
typedef struct row {
    real base[COLUMNS];
    int64_t at;
} row;

static row find_row(const mica_affine_walk *w, int64_t n, int64_t i)
{
    row r = {.at = n * w->grid->strides[0]};
    r.base[w->axes] = 1;
    for (int a = w->axes - 1; a > 0; a--) {
        const int64_t size = w->grid->dims[a], k = i % size;
        r.base[w->axes - a] = (real)mica_affine_grid_base(w->d, k, size);
        r.at += k * w->grid->strides[a];
        i /= size;
    }
    return r;
}

static void bases_along(const mica_affine_walk *w, int64_t first, int64_t n, real *base)
{
    const int64_t size = w->columns, by = w->d->align_corners ? size - 1 : size;
    find_bases(base, first, size - 1, by > 0 ? (real)by : 1, n);
}

/* ---- forward ---- */

static void forward_piece(const mica_affine_walk *w, const row *r, const real *f, const real *rest,
                          int64_t first, const real *base, int64_t n, real *made, void *grid)
{
    const int64_t step = w->grid->strides[w->axes], beside = w->grid->strides[w->axes + 1];
    const int64_t at = r->at + first * step;
    if (w->axes == 2)
        fill_2(made, base, f, rest, n);
    else
        fill_3(made, base, f, rest, n);
    if (beside == 1 && step == w->axes) {
        real_store(w->grid->dtype, grid, at, 1, made, n * w->axes);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        real_store(w->grid->dtype, grid, at + i * step, beside, made + i * w->axes, w->axes);
}

static void forward_row(const mica_affine_walk *w, const void *theta, int64_t n, int64_t i,
                        real *base, real *made, void *grid)
{
    const mica_tensor *t = w->theta;
    const row r = find_row(w, n, i);
    real f[MICA_AFFINE_AXES], rest[MICA_AFFINE_AXES];
    for (int a = 0; a < w->axes; a++) {
        real map[COLUMNS];
        real_load(t->dtype, theta, n * t->strides[0] + a * t->strides[1], t->strides[2], map,
                  w->axes + 1);
        f[a] = map[0], rest[a] = 0;
        for (int k = 1; k <= w->axes; k++) rest[a] += map[k] * r.base[k];
    }
    for (int64_t first = 0; first < w->columns; first += MICA_AFFINE_PIECE) {
        const int64_t left = w->columns - first;
        const int64_t some = left < MICA_AFFINE_PIECE ? left : MICA_AFFINE_PIECE;
        /* Those of a row of one piece stay. */
        if (w->columns > MICA_AFFINE_PIECE) bases_along(w, first, some, base);
        forward_piece(w, &r, f, rest, first, base, some, made, grid);
    }
}

void FORWARD(const mica_affine_walk *w, const void *theta, void *grid)
{
    const int threads = mica_cpu_threads_for(w->bytes);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        mica_scratch scope MICA_SCOPED = mica_scratch_open();
        real *base = mica_scratch_take(MICA_AFFINE_PIECE * sizeof *base);
        real *made = mica_scratch_take(MICA_AFFINE_AXES * MICA_AFFINE_PIECE * sizeof *made);
        if (w->columns <= MICA_AFFINE_PIECE) bases_along(w, 0, w->columns, base);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < w->samples * w->rows; i++)
            forward_row(w, theta, i / w->rows, i % w->rows, base, made, grid);
    }
}

/* ---- backward ---- */

/* Of two coordinates or three side by side, in turn: lanes are of both numbers. */
enum { LANES = 24 };

/* Sums of lanes, and of them times the base coordinates. */
CLONES static void sum_piece(const real *restrict v, const real *restrict base, int64_t n,
                             real *restrict sum, real *restrict product)
{
    real s[LANES] = {0}, p[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) s[k] += v[i + k], p[k] += v[i + k] * base[i + k];
    for (int k = 0; i + k < n; k++) s[k] += v[i + k], p[k] += v[i + k] * base[i + k];
    for (int k = 0; k < LANES; k++) sum[k] = s[k], product[k] = p[k];
}

/* For each coordinate, as those lie in v. */
static void spread_bases(const mica_affine_walk *w, int64_t first, int64_t n, real *base)
{
    real along[MICA_AFFINE_PIECE];
    bases_along(w, first, n, along);
    for (int64_t i = 0; i < n; i++)
        for (int a = 0; a < w->axes; a++) base[i * w->axes + a] = along[i];
}

static const real *load_piece(const mica_affine_walk *w, const void *dgrid, int64_t at, int64_t n,
                              real *v)
{
    const int64_t step = w->grid->strides[w->axes], beside = w->grid->strides[w->axes + 1];
    if (beside == 1 && step == w->axes) {
        if (w->grid->dtype == REAL_TYPE) return (const real *)dgrid + at;
        real_load(w->grid->dtype, dgrid, at, 1, v, n * w->axes);
        return v;
    }
    for (int64_t i = 0; i < n; i++)
        real_load(w->grid->dtype, dgrid, at + i * step, beside, v + i * w->axes, w->axes);
    return v;
}

/* A part of rows of a sample. */
static void sum_part(const mica_affine_walk *w, const void *dgrid, int64_t n, int64_t part,
                     real *base, real *v, double *sums)
{
    const int64_t end = (part + 1) * w->part < w->rows ? (part + 1) * w->part : w->rows;
    for (int k = 0; k < w->axes * (w->axes + 1); k++) sums[k] = 0;
    for (int64_t i = part * w->part; i < end; i++) {
        const row r = find_row(w, n, i);
        for (int64_t first = 0; first < w->columns; first += MICA_AFFINE_PIECE) {
            const int64_t left = w->columns - first;
            const int64_t some = left < MICA_AFFINE_PIECE ? left : MICA_AFFINE_PIECE;
            real sum[LANES], product[LANES];
            if (w->columns > MICA_AFFINE_PIECE) spread_bases(w, first, some, base);
            const int64_t at = r.at + first * w->grid->strides[w->axes];
            sum_piece(load_piece(w, dgrid, at, some, v), base, some * w->axes, sum, product);
            for (int l = 0; l < LANES; l++) {
                double *to = sums + l % w->axes * (w->axes + 1);
                to[0] += (double)product[l];
                for (int k = 1; k <= w->axes; k++) to[k] += (double)sum[l] * (double)r.base[k];
            }
        }
    }
}

void BACKWARD(const mica_affine_walk *w, const void *dgrid, void *dtheta, double *sums)
{
    const int threads = mica_cpu_threads_for(w->bytes), each = w->axes * (w->axes + 1);
    const mica_tensor *t = w->theta;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        mica_scratch scope MICA_SCOPED = mica_scratch_open();
        real *base = mica_scratch_take(MICA_AFFINE_AXES * MICA_AFFINE_PIECE * sizeof *base);
        real *v = mica_scratch_take(MICA_AFFINE_AXES * MICA_AFFINE_PIECE * sizeof *v);
        if (w->columns <= MICA_AFFINE_PIECE) spread_bases(w, 0, w->columns, base);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < w->samples * w->parts; i++)
            sum_part(w, dgrid, i / w->parts, i % w->parts, base, v, sums + i * each);
    }
    for (int64_t n = 0; n < w->samples; n++)
        for (int k = 0; k < each; k++) {
            double sum = 0;
            for (int64_t i = 0; i < w->parts; i++) sum += sums[(n * w->parts + i) * each + k];
            const real rounded = (real)sum;
            real_store(t->dtype, dtheta,
                       n * t->strides[0] + k / (w->axes + 1) * t->strides[1] +
                           k % (w->axes + 1) * t->strides[2],
                       1, &rounded, 1);
        }
}
