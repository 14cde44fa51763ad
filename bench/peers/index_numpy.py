#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random problems of the operations on ops/index through mica's engines and NumPy (ONNX's reference for
gather and scatter of coordinates), compared element by element.

    pip install numpy==1.26.4 onnx==1.17.0
    index_numpy.py --library build/libmica.so.0 [--seed 1] [--number 200]

Values are small integers, so that sums are exact and results equal. Prints what differs and the numbers
of problems; fails if any did."""
import argparse
import ctypes as c
import random
import sys

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

NAMES = {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64", np.dtype(np.int32): "s32", np.dtype(np.int64): "s64"}
ONNX = {"f32": TensorProto.FLOAT, "f64": TensorProto.DOUBLE, "s32": TensorProto.INT32, "s64": TensorProto.INT64}


class Library:
    def __init__(self, path):
        self.lib = c.CDLL(path)
        self.lib.mica_error.restype = c.c_char_p
        self.lib.mica_plan_workspace.restype = c.c_size_t
        self.context = c.c_void_p()
        self.check(self.lib.mica_context_create(b"cpu", c.byref(self.context)))

    def check(self, status, line=""):
        if status:
            raise RuntimeError(f"{line}: {self.lib.mica_error().decode()}")

    def run(self, line, engine, arrays, scalars=()):
        """arrays: by the family's enumerators, None where absent."""
        class Options(c.Structure):
            _fields_ = [("size", c.c_size_t), ("mode", c.c_int), ("workspace_limit", c.c_int64), ("engine", c.c_char_p),
                        ("rest", c.c_char * 64)]
        plan = c.c_void_p()
        options = Options(engine=engine.encode())
        self.check(self.lib.mica_plan_from_text(self.context, line.encode(), c.byref(options), c.byref(plan)), line)
        room = self.lib.mica_plan_workspace(plan)
        memory = np.empty(room + 256, np.uint8)
        values = (c.c_double * 4)(*scalars)

        class Run(c.Structure):
            _fields_ = [("size", c.c_size_t), ("scalars", c.c_void_p), ("workspace", c.c_void_p),
                        ("stream", c.c_void_p), ("args", c.c_void_p * len(arrays))]
        run = Run(size=c.sizeof(Run), scalars=c.addressof(values) if scalars else None)
        for i, a in enumerate(arrays):
            run.args[i] = a.ctypes.data if a is not None else None
        run.workspace = (memory.ctypes.data + 255) // 256 * 256 if room else None
        self.check(self.lib.mica_plan_run(plan, c.byref(run)), line)
        self.lib.mica_plan_destroy(plan)


def text(a):
    return f"{NAMES[a.dtype]}:{'x'.join(map(str, a.shape))}"


def xs(values):
    return "x".join(map(str, values))


def numbers(shape, dtype):
    return np.ascontiguousarray(np.random.randint(-4, 5, shape).astype(dtype))


def reals():
    return random.choice([np.float32, np.float64, np.int32])


def dims(low=1, high=4, most=7):
    return [random.randint(1, most) for _ in range(random.randint(low, high))]


def onnx_of(op, inputs, dtype, rank, **attributes):
    """One node by ONNX's reference."""
    names = [f"i{k}" for k in range(len(inputs))]
    graph = helper.make_graph([helper.make_node(op, names, ["o"], **attributes)], "g",
                              [helper.make_tensor_value_info(n, ONNX[NAMES[a.dtype]], a.shape)
                               for n, a in zip(names, inputs)],
                              [helper.make_tensor_value_info("o", ONNX[dtype], [None] * rank)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return ReferenceEvaluator(model).run(None, dict(zip(names, inputs)))[0]


def back(forward, shape, dy):
    """The gradient: where each element came from, then sums."""
    source = forward(np.arange(int(np.prod(shape))).reshape(shape) + 1).reshape(-1)
    dx = np.zeros(int(np.prod(shape)) + 1, dy.dtype)
    np.add.at(dx, source, dy.reshape(-1))
    return dx[1:].reshape(shape)


def case_pad():
    mode = random.choice(["constant", "reflect", "edge", "wrap"])
    shape, dtype = dims(), reals()
    if mode == "constant":
        pairs = [(random.randint(-n // 2, 4), random.randint(-(n - n // 2) + 1, 4)) for n in shape]
    else:
        pairs = [(random.randint(0, 2 * n), random.randint(0, 2 * n)) for n in shape]
    if mode == "reflect":
        pairs = [(a, b) if n > 1 else (0, 0) for n, (a, b) in zip(shape, pairs)]
    pairs = [(max(a, -n + 1), b) for n, (a, b) in zip(shape, pairs)]
    pairs = [(a, max(b, 1 - n - a)) for n, (a, b) in zip(shape, pairs)]

    def forward(v, value=0):
        if mode != "constant":
            return np.pad(v, pairs, mode=mode)
        v = v[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(v.shape, pairs))]
        return np.pad(v, [(max(a, 0), max(b, 0)) for a, b in pairs], constant_values=value)
    fields = f"mode={mode} before={xs(a for a, _ in pairs)} after={xs(b for _, b in pairs)}"
    x = numbers(shape, dtype)
    y = forward(x, 3)
    yield f"pad {fields} x={text(x)}", [x, np.empty_like(y)], 1, y, (3.0,)
    dy = numbers(y.shape, dtype)
    yield f"pad pass=bwd {fields} dx={text(x)}", [None, None, dy, np.empty_like(x)], 3, back(forward, shape, dy), (0.0,)


def case_gather():
    mode, dtype, shape = random.choice(["take", "elements", "nd"]), reals(), dims()
    axis, kind = random.randrange(len(shape)), random.choice([np.int32, np.int64])
    x, batch = numbers(shape, dtype), 0
    if mode == "take":
        index = np.random.randint(-shape[axis], shape[axis], dims(0, 2)).astype(kind)
        forward = lambda v: onnx_of("Gather", [v, index], NAMES[v.dtype], 1, axis=axis)
    elif mode == "elements":
        own = [random.randint(1, n) if d != axis else random.randint(1, 9) for d, n in enumerate(shape)]
        index = np.random.randint(-shape[axis], shape[axis], own).astype(kind)
        if all(n == m for d, (n, m) in enumerate(zip(shape, own)) if d != axis):
            forward = lambda v: onnx_of("GatherElements", [v, index], NAMES[v.dtype], 1, axis=axis)
        else:  # NumPy's wants equal extents beside axis
            cut = tuple(slice(None) if d == axis else slice(0, n) for d, n in enumerate(own))
            forward = lambda v: np.take_along_axis(v[cut], index.astype(np.int64), axis)
    else:
        batch = random.randint(0, len(shape) - 1)
        depth = random.randint(1, len(shape) - batch)
        kind = np.int64
        index = np.stack([np.random.randint(-n, n, shape[:batch] + [5, 3]) for n in shape[batch:batch + depth]], -1)
        index = np.ascontiguousarray(index)
        forward = lambda v: onnx_of("GatherND", [v, index], NAMES[v.dtype], 1, batch_dims=batch)
    fields = f"mode={mode} index={text(index)} negative=1 " + (f"batch_dims={batch}" if mode == "nd" else f"axis={axis}")
    y = np.ascontiguousarray(forward(x))
    yield f"gather {fields} x={text(x)}", [x, index, np.empty_like(y)], 2, y, ()
    dy = numbers(y.shape, dtype)
    yield (f"gather pass=bwd {fields} dx={text(x)}", [None, index, None, dy, np.empty_like(x)], 4,
           back(forward, shape, dy), ())


def case_scatter():
    mode, dtype, shape = random.choice(["elements", "nd"]), reals(), dims()
    reduction, axis = random.choice(["none", "add", "mul", "max", "min"]), random.randrange(len(shape))
    x = numbers(shape, dtype)
    if mode == "elements":
        own = [random.randint(1, n) for n in shape]
        index = np.random.randint(-shape[axis], shape[axis], own).astype(np.int64)
        u = numbers(own, dtype)
        places = [[int(index[i]) if d == axis else i[d] for d in range(len(shape))] for i in np.ndindex(*own)]
        updates = [u[i] for i in np.ndindex(*own)]
    else:
        depth = random.randint(1, len(shape))
        index = np.ascontiguousarray(np.stack([np.random.randint(-n, n, [2, 3]) for n in shape[:depth]], -1))
        u = numbers([2, 3] + shape[depth:], dtype)
        places = [list(index[i]) for i in np.ndindex(2, 3)]
        updates = [u[i] for i in np.ndindex(2, 3)]
    # One after the other, in logical order: ONNX leaves duplicates without a reduction open.
    merge = {"none": lambda a, b: b, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[reduction]
    y = x.copy()
    for place, v in zip(places, updates):
        y[tuple(place)] = merge(y[tuple(place)], v)
    if reduction == "add":  # sums do not depend on order
        op = "ScatterElements" if mode == "elements" else "ScatterND"
        own = onnx_of(op, [x, index, u], NAMES[x.dtype], 1, reduction="add", **({"axis": axis} if mode == "elements" else {}))
        assert np.array_equal(own, y), "ONNX's reference differs from the loop"
    line = f"scatter mode={mode} reduction={reduction} x={text(x)} index={text(index)} negative=1"
    yield line + (f" axis={axis}" if mode == "elements" else ""), [x, index, u, np.empty_like(x)], 3, y, ()


def case_concat():
    dtype, shape = reals(), dims()
    axis = random.randrange(len(shape))
    parts = []
    for _ in range(random.randint(1, 8)):
        own = list(shape)
        own[axis] = random.randint(0, 5)
        parts.append(numbers(own, dtype))
    y = np.concatenate(parts, axis)
    names = " ".join(f"x{i}={text(p)}" for i, p in enumerate(parts))
    absent = [None] * (8 - len(parts))
    yield f"concat {names} axis={axis}", parts + absent + [np.empty_like(y)], 8, y, ()
    k = random.randrange(len(parts))
    yield (f"concat pass=bwd {names} axis={axis}", [np.empty_like(p) for p in parts] + absent + [y], k, parts[k], ())


def case_slice():
    dtype, shape = reals(), dims()
    start, step = [random.randrange(n) for n in shape], [random.choice([1, 2, 3, -1, -2]) for _ in shape]
    forward = lambda v: v[tuple(slice(a, None, s) for a, s in zip(start, step))]
    x = numbers(shape, dtype)
    fields = f"start={xs(start)} step={xs(step)}"
    y = np.ascontiguousarray(forward(x))
    yield f"slice {fields} x={text(x)}", [x, np.empty_like(y)], 1, y, ()
    dy = numbers(y.shape, dtype)
    yield f"slice pass=bwd {fields} dx={text(x)}", [None, None, dy, np.empty_like(x)], 3, back(forward, shape, dy), ()
    want = x.copy()
    forward(want)[...] = dy
    yield f"slice pass=write {fields} x={text(x)}", [x.copy(), dy], 0, want, ()


def case_tile():
    dtype, shape = reals(), dims()
    repeats, shift = [random.randint(1, 3) for _ in shape], [random.randint(-9, 9) for _ in shape]
    forward = lambda v: np.tile(np.roll(v, shift, tuple(range(v.ndim))), repeats)
    x = numbers(shape, dtype)
    y = forward(x)
    fields = f"repeats={xs(repeats)} shift={xs(shift)}"
    yield f"tile {fields} x={text(x)}", [x, np.empty_like(y)], 1, y, ()
    dy = numbers(y.shape, dtype)
    yield f"tile pass=bwd {fields} dx={text(x)}", [None, None, dy, np.empty_like(x)], 3, back(forward, shape, dy), ()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=200)
    options = parser.parse_args()
    library, wrong = Library(options.library), 0
    for case in (case_pad, case_gather, case_scatter, case_concat, case_slice, case_tile):
        random.seed(f"{options.seed} {case.__name__}")
        np.random.seed(options.seed)
        count = 0
        for _ in range(options.number):
            for line, arrays, result, want, scalars in case():
                for engine in ("cpu", "ref"):
                    own = [a.copy() if a is not None else None for a in arrays]
                    library.run(line, engine, own, scalars)
                    count += 1
                    if not np.array_equal(own[result], want):
                        wrong += 1
                        print(f"differs: {engine} {line}")
        print(f"{case.__name__[5:]}: {count} runs")
    print(f"{wrong} differ")
    return wrong > 0


sys.exit(main())
