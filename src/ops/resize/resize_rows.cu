/* SPDX-License-Identifier: Apache-2.0
 * Columns side by side and few weights: a thread has OUTS neighbours in a row of the result, in PLANES planes
 * one after the other, whose weights are the same and stay in registers. Floor: the bytes at copy bandwidth,
 * and a load of a column per weight, which answers from the first-level cache. Constants of resize.cuh; OUTS,
 * PLANES, VEC (elements of an access of the result), EXTRAPOLATES, BLOCK. */
#include "ops/resize/resize.cuh"

/* Magnitudes of a cubic row's weights add up to more than 1: halves of it stay below the type's end where the whole, which
 * another axis may make small, would not. */
constexpr acc_t PART = MOST_W > 2 ? (acc_t)0.5 : (acc_t)1;

extern "C" __global__ void __launch_bounds__(BLOCK) resize_rows(const __grid_constant__ mica_resize_args a)
{
    overlap_wait();
    const s64 item = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (item >= a.count) return;
    int_t rest = (int_t)item;
    const int_t w = next_digit<2>(a, rest) * OUTS, h = next_digit<1>(a, rest), d = next_digit<0>(a, rest);
    const int_t columns = (int_t)a.table[2].rows, left = columns - w;
    const weights<MOST_D> deep = load_weights<MOST_D>(a.table[0], d);
    const weights<MOST_H> high = load_weights<MOST_H>(a.table[1], h);
    weights<MOST_W> wide[OUTS];
#pragma unroll
    for (int o = 0; o < OUTS; o++) {
        wide[o] = load_weights<MOST_W>(a.table[2], o < left ? w + o : w);
#pragma unroll
        for (int j = 0; j < MOST_W; j++) wide[o].w[j] *= PART;
    }
    const bool none = (deep.first | high.first) < 0;
#pragma unroll 1
    for (int p = 0; p < PLANES; p++) {
        int_t plane = rest * PLANES + p;
        if (plane >= (int_t)a.planes) return;
        const int_t c = next_digit<3>(a, plane), n = plane;
        const value_t *x = (const value_t *)a.in + n * (int_t)a.from[0] + c * (int_t)a.from[1];
        acc_t sum[OUTS];
#pragma unroll
        for (int o = 0; o < OUTS; o++)
            sum[o] = EXTRAPOLATES && (none || wide[o].first < 0) ? (acc_t)a.extrapolation : (acc_t)0;
#pragma unroll
        for (int i = 0; i < MOST_D; i++)
#pragma unroll
            for (int k = 0; k < MOST_H; k++) {
                const acc_t by = deep.w[i] * high.w[k] * (1 / PART);
                if (none || by == 0) continue;
                const value_t *line = x + (deep.first + i) * (int_t)a.from[2] + (high.first + k) * (int_t)a.from[3];
                value_t v[OUTS][MOST_W];
#pragma unroll
                for (int o = 0; o < OUTS; o++)
#pragma unroll
                    for (int j = 0; j < MOST_W; j++)
                        if (wide[o].w[j] != 0) v[o][j] = line[wide[o].first + j];
#pragma unroll
                for (int o = 0; o < OUTS; o++) {
                    acc_t part = 0;
#pragma unroll
                    for (int j = 0; j < MOST_W; j++)
                        if (wide[o].w[j] != 0) part = fma(wide[o].w[j], widen<acc_t>(v[o][j]), part);
                    sum[o] = fma(by, part, sum[o]);
                }
            }
        value_t out[OUTS];
#pragma unroll
        for (int o = 0; o < OUTS; o++) out[o] = narrow<value_t>(sum[o]);
        value_t *y = (value_t *)a.out + n * (int_t)a.to[0] + c * (int_t)a.to[1] + d * (int_t)a.to[2] + h * (int_t)a.to[3] + w;
        if (left >= OUTS)
#pragma unroll
            for (int o = 0; o < OUTS; o += VEC) store_some<VEC>(y + o, out + o, VEC, a.whole);
        else
            store_some<OUTS>(y, out, (int)left, false);
    }
}
