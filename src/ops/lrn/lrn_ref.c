/* SPDX-License-Identifier: Apache-2.0
 * Local response normalisation in plain loops: sums, and powers of them, in long double, which no
 * square of a double leaves where it has a wider exponent. */
#include "ops/lrn/lrn.h"

#include "base/memory.h"
#include "cpu/cpu.h"

#include <math.h>

typedef struct job {
    const mica_lrn_desc *d;
    const mica_view *views;
    mica_lrn_args a;
    long double *slopes; /* of the gradient: dy x s^(-beta - 1); NULL where there is no memory */
} job;

typedef struct box {
    long long first[LRN_AXES], last[LRN_AXES];
} box;

/* Around `at`, clipped. */
static box box_of(const job *j, const long long *at, const long long *before,
                  const long long *after)
{
    box b;
    for (int i = 0; i < LRN_AXES; i++) {
        b.first[i] = at[i] > before[i] ? at[i] - before[i] : 0;
        b.last[i] = j->a.sizes[i] - at[i] > after[i] ? at[i] + after[i] : j->a.sizes[i] - 1;
    }
    return b;
}

/* The next element of a box; false behind the last. */
static bool next(const box *b, long long *at)
{
    for (int i = LRN_AXES - 1; i >= 0; i--) {
        if (++at[i] <= b->last[i]) return true;
        at[i] = b->first[i];
    }
    return false;
}

static void start(const box *b, long long *at)
{
    for (int i = 0; i < LRN_AXES; i++) at[i] = b->first[i];
}

static long long place(const mica_lrn_steps *s, const long long *at)
{
    long long sum = 0;
    for (int i = 0; i < LRN_AXES; i++) sum += at[i] * s->at[i];
    return sum;
}

static long double centred(const job *j, const long long *at)
{
    const mica_view *x = &j->views[MICA_LRN_X], *means = &j->views[MICA_LRN_MEANS];
    const long double v = mica_get(x, place(&j->a.x_step, at));
    return means->data ? v - mica_get(means, place(&j->a.means_step, at)) : v;
}

static long double sum_of(const job *j, const long long *at)
{
    const box b = box_of(j, at, j->a.before, j->a.after);
    long long i[LRN_AXES];
    long double sum = 0;
    start(&b, i);
    do {
        const long double u = centred(j, i);
        sum += u * u;
    } while (next(&b, i));
    return j->d->k + j->a.alpha * sum;
}

static long double slope_of(const job *j, const long long *at)
{
    const long double x = mica_get(&j->views[MICA_LRN_X], place(&j->a.x_step, at));
    const long double dy = mica_get(&j->views[MICA_LRN_DY], place(&j->a.dy_step, at));
    return dy * x * powl(sum_of(j, at), -j->d->beta - 1.0L);
}

static void find(const job *j, int64_t i, long long *at)
{
    for (int d = LRN_AXES - 1; d >= 0; d--) at[d] = i % j->a.sizes[d], i /= j->a.sizes[d];
}

static void forward(const job *j, int64_t i)
{
    long long at[LRN_AXES];
    find(j, i, at);
    const long double x = mica_get(&j->views[MICA_LRN_X], place(&j->a.x_step, at));
    const double y = (double)(x * powl(sum_of(j, at), -(long double)j->d->beta));
    mica_put(&j->views[MICA_LRN_Y], place(&j->a.y_step, at), y, fabs(y) * (1 + 2 * j->d->beta));
}

static void backward(const job *j, int64_t e)
{
    const long double beta = j->d->beta;
    const mica_view *dmeans = &j->views[MICA_LRN_DMEANS];
    long long at[LRN_AXES], i[LRN_AXES];
    long double sum = 0, magnitude = 0;
    find(j, e, at);
    const box b = box_of(j, at, j->a.after, j->a.before);
    start(&b, i);
    do {
        const long double slope =
            j->slopes ? j->slopes[place(&j->a.packed_step, i)] : slope_of(j, i);
        sum += slope, magnitude += fabsl(slope);
    } while (next(&b, i));
    const long double dy = mica_get(&j->views[MICA_LRN_DY], place(&j->a.dy_step, at));
    const long double own = dy * powl(sum_of(j, at), -beta);
    const long double by = 2 * j->a.alpha * beta * centred(j, at);
    const double rest = (double)(fabsl(by) * magnitude * (2 + 2 * beta));
    mica_put(&j->views[MICA_LRN_DX], place(&j->a.dx_step, at), (double)(own - by * sum),
             (double)(fabsl(own) * (1 + 2 * beta)) + rest);
    if (dmeans->data) mica_put(dmeans, place(&j->a.dmeans_step, at), (double)(by * sum), rest);
}

void mica_lrn_reference(const void *desc, const mica_view *views, const double *scalars)
{
    const mica_lrn_desc *d = desc;
    job j = {.d = d, .views = views};
    const int64_t count = mica_tensor_count(&d->x);
    const bool fwd = d->pass == MICA_LRN_FWD;
    const int threads = mica_cpu_threads_for((double)count * 256);
    mica_lrn_desc seen = *d; /* views may lie otherwise than the tensors that they show */
    (void)scalars;
    seen.x = views[MICA_LRN_X].t, seen.means = views[MICA_LRN_MEANS].t;
    seen.y = views[MICA_LRN_Y].t, seen.dy = views[MICA_LRN_DY].t;
    seen.dx = views[MICA_LRN_DX].t, seen.dmeans = views[MICA_LRN_DMEANS].t;
    mica_lrn_prepare(&seen, &j.a);
    long double *slopes = fwd ? NULL : mica_alloc((size_t)count * sizeof *slopes);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < (slopes ? count : 0); i++) {
        long long at[LRN_AXES];
        find(&j, i, at);
        slopes[i] = slope_of(&j, at);
    }
    j.slopes = slopes;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < count; i++)
        if (fwd)
            forward(&j, i);
        else
            backward(&j, i);
    mica_release(slopes);
}
