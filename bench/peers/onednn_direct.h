/* SPDX-License-Identifier: Apache-2.0
 * oneDNN called as its manual says, for comparison: f32 convolutions and matrix products of mica's
 * problem lines. Apart from the parsing nothing of mica is between. */
#ifndef MICA_BENCH_ONEDNN_DIRECT_H
#define MICA_BENCH_ONEDNN_DIRECT_H

#include "mica/mica.h"

typedef struct direct direct;

/* preferred: tensors lie as the primitive likes best, and bringing them there is not part of a run;
 * else as the line says. NULL with a text in why if it cannot be said to oneDNN. */
direct *direct_make(const mica_problem *problem, bool preferred, char *why, size_t size);
/* Adds a set of buffers: those of args (pointers to element 0), or copies in the preferred layouts.
 * Returns its number, or -1. */
int direct_bind(direct *d, void *const *args);
/* One execution, finished on return. */
bool direct_run(direct *d, int set);
/* "brg:avx512_core" */
const char *direct_name(const direct *d);
void direct_free(direct *d);

#endif
