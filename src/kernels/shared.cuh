/* SPDX-License-Identifier: Apache-2.0
 * Shared memory by address: words and numbers, 8 or 16 bytes at once, at multiples of as many. */
#pragma once
#include "kernels/address.cuh"

__device__ __forceinline__ uint4 shared_load(u32 from)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
    return v;
}

/* Four. */
__device__ __forceinline__ void shared_store(u32 to, const float *v)
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
}
__device__ __forceinline__ void shared_store(u32 to, const u32 (&w)[4])
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(__uint_as_float(w[0])),
                 "f"(__uint_as_float(w[1])), "f"(__uint_as_float(w[2])), "f"(__uint_as_float(w[3])) : "memory");
}

__device__ __forceinline__ void shared_store_pair(u32 to, const float *v)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(v[0]), "f"(v[1]) : "memory");
}

/* sm_90: from the same place in another block of the cluster; a word, or four. */
template <typename T> __device__ __forceinline__ T shared_load_remote_word(u32 from, u32 rank)
{
    static_assert(sizeof(T) == 4, "a word");
    u32 word;
    asm volatile("{ .reg .b32 r;\n"
                 "mapa.shared::cluster.u32 r, %1, %2;\n"
                 "ld.shared::cluster.u32 %0, [r]; }" : "=r"(word) : "r"(from), "r"(rank) : "memory");
    T v;
    memcpy(&v, &word, sizeof v);
    return v;
}

__device__ __forceinline__ float4 shared_load_remote(u32 from, u32 rank)
{
    float4 v;
    asm volatile("{ .reg .b32 r;\n"
                 "mapa.shared::cluster.u32 r, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [r]; }"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(from), "r"(rank) : "memory");
    return v;
}
