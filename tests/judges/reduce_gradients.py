#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gradients of reductions, and these, as autograd of torch 2.15.0 has them in double, for tests/unit/test_reduce.c:

    pip install torch==2.15.0
    tests/judges/reduce_gradients.py > tests/judges/reduce_gradients.h

Rows of 4 x 3 over their second dimension, with ties, zeros, a NaN and infinities where PyTorch's rule is ours: torch.amax
and amin share a gradient among equal elements, as torch.max(dim) does not."""
import torch

if torch.__version__.split("+")[0] != "2.15.0":
    raise SystemExit(f"torch is {torch.__version__}, the numbers are those of 2.15.0")
inf = float("inf")
PLAIN = [[0.5, -1.25, 2.0], [3.0, 3.0, -0.75], [-1.5, -1.5, -1.5], [0.25, 1e-3, -4.0]]
ZEROS = [[0.5, 0.0, 2.0], [0.0, 0.0, -0.75], [0.0, 0.0, 0.0], [-2.0, 2.0, 2.0]]
LARGE = [[1000.0, 999.0, -inf], [-1000.0, -1001.0, -1002.0], [80.0, -80.0, 0.0], [700.0, 700.0, -700.0]]
DY = torch.tensor([1.5, -2.0, 0.25, 3.0], dtype=torch.float64)
over = {"dim": 1}
KINDS = {
    "sum": (lambda x: x.sum(**over), [PLAIN]), "mean": (lambda x: x.mean(**over), [PLAIN]),
    "prod": (lambda x: x.prod(**over), [PLAIN, ZEROS]), "max": (lambda x: x.amax(**over), [PLAIN, ZEROS]),
    "min": (lambda x: x.amin(**over), [PLAIN, ZEROS]),
    "amax": (lambda x: torch.linalg.vector_norm(x, inf, **over), [PLAIN, ZEROS]),
    "norm1": (lambda x: torch.linalg.vector_norm(x, 1, **over), [PLAIN, ZEROS]),
    "norm2": (lambda x: torch.linalg.vector_norm(x, 2, **over), [PLAIN, ZEROS]),
    **{f"norm p={p}": (lambda x, p=float(p): torch.linalg.vector_norm(x, p, **over), [PLAIN, ZEROS])
       for p in ("0.5", "1.5", "3", "7.25", "-1", "-2.5", "-inf", "inf", "1", "2")},
    "logsumexp": (lambda x: x.logsumexp(**over), [PLAIN, ZEROS, LARGE]),
    "var correction=1": (lambda x: x.var(correction=1, **over), [PLAIN, ZEROS]),
    "var": (lambda x: x.var(correction=0, **over), [PLAIN]),
    "std correction=1": (lambda x: x.std(correction=1, **over), [PLAIN, ZEROS]),
}


def text(values):
    known = {inf: "INFINITY", -inf: "-INFINITY"}
    return "{" + ", ".join("NAN" if v != v else known.get(v, v.hex()) for v in values.flatten().tolist()) + "}"


print("/* SPDX-License-Identifier: Apache-2.0")
print(" * Written by tests/judges/reduce_gradients.py with torch 2.15.0: kind, x, dx, y. */")
for kind, (function, inputs) in KINDS.items():
    for values in inputs:
        x = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        y = function(x)
        dx, = torch.autograd.grad(y, x, DY)
        print(f'{{"{kind}", {text(x.detach())}, {text(dx)}, {text(y.detach())}}},')
