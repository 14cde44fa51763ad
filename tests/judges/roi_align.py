#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Regions and their gradients as torchvision 0.29.2 has them, for tests/unit/test_roi_align.c:

    pip install torch==2.15.0 torchvision==0.29.2
    tests/judges/roi_align.py > tests/judges/roi_align.h

torchvision.ops.roi_align and roi_pool and autograd in f64: both rules of `aligned`, samples by length and given, regions
inside, across borders, of no area, the wrong way round, and so large that most of them lies beside x."""
import itertools

import torch
import torchvision
from torchvision.ops import roi_align

if torchvision.__version__.split("+")[0] != "0.29.2":
    raise SystemExit(f"torchvision is {torchvision.__version__}, the numbers are those of 0.29.2")

ROIS = [[0, 0.3, 0.9, 4.4, 3.7], [1, -1.5, -0.75, 2.5, 6.2], [1, 3, 2, 3, 2], [0, 4.1, 3.3, 1.2, 0.6], [1, 1.5, 0.5, 2.5, 4.5],
        [0, -9, -7, 21, 13], [0, 8, 8, 9, 9.5]]


def numbers(t):
    return "{" + ", ".join(repr(float(v)) for v in t.detach().flatten()) + "}"


print("/* SPDX-License-Identifier: Apache-2.0\n * Written by tests/judges/roi_align.py with torchvision 0.29.2: mode, aligned, "
      "sampling, scale; x, rois,\n * dy, y, argmax (of avg: 0), dx. */\n/* clang-format off */")
generator = torch.Generator().manual_seed(5)
rows = [("avg", *row) for row in itertools.product((0, 1), (0, 1, 3), (1.0, 0.6))] + [("pool", 0, 0, 1.0), ("pool", 0, 0, 0.6)]
for mode, aligned, sampling, scale in rows:
    x = torch.randn(2, 2, 5, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    rois = torch.tensor(ROIS, dtype=torch.float64)
    if mode == "avg":
        y = roi_align(x, rois, (2, 3), scale, sampling, bool(aligned))
        argmax = torch.zeros_like(y)
    else:
        y, argmax = torch.ops.torchvision.roi_pool(x, rois, scale, 2, 3)
    dy = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    y.backward(dy)
    print(f'{{"{mode}", {aligned}, {sampling}, {scale},')
    print("    " + ",\n    ".join(numbers(t) for t in (x, rois, dy, y, argmax, x.grad)) + "},")
