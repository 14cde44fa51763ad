/* SPDX-License-Identifier: Apache-2.0
 * quantize and dequantize, any strides: VECTOR neighbours of a row per thread. Constants: QUANTIZES,
 * CODE (of quantize_args.h), VECTOR, WHOLE_BYTES (rows of four bits begin at
 * whole bytes), ONE_SCALE (all of a vector have the same), HAS_ZERO, HAS_GLOBAL, BLOCK;
 * types code_t (u8 for four bits), value_t, scale_t, real (f32 or f64). */
#include "kernels/layout.cuh"
#include "kernels/overlap.cuh"
#include "kernels/vector.cuh"
#include "ops/quantize/quantize.cuh"

constexpr bool NIBBLES = CODE == CODE_E2M1 || CODE == CODE_S4 || CODE == CODE_U4;

QUANTIZE s64 step_of(const mica_quantize_args &a, int place)
{
    return a.layout.strides[place][a.layout.rank - 1] / VECTOR;
}

template <typename T> QUANTIZE void load(const mica_quantize_args &a, int place, s64 at, int n, real *v)
{
    const T *from = (const T *)a.at[place] + at;
    if (a.whole && n == VECTOR) {
        load_elements<T, VECTOR>(from, true, v);
        return;
    }
    const s64 step = step_of(a, place);
#pragma unroll
    for (int e = 0; e < VECTOR; e++) v[e] = e < n ? widen<real>(from[e * step]) : (real)0;
}

/* Integers are within their type's ends by now. */
template <typename T> QUANTIZE T stored(real v)
{
    if constexpr (QUANTIZES && !CODE_IS_FLOAT(CODE)) return (T)(int)v;
    else return narrow<T>(v);
}

template <typename T> QUANTIZE void store(const mica_quantize_args &a, int place, s64 at, int n, const real *v)
{
    T *to = (T *)a.at[place] + at;
    if (a.whole && n == VECTOR) {
        T all[VECTOR];
#pragma unroll
        for (int e = 0; e < VECTOR; e++) all[e] = stored<T>(v[e]);
        store_vector<VECTOR>(to, all);
        return;
    }
    const s64 step = step_of(a, place);
#pragma unroll
    for (int e = 0; e < VECTOR; e++)
        if (e < n) to[e * step] = stored<T>(v[e]);
}

QUANTIZE u32 nibble_at(const mica_quantize_args &a, s64 at)
{
    return ((const u8 *)a.at[MICA_QUANTIZE_PLACE_CODE])[at >> 1] >> (at & 1 ? 4 : 0) & 15;
}

QUANTIZE void load_nibbles(const mica_quantize_args &a, s64 at, int n, real *v)
{
    const s64 step = step_of(a, MICA_QUANTIZE_PLACE_CODE);
    u8 bytes[VECTOR / 2];
    if (a.whole && n == VECTOR) load_vector<VECTOR / 2>((const u8 *)a.at[MICA_QUANTIZE_PLACE_CODE] + (at >> 1), bytes);
#pragma unroll
    for (int e = 0; e < VECTOR; e++) {
        u32 nibble = 0;
        if (a.whole && n == VECTOR) nibble = bytes[e / 2] >> (e & 1 ? 4 : 0) & 15;
        else if (e < n) nibble = nibble_at(a, at + e * step);
        v[e] = (real)value_of(CODE, nibble);
    }
}

QUANTIZE void store_nibbles(const mica_quantize_args &a, s64 at, int n, const real *v)
{
    if constexpr (!WHOLE_BYTES) {
        const s64 step = step_of(a, MICA_QUANTIZE_PLACE_CODE);
#pragma unroll
        for (int e = 0; e < VECTOR; e++)
            if (e < n) put_nibble(a.at[MICA_QUANTIZE_PLACE_CODE], at + e * step, nibble_of(CODE, narrow_float(v[e])));
        return;
    }
    u8 *to = (u8 *)a.at[MICA_QUANTIZE_PLACE_CODE] + (at >> 1);
    u8 bytes[VECTOR / 2];
#pragma unroll
    for (int e = 0; e < VECTOR; e += 2)
        bytes[e / 2] = (u8)(nibble_of(CODE, narrow_float(v[e])) | nibble_of(CODE, narrow_float(v[e + 1])) << 4);
    if (a.whole && n == VECTOR) {
        store_vector<VECTOR / 2>(to, bytes);
        return;
    }
#pragma unroll
    for (int e = 0; e < VECTOR; e += 2) {
        if (e + 1 < n) to[e / 2] = bytes[e / 2];
        else if (e < n) to[e / 2] = (u8)((to[e / 2] & 0xf0) | (bytes[e / 2] & 15));
    }
}

QUANTIZE s64 group_of(const mica_quantize_args &a, s64 column)
{
    return a.layout.fits_int ? (s64)((u32)column / (u32)a.group) : column / a.group;
}

QUANTIZE real scale_at(const mica_quantize_args &a, s64 at, s64 group)
{
    const real scale = widen<real>(((const scale_t *)a.at[MICA_QUANTIZE_PLACE_SCALE])[at + group * a.scale_step]);
    return HAS_GLOBAL ? mul_of(scale, (real)*a.global_scale) : scale;
}

QUANTIZE real zero_at(const mica_quantize_args &a, s64 at, s64 group)
{
    if constexpr (!HAS_ZERO) return 0;
    else {
        const s64 i = at + group * a.zero_step;
        if constexpr (NIBBLES) return (real)value_of(CODE, ((const u8 *)a.at[MICA_QUANTIZE_PLACE_ZERO])[i >> 1] >> (i & 1 ? 4 : 0) & 15);
        else return widen<real>(((const code_t *)a.at[MICA_QUANTIZE_PLACE_ZERO])[i]);
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
    for (int p = 0; p < MICA_QUANTIZE_PLACES; p++) at[p] += a.first[p];
    const s64 from = (a.layout.rank == 1 ? i : i % a.layout.dims[a.layout.rank - 1]) * VECTOR, left = a.columns - from;
    const int n = left < VECTOR ? (int)left : VECTOR;
    real v[VECTOR], scale[VECTOR], zero[VECTOR];
    s64 group = group_of(a, from);
#pragma unroll
    for (int e = 0; e < VECTOR; e++) {
        if (ONE_SCALE && e) {
            scale[e] = scale[0], zero[e] = zero[0];
            continue;
        }
        if (e && e < n) group = group_of(a, from + e);
        scale[e] = scale_at(a, at[MICA_QUANTIZE_PLACE_SCALE], group);
        zero[e] = zero_at(a, at[MICA_QUANTIZE_PLACE_ZERO], group);
    }
    if constexpr (QUANTIZES) {
        load<value_t>(a, MICA_QUANTIZE_PLACE_VALUE, at[MICA_QUANTIZE_PLACE_VALUE], n, v);
#pragma unroll
        for (int e = 0; e < VECTOR; e++) v[e] = coded(CODE, v[e], scale[e], zero[e]);
        if constexpr (NIBBLES) store_nibbles(a, at[MICA_QUANTIZE_PLACE_CODE], n, v);
        else store<code_t>(a, MICA_QUANTIZE_PLACE_CODE, at[MICA_QUANTIZE_PLACE_CODE], n, v);
    } else {
        if constexpr (NIBBLES) load_nibbles(a, at[MICA_QUANTIZE_PLACE_CODE], n, v);
        else load<code_t>(a, MICA_QUANTIZE_PLACE_CODE, at[MICA_QUANTIZE_PLACE_CODE], n, v);
#pragma unroll
        for (int e = 0; e < VECTOR; e++) v[e] = decoded(v[e], scale[e], zero[e]);
        store<value_t>(a, MICA_QUANTIZE_PLACE_VALUE, at[MICA_QUANTIZE_PLACE_VALUE], n, v);
    }
}
