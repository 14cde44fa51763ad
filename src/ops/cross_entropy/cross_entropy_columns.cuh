/* SPDX-License-Identifier: Apache-2.0
 * Rows that lie side by side in memory, classes far apart, as images have them: a thread has VECTOR
 * neighbouring rows. Constants: VECTOR, THREADS of a block. Types x_t, acc_t. */
#pragma once
#include "kernels/deviation.cuh"
#include "kernels/types.cuh"
#include "kernels/math.cuh"
#include "kernels/vector.cuh"
#include "ops/cross_entropy/cross_entropy.cuh"

/* Classes in flight: 32 registers of them, fewer where sums are f64. */
constexpr int ROOM = sizeof(acc_t) == 8 ? 16 : 32, WORDS = (VECTOR * (int)sizeof(x_t) + 3) / 4;
constexpr int BATCH = WORDS >= ROOM ? 1 : WORDS < 2 ? ROOM / 2 : ROOM / WORDS;

struct statistics {
    acc_t max[VECTOR], sum[VECTOR]; /* of exp(x - max); max is 0 where there was nothing but -inf */
};

/* A batch of classes from `first` on, as stored. */
struct batch {
    lanes<x_t, VECTOR> raw[BATCH];
    __device__ __forceinline__ void read(const mica_cross_entropy_args &args, const x_t *x, long long first)
    {
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (first + b < args.classes) raw[b] = fetch<VECTOR>(x + (first + b) * args.x_along, args.whole);
    }
};

/* see(class, values, maxima so far, those before them) is called with all classes in order. */
template <typename See>
__device__ __forceinline__ statistics read_statistics(const mica_cross_entropy_args &args, const x_t *x, See see)
{
    statistics s;
    acc_t top[VECTOR], before[VECTOR];
#pragma unroll
    for (int k = 0; k < VECTOR; k++) s.max[k] = s.sum[k] = 0, top[k] = (acc_t)-INFINITY_F;
    for (long long first = 0; first < args.classes; first += BATCH) {
        batch x_batch;
        acc_t v[VECTOR];
        x_batch.read(args, x, first);
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            if (first + b >= args.classes) break;
            unpack(x_batch.raw[b], v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) top[k] = max_of(top[k], v[k]);
        }
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            const acc_t max = top[k] == (acc_t)-INFINITY_F ? (acc_t)0 : top[k];
            if (s.sum[k] != 0) s.sum[k] *= exp_of(s.max[k] - max);
            before[k] = first > 0 ? s.max[k] : max;
            s.max[k] = max;
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            if (first + b >= args.classes) break;
            unpack(x_batch.raw[b], v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) s.sum[k] += exp_of(v[k] - s.max[k]);
            see(first + b, v, s.max, before);
        }
    }
    return s;
}

/* Of the k-th neighbour, tensor t of args.rows. */
__device__ __forceinline__ long long beside(const mica_cross_entropy_args &args, const long long *at, int t, int k)
{
    return at[t] + k * args.rows.strides[t][args.rows.rank - 1];
}
