/* SPDX-License-Identifier: Apache-2.0
 * CUDA C as C++: what the text of a kernel is compiled behind. */
#include "emu.h"
#include <math.h>
#include <string.h>

#define __device__
#define __global__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n)    __attribute__((aligned(n)))
#define __builtin_assume(x) ((void)0)

#define threadIdx (emu_now->thread)
#define blockIdx  (emu_now->block_index)
#define blockDim  (emu_now->block_dim)
#define gridDim   (emu_now->grid_dim)
#define warpSize  32

/* ---- vector types ---- */
#define EMU_VECTOR(name, type)                                                                     \
    struct alignas(sizeof(type)) name##1 { type x; };                                              \
    struct alignas(2 * sizeof(type)) name##2 { type x, y; };                                       \
    struct name##3 { type x, y, z; };                                                              \
    struct alignas(4 * sizeof(type) > 16 ? 16 : 4 * sizeof(type)) name##4 { type x, y, z, w; };    \
    static inline name##2 make_##name##2(type x, type y) { return {x, y}; }                        \
    static inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }             \
    static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
EMU_VECTOR(char, signed char)
EMU_VECTOR(uchar, unsigned char)
EMU_VECTOR(short, short)
EMU_VECTOR(ushort, unsigned short)
EMU_VECTOR(int, int)
EMU_VECTOR(uint, unsigned)
EMU_VECTOR(longlong, long long)
EMU_VECTOR(ulonglong, unsigned long long)
EMU_VECTOR(float, float)
EMU_VECTOR(double, double)

/* ---- bits ---- */
template <typename R, typename T> static inline R emu_bits(T v)
{
    static_assert(sizeof(R) == sizeof(T), "same size");
    R r;
    memcpy(&r, &v, sizeof r);
    return r;
}
static inline float __uint_as_float(unsigned v) { return emu_bits<float>(v); }
static inline float __int_as_float(int v) { return emu_bits<float>(v); }
static inline unsigned __float_as_uint(float v) { return emu_bits<unsigned>(v); }
static inline int __float_as_int(float v) { return emu_bits<int>(v); }
static inline double __longlong_as_double(long long v) { return emu_bits<double>(v); }
static inline long long __double_as_longlong(double v) { return emu_bits<long long>(v); }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __ffsll(long long v) { return __builtin_ffsll(v); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline unsigned __brev(unsigned v)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i++, v >>= 1) r = r << 1 | (v & 1);
    return r;
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((unsigned long long)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s)
{
    unsigned long long both = (unsigned long long)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        unsigned pick = s >> 4 * i & 15, byte = (unsigned)(both >> 8 * (pick & 7)) & 255;
        if (pick & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << 8 * i;
    }
    return r;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n)
{
    return (unsigned)(((unsigned long long)high << 32 | low) >> (n & 31));
}

/* ---- arithmetic that must not be fused or that rounds in its own way ---- */
__attribute__((noinline)) static float __fadd_rn(float a, float b) { return a + b; }
__attribute__((noinline)) static float __fsub_rn(float a, float b) { return a - b; }
__attribute__((noinline)) static float __fmul_rn(float a, float b) { return a * b; }
__attribute__((noinline)) static double __dadd_rn(double a, double b) { return a + b; }
__attribute__((noinline)) static double __dsub_rn(double a, double b) { return a - b; }
__attribute__((noinline)) static double __dmul_rn(double a, double b) { return a * b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1 / a; }
static inline float __saturatef(float v) { return v > 0 ? v < 1 ? v : 1 : 0; }
static inline float __fsqrt_rn(float v) { return sqrtf(v); }
static inline double __dsqrt_rn(double v) { return sqrt(v); }
static inline float rsqrtf(float v) { return 1 / sqrtf(v); }
static inline double rsqrt(double v) { return 1 / sqrt(v); }
/* glibc has functions of these names */
#define __expf expf
#define __logf logf
static inline float __double2float_rn(double v) { return (float)v; }
static inline float __double2float_rz(double v)
{
    float r = (float)v;
    if (fabs((double)r) > fabs(v) && v == v) r = nextafterf(r, 0.0f);
    return r;
}
static inline double __ll2double_rz(long long v)
{
    double r = (double)v;
    if (v != (long long)0x7fffffffffffffff && fabs(r) < 9.2e18 && (long long)r == v) return r;
    unsigned long long m = v < 0 ? 0ull - (unsigned long long)v : (unsigned long long)v;
    int drop = 64 - __builtin_clzll(m | 1) - 53;
    if (drop > 0) m = m >> drop << drop;
    return v < 0 ? -(double)m : (double)m;
}
static inline long long __double2ll_rn(double v)
{
    double r = rint(v);
    return r >= 9223372036854775808.0 ? 0x7fffffffffffffffll
           : r < -9223372036854775808.0 ? (long long)0x8000000000000000ull
                                        : (long long)r;
}
static inline long long __float2ll_rn(float v) { return __double2ll_rn((double)v); }
static inline int __float2int_rn(float v) { return (int)rintf(v); }
static inline unsigned __float2uint_rn(float v) { return (unsigned)rintf(v); }
static inline float __int2float_rn(int v) { return (float)v; }
static inline void sincospif(float v, float *s, float *c)
{
    *s = (float)sin(3.14159265358979323846 * (double)v);
    *c = (float)cos(3.14159265358979323846 * (double)v);
}

template <typename T> static inline T emu_min(T a, T b) { return b < a ? b : a; }
template <typename T> static inline T emu_max(T a, T b) { return a < b ? b : a; }
#define EMU_MIN_MAX(type)                                                                          \
    static inline type min(type a, type b) { return emu_min(a, b); }                               \
    static inline type max(type a, type b) { return emu_max(a, b); }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

/* ---- memory ---- */
template <typename T> static inline T __ldg(const T *p) { return *p; }
template <typename T> static inline T __ldcs(const T *p) { return *p; }
template <typename T> static inline T __ldcg(const T *p) { return *p; }
template <typename T> static inline void __stcs(T *p, T v) { *p = v; }
template <typename T> static inline void __stcg(T *p, T v) { *p = v; }
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline uint64_t __cvta_generic_to_shared(const void *p) { return emu_shared_address(p); }

template <typename T, typename F> static inline T emu_atomic(T *p, F f)
{
    T old, fresh;
    __atomic_load(p, &old, __ATOMIC_SEQ_CST);
    do fresh = f(old);
    while (!__atomic_compare_exchange(p, &old, &fresh, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}
template <typename T> struct emu_same { typedef T type; };
template <typename T> static inline T atomicAdd(T *p, typename emu_same<T>::type v)
{
    return emu_atomic(p, [v](T o) { return (T)(o + v); });
}
template <typename T> static inline T atomicMax(T *p, typename emu_same<T>::type v)
{
    return emu_atomic(p, [v](T o) { return o < v ? v : o; });
}
template <typename T> static inline T atomicMin(T *p, typename emu_same<T>::type v)
{
    return emu_atomic(p, [v](T o) { return v < o ? v : o; });
}
template <typename T> static inline T atomicOr(T *p, typename emu_same<T>::type v)
{
    return emu_atomic(p, [v](T o) { return (T)(o | v); });
}
template <typename T> static inline T atomicExch(T *p, typename emu_same<T>::type v)
{
    return emu_atomic(p, [v](T) { return v; });
}
template <typename T>
static inline T atomicCAS(T *p, typename emu_same<T>::type c, typename emu_same<T>::type v)
{
    return emu_atomic(p, [c, v](T o) { return o == c ? v : o; });
}

/* ---- together ---- */
static inline void __syncthreads() { emu_barrier(0, 0); }
static inline void __syncwarp(unsigned mask = 0xffffffffu) { emu_ballot(mask, false); }
static inline unsigned __ballot_sync(unsigned mask, int vote) { return emu_ballot(mask, vote != 0); }
static inline int __any_sync(unsigned mask, int vote) { return emu_ballot(mask, vote != 0) != 0; }
static inline int __all_sync(unsigned mask, int vote) { return emu_ballot(mask, vote == 0) == 0; }
static inline unsigned __activemask() { return 0xffffffffu; }
static inline void __trap() { emu_trap("__trap()"); }

template <typename T> static inline T emu_shuffle(unsigned mask, T v, int from)
{
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    bits = emu_exchange(mask, bits, from);
    memcpy(&v, &bits, sizeof v);
    return v;
}
static inline int emu_lane() { return emu_now->index % 32; }
template <typename T> static inline T __shfl_sync(unsigned mask, T v, int from, int width = 32)
{
    return emu_shuffle(mask, v, (emu_lane() & ~(width - 1)) + (from & (width - 1)));
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T v, int by, int width = 32)
{
    int from = emu_lane() ^ by, first = emu_lane() & ~(width - 1);
    return emu_shuffle(mask, v, from < first + width ? from : emu_lane());
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32)
{
    int from = emu_lane() - (int)by, first = emu_lane() & ~(width - 1);
    return emu_shuffle(mask, v, from < first ? emu_lane() : from);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32)
{
    int from = emu_lane() + (int)by, first = emu_lane() & ~(width - 1);
    return emu_shuffle(mask, v, from >= first + width ? emu_lane() : from);
}
static inline unsigned __reduce_max_sync(unsigned mask, unsigned v)
{
    for (int by = 1; by < 32; by *= 2) {
        const unsigned other = __shfl_xor_sync(mask, v, by);
        v = other > v ? other : v;
    }
    return v;
}

/* ---- assembly ---- */
template <typename T> static inline emu_ref emu_out(T &v)
{
    static_assert(sizeof(T) <= 8, "a register");
    emu_ref r;
    r.at = (void *)&v;
    r.bytes = sizeof v;
    r.out = true;
    return r;
}
template <typename T> static inline emu_ref emu_in(T v)
{
    static_assert(sizeof(T) <= 8, "a register");
    emu_ref r;
    r.bits = 0;
    memcpy(&r.bits, &v, sizeof v);
    r.bytes = sizeof v;
    r.out = false;
    return r;
}
#define EMU_PTX(text, ...)                                                                         \
    do {                                                                                           \
        static const emu_ptx *const emu_code = emu_ptx_find(text);                                 \
        const emu_ref emu_refs[] = {__VA_ARGS__};                                                  \
        emu_ptx_run(emu_code, emu_refs, (int)(sizeof emu_refs / sizeof *emu_refs));                \
    } while (0)
#define EMU_PTX_NONE(text)                                                                         \
    do {                                                                                           \
        static const emu_ptx *const emu_code = emu_ptx_find(text);                                 \
        emu_ptx_run(emu_code, nullptr, 0);                                                         \
    } while (0)

/* The one parameter of a kernel, as the driver hands it over. */
template <typename A> static inline void emu_call(void (*kernel)(A), const void *argument)
{
    kernel(*(const A *)argument);
}
template <typename A> static inline unsigned long emu_argument(void (*)(A))
{
    return sizeof(A);
}
