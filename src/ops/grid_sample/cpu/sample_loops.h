/* SPDX-License-Identifier: Apache-2.0
 * Loops of grid_sample for one type of sums. The including file defines real, LOOPS (the name of
 * the table), F32 (1, or 0 for doubles), and the functions of grid_sample_body.h. */
#include "ops/grid_sample/cpu/grid_sample_cpu.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "ops/convert/cpu/convert.h"

#define SAMPLE static inline
#include "ops/grid_sample/grid_sample_body.h"

static void load(mica_dtype type, const void *data, int64_t at, int64_t step, real *v, int64_t n)
{
#if F32
    mica_to_f32(type, data, at, step, v, n);
#else
    mica_to_f64(type, data, at, step, v, n);
#endif
}

static void store(mica_dtype type, void *data, int64_t at, int64_t step, const real *v, int64_t n)
{
#if F32
    mica_from_f32(type, data, at, step, v, n);
#else
    mica_from_f64(type, data, at, step, v, n);
#endif
}

/* ---- blocks of outputs ---- */

/* Strides may be negative, so that any other number may be an offset. */
#define NO_TAP INT64_MIN

typedef struct block {
    int64_t n, first, count; /* of sample n, outputs from the first-th on */
    int64_t y, grid, dgrid;  /* offsets of the first; the others follow by the last axis */
    int64_t at[SAMPLE_MOST][SAMPLE_BLOCK]; /* offsets of taps, or NO_TAP */
    real weight[SAMPLE_MOST][SAMPLE_BLOCK];
    real slope[MICA_TAPS_AXES][SAMPLE_MOST][SAMPLE_BLOCK];
    real scale[MICA_TAPS_AXES][SAMPLE_BLOCK]; /* of slopes */
    real grid_values[MICA_TAPS_AXES][SAMPLE_BLOCK];
    int64_t grid_at[SAMPLE_BLOCK];
    real values[SAMPLE_BLOCK], sums[SAMPLE_MOST][SAMPLE_BLOCK];
    real piece[SAMPLE_PIECE], others[SAMPLE_PIECE];
    uint16_t bits[SAMPLE_BLOCK];
} block;

/* Offsets of output i of a sample, by axes. */
static int64_t place(const mica_grid_sample_job *j, const mica_taps_strides *s, int64_t i)
{
    int64_t at = 0;
    for (int a = j->axes - 1; a >= 0; a--) {
        at += i % j->args.shape.out[a] * s->at[a];
        i /= j->args.shape.out[a];
    }
    return at;
}

static void combine(const mica_grid_sample_job *j, const mica_taps_strides *x,
                    const sample_axis *axis, bool slopes, int64_t o, block *b)
{
    const int taps = j->taps;
    const int all = j->axes == 3 ? taps * taps * taps : taps * taps;
    for (int k = 0; k < all; k++) {
        int64_t at = 0;
        int which[MICA_TAPS_AXES] = {0}, rest = k;
        real w = 1;
        bool inside = true;
        for (int a = j->axes - 1; a >= 0; a--) which[a] = rest % taps, rest /= taps;
        for (int a = 0; a < j->axes; a++) {
            const int64_t i = axis[a].at[which[a]];
            inside &= i >= 0;
            at += i * x->at[a];
            w *= axis[a].weight[which[a]];
        }
        b->at[k][o] = inside ? at : NO_TAP;
        b->weight[k][o] = w;
        for (int d = 0; slopes && d < j->axes; d++) {
            real s = axis[d].slope[which[d]];
            for (int a = 0; a < j->axes; a++)
                if (a != d) s *= axis[a].weight[which[a]];
            b->slope[d][k][o] = s;
        }
    }
}

/* The block from output i on, of (n, output); x: strides that taps are offsets by. */
static void locate(const mica_grid_sample_job *j, const mica_taps_strides *x, bool slopes,
                   int64_t i, int64_t end, block *b)
{
    const mica_grid_sample_args *a = &j->args;
    b->n = i / a->shape.out_count, b->first = i % a->shape.out_count;
    const int64_t left = j->row - b->first % j->row;
    b->count = end - i < left ? end - i : left;
    if (b->count > SAMPLE_BLOCK) b->count = SAMPLE_BLOCK;
    b->y = b->n * a->y_step.n + place(j, &a->y_step, b->first);
    for (int64_t o = 0; o < b->count; o++) {
        b->grid_at[o] = b->n * a->grid_step.n + place(j, &a->grid_step, b->first + o);
        for (int d = 0; d < j->axes; d++)
            load(j->grid_type, a->grid, b->grid_at[o] + (j->axes - 1 - d) * a->grid_step.c, 1,
                 &b->grid_values[d][o], 1);
    }
    for (int64_t o = 0; o < b->count; o++) {
        sample_axis axis[MICA_TAPS_AXES];
        for (int d = 0; d < j->axes; d++)
            b->scale[d][o] = sample_along(j->mode, j->padding, j->align, b->grid_values[d][o],
                                          a->shape.in[d], &axis[d]);
        combine(j, x, axis, slopes, o, b);
    }
}

/* Elements of plane `at`, at the taps; 0 where there is none. */
static void gather(const mica_grid_sample_job *j, int64_t at, const int64_t *taps, int64_t n,
                   block *b)
{
    const void *x = j->args.x;
    real *v = b->values;
    if (j->type == MICA_F64 || j->type == MICA_F32) {
        const real *from = (const real *)x + at;
        for (int64_t o = 0; o < n; o++) v[o] = taps[o] == NO_TAP ? 0 : from[taps[o]];
        return;
    }
    const uint16_t *from = (const uint16_t *)x + at;
    for (int64_t o = 0; o < n; o++) b->bits[o] = taps[o] == NO_TAP ? 0 : from[taps[o]];
    load(j->type, b->bits, 0, 1, v, n);
}

MICA_NARROW_CLONES
static void add_products(real *sums, const real *a, const real *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) sums[i] += a[i] * b[i];
}

/* Taps without an element keep out of sums, whatever their weight. */
MICA_NARROW_CLONES
static void add_taps(real *sums, const int64_t *at, const real *w, const real *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) sums[i] = at[i] == NO_TAP ? sums[i] : sums[i] + w[i] * v[i];
}

MICA_NARROW_CLONES
static void add_scaled(real *sums, real w, const real *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) sums[i] += w * v[i];
}

static int all_taps(const mica_grid_sample_job *j)
{
    return j->axes == 3 ? j->taps * j->taps * j->taps : j->taps * j->taps;
}

/* ---- forward ---- */

static void forward_planes(const mica_grid_sample_job *j, int64_t c, int64_t c_end, block *b)
{
    const mica_grid_sample_args *a = &j->args;
    const int taps = all_taps(j);
    for (; c < c_end; c++) {
        real *sums = b->sums[0];
        for (int64_t o = 0; o < b->count; o++) sums[o] = 0;
        for (int k = 0; k < taps; k++) {
            gather(j, b->n * a->x_step.n + c * a->x_step.c, b->at[k], b->count, b);
            add_taps(sums, b->at[k], b->weight[k], b->values, b->count);
        }
        store(j->type, a->y, b->y + c * a->y_step.c, a->y_step.at[j->axes - 1], sums, b->count);
    }
}

static void forward_columns(const mica_grid_sample_job *j, int64_t c, int64_t c_end, block *b)
{
    const mica_grid_sample_args *a = &j->args;
    const int taps = all_taps(j);
    for (int64_t o = 0; o < b->count; o++)
        for (int64_t from = c; from < c_end; from += SAMPLE_PIECE) {
            const int64_t n = c_end - from < SAMPLE_PIECE ? c_end - from : SAMPLE_PIECE;
            for (int64_t i = 0; i < n; i++) b->piece[i] = 0;
            for (int k = 0; k < taps; k++) {
                if (b->at[k][o] == NO_TAP) continue;
                load(j->type, a->x, b->n * a->x_step.n + b->at[k][o] + from, 1, b->others, n);
                add_scaled(b->piece, b->weight[k][o], b->others, n);
            }
            store(j->type, a->y, b->y + o * a->y_step.at[j->axes - 1] + from, 1, b->piece, n);
        }
}

static void forward(const mica_grid_sample_job *j, int64_t first, int64_t end, int64_t c,
                    int64_t c_end)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    block *b = mica_scratch_take(sizeof *b);
    for (; first < end; first += b->count) {
        locate(j, &j->args.x_step, false, first, end, b);
        if (j->channels_last)
            forward_columns(j, c, c_end, b);
        else
            forward_planes(j, c, c_end, b);
    }
}

/* ---- gradient of x ---- */

static void scatter(const mica_grid_sample_job *j, int64_t first, int64_t end, int64_t c,
                    int64_t c_end, void *sums)
{
    const mica_grid_sample_args *a = &j->args;
    const mica_taps_strides *s = &j->sum_step;
    const int taps = all_taps(j);
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    block *b = mica_scratch_take(sizeof *b);
    for (; first < end; first += b->count) {
        locate(j, s, false, first, end, b);
        real *to = (real *)sums + b->n * s->n;
        const int64_t step = a->y_step.at[j->axes - 1];
        if (j->channels_last) {
            for (int64_t o = 0; o < b->count; o++)
                for (int64_t from = c; from < c_end; from += SAMPLE_PIECE) {
                    const int64_t n = c_end - from < SAMPLE_PIECE ? c_end - from : SAMPLE_PIECE;
                    load(j->type, a->dy, b->y + o * step + from, 1, b->piece, n);
                    for (int k = 0; k < taps; k++)
                        if (b->at[k][o] != NO_TAP)
                            add_scaled(to + b->at[k][o] + from, b->weight[k][o], b->piece, n);
                }
            continue;
        }
        for (int64_t plane = c; plane < c_end; plane++) {
            load(j->type, a->dy, b->y + plane * a->y_step.c, step, b->values, b->count);
            for (int64_t o = 0; o < b->count; o++)
                for (int k = 0; k < taps; k++)
                    if (b->at[k][o] != NO_TAP)
                        to[plane * s->c + b->at[k][o]] += b->weight[k][o] * b->values[o];
        }
    }
}

/* ---- gradient of the grid ---- */

/* Sums over channels of dy times each tap's element. */
static void add_planes(const mica_grid_sample_job *j, block *b)
{
    const mica_grid_sample_args *a = &j->args;
    const int taps = all_taps(j);
    for (int64_t c = 0; c < a->shape.c; c++) {
        load(j->type, a->dy, b->y + c * a->y_step.c, a->y_step.at[j->axes - 1], b->piece, b->count);
        for (int k = 0; k < taps; k++) {
            gather(j, b->n * a->x_step.n + c * a->x_step.c, b->at[k], b->count, b);
            add_products(b->sums[k], b->piece, b->values, b->count);
        }
    }
}

static void add_columns(const mica_grid_sample_job *j, block *b)
{
    const mica_grid_sample_args *a = &j->args;
    const int taps = all_taps(j);
    for (int64_t o = 0; o < b->count; o++)
        for (int64_t from = 0; from < a->shape.c; from += SAMPLE_PIECE) {
            const int64_t left = a->shape.c - from, n = left < SAMPLE_PIECE ? left : SAMPLE_PIECE;
            load(j->type, a->dy, b->y + o * a->y_step.at[j->axes - 1] + from, 1, b->piece, n);
            for (int k = 0; k < taps; k++) {
                if (b->at[k][o] == NO_TAP) continue;
                load(j->type, a->x, b->n * a->x_step.n + b->at[k][o] + from, 1, b->others, n);
                real sum = b->sums[k][o];
                for (int64_t i = 0; i < n; i++) sum += b->piece[i] * b->others[i];
                b->sums[k][o] = sum;
            }
        }
}

static void slopes(const mica_grid_sample_job *j, int64_t first, int64_t end)
{
    const mica_grid_sample_args *a = &j->args;
    const int taps = all_taps(j);
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    block *b = mica_scratch_take(sizeof *b);
    for (; first < end; first += b->count) {
        locate(j, &a->x_step, true, first, end, b);
        for (int k = 0; k < taps; k++)
            for (int64_t o = 0; o < b->count; o++) b->sums[k][o] = 0;
        if (j->channels_last)
            add_columns(j, b);
        else
            add_planes(j, b);
        for (int64_t o = 0; o < b->count; o++) {
            const int64_t at = b->n * a->dgrid_step.n + place(j, &a->dgrid_step, b->first + o);
            for (int d = 0; d < j->axes; d++) {
                real sum = 0;
                for (int k = 0; k < taps && b->scale[d][o] != 0; k++)
                    if (b->at[k][o] != NO_TAP) sum += b->slope[d][k][o] * b->sums[k][o];
                if (b->scale[d][o] != 0) sum *= b->scale[d][o];
                store(j->dgrid_type, a->dgrid, at + (j->axes - 1 - d) * a->dgrid_step.c, 1, &sum,
                      1);
            }
        }
    }
}

const mica_grid_sample_loops LOOPS = {forward, scatter, slopes};
