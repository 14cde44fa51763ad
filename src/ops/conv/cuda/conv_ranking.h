/* SPDX-License-Identifier: Apache-2.0
 * The quickest of what an engine tries out, in order. */
#ifndef MICA_OPS_CONV_CUDA_CONV_RANKING_H
#define MICA_OPS_CONV_CUDA_CONV_RANKING_H

#include <stddef.h>

enum { CONV_RANKING_MOST = 8 };

typedef struct conv_ranking {
    void *items; /* room for `most` of `size` bytes */
    size_t size;
    int most, count;
    double ms[CONV_RANKING_MOST];
} conv_ranking;

/* Takes a copy of the item if it is among the quickest; behind those of the same time. */
void conv_rank(conv_ranking *r, const void *item, double ms);

#endif
