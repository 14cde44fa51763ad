/* SPDX-License-Identifier: Apache-2.0
 * Tiles of matrix products on the tensor cores of sm_80: the host side of kernels/mma_tile.cuh.
 */
#ifndef MICA_OPS_MMA_MMA_TILE_H
#define MICA_OPS_MMA_MMA_TILE_H

#include "ops/op.h"

/* How threads read an operand: `vector` elements at once along k or along its lines. */
typedef struct mica_mma_operand {
    mica_dtype dtype;
    int vector;
    bool k_fast;
    bool shifted; /* 16 bytes that begin at any element, where vectors are narrower than 4 bytes */
} mica_mma_operand;

typedef struct mica_mma_tile {
    int tile_m, tile_n; /* a config's */
    mica_mma_operand a, b;
    mica_dtype c;
    int c_vector;  /* results stored at once, at most 8 */
    bool c_n_fast; /* along the columns, else along the rows */
    bool precise;  /* f32 as pairs of tf32 numbers */
} mica_mma_tile;

/* Tiles that configs may name, largest first; efficiency is of the tensor cores' rate while the
 * tile is full and k is long; precise: of the rate that mica_mma_predict makes of three products
 * and splitting, 0: not offered. */
typedef struct mica_mma_choice {
    int tile_m, tile_n;
    double efficiency, precise;
} mica_mma_choice;
extern const mica_mma_choice mica_mma_choices[];
extern const int mica_mma_choice_count;

/* Configs {tile_m, tile_n} for m x n results: tiles more than half of which would always be empty
 * are left out, but for the smallest; of precise ones, those that are never full. */
int mica_mma_configs(const mica_mma_tile *tile, int64_t m, int64_t n, mica_config *configs);

/* Whether bytes must go through registers to shared memory, which costs some speed. */
bool mica_mma_is_staged(const mica_mma_operand *o);

int mica_mma_threads(const mica_mma_tile *t);
int mica_mma_shared_bytes(const mica_mma_tile *t);
int mica_mma_slice(const mica_mma_tile *t); /* elements of k in a slice */
/* All that kernels/mma_tile.cuh needs; c's type is written as c_t. */
void mica_mma_prologue(mica_text *prologue, const mica_mma_tile *t);

/* TFLOP/s of the tensor cores by mma.sync for inputs of that type. */
double mica_mma_rate(const mica_device_info *device, mica_dtype input);
/* Milliseconds of `tiles` tiles with sums over k elements each. */
double mica_mma_predict(const mica_device_info *device, const mica_mma_tile *t, double tiles,
                        double k);

/* Products of one instruction are summed exactly and cut; rounding to tf32 outweighs the rest. */
void mica_mma_contract(mica_dtype input, mica_contract *contract);
/* The same of PRECISE tiles; the contract is that of the operation. */
void mica_mma_precise_contract(mica_contract *contract);

#endif
