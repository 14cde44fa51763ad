/* SPDX-License-Identifier: Apache-2.0
 * oneDNN called as its manual says, for comparison: f32 convolutions and matrix products of mica's
 * problem lines. Apart from the parsing nothing of mica is between. */
#ifndef MICA_BENCH_ONEDNN_DIRECT_H
#define MICA_BENCH_ONEDNN_DIRECT_H

#include "mica/mica.h"

typedef struct direct direct;

/* Which tensors the primitive may lay out as it likes. Those that lie otherwise are reordered in
 * each run, but packed inputs before. */
typedef enum direct_formats {
    DIRECT_USER,    /* packed ones */
    DIRECT_WEIGHTS, /* and the weights */
    DIRECT_ALL,     /* and all others */
    DIRECT_BLOCKED, /* all, and no run reorders anything: as between layers of a network */
    DIRECT_FORMATS
} direct_formats;

/* packed: as in mica_options. NULL with a text in why if it cannot be said to oneDNN. */
direct *direct_make(const mica_problem *problem, direct_formats formats, uint64_t packed, char *why,
                    size_t size);
/* Adds a set of buffers (pointers to element 0), and packs what is packed. Returns its number, or
 * -1. */
int direct_bind(direct *d, void *const *args);
/* One execution, finished on return. */
bool direct_run(direct *d, int set);
/* "brg:avx512_core" */
const char *direct_name(const direct *d);
void direct_free(direct *d);

#endif
