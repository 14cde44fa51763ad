#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Scans and their gradients as PyTorch 2.15.0 has them, for tests/unit/test_scan.c:

    pip install torch==2.15.0
    tests/judges/scan.py > tests/judges/scan.h

cumsum, cumprod, cummax, cummin, logcumsumexp and autograd, in f64, over 2 x 12 numbers with ties, zeros, NaN and
infinities. What PyTorch has no name for is made of what it has: reverse scans are scans of flipped tensors, exclusive
ones those of the tensor behind a first neutral element, segments those of slices. Results that PyTorch leaves
undefined are left out: gradients of logcumsumexp where it is -inf, which PyTorch has NaN for."""
import math
import random

import torch

if torch.__version__.split("+")[0] != "2.15.0":
    raise SystemExit(f"torch is {torch.__version__}, the numbers are those of 2.15.0")

ROWS, N = 2, 12
INF, NAN = math.inf, math.nan
random.seed(41)


def some(*special):
    """Ties among a few values, and a special one in each of the first rows."""
    values = [[random.choice([-2.5, -1, -0.25, 0.5, 1, 1.5, 2, 3]) for _ in range(N)] for _ in range(ROWS)]
    for row, (place, value) in enumerate(special):
        values[row][place] = value
    return values


FLAGS = [[0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0], [1, 1] + [0] * (N - 3) + [1]]
INPUTS = {"sum": [some()], "prod": [some((4, 0.0), (5, 0.0)), some((2, 0.0))],
          "max": [some(), some((4, NAN), (5, INF))], "min": [some((2, -0.0)), some((4, NAN), (5, -INF))],
          "logsumexp": [some(), some((5, INF), (2, NAN)), some((0, 800.0), (4, -800.0)), some((6, -INF))]}
NONE = {"sum": 0.0, "prod": 1.0, "max": -INF, "min": INF, "logsumexp": -INF}


def scanned(kind, x):
    """Of a vector: values and indices, or None."""
    if kind in ("max", "min"):
        return (torch.cummax if kind == "max" else torch.cummin)(x, 0)
    return {"sum": torch.cumsum, "prod": torch.cumprod, "logsumexp": torch.logcumsumexp}[kind](x, 0), None


def segment(kind, x, exclusive):
    if not exclusive:
        return scanned(kind, x)
    first = torch.tensor([NONE[kind]], dtype=x.dtype)
    if len(x) == 1:
        return first, torch.tensor([-1])
    y, index = scanned(kind, x[:-1])
    y = torch.cat([first, y])
    return y, None if index is None else torch.cat([torch.tensor([-1]), index])


def row(kind, x, flags, exclusive, reverse):
    starts = [0] + [i for i in range(1, N) if flags and flags[i]] + [N]
    ys, indices = [], []
    for a, b in zip(starts, starts[1:]):
        part = x[a:b].flip(0) if reverse else x[a:b]
        y, index = segment(kind, part, exclusive)
        if index is not None:
            at = (b - 1 - index) if reverse else a + index
            indices.append((torch.where(index < 0, index, at)).flip(0) if reverse else torch.where(index < 0, index, at))
        ys.append(y.flip(0) if reverse else y)
    return torch.cat(ys), torch.cat(indices) if indices else torch.zeros(N)


def text(values):
    def one(v):
        v = float(v)
        return "NAN" if math.isnan(v) else ("-" if v < 0 else "") + "INFINITY" if math.isinf(v) else repr(int(v) if v == int(v) else v)

    return "{" + ", ".join(one(v) for v in values) + "}"


def fine(x):
    return bool(torch.isfinite(x).all())


print("/* SPDX-License-Identifier: Apache-2.0\n * Written by tests/judges/scan.py with PyTorch 2.15.0: kind, segmented, exclusive,"
      "\n * reverse, whether there is a gradient; x, flags, dy, y, index, dx of a row. */"
      "\n/* clang-format off */")
for kind, inputs in INPUTS.items():
    for values in inputs:
        for bits in range(8):
            segmented, exclusive, reverse = bits & 1, bits >> 1 & 1, bits >> 2
            for r in range(ROWS):
                flags = FLAGS[r] if segmented else []
                x = torch.tensor(values[r], dtype=torch.float64, requires_grad=True)
                dy = torch.tensor([random.uniform(-2, 2) for _ in range(N)], dtype=torch.float64)
                y, index = row(kind, x, flags, exclusive, reverse)
                dx, finite = torch.zeros(N), fine(x)
                if finite:
                    kept = torch.isfinite(y)  # what is constant has no gradient
                    (dx,) = torch.autograd.grad(y[kept], x, dy[kept], allow_unused=True)
                print(f'{{"{kind}", {segmented}, {exclusive}, {reverse}, {int(finite)},')
                print(",\n".join("    " + text(v) for v in (x.detach(), flags or [0] * N, dy, y.detach(), index, dx)) + "},")
