/* SPDX-License-Identifier: Apache-2.0
 * sm_90: matrix multiply-add by a warpgroup. The instructions themselves are functions of the prologue
 * (mica_prologue_wgmma), named and shaped as the engine needs them:
 *
 *     wgmma_fence(); mma(sum, a, b, add); ... wgmma_commit(); wgmma_wait<0>();
 *
 * The accumulator of m64nN: a thread holds of its warp's 16 rows those numbered lane / 4 and 8 more, of
 * columns 8 j + 2 (lane % 4) and the next one: elements 4 j, 4 j + 1 (first row), 4 j + 2, 4 j + 3.
 * Index it by constants only. */
#pragma once

/* Before the first wgmma, and whenever registers that it uses were written otherwise. */
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps the compiler from moving other uses of an accumulator across this point. */
template <int N> __device__ __forceinline__ void wgmma_hold(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> __device__ __forceinline__ void wgmma_hold(s32 (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(d[i])::"memory");
}

/* ---- operands in shared memory ----
 * K-major: rows of SWIZZLE bytes along K; stride = bytes from 8 rows to the next 8 (8 SWIZZLE, or any
 * pitch); leading is not used. The next 32 bytes of K: address + 32. Any row may be the first.
 * MN-major (16-bit types): rows of SWIZZLE bytes along M or N, one row per k; stride = bytes from 8 rows
 * of K to the next 8, leading = bytes from SWIZZLE / 2 elements of M or N to the next ones. The next 16
 * of K: address + 16 rows. */
template <int SWIZZLE> __device__ __forceinline__ u64 wgmma_operand(u32 address, u32 leading, u32 stride)
{
    static_assert(SWIZZLE == 0 || SWIZZLE == 32 || SWIZZLE == 64 || SWIZZLE == 128, "swizzles that exist");
    constexpr u64 MODE = SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : SWIZZLE == 32 ? 3 : 0;
    return (u64)((address & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | MODE << 62;
}

/* The descriptor `bytes` further on. */
__device__ __forceinline__ u64 wgmma_advance(u64 operand, u32 bytes) { return operand + (bytes >> 4); }

/* ---- accumulators to shared memory: four 8x8 blocks of 16-bit pairs; lane l gives the address of row
 * l % 8 of block l / 8 ---- */

__device__ __forceinline__ void store_matrices(u32 address, u32 a, u32 b, u32 c, u32 d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

__device__ __forceinline__ void store_matrices_transposed(u32 address, u32 a, u32 b, u32 c, u32 d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
