/* SPDX-License-Identifier: Apache-2.0
 * Gradients of logits. Constants beside those of moe_route.cuh: SIGMOID, RENORMALISE, SHARES (with daux),
 * SQUARES (with dz); types dx_t, w_t (of dweights), aux_t, z_t. Bytes: each logit once, gradients once. */
#include "ops/moe_route/moe_route.cuh"

constexpr bool ALL = !SIGMOID && !RENORMALISE;

/* What is left of the gradient where shares s sum to 1. */
__device__ __forceinline__ acc_t about_mean(acc_t slope, acc_t s, acc_t g, bool there)
{
    /* Products first, and a fourth of the mean: what is large may have no room for more. */
    const acc_t mean = lanes_sum(there ? s * (g / 4) : (acc_t)0);
    return slope * g - 4 * slope * mean;
}

/* Of the logit of the lane's slot, by way of its own weight alone where the softmax is of all. */
__device__ __forceinline__ acc_t slot_gradient(acc_t x, acc_t g, bool there, acc_t scale, const softmax_sums &all)
{
    acc_t s, rest;
    if constexpr (SIGMOID) {
        s = there ? sigmoid_of(x, rest) : (acc_t)0;
        if constexpr (!RENORMALISE) return there ? scale * (s * rest * g) : (acc_t)0;
        s = s / (lanes_sum(s) + (acc_t)ROUTE_LEAST);
        const acc_t v = about_mean(s * rest, s, g, there);
        return there ? scale * v : (acc_t)0;
    }
    if constexpr (RENORMALISE) {
        s = slot_softmax(x, there);
        const acc_t v = about_mean(s, s, g, there);
        return there ? scale * v : (acc_t)0;
    }
    return there ? scale * (exp_of(x - all.max) / all.sum) * g : (acc_t)0;
}

/* What daux adds to the gradient by each share of the softmax. */
__device__ __forceinline__ void find_pull(const mica_moe_route_args &a, acc_t (&pull)[VALUES])
{
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        const int e = lane_of() * VALUES + i;
        pull[i] = 0;
        if constexpr (SHARES)
            if (e < a.experts)
                pull[i] = (acc_t)(a.aux_by * (double)a.counts[e * a.counts_expert] * widen<double>(*(const aux_t *)a.aux));
    }
}

__device__ __forceinline__ void store_token(const mica_moe_route_args &a, s64 token, const acc_t (&dx)[VALUES])
{
    dx_t *to = (dx_t *)a.dlogits + token * a.dx_token;
#pragma unroll
    for (int i = 0; i < VALUES; i += VECTOR) {
        const int e = lane_of() * VALUES + i;
        if (e < a.experts) store_elements<dx_t, VECTOR>(to + (VECTOR > 1 ? e : e * a.dx_expert), a.whole, dx + i);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) moe_route_backward(const mica_moe_route_args a)
{
    overlap_wait();
    const int lane = lane_of(), mine = threadIdx.x / LANES;
    acc_t pull[VALUES];
    find_pull(a, pull);
    const double dz = SQUARES ? a.z_by * widen<double>(*(const z_t *)a.z) : 0;
#pragma unroll 1
    for (s64 at = (s64)blockIdx.x * TOKENS; at < a.tokens; at += (s64)gridDim.x * TOKENS) {
        const bool active = at + mine < a.tokens;
        const s64 token = active ? at + mine : a.tokens - 1;
        int chosen = -1;
        acc_t g = 0, logit = 0, dx[VALUES];
        softmax_sums all = {};
        load_token(a, token, dx);
        if (lane < a.slots) {
            chosen = ((const int *)a.indices)[token * a.index_token + lane * a.index_slot];
            g = widen<acc_t>(((const w_t *)a.weights)[token * a.weight_token + lane * a.weight_slot]);
        }
        const bool there = chosen >= 0 && chosen < a.experts;
        if (there) logit = logit_of(a, token, chosen);
        if constexpr (ALL || SHARES || SQUARES) all = find_softmax(dx);
        const acc_t slot = slot_gradient(logit, g, there, (acc_t)a.scale, all);
        acc_t common = ALL ? -lanes_sum(slot) : (acc_t)0;
        if constexpr (SHARES) {
            acc_t dot = 0;
#pragma unroll
            for (int i = 0; i < VALUES; i++) dot += dx[i] / all.sum * pull[i];
            common -= lanes_sum(dot);
        }
        if constexpr (SQUARES) common += (acc_t)(dz * ((double)all.max + (double)log_of(all.sum)));
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            dx[i] = ALL || SHARES || SQUARES ? dx[i] / all.sum * (pull[i] + common) : (acc_t)0;
#pragma unroll 1
        for (int j = 0; j < a.slots; j++) {
            const int at_lane = __shfl_sync(0xffffffffu, there ? chosen : -1, j, LANES) - lane * VALUES;
            const acc_t add = __shfl_sync(0xffffffffu, slot, j, LANES);
#pragma unroll
            for (int i = 0; i < VALUES; i++) dx[i] += i == at_lane ? add : (acc_t)0;
        }
        if (active) store_token(a, token, dx);
    }
}
