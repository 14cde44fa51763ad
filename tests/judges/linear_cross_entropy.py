#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes linear_cross_entropy.h: F.cross_entropy(x @ w.T, labels) and its gradients as PyTorch 2.15.0 has them, in double.

    pip install torch==2.15.0
    tests/judges/linear_cross_entropy.py >tests/judges/linear_cross_entropy.h

Each row is fields of a line, labels, the loss, dx and dw; all rows have one x (4 x 3) and one w (5 x 3)."""
import torch
import torch.nn.functional as F

if not torch.__version__.startswith("2.15.0"):
    raise SystemExit(f"torch is {torch.__version__}, the judge is 2.15.0")
torch.manual_seed(43)
x, w = (torch.randn(*shape).double() * 2 for shape in ((4, 3), (5, 3)))


def listed(t):
    return "{" + ", ".join("NAN" if v != v else repr(v) for v in t.flatten().tolist()) + "}"


print("/* SPDX-License-Identifier: Apache-2.0\n * Written by linear_cross_entropy.py: PyTorch's loss and gradients. */")
print("/* clang-format off */")
print(f"static const double x[] = {listed(x)};\nstatic const double w[] = {listed(w)};")
print("static const judgement judgements[] = {")
for labels in [4, 0, 2, 2], [1, -100, 3, -100], [-100, -100, -100, -100]:
    for smoothing in 0.0, 0.1:
        for reduction in "mean", "sum", "none":
            leaves = [t.clone().requires_grad_() for t in (x, w)]
            losses = F.cross_entropy(leaves[0] @ leaves[1].T, torch.tensor(labels), reduction=reduction, label_smoothing=smoothing)
            gradients = torch.autograd.grad(losses.sum(), leaves)
            fields = f"ignore=1 ignore_index=-100 smoothing={smoothing} reduction={reduction}"
            print(f'{{"{fields}", {losses.numel()}, {{{", ".join(map(str, labels))}}},\n {listed(losses.detach())},\n '
                  + ",\n ".join(map(listed, gradients)) + "},")
print("};")
