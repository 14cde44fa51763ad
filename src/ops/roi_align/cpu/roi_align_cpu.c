/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of roi_align: any types and strides. The elements of a bin and their weights are
 * found once for some channels; each of these is then gathered and summed, or, where channels are
 * neighbours, each element is a run of them. In the gradient a task owns channels of a picture and
 * goes through all of its regions in order, so that bits do not depend on the number of threads.
 * Workspace: that gradient in f32, where it is of a narrower type. */
#include "ops/roi_align/cpu/roi_align_cpu.h"
#include "cpu/cpu.h"
#include "ops/convert/cpu/convert.h"

#include <omp.h>
#include <string.h>

typedef struct state {
    mica_roi_align_job job;
    const mica_roi_align_loops *loops;
    size_t sums, real_bytes;
    bool direct; /* dx is of sums */
    double bytes;
} state;

static mica_status build(mica_plan *plan)
{
    const mica_roi_align_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_roi_align_job *j = &s->job;
    mica_roi_align_args_make(d, &j->args);
    j->mode = d->mode, j->type = mica_roi_align_image(d)->dtype;
    j->rois_type = d->rois.dtype, j->batch_type = d->batch.dtype, j->argmax_type = d->argmax.dtype;
    const mica_dtype real = mica_roi_align_real(d);
    s->loops = real == MICA_F64 ? &mica_roi_align_loops_f64 : &mica_roi_align_loops_f32;
    s->real_bytes = real == MICA_F64 ? sizeof(double) : sizeof(float);
    s->bytes = mica_op_bytes(plan->op, d) * 4;
    s->direct = j->type == real;
    j->sum_step = j->args.x_step;
    if (mica_roi_align_is_forward(d) || s->direct) return MICA_OK;
    const mica_roi_align_args *a = &j->args;
    j->sum_step = (mica_roi_align_strides){a->c * a->h * a->w, a->h * a->w, a->w, 1};
    return mica_book(plan, "sums of dx", (size_t)mica_tensor_count(&d->dx) * sizeof(float),
                     &s->sums);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void forward(const state *s, const mica_roi_align_job *j)
{
    const mica_roi_align_args *a = &j->args;
    const int64_t groups = (a->c + ROI_CHANNELS - 1) / ROI_CHANNELS;
#pragma omp parallel for schedule(dynamic) num_threads(mica_cpu_threads_for(s->bytes))
    for (int64_t i = 0; i < a->k * groups; i++) {
        const int64_t c = i % groups * ROI_CHANNELS;
        s->loops->forward(j, i / groups, c, least(c + ROI_CHANNELS, a->c));
    }
}

/* Of channels c to c_end of picture n. */
static void clear(const state *s, const mica_roi_align_job *j, char *sums, int64_t n, int64_t c,
                  int64_t c_end)
{
    const mica_roi_align_strides *t = &j->sum_step;
    for (int64_t e = c; e < c_end; e++)
        for (int64_t h = 0; h < j->args.h; h++)
            for (int64_t w = 0; w < j->args.w; w++)
                memset(sums + (n * t->n + e * t->c + h * t->h + w * t->w) * (int64_t)s->real_bytes,
                       0, s->real_bytes);
}

static void round_sums(const mica_roi_align_job *j, const float *sums, int64_t n, int64_t c,
                       int64_t c_end)
{
    const mica_roi_align_strides *t = &j->sum_step, *x = &j->args.x_step;
    for (int64_t e = c; e < c_end; e++)
        for (int64_t h = 0; h < j->args.h; h++)
            mica_from_f32(j->type, j->args.dx, n * x->n + e * x->c + h * x->h, x->w,
                          sums + n * t->n + e * t->c + h * t->h, j->args.w);
}

static void gradient(const state *s, const mica_roi_align_job *j, void *sums)
{
    enum { CHANNELS = 16 };
    const mica_roi_align_args *a = &j->args;
    const int64_t groups = (a->c + CHANNELS - 1) / CHANNELS;
#pragma omp parallel for schedule(dynamic) num_threads(mica_cpu_threads_for(s->bytes))
    for (int64_t i = 0; i < a->n * groups; i++) {
        const int64_t n = i / groups, c = i % groups * CHANNELS, c_end = least(c + CHANNELS, a->c);
        clear(s, j, sums, n, c, c_end);
        s->loops->backward(j, n, c, c_end, sums);
        if (!s->direct) round_sums(j, sums, n, c, c_end);
    }
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    mica_roi_align_job j = s->job;
    mica_roi_align_args_point(plan->desc, run->args, &j.args);
    if (mica_roi_align_is_forward(plan->desc))
        forward(s, &j);
    else
        gradient(s, &j, s->direct ? j.args.dx : mica_at(run, s->sums));
    return MICA_OK;
}

const mica_engine mica_roi_align_cpu = {.name = "cpu",
                                        .reached = 0.1,
                                        .start_ms = 3e-4,
                                        .contract = mica_roi_align_contract,
                                        .build = build,
                                        .run = run};
