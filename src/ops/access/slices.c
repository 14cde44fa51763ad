/* SPDX-License-Identifier: Apache-2.0
 * Choice of thread groups. */
#include "ops/access/slices.h"
#include "ops/access/access.h"

#include <stdlib.h>

enum { BLOCK = 128, MOST_THREADS = 512, MOST_STRIDED_THREADS = 16 };
enum { SECTOR = 32, LONE_BYTES = 64, RAGGED_VECTORS = 32, LEAST_NEIGHBOURS = 32 };

static int power_of_two_from(int64_t least, int most)
{
    int p = 1;
    while (p < most && p < least) p *= 2;
    return p;
}

/* Elements of the widest tensor that are one access. */
static int widest(const int *bytes, int count)
{
    int most = MICA_ACCESS_BYTES;
    for (int t = 0; t < count; t++)
        if (MICA_ACCESS_BYTES / bytes[t] < most) most = MICA_ACCESS_BYTES / bytes[t];
    return most;
}

/* Widest vector whose size divides the slices and every step from slice to slice. */
static int choose_vector(const mica_layout *outer, int64_t n, const int64_t *along,
                         const int *bytes, int count)
{
    int64_t steps = n;
    for (int t = 0; t < count; t++) {
        if (along[t] != 1) return 1;
        steps |= mica_access_steps(outer, t, outer->rank);
    }
    return mica_access_fit(widest(bytes, count), steps);
}

/* Slices of an odd length: whole vectors inside of them, single elements at their ends. All
 * tensors' slices must start at the same place of a vector. */
static int choose_ragged(const mica_layout *outer, int64_t n, const int64_t *along,
                         const int *bytes, int count)
{
    int vector = MICA_ACCESS_BYTES / bytes[0];
    if (n < (int64_t)RAGGED_VECTORS * vector) return 1;
    for (int t = 0; t < count; t++) {
        if (along[t] != 1 || bytes[t] != bytes[0]) return 1;
        for (int d = 0; d < outer->rank; d++)
            if ((outer->strides[t][d] - outer->strides[0][d]) % vector) return 1;
    }
    return vector;
}

/* Whether the axis lies closer in memory than the neighbouring slice, for most tensors. */
static bool axis_is_closer(const mica_layout *outer, const int64_t *along, int count)
{
    int votes = 0;
    for (int t = 0; t < count; t++) {
        int64_t across = outer->rank ? llabs((long long)outer->strides[t][outer->rank - 1]) : 0;
        votes += outer->rank == 0 || llabs((long long)along[t]) <= across ? 1 : -1;
    }
    return votes > 0;
}

void mica_slices_choose(mica_slices *s, const mica_layout *outer, int64_t n, const int64_t *along,
                        const int *bytes, int count, int keep)
{
    s->along = axis_is_closer(outer, along, count);
    s->vector = s->along ? choose_vector(outer, n, along, bytes, count) : 1;
    int ragged = s->along ? choose_ragged(outer, n, along, bytes, count) : 1;
    s->ragged = ragged > s->vector;
    if (s->ragged) s->vector = ragged;
    int64_t vectors = (n + s->vector - 1) / s->vector + s->ragged;
    int64_t most_items = (s->along ? keep : keep / 2) / s->vector;
    /* Along the axis whole warps read together and four vectors each keep them busy; else a thread
     * alone with its slice already reads beside its neighbours. */
    bool lone = s->along && n * bytes[0] <= LONE_BYTES;
    int64_t few = s->along && !lone ? 4 : most_items;
    if (few > most_items) few = most_items;
    s->threads = power_of_two_from((vectors + few - 1) / few,
                                   s->along ? MOST_THREADS : MOST_STRIDED_THREADS);
    /* Neighbours read a sector together. */
    int beside = SECTOR / (s->vector * bytes[0]);
    if (s->along && !lone && s->threads < beside) s->threads = power_of_two_from(vectors, beside);
    s->slices = s->threads < BLOCK ? BLOCK / s->threads : 1;
    if (!s->along && s->slices < 32) s->slices = 32;
    int64_t items = (vectors + s->threads - 1) / s->threads;
    /* Rounded up to a power of two, so that shapes share kernels. */
    s->items = items <= most_items ? power_of_two_from(items, (int)most_items) : 0;
}

/* What divides the neighbours' number and every other step. */
bool mica_slices_beside(mica_slices *s, const mica_layout *outer, const int64_t *along,
                        const int *bytes, int count)
{
    const int last = outer->rank - 1;
    if (last < 0 || outer->dims[last] < LEAST_NEIGHBOURS) return false;
    int64_t steps = outer->dims[last];
    for (int t = 0; t < count; t++) {
        if (outer->strides[t][last] != 1) return false;
        steps |= along[t] | mica_access_steps(outer, t, last);
    }
    *s = (mica_slices){
        .threads = 1, .slices = BLOCK, .vector = mica_access_fit(widest(bytes, count), steps)};
    return true;
}

bool mica_slices_whole(const mica_slices *s, const void *const *pointers, const int *bytes,
                       int count)
{
    const uintptr_t first = (uintptr_t)pointers[0] % MICA_ACCESS_BYTES;
    for (int t = 0; t < count; t++) {
        const bool beside = !s->ragged || (uintptr_t)pointers[t] % MICA_ACCESS_BYTES == first;
        if (!beside ||
            !mica_access_starts(pointers[t], s->ragged ? bytes[t] : s->vector * bytes[t]))
            return false;
    }
    return true;
}

void mica_slices_prologue(mica_text *prologue, const mica_slices *s)
{
    mica_prologue_int(prologue, "THREADS", s->threads);
    mica_prologue_int(prologue, "SLICES", s->slices);
    mica_prologue_int(prologue, "ALONG", s->along);
    mica_prologue_int(prologue, "VECTOR", s->vector);
    mica_prologue_int(prologue, "RAGGED", s->ragged);
    mica_prologue_int(prologue, "ITEMS", s->items);
}

mica_grid mica_slices_grid(const mica_slices *s, int64_t slices)
{
    int64_t blocks = (slices + s->slices - 1) / s->slices;
    if (blocks > INT32_MAX) blocks = INT32_MAX; /* blocks go on to further slices */
    return (mica_grid){.grid = {(unsigned)blocks}, .block = {(unsigned)(s->threads * s->slices)}};
}
