#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# F.cross_entropy (PyTorch 2.15.0, CPU) of f16 logits forms the sum of a mean in f16: of 10,000 rows that have a loss of 6.9
# each it is infinite, of 70,000 NaN, as the number of rows is infinite too. reduction="none" and then mean() is right,
# and so are mse_loss, l1_loss and kl_div of the same numbers.
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
found = []
for rows, classes in (1000, 1000), (10_000, 1000), (70_000, 50):
    x, labels = torch.zeros(rows, classes, dtype=torch.float16), torch.zeros(rows, dtype=torch.long)
    each = F.cross_entropy(x, labels, reduction="none")
    probabilities = F.log_softmax(x, 1)
    losses = [F.cross_entropy(x, labels), F.nll_loss(probabilities, labels), each.mean(), F.l1_loss(probabilities, torch.zeros_like(x))]
    print(f"{rows} rows of {each[0].item()}: cross_entropy {losses[0].item()}, nll_loss {losses[1].item()}, "
          f"mean of each {losses[2].item()}, l1_loss {losses[3].item()}")
    found.append([str(v.item())[:3] for v in losses])
sys.exit(found != [["6.8", "6.8", "6.9", "6.9"], ["inf", "inf", "6.9", "6.9"], ["nan", "nan", "3.9", "3.9"]])
PYTHON
