/* SPDX-License-Identifier: Apache-2.0
 * What the files of attention's engine sm90_bwd share: which kernels a config asks for. */
#ifndef MICA_OPS_ATTENTION_BACKWARD_SM90_BACKWARD_H
#define MICA_OPS_ATTENTION_BACKWARD_SM90_BACKWARD_H

#include "ops/attention/attention.h"
#include "ops/attention/backward_sm90/backward_args.h"
#include "ops/attention/sm90/sm90_shape.h"

/* Which sums a kernel has, of the side that stays; once: dq's, too. */
typedef struct attention_bwd_part {
    bool keys, a, b, once;
} attention_bwd_part;

enum {
    ATTENTION_BWD_PARTS = 3,
    ATTENTION_BWD_SUMS = 64,    /* rows and columns of a part of dq */
    ATTENTION_BWD_THREADS = 256 /* of sm90/sm90_stats.cu */
};

/* A kernel's tile: warpgroups, others and stages. */
typedef struct attention_bwd_tile {
    int groups, lines, stages;
} attention_bwd_tile;

int attention_bwd_parts(const mica_config *c, attention_bwd_part *p);
attention_bwd_tile attention_bwd_tile_of(const mica_config *c, const attention_bwd_part *p);
/* Registers for the sums of so many columns. */
int attention_bwd_held(int64_t columns);
bool attention_bwd_plain(const mica_attention_desc *d);
int attention_bwd_shared(const mica_attention_desc *d, const attention_bwd_part *p,
                         const attention_bwd_tile *t);

/* backward_plan.c */
mica_status attention_bwd_build(mica_plan *plan);
mica_status attention_bwd_run(const mica_plan *plan, const mica_run *r);

#endif
