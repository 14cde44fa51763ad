#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes moe.h: layers of experts as Hugging Face's Mixtral computes them (a loop over the experts, a router), and
PyTorch's gradients, in double, of inputs that f32 holds.

    pip install transformers==5.17.0 torch==2.11.0
    tests/judges/moe.py >tests/judges/moe.h

Each row is the activation's field, whether the router chose (its weights are formed in f32 there), then what is given and
what comes of it: the arrays of `judgement`. With biases, which Mixtral has not, the loop is written here. All have 6 tokens of 5 columns, 4 experts of 3, and 2 of them for each."""
import torch
import torch.nn.functional as F
import transformers
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

for name, module, pinned in ("torch", torch, "2.11.0"), ("transformers", transformers, "5.17.0"):
    if not module.__version__.startswith(pinned):
        raise SystemExit(f"{name} is {module.__version__}, the judge is {pinned}")
torch.manual_seed(71)
TOKENS, WIDTH, INNER, EXPERTS, K = 6, 5, 3, 4, 2


def held(*shape):
    return torch.randn(*shape).double()


def listed(t):
    return "{" + ", ".join(repr(float(v)) for v in t.detach().flatten().tolist()) + "}"


def biased(block, x, indices, weights, b1, b2):
    """Token by token, choice by choice."""
    experts, rows = block.experts, []
    for token in range(TOKENS):
        made = [F.linear(x[token], experts.gate_up_proj[e], b1[e]).chunk(2) for e in indices[token]]
        made = [F.linear(experts.act_fn(gate) * up, experts.down_proj[e], b2[e])
                for (gate, up), e in zip(made, indices[token])]
        rows.append(sum(m * w for m, w in zip(made, weights[token])))
    return torch.stack(rows)


def row(act, field, routed, load, biases=False):
    config = MixtralConfig(hidden_size=WIDTH, intermediate_size=INNER, num_local_experts=EXPERTS, num_experts_per_tok=K,
                           hidden_act=act, experts_implementation="eager")
    block = MixtralSparseMoeBlock(config).double()
    for parameter in block.parameters():
        parameter.data = held(*parameter.shape)
    experts = block.experts
    x, dy = held(TOKENS, WIDTH).requires_grad_(), held(TOKENS, WIDTH)
    b1, b2 = (held(EXPERTS, n).requires_grad_() for n in (2 * INNER, WIDTH))
    if routed and biases:
        scores = F.linear(x, block.gate.weight).softmax(-1).topk(K)
        indices, weights = torch.zeros(TOKENS, K), torch.zeros(TOKENS, K)
        shares = scores.values / scores.values.sum(-1, keepdim=True)
        y = biased(block, x, scores.indices, shares, b1, b2)
        wanted = x, experts.gate_up_proj, experts.down_proj, block.gate.weight
    elif routed:
        y, wanted = block(x[None])[0], (x, experts.gate_up_proj, experts.down_proj, block.gate.weight)
        indices, weights = torch.zeros(TOKENS, K), torch.zeros(TOKENS, K)
    else:
        indices = torch.tensor([[load(t, j) for j in range(K)] for t in range(TOKENS)])
        weights = held(TOKENS, K).requires_grad_()
        y = biased(block, x, indices, weights, b1, b2) if biases else experts(x, indices, weights)
        wanted = (x, experts.gate_up_proj, experts.down_proj, weights)
    gradients = torch.autograd.grad(y, (*wanted, b1, b2), dy, allow_unused=True)
    of_biases = (b1, b2, *gradients[4:]) if biases else 4 * (torch.zeros(1),)
    arrays = x, experts.gate_up_proj, experts.down_proj, block.gate.weight, indices, weights, y, dy, *gradients[:4], *of_biases
    print(f'{{"{field}", {int(routed)}, {int(biases)},\n ' + ",\n ".join(map(listed, arrays)) + "},")


print("/* SPDX-License-Identifier: Apache-2.0\n * Written by moe.py: Mixtral's experts. */")
print("/* clang-format off */")
for act, field in ("silu", "silu"), ("gelu", "gelu"), ("relu", "relu"):
    row(act, field, False, lambda t, j: (t + j * 3) % EXPERTS)  # about alike
    row(act, field, False, lambda t, j: 2 if j else 1)  # two have all
    row(act, field, True, None)
row("silu", "silu", False, lambda t, j: (t + j * 3) % EXPERTS, True)
row("silu", "silu", True, None, True)
