/* SPDX-License-Identifier: Apache-2.0
 * Filter gradients whose pixels are split: each part of the pixels gives sums laid out as the
 * filter, in workspace, and a last kernel adds the parts up in their order. */
#ifndef MICA_OPS_CONV_CUDA_CONV_PARTS_H
#define MICA_OPS_CONV_CUDA_CONV_PARTS_H

#include "ops/conv/conv.h"
#include "ops/conv/cuda/conv_parts_args.h"

typedef struct conv_parts {
    mica_kernel *kernel; /* NULL: the pixels are not split */
    mica_grid grid;
    size_t offset;  /* in the workspace */
    int64_t lowest; /* offset of the filter's lowest element */
    int sum_bytes;
    conv_parts_args args;
} conv_parts;

/* What a run tells a kernel that forms a result, or its parts: the inputs and the result, the
 * filter's at tap 0, and the scalars, which are not applied to parts. */
typedef struct conv_operands {
    const void *image, *other;
    void *out;
    double alpha, beta;
} conv_operands;

/* Whether the filter has no gaps, so that parts of its size may be laid out like it. */
bool conv_parts_possible(const mica_conv_desc *d);
/* Parts that give a device `wanted` blocks where one part has `blocks`, of at least `least` terms.
 */
int conv_parts_choose(int64_t blocks, int64_t wanted, int64_t terms, int64_t least);
/* Books the parts and compiles the kernel, unless there is one part; sums: the type they are in. */
mica_status conv_parts_build(mica_plan *plan, int splits, mica_dtype sums, conv_parts *parts);
/* Where element 0 of part 0 would lie. */
void *conv_parts_base(const conv_parts *parts, const mica_run *run);
conv_operands conv_parts_operands(const mica_plan *plan, const conv_parts *parts,
                                  const mica_conv_roles *roles, int64_t f_base,
                                  const mica_run *run);
mica_status conv_parts_run(const mica_plan *plan, const conv_parts *parts, const mica_run *run);

#endif
