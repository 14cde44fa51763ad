/* SPDX-License-Identifier: Apache-2.0
 * What the loops of lrn get: a run's geometry. */
#ifndef MICA_OPS_LRN_CPU_LRN_CPU_H
#define MICA_OPS_LRN_CPU_LRN_CPU_H

#include "ops/lrn/lrn.h"

typedef struct mica_lrn_walk {
    mica_lrn_args a;
    int row;            /* axis of lines */
    int power;          /* LRN_POW or roots */
    int64_t block;      /* elements of a line that a task has: all where windows reach along it */
    int64_t tasks;      /* each of them closed: no window reaches out of it */
    int64_t lines;      /* of a task */
    int64_t line;       /* numbers of a line and what its windows reach beside it */
    int64_t task_bytes; /* of workspace, for a thread */
    int threads;
    bool backward;
    double bytes;
} mica_lrn_walk;

/* Numbers that a thread keeps: lines for a line's own, and backward two for each of a task. */
enum { MICA_LRN_LINES = 6 };

void mica_lrn_loops_f32(const mica_lrn_walk *w, const mica_lrn_args *a, void *workspace);
void mica_lrn_loops_f64(const mica_lrn_walk *w, const mica_lrn_args *a, void *workspace);

#endif
