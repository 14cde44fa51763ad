#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Columns and their sums as PyTorch 2.15.0 has them, for tests/unit/test_im2col.c:

    pip install torch==2.15.0
    tests/judges/im2col.py > tests/judges/im2col.h

F.unfold and F.fold in f64 of numbers that are exact in every type."""
import torch
import torch.nn.functional as F

if torch.__version__.split("+")[0] != "2.15.0":
    raise SystemExit(f"torch is {torch.__version__}, the numbers are those of 2.15.0")

# N, C, H, W; kernel, stride, pad, dilation
ROWS = [((2, 2, 4, 5), (3, 2), (1, 1), (0, 0), (1, 1)), ((1, 2, 5, 4), (2, 3), (2, 1), (1, 2), (1, 1)),
        ((1, 1, 7, 6), (2, 2), (3, 2), (2, 0), (2, 3)), ((1, 2, 6, 7), (3, 3), (2, 2), (2, 2), (2, 2)),
        ((1, 1, 3, 3), (1, 1), (2, 2), (0, 0), (1, 1)), ((1, 2, 5, 5), (3, 4), (3, 2), (3, 3), (3, 2))]


def numbers(t):
    return "{" + ", ".join(f"{float(v):g}" for v in t.flatten()) + "}"


def text(values):
    return "x".join(map(str, values))


print("/* SPDX-License-Identifier: Apache-2.0\n * Written by tests/judges/im2col.py with PyTorch 2.15.0: sizes of the image "
      "and of its columns, fields; numbers\n * of both; x, its columns, dy, its sums. */\n/* clang-format off */")
generator = torch.Generator().manual_seed(5)
for sizes, kernel, stride, pad, dilation in ROWS:
    x = torch.randint(-9, 10, sizes, generator=generator).double()
    y = F.unfold(x, kernel, dilation, pad, stride)
    dy = torch.randint(-9, 10, y.shape, generator=generator).double()
    dx = F.fold(dy, sizes[2:], kernel, dilation, pad, stride)
    fields = f"kernel={text(kernel)} stride={text(stride)} pad={text(pad)} dilation={text(dilation)}"
    print(f'{{"{text(sizes)}", "{text(y.shape)}", "{fields}", {x.numel()}, {y.numel()},')
    print("    " + ",\n    ".join(numbers(t) for t in (x, y, dy, dx)) + "},")
