#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cudnn_jax.py FRONT [CASE...] [--json FILE] [--steps N] [--commit ID]: unmodified JAX trains on a GPU with its own cuDNN, and
with FRONT (build/front/libcudnn.so.9) preloaded in its place.

Cases: cnn (three convolutions, two with stride, f32 and bf16), attention (a causal transformer block on
jax.nn.dot_product_attention with implementation='cudnn', f16), lstm (jax.experimental.rnn, f32). Each has a process of its own,
once with either library: the losses of the steps are compared, with as many steps from another seed of the original for a
measure, and the medians of a step's time. That the preloaded one was at work is said by its own counters.
--json: a list with a row for each case; cudnn_page.py makes tables of it."""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

CASES = "cnn f32", "cnn bf16", "attention f16", "lstm f32"


def cnn(jax, dtype):
    jnp, lax = jax.numpy, jax.lax
    shapes = {"w0": (3, 3, 8, 32), "w1": (3, 3, 32, 64), "w2": (3, 3, 64, 64), "head": (64, 16)}

    def logits(p, x):
        for name, stride in ("w0", 1), ("w1", 2), ("w2", 2):
            x = lax.conv_general_dilated(x, p[name].astype(dtype), (stride, stride), "SAME",
                                         dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x)
        return x.astype(jnp.float32).mean((1, 2)) @ p["head"]

    def data(key):
        a, b = jax.random.split(key)
        labels = jax.random.randint(a, (32,), 0, 16)
        x = jax.random.normal(b, (32, 32, 32, 8)) + labels[:, None, None, None] / 8.0
        return x.astype(dtype), labels

    def loss(p, batch):
        x, labels = batch
        return -jnp.take_along_axis(jax.nn.log_softmax(logits(p, x)), labels[:, None], 1).mean()

    return shapes, data, loss, 0.2


def attention(jax, dtype):
    jnp = jax.numpy
    batch, length, heads, kv, depth, words = 4, 256, 8, 2, 64, 64
    width = heads * depth
    shapes = {"embed": (words, width), "q": (width, width), "k": (width, kv * depth), "v": (width, kv * depth),
              "o": (width, width), "head": (width, words)}

    def loss(p, tokens):
        x = p["embed"][tokens[:, :-1]]
        h = (x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)).astype(dtype)

        def part(name, n):
            return (h @ p[name].astype(dtype)).reshape(batch, length, n, depth)

        y = jax.nn.dot_product_attention(part("q", heads), part("k", kv), part("v", kv), is_causal=True, implementation="cudnn")
        x = x + (y.reshape(batch, length, width) @ p["o"].astype(dtype)).astype(jnp.float32)
        log_p = jax.nn.log_softmax(x @ p["head"])
        return -jnp.take_along_axis(log_p, tokens[:, 1:, None], 2).mean()

    def data(key):
        start, step = jax.random.randint(key, (2, batch, 1), 0, words)
        return (start + step * jnp.arange(length + 1)) % words

    return shapes, data, loss, 0.05


def lstm(jax, dtype):
    from jax.experimental import rnn

    jnp = jax.numpy
    batch, length, inputs, hidden = 16, 64, 24, 48
    count = rnn.get_num_params_in_lstm(inputs, hidden, 1, True)
    shapes = {"weights": (count,), "head": (2 * hidden, 4)}
    zeros, lengths = jnp.zeros((2, batch, hidden)), jnp.full((batch,), length, jnp.int32)

    def loss(p, given):
        x, labels = given
        y, _, _ = rnn.lstm(x, zeros, zeros, p["weights"] * 0.3, lengths, inputs, hidden, 1, 0.0, True)
        log_p = jax.nn.log_softmax(y.mean(1) @ p["head"])
        return -jnp.take_along_axis(log_p, labels[:, None], 1).mean()

    def data(key):
        a, b = jax.random.split(key)
        labels = jax.random.randint(a, (batch,), 0, 4)
        return jax.random.normal(b, (batch, length, inputs)) + (labels - 1.5)[:, None, None] / 2, labels

    return shapes, data, loss, 0.5


def train(jax, case, steps, seed):
    kind, dtype = case.split()
    shapes, data, loss, rate = globals()[kind](jax, {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}[dtype])
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    p = {name: jax.random.normal(key, shape) * (shape[-2] if len(shape) > 1 else 16) ** -0.5 / (3 if len(shape) == 4 else 1)
         for key, (name, shape) in zip(keys, shapes.items())}

    @jax.jit
    def step(p, batch):
        value, slopes = jax.value_and_grad(loss)(p, batch)
        return {n: p[n] - rate * slopes[n] for n in p}, value

    losses, times = [], []
    for n in range(steps):
        batch = jax.block_until_ready(data(jax.random.key(1000 + n)))
        start = time.perf_counter()
        p, value = step(p, batch)
        losses.append(float(value))
        times.append((time.perf_counter() - start) * 1e3)
    return losses, times


def child(case, path, steps, original):
    import jax

    row = {}
    try:
        losses, times = train(jax, case, steps, 1)
        row = {"losses": losses, "ms": statistics.median(times[len(times) // 2:]), "first_ms": times[0]}
        if original:
            row["other"] = train(jax, case, steps, 2)[0]
    except Exception as error:
        row = {"error": f"{type(error).__name__}: {error}"[:600]}
    if not original:
        for name in "calls", "served":
            counter = getattr(ctypes.CDLL(None), f"mica_cudnn_{name}")
            counter.argtypes, counter.restype = [ctypes.c_char_p], ctypes.c_int64
            row[name] = counter(None)
    device = jax.devices()[0]
    row |= {"device": device.device_kind, "jax": jax.__version__}
    pathlib.Path(path).write_text(json.dumps(row))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("front")
    p.add_argument("cases", nargs="*", default=CASES)
    p.add_argument("--json")
    p.add_argument("--steps", type=int, default=50)
    p.add_argument("--limit", type=float, default=200, help="seconds for a case with one library")
    p.add_argument("--commit", default="")
    p.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = p.parse_args()
    if given.child:
        child(given.child[0], given.child[1], given.steps, given.front == "original")
        return
    rows, bad = [], 0
    with tempfile.TemporaryDirectory() as work:
        for case in given.cases:
            sides = []
            for front in "original", str(pathlib.Path(given.front).resolve()):
                environment = dict(os.environ, XLA_PYTHON_CLIENT_PREALLOCATE="false")
                if front != "original":
                    environment["LD_PRELOAD"] = front
                path = pathlib.Path(work, f"{len(sides)}.json")
                path.write_text('{"error": "the process ended early"}')
                try:
                    subprocess.run([sys.executable, __file__, front, "--child", case, str(path), "--steps", str(given.steps)],
                                   env=environment, timeout=given.limit)
                except subprocess.TimeoutExpired:
                    path.write_text(json.dumps({"error": f"no end within {given.limit:.0f} s"}))
                sides.append(json.loads(path.read_text()))
            theirs, ours = sides
            row = {"group": "jax", "case": case, "original": theirs.get("error", "ran"), "mica": ours.get("error", "ran"),
                   "calls": ours.get("calls"), "served": ours.get("served"), "commit": given.commit,
                   "device": theirs.get("device"), "jax": theirs.get("jax")}
            if row["original"] == row["mica"] == "ran":
                apart = [abs(a - b) for a, b in zip(theirs["losses"], ours["losses"])]
                seeds = [abs(a - b) for a, b in zip(theirs["losses"], theirs["other"])]
                row |= {"apart": statistics.mean(apart), "seeds_apart": statistics.mean(seeds), "start": ours["losses"][0],
                        "last": ours["losses"][-1], "original_last": theirs["losses"][-1], "original_ms": theirs["ms"],
                        "mica_ms": ours["ms"], "ratio": theirs["ms"] / ours["ms"], "original_first_ms": theirs["first_ms"],
                        "mica_first_ms": ours["first_ms"]}
                said = (f"loss {row['start']:.3f} to {row['last']:.3f} (original {row['original_last']:.3f}), {row['apart']:.5f} apart "
                        f"({row['seeds_apart']:.4f} for two seeds), ratio {row['ratio']:.2f}")
            else:
                said = f"original: {row['original'][:200]}; mica: {row['mica'][:500]}"
            bad += row["mica"] != "ran" and row["original"] == "ran"
            rows.append(row)
            print(f"{case}: {said}; {row['served']} of {row['calls']} calls ran on mica", flush=True)
    if given.json:
        pathlib.Path(given.json).write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    print(f"{len(rows)} cases, {bad} that ran with the original and not with mica")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
