/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of grid_sample: any types and strides. Taps of a block of outputs are found once
 * for all channels of a task; then each channel is gathered and summed, or, where channels are
 * neighbours, each tap is a run of them. In the gradient of x a task owns channels of a sample and
 * goes through all of its outputs in order, so that bits do not depend on the number of threads.
 * Workspace: that gradient in f32, where it is of a narrower type. */
#include "ops/grid_sample/cpu/grid_sample_cpu.h"
#include "cpu/cpu.h"
#include "ops/convert/cpu/convert.h"

#include <omp.h>
#include <string.h>

enum { OUTPUTS = 1024, CHANNELS = 16 };

typedef struct state {
    mica_grid_sample_job job;
    const mica_grid_sample_loops *loops;
    mica_dtype real;
    bool dx, dgrid, direct; /* direct: dx is of sums */
    size_t sums;
    double bytes;
} state;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t row_of(const mica_grid_sample_job *j)
{
    const mica_taps_shape *s = &j->args.shape;
    int64_t row = s->out[j->axes - 1];
    for (int a = j->axes - 2; a >= 0; a--) {
        if (s->out[a] > 1 && j->args.y_step.at[a] != j->args.y_step.at[a + 1] * s->out[a + 1])
            break;
        if (s->out[a + 1] == 1) break;
        row *= s->out[a];
    }
    return row > 0 ? row : 1;
}

static mica_status build(mica_plan *plan)
{
    const mica_grid_sample_desc *d = plan->desc;
    const mica_tensor *x = mica_grid_sample_image(d), *y = mica_grid_sample_output(d);
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_grid_sample_job *j = &s->job;
    j->args.shape = mica_taps_shape_of(x, y);
    j->args.x_step = mica_taps_strides_of(x);
    j->args.y_step = mica_taps_strides_of(y);
    j->args.grid_step = mica_grid_sample_grid_strides(&d->grid);
    j->axes = x->rank - 2, j->taps = mica_grid_sample_taps(d);
    j->mode = (int)d->mode, j->padding = (int)d->padding, j->align = d->align_corners;
    j->type = x->dtype, j->grid_type = d->grid.dtype, j->dgrid_type = d->dgrid.dtype;
    j->row = row_of(j);
    s->real = mica_grid_sample_real(d);
    s->loops = s->real == MICA_F64 ? &mica_grid_sample_loops_f64 : &mica_grid_sample_loops_f32;
    s->bytes = mica_op_bytes(plan->op, d) * 4;
    s->dx = mica_tensor_given(&d->dx), s->dgrid = mica_tensor_given(&d->dgrid);
    const bool many = j->args.shape.c > 3 && j->args.y_step.c == 1;
    j->channels_last = many && j->args.x_step.c == 1;
    if (s->dgrid) j->args.dgrid_step = mica_grid_sample_grid_strides(&d->dgrid);
    if (!s->dx) return MICA_OK;
    s->direct = d->dx.dtype == s->real;
    mica_tensor sums = d->dx;
    sums.dtype = s->real;
    if (!s->direct) mica_tensor_strides_like(&sums, &d->dx);
    j->sum_step = mica_taps_strides_of(&sums);
    if (s->direct) return MICA_OK;
    return mica_book(plan, "sums of dx", (size_t)mica_tensor_count(&sums) * sizeof(float),
                     &s->sums);
}

static void forward(const state *s, const mica_grid_sample_job *j)
{
    const mica_taps_shape *p = &j->args.shape;
    const int64_t blocks = (p->n * p->out_count + OUTPUTS - 1) / OUTPUTS;
#pragma omp parallel for schedule(dynamic) num_threads(mica_cpu_threads_for(s->bytes))
    for (int64_t b = 0; b < blocks; b++)
        s->loops->forward(j, b * OUTPUTS, least((b + 1) * OUTPUTS, p->n * p->out_count), 0, p->c);
}

static void slopes(const state *s, const mica_grid_sample_job *j)
{
    const mica_taps_shape *p = &j->args.shape;
    const int64_t blocks = (p->n * p->out_count + OUTPUTS - 1) / OUTPUTS;
#pragma omp parallel for schedule(dynamic) num_threads(mica_cpu_threads_for(s->bytes))
    for (int64_t b = 0; b < blocks; b++)
        s->loops->slopes(j, b * OUTPUTS, least((b + 1) * OUTPUTS, p->n * p->out_count));
}

/* Of channels c to c_end of sample n, element by element along the last axis. */
static void clear(const state *s, const mica_grid_sample_job *j, char *sums, int64_t n, int64_t c,
                  int64_t c_end)
{
    const mica_taps_strides *t = &j->sum_step;
    const int64_t bytes = s->real == MICA_F64 ? 8 : 4;
    for (int64_t i = 0; i < j->args.shape.in_count; i++) {
        int64_t rest = i, at = n * t->n;
        for (int a = j->axes - 1; a >= 0; a--) {
            at += rest % j->args.shape.in[a] * t->at[a];
            rest /= j->args.shape.in[a];
        }
        if (t->c == 1)
            memset(sums + (at + c) * bytes, 0, (size_t)((c_end - c) * bytes));
        else
            for (int64_t k = c; k < c_end; k++)
                memset(sums + (at + k * t->c) * bytes, 0, (size_t)bytes);
    }
}

static void round_sums(const mica_grid_sample_job *j, const mica_tensor *dx, const float *sums,
                       void *to, int64_t n, int64_t c, int64_t c_end)
{
    const mica_taps_strides *t = &j->sum_step, out = mica_taps_strides_of(dx);
    const int last = j->axes - 1;
    const mica_taps_shape *p = &j->args.shape;
    for (int64_t i = 0; i < p->in_count; i += t->c == 1 ? 1 : p->in[last]) {
        int64_t rest = i, from = n * t->n, at = n * out.n;
        for (int a = last; a >= 0; a--) {
            from += rest % p->in[a] * t->at[a], at += rest % p->in[a] * out.at[a];
            rest /= p->in[a];
        }
        if (t->c == 1) {
            mica_from_f32(dx->dtype, to, at + c * out.c, out.c, sums + from + c, c_end - c);
            continue;
        }
        for (int64_t k = c; k < c_end; k++)
            for (int64_t w = 0; w < p->in[last]; w++)
                mica_from_f32(dx->dtype, to, at + k * out.c + w * out.at[last], 1,
                              sums + from + k * t->c + w * t->at[last], 1);
    }
}

static void gradient(const state *s, const mica_grid_sample_job *j, const mica_tensor *dx, void *to,
                     void *sums)
{
    const mica_taps_shape *p = &j->args.shape;
    const int64_t groups = (p->c + CHANNELS - 1) / CHANNELS;
#pragma omp parallel for schedule(dynamic) num_threads(mica_cpu_threads_for(s->bytes))
    for (int64_t i = 0; i < p->n * groups; i++) {
        const int64_t n = i / groups, c = i % groups * CHANNELS, c_end = least(c + CHANNELS, p->c);
        clear(s, j, sums, n, c, c_end);
        s->loops->scatter(j, n * p->out_count, (n + 1) * p->out_count, c, c_end, sums);
        if (!s->direct) round_sums(j, dx, sums, to, n, c, c_end);
    }
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    const mica_grid_sample_desc *d = plan->desc;
    mica_grid_sample_job j = s->job;
    j.args.x = run->args[MICA_GRID_SAMPLE_X];
    j.args.grid = run->args[MICA_GRID_SAMPLE_GRID];
    j.args.y = run->args[MICA_GRID_SAMPLE_Y];
    j.args.dy = run->args[MICA_GRID_SAMPLE_DY];
    j.args.dgrid = run->args[MICA_GRID_SAMPLE_DGRID];
    if (mica_grid_sample_is_forward(d)) forward(s, &j);
    if (s->dgrid) slopes(s, &j);
    if (!s->dx) return MICA_OK;
    void *dx = run->args[MICA_GRID_SAMPLE_DX];
    j.channels_last = j.args.y_step.c == 1 && j.sum_step.c == 1 && j.args.shape.c > 3;
    gradient(s, &j, &d->dx, dx, s->direct ? dx : mica_at(run, s->sums));
    return MICA_OK;
}

const mica_engine mica_grid_sample_cpu = {.name = "cpu",
                                          .reached = 0.1,
                                          .start_ms = 3e-4,
                                          .contract = mica_grid_sample_contract,
                                          .build = build,
                                          .run = run};
