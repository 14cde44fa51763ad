/* SPDX-License-Identifier: Apache-2.0
 * Where the work items of resize lie, and their weights. Constants: MOST_D, MOST_H, MOST_W (weights of a
 * row of each table, powers of two); types value_t (of both tensors), acc_t (of sums and weights), int_t (holds every
 * size and offset). */
#pragma once
#include "kernels/overlap.cuh"
#include "kernels/vector.cuh"
#include "ops/resize/resize_args.h"

/* Digit DIM of D, H, W, C of a work item, by a product where numbers are small. */
template <int DIM> __device__ __forceinline__ int_t next_digit(const mica_resize_args &a, int_t &rest)
{
    int_t q, digit;
    if constexpr (sizeof(int_t) > 4) {
        q = rest / (int_t)a.sizes[DIM], digit = rest - q * (int_t)a.sizes[DIM];
    } else {
        q = (int_t)mica_fastdiv_of(a.by_size[DIM], (u32)rest), digit = rest - q * (int_t)a.by_size[DIM].divisor;
    }
    rest = q;
    return digit;
}

/* A row of a table, of few weights: those that it has not are 0. first < 0: nothing. */
template <int MOST> struct weights {
    int_t first;
    acc_t w[MOST];
};
template <int MOST> __device__ __forceinline__ weights<MOST> load_weights(const mica_resize_table &t, int_t i)
{
    weights<MOST> r;
    r.first = ((const int_t *)t.first)[i];
    const acc_t *w = (const acc_t *)t.weights + (s64)i * MOST;
    load_vector<MOST>(w, r.w);
    return r;
}
