/* SPDX-License-Identifier: Apache-2.0
 * What quantize_blocks and dequantize_blocks share: formats and tensors of blocks. */
#ifndef MICA_OPS_QUANTIZE_BLOCKS_H
#define MICA_OPS_QUANTIZE_BLOCKS_H

#include "mica/quantize_blocks.h"
#include "ops/op.h"
#include "ops/access/layout.h"
#include "ops/quantize_blocks/quantize_blocks_args.h"

enum mica_blocks_way { MICA_BLOCKS_READ, MICA_BLOCKS_BOTH, MICA_BLOCKS_ASIDE };

/* A row of formats.def. */
typedef struct mica_blocks_format {
    const char *name;
    int elements, bytes;
    int scale, second;
    enum mica_blocks_way way;
} mica_blocks_format;
extern const mica_blocks_format mica_blocks_formats[];

/* Bytes of the longest block, and its elements where it holds its scales. */
enum {
    MICA_BLOCKS_MOST = 4096,
    MICA_BLOCKS_MOST_BYTES = MICA_BLOCKS_MOST / 2,
    MICA_BLOCKS_HELD = 256
};

/* Each tensor has an element for each block, its first. */
typedef struct mica_blocks {
    const mica_blocks_format *format;
    bool encodes;
    int elements, bytes; /* of a block */
    mica_tensor at[MICA_BLOCKS_PLACES];
    int arg[MICA_BLOCKS_PLACES]; /* of the run; -1: absent */
    int64_t step[2];             /* of MICA_BLOCKS_PLACE_CODE and VALUE within a block */
} mica_blocks;
/* views: NULL, or arguments whose strides count. */
void mica_blocks_make(const mica_op *op, const void *desc, const mica_view *views,
                      mica_blocks *blocks);
/* Of blocks; not merged where there are none. */
void mica_blocks_layout(const mica_blocks *blocks, mica_layout *layout);

/* Element i of a block of a mica_block_format. */
float mica_blocks_element(int format, const uint8_t *block, int i, float scale);
/* n neighbouring blocks as f32; scale, NULL where blocks hold theirs, steps from block to block. */
typedef struct mica_blocks_run {
    int elements, bytes; /* of a block */
    int64_t n, scale_step;
    const float *scale;
} mica_blocks_run;
void mica_blocks_decode(int format, const mica_blocks_run *run, const uint8_t *x, float *v);

void mica_blocks_contract(const void *desc, const mica_config *config, mica_contract *contract);
void mica_quantize_blocks_reference(const void *desc, const mica_view *views,
                                    const double *scalars);
void mica_dequantize_blocks_reference(const void *desc, const mica_view *views,
                                      const double *scalars);

extern const mica_op mica_op_quantize_blocks, mica_op_dequantize_blocks;
extern const mica_engine mica_quantize_blocks_cpu, mica_quantize_blocks_cuda;
extern const mica_engine mica_dequantize_blocks_cpu, mica_dequantize_blocks_cuda;

#endif
