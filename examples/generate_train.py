#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the model of 05_generate.c on this repository's pages, a few minutes on a CPU, and writes its weights.

    pip install torch==2.15.0
    examples/generate_train.py examples/05_generate.bin

A decoder-only transformer of bytes: embeddings of 128 bytes and 128 positions, two layers of causal attention (4 heads
of 16) and a feed-forward of 128 (gelu), norms without a mean, the output by the embeddings. The file is all parameters
in f16, in the order of `parameters` below, as torch.nn.Linear has them (outputs x inputs)."""
import pathlib
import sys

import torch
import torch.nn.functional as F

WIDTH, HEADS, LAYERS, WIDE, LENGTH, BYTES, STEPS = 64, 4, 2, 128, 128, 128, 1500
ROOT = pathlib.Path(__file__).resolve().parents[1]


def text():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    words = "\n".join(page.read_text() for page in pages if page.name in ("README.md", "tour.md", "adding-an-op.md", "python.md"))
    return torch.tensor([byte for byte in words.encode() if byte < BYTES])


def parameters():
    shapes = [(BYTES, WIDTH), (LENGTH, WIDTH)]
    for _ in range(LAYERS):
        shapes += [(3 * WIDTH, WIDTH), (WIDTH, WIDTH), (WIDE, WIDTH), (WIDTH, WIDE)]
    return [(torch.randn(shape) * (0.5 if i < 2 else 1) * shape[1] ** -0.5).requires_grad_() for i, shape in enumerate(shapes)]


def norm(x):
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


def logits(p, tokens):
    batch, n = tokens.shape
    x = p[0][tokens] + p[1][:n]
    for layer in range(LAYERS):
        qkv, out, up, down = p[2 + 4 * layer:6 + 4 * layer]
        q, k, v = (norm(x) @ qkv.T).view(batch, n, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, n, WIDTH) @ out.T
        x = x + F.gelu(norm(x) @ up.T) @ down.T
    return norm(x) @ p[0].T


def main():
    torch.manual_seed(1)
    data, p = text(), parameters()
    optimizer = torch.optim.AdamW(p, lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, STEPS)
    for step in range(STEPS):
        at = torch.randint(0, len(data) - LENGTH - 1, (12,))
        rows = torch.stack([data[i:i + LENGTH + 1] for i in at])
        loss = F.cross_entropy(logits(p, rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1}: {loss.item():.3f} nats a byte", flush=True)
            pathlib.Path(sys.argv[1]).write_bytes(b"".join(w.detach().half().numpy().tobytes() for w in p))


if __name__ == "__main__":
    main()
