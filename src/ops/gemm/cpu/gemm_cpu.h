/* SPDX-License-Identifier: Apache-2.0
 * The plain loops, for the engine "cpu" and for what other CPU engines leave to them. */
#ifndef MICA_OPS_GEMM_CPU_GEMM_CPU_H
#define MICA_OPS_GEMM_CPU_GEMM_CPU_H

#include "ops/gemm/cpu/gemm_epilogue.h"

typedef struct gemm_loops {
    gemm_shape shape;
    gemm_full_epilogue extra;
    int threads;
} gemm_loops;

void gemm_loops_make(const mica_gemm_desc *desc, gemm_loops *loops);
/* Milliseconds of products with so many rows each. */
double gemm_loops_ms(const mica_device_info *device, double flops, double rows, double bytes);
void gemm_loops_run(const gemm_loops *loops, const gemm_cpu_epilogue *finish);

#endif
