#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The gradient of torch.atan2 (PyTorch 2.15.0, CPU) divides by x^2 + y^2 in the tensors' own type. In f16 it is 0 at (300, 300),
# where it is 0.00167, and 0 at (0.0001, 0.0001), where it is 5000; in f32 infinite at 1e-20 and 3e-23, and 0 at 1e-25 and from
# 1e20 on; in f64 the same at 1e-155, 1e-170 and 1e155. That of atan(y / x), the same function there, has all digits.
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

assert torch.__version__.split("+")[0] == "2.15.0", torch.__version__


def slope(f, value, dtype):
    y, x = (torch.tensor(value, dtype=dtype, requires_grad=True) for _ in range(2))
    return torch.autograd.grad(f(y, x), y)[0].item()


found = []
for dtype, values in (torch.float16, (1e-4, 1.0, 300.0)), (torch.float32, (1e-25, 3e-23, 1e-20, 1.0, 1e20)), (
        torch.float64, (1e-170, 1e-155, 1.0, 1e155)):
    for value in values:
        theirs, quotient = slope(torch.atan2, value, dtype), slope(lambda y, x: torch.atan(y / x), value, dtype)
        found.append(theirs)
        print(f"{dtype} at ({value:g}, {value:g}): {theirs:g}, of atan(y / x) {quotient:g}, by hand {0.5 / value:g}")
        assert abs(quotient * value / 0.5 - 1) < 2e-3
inf = float("inf")
sys.exit(found != [0, 0.5, 0, 0, inf, inf, 0.5, 0, 0, inf, 0.5, 0])
PYTHON
