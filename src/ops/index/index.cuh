/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of index share: offsets of an element that is walked, and indices. Constants: PARTS
 * (coordinates that the index tensor holds), FLAT (as one number, row-major over them), NEGATIVE, SKIPS; type index_t. */
#pragma once
#include "ops/index/index_args.h"

/* Coordinate by coordinate: the last dimension first. */
struct index_place {
    long long here, there, index;
};

__device__ __forceinline__ index_place index_place_of(const mica_index_form &f, long long i)
{
    index_place p = {0, 0, 0};
    for (int d = f.rank - 1; d >= 0; d--) {
        const long long size = f.at[d].size, q = d ? i / size : 0, c = i - q * size;
        p.here += c * f.at[d].here;
        p.there += c * f.at[d].there;
        p.index += c * f.at[d].index;
        i = q;
    }
    return p;
}

/* Coordinate of an index, -1 outside. */
__device__ __forceinline__ long long index_legal(index_t index, long long extent)
{
    long long v = (long long)index;
    if (NEGATIVE && v < 0) v += extent;
    return v >= 0 && v < extent ? v : -1;
}

/* Where the row-major number `cell` of the parts lies. */
__device__ __forceinline__ long long index_cell_offset(const mica_index_part *part, long long cell)
{
    long long offset = 0;
#pragma unroll
    for (int p = PARTS - 1; p >= 0; p--) {
        const long long q = p ? cell / part[p].extent : 0;
        offset += (cell - q * part[p].extent) * part[p].stride;
        cell = q;
    }
    return offset;
}
