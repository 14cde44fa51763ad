/* SPDX-License-Identifier: Apache-2.0
 * Sums and sums of squares of y by channel on a GPU: partial ones, by a pass over y or by the
 * kernel that stores y, and a kernel that adds them in their order. */
#ifndef MICA_OPS_CONV_LOWERED_STATS_H
#define MICA_OPS_CONV_LOWERED_STATS_H

#include "ops/conv/conv.h"
#include "ops/conv/lowered/passes_args.h"

typedef struct conv_stats {
    mica_kernel *pass, *sum;
    mica_grid pass_grid, sum_grid;
    conv_stats_args args;
    size_t partial_at;
} conv_stats;

/* By a pass over y. */
mica_status conv_stats_build(mica_plan *plan, conv_stats *s);
/* `parts` partial sums of each channel are what another kernel writes, see conv_stats_args. */
mica_status conv_stats_build_parts(mica_plan *plan, int64_t parts, conv_stats *s);
double *conv_stats_partial(const conv_stats *s, const mica_run *r);
/* Once y, or the partial sums, are there. */
mica_status conv_stats_run(const conv_stats *s, const mica_run *r);

/* The description without them. */
mica_conv_desc conv_without_stats(const mica_conv_desc *d);
/* Whether the error of adding `each` values of f32 one after the other, of each channel's `count`,
 * is among what the sums may be off by. */
bool conv_stats_chain_ok(double each, double count);

/* What an engine hands runs to whose pointers its kernel does not take: the engine "cuda" and,
 * where the statistics are asked for, a pass over y. */
typedef struct conv_generic {
    mica_plan *plan;
    size_t at;
    conv_stats stats;
} conv_generic;
mica_status conv_generic_build(mica_plan *plan, conv_generic *g);
mica_status conv_generic_run(const conv_generic *g, const mica_run *r);

#endif
