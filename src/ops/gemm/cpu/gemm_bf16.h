/* SPDX-License-Identifier: Apache-2.0
 * Products of bf16 on the CPU's matrix unit, for gemm's engine "bf16" and grouped_gemm's. */
#ifndef MICA_OPS_GEMM_CPU_GEMM_BF16_H
#define MICA_OPS_GEMM_CPU_GEMM_BF16_H

#include "ops/gemm/cpu/gemm_epilogue.h"
#include "cpu/matrix.h"

typedef struct gemm_bf16_loops {
    gemm_shape shape;
    mica_matrix_unit unit;
    int threads;
} gemm_bf16_loops;

/* Whether a and b are bf16 and nothing else stands in the way. */
mica_status gemm_bf16_takes(const mica_gemm_desc *desc, mica_why *why);
/* Configs, one number: the unit, the best first. */
int gemm_bf16_units(mica_config *list);
void gemm_bf16_contract(const mica_config *config, mica_contract *contract);
/* Operations per second of a unit in parts of the device's f32 rate. */
double gemm_bf16_rate(const mica_config *config);
/* Milliseconds of products with so many rows each. */
double gemm_bf16_ms(const mica_config *config, const mica_device_info *device, double flops,
                    double rows, double bytes);
void gemm_bf16_make(const mica_gemm_desc *desc, const mica_config *config, gemm_bf16_loops *loops);
/* A product is made of tasks, in any order and on any threads. */
int64_t gemm_bf16_tasks(const gemm_shape *shape);
void gemm_bf16_run_task(const gemm_bf16_loops *loops, const gemm_cpu_epilogue *finish,
                        int64_t task);

#endif
