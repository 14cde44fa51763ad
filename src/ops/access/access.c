/* SPDX-License-Identifier: Apache-2.0
 * How many neighbours one access may take. */
#include "ops/access/access.h"

int mica_access_most(const mica_dtype *types, int count)
{
    int bits = 8;
    for (int i = 0; i < count; i++)
        if (mica_dtype_bits(types[i]) > bits) bits = mica_dtype_bits(types[i]);
    return bits < 8 * MICA_ACCESS_BYTES ? 8 * MICA_ACCESS_BYTES / bits : 1;
}

int mica_access_of(mica_dtype type)
{
    return mica_access_most(&type, 1);
}

int mica_access_along(mica_dtype type, int64_t stride, int64_t steps)
{
    return stride == 1 ? mica_access_fit(mica_access_of(type), steps) : 1;
}

int64_t mica_access_steps(const mica_layout *l, int tensor, int dims)
{
    int64_t steps = 0;
    for (int d = 0; d < dims; d++) steps |= l->strides[tensor][d];
    return steps;
}

int mica_access_rows(int width, const mica_tensor *t)
{
    const int last = t->rank - 1;
    int64_t steps = 0;
    if (last < 0 || (t->dims[last] > 1 && t->strides[last] != 1)) return 1;
    for (int d = 0; d < last; d++) steps |= mica_access_step(t->strides[d], t->dims[d]);
    return mica_access_fit(width, steps);
}

int mica_access_layout(int width, const mica_layout *l, unsigned which)
{
    const int last = l->rank - 1;
    if (last < 0) return 1;
    int64_t steps = last > 0 ? l->dims[last] : 0;
    for (int t = 0; which >> t; t++) {
        if (!(which >> t & 1)) continue;
        if (l->strides[t][last] != 1) return 1;
        steps |= mica_access_steps(l, t, last);
    }
    return mica_access_fit(width, steps);
}

void mica_access_count(mica_layout *l, int width, int tensors)
{
    const int last = l->rank - 1;
    if (width == 1) return;
    l->count = l->count / l->dims[last] * ((l->dims[last] + width - 1) / width);
    l->dims[last] = (l->dims[last] + width - 1) / width;
    for (int t = 0; t < tensors; t++) l->strides[t][last] *= width;
}

int mica_access_bytes(mica_dtype type, int width)
{
    const int bytes = width * mica_dtype_bits(type) / 8;
    return bytes < MICA_ACCESS_BYTES ? bytes : MICA_ACCESS_BYTES;
}

bool mica_access_starts(const void *at, int bytes)
{
    return bytes && (uintptr_t)at % (uintptr_t)bytes == 0;
}
