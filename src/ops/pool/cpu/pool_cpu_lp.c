/* SPDX-License-Identifier: Apache-2.0
 * Norms over windows on the CPU, in f64. Work is cut into runs: results side by side, channels
 * where those are adjacent in memory, else columns. A run takes tap after tap of all its windows.
 * Powers of what is not f64 fit a double; where a sum leaves the range in which all of its digits
 * are sure, the window is formed again from multiples of the power of two below its largest
 * element. */
#include "ops/pool/cpu/pool_cpu.h"
#include "cpu/scratch.h"
#include "ops/convert/cpu/convert.h"

#include <math.h>
#include <string.h>

#define INLINE __attribute__((always_inline)) static inline

enum { RUN = 512, WHOLE = 8 };

typedef struct job {
    const mica_pool_call *k;
    const mica_pool_desc *d;
    const void *input, *output;
    long long input_strides[5], output_strides[5];
    int whole; /* p, if it is a whole number up to WHOLE; else 0 */
} job;

/* A run: the first result's place, and how many lie side by side along `axis` (1: C, 4: W). */
typedef struct run {
    int64_t at[5], n;
    int axis;
} run;

typedef struct buffers {
    double sum[RUN], value[RUN], y[RUN], dy[RUN];
} buffers;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- powers ---- */

INLINE void powers_of(double *v, int64_t n, double p, int whole, bool is_signed)
{
    if (!is_signed)
        for (int64_t i = 0; i < n; i++) v[i] = fabs(v[i]);
    if (!whole) {
        for (int64_t i = 0; i < n; i++) v[i] = pow(v[i], p);
        return;
    }
    if (whole == 2) {
        for (int64_t i = 0; i < n; i++) v[i] *= v[i];
        return;
    }
    for (int64_t i = 0; i < n && whole > 2; i++) {
        double r = v[i];
        for (int k = 1; k < whole; k++) r *= v[i];
        v[i] = r;
    }
}

MICA_MEMORY_CLONES
static void add_powers(double *sum, double *v, int64_t n, double p, int whole, bool is_signed)
{
    powers_of(v, n, p, whole, is_signed);
    for (int64_t i = 0; i < n; i++) sum[i] += v[i];
}

MICA_MEMORY_CLONES
static void take_roots(double *v, int64_t n, double p, int whole)
{
    if (whole == 1) return;
    if (whole == 2)
        for (int64_t i = 0; i < n; i++) v[i] = sqrt(v[i]);
    else
        for (int64_t i = 0; i < n; i++) v[i] = pow(v[i], 1 / p);
}

/* Plain sums always do. */
static bool stands(const job *j, double sum)
{
    return j->whole == 1 || (fabs(sum) >= 0x1p-900 && fabs(sum) <= 0x1p900);
}

/* ---- forward ---- */

static int64_t offset_of(const long long strides[5], const int64_t at[5])
{
    int64_t offset = 0;
    for (int i = 0; i < 5; i++) offset += at[i] * strides[i];
    return offset;
}

/* A window on its own: its largest |x|, or the powers of multiples of `largest`. */
static double walk(const job *j, const int64_t at[5], double largest)
{
    const mica_pool_state *s = j->k->state;
    const mica_pool_axis *a = s->axes;
    int64_t from[3], to[3], tap[5] = {at[0], at[1]};
    double found = 0;
    for (int i = 0; i < 3; i++) mica_pool_valid(&a[i], at[i + 2], &from[i], &to[i]);
    for (int64_t d = from[0]; d < to[0]; d++)
        for (int64_t h = from[1]; h < to[1]; h++)
            for (int64_t w = from[2]; w < to[2]; w++) {
                double v;
                tap[2] = mica_pool_first(&a[0], at[2]) + d * a[0].dilation;
                tap[3] = mica_pool_first(&a[1], at[3]) + h * a[1].dilation;
                tap[4] = mica_pool_first(&a[2], at[4]) + w * a[2].dilation;
                mica_to_f64(s->type, j->k->in, offset_of(s->x, tap), 1, &v, 1);
                if (largest == 0) {
                    if (!(fabs(v) <= found) && found == found) found = fabs(v);
                    continue;
                }
                v /= largest;
                powers_of(&v, 1, j->d->p, j->whole, j->d->signed_powers);
                found += v;
            }
    return found;
}

/* What elements are taken as multiples of: the power of two below the largest, by which powers of
 * integers stay exact and those that cancel do so; powers above 64 need the largest itself. */
static double unit_of(double largest, double p)
{
    int exponent;
    if (isinf(largest)) return 1;
    if (!(largest > 0) || p > 64) return largest;
    frexp(largest, &exponent);
    return ldexp(1, exponent - 1);
}

static double form_again(const job *j, const int64_t at[5])
{
    const double largest = walk(j, at, 0), unit = unit_of(largest, j->d->p);
    if (!(largest > 0) || (isinf(largest) && !j->d->signed_powers)) return largest;
    double sum = walk(j, at, unit) * mica_pool_rescale(j->d, j->k->state->axes, at + 2);
    take_roots(&sum, 1, j->d->p, j->whole);
    return unit * sum;
}

/* Adds tap kw of windows [from, to) of the run along W, whose other coordinates are `tap`'s. */
static void add_column(const job *j, const run *r, const int64_t tap[5], int64_t kw, buffers *b)
{
    const mica_pool_state *s = j->k->state;
    const mica_pool_axis *w = &s->axes[2];
    int64_t at[5] = {tap[0], tap[1], tap[2], tap[3]}, from = 0, to = r->n;
    const int64_t column = mica_pool_first(w, r->at[4]) + kw * w->dilation;
    if (column < 0) from = (-column - 1) / w->stride + 1;
    to = column < w->x ? least(to, (w->x - 1 - column) / w->stride + 1) : 0;
    if (from >= to) return;
    at[4] = column + from * w->stride;
    mica_to_f64(s->type, j->k->in, offset_of(s->x, at), w->stride * s->x[4], b->value, to - from);
    add_powers(b->sum + from, b->value, to - from, j->d->p, j->whole, j->d->signed_powers);
}

static void add_row(const job *j, const run *r, int64_t d, int64_t h, buffers *b)
{
    const mica_pool_state *s = j->k->state;
    const mica_pool_axis *w = &s->axes[2];
    int64_t tap[5] = {r->at[0], r->at[1], d, h, 0}, from, to;
    if (r->axis == 4 && !w->adaptive) {
        for (int64_t k = 0; k < w->window; k++) add_column(j, r, tap, k, b);
        return;
    }
    for (int64_t o = 0; o < (r->axis == 4 ? r->n : 1); o++) {
        mica_pool_valid(w, r->at[4] + o, &from, &to);
        for (int64_t k = from; k < to; k++) {
            tap[4] = mica_pool_first(w, r->at[4] + o) + k * w->dilation;
            const int64_t n = r->axis == 4 ? 1 : r->n;
            mica_to_f64(s->type, j->k->in, offset_of(s->x, tap), s->x[1], b->value, n);
            add_powers(b->sum + o, b->value, n, j->d->p, j->whole, j->d->signed_powers);
        }
    }
}

static void forward_run(const job *j, const run *r, buffers *b)
{
    const mica_pool_state *s = j->k->state;
    const mica_pool_axis *a = s->axes;
    int64_t d_from, d_to, h_from, h_to, at[5];
    memset(b->sum, 0, (size_t)r->n * sizeof *b->sum);
    mica_pool_valid(&a[0], r->at[2], &d_from, &d_to);
    mica_pool_valid(&a[1], r->at[3], &h_from, &h_to);
    for (int64_t d = d_from; d < d_to; d++)
        for (int64_t h = h_from; h < h_to; h++)
            add_row(j, r, mica_pool_first(&a[0], r->at[2]) + d * a[0].dilation,
                    mica_pool_first(&a[1], r->at[3]) + h * a[1].dilation, b);
    memcpy(at, r->at, sizeof at);
    bool all = true;
    for (int64_t i = 0; i < r->n; i++, at[r->axis]++) {
        if (j->d->rescale) b->sum[i] *= mica_pool_rescale(j->d, a, at + 2);
        all &= stands(j, b->sum[i]);
        b->value[i] = b->sum[i];
    }
    take_roots(b->value, r->n, j->d->p, j->whole);
    memcpy(at, r->at, sizeof at);
    for (int64_t i = 0; i < r->n && !all; i++, at[r->axis]++)
        if (!stands(j, b->sum[i])) b->value[i] = form_again(j, at);
    mica_pool_store_run(j->k, offset_of(s->y, r->at), s->y[r->axis], b->value, r->n);
}

/* ---- backward ---- */

static double slope(const job *j, double x, double y)
{
    const double p = j->d->p;
    if (j->d->signed_powers) return p == 1 ? 1 : y == 0 ? 0 : pow(x / y, p - 1);
    if (x == 0 || y == 0) return 0;
    if (x != x) return x;
    return copysign(p == 2 ? fabs(x) / y : pow(fabs(x) / y, p - 1), x);
}

/* Element `from` and all `step` further of a run get from windows that lie side by side. */
static void take_windows(const job *j, const run *r, const int64_t window[5], int64_t from,
                         int64_t step, int64_t n, buffers *b)
{
    const mica_pool_state *s = j->k->state;
    int64_t at[5];
    memcpy(at, window, sizeof at);
    mica_to_f64(s->type, j->k->in, offset_of(s->y, window), s->y[r->axis], b->dy, n);
    mica_to_f64(s->type, j->output, offset_of(j->output_strides, window),
                j->output_strides[r->axis], b->y, n);
    for (int64_t i = 0; i < n; i++, at[r->axis]++) {
        double g = b->dy[i] * slope(j, b->value[from + i * step], b->y[i]);
        if (j->d->rescale) g *= mica_pool_rescale(j->d, s->axes, at + 2);
        b->sum[from + i * step] += g;
    }
}

/* Row d, h of windows, to a run of columns: tap by tap. */
static void take_row(const job *j, const run *r, int64_t d, int64_t h, buffers *b)
{
    const mica_pool_axis *w = &j->k->state->axes[2];
    int64_t window[5] = {r->at[0], r->at[1], d, h, 0}, o_from, o_to, unused;
    mica_pool_covering(w, r->at[4], &o_from, &unused);
    mica_pool_covering(w, r->at[4] + r->n - 1, &unused, &o_to);
    for (int64_t o = o_from; o < o_to; o++) {
        const int64_t first = mica_pool_first(w, o) - r->at[4], taps = mica_pool_taps(w, o);
        window[4] = o;
        for (int64_t k = first < 0 ? (-first - 1) / w->dilation + 1 : 0; k < taps; k++) {
            const int64_t element = first + k * w->dilation;
            if (element >= r->n) break;
            take_windows(j, r, window, element, 1, 1, b);
        }
    }
}

static void backward_run(const job *j, const run *r, buffers *b)
{
    const mica_pool_state *s = j->k->state;
    const mica_pool_axis *a = s->axes;
    int64_t from[3], to[3], window[5] = {r->at[0], r->at[1]};
    memset(b->sum, 0, (size_t)r->n * sizeof *b->sum);
    mica_to_f64(s->type, j->input, offset_of(j->input_strides, r->at), j->input_strides[r->axis],
                b->value, r->n);
    for (int i = 0; i < 3; i++) mica_pool_covering(&a[i], r->at[i + 2], &from[i], &to[i]);
    for (window[2] = from[0]; window[2] < to[0]; window[2]++)
        for (window[3] = from[1]; window[3] < to[1]; window[3]++) {
            if (!mica_pool_hits(&a[0], window[2], r->at[2])) continue;
            if (!mica_pool_hits(&a[1], window[3], r->at[3])) continue;
            if (r->axis == 4) {
                take_row(j, r, window[2], window[3], b);
                continue;
            }
            for (window[4] = from[2]; window[4] < to[2]; window[4]++)
                if (mica_pool_hits(&a[2], window[4], r->at[4]))
                    take_windows(j, r, window, 0, 1, r->n, b);
        }
    mica_pool_store_run(j->k, offset_of(s->x, r->at), s->x[r->axis], b->sum, r->n);
}

/* ---- runs ---- */

static void do_run(const job *j, int64_t task, const int64_t sizes[5], int axis)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    buffers *b = mica_scratch_take(sizeof *b);
    run r = {.axis = axis};
    for (int i = 4; i >= 0; i--) {
        const int64_t n = i == axis ? (sizes[i] - 1) / RUN + 1 : sizes[i];
        r.at[i] = task % n * (i == axis ? RUN : 1);
        task /= n;
    }
    r.n = least(RUN, sizes[axis] - r.at[axis]);
    if (j->k->state->backward)
        backward_run(j, &r, b);
    else
        forward_run(j, &r, b);
}

void mica_pool_lp_run(const mica_plan *plan, const mica_run *run, const mica_pool_call *k)
{
    const mica_pool_desc *d = plan->desc;
    const mica_pool_state *s = k->state;
    job j = {.k = k, .d = d};
    int64_t sizes[5] = {s->n, s->c}, tasks = 1;
    const int axis = s->channels ? 1 : 4;
    j.whole = d->p <= WHOLE && d->p == (double)(int)d->p ? (int)d->p : 0;
    mica_pool_strides(&d->input, j.input_strides);
    mica_pool_strides(&d->output, j.output_strides);
    if (s->backward) j.input = run->args[MICA_POOL_INPUT], j.output = run->args[MICA_POOL_OUTPUT];
    for (int i = 0; i < 3; i++) sizes[i + 2] = s->backward ? s->axes[i].x : s->axes[i].y;
    for (int i = 0; i < 5; i++)
        tasks *= i == axis && sizes[i] ? (sizes[i] - 1) / RUN + 1 : sizes[i];
#pragma omp parallel for num_threads(mica_cpu_threads_for(s->bytes)) schedule(static)
    for (int64_t task = 0; task < tasks; task++) do_run(&j, task, sizes, axis);
}
