/* SPDX-License-Identifier: Apache-2.0
 * All steps of the gradients of a layer of recurrent cells, from the last one to the first: a block has
 * UNITS units of a direction and their columns of R, and keeps these and the gradients of h and c over all
 * steps. dz goes to the other blocks of the direction through memory, with a barrier behind each step. All
 * blocks are resident: it is launched cooperatively. Constants: CELL (mica_rnn_cell), CLIP (mica_rnn_clip),
 * those of rnn_persistent.cuh; types x_t, acc_t. */
#include "kernels/math.cuh"
#include "kernels/types.cuh"

#include "ops/rnn/rnn_args.h"
#include "ops/rnn/rnn_length.cuh"
#include "ops/rnn/rnn_persistent.cuh"

#define RNN __device__ __forceinline__
typedef acc_t real;
RNN real sigmoid_of(real v) { return v; } /* not used */
#include "ops/rnn/rnn_body.h"

enum { TANH, RELU, LSTM, GRU };
constexpr int GATES = CELL == LSTM ? 4 : CELL == GRU ? 3 : 1, SLOPES = CELL == GRU ? 4 : GATES; /* of dz */
static_assert(8 * TILES >= UNITS, "a column for each unit");

/* Of the block, behind the sums and weights: sequences x UNITS gradients that pass by the product, of c. */
struct kept {
    float *direct, *dc;
    int *lengths;
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
RNN cell cell_of(const mica_rnn_slope_args &a, const place &p, int first, int i)
{
    const int at = i * THREADS + threadIdx.x, local = at % UNITS, row = first + at / UNITS;
    const int unit = (int)p.unit + local;
    return {row, unit, local, at < ROWS * UNITS && row < p.end && unit < a.units};
}

/* What forward left of a cell, and the gradient of y. */
struct left {
    real gates[GATES > 1 ? 4 : 1], before, after, dy; /* c of an lstm, else h */
};

/* turn: how many steps were done. */
RNN long long time_of(const mica_rnn_slope_args &a, const place &p, int turn)
{
    return p.side ? turn : a.steps - 1 - turn;
}

RNN void read_left(const mica_rnn_slope_args &a, const place &p, int turn, int first, left (&l)[CELLS])
{
    const long long time = time_of(a, p, turn);
#pragma unroll
    for (int i = 0; i < CELLS; i++) {
        const cell c = cell_of(a, p, first, i);
        if (!c.there) continue;
        const long long each = a.batch * a.units, at = c.row * a.units + c.unit;
        const long long before = (p.side * (a.steps + 1) + time + p.side) * each + at;
        const long long after = (p.side * (a.steps + 1) + time + 1 - p.side) * each + at;
        const long long row = (p.side * a.steps + time) * a.batch + c.row;
        if constexpr (GATES > 1)
#pragma unroll
            for (int g = 0; g < 4; g++) l[i].gates[g] = __ldcs((const real *)a.gates + (row * 4 + g) * a.units + c.unit);
        if constexpr (CELL == LSTM)
            l[i].before = ((const real *)a.cells)[before], l[i].after = ((const real *)a.cells)[after];
        else if constexpr (CELL == GRU)
            l[i].before = widen<real>(((const x_t *)a.states)[before]);
        else
            l[i].after = widen<real>(((const x_t *)a.states)[after]);
        l[i].dy = widen<real>(((const x_t *)a.y)[p.side * a.y_side + time * a.y_time + c.row * a.y_batch + c.unit * a.y_unit]);
    }
}

/* dz of each cell, and what the next product takes of it to `next`; the last turn is the gradient of the
 * initial h. */
RNN void make_slopes(const mica_rnn_slope_args &a, const place &p, const char *shared, const kept &k, int turn,
                     int first, const left (&l)[CELLS], real (&dz)[CELLS][4], x_t *next, int width)
{
    const rnn_clip clip = {CLIP, a.bounds.nan, (real)a.bounds.low, (real)a.bounds.high};
    const long long time = time_of(a, p, turn), later = p.side ? time - 1 : time + 1;
#pragma unroll
    for (int i = 0; i < CELLS; i++) {
        const cell c = cell_of(a, p, first, i);
        if (!c.there) continue;
        const int at = (c.row - p.from) * UNITS + c.local, length = k.lengths[c.row - p.from];
        real dh = k.direct[at], direct = 0;
        if (turn > 0 && later < length) dh += summed(shared, c.row - first, c.local);
        dz[i][0] = dz[i][1] = dz[i][2] = dz[i][3] = 0;
        if (turn == a.steps || time >= length) {
            direct = dh;
        } else {
            dh += l[i].dy;
            if constexpr (CELL == LSTM)
                rnn_lstm_slopes(l[i].gates, clip, l[i].after, l[i].before, dh, &k.dc[at], dz[i]);
            else if constexpr (CELL == GRU)
                direct = rnn_gru_slopes(l[i].gates, l[i].before, dh, dz[i]);
            else
                dz[i][0] = rnn_plain_slope(CELL == RELU, l[i].after, dh);
        }
        k.direct[at] = direct;
        if (turn == a.steps) continue;
#pragma unroll
        for (int g = 0; g < GATES; g++)
            next[exchanged(c.row, g * (int)a.units + c.unit, width)] = narrow<x_t>(dz[i][CELL == GRU && g == 2 ? 3 : g]);
    }
}

RNN void store_slopes(const mica_rnn_slope_args &a, const place &p, int turn, int first, const real (&dz)[CELLS][4])
{
#pragma unroll
    for (int i = 0; i < CELLS; i++) {
        const cell c = cell_of(a, p, first, i);
        if (!c.there) continue;
        const long long row = (p.side * a.steps + time_of(a, p, turn)) * a.batch + c.row;
#pragma unroll
        for (int g = 0; g < SLOPES; g++)
            ((x_t *)a.dz)[row * a.dz_row + g * a.units + c.unit] = narrow<x_t>(dz[i][g]);
    }
}

RNN void begin(const mica_rnn_slope_args &a, const place &p, const kept &k)
{
    for (int row = threadIdx.x; row < p.end - p.from; row += THREADS) {
        const long long length = rnn_length(a, p.from + row);
        k.lengths[row] = length < 0 ? 0 : length < a.steps ? (int)length : (int)a.steps;
    }
    for (int i = threadIdx.x; i < p.rows * UNITS; i += THREADS) {
        const long long row = p.from + i / UNITS, unit = p.unit + i % UNITS;
        const long long at = (p.side * a.batch + row) * a.units + unit;
        if (row >= p.end || unit >= a.units) continue;
        k.direct[i] = ((const real *)a.direct)[at];
        if constexpr (CELL == LSTM) k.dc[i] = ((const real *)a.dc)[at];
    }
}

RNN void finish(const mica_rnn_slope_args &a, const place &p, const kept &k)
{
    for (int i = threadIdx.x; i < p.rows * UNITS; i += THREADS) {
        const long long row = p.from + i / UNITS, unit = p.unit + i % UNITS;
        const long long at = (p.side * a.batch + row) * a.units + unit;
        if (row >= p.end || unit >= a.units) continue;
        ((real *)a.direct)[at] = k.direct[i];
        if constexpr (CELL == LSTM) ((real *)a.dc)[at] = k.dc[i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    rnn_persistent_slopes(const __grid_constant__ mica_rnn_persistent_slope_args all)
{
    extern __shared__ __align__(16) char shared[];
    const mica_rnn_slope_args &a = all.step;
    const mica_rnn_exchange &e = all.exchange;
    const int set = (int)blockIdx.x / e.blocks, group = set % e.groups, side = e.first + set / e.groups;
    const int from = group * e.rows, end = min((int)a.batch, from + e.rows), steps = (int)a.steps;
    const place p = {side, (int)blockIdx.x % e.blocks * UNITS, from, end, (end - from + ROWS - 1) / ROWS * ROWS};
    char *own = shared + SUMS_BYTES + WEIGHTS_BYTES;
    kept k;
    k.direct = (float *)own;
    k.dc = k.direct + p.rows * UNITS;
    k.lengths = (int *)(k.dc + p.rows * UNITS);

    product w;
    const x_t *r = (const x_t *)e.weights + side * e.weights_side;
    load_weights(w, shared, [&](int column, int at, u32(&words)[4]) {
        const long long unit = p.unit + column;
        words[0] = words[1] = words[2] = words[3] = 0;
        if (column >= UNITS || unit >= a.units || at >= e.width) return;
        const x_t *from = r + at * a.units + unit;
#pragma unroll
        for (int i = 0; i < 4; i++) words[i] = from[2 * i * a.units].bits | (u32)from[(2 * i + 1) * a.units].bits << 16;
    });

    x_t *buffers = (x_t *)e.exchange + side * e.side;
    begin(a, p, k);
    left l[CELLS] = {};
    real dz[CELLS][4];
    read_left(a, p, 0, p.from, l);
    __syncthreads();
    int *arrived = e.arrived + side * e.groups + group;
    for (int turn = 0; turn <= steps; turn++) {
        const x_t *now = buffers + turn % 2 * e.apart;
        x_t *next = buffers + (turn + 1) % 2 * e.apart;
        for (int row = p.from; row < p.from + p.rows; row += ROWS) {
            const bool last_row = row + ROWS == p.from + p.rows;
            if (turn > 0) multiply(w, shared, now, row, p.end, (int)e.width);
            __syncthreads();
            make_slopes(a, p, shared, k, turn, row, l, dz, next, (int)e.width);
            __syncthreads();
            if (turn == steps) continue;
            if (last_row) grid_arrive(arrived);
            store_slopes(a, p, turn, row, dz);
            const int then = last_row ? turn + 1 : turn;
            if (then < steps) read_left(a, p, then, last_row ? p.from : row + ROWS, l);
        }
        if (turn < steps) grid_wait(arrived, (turn + 1) * e.blocks);
    }
    finish(a, p, k);
}
