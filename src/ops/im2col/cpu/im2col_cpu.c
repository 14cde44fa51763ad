/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of im2col, bound by memory: along the last axis a tap's windows are one run of the
 * image, or one of every `stride` elements. Forward a task is a row of the matrix, whose runs are
 * copied; backward it is a plane of the image, in stretches to which each tap adds its run, in the
 * order of taps whatever the number of threads. */
#include "ops/im2col/im2col.h"
#include "cpu/cpu.h"
#include "ops/convert/cpu/convert.h"

#include <string.h>

enum { STRETCH = 512 };

typedef struct state {
    mica_im2col_args args;
    mica_dtype type;
    int64_t size; /* bytes of an element */
    double bytes;
} state;

static mica_status build(mica_plan *plan)
{
    const mica_im2col_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    s->args = mica_im2col_sizes(d, mica_im2col_image(d), mica_im2col_matrix(d));
    s->type = mica_im2col_image(d)->dtype;
    s->size = mica_dtype_bits(s->type) / 8;
    s->bytes = mica_op_bytes(plan->op, d);
    return MICA_OK;
}

/* Along an axis: the element that a tap of a window reads, -1 beside the image; the window whose
 * tap reads an element, -1: none. */
static int64_t element_of(const mica_im2col_axis *a, int64_t tap, int64_t window)
{
    const int64_t at = window * a->stride + tap * a->dilation - a->pad;
    return at >= 0 && at < a->in ? at : -1;
}

static int64_t window_of(const mica_im2col_axis *a, int64_t tap, int64_t element)
{
    const int64_t moved = element + a->pad - tap * a->dilation;
    return moved >= 0 && moved % a->stride == 0 && moved / a->stride < a->out ? moved / a->stride
                                                                              : -1;
}

/* ---- forward ---- */

typedef struct row {
    const char *plane;
    char *to;
    int64_t tap[MICA_IM2COL_AXES];
} row;

static void clear(const state *s, char *to, int64_t n)
{
    const int64_t step = s->args.matrix_l * s->size;
    if (step == s->size)
        memset(to, 0, (size_t)(n * s->size));
    else
        for (int64_t i = 0; i < n; i++) memset(to + i * step, 0, (size_t)s->size);
}

static void copy_row(const state *s, const row *r)
{
    const mica_im2col_args *a = &s->args;
    const mica_im2col_axis *last = &a->axis[2];
    const int64_t step = a->matrix_l * s->size, shift = r->tap[2] * last->dilation - last->pad;
    const mica_im2col_range run = mica_im2col_windows(last, r->tap[2], 0, last->in);
    char *to = r->to;
    for (int64_t o0 = 0; o0 < a->axis[0].out; o0++) {
        const int64_t i0 = element_of(&a->axis[0], r->tap[0], o0);
        for (int64_t o1 = 0; o1 < a->axis[1].out; o1++, to += last->out * step) {
            const int64_t i1 = element_of(&a->axis[1], r->tap[1], o1);
            if (i0 < 0 || i1 < 0) {
                clear(s, to, last->out);
                continue;
            }
            const int64_t place = i0 * a->axis[0].step + i1 * a->axis[1].step +
                                  (run.first * last->stride + shift) * last->step;
            clear(s, to, run.first);
            mica_move(r->plane + place * s->size, last->stride * last->step, to + run.first * step,
                      a->matrix_l, s->size, run.end - run.first);
            clear(s, to + run.end * step, last->out - run.end);
        }
    }
}

static void forward(const state *s, const char *x, char *y)
{
    const mica_im2col_args *a = &s->args;
    const int64_t rows = a->n * a->c * a->taps;
#pragma omp parallel for num_threads(mica_cpu_threads_for(s->bytes))
    for (int64_t i = 0; i < rows; i++) {
        const int64_t k = i % a->taps, plane = i / a->taps, n = plane / a->c, c = plane % a->c;
        row r = {.plane = x + (n * a->image_n + c * a->image_c) * s->size,
                 .to = y + (n * a->matrix_n + (c * a->taps + k) * a->matrix_k) * s->size};
        for (int64_t d = MICA_IM2COL_AXES - 1, rest = k; d >= 0; d--)
            r.tap[d] = rest % a->axis[d].taps, rest /= a->axis[d].taps;
        copy_row(s, &r);
    }
}

/* ---- backward ---- */

/* Sums of elements [low, low + n) of a row of the image: 8 bytes for each, of either type. */
typedef union sums {
    float f32[STRETCH];
    double f64[STRETCH];
} sums;

MICA_CLONES
static void add_f32(float *sums, const float *v, int64_t step, int64_t n)
{
    if (step == 1)
        for (int64_t i = 0; i < n; i++) sums[i] += v[i];
    else
        for (int64_t i = 0; i < n; i++) sums[i * step] += v[i];
}

static void add_f64(double *sums, const double *v, int64_t step, int64_t n)
{
    for (int64_t i = 0; i < n; i++) sums[i * step] += v[i];
}

/* Adds the run of one tap; `from`: of the row of windows that it belongs to. */
static void add_run(const state *s, sums *to, int64_t tap, int64_t low, int64_t n, const void *dy,
                    int64_t from)
{
    const mica_im2col_args *a = &s->args;
    const mica_im2col_axis *last = &a->axis[2];
    const mica_im2col_range r = mica_im2col_windows(last, tap, low, low + n);
    const int64_t count = r.end - r.first;
    if (count == 0) return;
    const int64_t at = r.first * last->stride + tap * last->dilation - last->pad - low;
    from += r.first * a->matrix_l;
    sums v;
    if (s->type == MICA_F64) {
        mica_to_f64(s->type, dy, from, a->matrix_l, v.f64, count);
        add_f64(to->f64 + at, v.f64, last->stride, count);
    } else {
        add_f32(to->f32 + at, mica_run_f32(s->type, dy, from, a->matrix_l, v.f32, count),
                last->stride, count);
    }
}

static void sum_stretch(const state *s, const void *dy, int64_t pairs, const int64_t *i,
                        int64_t low, int64_t n, sums *to)
{
    const mica_im2col_args *a = &s->args;
    memset(to, 0, (size_t)n * (s->type == MICA_F64 ? sizeof *to->f64 : sizeof *to->f32));
    for (int64_t k0 = 0; k0 < a->axis[0].taps; k0++) {
        const int64_t o0 = window_of(&a->axis[0], k0, i[0]);
        for (int64_t k1 = 0; o0 >= 0 && k1 < a->axis[1].taps; k1++) {
            const int64_t o1 = window_of(&a->axis[1], k1, i[1]);
            const int64_t k = (k0 * a->axis[1].taps + k1) * a->axis[2].taps;
            const int64_t window = (o0 * a->axis[1].out + o1) * a->axis[2].out;
            for (int64_t k2 = 0; o1 >= 0 && k2 < a->axis[2].taps; k2++)
                add_run(s, to, k2, low, n, dy,
                        pairs + (k + k2) * a->matrix_k + window * a->matrix_l);
        }
    }
}

static void sum_row(const state *s, const void *dy, int64_t pairs, const int64_t *i, void *dx,
                    int64_t place)
{
    const mica_im2col_axis *last = &s->args.axis[2];
    sums to;
    for (int64_t low = 0; low < last->in; low += STRETCH) {
        const int64_t n = last->in - low < STRETCH ? last->in - low : STRETCH;
        sum_stretch(s, dy, pairs, i, low, n, &to);
        if (s->type == MICA_F64)
            mica_from_f64(s->type, dx, place + low * last->step, last->step, to.f64, n);
        else
            mica_from_f32(s->type, dx, place + low * last->step, last->step, to.f32, n);
    }
}

static void backward(const state *s, const void *dy, void *dx)
{
    const mica_im2col_args *a = &s->args;
    const int64_t h = a->axis[1].in, rows = a->axis[0].in * h;
#pragma omp parallel for num_threads(mica_cpu_threads_for(s->bytes))
    for (int64_t r = 0; r < a->n * a->c * rows; r++) {
        const int64_t plane = r / rows, n = plane / a->c, c = plane % a->c;
        const int64_t i[] = {r % rows / h, r % h};
        sum_row(s, dy, n * a->matrix_n + c * a->taps * a->matrix_k, i, dx,
                n * a->image_n + c * a->image_c + i[0] * a->axis[0].step + i[1] * a->axis[1].step);
    }
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    if (mica_im2col_is_forward(plan->desc))
        forward(s, run->args[MICA_IM2COL_X], run->args[MICA_IM2COL_Y]);
    else
        backward(s, run->args[MICA_IM2COL_DY], run->args[MICA_IM2COL_DX]);
    return MICA_OK;
}

const mica_engine mica_im2col_cpu = {.name = "cpu",
                                     .reached = 0.3,
                                     .start_ms = 2e-4,
                                     .contract = mica_im2col_contract,
                                     .build = build,
                                     .run = run};
