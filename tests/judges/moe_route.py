#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes moe_route.h: routings as PyTorch 2.15.0 has them, in double, of inputs that f32 holds: softmax and topk, the
rules of Mixtral and DeepSeek put together from them, and PyTorch's gradients of weights and losses.

    pip install torch==2.15.0
    tests/judges/moe_route.py >tests/judges/moe_route.h

Each row is a line of `moe_route` (@ is the type) and its arguments in their order."""
import torch

if not torch.__version__.startswith("2.15.0"):
    raise SystemExit(f"torch is {torch.__version__}, the judge is 2.15.0")
T = 5
torch.manual_seed(53)
NAMES = "logits bias indices weights counts aux z dweights daux dz dlogits".split()


def held(t):
    return t.to(torch.float32).to(torch.float64)


def listed(t):
    return "{" + ", ".join(repr(float(v)) for v in t.detach().flatten().tolist()) + "}"


def chosen(compared, k, groups, kept, best):
    """Which experts: of the `kept` best groups, each worth its `best` largest together."""
    if kept < groups:
        grouped = compared.view(T, groups, -1)
        worth = grouped.topk(best, dim=-1).values.sum(-1)
        mask = torch.zeros_like(worth).scatter(1, worth.topk(kept, dim=-1).indices, 1).bool()
        compared = grouped.masked_fill(~mask[..., None], -torch.inf).view(T, -1)
    return compared.topk(k, dim=-1).indices


def row(experts, k, score="softmax", biased=False, groups=1, kept=1, best=2, renormalise=False, scale=1.0, losses=False):
    given = {"logits": held(2 * torch.randn(T, experts))}
    leaf = given["logits"].clone().requires_grad_()
    scores = leaf.softmax(-1) if score == "softmax" else leaf.sigmoid()
    compared = scores.detach()
    if biased:
        given["bias"] = held(torch.randn(experts) / 4)
        compared = compared + given["bias"]
    indices = chosen(compared, k, groups, kept, best)
    weights = scores.gather(1, indices)
    if renormalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    weights = weights * scale
    counts = torch.bincount(indices.flatten(), minlength=experts).double()
    given |= {"indices": indices, "weights": weights, "counts": counts, "dweights": held(torch.randn(T, k))}
    total = (weights * given["dweights"]).sum()
    if losses:
        given["aux"] = experts * (counts / T * leaf.softmax(-1).mean(0)).sum()
        given["z"] = leaf.logsumexp(-1).square().mean()
        given |= {"daux": held(torch.randn(1)), "dz": held(torch.randn(1))}
        total = total + (given["aux"] * given["daux"] + given["z"] * given["dz"]).sum()
    given["dlogits"], = torch.autograd.grad(total, leaf)
    line = f"logits=@:{T}x{experts} k={k} score={score} renormalise={int(renormalise)} scale={scale}"
    if groups > 1:
        line += f" groups={groups} topk_groups={kept} group_score={'sum2' if best == 2 else 'max'}"
    print(f'{{"{line}", {int(losses)},\n {{' + ",\n  ".join(listed(given[n]) if n in given else "{0}" for n in NAMES)
          + f'}},\n {{{", ".join(str(given[n].numel()) if n in given else "0" for n in NAMES)}}}}},')


print("/* SPDX-License-Identifier: Apache-2.0\n * Written by moe_route.py: PyTorch's routings and gradients. */")
print("/* clang-format off */")
for score in "softmax", "sigmoid":
    for renormalise in False, True:
        row(12, 3, score, renormalise=renormalise, losses=score == "softmax")
        row(12, 3, score, biased=True, renormalise=renormalise, scale=2.5)
        row(12, 4, score, groups=4, kept=2, best=1, renormalise=renormalise)
        row(12, 4, score, biased=True, groups=4, kept=2, renormalise=renormalise, scale=2.5)
        row(12, 4, score, groups=3, kept=2, renormalise=renormalise)
