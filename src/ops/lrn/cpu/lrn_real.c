/* SPDX-License-Identifier: Apache-2.0
 * Local response normalisation in f32, and in f64: a line at a time. */
#include "ops/lrn/cpu/lrn_cpu.h"
#include "cpu/cpu.h"
#include "ops/convert/cpu/real.h"

#include <math.h>
#include <omp.h>

#if REAL_F64
#define LRN_LOOPS     mica_lrn_loops_f64
#define of_real(name) name
#else
#define LRN_LOOPS     mica_lrn_loops_f32
#define of_real(name) name##f
#endif
#define frexp_of of_real(frexp)
#define ldexp_of of_real(ldexp)
#define pow_of   of_real(pow)
#define exp2_of  of_real(exp2)
#define log2_of  of_real(log2)
#define rint_of  of_real(rint)
#define floor_of of_real(floor)
#define fma_of   of_real(fma)
#define sqrt_of  of_real(sqrt)
#define LRN      static inline

static inline real lrn_get(const mica_lrn_args *a, const void *data, long long at)
{
    real v;
    real_load((mica_dtype)a->type, data, at, 1, &v, 1);
    return v;
}

#include "ops/lrn/lrn_body.h"

/* A thread's memory: lines, and what the gradient keeps of a task. */
typedef struct lines {
    real *u, *other, *sums, *x, *dy, *result;
    real *slopes, *scaled;
    int64_t step; /* from line to line of what is kept */
} lines;

/* ---- loops ---- */

/* to: may be a. */
CLONES static void subtract(real *to, const real *a, const real *b, int64_t n)
{
    MICA_INDEPENDENT
    for (int64_t i = 0; i < n; i++) to[i] = a[i] - b[i];
}

CLONES static void add_squares(real *restrict sums, const real *restrict u, int64_t n)
{
    for (int64_t i = 0; i < n; i++) sums[i] += u[i] * u[i];
}

CLONES static void add_run(real *restrict sums, const real *restrict v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) sums[i] += v[i];
}

static void clear(real *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = 0;
}

/* s = k + alpha sums; to: s^-beta. */
CLONES static void powers(int power, real k, real alpha, real beta, const real *restrict sums,
                          real *restrict s, real *restrict to, int64_t n)
{
    for (int64_t i = 0; i < n; i++) s[i] = k + alpha * sums[i];
    if (power == LRN_THREE_QUARTERS) {
        for (int64_t i = 0; i < n; i++) {
            const real root = sqrt_of(s[i]);
            to[i] = 1 / (root * sqrt_of(root));
        }
    } else if (power == LRN_HALF) {
        for (int64_t i = 0; i < n; i++) to[i] = 1 / sqrt_of(s[i]);
    } else if (power == LRN_ONE) {
        for (int64_t i = 0; i < n; i++) to[i] = 1 / s[i];
    } else {
        for (int64_t i = 0; i < n; i++) to[i] = pow_of(s[i], -beta);
    }
}

/* How many sums have powers that are no ordinary numbers. */
CLONES static int64_t count_others(const real *s, real low, real high, int64_t n)
{
    int64_t others = 0;
    for (int64_t i = 0; i < n; i++) others += !(s[i] >= low && s[i] <= high);
    return others;
}

CLONES static void multiply(real *restrict to, const real *restrict a, const real *restrict b,
                            int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = a[i] * b[i];
}

/* The slope of a sum that is none of the ordinary ones is NaN: who adds it up sees that. */
CLONES static void find_slopes(const real *restrict s, const real *restrict power,
                               const real *restrict x, const real *restrict dy, real low, real high,
                               real *restrict slopes, real *restrict scaled, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const bool ordinary = s[i] >= low && s[i] <= high;
        scaled[i] = dy[i] * power[i];
        slopes[i] = ordinary ? scaled[i] * (x[i] / s[i]) : (real)NAN;
    }
}

CLONES static int64_t combine(const real *restrict scaled, const real *restrict sums,
                              const real *restrict u, real by, real *restrict dx,
                              real *restrict dmeans, int64_t n)
{
    int64_t others = 0;
    for (int64_t i = 0; i < n; i++) {
        dmeans[i] = by * u[i] * sums[i];
        dx[i] = scaled[i] - dmeans[i];
        others += !(dx[i] - dx[i] == 0) | !(dmeans[i] - dmeans[i] == 0);
    }
    return others;
}

/* ---- lines ---- */

/* n elements of a tensor along the row from `at` on: where they lie, or converted. */
static const real *load_line(const mica_lrn_walk *w, const void *data, const mica_lrn_steps *steps,
                             const long long *at, real *buffer, int64_t n)
{
    const long long offset = lrn_place(steps, at), step = steps->at[w->row];
    if ((step == 1 || n == 1) && w->a.type == REAL_TYPE) return (const real *)data + offset;
    real_load((mica_dtype)w->a.type, data, offset, step, buffer, n);
    return buffer;
}

static void store_line(const mica_lrn_walk *w, void *data, const mica_lrn_steps *steps,
                       const long long *at, const real *from, int64_t n)
{
    real_store((mica_dtype)w->a.type, data, lrn_place(steps, at), steps->at[w->row], from, n);
}

static const real *load_centred(const mica_lrn_walk *w, const mica_lrn_args *a, const lines *l,
                                const long long *at, int64_t n)
{
    const real *u = load_line(w, a->x, &a->x_step, at, l->u, n);
    if (!a->means) return u;
    subtract(l->u, u, load_line(w, a->means, &a->means_step, at, l->other, n), n);
    return l->u;
}

/* Sums along the line of what lies `before` behind its beginning. */
static void sum_along(const real *from, int64_t before, int64_t after, real *to, int64_t n)
{
    clear(to, n);
    for (int64_t i = 0; i <= before + after; i++) add_run(to, from + i, n);
}

typedef struct window {
    long long first[LRN_AXES], last[LRN_AXES]; /* of lines; along the row: its first element */
} window;

static window window_of(const mica_lrn_walk *w, const mica_lrn_args *a, const long long *at,
                        const long long *before, const long long *after)
{
    window r;
    for (int i = 0; i < LRN_AXES; i++) {
        r.first[i] = r.last[i] = at[i];
        if (i == w->row) continue;
        r.first[i] = lrn_first(at[i], before[i]);
        r.last[i] = lrn_last(at[i], after[i], a->sizes[i]);
    }
    return r;
}

/* The next line of a window; false behind the last. */
static bool next_line(const window *b, long long *at)
{
    for (int i = LRN_AXES - 1; i >= 0; i--) {
        if (++at[i] <= b->last[i]) return true;
        at[i] = b->first[i];
    }
    return false;
}

/* Sums of squares around n elements from `at` on: in l->sums. */
static void sum_squares(const mica_lrn_walk *w, const mica_lrn_args *a, const lines *l,
                        const long long *at, int64_t n)
{
    const window b = window_of(w, a, at, a->before, a->after);
    const int64_t before = a->before[w->row], after = a->after[w->row];
    real *sums = before + after ? l->result : l->sums;
    long long i[LRN_AXES];
    for (int d = 0; d < LRN_AXES; d++) i[d] = b.first[d];
    clear(sums, n + before + after);
    do {
        add_squares(sums + before, load_centred(w, a, l, i, n), n);
    } while (next_line(&b, i));
    if (before + after) sum_along(sums, before, after, l->sums, n);
}

static void forward_line(const mica_lrn_walk *w, const mica_lrn_args *a, const lines *l,
                         const long long *at, int64_t n)
{
    sum_squares(w, a, l, at, n);
    powers(w->power, (real)a->k, (real)a->alpha, (real)a->beta, l->sums, l->other, l->result, n);
    const int64_t others = count_others(l->other, (real)a->low, (real)a->high, n);
    const real *x = load_line(w, a->x, &a->x_step, at, l->x, n);
    multiply(l->dy, x, l->result, n);
    long long i[LRN_AXES];
    for (int d = 0; d < LRN_AXES; d++) i[d] = at[d];
    for (int64_t k = 0; k < n && others; k++, i[w->row]++)
        if (!(l->other[k] >= (real)a->low && l->other[k] <= (real)a->high))
            l->dy[k] = lrn_careful_forward(a, i);
    store_line(w, a->y, &a->y_step, at, l->dy, n);
}

/* ---- gradients ---- */

/* Which of the task's lines `at` is. */
static int64_t line_of(const mica_lrn_walk *w, const long long *at)
{
    int64_t line = 0;
    for (int i = 0; i < LRN_AXES; i++)
        if (i != w->row && w->a.before[i] + w->a.after[i]) line = line * w->a.sizes[i] + at[i];
    return line;
}

static void slope_line(const mica_lrn_walk *w, const mica_lrn_args *a, const lines *l,
                       const long long *at, int64_t n)
{
    const int64_t to = line_of(w, at) * l->step;
    sum_squares(w, a, l, at, n);
    powers(w->power, (real)a->k, (real)a->alpha, (real)a->beta, l->sums, l->other, l->result, n);
    find_slopes(l->other, l->result, load_line(w, a->x, &a->x_step, at, l->x, n),
                load_line(w, a->dy, &a->dy_step, at, l->dy, n), (real)a->low, (real)a->high,
                l->slopes + to, l->scaled + to, n);
}

static void backward_line(const mica_lrn_walk *w, const mica_lrn_args *a, const lines *l,
                          const long long *at, int64_t n)
{
    const window b = window_of(w, a, at, a->after, a->before);
    const int64_t before = a->after[w->row], after = a->before[w->row];
    real *sums = before + after ? l->result : l->sums;
    long long i[LRN_AXES];
    for (int d = 0; d < LRN_AXES; d++) i[d] = b.first[d];
    clear(sums, n + before + after);
    do {
        add_run(sums + before, l->slopes + line_of(w, i) * l->step, n);
    } while (next_line(&b, i));
    if (before + after) sum_along(sums, before, after, l->sums, n);
    const real *u = load_centred(w, a, l, at, n);
    const int64_t others = combine(l->scaled + line_of(w, at) * l->step, l->sums, u,
                                   (real)(2 * a->alpha * a->beta), l->x, l->dy, n);
    for (int d = 0; d < LRN_AXES; d++) i[d] = at[d];
    for (int64_t k = 0; k < n && others; k++, i[w->row]++)
        if (!lrn_is_finite(l->x[k]) || !lrn_is_finite(l->dy[k]))
            l->x[k] = lrn_careful_backward(a, i, &l->dy[k]);
    store_line(w, a->dx, &a->dx_step, at, l->x, n);
    if (a->dmeans) store_line(w, a->dmeans, &a->dmeans_step, at, l->dy, n);
}

/* ---- tasks ---- */

typedef void line_fn(const mica_lrn_walk *w, const mica_lrn_args *a, const lines *l,
                     const long long *at, int64_t n);

static void each_line(const mica_lrn_walk *w, const mica_lrn_args *a, const lines *l,
                      const long long *task, int64_t n, line_fn *fn)
{
    for (int64_t k = 0; k < w->lines; k++) {
        long long at[LRN_AXES];
        int64_t rest = k;
        for (int i = LRN_AXES - 1; i >= 0; i--) {
            at[i] = task[i];
            if (i == w->row || a->before[i] + a->after[i] == 0) continue;
            at[i] = rest % a->sizes[i], rest /= a->sizes[i];
        }
        fn(w, a, l, at, n);
    }
}

static void run_task(const mica_lrn_walk *w, const mica_lrn_args *a, const lines *l, int64_t task)
{
    long long at[LRN_AXES] = {0};
    const int64_t blocks = (a->sizes[w->row] + w->block - 1) / w->block;
    at[w->row] = task % blocks * w->block, task /= blocks;
    for (int i = LRN_AXES - 1; i >= 0; i--) {
        if (i == w->row || a->before[i] + a->after[i]) continue;
        at[i] = task % a->sizes[i], task /= a->sizes[i];
    }
    const int64_t left = a->sizes[w->row] - at[w->row], n = left < w->block ? left : w->block;
    if (w->backward) {
        each_line(w, a, l, at, n, slope_line);
        each_line(w, a, l, at, n, backward_line);
    } else {
        each_line(w, a, l, at, n, forward_line);
    }
}

void LRN_LOOPS(const mica_lrn_walk *w, const mica_lrn_args *a, void *workspace)
{
    int threads = mica_cpu_threads_for(w->bytes);
    if (threads > w->threads) threads = w->threads;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        real *own =
            (real *)workspace + omp_get_thread_num() * (w->task_bytes / (int64_t)sizeof *own);
        lines l = {own,
                   own + w->line,
                   own + 2 * w->line,
                   own + 3 * w->line,
                   own + 4 * w->line,
                   own + 5 * w->line,
                   .step = (w->block + 15) / 16 * 16};
        l.slopes = own + MICA_LRN_LINES * w->line;
        l.scaled = l.slopes + w->lines * l.step;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < w->tasks; i++) run_task(w, a, &l, i);
    }
}
