/* SPDX-License-Identifier: Apache-2.0
 * What the files of multi-head attention share. */
#ifndef MICA_OPS_MHA_MHA_H
#define MICA_OPS_MHA_MHA_H

#include "mica/mha.h"
#include "ops/op.h"

enum { MHA_MAX_DIM = 1024 }; /* of a head: what attention takes */

extern const mica_op mica_op_mha;
extern const mica_engine mica_mha_compose, mica_mha_compose_cuda;

typedef struct mha_sizes {
    int64_t batch, rows, key_batch, keys; /* B and Sq, of k B and Sk */
    int64_t heads, kv_heads, d, dv;
    int64_t eq, ek, ev, eo;
} mha_sizes;
mha_sizes mha_sizes_of(const mica_mha_desc *d);

/* The attention in the middle. */
mica_attention_desc mha_attention(const mica_mha_desc *d);

void mha_reference(const void *desc, const mica_view *v, const double *scalars);
/* oh and lse of qh, kh, vh alone, from views of a descriptor of pass fwd. */
void mha_reference_attention(const mica_mha_desc *d, const mica_view *v);
bool mha_fill(const void *desc, const double *scalars, int arg, mica_fill fill, uint64_t seed,
              double *values);

#endif
