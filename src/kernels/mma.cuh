/* SPDX-License-Identifier: Apache-2.0
 * Tensor cores of sm_80 and later: asynchronous copies to shared memory, ldmatrix, mma.sync. */
#pragma once
#include "kernels/address.cuh"

/* ---- copies: the first `valid` of BYTES, the rest is zero ---- */

template <int BYTES> __device__ __forceinline__ void copy_async(u32 to, const void *from, int valid)
{
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "sizes of cp.async");
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(valid)
                     : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* ---- four 8 x 8 matrices of 16-bit words; lane i gives the address of row i % 8 of matrix i / 8 ---- */

__device__ __forceinline__ void load_matrices(u32 &r0, u32 &r1, u32 &r2, u32 &r3, u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_transposed(u32 &r0, u32 &r1, u32 &r2, u32 &r3, u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ u32 load_shared(u32 address)
{
    u32 r;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(r) : "r"(address) : "memory");
    return r;
}

/* ---- c += a b for 16 rows, 8 columns and 32 bytes of k ---- */

template <typename A, typename B> struct matrix_unit;

template <> struct matrix_unit<bf16, bf16> {
    static __device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2])
    {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};
template <> struct matrix_unit<f16, f16> {
    static __device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2])
    {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};
/* tf32: the operands are rounded already; the unit would cut them. */
template <> struct matrix_unit<float, float> {
    static __device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2])
    {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};
template <> struct matrix_unit<s8, s8> {
    static __device__ __forceinline__ void multiply(s32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2])
    {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};
template <> struct matrix_unit<u8, s8> {
    static __device__ __forceinline__ void multiply(s32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2])
    {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};

/* Nearest, ties away from zero. */
__device__ __forceinline__ u32 round_tf32(u32 bits)
{
    u32 r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(__uint_as_float(bits)));
    return r;
}
