#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Norms over windows and their gradients as PyTorch 2.15.0 has them, for tests/unit/test_pool.c:

    pip install torch==2.15.0
    tests/judges/pool.py > tests/judges/pool.h

LPPool (sums of signed powers, windows cut short rescaled) and, for sums of |x|^p, torch.linalg.vector_norm over the
windows that Tensor.unfold makes; f64, numbers without zeros. PyTorch's gradients are NaN where a sum is not positive:
such rows are left out."""
import random

import torch
import torch.nn.functional as F

if torch.__version__.split("+")[0] != "2.15.0":
    raise SystemExit(f"torch is {torch.__version__}, the numbers are those of 2.15.0")
random.seed(17)
torch.set_default_dtype(torch.float64)


def text(t):
    return "{" + ", ".join(repr(v) for v in t.flatten().tolist()) + "}"


def row(fields, x, pool):
    x.requires_grad_()
    y = pool(x)
    dy = torch.tensor([random.choice([-2.5, -1, 0.5, 1, 3]) for _ in range(y.numel())]).reshape(y.shape)
    y.backward(dy)
    if bool(torch.isfinite(x.grad).all()) and bool(torch.isfinite(y).all()):
        print(f'{{"{fields}", {x.numel()}, {y.numel()},\n    {text(x)},\n    {text(dy)},\n    {text(y)},\n    {text(x.grad)}}},')


def some(*shape, positive=False):
    n = torch.Size(shape).numel()
    values = [random.choice([0.25, 0.75, 1.5, 2, 3.25, 5]) * (1 if positive else random.choice([-1, 1])) for _ in range(n)]
    return torch.tensor(values).reshape(shape)


def norms(p, kernel, stride):
    def pool(x):
        windows = x
        for axis, (k, s) in enumerate(zip(kernel, stride)):
            windows = windows.unfold(2 + axis, k, s)
        return torch.linalg.vector_norm(windows.flatten(x.dim()), p, -1)
    return pool


print("/* SPDX-License-Identifier: Apache-2.0\n * Written by tests/judges/pool.py with PyTorch 2.15.0: fields, elements of x and y; x, dy, y, dx. */")
print("/* clang-format off */")
for p in (1, 2, 3, 4, 1.5):
    row(f"x=f64:1x1x9 window=3 stride=2 p={p}", some(1, 1, 9), norms(p, (3,), (2,)))
    row(f"x=f64:1x2x3x5 window=2x3 stride=1x2 p={p}", some(1, 2, 3, 5), norms(p, (2, 3), (1, 2)))
for p in (1, 2, 4):
    row(f"x=f64:1x1x8 window=3 stride=2 ceil=1 p={p} signed_powers=1 rescale=1", some(1, 1, 8),
        lambda x: F.lp_pool1d(x, p, 3, 2, True))
for p in (1, 3, 5):
    row(f"x=f64:1x2x4x4 window=3x3 stride=2x2 ceil=1 p={p} signed_powers=1 rescale=1", some(1, 2, 4, 4, positive=True),
        lambda x: F.lp_pool2d(x, p, 3, 2, True))
row("x=f64:1x1x2x3x3 window=2x2x2 stride=1x1x1 p=2 signed_powers=1 rescale=1", some(1, 1, 2, 3, 3),
    lambda x: F.lp_pool3d(x, 2, 2, 1))
