/* SPDX-License-Identifier: Apache-2.0
 * An image from its matrix (col2im): each element is the sum of what the taps that reach its pixel have
 * for its channel, in the order of the taps, then alpha, beta and the epilogue. A thread makes VECTOR
 * neighbours along a row of the image: channels of one pixel (ONE_PIXEL), or pixels and channels counted
 * together. Other constants: those of conv_device.cuh (left_t is the matrix' type; COUNT_64 counts the
 * matrix' elements, too); BLOCK; OVERLAPS: more than one tap along an axis may reach a pixel; TAP_FAST: in
 * the matrix taps of one channel are neighbours, else channels of one tap; C_FAST: along a row of the
 * image channels are counted first, else pixels. */
#include "kernels/overlap.cuh"
#include "kernels/vector.cuh"
#include "ops/conv/cuda/conv_device.cuh"
#include "ops/conv/lowered/col2im_args.h"

static_assert(DGRAD, "gradients of the image");
static_assert(VECTOR == 1 || C_FAST, "neighbours in memory");
static_assert(!ONE_PIXEL || VECTOR == 1 || !TAP_FAST, "neighbours in the matrix");

template <bool WIDE> struct counter {
    typedef int type;
};
template <> struct counter<true> {
    typedef long long type;
};
typedef counter<COUNT_64>::type count_t; /* of the matrix' elements */
constexpr int PIXELS = ONE_PIXEL ? 1 : VECTOR;

/* The taps that reach a position along an axis: the first one and where in b that is; the next one is
 * `stride` taps on and `dilation` positions back (one of the two is 1, or there is one tap). */
struct reach {
    coord_t tap, at;
};

__device__ __forceinline__ reach find_reach(const mica_conv_geometry &g, int d, long long position)
{
    const coord_t v = (coord_t)(position + g.pad[d]), s = (coord_t)g.stride[d];
    if (v < 0) return {0, -1};
    const coord_t at = s == 1 ? v : v / s;
    return {(coord_t)(v - at * s), at};
}

/* Of the next position. */
__device__ __forceinline__ reach next_reach(const mica_conv_geometry &g, int d, reach r, long long position)
{
    if (r.at < 0) return find_reach(g, d, position);
    const bool same = r.tap + 1 < (coord_t)g.stride[d];
    return {same ? (coord_t)(r.tap + 1) : (coord_t)0, same ? r.at : (coord_t)(r.at + 1)};
}

/* Along axis d, from the first tap on. */
template <typename F> __device__ __forceinline__ void each_tap(const mica_conv_geometry &g, int d, reach r, F run)
{
    const coord_t taps = (coord_t)g.tap[d], size = (coord_t)g.out[d];
    if constexpr (!OVERLAPS) {
        if (r.tap < taps && r.at >= 0 && r.at < size) run(r.tap, r.at);
    } else {
#pragma unroll 1
        for (; r.tap < taps && r.at >= 0; r.tap += (coord_t)g.stride[d], r.at -= (coord_t)g.dilation[d])
            if (r.at < size) run(r.tap, r.at);
    }
}

/* Pixels and channels of a thread's elements. */
struct place {
    long long x, c;
    reach r; /* along the row */
};

/* sum += the matrix of batch n at all taps. */
__device__ __forceinline__ void add_taps(const conv_col2im_args &a, const left_t *matrix, reach z, reach y, long long n,
                                         const place (&at)[PIXELS], acc_t (&sum)[VECTOR])
{
    const mica_conv_geometry &g = a.g;
    const count_t pairs = (count_t)a.pairs, step = (count_t)(TAP_FAST ? 1 : g.c), channel = TAP_FAST ? (count_t)a.taps : 1;
    each_tap(g, 0, z, [&](coord_t t0, coord_t q0) {
        each_tap(g, 1, y, [&](coord_t t1, coord_t q1) {
            const count_t line = (count_t)(((n * g.out[0] + q0) * g.out[1] + q1) * g.out[2]);
            const count_t tap = (count_t)((t0 * g.tap[1] + t1) * g.tap[2]);
            const left_t *from = matrix + line * pairs + tap * step;
#pragma unroll
            for (int i = 0; i < PIXELS; i++)
                each_tap(g, 2, at[i].r, [&](coord_t t2, coord_t q2) {
                    left_t v[VECTOR / PIXELS];
                    const count_t pair = (count_t)t2 * step + (count_t)at[i].c * channel;
                    load_vector<VECTOR / PIXELS>(from + (count_t)q2 * pairs + pair, v);
#pragma unroll
                    for (int e = 0; e < VECTOR / PIXELS; e++) sum[i + e] += widen<acc_t>(v[e]);
                });
        });
    });
}

/* Where a vector's elements are, from element `first` of the row on. */
__device__ __forceinline__ void find_places(const mica_conv_geometry &g, long long first, place (&at)[PIXELS])
{
    const long long slow = divide(first, C_FAST ? g.c : g.in[2]), fast = first - slow * (C_FAST ? g.c : g.in[2]);
    at[0].x = C_FAST ? slow : fast;
    at[0].c = C_FAST ? fast : slow;
    at[0].r = find_reach(g, 2, at[0].x);
#pragma unroll
    for (int i = 1; i < PIXELS; i++) {
        const bool same = at[i - 1].c + 1 < g.c;
        at[i].x = at[i - 1].x + !same;
        at[i].c = same ? at[i - 1].c + 1 : 0;
        at[i].r = same ? at[i - 1].r : next_reach(g, 2, at[i - 1].r, at[i].x);
    }
}

__device__ __forceinline__ void finish_vector(const conv_col2im_args &a, out_t *to, const place (&at)[PIXELS],
                                              long long channel, long long residual, const acc_t (&sum)[VECTOR])
{
    const mica_conv_strides &s = a.g.residual;
    out_t v[VECTOR] = {};
    if (a.beta != 0) load_some<VECTOR>(to, v, VECTOR, a.whole);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        const long long x = at[ONE_PIXEL ? 0 : i].x, c = ONE_PIXEL ? at[0].c + i : at[ONE_PIXEL ? 0 : i].c;
        fin_t f = (fin_t)sum[i] * (fin_t)a.alpha;
        if (a.beta != 0) f += (fin_t)a.beta * widen<fin_t>(v[i]);
        v[i] = narrow<out_t>(epilogue(a.epilogue, f, channel + c, residual + x * s.s[2] + c * s.c));
    }
    store_some<VECTOR>(to, v, VECTOR, a.whole);
}

/* A warp takes a part of a row at a time: what all of it has in common is found once. */
extern "C" __global__ void __launch_bounds__(BLOCK, 4) conv_col2im(const conv_col2im_args a)
{
    overlap_wait();
    const mica_conv_geometry &g = a.g;
    const long long step = (long long)gridDim.x * (BLOCK / 32);
    const int lane = (int)threadIdx.x % 32;
    for (long long item = blockIdx.x * (long long)(BLOCK / 32) + threadIdx.x / 32; item < a.items; item += step) {
        const long long line = divide(item, a.parts), part = (item - line * a.parts) * MICA_CONV_COL2IM_PART;
        const long long planes = divide(line, g.in[1]), y = line - planes * g.in[1];
        const long long images = divide(planes, g.in[0]), z = planes - images * g.in[0];
        const long long group = divide(images, g.n), n = images - group * g.n;
        const reach rz = find_reach(g, 0, z), ry = find_reach(g, 1, y);
        const left_t *matrix = (const left_t *)a.matrix + group * a.rows * a.pairs;
        out_t *row = (out_t *)a.image + group * g.a.g + n * g.a.n + z * g.a.s[0] + y * g.a.s[1];
        const long long residual = group * g.residual.g + n * g.residual.n + z * g.residual.s[0] + y * g.residual.s[1];
        const long long left = a.pieces - part, count = left < MICA_CONV_COL2IM_PART ? left : MICA_CONV_COL2IM_PART;
        for (int i = lane; i < (int)count; i += 32) {
            place at[PIXELS];
            acc_t sum[VECTOR] = {};
            find_places(g, (part + i) * VECTOR, at);
            add_taps(a, matrix, rz, ry, n, at, sum);
            finish_vector(a, row + at[0].x * g.a.s[2] + at[0].c * g.a.c, at, group * g.c, residual, sum);
        }
    }
}
