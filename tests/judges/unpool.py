#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fractional max pooling, max unpooling and their gradients as PyTorch 2.15.0 has them, for tests/unit/test_unpool.c:

    pip install torch==2.15.0
    tests/judges/unpool.py > tests/judges/unpool.h

Small whole numbers, no two of a plane alike; samples are written in the order of x's axes, in which PyTorch's 2-D call
does not take them."""
import random

import torch
import torch.nn.functional as F

if torch.__version__.split("+")[0] != "2.15.0":
    raise SystemExit(f"torch is {torch.__version__}, the numbers are those of 2.15.0")
random.seed(23)


def text(t):
    return "{" + ", ".join(f"{v:.17g}" for v in t.flatten().tolist()) + "}"


def shape(t):
    return "x".join(map(str, t))


def some(*sizes, dtype=torch.float64):
    n = torch.Size(sizes).numel()
    return torch.tensor([float(v) for v in random.sample(range(-n, n), n)], dtype=dtype).reshape(sizes)


def row(x_shape, y_shape, window, dtype, name):
    axes = len(window)
    x = some(*x_shape, dtype=dtype).requires_grad_()
    samples = torch.tensor([random.random() for _ in range(x_shape[0] * x_shape[1] * axes)], dtype=dtype)
    samples = samples.reshape(*x_shape[:2], axes)
    pool, unpool = getattr(F, f"fractional_max_pool{axes}d"), getattr(F, f"max_unpool{axes}d")
    y, indices = pool(x, window, output_size=y_shape, return_indices=True,
                      _random_samples=samples.flip(-1) if axes == 2 else samples)
    dy = some(*y.shape, dtype=dtype)
    y.backward(dy)
    # each index once: of several of one place PyTorch says nothing
    once = torch.arange(y[0, 0].numel()) * 2 % x[0, 0].numel()
    once = once.expand(y.shape[0] * y.shape[1], -1).reshape(y.shape).contiguous()
    v = y.detach().requires_grad_()
    z = unpool(v, once, [n - m + 1 for n, m in zip(x_shape[2:], y_shape)], 1)
    dz = some(*z.shape, dtype=dtype)
    z.backward(dz)
    numbers = [x, samples, y, indices, dy, x.grad, once, z, dz, v.grad]
    print(f'{{"{name}", "{shape(x.shape)}", "{shape(y.shape)}", "{shape(samples.shape)}", "{shape(window)}", {x.numel()}, '
          f'{y.numel()},\n    ' + ",\n    ".join(text(t) for t in numbers) + "},")


print("/* SPDX-License-Identifier: Apache-2.0\n * Written by tests/judges/unpool.py with PyTorch 2.15.0. */")
print("/* clang-format off */")
for dtype, name in ((torch.float64, "f64"), (torch.float32, "f32")):
    row((2, 2, 7, 9), (3, 4), (2, 3), dtype, name)
    row((1, 3, 9, 7), (4, 5), (3, 2), dtype, name)
    row((1, 1, 12, 5), (1, 3), (2, 2), dtype, name)
    row((1, 2, 5, 6, 7), (2, 3, 4), (2, 2, 3), dtype, name)
