#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# F.lp_pool2d (PyTorch 2.15.0, CPU) raises the elements themselves, not their magnitudes: of a window of four -1 the norm of
# order 1 is -4, of order 3 and 1.5 it is NaN, and elements of unlike sign cancel: of 3, -3, 1, 1 the norm of order 3 is
# that of 1, 1, and the gradient of the 3 is 5.7. torch.linalg.vector_norm of the same numbers, and ONNX's LpPool by its
# text, take magnitudes: 4, 1.587, 2.52 and 3.826, gradients of at most 1. Only an even order is a norm there.
#
# PYTHON: one that has this PyTorch; without it 3 GB are fetched.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" -q install torch==2.15.0
    PYTHON=$work/venv/bin/python
fi
"$PYTHON" - <<'PYTHON'
import sys

import torch
import torch.nn.functional as F

assert torch.__version__.split("+")[0] == "2.15.0", torch.__version__
ones, mixed = -torch.ones(1, 1, 2, 2), torch.tensor([[[[3.0, -3.0], [1.0, 1.0]]]])
found = []
for x, order in (ones, 1), (ones, 2), (ones, 3), (ones, 1.5), (mixed, 3):
    x = x.clone().requires_grad_()
    pooled = F.lp_pool2d(x, order, 2).sum()
    norm = torch.linalg.vector_norm(x, order)
    gradients = [torch.autograd.grad(y, x)[0].abs().max().item() for y in (pooled, norm)]
    found.append([round(v, 3) for v in (pooled.item(), norm.item(), *gradients)])
    print(f"order {order} of {x.flatten().tolist()}: pooled {found[-1][0]}, norm {found[-1][1]}, largest gradients {found[-1][2:]}")
wanted = "[[-4.0, 4.0, 1.0, 1.0], [2.0, 2.0, 0.5, 0.5], [nan, 1.587, nan, 0.397], [nan, 2.52, nan, 0.63], [1.26, 3.826, 5.67, 0.615]]"
sys.exit(str(found) != wanted)
PYTHON
