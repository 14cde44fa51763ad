/* SPDX-License-Identifier: Apache-2.0
 * Segments of rows, normalised or activated and quantised, in one pass: THREADS keep a segment's values in
 * registers from its statistics to its codes. Constants: those of kernels/slices.cuh with ALONG, VECTOR neighbours
 * at once; ITEMS (vectors of a thread), those of quantize_codes.cuh; NORM, GATED, ACT, MAKES (scales of what groups
 * hold, else they are given), GROUP_LANES (neighbouring threads that hold a group's vectors; 0: a group is a segment,
 * or a scale is for all), HAS_RESIDUAL, HAS_SUM, HAS_WEIGHT, HAS_BIAS; types x_t, residual_t, sum_t, weight_t, bias_t,
 * code_t, scale_t (float), real (float). */
#include "kernels/activation.cuh"
#include "kernels/layout.cuh"
#include "kernels/overlap.cuh"
#include "kernels/slices.cuh"
#include "ops/quantize/quantize_codes.cuh"
#include "ops/quantize/rows/quantize_rows_args.h"

/* Loads in flight, of two tensors in 32 bits half as many. */
constexpr int BATCH = ITEMS < (sizeof(x_t) == 4 ? 2 : 4) ? ITEMS : (sizeof(x_t) == 4 ? 2 : 4);

/* A vector of the thread: its first column, and how many of its elements the segment has. */
struct piece {
    s64 column;
    int n;
};

QUANTIZE piece piece_of(const mica_quantize_rows_args &a, s64 first, s64 end, int item)
{
    const s64 column = first + (item * THREADS + thread_in_slice()) * VECTOR, left = end - column;
    return piece{column, left < 0 ? 0 : left < VECTOR ? (int)left : VECTOR};
}

template <typename T> QUANTIZE lanes<T, VECTOR> read(const void *base, s64 at, int n, bool whole)
{
    const T *from = (const T *)base + at;
    if (n == VECTOR) return fetch<VECTOR>(from, whole);
    T e[VECTOR];
    lanes<T, VECTOR> r;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) e[k] = k < n ? from[k] : T();
    memcpy(r.words, e, sizeof e);
    return r;
}

/* Of a column each, where there are such. */
template <typename T, bool GIVEN> QUANTIZE void read_columns(const mica_quantize_rows_args &a, const void *base, const piece &p, float absent, float *v)
{
    if constexpr (GIVEN) {
        unpack(read<T>(base, p.column, p.n, a.whole), v);
    } else {
#pragma unroll
        for (int k = 0; k < VECTOR; k++) v[k] = absent;
    }
}

/* u of the norm, or v of the activation; u goes to sum. Elements past the segment's end are 0. */
QUANTIZE void load_values(const mica_quantize_rows_args &a, const s64 *at, const piece *where, float (*v)[VECTOR])
{
#pragma unroll
    for (int first = 0; first < ITEMS; first += BATCH) {
        lanes<x_t, VECTOR> raw[BATCH], gate[BATCH];
        lanes<residual_t, VECTOR> more[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const piece &p = where[first + j];
            if (!p.n) continue;
            raw[j] = read<x_t>(a.at[ROWS_X], at[ROWS_X] + p.column, p.n, a.whole);
            if (GATED) gate[j] = read<x_t>(a.at[ROWS_X], at[ROWS_X] + a.gate + p.column, p.n, a.whole);
            if (HAS_RESIDUAL) more[j] = read<residual_t>(a.at[ROWS_RESIDUAL], at[ROWS_RESIDUAL] + p.column, p.n, a.whole);
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const piece &p = where[first + j];
            float *u = v[first + j], w[VECTOR];
#pragma unroll
            for (int k = 0; k < VECTOR; k++) u[k] = 0;
            if (!p.n) continue;
            unpack(raw[j], u);
            if constexpr (HAS_RESIDUAL) {
                unpack(more[j], w);
#pragma unroll
                for (int k = 0; k < VECTOR; k++) u[k] += w[k];
            }
            if constexpr (HAS_SUM) {
                sum_t *to = (sum_t *)a.at[ROWS_SUM] + at[ROWS_SUM] + p.column;
                if (p.n == VECTOR) store_elements<sum_t, VECTOR>(to, a.whole, u);
                else
#pragma unroll
                    for (int k = 0; k < VECTOR; k++)
                        if (k < p.n) to[k] = narrow<sum_t>(u[k]);
            }
            if constexpr (NORM == ROWS_NORM_NONE) {
#pragma unroll
                for (int k = 0; k < VECTOR; k++) u[k] = activate<ACT>(u[k], (float)a.act_a, (float)a.act_b);
                if constexpr (GATED) {
                    unpack(gate[j], w);
#pragma unroll
                    for (int k = 0; k < VECTOR; k++) u[k] *= w[k];
                }
            }
#pragma unroll
            for (int k = 0; k < VECTOR; k++) u[k] = k < p.n ? u[k] : 0.f;
        }
    }
}

QUANTIZE void normalise(const mica_quantize_rows_args &a, const piece *where, float (*v)[VECTOR], float *scratch)
{
    const float n = (float)a.columns;
    float mean = 0, squares = 0;
    if (NORM == ROWS_NORM_LAYER) {
#pragma unroll
        for (int j = 0; j < ITEMS; j++)
#pragma unroll
            for (int k = 0; k < VECTOR; k++) mean += v[j][k];
        mean = slice_reduce(mean, scratch, add_op()) / n;
    }
#pragma unroll
    for (int j = 0; j < ITEMS; j++)
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            const float d = v[j][k] - mean;
            squares += k < where[j].n ? d * d : 0.f;
        }
    const float var = slice_reduce(squares, scratch, add_op()) / n;
    const float rstd = 1.f / sqrt_of(var + (float)a.eps) + (var - var); /* squares that overflowed: NaN */
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        if (!where[j].n) continue;
        float w[VECTOR], b[VECTOR];
        read_columns<weight_t, HAS_WEIGHT>(a, a.weight, where[j], 1, w);
        read_columns<bias_t, HAS_BIAS>(a, a.bias, where[j], 0, b);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) v[j][k] = k < where[j].n ? (v[j][k] - mean) * rstd * w[k] + b[k] : 0.f;
    }
}

QUANTIZE float largest(const float *v)
{
    float high = 0;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) high = max_of(high, fabsf(v[k]));
    return high;
}

QUANTIZE void put(const mica_quantize_rows_args &a, const s64 *at, const piece &p, const float *v, const divisor &by)
{
    codes<VECTOR> c;
    if (!p.n) return;
    encode<VECTOR>(v, by, 0, c);
    put_codes<VECTOR>(a.at[ROWS_Y], at[ROWS_Y] + p.column, 1, p.n, a.whole, true, c);
}

/* One scale for all elements of a segment. */
QUANTIZE void put_segment(const mica_quantize_rows_args &a, const s64 *at, const piece *where, const float (*v)[VECTOR], bool inside, float *scratch)
{
    float *const scale = (float *)a.at[ROWS_SCALE] + at[ROWS_SCALE];
    float own;
    if constexpr (MAKES) {
        float high = 0;
#pragma unroll
        for (int j = 0; j < ITEMS; j++) high = max_of(high, largest(v[j]));
        own = scale_of_amax(CODE, false, slice_reduce(high, scratch, max_op()), 1);
        if (inside && thread_in_slice() == 0) *scale = own;
    } else {
        own = *scale;
    }
    const divisor by = divisor_of(own);
#pragma unroll
    for (int j = 0; j < ITEMS; j++) put(a, at, where[j], v[j], by);
}

/* One for each group of LANES vectors. */
constexpr int LANES = GROUP_LANES > 0 ? GROUP_LANES : 1;
QUANTIZE void put_groups(const mica_quantize_rows_args &a, const s64 *at, const piece *where, const float (*v)[VECTOR])
{
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        float *const scale = (float *)a.at[ROWS_SCALE] + at[ROWS_SCALE] + where[j].column / a.group * a.scale_step;
        float own = 1;
        if constexpr (MAKES) {
            float high = largest(v[j]);
#pragma unroll
            for (int lane = 1; lane < LANES; lane *= 2) high = max_of(high, __shfl_xor_sync(0xffffffffu, high, lane));
            own = scale_of_amax(CODE, false, high, 1);
            if (where[j].n && thread_in_slice() % LANES == 0) *scale = own;
        } else if (where[j].n) {
            own = *scale;
        }
        put(a, at, where[j], v[j], divisor_of(own));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS * SLICES) quantize_rows(const __grid_constant__ mica_quantize_rows_args a)
{
    __shared__ float scratch[SLICE_SCRATCH];
    overlap_wait();
    const s64 count = a.rows.count * a.segments;
    for (s64 first = (s64)blockIdx.x * SLICES; first < count; first += (s64)gridDim.x * SLICES) {
        const s64 own = first + slice_in_block();
        const bool inside = own < count;
        const s64 i = inside ? own : first;
        const s64 row = a.segments == 1 ? i : a.rows.fits_int && count < 1ll << 31 ? (s64)((u32)i / (u32)a.segments) : i / a.segments;
        const s64 from = (i - row * a.segments) * a.length;
        const s64 end = !inside ? from : from + a.length < a.columns ? from + a.length : a.columns;
        s64 at[ROWS_PLACES];
        layout_offsets<ROWS_PLACES>(a.rows, row, at);
        piece where[ITEMS];
        float v[ITEMS][VECTOR];
#pragma unroll
        for (int j = 0; j < ITEMS; j++) where[j] = piece_of(a, from, end, j);
        load_values(a, at, where, v);
        if constexpr (NORM != ROWS_NORM_NONE) normalise(a, where, v, scratch);
        if constexpr (GROUP_LANES > 0) put_groups(a, at, where, v);
        else put_segment(a, at, where, v, inside, scratch);
    }
}
