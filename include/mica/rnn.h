/* SPDX-License-Identifier: Apache-2.0
 * Recurrent nets: layers of RNN, LSTM or GRU cells over sequences, in one or both directions.
 *
 * x is T x B x I (steps, sequences, inputs; batch first is a matter of strides), y is T x B x D P,
 * D directions side by side, forward first. hx and hy are L D x B x P, cx and cy L D x B x H: of
 * layer l and direction d at l D + d. P is H but with `projection`. Layer l takes the y of the
 * layer before it. In the order of a direction
 *
 *   tanh relu   h' = f(W x + b + R h + r)
 *   lstm        i, f, o = sigmoid, g = tanh of (W x + b + R h + r)
 *               c' = f c + i g        h' = o tanh(c')
 *   gru         r, z = sigmoid(W x + b + R h + r)
 *               n = tanh(W x + b + r (R h + r))   PyTorch's and cuDNN's: reset behind the product
 *               n = tanh(W x + b + R (r h) + r)   with reset_before: ONNX's default
 *               h' = (1 - z) n + z h
 *
 * projection=P: an lstm's h' is S (o tanh(c')), S of P x H: PyTorch's proj_size, cuDNN's projSize.
 *
 * peepholes: gates of an lstm also see c, each unit its own: i has p_i c and f has p_f c added
 * within its sigmoid, c before the step, and o has p_o c', clipped where c' is. L D x 3 x H, of
 * each layer and direction p_i, p_o and p_f, as ONNX's P; with any of the other fields.
 *
 * skip_input: W x of the first layer is x for each gate, W not there, and I is H: cuDNN's
 * SKIP_INPUT.
 *
 * dropout: what a layer takes of the one before is y through mica/random.h's dropout, of that
 * share, forward and in gradients alike: element (step, sequence, i) behind layer l has the index
 * ((l T + step) B + sequence) D P + i. rng holds {seed, offset}; every pass gets the same. Results
 * (states, hy) are those in front of it. Leave dropout out for inference.
 *
 * clip bounds values by clip_low and clip_high: `cells` c' of an lstm, before h' is made of it, as
 * cuDNN's RNN_CLIP_MINMAX does; `gates` what is in front of sigmoid, tanh and relu, as ONNX's clip
 * (-a and a) does, forward and without `states`. NaN stays, or with clip_nan becomes clip_low. c'
 * at a bound hands no gradient on to what it was made of.
 *
 * Weights are one buffer, cuDNN's: of every layer and direction (l D + d) W, G H x inputs, R,
 * G H x P, and S, if there is a projection; behind all of them, again of every layer and direction,
 * b and r, G H each. G gates of H rows each lie in the order i f g o of an lstm and r z n of a gru.
 * mica_rnn_weight() says where each lies. bias=one leaves out r, bias=none b as well.
 *
 * lengths: sequence b has that many steps; in both directions these are its first ones, a reverse
 * direction begins at the last of them. y behind them is 0; hy and cy are the state after the last
 * step, of no step at all the initial one. Lengths are read on the device: one below 0 counts as 0,
 * one above T as T. Without hx and cx states begin at 0; where T is 0, hy and cy are those.
 *
 * Passes hand their results to each other in tensors of the caller, all packed:
 *
 *   fwd           with `states` also what the gradients need, in those of `gates`, `cells`, `inner`
 *                 and `states` that the cell has; without, inference
 *   bwd_data      the gradients of y, hy and cy in `y`, `hy` and `cy` (those not given are 0); w,
 *                 gates, cells, states -> gradients of x, hx and cx in `x`, `hx` and `cx`, and dz
 *   bwd_weights   x, states, inner, dz -> the gradient of w in `w`, to which the scalar beta times
 *                 what was there is added; no other pass knows beta. With `peepholes` their
 *                 gradient likewise in that, for which it takes cells
 *
 * gates are i f g o of an lstm, r z n and R h + r of n of a gru (R (r h) + r with reset_before),
 * behind their functions, in the type of sums; a cell without gates has none. cells and states are
 * c and h before and after each step: those of step t lie at t and t + 1, of a reverse direction at
 * t + 1 and t. inner is what a step's second product takes: o tanh(c') with projection, r h with
 * reset_before. dz is the gradient of W x + b, Z = G H of a step; of a gru without reset_before 4
 * H, behind r z n that of R h + r of n; with projection G H + P, behind the gates that of h'.
 * Behind the end of a sequence gates, inner and dz are 0, and states those at its end.
 *
 * Types: f64, f32, f16 or bf16, all alike. Sums, gates and c are f32 (f64 for f64); h is rounded to
 * the type where it is multiplied by R, as y holds it. cuDNN and PyTorch do the same. Any strides,
 * but those of w. */
#ifndef MICA_RNN_H
#define MICA_RNN_H

#include "mica/epilogue.h"
#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_rnn_pass { MICA_RNN_FWD, MICA_RNN_BWD_DATA, MICA_RNN_BWD_WEIGHTS } mica_rnn_pass;

typedef enum mica_rnn_cell {
    MICA_RNN_CELL_TANH,
    MICA_RNN_CELL_RELU,
    MICA_RNN_CELL_LSTM,
    MICA_RNN_CELL_GRU
} mica_rnn_cell;

typedef enum mica_rnn_bias {
    MICA_RNN_BIAS_TWO, /* b and r */
    MICA_RNN_BIAS_ONE, /* b */
    MICA_RNN_BIAS_NONE
} mica_rnn_bias;

typedef enum mica_rnn_clip {
    MICA_RNN_CLIP_NONE,
    MICA_RNN_CLIP_CELLS, /* c of an lstm: cuDNN */
    MICA_RNN_CLIP_GATES  /* what functions of gates get: ONNX */
} mica_rnn_clip;

enum {
    MICA_RNN_X,
    MICA_RNN_W,
    MICA_RNN_HX,
    MICA_RNN_CX,
    MICA_RNN_LENGTHS,
    MICA_RNN_Y,
    MICA_RNN_HY,
    MICA_RNN_CY,
    MICA_RNN_GATES,
    MICA_RNN_CELLS,
    MICA_RNN_STATES,
    MICA_RNN_DZ,
    MICA_RNN_INNER,
    MICA_RNN_RNG,
    MICA_RNN_PEEPHOLES
};
enum { MICA_RNN_BETA }; /* of bwd_weights */

typedef struct mica_rnn_desc {
    mica_rnn_pass pass;   /* 0 means fwd */
    mica_rnn_cell cell;   /* 0 means tanh */
    mica_tensor x;        /* T x B x I; needed */
    int64_t hidden;       /* H; needed */
    int64_t layers;       /* L; 0 means 1 */
    bool bidirectional;   /* D is 2; 0 means no */
    mica_rnn_bias bias;   /* 0 means two */
    bool reset_before;    /* gru: 0 means no */
    mica_tensor w;        /* all weights and biases; 0 means inferred */
    mica_tensor hx;       /* L D x B x P; 0 means none, of a type only, the rest is inferred */
    mica_tensor cx;       /* lstm: L D x B x H, likewise; 0 means none */
    mica_tensor lengths;  /* B, s32 or s64; 0 means none */
    mica_tensor y;        /* T x B x D P; 0 means inferred */
    mica_tensor hy;       /* L D x B x P, as hx; 0 means none */
    mica_tensor cy;       /* lstm: as cx; 0 means none */
    mica_compute compute; /* tf32 allows f32 inputs to be rounded to 11 bits; 0 means default */
    mica_tensor gates;    /* lstm, gru: L D x T x B x 4 H, packed; 0 means inferred with states */
    mica_tensor cells;    /* lstm: L D x T+1 x B x H, packed; 0 means inferred with states */
    mica_tensor states;   /* L D x T+1 x B x P, packed; 0 means none in fwd, else inferred */
    mica_tensor dz;       /* backward: L D x T x B x Z, packed; 0 means inferred */
    int64_t projection;   /* lstm: P; 0 means none */
    mica_tensor inner;  /* L D x T x B x H, packed; 0 means inferred with states where there are */
    mica_rnn_clip clip; /* 0 means none */
    double clip_low;    /* 0 means 0 */
    double clip_high;   /* 0 means 0 */
    bool clip_nan;      /* NaN is clipped to clip_low; 0 means no */
    bool skip_input;    /* the first layer has no W; 0 means no */
    double dropout;     /* share that is dropped between layers; 0 means none */
    mica_tensor rng;    /* dropout: s64, 2 elements; 0 means inferred with dropout */
    mica_tensor peepholes; /* lstm: L D x 3 x H, packed; 0 means none */
} mica_rnn_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_rnn_plan(mica_context *context, const mica_rnn_desc *desc,
                                        const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "rnn", desc, sizeof *desc, options, plan);
}

/* ---- where weights lie ---- */
typedef enum mica_rnn_part {
    MICA_RNN_PART_W,  /* G H x inputs of the layer */
    MICA_RNN_PART_R,  /* G H x P */
    MICA_RNN_PART_B,  /* G H: added to W x */
    MICA_RNN_PART_BR, /* G H: r, added to R h */
    MICA_RNN_PART_S   /* P x H: the projection */
} mica_rnn_part;

typedef struct mica_rnn_matrix {
    int64_t offset;     /* elements from the beginning of w */
    int64_t rows, cols; /* packed, row after row; gate g has the rows from g H on; 0: not there */
} mica_rnn_matrix;

/* The gates: rows of a part are so many times H. */
static inline int64_t mica_rnn_gates(mica_rnn_cell cell)
{
    return cell == MICA_RNN_CELL_LSTM ? 4 : cell == MICA_RNN_CELL_GRU ? 3 : 1;
}

/* A part of layer and direction, of which 0 is forward; layer = layers, direction 0 and PART_W
 * give the end of all matrices in `offset`. Reads x.dims[2] and numbers, constant time. */
static inline mica_rnn_matrix mica_rnn_weight(const mica_rnn_desc *desc, int64_t layer,
                                              int64_t direction, mica_rnn_part part)
{
    const int64_t sides = desc->bidirectional ? 2 : 1, h = desc->hidden;
    const int64_t layers = desc->layers ? desc->layers : 1;
    const int64_t out = desc->projection ? desc->projection : h;
    const int64_t rows = mica_rnn_gates(desc->cell) * h, last = desc->projection * h;
    const int64_t first = desc->skip_input ? 0 : desc->x.dims[2], later = sides * out; /* inputs */
    const int64_t biases = desc->bias == MICA_RNN_BIAS_TWO ? 2 : desc->bias == MICA_RNN_BIAS_ONE;
    mica_rnn_matrix m = {0, rows, layer ? later : first};
    if (part == MICA_RNN_PART_W || part == MICA_RNN_PART_R || part == MICA_RNN_PART_S) {
        if (layer)
            m.offset = sides * (rows * (first + out) + last) +
                       (layer - 1) * sides * (rows * (later + out) + last);
        m.offset += direction * (rows * (m.cols + out) + last);
        if (part == MICA_RNN_PART_W) return m;
        m.offset += rows * m.cols, m.cols = out;
        if (part == MICA_RNN_PART_R) return m;
        m.offset += rows * out, m.rows = desc->projection, m.cols = m.rows ? h : 0;
        return m;
    }
    const int64_t second = part == MICA_RNN_PART_BR;
    m.offset = mica_rnn_weight(desc, layers, 0, MICA_RNN_PART_W).offset;
    m.offset += ((layer * sides + direction) * biases + second) * rows;
    m.cols = 1;
    if (second >= biases) m.rows = m.cols = 0;
    return m;
}

/* Elements of w. */
static inline int64_t mica_rnn_weight_count(const mica_rnn_desc *desc)
{
    const int64_t layers = desc->layers ? desc->layers : 1;
    const int64_t biases = desc->bias == MICA_RNN_BIAS_TWO ? 2 : desc->bias == MICA_RNN_BIAS_ONE;
    return mica_rnn_weight(desc, layers, 0, MICA_RNN_PART_W).offset +
           layers * (desc->bidirectional ? 2 : 1) * biases * mica_rnn_gates(desc->cell) *
               desc->hidden;
}

#ifdef __cplusplus
}
#endif
#endif
