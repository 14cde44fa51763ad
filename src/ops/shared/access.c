/* SPDX-License-Identifier: Apache-2.0
 * How many neighbours one access may take. */
#include "ops/shared/access.h"

int mica_access_most(const mica_dtype *types, int count)
{
    int bits = 8;
    for (int i = 0; i < count; i++)
        if (mica_dtype_bits(types[i]) > bits) bits = mica_dtype_bits(types[i]);
    return bits < 8 * MICA_ACCESS_BYTES ? 8 * MICA_ACCESS_BYTES / bits : 1;
}

int mica_access_divide(int most, const int64_t *steps, int count)
{
    for (int i = 0; i < count; i++)
        while (steps[i] % most) most /= 2;
    return most;
}

int mica_access_fit(const mica_layout *l, unsigned which, int most)
{
    const int last = l->rank - 1;
    if (last < 0) return 1;
    for (int t = 0; which >> t; t++) {
        if (!(which >> t & 1)) continue;
        if (l->strides[t][last] != 1) return 1;
        for (int d = 0; d < last; d++)
            while (l->strides[t][d] % most) most /= 2;
    }
    while (last > 0 && l->dims[last] % most) most /= 2;
    return most;
}

void mica_access_count(mica_layout *l, int vector, int tensors)
{
    const int last = l->rank - 1;
    if (vector == 1) return;
    l->count = l->count / l->dims[last] * ((l->dims[last] + vector - 1) / vector);
    l->dims[last] = (l->dims[last] + vector - 1) / vector;
    for (int t = 0; t < tensors; t++) l->strides[t][last] *= vector;
}
