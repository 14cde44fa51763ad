/* SPDX-License-Identifier: Apache-2.0
 * Chunks of slices on the CPU, and what has been seen of each slice. */
#ifndef MICA_OPS_SCAN_CPU_SCAN_CPU_H
#define MICA_OPS_SCAN_CPU_SCAN_CPU_H

#include "ops/scan/scan.h"

/* Elements of a chunk, and most slices of a tile. */
enum { MICA_SCAN_CHUNK = 2048, MICA_SCAN_WIDTH = 512 };

/* Numbers are doubles, or 64-bit integers. */
typedef union mica_scan_numbers {
    double f64[MICA_SCAN_WIDTH];
    int64_t s64[MICA_SCAN_WIDTH];
} mica_scan_numbers;

/* Of the elements so far, by slice. */
typedef struct mica_scan_state {
    mica_scan_numbers a; /* sum, product, maximum; of SCAN_MAPS what 0 becomes */
    mica_scan_numbers b; /* the maximum that exponentials are about; of SCAN_MAPS the factor */
    int64_t index[MICA_SCAN_WIDTH]; /* of the maximum; -1: of nothing */
    uint8_t cut[MICA_SCAN_WIDTH];   /* a segment has begun: what came before does not count */
} mica_scan_state;

/* m positions of `width` neighbouring slices, in the order of memory. */
typedef struct mica_scan_chunk {
    void *a;              /* elements; receives the results */
    const void *b, *c;    /* further operands, or NULL */
    const uint8_t *heads; /* whether a segment begins there, in the scan's order; or NULL */
    const uint8_t *shown; /* SCAN_RUNS: whether the run's sum is the result, which else is 0 */
    int64_t *index;       /* receives positions, or NULL */
    int64_t from, m, width;
    bool silent; /* only the state is wanted */
} mica_scan_chunk;

typedef struct mica_scan_loops {
    void (*clear)(const mica_scan_step *s, mica_scan_state *state, int64_t width);
    void (*chunk)(const mica_scan_step *s, const mica_scan_chunk *c, mica_scan_state *state);
    /* `later` comes behind. */
    void (*merge)(const mica_scan_step *s, mica_scan_state *to, const mica_scan_state *later,
                  int64_t width);
} mica_scan_loops;
extern const mica_scan_loops mica_scan_loops_f64, mica_scan_loops_s64;

#endif
