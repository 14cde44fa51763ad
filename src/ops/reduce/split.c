/* SPDX-License-Identifier: Apache-2.0
 * Kept and reduced dimensions. */
#include "ops/reduce/reduce.h"

#include <string.h>

mica_tensor mica_reduce_of_slices(const mica_tensor *kept, const mica_tensor *x, unsigned axes)
{
    mica_tensor t = *x;
    const bool all = kept->rank == x->rank;
    int from = 0;
    t.dtype = kept->dtype;
    for (int d = 0; d < x->rank; d++) {
        const bool reduced = axes >> d & 1;
        t.strides[d] = reduced ? 0 : kept->strides[from];
        from += all || !reduced;
    }
    return t;
}

/* The layout of those dimensions that are reduced, or of those that are kept. */
static void make_part(mica_layout *l, const mica_reduce_set *set, bool reduced)
{
    mica_tensor t[MICA_REDUCE_OPERANDS];
    const mica_tensor *pointers[MICA_REDUCE_OPERANDS];
    for (int k = 0; k < set->count; k++) {
        t[k] = set->at[k].tensor;
        pointers[k] = &t[k];
        for (int d = 0; d < t[k].rank; d++)
            if ((set->axes >> d & 1) != reduced) t[k].dims[d] = 1;
    }
    mica_layout_make(l, pointers, set->count);
}

void mica_reduce_split_make(mica_reduce_split *split, const mica_reduce_set *set)
{
    mica_layout *rows = &split->rows;
    memset(split, 0, sizeof *split);
    make_part(&split->kept, set, false);
    make_part(rows, set, true);
    split->length = rows->count;
    const int last = rows->rank - 1;
    split->n = last < 0 ? rows->count : rows->dims[last];
    for (int k = 0; k < set->count; k++) split->along[k] = last < 0 ? 1 : rows->strides[k][last];
    if (last >= 0) rows->rank = last;
    rows->count = split->n > 0 ? split->length / split->n : 0;
}
