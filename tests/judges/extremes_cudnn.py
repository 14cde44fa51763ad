#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""extremes_cudnn.py FILE [--out JSON]: what cuDNN gives for the cases of FILE (tests/extremes.txt), on a GPU.

Convolutions, batch normalisation and attention are PyTorch's calls of cuDNN by name; activations, softmax, pooling,
reductions and maxima of two tensors are calls of its C interface, in PyTorch's memory, with both of its rules for NaN. What
has no such way is "none" with the reason, what cuDNN does not take "refused" with its answer. The values go into FILE's name
with -cudnn.json, of which extremes.py makes a column. Needs PyTorch with CUDA (2.11.0 has cuDNN 9)."""
import argparse
import ctypes
import json
import pathlib
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from extremes import numbers, read

TYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "s64": torch.int64,
         "u8": torch.uint8, "bool": torch.bool}
# Numbers of cudnn_graph.h and cudnn_ops.h.
DATA = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 9}
ACTIVATIONS = {"sigmoid": 0, "relu": 1, "tanh": 2, "elu": 4, "identity": 5, "silu": 6}
REDUCTIONS = {"sum": 0, "prod": 1, "min": 2, "max": 3, "amax": 4, "mean": 5, "norm1": 6, "norm2": 7}
PAIRS = {"min": 2, "max": 3}
POOLS = {"max": 0, "avg": 1, "avg_valid": 2}
NAN_RULES = {"NaN not propagated": 0, "NaN propagated": 1}


class Missing(Exception):
    """There is no way to it."""


class Cudnn:
    """The C interface: descriptors of four dimensions, the plain calls."""

    def __init__(self):
        self.version = torch.backends.cudnn.version()
        try:
            self.lib = ctypes.CDLL("libcudnn.so.9")  # PyTorch has loaded it
        except OSError:
            beside = pathlib.Path(torch.__file__).parents[1]
            self.lib = ctypes.CDLL(str(next(beside.glob("nvidia/cu*/lib/libcudnn.so.9"))))
        self.lib.cudnnGetErrorString.restype = ctypes.c_char_p
        self.handle = self.made("cudnnCreate")

    def call(self, name, *arguments):
        status = getattr(self.lib, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: {self.lib.cudnnGetErrorString(status).decode()}")

    def made(self, name, *arguments):
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made

    def tensor(self, tensor, dims=None):
        dims = dims or ([1] * (4 - tensor.dim()) + list(tensor.shape))
        made = self.made("cudnnCreateTensorDescriptor")
        self.call("cudnnSetTensor4dDescriptor", made, 0, DATA[tensor.dtype], *dims)
        return made, ctypes.c_void_p(tensor.data_ptr())

    @staticmethod
    def factor(value, tensor):
        return ctypes.byref((ctypes.c_double if tensor.dtype == torch.float64 else ctypes.c_float)(value))

    def activation(self, mode, nan, x, dy=None, coefficient=1.0):
        described = self.made("cudnnCreateActivationDescriptor")
        self.call("cudnnSetActivationDescriptor", described, mode, nan, ctypes.c_double(coefficient))
        y, one, zero = torch.empty_like(x), self.factor(1, x), self.factor(0, x)
        self.call("cudnnActivationForward", self.handle, described, one, *self.tensor(x), zero, *self.tensor(y))
        if dy is None:
            return y
        dx = torch.empty_like(x)
        self.call("cudnnActivationBackward", self.handle, described, one, *self.tensor(y), *self.tensor(dy),
                  *self.tensor(x), zero, *self.tensor(dx))
        return dx

    def softmax(self, x, log):
        y, dims = torch.empty_like(x), [*x.shape, 1, 1]
        self.call("cudnnSoftmaxForward", self.handle, 2 if log else 1, 1, self.factor(1, x), *self.tensor(x, dims),
                  self.factor(0, x), *self.tensor(y, dims))
        return y

    def pool(self, mode, nan, x, window, stride, pad):
        described = self.made("cudnnCreatePoolingDescriptor")
        self.call("cudnnSetPooling2dDescriptor", described, mode, nan, 1, window, 0, pad, 1, stride)
        y = torch.empty(*x.shape[:2], (x.shape[2] + 2 * pad - window) // stride + 1, dtype=x.dtype, device=x.device)
        shape = lambda t: [*t.shape[:2], 1, t.shape[2]]
        self.call("cudnnPoolingForward", self.handle, described, self.factor(1, x), *self.tensor(x, shape(x)),
                  self.factor(0, x), *self.tensor(y, shape(y)))
        return y

    def reduce(self, operation, nan, x):
        described = self.made("cudnnCreateReduceTensorDescriptor")
        self.call("cudnnSetReduceTensorDescriptor", described, operation, DATA[x.dtype], nan, 0, 0)
        y, size = torch.empty(1, dtype=x.dtype, device=x.device), ctypes.c_size_t()
        self.call("cudnnGetReductionWorkspaceSize", self.handle, described, self.tensor(x)[0], self.tensor(y)[0],
                  ctypes.byref(size))
        space = torch.empty(size.value + 1, dtype=torch.uint8, device=x.device)
        self.call("cudnnReduceTensor", self.handle, described, None, ctypes.c_size_t(0), ctypes.c_void_p(space.data_ptr()),
                  size, self.factor(1, x), *self.tensor(x), self.factor(0, x), *self.tensor(y))
        return y

    def pair(self, operation, nan, a, b):
        described = self.made("cudnnCreateOpTensorDescriptor")
        self.call("cudnnSetOpTensorDescriptor", described, operation, DATA[a.dtype], nan)
        y, one = torch.empty_like(a), self.factor(1, a)
        self.call("cudnnOpTensor", self.handle, described, one, *self.tensor(a), one, *self.tensor(b), self.factor(0, a),
                  *self.tensor(y))
        return y


def by_rule(call):
    return {rule: call(nan) for rule, nan in NAN_RULES.items()}


# ---- the families: fields, tensors, cuDNN to values by rule, or alone ----

def activation(fields, t, cudnn):
    act = fields.get("act", "identity")
    if act not in ACTIVATIONS:
        raise Missing(f"no {act} in the interface of calls")
    return by_rule(lambda nan: cudnn.activation(ACTIVATIONS[act], nan, t["x"], t.get("dy")))


def softmax(fields, t, cudnn):
    if {"mask", "kind", "pass"} & set(fields):
        raise Missing("softmax alone")
    return cudnn.softmax(t["x"], fields.get("log") == "1")


def pool(fields, t, cudnn):
    window = int(fields["window"])
    return by_rule(lambda nan: cudnn.pool(POOLS[fields.get("mode", "max")], nan, t["x"], window,
                                          int(fields.get("stride", window)), int(fields.get("pad", 0))))


def reduce(fields, t, cudnn):
    kind = fields.get("kind", "sum")
    if kind not in REDUCTIONS or "axes" in fields:
        raise Missing(f"no {kind} of that in the interface of calls")
    return by_rule(lambda nan: cudnn.reduce(REDUCTIONS[kind], nan, t["x"]))


def pointwise(fields, t, cudnn):
    parts = fields["expr"].split(";")
    if any(part not in ("max(x0,x1)", "min(x0,x1)") for part in parts):
        raise Missing("the graph interface alone")
    return by_rule(lambda nan: torch.cat([cudnn.pair(PAIRS[part[:3]], nan, t["x0"], t["x1"]) for part in parts]))


def conv(fields, t, cudnn):
    if not t["x"].numel():
        raise Missing("nothing to convolve")
    x, w = t["x"].unsqueeze(2), t["w"].unsqueeze(2)
    stride, pad = [1, int(fields.get("stride", 1))], [0, int(fields.get("pad", 0))]
    if fields.get("transposed") == "1":
        return torch.ops.aten.cudnn_convolution_transpose(x, w, pad, [0, int(fields.get("output_pad", 0))], stride, [1, 1], 1,
                                                          False, True, False)
    return torch.ops.aten.cudnn_convolution(x, w, pad, stride, [1, 1], 1, False, True, False)


def norm(fields, t, cudnn):
    if fields.get("kind") != "batch" or "running_biased" in fields:
        raise Missing("batch statistics alone are called")
    x, one = t["x"][..., None, None], torch.ones(t["x"].shape[1], device="cuda")
    mean, variance = t["running_mean"], t["running_var"]
    torch.ops.aten.cudnn_batch_norm(x, one, torch.zeros_like(one), mean, variance, True, float(fields["momentum"]), 1e-5)
    return variance


def attention(fields, t, cudnn):
    """In bf16, which it takes, columns of zeros up to eight."""
    if "sinks" in fields:
        raise Missing("no sinks")
    q, k, v = (F.pad(t[n].to(torch.bfloat16), (0, 8 - t[n].shape[-1])) for n in "qkv")
    mask = t["mask"] != 0 if "mask" in t else t["bias"].to(torch.bfloat16) if "bias" in t else None
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=float(fields.get("scale", 1)))
    return {"in bf16": out[..., :1]}


FAMILIES = dict(activation=activation, softmax=softmax, pool=pool, reduce=reduce, pointwise=pointwise, conv=conv, norm=norm,
                attention=attention)


def tensors(case, fields):
    made = {}
    for name, text in case.inputs.items():
        kind, _, shape = fields.get(name, "f32").partition(":")
        shape = [int(n) for n in shape.split(":")[0].split("x")] if shape else [-1]
        if kind not in TYPES:
            raise Missing(f"no {kind}")
        made[name] = torch.tensor(numbers(text), dtype=torch.float64).to(TYPES[kind]).reshape(shape).cuda()
    if "dy" in made and "x" in made:
        made["dy"] = made["dy"].to(made["x"].dtype).view(made["x"].shape)
    return made


def shown(value):
    return [repr(float(v)) for v in value.to(torch.float64).reshape(-1)]


def answer(case, cudnn):
    """Values, values by rule where the rules differ, or words."""
    fields = dict(word.split("=", 1) for word in case.line.split()[1:])
    try:
        if case.op not in FAMILIES:
            raise Missing("cuDNN has no such call")
        got = FAMILIES[case.op](fields, tensors(case, fields), cudnn)
        torch.cuda.synchronize()
    except Missing as why:
        return f"none: {why}"
    except Exception as why:  # an answer, too
        return "refused: " + (str(why).splitlines() or [type(why).__name__])[0][:120]
    if not isinstance(got, dict):
        return shown(got)
    values = {rule: shown(value) for rule, value in got.items()}
    first, *others = values.values()
    return first if others and all(other == first for other in others) else values


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    given = parser.parse_args()
    cudnn = Cudnn()
    values = {}
    for case in read(given.file):
        values[case.name] = answer(case, cudnn)
        print(f"{case.line}\n    {values[case.name]}", flush=True)
    out = given.out or given.file.with_name(given.file.stem + "-cudnn.json")
    out.write_text(json.dumps({"cudnn": cudnn.version, "torch": torch.__version__.split("+")[0],
                               "device": torch.cuda.get_device_name(), "values": values}, indent=1) + "\n")
    words = [v for v in values.values() if isinstance(v, str)]
    print(f"{len(values)} cases: {len(values) - len(words)} with values, {sum(w.startswith('none') for w in words)} none, "
          f"{sum(w.startswith('refused') for w in words)} refused")


if __name__ == "__main__":
    main()
