/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of routing share: LANES threads of a warp have a token, each VALUES neighbouring
 * experts of it, so that of equal keys the lowest lane's lowest is the first. Constants: LANES (a power of
 * two up to 32, and no fewer than slots), VALUES, VECTOR (of an access), BLOCK; types x_t, acc_t. */
#pragma once
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "kernels/math.cuh"
#include "kernels/vector.cuh"
#include "ops/random/random_rounded.cuh"
#include "ops/moe_route/moe_route_args.h"
#include "ops/moe_route/moe_route_body.h"

static_assert((LANES & (LANES - 1)) == 0 && LANES <= 32, "a part of a warp");
static_assert(VALUES % VECTOR == 0, "whole vectors");

constexpr int TOKENS = BLOCK / LANES; /* of a block */

RANDOM u32 key_of(float v) { return route_key32(v); }
RANDOM u64 key_of(double v) { return route_key64(v); }
RANDOM float value_of(u32 key) { return route_value32(key); }
RANDOM double value_of(u64 key) { return route_value64(key); }
RANDOM float low_exp(float v) { return route_exp32(v); }
RANDOM double low_exp(double v) { return route_exp64(v); }
RANDOM float sigmoid_of(float v, float &rest) { return route_sigmoid32(v, &rest); }
RANDOM double sigmoid_of(double v, double &rest) { return route_sigmoid64(v, &rest); }
RANDOM u64 fixed_of(float e) { return route_fixed32(e); }
RANDOM u64 fixed_of(double e) { return route_fixed64(e); }
RANDOM float fixed_sum(u64 sum, float) { return route_sum32(sum); }
RANDOM double fixed_sum(u64 sum, double) { return route_sum64(sum); }
RANDOM float rounded_sum(float a, float b) { return add32(a, b); }
RANDOM double rounded_sum(double a, double b) { return add64(a, b); }

typedef decltype(key_of((acc_t)0)) key_type;

__device__ __forceinline__ int lane_of() { return threadIdx.x % LANES; }

/* ---- a token's lanes together: the same bits in each ---- */

template <typename T> __device__ __forceinline__ T lanes_max(T v)
{
#pragma unroll
    for (int by = 1; by < LANES; by *= 2) {
        const T other = __shfl_xor_sync(0xffffffffu, v, by);
        v = other > v ? other : v;
    }
    return v;
}
__device__ __forceinline__ u32 lanes_max(u32 v)
{
    if constexpr (LANES == 32) return __reduce_max_sync(0xffffffffu, v);
    return lanes_max<u32>(v);
}
template <typename T> __device__ __forceinline__ T lanes_sum(T v)
{
#pragma unroll
    for (int by = 1; by < LANES; by *= 2) v += __shfl_xor_sync(0xffffffffu, v, by);
    return v;
}

/* The lowest lane that votes; one does. */
__device__ __forceinline__ int first_lane(bool vote)
{
    const u32 votes = __ballot_sync(0xffffffffu, vote) >> (threadIdx.x % 32 / LANES * LANES);
    return __ffs((int)votes) - 1;
}

/* ---- a token ---- */

/* Experts past the last are -inf. */
__device__ __forceinline__ void load_token(const mica_moe_route_args &a, s64 token, acc_t (&x)[VALUES])
{
    const x_t *from = (const x_t *)a.logits + token * a.x_token;
#pragma unroll
    for (int i = 0; i < VALUES; i += VECTOR) {
        const int e = lane_of() * VALUES + i;
        if (e < a.experts) {
            load_elements<x_t, VECTOR>(from + (VECTOR > 1 ? e : e * a.x_expert), a.whole, x + i);
        } else {
#pragma unroll
            for (int k = 0; k < VECTOR; k++) x[i + k] = -(acc_t)INFINITY_F;
        }
    }
}

__device__ __forceinline__ acc_t logit_of(const mica_moe_route_args &a, s64 token, int expert)
{
    return widen<acc_t>(((const x_t *)a.logits)[token * a.x_token + expert * a.x_expert]);
}

/* x becomes exp(x - max): what is past the last expert 0. */
struct softmax_sums {
    acc_t max, sum;
};
__device__ __forceinline__ softmax_sums find_softmax(acc_t (&x)[VALUES])
{
    acc_t max = x[0], sum = 0;
#pragma unroll
    for (int i = 1; i < VALUES; i++) max = max_of(max, x[i]);
#pragma unroll
    for (int by = 1; by < LANES; by *= 2) max = max_of(max, __shfl_xor_sync(0xffffffffu, max, by));
#pragma unroll
    for (int i = 0; i < VALUES; i++) sum += x[i] = exp_of(x[i] - max);
    return softmax_sums{max, lanes_sum(sum)};
}

/* The share of the slot in the softmax of those that are there. */
__device__ __forceinline__ acc_t slot_softmax(acc_t logit, bool there)
{
    acc_t max = there ? logit : -(acc_t)INFINITY_F;
#pragma unroll
    for (int by = 1; by < LANES; by *= 2) max = max_of(max, __shfl_xor_sync(0xffffffffu, max, by));
    const acc_t e = there ? exp_of(logit - max) : (acc_t)0;
    return e / lanes_sum(e);
}
