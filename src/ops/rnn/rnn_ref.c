/* SPDX-License-Identifier: Apache-2.0
 * Recurrent nets, the truth: plain loops in double precision, a sequence after the other. */
#include "base/memory.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "kernels/philox.h"
#include "ops/random/random.h"
#include "ops/rnn/rnn_truth.h"

/* ---- functions ---- */

/* The error of f(z), of a slope that falls with |z|; `range` bounds the values. */
static double passed(const truth *t, number z, double (*slope)(double), double v, double range)
{
    if (isinf(z.error)) return z.error;
    const double near = fabs(z.v) - z.error * t->unit;
    const double most = slope(near > 0 ? near : 0);
    const double e = most > 0 ? most * z.error : 0;
    return fmin(e, range / t->unit) + 4 * fabs(v);
}

static double slope_of_sigmoid(double z)
{
    const double e = exp(-z);
    return e / ((1 + e) * (1 + e));
}

static double slope_of_tanh(double z)
{
    const double e = exp(-2 * z);
    return 4 * e / ((1 + e) * (1 + e));
}

static number sigmoid(const truth *t, number z)
{
    const double v = 1 / (1 + exp(-z.v));
    return (number){v, passed(t, z, slope_of_sigmoid, v, 1)};
}

static number hyperbolic(const truth *t, number z)
{
    const double v = tanh(z.v);
    return (number){v, passed(t, z, slope_of_tanh, v, 2)};
}

static number relu(number z)
{
    return z.v < 0 ? (number){0, z.error} : z;
}

/* ---- a sequence of a direction ---- */

static number clipped(const truth *t, number n)
{
    if (isnan(n.v)) return t->d->clip_nan ? (number){t->low, 0} : n;
    n.v = fmin(fmax(n.v, t->low), t->high);
    return n;
}

typedef struct sequence {
    const truth *t;
    int64_t layer, side, b;
    mica_rnn_matrix w, r, bias, bias_r, last;
    number *h, *c;   /* states; of a gru c is h before it is rounded */
    number *made;    /* the next h, before a projection, or r h */
    number *x, *rec; /* gates */
} sequence;

static number weight(const sequence *q, int64_t i)
{
    return exactly(mica_get(&q->t->v[MICA_RNN_W], i));
}

static number input(const sequence *q, int64_t step, int64_t i)
{
    const truth *t = q->t;
    if (q->layer) return t->in[(step * t->s.batch + q->b) * t->s.sides * t->s.out + i];
    const int64_t *s = t->v[MICA_RNN_X].t.strides;
    return exactly(mica_get(&t->v[MICA_RNN_X], step * s[0] + q->b * s[1] + i * s[2]));
}

/* W x + b; step -1: R h + r, of rows from `first` on. */
static void products(sequence *q, int64_t step, const number *h, int64_t first, int64_t rows)
{
    const truth *t = q->t;
    const mica_rnn_matrix *m = step < 0 ? &q->r : &q->w, *bias = step < 0 ? &q->bias_r : &q->bias;
    for (int64_t row = first; row < first + rows; row++) {
        sum s = {0};
        for (int64_t i = 0; i < m->cols; i++)
            add_product(t, &s, weight(q, m->offset + row * m->cols + i),
                        step < 0 ? h[i] : input(q, step, i));
        number n = total(t, &s);
        if (step >= 0 && !q->layer && t->d->skip_input) n = input(q, step, row % t->s.hidden);
        if (bias->rows) n = add(t, n, weight(q, bias->offset + row));
        (step < 0 ? q->rec : q->x)[row] = n;
    }
}

/* In front of its function. */
static number gate_of(const truth *t, number n)
{
    return t->d->clip == MICA_RNN_CLIP_GATES ? clipped(t, n) : n;
}

static number gate(const sequence *q, int64_t row)
{
    return gate_of(q->t, add(q->t, q->x[row], q->rec[row]));
}

/* What gradients need. Place k of arrays of steps and one more. */
static void keep(const sequence *q, int64_t k)
{
    const truth *t = q->t;
    const int64_t n = t->s.hidden, p = t->s.out, steps = t->s.steps + 1;
    const int64_t row = ((q->layer * t->s.sides + q->side) * steps + k) * t->s.batch + q->b;
    for (int64_t j = 0; t->v[MICA_RNN_STATES].data && j < p; j++)
        show(t, MICA_RNN_STATES, row * p + j, q->h[j]);
    for (int64_t j = 0; t->v[MICA_RNN_CELLS].data && j < n; j++)
        show(t, MICA_RNN_CELLS, row * n + j, q->c[j]);
}

/* NULL: nothing. */
static void keep_inner(const sequence *q, int64_t step, const number *inner)
{
    const truth *t = q->t;
    const int64_t row = ((q->layer * t->s.sides + q->side) * t->s.steps + step) * t->s.batch + q->b;
    for (int64_t j = 0; t->v[MICA_RNN_INNER].data && j < t->s.hidden; j++)
        show(t, MICA_RNN_INNER, row * t->s.hidden + j, inner ? inner[j] : exactly(0));
}

static void keep_gate(const sequence *q, int64_t step, int64_t g, int64_t j, number n)
{
    const truth *t = q->t;
    const int64_t row = ((q->layer * t->s.sides + q->side) * t->s.steps + step) * t->s.batch + q->b;
    if (t->v[MICA_RNN_GATES].data) show(t, MICA_RNN_GATES, (row * 4 + g) * t->s.hidden + j, n);
}

static void plain_step(sequence *q)
{
    const truth *t = q->t;
    for (int64_t j = 0; j < t->s.hidden; j++)
        q->made[j] =
            t->d->cell == MICA_RNN_CELL_RELU ? relu(gate(q, j)) : hyperbolic(t, gate(q, j));
}

/* With what it sees of c as it is now; p: 0 i, 1 o, 2 f. */
static number seeing(const sequence *q, int64_t row, int p, int64_t j)
{
    const truth *t = q->t;
    const mica_view *v = &t->v[MICA_RNN_PEEPHOLES];
    if (!v->data) return gate(q, row);
    const int64_t at = ((q->layer * t->s.sides + q->side) * 3 + p) * t->s.hidden + j;
    const number sees = multiply(t, exactly(mica_get(v, at)), q->c[j]);
    return gate_of(t, add(t, add(t, q->x[row], q->rec[row]), sees));
}

static void lstm_step(sequence *q, int64_t step)
{
    const truth *t = q->t;
    const int64_t n = t->s.hidden;
    for (int64_t j = 0; j < n; j++) {
        const number i = sigmoid(t, seeing(q, j, 0, j)), f = sigmoid(t, seeing(q, n + j, 2, j));
        const number g = hyperbolic(t, gate(q, 2 * n + j));
        q->c[j] = add(t, multiply(t, f, q->c[j]), multiply(t, i, g));
        if (t->d->clip == MICA_RNN_CLIP_CELLS) q->c[j] = clipped(t, q->c[j]);
        const number o = sigmoid(t, seeing(q, 3 * n + j, 1, j)), gates[] = {i, f, g, o};
        for (int k = 0; k < 4; k++) keep_gate(q, step, k, j, gates[k]);
        q->made[j] = multiply(t, o, hyperbolic(t, q->c[j]));
    }
}

/* h of what the cell made. */
static void project(sequence *q, int64_t step)
{
    const truth *t = q->t;
    for (int64_t j = 0; j < t->s.hidden; j++) q->made[j] = rounded(t, q->made[j]);
    keep_inner(q, step, q->made);
    for (int64_t p = 0; p < t->s.out; p++) {
        sum s = {0};
        for (int64_t j = 0; j < t->s.hidden; j++)
            add_product(t, &s, weight(q, q->last.offset + p * t->s.hidden + j), q->made[j]);
        q->rec[p] = total(t, &s);
    }
    for (int64_t p = 0; p < t->s.out; p++) q->made[p] = q->rec[p];
}

static void gru_step(sequence *q, int64_t step)
{
    const truth *t = q->t;
    const int64_t n = t->s.hidden;
    if (t->d->reset_before) {
        for (int64_t j = 0; j < n; j++)
            q->made[j] = rounded(t, multiply(t, sigmoid(t, gate(q, j)), q->c[j]));
        keep_inner(q, step, q->made);
        products(q, -1, q->made, 2 * n, n);
    }
    for (int64_t j = 0; j < n; j++) {
        const number r = sigmoid(t, gate(q, j)), z = sigmoid(t, gate(q, n + j));
        const number rec = q->rec[2 * n + j];
        const number inner = t->d->reset_before ? rec : multiply(t, r, rec);
        const number now = hyperbolic(t, gate_of(t, add(t, q->x[2 * n + j], inner)));
        const number gates[] = {r, z, now, rec};
        for (int k = 0; k < 4; k++) keep_gate(q, step, k, j, gates[k]);
        const number less = {q->c[j].v - now.v, q->c[j].error + now.error};
        q->c[j] = add(t, now, multiply(t, z, less));
        q->made[j] = q->c[j];
    }
}

number rnn_dropped(const truth *t, int64_t layer, int64_t at, number n)
{
    if (!rnn_drops(t->d)) return n;
    const mica_view *rng = &t->v[MICA_RNN_RNG];
    const mica_random_stream stream = mica_random_stream_of(rng->data, rng->t.strides[0]);
    const uint64_t i = (uint64_t)(layer * t->s.steps * t->s.batch * t->s.sides * t->s.out + at);
    uint32_t word[] = {(uint32_t)(i / 4), (uint32_t)(i / 4 >> 32), 0, stream.offset};
    mica_philox(stream.key, word);
    if (word[i % 4] < (uint64_t)(t->d->dropout * 0x1p32)) return exactly(0);
    const double scale = mica_fill_rounded(t->s.acc, 1 / (1 - t->d->dropout));
    return rounded(t, multiply(t, n, exactly(scale)));
}

static void put_output(const sequence *q, int64_t step, const number *h)
{
    const truth *t = q->t;
    const int64_t n = t->s.out, *s = t->v[MICA_RNN_Y].t.strides;
    for (int64_t j = 0; j < n; j++) {
        const number v = h ? h[j] : exactly(0);
        const int64_t at = q->side * n + j;
        const int64_t place = (step * t->s.batch + q->b) * t->s.sides * n + at;
        t->out[place] = rnn_dropped(t, q->layer, place, h ? rounded(t, v) : v);
        if (q->layer == t->s.layers - 1)
            show(t, MICA_RNN_Y, step * s[0] + q->b * s[1] + at * s[2], v);
    }
}

static int64_t place_of(const sequence *q, const mica_view *v, int64_t unit)
{
    const int64_t *s = v->t.strides;
    return (q->layer * q->t->s.sides + q->side) * s[0] + q->b * s[1] + unit * s[2];
}

static void begin(const sequence *q, int arg, int64_t units, number *state)
{
    const mica_view *v = &q->t->v[arg];
    for (int64_t j = 0; j < units; j++)
        state[j] = exactly(v->data ? mica_get(v, place_of(q, v, j)) : 0);
}

static void end(const sequence *q, int arg, int64_t units, const number *state)
{
    const mica_view *v = &q->t->v[arg];
    for (int64_t j = 0; v->data && j < units; j++) show(q->t, arg, place_of(q, v, j), state[j]);
}

static void do_sequence(sequence *q)
{
    const truth *t = q->t;
    const mica_view *lengths = &t->v[MICA_RNN_LENGTHS];
    const bool lstm = t->d->cell == MICA_RNN_CELL_LSTM, gru = t->d->cell == MICA_RNN_CELL_GRU;
    const int64_t rows = t->s.gates * t->s.hidden;
    double length = (double)t->s.steps;
    if (lengths->data)
        length = fmin(fmax(mica_get(lengths, q->b * lengths->t.strides[0]), 0), length);
    begin(q, MICA_RNN_HX, t->s.out, q->h);
    begin(q, lstm ? MICA_RNN_CX : MICA_RNN_HX, t->s.hidden, q->c);
    keep(q, q->side ? t->s.steps : 0);
    for (int64_t step = (int64_t)length; step < t->s.steps; step++) {
        put_output(q, step, NULL);
        keep_inner(q, step, NULL);
        if (q->side) keep(q, step);
        for (int64_t i = 0; i < 4 * t->s.hidden; i++)
            keep_gate(q, step, i / t->s.hidden, i % t->s.hidden, exactly(0));
    }
    for (int64_t k = 0; k < (int64_t)length; k++) {
        const int64_t step = q->side ? (int64_t)length - 1 - k : k;
        products(q, step, NULL, 0, rows);
        products(q, -1, q->h, 0, rows);
        if (lstm)
            lstm_step(q, step);
        else if (gru)
            gru_step(q, step);
        else
            plain_step(q);
        if (t->d->projection) project(q, step);
        put_output(q, step, q->made);
        for (int64_t j = 0; j < t->s.out; j++) q->h[j] = rounded(t, q->made[j]);
        keep(q, q->side ? step : step + 1);
    }
    for (int64_t k = (int64_t)length + 1; !q->side && k <= t->s.steps; k++) keep(q, k);
    end(q, MICA_RNN_HY, t->s.out, gru ? q->c : q->h);
    if (lstm) end(q, MICA_RNN_CY, t->s.hidden, q->c);
}

/* ---- all ---- */

static int64_t widest(const rnn_sizes *s)
{
    return s->out > s->hidden ? s->out : s->hidden;
}

/* Numbers of a sequence. */
static int64_t own_of(const rnn_sizes *s)
{
    return (3 + 2 * s->gates) * widest(s);
}

static void do_layer(truth *t, int64_t layer, number *memory)
{
    const rnn_sizes *s = &t->s;
    const int64_t count = s->sides * s->batch, each = own_of(s), most = widest(s);
#pragma omp parallel for num_threads(mica_cpu_threads())
    for (int64_t i = 0; i < count; i++) {
        number *m = memory + i * each;
        sequence q = {.t = t, .layer = layer, .side = i / s->batch, .b = i % s->batch};
        q.w = mica_rnn_weight(t->d, layer, q.side, MICA_RNN_PART_W);
        q.r = mica_rnn_weight(t->d, layer, q.side, MICA_RNN_PART_R);
        q.bias = mica_rnn_weight(t->d, layer, q.side, MICA_RNN_PART_B);
        q.bias_r = mica_rnn_weight(t->d, layer, q.side, MICA_RNN_PART_BR);
        q.last = mica_rnn_weight(t->d, layer, q.side, MICA_RNN_PART_S);
        q.h = m, q.c = m + most, q.made = m + 2 * most;
        q.x = m + 3 * most, q.rec = q.x + s->gates * most;
        do_sequence(&q);
    }
}

truth rnn_truth_of(const mica_rnn_desc *d, const mica_view *v)
{
    mica_contract c;
    mica_op_contract(&mica_op_rnn, d, &c);
    truth t = {.d = d, .v = v, .s = rnn_sizes_of(d), .unit = c.unit};
    const bool tf32 = d->x.dtype == MICA_F32 && d->compute == MICA_COMPUTE_TF32;
    t.growth = mica_contract_phi(&c) / c.unit;
    t.rounding = mica_dtype_unit(d->x.dtype) / c.unit;
    t.operand = tf32 ? mica_dtype_unit(MICA_F16) / c.unit : 0;
    /* Steps of 8 terms and more are cut off, parts of the sum are then added up. */
    t.sums = t.rounding > 1 || tf32 ? fmax(t.growth, (double)c.n_seq / 4 + 46) : t.growth;
    t.tiny = t.s.acc == MICA_F64 ? DBL_MIN : (double)FLT_MIN;
    t.least = d->x.dtype == MICA_F16 ? 1 : d->x.dtype == MICA_BF16 ? 0x1p-109 : t.tiny;
    t.most = t.s.acc == MICA_F64 ? DBL_MAX : (double)FLT_MAX;
    t.low = mica_fill_rounded(t.s.acc, d->clip_low);
    t.high = mica_fill_rounded(t.s.acc, d->clip_high);
    t.largest = d->x.dtype == MICA_F16 ? 65504 : t.most / 4;
    return t;
}

number *rnn_take(const truth *t, int64_t count, number **owned)
{
    enum { SMALL = 1 << 18 };
    const size_t bytes = ((size_t)count + 1) * sizeof(number);
    *owned = NULL;
    if (bytes <= SMALL) return mica_scratch_zeroed(bytes);
    *owned = mica_alloc(bytes);
    for (int arg = 0; !*owned && arg < mica_op_rnn.arg_count; arg++) {
        const mica_view *v = &t->v[arg];
        if (mica_op_dir(&mica_op_rnn, t->d, arg) != MICA_OUT || !v->data) continue;
        for (int64_t i = 0; i < mica_tensor_count(&v->t); i++)
            mica_put(v, mica_offset(&v->t, i), NAN, 0);
    }
    return *owned;
}

static void forward(truth *t)
{
    const int64_t between = t->s.steps * t->s.batch * t->s.sides * t->s.out;
    const int64_t own = t->s.sides * t->s.batch * own_of(&t->s);
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    number *owned, *memory = rnn_take(t, 2 * between + own, &owned);
    if (!memory) return;
    t->in = memory, t->out = memory + between;
    for (int64_t layer = 0; layer < t->s.layers; layer++) {
        do_layer(t, layer, memory + 2 * between);
        number *in = t->in;
        t->in = t->out, t->out = in;
    }
    mica_release(owned);
}

void rnn_reference(const void *desc, const mica_view *v, const double *scalars)
{
    const mica_rnn_desc *d = desc;
    truth t = rnn_truth_of(d, v);
    t.beta = scalars[MICA_RNN_BETA];
    if (d->pass == MICA_RNN_BWD_DATA)
        rnn_reference_slopes(&t);
    else if (d->pass == MICA_RNN_BWD_WEIGHTS)
        rnn_reference_weights(&t);
    else
        forward(&t);
}
