#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes moe_permute.h: permutations by experts as PyTorch 2.15.0 makes them (a stable argsort, index_select), and
weighted sums back (index_add) with PyTorch's gradients, in double, of inputs that f32 holds.

    pip install torch==2.15.0
    tests/judges/moe_permute.py >tests/judges/moe_permute.h

Each row is what is given and what comes of it: T, k, E, D, align, then the arrays of `judgement`."""
import torch

if not torch.__version__.startswith("2.15.0"):
    raise SystemExit(f"torch is {torch.__version__}, the judge is 2.15.0")
torch.manual_seed(59)


def held(*shape):
    return torch.randn(*shape).double()


def listed(t):
    return "{" + ", ".join(repr(float(v)) for v in t.detach().flatten().tolist()) + "}"


def row(tokens, k, experts, columns, align):
    indices = torch.stack([torch.randperm(experts)[:k] for _ in range(tokens)])
    order = torch.argsort(indices.flatten(), stable=True)
    counts = torch.bincount(indices.flatten(), minlength=experts)
    padded = (counts + align - 1) // align * align
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), padded.cumsum(0)])
    first = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])[:-1]
    sorted_experts = indices.flatten()[order]
    places_sorted = torch.arange(len(order)) - first[sorted_experts] + offsets[:-1][sorted_experts]
    count = (tokens * k + experts * (align - 1) + align - 1) // align * align
    rows = torch.full((count,), -1).index_copy(0, places_sorted, order)
    places = torch.empty(tokens * k, dtype=torch.long).index_copy(0, order, places_sorted)
    x = held(tokens, columns)
    y = torch.zeros(count, columns, dtype=torch.float64).index_copy(0, places_sorted, x.index_select(0, order // k))
    made, weights, dy = held(count, columns).requires_grad_(), held(tokens, k).requires_grad_(), held(tokens, columns)
    scaled = made.index_select(0, places) * weights.view(-1, 1)
    back = torch.zeros(tokens, columns, dtype=torch.float64).index_add(0, torch.arange(tokens * k) // k, scaled)
    dmade, dweights = torch.autograd.grad(back, (made, weights), dy)
    arrays = indices, x, offsets, rows, places, y, made, weights, back, dy, dmade, dweights
    print(f"{{{tokens}, {k}, {experts}, {columns}, {align},\n " + ",\n ".join(map(listed, arrays)) + "},")


print("/* SPDX-License-Identifier: Apache-2.0\n * Written by moe_permute.py: PyTorch's permutations by experts. */")
print("/* clang-format off */")
row(5, 2, 4, 3, 1)
row(7, 3, 5, 2, 4)
row(6, 1, 3, 4, 2)
