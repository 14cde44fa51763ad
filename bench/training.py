#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""training [--steps N] [--results FILE] [--picture FILE]: small models of PyTorch's own modules, as they are and after
mica.torch.replace, trained on the handwritten digits of data/: same parameters, same batches, SGD or AdamW; a
ResNet, a ConvNeXt, a vision transformer and a Llama that says the next pixel, all defined here, with the parts of their
models and sizes for a CPU. Beside them the model as it is in f64: two curves in f32 part as roundings do, and each step goes
on from the last one's, so that what counts is whether mica's is as near to that one as PyTorch's own.

--results: the loss of each step, as JSON lines. --picture: the curves, where matplotlib is. The table goes to stdout."""

import argparse
import gzip
import json
import pathlib
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch import nn

import mica.torch as M

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Residual(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(),
                                  nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b))
        self.short = nn.Identity()
        if (a, stride) != (b, 1):
            self.short = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.body(x) + self.short(x))


def resnet(width=16):
    """Eight residual blocks in four stages, as ResNet-18 has them, a quarter of its width."""
    layers, a = [nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2, 2)], width
    for stage, stride in enumerate((1, 1, 2, 1)):
        b = width << stage
        layers += [Residual(a, b, stride), Residual(b, b, 1)]
        a = b
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(a, 10))


class ChannelNorm(nn.LayerNorm):
    """LayerNorm of the channels of an image; a class derived from one that replace() knows stays as it is."""

    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.act, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x):
        y = self.down(self.act(self.up(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))))
        return x + (self.gamma * y).permute(0, 3, 1, 2)


def convnext(width=32):
    """Two stages of two blocks."""
    return nn.Sequential(nn.Conv2d(1, width, 2, 2), ChannelNorm(width), ConvNeXtBlock(width), ConvNeXtBlock(width),
                         ChannelNorm(width), nn.Conv2d(width, 2 * width, 2, 2), ConvNeXtBlock(2 * width),
                         ConvNeXtBlock(2 * width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(2 * width),
                         nn.Linear(2 * width, 10))


class Attention(nn.Module):
    """Functions of PyTorch's, which replace() cannot see; mica's are set by main."""

    attention = staticmethod(F.scaled_dot_product_attention)


class ViTBlock(Attention):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).reshape(b, s, d))
        return x + self.feed(x)


class ViT(nn.Module):
    def __init__(self, width=64, depth=4, heads=4):
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.places = nn.Parameter(torch.randn(16, width) * 0.02)
        self.blocks = nn.Sequential(*(ViTBlock(width, heads) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, x):
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2) + self.places).mean(1))


def rope(q, k):
    """Rotary embedding with halves as pairs, as transformers has it."""
    place = torch.arange(q.shape[-2], dtype=q.dtype)[:, None]
    angle = place * 10000.0 ** (-torch.arange(0, q.shape[-1], 2, dtype=q.dtype) / q.shape[-1])
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)

    def rotated(x):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    return rotated(q), rotated(k)


class LlamaBlock(Attention):
    rope = staticmethod(rope)

    def __init__(self, width, heads, groups):
        super().__init__()
        self.heads, self.groups, size = heads, groups, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width, 1e-6), nn.RMSNorm(width, 1e-6)
        self.q, self.k, self.v = (nn.Linear(width, n * size, bias=False) for n in (heads, groups, groups))
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down, self.act = nn.Linear(3 * width, width, bias=False), nn.SiLU()

    def forward(self, x):
        b, s, d = x.shape
        y = self.norm1(x)
        q, k, v = (f(y).reshape(b, s, n, -1).transpose(1, 2)
                   for f, n in ((self.q, self.heads), (self.k, self.groups), (self.v, self.groups)))
        q, k = self.rope(q, k)
        x = x + self.out(self.attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).reshape(b, s, d))
        y = self.norm2(x)
        return x + self.down(self.act(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Says the next of an image's 64 pixels, each one of 17 words."""

    def __init__(self, width=64, depth=2, heads=4, groups=2):
        super().__init__()
        self.words = nn.Embedding(17, width)
        self.blocks = nn.Sequential(*(LlamaBlock(width, heads, groups) for _ in range(depth)))
        self.norm, self.head = nn.RMSNorm(width, 1e-6), nn.Linear(width, 17, bias=False)

    def forward(self, words):
        return self.head(self.norm(self.blocks(self.words(words)))).flatten(0, 1)


# By name: the model, its optimiser and what that is told.
MODELS = {"ResNet": (resnet, "SGD", {"lr": 0.001, "momentum": 0.9}), "ConvNeXt": (convnext, "AdamW", {"lr": 1e-3}),
          "ViT": (ViT, "AdamW", {"lr": 3e-4}), "Llama": (Llama, "AdamW", {"lr": 1e-3})}


def replaced(model):
    report = M.replace(model)
    for module in model.modules():
        if isinstance(module, Attention):
            module.attention, module.rope = M.scaled_dot_product_attention, M.rope
    return report


def digits():
    with gzip.open(ROOT / "data" / "digits.csv.gz", "rt") as file:
        table = torch.tensor([list(map(int, line.split(","))) for line in file])
    return table[:, :64], table[:, 64]


def curve(name, steps, dtype=torch.float32, swap=False):
    """The loss of each step; what replace() said."""
    make, rule, options = MODELS[name]
    torch.manual_seed(0)
    model = make()  # of f32's random numbers, in f64 too
    model, report = model.to(dtype), replaced(model) if swap else None
    loss = M.cross_entropy if swap else F.cross_entropy
    optimiser = getattr(M if swap else torch.optim, rule)(model.parameters(), **options)
    pixels, labels = digits()
    generator, found = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        pick = torch.randint(len(pixels), (64,), generator=generator)
        if make is Llama:
            x, wanted = pixels[pick, :-1], pixels[pick, 1:].reshape(-1)
        else:
            x, wanted = pixels[pick].reshape(-1, 1, 8, 8).to(dtype) / 16, labels[pick]
        optimiser.zero_grad()
        value = loss(model(x), wanted)
        value.backward()
        optimiser.step()
        found.append(value.item())
    return found, report


def apart(one, two):
    """The largest distance of two curves, as a part of the second's loss there."""
    return max(abs(a - b) / b for a, b in zip(one, two))


def picture(rows, file):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(MODELS), figsize=(4 * len(MODELS), 3), layout="constrained")
    for name, plot in zip(MODELS, axes):
        for row in rows:
            if row["line"].split()[0] == name:
                dashed = row["engine"] == "mica.torch"
                plot.plot(range(1, len(row["loss"]) + 1), row["loss"], "--" if dashed else "-", lw=1.2 if dashed else 2.5,
                          color="black" if dashed else None, label=row["engine"] + row["line"][len(name):])
        plot.set(title=name, xlabel="step", ylabel="loss")
    axes[0].legend(fontsize="small")
    figure.savefig(file, dpi=100)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--picture", type=pathlib.Path)
    options = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    device = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "CPU")
    about = {"steps": options.steps, "batch": 64, "commit": commit, "device": device, "torch": torch.__version__}
    rows = []
    print("| model | replaced, left | loss, first and last step | PyTorch f32 from f64 | mica f32 from f64 |\n|---|---|---|---|---|")
    for name in MODELS:
        exact, _ = curve(name, options.steps, torch.float64)
        theirs, _ = curve(name, options.steps)
        ours, report = curve(name, options.steps, swap=True)
        for engine, dtype, found in (("peer/torch", "f64", exact), ("peer/torch", "f32", theirs), ("mica.torch", "f32", ours)):
            rows.append({"set": "training", "line": f"{name} {dtype}", "engine": engine, "loss": found, **about})
        rows[-1].update(replaced=len(report.replaced), left=len(report.left))
        print(f"| {name} | {len(report.replaced)}, {len(report.left)} | {ours[0]:.3f}, {ours[-1]:.3f} "
              f"| {apart(theirs, exact):.1e} | {apart(ours, exact):.1e} |", flush=True)
        for module, why in report.left.items():
            print(f"{name} {module}: {why}", file=sys.stderr)
    if options.results:
        options.results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if options.picture:
        picture(rows, options.picture)


if __name__ == "__main__":
    main()
