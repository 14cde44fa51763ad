/* SPDX-License-Identifier: Apache-2.0
 * Experts of tokens and their weights. Constants beside those of moe_route.cuh: SIGMOID, RENORMALISE,
 * BY_SCORE (scores decide, not logits), BIAS, LIMITED (to groups), SUM2, SUMS (partial
 * sums by block), SHARES (of aux), SQUARES (of z); type w_t. Bytes: each logit once, results once. Work: the
 * largest of VALUES keys once, then per slot a reduction over the lanes, a vote, and in one lane the
 * largest again. */
#include "ops/moe_route/moe_route.cuh"

static_assert(!LIMITED || LANES == 32, "a lane for every group");

constexpr bool ALL = !SIGMOID && !RENORMALISE; /* the weights are shares of all */

struct keys {
    key_type of[VALUES], best; /* 0: not to be chosen */
    int at;
};

__device__ __forceinline__ void find_best(keys &k)
{
    k.best = k.of[0];
    k.at = 0;
#pragma unroll
    for (int i = 1; i < VALUES; i++) {
        const bool more = k.of[i] > k.best;
        k.best = more ? k.of[i] : k.best;
        k.at = more ? i : k.at;
    }
}

/* ---- what experts are compared by ---- */

__device__ __forceinline__ void softmax_scores(const mica_moe_route_args &a, acc_t (&s)[VALUES])
{
    key_type top = 0;
#pragma unroll
    for (int i = 0; i < VALUES; i++) top = key_of(s[i]) > top ? key_of(s[i]) : top;
    const acc_t max = value_of(lanes_max(top));
    const bool finite = abs_of(max) < (acc_t)INFINITY_F;
    u64 sum = 0;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        s[i] = low_exp(finite ? rounded_sum(s[i], -max) : (acc_t)0);
        if (lane_of() * VALUES + i < a.experts) sum += fixed_of(s[i]);
    }
    const acc_t by = fixed_sum(lanes_sum(sum), (acc_t)0);
#pragma unroll
    for (int i = 0; i < VALUES; i++) s[i] = finite ? s[i] / by : (acc_t)NAN_F;
}

__device__ __forceinline__ void find_keys(const mica_moe_route_args &a, const acc_t (&x)[VALUES], const acc_t (&bias)[VALUES], keys &k)
{
    acc_t s[VALUES], rest;
#pragma unroll
    for (int i = 0; i < VALUES; i++) s[i] = x[i];
    if constexpr (BY_SCORE && !SIGMOID) softmax_scores(a, s);
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        if constexpr (BY_SCORE && SIGMOID) s[i] = sigmoid_of(s[i], rest);
        if constexpr (BIAS) s[i] = rounded_sum(s[i], bias[i]);
        k.of[i] = lane_of() * VALUES + i < a.experts ? key_of(s[i]) : 0;
    }
}

/* ---- groups ---- */

__device__ __forceinline__ void limit_groups(const mica_moe_route_args &a, keys &k)
{
    key_type worth = 0; /* of the group with the lane's number */
#pragma unroll 1
    for (int g = 0; g < a.groups; g++) {
        const int low = g * a.group - lane_of() * VALUES, high = low + a.group;
        key_type first = 0, second = 0;
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            const key_type key = i >= low && i < high ? k.of[i] : 0;
            if constexpr (SUM2) second = key > first ? first : key > second ? key : second;
            first = key > first ? key : first;
        }
        key_type top = lanes_max(first);
        if constexpr (SUM2) {
            const bool owner = lane_of() == first_lane(first == top);
            const key_type next = lanes_max(owner ? second : first);
            top = key_of(rounded_sum(value_of(top), value_of(next)));
        }
        if (lane_of() == g) worth = top;
    }
    u32 kept = 0;
#pragma unroll 1
    for (int j = 0; j < a.kept_groups; j++) {
        const int owner = first_lane(worth == lanes_max(worth));
        kept |= 1u << owner;
        if (lane_of() == owner) worth = 0;
    }
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        const int e = lane_of() * VALUES + i;
        if (e < a.experts && !(kept >> (u32)e / (u32)a.group & 1)) k.of[i] = 0;
    }
}

/* ---- sums over tokens ---- */

struct sums {
    double p[VALUES], z;
    int counts[VALUES];
};

/* Of the block's tokens, in their order. */
template <typename T> __device__ __forceinline__ T block_sum(T v, T *scratch)
{
    T sum = 0;
    __syncthreads();
    scratch[threadIdx.x] = v;
    __syncthreads();
    if (threadIdx.x < LANES)
        for (int t = 0; t < TOKENS; t++) sum += scratch[t * LANES + threadIdx.x];
    return sum;
}

__device__ __forceinline__ void put_sums(const mica_moe_route_args &a, const sums &s)
{
    __shared__ double numbers[BLOCK];
    __shared__ int counted[BLOCK];
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        const int e = threadIdx.x * VALUES + i;
        const double p = SHARES ? block_sum(s.p[i], numbers) : 0;
        const int count = block_sum(s.counts[i], counted);
        if (threadIdx.x >= LANES || e >= a.experts) continue;
        if (SHARES) a.partial_p[(s64)e * a.blocks + blockIdx.x] = p;
        a.partial_counts[(s64)e * a.blocks + blockIdx.x] = count;
    }
    if constexpr (SQUARES) {
        const double z = block_sum(s.z, numbers);
        if (threadIdx.x == 0) a.partial_z[blockIdx.x] = z;
    }
}

/* ---- a token ---- */

/* Returns the expert of the slot with the lane's number. */
__device__ __forceinline__ int choose(keys &k, sums &s, int slots, bool active)
{
    int chosen = 0;
    find_best(k);
#pragma unroll 1
    for (int j = 0; j < slots; j++) {
        const key_type top = lanes_max(k.best);
        const int owner = first_lane(k.best == top);
        const int expert = __shfl_sync(0xffffffffu, lane_of() * VALUES + k.at, owner, LANES);
        if (lane_of() == j) chosen = expert;
        if (lane_of() != owner) continue;
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            const bool taken = i == k.at;
            k.of[i] = taken ? 0 : k.of[i];
            if constexpr (SUMS) s.counts[i] += taken && active;
        }
        find_best(k);
    }
    return chosen;
}

__device__ __forceinline__ acc_t weight_of(const mica_moe_route_args &a, s64 token, int chosen, const softmax_sums &all)
{
    const bool there = lane_of() < a.slots;
    const acc_t x = there ? logit_of(a, token, chosen) : (acc_t)0;
    acc_t w, rest;
    if constexpr (SIGMOID) {
        w = there ? sigmoid_of(x, rest) : (acc_t)0;
        if constexpr (RENORMALISE) w = w / (lanes_sum(w) + (acc_t)ROUTE_LEAST);
    } else if constexpr (RENORMALISE) {
        w = slot_softmax(x, there);
    } else {
        w = exp_of(x - all.max) / all.sum;
    }
    return w * (acc_t)a.scale;
}

extern "C" __global__ void __launch_bounds__(BLOCK) moe_route_forward(const mica_moe_route_args a)
{
    overlap_wait();
    const int lane = lane_of(), mine = threadIdx.x / LANES;
    acc_t bias[VALUES];
    sums s = {};
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        const int e = lane * VALUES + i;
        bias[i] = BIAS && e < a.experts ? ((const acc_t *)a.bias)[e * a.bias_expert] : (acc_t)0;
    }
    const s64 first = (s64)blockIdx.x * TOKENS;
#pragma unroll 1
    for (s64 at = first; at < a.tokens; at += (s64)gridDim.x * TOKENS) {
        const bool active = at + mine < a.tokens;
        const s64 token = active ? at + mine : a.tokens - 1;
        acc_t x[VALUES];
        keys k;
        softmax_sums all = {};
        load_token(a, token, x);
        find_keys(a, x, bias, k);
        if constexpr (LIMITED) limit_groups(a, k);
        const int chosen = choose(k, s, a.slots, active);
        if constexpr (ALL || SHARES || SQUARES) all = find_softmax(x);
        const acc_t w = weight_of(a, token, chosen, all);
        if (!active) continue;
        if (lane < a.slots) {
            ((int *)a.indices)[token * a.index_token + lane * a.index_slot] = chosen;
            ((w_t *)a.weights)[token * a.weight_token + lane * a.weight_slot] = narrow<w_t>(w);
        }
        if constexpr (SHARES)
#pragma unroll
            for (int i = 0; i < VALUES; i++) s.p[i] += (double)(x[i] / all.sum);
        if constexpr (SQUARES) {
            const double lse = (double)all.max + (double)log_of(all.sum);
            if (lane == 0) s.z += lse * lse;
        }
    }
    if constexpr (SUMS) put_sums(a, s);
}
