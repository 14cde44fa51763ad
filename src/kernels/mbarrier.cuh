/* SPDX-License-Identifier: Apache-2.0
 * sm_90: barriers in shared memory, named barriers, fences, register reallocation, clusters.
 * Barriers are 8 bytes, addressed by their 32-bit address in shared memory.
 *
 * A ring of stages has a `full` and an `empty` barrier for each. The consumer waits for full with
 * parity 0 in the first lap, the producer for empty with parity 1 (which passes at once); both flip
 * after each lap. Waiting for a phase two behind the current one is mistaken for the current one. */
#pragma once
#include "kernels/address.cuh"

/* ---- barriers in shared memory ---- */

/* By one thread; then mbarrier_fence_init by it, then __syncthreads (or cluster_sync). */
__device__ __forceinline__ void mbarrier_init(u32 bar, u32 arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void mbarrier_fence_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(u32 bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Arrives, and lets the phase last until `bytes` more have been copied into this block's memory. Bytes
 * that a copy fills with zeros count too. */
__device__ __forceinline__ void mbarrier_arrive_expect(u32 bar, u32 bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

/* Arrives when what this thread has begun to copy asynchronously (mma.cuh) has come. */
__device__ __forceinline__ void mbarrier_arrive_copied(u32 bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

__device__ __forceinline__ bool mbarrier_try(u32 bar, u32 parity)
{
    u32 done;
    asm volatile("{ .reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    return done != 0;
}

__device__ __forceinline__ void mbarrier_wait(u32 bar, u32 parity)
{
    while (!mbarrier_try(bar, parity)) {}
}

/* ---- named barriers: 0 is __syncthreads; `threads` a multiple of 32 ---- */

__device__ __forceinline__ void named_barrier_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Counts among the threads of a sync that this one does not wait for. */
__device__ __forceinline__ void named_barrier_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- order between ordinary accesses and TMA or wgmma ---- */

/* By every thread that wrote shared memory, before the barrier behind which it is read by wgmma or
 * stored by TMA. */
__device__ __forceinline__ void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* ---- registers: by all warps of a warpgroup; N a multiple of 8 from 24 to 256 ---- */

template <int N> __device__ __forceinline__ void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ __forceinline__ void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* The same in all lanes, so that the compiler keeps what follows from it in uniform registers. */
__device__ __forceinline__ int uniform(int v) { return __shfl_sync(0xffffffffu, v, 0); }

/* ---- clusters ---- */

__device__ __forceinline__ u32 cluster_rank()
{
    u32 r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
