#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Problem lines through mica and PyTorch in one process, on the same buffers, in turn.

    torch_peer.py --device cuda:0 --library build/libmica.so.0 --json out.jsonl bench/cases/gemm.txt

Prints a table and writes the JSON lines of docs/tour.md; the peer's engine is "peer/torch". Times are
medians of interleaved runs: CUDA events on a GPU with buffers rotated past twice the L2, the clock on a
CPU. mica's plan is the planner's own choice. Lines that PyTorch has no equivalent for are named. Results are
compared first, where the peer says which they are: those that differ are no peers, and the exit status is 1.

    --compile    expressions also by torch.compile, "peer/torch-compile"
    --copy       beside a copy that moves as many bytes as the line at least, "peer/copy"; of GPUs
    --no-torch   without PyTorch's functions, for sets that have other peers"""

import argparse
import copy
import ctypes as c
import json
import math
import os
import re
import statistics
import sys
import time
import uuid
import warnings

import torch
import torch.nn.functional as F

import torch_families
from peer_results import differences

MAX_RANK, MAX_ARGS = 8, 64
DTYPES = {1: torch.float64, 2: torch.float32, 3: torch.float16, 4: torch.bfloat16, 5: torch.float8_e4m3fn,
          6: torch.float8_e5m2, 8: torch.int8, 9: torch.uint8, 12: torch.int32, 13: torch.int64, 15: torch.bool,
          18: getattr(torch, "float8_e8m0fnu", None)}
HALF_BYTES = (7, 10, 11)  # e2m1, s4, u4: two to a byte


class Tensor(c.Structure):
    _fields_ = [("dtype", c.c_int), ("rank", c.c_int32), ("dims", c.c_int64 * MAX_RANK),
                ("strides", c.c_int64 * MAX_RANK), ("strided", c.c_int64)]


class ArgInfo(c.Structure):
    _fields_ = [("name", c.c_char_p), ("dir", c.c_int), ("optional", c.c_bool), ("tensor", Tensor),
                ("alias", c.c_int), ("types", c.c_uint32), ("need", c.c_int), ("like", c.c_char_p),
                ("with_", c.c_char_p), ("refused", c.c_bool)]


class Run(c.Structure):
    _fields_ = [("size", c.c_size_t), ("scalars", c.POINTER(c.c_double)), ("workspace", c.c_void_p),
                ("stream", c.c_void_p), ("args", c.c_void_p * MAX_ARGS)]


class Mica:
    """The library's plans, through its public interface."""

    def __init__(self, path, device):
        self.lib = c.CDLL(path)
        self.lib.mica_error.restype = c.c_char_p
        self.lib.mica_plan_engine.restype = c.c_char_p
        self.lib.mica_plan_workspace.restype = c.c_size_t
        self.lib.mica_problem_roofline.restype = c.c_double
        self.lib.mica_problem_scalars.restype = c.POINTER(c.c_double)
        self.context = c.c_void_p()
        self.check(self.lib.mica_context_create(device.encode(), c.byref(self.context)))

    def check(self, status):
        if status:
            raise RuntimeError(self.lib.mica_error().decode())

    def kinds(self, op):
        """Types of an operation's fields by name, as problem lines know them."""
        class Field(c.Structure):
            _fields_ = [("name", c.c_char_p), ("type", c.c_char_p), ("rest", c.c_char * 256)]
        field, found, index = Field(), {}, 0
        while self.lib.mica_op_field(op.encode(), index, c.byref(field)) == 0:
            found[field.name.decode()] = field.type.decode()
            index += 1
        return found

    def model(self):
        info = (c.c_char * 512)()  # mica_device_info: name[64], model[96] and more
        self.check(self.lib.mica_context_info(self.context, info))
        return info.raw[64:160].split(b"\0")[0].decode()

    def plan(self, line):
        plan = c.c_void_p()
        self.check(self.lib.mica_plan_from_text(self.context, line.encode(), None, c.byref(plan)))
        return plan

    def arguments(self, plan):
        found, index = {}, 0
        info = ArgInfo()
        while self.lib.mica_plan_arg(plan, index, c.byref(info)) == 0:
            if info.dir:
                copy = Tensor.from_buffer_copy(info.tensor)
                found[info.name.decode()] = (index, info.dir, copy)
            index += 1
        return found

    def cost(self, line):
        problem, flops, moved = c.c_void_p(), c.c_double(), c.c_double()
        self.check(self.lib.mica_problem_from_text(line.encode(), c.byref(problem)))
        self.lib.mica_problem_cost(problem, c.byref(flops), c.byref(moved))
        self.lib.mica_problem_destroy(problem)
        return flops.value, moved.value

    def scalars(self, line):
        """Those of a line; they live as long as the library."""
        problem = c.c_void_p()
        self.check(self.lib.mica_problem_from_text(line.encode(), c.byref(problem)))
        return self.lib.mica_problem_scalars(problem)

    def roofline_ms(self, line):
        """The least time by the device's description."""
        problem = c.c_void_p()
        self.check(self.lib.mica_problem_from_text(line.encode(), c.byref(problem)))
        ms = self.lib.mica_problem_roofline(self.context, problem)
        self.lib.mica_problem_destroy(problem)
        return ms


def fields_of(line):
    op, *pairs = line.split()
    return op, dict(pair.split("=", 1) for pair in pairs)


def axes(fields, name, rank, default):
    text = fields.get(name)
    values = [int(v) for v in text.split("x")] if text else []
    return (values + [default] * rank)[:rank]


def routing(fields, tensor, device, even):
    """Ends of groups between which all rows (for a sum: all terms) fall, each where chance put it, or as many to each
    group; of rooms the rows that are expected."""
    if "expected" in fields:
        return torch.full((tensor.dims[0],), int(fields["expected"]), dtype=DTYPES[tensor.dtype], device=device)
    a = [int(v) for v in fields["a"].split(":")[1].split("x")]
    rows = a[1] if fields.get("pass") == "wgrad" else a[0]
    count = tensor.dims[0]
    if even:
        return (torch.arange(1, count + 1, device=device) * rows // count).to(DTYPES[tensor.dtype])
    sizes = torch.bincount(torch.randint(0, count, (rows,), device=device), minlength=count)
    return torch.cumsum(sizes, 0).to(DTYPES[tensor.dtype])


def data_for(name, tensor, device, fields, even=False):
    dims, strides = tensor.dims[:tensor.rank], tensor.strides[:tensor.rank]
    if tensor.dtype in HALF_BYTES:
        packed = [math.prod(dims[i + 1:]) for i in range(len(dims))]
        if not dims or dims[-1] % 2 or strides != packed:
            raise NotImplementedError("half bytes but in order")
        return torch.randint(0, 256, [*dims[:-1], dims[-1] // 2], dtype=torch.uint8, device=device)
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise NotImplementedError("a type that PyTorch has not")
    if any(s < 0 for s in strides):
        raise NotImplementedError("negative strides")
    span = 1 + sum((d - 1) * s for d, s in zip(dims, strides)) if all(dims) else 0
    if name == "groups":
        return routing(fields, tensor, device, even)
    if name == "seq_k" and {"q", "pages"} <= set(fields):  # attention: all that the pages hold
        pages, size = int(fields["pages"].split("x")[1]), int(fields["k"].split(":")[1].split("x")[2])
        base = torch.full((span,), pages * size, dtype=dtype, device=device)
    elif name == "labels":
        base = torch.randint(0, 2, (span,), dtype=dtype, device=device)
    elif name == "pages":
        base = torch.randperm(span, dtype=dtype, device=device)
    elif dtype in (torch.int8, torch.uint8, torch.int32, torch.int64):
        base = torch.randint(0, 100, (span,), dtype=dtype, device=device)
    elif dtype == torch.bool and not {"q", "mask"} <= set(fields):
        base = torch.randint(0, 2, (span,), device=device).to(dtype)
    elif tensor.dtype == 18:
        base = torch.randint(120, 134, (span,), dtype=torch.uint8, device=device).view(dtype)
    else:
        base = torch.randn(span, dtype=torch.float32, device=device)
        if name in ("rstd", "running_var", "v"):
            base = base.abs() + 0.5
        base = base.to(dtype)
    return torch.as_strided(base, dims, strides)


# ---- PyTorch's equivalents: fields and tensors to a callable ----

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh,
               "sigmoid": torch.sigmoid, "elu": F.elu, "leaky_relu": F.leaky_relu,
               "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"), "mish": F.mish,
               "hard_swish": F.hardswish, "hard_sigmoid": F.hardsigmoid, "selu": F.selu,
               "relu6": F.relu6, "softplus": F.softplus, "identity": lambda v: v}


def finish(fields, t, value, channel_shape):
    for step in filter(None, fields.get("epilogue", "").split(",")):
        if step in ("bias", "shift"):
            value = value + t[step].view(channel_shape).to(value.dtype)
        elif step == "scale":
            value = value * t[step].view(channel_shape).to(value.dtype)
        elif step == "residual":
            value = value + t["residual"]
        else:
            value = ACTIVATIONS[step](value)
    return value


def conv(fields, t):
    rank = t["x"].dim() - 2
    stride, dilation = axes(fields, "stride", rank, 1), axes(fields, "dilation", rank, 1)
    pad, groups = axes(fields, "pad", rank, 0), int(fields.get("groups", 1))
    transposed = fields.get("transposed") == "1"
    if "pad_extra" in fields or "flip" in fields or "output_pad" in fields:
        raise NotImplementedError("asymmetric padding or mirrored filters")
    which = {"fwd": None, "dgrad": [True, False, False], "wgrad": [False, True, False]}
    mask = which[fields.get("pass", "fwd")]
    if mask:
        return lambda: torch.ops.aten.convolution_backward(
            t["y"], t["x"], t["w"], None, stride, pad, dilation, transposed, [0] * rank, groups, mask)
    bias = t["bias"].to(t["x"].dtype) if fields.get("epilogue", "").startswith("bias") else None
    rest = dict(fields)
    if bias is not None:
        rest["epilogue"] = ",".join(fields["epilogue"].split(",")[1:])
    shape = [1, -1] + [1] * rank

    def forward():
        y = torch.convolution(t["x"], t["w"], bias, stride, pad, dilation, transposed, [0] * rank, groups)
        return finish(rest, t, y, shape)
    return forward


def gemm(fields, t):
    if t["a"].dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        raise NotImplementedError("products of integers and of 8 bits")
    if fields.get("epilogue", "").startswith("bias") and t["a"].dim() == 2:
        bias = t["bias"].to(t["a"].dtype)
        rest = dict(fields, epilogue=",".join(fields["epilogue"].split(",")[1:]))
        return lambda: finish(rest, t, torch.addmm(bias, t["a"], t["b"]), [-1])
    if fields.get("epilogue"):
        return lambda: finish(fields, t, torch.matmul(t["a"], t["b"]), [-1])
    return lambda: torch.matmul(t["a"], t["b"], out=t["c"])


def pool(fields, t):
    rank = t["x"].dim() - 2
    window = axes(fields, "window", rank, 0)
    stride, pad = axes(fields, "stride", rank, 0), axes(fields, "pad", rank, 0)
    stride = [s or w for s, w in zip(stride, window)]
    mode, backward = fields.get("mode", "max"), fields.get("pass") == "bwd"
    if rank != 2 or "pad_extra" in fields:
        raise NotImplementedError("only two dimensions here")
    if fields.get("adaptive") == "1":
        size = list(t["y"].shape[2:])
        call = F.adaptive_max_pool2d if mode == "max" else F.adaptive_avg_pool2d
        return lambda: call(t["x"], size)
    window = [w or s for w, s in zip(window, t["x"].shape[2:])]
    stride = [s or w for s, w in zip(stride, window)]
    if backward and mode != "max":
        return lambda: torch.ops.aten.avg_pool2d_backward(t["y"], t["x"], window, stride, pad, False,
                                                          mode == "avg", None)
    if backward:
        _, where = F.max_pool2d(t["x"], window, stride, pad, return_indices=True)
        t["indices"].copy_(where)
        return lambda: torch.ops.aten.max_pool2d_with_indices_backward(
            t["y"], t["x"], window, stride, pad, [1, 1], False, where)
    if mode == "max":
        return lambda: F.max_pool2d(t["x"], window, stride, pad, return_indices="indices" in t)
    return lambda: F.avg_pool2d(t["x"], window, stride, pad, count_include_pad=mode == "avg")


def norm(fields, t):
    kind, backward = fields.get("kind", "layer"), fields.get("pass") == "bwd"
    eps = float(fields.get("eps", 1e-5))
    # PyTorch wants them in the input's type.
    scale, bias = (v.to(t["x"].dtype) if v is not None else None for v in (t.get("scale"), t.get("bias")))
    added, act = t.get("residual"), fields.get("act", "identity")
    if kind != "batch" and (added is not None or act != "identity") or act not in ("identity", "relu"):
        raise NotImplementedError("fused steps")
    shape = list(t["x"].shape[-int(fields.get("axes", 1)):])
    if kind == "layer" and not backward:
        return lambda: F.layer_norm(t["x"], shape, scale, bias, eps)
    if kind == "layer":
        mask = [True, "dscale" in t, "dbias" in t]
        return lambda: torch.ops.aten.native_layer_norm_backward(
            t["dy"], t["x"], shape, t["mean"], t["rstd"], scale, scale if mask[2] else None, mask)
    if kind == "rms" and not backward:
        return lambda: F.rms_norm(t["x"], shape, scale, eps)
    if kind == "batch" and backward:
        mask = [True, "dscale" in t, "dbias" in t]
        y = F.batch_norm(t["x"], None, None, scale, bias, True) if act == "relu" else None
        if y is not None and added is not None:
            y += added

        def gradients():
            dz = torch.ops.aten.threshold_backward(t["dy"], y, 0) if act == "relu" else t["dy"]
            return torch.ops.aten.native_batch_norm_backward(
                dz, t["x"], scale, None, None, t["mean"], t["rstd"], True, eps, mask)
        return gradients
    if kind == "batch":
        train = fields.get("mode", "train") == "train"

        def batch():
            y = F.batch_norm(t["x"], t.get("running_mean"), t.get("running_var"), scale, bias, train, 0.1, eps)
            if added is not None:
                y += added
            return F.relu_(y) if act == "relu" else y
        return batch
    if kind in ("group", "instance") and not backward:
        groups = int(fields["groups"]) if kind == "group" else t["x"].shape[1]
        return lambda: F.group_norm(t["x"], groups, scale, bias, eps)
    raise NotImplementedError(kind + " backward")


def attention(fields, t):
    q, k, v = t["q"], t["k"], t["v"]
    foreign = {"soft_cap", "window_left", "window_right", "align", "slopes", "sinks", "dropout", "cu_q", "cu_k",
               "seq_q", "seq_k", "pages", "scale_q", "scale_k", "scale_v"} & set(fields)
    if foreign or (fields.get("causal") == "bottom_right" and q.shape[2] not in (1, k.shape[2])):
        raise NotImplementedError("attention with " + ", ".join(sorted(foreign) or ["causal=bottom_right"]))
    options = dict(is_causal=fields.get("causal", "none") != "none" and q.shape[2] > 1,
                   enable_gqa=q.shape[1] != k.shape[1])
    if "scale" in fields:
        options["scale"] = float(fields["scale"])
    if "bias" in fields:
        options["attn_mask"] = t["bias"].to(q.dtype)
    if "mask" in fields:
        options["attn_mask"] = t["mask"] != 0
    if fields.get("pass") != "bwd":
        return fastest_attention(q, lambda: F.scaled_dot_product_attention(q, k, v, **options))
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]

    def forward():
        with torch.enable_grad():
            return F.scaled_dot_product_attention(*inputs, **options)
    fastest_attention(q, forward)
    out = forward()
    return lambda: torch.autograd.grad(out, inputs, t["dout"], retain_graph=True)


def fastest_attention(q, call):
    """On a GPU cuDNN's kernels, if they take the problem: PyTorch itself would prefer others."""
    others = (torch.backends.cuda.enable_flash_sdp, torch.backends.cuda.enable_mem_efficient_sdp,
              torch.backends.cuda.enable_math_sdp)
    for enable in others:
        enable(q.device.type != "cuda")
    try:
        call()
    except RuntimeError:
        for enable in others:
            enable(True)
    return call


def grouped_gemm(fields, t):
    if t["a"].dtype != torch.bfloat16 or t["a"].dim() != 2 or fields.get("epilogue"):
        raise NotImplementedError("grouped products but of bf16 and packed rows")
    if t["c"].dtype != torch.bfloat16:
        raise NotImplementedError("grouped products with other results than bf16")
    return lambda: torch._grouped_mm(t["a"], t["b"], offs=t["groups"])


def activation(fields, t):
    call = ACTIVATIONS[fields.get("act", "identity")]
    axis = int(fields.get("axis", 0))
    if fields.get("pass") == "bwd":
        x = t["x"].detach().requires_grad_()
        y = call(x) if fields.get("gated") != "1" else None
        if y is None:
            raise NotImplementedError("gated backward")
        return lambda: torch.autograd.grad(y, x, t["dy"], retain_graph=True)
    if fields.get("gated") == "1":
        def gated():
            u, v = t["x"].chunk(2, axis)
            return call(u) * v
        return gated
    return lambda: call(t["x"])


def cross_entropy(fields, t):
    options = dict(reduction=fields.get("reduction", "mean"),
                   label_smoothing=float(fields.get("smoothing", 0)))
    labels = t["labels"].long()
    if fields.get("pass") == "bwd":
        x = t["x"].detach().requires_grad_()
        loss = F.cross_entropy(x, labels, **options)
        gradient = t["dloss"].view_as(loss)
        return lambda: torch.autograd.grad(loss, x, gradient, retain_graph=True)
    return lambda: F.cross_entropy(t["x"], labels, **options)


def optim(fields, t):
    rule, master = fields.get("rule", "sgd"), t.get("master")
    p = (t["p"] if master is None else master).clone().requires_grad_()
    p.grad = t["grad"].to(p.dtype)
    decay = float(fields.get("weight_decay", 0))
    # PyTorch's fused step takes a parameter's and its gradient's memory in order: of two layouts it
    # makes a wrong result.
    fused = dict(fused=True) if p.grad.stride() == p.stride() else dict(foreach=True)
    if rule == "sgd":
        o = torch.optim.SGD([p], 1e-3, float(fields.get("momentum", 0)), weight_decay=decay, **fused)
    else:
        o = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[rule]([p], 1e-3, weight_decay=decay,
                                                                       **fused)
        if t["m"].dtype == p.dtype and t["v"].dtype == p.dtype:
            o.state[p] = {"step": torch.zeros((), device=p.device), "exp_avg": t["m"].clone(), "exp_avg_sq": t["v"].clone()}
    comparable = rule == "sgd" or bool(o.state)
    if master is None:
        def step():
            o.step()
            return {"p": p.detach()} if comparable else {}
        return step

    def step_master():
        p.grad = t["grad"].to(p.dtype)
        o.step()
        t["p"].copy_(p)
        return {"master": p.detach()} if comparable else {}
    return step_master


def rotation(fields, x, positions, interleaved):
    """Rotates like Hugging Face's models: cos and sin are tables made before, in x's type."""
    size = int(fields.get("rotary_dim", x.shape[-1])) or x.shape[-1]
    sign = -1 if fields.get("pass") == "bwd" else 1
    exponent = torch.arange(0, size, 2, device=x.device, dtype=torch.float64) / size
    angle = positions.double()[..., None] / float(fields.get("theta", 10000)) ** exponent
    angle = angle.view(-1, 1, *angle.shape[-2:])
    cos, sin = angle.cos().to(x.dtype), (sign * angle.sin()).to(x.dtype)
    if interleaved:
        cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
    else:
        cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)

    def partners(v):
        if interleaved:
            return torch.stack((-v[..., 1::2], v[..., ::2]), -1).flatten(-2)
        a, b = v.chunk(2, -1)
        return torch.cat((-b, a), -1)

    def rotate(v):
        turned = v[..., :size]
        turned = turned * cos + partners(turned) * sin
        return turned if size == v.shape[-1] else torch.cat((turned, v[..., size:]), -1)
    return rotate


def rope(fields, t):
    foreign = [f for f in ("cu", "start", "inv_freq", "cos", "factor") if f in fields]
    if foreign:
        raise NotImplementedError("rope with " + ", ".join(foreign))
    q, k = t["q"], t.get("k")
    positions = t.get("positions", torch.arange(q.shape[2], device=q.device))
    rotate = rotation(fields, q, positions, fields.get("pairing") == "interleaved")
    if k is None:
        return lambda: rotate(q)
    return lambda: (rotate(q), rotate(k))


def kv_append(fields, t):
    foreign = [f for f in ("cu_q", "seq_q", "positions", "inv_freq", "cos", "factor", "scale_k", "scale_v")
               if f in fields]
    if foreign or "v" not in t or t["k"].dtype != t["k_cache"].dtype:
        raise NotImplementedError("kv_append with " + ", ".join(foreign or ["one tensor or another type"]))
    k, v, k_cache, v_cache = (t[name] for name in ("k", "v", "k_cache", "v_cache"))
    place = t["seq_k"].long()[:, None] + torch.arange(k.shape[2], device=k.device)
    page, rows = place * 0 + torch.arange(k.shape[0], device=k.device)[:, None], place
    if "pages" in t:
        size = k_cache.shape[2]
        page, rows = t["pages"].long().gather(1, place // size), place % size
    turn = rotation(fields, k, place, fields["rope"] == "interleaved") if "rope" in fields else lambda x: x

    def append():
        k_cache[page, :, rows] = turn(k).transpose(1, 2)
        v_cache[page, :, rows] = v.transpose(1, 2)
    return append


def transform(fields, t):
    perm = [int(v) for v in fields["perm"].split("x")] if "perm" in fields else None
    x = t["x"].permute(perm) if perm else t["x"]
    return lambda: t["y"].copy_(x)


def scan(fields, t):
    """Reverse scans, and gradients as autograd makes them, by flips."""
    kind, axis, reverse = fields.get("kind", "sum"), int(fields.get("axis", 0)), fields.get("reverse") == "1"
    if fields.get("exclusive") == "1" or "flags" in fields:
        raise NotImplementedError("exclusive or segmented scans")
    if fields.get("pass") == "bwd":
        if kind == "sum" and not reverse:
            return lambda: t["dy"].flip(axis).cumsum(axis).flip(axis)
        if kind == "prod" and not reverse:
            y = torch.cumprod(t["x"], axis)
            return lambda: torch.ops.aten.cumprod_backward(t["dy"], t["x"], axis, y)
        raise NotImplementedError(kind + " backward")
    if kind in ("max", "min"):
        pairs = torch.cummax if kind == "max" else torch.cummin
        if not reverse:
            return lambda: pairs(t["x"], axis)
        call = lambda x, axis: pairs(x, axis).values
    elif kind == "logsumexp":
        call = torch.logcumsumexp
    else:
        call = lambda x, axis: (torch.cumsum if kind == "sum" else torch.cumprod)(x, axis, dtype=t["y"].dtype)
    return lambda: call(t["x"].flip(axis), axis).flip(axis) if reverse else call(t["x"], axis)


def grid_sample(fields, t):
    """The gradients together, as autograd asks for them. Of 16 bits with a grid of 32 it is what autocast makes of it."""
    mode, padding = fields.get("mode", "bilinear"), fields.get("padding", "zeros")
    align = fields.get("align_corners") == "1"
    grid = t["grid"].copy_(smooth(t["grid"]))
    if fields.get("pass") != "bwd":
        x, wide = t["x"], t["x"].dtype != grid.dtype
        return lambda: F.grid_sample(x.to(grid.dtype), grid, mode, padding, align).to(x.dtype) if wide else \
            F.grid_sample(x, grid, mode, padding, align)
    wanted = [name for name in ("dx", "dgrid") if name in t]
    if t["dy"].dtype != grid.dtype or "dgrid" not in wanted:
        raise NotImplementedError("a gradient without the grid's, or of another type")
    numbers = ["bilinear", "nearest", "bicubic"].index(mode), ["zeros", "border", "reflection"].index(padding)
    backward = torch.ops.aten.grid_sampler_2d_backward if grid.dim() == 4 else torch.ops.aten.grid_sampler_3d_backward
    mask = ["dx" in wanted, True]

    def call():
        found = dict(zip(("dx", "dgrid"), backward(t["dy"], t["x"], grid, *numbers, align, mask)))
        return {name: found[name] for name in wanted}
    return call


def im2col(fields, t):
    if "pad_extra" in fields or (t["x"] if "x" in t else t["dx"]).dim() != 4:
        raise NotImplementedError("columns of other than two axes, or padding behind alone")
    options = {n: [int(v) for v in fields[k].split("x")] if k in fields else [d, d]
               for n, k, d in (("kernel_size", "kernel", 1), ("dilation", "dilation", 1), ("padding", "pad", 0), ("stride", "stride", 1))}
    if fields.get("pass") != "bwd":
        return lambda: F.unfold(t["x"], **options)
    return lambda: F.fold(t["dy"], t["dx"].shape[2:], **options)


def affine_grid(fields, t):
    align = fields.get("align_corners") == "1"
    if fields.get("pass") != "bwd":
        size = [t["grid"].shape[0], 1, *t["grid"].shape[1:-1]]
        return lambda: F.affine_grid(t["theta"], size, align)
    size = [t["dgrid"].shape[0], 1, *t["dgrid"].shape[1:-1]]
    return lambda: torch.ops.aten.affine_grid_generator_backward(t["dgrid"], size, align)


def roi_align(fields, t):
    """torchvision's operators, forward and backward, of boxes like those of detectors; channels in their order in memory."""
    try:
        import torchvision  # registers them
    except ImportError:
        raise NotImplementedError("torchvision is not installed") from None
    ops, mode = torch.ops.torchvision, fields.get("mode", "avg")
    scale, sampling, aligned = float(fields.get("scale", 1)), int(fields.get("sampling", 0)), fields.get("aligned") == "1"
    forward = fields.get("pass") != "bwd"
    x, y = (t["x"], t["y"]) if forward else (t["dx"], t["dy"])
    if mode == "max" or "batch" in t or not torchvision.__version__:
        raise NotImplementedError("mode=max, or pictures apart from their regions")
    if x.dtype not in (torch.float32, torch.float64):
        raise NotImplementedError("coordinates in 16 bits, other elements than those of f32")
    rois, size = t["rois"].copy_(boxes(t["rois"], x.shape, scale)).to(x.dtype), y.shape[2:]
    if forward and mode == "pool":
        return lambda: ops.roi_pool(x, rois, scale, *size)[0]
    if forward:
        return lambda: ops.roi_align(x, rois, scale, *size, sampling, aligned)
    if mode == "pool":
        argmax = ops.roi_pool(torch.randn_like(x), rois, scale, *size)[1]
        t["argmax"].copy_(argmax)
        return lambda: ops._roi_pool_backward(y, rois, argmax.to(torch.int32), scale, *size, *x.shape)
    return lambda: ops._roi_align_backward(y, rois, scale, *size, *x.shape, sampling, aligned)


def boxes(rois, shape, scale):
    """Within pictures, from a twentieth of their sides to half of them."""
    generator = torch.Generator().manual_seed(1)
    place = torch.rand(rois.shape[0], 5, generator=generator)
    side = torch.tensor([shape[3], shape[2]]) / scale
    length = side * (0.05 + 0.45 * place[:, 3:] ** 2)
    corner = (side - length) * place[:, 1:3]
    picture = (place[:, :1] * shape[0]).floor()
    return torch.cat([picture, corner, corner + length], 1).to(rois.device)


def smooth(grid):
    """A slight rotation of the whole, as spatial transformers and warped images have it."""
    places = torch.meshgrid(*[torch.linspace(-1, 1, n) for n in grid.shape[1:-1]], indexing="ij")
    flat = torch.stack(places[::-1], -1)
    flat[..., 0], flat[..., 1] = 0.98 * flat[..., 0] - 0.1 * flat[..., 1], 0.1 * flat[..., 0] + 0.98 * flat[..., 1]
    return flat.expand(grid.shape).to(grid.device, grid.dtype)


BUILDERS = dict(conv=conv, gemm=gemm, grouped_gemm=grouped_gemm, pool=pool, norm=norm, attention=attention,
                activation=activation, cross_entropy=cross_entropy, optim=optim, rope=rope, kv_append=kv_append,
                transform=transform, scan=scan, grid_sample=grid_sample, affine_grid=affine_grid, im2col=im2col,
                roi_align=roi_align) | torch_families.FAMILIES
# Of those that do not say which results they give: the first one's name, forward and backward.
RESULTS = {"conv": ("y", None), "gemm": ("c", None), "grouped_gemm": ("c", None), "pool": ("y", None), "norm": ("y", None),
           "activation": ("y", "dx"), "cross_entropy": ("loss", "dx"), "transform": ("y", None), "scan": ("y", "dx"),
           "grid_sample": ("y", None), "affine_grid": ("grid", "dtheta"), "im2col": ("y", "dx"), "roi_align": ("y", "dx")}


def results_of(op, fields, value):
    if isinstance(value, dict):
        return value
    name = RESULTS.get(op, (None, None))[fields.get("pass", "fwd") != "fwd"]
    first = value[0] if isinstance(value, tuple) else value
    return {name: first} if name and torch.is_tensor(first) else {}


def copies(size, sets, device):
    """As many bytes as a line moves, half of them read, half written; ends that are not aligned would cost a third more."""
    pairs = [torch.empty(2, -(-size // 1024) * 512, dtype=torch.uint8, device=device) for _ in range(sets)]
    return [lambda pair=pair: pair[1].copy_(pair[0]) for pair in pairs]


# ---- timing ----

class Case:
    """One line: mica's plan and the peers' calls over the same sets of buffers; alone: mica's plan, with groups as even as
    those of the figures that it is compared with."""

    def __init__(self, mica, line, device, cache_bytes, alone=False, wanted=("torch",)):
        self.mica, self.line, self.why = mica, line, []
        self.plan = mica.plan(line)
        op, fields = fields_of(line)
        self.flops, self.bytes = mica.cost(line)
        sets = 1 + int(min(7, 2 * cache_bytes / max(self.bytes, 1)))
        self.runs, self.calls, self.keep = [], {}, []
        workspace = mica.lib.mica_plan_workspace(self.plan)
        space = torch.empty(workspace + 256, dtype=torch.uint8, device=device)
        base = (space.data_ptr() + 255) // 256 * 256
        stream = torch.cuda.current_stream().cuda_stream if device != "cpu" else None
        scalars = mica.scalars(line)
        for _ in range(sets):
            run, tensors = Run(scalars=scalars, workspace=base if workspace else None, stream=stream), {}
            for name, (index, _, tensor) in mica.arguments(self.plan).items():
                tensors[name] = data_for(name, tensor, device, fields, even=alone)
                run.args[index] = tensors[name].data_ptr()
            self.runs.append(run)
            self.keep.append((tensors, space))
        for peer in () if alone else wanted:
            try:
                self.add(peer, op, fields, device)
            except Differs:
                raise
            except Exception as why:  # another peer may take it
                if tuple(wanted) == ("torch",):
                    raise
                self.why.append(f"{peer}: {type(why).__name__}: {str(why).splitlines()[0][:200] if str(why) else ''}")
        self.peers = ("mica", *self.calls)

    def add(self, peer, op, fields, device):
        """A peer's calls; what it does not take fails here."""
        if peer == "copy":
            self.calls[peer] = copies(int(self.bytes), len(self.runs), device)
            return
        if peer == "torch":
            calls = [BUILDERS[op](fields, tensors) for tensors, _ in self.keep]
        elif op == "pointwise":
            calls = [torch_families.pointwise(fields, tensors, compile_it=True) for tensors, _ in self.keep]
        else:
            return
        with torch.no_grad():
            given = results_of(op, fields, calls[0]())
        if given:  # apart: it may have been written where mica writes
            given = {name: copy.deepcopy(value) for name, value in given.items()}
            self.call("mica", 0)
            wrong = differences(self.keep[0][0], given)
            if wrong:
                raise Differs(wrong)
        self.calls[peer] = calls

    def engine(self):
        return self.mica.lib.mica_plan_engine(self.plan).decode()

    def call(self, peer, i):
        if peer == "mica":
            self.mica.check(self.mica.lib.mica_plan_run(self.plan, c.byref(self.runs[i % len(self.runs)])))
        else:
            with torch.no_grad():
                self.calls[peer][i % len(self.calls[peer])]()


class Differs(Exception):
    """The peer's results are others."""


CYCLES_A_SECOND = 2e9  # at least those of any card that is measured
hosts = {}  # seconds that a call of a peer's took to be queued, the most that was seen; by case and peer


def time_cuda(case, peer, i, inner):
    """The queue fills while the card waits: host time stays out, however long a call takes to be queued."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    key = id(case), peer
    while True:
        host = hosts.get(key, 30e-6)
        torch.cuda.synchronize()
        torch.cuda._sleep(100000 + int(1.5 * host * CYCLES_A_SECOND * inner))
        begin = time.perf_counter()
        start.record()
        for k in range(inner):
            case.call(peer, i * inner + k)
        end.record()
        took = (time.perf_counter() - begin) / inner
        end.synchronize()
        if took <= 1.5 * host or took > 5e-3:  # longer ones wait for the card themselves
            return start.elapsed_time(end) / inner
        hosts[key] = took


def warm(case, seconds=0.05):
    """Clocks are down after a pause, as a compiler makes one."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for peer in case.peers:
            case.call(peer, 0)
        torch.cuda.synchronize()


def time_cpu(case, peer, i, inner):
    time.sleep(0.004)  # the other library's threads stop spinning
    case.call(peer, i)
    start = time.perf_counter()
    for k in range(inner):
        case.call(peer, i * inner + k)
    return 1e3 * (time.perf_counter() - start) / inner


def keep_memory():
    """glibc hands large blocks back to the system at once; each output of PyTorch's would then pay for
    fresh pages, up to six times its own work. A warm allocator is what a training loop tunes for."""
    trim_threshold, mmap_max = -1, -4
    libc = c.CDLL(None)
    if not (libc.mallopt(mmap_max, 0) and libc.mallopt(trim_threshold, 2**31 - 1)):
        raise RuntimeError("mallopt refused")


class Copy:
    """A large copy by mica: what a CPU's memory gives at the moment, which is the roof there."""
    LINE = "transform x=f32:33554432"

    def __init__(self, mica):
        self.case = Case(mica, self.LINE, "cpu", 0, alone=True)
        self.described_ms = mica.roofline_ms(self.LINE)

    def time(self):
        return time_cpu(self.case, "mica", 0, 1)

    def roofline_ms(self, mica, case, copies):
        """The described one, with the measured bandwidth where memory is what bounds."""
        described = mica.roofline_ms(case.line)
        share = case.bytes / self.case.bytes
        memory = share * statistics.median(copies)
        return memory if described <= 1.001 * share * self.described_ms else max(described, memory)


def measure(case, device, seconds, bandwidth):
    """Times of mica, of its peers and, on a CPU, of copies; by name."""
    once = time_cpu if device == "cpu" else time_cuda
    for peer in case.peers:
        once(case, peer, 0, 1)
    first = max([once(case, peer, 1, 1) for peer in case.peers] + [1e-3])
    inner = max(1, min(50, int(2 / first)))
    if device != "cpu":
        warm(case)
    times = {name: [] for name in (*case.peers, *(["bandwidth"] if bandwidth else []))}
    mine, end = times["mica"], time.perf_counter() + seconds
    while len(mine) < 7 or (time.perf_counter() < end and len(mine) < 200):
        for peer in case.peers:
            times[peer].append(once(case, peer, len(mine), inner))
        if bandwidth and len(times["bandwidth"]) < 15:
            times["bandwidth"].append(bandwidth.time())
    return times


def time_like_figures(case, few):
    """Times of single launches, of launches behind 256 MiB of zeros, and of launches back to back, from a rested card and
    the same buffers: as those were taken that bench/figures.jsonl has. The best of the three, or where there are few
    rows, whose weights would stay in L2, the second."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")

    def once(inner, flushed):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        torch.cuda._sleep(100000 + 60000 * inner)
        if flushed:
            flush.zero_()
        start.record()
        for _ in range(inner):
            case.call("mica", 0)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / inner

    ways = []
    for inner, flushed, count in ((1, False, 20), (1, True, 20), (20, False, 3)):
        time.sleep(0.1)
        once(3, False)
        ways.append([once(inner, flushed) for _ in range(count)])
    return ways[1] if few else min(ways, key=statistics.median)


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def expand(line, kinds):
    """{a,b} and a,b in a value mean each of them; lists (epilogue) keep their commas and use |, texts have braces alone.
    kinds: of an operation's fields."""
    head, *pairs = line.split()
    types, lines = kinds(head), [head]
    for pair in pairs:
        types_of = types.get(pair.split("=", 1)[0])
        parts = braces(pair) if types_of == "text" else [
            one for part in split(pair.split("=", 1)[1], "|" if types_of == "list" else ",")
            for one in braces(pair.split("=", 1)[0] + "=" + part)]
        lines = [f"{line} {part}" for line in lines for part in parts]
    return lines


def split(text, at):
    """Parts between commas, but for those within braces."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign == "{") - (sign == "}")
        if sign == at and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def braces(text):
    """The first pair of braces, whose parts may have commas within parentheses, then the others."""
    if "{" not in text:
        return [text]
    start = text.index("{")
    depth, end = 1, start + 1
    while depth:
        depth += (text[end] == "{") - (text[end] == "}")
        end += 1
    return [one for part in split(text[start + 1:end - 1], ",") for one in braces(text[:start] + part + text[end:])]


def figures():
    """Lines that are timed without an equivalent in PyTorch: others' times of them stand in bench/figures.jsonl. Whether
    these were taken with L2 flushed alone."""
    with open(os.path.join(os.path.dirname(__file__), "../figures.jsonl")) as file:
        return {figure["line"]: figure.get("flushed", False) for figure in map(json.loads, file)}


def lines_of(path, kinds):
    for text in open(path):
        text = text.split("#")[0].strip()
        if text:
            yield from expand(text, kinds)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--library", default="build/libmica.so.0")
    parser.add_argument("--json")
    parser.add_argument("--commit", default="")
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--first", type=int, default=0, help="only so many lines of each file")
    parser.add_argument("--every", type=int, default=1, help="only each so many-th line of each file")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="expressions by torch.compile, too")
    parser.add_argument("--copy", action="store_true", help="a copy of as many bytes, too")
    parser.add_argument("--no-torch", action="store_true", help="without PyTorch's functions")
    return parser.parse_args()


def case_of(mica, line, o, cache, wanted, known):
    """The line beside its peers, or mica alone where others' figures are known."""
    try:
        return Case(mica, line, o.device, cache, wanted=wanted)
    except NotImplementedError:
        if line not in known or o.device == "cpu":
            raise
        return Case(mica, line, o.device, cache, alone=True)


class Report:
    """The table, and the JSON lines."""

    def __init__(self, mica, o, peers):
        self.mica, self.o, self.peers, self.run = mica, o, peers, uuid.uuid4().hex[:8]
        self.model, self.out = mica.model(), open(o.json, "a") if o.json else None
        print(f"{'mica us':>10} " + " ".join(f"{peer[-10:] + ' us':>13} {'ratio':>6}" for peer in peers) +
              f" {'roof':>5}  engine    line")

    def missing(self, line, why):
        print(f"{'-':>10} " + " ".join(f"{'-':>13} {'-':>6}" for _ in self.peers) + f" {'-':>5}  {why}: {line}", flush=True)

    def add(self, name, case, times, roofline, sustained):
        """What a line gave; the ratios by peer."""
        medians = {peer: statistics.median(times[peer]) for peer in case.peers}
        ratios = {peer: medians[peer] / medians["mica"] for peer in case.calls}
        beside = " ".join(f"{1e3 * medians[p]:13.1f} {ratios[p]:6.2f}" if p in ratios else f"{'-':>13} {'-':>6}"
                          for p in self.peers)
        print(f"{1e3 * medians['mica']:10.1f} {beside} {100 * roofline / medians['mica']:5.0f}  {case.engine():8}  {case.line}",
              flush=True)
        for why in case.why:
            print(f"{'':10} no peer: {why}", flush=True)
        for peer, ms in medians.items() if self.out else ():
            self.out.write(json.dumps({
                "set": name, "line": case.line, "engine": case.engine() if peer == "mica" else "peer/" + peer,
                "ms": ms, "p10": quantile(times[peer], 0.1), "p90": quantile(times[peer], 0.9),
                "n": len(times[peer]), "tflops": case.flops / ms / 1e9, "gbps": case.bytes / ms / 1e6,
                "roofline": roofline / ms, "commit": self.o.commit, "device": self.model,
                "driver": torch.__version__, "run": self.run} | sustained) + "\n")
            self.out.flush()
        return ratios


def main():
    o = arguments()
    warnings.filterwarnings("ignore", category=UserWarning)  # of kl_div's mean
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if o.threads:
        torch.set_num_threads(o.threads)
    if o.device == "cpu":
        keep_memory()
        cache = 32 << 20
    else:
        cache = torch.cuda.get_device_properties(0).L2_cache_size
    mica, known, status = Mica(o.library, o.device), figures(), 0
    wanted = tuple(peer for peer, on in (("torch", not o.no_torch), ("torch-compile", o.compile), ("copy", o.copy)) if on)
    bandwidth = Copy(mica) if o.device == "cpu" else None
    report = Report(mica, o, wanted)
    for path in o.files:
        ratios, name = {peer: [] for peer in wanted}, os.path.splitext(os.path.basename(path))[0]
        for line in list(lines_of(path, mica.kinds))[:o.first or None:o.every]:
            try:
                case = case_of(mica, line, o, cache, wanted, known)
                times = measure(case, o.device, o.seconds, bandwidth)
            except Differs as why:
                report.missing(line, f"PyTorch computes something else ({why})")
                status = 1
                continue
            except Exception as why:  # the others go on
                report.missing(line, f"no equivalent in PyTorch ({type(why).__name__}: {str(why)[:300]})")
                continue
            sustained = {}
            if not case.calls:
                sustained = {"sustained_ms": statistics.median(times["mica"])}
                if line in known and o.device != "cpu":
                    times["mica"] = time_like_figures(case, known[line])
            roofline = bandwidth.roofline_ms(mica, case, times["bandwidth"]) if bandwidth else mica.roofline_ms(line)
            for peer, ratio in report.add(name, case, times, roofline, sustained).items():
                ratios[peer].append(ratio)
            del case
        for peer, values in ratios.items():
            if values:
                mean = math.exp(sum(map(math.log, values)) / len(values))
                print(f"{name}: geometric mean of {peer}'s time over mica's {mean:.3f} on {len(values)} lines")
    return status


if __name__ == "__main__":
    sys.exit(main())
