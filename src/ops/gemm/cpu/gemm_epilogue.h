/* SPDX-License-Identifier: Apache-2.0
 * The epilogue on the CPU: alpha, scales, beta, steps, rounding; shared by the engines.
 */
#ifndef MICA_OPS_GEMM_CPU_GEMM_EPILOGUE_H
#define MICA_OPS_GEMM_CPU_GEMM_EPILOGUE_H

#include "ops/gemm/gemm_shape.h"
#include "ops/epilogue/cpu/epilogue.h"

/* Made once per run. */
typedef struct gemm_cpu_epilogue {
    const mica_gemm_desc *desc;
    const gemm_shape *shape;
    void *const *args;
    double alpha, beta;
    const gemm_full_epilogue *extra; /* may be NULL without a gate and aux */
    mica_amax *amax;                 /* NULL: none */
} gemm_cpu_epilogue;

#define GEMM_EPILOGUE_RUN MICA_EPILOGUE_RUN /* most elements of a call */

/* Takes `count` sums of one row, from column `col` of row `row`, and stores c. at: the batch item.
 * partner: with a gate the sums that v opens or closes, else NULL. The sums are overwritten. */
void gemm_cpu_epilogue_row(const gemm_cpu_epilogue *f, const gemm_offsets *at, int64_t row,
                           int64_t col, int count, double *v, double *partner);
/* Stores amax where there is one. */
void gemm_cpu_epilogue_end(const gemm_cpu_epilogue *f);

#endif
