# SPDX-License-Identifier: Apache-2.0
"""mica.torch beside PyTorch itself: operators pass opcheck, gradients gradcheck, functions agree with
torch.nn.functional, compile, autocast, modules, optimisers."""

import copy
import itertools
import math
import os
import pathlib
import sys
import unittest
import warnings
from unittest import mock

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))  # judge

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import gradcheck
from torch.library import opcheck

import mica
import mica._tables
import mica.torch as M
from mica.torch._formulas import _call

DEVICE = os.environ.get("MICA_TEST_DEVICE", "cpu")
if DEVICE != "cpu":  # without a mode, which would keep functions from the short way
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
GRADIENTS = {}  # by operator: functions of doubles and their inputs


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def gradient(name):
    def add(make):
        GRADIENTS.setdefault(name, []).append(make)
        return make

    return add


@gradient("conv")
def _():
    return lambda x, w, b: M.conv(x, w, b, stride=2, padding=1, groups=2), (doubles(2, 4, 6, 5), doubles(6, 2, 3, 3), doubles(6))


@gradient("conv")
def _():
    return (lambda x, w: M.conv_transpose(x, w, None, stride=2, padding=1, output_padding=1),
            (doubles(2, 4, 5, 4), doubles(4, 3, 3, 3)))


@gradient("conv")
def _():
    return lambda x, w: M.conv(x, w, padding="same", dilation=2), (doubles(2, 3, 9), doubles(2, 3, 4))


@gradient("gemm")
def _():
    return M.linear, (doubles(3, 2, 5), doubles(4, 5), doubles(4))


@gradient("gemm")
def _():
    return M.matmul, (doubles(3, 1, 2, 5), doubles(2, 5, 4))


@gradient("norm")
def _():
    return lambda x, w, b: M.layer_norm(x, (2, 5), w, b), (doubles(3, 2, 5), doubles(2, 5), doubles(2, 5))


@gradient("norm")
def _():
    return lambda x, w: M.rms_norm(x, (5,), w), (doubles(3, 5), doubles(5))


@gradient("norm")
def _():
    return lambda x, w, b: M.group_norm(x, 2, w, b), (doubles(3, 4, 5), doubles(4), doubles(4))


@gradient("norm")
def _():
    return lambda x, w, b: M.batch_norm(x, None, None, w, b, True), (doubles(3, 4, 5), doubles(4), doubles(4))


@gradient("norm")
def _():
    return (lambda x, w, b, r: M.batch_norm(x, None, None, w, b, True, act="silu", residual=r),
            (doubles(3, 4, 5), doubles(4), doubles(4), doubles(3, 4, 5)))


@gradient("norm")
def _():
    return lambda x, r: _call("norm", x=x, residual=r, kind="group", groups=2, described={"mean": "f64:3x2", "rstd": "f64:3x2"})[0], (
        doubles(3, 4, 5), doubles(3, 4, 5))


@gradient("norm")
def _():
    mean, var = torch.randn(4, dtype=torch.float64), torch.rand(4, dtype=torch.float64) + 0.5
    return lambda x, w, b: M.batch_norm(x, mean, var, w, b, False), (doubles(3, 4, 5), doubles(4), doubles(4))


@gradient("norm")
def _():
    return lambda x: M.instance_norm(x), (doubles(3, 4, 5),)


@gradient("softmax")
def _():
    return lambda x: M.softmax(x, -1), (doubles(3, 5),)


@gradient("softmax")
def _():
    return lambda x: M.log_softmax(x, 0), (doubles(3, 5),)


@gradient("softmax")
def _():
    mask = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    return lambda x: _call("softmax", x=x, axis=1, scale=0.7, mask=mask)[0], (doubles(3, 5),)


@gradient("softmax")
def _():
    return lambda x, m: _call("softmax", x=x, axis=1, log=True, scale=2.0, mask=m.expand(3, 5))[0], (doubles(3, 5), doubles(1, 5))


@gradient("softmax")
def _():
    return lambda x: _call("softmax", x=x, axis=0, kind="sparsemax", scale=0.3)[0], (doubles(3, 5),)


@gradient("softmax")
def _():
    rng = torch.tensor([7, 1])
    return lambda x: _call("softmax", x=x, axis=1, kind="gumbel", tau=0.5, scale=1.5, rng=rng)[0], (doubles(3, 5),)


@gradient("activation")
def _():
    return lambda x: M.activation(x, "gelu"), (doubles(3, 5),)


@gradient("activation")
def _():
    return lambda x: _call("activation", x=x, act="silu", gated=True, axis=-1)[0], (doubles(3, 6),)


@gradient("pool")
def _():
    return lambda x: M.max_pool(x, 3, 2, 1), (doubles(2, 3, 7, 6),)


@gradient("pool")
def _():
    return lambda x: M.avg_pool(x, 3, 2, 1), (doubles(2, 3, 7, 6),)


@gradient("pool")
def _():
    return lambda x: M.adaptive_avg_pool(x, (3, 4)), (doubles(2, 3, 7, 6),)


@gradient("pool")
def _():
    return lambda x: M.lp_pool(x.exp(), 3, (3, 2), 2, True), (doubles(2, 3, 7, 6),)


@gradient("resize")
def _():
    return lambda x: M.interpolate(x, (5, 3), mode="bilinear"), (doubles(2, 3, 3, 4),)


@gradient("resize")
def _():
    return lambda x: M.interpolate(x, scale_factor=(0.6, 1.7), mode="bicubic", antialias=True), (doubles(2, 3, 5, 4),)


@gradient("resize")
def _():
    return lambda x: M.interpolate(x, 3, mode="nearest-exact"), (doubles(2, 3, 5),)


@gradient("im2col")
def _():
    return lambda x: M.unfold(x, (2, 3), (1, 2), (1, 0), (2, 1)), (doubles(2, 3, 5, 6),)


@gradient("im2col")
def _():
    return lambda x: M.fold(x, (5, 6), (2, 3), (1, 2), (1, 0), (2, 1)), (doubles(2, 18, 6),)


@gradient("lrn")
def _():
    return lambda x: M.local_response_norm(x, 4, 0.7, k=1.5), (doubles(2, 5, 3, 2),)


@gradient("lrn")
def _():
    return lambda x, m: _call("lrn", x=x, means=m, kind="divisive", size=3, alpha=1.0)[0], (doubles(2, 2, 3, 4), doubles(2, 2, 3, 4))


@gradient("cross_entropy")
def _():
    weight = doubles(5).detach().abs() + 0.5
    return lambda x, t: M.cross_entropy(x, t, weight, label_smoothing=0.1), (doubles(3, 5), doubles(3, 5))


@gradient("cross_entropy")
def _():
    weight, labels = doubles(5).detach().abs() + 0.5, torch.tensor([1, 4, 0])
    return lambda x: M.nll_loss(x, labels, weight), (doubles(3, 5),)


@gradient("cross_entropy")
def _():
    labels = torch.tensor([0, 3, -100])
    return lambda x: M.cross_entropy(x, labels, label_smoothing=0.1), (doubles(3, 5),)


@gradient("attention")
def _():
    return (lambda q, k, v: M.scaled_dot_product_attention(q, k, v, is_causal=True),
            (doubles(1, 2, 4, 3), doubles(1, 2, 5, 3), doubles(1, 2, 5, 2)))


@gradient("attention")
def _():
    return (lambda q, k, v, m: M.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
            (doubles(1, 4, 4, 3), doubles(1, 2, 5, 3), doubles(1, 2, 5, 2), doubles(4, 5)))


@gradient("mha")
def _():
    weights = doubles(8, 6), doubles(4, 7), doubles(4, 9), doubles(10, 8)
    return (lambda q, k, v, wq, wk, wv, wo, bk: _call("mha", q=q, k=k, v=v, wq=wq, wk=wk, wv=wv, wo=wo, bk=bk, heads=4, kv_heads=2,
                                                      causal="bottom_right")[0],
            (doubles(2, 4, 6), doubles(2, 5, 7), doubles(2, 5, 9), *weights, doubles(4)))


@gradient("rnn")
def _():
    lengths = torch.tensor([4, 2])
    return (lambda x, w, hx, cx: _call("rnn", x=x, w=w, hx=hx, cx=cx, lengths=lengths, cell="lstm", hidden=2, layers=2,
                                       bidirectional=True, described=dict.fromkeys(("hy", "cy", "gates", "cells", "states"), "f64"))[:3],
            (doubles(4, 2, 3), doubles(240), doubles(4, 2, 2), doubles(4, 2, 2)))


@gradient("rnn")
def _():
    kept = dict.fromkeys(("hy", "cy", "gates", "cells", "states"), "f64")
    return (lambda x, w, hx, cx, p: _call("rnn", x=x, w=w, hx=hx, cx=cx, peepholes=p, cell="lstm", hidden=2, layers=2,
                                          bidirectional=True, described=kept)[:3],
            (doubles(4, 2, 3), doubles(240), doubles(4, 2, 2), doubles(4, 2, 2), doubles(4, 3, 2)))


@gradient("rnn")
def _():
    rng = torch.tensor([123456789, 5])
    kept = dict.fromkeys(("hy", "cy", "gates", "cells", "states", "inner"), "f64")
    return (lambda x, w, hx: _call("rnn", x=x, w=w, hx=hx, rng=rng, cell="lstm", hidden=3, layers=2, projection=2, dropout=0.5,
                                   clip="cells", clip_low=-0.5, clip_high=0.75, described=kept)[:3],
            (doubles(4, 2, 3), doubles(168), doubles(2, 2, 2)))


@gradient("rnn")
def _():
    return (lambda x, w, hx: _call("rnn", x=x, w=w, hx=hx, cell="gru", hidden=3, reset_before=True, skip_input=True,
                                   described=dict.fromkeys(("hy", "gates", "states", "inner"), "f64"))[:2],
            (doubles(4, 2, 3), doubles(45), doubles(1, 2, 3)))


@gradient("rope")
def _():
    return M.rope, (doubles(1, 2, 4, 6), doubles(1, 1, 4, 6))


# Some of those that stand in no list: their tables say what is whose gradient. test_gradients.py has all of them.


@gradient("pointwise")
def _():
    return (lambda x, y: _call("pointwise", x0=x, x1=y, expr="sin(x0)*x1+s0*x0", scalars={"s0": 2.0})[0],
            (doubles(3, 5), doubles(3, 5)))


@gradient("pointwise")
def _():
    return lambda x: tuple(_call("pointwise", x0=x, expr="exp(x0);x0*x0")), (doubles(3, 5),)


@gradient("pointwise")
def _():
    return (lambda x, y, z: _call("pointwise", x0=x, x1=y, x2=z, expr="sin(x0)*x1+x2*x2")[0],
            (doubles(3, 4, 5), doubles(4, 1), doubles(1)))


@gradient("gather")
def _():
    index = torch.tensor([2, 0, 2])
    return lambda x: _call("gather", x=x, index=index, axis=1)[0], (doubles(2, 4, 3),)


@gradient("concat")
def _():
    return lambda x, y: _call("concat", x0=x, x1=y, axis=1)[0], (doubles(2, 4, 3), doubles(2, 2, 3))


@gradient("slice")
def _():
    return lambda x: _call("slice", x=x, start=[1, 0], step=[1, 2], described={"y": "f64:2x3"})[0], (doubles(3, 5),)


@gradient("tile")
def _():
    return lambda x: _call("tile", x=x, repeats=[2, 3])[0], (doubles(2, 3),)


def _reduced(kind, **fields):
    """On values that lie apart: an extremum has a gradient there."""
    return lambda: (lambda x: _call("reduce", x=x, kind=kind, axes=["1"], **fields)[0],
                    (torch.randperm(15).reshape(3, 5).double().sub(6.5).div(4).requires_grad_(),))


for _kind in "sum", "mean", "prod", "max", "min", "amax", "norm1", "norm2", "logsumexp", "var":
    gradient("reduce")(_reduced(_kind))
gradient("reduce")(_reduced("std", correction=1.0, keepdims=True))


@gradient("dropout")
def _():
    rng = torch.tensor([7, 1])
    return lambda x, r: _call("dropout", x=x, residual=r, rng=rng, p=0.3)[0], (doubles(4, 5), doubles(4, 5))


@gradient("scan")
def _():
    flags = torch.rand(4, 6) < 0.3
    return lambda x: tuple(_call("scan", x=x, kind=kind, flags=flags, axis=-1, exclusive=exclusive, reverse=not exclusive)[0]
                           for kind in ("sum", "prod") for exclusive in (False, True)), (doubles(4, 6),)


@gradient("scan")
def _():
    index = {"max": {"index": "s64"}, "min": {"index": "s32"}, "logsumexp": {}}
    return lambda x: tuple(_call("scan", x=x, kind=kind, axis=0, reverse=reverse, described=index[kind])[0]
                           for kind in index for reverse in (False, True)), (doubles(5, 3),)


@gradient("pad")
def _():
    return lambda x: _call("pad", x=x, before=[1, 2], after=[0, 1], mode="reflect")[0], (doubles(4, 5),)


def f32(*shape):
    return torch.randn(*shape, requires_grad=True)


# Inputs of each operator for opcheck. A family that is not here is tried with a line of its case files.
CALLS = {
    "conv": [((f32(2, 3, 6, 5), f32(4, 3, 3, 3)), {"pad": [1, 1], "bias": f32(4), "epilogue": ["bias"]})],
    "gemm": [((f32(5, 6), f32(6, 4)), {})],
    "norm": [((f32(3, 5),), {"scale": f32(5), "bias": f32(5), "described": ["mean=f32:3", "rstd=f32:3"]})],
    "softmax": [((f32(3, 5),), {"axis": -1})],
    "activation": [((f32(3, 5),), {"act": "silu"})],
    "pool": [((f32(2, 3, 8, 8),), {"window": [2, 2], "described": ["indices=s64"]})],
    "cross_entropy": [((f32(3, 5), torch.tensor([1, 2, 0])), {})],
    "attention": [((f32(1, 2, 4, 8), f32(1, 2, 5, 8), f32(1, 2, 5, 8)), {"described": ["lse=f32"]})],
    "rope": [((f32(1, 2, 4, 6), f32(1, 1, 4, 6)), {})],
    "transform": [((torch.randn(3, 4),), {"alpha": 2.0})],
    "attention_merge": [((torch.randn(2, 3, 4),), {"lses": torch.randn(2, 3)})],
    "grouped_gemm": [((torch.randn(6, 4), torch.randn(2, 4, 3)), {"groups": torch.tensor([2, 6], dtype=torch.int32)})],
    "mha": [((torch.randn(2, 5, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 8)), {"wq": torch.randn(8, 8), "wk": torch.randn(8, 8), "wv": torch.randn(8, 8),
                                                                                       "wo": torch.randn(8, 8), "heads": 2})],
}


def by_place(name, arguments, keywords):
    """The call with its arguments by name as the schema has them."""
    table = M.operators[name].table
    given = dict(zip(table.positional, arguments))
    return {**given, **keywords}


def from_cases(name):
    """A call of an operator that has none above: a line of its case files, as arguments by name."""
    import judge

    table = M.operators[name].table
    for line in judge.case_lines(name, 50):
        problem = judge.Problem(line)
        inputs = problem.inputs()
        if any(t.dtype not in ("f64", "f32", "f16", "s8", "u8", "s32", "s64", "bool") for _, d, t in problem.args if d):
            continue
        if sum(t.count for _, d, t in problem.args if d) > 10000:
            continue
        if any(step < 0 for _, d, t in problem.args if d for step in t.strides):  # PyTorch has none
            continue
        fields, described = judge.fields_of(table, line, inputs)
        call = {**{n: torch.from_numpy(a).to(DEVICE) for n, a in inputs.items()}, **fields}
        if described:
            call["described"] = [f"{n}={t}" for n, t in described.items()]
        return call
    raise AssertionError(f"no line of the case files will do for {name}")


class Operators(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def test_opcheck(self):
        for name in M.operators:
            calls = [by_place(name, *call) for call in CALLS.get(name, [])] or [from_cases(name)]
            for keywords in calls:
                with self.subTest(name):
                    opcheck(getattr(torch.ops.mica, name).default, (), keywords)

    def test_gradcheck(self):
        for name, makers in GRADIENTS.items():
            for make in makers:
                function, inputs = make()
                with self.subTest(name):
                    self.assertTrue(gradcheck(function, inputs))

    def test_a_site_knows_its_tensors(self):
        """Calls that differ in their tensors alone find plans by these: other types, sizes, strides, views, gradients."""
        F = torch.nn.functional
        w, b = torch.randn(4, 3, 3, 3), torch.randn(4)
        x = torch.randn(2, 3, 6, 5)
        negated = torch.complex(x, x).conj().imag  # with the sign in a flag
        self.assertTrue(negated.is_neg())
        for _ in range(2):  # the second time by what the first one found
            for one in (x, x.to(memory_format=torch.channels_last), torch.randn(1, 3, 9, 9), x[:, :, ::2], x[0], negated,
                        torch.ones(1, 1, 1, 1).expand(2, 3, 6, 5), x.double()):
                weight, bias = w.to(one.dtype), b.to(one.dtype)
                torch.testing.assert_close(M.conv(one, weight, bias, padding=[1, 1]), F.conv2d(one, weight, bias, padding=1),
                                           rtol=1e-4, atol=1e-4)
            self.assertFalse(M.conv(x, w).requires_grad)
            self.assertTrue(M.conv(x, w.requires_grad_()).requires_grad)
            with torch.no_grad():
                self.assertFalse(M.conv(x, w).requires_grad)
            w.requires_grad_(False)
        with self.assertRaises(mica.Invalid):
            M.conv(x, w.to_sparse())

    def test_the_short_way_and_the_dispatcher_agree(self):
        """Functions go past the dispatcher where nobody listens; modes and transforms are listened to."""
        from torch.utils._python_dispatch import TorchDispatchMode

        class Count(TorchDispatchMode):
            seen = 0

            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                Count.seen += "mica" in str(function)
                return function(*args, **(kwargs or {}))

        with Count():
            M.softmax(torch.ones(2, 3), 1)
        self.assertEqual(Count.seen, 1)
        for makers in GRADIENTS.values():
            for make in makers:
                function, inputs = make()
                direct = function(*inputs)
                with mock.patch("mica.torch._library.plain", lambda values: False):
                    dispatched = function(*inputs)
                for one, two in zip(*(r if isinstance(r, (tuple, list)) else (r,) for r in (direct, dispatched))):
                    self.assertTrue(torch.equal(one, two))
                    for a, b in zip(torch.autograd.grad(one.sum(), inputs, retain_graph=True, allow_unused=True),
                                    torch.autograd.grad(two.sum(), inputs, retain_graph=True, allow_unused=True)):
                        self.assertTrue(a is b or torch.equal(a, b))

    def test_what_has_no_gradient_says_so(self):
        x, w = f32(1, 2, 4, 4), f32(2, 2, 1, 1)
        with self.assertRaisesRegex(NotImplementedError, "epilogue"):
            torch.ops.mica.conv(x, w, epilogue=["relu"])
        with self.assertRaisesRegex(NotImplementedError, "lse"):
            torch.ops.mica.attention(*(f32(1, 1, 2, 8) for _ in range(3)))
        with self.assertRaisesRegex(NotImplementedError, "gradient of a gradient"):
            g, = torch.autograd.grad(M.conv(x, w).sum(), x, create_graph=True)
            g.sum().backward()

    def test_errors_are_micas(self):
        with self.assertRaisesRegex(mica.Invalid, "w is"):
            M.conv(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 1, 1, dtype=torch.float64))
        with self.assertRaisesRegex(mica.Invalid, "requires grad.*mica.torch"):
            mica.softmax(f32(2, 3))
        with self.assertRaisesRegex(mica.Invalid, "meta"):
            mica.softmax(torch.zeros(2, 3, device="meta"))
        with self.assertRaisesRegex(mica.Invalid, "layout"):
            mica.softmax(torch.zeros(2, 3).to_sparse_csr())


class Eager(unittest.TestCase):
    """mica's own operators on tensors."""

    def test_types_and_strides(self):
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32,
                      torch.int64):
            x = torch.arange(12).reshape(3, 4).to(dtype)
            for t in (x, x.t(), x[::2, 1:]):
                found = mica.transform(t, alpha=2)
                self.assertEqual((found.dtype, found.shape), (dtype, t.shape))
                self.assertTrue(torch.equal(found, t * 2))
        self.assertEqual(mica.transform(torch.ones(2), y="e4m3").dtype, torch.float8_e4m3fn)
        self.assertTrue(torch.equal(mica.transform(torch.ones(2), y="e5m2").float(), torch.ones(2)))

    def test_views_that_are_lazy(self):
        z = torch.tensor([1 + 2j, 3 - 4j])
        negative = torch._neg_view(torch.tensor([1.0, 2.0]))
        self.assertTrue(torch.equal(mica.transform(negative, y="f32"), torch.tensor([-1.0, -2.0])))
        self.assertTrue(torch.equal(mica.transform(z.conj().imag, y="f32"), torch.tensor([-2.0, 4.0])))
        with self.assertRaisesRegex(mica.Invalid, "negated"):
            mica.transform(torch.ones(2), out=negative)

    def test_out_and_mixed_libraries(self):
        x, out = torch.arange(4.0), torch.zeros(4)
        self.assertIs(mica.transform(x, alpha=2, out=out), out)
        self.assertTrue(torch.equal(out, 2 * x))
        try:
            import numpy
        except ImportError:
            return
        mine = numpy.zeros(4, numpy.float32)
        mica.transform(x.cpu(), alpha=3, out=mine)
        self.assertEqual(mine.tolist(), [0, 3, 6, 9])


class Functions(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def same(self, mine, theirs, *inputs, tolerance=1e-5):
        """Results and gradients."""
        inputs = [t.detach().requires_grad_() if t.is_floating_point() else t for t in inputs]
        found, expected = mine(*inputs), theirs(*inputs)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
        leaves = [t for t in inputs if t.requires_grad]
        g = torch.randn_like(expected)
        torch.testing.assert_close(torch.autograd.grad(found, leaves, g), torch.autograd.grad(expected, leaves, g),
                                   rtol=tolerance, atol=10 * tolerance)

    def test_batch_norm_moves_its_statistics(self):
        x, mine, theirs = torch.randn(4, 3, 5), [torch.zeros(3), torch.ones(3)], [torch.zeros(3), torch.ones(3)]
        for _ in range(3):
            M.batch_norm(x, *mine, training=True)
            F.batch_norm(x, *theirs, training=True)
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
        with self.assertRaises(mica.Invalid):
            M.batch_norm(torch.randn(3), *mine, training=True)

    def test_attention(self):
        q, k, v = torch.randn(2, 4, 7, 16), torch.randn(2, 4, 9, 16), torch.randn(2, 4, 9, 8)
        for options in ({}, {"is_causal": True}, {"scale": 0.3}):
            self.same(lambda *a: M.scaled_dot_product_attention(*a, **options),
                      lambda *a: F.scaled_dot_product_attention(*a, **options), q, k, v)
        mask = torch.rand(7, 9) > 0.3
        mask[2] = False  # a query that attends to nothing
        found = M.scaled_dot_product_attention(q, k, v, mask)
        expected = F.scaled_dot_product_attention(q, k, v, mask)
        torch.testing.assert_close(found, expected.nan_to_num(0), rtol=1e-5, atol=1e-5)
        self.same(lambda q, k, v, m: M.scaled_dot_product_attention(q, k, v, m),
                  lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), q, k, v, torch.randn(2, 1, 7, 9))
        for shape in ((7, 16), (4, 7, 16), (3, 2, 4, 7, 16)):
            t = torch.randn(*shape)
            self.same(M.scaled_dot_product_attention, F.scaled_dot_product_attention, t, t + 1, t * 2)
        with self.assertRaisesRegex(ValueError, "enable_gqa"):
            M.scaled_dot_product_attention(q, k[:, :2], v[:, :2])

    def test_dropout_keeps_the_mean_and_the_seed(self):
        q = torch.randn(1, 2, 64, 16)
        torch.manual_seed(3)
        one = M.scaled_dot_product_attention(q, q, torch.ones_like(q), dropout_p=0.25)
        torch.manual_seed(3)
        two = M.scaled_dot_product_attention(q, q, torch.ones_like(q), dropout_p=0.25)
        self.assertTrue(torch.equal(one, two))
        self.assertAlmostEqual(one.mean().item(), 1, delta=0.1)
        self.assertGreater(one.std().item(), 0)

    def test_reductions_beside_their_gradient(self):
        """Equal elements share, as of torch.amax; positions have none."""
        x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], requires_grad=True)
        weights = torch.tensor([2.0, -3.0])
        for got, want in ((_call("reduce", x=x, kind="max", axes=["1"])[0], torch.amax(x, 1)),
                          (_call("reduce", x=x, kind="prod", axes=["1"])[0], torch.prod(x, 1))):
            a, b = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (got, want))
            torch.testing.assert_close(a, b)
        self.assertFalse(_call("reduce", x=x, kind="argmax", axes=["1"])[0].requires_grad)

    def test_cross_entropies_beside_pytorchs(self):
        """Class weights, ignored rows, log-probabilities, probabilities; gradients of input and target."""
        x, weight = torch.randn(5, 4, 3, requires_grad=True), torch.rand(4) + 0.25
        labels, shares = torch.randint(4, (5, 3)), torch.rand(5, 4, 3, requires_grad=True)
        labels[1, 2] = -100
        entropies, likelihoods = (M.cross_entropy, F.cross_entropy), (M.nll_loss, F.nll_loss)
        calls = [(entropies, (x, labels, w), {"label_smoothing": s}) for w in (None, weight) for s in (0.0, 0.2)]
        calls += [(entropies, (x, shares, w), {"label_smoothing": s}) for w in (None, weight) for s in (0.0, 0.2)]
        calls += [(likelihoods, (x, labels, w), {}) for w in (None, weight)]
        calls += [(likelihoods, (x, labels, weight), {"ignore_index": 2}), (entropies, (x[0, :, 0], labels[0, 0], weight), {}),
                  (entropies, (x[0, :, 0], shares[0, :, 0], weight), {}), (likelihoods, (x[0, :, 0], labels[0, 0]), {})]
        for (ours, theirs), inputs, fields in calls:
            if "ignore_index" in fields:
                inputs = inputs[0], labels.clamp(min=0), *inputs[2:]
            for reduction in "mean", "sum", "none":
                with self.subTest(theirs.__name__, reduction=reduction, inputs=len(inputs), **fields):
                    got, wanted = (f(*inputs, reduction=reduction, **fields) for f in (ours, theirs))
                    torch.testing.assert_close(got, wanted)
                    leaves, dy = [x, shares] if inputs[1].requires_grad else [x], torch.randn(wanted.shape)
                    for mine, its in zip(*(torch.autograd.grad(y, leaves, dy) for y in (got, wanted))):
                        torch.testing.assert_close(mine, its)
        with self.assertRaisesRegex(ValueError, "ignore_index=1 is for class numbers"):
            M.cross_entropy(x, shares, ignore_index=1)
        many = M.cross_entropy(torch.zeros(70_000, 50, dtype=torch.float16), torch.zeros(70_000, dtype=torch.long))
        self.assertAlmostEqual(many.item(), math.log(50), delta=2e-3)  # whose sum is past f16

    def test_replaced_losses_have_weights(self):
        x, labels, weight = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, -7, 1]), torch.rand(4) + 0.25
        for loss in (nn.CrossEntropyLoss(weight, ignore_index=-7, label_smoothing=0.1), nn.NLLLoss(weight, ignore_index=-7),
                     nn.CrossEntropyLoss(weight, reduction="sum", ignore_index=-7)):
            expected = loss(x, labels)
            report = M.replace(loss)
            self.assertEqual((list(report.replaced.values()), report.left), ([type(loss).__name__], {}))
            torch.testing.assert_close(loss(x, labels), expected)

    def test_ctc_beside_pytorchs(self):
        """Labels in rows and in a row, of one sequence alone, lengths as tuples; values and gradients, replaced too."""
        x = torch.randn(12, 3, 5, requires_grad=True)
        rows, counts, steps = torch.randint(1, 5, (3, 4)), (4, 0, 3), (12, 9, 10)
        row = torch.cat([labels[:n] for labels, n in zip(rows, counts)])
        calls = [(x, rows, steps, counts), (x, row.int(), torch.tensor(steps), torch.tensor(counts)), (x[:, 0], rows[0], (12,), (4,))]
        for probs, labels, *lengths in calls:
            for reduction in "mean", "sum", "none":
                with self.subTest(labels=tuple(labels.shape), reduction=reduction):
                    got, wanted = (f(probs.log_softmax(-1), labels, *lengths, reduction=reduction)
                                   for f in (M.ctc_loss, F.ctc_loss))
                    torch.testing.assert_close(got, wanted)
                    dy = torch.randn(wanted.shape)
                    mine, its = (torch.autograd.grad(y, x, dy)[0] for y in (got, wanted))
                    torch.testing.assert_close(mine, its)
        far, labels = torch.randn(1500, 1, 9).log_softmax(2), torch.randint(1, 9, (1, 300))  # where logarithms lose digits
        mine, its = (torch.autograd.grad(f(v, labels, (1500,), (300,), reduction="sum"), v)[0] for f, v in
                     ((M.ctc_loss, far.clone().requires_grad_()), (F.ctc_loss, far.double().requires_grad_())))
        torch.testing.assert_close(mine.double(), its, rtol=0, atol=1500**0.5 * 2**-24)  # a rounding for each step
        loss = nn.CTCLoss(blank=4, zero_infinity=True)
        expected = loss(x.log_softmax(2), rows - 1, steps, counts)
        self.assertEqual(list(M.replace(loss).replaced.values()), ["CTCLoss"])
        torch.testing.assert_close(loss(x.log_softmax(2), rows - 1, steps, counts), expected)

    def test_recurrent_nets_beside_pytorchs(self):
        """nn.RNN, LSTM and GRU replaced: values and gradients, of batches, of one sequence, of packed ones in any order. PyTorch's
        are in f64, and on the CPU: cuDNN's wants states that are contiguous."""
        pack = torch.nn.utils.rnn.pack_padded_sequence
        x, states = torch.randn(5, 3, 4), torch.randn(2, 4, 3, 6)
        projected = states[0, ..., :5].contiguous(), states[1]
        inputs = {"batch": (x, states), "lone": (x[:, 0], states[:, :, 0]), "no state": (x, None),
                  "packed": (pack(x, [2, 5, 4], enforce_sorted=False), states),
                  "sorted": (pack(x, [5, 4, 1]), states)}
        kinds = [(nn.LSTM, {}), (nn.GRU, {}), (nn.RNN, {}), (nn.RNN, {"nonlinearity": "relu"}), (nn.LSTM, {"bias": False}),
                 (nn.GRU, {"batch_first": True}), (nn.LSTM, {"proj_size": 5}), (nn.LSTM, {"proj_size": 5, "bias": False})]
        for (kind, fields), (name, (given, begin)) in itertools.product(kinds, inputs.items()):
            with self.subTest(kind.__name__, given=name, **fields):
                if fields.get("batch_first") and name != "lone":
                    given = pack(x.transpose(0, 1), [2, 5, 4], True, False) if name == "packed" else given
                    given = given.transpose(0, 1) if torch.is_tensor(given) else given
                    if name == "sorted":
                        continue
                ours = kind(4, 6, 2, bidirectional=True, **fields)
                theirs = copy.deepcopy(ours).cpu().double()
                self.assertEqual(list(M.replace(ours).replaced.values()), [kind.__name__])
                if fields.get("proj_size") and begin is not None:
                    begin = [s[:, 0] for s in projected] if name == "lone" else projected
                begin = begin if begin is None or kind is nn.LSTM else begin[0]
                begin = tuple(begin) if kind is nn.LSTM and begin is not None else begin
                exact = [v if v is None else tuple(t.cpu().double() for t in v) if type(v) is tuple else v.cpu().double()
                         for v in (given, begin)]
                found = []
                for net, inputs_of_it in (theirs, exact), (ours, (given, begin)):
                    y, last = net(*inputs_of_it)
                    y = y if torch.is_tensor(y) else torch.nn.utils.rnn.pad_packed_sequence(y, net.batch_first)[0]
                    last = torch.cat([s.flatten() for s in last]) if isinstance(last, tuple) else last
                    (y.square().sum() + last.sum()).backward()
                    found.append([y, last, *(p.grad for p in net.parameters())])
                for one, two in zip(*found):
                    torch.testing.assert_close(two.cpu().double(), one, rtol=1e-4, atol=1e-5)
                with torch.no_grad():
                    mine, its = (y if torch.is_tensor(y) else y.data for y in (ours(given, begin)[0], theirs(*exact)[0]))
                    torch.testing.assert_close(mine.cpu().double(), its, rtol=1e-4, atol=1e-5)

    def test_dropout_between_layers(self):
        """nn.LSTM and GRU replaced, while training and not; nothing is dropped behind the last layer."""
        x = torch.randn(5, 3, 4)
        for kind in nn.LSTM, nn.GRU:
            with self.subTest(kind.__name__):
                theirs = kind(4, 6, 2, dropout=0.5)
                ours = copy.deepcopy(theirs)
                self.assertEqual(M.replace(ours).left, {})
                torch.testing.assert_close(ours.eval()(x)[0], theirs.eval()(x)[0], rtol=1e-4, atol=1e-5)
                ours.train()
                found = []
                for seed in 1, 1, 2:
                    torch.manual_seed(seed)
                    found.append(ours(x)[0])
                torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
                self.assertGreater((found[2] - found[0]).abs().max(), 1e-3)
                self.assertTrue((found[0] != 0).all())
                found[0].sum().backward()
                self.assertTrue(all(p.grad.abs().max() > 0 for p in ours.parameters()))

    def test_losses_beside_pytorchs(self):
        """Values and gradients of input, target and what else there is; all reductions."""
        x, t, o = (torch.randn(4, 6, requires_grad=True) for _ in range(3))
        labels, signs = (torch.rand(4, 6) < 0.5).float(), torch.tensor([1.0, -1.0, -1.0, 1.0])
        losses = {
            "mse": (F.mse_loss, (x, t)), "l1": (F.l1_loss, (x, t)), "huber": (F.huber_loss, (x, t)),
            "bce": (F.binary_cross_entropy, (torch.sigmoid(x), labels)), "bce_logits": (F.binary_cross_entropy_with_logits, (x, labels)),
            "kl_div": (F.kl_div, (x, torch.sigmoid(t))), "soft_margin": (F.soft_margin_loss, (x, 2 * labels - 1)),
            "multilabel_soft_margin": (F.multilabel_soft_margin_loss, (x, labels)),
            "gaussian_nll": (F.gaussian_nll_loss, (x, t, o * o + 0.1)), "triplet_margin": (F.triplet_margin_loss, (x, t, o)),
            "cosine_embedding": (lambda x, s, o, reduction: F.cosine_embedding_loss(x, o, s, reduction=reduction), (x, signs, o)),
        }
        for kind, (theirs, inputs) in losses.items():
            for reduction in "mean", "sum", "none":
                with self.subTest(kind, reduction=reduction):
                    wanted = theirs(*inputs, reduction=reduction)
                    got = _call("loss", kind=kind, reduction=reduction, **dict(zip(("x", "target", "other"), inputs)))[0]
                    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
                    leaves = [v for v in (x, t, o) if torch.autograd.grad(wanted.sum(), v, retain_graph=True, allow_unused=True)[0] is not None]
                    dy = torch.randn(wanted.shape)
                    for ours, its in zip(*(torch.autograd.grad(y, leaves, dy, retain_graph=True) for y in (got, wanted))):
                        torch.testing.assert_close(ours, its, rtol=1e-5, atol=1e-5)

    def test_losses_are_replaced(self):
        """Each module, with what it can be given: values and gradients of all inputs; what mica has not is left."""
        x, t, o = (torch.randn(4, 6) for _ in range(3))
        share, labels = torch.sigmoid(t), (torch.rand(4, 6) < 0.5).float()
        signs, rows, classes = 2 * labels - 1, torch.tensor([1.0, -1.0, -1.0, 1.0]), torch.tensor([0, 5, 2, 2])
        weight, lists = torch.rand(6) + 0.25, torch.tensor([[1, 3, -1, 0, 0, 0]] * 4)
        cases = [
            (nn.MSELoss, {}, (x, t)), (nn.MSELoss, {}, (x, t[:1])), (nn.L1Loss, {}, (x, t)), (nn.SmoothL1Loss, {"beta": 0.5}, (x, t)),
            (nn.SmoothL1Loss, {"beta": 0.0}, (x, t)), (nn.HuberLoss, {"delta": 0.7}, (x, t)),
            (nn.BCELoss, {"weight": weight}, (torch.sigmoid(x), share)),
            (nn.BCEWithLogitsLoss, {"weight": weight, "pos_weight": weight + 1}, (x, labels)),
            (nn.KLDivLoss, {"log_target": True}, (x, t)), (nn.KLDivLoss, {}, (x, share)),
            (nn.HingeEmbeddingLoss, {"margin": 0.4}, (x, signs)), (nn.SoftMarginLoss, {}, (x, signs)),
            (nn.MarginRankingLoss, {"margin": 0.3}, (x, o, signs)), (nn.MarginRankingLoss, {}, (x, o, signs)),
            (nn.PoissonNLLLoss, {"log_input": False, "full": True}, (x.abs(), 3 * share)), (nn.PoissonNLLLoss, {}, (x, 3 * share)),
            (nn.GaussianNLLLoss, {"full": True}, (x, t, o.abs() + 0.1)), (nn.GaussianNLLLoss, {}, (x, t, o[:, 0].abs() + 0.1)),
            (nn.MultiLabelSoftMarginLoss, {"weight": weight}, (x, labels)), (nn.CosineEmbeddingLoss, {"margin": 0.2}, (x, o, rows)),
            (nn.TripletMarginLoss, {"margin": 0.5, "p": 1.5, "swap": True}, (x, t, o)),
            (nn.MultiMarginLoss, {"p": 2, "margin": 0.5, "weight": weight}, (x, classes)), (nn.MultiLabelMarginLoss, {}, (x, lists)),
        ]
        self.assertEqual({c for c, _, _ in cases}, {c for c in vars(nn.modules.loss).values() if isinstance(c, type)
                         and issubclass(c, nn.modules.loss._Loss) and not c.__name__.startswith("_")}
                         - {nn.CrossEntropyLoss, nn.NLLLoss, nn.NLLLoss2d, nn.CTCLoss, nn.TripletMarginWithDistanceLoss,
                            getattr(nn, "LinearCrossEntropyLoss", None)})
        for kind, options, inputs in cases:
            for reduction in ("mean", "sum", "none", "batchmean") if kind is nn.KLDivLoss else ("mean", "sum", "none"):
                with self.subTest(kind.__name__, reduction=reduction, **options), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of shapes that differ
                    theirs = kind(reduction=reduction, **options)
                    mine = copy.deepcopy(theirs)
                    self.assertEqual(M.replace(mine).left, {})
                    wants = [v.clone().requires_grad_() if v is x or v is o else v for v in inputs]
                    with mock.patch("mica.torch._losses._call", wraps=_call) as called:
                        got = mine(*wants)
                    self.assertTrue(called.called)
                    wanted = theirs(*wants)
                    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
                    leaves = [v for v in wants if v.requires_grad]
                    if leaves:
                        dy = torch.randn(wanted.shape)
                        found = [torch.autograd.grad(y, leaves, dy) for y in (got, wanted)]
                        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
        left = M.replace(nn.ModuleList([nn.HuberLoss(delta=1), nn.TripletMarginLoss(eps=0), nn.HingeEmbeddingLoss(0)])).left
        self.assertEqual(left, {"1": "TripletMarginLoss: eps=0", "2": "HingeEmbeddingLoss: margin=0"})

    def test_a_last_layer_with_its_loss(self):
        """Beside a product and F.cross_entropy, and as PyTorch's own module where it has one."""
        x, w, labels = torch.randn(7, 5), torch.randn(9, 5), torch.tensor([0, 8, -100, 3, 2, 2, 5])
        for options in ({}, {"reduction": "sum", "label_smoothing": 0.1}, {"ignore_index": 2}):
            goal = labels.clamp(min=0) if options.get("ignore_index") == 2 else labels
            self.same(lambda x, w: 3 * M.linear_cross_entropy(x, w, goal, **options),
                      lambda x, w: 3 * F.cross_entropy(x @ w.t(), goal, **options), x, w)
        leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
        nothing = torch.autograd.grad(M.linear_cross_entropy(*leaves, torch.full((7,), -100)), leaves)  # all padding
        self.assertFalse(any(g.any() or g.isnan().any() for g in nothing))
        each = M.linear_cross_entropy(x, w, labels, reduction="none")
        torch.testing.assert_close(each, F.cross_entropy(x @ w.t(), labels, reduction="none"), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(M.linear_cross_entropy(x[0], w, labels[0]), each[0], rtol=1e-5, atol=1e-5)
        with self.assertRaisesRegex(NotImplementedError, "reduction=none"):
            M.linear_cross_entropy(x.requires_grad_(), w, labels, reduction="none")
        if hasattr(nn, "LinearCrossEntropyLoss"):
            theirs = nn.LinearCrossEntropyLoss(5, 9, label_smoothing=0.2)
            mine = copy.deepcopy(theirs)
            self.assertEqual(M.replace(mine).replaced, {"": "LinearCrossEntropyLoss", "linear": "Linear"})
            self.same(lambda x: mine(x, labels), lambda x: theirs(x, labels), x)
            self.assertEqual(M.replace(nn.LinearCrossEntropyLoss(5, 9, bias=True)).left, {"": "LinearCrossEntropyLoss: bias"})

    def test_embeddings_beside_pytorchs(self):
        index = torch.tensor([[1, 4, 1], [0, 3, 3]])
        for padding in None, 3, -1:
            for indices in index, index.int(), index[0, 0]:
                self.same(lambda w: M.embedding(indices, w, padding), lambda w: F.embedding(indices, w, padding), torch.randn(5, 4))
        tied = nn.Embedding(5, 4, padding_idx=3)
        expected = tied(index)
        self.assertEqual(M.replace(tied).replaced, {"": "Embedding"})
        torch.testing.assert_close(tied(index), expected, rtol=0, atol=0)
        left = M.replace(nn.ModuleList([nn.Embedding(5, 4, max_norm=1.0), nn.Embedding(5, 4, sparse=True)])).left
        self.assertEqual(left, {"0": "Embedding: max_norm", "1": "Embedding: sparse"})
        with self.assertRaisesRegex(NotImplementedError, "scale_grad_by_freq"):
            M.embedding(index, tied.weight, scale_grad_by_freq=True)

    def test_instance_norms_are_replaced(self):
        norms = (nn.InstanceNorm1d(3, affine=True), (2, 3, 5)), (nn.InstanceNorm2d(3), (2, 3, 5, 4)), (nn.InstanceNorm2d(3), (3, 5, 4))
        for norm, shape in norms:
            x, mine = torch.randn(shape), copy.deepcopy(norm)
            self.assertEqual(M.replace(mine).left, {})
            self.same(mine, norm, x)
        left = M.replace(nn.InstanceNorm1d(3, track_running_stats=True)).left
        self.assertEqual(list(left.values()), ["InstanceNorm1d: running statistics"])

    def test_multi_head_attention_is_replaced(self):
        """Self- and cross-attention, masks of both kinds, weights averaged or not, batch first, last and none."""
        pad, seen = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]), torch.rand(4, 5) < 0.3
        seen[:, 0] = False
        numbers, square = torch.randn(2 * 3, 4, 5), torch.ones(5, 5, dtype=torch.bool).triu(1)
        x, k, v = torch.randn(2, 4, 6), torch.randn(2, 5, 6), torch.randn(2, 5, 6)
        selves = [{}, {"attn_mask": square, "is_causal": True}, {"key_padding_mask": pad}]
        others = [{}, {"attn_mask": seen}, {"attn_mask": numbers}, {"key_padding_mask": pad, "attn_mask": seen},
                  {"key_padding_mask": pad, "attn_mask": numbers}, {"attn_mask": numbers[0]}]
        for options in ({}, {"bias": False}, {"kdim": 7, "vdim": 8}):
            theirs = nn.MultiheadAttention(6, 3, batch_first=True, **options)
            if not options.get("bias") and theirs.in_proj_bias is not None:
                nn.init.normal_(theirs.in_proj_bias)
            mine = copy.deepcopy(theirs)
            self.assertEqual(M.replace(mine).replaced.get(""), "MultiheadAttention")
            cross = (x, torch.randn(2, 5, 7), torch.randn(2, 5, 8)) if "kdim" in options else (x, k, v)
            calls = [(cross, o) for o in others] + [((k, k, k), o) for o in selves if "kdim" not in options]
            for inputs, given in calls:
                for weights in {"need_weights": False}, {}, {"average_attn_weights": False}:
                    for grad in True, False:
                        with self.subTest(shape=inputs[1].shape, options=options, given=list(given), weights=weights, grad=grad):
                            with torch.set_grad_enabled(grad):
                                got, wanted = (m(*inputs, **given, **weights) for m in (mine, theirs))
                            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
                            if grad:
                                loss = [y.square().sum() + (0 if w is None else (w * w).sum()) for y, w in (got, wanted)]
                                found = [torch.autograd.grad(y, list(m.parameters())) for y, m in zip(loss, (mine, theirs))]
                                torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
        theirs = nn.MultiheadAttention(6, 3)
        mine = copy.deepcopy(theirs)
        M.replace(mine)
        none = torch.zeros(4, 2, dtype=torch.bool)
        for inputs, given in (((x, x, x), {"key_padding_mask": none}), ((x[0], k[0], v[0]), {"attn_mask": seen}),
                              ((x[0], k[0], v[0]), {"key_padding_mask": pad[1]})):
            torch.testing.assert_close(mine(*inputs, **given), theirs(*inputs, **given), rtol=1e-5, atol=1e-5)
        masked = torch.ones(4, 5, dtype=torch.bool)
        for need in True, False:
            y, w = mine(x[0], k[0], v[0], attn_mask=masked, need_weights=need)
            torch.testing.assert_close(y, mine.out_proj.bias.expand(4, 6))  # no NaN
            self.assertTrue(w is None or not w.any())
        with self.assertRaisesRegex(RuntimeError, "attn_mask, which is not given"):
            mine(x, x, x, is_causal=True)
        noisy = nn.MultiheadAttention(6, 3, dropout=0.5)
        M.replace(noisy)
        self.assertTrue((noisy(x, x, x)[1] == 0).any())
        self.assertFalse((noisy.eval()(x, x, x)[1] == 0).any())
        left = M.replace(nn.ModuleList([nn.MultiheadAttention(6, 3, **{n: True}) for n in ("add_bias_kv", "add_zero_attn")])).left
        self.assertEqual(left, {"0": "MultiheadAttention: add_bias_kv", "1": "MultiheadAttention: add_zero_attn"})

    def test_transformer_layers_train_alike(self):
        theirs = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double()
        mine, x, memory = copy.deepcopy(theirs), torch.randn(3, 5, 8).double(), torch.randn(3, 6, 8).double()
        self.assertGreaterEqual(len(M.replace(mine).replaced), 7)
        mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
        y = [m(x, memory, tgt_mask=mask, tgt_is_causal=True) for m in (mine, theirs)]
        torch.testing.assert_close(*y)
        torch.testing.assert_close(*(torch.autograd.grad(t.square().sum(), list(m.parameters())) for t, m in zip(y, (mine, theirs))))

    def test_cross_entropy_with_all_that_pytorch_has(self):
        x, w = torch.randn(5, 4, 3), torch.rand(4) + 0.1
        labels, p = torch.randint(4, (5, 3)), torch.rand(5, 4, 3)
        labels[1, 2] = 1
        for reduction in "mean", "sum", "none":
            for weight in None, w:
                for smoothing in 0.0, 0.2:
                    options = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
                    with self.subTest(**options):
                        self.same(lambda x: M.cross_entropy(x, labels, ignore_index=1, **options),
                                  lambda x: F.cross_entropy(x, labels, ignore_index=1, **options), x)
                        self.same(lambda x, p: M.cross_entropy(x, p, **options), lambda x, p: F.cross_entropy(x, p, **options), x, p)
        self.same(lambda x: M.cross_entropy(x, labels[0, 0]), lambda x: F.cross_entropy(x, labels[0, 0]), x[0, :, 0])
        with self.assertRaisesRegex(NotImplementedError, "no gradient for weight"):
            M.cross_entropy(x, labels, w.clone().requires_grad_())

    def test_gumbel_softmax_of_given_noise(self):
        """F.gumbel_softmax, whose exponential_ is given what mica draws: results and gradients, soft and hard."""
        rng, shape = torch.tensor([11, 2]), (6, 9)
        noise = _call("softmax", x=torch.zeros(shape, dtype=torch.float64), axis=1, kind="gumbel", log=True, rng=rng)[0]
        weights = torch.randn(shape, dtype=torch.float64)
        for hard in False, True:
            x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
            with mock.patch.object(torch.Tensor, "exponential_", lambda t: t.copy_(torch.exp(-noise))):
                want = F.gumbel_softmax(x, tau=0.8, hard=hard, dim=1)
            got = _call("softmax", x=x, axis=1, kind="gumbel", tau=0.8, hard=hard, rng=rng)[0]
            torch.testing.assert_close(got, want)
            for a, b in zip(*(torch.autograd.grad((y * weights).sum(), x) for y in (got, want))):
                torch.testing.assert_close(a, b)

    def test_unfold(self):
        """As F.unfold, with a batch and without, of one number or one for each axis, and its gradient."""
        for shape, options in (((2, 3, 6, 7), (3, 1, 1, 2)), ((3, 6, 7), ((2, 3), 1, (0, 1), (1, 2))), ((1, 2, 7, 5), ((2, 2), (3, 2), 2))):
            x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
            want, got = F.unfold(x, *options), M.unfold(x, *options)
            torch.testing.assert_close(got, want, rtol=0, atol=0)
            dy = torch.randn_like(want)
            torch.testing.assert_close(torch.autograd.grad(got, x, dy)[0], torch.autograd.grad(want, x, dy)[0])

    def test_fold(self):
        """As F.fold, with a batch and without, of one number or one for each axis, its gradient, and what is no columns."""
        for shape, size, options in (((2, 27, 12), (6, 7), (3, 1, 1, 2)), ((18, 35), (6, 7), ((2, 3), 1, (0, 1), (1, 1))),
                                     ((1, 8, 4), (7, 5), ((2, 2), (3, 2), 0, 2)), ((3, 4, 9), 4, (2,))):
            x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
            want, got = F.fold(x, size, *options), M.fold(x, size, *options)
            torch.testing.assert_close(got, want)
            dy = torch.randn_like(want)
            torch.testing.assert_close(torch.autograd.grad(got, x, dy)[0], torch.autograd.grad(want, x, dy)[0], rtol=0, atol=0)
            module = nn.Sequential(nn.Fold(size, *options))
            self.assertEqual(M.replace(module).left, {})
            torch.testing.assert_close(module(x), want)
        for columns, said in ((torch.zeros(2, 7, 9), "no multiple of the 4"), (torch.zeros(2), "1 dimensions"), (torch.zeros(1, 4, 7), "dy")):
            with self.assertRaisesRegex(Exception, said):
                M.fold(columns, 4, 2)

    def test_interpolate(self):
        """As F.interpolate, by sizes and by scales, in both orders in memory, and gradients."""
        ways = [(2, mode, {}) for mode in ("nearest", "nearest-exact", "area", "bilinear", "bicubic")]
        ways += [(2, mode, {"align_corners": True}) for mode in ("bilinear", "bicubic")]
        ways += [(2, mode, {"antialias": True}) for mode in ("bilinear", "bicubic")]
        ways += [(1, "linear", {}), (3, "trilinear", {}), (3, "nearest", {}), (1, "area", {})]
        for rank, mode, options in ways:
            for asked in ({"size": (7, 4, 5)[:rank]}, {"scale_factor": 1.6}, {"scale_factor": (0.7, 2.0, 1.3)[:rank]},
                          {"scale_factor": 0.6, "recompute_scale_factor": True}):
                for last in (False, True) if rank > 1 else (False,):
                    with self.subTest(mode=mode, **options, **asked, last=last):
                        x = torch.randn(2, 5, *(6, 9, 4)[:rank], dtype=torch.float64)
                        if last:
                            x = x.to(memory_format=torch.channels_last if rank == 2 else torch.channels_last_3d)
                        x.requires_grad_()
                        want, got = (f(x, **asked, mode=mode, **options) for f in (F.interpolate, M.interpolate))
                        torch.testing.assert_close(got, want)
                        if last:
                            self.assertEqual(got.stride(), want.stride())
                        dy = torch.randn_like(want)
                        torch.testing.assert_close(*(torch.autograd.grad(y, x, dy)[0] for y in (got, want)))
        byte = torch.randint(256, (2, 3, 6, 8), dtype=torch.uint8)
        torch.testing.assert_close(M.interpolate(byte, (9, 5)), F.interpolate(byte, (9, 5)))
        with self.assertRaisesRegex(NotImplementedError, "do not meet the corners"):
            M.interpolate(torch.randn(1, 1, 4, 4), 2, mode="bilinear", align_corners=True, antialias=True)
        with self.assertRaisesRegex(ValueError, "either size or scale_factor"):
            M.interpolate(torch.randn(1, 1, 4, 4))

    def test_local_response_norm(self):
        """As F.local_response_norm, odd and even sizes, in both orders in memory; the module is replaced."""
        for shape, size in itertools.product(((2, 7, 5), (2, 7, 3, 4), (2, 7, 2, 3, 2)), (1, 4, 5)):
            for last in (False, True) if len(shape) > 3 else (False,):
                with self.subTest(shape=shape, size=size, last=last):
                    x = torch.randn(shape, dtype=torch.float64)
                    if last:
                        x = x.to(memory_format=torch.channels_last if len(shape) == 4 else torch.channels_last_3d)
                    x.requires_grad_()
                    want, got = (f(x, size, 0.3, 0.75, 2.0) for f in (F.local_response_norm, M.local_response_norm))
                    torch.testing.assert_close(got, want)
                    dy = torch.randn_like(want)
                    torch.testing.assert_close(*(torch.autograd.grad(y, x, dy)[0] for y in (got, want)))
        model = nn.Sequential(nn.LocalResponseNorm(3))
        x = torch.randn(2, 5, 4, 3)
        want = model(x)
        self.assertEqual(M.replace(model).left, {})
        torch.testing.assert_close(model(x), want)
        with self.assertRaisesRegex(ValueError, "at least 3"):
            M.local_response_norm(torch.randn(2, 3), 5)

    def test_norms_and_other_divisors_beside_pytorchs(self):
        x = torch.rand(2, 4, 9, 8, dtype=torch.float64, requires_grad=True)
        w = torch.randn(2, 4, 5, 4, dtype=torch.float64)
        pairs = [(lambda: M.avg_pool(x, 3, 2, 1, divisor_override=5), lambda: F.avg_pool2d(x, 3, 2, 1, divisor_override=5))]
        for p in (1, 2, 3, 2.5):
            pairs.append((lambda p=p: M.lp_pool(x, p, 2, 2, True), lambda p=p: F.lp_pool2d(x, p, 2, 2, True)))
        for mine, theirs in pairs:
            got, want = mine(), theirs()
            torch.testing.assert_close(got, want)
            for a, b in zip(*(torch.autograd.grad((y * w).sum(), x) for y in (got, want))):
                torch.testing.assert_close(a, b)
        torch.testing.assert_close(M.lp_pool(-x, 3, 2), F.lp_pool2d(-x, 3, 2), equal_nan=True)

    def test_max_unpool_beside_pytorchs(self):
        for rank, window in ((1, 3), (2, (2, 3)), (3, 2)):
            x = torch.randn(2, 3, *(7, 9, 4)[:rank], dtype=torch.float64)
            pool = getattr(F, f"max_pool{rank}d")
            theirs = getattr(F, f"max_unpool{rank}d")
            y, indices = pool(x, window, window, return_indices=True)
            y = y.detach().requires_grad_()
            for size in (x.shape[2:], x.shape):
                got, want = M.max_unpool(y, indices, window, output_size=size), theirs(y, indices, window, output_size=size)
                torch.testing.assert_close(got, want)
                w = torch.randn_like(got)
                torch.testing.assert_close(*(torch.autograd.grad((r * w).sum(), y)[0] for r in (got, want)))
        y = torch.tensor([[[1.0, 2.0, 3.0]]])  # the last of equal indices, in each run
        self.assertEqual(M.max_unpool(y, torch.tensor([[[4, 1, 4]]]), 2).tolist(), [[[0, 2, 0, 0, 3, 0]]])

    def test_fractional_max_pool_beside_pytorchs(self):
        for rank, window in ((2, 2), (2, (3, 2)), (3, 2)):
            for dtype in (torch.float64, torch.float32):
                x = torch.randn(2, 3, *(9, 12, 7)[:rank], dtype=dtype, requires_grad=True)
                samples = torch.rand(2, 3, rank, dtype=dtype)
                for asked in ({"output_size": (4, 5, 3)[:rank]}, {"output_ratio": (0.5, 0.4, 0.7)[:rank]}):
                    theirs = getattr(F, f"fractional_max_pool{rank}d")
                    got, want = (pool(x, window, **asked, return_indices=True, _random_samples=samples)
                                 for pool in (M.fractional_max_pool, theirs))
                    self.assertTrue(torch.equal(got[0], want[0]) and torch.equal(got[1], want[1]))
                    w = torch.randn_like(got[0])
                    torch.testing.assert_close(*(torch.autograd.grad((y * w).sum(), x)[0] for y, _ in (got, want)))
        self.assertEqual(M.fractional_max_pool(torch.randn(1, 2, 9, 9), 2, output_ratio=0.5).shape, (1, 2, 4, 4))
        model = nn.Sequential(nn.FractionalMaxPool2d(2, output_size=3, _random_samples=samples[..., :2]))
        y = torch.randn(2, 3, 9, 9)
        want = model(y)
        M.replace(model)
        self.assertTrue(torch.equal(model(y), want))

    def test_upsample_is_replaced(self):
        model = nn.Sequential(nn.Upsample(scale_factor=2), nn.Upsample((9, 7), mode="bilinear", align_corners=True),
                              nn.UpsamplingNearest2d(scale_factor=2), nn.UpsamplingBilinear2d(scale_factor=2))
        x = torch.randn(2, 3, 4, 5)
        want = model(x)
        self.assertEqual(M.replace(model).left, {})
        torch.testing.assert_close(model(x), want)

    def test_autocast(self):
        x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
        with torch.autocast(DEVICE, torch.bfloat16):
            self.assertEqual(M.conv(x, w).dtype, torch.bfloat16)
            self.assertEqual(M.linear(x, torch.randn(5, 8)).dtype, torch.bfloat16)
            self.assertEqual(M.softmax(x.bfloat16(), 1).dtype, torch.float32)
            self.assertEqual(M.conv(x.double(), w.double()).dtype, torch.float64)
        self.assertEqual(M.conv(x, w).dtype, torch.float32)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                                  nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False), nn.GroupNorm(2, 8), nn.GELU(),
                                  nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(8), nn.Dropout(0.0), nn.Linear(8, 5))

    def forward(self, x):
        return self.body(x)


class Modules(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.theirs = Net()
        self.mine = copy.deepcopy(self.theirs)
        self.x, self.y = torch.randn(6, 3, 16, 16), torch.randint(5, (6,))

    def test_training_lies_on_the_originals_curve(self):
        # In doubles: Adam makes steps of its size of what a bias before a norm has for a gradient, which is rounding.
        self.mine, self.theirs, self.x = self.mine.double(), self.theirs.double(), self.x.double()
        report = M.replace(self.mine)
        self.assertEqual((len(report.replaced), report.left), (10, {}))
        optimisers = [M.AdamW(self.mine.parameters(), lr=1e-2), torch.optim.AdamW(self.theirs.parameters(), lr=1e-2)]
        curves = [[], []]
        for _ in range(20):
            for model, optimiser, loss, curve in zip((self.mine, self.theirs), optimisers, (M.cross_entropy, F.cross_entropy), curves):
                optimiser.zero_grad()
                value = loss(model(self.x), self.y)
                value.backward()
                optimiser.step()
                curve.append(value.item())
        torch.testing.assert_close(torch.tensor(curves[0]), torch.tensor(curves[1]), rtol=1e-6, atol=1e-6)
        self.assertLess(curves[0][-1], 0.7 * curves[0][0])
        self.assertEqual(self.mine.state_dict().keys(), self.theirs.state_dict().keys())
        self.mine.eval(), self.theirs.eval()
        torch.testing.assert_close(self.mine(self.x), self.theirs(self.x), rtol=1e-6, atol=1e-6)

    def test_what_is_left_says_why(self):
        class Mine(nn.Linear):
            pass

        model = nn.Sequential(nn.Conv2d(3, 3, 3, padding_mode="reflect"), Mine(3, 3), nn.LSTMCell(3, 3), nn.Identity())
        report = M.replace(model)
        self.assertEqual(report.replaced, {})
        for name, words in (("0", "padding_mode='reflect'"), ("1", "derived from Linear"), ("2", "no LSTMCell")):
            self.assertIn(words, report.left[name])
            self.assertIn(words, repr(report))

    def test_pools_are_replaced(self):
        class Both(nn.Module):
            def __init__(self):
                super().__init__()
                self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)
                self.norm, self.mean = nn.LPPool2d(2, 3), nn.AvgPool2d(2, divisor_override=3)

            def forward(self, x):
                y, indices = self.pool(x)
                return self.mean(self.norm(self.unpool(y, indices, x.size())))

        theirs, x = Both(), torch.randn(2, 3, 13, 12)
        mine = copy.deepcopy(theirs)
        report = M.replace(mine)
        self.assertEqual((len(report.replaced), report.left), (4, {}))
        torch.testing.assert_close(mine(x), theirs(x))

    def test_classes_of_ones_own(self):
        class Norm(nn.LayerNorm):
            pass

        class Rms(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.rand(8))

            def forward(self, x):
                return self.weight * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()

        model, x = nn.Sequential(Norm(8), Rms()), torch.randn(3, 8)
        expected = model(x)
        self.assertEqual(len(M.replace(copy.deepcopy(model)).left), 2)
        calls = []

        def rms(self, x):
            calls.append(x)
            return M.rms_norm(x, self.weight.shape, self.weight, 1e-6)

        report = M.replace(model, {Norm: nn.LayerNorm, Rms: rms})
        self.assertEqual((report.replaced, report.left), ({"0": "Norm", "1": "Rms"}, {}))
        torch.testing.assert_close(model(x), expected)
        self.assertEqual(len(calls), 1)
        self.assertEqual(type(model[0].forward.__func__), type(rms))
        with self.assertRaisesRegex(ValueError, "Rms as LSTMCell, which mica has not"):
            M.replace(model, {Rms: nn.LSTMCell})

    def test_norms_take_what_follows(self):
        """A residual network, traced: ReLUs and additions in the norms' passes; results, gradients, statistics stay."""
        class Block(nn.Module):
            def __init__(self, a, b):
                super().__init__()
                self.conv1, self.norm1, self.norm2 = nn.Conv2d(a, b, 3, 1, 1), nn.BatchNorm2d(b), nn.BatchNorm2d(b)
                self.conv2, self.relu = nn.Conv2d(b, b, 3, 1, 1), nn.ReLU(inplace=True)
                self.short = nn.Sequential(nn.Conv2d(a, b, 1), nn.BatchNorm2d(b)) if a != b else nn.Identity()

            def forward(self, x):
                y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
                y += self.short(x)
                return self.relu(y)

        theirs = nn.Sequential(Block(3, 8), Block(8, 8), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)).double()
        mine = copy.deepcopy(theirs)
        M.replace(mine)
        report = M.fuse(mine)
        self.assertEqual(list(mine.state_dict()), list(theirs.state_dict()))
        self.assertEqual(report.replaced, {"0.norm1": "norm, ReLU", "0.norm2": "norm, addition, ReLU", "1.norm1": "norm, ReLU",
                                           "1.norm2": "norm, addition, ReLU"})
        self.assertEqual(report.left, dict.fromkeys(("0.short.1", "2"), "no ReLU follows, alone"))
        with self.assertRaisesRegex(ValueError, "expected 4D input"):
            mine(torch.randn(3, 6, 5).double())
        state = copy.deepcopy(theirs.state_dict())
        for model in (mine, torch.compile(mine, fullgraph=True, backend="aot_eager")):
            theirs.load_state_dict(state), mine.load_state_dict(state)
            for training in (True, False):
                theirs.train(training), mine.train(training)
                x = [torch.randn(4, 3, 6, 5, generator=torch.Generator(DEVICE).manual_seed(5), dtype=torch.float64).requires_grad_()
                     for _ in range(2)]
                with mock.patch("mica.torch._functional.activation", None):  # not beside the norms
                    results = [net(t) for net, t in zip((model, theirs), x)]
                torch.testing.assert_close(*results)
                g = torch.randn_like(results[0])
                found = [torch.autograd.grad(r, [t, *net.parameters()], g) for r, t, net in zip(results, x, (mine, theirs))]
                torch.testing.assert_close(*found, rtol=1e-6, atol=1e-9)
            torch.testing.assert_close(mine.state_dict(), theirs.state_dict())

    def test_compiled_as_one_graph(self):
        M.replace(self.mine)
        compiled = torch.compile(self.mine, fullgraph=True, backend="aot_eager")
        results = []
        for model in (compiled, self.theirs):
            loss = F.cross_entropy(model(self.x), self.y)
            loss.backward()
            results.append(loss)
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
        for mine, theirs in zip(self.mine.parameters(), self.theirs.parameters()):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4)

    def test_exported(self):
        M.replace(self.mine.eval())
        exported = torch.export.export(self.mine, (self.x,))
        torch.testing.assert_close(exported.module()(self.x), self.mine(self.x))
        self.assertIn("mica.conv", str(exported.graph))

    def test_checkpointed(self):
        from torch.utils.checkpoint import checkpoint

        M.replace(self.mine)
        x = self.x.requires_grad_()
        checkpoint(self.mine.body[2:9], torch.randn(2, 8, 8, 8, requires_grad=True), use_reentrant=False).sum().backward()
        self.assertIsNotNone(self.mine.body[4].weight.grad)
        self.assertIsNone(x.grad)


class Optimisers(unittest.TestCase):
    def test_step_as_pytorchs_and_exchange_state(self):
        for mine, theirs, options in [
            (M.SGD, torch.optim.SGD, {"lr": 0.1}), (M.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
            (M.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1, "maximize": True}),
            (M.Adam, torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.1}), (M.AdamW, torch.optim.AdamW, {"lr": 0.1}),
        ]:
            torch.manual_seed(0)
            a = nn.Parameter(torch.randn(4, 3))
            b = nn.Parameter(a.detach().clone())
            first, second = mine([a], **options), theirs([b], **options)
            for step in range(6):
                g = torch.randn(4, 3)
                a.grad, b.grad = g.clone(), g.clone()
                first.step(), second.step()
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
                if step == 2:  # go on with the other's state
                    states = copy.deepcopy(first.state_dict()), copy.deepcopy(second.state_dict())
                    for optimiser, state in ((first, states[1]), (second, states[0])):
                        for group, old in zip(state["param_groups"], optimiser.state_dict()["param_groups"]):
                            group.update({k: v for k, v in old.items() if k not in group})
                        optimiser.load_state_dict(state)


if __name__ == "__main__":
    unittest.main()
