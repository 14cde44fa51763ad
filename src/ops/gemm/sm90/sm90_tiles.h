/* SPDX-License-Identifier: Apache-2.0
 * What the parts of gemm's engine `sm90` share: the product as its tiles see it
 * (sm90_tiles.c), and which tiles it has (sm90_model.c). */
#ifndef MICA_OPS_GEMM_SM90_SM90_TILES_H
#define MICA_OPS_GEMM_SM90_SM90_TILES_H

#include "ops/gemm/sm90/sm90_operand.h"

enum { KNOB_TILE_M, KNOB_TILE_N, KNOB_STAGES, KNOB_DEPTH, KNOB_SPLIT, KNOB_LINES, KNOB_PINGPONG };

enum {
    LINE_BYTES = GEMM_SM90_LINE_BYTES,
    ROWS_OF_GROUP = 64,
    BUFFER_BYTES = 8192,
    BARRIERS = 320, /* bytes */
    MOST_BUFFERS = 4,
    FEW = 32 /* rows or columns of c up to which a product is memory's business */
};

/* A tile is M x N of c, or of c transposed if `swapped`: m and n below are the tile's, not the
 * product's. `a` is the M operand, `b` the N operand. c is contiguous along N. Where c has few rows
 * or columns they are N; an f32 operand that is not contiguous along K is the M operand. */
typedef struct gemm_sm90_geometry {
    gemm_shape shape; /* with a gate n counts all columns of b */
    gemm_full_epilogue extra;
    bool swapped, halves;
    bool few;               /* N is: M is read at the speed of memory */
    gemm_sm90_operand a, b; /* along M, along N */
    const long long *a_batch, *b_batch;
    long long c_m, c_n, r_m, r_n;
} gemm_sm90_geometry;

/* Or why the engine does not take the product. */
mica_status gemm_sm90_plan_geometry(const mica_gemm_desc *d, gemm_sm90_geometry *g, mica_why *why);
/* Of a tile, out of the TILE_M that are multiplied; 0 stands for all in older records. */
int gemm_sm90_tile_rows(const mica_config *c);
/* Columns of a box of c: 128 bytes, or the whole tile. */
int gemm_sm90_box(const mica_gemm_desc *d, const mica_config *c);
/* The M operand is f32 and not contiguous along K. */
bool gemm_sm90_by_registers(const gemm_sm90_geometry *g);
/* Neighbours in c are of different rows of the tile. */
bool gemm_sm90_c_along_m(const gemm_sm90_geometry *g);
/* Results along N of a warpgroup's 64 rows that fill a buffer. */
int gemm_sm90_n_of_buffer(const mica_gemm_desc *d);
/* Stages of K. */
long long gemm_sm90_fills(const gemm_sm90_geometry *g, const mica_config *c);
/* Whether TMA stores c, and the epilogue is short enough to be unrolled for
 * all of them. */
bool gemm_sm90_is_light(const mica_gemm_desc *d, const gemm_sm90_geometry *g, const mica_config *c);
/* Whether it would be, but for a last box that repeats some of its neighbour's columns and would
 * find results in the place of a residual that is c itself. */
bool gemm_sm90_spoils_residual(const mica_gemm_desc *d, const gemm_sm90_geometry *g,
                               const mica_config *c);
/* Whether it also loads the residual. */
bool gemm_sm90_brings_residual(const mica_gemm_desc *d, const gemm_sm90_geometry *g,
                               const mica_config *c);
/* Warpgroups that multiply. */
int gemm_sm90_groups(const mica_config *c);
/* Bytes of the ring, and what aligns it. */
int gemm_sm90_ring_bytes(const mica_config *c);
/* Of a warpgroup, for c on its way out; what the ring leaves. */
int gemm_sm90_buffers(const mica_config *c, const mica_device_info *device);

/* ---- sm90_model.c ---- */

/* The best few, as the model has it; and what it says of one, in ms. */
int gemm_sm90_configs(const void *desc, const mica_device_info *device, mica_config *out);
double gemm_sm90_predict(const void *desc, const mica_device_info *device, const mica_config *c);

#endif
