/* SPDX-License-Identifier: Apache-2.0
 * Transforms of tiles in shared memory, sizes being run-time numbers. Rows of 2 * half real numbers are
 * rows of half complex ones, which become half + 1 values of a spectrum; then columns, if there are several
 * rows. Radix 4 in place, without a permutation: spectra stay in the order of reversed bits, in which those
 * of images and filters agree. Constants: BLOCK; type sum_t (float or double). */
#pragma once
#include "kernels/types.cuh"
#include "ops/conv/fft/fft_args.h"

struct __align__(2 * sizeof(sum_t)) point {
    sum_t re, im;
};

/* ---- roots of unity, from the compiler ---- */

constexpr int TURN = 4096, QUARTER = TURN / 4;

/* exp(-2 pi i j / TURN) for three quarters of a turn */
struct root_table {
    point value[3 * QUARTER];
};

/* A sine or cosine by its series: angles are an eighth of a turn at most. */
__host__ __device__ constexpr double series(double first, double x2, int n)
{
    double sum = first, term = first;
    for (int k = n; k < n + 18; k += 2) {
        term *= -x2 / (double)(k * (k + 1));
        sum += term;
    }
    return sum;
}

__host__ __device__ constexpr root_table make_roots()
{
    root_table t = {};
    for (int j = 0; j <= QUARTER / 2; j++) {
        const double angle = 6.283185307179586476925286766559 * j / TURN;
        const sum_t c = (sum_t)series(1, angle * angle, 1), s = (sum_t)series(angle, angle * angle, 2);
        t.value[j] = {c, -s};
        t.value[QUARTER - j] = {s, -c};
        t.value[QUARTER + j] = {-s, -c};
        t.value[2 * QUARTER - j] = {-c, -s};
        t.value[2 * QUARTER + j] = {-c, s};
        if (j > 0) t.value[3 * QUARTER - j] = {-s, c};
    }
    return t;
}

__device__ const root_table ROOTS = make_roots();

__device__ __forceinline__ point root(int j) { return ROOTS.value[j]; }

/* ---- complex numbers ---- */

__device__ __forceinline__ point operator+(point a, point b) { return {a.re + b.re, a.im + b.im}; }
__device__ __forceinline__ point operator-(point a, point b) { return {a.re - b.re, a.im - b.im}; }
__device__ __forceinline__ point operator*(point a, point b)
{
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
__device__ __forceinline__ point conjugate(point a) { return {a.re, -a.im}; }
__device__ __forceinline__ point times_i(point a) { return {-a.im, a.re}; }

/* ---- the tile ---- */

/* Threads that go over every fourth point (or every 16th, ...) meet different banks. */
__device__ __forceinline__ int skewed(int i) { return i + (i >> 2); }

struct shape {
    int rows, half, pitch, signals, tile; /* tile: points of a signal */
};

__device__ __forceinline__ shape shape_of(const conv_fft_args &a)
{
    const int rows = 1 << a.log_rows, half = 1 << a.log_half;
    return {rows, half, half + 1, 1 << a.log_signals, rows * (half + 1)};
}

/* Lines of 2^log points that lie `step` apart; a line begins at line_of(...). */
struct lines {
    int log, count, step;
    bool columns;
};

__device__ __forceinline__ int line_start(const shape &s, const lines &l, int i)
{
    if (!l.columns) return i * s.pitch;
    const int signal = i / s.pitch;
    return signal * s.tile + (i - signal * s.pitch);
}

/* Piece i of all lines' pieces, a line having 2^log_pieces: neighbouring threads on neighbours in memory. */
__device__ __forceinline__ void find_piece(const shape &s, const lines &l, int log_pieces, int i, int &start, int &piece)
{
    int line;
    if (l.columns) {
        piece = i / l.count;
        line = i - piece * l.count;
    } else {
        piece = i & ((1 << log_pieces) - 1);
        line = i >> log_pieces;
    }
    start = line_start(s, l, line);
}

/* Four points in runs of 4 << log_quarter, as fft/cpu/fft_cpu_real.c has it. */
template <bool INVERSE>
__device__ __forceinline__ void step4(point *x, const shape &s, const lines &l, int log_quarter)
{
    const int quarter = 1 << log_quarter, pieces = l.count << (l.log - 2);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < pieces; i += BLOCK) {
        int start, piece;
        find_piece(s, l, l.log - 2, i, start, piece);
        const int j = piece & (quarter - 1), first = (piece >> log_quarter << (log_quarter + 2)) + j;
        point *at[4];
#pragma unroll
        for (int k = 0; k < 4; k++) at[k] = x + skewed(start + (first + k * quarter) * l.step);
        const int turn = j * (TURN / 4 >> log_quarter);
        const point w1 = root(turn), w2 = root(2 * turn), w3 = root(3 * turn);
        if constexpr (!INVERSE) {
            const point ac = *at[0] + *at[2], bd = *at[1] + *at[3];
            const point c = *at[0] - *at[2], d = times_i(*at[1] - *at[3]);
            *at[0] = ac + bd;
            *at[1] = (ac - bd) * w2;
            *at[2] = (c - d) * w1;
            *at[3] = (c + d) * w3;
        } else {
            const point u1 = *at[1] * conjugate(w2), u2 = *at[2] * conjugate(w1), u3 = *at[3] * conjugate(w3);
            const point ac = *at[0] + u1, bd = *at[0] - u1, c = u2 + u3, d = times_i(u2 - u3);
            *at[0] = ac + c;
            *at[1] = bd + d;
            *at[2] = ac - c;
            *at[3] = bd - d;
        }
    }
    __syncthreads();
}

__device__ __forceinline__ void step2(point *x, const shape &s, const lines &l)
{
    const int pieces = l.count << (l.log - 1);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < pieces; i += BLOCK) {
        int start, piece;
        find_piece(s, l, l.log - 1, i, start, piece);
        point *a = x + skewed(start + 2 * piece * l.step), *b = x + skewed(start + (2 * piece + 1) * l.step);
        const point sum = *a + *b;
        *b = *a - *b;
        *a = sum;
    }
    __syncthreads();
}

template <bool INVERSE> __device__ __forceinline__ void transform_lines(point *x, const shape &s, const lines &l)
{
    const bool odd = l.log & 1;
    if constexpr (!INVERSE) {
        for (int log = l.log - 2; log >= 0; log -= 2) step4<false>(x, s, l, log);
        if (odd) step2(x, s, l);
    } else {
        if (odd) step2(x, s, l);
        for (int log = odd; log <= l.log - 2; log += 2) step4<true>(x, s, l, log);
    }
}

/* Between the transform of pairs and (twice) the spectrum of single numbers. */
template <bool INVERSE> __device__ __forceinline__ void split_rows(point *x, const shape &s, int log_half)
{
    const int pairs = s.half / 2, count = s.signals * s.rows * pairs;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < count; i += BLOCK) {
        const int pair = i & (pairs - 1), start = (i >> (log_half - 1)) * s.pitch;
        if (pair == 0) {
            point *first = x + skewed(start), *last = x + skewed(start + s.half), *middle = x + skewed(start + 1);
            if constexpr (!INVERSE) {
                const point v = *first;
                *first = {2 * (v.re + v.im), 0};
                *last = {2 * (v.re - v.im), 0};
            } else {
                *first = {first->re + last->re, first->re - last->re};
            }
            *middle = {2 * middle->re, -2 * middle->im};
            continue;
        }
        const int run = 2 << (31 - __clz(pair)), k = pair + run / 2, other = k ^ (run - 1);
        point *p = x + skewed(start + k), *q = x + skewed(start + other);
        const point w = root((int)(__brev((u32)k) >> (32 - log_half)) * (TURN / 2 >> log_half));
        const point even = *p + conjugate(*q), odd = *p - conjugate(*q);
        const point turned = INVERSE ? odd * point{w.im, w.re} : odd * point{w.im, -w.re};
        *p = even + turned;
        *q = conjugate(even - turned);
    }
    __syncthreads();
}

__device__ __forceinline__ void forward(const conv_fft_args &a, point *x)
{
    const shape s = shape_of(a);
    transform_lines<false>(x, s, {a.log_half, s.signals * s.rows, 1, false});
    split_rows<false>(x, s, a.log_half);
    if (s.rows > 1) transform_lines<false>(x, s, {a.log_rows, s.signals * s.pitch, s.pitch, true});
}

__device__ __forceinline__ void inverse(const conv_fft_args &a, point *x)
{
    const shape s = shape_of(a);
    if (s.rows > 1) transform_lines<true>(x, s, {a.log_rows, s.signals * s.pitch, s.pitch, true});
    split_rows<true>(x, s, a.log_half);
    transform_lines<true>(x, s, {a.log_half, s.signals * s.rows, 1, false});
}

/* ---- which signals ---- */

struct where {
    s64 digit[3]; /* of lane 0 */
    int place[2];
};

__device__ __forceinline__ where block_place(const conv_fft_args &a)
{
    where w;
    u32 i = blockIdx.x, rest = i / a.lane_blocks;
    w.digit[0] = (s64)(i - rest * a.lane_blocks) << a.log_signals;
    i = rest, rest = i / a.blocks[0], w.digit[1] = i - rest * a.blocks[0];
    i = rest, rest = i / a.blocks[1], w.digit[2] = i - rest * a.blocks[1];
    i = rest, rest = i / (u32)a.places[1], w.place[1] = (int)(i - rest * (u32)a.places[1]);
    w.place[0] = (int)rest;
    return w;
}

__device__ __forceinline__ s64 digits_at(const long long (&stride)[3], const where &w)
{
    return w.digit[0] * stride[0] + w.digit[1] * stride[1] + w.digit[2] * stride[2];
}

__device__ __forceinline__ s64 spectrum_at(const conv_fft_args &a, const conv_fft_spectra &p, const where &w)
{
    return digits_at(p.digit, w) + ((s64)w.place[0] * a.places[1] + w.place[1]) * p.place;
}

/* The element at a position, or -1. */
__device__ __forceinline__ int element_at(const conv_fft_tensor &t, int axis, int position)
{
    const int spacing = (int)t.spacing[axis];
    if (position < 0) return -1;
    int e = position;
    if (spacing != 1) {
        e = position / spacing;
        if (e * spacing != position) return -1;
    }
    return e < t.size[axis] ? e : -1;
}

/* Number i of the tile's: lane, row and column. */
struct number_place {
    int lane, row, col;
};

__device__ __forceinline__ number_place find_number(const conv_fft_args &a, const conv_fft_side &side, int i)
{
    const int cols = 2 << a.log_half;
    number_place p;
    if (side.lane_fast) {
        p.lane = i & ((1 << a.log_signals) - 1);
        i >>= a.log_signals;
    }
    p.col = i & (cols - 1);
    i >>= a.log_half + 1;
    p.row = i & ((1 << a.log_rows) - 1);
    if (!side.lane_fast) p.lane = i >> a.log_rows;
    return p;
}

__device__ __forceinline__ sum_t &number_at(point *x, const shape &s, const number_place &p)
{
    return ((sum_t *)(x + skewed(p.lane * s.tile + p.row * s.pitch + p.col / 2)))[p.col & 1];
}

template <typename T>
__device__ __forceinline__ void load_tile(const conv_fft_args &a, const conv_fft_side &side, const where &w, point *x)
{
    const shape s = shape_of(a);
    const bool exists = w.digit[1] < side.limit[1] && w.digit[2] < side.limit[2] && w.place[0] < side.places[0] &&
                        w.place[1] < side.places[1];
    const T *from = (const T *)side.data + side.t.base + digits_at(side.digit, w);
    const int y = side.first[0] + w.place[0] * side.step[0], c = side.first[1] + w.place[1] * side.step[1];
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < s.signals * s.rows * 2 * s.half; i += BLOCK) {
        const number_place p = find_number(a, side, i);
        sum_t v = 0;
        if (exists && w.digit[0] + p.lane < side.limit[0] && p.row < side.take[0] && p.col < side.take[1]) {
            const int row = element_at(side.t, 0, y + p.row), col = element_at(side.t, 1, c + p.col);
            if (row >= 0 && col >= 0) v = widen<sum_t>(from[p.lane * side.digit[0] + row * side.t.s[0] + col * side.t.s[1]]);
        }
        number_at(x, s, p) = v;
    }
    __syncthreads();
}

/* Value i of the signals' spectra: their neighbours are lanes if those lie side by side, else values. */
__device__ __forceinline__ void find_value(const conv_fft_args &a, const conv_fft_spectra &p, const shape &s, int i,
                                           int &lane, int &bin)
{
    if (p.digit[0] == 1) {
        lane = i & (s.signals - 1);
        bin = i >> a.log_signals;
    } else {
        lane = i / s.tile;
        bin = i - lane * s.tile;
    }
}

__device__ __forceinline__ point load_value(const conv_fft_spectra &p, s64 at)
{
    const sum_t *from = (const sum_t *)p.data + at;
    return p.im == 1 ? *(const point *)from : point{from[0], from[p.im]};
}

__device__ __forceinline__ void store_value(const conv_fft_spectra &p, s64 at, point v)
{
    sum_t *to = (sum_t *)p.data + at;
    if (p.im == 1) {
        *(point *)to = v;
        return;
    }
    to[0] = v.re;
    to[p.im] = v.im;
    if (p.turned) {
        to[p.turned] = v.im;
        to[p.turned + p.im] = -v.re;
    }
}
