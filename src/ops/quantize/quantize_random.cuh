/* SPDX-License-Identifier: Apache-2.0
 * Codes by chance: of the two neighbours of a quotient the one that the element's word makes it. Constants: those of
 * quantize_codes.cuh; COUNTERS (vectors begin where a counter does, and indices are neighbours). 10 rounds of Philox
 * for 4 elements are about 20 instructions for each, its quotient and neighbour as many. */
#pragma once
#include "ops/quantize/quantize_codes.cuh"
#include "ops/random/random_draw.cuh"

/* Below it quotients by products may lack their last digit, which changes chances of e5m2. */
constexpr float CHANCE_LEAST = 0x1p-40f;

template <int N> QUANTIZE void words_of(const mica_quantize_memory &m, s64 index, s64 step, u32 *w)
{
    draw<N, 4, COUNTERS>(stream_of(m.rng, m.rng_stride), (u64)index, step, w,
                         [](u64, int lane, const u32 *words) { return words[lane]; });
}

template <int N> QUANTIZE void encode_by_chance(const real *v, const divisor &d, real zero, const u32 *w, codes<N> &c)
{
    real q[N];
    if constexpr (same_type<real, float>) {
        if (quotients<N>(v, d, CHANCE_LEAST, q)) {
            constexpr float TOP = (float)CODE_TOP(CODE), LOW = (float)CODE_LOW(CODE);
#pragma unroll
            for (int e = 0; e < N; e++)
                q[e] = CODE_IS_FLOAT(CODE) ? float_by_chance(CODE_DIGITS(CODE), CODE_LEAST(CODE), fminf(fmaxf(q[e], -TOP), TOP), w[e])
                                           : integer_by_chance(LOW, TOP, q[e], zero, w[e]);
            pack<N>(q, c);
            return;
        }
    }
#pragma unroll
    for (int e = 0; e < N; e++) q[e] = coded_by_chance(CODE, v[e], d.scale, zero, w[e]);
    pack<N>(q, c);
}
