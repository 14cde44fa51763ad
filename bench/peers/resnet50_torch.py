#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ResNet-50, examples/03_resnet50 and PyTorch in turn on one GPU.

    resnet50_torch.py --example build/tests/examples/03_resnet50 --json out.jsonl [--batch 256] [--size 224]

PyTorch runs bf16, channels last, cuDNN with benchmark, as CUDA graphs: inference in eval mode under
no_grad (normalisation folded into the convolutions, as the example has it), training steps with SGD and
momentum, all on one resident batch. mica's example is a process of its own, run between PyTorch's rounds;
times are medians of the rounds. The peer's engine is "peer/torch"."""

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
import uuid

import torch
import torch.nn as nn
import torch.nn.functional as F


START = time.monotonic()


def say(what):
    """Minutes pass: cuDNN tries its engines on every layer, mica compiles kernels that are not on disk."""
    print(f"{time.monotonic() - START:6.1f} s  {what}", file=sys.stderr, flush=True)


class Block(nn.Module):
    def __init__(self, c, width, stride):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(c, width, 1, bias=False),
                                    nn.Conv2d(width, width, 3, stride, 1, bias=False),
                                    nn.Conv2d(width, 4 * width, 1, bias=False)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width), nn.BatchNorm2d(4 * width)])
        self.short = None
        if c != 4 * width:
            self.short = nn.Sequential(nn.Conv2d(c, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu_(self.norms[0](self.convs[0](x)))
        y = F.relu_(self.norms[1](self.convs[1](y)))
        y = self.norms[2](self.convs[2](y))
        return F.relu_(y.add_(x if self.short is None else self.short(x)))


def fold(conv, norm):
    """The convolution with the normalisation in its filter and bias."""
    return torch.nn.utils.fusion.fuse_conv_bn_eval(conv, norm)


class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks, c = [], 64
        for stage, depth in enumerate((3, 4, 6, 3)):
            for i in range(depth):
                blocks.append(Block(c, 64 << stage, 2 if stage and not i else 1))
                c = 256 << stage
        self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(2048, 1000)

    def forward(self, x):
        x = F.max_pool2d(F.relu_(self.norm(self.stem(x))), 3, 2, 1)
        return self.fc(self.blocks(x).mean((2, 3)))

    def fold(self):
        self.stem, self.norm = fold(self.stem, self.norm), nn.Identity()
        for b in self.blocks:
            for i in range(3):
                b.convs[i], b.norms[i] = fold(b.convs[i], b.norms[i]), nn.Identity()
            if b.short is not None:
                b.short = nn.Sequential(fold(b.short[0], b.short[1]))
        return self


def captured(step):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(4):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def timed(step, count):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    step()
    start.record()
    for _ in range(count):
        step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


def torch_steps(batch, size):
    torch.backends.cudnn.benchmark = True
    model = ResNet50().cuda().to(torch.bfloat16, memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, fused=True)
    x = torch.randn(batch, 3, size, size, device="cuda", dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), device="cuda")

    def train():
        optimiser.zero_grad(set_to_none=False)
        F.cross_entropy(model(x), labels).backward()
        optimiser.step()

    training = captured(train)
    say("PyTorch's training step is captured")
    folded = ResNet50().cuda().eval().fold().to(torch.bfloat16, memory_format=torch.channels_last)

    def infer():
        with torch.no_grad():
            folded(x)

    inference = captured(infer)
    say("PyTorch's inference is captured")
    return {"training": training, "inference": inference}


def mica_times(example, batch, size, count):
    text = subprocess.run([example, "cuda:0", "bf16", str(batch), str(size), str(count)], check=True,
                          capture_output=True, text=True).stdout
    return {name: float(re.search(rf"^{name} +([\d.]+) ms", text, re.M).group(1))
            for name in ("training", "inference")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--example", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commit", default="")
    a = parser.parse_args()
    steps = torch_steps(a.batch, a.size)
    times = {(name, engine): [] for name in steps for engine in ("mica", "peer/torch")}
    for i in range(a.rounds):
        for name, step in steps.items():
            times[name, "peer/torch"].append(timed(step, a.count))
        torch.cuda.synchronize()
        for name, ms in mica_times(a.example, a.batch, a.size, a.count).items():
            times[name, "mica"].append(ms)
        say(f"round {i + 1} of {a.rounds}")
    run = uuid.uuid4().hex[:8]
    with open(a.json, "w") as out:
        for (name, engine), ms in times.items():
            middle = statistics.median(ms)
            print(f"{name:10} {engine:10} {middle:9.3f} ms {a.batch * 1e3 / middle:9.0f} images/s")
            out.write(json.dumps({
                "set": "resnet50", "line": f"resnet50 {name} bf16 {a.batch}x3x{a.size}x{a.size}",
                "engine": engine, "ms": middle, "p10": min(ms), "p90": max(ms), "n": len(ms), "tflops": None,
                "gbps": None, "roofline": None, "commit": a.commit, "device": torch.cuda.get_device_name(),
                "driver": torch.__version__, "run": run}) + "\n")


if __name__ == "__main__":
    main()
