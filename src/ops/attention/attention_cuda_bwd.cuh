/* SPDX-License-Identifier: Apache-2.0
 * What the generic backward kernels share. Types besides: dout_t, dq_t, dk_t, dv_t, dbias_t, dsinks_t. */
#pragma once
#include "ops/attention/attention_cuda.cuh"

/* One query as the backward pass sees it. */
struct query {
    s64 b, h, row, n, i, diagonal;
    extent keys;
    range see;
    acc_t lse, delta;
    bool none; /* nothing to do: no sequence, or no key */
};

__device__ __forceinline__ query query_at(const mica_attention_args &a, s64 b, s64 h, s64 row)
{
    query r = {b, h, row};
    place p = place_of(a, ATTENTION_CU_Q, ATTENTION_SEQ_Q, a.rows, b, row);
    r.none = p.none;
    if (p.none) return r;
    r.n = p.n;
    r.i = p.i;
    r.keys = keys_of(a, p.n);
    r.diagonal = p.i + (a.bottom_right ? r.keys.count - queries_of(a, p.n).count : 0);
    r.see = range_of(a, r.diagonal, r.keys.count);
    r.lse = *at<acc_t>(a, ATTENTION_LSE, b, h, row);
    r.delta = ((const acc_t *)a.delta)[(b * a.heads + h) * a.rows + row];
    r.none = r.lse == minus_infinity();
    return r;
}

__device__ __forceinline__ bool sees(const mica_attention_args &a, const query &r, s64 j)
{
    return !r.none && j >= r.see.from && j < r.see.to && !is_masked(a, r.n, r.h, r.i, j);
}

/* From the products q k and dout v: the weight as it enters dv, the score's gradient, and that of
 * scale q k. */
struct gradients {
    acc_t w, ds, dx;
};
__device__ __forceinline__ gradients gradients_of(const mica_attention_args &a, const query &r, s64 j, acc_t qk, acc_t dp)
{
    acc_t slope, x = (acc_t)a.scale * qk;
    acc_t p = exp_of(finish_score(a, x, r.n, r.h, r.i, j, r.diagonal, slope) - r.lse);
    acc_t keep = kept(a, r.n * a.heads + r.h, r.i, j);
    acc_t ds = p * (keep * dp - r.delta);
    return {p * keep, ds, (acc_t)a.scale * ds * slope};
}
