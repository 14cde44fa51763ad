/* SPDX-License-Identifier: Apache-2.0
 * All steps of a layer of recurrent cells: a block has UNITS units of a direction and their rows of R, and
 * keeps these and c, or a gru's h, over all steps. h goes to the other blocks of the direction through
 * memory, with a barrier behind each step. All blocks are resident: it is launched cooperatively. Constants:
 * CELL (mica_rnn_cell), SAVES (what gradients need is kept), CLIP (mica_rnn_clip), those of
 * rnn_persistent.cuh; types x_t, acc_t. */
#include "kernels/math.cuh"
#include "kernels/types.cuh"

#include "ops/rnn/rnn_args.h"
#include "ops/rnn/rnn_length.cuh"
#include "ops/rnn/rnn_persistent.cuh"

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
static_assert(8 * TILES >= GATES * UNITS, "a column for each gate");

/* Of the block: behind the sums and weights, of all sequences in whole tiles. */
struct kept {
    float *bias, *state; /* GATES x UNITS; sequences x UNITS */
    int *lengths;
    x_t *low;
};

struct place {
    long long side, unit; /* the block's first unit */
    int from, end, rows;  /* sequences of the group; how many in whole tiles */
};

/* A cell of this thread, of ROWS from the first on. */
struct cell {
    int row, unit, local; /* sequence, unit of the layer, unit of the block */
    bool there;
};
RNN cell cell_of(const mica_rnn_args &a, const place &p, int first, int i)
{
    const int at = i * THREADS + threadIdx.x, local = at % UNITS, row = first + at / UNITS;
    const int unit = (int)p.unit + local;
    return {row, unit, local, at < ROWS * UNITS && row < p.end && unit < a.units};
}

RNN long long time_of(const mica_rnn_args &a, const place &p, int step) { return p.side ? a.steps - 1 - step : step; }

RNN void read_inputs(const mica_rnn_args &a, const place &p, int step, int first, real (&x)[CELLS][GATES])
{
#pragma unroll
    for (int i = 0; i < CELLS; i++) {
        const cell c = cell_of(a, p, first, i);
        if (!c.there) continue;
        const real *z = (const real *)a.z + p.side * a.z_side + time_of(a, p, step) * a.z_time + c.row * a.z_batch + c.unit;
#pragma unroll
        for (int g = 0; g < GATES; g++) x[i][g] = __ldcs(z + g * a.units);
    }
}

/* The next h, to `next` and to low; gates receives those of each cell. */
RNN void make_cells(const mica_rnn_args &a, const place &p, const char *shared, const kept &k, int step, int first,
                    const real (&x)[CELLS][GATES], real (&gates)[CELLS][4], x_t *next)
{
    const rnn_clip clip = {CLIP, a.bounds.nan, (real)a.bounds.low, (real)a.bounds.high};
#pragma unroll
    for (int i = 0; i < CELLS; i++) {
        const cell c = cell_of(a, p, first, i);
        if (!c.there) continue;
        const int at = (c.row - p.from) * UNITS + c.local;
        gates[i][0] = gates[i][1] = gates[i][2] = gates[i][3] = 0;
        if (time_of(a, p, step) < k.lengths[c.row - p.from]) {
            real r[GATES], made;
#pragma unroll
            for (int g = 0; g < GATES; g++)
                r[g] = summed(shared, c.row - first, g * UNITS + c.local) + k.bias[g * UNITS + c.local];
            if constexpr (CELL == LSTM)
                made = rnn_lstm(x[i], r, clip, &k.state[at], gates[i]);
            else if constexpr (CELL == GRU)
                made = k.state[at] = rnn_gru(x[i], r, clip, k.state[at], gates[i]);
            else
                made = rnn_plain(CELL == RELU, clip, x[i][0] + r[0]);
            k.low[at] = narrow<x_t>(made);
        }
        next[exchanged(c.row, c.unit, (int)a.units)] = k.low[at];
    }
}

/* y, and what gradients need. */
RNN void store_cells(const mica_rnn_args &a, const place &p, const kept &k, int step, int first,
                     const real (&gates)[CELLS][4])
{
    const long long time = time_of(a, p, step), to = p.side * (a.steps + 1) + time + 1 - p.side;
#pragma unroll
    for (int i = 0; i < CELLS; i++) {
        const cell c = cell_of(a, p, first, i);
        if (!c.there) continue;
        const int at = (c.row - p.from) * UNITS + c.local;
        const x_t low = k.low[at];
        x_t *y = (x_t *)a.y + p.side * a.y_side + time * a.y_time + c.row * a.y_batch + c.unit * a.y_unit;
        *y = time < k.lengths[c.row - p.from] ? low : narrow<x_t>((real)0);
        if constexpr (SAVES) {
            const long long each = (to * a.batch + c.row) * a.units + c.unit;
            ((x_t *)a.states)[each] = low;
            if constexpr (CELL == LSTM) ((real *)a.cells)[each] = k.state[at];
            if constexpr (GATES > 1) {
                real *g = (real *)a.gates + ((p.side * a.steps + time) * a.batch + c.row) * 4 * a.units + c.unit;
#pragma unroll
                for (int n = 0; n < 4; n++) g[n * a.units] = gates[i][n];
            }
        }
    }
}

/* The states to begin with, biases and lengths, to where they stay. */
RNN void begin(const mica_rnn_args &a, const place &p, const kept &k, x_t *buffer)
{
    for (int i = threadIdx.x; i < GATES * UNITS; i += THREADS) {
        const long long unit = p.unit + i % UNITS;
        const x_t *bias = (const x_t *)a.bias + p.side * a.bias_side + i / UNITS * a.units + unit;
        k.bias[i] = a.bias && unit < a.units ? widen<real>(*bias) : 0;
    }
    for (int row = threadIdx.x; row < p.end - p.from; row += THREADS) {
        const long long length = rnn_length(a, p.from + row);
        k.lengths[row] = length < 0 ? 0 : length < a.steps ? (int)length : (int)a.steps;
    }
    for (int i = threadIdx.x; i < p.rows * UNITS; i += THREADS) {
        const long long row = p.from + i / UNITS, unit = p.unit + i % UNITS;
        if (row >= p.end || unit >= a.units) continue;
        k.low[i] = ((const x_t *)a.low)[(p.side * a.batch + row) * a.units + unit];
        buffer[exchanged((int)row, (int)unit, (int)a.units)] = k.low[i];
        if constexpr (GATES > 1) k.state[i] = ((const real *)a.state)[(p.side * a.batch + row) * a.units + unit];
        if constexpr (SAVES) {
            const long long time = p.side ? a.steps : 0, at = ((p.side * (a.steps + 1) + time) * a.batch + row) * a.units;
            ((x_t *)a.states)[at + unit] = k.low[i];
            if constexpr (CELL == LSTM) ((real *)a.cells)[at + unit] = k.state[i];
        }
    }
}

RNN void finish(const mica_rnn_args &a, const place &p, const kept &k)
{
    for (int i = threadIdx.x; i < p.rows * UNITS; i += THREADS) {
        const long long row = p.from + i / UNITS, unit = p.unit + i % UNITS;
        const long long at = (p.side * a.batch + row) * a.units + unit;
        if (row >= p.end || unit >= a.units) continue;
        ((x_t *)a.low)[at] = k.low[i];
        if constexpr (GATES > 1) ((real *)a.state)[at] = k.state[i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) rnn_persistent(const __grid_constant__ mica_rnn_persistent_args all)
{
    extern __shared__ __align__(16) char shared[];
    const mica_rnn_args &a = all.step;
    const mica_rnn_exchange &e = all.exchange;
    const int set = (int)blockIdx.x / e.blocks, group = set % e.groups, side = e.first + set / e.groups;
    const int from = group * e.rows, end = min((int)a.batch, from + e.rows);
    const place p = {side, (int)blockIdx.x % e.blocks * UNITS, from, end, (end - from + ROWS - 1) / ROWS * ROWS};
    char *own = shared + SUMS_BYTES + WEIGHTS_BYTES;
    kept k;
    k.state = (float *)own;
    k.bias = k.state + p.rows * UNITS;
    k.lengths = (int *)(k.bias + GATES * UNITS);
    k.low = (x_t *)(k.lengths + p.rows);

    product w;
    const x_t *r = (const x_t *)e.weights + side * e.weights_side;
    const bool aligned = (u64)r % 16 == 0;
    load_weights(w, shared, [&](int column, int at, u32(&words)[4]) {
        const long long gate = column / UNITS, unit = p.unit + column % UNITS;
        words[0] = words[1] = words[2] = words[3] = 0;
        if (gate >= GATES || unit >= a.units || at >= a.units) return;
        const x_t *from = r + (gate * a.units + unit) * a.units + at;
        if (aligned) {
            const uint4 v = *(const uint4 *)from;
            words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) words[i] = from[2 * i].bits | (u32)from[2 * i + 1].bits << 16;
        }
    });

    x_t *buffers = (x_t *)e.exchange + side * e.side;
    begin(a, p, k, buffers);
    real x[CELLS][GATES] = {}, gates[CELLS][4];
    read_inputs(a, p, 0, p.from, x);
    __syncthreads();
    int *arrived = e.arrived + side * e.groups + group;
    grid_arrive(arrived);
    grid_wait(arrived, e.blocks);
    for (int step = 0; step < a.steps; step++) {
        const x_t *now = buffers + step % 2 * e.apart;
        x_t *next = buffers + (step + 1) % 2 * e.apart;
        const bool last_step = step + 1 == a.steps;
        for (int row = p.from; row < p.from + p.rows; row += ROWS) {
            multiply(w, shared, now, row, p.end, (int)e.width);
            __syncthreads();
            make_cells(a, p, shared, k, step, row, x, gates, next);
            __syncthreads();
            const bool last_row = row + ROWS == p.from + p.rows;
            if (last_row && !last_step) grid_arrive(arrived);
            store_cells(a, p, k, step, row, gates);
            if (!last_row || !last_step) read_inputs(a, p, last_row ? step + 1 : step, last_row ? p.from : row + ROWS, x);
        }
        if (!last_step) grid_wait(arrived, (step + 2) * e.blocks);
    }
    finish(a, p, k);
}
