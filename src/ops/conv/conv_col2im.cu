/* SPDX-License-Identifier: Apache-2.0
 * An image from its matrix (col2im): each element is the sum of what the taps that reach its pixel have
 * for its channel, in the order of the taps, then alpha, beta and the epilogue. A thread makes VECTOR
 * neighbours along a row of the image: channels of one pixel (ONE_PIXEL), or pixels and channels counted
 * together. Other constants: those of conv_device.cuh (left_t is the matrix' type); BLOCK; TAP_FAST: in
 * the matrix taps of one channel are neighbours, else channels of one tap; C_FAST: along a row of the
 * image channels are counted first, else pixels. */
#include "cuda/device/overlap.cuh"
#include "cuda/device/vector.cuh"
#include "ops/conv/conv_device.cuh"
#include "ops/conv/conv_col2im_args.h"

static_assert(DGRAD, "gradients of the image");
static_assert(VECTOR == 1 || C_FAST, "neighbours in memory");
static_assert(!ONE_PIXEL || VECTOR == 1 || !TAP_FAST, "neighbours in the matrix");

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

/* Along axis d, from the first tap on. */
template <typename F> __device__ __forceinline__ void each_tap(const mica_conv_geometry &g, int d, reach r, F run)
{
    const coord_t taps = (coord_t)g.tap[d], size = (coord_t)g.out[d];
    for (; r.tap < taps && r.at >= 0; r.tap += (coord_t)g.stride[d], r.at -= (coord_t)g.dilation[d])
        if (r.at < size) run(r.tap, r.at);
}

/* sum += the matrix of this batch at all taps, of N channels. */
template <int N>
__device__ __forceinline__ void add_taps(const conv_col2im_args &a, const left_t *matrix, const reach (&r)[3],
                                         long long batch, long long c, acc_t *sum)
{
    const mica_conv_geometry &g = a.g;
    each_tap(g, 0, r[0], [&](coord_t t0, coord_t q0) {
        each_tap(g, 1, r[1], [&](coord_t t1, coord_t q1) {
            const long long line = ((batch * g.out[0] + q0) * g.out[1] + q1) * g.out[2];
            const long long taps = (t0 * g.tap[1] + t1) * g.tap[2];
            each_tap(g, 2, r[2], [&](coord_t t2, coord_t q2) {
                const long long tap = taps + t2, pair = TAP_FAST ? c * a.taps + tap : tap * g.c + c;
                left_t v[N];
                load_vector<N>(matrix + (line + q2) * a.pairs + pair, v);
#pragma unroll
                for (int i = 0; i < N; i++) sum[i] += widen<acc_t>(v[i]);
            });
        });
    });
}

extern "C" __global__ void __launch_bounds__(BLOCK) conv_col2im(const conv_col2im_args a)
{
    overlap_wait();
    const mica_conv_geometry &g = a.g;
    const long long step = (long long)gridDim.x * BLOCK;
    for (long long item = blockIdx.x * (long long)BLOCK + threadIdx.x; item < a.items; item += step) {
        const long long line = divide(item, a.pieces), element = (item - line * a.pieces) * VECTOR;
        const long long planes = divide(line, g.in[1]), y = line - planes * g.in[1];
        const long long images = divide(planes, g.in[0]), z = planes - images * g.in[0];
        const long long group = divide(images, g.n), n = images - group * g.n;
        const long long slow = divide(element, C_FAST ? g.c : g.in[2]);
        const long long fast = element - slow * (C_FAST ? g.c : g.in[2]);
        long long x = C_FAST ? slow : fast, c = C_FAST ? fast : slow;
        const left_t *matrix = (const left_t *)a.matrix + group * a.rows * a.pairs;
        out_t *to = (out_t *)a.image + group * g.a.g + n * g.a.n + z * g.a.s[0] + y * g.a.s[1] + x * g.a.s[2] + c * g.a.c;
        long long residual = group * g.residual.g + n * g.residual.n + z * g.residual.s[0] + y * g.residual.s[1];
        reach r[3] = {find_reach(g, 0, z), find_reach(g, 1, y), find_reach(g, 2, x)};
        acc_t sum[VECTOR] = {};
        out_t v[VECTOR] = {};
        if (a.beta != 0) load_some<VECTOR>(to, v, VECTOR, a.whole);
        if constexpr (ONE_PIXEL) add_taps<VECTOR>(a, matrix, r, n, c, sum);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            if constexpr (!ONE_PIXEL) add_taps<1>(a, matrix, r, n, c, sum + i);
            fin_t f = (fin_t)sum[i] * (fin_t)a.alpha;
            if (a.beta != 0) f += (fin_t)a.beta * widen<fin_t>(v[i]);
            v[i] = narrow<out_t>(epilogue(a.epilogue, f, group * g.c + c, residual + x * g.residual.s[2] + c * g.residual.c));
            if (++c < g.c || ONE_PIXEL || i + 1 == VECTOR) continue;
            c = 0;
            r[2] = find_reach(g, 2, ++x);
        }
        store_some<VECTOR>(to, v, VECTOR, a.whole);
    }
}
