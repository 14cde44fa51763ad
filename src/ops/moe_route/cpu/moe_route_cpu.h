/* SPDX-License-Identifier: Apache-2.0
 * What the engine of routing on the CPU gives its loops. */
#ifndef MICA_OPS_MOE_ROUTE_CPU_H
#define MICA_OPS_MOE_ROUTE_CPU_H

#include "ops/moe_route/moe_route.h"

/* What a part of the tokens adds to the losses; p and counts: experts of each. */
typedef struct moe_route_part {
    double *p, z;
    int64_t *counts;
} moe_route_part;

typedef struct moe_route_run {
    const mica_moe_route_desc *d;
    const mica_run *run;
    bool by_score, limits, softmax, sums; /* as moe_route.h says */
} moe_route_run;

/* Tokens [first, end), by the type of arithmetic; part: NULL without sums, and in bwd. */
void moe_route_f32(const moe_route_run *r, int64_t first, int64_t end, moe_route_part *part);
void moe_route_f64(const moe_route_run *r, int64_t first, int64_t end, moe_route_part *part);

#endif
