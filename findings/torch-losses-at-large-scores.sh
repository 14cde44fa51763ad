#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two of PyTorch's losses (2.15.0, CPU) take logarithms of what overflows or vanishes, though the library has the
# function that does not. soft_margin_loss is log(1 + exp(-target input)) as written: infinite below -88.7 in f32, and its
# gradient NaN, where softplus and binary_cross_entropy_with_logits give the score itself and -1. binary_cross_entropy
# holds its logarithms at -100 or more, so that a probability of 0 or 1 costs 100 at most; but its gradient
# towards the target is not of the loss that it reports: it is infinite there.
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
import torch.nn.functional as F

assert torch.__version__.split("+")[0] == "2.15.0", torch.__version__
x = torch.tensor([-200.0, -80.0], requires_grad=True)
loss = F.soft_margin_loss(x, torch.ones(2), reduction="none")
loss.sum().backward()
print("soft_margin_loss of -200, -80:", loss.tolist(), "gradient", x.grad.tolist())
print("softplus of 200, 80:          ", F.softplus(-x).tolist())
p, target = torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0], requires_grad=True)
bce = F.binary_cross_entropy(p, target, reduction="none")
bce.sum().backward()
worst = F.binary_cross_entropy(p, 1 - target.detach(), reduction="none")
print("binary_cross_entropy of 0, 1: ", bce.tolist(), "at most", worst.tolist(), "gradient of the target", target.grad.tolist())
sys.exit(not (loss.tolist() == [math.inf, 80.0] and math.isnan(x.grad[0]) and F.softplus(-x).tolist() == [200.0, 80.0]
              and worst.tolist() == [100.0, 100.0] and target.grad.tolist() == [math.inf, -math.inf]))
PYTHON
