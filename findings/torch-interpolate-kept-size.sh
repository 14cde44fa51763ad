#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# F.interpolate (PyTorch 2.15.0, CPU) with a scale that leaves the size as it is, 6 elements by 1.1: bicubic resizes and
# its gradient copies; with antialias values are copied and the gradient is that of resizing. gradcheck fails for all
# three; bilinear without antialias copies both ways.
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




def seen(**options):
    x = torch.randn(1, 1, 6, 6, dtype=torch.float64, requires_grad=True)
    resized = F.interpolate(x, scale_factor=1.1, **options)
    gradient, = torch.autograd.grad(resized.sum(), x)
    copies = torch.equal(resized, x), torch.equal(gradient, torch.ones_like(gradient))
    right = torch.autograd.gradcheck(lambda t: F.interpolate(t, scale_factor=1.1, **options), (x,), raise_exception=False)
    print(f"{options}: values copied {copies[0]}, gradients copied {copies[1]}, gradcheck {right}")
    return *copies, right


torch.manual_seed(0)
found = [seen(mode="bilinear"), seen(mode="bicubic"), seen(mode="bilinear", antialias=True), seen(mode="bicubic", antialias=True)]
sys.exit(found != [(True, True, True), (False, True, False), (True, False, False), (True, False, False)])
PYTHON
