/* SPDX-License-Identifier: Apache-2.0
 * From a linear logical index to the offsets of up to N tensors. */
#pragma once
#include "kernels/layout.h"

template <int N>
__device__ __forceinline__ void layout_offsets(const mica_layout &l, long long i, long long *offset)
{
    for (int t = 0; t < N; t++) offset[t] = 0;
    if (l.fits_int) {
        unsigned rest = (unsigned)i;
        for (int d = l.rank - 1; d >= 0; d--) {
            unsigned dim = (unsigned)l.dims[d], q = d ? rest / dim : 0, r = rest - q * dim;
            for (int t = 0; t < N; t++) offset[t] += (long long)r * l.strides[t][d];
            rest = q;
        }
        return;
    }
    unsigned long long rest = (unsigned long long)i;
    for (int d = l.rank - 1; d >= 0; d--) {
        unsigned long long dim = (unsigned long long)l.dims[d], q = d ? rest / dim : 0, r = rest - q * dim;
        for (int t = 0; t < N; t++) offset[t] += (long long)r * l.strides[t][d];
        rest = q;
    }
}
