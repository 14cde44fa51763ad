/* SPDX-License-Identifier: Apache-2.0
 * A step of the gradients of recurrent cells, a unit of a sequence per thread. Constants: CELL (mica_rnn_cell), PHASE
 * (RNN_SLOPES, ...), TWICE (a step has a second product), CLIP (mica_rnn_clip), PEEPHOLES (whether gates see c), BLOCK;
 * types x_t, acc_t. */
#include "kernels/math.cuh"
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"

#include "ops/rnn/rnn_args.h"
#include "ops/rnn/rnn_length.cuh"

#define RNN __device__ __forceinline__
typedef acc_t real;
RNN real sigmoid_of(real v) { return v; } /* not used */
#include "ops/rnn/rnn_body.h"

enum { TANH, RELU, LSTM, GRU };
constexpr int GATES = CELL == LSTM ? 4 : CELL == GRU ? 3 : 1;
constexpr bool RESETS = TWICE && CELL == GRU, PROJECTED = TWICE && CELL == LSTM && PHASE == RNN_SLOPES;
constexpr int SLOPES = CELL == GRU && !RESETS ? 4 : GATES, LOW = RESETS ? 2 : GATES; /* of dz, of low */

RNN rnn_clip clip_of(const mica_rnn_slope_args &a)
{
    return {CLIP, a.bounds.nan, (real)a.bounds.low, (real)a.bounds.high};
}

RNN void read_peepholes(const mica_rnn_slope_args &a, long long side, long long unit, real *p)
{
#pragma unroll
    for (int k = 0; k < 3; k++) p[k] = widen<real>(((const x_t *)a.peepholes)[(side * 3 + k) * a.units + unit]);
}

/* dz of a unit, by the gradient of h. */
RNN void slopes(const mica_rnn_slope_args &a, long long side, long long b, long long time, long long unit, real dh,
                real *dz)
{
    const long long each = a.batch * a.units, place = b * a.units + unit, i = side * each + place;
    const long long before = (side * (a.steps + 1) + time + side) * each + place;
    const long long after = (side * (a.steps + 1) + time + 1 - side) * each + place;
    const long long from = ((side * a.steps + time) * a.batch + b) * 4 * a.units + unit;
    real gates[4], *direct = (real *)a.direct + i;
    if constexpr (GATES > 1)
#pragma unroll
        for (int g = 0; g < 4; g++) gates[g] = ((const real *)a.gates)[from + g * a.units];
    if constexpr (!PROJECTED) *direct = 0;
    if constexpr (CELL == LSTM) {
        real dc = ((const real *)a.dc)[i];
        const real c = ((const real *)a.cells)[after], c_before = ((const real *)a.cells)[before];
        if constexpr (PEEPHOLES) {
            real p[3];
            read_peepholes(a, side, unit, p);
            rnn_lstm_peeping_slopes(gates, p, clip_of(a), c, c_before, dh, &dc, dz);
        } else {
            rnn_lstm_slopes(gates, clip_of(a), c, c_before, dh, &dc, dz);
        }
        ((real *)a.dc)[i] = dc;
    } else if constexpr (RESETS) {
        *direct = rnn_gru_before(gates, widen<real>(((const x_t *)a.states)[before]), dh, dz);
    } else if constexpr (CELL == GRU) {
        *direct = rnn_gru_slopes(gates, widen<real>(((const x_t *)a.states)[before]), dh, dz);
    } else {
        dz[0] = rnn_plain_slope(CELL == RELU, widen<real>(((const x_t *)a.states)[after]), dh);
    }
}

/* Of a gru that resets before its product, behind that of dz of n. */
RNN void behind(const mica_rnn_slope_args &a, long long side, long long b, long long time, long long unit, real *dz)
{
    const long long each = a.batch * a.units, place = b * a.units + unit, i = side * each + place;
    const long long before = (side * (a.steps + 1) + time + side) * each + place;
    const long long row = (side * a.steps + time) * a.batch + b;
    const real reset = ((const real *)a.gates)[row * 4 * a.units + unit];
    ((real *)a.direct)[i] +=
        rnn_gru_reset(reset, widen<real>(((const x_t *)a.states)[before]), ((const real *)a.rec_new)[i], dz);
}

extern "C" __global__ void __launch_bounds__(BLOCK) rnn_slopes(const __grid_constant__ mica_rnn_slope_args a)
{
    overlap_wait();
    const long long count = a.sides * a.batch * a.units;
    for (long long i = blockIdx.x * (long long)BLOCK + threadIdx.x; i < count; i += gridDim.x * (long long)BLOCK) {
        const long long row = i / a.units, unit = i - row * a.units, side = row / a.batch, b = row - side * a.batch;
        const long long time = side ? a.steps - 1 - a.step : a.step, later = side ? time - 1 : time + 1;
        const long long length = rnn_length(a, b);
        const bool live = time < length;
        x_t *to = (x_t *)a.dz + ((side * a.steps + time) * a.batch + b) * a.dz_row + unit;
        x_t *low = (x_t *)a.low + row * LOW * a.units + unit;
        real *direct = (real *)a.direct + i, dh, dz[4] = {};
        if constexpr (PHASE == RNN_BEHIND) {
            if (live) behind(a, side, b, time, unit, dz);
            *to = *low = narrow<x_t>(dz[0]);
            continue;
        }
        if constexpr (PROJECTED) {
            dh = ((const real *)a.rec_new)[i];
        } else {
            dh = *direct;
            if (!a.first && later < length) dh += ((const real *)a.rec)[i];
        }
        if constexpr (PHASE == RNN_INITIAL) {
            *direct = dh;
            continue;
        }
        const x_t *y = (const x_t *)a.y + side * a.y_side + time * a.y_time + b * a.y_batch + unit * a.y_unit;
        if constexpr (PHASE == RNN_BEFORE) {
            *direct = live ? 0 : dh;
            *to = ((x_t *)a.low_new)[i] = narrow<x_t>(live ? dh + widen<real>(*y) : (real)0);
            continue;
        }
        if (live)
            slopes(a, side, b, time, unit, PROJECTED ? dh : dh + widen<real>(*y), dz);
        else if (!PROJECTED)
            *direct = dh;
#pragma unroll
        for (int g = RESETS; g < SLOPES; g++) to[g * a.units] = narrow<x_t>(dz[g]);
#pragma unroll
        for (int g = RESETS; g < LOW; g++)
            low[g * a.units] = narrow<x_t>(dz[CELL == GRU && g == 2 ? 3 : g]);
        if constexpr (RESETS) ((x_t *)a.low_new)[i] = narrow<x_t>(dz[2]);
    }
}
