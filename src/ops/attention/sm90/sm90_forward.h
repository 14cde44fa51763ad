/* SPDX-License-Identifier: Apache-2.0
 * What the forward engines of Hopper share on the host, whatever the operands' size: limits, jobs,
 * arguments, the launch. */
#ifndef MICA_OPS_ATTENTION_SM90_SM90_FORWARD_H
#define MICA_OPS_ATTENTION_SM90_SM90_FORWARD_H

#include "ops/attention/sm90/sm90_shape.h"

/* What the tile's sizes change of a plan. */
typedef struct attention_sm90_tile {
    int groups, keys;
    int piece; /* keys of a tile that lie in one page; 0: no pages */
    bool claimed;
} attention_sm90_tile;

typedef struct attention_sm90_forward {
    attention_sm90_args args; /* all but maps and pointers */
    mica_tensor_map_spec q, k, v;
    int out_bytes; /* of alignment that vectors of out need; 0: it has none */
    mica_kernel *kernel,
        *no_claims; /* the latter, which resets the work counter, NULL without one */
    size_t claims;  /* where the counter is in the workspace */
    mica_grid grid;
} attention_sm90_forward;

/* The device, what TMA can address, counts. */
mica_status attention_sm90_check_all(const mica_attention_desc *d, const mica_device_info *device,
                                     mica_why *why);
/* Pairs of a query and a key as the cost sees them. */
double attention_sm90_pairs(const mica_attention_desc *d);
/* Whether some rows see more keys than others. */
bool attention_sm90_jobs_differ(const mica_attention_desc *d);
/* Tiles of `keys` that a job of `rows` goes through. */
double attention_sm90_tiles_of_job(const mica_attention_desc *d, double rows, double keys);
/* Jobs, and how many of them there are of rows that count. */
int64_t attention_sm90_jobs(const mica_attention_desc *d, int groups);
double attention_sm90_full_jobs(const mica_attention_desc *d, double rows);
/* What jobs and the memory beside them take together, of jobs that alone take `ms`. */
double attention_sm90_beside_memory(const mica_attention_desc *d, const mica_device_info *device,
                                    double ms);

/* A plan's state, workspace and kernel; the kernel's shared memory is the launch's. */
mica_status attention_sm90_build(mica_plan *plan, const attention_sm90_tile *tile,
                                 const mica_kernel_spec *kernel);
mica_status attention_sm90_run(const mica_plan *plan, const mica_run *r);

#endif
