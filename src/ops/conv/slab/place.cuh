/* SPDX-License-Identifier: Apache-2.0
 * How the kernels of slabs and volumes finish a tile's sums, channels by pixels, and place them pixel by pixel
 * for TMA to store. Constants: ROW (bytes of a pixel); RESIDUAL; RESIDUAL_MAP (TMA can
 * bring it); in_t; those of the epilogue. */
#pragma once
#include "kernels/mbarrier.cuh"
#include "kernels/mma.cuh"
#include "kernels/wgmma.cuh"
#include "kernels/epilogue_terms.cuh"

/* SINGLE: adds beta times what memory holds at a result's place, returns the residual there. */
template <typename A>
__device__ __forceinline__ float add_others(const A &a, int image, int z, int y, int x, int channel, float &v)
{
    if (a.beta != 0)
        v += a.beta * widen<float>(((const in_t *)a.out)[image * a.to.n + z * a.to.s[0] + y * a.to.s[1] +
                                                          x * a.to.s[2] + channel * a.to.c]);
    if constexpr (RESIDUAL)
        return widen<float>(((const residual_t *)a.epilogue.residual)[image * a.residual.n + z * a.residual.s[0] +
                                                                       y * a.residual.s[1] + x * a.residual.s[2] +
                                                                       channel * a.residual.c]);
    return 0;
}

/* WIDE: of a pixel and the next. */
__device__ __forceinline__ float residual_in(u32 word, int e)
{
    residual_t pair[2];
    memcpy(pair, &word, sizeof word);
    return widen<float>(pair[e]);
}

/* finish(0) and finish(1): results of neighbouring pixels, of one channel. */
template <typename F> __device__ __forceinline__ u32 finish_pair(const F &finish)
{
    const in_t pair[2] = {narrow<in_t>(finish(0)), narrow<in_t>(finish(1))};
    u32 word;
    memcpy(&word, pair, sizeof word);
    return word;
}

/* The accumulator of COUNT groups of 8 pixels to memory, swizzled as TMA reads it. Of a pixel the warp
 * has the channels from 16 * part on, the thread two of them: pair(j, i, sum, residual) is this thread's pixel of
 * group j and the next, of its channel i; residual: WIDE, both of theirs. */
template <int COUNT, reading OTHERS, typename F>
__device__ __forceinline__ void place_pixels(u32 tile, int part, const float (&sum)[4 * COUNT], const F &pair)
{
    const int lane = (int)threadIdx.x & 31, matrix = lane >> 3;
#pragma unroll
    for (int j = 0; j < COUNT; j += 2) {
        const u32 to = tile + (8 * (j + matrix / 2) + (lane & 7)) * ROW, block = 2 * part + matrix % 2;
        const u32 at = to + ((block ^ (to >> 7 & (ROW / 16 - 1))) << 4);
        u32 v[4] = {}, residual[4] = {};
        if constexpr (OTHERS == WIDE) load_transposed(residual[0], residual[1], residual[2], residual[3], at);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (j + i / 2 == COUNT) continue; /* of an odd number, nothing is stored beside the last */
            v[i] = pair(j + i / 2, i % 2, sum + 4 * j + 2 * i, residual[i]);
        }
        store_matrices_transposed(at, v[0], v[1], v[2], v[3]);
    }
}

/* ---- residuals that TMA brings ---- */

/* One barrier for each of two warpgroups. All threads call it, before what makes the other barriers. */
__device__ __forceinline__ u32 residual_barriers()
{
    __shared__ __align__(8) u64 barriers[2];
    const u32 first = shared_address(barriers);
    for (int i = 0; i < 2 && threadIdx.x == 0; i++) mbarrier_init(first + 8 * i, 1);
    return first;
}

/* By a warpgroup that has read the slab whose place `bytes` of residuals take; load(), by one thread, asks for
 * them. */
template <typename F>
__device__ __forceinline__ void bring_residual(bool leader, u32 bar, u32 &parity, u32 bytes, const F &load)
{
    if (leader) {
        mbarrier_arrive_expect(bar, bytes);
        load();
    }
    mbarrier_wait(bar, parity);
    parity ^= 1;
}

/* ---- what depends on the channel alone ---- */

/* Of channel `own` and 8 further; past the last channel those of the last. */
template <typename A>
__device__ __forceinline__ void load_own_terms(const A &a, int own, channel_terms (&terms)[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) load_terms(a.epilogue, (long long)min(own + 8 * i, a.channels - 1), terms[i]);
}
