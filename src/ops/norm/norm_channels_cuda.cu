/* SPDX-License-Identifier: Apache-2.0
 * Channels that are neighbours in memory: a thread has VECTOR of them and walks rows (pixels), THREADS
 * threads of a block share SLICES vectors. Stages: PARTIAL forms the sums of one part of the rows, APPLY
 * computes elements from known statistics. Channels are batch's sets, or, PER_ELEMENT, the elements of
 * scale and bias of sets that are rows. Constants: those of norm_cuda.cu. */
#include "kernels/slices.cuh"
#include "kernels/activation.cuh"
#include "kernels/overlap.cuh"
#include "ops/norm/norm.cuh"

static_assert(!ALONG && PARTIAL + APPLY == 1, "channels side by side");
static_assert(CHANNEL_SETS != PER_ELEMENT && (CHANNEL_SETS || (BACKWARD && PARTIAL)), "sets, or gradients of scale and bias");
static_assert(!RESIDUAL && !SUM, "only forward passes of layer and rms have them");

constexpr bool ADDED = BEHIND && (BACKWARD ? ACT != ACT_IDENTITY : APPLY); /* the residual is read */
constexpr int ROWS = BACKWARD && APPLY && ADDED ? 1 : BACKWARD || APPLY ? 2 : 4; /* in flight, as registers allow */
constexpr int WIDTH = SLICES * VECTOR; /* channels of a block */

struct walk {
    place base; /* of the first channel */
    long long channel, from, end; /* rows of this thread: from, from + THREADS, ... */
    int lane, row;
};

__device__ __forceinline__ walk find_walk(const norm_args &a, long long block, long long part)
{
    walk w = {};
    w.lane = slice_in_block(), w.row = thread_in_slice();
    w.channel = (block * SLICES + w.lane) * VECTOR;
    if (w.channel >= a.split.kept.count) return w;
    w.base = kept_place(a, w.channel);
    w.from = part * a.piece + w.row;
    long long end = (part + 1) * a.piece;
    w.end = end < a.split.reduced.count ? end : a.split.reduced.count;
    return w;
}

template <typename T> __device__ __forceinline__ const T *at_row(const norm_args &a, int arg, const walk &w, long long row)
{
    return (const T *)a.args[arg] + w.base.at[arg] + row * a.split.reduced.strides[arg][0];
}

/* A number of each channel. */
template <typename T> __device__ __forceinline__ void read_channels(const norm_args &a, int arg, const walk &w, acc_t absent, acc_t *v)
{
    const T *from = (const T *)a.args[arg] + w.base.at[arg];
#pragma unroll
    for (int k = 0; k < VECTOR; k++) v[k] = a.args[arg] ? widen<acc_t>(from[k * a.split.kept.strides[arg][0]]) : absent;
}

/* Of a row that is a set; unused where channels are. */
struct statistics {
    acc_t mean, rstd;
};

__device__ __forceinline__ acc_t read_statistic(const norm_args &a, int arg, const walk &w, long long row, acc_t absent)
{
    return a.args[arg] ? *at_row<stat_t>(a, arg, w, row) : absent;
}

__device__ __forceinline__ bool adds_to_dx(const norm_args &a)
{
    return a.beta != 0 && (!DRESIDUAL || a.args[ARG_dx]);
}

/* Of one row, a thread's part. */
struct elements {
    acc_t x[VECTOR], dy[VECTOR], dx[VECTOR], residual[VECTOR];
};

/* f(row, what is there, s) with several rows in flight; dx only where an APPLY adds to it. */
template <typename F> __device__ __forceinline__ void each_row(const norm_args &a, const walk &w, F f)
{
    for (long long first = w.from; first < w.end; first += ROWS * THREADS) {
        statistics s[ROWS];
        lanes<x_t, VECTOR> x[ROWS];
        lanes<dy_t, VECTOR> dy[ROWS];
        lanes<dx_t, VECTOR> dx[ROWS];
        lanes<residual_t, VECTOR> residual[ROWS];
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            long long row = first + j * THREADS;
            if (row >= w.end) continue;
            x[j] = fetch<VECTOR>(at_row<x_t>(a, ARG_x, w, row), a.whole);
            if constexpr (BACKWARD) dy[j] = fetch<VECTOR>(at_row<dy_t>(a, ARG_dy, w, row), a.whole);
            if constexpr (ADDED) residual[j] = fetch<VECTOR>(at_row<residual_t>(a, ARG_residual, w, row), a.whole);
            if constexpr (BACKWARD && APPLY)
                if (adds_to_dx(a)) dx[j] = fetch<VECTOR>(at_row<dx_t>(a, ARG_dx, w, row), a.whole);
            if constexpr (PER_ELEMENT)
                s[j] = {read_statistic(a, ARG_mean, w, row, (acc_t)0), read_statistic(a, ARG_rstd, w, row, (acc_t)1)};
        }
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            long long row = first + j * THREADS;
            if (row >= w.end) continue;
            elements e;
            unpack(x[j], e.x);
            if constexpr (BACKWARD) unpack(dy[j], e.dy);
            if constexpr (ADDED) unpack(residual[j], e.residual);
            if constexpr (BACKWARD && APPLY)
                if (adds_to_dx(a)) unpack(dx[j], e.dx);
            f(row, e, s[j]);
        }
    }
}

/* ---- forward ---- */

/* Two passes, corrected: see norm_cuda.cu. */
__device__ __forceinline__ void moments(const norm_args &a, const walk &w, long long rows, acc_t *scratch, acc_t *mean, acc_t *squares)
{
    acc_t plain[VECTOR], n = (acc_t)rows;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) mean[k] = 0, plain[k] = 0, squares[k] = 0;
    each_row(a, w, [&](long long, const elements &e, const statistics &) {
#pragma unroll
        for (int k = 0; k < VECTOR; k++) mean[k] += e.x[k];
    });
    slice_reduce_beside<VECTOR>(mean, scratch, add_op());
#pragma unroll
    for (int k = 0; k < VECTOR; k++) mean[k] /= n;
    each_row(a, w, [&](long long, const elements &e, const statistics &) {
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            acc_t d = e.x[k] - mean[k];
            plain[k] += d;
            squares[k] += d * d;
        }
    });
    slice_reduce_beside<VECTOR>(plain, scratch, add_op());
    slice_reduce_beside<VECTOR>(squares, scratch, add_op());
#pragma unroll
    for (int k = 0; k < VECTOR; k++) repair_moments(n, plain[k], mean[k], squares[k]);
}

/* What a thread knows of its channels. */
struct channels {
    acc_t mean[VECTOR], rstd[VECTOR], scale[VECTOR], bias[VECTOR];
};

__device__ __forceinline__ channels read_statistics(const norm_args &a, const walk &w)
{
    channels c;
    read_channels<stat_t>(a, INFER ? ARG_running_mean : ARG_mean, w, (acc_t)0, c.mean);
    read_channels<stat_t>(a, INFER ? ARG_running_var : ARG_rstd, w, (acc_t)1, c.rstd);
    read_channels<scale_t>(a, ARG_scale, w, (acc_t)1, c.scale);
    read_channels<bias_t>(a, ARG_bias, w, (acc_t)0, c.bias);
    if constexpr (INFER)
#pragma unroll
        for (int k = 0; k < VECTOR; k++) c.rstd[k] = reciprocal_root(c.rstd[k], a.eps);
    return c;
}

/* The merged numbers of the first channel and those after it. */
__device__ __forceinline__ void read_known(const norm_args &a, const walk &w, acc_t *first, acc_t *second)
{
    const acc_t *known = (const acc_t *)a.known + w.channel;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        first[k] = INFER ? (acc_t)0 : known[k];
        second[k] = INFER ? (acc_t)0 : known[a.split.kept.count + k];
    }
}

template <typename T> __device__ __forceinline__ void write(const norm_args &a, int arg, const walk &w, long long row, const acc_t *v)
{
    constexpr int MOST = 16 / (int)sizeof(T), N = VECTOR < MOST ? VECTOR : MOST;
    T *to = (T *)at_row<T>(a, arg, w, row);
#pragma unroll
    for (int k = 0; k < VECTOR; k += N) store_elements<T, N>(to + k, a.whole, v + k);
}

__device__ __forceinline__ void apply_forward(const norm_args &a, const walk &w)
{
    channels c = read_statistics(a, w);
    if constexpr (!INFER) read_known(a, w, c.mean, c.rstd);
    each_row(a, w, [&](long long row, const elements &e, const statistics &) {
        acc_t y[VECTOR];
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            y[k] = (e.x[k] - c.mean[k]) * c.rstd[k] * c.scale[k] + c.bias[k];
            if constexpr (ADDED) y[k] += e.residual[k];
            y[k] = activate<ACT>(y[k], (acc_t)a.act_a, (acc_t)a.act_b);
        }
        write<y_t>(a, ARG_y, w, row, y);
    });
}

/* ---- backward ---- */

/* xhat in place of x, and the gradient in front of the activation. */
__device__ __forceinline__ void find_gradient(const norm_args &a, const channels &c, const elements &e, acc_t *xhat, acc_t *g)
{
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        xhat[k] = (e.x[k] - c.mean[k]) * c.rstd[k];
        g[k] = e.dy[k];
        if constexpr (ACT != ACT_IDENTITY) {
            acc_t z = xhat[k] * c.scale[k] + c.bias[k];
            if constexpr (ADDED) z += e.residual[k];
            g[k] *= activate_slope<ACT>(z, (acc_t)a.act_a, (acc_t)a.act_b);
        }
    }
}

__device__ __forceinline__ void gradient_sums(const norm_args &a, const walk &w, acc_t *scratch, acc_t *plain, acc_t *with_xhat)
{
#pragma unroll
    for (int k = 0; k < VECTOR; k++) plain[k] = 0, with_xhat[k] = 0;
    channels c = {};
    if (w.end > 0) c = read_statistics(a, w);
    each_row(a, w, [&](long long row, const elements &e, const statistics &s) {
        acc_t xhat[VECTOR], g[VECTOR];
        if constexpr (PER_ELEMENT)
#pragma unroll
            for (int k = 0; k < VECTOR; k++) c.mean[k] = s.mean, c.rstd[k] = s.rstd;
        find_gradient(a, c, e, xhat, g);
        if constexpr (DRESIDUAL) write<dresidual_t>(a, ARG_dresidual, w, row, g);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            plain[k] += g[k];
            with_xhat[k] += g[k] * xhat[k];
        }
    });
    slice_reduce_beside<VECTOR>(plain, scratch, add_op());
    slice_reduce_beside<VECTOR>(with_xhat, scratch, add_op());
}

__device__ __forceinline__ void apply_backward(const norm_args &a, const walk &w)
{
    channels c = read_statistics(a, w);
    acc_t plain[VECTOR], with_xhat[VECTOR];
    read_known(a, w, plain, with_xhat);
    each_row(a, w, [&](long long row, const elements &e, const statistics &) {
        acc_t xhat[VECTOR], g[VECTOR];
        find_gradient(a, c, e, xhat, g);
        if constexpr (DRESIDUAL) {
            write<dresidual_t>(a, ARG_dresidual, w, row, g);
            if (!a.args[ARG_dx]) return;
        }
#pragma unroll
        for (int k = 0; k < VECTOR; k++)
            g[k] = c.rstd[k] * (g[k] * c.scale[k] - plain[k] - xhat[k] * with_xhat[k]);
        if (a.beta != 0)
#pragma unroll
            for (int k = 0; k < VECTOR; k++) g[k] += (acc_t)a.beta * e.dx[k];
        write<dx_t>(a, ARG_dx, w, row, g);
    });
}

/* Two blocks where their registers suffice for it: the assembler needs more of them before sm_90. */
#if __CUDA_ARCH__ >= 900
constexpr int MOST_BLOCKS = 2;
#else
constexpr int MOST_BLOCKS = 1;
#endif
constexpr int BLOCKS = sizeof(acc_t) == 4 && ACT == ACT_IDENTITY && !ADDED && (BACKWARD ? PER_ELEMENT : sizeof(y_t) == sizeof(x_t)) ? MOST_BLOCKS : 1;

extern "C" __global__ void __launch_bounds__(THREADS *SLICES, BLOCKS) norm_channels(const norm_args a)
{
    overlap_wait();
    long long blocks = (a.split.kept.count + WIDTH - 1) / WIDTH;
    for (long long b = blockIdx.x; b < blocks * a.parts; b += gridDim.x) {
        long long part = b / blocks;
        walk w = find_walk(a, b - part * blocks, part);
        if constexpr (APPLY) {
            if (w.from >= w.end) continue;
            if constexpr (BACKWARD) apply_backward(a, w);
            else apply_forward(a, w);
        } else {
            __shared__ acc_t scratch[VECTOR * SLICE_SCRATCH];
            long long left = a.split.reduced.count - part * a.piece;
            acc_t first[VECTOR], second[VECTOR];
            if constexpr (BACKWARD) gradient_sums(a, w, scratch, first, second);
            else moments(a, w, left < a.piece ? left : a.piece, scratch, first, second);
            if (w.row != 0 || w.channel >= a.split.kept.count) continue;
            acc_t *to = (acc_t *)a.partial + part * 2 * a.split.kept.count + w.channel;
#pragma unroll
            for (int k = 0; k < VECTOR; k++) to[k] = first[k], to[a.split.kept.count + k] = second[k];
        }
    }
}
