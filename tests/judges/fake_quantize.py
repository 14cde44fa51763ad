#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes fake_quantize.h: torch.fake_quantize_per_tensor_affine and _per_channel_affine and their gradients as PyTorch
2.15.0 has them on a CPU.

    pip install torch==2.15.0
    tests/judges/fake_quantize.py >tests/judges/fake_quantize.h

Each row is fields of a line, scales, zero points, the result and the gradient of its sum; all rows have one x of 4 x 6:
halves of scales whose reciprocals are rounded among it, and in the first row NaN and infinities, which the second function
treats otherwise and does not see."""
import math

import torch

if not torch.__version__.startswith("2.15.0"):
    raise SystemExit(f"torch is {torch.__version__}, the judge is 2.15.0")
x = torch.tensor([[math.nan, math.inf, -math.inf, 637.5, -1147.5, 2167.5],
                  [0.5, 1.5, -2.5, 126.5, 127.5, -128.5],
                  [-0.0, 0.1, 0.15, -0.35, 0.25, 12.75],
                  [1e30, -1e30, 3.3, -3.3, 1e-30, 7.7]])


def listed(t):
    return "{" + ", ".join({"nan": "NAN", "inf": "INFINITY", "-inf": "-INFINITY"}.get(repr(v), repr(v))
                           for v in t.flatten().tolist()) + "}"


print("/* SPDX-License-Identifier: Apache-2.0\n * Written by fake_quantize.py: PyTorch's results and gradients. */")
print("/* clang-format off */")
print(f"static const double special[] = {listed(x)};")
finite = torch.where(torch.isfinite(x) & (x.abs() < 1e10), x, torch.full_like(x, 42.5))
print(f"static const double ordinary[] = {listed(finite)};")
print("static const judgement judgements[] = {")
for kind, low, high in ("s8", -128, 127), ("s8", -127, 127), ("u8", 0, 255), ("s4", -8, 7), ("u8", 3, 200):
    for scale, zero in (1.0, 0), (255.0, 5), (0.1, 3), (0.37, 3):
        leaf = x.clone().requires_grad_()
        y = torch.fake_quantize_per_tensor_affine(leaf, scale, zero if low <= zero else low, low, high)
        y.sum().backward()
        print(f'{{"type={kind} low={low} high={high} scale=f32:1 zero=f32:1", special, {{{scale}}}, {{{max(zero, low)}}},\n '
              f"{listed(y.detach())},\n {listed(leaf.grad)}}},")
    scales, zeros = torch.tensor([255.0, 1.0, 0.1, 0.7]), torch.tensor([4, 3, 5, 7], dtype=torch.int32)
    leaf = finite.clone().requires_grad_()
    y = torch.fake_quantize_per_channel_affine(leaf, scales, zeros, 0, low, high)
    y.sum().backward()
    print(f'{{"type={kind} low={low} high={high} scale=f32:4x1 zero=s8:4x1", ordinary, {listed(scales)}, {listed(zeros)},\n '
          f"{listed(y.detach())},\n {listed(leaf.grad)}}},")
print("};")
