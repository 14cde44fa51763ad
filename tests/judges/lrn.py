#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Local response normalisation and its gradients as PyTorch 2.15.0 has them, for tests/unit/test_lrn.c:

    pip install torch==2.15.0
    tests/judges/lrn.py > tests/judges/lrn.h

Across channels F.local_response_norm, whose windows of even size reach farther back, in f64. Within them Caffe's layer:
an average pool of the squares over size x size elements, zeros beside, and a power; divisive normalisation is that of
x - means, which are PyTorch's average pool here. Gradients are autograd's."""
import torch
import torch.nn.functional as F

if torch.__version__.split("+")[0] != "2.15.0":
    raise SystemExit(f"torch is {torch.__version__}, the numbers are those of 2.15.0")

SHAPE, ALPHA, BETA, K = (2, 6, 3, 4), 0.7, 0.75, 1.5


def numbers(t):
    return "{" + ", ".join(repr(float(v)) for v in t.detach().flatten()) + "}"


def pooled(u, size):
    return F.avg_pool2d(u * u, size, 1, size // 2, count_include_pad=True)


print("/* SPDX-License-Identifier: Apache-2.0\n * Written by tests/judges/lrn.py with PyTorch 2.15.0: fields; x, means, dy, y, "
      "dx, dmeans. */\n/* clang-format off */")
for kind, size in (("across", 5), ("across", 4), ("across", 1), ("across", 9), ("within", 3), ("within", 5), ("divisive", 3)):
    generator = torch.Generator().manual_seed(size)
    x, dy = (torch.randn(*SHAPE, generator=generator, dtype=torch.float64) for _ in range(2))
    x.requires_grad_()
    means = F.avg_pool2d(x.detach(), 3, 1, 1).requires_grad_()
    if kind == "across":
        y = F.local_response_norm(x, size, ALPHA, BETA, K)
    else:
        y = x * (K + ALPHA * pooled(x - means if kind == "divisive" else x, size)) ** -BETA
    dx, dmeans = torch.autograd.grad(y, (x, means), dy, materialize_grads=True)
    print(f'{{"kind={kind} size={size} extra=before alpha={ALPHA} beta={BETA} k={K}", {int(kind == "divisive")},')
    print("    " + ",\n    ".join(numbers(t) for t in (x, means, dy, y, dx, dmeans)) + "},")
