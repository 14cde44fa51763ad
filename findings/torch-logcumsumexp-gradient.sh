#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The gradient of torch.logcumsumexp (PyTorch 2.15.0) is NaN for an element that is -infinity as long as nothing
# finite stands before it, though each of its results from the first finite one on does not depend on it: the gradient
# there is 0, and torch.logsumexp of the same numbers gives 0. Log-probabilities begin with -infinity wherever a first
# state is impossible, and the NaN then reaches every weight behind them.
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
import math
import sys

import torch

assert torch.__version__.split("+")[0] == "2.15.0", torch.__version__


def gradient(function):
    x = torch.tensor([-math.inf, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
    function(x).backward()
    return x.grad.tolist()


running = gradient(lambda x: torch.logcumsumexp(x, 0)[2])
whole = gradient(lambda x: torch.logsumexp(x, 0))
print("d logcumsumexp(x)[2] / dx:", running)
print("d logsumexp(x) / dx:      ", whole)
right = [0, 1 / (1 + math.e), math.e / (1 + math.e)]
near = all(abs(a - b) < 1e-12 for a, b in zip(whole, right)) and all(abs(a - b) < 1e-12 for a, b in zip(running[1:], right[1:]))
sys.exit(not (near and math.isnan(running[0])))
PYTHON
