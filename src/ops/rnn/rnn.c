/* SPDX-License-Identifier: Apache-2.0
 * Recurrent nets: tables, inference, checks, fills. */
#include "ops/rnn/rnn.h"
#include "base/random.h"
#include "ops/random/random.h"

#include <math.h>
#include <string.h>

static const char *const passes[] = {"fwd", "bwd_data", "bwd_weights", NULL};
static const char *const cells[] = {"tanh", "relu", "lstm", "gru", NULL};
static const char *const biases[] = {"two", "one", "none", NULL};
static const char *const clips[] = {"none", "cells", "gates", NULL};
static const char *const computes[] = {"default", "tf32", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_rnn_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, gradients of x and states, or of w"),
    FIELD(cell, ENUM, .spellings = cells, .doc = "what a step does"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "T x B x I: steps, sequences, inputs"),
    FIELD(hidden, I64, .zero = "needed", .positive = true, .doc = "H, units of a layer"),
    FIELD(layers, I64, .def = 1, .doc = "L"),
    FIELD(bidirectional, FLAG, .doc = "D is 2: a reverse direction beside the forward one"),
    FIELD(bias, ENUM, .spellings = biases, .doc = "of W x and of R h, of W x, or of neither"),
    FIELD(reset_before, FLAG, .doc = "gru: the state is reset before its product with R"),
    FIELD(w, TENSOR, .zero = "inferred",
          .doc = "all matrices, then all biases, as mica_rnn_weight() says"),
    FIELD(hx, TENSOR, .zero = "none", .doc = "L D x B x P: states to begin with"),
    FIELD(cx, TENSOR, .zero = "none", .doc = "lstm: L D x B x H, likewise, of c"),
    FIELD(lengths, TENSOR, .zero = "none", .doc = "B: steps of each sequence, s32 or s64"),
    FIELD(y, TENSOR, .zero = "inferred", .doc = "T x B x D P: states of the last layer"),
    FIELD(hy, TENSOR, .zero = "none", .doc = "as hx: states at the end"),
    FIELD(cy, TENSOR, .zero = "none", .doc = "lstm: as cx"),
    FIELD(compute, ENUM, .spellings = computes,
          .doc = "tf32 allows f32 inputs to be rounded to 11 bits"),
    FIELD(gates, TENSOR, .zero = "inferred with states",
          .doc = "lstm, gru: L D x T x B x 4 H, packed: what gates were"),
    FIELD(cells, TENSOR, .zero = "inferred with states",
          .doc = "lstm: L D x T+1 x B x H, packed: c around each step"),
    FIELD(states, TENSOR, .zero = "none in fwd, else inferred",
          .doc = "L D x T+1 x B x P, packed: h around each step"),
    FIELD(dz, TENSOR, .zero = "inferred",
          .doc =
              "backward: L D x T x B x Z, packed: gradient of W x + b; of a gru also of R h + r, "
              "with projection of h"),
    FIELD(projection, I64, .zero = "none", .doc = "lstm: P, units of h, which are a product"),
    FIELD(inner, TENSOR, .zero = "inferred with states where there are",
          .doc = "L D x T x B x H, packed: what the second product of a step takes"),
    FIELD(clip, ENUM, .spellings = clips, .doc = "of c, as cuDNN, or in front of gates, as ONNX"),
    FIELD(clip_low, F64, .infinite = true, .doc = "the lowest that is left"),
    FIELD(clip_high, F64, .infinite = true, .doc = "the highest"),
    FIELD(clip_nan, FLAG, .doc = "NaN is clipped to clip_low"),
    FIELD(skip_input, FLAG, .doc = "the first layer takes x for each gate, without W"),
    FIELD(dropout, F64, .zero = "none", .doc = "share of y that is dropped between layers"),
    FIELD(rng, TENSOR, .zero = "inferred with dropout", .doc = "dropout: s64, {seed, offset}"),
    FIELD(peepholes, TENSOR, .zero = "none",
          .doc = "lstm: L D x 3 x H, packed: what i, o and f multiply c by"),
};

rnn_sizes rnn_sizes_of(const mica_rnn_desc *d)
{
    return (rnn_sizes){.steps = d->x.dims[0],
                       .batch = d->x.dims[1],
                       .inputs = d->x.dims[2],
                       .hidden = d->hidden,
                       .out = d->projection ? d->projection : d->hidden,
                       .layers = d->layers,
                       .sides = d->bidirectional ? 2 : 1,
                       .gates = mica_rnn_gates(d->cell),
                       .type = d->x.dtype,
                       .acc = mica_dtype_accumulator(d->x.dtype)};
}

int64_t rnn_slopes(const mica_rnn_desc *d)
{
    return d->cell == MICA_RNN_CELL_GRU && !d->reset_before ? 4 : mica_rnn_gates(d->cell);
}

int64_t rnn_slope_row(const mica_rnn_desc *d)
{
    return rnn_slopes(d) * d->hidden + d->projection;
}

bool rnn_drops(const mica_rnn_desc *d)
{
    return d->dropout > 0 && d->layers > 1;
}

bool rnn_has_inner(const mica_rnn_desc *d)
{
    return d->reset_before || d->projection;
}

static int64_t dim(const void *desc, char letter)
{
    const rnn_sizes s = rnn_sizes_of(desc);
    switch (letter) {
    case 'T':
        return s.steps;
    case 'B':
        return s.batch;
    case 'D':
        return s.sides;
    case 'H':
        return s.hidden;
    case 'L':
        return s.layers;
    case 'S':
        return s.steps + 1;
    case 'P':
        return s.out;
    case 'Z':
        return rnn_slope_row(desc);
    default:
        return mica_rnn_weight_count(desc);
    }
}

#define LSTM  (UINT64_C(1) << MICA_RNN_CELL_LSTM)
#define GATED (LSTM | UINT64_C(1) << MICA_RNN_CELL_GRU)
#define SUMS  (MICA_TYPE(F64) | MICA_TYPE(F32))
#define ARG(member, FWD, DATA, WEIGHTS, ...)                                                       \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_rnn_desc, member), .dir = {FWD, DATA, WEIGHTS},   \
        __VA_ARGS__                                                                                \
    }
#define STATE(DIMS) .types = MICA_FLOATS, .like = "x", .dims = DIMS, .same = "x"
#define OF_LSTM     .when = "cell", .values = LSTM
static const mica_arg args[] = {
    [MICA_RNN_X] = ARG(x, MICA_IN, MICA_OUT, MICA_IN, .types = MICA_FLOATS,
                       .need = {MICA_NEEDED, MICA_NEEDED, MICA_NEEDED}),
    [MICA_RNN_W] = ARG(w, MICA_IN, MICA_IN, MICA_OUT, .types = MICA_FLOATS,
                       .need = {MICA_INFERRED, MICA_INFERRED, MICA_INFERRED}, .like = "x",
                       .dims = "W", .same = "x"),
    [MICA_RNN_HX] = ARG(hx, MICA_IN, MICA_OUT, MICA_UNUSED, STATE("LDxBxP")),
    [MICA_RNN_CX] = ARG(cx, MICA_IN, MICA_OUT, MICA_UNUSED, STATE("LDxBxH"), OF_LSTM),
    [MICA_RNN_LENGTHS] =
        ARG(lengths, MICA_IN, MICA_IN, MICA_UNUSED, .types = MICA_INDICES, .dims = "B"),
    [MICA_RNN_Y] =
        ARG(y, MICA_OUT, MICA_IN, MICA_UNUSED, .types = MICA_FLOATS,
            .need = {MICA_INFERRED, MICA_INFERRED}, .like = "x", .dims = "TxBxDP", .same = "x"),
    [MICA_RNN_HY] = ARG(hy, MICA_OUT, MICA_IN, MICA_UNUSED, STATE("LDxBxP")),
    [MICA_RNN_CY] = ARG(cy, MICA_OUT, MICA_IN, MICA_UNUSED, STATE("LDxBxH"), OF_LSTM),
    [MICA_RNN_GATES] = ARG(gates, MICA_OUT, MICA_IN, MICA_UNUSED, .types = SUMS,
                           .need = {MICA_IF_GIVEN, MICA_INFERRED}, .like = "x", .dims = "LDxTxBx4H",
                           .sums = true, .with = "states", .when = "cell", .values = GATED),
    [MICA_RNN_CELLS] = ARG(cells, MICA_OUT, MICA_IN, MICA_IN, .types = SUMS,
                           .need = {MICA_IF_GIVEN, MICA_INFERRED}, .like = "x", .dims = "LDxSxBxH",
                           .sums = true, .with = "states", OF_LSTM),
    [MICA_RNN_STATES] = ARG(states, MICA_OUT, MICA_IN, MICA_IN, .types = MICA_FLOATS,
                            .need = {MICA_IF_GIVEN, MICA_INFERRED, MICA_INFERRED}, .like = "x",
                            .dims = "LDxSxBxP", .same = "x"),
    [MICA_RNN_DZ] = ARG(dz, MICA_UNUSED, MICA_OUT, MICA_IN, .types = MICA_FLOATS,
                        .need = {MICA_IF_GIVEN, MICA_INFERRED, MICA_INFERRED}, .like = "x",
                        .dims = "LDxTxBxZ", .same = "x"),
    /* infer knows where there is one */
    [MICA_RNN_INNER] = ARG(inner, MICA_OUT, MICA_UNUSED, MICA_IN, .types = MICA_FLOATS, .like = "x",
                           .dims = "LDxTxBxH", .same = "x", .with = "states"),
    [MICA_RNN_PEEPHOLES] = ARG(peepholes, MICA_IN, MICA_IN, MICA_OUT, STATE("LDx3xH"), OF_LSTM),
    [MICA_RNN_RNG] = ARG(rng, MICA_IN, MICA_IN, MICA_IN, .types = MICA_TYPE(S64), .dims = "2"),
};

static const mica_scalar scalars[] = {[MICA_RNN_BETA] = {"beta", 0}};

/* ---- checks ---- */

static mica_status infer(void *desc, mica_why *why)
{
    mica_rnn_desc *d = desc;
    if (d->x.rank != 3)
        return mica_invalid(why, "x has rank %d, it must have 3: steps, sequences, inputs",
                            d->x.rank);
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"hidden", d->hidden},
                   {"layers", d->layers},
                   {"projection", d->projection ? d->projection : 1}};
    for (int i = 0; i < 3; i++)
        if (numbers[i].value < 1 || numbers[i].value > 1 << 24)
            return mica_invalid(why, "%s is %lld, it must be from 1 to 2^24", numbers[i].name,
                                (long long)numbers[i].value);
    const rnn_sizes s = rnn_sizes_of(d);
    const double rows = (double)s.sides * (double)s.gates * (double)s.hidden;
    const double inputs =
        (double)s.inputs +
        (double)s.layers * ((double)(s.sides + 1) * (double)s.out + (double)d->projection);
    const double sequences = fmax((double)s.steps, 1) * fmax((double)s.batch, 1);
    if (rows * inputs > (double)MICA_MOST_ELEMENTS ||
        rows * (double)s.layers * sequences > (double)MICA_MOST_ELEMENTS)
        return mica_invalid(why,
                            "%lld layers of %lld x %lld rows, %lld inputs, %lld x %lld steps: at "
                            "most 2^48 weights and gates are legal",
                            (long long)s.layers, (long long)s.sides,
                            (long long)(s.gates * s.hidden), (long long)s.inputs,
                            (long long)s.steps, (long long)s.batch);
    if (!rnn_drops(d))
        memset(&d->rng, 0, sizeof d->rng);
    else if (!mica_tensor_given(&d->rng))
        d->rng.dtype = MICA_S64;
    const bool trains = d->pass == MICA_RNN_FWD && mica_tensor_given(&d->states);
    if (!rnn_has_inner(d) || d->pass == MICA_RNN_BWD_DATA)
        memset(&d->inner, 0, sizeof d->inner);
    else if ((trains || d->pass == MICA_RNN_BWD_WEIGHTS) && !mica_tensor_given(&d->inner))
        d->inner.dtype = d->x.dtype;
    /* The gradient of peepholes alone is made of c. */
    if (d->pass == MICA_RNN_BWD_WEIGHTS && d->cell == MICA_RNN_CELL_LSTM) {
        if (!mica_tensor_given(&d->peepholes) && mica_tensor_given(&d->cells))
            return mica_invalid(why, "cells without peepholes, pass is bwd_weights");
        if (mica_tensor_given(&d->peepholes) && !mica_tensor_given(&d->cells))
            d->cells.dtype = s.acc;
    }
    if (!trains) return MICA_OK;
    if (s.gates > 1 && !mica_tensor_given(&d->gates)) d->gates.dtype = s.acc;
    if (d->cell == MICA_RNN_CELL_LSTM && !mica_tensor_given(&d->cells)) d->cells.dtype = s.acc;
    return MICA_OK;
}

static mica_status check_clip(const mica_rnn_desc *d, mica_why *why)
{
    if (d->clip == MICA_RNN_CLIP_NONE) {
        if (d->clip_low != 0 || d->clip_high != 0 || d->clip_nan)
            return mica_invalid(why, "clip_low, clip_high or clip_nan without clip");
        return MICA_OK;
    }
    if (!(d->clip_low <= d->clip_high))
        return mica_invalid(why, "clip_low is %g, clip_high is %g: they must be in order",
                            d->clip_low, d->clip_high);
    if (d->clip == MICA_RNN_CLIP_CELLS && d->cell != MICA_RNN_CELL_LSTM)
        return mica_invalid(why, "clip=cells is of lstm, cell is %s", cells[d->cell]);
    if (d->clip == MICA_RNN_CLIP_GATES && d->pass != MICA_RNN_FWD)
        return mica_invalid(why, "pass is %s, with clip=gates there is fwd alone", passes[d->pass]);
    if (d->clip == MICA_RNN_CLIP_GATES && mica_tensor_given(&d->states))
        return mica_invalid(why, "states are for gradients, with clip=gates there are none");
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_rnn_desc *d = desc;
    if (d->reset_before && d->cell != MICA_RNN_CELL_GRU)
        return mica_invalid(why, "reset_before is of gru, cell is %s", cells[d->cell]);
    if (d->projection && d->cell != MICA_RNN_CELL_LSTM)
        return mica_invalid(why, "projection is of lstm, cell is %s", cells[d->cell]);
    MICA_TRY(check_clip(d, why));
    if (!(d->dropout >= 0 && d->dropout <= 1))
        return mica_invalid(why, "dropout is %g, it must be at least 0 and at most 1", d->dropout);
    if (d->skip_input && d->x.dims[2] != d->hidden)
        return mica_invalid(why, "x has %lld inputs, with skip_input it must have hidden: %lld",
                            (long long)d->x.dims[2], (long long)d->hidden);
    const int packed[] = {MICA_RNN_GATES, MICA_RNN_CELLS, MICA_RNN_STATES,
                          MICA_RNN_DZ,    MICA_RNN_INNER, MICA_RNN_PEEPHOLES};
    for (int i = 0; i < 6; i++) {
        const mica_tensor *t = mica_op_tensor(&mica_op_rnn, d, packed[i]);
        if (mica_tensor_given(t) && !mica_tensor_is_packed(t))
            return mica_invalid(why, "%s has strides, it must be packed", args[packed[i]].name);
    }
    if (d->w.dims[0] > 1 && d->w.strides[0] != 1)
        return mica_invalid(why, "the stride of w is %lld, it must be 1",
                            (long long)d->w.strides[0]);
    return MICA_OK;
}

/* ---- contract and fills ---- */

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_rnn_desc *d = desc;
    const rnn_sizes s = rnn_sizes_of(d);
    const double rows = (double)s.sides * (double)s.gates * (double)s.hidden;
    const double h = (double)s.out, later = (double)s.sides * h;
    const double last = (double)d->projection * (double)(s.sides * s.hidden * s.layers);
    (void)bytes;
    *flops = 2 * (double)s.steps * (double)s.batch *
             (rows * ((d->skip_input ? 0 : (double)s.inputs) + h +
                      (double)(s.layers - 1) * (later + h)) +
              last);
}

/* The longest sum, a bias, and the sums around it. */
static int64_t terms(const void *desc)
{
    const mica_rnn_desc *d = desc;
    const rnn_sizes s = rnn_sizes_of(d);
    const int64_t later = s.sides * s.out, inputs = s.inputs;
    const int64_t units = s.out > s.hidden ? s.out : s.hidden;
    if (d->pass == MICA_RNN_BWD_DATA) return s.sides * s.gates * units + 4;
    if (d->pass == MICA_RNN_BWD_WEIGHTS) return s.steps * s.batch > 1 ? s.steps * s.batch : 1;
    return (s.layers > 1 && later > inputs ? later : inputs > units ? inputs : units) + 4;
}

/* Weights keep the size of what they multiply; those of relu, which grow without bound, the sum of
 * sizes. */
static void fill_weights(const mica_rnn_desc *d, mica_fill kind, uint64_t seed, double *values)
{
    const int64_t count = d->w.dims[0], n = terms(d);
    const bool relu = d->cell == MICA_RNN_CELL_RELU;
    /* Gradients grow from step to step with extreme weights, and f16 ends before they do. */
    const bool ends =
        kind == MICA_FILL_EXTREME && d->pass == MICA_RNN_BWD_DATA && d->x.dtype == MICA_F16;
    const double size = relu ? 0.5 / (double)n : (ends ? 0x1p-7 : 1) / sqrt((double)n);
    mica_fill_general(&mica_op_rnn, d, MICA_RNN_W,
                      relu || kind == MICA_FILL_RANGE ? MICA_FILL_RANDOM : kind, seed, values);
    if (kind == MICA_FILL_EDGES) return;
    for (int64_t i = 0; i < count; i++) values[i] = mica_fill_rounded(d->w.dtype, values[i] * size);
}

/* As weights: what a step hands on keeps its size. */
static void fill_peepholes(const mica_rnn_desc *d, mica_fill kind, uint64_t seed, double *values)
{
    const double size = kind == MICA_FILL_EXTREME ? 0x1p-7 : 0.5;
    mica_fill_general(&mica_op_rnn, d, MICA_RNN_PEEPHOLES,
                      kind == MICA_FILL_RANGE ? MICA_FILL_RANDOM : kind, seed, values);
    if (kind == MICA_FILL_EDGES) return;
    for (int64_t i = 0; i < mica_tensor_count(&d->peepholes); i++)
        values[i] = mica_fill_rounded(d->peepholes.dtype, values[i] * size);
}

/* Whole sequences, none of a sequence, and what is out of range. */
static void fill_lengths(const mica_rnn_desc *d, uint64_t seed, double *values)
{
    const int64_t steps = d->x.dims[0];
    for (int64_t b = 0; b < d->x.dims[1]; b++) {
        const uint64_t bits = mica_random_bits(seed ^ 0x1e4, (uint64_t)b);
        const int64_t within = (int64_t)(bits / 8 % (uint64_t)(steps + 1));
        values[b] = (double)(bits % 8 == 0 ? steps + 3 : bits % 8 == 1 ? -2 : within);
    }
}

/* What forward leaves: gates are behind their functions, states within them. */
static void fill_reserve(const mica_rnn_desc *d, int arg, uint64_t seed, double *values)
{
    const mica_tensor *t = mica_op_tensor(&mica_op_rnn, d, arg);
    const bool gates = arg == MICA_RNN_GATES, relu = d->cell == MICA_RNN_CELL_RELU;
    for (int64_t i = 0; i < mica_tensor_count(t); i++) {
        const double u = mica_random_uniform(seed ^ (uint64_t)arg << 32, (uint64_t)i);
        const bool positive = gates && i / d->hidden % 4 < 2;
        const bool last = gates && i / d->hidden % 4 == 3; /* o; of a gru not behind a function */
        const bool unit = positive || (last && d->cell == MICA_RNN_CELL_LSTM);
        values[i] = mica_fill_rounded(t->dtype, unit ? u : relu && u < 0.5 ? 0 : 2 * u - 1);
    }
}

/* With a projection the gradient of h is rounded to the type of x, and f16 ends before extreme ones
 * do. */
static void fill_gradient(const mica_rnn_desc *d, int arg, mica_fill kind, uint64_t seed,
                          double *values)
{
    const mica_tensor *t = mica_op_tensor(&mica_op_rnn, d, arg);
    mica_fill_general(&mica_op_rnn, d, arg, kind, seed, values);
    if (kind != MICA_FILL_EXTREME) return;
    for (int64_t i = 0; i < mica_tensor_count(t); i++)
        values[i] = mica_fill_rounded(t->dtype, values[i] / 256);
}

static bool fill(const void *desc, const double *scalars, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_rnn_desc *d = desc;
    (void)scalars;
    if (arg == MICA_RNN_RNG) return mica_random_fill_rng(d->rng, seed, values);
    if (arg == MICA_RNN_LENGTHS)
        fill_lengths(d, seed, values);
    else if (arg == MICA_RNN_W && d->pass != MICA_RNN_BWD_WEIGHTS)
        fill_weights(d, kind, seed, values);
    else if (arg == MICA_RNN_PEEPHOLES && d->pass != MICA_RNN_BWD_WEIGHTS)
        fill_peepholes(d, kind, seed, values);
    else if (d->pass == MICA_RNN_BWD_DATA && arg >= MICA_RNN_GATES)
        fill_reserve(d, arg, seed, values);
    else if (d->pass == MICA_RNN_BWD_DATA && d->projection && arg != MICA_RNN_X)
        fill_gradient(d, arg, kind, seed, values);
    else
        return false;
    return true;
}

/* Sums of products only, of a factor that dropout multiplies by a power of 2. */
static bool exact(const void *desc)
{
    const mica_rnn_desc *d = desc;
    int e;
    const bool plain = !rnn_drops(d) || d->dropout == 1 || frexp(1 / (1 - d->dropout), &e) == 0.5;
    return d->pass == MICA_RNN_BWD_WEIGHTS && plain;
}

static const mica_engine *const engines[] = {&mica_rnn_cpu, &mica_engine_ref, &mica_rnn_persistent,
                                             &mica_rnn_cuda, NULL};

const mica_op mica_op_rnn = {
    .name = "rnn",
    .doc = "recurrent nets: RNN, LSTM and GRU, of several layers, in both directions",
    .desc_size = sizeof(mica_rnn_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .scalars = scalars,
    .scalar_count = sizeof scalars / sizeof *scalars,
    .infer = infer,
    .dim = dim,
    .check = check,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .ulps = 8,
    .fill = fill,
    .reference = rnn_reference,
    .engines = engines,
};
