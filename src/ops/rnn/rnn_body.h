/* SPDX-License-Identifier: Apache-2.0
 * A unit of a cell, one text for the CPU's loops and the kernel: `real`, sigmoid_of and tanh_of are
 * the including file's. x: pre-activations of the input, r: of the state, gate by gate. */

/* i f g o, which gates receives; replaces c, returns h. */
RNN real rnn_lstm(const real *x, const real *r, real *c, real *gates)
{
    const real i = sigmoid_of(x[0] + r[0]), f = sigmoid_of(x[1] + r[1]);
    const real g = tanh_of(x[2] + r[2]), o = sigmoid_of(x[3] + r[3]);
    gates[0] = i, gates[1] = f, gates[2] = g, gates[3] = o;
    *c = f * *c + i * g;
    return o * tanh_of(*c);
}

/* r z n, reset behind the product; gates receives these and R h + r of n. */
RNN real rnn_gru(const real *x, const real *r, real h, real *gates)
{
    const real reset = sigmoid_of(x[0] + r[0]), z = sigmoid_of(x[1] + r[1]);
    const real n = tanh_of(x[2] + reset * r[2]);
    gates[0] = reset, gates[1] = z, gates[2] = n, gates[3] = r[2];
    return n + z * (h - n);
}

RNN real rnn_plain(int relu, real v)
{
    if (relu) return v < 0 ? 0 : v; /* NaN stays */
    return tanh_of(v);
}

/* Gradients of what is in front of the functions, to dz, by that of h; before: c before the step.
 * dc becomes the gradient of that. */
RNN void rnn_lstm_slopes(const real *gates, real c, real before, real dh, real *dc, real *dz)
{
    const real i = gates[0], f = gates[1], g = gates[2], o = gates[3], t = tanh_of(c);
    const real all = *dc + dh * o * (1 - t * t);
    dz[0] = all * g * i * (1 - i);
    dz[1] = all * before * f * (1 - f);
    dz[2] = all * i * (1 - g * g);
    dz[3] = dh * t * o * (1 - o);
    *dc = all * f;
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

/* h: behind the step. */
RNN real rnn_plain_slope(int relu, real h, real dh)
{
    if (relu) return h > 0 ? dh : 0;
    return dh * (1 - h * h);
}
