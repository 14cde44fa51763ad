/* SPDX-License-Identifier: Apache-2.0
 * A step of recurrent cells, a unit of a sequence per thread. Constants: CELL (mica_rnn_cell), PHASE (RNN_WHOLE,
 * ...), SAVES (what gradients need is kept), CLIP (mica_rnn_clip), PEEPHOLES (whether gates see c), BLOCK; types
 * x_t, acc_t. */
#include "kernels/math.cuh"
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"

#include "ops/rnn/rnn_args.h"
#include "ops/rnn/rnn_length.cuh"

#define RNN __device__ __forceinline__
typedef acc_t real;
RNN real sigmoid_of(real v)
{
    const real e = exp_of(-abs_of(v)); /* of a large |v| exp(|v|) has no place in f32 */
    return (v < 0 ? e : 1) / (1 + e);
}
#include "ops/rnn/rnn_body.h"

enum { TANH, RELU, LSTM, GRU };
constexpr int GATES = CELL == LSTM ? 4 : CELL == GRU ? 3 : 1;
constexpr bool FIRST = PHASE == RNN_FIRST, SECOND = PHASE == RNN_SECOND;
constexpr int FROM = SECOND ? 2 : 0, TO = CELL == GRU && FIRST ? 2 : GATES;          /* gates */
constexpr int MULTIPLIED = CELL == GRU && PHASE != RNN_WHOLE ? 2 : GATES;            /* gates in a.rec */
constexpr bool PROJECTS = CELL == LSTM && SECOND, KEEPS_C = CELL == LSTM && !SECOND; /* h alone; c */

RNN rnn_clip clip_of(const mica_rnn_args &a) { return {CLIP, a.bounds.nan, (real)a.bounds.low, (real)a.bounds.high}; }

/* Pre-activations from the input and from the state. */
RNN void read_gates(const mica_rnn_args &a, long long side, long long b, long long time, long long unit, real *x,
                    real *r)
{
    const real *z = (const real *)a.z + side * a.z_side + time * a.z_time + b * a.z_batch + unit;
    const long long row = side * a.batch + b;
#pragma unroll
    for (int g = FROM; g < TO; g++) {
        x[g] = z[g * a.units];
        r[g] = SECOND ? ((const real *)a.rec_new)[row * a.units + unit]
                                : ((const real *)a.rec)[(row * MULTIPLIED + g) * a.units + unit];
        if (a.bias) r[g] += widen<real>(((const x_t *)a.bias)[side * a.bias_side + g * a.units + unit]);
    }
}

RNN void read_peepholes(const mica_rnn_args &a, long long side, long long unit, real *p)
{
#pragma unroll
    for (int k = 0; k < 3; k++) p[k] = widen<real>(((const x_t *)a.peepholes)[(side * 3 + k) * a.units + unit]);
}

RNN real step_of(const mica_rnn_args &a, long long row, long long unit, const real *x, const real *r, real *gates)
{
    real *state = (real *)a.state + row * a.units + unit;
    real *kept = (real *)a.rec + (row * MULTIPLIED + 1) * a.units + unit;
    const rnn_clip clip = clip_of(a);
    if constexpr (CELL == LSTM) {
        real c = *state;
        real h;
        if constexpr (PEEPHOLES) {
            real p[3];
            read_peepholes(a, row / a.batch, unit, p);
            h = rnn_lstm_peeping(x, r, p, clip, &c, gates);
        } else {
            h = rnn_lstm(x, r, clip, &c, gates);
        }
        *state = c;
        return h;
    } else if constexpr (FIRST) {
        *kept = gates[1] = sigmoid_of(rnn_gate(x[1] + r[1], clip));
        gates[0] = sigmoid_of(rnn_gate(x[0] + r[0], clip));
        return gates[0] * *state;
    } else if constexpr (SECOND) {
        const real n = tanh_of(rnn_gate(x[2] + r[2], clip));
        gates[2] = n, gates[3] = r[2];
        return *state = n + *kept * (*state - n);
    } else if constexpr (CELL == GRU) {
        return *state = rnn_gru(x, r, clip, *state, gates);
    } else {
        return rnn_plain(CELL == RELU, clip, x[0] + r[0]);
    }
}

/* h and c around the step, gates and what a second product takes: these are 0 behind the end of a sequence. */
RNN void save(const mica_rnn_args &a, long long side, long long b, long long time, long long unit, x_t before, x_t after,
              real c_before, const real *gates)
{
    const long long each = a.batch * a.units, place = b * a.units + unit;
    const long long from = side * (a.steps + 1) + time + side, to = side * (a.steps + 1) + time + 1 - side;
    if constexpr (!FIRST) {
        x_t *states = (x_t *)a.states + place;
        if (a.step == 0) states[from * each] = before;
        states[to * each] = after;
    } else {
        ((x_t *)a.inner)[(side * a.steps + time) * each + place] = after;
    }
    if constexpr (KEEPS_C) {
        real *cells = (real *)a.cells + place;
        if (a.step == 0) cells[from * each] = c_before;
        cells[to * each] = ((const real *)a.state)[side * each + place];
    }
    if constexpr (GATES > 1 && !PROJECTS) {
        real *to_gates = (real *)a.gates + ((side * a.steps + time) * a.batch + b) * 4 * a.units + unit;
#pragma unroll
        for (int g = FROM; g < (TO == 2 ? 2 : 4); g++) to_gates[g * a.units] = gates[g];
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) rnn_cell(const __grid_constant__ mica_rnn_args a)
{
    overlap_wait();
    const long long count = a.sides * a.batch * a.units;
    for (long long i = blockIdx.x * (long long)BLOCK + threadIdx.x; i < count; i += gridDim.x * (long long)BLOCK) {
        const long long row = i / a.units, unit = i - row * a.units, side = row / a.batch, b = row - side * a.batch;
        const long long time = side ? a.steps - 1 - a.step : a.step;
        const bool live = time < rnn_length(a, b);
        real made = 0, gates[4] = {}, c_before = 0;
        x_t before = {};
        if constexpr (SAVES) {
            if (!FIRST) before = ((const x_t *)a.low)[i];
            if (KEEPS_C) c_before = ((const real *)a.state)[i];
        }
        if constexpr (PROJECTS) {
            if (live) made = ((const real *)a.rec_new)[i];
        } else if (live) {
            real x[4], r[4];
            read_gates(a, side, b, time, unit, x, r);
            made = step_of(a, row, unit, x, r, gates);
        }
        const x_t low = narrow<x_t>(made);
        if constexpr (FIRST)
            ((x_t *)a.low_made)[i] = low;
        else if (live)
            ((x_t *)a.low)[i] = low;
        if constexpr (SAVES) save(a, side, b, time, unit, before, live || FIRST ? low : before, c_before, gates);
        if constexpr (!FIRST)
            ((x_t *)a.y)[side * a.y_side + time * a.y_time + b * a.y_batch + unit * a.y_unit] = low;
    }
}
