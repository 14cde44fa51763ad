/* SPDX-License-Identifier: Apache-2.0
 * Softmax, its logarithm and their gradients, any strides. Constants: BACKWARD, LOG, those of
 * cuda/device/slices.cuh, VECTOR (neighbours a thread loads at once; 1 unless the axis is contiguous),
 * ITEMS (vectors a thread keeps in registers; 0: slices are too long, and are read twice). Types a_t
 * (x; bwd: y), b_t (dy), out_t, acc_t. */
#include "cuda/device/slices.cuh"
#include "cuda/device/layout.cuh"
#include "ops/softmax/softmax_args.h"

static_assert(VECTOR == 1 || ALONG, "vectors lie along the axis");

constexpr int TENSORS = BACKWARD ? 3 : 2, OUT = TENSORS - 1;
constexpr int KEPT = ITEMS > 0 ? ITEMS : 1;

struct slice {
    const a_t *a;
    const b_t *b;
    out_t *out;
    long long n, along[3]; /* n is 0 past the last slice */
    bool whole;
};

__device__ __forceinline__ slice find_slice(const mica_softmax_args &args, long long index)
{
    slice s = {};
    if (index >= args.outer.count) return s;
    long long at[TENSORS];
    layout_offsets<TENSORS>(args.outer, index, at);
    s.a = (const a_t *)args.a + at[0];
    s.b = (const b_t *)args.b + at[OUT - 1];
    s.out = (out_t *)args.out + at[OUT];
    s.n = args.n;
    for (int t = 0; t < TENSORS; t++) s.along[t] = args.along[t];
    s.whole = args.whole;
    return s;
}

__device__ __forceinline__ void read_a(const slice &s, long long i, acc_t *v)
{
    load_elements<a_t, VECTOR>(s.a + i * s.along[0], s.whole, v);
}
__device__ __forceinline__ void read_b(const slice &s, long long i, acc_t *v)
{
    load_elements<b_t, VECTOR>(s.b + i * s.along[OUT - 1], s.whole, v);
}
__device__ __forceinline__ void write(const slice &s, long long i, const acc_t *v)
{
    store_elements<out_t, VECTOR>(s.out + i * s.along[OUT], s.whole, v);
}

/* ---- forward ---- */

/* by: log(sum), or 1 / sum. */
__device__ __forceinline__ void finish_forward(const slice &s, long long i, acc_t *v, acc_t max, acc_t by)
{
#pragma unroll
    for (int k = 0; k < VECTOR; k++) v[k] = LOG ? (v[k] - max) - by : exp_of(v[k] - max) * by;
    write(s, i, v);
}

__device__ __forceinline__ void forward_kept(const slice &s, acc_t *scratch)
{
    acc_t v[KEPT][VECTOR], max = negative_infinity<acc_t>(), sum = 0;
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
#pragma unroll
        for (int k = 0; k < VECTOR; k++) v[j][k] = negative_infinity<acc_t>();
        if (position(j) < s.n) read_a(s, position(j), v[j]);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) max = max_of(max, v[j][k]);
    }
    max = slice_reduce(max, scratch, max_op());
#pragma unroll
    for (int j = 0; j < KEPT; j++)
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            acc_t e = exp_of(v[j][k] - max);
            sum += e;
            v[j][k] = LOG ? v[j][k] - max : e;
        }
    sum = slice_reduce(sum, scratch, add_op());
    acc_t by = LOG ? log_of(sum) : (acc_t)1 / sum;
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
#pragma unroll
        for (int k = 0; k < VECTOR; k++) v[j][k] = LOG ? v[j][k] - by : v[j][k] * by;
        if (position(j) < s.n) write(s, position(j), v[j]);
    }
}

__device__ __forceinline__ void forward_long(const slice &s, acc_t *scratch)
{
    running<acc_t> r = running_read<a_t, acc_t>(s.a, s.n, s.along[0], s.whole, nullptr);
    r = running_reduce(r, scratch);
    acc_t by = LOG ? log_of(r.sum) : (acc_t)1 / r.sum;
    for (long long j = 0; position(j) < s.n; j++) {
        acc_t v[VECTOR];
        read_a(s, position(j), v);
        finish_forward(s, position(j), v, r.max, by);
    }
}

/* ---- backward ---- */

__device__ __forceinline__ acc_t term(acc_t y, acc_t dy) { return LOG ? dy : y * dy; }

__device__ __forceinline__ void finish_backward(const slice &s, long long i, const acc_t *y, acc_t *dy, acc_t sum)
{
#pragma unroll
    for (int k = 0; k < VECTOR; k++) dy[k] = LOG ? dy[k] - exp_of(y[k]) * sum : y[k] * (dy[k] - sum);
    write(s, i, dy);
}

__device__ __forceinline__ void backward_kept(const slice &s, acc_t *scratch)
{
    acc_t y[KEPT][VECTOR], dy[KEPT][VECTOR], sum = 0;
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
        if (position(j) < s.n) {
            read_a(s, position(j), y[j]);
            read_b(s, position(j), dy[j]);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) sum += term(y[j][k], dy[j][k]);
        }
    }
    sum = slice_reduce(sum, scratch, add_op());
#pragma unroll
    for (int j = 0; j < KEPT; j++)
        if (position(j) < s.n) finish_backward(s, position(j), y[j], dy[j], sum);
}

__device__ __forceinline__ void backward_long(const slice &s, acc_t *scratch)
{
    acc_t sum = 0;
    for (long long j = 0; position(j) < s.n; j++) {
        acc_t y[VECTOR] = {}, dy[VECTOR];
        if constexpr (!LOG) read_a(s, position(j), y);
        read_b(s, position(j), dy);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) sum += term(y[k], dy[k]);
    }
    sum = slice_reduce(sum, scratch, add_op());
    for (long long j = 0; position(j) < s.n; j++) {
        acc_t y[VECTOR], dy[VECTOR];
        read_a(s, position(j), y);
        read_b(s, position(j), dy);
        finish_backward(s, position(j), y, dy, sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS *SLICES) softmax(const mica_softmax_args args)
{
    __shared__ acc_t scratch[SLICE_SCRATCH];
    for (long long first = (long long)blockIdx.x * SLICES; first < args.outer.count;
         first += (long long)gridDim.x * SLICES) {
        slice s = find_slice(args, first + slice_in_block());
        if constexpr (BACKWARD) {
            if constexpr (ITEMS > 0) backward_kept(s, scratch);
            else backward_long(s, scratch);
        } else {
            if constexpr (ITEMS > 0) forward_kept(s, scratch);
            else forward_long(s, scratch);
        }
    }
}
