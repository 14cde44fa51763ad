/* SPDX-License-Identifier: Apache-2.0
 * The epilogue on the CPU, a run of values in double at a time: what gemm and conv share. */
#ifndef MICA_OPS_EPILOGUE_CPU_EPILOGUE_H
#define MICA_OPS_EPILOGUE_CPU_EPILOGUE_H

#include "mica/epilogue.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define MICA_EPILOGUE_RUN 64 /* most values of a run */

/* Runs of a tensor, `stride` elements apart from `at` on. */
void mica_epilogue_scale(const mica_tensor *t, const void *data, int64_t at, int64_t stride,
                         int count, double *v);
void mica_epilogue_add(const mica_tensor *t, const void *data, int64_t at, int64_t stride,
                       int count, double *v);
/* v = act(v); in float where `narrow`, as results of float sums may be. */
void mica_epilogue_activate(mica_act act, double a, double b, bool narrow, int count, double *v);

/* The largest magnitude, kept as the bits of a double that starts as 0: the order of threads does
 * not matter, and a NaN is above all. */
typedef _Atomic uint64_t mica_amax;
void mica_amax_keep(mica_amax *amax, int count, const double *v);
/* Rounds it into element 0 of data. */
void mica_amax_store(const mica_amax *amax, mica_dtype dtype, void *data);

/* v times element 0 of scale (NULL: 1), in front of rounding to y, which saturates. */
void mica_epilogue_quantise(mica_dtype y, const float *scale, int count, double *v);

#endif
