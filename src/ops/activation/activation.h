/* SPDX-License-Identifier: Apache-2.0
 * What the files of the activation family share. */
#ifndef MICA_OPS_ACTIVATION_ACTIVATION_H
#define MICA_OPS_ACTIVATION_ACTIVATION_H

#include "mica/activation.h"
#include "ops/op.h"
#include "ops/shared/activation.h"

/* The tensors of a pass, x first: fwd x, y; bwd x, dy, dx. With gating x and dx are their first
 * halves, and the second half of argument i lies gate[i] elements further. */
typedef struct mica_activation_parts {
    mica_tensor tensors[3];
    int args[3]; /* MICA_ACTIVATION_X ... */
    int64_t gate[3];
    int count;
} mica_activation_parts;
void mica_activation_split(const mica_activation_desc *d, mica_activation_parts *parts);

void mica_activation_reference(const void *desc, const mica_view *args, const double *scalars);
extern const mica_op mica_op_activation;
extern const mica_engine mica_activation_cpu, mica_activation_cuda;

#endif
