#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Samples by grids and their gradients as PyTorch 2.15.0 has them, for tests/unit/test_grid_sample.c:

    pip install torch==2.15.0
    tests/judges/grid_sample.py > tests/judges/grid_sample.h

F.grid_sample and autograd in f64, every mode, padding and align_corners in two axes and, but for bicubic, in three.
Coordinates lie inside, on borders, on centres, between two elements where nearest must decide, and far beside."""
import itertools
import random

import torch
import torch.nn.functional as F

if torch.__version__.split("+")[0] != "2.15.0":
    raise SystemExit(f"torch is {torch.__version__}, the numbers are those of 2.15.0")

random.seed(7)
SIZES = {2: (4, 3), 3: (2, 4, 3)}  # of x; one sample, two channels
OUTPUTS = 10


def coordinate(size, align):
    """A coordinate of -1 to 1 by the element that it means."""
    at = random.choice([random.uniform(-0.4, size - 0.6), random.uniform(-0.4, size - 0.6), random.randrange(size),
                        random.randrange(size) + 0.5, -0.5, size - 0.5, -1.5, random.uniform(-3 * size, 4 * size)])
    return 2 * at / (size - 1) - 1 if align else (2 * at + 1) / size - 1


def numbers(t):
    return "{" + ", ".join(repr(float(v)) for v in t.detach().flatten()) + "}"


print("/* SPDX-License-Identifier: Apache-2.0\n * Written by tests/judges/grid_sample.py with PyTorch 2.15.0: axes, mode, "
      "padding, align_corners;\n * x, grid, dy, y, dx, dgrid. */\n/* clang-format off */")
for axes, mode, padding, align in itertools.product(
        (2, 3), ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (0, 1)):
    if axes == 3 and mode == "bicubic":
        continue
    sizes = SIZES[axes]
    generator = torch.Generator().manual_seed(axes)
    x = torch.randn(1, 2, *sizes, generator=generator, dtype=torch.float64, requires_grad=True)
    grid = torch.tensor([[coordinate(sizes[axes - 1 - i], align) for i in range(axes)] for _ in range(OUTPUTS)],
                        dtype=torch.float64).reshape(1, *[1] * (axes - 2), 2, 5, axes).requires_grad_()
    y = F.grid_sample(x, grid, mode, padding, bool(align))
    dy = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    y.backward(dy)
    print(f'{{{axes}, "{mode}", "{padding}", {align},')
    print("    " + ",\n    ".join(numbers(t) for t in (x, grid, dy, y, x.grad, grid.grad)) + "},")
