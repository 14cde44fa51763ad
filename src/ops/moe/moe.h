/* SPDX-License-Identifier: Apache-2.0
 * Layers of experts inside the library. */
#ifndef MICA_OPS_MOE_MOE_H
#define MICA_OPS_MOE_MOE_H

#include "mica/moe.h"
#include "ops/op.h"

typedef struct moe_sizes {
    int64_t tokens, k, width, out; /* T, k, H, O */
    int64_t experts, inner;        /* E, I */
    int64_t pre, rows;             /* of u: I or 2I columns; most rows that experts have together */
} moe_sizes;
moe_sizes moe_sizes_of(const mica_moe_desc *d);

/* Whether routes are found here; and the plan of it, whose tensors are packed, but for logits. */
bool moe_routes(const mica_moe_desc *d);
mica_moe_route_desc moe_route_of(const mica_moe_desc *d, mica_moe_route_pass pass);
/* Type of sums, and of the weights that routing gives. */
static inline mica_dtype moe_real(const mica_moe_desc *d)
{
    return d->x.dtype == MICA_F64 ? MICA_F64 : MICA_F32;
}
/* Whether experts are in few bits. */
static inline bool moe_has_codes(const mica_moe_desc *d)
{
    return mica_dtype_bits(d->w1.dtype) <= 8;
}
/* Neighbours of a row with one scale where activations are quantised, and rows of a square. */
enum { MOE_BLOCK = 128 };
/* Whether bwd needs gradients of the weights. */
bool moe_needs_dweights(const mica_moe_desc *d);

void moe_reference(const void *desc, const mica_view *args, const double *scalars);
bool moe_fill(const void *desc, const double *scalars, int arg, mica_fill fill, uint64_t seed,
              double *values);
extern const mica_op mica_op_moe;
extern const mica_engine mica_moe_compose, mica_moe_compose_cuda;

#endif
