/* SPDX-License-Identifier: Apache-2.0
 * Merged loop nests. */
#include "ops/access/layout.h"

#include <stdlib.h>
#include <string.h>

typedef long long strides_of[MICA_LAYOUT_RANK];

/* Whether dimension a should be outside of b: larger strides of the first tensor that tells them
 * apart. */
static bool is_outer(strides_of *strides, int n, int a, int b)
{
    for (int t = 0; t < n; t++) {
        long long sa = llabs(strides[t][a]), sb = llabs(strides[t][b]);
        if (sa != sb) return sa > sb;
    }
    return false;
}

static void swap(long long *a, long long *b)
{
    long long was = *a;
    *a = *b, *b = was;
}

/* Outer ones first; those that nothing tells apart stay in their order. */
static void sort(long long *dims, strides_of *strides, int rank, int n)
{
    for (int d = 1; d < rank; d++)
        for (int j = d; j > 0 && is_outer(strides, n, j, j - 1); j--) {
            swap(&dims[j], &dims[j - 1]);
            for (int t = 0; t < n; t++) swap(&strides[t][j], &strides[t][j - 1]);
        }
}

static bool mergeable(const long long *dims, strides_of *strides, int n, int outer, int inner)
{
    for (int t = 0; t < n; t++)
        if (strides[t][outer] != strides[t][inner] * dims[inner]) return false;
    return true;
}

int mica_layout_merge(long long *dims, strides_of *strides, int rank, int n)
{
    int kept = 0;
    sort(dims, strides, rank, n);
    for (int d = 0; d < rank; d++) {
        bool joins = kept > 0 && mergeable(dims, strides, n, kept - 1, d);
        int to = joins ? kept - 1 : kept++;
        dims[to] = joins ? dims[to] * dims[d] : dims[d];
        for (int t = 0; t < n; t++) strides[t][to] = strides[t][d];
    }
    return kept;
}

bool mica_layout_fits_int(long long count, const long long *dims, strides_of *strides, int rank,
                          int n)
{
    if (count > INT32_MAX) return false;
    for (int t = 0; t < n; t++) {
        long long reach = 0;
        for (int d = 0; d < rank; d++) reach += llabs(strides[t][d]) * (dims[d] - 1);
        if (reach > INT32_MAX) return false;
    }
    return true;
}

void mica_layout_make(mica_layout *l, const mica_tensor *const *tensors, int n)
{
    int rank = 0;
    memset(l, 0, sizeof *l);
    l->count = mica_tensor_count(tensors[0]);
    if (l->count == 0) return;
    for (int d = 0; d < tensors[0]->rank; d++) {
        if (tensors[0]->dims[d] == 1) continue;
        l->dims[rank] = tensors[0]->dims[d];
        for (int t = 0; t < n; t++) l->strides[t][rank] = tensors[t]->strides[d];
        rank++;
    }
    l->rank = mica_layout_merge(l->dims, l->strides, rank, n);
    l->fits_int = mica_layout_fits_int(l->count, l->dims, l->strides, l->rank, n);
}

bool mica_layout_is_linear(const mica_layout *l, int n)
{
    if (l->rank == 0) return true;
    if (l->rank != 1) return false;
    for (int t = 0; t < n; t++)
        if (l->strides[t][0] != 1) return false;
    return true;
}
