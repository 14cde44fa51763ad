/* SPDX-License-Identifier: Apache-2.0
 * Softmax inside the library: what its engines share. */
#ifndef MICA_OPS_SOFTMAX_SOFTMAX_H
#define MICA_OPS_SOFTMAX_SOFTMAX_H

#include "mica/softmax.h"
#include "ops/op.h"
#include "ops/access/layout.h"

/* What an engine may add to exp, a division and a product, in units in the last place. */
#define MICA_SOFTMAX_ULPS 6

/* The tensors of a pass in the order an engine uses them: fwd x y; bwd y dy dx. The last is the
 * output. */
typedef struct mica_softmax_operands {
    int count;
    int arg[3];
    const mica_tensor *tensor[3];
} mica_softmax_operands;
mica_softmax_operands mica_softmax_operands_of(const mica_softmax_desc *d);

/* The same with the axis of size 1: one element per slice. */
mica_tensor mica_softmax_without_axis(const mica_tensor *t, int64_t axis);

/* Slices as a merged loop nest, and the axis apart from it. */
typedef struct mica_softmax_shape {
    mica_layout outer;
    int64_t n;              /* elements of a slice */
    int64_t axis_stride[3]; /* by operand */
} mica_softmax_shape;
void mica_softmax_shape_make(mica_softmax_shape *s, const mica_softmax_desc *d);

/* Whether it is more than softmax or its logarithm: what the room `variants` is for. */
bool mica_softmax_is_variant(const mica_softmax_desc *d);
/* The refusal of the engines that know none. */
mica_status mica_softmax_refuse_variant(const mica_softmax_desc *d, mica_why *why);

/* An f64 operand means f64 arithmetic. */
bool mica_softmax_is_wide(const mica_softmax_operands *o);

void mica_softmax_reference(const void *desc, const mica_view *args, const double *scalars);
extern const mica_op mica_op_softmax;
extern const mica_engine mica_softmax_cpu, mica_softmax_columns, mica_softmax_cuda;
extern const mica_engine mica_softmax_variants_cpu, mica_softmax_variants_cuda;

#endif
