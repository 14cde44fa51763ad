/* SPDX-License-Identifier: Apache-2.0
 * Copies by a map of indices: a vector of the tensor that is walked per thread and step; neighbours in
 * a warp are neighbours there. All loads of a thread are on their way before it stores. Constants beside those
 * of index.cuh: PIECES (most that there are), BORDERED (bit d: dimension d), LINEAR (one dimension),
 * VECTOR, BLOCK, PER_THREAD; type element_t, of the element's size. */
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "kernels/vector.cuh"
#include "ops/index/index.cuh"

#define INLINE __device__ __forceinline__

/* Offset there of element i, counted in vectors; false: the map points nowhere. */
template <typename U>
INLINE bool locate(const mica_index_args &a, const mica_index_piece &p, U rest, long long *here, long long *there)
{
    long long index = 0;
    bool inside = p.there != 0;
    *here = *there = 0;
    for (int d = p.rank - 1; d >= 0; d--) {
        const U size = (U)p.size[d], q = d ? rest / size : 0;
        const long long c = (long long)(rest - q * size);
        rest = q;
        *here += c * p.here_step[d];
        if (BORDERED >> d & 1) {
            const long long at = mica_index_bordered(a.at[d].border, a.at[d].start + a.at[d].step * c, a.at[d].across);
            inside &= at >= 0;
            *there += at * p.there_step[d];
        } else {
            *there += c * p.there_step[d];
        }
        if (PARTS) index += c * a.at[d].index;
    }
    if (FLAT && inside) {
        long long cells = 1;
#pragma unroll
        for (int k = 0; k < PARTS; k++) cells *= a.part[k].extent;
        const long long cell = index_legal(((const index_t *)a.index)[index], cells);
        inside = cell >= 0;
        if (inside) *there += index_cell_offset(a.part, cell);
    } else if (PARTS && inside) {
#pragma unroll
        for (int k = 0; k < PARTS; k++) {
            const long long at = index_legal(((const index_t *)a.index)[index + k * a.part_step], a.part[k].extent);
            inside &= at >= 0;
            *there += at * a.part[k].stride;
        }
    }
    return inside;
}

INLINE void copy_piece(const mica_index_args &a, const mica_index_piece &p, long long first)
{
    element_t v[PER_THREAD][VECTOR], value;
    long long to[PER_THREAD];
    memcpy(&value, a.value, sizeof value);
#pragma unroll
    for (int k = 0; k < PER_THREAD; k++) {
        const long long i = first + (long long)k * BLOCK;
        long long from;
        to[k] = -1;
        if (i >= p.count) continue;
        const bool inside =
            p.fits_int ? locate(a, p, (u32)i, &to[k], &from) : locate(a, p, (u64)i, &to[k], &from);
        if (inside) {
            load_some<VECTOR>((const element_t *)p.there + from, v[k], VECTOR, a.whole);
        } else {
#pragma unroll
            for (int e = 0; e < VECTOR; e++) v[k][e] = value;
        }
    }
#pragma unroll
    for (int k = 0; k < PER_THREAD; k++)
        if (first + (long long)k * BLOCK < p.count)
            store_some<VECTOR>((element_t *)p.here + to[k], v[k], VECTOR, a.whole);
}

extern "C" __global__ void __launch_bounds__(BLOCK) index_copy(const __grid_constant__ mica_index_args a)
{
    overlap_wait();
    int k = 0;
    if (PIECES > 1)
        while (k + 1 < a.pieces && blockIdx.x >= a.piece[k + 1].first_block) k++;
    const mica_index_piece &p = a.piece[PIECES > 1 ? k : 0];
    copy_piece(a, p, ((long long)blockIdx.x - p.first_block) * (BLOCK * PER_THREAD) + threadIdx.x);
}
