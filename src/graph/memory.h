/* SPDX-License-Identifier: Apache-2.0
 * One block of memory for pieces that are needed at different times. */
#ifndef MICA_GRAPH_MEMORY_H
#define MICA_GRAPH_MEMORY_H

#include "mica/types.h"

typedef struct graph_piece {
    size_t bytes, at; /* rounded up to 256; what graph_place finds */
    int first, last;  /* steps that need it */
} graph_piece;

/* Places the pieces of `steps` steps; *total: the bytes taken; *least: those of the step that needs
 * most, below which no placement is. */
mica_status graph_place(graph_piece *pieces, int count, int steps, size_t *total, size_t *least);

#endif
