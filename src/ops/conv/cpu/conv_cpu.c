/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu": any convolution, any strides and types, no workspace. Depthwise ones run along
 * channels or rows at the speed of the caches; the others are a product of matrices gathered tile
 * by tile, 10 to 40 % of what the vector units can do. 8-bit integers are summed exactly. */
#include "ops/conv/conv.h"

#include "cpu/cpu.h"
#include "ops/conv/cpu/conv_cpu.h"
#include "ops/convert/cpu/convert.h"

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    MICA_TRY(conv_refuse_full_epilogue(desc, why));
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    const mica_conv_desc *d = desc;
    const mica_run none = {0};
    mica_conv_job job;
    mica_conv_job_make(d, &none, &job);
    double flops = 0, bytes = 0;
    mica_op_conv.cost(d, &flops, &bytes);
    bytes = mica_op_bytes(&mica_op_conv, d);
    double channels = mica_conv_channels_ms(&job, bytes, flops, device);
    if (channels > 0) return channels;
    double planar = mica_conv_planar_ms(&job, bytes, flops, device);
    if (planar > 0) return planar;
    bool f32 = d->x.dtype == MICA_F32;
    return (f32 ? 5 : 8) * mica_roofline_ms(&mica_op_conv, desc, device) + 1e-3;
}

static mica_status build(mica_plan *plan)
{
    (void)plan;
    return MICA_OK;
}

void mica_conv_job_make(const mica_conv_desc *d, const mica_run *run, mica_conv_job *job)
{
    mica_conv_roles roles = mica_conv_roles_of(d);
    *job = (mica_conv_job){.kind = roles.kind,
                           .out = roles.out == roles.a   ? 0
                                  : roles.out == roles.b ? 1
                                                         : 2,
                           .alpha = 1,
                           .epilogue = mica_conv_epilogue(d)};
    const int which[] = {roles.a, roles.b, roles.f};
    for (int i = 0; i < 3; i++) {
        job->types[i] = mica_conv_tensor(d, which[i])->dtype;
        job->data[i] = run->args[which[i]];
    }
    mica_dtype in = job->types[job->out == 2 ? 0 : 2];
    job->wide = in == MICA_F64 || mica_dtype_is_integer(in);
    job->vectors[MICA_STEP_BIAS] = run->args[MICA_CONV_BIAS];
    job->vectors[MICA_STEP_SCALE] = run->args[MICA_CONV_SCALE];
    job->vectors[MICA_STEP_SHIFT] = run->args[MICA_CONV_SHIFT];
    job->vectors[MICA_STEP_RESIDUAL] = run->args[MICA_CONV_RESIDUAL];
    mica_conv_geometry_make(d, &job->g);
    job->channels = job->kind == MICA_CONV_KIND_DGRAD ? job->g.c : job->g.k;
}

mica_status mica_conv_direct(const mica_conv_desc *d, const mica_run *run, double alpha,
                             double beta)
{
    mica_conv_job job;
    mica_conv_job_make(d, run, &job);
    job.alpha = alpha;
    job.beta = beta;
    double flops = 0, bytes = 0;
    mica_op_conv.cost(d, &flops, &bytes);
    /* a core multiplies about as fast as it copies an eighth as many bytes */
    int threads = mica_cpu_threads_for(flops / 8);
    if (mica_conv_is_depthwise(&job))
        mica_conv_depthwise(&job, threads);
    else
        mica_conv_tiles(&job, threads);
    return MICA_OK;
}

/* Lines lie along the channels where those are neighbours in memory, else along the last axis. */
void mica_conv_epilogue_pass(const mica_conv_desc *d, const mica_run *run, int first)
{
    mica_conv_job job;
    mica_conv_job_make(d, run, &job);
    job.epilogue.steps += first;
    const mica_tensor *y = &d->y, *r = &d->residual;
    int along = y->strides[1] == 1 ? 1 : y->rank - 1;
    int64_t len = y->dims[along], pieces = (len + MICA_CONV_LINE - 1) / MICA_CONV_LINE;
    int64_t lines = mica_tensor_count(y) / len * pieces;
#pragma omp parallel for schedule(static)                                                          \
    num_threads(mica_cpu_threads_for(8.0 * (double)mica_tensor_count(y)))
    for (int64_t i = 0; i < lines; i++) {
        int64_t start = i % pieces * MICA_CONV_LINE, rest = i / pieces;
        mica_conv_line l = {.n = len - start < MICA_CONV_LINE ? len - start : MICA_CONV_LINE,
                            .offset = start * y->strides[along],
                            .step = y->strides[along],
                            .residual = start * r->strides[along],
                            .residual_step = r->strides[along],
                            .channel = along == 1 ? start : 0,
                            .channel_step = along == 1};
        for (int a = y->rank - 1; a >= 0; a--) {
            if (a == along) continue;
            int64_t at = rest % y->dims[a];
            rest /= y->dims[a];
            l.offset += at * y->strides[a];
            l.residual += at * r->strides[a];
            if (a == 1) l.channel = at;
        }
        MICA_ALIGNED float v[MICA_CONV_LINE];
        mica_to_f32(MICA_F32, run->args[MICA_CONV_Y], l.offset, l.step, v, l.n);
        mica_conv_cpu_epilogue_f32(&job, &l, v);
    }
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    return mica_conv_direct(plan->desc, r, mica_run_scalar(plan, r, MICA_CONV_ALPHA),
                            mica_run_scalar(plan, r, MICA_CONV_BETA));
}

const mica_engine mica_conv_cpu = {
    .name = "cpu", .accepts = accepts, .predict = predict, .build = build, .run = run};
