/* SPDX-License-Identifier: Apache-2.0
 * The loops of the CPU engine "fft" in f32. */
#include "ops/conv/cpu/conv_cpu.h"
#include "ops/shared/cpu/convert.h"

typedef float real;

static inline void to_real(mica_dtype type, const void *data, int64_t offset, int64_t stride,
                           float *to, int64_t n)
{
    mica_to_f32(type, data, offset, stride, to, n);
}

static inline void finish(const mica_conv_job *job, const mica_conv_line *line, float *v)
{
    mica_conv_cpu_epilogue_f32(job, line, v);
}

#include "ops/conv/fft/cpu/fft_cpu_loops.h"

const conv_fft_loops conv_fft_loops_f32 = CONV_FFT_LOOPS;
