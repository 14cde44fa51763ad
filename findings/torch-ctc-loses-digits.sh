#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# PyTorch 2.15.0, CPU: the gradient of F.ctc_loss in f32 loses digits with the number of steps. Its tables hold logarithms
# of the probabilities of whole beginnings and ends, some thousands, of which an f32 has no more than three or four
# decimal places; a share of the alignments, between 0 and 1, is exp(alpha + beta - total) of them. With 500 steps the
# gradient is off by 0.0007, with 2000 by 0.008, with 8000 by 0.08, and the rows, which sum to 0, sum to as much.
# With exponents kept apart from significands, f32 is off by 3e-8 at any length.
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
import torch
import torch.nn.functional as F

assert torch.__version__.split("+")[0] == "2.15.0", torch.__version__
torch.manual_seed(0)


def gradient(log_probs, labels):
    leaf = log_probs.detach().requires_grad_()
    steps, counts = torch.tensor([leaf.shape[0]]), torch.tensor([labels.shape[1]])
    F.ctc_loss(leaf, labels, steps, counts, reduction="sum").backward()
    return leaf.grad.double()


for steps, count in (500, 100), (2000, 400), (8000, 1000):
    log_probs = (2 * torch.randn(steps, 1, 30)).log_softmax(2)
    labels = torch.randint(1, 30, (1, count))
    got, wanted = gradient(log_probs, labels), gradient(log_probs.double(), labels)
    worst, rows = (got - wanted).abs().max().item(), got.sum(2).abs().max().item()
    print(f"{steps} steps, {count} labels: the gradient is off by up to {worst:.2g}, rows sum to up to {rows:.2g}")
raise SystemExit(worst < 0.02)  # no longer so
PYTHON
