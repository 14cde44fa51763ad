/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of rope and kv_append share. Constants: VEC (columns of a run; a thread has two:
 * of pairs one in each half, or whole pairs in both), INTERLEAVED, SOURCE (0: frequencies, 1: inv_freq,
 * 2: tables), HEADS (rows of heads a thread has in flight at once); types from_t, table_t, acc_t. */
#pragma once
#include "kernels/vector.cuh"
#include "ops/rope/rope_angle_args.h"
#include "ops/rope/rope_args.h"

static_assert(VEC * sizeof(from_t) <= 16, "one access per run");

constexpr int THETA = 0, INVERSE = 1, TABLE = 2;
/* Neighbours that are pairs lie within a run, unless a run is one column. */
constexpr bool WITHIN = INTERLEAVED && VEC > 1;

/* ---- rows of heads ---- */

/* Two runs of N columns of HEADS heads. All are in flight before the first is used, and before it
 * is known what becomes of them. */
template <int N> struct batch {
    lanes<from_t, N> first[HEADS], second[HEADS];
};

/* from: the runs of the batch's first head; heads: how many there are; both: whether they have a
 * second run. */
template <int N>
__device__ __forceinline__ void load_batch(batch<N> &b, const from_t *first, const from_t *second, long long step,
                                           long long heads, bool both, bool aligned)
{
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
        if (i >= heads) break;
        b.first[i] = fetch<N>(first + i * step, aligned);
        if (both) b.second[i] = fetch<N>(second + i * step, aligned);
    }
}

/* ---- blocks ---- */

/* Which group of heads block `block` has, and which of the group's `blocks` it is. Blocks run side by side in the
 * order of their numbers: what follows in memory follows here. */
struct block_place {
    unsigned group, nth;
};

__device__ __forceinline__ block_place place_block(unsigned block, unsigned blocks, unsigned groups, bool by_row)
{
    unsigned outer = block / (by_row ? groups : blocks), inner = block - outer * (by_row ? groups : blocks);
    return by_row ? block_place{inner, outer} : block_place{outer, inner};
}

/* ---- rows ---- */

struct row_place {
    long long b, s, sequence, index; /* sequence -1: none */
};

/* Its sequence is the batch item, unless find_sequence says otherwise. */
__device__ __forceinline__ row_place place_row(long long row, long long rows)
{
    row_place r;
    r.b = r.sequence = (row | rows) >> 32 ? row / rows : (unsigned)row / (unsigned)rows;
    r.s = r.index = row - r.b * rows;
    return r;
}

__device__ __forceinline__ void find_sequence(const rope_source &at, row_place &r)
{
    if (!at.cu) return;
    long long low = -1, high = at.sequences;
    while (high - low > 1) {
        long long middle = low + (high - low) / 2;
        if (__ldg(at.cu + middle * at.cu_n) <= r.s) low = middle;
        else high = middle;
    }
    r.sequence = -1;
    r.index = 0;
    if (low < 0 || r.s >= __ldg(at.cu + (low + 1) * at.cu_n)) return;
    int first = __ldg(at.cu + low * at.cu_n);
    r.sequence = low;
    r.index = r.s - (first > 0 ? first : 0);
}

__device__ __forceinline__ double read_number(const void *p, long long offset, int wide)
{
    return wide ? (double)__ldg((const long long *)p + offset) : (double)__ldg((const int *)p + offset);
}

__device__ __forceinline__ double position_of(const rope_source &at, const row_place &r)
{
    if (at.positions) return read_number(at.positions, r.b * at.positions_b + r.s * at.positions_s, at.wide_positions);
    if (r.sequence < 0) return 0;
    double first = at.start ? read_number(at.start, r.sequence * at.start_n, at.wide_start) : 0;
    return first + (double)r.index;
}

/* ---- columns ---- */

/* Of a unit: its runs' first columns, and the number, in the launch, of the pair that either begins with. */
struct unit {
    long long a, b;
    int pair_a, pair_b;
};

__device__ __forceinline__ unit find_turned(const rope_range &r, long long u)
{
    unit n;
    if constexpr (WITHIN) {
        n.a = 2 * r.first + u * VEC;
        n.b = n.a + r.count;
        n.pair_a = (int)u * (VEC / 2);
        n.pair_b = n.pair_a + (int)(r.count / 2);
    } else {
        n.pair_a = n.pair_b = (int)u * VEC;
        n.a = INTERLEAVED ? 2 * (r.first + u) : r.first + u * VEC;
        n.b = INTERLEAVED ? n.a + 1 : n.a + r.pairs;
    }
    return n;
}

/* Unit u of `units` that copy columns of N from `first` on; its second run may lie behind the last. */
template <int N> __device__ __forceinline__ unit find_copied(long long first, long long units, long long u)
{
    long long a = first + u * N;
    return {a, a + units * N, 0, 0};
}

/* ---- angles ---- */

__device__ __forceinline__ void turn(double rest, unsigned quarters, float &c, float &s)
{
    rope_quadrant_f32((float)rest, quarters, &c, &s);
}
__device__ __forceinline__ void turn(double rest, unsigned quarters, double &c, double &s)
{
    rope_quadrant_f64(rest, quarters, &c, &s);
}

/* N pairs from `pair` of the launch on. */
template <int N>
__device__ __forceinline__ void find_turns(const rope_source &at, const rope_range &r, const double *frequencies, const double *below,
                                           double position, int pair, acc_t *c, acc_t *s)
{
    if constexpr (SOURCE == TABLE) {
        double last = (double)(at.table_rows - 1);
        long long row = (long long)(position < 0 ? 0 : position > last ? last : position);
        const table_t *cos = (const table_t *)at.cos + row * at.cos_p + (r.first + pair) * at.cos_i;
        const table_t *sin = (const table_t *)at.sin + row * at.sin_p + (r.first + pair) * at.sin_i;
        if (N > 1 && at.tables_aligned) {
            load_elements<table_t, N>(cos, true, c);
            load_elements<table_t, N>(sin, true, s);
        } else {
#pragma unroll
            for (int i = 0; i < N; i++) {
                c[i] = widen<acc_t>(cos[i * at.cos_i]);
                s[i] = widen<acc_t>(sin[i * at.sin_i]);
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            double f = SOURCE == INVERSE ? (double)__ldg(at.inv_freq + (r.first + pair + i) * at.inv_i)
                                         : frequencies[pair + i];
            double rest;
            unsigned quarters = rope_reduce(position, f, SOURCE == THETA ? below[pair + i] : 0, &rest);
            turn(rest, quarters, c[i], s[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        c[i] *= (acc_t)at.factor;
        s[i] *= (acc_t)at.sine_factor;
    }
}

__device__ __forceinline__ void find_unit_turns(const rope_source &at, const rope_range &r, const double *frequencies, const double *below,
                                                double position, const unit &u, acc_t *c, acc_t *s)
{
    if constexpr (WITHIN) {
        find_turns<VEC / 2>(at, r, frequencies, below, position, u.pair_a, c, s);
        find_turns<VEC / 2>(at, r, frequencies, below, position, u.pair_b, c + VEC / 2, s + VEC / 2);
    } else {
        find_turns<VEC>(at, r, frequencies, below, position, u.pair_a, c, s);
    }
}

__device__ __forceinline__ void turn_pair(acc_t &a, acc_t &b, acc_t c, acc_t s)
{
    acc_t first = a * c - b * s;
    b = b * c + a * s;
    a = first;
}

__device__ __forceinline__ void turn_unit(acc_t *a, acc_t *b, const acc_t *c, const acc_t *s)
{
    if constexpr (WITHIN) {
#pragma unroll
        for (int i = 0; i < VEC / 2; i++) {
            turn_pair(a[2 * i], a[2 * i + 1], c[i], s[i]);
            turn_pair(b[2 * i], b[2 * i + 1], c[VEC / 2 + i], s[VEC / 2 + i]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < VEC; i++) turn_pair(a[i], b[i], c[i], s[i]);
    }
}
