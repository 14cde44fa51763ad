/* SPDX-License-Identifier: Apache-2.0
 * Engine "fft" of the CPU: long filters as products of spectra (overlap-save), for all three passes
 * in one and two dimensions. Cost: 5 log2(points) operations for each number transformed, whatever
 * the filter's length, and 8 for each product; so it is for filters of hundreds of taps, and from
 * a dozen by a dozen on. Depthwise ones stay in the cache and need no more memory than the filter's
 * spectra; dense ones are planes in the workspace and a child plan of op gemm. Strides and dilation
 * cost what they save elsewhere: all that lies between is computed.
 *
 * What it is not: as exact as other engines. A transform mixes all numbers of a tile, so that an
 * infinity or NaN reaches the whole tile, and small results beside large ones lose digits, as
 * conv_fft_contract() says. That is why it is only taken by name. */
#include "cpu/cpu.h"
#include "ops/conv/fft/cpu/fft_cpu.h"

enum { MOST_COLUMNS = 8192, KEEP = 2 };

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    return conv_fft_accepts(desc, why);
}

/* ---- model ---- */

/* Milliseconds: operations at a tenth of the vector units' rate (measured), products at the
 * child's, and planes at the speed of memory. */
static double cost(const conv_fft_problem *p, const conv_fft_division *d,
                   const mica_device_info *device)
{
    double rate = device->f32_tflops * 1e9 * (p->sums == MICA_F64 ? 0.5 : 1);
    double points = (double)d->axis[0].points * d->axis[1].points;
    double ms = conv_fft_transform_flops(p, d) / (0.1 * rate);
    if (points * CONV_FFT_POINT > 0x1p20) ms *= 1.5; /* a tile leaves the second cache */
    if (p->depthwise) return ms + conv_fft_product_flops(p, d) / (0.1 * rate) + 2e-3;
    double number = mica_dtype_bits(p->sums) / 8;
    double planes =
        4 * conv_fft_image_values(p, d) + 2 * (double)d->parts * conv_fft_result_values(p, d);
    double bytes = number * (2 * (double)d->chunks * planes + 4 * conv_fft_filter_values(p, d));
    return ms + conv_fft_product_flops(p, d) / (0.3 * rate) + bytes / (device->copy_gbps * 1e6) +
           5e-3;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    return conv_fft_predict(desc, device, config, cost);
}

static int configs(const void *desc, const mica_device_info *device, mica_config *list)
{
    return conv_fft_configs(desc, device, MOST_COLUMNS, KEEP, cost, list);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    conv_fft_contract(desc, config, false, c);
}

/* ---- plan and run ---- */

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    conv_fft_cpu *s;
    int rows = plan->config.knob[KNOB_ROWS], cols = plan->config.knob[KNOB_COLS];
    size_t roots = 2 * sizeof(double) * (size_t)(rows > cols ? rows : cols);
    MICA_TRY(mica_plan_state(plan, sizeof *s + roots, &s));
    conv_fft_make_run(d, &s->p);
    conv_fft_divide(&s->p, &plan->config, &s->d);
    s->loops = s->p.sums == MICA_F64 ? &conv_fft_loops_f64 : &conv_fft_loops_f32;
    s->loops->roots(rows > cols ? rows : cols, s + 1);
    s->roots = s + 1;
    /* a core transforms about as fast as it copies an eighth as many bytes */
    double flops = conv_fft_transform_flops(&s->p, &s->d) + conv_fft_product_flops(&s->p, &s->d);
    s->workers = mica_cpu_threads_planned(flops / 8);
    if (mica_tensor_count(mica_conv_tensor(d, s->p.result_arg)) == 0) return MICA_OK;
    return s->p.depthwise ? conv_fft_depthwise_build(plan, s) : conv_fft_dense_build(plan, s);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const mica_conv_desc *d = plan->desc;
    const conv_fft_cpu *s = plan->state;
    mica_conv_job job;
    if (mica_tensor_count(mica_conv_tensor(d, s->p.result_arg)) == 0) return MICA_OK;
    mica_conv_job_make(d, r, &job);
    job.alpha = mica_run_scalar(plan, r, MICA_CONV_ALPHA);
    job.beta = mica_run_scalar(plan, r, MICA_CONV_BETA);
    if (!s->p.depthwise) return conv_fft_dense_run(s, r, &job);
    conv_fft_depthwise_run(s, r, &job);
    return MICA_OK;
}

const mica_engine mica_conv_fft_cpu = {.name = "fft",
                                       .by_name = true,
                                       .knobs = conv_fft_knobs,
                                       .accepts = accepts,
                                       .configs = configs,
                                       .predict = predict,
                                       .contract = contract,
                                       .build = build,
                                       .run = run};
