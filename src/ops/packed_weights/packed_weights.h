/* SPDX-License-Identifier: Apache-2.0
 * What dequantize_weights and repack_weights share: sizes and strides of a problem. */
#ifndef MICA_OPS_PACKED_WEIGHTS_H
#define MICA_OPS_PACKED_WEIGHTS_H

#include "mica/packed_weights.h"
#include "ops/op.h"
#include "ops/packed_weights/packed_weights_args.h"

typedef struct mica_packed {
    mica_packed_args a;
    bool dequantizes; /* else repacks */
    int format, bits;
    bool single; /* scales are of one group */
    bool has_scales, has_zeros, has_index;
    mica_dtype scales, to, index, zeros; /* zeros: of w_zeros */
    /* of the run */
    int arg_scales, arg_zeros, arg_index, arg_to;
} mica_packed;
/* views: NULL, or arguments whose strides count. */
void mica_packed_make(const mica_op *op, const void *desc, const mica_view *views, mica_packed *p);
void mica_packed_bind(const mica_packed *p, const mica_run *run, mica_packed_args *a);
/* Whether neighbours along K lie side by side in w, and its rows begin at whole bytes. */
bool mica_packed_rows_whole(const mica_packed *p);

void mica_packed_contract(const void *desc, const mica_config *config, mica_contract *contract);
void mica_dequantize_weights_reference(const void *desc, const mica_view *views,
                                       const double *scalars);
void mica_repack_weights_reference(const void *desc, const mica_view *views, const double *scalars);

extern const mica_op mica_op_dequantize_weights, mica_op_repack_weights;
extern const mica_engine mica_dequantize_weights_cpu, mica_dequantize_weights_cuda;
extern const mica_engine mica_repack_weights_cpu, mica_repack_weights_cuda;

#endif
