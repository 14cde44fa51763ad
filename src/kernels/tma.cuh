/* SPDX-License-Identifier: Apache-2.0
 * sm_90: TMA. Loads complete at an mbarrier, stores in bulk groups of the issuing thread.
 * Coordinates count elements, fastest dimension first; what lies outside the tensor is read as zero and
 * not written. One thread issues. Shared memory is aligned to 128 bytes, with a 128-byte swizzle to
 * 1024 (the swizzle is an XOR of address bits 4-6 with bits 7-9). */
#pragma once
#include "kernels/tensor_map.h"

__device__ __forceinline__ void tma_prefetch(const mica_tensor_map *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"((u64)map) : "memory");
}

/* ---- tiled loads ---- */

__device__ __forceinline__ void tma_load(u32 to, const mica_tensor_map *map, u32 bar, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to), "l"((u64)map), "r"(bar), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ void tma_load(u32 to, const mica_tensor_map *map, u32 bar, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];"
                 ::"r"(to), "l"((u64)map), "r"(bar), "r"(x), "r"(y), "r"(z) : "memory");
}

__device__ __forceinline__ void tma_load(u32 to, const mica_tensor_map *map, u32 bar, int x, int y, int z, int w)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];"
                 ::"r"(to), "l"((u64)map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

__device__ __forceinline__ void tma_load(u32 to, const mica_tensor_map *map, u32 bar, int x, int y, int z, int w,
                                         int v)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
                 ::"r"(to), "l"((u64)map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v) : "memory");
}

/* ---- into L2: what a tiled load will ask for ---- */

__device__ __forceinline__ void tma_prefetch_box(const mica_tensor_map *map, int x, int y)
{
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"((u64)map), "r"(x), "r"(y)
                 : "memory");
}

__device__ __forceinline__ void tma_prefetch_box(const mica_tensor_map *map, int x, int y, int z)
{
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];"
                 ::"l"((u64)map), "r"(x), "r"(y), "r"(z) : "memory");
}

__device__ __forceinline__ void tma_prefetch_box(const mica_tensor_map *map, int x, int y, int z, int w)
{
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];"
                 ::"l"((u64)map), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

__device__ __forceinline__ void tma_prefetch_box(const mica_tensor_map *map, int x, int y, int z, int w, int v)
{
    asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];"
                 ::"l"((u64)map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v) : "memory");
}

/* ---- im2col loads: channel, pixel (fastest first), image; offsets of the filter tap, in pixels ---- */

__device__ __forceinline__ void tma_load_im2col(u32 to, const mica_tensor_map *map, u32 bar, int c, int w, int n,
                                                u16 tap_w)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2], {%6};"
                 ::"r"(to), "l"((u64)map), "r"(bar), "r"(c), "r"(w), "r"(n), "h"(tap_w) : "memory");
}

__device__ __forceinline__ void tma_load_im2col(u32 to, const mica_tensor_map *map, u32 bar, int c, int w, int h,
                                                int n, u16 tap_w, u16 tap_h)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
                 ::"r"(to), "l"((u64)map), "r"(bar), "r"(c), "r"(w), "r"(h), "r"(n), "h"(tap_w), "h"(tap_h)
                 : "memory");
}

__device__ __forceinline__ void tma_load_im2col(u32 to, const mica_tensor_map *map, u32 bar, int c, int w, int h,
                                                int d, int n, u16 tap_w, u16 tap_h, u16 tap_d)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, %10};"
                 ::"r"(to), "l"((u64)map), "r"(bar), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n), "h"(tap_w),
                   "h"(tap_h), "h"(tap_d) : "memory");
}

/* ---- stores: async_fence by the writers and a barrier come before, tma_commit after ---- */

__device__ __forceinline__ void tma_store(const mica_tensor_map *map, u32 from, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
                 ::"l"((u64)map), "r"(from), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ void tma_store(const mica_tensor_map *map, u32 from, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];"
                 ::"l"((u64)map), "r"(from), "r"(x), "r"(y), "r"(z) : "memory");
}

__device__ __forceinline__ void tma_store(const mica_tensor_map *map, u32 from, int x, int y, int z, int w)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
                 ::"l"((u64)map), "r"(from), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

__device__ __forceinline__ void tma_store(const mica_tensor_map *map, u32 from, int x, int y, int z, int w, int v)
{
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];"
                 ::"l"((u64)map), "r"(from), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v) : "memory");
}

/* A run of pixels of an im2col map. */
__device__ __forceinline__ void tma_store_im2col(const mica_tensor_map *map, u32 from, int c, int w, int n)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.im2col_no_offs.bulk_group [%0, {%2, %3, %4}], [%1];"
                 ::"l"((u64)map), "r"(from), "r"(c), "r"(w), "r"(n) : "memory");
}

__device__ __forceinline__ void tma_store_im2col(const mica_tensor_map *map, u32 from, int c, int w, int h, int n)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group "
                 "[%0, {%2, %3, %4, %5}], [%1];"
                 ::"l"((u64)map), "r"(from), "r"(c), "r"(w), "r"(h), "r"(n) : "memory");
}

__device__ __forceinline__ void tma_store_im2col(const mica_tensor_map *map, u32 from, int c, int w, int h, int d,
                                                 int n)
{
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.im2col_no_offs.bulk_group "
                 "[%0, {%2, %3, %4, %5, %6}], [%1];"
                 ::"l"((u64)map), "r"(from), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n) : "memory");
}

__device__ __forceinline__ void tma_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/* Until at most N groups of this thread still read shared memory. */
template <int N> __device__ __forceinline__ void tma_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

/* Until at most N groups of this thread are not yet visible. */
template <int N> __device__ __forceinline__ void tma_wait()
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}
