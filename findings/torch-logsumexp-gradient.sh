#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# PyTorch 2.15.0: the gradient of torch.logsumexp is a softmax, and sums to 1; it is formed as exp(x - result) of the
# result as it was rounded to its type (torch/csrc/autograd/FunctionsManual.cpp, logsumexp_backward). So it is off by the
# factor exp(rounding): of two floats of 1e8 it is (1, 1) and not (1/2, 1/2), and of bf16 logits about 300, where
# neighbours lie 2 apart, the gradients of a row sum to something between 1/e and e. torch.softmax of the same row is right.
#
# PYTHON: one that has this PyTorch; without it 3 GB are fetched.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv venv
    venv/bin/pip -q install torch==2.15.0
    PYTHON=$work/venv/bin/python
fi
"$PYTHON" - <<'PYTHON'
import torch

assert torch.__version__.split("+")[0] == "2.15.0", torch.__version__
worst = 0
for values in ([1e8, 1e8], [300.0] * 2, [301.0, 302.0, 304.0]):
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.tensor(values, dtype=dtype, requires_grad=True)
        torch.logsumexp(x, 0).backward()
        share = torch.softmax(x.detach().double(), 0)
        print(f"{x.dtype} of {values}: gradient {x.grad.tolist()}, softmax {share.tolist()}")
        worst = max(worst, (x.grad.double() - share).abs().max().item())
print("off by up to", worst)
raise SystemExit(worst < 0.4)  # no longer so
PYTHON
