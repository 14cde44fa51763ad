/* SPDX-License-Identifier: Apache-2.0
 * The launches of the CUDA engine, as numbers: what contract, model and build derive from a
 * problem.
 */
#ifndef MICA_OPS_NORM_NORM_CUDA_H
#define MICA_OPS_NORM_NORM_CUDA_H

#include "ops/norm/norm.h"
#include "ops/access/slices.h"

typedef enum norm_stage_kind {
    NORM_FUSED,   /* a set from its sums to its elements */
    NORM_PARTIAL, /* sums of a part */
    NORM_MERGE,   /* of the parts */
    NORM_APPLY    /* elements from known statistics */
} norm_stage_kind;

/* Threads of a block of MERGE: kept indices side by side, and threads that share the parts of one.
 */
enum { NORM_MERGE_LANES = 32, NORM_MERGE_WALKERS = 16 };

typedef struct norm_stage {
    norm_stage_kind kind;
    bool sets;   /* the kept indices are sets; else elements of scale */
    bool direct; /* PARTIAL with one part: finishes its sums itself */
    bool
        channels; /* a thread has groups.vector neighbouring channels, a block groups.slices such */
    norm_split split;
    mica_slices groups;
    int64_t parts, piece;
    /* FUSED, bwd: so many persistent blocks that take all sets and so have parts of the gradients
     * of scale and bias; 0: a block's sets are its own */
    int64_t gathering;
    bool dresidual;      /* writes it */
    bool from_dresidual; /* APPLY: takes it for dy, the activation's slope being in it */
} norm_stage;

enum { NORM_MAX_STAGES = 5 };
typedef struct norm_stages {
    norm_stage at[NORM_MAX_STAGES];
    int count;
} norm_stages;

/* NORM_SPLIT: sums in parts, which need workspace, where there are few sets or channels;
 * NORM_WHOLE: one group of threads does a set or channel alone; NORM_GATHERED: blocks that take
 * whole sets, each many, have parts of the gradients of scale and bias. None looks at the device:
 * bits do not depend on it. */
enum { NORM_WHOLE, NORM_SPLIT, NORM_GATHERED };
void norm_stages_make(const mica_norm_desc *d, int64_t split, norm_stages *stages);
/* Whether splitting changes anything, and whether gathering can be done. */
bool norm_stages_can_split(const mica_norm_desc *d);
bool norm_stages_can_gather(const mica_norm_desc *d);
/* What a stage computes, as a problem: d, or with from_dresidual what is left of it. */
void norm_stage_desc(const mica_norm_desc *d, bool from_dresidual, mica_norm_desc *stage);
/* Blocks of a stage. */
int64_t norm_stage_blocks(const norm_stage *stage);
/* Whether scale or bias (arg) lies beside the elements of a vector. */
bool norm_lies_along(const norm_split *split, int arg);

#endif
