#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The transformer block of examples/04_transformer_block and PyTorch: the same weights, results and times.

    transformer_block_torch.py --example build/tests/examples/04_transformer_block \
        --device cuda:0 --dtype bf16 --sizes 2 4096 32 8 128 14336 [--json out.jsonl]

The example writes its inputs, weights, results and gradients into a folder; PyTorch computes them anew in f64
(the truth) and in the example's type (what rounding alone does: scaled_dot_product_attention, linear, silu). An
error is |a - truth| / |truth|, of whole tensors. The example's may be twice PyTorch's, which rounds at about as
many places, plus a tenth of the type's unit roundoff (eight of f64, where the truth is no better); more, and the exit
status is 1.
Times are of CUDA graphs on a GPU, medians of rounds in turn."""

import argparse
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import torch
import torch.nn.functional as F

TYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
UNIT = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
PARAMETERS = ["x", "g1", "wqkv", "wo", "g2", "wgu", "wd"]


def read(folder):
    """{name: tensor} of what the example wrote."""
    tensors = {}
    for line in (folder / "block.txt").read_text().splitlines()[1:]:
        name, dtype, rows, columns = line.split()
        raw = bytearray((folder / f"{name}.bin").read_bytes())
        tensors[name] = torch.frombuffer(raw, dtype=TYPES[dtype]).reshape(int(rows), int(columns))
    return tensors


def turn(x, cosine, sine):
    """Rotary embedding; columns i and i + D/2 are a pair."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)


def plain_attention(q, k, v):
    """Written out, in the inputs' type: the truth."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


def fused_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def make_block(sizes, dtype, device, attention):
    batch, length, heads, kv_heads, head_dim, _ = sizes
    angle_type = torch.float64 if dtype == torch.float64 else torch.float32
    frequency = 10000.0 ** (-2 * torch.arange(head_dim // 2, dtype=torch.float64) / head_dim)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    cosine, sine = (t.to(device, angle_type) for t in (angles.cos(), angles.sin()))

    def rms(x, g):
        return F.rms_norm(x, x.shape[-1:], g.to(x.dtype).flatten(), 1e-5)

    def split(x, count):
        return x.reshape(batch, length, count, head_dim).transpose(1, 2)

    def block(x, g1, wqkv, wo, g2, wgu, wd):
        qkv = F.linear(rms(x, g1), wqkv)
        q, k, v = qkv.split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], -1)
        q, k = (turn(split(t, n).to(angle_type), cosine, sine).to(dtype)
                for t, n in ((q, heads), (k, kv_heads)))
        k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, split(v, kv_heads)))
        o = attention(q, k, v).transpose(1, 2).reshape(batch * length, heads * head_dim)
        r = x + F.linear(o, wo)
        gate, up = F.linear(rms(r, g2), wgu).chunk(2, -1)
        return r + F.linear(F.silu(gate) * up, wd)

    return block


def inputs(tensors, dtype, device, wide):
    """Parameters that want gradients; gains stay in f32 where the example keeps them there."""
    for name in PARAMETERS:
        t = tensors[name].to(device)
        yield (t.to(dtype) if wide else t).requires_grad_()


def results(block, parameters, dy):
    y = block(*parameters)
    y.backward(dy)
    found = {"y": y.detach().cpu()}
    for name, p in zip(PARAMETERS, parameters):
        found["d" + name] = p.grad.cpu()
        p.grad = None
    return found


def error(a, truth):
    return ((a.double() - truth.double()).norm() / truth.double().norm()).item()


def compare(tensors, sizes, dtype_name, device):
    dtype = TYPES[dtype_name]
    truth = results(make_block(sizes, torch.float64, device, plain_attention),
                    list(inputs(tensors, torch.float64, device, True)), tensors["dy"].to(device).double())
    rounded = results(make_block(sizes, dtype, device, fused_attention),
                      list(inputs(tensors, dtype, device, False)), tensors["dy"].to(device))
    good = True
    for name, exact in truth.items():
        ours, theirs = error(tensors[name], exact), error(rounded[name], exact)
        bound = 2 * theirs + (8 if dtype_name == "f64" else 0.1) * UNIT[dtype_name]
        ok = ours <= bound
        good &= ok
        print(f"{name:6} relative error {ours:.2e}, PyTorch's {theirs:.2e}, bound {bound:.2e}{'' if ok else '  WRONG'}")
    return good


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


def timed(step, count, device):
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3 / count


def torch_steps(tensors, sizes, dtype, device):
    block = make_block(sizes, dtype, device, fused_attention)
    parameters, dy = list(inputs(tensors, dtype, device, False)), tensors["dy"].to(device)

    def forward():
        with torch.no_grad():
            block(*parameters)

    def step():
        for p in parameters:
            p.grad = None
        block(*parameters).backward(dy)

    steps = {"forward": forward, "step": step}
    return {k: captured(s) for k, s in steps.items()} if device.type == "cuda" else steps


def run_example(a, folder=None):
    command = [a.example, a.device, a.dtype, *map(str, a.sizes), str(a.count)] + ([str(folder)] if folder else [])
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return {name: float(re.search(rf"^{name} +([\d.]+) ms", done.stdout, re.M).group(1))
            for name in ("forward", "step")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--example", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="f32", choices=TYPES)
    parser.add_argument("--sizes", type=int, nargs=6, default=[2, 64, 8, 2, 32, 688],
                        metavar=("BATCH", "LENGTH", "HEADS", "KV_HEADS", "HEAD_DIM", "FFN"))
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    parser.add_argument("--commit", default="")
    a = parser.parse_args()
    device = torch.device(a.device)
    torch.backends.cuda.matmul.allow_tf32 = False
    with tempfile.TemporaryDirectory() as folder:
        run_example(a, folder)
        tensors = read(Path(folder))
    good = compare(tensors, a.sizes, a.dtype, device)
    steps = torch_steps(tensors, a.sizes, TYPES[a.dtype], device)
    times = {(name, engine): [] for name in steps for engine in ("mica", "peer/torch")}
    for _ in range(a.rounds):
        for name, step in steps.items():
            times[name, "peer/torch"].append(timed(step, a.count, device))
        for name, ms in run_example(a).items():
            times[name, "mica"].append(ms)
    where = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    rows, run = [], uuid.uuid4().hex[:8]
    for (name, engine), ms in times.items():
        middle = statistics.median(ms)
        print(f"{name:8} {engine:10} {middle:9.3f} ms {a.sizes[0] * a.sizes[1] * 1e3 / middle:10.0f} tokens/s")
        rows.append({"set": "transformer_block", "line": f"block {name} {a.dtype} {'x'.join(map(str, a.sizes))}",
                     "engine": engine, "ms": middle, "p10": min(ms), "p90": max(ms), "n": len(ms), "tflops": None,
                     "gbps": None, "roofline": None, "commit": a.commit, "device": where,
                     "driver": torch.__version__, "run": run})
    if a.json:
        Path(a.json).write_text("".join(json.dumps(row) + "\n" for row in rows))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
