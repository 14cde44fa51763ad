#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""resize_random.py [--count N] [--seed S]: resizing of random sizes beside PyTorch's F.interpolate and, where the package
is there, ONNX Runtime's Resize, through every engine of the CPU.

What differs has to have a name below, a place where the other side is known to compute something else; how many problems
have it is printed. Fails where a difference has none."""
import argparse
import collections
import math
import random

import numpy as np
import torch
import torch.nn.functional as F

import mica

try:
    import onnx
    import onnxruntime
except ImportError:
    onnxruntime = None

PYTORCH = {
    "f32 coordinates": "nearest: coordinates are f32, and one that is a whole number comes out below it",
    "bytes between axes": "u8: weights of 16 bits; columns become bytes, which saturate, before rows are made of them",
    "equal sizes": "a scale other than 1 that leaves an axis' size as it is: copied in some modes and numbers of axes",
    "width of one": "antialias, and bytes of all filters, to one column repeats the first row's mean (findings/torch-antialias-width-one.sh)",
}
ORT = {
    "f32 coordinates": "nearest: coordinates are f32, which decide halves and whole numbers another way",
    "equal sizes": "a scale other than 1 that leaves the size as it is: copied",
    "corners": "align_corners with scales has the integer size (onnx has the size times the scale)",
}
TYPES = {"f64": np.float64, "f32": np.float32, "u8": np.uint8}


def text(shape):
    return "x".join(map(str, shape))


def numbers(shape, kind, draw):
    if kind == "u8":
        return np.array([draw.randrange(256) for _ in range(math.prod(shape))], np.uint8).reshape(shape)
    return np.array([draw.gauss(0, 1) for _ in range(math.prod(shape))]).astype(TYPES[kind]).reshape(shape)


def ours(x, kind, y, engine, **fields):
    return np.asarray(mica.resize(x, y=f"{kind}:{text(y)}", options={"engine": engine}, **fields))


def nearly_whole(pairs, halves):
    """Whether a coordinate of some axis is within f32's rounding of a whole number, or of a half."""
    for x, y, position in pairs:
        for o in range(y):
            p = position(o, x, y) * (2 if halves else 1)
            if abs(p - round(p)) <= 1e-6 * max(x, 1):
                return True
    return False


class Tally:
    def __init__(self, side, names):
        self.side, self.names = side, names
        self.same, self.wrong, self.found = 0, [], collections.Counter()

    def see(self, what, found, want, tolerance, name):
        difference = np.abs(found.astype(np.float64) - want.astype(np.float64)).max(initial=0)
        if difference <= tolerance:
            self.same += 1
        elif name:
            self.found[name] += 1
        else:
            self.wrong.append(f"{what}: {difference}")

    def show(self):
        print(f"{self.side}: {self.same} alike, {sum(self.found.values())} differ by name, {len(self.wrong)} without")
        for name, count in self.found.most_common():
            print(f"  {count:4} {name}: {self.names[name]}")
        for line in self.wrong[:20]:
            print("  " + line)


def beside_pytorch(draw, tally, engines):
    rank = draw.choice((1, 2, 2, 2, 3))
    kind = draw.choice(("f64", "f64", "f32", "u8") if rank == 2 else ("f64", "f32"))
    x = numbers((draw.choice((1, 2)), draw.choice((1, 3, 5)), *(draw.randint(1, 24) for _ in range(rank))), kind, draw)
    modes = {1: ["linear"], 2: ["bilinear", "bicubic"], 3: ["trilinear"]}[rank]
    mode = draw.choice(["nearest", "nearest-exact"] + modes * 3 + (["area"] if kind != "u8" else []))
    options, fields = {"mode": mode}, {"mode": mode if mode == "area" else "nearest"}
    if mode in modes:
        fields["mode"] = "cubic" if mode == "bicubic" else "linear"
        if rank == 2 and draw.random() < 0.4:
            options["antialias"] = fields["antialias"] = True
        elif draw.random() < 0.4:
            options["align_corners"], fields["coordinates"] = True, "align_corners"
    elif mode == "nearest":
        fields.update(coordinates="asymmetric", nearest="floor")
    elif mode == "nearest-exact":
        fields["nearest"] = "round_prefer_ceil"
    size, scale = [draw.randint(1, 40) for _ in range(rank)], None
    if mode != "area" and "align_corners" not in options and draw.random() < 0.4:
        scale = [draw.choice((0.5, 2.0, 1.5, 0.1, 0.3, 0.7, 3.0, draw.uniform(0.2, 3))) for _ in range(rank)]
        size = [math.floor(float(n) * s) for n, s in zip(x.shape[2:], scale)]
        if min(size) == 0:
            return
        fields.update(zip(("scale_d", "scale_h", "scale_w")[3 - rank:], scale))
    last = rank == 2 and draw.random() < 0.4
    t = torch.tensor(x)
    t = t.contiguous(memory_format=torch.channels_last) if last else t
    asked = {"size": size} if scale is None else {"scale_factor": scale, "recompute_scale_factor": False}
    want = F.interpolate(t, **asked, **options).numpy()
    half = 0.5 if mode == "nearest-exact" else 0.0
    steps = [1 / s for s in scale] if scale else [n / m for n, m in zip(x.shape[2:], size)]
    pairs = [(n, m, lambda o, n, m, step=step: (o + half) * step) for n, m, step in zip(x.shape[2:], size, steps)]
    name = None
    if fields["mode"] == "nearest" and nearly_whole(pairs, False):
        name = "f32 coordinates"
    for engine in engines:
        found = ours(t.numpy(), kind, want.shape, engine, **fields)
        tolerance = {"f64": 1e-6 if scale and mode not in ("nearest", "nearest-exact") else 1e-11, "f32": 3e-5, "u8": 0}[kind]
        if scale and any(n == m and s != 1 for n, m, s in zip(x.shape[2:], size, scale)):
            name = "equal sizes"
        if (options.get("antialias") or kind == "u8" and fields["mode"] != "nearest") and want.shape[3:] == (1,):
            name = "width of one"
        if kind == "u8" and fields["mode"] != "nearest":
            # The same in two steps, which rounds and saturates in between: a step off for the weights' 16 bits.
            only = {axis: {n: v for n, v in fields.items() if n not in ("scale_h", "scale_w") or n == "scale_" + axis}
                    for axis in "hw"}
            between = ours(t.numpy(), kind, (*x.shape[:3], want.shape[3]), engine, **only["w"])
            steps = ours(between, kind, want.shape, engine, **only["h"])
            if np.abs(steps.astype(int) - want).max() <= 2:
                name = "bytes between axes"
        tally.see(f"{kind} {x.shape} {asked} {options} {fields} {engine}", found, want, tolerance, name)


def beside_onnxruntime(draw, tally, engines):
    from onnx import TensorProto, helper

    rank = draw.choice((1, 2, 2))
    mode = draw.choice(("nearest", "linear", "cubic") if rank == 2 else ("nearest", "linear"))
    x = numbers((1, draw.choice((1, 3)), *(draw.randint(2, 16) for _ in range(rank))), "f32", draw)
    coordinates = draw.choice(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    fields = {"mode": mode, "coordinates": coordinates}
    if mode == "nearest":
        attributes["nearest_mode"] = fields["nearest"] = draw.choice(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    else:
        fields["border"] = "edge"
    if mode == "cubic":
        attributes["cubic_coeff_a"] = fields["cubic"] = draw.choice((-0.75, -0.5))
        if draw.random() < 0.4:
            attributes["exclude_outside"], fields["border"] = 1, "exclude"
    if mode != "nearest" and rank == 2 and coordinates == "half_pixel" and draw.random() < 0.5:
        attributes["antialias"] = fields["antialias"] = 1
    size, scale = [draw.randint(1, 30) for _ in range(rank)], None
    if draw.random() < 0.4:
        scale = [float(np.float32(draw.choice((0.5, 2.0, 1.5, 3.0, draw.uniform(0.3, 3))))) for _ in range(rank)]
        size = [int(np.floor(np.float32(n) * np.float32(s))) for n, s in zip(x.shape[2:], scale)]
        if min(size) == 0:
            return
        fields.update(zip(("scale_d", "scale_h", "scale_w")[3 - rank:], scale))
    given = ("scales", np.array([1, 1, *scale], np.float32)) if scale else ("sizes", np.array([*x.shape[:2], *size], np.int64))
    node = helper.make_node("Resize", ["x", "", "scales"] if scale else ["x", "", "", "sizes"], ["y"], **attributes)
    kind = TensorProto.FLOAT if scale else TensorProto.INT64
    graph = helper.make_graph([node], "resize", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                              [helper.make_tensor(given[0], kind, given[1].shape, given[1].tolist())])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), quiet, providers=["CPUExecutionProvider"])
        want = session.run(None, {"x": x})[0]
    except Exception:  # what it does not take
        tally.found["not taken"] += 1
        return
    steps = [1 / s for s in scale] if scale else [n / m for n, m in zip(x.shape[2:], size)]

    def position(step):
        if coordinates == "align_corners":
            return lambda o, n, m: o * (n - 1) / (m - 1) if m > 1 else 0
        if coordinates == "asymmetric":
            return lambda o, n, m: o * step
        return lambda o, n, m: (o + 0.5) * step - 0.5

    pairs = [(n, m, position(step)) for n, m, step in zip(x.shape[2:], size, steps)]
    name = None
    if mode == "nearest" and nearly_whole(pairs, True):
        name = "f32 coordinates"
    if coordinates == "align_corners" and scale:
        name = "corners"
    if scale and tuple(size) == x.shape[2:]:
        name = "equal sizes"
    for engine in engines:
        found = ours(x, "f32", want.shape, engine, **fields)
        tally.see(f"{x.shape} -> {size} {scale} {attributes} {engine}", found, want, 1e-4, name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw, engines = random.Random(options.seed), ("cpu", "ref")
    tallies = [Tally(f"PyTorch {torch.__version__}", PYTORCH)]
    if onnxruntime:
        tallies.append(Tally(f"ONNX Runtime {onnxruntime.__version__}", ORT | {"not taken": "no kernel for it"}))
    for _ in range(options.count):
        beside_pytorch(draw, tallies[0], engines)
        if onnxruntime:
            beside_onnxruntime(draw, tallies[1], engines)
    for tally in tallies:
        tally.show()
    return any(tally.wrong or tally.same == 0 for tally in tallies)


if __name__ == "__main__":
    raise SystemExit(main())
