#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# F.interpolate with antialias=True (PyTorch 2.15.0, CPU) repeats the first row where the result is one column wide and
# the image lies row by row: rows 0 1 2 3 and 4 5 6 7 become 1.5 1.5 1.5 instead of 1.5 3.5 5.5. The same image with
# channels last, or to two columns, has the right rows; so has the gradient, which is then not that of the values.
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


def column(x):
    return F.interpolate(x, size=(3, 1), mode="bilinear", antialias=True)[0, 0, :, 0]


x = torch.arange(8.0, dtype=torch.float64).reshape(1, 1, 2, 4).requires_grad_()
rows = column(x)
last = column(x.detach().expand(1, 2, 2, 4).contiguous(memory_format=torch.channels_last))
rows[2].backward()
print("row by row:              ", rows.tolist())
print("channels last:           ", last.tolist())
print("gradient of the last row:", x.grad[0, 0].tolist())
right = torch.tensor([1.5, 3.5, 5.5], dtype=torch.float64)
sys.exit(not (torch.allclose(rows, torch.full_like(right, 1.5)) and torch.allclose(last, right)
              and x.grad[0, 0, 0].abs().max() == 0 and x.grad[0, 0, 1].min() > 0))
PYTHON
