/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of routing receive; host and device share this file. */
#ifndef MICA_OPS_MOE_ROUTE_ARGS_H
#define MICA_OPS_MOE_ROUTE_ARGS_H

typedef struct mica_moe_route_args {
    const void *logits, *bias;
    void *indices, *weights; /* bwd: read, and weights are their gradient */
    void *dlogits;
    int *counts;   /* bwd: read */
    void *aux, *z; /* bwd: their gradients, read */
    long long tokens;
    int experts, slots;
    int groups, kept_groups, group; /* group: experts of one */
    int whole;                      /* logits (and dlogits) are aligned for vectors */
    int blocks;                     /* that have partial sums */
    /* strides of tokens, and of experts or slots */
    long long x_token, x_expert, dx_token, dx_expert, index_token, index_slot, weight_token,
        weight_slot, bias_expert, counts_expert;
    double scale;
    double aux_by, z_by; /* fwd: E / T^2 and 1 / T; bwd: E / T^2 and 2 / T */
    /* by expert, then by block; z by block */
    double *partial_p, *partial_z;
    long long *partial_counts;
} mica_moe_route_args;

#endif
