/* SPDX-License-Identifier: Apache-2.0
 * The arithmetic of sources called *_real.c, which the build compiles twice, as *_f32.c where
 * REAL_F64 is 0 and as *_f64.c where it is 1 (cmake/library.cmake). */
#ifndef MICA_OPS_CONVERT_CPU_REAL_H
#define MICA_OPS_CONVERT_CPU_REAL_H

#include "cpu/cpu.h"
#include "ops/convert/cpu/convert.h"

#ifndef REAL_F64
#define REAL_F64 0 /* for editors, which see the source alone */
#endif

#if REAL_F64
typedef double real;
#define REAL_TYPE MICA_F64
#define CLONES    MICA_MEMORY_CLONES /* few want f64 */
#else
typedef float real;
#define REAL_TYPE MICA_F32
#define CLONES    MICA_CLONES
#endif

/* Runs of elements of any type that convert.h takes. */
static inline void real_load(mica_dtype type, const void *data, int64_t offset, int64_t stride,
                             real *to, int64_t n)
{
#if REAL_F64
    mica_to_f64(type, data, offset, stride, to, n);
#else
    mica_to_f32(type, data, offset, stride, to, n);
#endif
}

static inline void real_store(mica_dtype type, void *data, int64_t offset, int64_t stride,
                              const real *from, int64_t n)
{
#if REAL_F64
    mica_from_f64(type, data, offset, stride, from, n);
#else
    mica_from_f32(type, data, offset, stride, from, n);
#endif
}

#endif
