#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Variants of softmax as mpmath 1.3.0 has them, at 50 digits, for tests/unit/test_softmax.c:

    tests/judges/softmax.py > tests/judges/softmax.h

By the definitions: the exponentials' shares, and Algorithm 1 of Martins and Astudillo, "From softmax to sparsemax"
(2016), with the Jacobians of their section 2.5; not by the passes of src/ops/softmax/variants."""
import random

import mpmath as mp

if mp.__version__ != "1.3.0":
    raise SystemExit(f"mpmath is {mp.__version__}, the numbers are those of 1.3.0")
mp.mp.dps = 50
N = 6
draw = random.Random(41)


def softmax(z):
    e = [mp.exp(v) for v in z]
    return [v / sum(e) for v in e]


def sparsemax(z):
    ordered = sorted(z, reverse=True)
    k = max(k for k in range(1, len(z) + 1) if 1 + k * ordered[k - 1] > sum(ordered[:k]))
    threshold = (sum(ordered[:k]) - 1) / k
    return [max(v - threshold, mp.mpf(0)) for v in z]


def logarithm(z):
    return [mp.log(v) for v in softmax(z)]


def jacobian(kind, z):
    n = range(len(z))
    if kind is sparsemax:
        s = [mp.mpf(v > 0) for v in sparsemax(z)]
        return [[(s[i] if i == j else 0) - s[i] * s[j] / sum(s) for j in n] for i in n]
    p = softmax(z)
    if kind is logarithm:
        return [[(i == j) - p[j] for j in n] for i in n]
    return [[p[i] * ((i == j) - p[j]) for j in n] for i in n]


def row(fields, kind, scale, masked, added):
    number = lambda: mp.mpf(draw.uniform(-1, 1))
    x, more, dy = ([number() for _ in range(N)] for _ in range(3))
    keep = [i for i in range(N) if not masked or (masked < N and (i * 5 + masked) % 3)]
    if masked == N:
        keep = []
    scale = mp.mpf(scale)
    z = [x[i] * scale + (more[i] if added else 0) for i in keep]
    out = -mp.inf if kind is logarithm else mp.mpf(0)
    y, dx = [out] * N, [mp.mpf(0)] * N
    if keep:
        jac = jacobian(kind, z)
        for a, i in enumerate(keep):
            y[i] = kind(z)[a]
            dx[i] = scale * sum(jac[b][a] * dy[j] for b, j in enumerate(keep))
    mask = [(more[i] if added else mp.mpf(1)) if i in keep else (-mp.inf if added else mp.mpf(0)) for i in range(N)]
    text = lambda values: "{" + ", ".join("-INFINITY" if v == -mp.inf else float(v).hex() for v in values) + "}"
    described = f"{fields} mask={'f64' if added else 'u8'}:{N}"
    print(f'{{"{described}", {text(x)}, {text(mask)}, {text(y)}, {text(dy)}, {text(dx)}}},')


print("/* SPDX-License-Identifier: Apache-2.0")
print(" * Written by tests/judges/softmax.py with mpmath 1.3.0: fields, x, mask, y, dy, dx. */")
for masked in 0, 1, 2, N:
    for added in False, True:
        row("scale=0.75", softmax, 0.75, masked, added)
        row("log=1 scale=-1.5", logarithm, -1.5, masked, added)
        row("kind=sparsemax scale=0.5", sparsemax, 0.5, masked, added)
        row("kind=sparsemax scale=4", sparsemax, 4, masked, added)
