/* SPDX-License-Identifier: Apache-2.0
 * Merged loop nests. */
#include "ops/access/layout.h"

#include <stdlib.h>
#include <string.h>

/* Whether dimension a should be outside of b: larger strides of the first tensor that tells them
 * apart. */
static bool is_outer(const mica_tensor *const *tensors, int n, int a, int b)
{
    for (int t = 0; t < n; t++) {
        int64_t sa = llabs(tensors[t]->strides[a]), sb = llabs(tensors[t]->strides[b]);
        if (sa != sb) return sa > sb;
    }
    return a < b;
}

static bool mergeable(const mica_layout *l, int n, int outer, int inner)
{
    for (int t = 0; t < n; t++)
        if (l->strides[t][outer] != l->strides[t][inner] * l->dims[inner]) return false;
    return true;
}

static void merge(mica_layout *l, int n)
{
    int kept = 0;
    for (int d = 0; d < l->rank; d++) {
        bool joins = kept > 0 && mergeable(l, n, kept - 1, d);
        int to = joins ? kept - 1 : kept++;
        l->dims[to] = joins ? l->dims[to] * l->dims[d] : l->dims[d];
        for (int t = 0; t < n; t++) l->strides[t][to] = l->strides[t][d];
    }
    l->rank = kept;
}

static bool fits_int(const mica_layout *l, int n)
{
    if (l->count > INT32_MAX) return false;
    for (int t = 0; t < n; t++) {
        int64_t reach = 0;
        for (int d = 0; d < l->rank; d++) reach += llabs(l->strides[t][d]) * (l->dims[d] - 1);
        if (reach > INT32_MAX) return false;
    }
    return true;
}

void mica_layout_make(mica_layout *l, const mica_tensor *const *tensors, int n)
{
    memset(l, 0, sizeof *l);
    l->count = mica_tensor_count(tensors[0]);
    if (l->count == 0) return;
    int order[MICA_MAX_RANK], rank = 0;
    for (int d = 0; d < tensors[0]->rank; d++) {
        if (tensors[0]->dims[d] == 1) continue;
        int j = rank++;
        for (; j > 0 && is_outer(tensors, n, d, order[j - 1]); j--) order[j] = order[j - 1];
        order[j] = d;
    }
    l->rank = rank;
    for (int i = 0; i < rank; i++) {
        l->dims[i] = tensors[0]->dims[order[i]];
        for (int t = 0; t < n; t++) l->strides[t][i] = tensors[t]->strides[order[i]];
    }
    merge(l, n);
    l->fits_int = fits_int(l, n);
}

bool mica_layout_is_linear(const mica_layout *l, int n)
{
    if (l->rank == 0) return true;
    if (l->rank != 1) return false;
    for (int t = 0; t < n; t++)
        if (l->strides[t][0] != 1) return false;
    return true;
}
