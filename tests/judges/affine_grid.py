#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Grids of affine maps and the gradients of the maps as PyTorch 2.15.0 has them, for tests/unit/test_affine_grid.c:

    pip install torch==2.15.0
    tests/judges/affine_grid.py > tests/judges/affine_grid.h

F.affine_grid and autograd in f64, two maps, in two and three axes, one of which may have a single output."""
import itertools

import torch
import torch.nn.functional as F

if torch.__version__.split("+")[0] != "2.15.0":
    raise SystemExit(f"torch is {torch.__version__}, the numbers are those of 2.15.0")


def numbers(t):
    return "{" + ", ".join(repr(float(v)) for v in t.detach().flatten()) + "}"


print("/* SPDX-License-Identifier: Apache-2.0\n * Written by tests/judges/affine_grid.py with PyTorch 2.15.0: the outputs, "
      "align_corners; theta,\n * dgrid, grid, dtheta. */\n/* clang-format off */")
for sizes, align in itertools.product(((3, 4), (1, 5), (2, 3, 2)), (0, 1)):
    axes = len(sizes)
    generator = torch.Generator().manual_seed(axes)
    theta = torch.randn(2, axes, axes + 1, generator=generator, dtype=torch.float64, requires_grad=True)
    grid = F.affine_grid(theta, [2, 1, *sizes], align_corners=bool(align))
    dgrid = torch.randn(grid.shape, generator=generator, dtype=torch.float64)
    grid.backward(dgrid)
    print(f'{{{axes}, "{"x".join(map(str, sizes))}", {align},')
    print("    " + ",\n    ".join(numbers(t) for t in (theta, dgrid, grid, theta.grad)) + "},")
