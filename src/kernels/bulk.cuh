/* SPDX-License-Identifier: Apache-2.0
 * sm_90: runs of bytes from shared memory to memory by TMA, without a map: addresses and sizes are
 * multiples of 16. One thread issues; async_fence by the writers and a barrier come before, tma_commit after. */
#pragma once

__device__ __forceinline__ void bulk_store(void *to, u32 from, u32 bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
}

/* Adds, number by number. */
__device__ __forceinline__ void bulk_add(float *to, u32 from, u32 bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
                 ::"l"(to), "r"(from), "r"(bytes) : "memory");
}

/* Between ordinary accesses to memory and those of TMA, by the thread that did or does both. */
__device__ __forceinline__ void bulk_fence() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/* ---- a number in memory by which blocks tell one another that something is written ---- */

__device__ __forceinline__ int acquire_number(const int *from)
{
    int v;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ void release_number(int *to, int v)
{
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}
