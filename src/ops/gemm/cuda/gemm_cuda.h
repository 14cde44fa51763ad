/* SPDX-License-Identifier: Apache-2.0
 * The tiles of plain multiply-adds: what gemm's and grouped_gemm's engine "cuda" share. */
#ifndef MICA_OPS_GEMM_CUDA_GEMM_CUDA_H
#define MICA_OPS_GEMM_CUDA_GEMM_CUDA_H

#include "ops/gemm/gemm_shape.h"

enum { KNOB_TILE_M, KNOB_TILE_N, KNOB_TILE_K, KNOB_MICRO_M, KNOB_MICRO_N };
extern const char *const gemm_cuda_knobs[];

/* Configs for products of this many rows and columns. */
int gemm_cuda_configs(int64_t rows, int64_t cols, mica_config *configs);
/* Milliseconds for this many tiles over k terms. */
double gemm_cuda_predict(const mica_gemm_desc *desc, double tiles, double k, double bytes,
                         const mica_device_info *device, const mica_config *config);
/* The constants of gemm_cuda.cuh. */
void gemm_cuda_prologue(const mica_gemm_desc *desc, const gemm_shape *shape,
                        const mica_config *config, mica_text *prologue);
mica_grid gemm_cuda_grid(int64_t tiles, const mica_config *config);

#endif
