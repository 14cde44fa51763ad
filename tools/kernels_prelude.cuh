/* SPDX-License-Identifier: Apache-2.0
 * What NVRTC knows by itself, declared for clang and clangd, which then read kernels without CUDA's
 * headers: tools/kernels puts this in front of each. Nothing is compiled with it. */
#pragma once
#define __device__      __attribute__((device))
#define __host__        __attribute__((host))
#define __global__      __attribute__((global))
#define __shared__      __attribute__((shared))
#define __constant__    __attribute__((constant))
#define __align__(n)    __attribute__((aligned(n)))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __grid_constant__
#define alignas(n) __attribute__((aligned(n))) /* which clang takes behind others, too */
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))

typedef __SIZE_TYPE__ size_t;
struct dim3 {
    unsigned x, y, z;
};
extern const __device__ dim3 threadIdx, blockIdx, blockDim, gridDim;

#define VECTORS(type, name)                                                                        \
    struct __align__(2 * sizeof(type)) name##2                                                     \
    {                                                                                              \
        type x, y;                                                                                 \
    };                                                                                             \
    struct __align__(4 * sizeof(type) < 16 ? 4 * sizeof(type) : 16) name##4                        \
    {                                                                                              \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    __device__ name##2 make_##name##2(type x, type y);                                             \
    __device__ name##4 make_##name##4(type x, type y, type z, type w);
VECTORS(int, int)
VECTORS(unsigned, uint)
VECTORS(float, float)
VECTORS(double, double)
VECTORS(unsigned short, ushort)
VECTORS(unsigned char, uchar)
VECTORS(long long, longlong)
VECTORS(unsigned long long, ulonglong)
#undef VECTORS

__device__ void __syncthreads();
__device__ void __syncwarp(unsigned mask = ~0u);
__device__ void __threadfence();
template <typename T> __device__ T __shfl_sync(unsigned mask, T v, int lane, int width = 32);
template <typename T> __device__ T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32);
template <typename T> __device__ T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32);
template <typename T>
__device__ T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32);
__device__ unsigned __ballot_sync(unsigned mask, int v);
__device__ int __any_sync(unsigned mask, int v);
__device__ int __all_sync(unsigned mask, int v);
__device__ unsigned __reduce_max_sync(unsigned mask, unsigned v);
template <typename T> __device__ T __ldg(const T *at);
template <typename T> __device__ T __ldcg(const T *at);
template <typename T> __device__ T __ldcs(const T *at);
template <typename T> __device__ T atomicAdd(T *at, T v);
template <typename T> __device__ T atomicMax(T *at, T v);
template <typename T> __device__ T atomicMin(T *at, T v);
template <typename T> __device__ T atomicExch(T *at, T v);
template <typename T> __device__ T atomicOr(T *at, T v);
template <typename T> __device__ T atomicCAS(T *at, T old, T v);

__device__ int __float_as_int(float v);
__device__ unsigned __float_as_uint(float v);
__device__ float __int_as_float(int v);
__device__ float __uint_as_float(unsigned v);
__device__ long long __double_as_longlong(double v);
__device__ double __longlong_as_double(long long v);
__device__ double __ll2double_rz(long long v);
__device__ float __double2float_rz(double v);
__device__ long long __double2ll_rn(double v);
__device__ long long __float2ll_rn(float v);
__device__ int __float2int_rn(float v);
__device__ float __fadd_rn(float a, float b);
__device__ float __fmul_rn(float a, float b);
__device__ float __fsub_rn(float a, float b);
__device__ float __fdiv_rn(float a, float b);
__device__ float __frcp_rn(float a);
__device__ float __fmaf_rn(float a, float b, float c);
__device__ float __fsqrt_rn(float v);
__device__ double __dsqrt_rn(double v);
__device__ float __fdividef(float a, float b);
__device__ float __saturatef(float v);
__device__ double __dadd_rn(double a, double b);
__device__ double __dmul_rn(double a, double b);
__device__ double __dsub_rn(double a, double b);
__device__ unsigned __byte_perm(unsigned a, unsigned b, unsigned which);
__device__ unsigned __brev(unsigned v);
__device__ int __clz(int v);
__device__ int __clzll(long long v);
__device__ int __ffs(int v);
__device__ int __popc(unsigned v);
__device__ unsigned __umulhi(unsigned a, unsigned b);
__device__ unsigned long long __umul64hi(unsigned long long a, unsigned long long b);
__device__ size_t __cvta_generic_to_shared(const void *at);

extern "C" {
__device__ void *memcpy(void *to, const void *from, size_t bytes);
__device__ void *memset(void *to, int byte, size_t bytes);
}
/* As in <math.h>: for double, for float, and for float with an f behind. */
#define FUNCTION(name)                                                                             \
    extern "C" __device__ double name(double v);                                                   \
    extern "C" __device__ float name##f(float v);                                                  \
    __device__ float name(float v);
FUNCTION(fabs) FUNCTION(sqrt) FUNCTION(rsqrt) FUNCTION(cbrt) FUNCTION(exp) FUNCTION(exp2)
FUNCTION(expm1) FUNCTION(log) FUNCTION(log2) FUNCTION(log10) FUNCTION(log1p) FUNCTION(erf)
FUNCTION(erfc) FUNCTION(sin) FUNCTION(cos) FUNCTION(tan) FUNCTION(asin) FUNCTION(acos)
FUNCTION(atan) FUNCTION(sinh) FUNCTION(cosh) FUNCTION(tanh) FUNCTION(asinh) FUNCTION(acosh)
FUNCTION(atanh) FUNCTION(lgamma) FUNCTION(tgamma) FUNCTION(j0) FUNCTION(j1) FUNCTION(rint)
FUNCTION(round) FUNCTION(floor) FUNCTION(ceil) FUNCTION(trunc)
#undef FUNCTION
#define FUNCTION(name)                                                                             \
    extern "C" __device__ double name(double a, double b);                                         \
    extern "C" __device__ float name##f(float a, float b);                                         \
    __device__ float name(float a, float b);
FUNCTION(fmin) FUNCTION(fmax) FUNCTION(fmod) FUNCTION(pow) FUNCTION(hypot) FUNCTION(atan2)
FUNCTION(copysign)
#undef FUNCTION
extern "C"
{
    __device__ double fma(double a, double b, double c);
    __device__ float fmaf(float a, float b, float c);
    __device__ double ldexp(double v, int e);
    __device__ float ldexpf(float v, int e);
    __device__ double frexp(double v, int *e);
    __device__ float frexpf(float v, int *e);
    __device__ void sincos(double v, double *sine, double *cosine);
    __device__ void sincosf(float v, float *sine, float *cosine);
    __device__ int abs(int v);
}
__device__ float fma(float a, float b, float c);
template <typename T, typename U> __device__ auto min(T a, U b) -> decltype(a + b);
template <typename T, typename U> __device__ auto max(T a, U b) -> decltype(a + b);
__device__ bool isinf(double v);
__device__ bool isnan(double v);
__device__ bool isfinite(double v);

/* NVRTC takes what is not marked for a function of the device. */
#pragma clang force_cuda_host_device begin
