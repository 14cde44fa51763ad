/* SPDX-License-Identifier: Apache-2.0
 * The loops of the CPU engine "fft" in f64. */
#include "ops/conv/cpu/conv_cpu.h"
#include "ops/shared/cpu/convert.h"

typedef double real;

static inline void to_real(mica_dtype type, const void *data, int64_t offset, int64_t stride,
                           double *to, int64_t n)
{
    mica_to_f64(type, data, offset, stride, to, n);
}

static inline void finish(const mica_conv_job *job, const mica_conv_line *line, double *v)
{
    mica_conv_cpu_epilogue_f64(job, line, v);
}

#include "ops/conv/fft/cpu/fft_cpu_loops.h"

const conv_fft_loops conv_fft_loops_f64 = CONV_FFT_LOOPS;
