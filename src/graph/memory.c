/* SPDX-License-Identifier: Apache-2.0
 * Placement. Pieces are put one after the other where they fit best among those that live at the
 * same time; which comes first decides what is left between them, so several orders are tried and
 * the best is kept. Networks in training need what lives longest at the bottom (activations, like
 * parentheses), those in inference the largest first.
 *
 * Very many pieces are placed in one sweep through the steps. */
#include "graph/memory.h"
#include "base/memory.h"
#include "base/why.h"

#include <stdlib.h>
#include <string.h>

enum { SEVERAL = 3000, MOST_LIVE = 4096 };

typedef int (*comparison)(const void *, const void *);

static int by_size(const void *a, const void *b)
{
    const graph_piece *p = *(graph_piece *const *)a, *q = *(graph_piece *const *)b;
    if (p->bytes != q->bytes) return p->bytes < q->bytes ? 1 : -1;
    int left = p->last - p->first, right = q->last - q->first;
    if (left != right) return left < right ? 1 : -1;
    return p < q ? -1 : p > q;
}

static int by_length(const void *a, const void *b)
{
    const graph_piece *p = *(graph_piece *const *)a, *q = *(graph_piece *const *)b;
    int left = p->last - p->first, right = q->last - q->first;
    return left != right ? (left < right ? 1 : -1) : by_size(a, b);
}

static int by_area(const void *a, const void *b)
{
    const graph_piece *p = *(graph_piece *const *)a, *q = *(graph_piece *const *)b;
    double left = (double)p->bytes * (p->last - p->first + 1);
    double right = (double)q->bytes * (q->last - q->first + 1);
    return left != right ? (left < right ? 1 : -1) : by_size(a, b);
}

static int by_begin(const void *a, const void *b)
{
    const graph_piece *p = *(graph_piece *const *)a, *q = *(graph_piece *const *)b;
    if (p->first != q->first) return p->first < q->first ? -1 : 1;
    return by_length(a, b);
}

static bool at_once(const graph_piece *a, const graph_piece *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* Into the smallest gap that holds it, among pieces in the order of their places. Returns where in
 * that order it belongs. */
static int fit(graph_piece *const *placed, int count, graph_piece *p)
{
    size_t end = 0, best = SIZE_MAX;
    p->at = SIZE_MAX;
    for (int i = 0; i < count; i++) {
        const graph_piece *q = placed[i];
        if (!at_once(p, q)) continue;
        if (q->at > end && q->at - end >= p->bytes && q->at - end < best) {
            best = q->at - end;
            p->at = end;
        }
        if (q->at + q->bytes > end) end = q->at + q->bytes;
    }
    if (p->at == SIZE_MAX) p->at = end;
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (placed[middle]->at <= p->at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static size_t place_sorted(graph_piece **order, graph_piece **placed, int count)
{
    size_t total = 0;
    for (int i = 0; i < count; i++) {
        int at = fit(placed, i, order[i]);
        memmove(placed + at + 1, placed + at, (size_t)(i - at) * sizeof *placed);
        placed[at] = order[i];
        if (order[i]->at + order[i]->bytes > total) total = order[i]->at + order[i]->bytes;
    }
    return total;
}

/* By the steps: `order` is sorted by them, `live` the pieces of the moment. */
static size_t sweep(graph_piece **order, graph_piece **live, int count)
{
    size_t total = 0;
    int alive = 0;
    for (int i = 0; i < count; i++) {
        int kept = 0;
        graph_piece *p = order[i];
        if (i && p->first == order[i - 1]->first) {
            kept = alive;
        } else {
            for (int k = 0; k < alive; k++)
                if (live[k]->last >= p->first) live[kept++] = live[k];
        }
        alive = kept;
        int at = alive;
        if (alive > MOST_LIVE)
            p->at = total;
        else
            at = fit(live, alive, p);
        memmove(live + at + 1, live + at, (size_t)(alive - at) * sizeof *live);
        live[at] = p;
        alive++;
        if (p->at + p->bytes > total) total = p->at + p->bytes;
    }
    return total;
}

/* What the fullest step needs. */
static mica_status fullest(const graph_piece *pieces, int count, int steps, size_t *least)
{
    size_t sum = 0, live = 0, bytes = ((size_t)steps + 2) * sizeof(size_t);
    size_t *begins = mica_alloc(2 * bytes), *ends;
    *least = 0;
    if (!begins) return mica_fail_memory(2 * bytes);
    ends = begins + steps + 2;
    for (int i = 0; i < count; i++) {
        if (__builtin_add_overflow(sum, pieces[i].bytes, &sum) || sum > INT64_MAX) {
            mica_release(begins);
            return mica_fail(MICA_UNSUPPORTED,
                             "the tensors of the graph have more than 2^63 bytes");
        }
        begins[pieces[i].first] += pieces[i].bytes;
        ends[pieces[i].last + 1] += pieces[i].bytes;
    }
    for (int s = 0; s < steps; s++) {
        live += begins[s] - ends[s];
        if (live > *least) *least = live;
    }
    mica_release(begins);
    return MICA_OK;
}

mica_status graph_place(graph_piece *pieces, int count, int steps, size_t *total, size_t *least)
{
    static const comparison orders[] = {by_length, by_size, by_area, by_begin};
    size_t bytes = ((size_t)count + 1) * sizeof(graph_piece *);
    for (int i = 0; i < count; i++) {
        if (pieces[i].bytes > INT64_MAX - 255)
            return mica_fail(MICA_UNSUPPORTED, "a tensor of %zu bytes", pieces[i].bytes);
        pieces[i].bytes = (pieces[i].bytes + 255) / 256 * 256;
    }
    MICA_TRY(fullest(pieces, count, steps, least));
    graph_piece **order = mica_alloc(bytes), **placed = mica_alloc(bytes);
    size_t *best = mica_alloc(((size_t)count + 1) * sizeof *best);
    mica_status status = order && placed && best ? MICA_OK : mica_fail_memory(bytes);
    *total = SIZE_MAX;
    for (int i = 0; status == MICA_OK && i <= 4 && *total > *least; i++) {
        const bool by_step = i == 0;
        if (!by_step && count > SEVERAL) break;
        for (int k = 0; k < count; k++) order[k] = &pieces[k];
        qsort(order, (size_t)count, sizeof *order, by_step ? by_begin : orders[i - 1]);
        size_t found = by_step ? sweep(order, placed, count) : place_sorted(order, placed, count);
        if (found >= *total) continue;
        *total = found;
        for (int k = 0; k < count; k++) best[k] = pieces[k].at;
    }
    for (int k = 0; status == MICA_OK && k < count; k++) pieces[k].at = best[k];
    mica_release(order);
    mica_release(placed);
    mica_release(best);
    return status;
}
