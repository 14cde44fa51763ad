/* SPDX-License-Identifier: Apache-2.0
 * The quickest of what an engine tries out. */
#include "ops/conv/cuda/conv_ranking.h"

#include <string.h>

void conv_rank(conv_ranking *r, const void *item, double ms)
{
    char *items = r->items;
    int at = r->count;
    while (at > 0 && r->ms[at - 1] > ms) at--;
    if (at == r->most) return;
    if (r->count < r->most) r->count++;
    size_t later = (size_t)(r->count - 1 - at), from = (size_t)at * r->size;
    memmove(items + from + r->size, items + from, later * r->size);
    memmove(&r->ms[at + 1], &r->ms[at], later * sizeof *r->ms);
    memcpy(items + from, item, r->size);
    r->ms[at] = ms;
}
