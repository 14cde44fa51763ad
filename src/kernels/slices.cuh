/* SPDX-License-Identifier: Apache-2.0
 * Groups of threads that share a slice of a tensor. Constants from the prologue: THREADS per slice (a
 * power of two), SLICES per block (the block has THREADS * SLICES threads), ALONG (neighbouring
 * threads are neighbours on the axis; else they belong to neighbouring slices), VECTOR (neighbours on
 * the axis that a thread loads at once), RAGGED (slices start anywhere in a vector, alike in all
 * tensors). Reductions have a fixed order, and every thread of the group receives the same bits. */
#pragma once
#include "kernels/deviation.cuh"
#include "kernels/types.cuh"
#include "kernels/math.cuh"
#include "kernels/vector.cuh"

static_assert((THREADS & (THREADS - 1)) == 0, "THREADS is a power of two");
static_assert(VECTOR > 1 || !RAGGED, "only vectors can be ragged");
static_assert(THREADS * SLICES <= 1024 && THREADS * SLICES % 32 == 0, "whole warps of one block");

__device__ __forceinline__ int slice_in_block() { return ALONG ? threadIdx.x / THREADS : threadIdx.x % SLICES; }
__device__ __forceinline__ int thread_in_slice() { return ALONG ? threadIdx.x % THREADS : threadIdx.x / SLICES; }

/* Scratch of slice_reduce, in elements of shared memory. */
constexpr int SLICE_SCRATCH = THREADS == 1 ? 1 : ALONG ? (THREADS > 32 ? THREADS * SLICES / 32 : 1) : THREADS * SLICES;

constexpr int SLICE_WARPS = THREADS > 32 ? THREADS / 32 : 1;

struct add_op {
    template <typename A> __device__ __forceinline__ A operator()(A a, A b) const { return a + b; }
};
struct max_op {
    template <typename A> __device__ __forceinline__ A operator()(A a, A b) const { return max_of(a, b); }
};

/* N values of each slice at once, where slices lie side by side; scratch: N times SLICE_SCRATCH. All threads
 * of the block must call it. */
template <int N, typename A, typename Op> __device__ __forceinline__ void slice_reduce_beside(A *v, A *all, Op op)
{
    const int slice = slice_in_block(), thread = N * thread_in_slice(); /* in rows of `all` */
    __syncthreads(); /* the scratch may still be read */
#pragma unroll
    for (int k = 0; k < N; k++) all[(thread + k) * SLICES + slice] = v[k];
    for (int half = N * THREADS / 2; half >= N; half /= 2) {
        __syncthreads();
        if (thread >= half) continue;
#pragma unroll
        for (int k = 0; k < N; k++) {
            A *scratch = all + k * SLICES, &sum = scratch[thread * SLICES + slice];
            sum = op(sum, scratch[(thread + half) * SLICES + slice]);
        }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = all[k * SLICES + slice];
}

/* All threads of the block must call it. */
template <typename A, typename Op> __device__ __forceinline__ A slice_reduce(A v, A *scratch, Op op)
{
    if constexpr (THREADS == 1) return v;
    if constexpr (ALONG) {
#pragma unroll
        for (int lane = 1; lane < THREADS && lane < 32; lane *= 2)
            v = op(v, __shfl_xor_sync(0xffffffffu, v, lane));
        if constexpr (THREADS > 32) {
            int warp = threadIdx.x / 32;
            __syncthreads(); /* the scratch may still be read from the last time */
            if (threadIdx.x % 32 == 0) scratch[warp] = v;
            __syncthreads();
            const A *mine = scratch + warp / SLICE_WARPS * SLICE_WARPS;
            v = mine[0];
            for (int i = 1; i < SLICE_WARPS; i++) v = op(v, mine[i]);
        }
        return v;
    } else {
        slice_reduce_beside<1>(&v, scratch, op);
        return v;
    }
}

/* Maximum and sum of exp(x - max) of what has been seen. */
template <typename A> struct running {
    A max, sum;
};

/* N values at once: one rescaling, and N exponentials that do not wait for each other. */
template <int N, typename A> __device__ __forceinline__ void running_add(running<A> &r, const A *v)
{
    A max = r.max;
#pragma unroll
    for (int k = 0; k < N; k++) max = max_of(max, v[k]);
    if (max == negative_infinity<A>()) return;
    r.sum *= exp_of(r.max - max);
#pragma unroll
    for (int k = 0; k < N; k++) r.sum += exp_of(v[k] - max);
    r.max = max;
}

/* The same for all threads of a slice. A group that saw nothing but -inf has sum 0. */
template <typename A> __device__ __forceinline__ running<A> running_reduce(running<A> r, A *scratch)
{
    A max = slice_reduce(r.max, scratch, max_op());
    A sum = r.max == negative_infinity<A>() ? (A)0 : r.sum * exp_of(r.max - max);
    return running<A>{max, slice_reduce(sum, scratch, add_op())};
}

/* First element of the thread's vector `item`, and of those from it on. */
__device__ __forceinline__ long long position(long long item)
{
    return (item * THREADS + thread_in_slice()) * VECTOR;
}
template <int COUNT> __device__ __forceinline__ void find_positions(long long item, long long *i)
{
#pragma unroll
    for (int j = 0; j < COUNT; j++) i[j] = position(item + j);
}

/* Vectors of a slice in flight where a thread keeps none, in the type of sums. */
template <typename A> constexpr int vectors_in_flight()
{
    constexpr int VALUES = sizeof(A) == 8 ? 4 : 16;
    return VECTOR >= VALUES ? 1 : VALUES / VECTOR < 8 ? VALUES / VECTOR : 8;
}

/* Of the vectors that the threads of a slice keep. */
template <int COUNT, typename A> __device__ __forceinline__ A kept_max(const A (*v)[VECTOR], A *scratch)
{
    A max = negative_infinity<A>();
#pragma unroll
    for (int j = 0; j < COUNT; j++)
#pragma unroll
        for (int k = 0; k < VECTOR; k++) max = max_of(max, v[j][k]);
    return slice_reduce(max, scratch, max_op());
}

/* ---- what a slice's threads read and write ---- */

/* Elements [lo, hi) of a slice, counted from the start of its first vector: lo is 0 unless RAGGED. */
struct extent {
    long long lo, hi;
};

/* How far into a vector the slice at `from` starts; all its tensors have then to be moved back as far. */
template <typename T> __device__ __forceinline__ extent find_extent(const T *from, long long n, bool whole)
{
    long long lo = 0;
    if constexpr (RAGGED)
        if (whole) lo = (long long)((u64)from / sizeof(T) % VECTOR);
    return extent{lo, lo + n};
}

__device__ __forceinline__ bool is_full(const extent &e, long long i)
{
    if constexpr (RAGGED) return i >= e.lo && i + VECTOR <= e.hi;
    return i < e.hi;
}

/* Where the element at i lies: vectors lie along the axis. */
__device__ __forceinline__ long long step_to(long long i, long long along) { return VECTOR > 1 ? i : i * along; }

/* The vectors at i[] that lie inside of the slice, in flight: tensors that are read together are all fetched
 * before the first is unpacked. */
template <int BATCH, typename T>
__device__ __forceinline__ void fetch_batch(const T *from, const extent &e, const long long *i, long long along, bool whole, lanes<T, VECTOR> *raw)
{
#pragma unroll
    for (int b = 0; b < BATCH; b++)
        if (is_full(e, i[b])) raw[b] = fetch<VECTOR>(from + step_to(i[b], along), whole);
}

/* What was fetched; elements outside of the slice are `fill`. */
template <int BATCH, typename T, typename A>
__device__ __forceinline__ void unpack_batch(const T *from, const extent &e, const long long *i, const lanes<T, VECTOR> *raw, A fill, A (*v)[VECTOR])
{
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        if (is_full(e, i[b])) {
            unpack(raw[b], v[b]);
            continue;
        }
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            long long at = i[b] + k;
            v[b][k] = RAGGED && at >= e.lo && at < e.hi ? widen<A>(from[at]) : fill;
        }
    }
}

template <int BATCH, typename T, typename A>
__device__ __forceinline__ void read_batch(const T *from, const extent &e, const long long *i, long long along, bool whole, A fill, A (*v)[VECTOR])
{
    lanes<T, VECTOR> raw[BATCH];
    fetch_batch<BATCH>(from, e, i, along, whole, raw);
    unpack_batch<BATCH>(from, e, i, raw, fill, v);
}

template <typename T, typename A>
__device__ __forceinline__ void write_vector(T *to, const extent &e, long long i, long long along, bool whole, const A *v)
{
    if (is_full(e, i)) {
        store_elements<T, VECTOR>(to + step_to(i, along), whole, v);
    } else if constexpr (RAGGED) {
#pragma unroll
        for (int k = 0; k < VECTOR; k++)
            if (i + k >= e.lo && i + k < e.hi) to[i + k] = narrow<T>(v[k]);
    }
}

/* Of all threads of a slice. */
template <typename A> __device__ __forceinline__ A deviation_reduce(deviation<A> d, A mine, A max, A *scratch)
{
    deviation_lower(d, mine, max);
    return slice_reduce(d.sum, scratch, add_op());
}

/* Maximum and sum over a slice's elements, `along` apart, of which the thread takes its share. below,
 * if not NULL, receives their deviations. Batches keep several loads in flight. */
template <typename T, typename A>
__device__ __forceinline__ running<A> running_read(const T *from, const extent &e, long long along,
                                                   bool whole, deviation<A> *below)
{
    constexpr int VALUES = sizeof(A) == 8 ? 8 : 32, BATCH = VECTOR < VALUES ? VALUES / VECTOR < 8 ? VALUES / VECTOR : 8 : 1;
    running<A> r = {negative_infinity<A>(), (A)0};
    for (long long j = 0; position(j) < e.hi; j += BATCH) {
        A v[BATCH][VECTOR];
        long long i[BATCH];
        find_positions<BATCH>(j, i);
        read_batch<BATCH>(from, e, i, along, whole, negative_infinity<A>(), v);
        const A before = r.max;
        running_add<BATCH * VECTOR>(r, &v[0][0]);
        if (!below) continue;
        deviation_lower(*below, before, r.max);
        const A shift = deviation_shift(r.max);
        A sum = 0;
        /* Elements of the batch, counted from its own first. */
        const int first = (int)(e.lo - i[0] < 0 ? 0 : e.lo - i[0]), most = BATCH * THREADS * VECTOR;
        const int end = (int)(e.hi - i[0] < most ? e.hi - i[0] : most);
#pragma unroll
        for (int b = 0; b < BATCH; b++)
#pragma unroll
            for (int k = 0; k < VECTOR; k++) {
                const int at = b * (THREADS * VECTOR) + k;
                const bool inside = at < end && (!RAGGED || at >= first);
                sum += inside ? v[b][k] * (A)DEVIATION - shift : (A)0;
                if (inside) below->seen += 1;
            }
        below->sum += sum;
    }
    return r;
}
