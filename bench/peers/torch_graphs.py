#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Graphs through mica and PyTorch in one process, on the same inputs, in turn.

    torch_graphs.py --device cuda:0 --library build/libmica.so.0 --json out.jsonl bench/cases/graphs/*.graph
    torch_graphs.py --judge --device cpu bench/cases/graphs-cpu/*.graph tests/cases/graphs/*.graph

Each node becomes a call of PyTorch's, OPERATIONS has one for each operation, and views become views. The peers are
"peer/torch", eager, and with --compile "peer/torch-compile". Times are medians of interleaved runs: CUDA events on a
GPU, behind a wait that is longer than the host needs, the clock on a CPU. Results are compared first.

--judge compares without timing: fused, unfused and node by node, beside PyTorch's in f64 (pip install torch==2.15.0)
that nothing is rounded in. The exit status is 1 if something differs or a node has no equivalent."""

import argparse
import ctypes as c
import math
import os
import statistics
import sys
import time
import typing
import warnings

import numpy as np
import torch
import torch.nn.functional as F

import torch_families
import torch_peer
from torch_expressions import translate
from torch_peer import ACTIVATIONS, DTYPES, MAX_ARGS, ArgInfo, Mica, Report, Tensor, axes, fields_of, finish, keep_memory

VIRTUAL, INPUT, OUTPUT, INOUT, CONSTANT = range(5)
MODES = ("fused", "unfused", "separate")
# Relative to a value and to the root mean square of all: of several nodes that round to a type one after another.
WITHIN = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2**-8, torch.bfloat16: 2**-5}


class Info(c.Structure):
    _fields_ = [("name", c.c_char_p), ("kind", c.c_int), ("tensor", Tensor)]


class Options(c.Structure):
    _fields_ = [("size", c.c_size_t), ("mode", c.c_int), ("without", c.c_char_p), ("nodes", c.c_void_p)]


class GraphRun(c.Structure):
    _fields_ = [("size", c.c_size_t), ("tensors", c.POINTER(c.c_void_p)), ("scalars", c.POINTER(c.c_double)),
                ("workspace", c.c_void_p), ("stream", c.c_void_p)]


class Step(c.Structure):
    _fields_ = [("plan", c.c_void_p), ("nodes", c.c_char_p), ("binds", c.c_int)]


class ExtentInfo(c.Structure):
    _fields_ = [("name", c.c_char_p), ("low", c.c_int64), ("high", c.c_int64), ("buckets", c.POINTER(c.c_int64)), ("count", c.c_int)]


class Shape(typing.NamedTuple):
    """A tensor as plain values, which torch.compile can see through."""
    dtype: int
    rank: int
    dims: list
    strides: list


def shape_of(tensor):
    return Shape(tensor.dtype, tensor.rank, list(tensor.dims[:tensor.rank]), list(tensor.strides[:tensor.rank]))


# ---- views ----


def memory_order(dims, strides):
    """Dimensions from the outermost of memory to the innermost; NotImplementedError with gaps."""
    order = sorted(range(len(dims)), key=lambda d: (dims[d] > 1, strides[d] if dims[d] > 1 else 0, -d), reverse=True)
    packed = 1
    for d in reversed(order):
        if dims[d] > 1 and strides[d] != packed:
            raise NotImplementedError("a view of a tensor with gaps")
        packed *= dims[d]
    return order


def view(base, want, at):
    """A function that gives of base's value the view `want` from element `at` on."""
    dims, strides, new, steps = base.dims, base.strides, want.dims, want.strides
    if not at and dims == new and strides == steps:
        return lambda value: value
    order = memory_order(dims, strides)
    moving = sorted((d for d in range(len(new)) if new[d] > 1 and steps[d]), key=lambda d: -steps[d])
    shape, parts, left = [], [], math.prod(dims)
    for d in moving:
        if left % steps[d]:
            raise NotImplementedError("strides of a view that do not divide each other")
        shape.append(left // steps[d])
        parts.append((at // steps[d], new[d]))
        at, left = at % steps[d], steps[d]
        if parts[-1][0] + new[d] > shape[-1]:
            raise NotImplementedError("rows of a view that run into each other")
    ascending = sorted(moving)
    turn, index = [moving.index(d) for d in ascending], [slice(None) if d in moving else None for d in range(len(new))]

    def take(value):
        value = value.permute(order).reshape([*shape, left])
        for i, (start, length) in enumerate(parts):
            if (start, length) != (0, shape[i]):
                value = value.narrow(i, start, length)
        value = value.select(-1, at).permute(turn)[tuple(index)]
        return value.expand(new) if list(value.shape) != new else value
    return take


# ---- operations: fields, arguments by name, scalars by place to a function of the inputs by name ----

def refuse_others(fields, *known):
    foreign = sorted(set(fields) - set(known))
    if foreign:
        raise NotImplementedError(", ".join(foreign))


def like(value, other):
    return value if value is None or value.dtype == other.dtype else value.to(other.dtype)


def epilogue_of(fields):
    steps = list(filter(None, fields.get("epilogue", "").split(",")))
    biased = steps[:1] == ["bias"]
    return biased, dict(fields, epilogue=",".join(steps[biased:]))


def conv(fields, args, scalars):
    refuse_others(fields, "x", "w", "y", "pad", "stride", "dilation", "groups", "epilogue", "bias", "scale", "shift", "residual")
    rank = args["x"].rank - 2
    stride, dilation, pad = axes(fields, "stride", rank, 1), axes(fields, "dilation", rank, 1), axes(fields, "pad", rank, 0)
    groups = int(fields.get("groups", 1))
    biased, rest = epilogue_of(fields)

    def call(t):
        bias = like(t["bias"], t["x"]) if biased else None
        y = torch.convolution(t["x"], t["w"], bias, stride, pad, dilation, False, [0] * rank, groups)
        return {"y": finish(rest, t, y, [1, -1] + [1] * rank)}
    return call


def gemm(fields, args, scalars):
    refuse_others(fields, "a", "b", "c", "alpha", "epilogue", "bias", "scale", "shift", "residual")
    biased, rest = epilogue_of(fields)
    alpha, beta = scalars[:2]
    if beta or (alpha != 1 and fields.get("epilogue")):
        raise NotImplementedError("beta, or alpha in front of an epilogue")

    def call(t):
        a, b = t["a"], t["b"]
        if biased and a.dim() == 2:
            return {"c": finish(rest, t, torch.addmm(like(t["bias"], a), a, b), [-1])}
        value = torch.matmul(a, b)
        if alpha != 1:
            value = value * alpha
        return {"c": finish(fields, t, value, [-1])}
    return call


def activation(fields, args, scalars):
    refuse_others(fields, "x", "y", "act", "gated", "axis")
    act, axis = ACTIVATIONS[fields.get("act", "identity")], int(fields.get("axis", 0))

    def call(t):
        if "gated" not in fields:
            return {"y": act(t["x"])}
        value, gate = t["x"].chunk(2, axis)
        return {"y": act(value) * gate}
    return call


def pointwise(fields, args, scalars):
    names, evaluate = translate(fields["expr"])
    results = sorted(n for n in args if n[0] == "y")
    places = {n: int(n[1:]) for n in names if n[0] == "i"}
    fixed = {n: scalars[int(n[1:])] for n in names if n[0] == "s" and n[1:].isdigit()}
    size = args[results[0]].dims

    def call(t):
        values = dict(fixed)
        for name in names:
            if name in places:
                d = places[name]
                values[name] = torch.arange(size[d], device=t["device"]).view([-1] + [1] * (len(size) - 1 - d))
            elif name not in fixed:
                values[name] = t[name]
        made = evaluate(**values)
        return {n: v if list(v.shape) == size else v.expand(size) for n, v in zip(results, made)}
    return call


def pool(fields, args, scalars):
    refuse_others(fields, "mode", "x", "y", "window", "stride", "pad")
    spatial = args["x"].dims[2:]
    window = [w or s for w, s in zip(axes(fields, "window", len(spatial), 0), spatial)]
    stride = [s or w for s, w in zip(axes(fields, "stride", len(spatial), 0), window)]
    pad, mode = axes(fields, "pad", len(spatial), 0), fields.get("mode", "max")
    if len(spatial) != 2 or mode not in ("max", "avg", "avg_valid"):
        raise NotImplementedError("one or three dimensions, other pools")
    if mode != "max" and window == spatial and not any(pad):
        return lambda t: {"y": F.adaptive_avg_pool2d(t["x"], 1)}
    if mode == "max":
        return lambda t: {"y": F.max_pool2d(t["x"], window, stride, pad)}
    return lambda t: {"y": F.avg_pool2d(t["x"], window, stride, pad, count_include_pad=mode == "avg")}


def norm(fields, args, scalars):
    refuse_others(fields, "kind", "mode", "x", "scale", "bias", "y", "axes", "eps", "groups", "running_mean", "running_var")
    kind, eps, x = fields.get("kind", "layer"), float(fields.get("eps", 1e-5)), args["x"]
    shape = x.dims[x.rank - int(fields.get("axes", 1)):]

    def call(t):
        scale, bias, x = like(t.get("scale"), t["x"]), like(t.get("bias"), t["x"]), t["x"]
        if kind == "layer":
            return {"y": F.layer_norm(x, shape, scale, bias, eps)}
        if kind == "rms":
            return {"y": F.rms_norm(x, shape, scale, eps)}
        if kind == "group":
            return {"y": F.group_norm(x, int(fields["groups"]), scale, bias, eps)}
        return {"y": F.batch_norm(x, t["running_mean"], t["running_var"], scale, bias, False, 0, eps)}
    if kind not in ("layer", "rms", "group", "batch") or (kind == "batch" and fields.get("mode") != "infer"):
        raise NotImplementedError(kind)
    return call


def softmax(fields, args, scalars):
    refuse_others(fields, "x", "y", "axis", "log", "scale", "mask")
    axis, call = int(fields.get("axis", 0)), F.log_softmax if fields.get("log") == "1" else F.softmax
    scale = float(fields.get("scale", 1))

    def weights(t):
        x = t["x"] if scale == 1 else t["x"] * scale
        if "mask" in t:
            m = t["mask"]
            x = x + m if m.is_floating_point() else x.masked_fill(m == 0, -math.inf)
        return {"y": call(x, axis)}
    return weights


def attention(fields, args, scalars):
    refuse_others(fields, "q", "k", "v", "out", "scale", "causal", "mask", "bias")
    causal = fields.get("causal", "none")
    if causal == "bottom_right" and args["q"].dims[2] != args["k"].dims[2]:
        raise NotImplementedError("causal=bottom_right")
    options = dict(is_causal=causal != "none", enable_gqa=args["q"].dims[1] != args["k"].dims[1])
    if "scale" in fields:
        options["scale"] = float(fields["scale"])

    def call(t):
        mask = like(t["bias"], t["q"]) if "bias" in t else None
        if "mask" in t:
            taken = t["mask"] != 0
            mask = taken if mask is None else mask.masked_fill(~taken, -math.inf)
        return {"out": F.scaled_dot_product_attention(t["q"], t["k"], t["v"], attn_mask=mask, **options)}
    return call


def reduce(fields, args, scalars):
    refuse_others(fields, "kind", "x", "y", "axes", "keepdims", "map", "correction", "p", *(f"x{i}" for i in range(1, 8)))
    over = [int(v) for v in fields["axes"].split(",")] if "axes" in fields else []
    names, evaluate = translate(fields.get("map", "x0"))

    def call(t):
        x = evaluate(**{n: t["x" if n == "x0" else n] for n in names})[0]
        return {"y": torch_families.reduction(fields.get("kind", "sum"), x, over, fields.get("keepdims") == "1",
                                              float(fields.get("correction", 0)), float(fields.get("p", 2)))(x)}
    return call


def concat(fields, args, scalars):
    refuse_others(fields, "y", "axis", *(f"x{i}" for i in range(8)))
    axis = int(fields.get("axis", 0))
    return lambda t: {"y": torch.cat([t[f"x{i}"] for i in range(8) if f"x{i}" in t], axis)}


def slices(fields, args, scalars):
    refuse_others(fields, "x", "y", "start", "step")
    rank = args["x"].rank
    starts, steps, dims = axes(fields, "start", rank, 0), axes(fields, "step", rank, 1), args["y"].dims
    if any(v < 0 for v in starts + steps):
        raise NotImplementedError("slices backwards")
    index = tuple(slice(start, start + step * (dim - 1) + 1, step) for start, step, dim in zip(starts, steps, dims))
    return lambda t: {"y": t["x"][index]}


def transform(fields, args, scalars):
    refuse_others(fields, "x", "y", "perm")
    perm = axes(fields, "perm", args["x"].rank, 0) if "perm" in fields else None
    alpha, beta = scalars[:2]
    if beta:
        raise NotImplementedError("beta")

    def call(t):
        x = t["x"] if perm is None else t["x"].permute(perm)
        return {"y": x if alpha == 1 else x * alpha}
    return call


def tile(fields, args, scalars):
    refuse_others(fields, "x", "y", "repeats")
    repeats = [v or 1 for v in axes(fields, "repeats", args["x"].rank, 1)]
    return lambda t: {"y": t["x"].repeat(repeats)}


def philox(key, counter):
    """Philox4x32-10 (Salmon and others 2011) of four words, arrays of any shape."""
    words, key = [np.asarray(v, dtype=np.uint64) for v in counter], [int(v) for v in key]
    low = np.uint64(0xffffffff)
    for i in range(10):
        a, b = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        k0, k1 = np.uint64((key[0] + i * 0x9E3779B9) & 0xffffffff), np.uint64((key[1] + i * 0xBB67AE85) & 0xffffffff)
        words = [b >> np.uint64(32) ^ words[1] ^ k0, b & low, a >> np.uint64(32) ^ words[3] ^ k1, a & low]
    return np.stack(words)


def dropout(fields, args, scalars):
    refuse_others(fields, "pass", "x", "y", "dy", "dx", "p", "rng", "numbering")
    if fields.get("numbering") != "attention":
        raise NotImplementedError("other random numbers")
    p, (given, made) = float(fields.get("p", 0.5)), ("dy", "dx") if fields.get("pass") == "bwd" else ("x", "y")
    dims = list(args[given].dims)
    matrices, rows, columns = math.prod(dims[:-2]), dims[-2], dims[-1]

    def call(t):
        seed, offset = (int(v) % 2**64 for v in t["rng"])
        m, i, j = np.meshgrid(np.arange(matrices), np.arange(rows), np.arange(columns), indexing="ij")
        words = philox((seed % 2**32, seed >> 32), (j // 4, i, m, np.full_like(m, offset % 2**32)))
        kept = np.take_along_axis(words, (j % 4)[None], 0)[0] >= int(p * 2**32)
        kept = torch.from_numpy(kept.reshape(dims)).to(t[given].device)
        return {made: torch.where(kept, t[given] / (1 - p), 0)}
    return call


def resize(fields, args, scalars):
    refuse_others(fields, "x", "y", "mode", "coordinates", "nearest", "scale_h", "scale_w")
    size, mode, where = args["y"].dims[2:], fields.get("mode", "nearest"), fields.get("coordinates", "half_pixel")
    if mode == "nearest" and (where, fields.get("nearest")) == ("asymmetric", "floor"):
        return lambda t: {"y": F.interpolate(t["x"], size)}
    if mode == "linear" and where in ("half_pixel", "align_corners") and len(size) == 2:
        return lambda t: {"y": F.interpolate(t["x"], size, mode="bilinear", align_corners=where == "align_corners")}
    raise NotImplementedError(f"{mode}, {where}")


def cross_entropy(fields, args, scalars):
    refuse_others(fields, "x", "labels", "loss", "reduction", "smoothing")
    options = dict(reduction=fields.get("reduction", "mean"), label_smoothing=float(fields.get("smoothing", 0)))
    size = args["loss"].dims
    return lambda t: {"loss": F.cross_entropy(t["x"], t["labels"].long(), **options).view(size)}


def rope(fields, args, scalars):
    refuse_others(fields, "q", "k", "q_out", "k_out", "theta", "pass")
    half, sign = args["q"].dims[3] // 2, -1 if fields.get("pass") == "bwd" else 1
    theta = float(fields.get("theta", 10000))

    def turn(x):
        places = torch.arange(x.shape[2], device=x.device, dtype=torch.float64)
        powers = torch.arange(half, device=x.device, dtype=torch.float64) / half
        angles = places[:, None] * theta ** -powers
        cos, sin = torch.cat([angles.cos()] * 2, -1).to(x.dtype), sign * torch.cat([angles.sin()] * 2, -1).to(x.dtype)
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin
    return lambda t: {f"{n}_out": turn(t[n]) for n in ("q", "k") if n in t}


def lrn(fields, args, scalars):
    refuse_others(fields, "kind", "size", "alpha", "beta", "k", "x", "y")
    size, kind = int(fields.get("size", 5)), fields.get("kind", "across")
    numbers = [float(fields.get(name, value)) for name, value in (("alpha", 1e-4), ("beta", 0.75), ("k", 1))]
    if kind != "across" or size % 2 == 0:
        raise NotImplementedError("windows within channels, or of even size")
    return lambda t: {"y": F.local_response_norm(t["x"], size, *numbers)}


def rnn(fields, args, scalars):
    """One layer in one direction; weights in mica's order: both matrices, both biases."""
    refuse_others(fields, "cell", "hidden", "x", "w", "hx", "cx", "y")
    inputs, hidden = args["x"].dims[2], int(fields["hidden"])
    if fields.get("cell") != "lstm":
        raise NotImplementedError("another cell than lstm")

    def call(t):
        matrices = t["w"].split([4 * hidden * inputs, 4 * hidden * hidden, 4 * hidden, 4 * hidden])
        weights = [matrices[0].view(-1, inputs), matrices[1].view(-1, hidden), *matrices[2:]]
        return {"y": torch._VF.lstm(t["x"], (t["hx"], t["cx"]), weights, True, 1, 0.0, False, False, False)[0]}

    return call


OPERATIONS = dict(conv=conv, gemm=gemm, activation=activation, pointwise=pointwise, pool=pool, norm=norm, softmax=softmax,
                  attention=attention, reduce=reduce, concat=concat, slice=slices, transform=transform, resize=resize,
                  cross_entropy=cross_entropy, rope=rope, lrn=lrn, rnn=rnn,
                  tile=tile, dropout=dropout)


# ---- graphs ----

class Graph:
    """A graph as mica infers it: its tensors, and its nodes as (operation, fields, scalars, arguments, bindings)."""

    def __init__(self, mica, text):
        lib = mica.lib
        self.mica, self.handle, self.tensors, self.nodes, self.constants = mica, c.c_void_p(), [], [], {}
        lib.mica_graph_data.restype = c.c_void_p
        mica.check(lib.mica_graph_from_text(text.encode(), c.byref(self.handle)))
        self.fix_extents()
        mica.check(lib.mica_graph_infer(self.handle))
        info = Info()
        while lib.mica_graph_tensor_at(self.handle, len(self.tensors), c.byref(info)) == 0:
            self.tensors.append((info.name.decode(), info.kind, shape_of(info.tensor)))
            if info.kind == CONSTANT:
                self.constants[len(self.tensors) - 1] = self.constant(len(self.tensors) - 1)
        problem = c.c_void_p()
        while lib.mica_graph_problem(self.handle, len(self.nodes), c.byref(problem)) == 0:
            self.nodes.append(self.node(len(self.nodes), problem))
            lib.mica_problem_destroy(problem)

    def fix_extents(self):
        """Named ones become what they may be at most."""
        lib, extent, most, fixed = self.mica.lib, ExtentInfo(), [], c.c_void_p()
        while lib.mica_graph_extent_at(self.handle, len(most), c.byref(extent)) == 0:
            most.append(extent.high)
        if most:
            self.mica.check(lib.mica_graph_fix(self.handle, (c.c_int64 * len(most))(*most), c.byref(fixed)))
            lib.mica_graph_destroy(self.handle)
            self.handle = fixed

    def constant(self, index):
        tensor = self.tensors[index][2]
        dims, strides = tensor.dims, tensor.strides
        size = torch.empty(0, dtype=DTYPES[tensor.dtype]).element_size()
        span = 1 + sum((d - 1) * s for d, s in zip(dims, strides))
        raw = c.string_at(self.mica.lib.mica_graph_data(self.handle, index), span * size)
        return torch.as_strided(torch.frombuffer(bytearray(raw), dtype=DTYPES[tensor.dtype]), dims, strides)

    def node(self, number, problem):
        lib = self.mica.lib
        text = c.create_string_buffer(4096)
        lib.mica_problem_text(problem, text, 4096)
        op, fields = fields_of(text.value.decode())
        values, arguments, info, at = lib.mica_problem_scalars(problem), [], ArgInfo(), c.c_int64()
        count = 0
        while lib.mica_problem_arg(problem, count, c.byref(info)) == 0:
            bound = lib.mica_graph_bound(self.handle, number, count, c.byref(at)) if info.dir else -1
            if bound >= 0:
                arguments.append((info.name.decode(), info.dir, shape_of(info.tensor), bound, at.value))
            count += 1
        return op, fields, [values[i] for i in range(16)] if op == "pointwise" else [values[0], values[1]] \
            if op in ("gemm", "transform") else [], arguments

    def reals(self):
        return [i for i, (_, kind, _) in enumerate(self.tensors) if kind in (INPUT, OUTPUT, INOUT)]

    def given(self):
        return [i for i in self.reals() if self.tensors[i][1] != OUTPUT]


class Network:
    """The graph as calls of PyTorch's: a function of the inputs' values, in order, to those of the outputs. exact: floats
    are f64 throughout."""

    def __init__(self, graph, device, exact=False):
        self.steps, self.given, self.device, self.exact = [], graph.given(), device, exact
        self.outputs = [i for i in graph.reals() if graph.tensors[i][1] == OUTPUT]
        self.constants = {i: self.typed(v.to(device)) for i, v in graph.constants.items()}
        written = set()
        pending = list(range(len(graph.nodes)))
        ready = set(self.given) | set(self.constants)
        while pending:
            for n in pending:
                if all(bound in ready for _, way, _, bound, _ in graph.nodes[n][3] if way == 1):
                    break
            else:
                raise NotImplementedError("a cycle")
            pending.remove(n)
            op, fields, scalars, arguments = graph.nodes[n]
            if any(way == 3 for _, way, _, _, _ in arguments):
                raise NotImplementedError("tensors that are changed in place")
            if op not in OPERATIONS:
                raise NotImplementedError(op)
            call = OPERATIONS[op](fields, {name: tensor for name, _, tensor, _, _ in arguments}, scalars)
            reads = [(name, bound, view(graph.tensors[bound][2], tensor, at))
                     for name, way, tensor, bound, at in arguments if way == 1]
            writes = [(name, bound, DTYPES[tensor.dtype]) for name, way, tensor, bound, _ in arguments if way == 2]
            written |= {bound for _, bound, _ in writes}
            ready |= written
            self.steps.append((call, reads, writes))

    def typed(self, value):
        return value.double() if self.exact and value.is_floating_point() else value

    def __call__(self, *values):
        known = dict(self.constants)
        known.update(zip(self.given, values))
        for call, reads, writes in self.steps:
            t = {name: take(known[bound]) for name, bound, take in reads}
            t["device"] = self.device
            made = call(t)
            for name, bound, dtype in writes:
                if name not in made:
                    continue
                value = made[name]
                known[bound] = value if value.dtype == dtype or self.exact and dtype.is_floating_point else value.to(dtype)
        return [known[i] for i in self.outputs]


# ---- data ----

def value_for(graph, index, device, generator):
    """As the node wants it that reads it first: weights keep the size of what they multiply, factors are near 1."""
    _, _, tensor = graph.tensors[index]
    dims, strides = tensor.dims, tensor.strides
    dtype, span = DTYPES[tensor.dtype], 1 + sum((d - 1) * s for d, s in zip(dims, strides))
    users = [(op, fields, name, arg, args) for op, fields, _, args in graph.nodes
             for name, _, arg, bound, _ in args if bound == index]
    op, fields, name, arg, args = users[0]
    if name == "labels":
        classes = next(a.dims[1] for n, _, a, _, _ in args if n == "x")
        base = torch.randint(0, classes, (span,), generator=generator)
    elif dtype == torch.bool:
        base = torch.rand(span, generator=generator) < 0.75
    elif not dtype.is_floating_point:
        base = torch.randint(0, 100, (span,), generator=generator)
    else:
        base = torch.randn(span, generator=generator)
        if (op, name) == ("gemm", "b") and "t" == name[-1:] or (op, name) == ("gemm", "b") and arg.rank == 2:
            base = base / math.sqrt(arg.dims[0])
        elif (op, name) == ("conv", "w"):
            base = base / math.sqrt(math.prod(arg.dims[1:]))
        elif name == "scale":
            base = 1 + 0.1 * base
        elif name == "running_var":
            base = base.abs() + 0.5
    value = torch.as_strided(base.to(dtype), dims, strides)
    return torch.empty_strided(dims, strides, dtype=dtype, device=device).copy_(value)


class Planned:
    """mica's plan in a mode, over the given values."""

    def __init__(self, graph, mode, values, device):
        mica = graph.mica
        lib = mica.lib
        lib.mica_graph_plan_workspace.restype = c.c_size_t
        self.mica, self.plan = mica, c.c_void_p()
        options = Options(mode=MODES.index(mode))
        mica.check(lib.mica_graph_plan_create(mica.context, graph.handle, c.byref(options), c.byref(self.plan)))
        by_index, reals = dict(zip(graph.given(), values)), graph.reals()
        pointers = (c.c_void_p * len(reals))()
        self.outputs = []
        for i in reals:
            dims, strides = graph.tensors[i][2].dims, graph.tensors[i][2].strides
            if i not in by_index:
                dtype = DTYPES[graph.tensors[i][2].dtype]
                by_index[i] = torch.empty_strided(dims, strides, dtype=dtype, device=device)
                by_index[i].fill_(float("nan") if dtype.is_floating_point else 1)
                self.outputs.append(by_index[i])
            pointers[lib.mica_graph_plan_index(self.plan, graph.tensors[i][0].encode())] = by_index[i].data_ptr()
        size = lib.mica_graph_plan_workspace(self.plan)
        self.space = torch.empty(size + 256, dtype=torch.uint8, device=device)
        self.keep = pointers, by_index
        stream = torch.cuda.current_stream().cuda_stream if device != "cpu" else None
        self.run = GraphRun(tensors=pointers, workspace=(self.space.data_ptr() + 255) // 256 * 256, stream=stream)

    def __call__(self):
        self.mica.check(self.mica.lib.mica_graph_plan_run(self.plan, c.byref(self.run)))

    def steps(self):
        """Problem lines of the launches."""
        step, found, text = Step(), [], c.create_string_buffer(4096)
        while self.mica.lib.mica_graph_plan_step(self.plan, len(found), c.byref(step)) == 0:
            self.mica.lib.mica_plan_describe(c.c_void_p(step.plan), text, 4096)
            found.append(text.value.decode())
        return found


def furthest(ours, exact):
    """The largest difference, relative to a value and to the root mean square of all."""
    a, b = ours.double().cpu(), exact.double().cpu()
    same = (a == b) | (a.isnan() & b.isnan())
    finite = b[b.isfinite()]
    usual = finite.square().mean().sqrt() if finite.numel() else 0
    off = torch.where(same, 0, (a - b).abs() / (b.abs() + usual))
    return float(off.nan_to_num(nan=math.inf).max()) if off.numel() else 0


def coarsest(graph):
    return max((WITHIN[DTYPES[t.dtype]] for _, _, t in graph.tensors if DTYPES[t.dtype] in WITHIN), default=0)


def wrong(graph, ours, exact, within):
    names = [graph.tensors[i][0] for i in graph.reals() if graph.tensors[i][1] == OUTPUT]
    found = [(name, furthest(a, b)) for name, a, b in zip(names, ours, exact)]
    return max(off for _, off in found), "; ".join(f"{name} is off by {off:.3g}" for name, off in found if not off <= within)


def spread(ours, exact):
    """The root mean square of differences, relative to that of the values."""
    a, b = ours.double().cpu(), exact.double().cpu()
    usual = b.square().mean().sqrt()
    return float(((a - b).square().mean().sqrt() / usual).nan_to_num(nan=math.inf)) if b.numel() and usual else 0


def nearer(graph, ours, theirs, exact):
    """What mica is further off from f64 than a peer of the same types: "" where it is no further. The largest of many
    differences is a matter of chance, by about a quarter; their root mean square is not."""
    names = [graph.tensors[i][0] for i in graph.reals() if graph.tensors[i][1] == OUTPUT]
    said = []
    for name, a, b, true in zip(names, ours, theirs, exact):
        most, least = furthest(a, true), furthest(b, true)
        wide, narrow = spread(a, true), spread(b, true)
        if not (most <= 1.25 * least and wide <= 1.05 * narrow):
            said.append(f"{name} is off f64 by {most:.3g}, rms {wide:.3g}, the peer by {least:.3g}, rms {narrow:.3g}")
    return "; ".join(said)


def judge(mica, path, device, seed, text=None):
    """The furthest that a mode is off, in parts of what is allowed, and what differs. text: another graph that mica runs
    instead, over the same inputs."""
    with open(path) as file:
        graph = Graph(mica, file.read())
    generator = torch.Generator().manual_seed(seed)
    values = [value_for(graph, i, device, generator) for i in graph.given()]
    network, within = Network(graph, device, exact=True), coarsest(graph)
    with torch.no_grad():
        exact = network(*[network.typed(v) for v in values])
    furthest_off, said = 0, ""
    for mode in MODES:
        planned = Planned(Graph(mica, text) if text else graph, mode, values, device)
        planned()
        if device != "cpu":
            torch.cuda.synchronize()
        off, why = wrong(graph, planned.outputs, exact, within)
        furthest_off = max(furthest_off, off / within)
        said += f"{mode}: {why}\n" if why else ""
    return furthest_off, said


# ---- timing ----

def compiled(network):
    """As one graph: without breaks."""
    torch._dynamo.reset()
    return torch.compile(network.__call__, dynamic=False, fullgraph=True)


class GraphCase:
    """One graph: mica's plan and the peers' calls over the same inputs; what Report wants of a line's case."""

    def __init__(self, mica, path, device, wanted):
        with open(path) as file:
            graph = Graph(mica, file.read())
        generator = torch.Generator().manual_seed(1)
        self.mica, self.line, self.why, self.calls = mica, f"graph file={os.path.relpath(path)}", [], {}
        values = [value_for(graph, i, device, generator) for i in graph.given()]
        network, self.planned = Network(graph, device), Planned(graph, "fused", values, device)
        self.launches = self.planned.steps()
        costs = [mica.cost(line) for line in self.launches]
        self.flops, self.bytes = sum(f for f, _ in costs), sum(b for _, b in costs)
        self.roofline = sum(mica.roofline_ms(line) for line in self.launches)
        self.planned()
        for peer in wanted:
            call = compiled(network) if peer == "torch-compile" else network
            with torch.no_grad():
                made = call(*values)
            _, why = wrong(graph, self.planned.outputs, made, coarsest(graph) * (1 if device == "cpu" else 2))
            if why:  # both round: f64 says who is further off
                with torch.no_grad():
                    judge_of = Network(graph, device, exact=True)
                    exact = judge_of(*[judge_of.typed(v) for v in values])
                worse = nearer(graph, self.planned.outputs, made, exact)
                if worse:
                    raise torch_peer.Differs(f"{why}; {worse}")
                del exact, judge_of
            self.calls[peer] = lambda call=call: call(*values)
        self.peers = ("mica", *self.calls)

    def engine(self):
        return "graph"

    def call(self, peer):
        if peer == "mica":
            self.planned()
        else:
            with torch.no_grad():
                self.calls[peer]()


def host_seconds(case, peer):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(3):
        case.call(peer)
    spent = time.perf_counter() - start
    torch.cuda.synchronize()
    return spent / 3


def time_cuda(case, peer, inner, host):
    """The queue fills while the device waits: host time stays out."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(int(2e9 * (2e-5 + 1.5 * host * inner)))
    start.record()
    for _ in range(inner):
        case.call(peer)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / inner


def time_cpu(case, peer, inner, host):
    time.sleep(0.004)  # the other library's threads stop spinning
    case.call(peer)
    start = time.perf_counter()
    for _ in range(inner):
        case.call(peer)
    return 1e3 * (time.perf_counter() - start) / inner


def measure(case, device, seconds):
    once = time_cpu if device == "cpu" else time_cuda
    for _ in range(3):
        for peer in case.peers:
            case.call(peer)
    host = {peer: 0 if device == "cpu" else host_seconds(case, peer) for peer in case.peers}
    first = max(once(case, peer, 1, host[peer]) for peer in case.peers)
    inner = max(1, min(20, int(4 / first)))
    times, end = {peer: [] for peer in case.peers}, time.perf_counter() + seconds
    while len(times["mica"]) < 7 or (time.perf_counter() < end and len(times["mica"]) < 200):
        for peer in case.peers:
            times[peer].append(once(case, peer, inner, host[peer]))
    return times


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--library", default="build/libmica.so.0")
    parser.add_argument("--set", help="the rows' set; else the files' folder")
    parser.add_argument("--json")
    parser.add_argument("--commit", default="")
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="by torch.compile, too")
    parser.add_argument("--warm", action="store_true", help="compile and compare, do not measure")
    parser.add_argument("--judge", action="store_true", help="compare, do not measure")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def judge_all(mica, o):
    status = 0
    for path in o.files:
        try:
            off, why = judge(mica, path, o.device, o.seed)
        except NotImplementedError as no:
            off, why = math.inf, f"no equivalent in PyTorch: {no}"
        print(f"{'FAILED' if why else 'ok':6} {off:8.3f} of what is allowed  {path}\n{why}", end="", flush=True)
        status |= bool(why)
    return status


def measure_all(mica, o):
    status, wanted = 0, ("torch", "torch-compile") if o.compile else ("torch",)
    report, ratios = Report(mica, o, wanted), {peer: [] for peer in wanted}
    for path in o.files:
        name = o.set or os.path.basename(os.path.dirname(os.path.abspath(path)))
        try:
            case = GraphCase(mica, path, o.device, wanted)
            if o.warm:
                continue
            times = measure(case, o.device, o.seconds)
        except Exception as why:  # the others go on
            report.missing(f"graph file={path}", f"{type(why).__name__}: {str(why)[:300]}")
            status = 1
            continue
        for peer, ratio in report.add(name, case, times, case.roofline, {"launches": len(case.launches)}).items():
            ratios[peer].append(ratio)
        del case
    for peer, values in ratios.items():
        if values:
            mean = math.exp(statistics.fmean(map(math.log, values)))
            print(f"geometric mean of {peer}'s time over mica's {mean:.3f}, least {min(values):.3f}, on {len(values)} graphs")
    return status


def main():
    o = arguments()
    warnings.filterwarnings("ignore", category=UserWarning)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if o.threads:
        torch.set_num_threads(o.threads)
    if o.device == "cpu":
        keep_memory()
    mica = Mica(o.library, o.device)
    return judge_all(mica, o) if o.judge else measure_all(mica, o)


if __name__ == "__main__":
    sys.exit(main())
