/* SPDX-License-Identifier: Apache-2.0
 * Parts of attention, merged: a thread has VEC columns of a row and goes through the parts, first
 * their sums, which threads beside it read too, then their columns. Constants: BLOCK, VEC; types
 * x_t, y_t, stat_t (of the logarithms and of all arithmetic). */
#include "kernels/layout.cuh"
#include "kernels/math.cuh"
#include "kernels/overlap.cuh"
#include "kernels/vector.cuh"
#include "ops/attention_merge/attention_merge_args.h"

static_assert(VEC * sizeof(x_t) <= 16 && VEC * sizeof(y_t) <= 16, "one access per run");

enum { OUTS, LSES, OUT, LSE, TENSORS };

__device__ __forceinline__ void merge(const attention_merge_args &a, long long row, long long unit)
{
    const stat_t nothing = -(stat_t)INFINITY_F;
    long long at[TENSORS];
    layout_offsets<TENSORS>(a.rows, row, at);
    const stat_t *lses = (const stat_t *)a.lses + at[LSES];
    stat_t max = nothing, sum = 0;
    for (long long p = 0; p < a.parts; p++) {
        stat_t l = lses[p * a.lses_part];
        max = l > max ? l : max;
    }
    for (long long p = 0; p < a.parts; p++) {
        stat_t l = lses[p * a.lses_part];
        sum += l == nothing ? (stat_t)0 : exp_of(l - max);
    }
    if (unit == 0 && a.lse) ((stat_t *)a.lse)[at[LSE]] = sum != 0 ? max + log_of(sum) : nothing;
    long long c = unit * VEC;
    if (c >= a.columns) return; /* no columns at all */
    const x_t *from = (const x_t *)a.outs + at[OUTS] + c * a.outs_column;
    stat_t out[VEC] = {};
    /* Parts that saw nothing are read as well, so that several parts are in flight. */
#pragma unroll 4
    for (long long p = 0; p < a.parts; p++) {
        const lanes<x_t, VEC> raw = fetch<VEC>(from + p * a.outs_part, a.aligned);
        const stat_t l = lses[p * a.lses_part], w = exp_of(l - max);
        stat_t x[VEC];
        unpack(raw, x);
#pragma unroll
        for (int i = 0; i < VEC; i++) out[i] = l == nothing ? out[i] : out[i] + w * x[i];
    }
    stat_t scale = sum != 0 ? (stat_t)1 / sum : (stat_t)0;
#pragma unroll
    for (int i = 0; i < VEC; i++) out[i] *= scale;
    store_elements<y_t, VEC>((y_t *)a.out + at[OUT] + c * a.out_column, a.aligned, out);
}

extern "C" __global__ void __launch_bounds__(BLOCK) merge_parts(const attention_merge_args a)
{
    overlap_wait();
    const long long items = a.rows.count * a.units, step = (long long)gridDim.x * BLOCK;
    for (long long i = (long long)blockIdx.x * BLOCK + threadIdx.x; i < items; i += step) {
        long long row = items >> 31 ? i / a.units : (unsigned)i / (unsigned)a.units;
        merge(a, row, i - row * a.units);
    }
}
