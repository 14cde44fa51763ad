/* SPDX-License-Identifier: Apache-2.0
 * A unit of a cell, one text for the CPU's loops and the kernel: `real`, sigmoid_of and tanh_of are
 * the including file's. x: pre-activations of the input, r: of the state, gate by gate. */

/* i f g o; replaces c, returns h. */
RNN real rnn_lstm(const real *x, const real *r, real *c)
{
    const real i = sigmoid_of(x[0] + r[0]), f = sigmoid_of(x[1] + r[1]);
    const real g = tanh_of(x[2] + r[2]), o = sigmoid_of(x[3] + r[3]);
    *c = f * *c + i * g;
    return o * tanh_of(*c);
}

/* r z n, reset behind the product. */
RNN real rnn_gru(const real *x, const real *r, real h)
{
    const real reset = sigmoid_of(x[0] + r[0]), z = sigmoid_of(x[1] + r[1]);
    const real n = tanh_of(x[2] + reset * r[2]);
    return n + z * (h - n);
}

RNN real rnn_plain(int relu, real v)
{
    if (relu) return v < 0 ? 0 : v; /* NaN stays */
    return tanh_of(v);
}
