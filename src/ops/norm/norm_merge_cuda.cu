/* SPDX-License-Identifier: Apache-2.0
 * Merges the parts' sums, one thread per kept index, in the order of the parts and in double: the
 * result does not depend on how blocks ran. Constants: those of norm.cuh; SETS (the kept index is a set:
 * its numbers go on to stage APPLY; else they are gradients of scale and bias), BLOCK. */
#include "cuda/device/overlap.cuh"
#include "ops/norm/norm.cuh"

__device__ __forceinline__ double part_value(const norm_args &a, long long part, int which, long long kept)
{
    return (double)((const acc_t *)a.partial)[(part * 2 + which) * a.split.kept.count + kept];
}

__device__ __forceinline__ double part_size(const norm_args &a, long long part)
{
    long long from = part * a.piece, left = a.split.reduced.count - from;
    return (double)(left < a.piece ? left : a.piece);
}

/* Chan, Golub, LeVeque 1979, all parts at once. */
__device__ __forceinline__ void merge_moments(const norm_args &a, const place &p, long long kept)
{
    double n = (double)a.split.reduced.count, mean = 0, squares = 0;
    for (long long i = 0; i < a.parts; i++) mean += part_size(a, i) * part_value(a, i, 0, kept);
    mean /= n;
    for (long long i = 0; i < a.parts; i++) {
        double apart = part_value(a, i, 0, kept) - mean;
        squares += part_value(a, i, 1, kept) + part_size(a, i) * apart * apart;
    }
    acc_t *known = (acc_t *)a.known + kept;
    known[0] = (acc_t)mean;
    known[a.split.kept.count] = save_statistics(a, p, (acc_t)mean, (acc_t)(squares / n));
}

__device__ __forceinline__ void merge_gradients(const norm_args &a, const place &p, long long kept)
{
    double plain = 0, with_xhat = 0;
    for (long long i = 0; i < a.parts; i++) {
        plain += part_value(a, i, 0, kept);
        with_xhat += part_value(a, i, 1, kept);
    }
    if constexpr (SETS) {
        finish_gradients(a, p, true, plain, with_xhat);
        acc_t *known = (acc_t *)a.known + kept;
        known[0] = (acc_t)plain;
        known[a.split.kept.count] = (acc_t)with_xhat;
    } else {
        save_gradients(a, p, plain, with_xhat);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) norm_merge(const norm_args a)
{
    overlap_wait();
    long long stride = (long long)gridDim.x * BLOCK;
    for (long long kept = (long long)blockIdx.x * BLOCK + threadIdx.x; kept < a.split.kept.count; kept += stride) {
        place p = kept_place(a, kept);
        if constexpr (BACKWARD) merge_gradients(a, p, kept);
        else merge_moments(a, p, kept);
    }
}
