/* SPDX-License-Identifier: Apache-2.0
 * Sums of lists: to[n, c, cell] = the sum of weight times from[n, c, output] over the cell's list, in its
 * order. With CHANNELS_LAST a thread has GROUP channels of a cell, neighbours of a warp the next ones; else
 * GROUP that are a stride apart, and neighbours the next cells. Reads each element of `from` as often as
 * its output has taps, from the cache where outputs of neighbouring cells are neighbours, and writes all of
 * `to` once. Constants beside those: AXES, PACKED (outputs are equally far apart), GROUP (channels of a thread), BLOCK;
 * types from_t, to_t, beside those of taps.cuh. */
#include "kernels/vector.cuh"
#include "ops/taps/taps.cuh"

#define INLINE __device__ __forceinline__

template <typename U> INLINE s64 place_of(const long long *size, const mica_taps_strides &s, U i)
{
    s64 place = 0;
#pragma unroll
    for (int d = AXES - 1; d >= 0; d--) {
        const U q = d ? i / (U)size[d] : 0;
        place += (s64)(i - q * (U)size[d]) * s.at[d];
        i = q;
    }
    return place;
}

INLINE s64 from_place(const mica_taps_args &a, mark output)
{
    if (PACKED) return (s64)output * a.from_step.at[AXES - 1];
    return place_of<mark>(a.shape.out, a.from_step, output);
}

extern "C" __global__ void __launch_bounds__(BLOCK) taps_sum(const mica_taps_args a)
{
    overlap_wait();
    const s64 i = (s64)blockIdx.x * BLOCK + threadIdx.x;
    const s64 groups = (a.shape.c + GROUP - 1) / GROUP;
    const s64 cell_blocks = (a.lists.cells + BLOCK - 1) / BLOCK;
    const s64 cell = CHANNELS_LAST ? i / groups : (s64)blockIdx.x % cell_blocks * BLOCK + threadIdx.x;
    const s64 group = CHANNELS_LAST ? i % groups : (s64)blockIdx.x / cell_blocks;
    if (cell >= a.lists.cells) return;
    const s64 n = cell / a.shape.in_count, c = group * GROUP;
    const int some = a.shape.c - c < GROUP ? (int)(a.shape.c - c) : GROUP;
    const bool whole = a.whole && some == GROUP;
    const mark start = ((const mark *)a.lists.starts)[cell], count = ((const mark *)a.lists.counts)[cell];
    const mark *outputs = (const mark *)a.lists.outputs + start;
    const real *factors = (const real *)a.lists.factors + start;
    const from_t *from = (const from_t *)a.from + n * a.from_step.n + c * a.from_step.c;
    to_t *to = (to_t *)a.to + n * a.to_step.n + c * a.to_step.c +
               place_of<u64>(a.shape.in, a.to_step, (u64)(cell - n * a.shape.in_count));
    real sum[GROUP];
#pragma unroll
    for (int k = 0; k < GROUP; k++) sum[k] = 0;
    for (mark j = 0; j < count; j++) {
        const from_t *p = from + from_place(a, outputs[j]);
        const real w = factors[j];
        from_t v[GROUP];
        if (CHANNELS_LAST) {
            load_some<GROUP>(p, v, some, whole);
        } else {
#pragma unroll
            for (int k = 0; k < GROUP; k++)
                if (k < some) v[k] = p[k * a.from_step.c];
        }
#pragma unroll
        for (int k = 0; k < GROUP; k++)
            if (k < some) sum[k] += w * widen<real>(v[k]);
    }
    to_t r[GROUP];
#pragma unroll
    for (int k = 0; k < GROUP; k++) r[k] = narrow<to_t>(sum[k]);
    if (CHANNELS_LAST) {
        store_some<GROUP>(to, r, some, whole);
    } else {
#pragma unroll
        for (int k = 0; k < GROUP; k++)
            if (k < some) to[k * a.to_step.c] = r[k];
    }
}
