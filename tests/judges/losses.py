#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes losses.h: losses and their gradients as PyTorch 2.15.0 has them, in double, of inputs that f32 holds.

    pip install torch==2.15.0
    tests/judges/losses.py >tests/judges/losses.h

Each row is a line of `loss` (@ is the type), its inputs, y, its gradient, and gradients of x, target and other."""
import torch
import torch.nn.functional as F

if not torch.__version__.startswith("2.15.0"):
    raise SystemExit(f"torch is {torch.__version__}, the judge is 2.15.0")
ROWS, COLS = 3, 4
SHAPE = (ROWS, COLS)
torch.manual_seed(41)


def held(t):
    return t.to(torch.float32).to(torch.float64)


def normal(*shape):
    return held(torch.randn(shape))


def unit():
    return held(torch.rand(SHAPE) * 0.98 + 0.01)


def positive():
    return held(torch.rand(SHAPE) * 3 + 0.1)


def sign(*shape):
    return torch.where(torch.rand(shape) < 0.5, -1.0, 1.0).double()


def truth():
    return (torch.rand(SHAPE) < 0.5).double()


def edges(*values):
    """The first elements of (0, 1) data are these."""
    t = unit().flatten()
    t[: len(values)] = torch.tensor(values, dtype=torch.float64)
    return t.reshape(SHAPE)


def spelled(t):
    return "x".join(map(str, t.shape))


def listed(t):
    words = {"nan": "NAN", "inf": "INFINITY", "-inf": "-INFINITY"}
    return "{" + ", ".join(words.get(repr(v), repr(v)) for v in t.flatten().tolist()) + "}"


def row(fields, function, x, target, other=None, weight=None, pos_weight=None, wanted=("x", "target", "other")):
    """A row for each reduction; `function` takes them and the name of the reduction."""
    given = {"x": x, "target": target, "other": other, "weight": weight, "pos_weight": pos_weight}
    types = {torch.float64: "@", torch.int64: "s64", torch.int32: "s32"}
    line = "".join(f" {name}={types[t.dtype]}:{spelled(t)}" for name, t in given.items() if t is not None)
    for reduction in ["mean", "sum", "none"] + ["batchmean"] * fields.startswith("kl_div"):
        leaves = {n: t.clone().requires_grad_(n in wanted) for n, t in given.items() if t is not None}
        y = function(*leaves.values(), reduction)
        dy = normal(*y.shape)
        asked = [n for n in wanted if n in leaves]
        gradients = dict(zip(asked, torch.autograd.grad(y, [leaves[n] for n in asked], dy, allow_unused=True)))
        arrays = [given[n] for n in given] + [y.detach(), dy] + [gradients.get(n) for n in ("x", "target", "other")]
        if target.shape != x.shape or "target" not in wanted:  # labels of rows, classes
            arrays[8] = None
        print(f'{{"kind={fields} reduction={reduction}{line}",\n {{' + ",\n  ".join("{0}" if a is None else listed(a) for a in arrays)
              + f'}},\n {{{", ".join("0" if a is None else str(a.numel()) for a in arrays)}}}}},')


print("/* SPDX-License-Identifier: Apache-2.0\n * Written by losses.py: PyTorch's losses and gradients. */")
print("/* clang-format off */")
for margin in 1, -0.5:
    row(f"hinge_embedding margin={margin}", lambda x, t, r, m=margin: F.hinge_embedding_loss(x, t, margin=m, reduction=r), normal(*SHAPE), sign(*SHAPE))
row("mse", lambda x, t, r: F.mse_loss(x, t, reduction=r), normal(*SHAPE), normal(*SHAPE))
row("l1", lambda x, t, r: F.l1_loss(x, t, reduction=r), edges(0.5, 0.25), edges(0.5, 0.25))
for beta in 1, 0.3:
    row(f"smooth_l1 beta={beta}", lambda x, t, r, b=beta: F.smooth_l1_loss(x, t, reduction=r, beta=b), edges(0.5), edges(0.5))
    row(f"huber beta={beta}", lambda x, t, r, b=beta: F.huber_loss(x, t, reduction=r, delta=b), normal(*SHAPE), normal(*SHAPE))
row("smooth_l1 beta=0", lambda x, t, r: F.smooth_l1_loss(x, t, reduction=r, beta=0), edges(0.5), edges(0.5))
row("huber", lambda x, t, w, r: F.huber_loss(x, t, reduction=r, weight=w), normal(*SHAPE), normal(*SHAPE), weight=positive())
row("bce", lambda x, t, r: F.binary_cross_entropy(x, t, reduction=r), edges(0, 1, 0, 1), edges(0, 1, 1, 0))
row("bce", lambda x, t, w, r: F.binary_cross_entropy(x, t, w, reduction=r), unit(), unit(), weight=normal(COLS))
row("bce_logits", lambda x, t, r: F.binary_cross_entropy_with_logits(x, t, reduction=r), held(30 * torch.randn(SHAPE)), truth())
row("bce_logits", lambda x, t, w, p, r: F.binary_cross_entropy_with_logits(x, t, w, reduction=r, pos_weight=p), normal(*SHAPE), unit(),
    weight=normal(ROWS, 1), pos_weight=positive()[0])
row("kl_div", lambda x, t, r: F.kl_div(x, t, reduction=r), normal(*SHAPE), unit())
row("kl_div log_target=1", lambda x, t, r: F.kl_div(x, t, reduction=r, log_target=True), normal(*SHAPE), normal(*SHAPE))
row("margin_ranking", lambda x, t, o, r: F.margin_ranking_loss(x, o, t, reduction=r), normal(*SHAPE), sign(*SHAPE), normal(*SHAPE))
row("margin_ranking margin=0.5", lambda x, t, o, r: F.margin_ranking_loss(x, o, t, margin=0.5, reduction=r), normal(*SHAPE), sign(*SHAPE), normal(*SHAPE))
row("soft_margin", lambda x, t, r: F.soft_margin_loss(x, t, reduction=r), normal(*SHAPE), sign(*SHAPE), wanted=("x",))
for full in 0, 1:
    row(f"poisson_nll full={full}", lambda x, t, r, f=full: F.poisson_nll_loss(x, t, full=bool(f), reduction=r), normal(*SHAPE), positive())
    row(f"poisson_nll rates=1 eps=0.01 full={full}", lambda x, t, r, f=full: F.poisson_nll_loss(x, t, log_input=False, full=bool(f), eps=0.01, reduction=r), positive(), positive())
    row(f"gaussian_nll eps=0.5 full={full}", lambda x, t, o, r, f=full: F.gaussian_nll_loss(x, t, o, full=bool(f), eps=0.5, reduction=r), normal(*SHAPE), normal(*SHAPE), positive())
row("multilabel_soft_margin", lambda x, t, r: F.multilabel_soft_margin_loss(x, t, reduction=r), normal(*SHAPE), truth())
row("multilabel_soft_margin", lambda x, t, w, r: F.multilabel_soft_margin_loss(x, t, w, reduction=r), normal(*SHAPE), truth(), weight=positive()[0])
for margin in 0, 0.3:
    row(f"cosine_embedding margin={margin}", lambda x, t, o, r, m=margin: F.cosine_embedding_loss(x, o, t, margin=m, reduction=r), normal(*SHAPE), sign(ROWS), normal(*SHAPE))
for p in 1, 2, 3:
    for swap in 0, 1:
        row(f"triplet_margin p={p} swap={swap}", lambda x, t, o, r, p=p, s=swap: F.triplet_margin_loss(x, t, o, p=p, swap=bool(s), reduction=r), normal(*SHAPE), normal(*SHAPE), normal(*SHAPE))
row("triplet_margin margin=0.25 eps=0.001", lambda x, t, o, r: F.triplet_margin_loss(x, t, o, margin=0.25, eps=0.001, reduction=r), normal(*SHAPE), normal(*SHAPE), normal(*SHAPE))
row("mse", lambda x, t, w, r: F.mse_loss(x, t, reduction=r, weight=w), normal(*SHAPE), normal(*SHAPE), weight=positive())
row("l1", lambda x, t, w, r: F.l1_loss(x, t, reduction=r, weight=w), edges(0.5, 0.25), edges(0.5, 0.25), weight=positive())
for p in 1, 2:
    for margin in 1, 0.3:
        row(f"multi_margin p={p} margin={margin}", lambda x, t, r, p=p, m=margin: F.multi_margin_loss(x, t, p=p, margin=m, reduction=r), normal(*SHAPE), torch.tensor([2, 0, 3]), wanted=("x",))
    row(f"multi_margin p={p}", lambda x, t, w, r, p=p: F.multi_margin_loss(x, t, p=p, weight=w, reduction=r), normal(*SHAPE), torch.tensor([1, 1, 0]), weight=positive()[0], wanted=("x",))
row("multi_margin", lambda x, t, r: F.multi_margin_loss(x, t, reduction=r), torch.tensor([[1.0, 0, 2, 1], [0, 0, 0, 0], [3, 2, 1, 2]]).double(), torch.tensor([2, 0, 3]), wanted=("x",))
row("multilabel_margin", lambda x, t, r: F.multilabel_margin_loss(x, t, reduction=r), normal(*SHAPE), torch.tensor([[3, 0, -1, 1], [-1, 2, 0, 0], [1, 1, 2, -1]]), wanted=("x",))
row("multilabel_margin", lambda x, t, r: F.multilabel_margin_loss(x, t, reduction=r), 3 * normal(*SHAPE), torch.tensor([[2, 2, 2, 2], [0, 1, 2, 3], [1, -1, -1, -1]]), wanted=("x",))
