/* SPDX-License-Identifier: Apache-2.0
 * grid_sample in plain loops. Coordinates are rounded as the header says, so that engines agree on
 * which elements they name; weights and sums are in double precision. */
#include "ops/grid_sample/grid_sample.h"

#include "base/memory.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

typedef struct job {
    const mica_grid_sample_desc *d;
    const mica_view *args;
    int axes, taps;
    bool f64;
    mica_taps_shape shape;
} job;

/* Of an axis: indices (-1: none), weights, derivatives by the coordinate and their magnitudes. */
typedef struct along {
    int64_t at[4];
    double weight[4], slope[4], size[4];
    double scale; /* of slopes; 0: it does not move with the grid */
} along;

static double r(const job *j, double v)
{
    return j->f64 ? v : (double)(float)v;
}

static double clipped(double u, double last, double *slope)
{
    if (u > 0 && u < last) return u;
    *slope = 0;
    return u >= last && u > 0 ? last : 0;
}

static double reflected(const job *j, double u, double last, int64_t size, double *slope)
{
    const double low = j->d->align_corners ? 0 : -0.5,
                 span = j->d->align_corners ? last : r(j, (double)size);
    double v = r(j, u - low);
    if (v < 0) v = -v, *slope = -*slope;
    if (span == 0) {
        *slope = 0;
        return 0;
    }
    v = fmod(v, 2 * span);
    if (v > span) v = 2 * span - v, *slope = -*slope;
    return clipped(r(j, v + low), last, slope);
}

static int64_t bordered(const job *j, int64_t i, int64_t size)
{
    if (i >= 0 && i < size) return i;
    switch (j->d->padding) {
    case MICA_GRID_SAMPLE_BORDER:
        return i < 0 ? 0 : size - 1;
    case MICA_GRID_SAMPLE_REFLECTION:
        if (size == 1) return 0;
        if (j->d->align_corners) {
            i = llabs(i) % (2 * (size - 1));
            return i < size ? i : 2 * (size - 1) - i;
        }
        if (i < 0) i = -1 - i;
        i %= 2 * size;
        return i < size ? i : 2 * size - 1 - i;
    default:
        return -1;
    }
}

static void cubic(const job *j, double u, int64_t size, along *a)
{
    const double f = floor(u), A = -0.75, most = r(j, 4e18), first = fmin(fmax(f, -most), most);
    const double t = r(j, u - f), s = r(j, 1 - t); /* distances of the inner taps */
    for (int k = 0; k < 4; k++) {
        const bool inner = k == 1 || k == 2;
        const double sign = k < 2 ? 1 : -1, x = k < 2 ? t : s, other = k < 2 ? s : t;
        a->at[k] = isfinite(f) ? bordered(j, (int64_t)first - 1 + k, size) : 0;
        if (inner) {
            a->weight[k] = other * (1 + x - (A + 2) * x * x);
            a->slope[k] = sign * x * (3 * (A + 2) * x - 2 * (A + 3));
            a->size[k] = fabs(a->slope[k]);
        } else {
            a->weight[k] = A * other * other * x;
            a->slope[k] = sign * A * other * (other - 2 * x);
            a->size[k] = fabs(A * other) * (other + 2 * x);
        }
    }
}

static void find(const job *j, double g, int64_t size, along *a)
{
    const double last = r(j, (double)(size - 1));
    const double half = (j->d->align_corners ? last : r(j, (double)size)) / 2;
    double slope = half, u = r(j, r(j, g + 1) * half);
    if (!j->d->align_corners) u = r(j, u - 0.5);
    a->scale = half;
    if (j->d->mode == MICA_GRID_SAMPLE_BICUBIC) {
        cubic(j, u, size, a);
        return;
    }
    if (j->d->padding == MICA_GRID_SAMPLE_BORDER) u = clipped(u, last, &slope);
    if (j->d->padding == MICA_GRID_SAMPLE_REFLECTION) u = reflected(j, u, last, size, &slope);
    const bool nearest = j->d->mode == MICA_GRID_SAMPLE_NEAREST;
    a->scale = nearest ? 0 : slope;
    const double f = nearest ? rint(u) : floor(u);
    for (int k = 0; k < j->taps; k++) {
        a->at[k] = f + k >= 0 && f + k <= (double)(size - 1) ? (int64_t)(f + k) : -1;
        a->weight[k] = nearest ? 1 : k ? r(j, u - f) : r(j, 1 - r(j, u - f));
        a->slope[k] = k ? 1 : -1;
        a->size[k] = fabs(a->slope[k]);
    }
}

/* ---- taps of all axes ---- */

typedef struct outputs {
    int64_t n, at[MICA_TAPS_AXES];
    along along[MICA_TAPS_AXES];
} outputs;

static int64_t offset(const mica_view *v, int64_t n, int64_t c, const int64_t *at)
{
    int64_t o = n * v->t.strides[0] + c * v->t.strides[1];
    for (int i = 2; i < v->t.rank; i++) o += at[i - 2] * v->t.strides[i];
    return o;
}

static int64_t grid_offset(const mica_view *v, const outputs *o, int coordinate)
{
    int64_t at = o->n * v->t.strides[0] + coordinate * v->t.strides[v->t.rank - 1];
    for (int i = 1; i < v->t.rank - 1; i++) at += o->at[i - 1] * v->t.strides[i];
    return at;
}

static void locate(const job *j, int64_t i, outputs *o)
{
    const mica_view *grid = &j->args[MICA_GRID_SAMPLE_GRID];
    for (int a = j->axes - 1; a >= 0; a--) o->at[a] = i % j->shape.out[a], i /= j->shape.out[a];
    o->n = i;
    for (int a = 0; a < j->axes; a++)
        find(j, mica_get(grid, grid_offset(grid, o, j->axes - 1 - a)), j->shape.in[a],
             &o->along[a]);
}

/* Tap k: where it is; false: nowhere. */
static bool tap(const job *j, const outputs *o, int k, int64_t *at, int *which)
{
    bool inside = true;
    for (int a = j->axes - 1; a >= 0; a--) {
        which[a] = k % j->taps, k /= j->taps;
        at[a] = o->along[a].at[which[a]];
        inside &= at[a] >= 0;
    }
    return inside;
}

static double weight_of(const job *j, const outputs *o, const int *which, int but)
{
    double w = 1;
    for (int a = 0; a < j->axes; a++)
        if (a != but) w *= o->along[a].weight[which[a]];
    return w;
}

static void forward(const job *j, const outputs *o, int taps)
{
    const mica_view *x = &j->args[MICA_GRID_SAMPLE_X], *y = &j->args[MICA_GRID_SAMPLE_Y];
    for (int64_t c = 0; c < j->shape.c; c++) {
        double sum = 0, magnitude = 0;
        for (int k = 0; k < taps; k++) {
            int64_t at[MICA_TAPS_AXES];
            int which[MICA_TAPS_AXES];
            if (!tap(j, o, k, at, which)) continue;
            const double v = mica_get(x, offset(x, o->n, c, at));
            const double w = weight_of(j, o, which, -1);
            sum += w * v, magnitude += fabs(w * v);
        }
        mica_put(y, offset(y, o->n, c, o->at), sum, magnitude);
    }
}

/* Elements of dx from the first-th on. */
typedef struct window {
    int64_t first, count;
    double (*sums)[2]; /* and magnitudes */
} window;

static void scatter(const job *j, const outputs *o, int taps, const window *to)
{
    const mica_view *dy = &j->args[MICA_GRID_SAMPLE_DY];
    for (int k = 0; k < taps; k++) {
        int64_t at[MICA_TAPS_AXES], cell = 0;
        int which[MICA_TAPS_AXES];
        if (!tap(j, o, k, at, which)) continue;
        for (int a = 0; a < j->axes; a++) cell = cell * j->shape.in[a] + at[a];
        const double w = weight_of(j, o, which, -1);
        for (int64_t c = 0; c < j->shape.c; c++) {
            const double v = w * mica_get(dy, offset(dy, o->n, c, o->at));
            const int64_t i = (o->n * j->shape.c + c) * j->shape.in_count + cell - to->first;
            if (i < 0 || i >= to->count) continue;
            to->sums[i][0] += v, to->sums[i][1] += fabs(v);
        }
    }
}

static void slopes(const job *j, const outputs *o, int taps)
{
    const mica_view *x = &j->args[MICA_GRID_SAMPLE_X], *dy = &j->args[MICA_GRID_SAMPLE_DY];
    const mica_view *dgrid = &j->args[MICA_GRID_SAMPLE_DGRID];
    const double end = (j->f64 ? DBL_MAX : (double)FLT_MAX) / 4;
    for (int axis = 0; axis < j->axes; axis++) {
        long double sum = 0, magnitude = 0; /* past the end of f64 only where the result is */
        const along *a = &o->along[axis];
        for (int k = 0; k < taps && a->scale != 0; k++) {
            int64_t at[MICA_TAPS_AXES];
            int which[MICA_TAPS_AXES];
            if (!tap(j, o, k, at, which)) continue;
            const double others = weight_of(j, o, which, axis);
            const double w = others * a->slope[which[axis]], m = others * a->size[which[axis]];
            for (int64_t c = 0; c < j->shape.c; c++) {
                const long double v = (long double)mica_get(x, offset(x, o->n, c, at)) *
                                      mica_get(dy, offset(dy, o->n, c, o->at));
                sum += w * v;
                /* Engines sum products of channels before they meet a weight. */
                magnitude += fabsl(v) > end ? fabsl(v) : fabsl(m * v);
            }
        }
        mica_put(dgrid, grid_offset(dgrid, o, j->axes - 1 - axis),
                 (double)(a->scale != 0 ? sum * a->scale : 0),
                 (double)(magnitude * fabs(a->scale)));
    }
}

/* All at once, or in windows where there is no memory for all. */
static void gradient(const job *j, int64_t count, int taps)
{
    enum { FEW = 256 };
    const mica_view *dx = &j->args[MICA_GRID_SAMPLE_DX];
    const int64_t cells = mica_tensor_count(&dx->t);
    double few[FEW][2], (*all)[2] = mica_alloc((size_t)cells * sizeof *all);
    window w = {.sums = all ? all : few};
    for (; w.first < cells; w.first += w.count) {
        w.count = all || cells - w.first < FEW ? cells - w.first : FEW;
        for (int64_t i = 0; i < w.count; i++) w.sums[i][0] = w.sums[i][1] = 0;
        for (int64_t i = 0; i < count; i++) {
            outputs o;
            locate(j, i, &o);
            scatter(j, &o, taps, &w);
        }
        for (int64_t i = 0; i < w.count; i++)
            mica_put(dx, mica_offset(&dx->t, w.first + i), w.sums[i][0], w.sums[i][1]);
    }
    mica_release(all);
}

void mica_grid_sample_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_grid_sample_desc *d = desc;
    const mica_tensor *y = mica_grid_sample_output(d);
    (void)scalars;
    const job j = {.d = d,
                   .args = args,
                   .axes = y->rank - 2,
                   .taps = mica_grid_sample_taps(d),
                   .f64 = mica_grid_sample_real(d) == MICA_F64,
                   .shape = mica_taps_shape_of(mica_grid_sample_image(d), y)};
    const int taps = mica_grid_sample_all_taps(d);
    const int64_t count = j.shape.n * j.shape.out_count;
    const bool slopes_wanted = args[MICA_GRID_SAMPLE_DGRID].data != NULL;
    for (int64_t i = 0; i < count && (slopes_wanted || mica_grid_sample_is_forward(d)); i++) {
        outputs o;
        locate(&j, i, &o);
        if (slopes_wanted)
            slopes(&j, &o, taps);
        else
            forward(&j, &o, taps);
    }
    if (args[MICA_GRID_SAMPLE_DX].data) gradient(&j, count, taps);
}
