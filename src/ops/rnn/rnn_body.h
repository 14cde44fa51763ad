/* SPDX-License-Identifier: Apache-2.0
 * A unit of a cell, one text for the CPU's loops and the kernel: `real`, sigmoid_of and tanh_of are
 * the including file's. x: pre-activations of the input, r: of the state, gate by gate. */

/* What is clipped: enum mica_rnn_clip, known when this is compiled. */
typedef struct rnn_clip {
    int kind, nan;
    real low, high;
} rnn_clip;
enum { RNN_CLIP_NONE, RNN_CLIP_CELLS, RNN_CLIP_GATES };

RNN real rnn_clipped(real v, rnn_clip c)
{
    if (c.nan) return v > c.low ? (v < c.high ? v : c.high) : c.low;
    return v < c.low ? c.low : v > c.high ? c.high : v;
}

RNN real rnn_gate(real v, rnn_clip c)
{
    return c.kind == RNN_CLIP_GATES ? rnn_clipped(v, c) : v;
}

/* i f g o, which gates receives; replaces c, returns h. */
RNN real rnn_lstm(const real *x, const real *r, rnn_clip clip, real *c, real *gates)
{
    const real i = sigmoid_of(rnn_gate(x[0] + r[0], clip));
    const real f = sigmoid_of(rnn_gate(x[1] + r[1], clip));
    const real g = tanh_of(rnn_gate(x[2] + r[2], clip)),
               o = sigmoid_of(rnn_gate(x[3] + r[3], clip));
    gates[0] = i, gates[1] = f, gates[2] = g, gates[3] = o;
    *c = f * *c + i * g;
    if (clip.kind == RNN_CLIP_CELLS) *c = rnn_clipped(*c, clip);
    return o * tanh_of(*c);
}

/* The same with peepholes p of i, o and f; o sees the new c. */
RNN real rnn_lstm_peeping(const real *x, const real *r, const real *p, rnn_clip clip, real *c,
                          real *gates)
{
    const real before = *c, g = tanh_of(rnn_gate(x[2] + r[2], clip));
    const real i = sigmoid_of(rnn_gate(x[0] + r[0] + p[0] * before, clip));
    const real f = sigmoid_of(rnn_gate(x[1] + r[1] + p[2] * before, clip));
    real after = f * before + i * g;
    if (clip.kind == RNN_CLIP_CELLS) after = rnn_clipped(after, clip);
    const real o = sigmoid_of(rnn_gate(x[3] + r[3] + p[1] * after, clip));
    gates[0] = i, gates[1] = f, gates[2] = g, gates[3] = o;
    *c = after;
    return o * tanh_of(after);
}

/* r z n, reset behind the product; gates receives these and R h + r of n. */
RNN real rnn_gru(const real *x, const real *r, rnn_clip clip, real h, real *gates)
{
    const real reset = sigmoid_of(rnn_gate(x[0] + r[0], clip));
    const real z = sigmoid_of(rnn_gate(x[1] + r[1], clip));
    const real n = tanh_of(rnn_gate(x[2] + reset * r[2], clip));
    gates[0] = reset, gates[1] = z, gates[2] = n, gates[3] = r[2];
    return n + z * (h - n);
}

RNN real rnn_plain(int relu, rnn_clip clip, real v)
{
    const real in = rnn_gate(v, clip);
    if (relu) return in < 0 ? 0 : in; /* NaN stays */
    return tanh_of(in);
}

/* Gradients of what is in front of the functions, to dz, by that of h; before: c before the step.
 * dc becomes the gradient of that. */
RNN void rnn_lstm_slopes(const real *gates, rnn_clip clip, real c, real before, real dh, real *dc,
                         real *dz)
{
    const real i = gates[0], f = gates[1], g = gates[2], o = gates[3], t = tanh_of(c);
    real all = *dc + dh * o * (1 - t * t);
    if (clip.kind == RNN_CLIP_CELLS && (c <= clip.low || c >= clip.high)) all = 0;
    dz[0] = all * g * i * (1 - i);
    dz[1] = all * before * f * (1 - f);
    dz[2] = all * i * (1 - g * g);
    dz[3] = dh * t * o * (1 - o);
    *dc = all * f;
}

/* The same with peepholes p of i, o and f: c has gradients of o's, c before the step of i's and
 * f's. */
RNN void rnn_lstm_peeping_slopes(const real *gates, const real *p, rnn_clip clip, real c,
                                 real before, real dh, real *dc, real *dz)
{
    const real i = gates[0], f = gates[1], g = gates[2], o = gates[3], t = tanh_of(c);
    dz[3] = dh * t * o * (1 - o);
    real all = *dc + dh * o * (1 - t * t) + p[1] * dz[3];
    if (clip.kind == RNN_CLIP_CELLS && (c >= clip.high || c <= clip.low)) all = 0;
    dz[0] = all * g * i * (1 - i);
    dz[1] = all * f * (1 - f) * before;
    dz[2] = all * i * (1 - g * g);
    *dc = all * f + p[0] * dz[0] + p[2] * dz[1];
}

/* h: before the step. Returns what of its gradient passes by the product. */
RNN real rnn_gru_slopes(const real *gates, real h, real dh, real *dz)
{
    const real reset = gates[0], z = gates[1], n = gates[2];
    const real dn = dh * (1 - z) * (1 - n * n);
    dz[0] = dn * gates[3] * reset * (1 - reset);
    dz[1] = dh * (h - n) * z * (1 - z);
    dz[2] = dn;
    dz[3] = dn * reset;
    return dh * z;
}

/* With reset_before, up to dz of n; then by the gradient of what was r h the rest. */
RNN real rnn_gru_before(const real *gates, real h, real dh, real *dz)
{
    const real z = gates[1], n = gates[2];
    dz[1] = dh * (h - n) * z * (1 - z);
    dz[2] = dh * (1 - z) * (1 - n * n);
    return dh * z;
}

RNN real rnn_gru_reset(real reset, real h, real dreset, real *dz)
{
    dz[0] = dreset * h * reset * (1 - reset);
    return dreset * reset;
}

/* h: behind the step. */
RNN real rnn_plain_slope(int relu, real h, real dh)
{
    if (relu) return h > 0 ? dh : 0;
    return dh * (1 - h * h);
}
