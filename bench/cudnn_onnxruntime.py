#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cudnn_onnxruntime.py FRONT [CASE...] [--json FILE] [--commit ID]: unmodified ONNX Runtime runs models on a GPU with the
original cuDNN, and with FRONT (build/front/libcudnn.so.9) preloaded in its place.

It needs the packages onnx and onnxruntime-gpu (of the CUDA that is there). Cases are the operators that ONNX Runtime gives to
cuDNN and two networks of them, in f32 and f16; nodes that no CUDA kernel takes make a case fail, so that nothing runs on the
CPU unseen. Each library has a process of its own. Results are compared with ONNX Runtime's own on the CPU, in f32: the
distance is the largest difference over the largest result. That the preloaded one was at work is said by its own counters.
--cpu: the cases on the CPU alone, to try them.
--json: a list with a row for each case; cudnn_page.py makes a table of it."""

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

import numpy as np

ALLOWED = {"f32": 2e-3, "f16": 1e-2}  # TF32 is off; f16 has 11 bits


class Net:
    """A model in the making: nodes one after the other, weights drawn by a seed."""

    def __init__(self, case, dtype):
        import onnx

        self.helper, self.numpy_helper, self.kinds = onnx.helper, onnx.numpy_helper, onnx.TensorProto
        self.dtype, self.nodes, self.weights, self.draw = dtype, [], [], np.random.default_rng(len(case))
        self.inputs, self.count = {}, 0

    def input(self, *shape):
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.draw.standard_normal(shape).astype("f4")
        return name

    def weight(self, *shape, scale=None, low=None):
        values = self.draw.standard_normal(shape) * (scale or 1 / np.sqrt(max(1, np.prod(shape[1:]))))
        if low is not None:
            values = low + np.abs(values)
        return self.constant(values.astype("f4" if self.dtype == "f32" else "f2"))

    def constant(self, values):
        name = f"w{len(self.weights)}"
        self.weights.append(self.numpy_helper.from_array(values, name))
        return name

    def node(self, op, *inputs, outputs=1, **attributes):
        names = [f"t{self.count + i}" for i in range(outputs)]
        self.count += outputs
        self.nodes.append(self.helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def conv(self, x, channels, filters, kernel, bias=True, groups=1, op="Conv", **attributes):
        shape = (filters, channels // groups) if op == "Conv" else (channels, filters // groups)
        more = [self.weight(filters, scale=0.1)] if bias else []
        return self.node(op, x, self.weight(*shape, *kernel), *more, kernel_shape=list(kernel), group=groups, **attributes)

    def model(self, outputs):
        kind = self.kinds.FLOAT if self.dtype == "f32" else self.kinds.FLOAT16
        value = self.helper.make_tensor_value_info
        graph = self.helper.make_graph(
            self.nodes, "case", [value(n, kind, v.shape) for n, v in self.inputs.items()],
            [value(n, kind, None) for n in outputs], self.weights)
        made = self.helper.make_model(graph, opset_imports=[self.helper.make_opsetid("", 17)])
        made.ir_version = 8
        return made.SerializeToString()


def norm(n, x, channels):
    return n.node("BatchNormalization", x, n.weight(channels, scale=0.2, low=0.5), n.weight(channels, scale=0.1),
                  n.weight(channels, scale=0.1), n.weight(channels, scale=0.2, low=0.5))


def recurrent(n, op, gates, **attributes):
    steps, batch, size, hidden = 12, 5, 24, 32
    ways = 2 if attributes.get("direction") == "bidirectional" else 1
    more = [n.weight(ways, 2 * gates * hidden, scale=0.1)]
    return n.node(op, n.input(steps, batch, size), n.weight(ways, gates * hidden, size), n.weight(ways, gates * hidden, hidden), *more,
                  hidden_size=hidden, **attributes)


def residual(n, x, channels, filters, stride):
    y = n.node("Relu", norm(n, n.conv(x, channels, filters, (3, 3), bias=False, pads=[1] * 4, strides=[stride] * 2), filters))
    y = norm(n, n.conv(y, filters, filters, (3, 3), bias=False, pads=[1] * 4), filters)
    if stride > 1 or channels != filters:
        x = n.conv(x, channels, filters, (1, 1), bias=False, strides=[stride] * 2)
    return n.node("Relu", n.node("Add", x, y))


def resnet(n):
    x = n.conv(n.input(4, 3, 96, 96), 3, 64, (7, 7), pads=[3] * 4, strides=[2, 2])
    x = n.node("MaxPool", n.node("Relu", norm(n, x, 64)), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for channels, filters, stride in (64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2):
        x = residual(n, residual(n, x, channels, filters, stride), filters, filters, 1)
    x = n.node("Flatten", n.node("GlobalAveragePool", x))
    return n.node("Softmax", n.node("Gemm", x, n.weight(512, 100)), axis=1)


def unet(n):
    x = n.input(2, 4, 64, 64)
    one = n.node("Relu", n.conv(x, 4, 32, (3, 3), pads=[1] * 4))
    two = n.node("Relu", n.conv(n.node("MaxPool", one, kernel_shape=[2, 2], strides=[2, 2]), 32, 64, (3, 3), pads=[2] * 4, dilations=[2, 2]))
    up = n.conv(two, 64, 32, (2, 2), op="ConvTranspose", strides=[2, 2])
    return n.conv(n.node("Concat", up, one, axis=1), 64, 4, (1, 1))


def reduced(n, op):
    return n.node(op, n.input(6, 33, 17, 20), axes=[1, 3], keepdims=1)


CASES = {
    "conv": lambda n: n.conv(n.input(2, 13, 28, 31), 13, 24, (3, 3), pads=[1] * 4),
    "conv strides": lambda n: n.conv(n.input(2, 16, 33, 30), 16, 40, (5, 3), pads=[2, 1, 2, 1], strides=[2, 2]),
    "conv 1d": lambda n: n.conv(n.input(3, 20, 200), 20, 32, (7,), pads=[3, 3]),
    "conv 3d": lambda n: n.conv(n.input(1, 8, 10, 12, 14), 8, 16, (3, 3, 3), pads=[1] * 6),
    "conv groups": lambda n: n.conv(n.input(2, 32, 20, 20), 32, 64, (3, 3), groups=4, pads=[1] * 4),
    "conv depthwise": lambda n: n.conv(n.input(2, 48, 30, 30), 48, 48, (3, 3), groups=48, pads=[1] * 4),
    "conv relu": lambda n: n.node("Relu", n.conv(n.input(2, 32, 20, 20), 32, 48, (1, 1))),
    "conv transposed": lambda n: n.conv(n.input(2, 24, 14, 15), 24, 16, (4, 4), op="ConvTranspose", strides=[2, 2], pads=[1] * 4),
    "batch norm": lambda n: norm(n, n.input(3, 40, 17, 19), 40),
    "max pool": lambda n: n.node("MaxPool", n.input(2, 12, 31, 30), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    "average pool": lambda n: n.node("AveragePool", n.input(2, 12, 30, 30), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    "global pool": lambda n: n.node("GlobalAveragePool", n.input(4, 64, 14, 14)),
    "lrn": lambda n: n.node("LRN", n.input(2, 16, 20, 20), size=5, alpha=1e-2, beta=0.75),
    "instance norm": lambda n: n.node("InstanceNormalization", n.input(3, 16, 20, 21), n.weight(16, low=0.5), n.weight(16)),
    "sum": lambda n: n.node("ReduceSum", n.input(6, 33, 17, 20), n.constant(np.array([1, 3])), keepdims=0),
    "mean": lambda n: reduced(n, "ReduceMean"),
    "largest": lambda n: reduced(n, "ReduceMax"),
    "smallest": lambda n: reduced(n, "ReduceMin"),
    "l2": lambda n: reduced(n, "ReduceL2"),
    "log sum exp": lambda n: reduced(n, "ReduceLogSumExp"),
    "lstm": lambda n: recurrent(n, "LSTM", 4, outputs=3),
    "lstm both ways": lambda n: recurrent(n, "LSTM", 4, outputs=3, direction="bidirectional"),
    "gru": lambda n: recurrent(n, "GRU", 3, outputs=2, linear_before_reset=1),
    "rnn": lambda n: recurrent(n, "RNN", 1, outputs=2),
    "resnet": resnet,
    "unet": unet,
}
F16 = "conv", "conv groups", "conv transposed", "batch norm", "max pool", "average pool", "resnet", "unet", "lstm"


def names():
    return [f"{case} f32" for case in CASES] + [f"{case} f16" for case in F16]


def run(case, cpu):
    """Results of the case, and the median of its milliseconds."""
    import onnxruntime as ort

    kind, dtype = case.rsplit(" ", 1)
    net = Net(kind, "f32" if cpu else dtype)
    outputs = CASES[kind](net)
    outputs = [outputs] if isinstance(outputs, str) else outputs
    options = ort.SessionOptions()
    providers = ["CPUExecutionProvider"]
    if not cpu:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        providers = [("CUDAExecutionProvider", {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"})]
    session = ort.InferenceSession(net.model(outputs), options, providers=providers)
    feed = {name: values.astype("f4" if cpu or dtype == "f32" else "f2") for name, values in net.inputs.items()}
    if cpu:
        return [v.astype("f8") for v in session.run(None, feed)], 0
    binding = session.io_binding()
    held = {name: ort.OrtValue.ortvalue_from_numpy(values, "cuda", 0) for name, values in feed.items()}
    for name, value in held.items():
        binding.bind_ortvalue_input(name, value)
    for name in outputs:
        binding.bind_output(name, "cuda", 0)
    times = []
    for _ in range(30):
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        times.append((time.perf_counter() - start) * 1e3)
    return [v.numpy().astype("f8") for v in binding.get_outputs()], statistics.median(times[10:])


def child(path, cases, original):
    """Rows as they come, so that a process that ends early has told of those before."""
    for case in cases:
        row = {"case": case}
        try:
            want, (got, row["ms"]) = run(case, True)[0], run(case, False)
            row["distance"] = max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(want, got))
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:600]
        if not original:
            for name in "calls", "served":
                counter = getattr(ctypes.CDLL(None), f"mica_cudnn_{name}")
                counter.argtypes, counter.restype = [ctypes.c_char_p], ctypes.c_int64
                row[name] = counter(None)
        with open(path, "a") as file:
            file.write(json.dumps(row) + "\n")


def side(front, path, o):
    environment = dict(os.environ)
    if front != "original":
        environment["LD_PRELOAD"] = front
    try:
        subprocess.run([sys.executable, __file__, front, *o.cases, "--child", str(path)], env=environment, timeout=o.limit)
    except subprocess.TimeoutExpired:
        print(f"{front}: no end within {o.limit:.0f} s", file=sys.stderr)
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {row["case"]: row for row in rows}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("front")
    p.add_argument("cases", nargs="*", default=names())
    p.add_argument("--json")
    p.add_argument("--limit", type=float, default=200, help="seconds with one library")
    p.add_argument("--commit", default="")
    p.add_argument("--cpu", action="store_true")
    p.add_argument("--child", help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.child:
        child(o.child, o.cases, o.front == "original")
        return
    if o.cpu:
        for case in o.cases:
            print(case, [v.shape for v in run(case, True)[0]])
        return
    with tempfile.TemporaryDirectory() as work:
        theirs = side("original", pathlib.Path(work, "original"), o)
        ours = side(str(pathlib.Path(o.front).resolve()), pathlib.Path(work, "mica"), o)
    import onnxruntime

    rows, bad, before = [], 0, {"calls": 0, "served": 0}
    for case in o.cases:
        a, b = (side.get(case, {"error": "the process ended early"}) for side in (theirs, ours))
        row = {"case": case, "original": a.get("error", "ran"), "mica": b.get("error", "ran"), "original_distance": a.get("distance"),
               "distance": b.get("distance"), "original_ms": a.get("ms"), "mica_ms": b.get("ms"), "commit": o.commit,
               "onnxruntime": onnxruntime.__version__}
        for name in before:
            row[name] = b.get(name, before[name]) - before[name]
            before[name] = b.get(name, before[name])
        limit = ALLOWED[case.rsplit(" ", 1)[1]]
        wrong = row["mica"] != "ran" or not row["distance"] <= max(limit, 2 * (row["original_distance"] or 0))
        bad += wrong and row["original"] == "ran"
        rows.append(row)
        said = (f"from the CPU's results {row['distance']:.1e}, the original {row['original_distance']:.1e}; ms {row['mica_ms']:.3f}, "
                f"{row['original_ms']:.3f}" if row["original"] == row["mica"] == "ran" else
                f"original: {row['original'][:160]}; mica: {row['mica'][:300]}")
        print(f"{'WRONG ' if wrong else ''}{case}: {said}; {row['served']} of {row['calls']} calls ran on mica", flush=True)
    if o.json:
        pathlib.Path(o.json).write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    print(f"{len(rows)} cases, {bad} that ran with the original and not, or wrongly, with mica")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
