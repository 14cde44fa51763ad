/* SPDX-License-Identifier: Apache-2.0
 * Softmax, its logarithm and their gradients along a short axis whose neighbours lie side by side in
 * memory: a thread has VECTOR neighbouring slices, keeps them whole as they are stored, and writes what
 * becomes of them. Nothing is shared; warps read and write lines. Constants: BACKWARD, LOG, VECTOR,
 * ITEMS (elements of a slice, at most), THREADS of a block. Types a_t (x; bwd: y), b_t (dy), out_t,
 * acc_t. */
#include "kernels/types.cuh"
#include "kernels/layout.cuh"
#include "kernels/math.cuh"
#include "kernels/overlap.cuh"
#include "kernels/vector.cuh"
#include "ops/softmax/softmax_args.h"

constexpr int TENSORS = BACKWARD ? 3 : 2, OUT = TENSORS - 1;

/* Elements of VECTOR slices, of which `n` are there. */
template <typename T> struct columns {
    lanes<T, VECTOR> raw[ITEMS];
    __device__ __forceinline__ void read(const T *from, int n, long long along, bool whole)
    {
#pragma unroll
        for (int j = 0; j < ITEMS; j++)
            if (j < n) raw[j] = fetch<VECTOR>(from + j * along, whole);
    }
};

__device__ __forceinline__ void forward(const mica_softmax_args &args, const a_t *a, out_t *out)
{
    const int n = (int)args.n;
    columns<a_t> x;
    acc_t v[VECTOR], max[VECTOR], by[VECTOR];
    x.read(a, n, args.along[0], args.whole);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) max[k] = (acc_t)-INFINITY_F, by[k] = 0;
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        if (j >= n) break;
        unpack(x.raw[j], v);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) max[k] = max_of(max[k], v[k]);
    }
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        if (j >= n) break;
        unpack(x.raw[j], v);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) by[k] += exp_for<out_t>(v[k] - max[k]);
    }
#pragma unroll
    for (int k = 0; k < VECTOR; k++) by[k] = LOG ? log_of(by[k]) : (acc_t)1 / by[k];
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        if (j >= n) break;
        unpack(x.raw[j], v);
#pragma unroll
        for (int k = 0; k < VECTOR; k++)
            v[k] = LOG ? (v[k] - max[k]) - by[k] : exp_for<out_t>(v[k] - max[k]) * by[k];
        store_elements<out_t, VECTOR>(out + j * args.along[OUT], args.whole, v);
    }
}

__device__ __forceinline__ void backward(const mica_softmax_args &args, const a_t *a, const b_t *b, out_t *out)
{
    const int n = (int)args.n;
    columns<a_t> ys;
    columns<b_t> dys;
    acc_t y[VECTOR], dy[VECTOR], sum[VECTOR];
    ys.read(a, n, args.along[0], args.whole);
    dys.read(b, n, args.along[1], args.whole);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) sum[k] = 0;
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        if (j >= n) break;
        unpack(ys.raw[j], y);
        unpack(dys.raw[j], dy);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) sum[k] += LOG ? dy[k] : y[k] * dy[k];
    }
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        if (j >= n) break;
        unpack(ys.raw[j], y);
        unpack(dys.raw[j], dy);
#pragma unroll
        for (int k = 0; k < VECTOR; k++)
            dy[k] = LOG ? dy[k] - exp_for<out_t>(y[k]) * sum[k] : y[k] * (dy[k] - sum[k]);
        store_elements<out_t, VECTOR>(out + j * args.along[OUT], args.whole, dy);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) softmax_columns(const mica_softmax_args args)
{
    overlap_wait();
    const long long vectors = args.outer.count / VECTOR;
    for (long long i = (long long)blockIdx.x * THREADS + threadIdx.x; i < vectors;
         i += (long long)gridDim.x * THREADS) {
        long long at[TENSORS];
        layout_offsets<TENSORS>(args.outer, i * VECTOR, at);
        if constexpr (BACKWARD)
            backward(args, (const a_t *)args.a + at[0], (const b_t *)args.b + at[1], (out_t *)args.out + at[2]);
        else
            forward(args, (const a_t *)args.a + at[0], (out_t *)args.out + at[1]);
    }
}
