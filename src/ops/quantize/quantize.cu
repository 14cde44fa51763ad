/* SPDX-License-Identifier: Apache-2.0
 * quantize and dequantize, any strides: VECTOR neighbours of a row per thread. Constants: QUANTIZES,
 * CODE (of quantize_args.h), VECTOR, WHOLE_BYTES (rows of four bits begin at
 * whole bytes), ONE_SCALE (all of a vector have the same), CHANCE (codes are rounded by chance), HAS_ZERO, BLOCK, and those
 * of quantize_random.cuh;
 * types code_t (u8 for four bits), value_t, scale_t, real (f32 or f64). */
#include "kernels/layout.cuh"
#include "kernels/overlap.cuh"
#include "ops/quantize/quantize_random.cuh"

QUANTIZE s64 step_of(const mica_quantize_args &a, int place)
{
    return a.layout.strides[place][a.layout.rank - 1] / VECTOR;
}

template <typename T> QUANTIZE void load(const mica_quantize_args &a, int place, s64 at, int n, real *v)
{
    const T *from = (const T *)a.memory.at[place] + at;
    if (a.memory.whole && n == VECTOR) {
        load_elements<T, VECTOR>(from, true, v);
        return;
    }
    const s64 step = step_of(a, place);
#pragma unroll
    for (int e = 0; e < VECTOR; e++) v[e] = e < n ? widen<real>(from[e * step]) : (real)0;
}

template <typename T> QUANTIZE void store(const mica_quantize_args &a, int place, s64 at, int n, const real *v)
{
    T *to = (T *)a.memory.at[place] + at;
    if (a.memory.whole && n == VECTOR) {
        store_elements<T, VECTOR>(to, true, v);
        return;
    }
    const s64 step = step_of(a, place);
#pragma unroll
    for (int e = 0; e < VECTOR; e++)
        if (e < n) to[e * step] = narrow<T>(v[e]);
}

QUANTIZE s64 group_of(const mica_quantize_args &a, s64 column)
{
    return a.layout.fits_int ? (s64)((u32)column / (u32)a.group) : column / a.group;
}

QUANTIZE real scale_at(const mica_quantize_args &a, s64 at, s64 group)
{
    const real scale = widen<real>(((const scale_t *)a.memory.at[MICA_QUANTIZE_PLACE_SCALE])[at + group * a.scale_step]);
    return HAS_GLOBAL ? mul_of(scale, (real)*a.memory.global_scale) : scale;
}

QUANTIZE real zero_at(const mica_quantize_args &a, s64 at, s64 group)
{
    if constexpr (!HAS_ZERO) return 0;
    else {
        const s64 i = at + group * a.zero_step;
        if constexpr (NIBBLES) return (real)value_of(CODE, ((const u8 *)a.memory.at[MICA_QUANTIZE_PLACE_ZERO])[i >> 1] >> (i & 1 ? 4 : 0) & 15);
        else return widen<real>(((const code_t *)a.memory.at[MICA_QUANTIZE_PLACE_ZERO])[i]);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) quantize(const __grid_constant__ mica_quantize_args a)
{
    overlap_wait();
    const s64 i = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.layout.count) return;
    s64 at[MICA_QUANTIZE_PLACES];
    layout_offsets<MICA_QUANTIZE_PLACES>(a.layout, i, at);
#pragma unroll
    for (int p = 0; p < MICA_QUANTIZE_PLACES; p++) at[p] += a.memory.first[p];
    const s64 across = a.layout.dims[a.layout.rank - 1];
    const s64 from = (a.layout.rank == 1 ? i : a.layout.fits_int ? (s64)((u32)i % (u32)across) : i % across) * VECTOR, left = a.columns - from;
    const int n = left < VECTOR ? (int)left : VECTOR;
    const s64 code_step = step_of(a, MICA_QUANTIZE_PLACE_CODE);
    void *const base = a.memory.at[MICA_QUANTIZE_PLACE_CODE];
    const s64 code_at = at[MICA_QUANTIZE_PLACE_CODE];
    real v[VECTOR];
    codes<VECTOR> c;
    if constexpr (QUANTIZES) load<value_t>(a, MICA_QUANTIZE_PLACE_VALUE, at[MICA_QUANTIZE_PLACE_VALUE], n, v);
    else get_codes<VECTOR>(base, code_at, code_step, n, a.memory.whole, c);
    s64 group = group_of(a, from);
    u32 w[VECTOR];
    if constexpr (CHANCE) words_of<VECTOR>(a.memory, at[MICA_QUANTIZE_PLACE_INDEX], step_of(a, MICA_QUANTIZE_PLACE_INDEX), w);
    if constexpr (ONE_SCALE) {
        const real scale = scale_at(a, at[MICA_QUANTIZE_PLACE_SCALE], group), zero = zero_at(a, at[MICA_QUANTIZE_PLACE_ZERO], group);
        if constexpr (CHANCE) {
            encode_by_chance<VECTOR>(v, divisor_of(scale), zero, w, c);
        } else if constexpr (QUANTIZES) {
            encode<VECTOR>(v, divisor_of(scale), zero, c);
        } else {
            decode<VECTOR>(c, v);
#pragma unroll
            for (int e = 0; e < VECTOR; e++) v[e] = decoded(v[e], scale, zero);
        }
    } else {
        if constexpr (!QUANTIZES) decode<VECTOR>(c, v);
#pragma unroll
        for (int e = 0; e < VECTOR; e++) {
            if (e && e < n) group = group_of(a, from + e);
            const real scale = scale_at(a, at[MICA_QUANTIZE_PLACE_SCALE], group), zero = zero_at(a, at[MICA_QUANTIZE_PLACE_ZERO], group);
            if constexpr (CHANCE) v[e] = coded_by_chance(CODE, v[e], scale, zero, w[e]);
            else v[e] = QUANTIZES ? coded(CODE, v[e], scale, zero) : decoded(v[e], scale, zero);
        }
        if constexpr (QUANTIZES) pack<VECTOR>(v, c);
    }
    if constexpr (QUANTIZES) put_codes<VECTOR>(base, code_at, code_step, n, a.memory.whole, WHOLE_BYTES, c);
    else store<value_t>(a, MICA_QUANTIZE_PLACE_VALUE, at[MICA_QUANTIZE_PLACE_VALUE], n, v);
}
