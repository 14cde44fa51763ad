/* SPDX-License-Identifier: Apache-2.0
 * Attention backward on Hopper, before the products: of each row lse and the sum of dout out, where TMA
 * can fetch them. A row that saw no key gets lse infinity: all its weights are 0. Also clears what
 * counts the blocks of the products.
 *
 * Prologue: LANES (threads of a row, 8 columns each), types out_t dout_t. */
#include "kernels/overlap.cuh"
#include "kernels/vector.cuh"
#include "ops/attention/backward_sm90/backward_args.h"

constexpr int THREADS = 256, WIDTH = 8;
static_assert(LANES <= 32 && (LANES & (LANES - 1)) == 0, "a row lies in a warp");

template <typename T>
__device__ __forceinline__ void load_row(float (&v)[WIDTH], const void *data, const long long *stride, s64 batch,
                                         s64 head, s64 row, int column, int columns, bool whole)
{
    const T *from = (const T *)data + batch * stride[0] + head * stride[1] + row * stride[2];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) v[i] = 0;
    if (whole) {
        if (column < columns) load_elements<T, WIDTH>(from + column, true, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        if (column + i < columns) v[i] = widen<float>(from[(column + i) * stride[3]]);
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_sm90_stats(const attention_sm90_stats_args a)
{
    overlap_wait();
    const int lane = (int)threadIdx.x % LANES;
    const s64 at = (s64)blockIdx.x * (THREADS / LANES) + (int)threadIdx.x / LANES;
    for (s64 i = (s64)blockIdx.x * THREADS + threadIdx.x; i < a.clears; i += (s64)gridDim.x * THREADS) a.cleared[i] = 0;
    const s64 place = min(at, a.count - 1), line = place / a.rows, row = place - line * a.rows;
    const s64 batch = line / a.heads, head = line - batch * a.heads;
    float x[WIDTH], y[WIDTH], sum = 0;
    load_row<out_t>(x, a.out, a.out_stride, batch, head, row, lane * WIDTH, a.columns, a.whole);
    load_row<dout_t>(y, a.dout, a.dout_stride, batch, head, row, lane * WIDTH, a.columns, a.whole);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum += x[i] * y[i];
#pragma unroll
    for (int by = LANES / 2; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (lane != 0 || at >= a.count) return;
    const float lse = a.lse[batch * a.lse_stride[0] + head * a.lse_stride[1] + row * a.lse_stride[2]];
    const bool none = lse == -INFINITY_F;
    float *to = a.to + line * 2 * a.pitch + row;
    to[0] = none ? INFINITY_F : lse;
    to[a.pitch] = none ? 0 : sum;
}
