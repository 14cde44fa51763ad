#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# F.linear_cross_entropy (PyTorch 2.15.0, CPU) where every label is ignore_index, as of a piece of a batch that is
# padding: with options, which is the way that does not hold the logits, the gradients of a mean are NaN; without them,
# and by F.cross_entropy of the same product, they are 0. Added to the gradients of other pieces NaN stays.
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
import warnings

import torch
import torch.nn.functional as F

assert torch.__version__.split("+")[0] == "2.15.0", torch.__version__
warnings.simplefilter("ignore")  # of numpy, where it is missing
torch.manual_seed(0)
padding, pieces = torch.full((20,), -100), torch.nn.LinearCrossEntropyOptions(batch_chunk_size=7)


def seen(what, loss):
    x, w = torch.randn(20, 6, requires_grad=True), torch.randn(11, 6, requires_grad=True)
    gradients = torch.autograd.grad(loss(x, w), (x, w))
    found = "nan" if all(g.isnan().all() for g in gradients) else "0" if not any(g.any() for g in gradients) else "other"
    print(f"{what}: gradients {found}")
    return found


found = [
    seen("cross_entropy of a product", lambda x, w: F.cross_entropy(x @ w.t(), padding)),
    seen("linear_cross_entropy", lambda x, w: F.linear_cross_entropy(x, w, padding)),
    seen("linear_cross_entropy in pieces, sum", lambda x, w: F.linear_cross_entropy(x, w, padding, reduction="sum", options=pieces)),
    seen("linear_cross_entropy in pieces, mean", lambda x, w: F.linear_cross_entropy(x, w, padding, options=pieces)),
]
sys.exit(found != ["0", "0", "0", "nan"])
PYTHON
