#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""opinfo [--device D] [--share I/N] [--processes P] [--seconds S] [--json FILE]: PyTorch's own operator tests as judge. Every sample that PyTorch's
OpInfo generates for an operator that mica has an equivalent of, in every type of ours that the operator takes, forward
and gradients, beside PyTorch in float64. What agrees, what was refused and by which rule, what deviates; a deviation
that DEVIATIONS does not state fails. --share 3/10: every tenth sample, from the third. --seconds: after which no more are
taken, and the rest is counted as not tried; operators are taken in another order then."""

import argparse
import collections
import json
import random
import subprocess
import sys
import tempfile
import time
import types
import unittest
import warnings

try:
    import expecttest  # noqa: F401
except ImportError:  # which PyTorch's own test cases derive from, and none is run here
    sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase)
import torch
from torch._decomp import core_aten_decompositions
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

import mica
import mica.torch as M

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def conv(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1):
    return M.conv(x, w, bias, stride, padding, dilation, groups)


def act(name, **parameters):
    """An activation; parameters: of ours by theirs."""
    def call(x, *arguments, inplace=False, **keywords):
        if arguments or set(keywords) - set(parameters):
            raise NotImplementedError(f"{name} with {sorted(keywords) or arguments}")
        return M.activation(x, name, **{parameters[k]: v for k, v in keywords.items()})

    return call


def gelu(x, approximate="none"):
    return M.activation(x, "gelu_tanh" if approximate == "tanh" else "gelu")


def pool_of(function):
    def call(x, *arguments, **keywords):
        rank = call.rank
        batched = x.dim() == rank + 2
        found = function(x if batched else x.unsqueeze(0), *arguments, **keywords)
        squeeze = (lambda t: t) if batched else (lambda t: t.squeeze(0))
        return tuple(map(squeeze, found)) if isinstance(found, tuple) else squeeze(found)

    return call


def pooled(function, rank):
    call = pool_of(function)
    call.rank = rank
    return call


def batch_norm(x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    copy = [None if t is None else t.clone() for t in (mean, var)]
    return M.batch_norm(x, *copy, weight, bias, training, momentum, eps)


def cross_entropy(x, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    return M.cross_entropy(x, target, weight, ignore_index, reduction, label_smoothing)


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    if dropout_p:
        raise NotImplementedError("dropout: other random numbers")
    return M.scaled_dot_product_attention(q, k, v, attn_mask, 0.0, is_causal, scale, enable_gqa)


EQUIVALENTS = {
    "nn.functional.conv1d": conv, "nn.functional.conv2d": conv, "nn.functional.conv3d": conv,
    "nn.functional.conv_transpose1d": M.conv_transpose, "nn.functional.conv_transpose2d": M.conv_transpose,
    "nn.functional.conv_transpose3d": M.conv_transpose, "nn.functional.linear": M.linear, "bmm": M.matmul, "mm": M.matmul,
    "nn.functional.layer_norm": M.layer_norm, "nn.functional.rms_norm": M.rms_norm, "nn.functional.group_norm": M.group_norm,
    "nn.functional.batch_norm": batch_norm, "nn.functional.instance_norm": M.instance_norm, "softmax": M.softmax,
    "log_softmax": M.log_softmax, "nn.functional.relu": act("relu"), "nn.functional.gelu": gelu, "nn.functional.silu": act("silu"),
    "nn.functional.mish": act("mish"), "nn.functional.elu": act("elu", alpha="a"), "nn.functional.selu": act("selu"),
    "nn.functional.relu6": act("relu6"), "nn.functional.leaky_relu": act("leaky_relu", negative_slope="a"),
    "nn.functional.hardswish": act("hard_swish"), "nn.functional.hardsigmoid": act("hard_sigmoid"),
    "nn.functional.softsign": act("softsign"), "sigmoid": act("sigmoid"), "tanh": act("tanh"),
    "nn.functional.max_pool1d": pooled(M.max_pool, 1), "nn.functional.max_pool2d": pooled(M.max_pool, 2),
    "nn.functional.max_pool3d": pooled(M.max_pool, 3), "nn.functional.avg_pool1d": pooled(M.avg_pool, 1),
    "nn.functional.avg_pool2d": pooled(M.avg_pool, 2), "nn.functional.avg_pool3d": pooled(M.avg_pool, 3),
    "nn.functional.adaptive_avg_pool1d": pooled(M.adaptive_avg_pool, 1),
    "nn.functional.adaptive_avg_pool2d": pooled(M.adaptive_avg_pool, 2),
    "nn.functional.adaptive_avg_pool3d": pooled(M.adaptive_avg_pool, 3), "nn.functional.cross_entropy": cross_entropy,
    "nn.functional.nll_loss": M.nll_loss,
    "nn.functional.scaled_dot_product_attention": attention,
}
# What is meant to differ: (operator, a word of the sample or result) -> why.
DEVIATIONS = {
    ("nn.functional.scaled_dot_product_attention", "nan"): "a query that attends to nothing: 0 here, NaN there",
    # 1/6 is a float in its kernel for doubles: off by one part in 2^25. A digit more or less is another story.
    ("nn.functional.hardsigmoid", "relative difference: 2.98023"): "PyTorch's gradient in float64 has 1/6 as a float32",
}
REFUSALS = (NotImplementedError, mica.Invalid, mica.Unsupported)


class Rounded(TorchDispatchMode):
    """Monte Carlo arithmetic: each step that PyTorch's operators consist of is off by a random unit in the last place of
    what it reads and writes. How far results move is how far rounding in float64 takes any way of computing them from the
    truth, where no wider type is at hand to tell (D. S. Parker, 1997); in float32 it is as many of its own, larger units."""

    table = {**core_aten_decompositions()}

    def __init__(self, seed):
        """No seed: nothing is off, only taken to steps."""
        super().__init__()
        self.exact = seed is None
        self.generator = torch.Generator().manual_seed(seed or 0)

    def moved(self, value):
        if isinstance(value, torch.Tensor) and value.dtype == torch.float64 and value.numel() and not self.exact:
            units = torch.randint(-1, 2, value.shape, generator=self.generator).to(value)
            return value * (1 + units * torch.finfo(torch.float64).eps)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.moved, value))
        return value

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in self.table:
            with self:
                return self.table[function](*args, **kwargs)
        schema = function._schema
        if any(a.alias_info for a in (*schema.arguments, *schema.returns)):  # views, and what is changed in place
            return function(*args, **kwargs)
        return self.moved(function(*self.moved(args), **kwargs))


def results_of(op, arguments, keywords, gradient):
    """The first result and the gradients of the inputs that have one; gradient makes the result's from it."""
    leaves = [t for t in tensors(arguments, keywords) if t.requires_grad and t.is_leaf]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = op(*arguments, **keywords)
    first = found[0] if isinstance(found, (tuple, list)) else found
    if not leaves or not first.requires_grad:
        return [first.detach()]
    return [first.detach(), *torch.autograd.grad(first, leaves, gradient(first), allow_unused=True)]


def weights(result):
    """A gradient for the result."""
    g = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).reshape(result.shape)
    return g.to(result.dtype).to(result.device)


def distances(op, arguments, keywords):
    """How far PyTorch's results in float64 move when each step is rounded otherwise, the largest of eight times."""
    def results(seed):
        with sdpa_kernel(SDPBackend.MATH), Rounded(seed):
            return results_of(op, arguments, keywords, weights)

    still, found = results(None), []
    for seed in range(8):
        found.append([0.0 if one is None or not one.numel() else (one - two).nan_to_num(0, 0, 0).abs().max().item()
                      for one, two in zip(results(seed), still)])
    return list(map(max, *found))


def close(found, expected, native, dtype, theirs=None):
    """Within rounding of the type, or no farther off than a few times what PyTorch's own result in that type is."""
    if found.dtype != native.dtype:
        raise AssertionError(f"a result of {found.dtype}, PyTorch's is {native.dtype}")
    unit = torch.finfo(dtype).eps
    finite = expected.isfinite() & native.isfinite()
    scale = expected[finite].abs().max().item() if finite.any() else 0
    if theirs is None:
        theirs = (native.to(torch.float64) - expected)[finite].abs().max().item() if finite.any() else 0
    width = 16 if dtype in (torch.float32, torch.float64) else 4
    torch.testing.assert_close(found.to(torch.float64), expected, rtol=width * unit,
                               atol=max(width * unit * max(scale, 1e-6), 4 * theirs), equal_nan=True)


def wide(value):
    if isinstance(value, torch.Tensor):
        return value.detach().double().requires_grad_(value.requires_grad) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(map(wide, value))
    if isinstance(value, dict):
        return {k: wide(v) for k, v in value.items()}
    return torch.float64 if value in (torch.float16, torch.bfloat16, torch.float32) and isinstance(value, torch.dtype) else value


def tensors(*values):
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(*value)
        elif isinstance(value, dict):
            yield from tensors(*value.values())


def compare(op, mine, sample, dtype):
    arguments = (sample.input, *sample.args)
    doubled = wide(arguments), wide(sample.kwargs)
    g = []

    def same(result):  # for all three, as rounded to the type
        if not g:
            g.append(weights(result).to(dtype))
        return g[0].to(result.dtype)

    found = results_of(mine, arguments, sample.kwargs, same)
    native = results_of(op, arguments, sample.kwargs, same)
    expected = results_of(op, *doubled, same)
    if found[0].shape != expected[0].shape:
        raise AssertionError(f"shape {tuple(found[0].shape)}, PyTorch's is {tuple(expected[0].shape)}")
    if len(native) > 1 and len(native) == len(expected) != len(found):
        raise AssertionError("no gradient, where PyTorch has one")
    for i, (a, b, c) in enumerate(zip(found, expected, native)):
        if b is None:
            continue
        if a is None:
            raise AssertionError("no gradient, where PyTorch has one")
        try:
            close(a, b, c, dtype)
        except AssertionError:
            if dtype not in (torch.float64, torch.float32) or a.dtype != c.dtype:
                raise
            units = torch.finfo(dtype).eps / torch.finfo(torch.float64).eps
            close(a, b, c, dtype, units * distances(op, *doubled)[i])


OUTCOMES = "agreed", "stated", "refused", "unexplained"


def by_processes(options, part, parts):
    """Each has a part of the share."""
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/{i}.json" for i in range(options.processes)]
        given = [word for n in ("device", "only", "type", "seconds") if getattr(options, n)
                 for word in (f"--{n}", str(getattr(options, n)))]
        running = [subprocess.Popen([sys.executable, "-B", __file__, *given, "--json", file, "--share",
                                     f"{part + i * parts}/{parts * options.processes}"], stdout=subprocess.DEVNULL)
                   for i, file in enumerate(files)]
        ended = [process.wait() for process in running]
        found = []
        for i, (file, code) in enumerate(zip(files, ended)):
            try:
                with open(file) as text:
                    found.append(json.load(text))
            except (OSError, ValueError):
                found.append({"unexplained": 1, "unexplained samples": [f"process {i} ended with {code}"], "operators": []})
        return found


def by_this_one(options, part, parts):
    counts, refused, deviations = collections.Counter(), collections.Counter(), collections.Counter()
    unexplained, seen, number, start = [], set(), 0, time.monotonic()
    ops = [op for op in op_db if op.name in EQUIVALENTS and (not options.only or options.only in op.name)]
    if options.seconds:
        random.Random(part).shuffle(ops)
    for op in ops:
        mine = EQUIVALENTS[op.name]
        for dtype in TYPES if not options.type else [getattr(torch, options.type)]:
            if dtype not in op.supported_dtypes(torch.device(options.device).type):
                continue
            torch.manual_seed(0)
            grad = dtype in op.supported_backward_dtypes(torch.device(options.device).type)
            for i, sample in enumerate(op.sample_inputs(options.device, dtype, requires_grad=grad)):
                # The same part of the samples in whatever order: places count from each operator's own.
                number = i + sum(map(ord, op.name + str(dtype))) if options.seconds else number + 1
                if number % parts != part % parts:
                    continue
                if options.seconds and time.monotonic() - start > options.seconds:
                    counts["not tried"] += 1
                    continue
                seen.add(op.name)
                try:
                    with torch.backends.cudnn.flags(allow_tf32=False):
                        compare(op, mine, sample, dtype)
                    counts["agreed"] += 1
                except REFUSALS as error:
                    counts["refused"] += 1
                    refused[f"{op.name}: {str(error).splitlines()[0][:100]}"] += 1
                except (AssertionError, TypeError, RuntimeError) as error:
                    text = f"{op.name} {dtype}: {sample.summary()[:300]}: {str(error)[:300]}"
                    stated = [why for (name, word), why in DEVIATIONS.items() if name == op.name and word in text.lower()]
                    counts["stated" if stated else "unexplained"] += 1
                    deviations.update(f"{op.name}: {why}" for why in stated)
                    if not stated:
                        unexplained.append(text)
    return {**counts, "deviations": deviations, "refusals": refused, "unexplained samples": unexplained, "operators": sorted(seen)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--json")
    parser.add_argument("--only")
    parser.add_argument("--type", choices=[str(t)[6:] for t in TYPES])
    options = parser.parse_args()
    part, parts = map(int, options.share.split("/"))
    found = by_processes(options, part, parts) if options.processes > 1 else [by_this_one(options, part, parts)]
    counts, refused, deviations = collections.Counter(), collections.Counter(), collections.Counter()
    unexplained, seen = [], set()
    for one in found:
        counts.update({k: one.get(k, 0) for k in (*OUTCOMES, "not tried")})
        refused.update(one.get("refusals", {}))
        deviations.update(one.get("deviations", {}))
        unexplained += one["unexplained samples"]
        seen |= set(one["operators"])
    not_tried = counts.pop("not tried")
    for rule, count in refused.most_common():
        print(f"refused {count:4}  {rule}")
    for text in unexplained:
        print("UNEXPLAINED", text)
    missing = {op.name for op in op_db} & set(EQUIVALENTS) if options.only else set(EQUIVALENTS)
    missing -= {op.name for op in op_db}
    print(f"opinfo: {len(seen)} operators, share {options.share}: " + ", ".join(f"{counts[k]} {k}" for k in OUTCOMES)
          + (f", {not_tried} not tried" if not_tried else "") + "".join(f"; not in OpInfo: {m}" for m in missing))
    if options.json:
        device = torch.cuda.get_device_name() if options.device.startswith("cuda") else options.device
        with open(options.json, "w") as file:
            json.dump({"torch": torch.__version__, "device": device, "share": options.share,
                       "operators": sorted(seen), "samples": counts.total(),
                       **({"not tried": not_tried} if not_tried else {}), **{k: counts[k] for k in OUTCOMES},
                       "deviations": deviations, "refusals": refused, "unexplained samples": unexplained}, file, indent=1)
            file.write("\n")
    sys.exit(bool(unexplained) or not counts["agreed"])


if __name__ == "__main__":
    main()
