/* SPDX-License-Identifier: Apache-2.0
 * Targets with class weights or probabilities, of logits or log-probabilities. The target of a class is
 *   weight (by p + uniform), and the label's share of it on top.
 * Constants: those of kernels/slices.cuh, LOGITS, PROBABILITIES, WEIGHTED, SMOOTH, IGNORE. Types x_t,
 * label_t, target_t, weight_t, acc_t, counted_t. */
#pragma once
#include "kernels/slices.cuh"
#include "ops/cross_entropy/cross_entropy.cuh"

/* Whether classes besides the label's have a target. */
constexpr bool SPREAD = PROBABILITIES || SMOOTH;

/* A row's label, and what its class has on top. */
struct labelled {
    long long label; /* -1: there is none */
    bool ignored, bad;
    acc_t share;
};

__device__ __forceinline__ labelled find_label(const mica_cross_entropy_args &args, long long offset)
{
    labelled l = {-1, false, false, (acc_t)0};
    if constexpr (PROBABILITIES) return l;
    l.label = label_at(args, offset);
    l.ignored = is_ignored(args, l.label);
    l.bad = !l.ignored && (l.label < 0 || l.label >= args.classes);
    if (!l.ignored && !l.bad) l.share = (acc_t)(1 - args.smoothing) * weight_of<acc_t>(args, l.label);
    return l;
}

/* Of N neighbours from position i of a slice on, of which p has the probabilities; 0 outside of it. */
template <int N>
__device__ __forceinline__ void make_target(const mica_cross_entropy_args &args, const extent &e, long long i,
                                            const acc_t *p, acc_t *target)
{
    const acc_t by = (acc_t)(1 - args.smoothing);
    const acc_t uniform = SMOOTH ? (acc_t)(args.smoothing / (double)args.classes) : (acc_t)0;
#pragma unroll
    for (int k = 0; k < N; k++) {
        const bool inside = i + k >= e.lo && i + k < e.hi;
        const acc_t share = PROBABILITIES ? by * p[k] + uniform : uniform;
        target[k] = inside ? share * weight_of<acc_t>(args, i + k - e.lo) : (acc_t)0;
    }
}

/* What a first look at a row leaves: maximum and sum of exp(x - max) of logits, of the target that all
 * classes have its sum, and of its products with x - max. */
struct looked {
    running<acc_t> r;
    acc_t total, dot;
};

/* Products with elements of -inf alone are with those themselves. */
__device__ __forceinline__ acc_t about(acc_t max) { return max == negative_infinity<acc_t>() ? (acc_t)0 : max; }
