/* SPDX-License-Identifier: Apache-2.0
 * Softmax, its logarithm and their gradients of short slices that lie packed but not in whole accesses:
 * those of a block pass through shared memory both ways. Constants: BACKWARD, LOG, LENGTH of a slice, those
 * of kernels/slices.cuh: ALONG, no VECTOR, ITEMS elements a thread. Types a_t (x; bwd: y), b_t (dy),
 * out_t, acc_t. */
#include "kernels/chunk.cuh"
#include "kernels/overlap.cuh"
#include "kernels/slices.cuh"
#include "ops/softmax/softmax_args.h"

static_assert(ALONG && VECTOR == 1 && THREADS <= 32, "elements are taken one by one");
static_assert(ITEMS * THREADS >= LENGTH && (ITEMS - 1) * THREADS < LENGTH, "a thread keeps its elements");

constexpr int BLOCK = THREADS * SLICES, ALL = SLICES * LENGTH;

/* The thread's elements of a slice; what lies past its end is `fill`. */
template <typename T> __device__ __forceinline__ void take(const T *slice, acc_t fill, acc_t (&v)[ITEMS])
{
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        const int i = j * THREADS + thread_in_slice();
        v[j] = (j + 1) * THREADS <= LENGTH || i < LENGTH ? widen<acc_t>(slice[i]) : fill;
    }
}
__device__ __forceinline__ void put(out_t *slice, const acc_t (&v)[ITEMS])
{
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        const int i = j * THREADS + thread_in_slice();
        if ((j + 1) * THREADS <= LENGTH || i < LENGTH) slice[i] = narrow<out_t>(v[j]);
    }
}

__device__ __forceinline__ void forward(const a_t *x, out_t *y)
{
    acc_t v[ITEMS], max = negative_infinity<acc_t>(), sum = 0;
    take(x, negative_infinity<acc_t>(), v);
#pragma unroll
    for (int j = 0; j < ITEMS; j++) max = max_of(max, v[j]);
    max = slice_reduce(max, (acc_t *)nullptr, max_op());
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        acc_t d = v[j] - max, e = exp_for<out_t>(d);
        sum += e;
        v[j] = LOG ? d : e;
    }
    sum = slice_reduce(sum, (acc_t *)nullptr, add_op());
    const acc_t by = LOG ? log_of(sum) : (acc_t)1 / sum;
#pragma unroll
    for (int j = 0; j < ITEMS; j++) v[j] = LOG ? v[j] - by : v[j] * by;
    put(y, v);
}

__device__ __forceinline__ void backward(const a_t *ys, const b_t *dys, out_t *dx)
{
    acc_t y[ITEMS], dy[ITEMS], sum = 0;
    take(ys, (acc_t)0, y);
    take(dys, (acc_t)0, dy);
#pragma unroll
    for (int j = 0; j < ITEMS; j++) sum += LOG ? dy[j] : y[j] * dy[j];
    sum = slice_reduce(sum, (acc_t *)nullptr, add_op());
#pragma unroll
    for (int j = 0; j < ITEMS; j++) dy[j] = LOG ? dy[j] - exp_for<out_t>(y[j]) * sum : y[j] * (dy[j] - sum);
    put(dx, dy);
}

/* A thread writes where it read, or beside if sizes differ; slices past the last are nobody's. */
extern "C" __global__ void __launch_bounds__(BLOCK) softmax_staged(const mica_softmax_args args)
{
    overlap_wait();
    extern __shared__ __align__(16) unsigned char memory[];
    a_t *a = (a_t *)memory;
    b_t *b = (b_t *)(a + ALL);
    out_t *out = (out_t *)(sizeof(out_t) == sizeof(a_t) ? (void *)a : BACKWARD ? (void *)(b + ALL) : (void *)b);
    const int thread = (int)threadIdx.x, at = slice_in_block() * LENGTH;
    for (long long first = (long long)blockIdx.x * SLICES; first < args.outer.count;
         first += (long long)gridDim.x * SLICES) {
        const long long left = args.outer.count - first;
        const int count = left < SLICES ? (int)left * LENGTH : ALL;
        chunk_read<BLOCK>(a, (const a_t *)args.a + first * LENGTH, count, args.whole, thread);
        if constexpr (BACKWARD) chunk_read<BLOCK>(b, (const b_t *)args.b + first * LENGTH, count, args.whole, thread);
        chunk_wait();
        if constexpr (BACKWARD) backward(a + at, b + at, out + at);
        else forward(a + at, out + at);
        __syncthreads();
        chunk_write<BLOCK>((out_t *)args.out + first * LENGTH, out, count, args.whole, thread);
        __syncthreads(); /* the next slices come to the same place */
    }
}
