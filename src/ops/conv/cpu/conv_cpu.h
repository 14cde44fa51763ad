/* SPDX-License-Identifier: Apache-2.0
 * What the files of the CPU engine share: a job, runs of pixels, and the epilogue. */
#ifndef MICA_OPS_CONV_CPU_CONV_CPU_H
#define MICA_OPS_CONV_CPU_CONV_CPU_H

#include "ops/conv/geometry.h"

/* One call. Arrays count a, b, f. */
typedef struct mica_conv_job {
    mica_conv_geometry g;
    int kind, out; /* out: 0 a, 1 b, 2 f */
    mica_dtype types[3];
    void *data[3];
    bool wide; /* sums in double: f64, and integers, whose sums it holds exactly; else float */
    double alpha, beta;
    mica_epilogue epilogue;
    const void *vectors[MICA_STEP_ACT]; /* bias, scale, shift and residual, by mica_step */
    int64_t channels;                   /* of the output in one group */
} mica_conv_job;

/* alpha is 1 and beta 0. */
void mica_conv_job_make(const mica_conv_desc *d, const mica_run *run, mica_conv_job *job);

/* Results of one line: n elements, `step` apart in the output. */
typedef struct mica_conv_line {
    int64_t n, offset, step, residual, residual_step;
    int64_t channel; /* of the epilogue's vectors, over all groups */
    int channel_step;
} mica_conv_line;

enum { MICA_CONV_LINE = 64 }; /* most elements of a line */

/* alpha, beta, epilogue, rounding. The values are destroyed. */
void mica_conv_cpu_epilogue_f32(const mica_conv_job *job, const mica_conv_line *line, float *v);
void mica_conv_cpu_epilogue_f64(const mica_conv_job *job, const mica_conv_line *line, double *v);

/* One axis: the source position of a pixel and tap is (pixel * mul + add - tap * per_tap) / div,
 * where that divides and lies inside. */
typedef struct mica_conv_axis {
    int64_t mul, add, per_tap, div, size;
} mica_conv_axis;
/* The positions that exist within `len` pixels from `at` on: the first of them, their distance,
 * how many, the source position of the first; the next one lies `mul` further. */
typedef struct mica_conv_window {
    int64_t first, step, count, source;
} mica_conv_window;
void mica_conv_axes(const mica_conv_geometry *g, int kind, mica_conv_axis axes[3]);
mica_conv_window mica_conv_window_of(const mica_conv_axis *x, int64_t at, int64_t len, int64_t tap);

/* Depthwise, sums in float: see depthwise.c. */
bool mica_conv_is_depthwise(const mica_conv_job *job);
void mica_conv_depthwise(const mica_conv_job *job, int threads);
/* Milliseconds, of floats with channels next to each other; 0: it is another job. */
double mica_conv_channels_ms(const mica_conv_job *job, double bytes, double flops,
                             const mica_device_info *device);
/* Where a depthwise filter's tap lies. */
int64_t mica_conv_filter_at(const mica_conv_geometry *g, int64_t channel, int64_t tap);
/* Depthwise with pixels next to each other: see planar.c. False: it does not take the job. */
bool mica_conv_planar(const mica_conv_job *job, int threads);
/* Milliseconds that it takes; 0: it does not take the job. */
double mica_conv_planar_ms(const mica_conv_job *job, double bytes, double flops,
                           const mica_device_info *device);
/* Everything: see tiles.c. */
void mica_conv_tiles(const mica_conv_job *job, int threads);

#endif
