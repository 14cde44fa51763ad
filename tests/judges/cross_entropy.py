#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes cross_entropy.h: cross-entropies and their gradients as PyTorch 2.15.0 has them, in double, of inputs that
f32 holds: with class weights, of log-probabilities, against probabilities.

    pip install torch==2.15.0
    tests/judges/cross_entropy.py >tests/judges/cross_entropy.h

Each row is a line of `cross_entropy` (@ is the type) and its arguments in their order."""
import torch
import torch.nn.functional as F

if not torch.__version__.startswith("2.15.0"):
    raise SystemExit(f"torch is {torch.__version__}, the judge is 2.15.0")
N, C, PIXELS = 2, 4, 3
torch.manual_seed(41)
NAMES = "x labels loss lse dloss dx target weight dtarget".split()


def held(t):
    return t.to(torch.float32).to(torch.float64)


def listed(t):
    words = {"nan": "NAN", "inf": "INFINITY", "-inf": "-INFINITY"}
    return "{" + ", ".join(words.get(repr(float(v)), repr(float(v))) for v in t.flatten().tolist()) + "}"


def row(fields, function, weighted, labels=None, ignored=None, weight=None):
    """A row for each reduction: `function` takes x, the target, the weights and the reduction."""
    for reduction in "mean", "sum", "none":
        given = {"x": held(torch.randn(N, C, PIXELS))}
        if "log_probs" in fields:
            given["x"] = held(given["x"].log_softmax(1))
        if labels is None:
            given["target"] = held(torch.rand(N, C, PIXELS))
        else:
            given["labels"] = labels
        if weighted:
            given["weight"] = held(torch.rand(C) + 0.25) if weight is None else weight
        leaves = {n: given[n].clone().requires_grad_() for n in ("x", "target") if n in given}
        goal = leaves["target"] if labels is None else labels
        loss = function(leaves["x"], goal, given.get("weight"), reduction)
        given["dloss"] = held(torch.randn(loss.shape, dtype=torch.float64))
        gradients = torch.autograd.grad(loss, list(leaves.values()), given["dloss"])
        given |= {"loss": loss.detach()} | {f"d{n}": g for n, g in zip(leaves, gradients)}
        line = f"reduction={reduction} x=@:{N}x{C}x{PIXELS}" + (f" weight=@:{C}" if weighted else "") + fields
        if ignored is not None:
            line += f" ignore=1 ignore_index={ignored}"
        print(f'{{"{line}",\n {{' + ",\n  ".join(listed(given[n]) if n in given else "{0}" for n in NAMES)
              + f'}},\n {{{", ".join(str(given[n].numel()) if n in given else "0" for n in NAMES)}}}}},')


def entropy(smoothing=0.0, ignored=-100):
    return lambda x, t, w, r: F.cross_entropy(x, t, w, ignore_index=ignored, reduction=r, label_smoothing=smoothing)


def nll(ignored=-100):
    return lambda x, t, w, r: F.nll_loss(x, t, w, ignore_index=ignored, reduction=r)


print("/* SPDX-License-Identifier: Apache-2.0\n * Written by cross_entropy.py: PyTorch's cross-entropies and gradients. */")
print("/* clang-format off */")
LABELS = torch.tensor([[0, 3, 1], [2, 2, 0]])
OUTSIDE = torch.tensor([[0, -100, 1], [-100, 2, 0]])
for smoothing in 0.0, 0.2, 1.0:
    spelled = f" smoothing={smoothing}" if smoothing else ""
    row(spelled, entropy(smoothing), True, LABELS)
    row(spelled, entropy(smoothing, 2), True, LABELS, 2)
    row(" targets=probabilities" + spelled, entropy(smoothing), False)
    row(" targets=probabilities" + spelled, entropy(smoothing), True)
row(" smoothing=0.2", entropy(0.2), True, OUTSIDE, -100)
row("", entropy(0, 1), True, torch.ones_like(LABELS), 1)
row(" smoothing=0.2", entropy(0.2, 1), True, torch.ones_like(LABELS), 1)
row("", entropy(), True, LABELS, weight=torch.tensor([0, 0.5, 2, 0], dtype=torch.float64))
for weighted in False, True:
    row(" input=log_probs", nll(), weighted, LABELS)
    row(" input=log_probs", nll(2), weighted, LABELS, 2)
    row(" input=log_probs", nll(), weighted, OUTSIDE, -100)
row(" input=log_probs", nll(1), True, torch.ones_like(LABELS), 1)
