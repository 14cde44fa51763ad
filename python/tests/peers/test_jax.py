# SPDX-License-Identifier: Apache-2.0
"""mica's operators on JAX's arrays, on the CPU: taken as they are, results are JAX's, none is an output. mica.jax under
jit, grad, vmap and donation, beside JAX's own functions."""

import os
import pathlib
import re
import sys
import threading
import unittest

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # programs run once

import jax
import jax.numpy as jnp
import numpy as np

import mica
import mica.jax as J
from mica._formulas import FORMULAS

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import judge  # noqa: E402

jax.config.update("jax_enable_x64", True)


class Arrays(unittest.TestCase):
    def test_types(self):
        for dtype in (jnp.float64, jnp.float32, jnp.float16, jnp.bfloat16, jnp.int8, jnp.int32, jnp.float8_e4m3fn,
                      jnp.float8_e5m2):
            x = jnp.arange(6).reshape(2, 3).astype(dtype)
            found = mica.transform(x, alpha=2)
            self.assertIsInstance(found, jax.Array)
            self.assertEqual((found.dtype, found.shape), (x.dtype, x.shape))
            np.testing.assert_array_equal(np.asarray(found, np.float64), 2 * np.arange(6).reshape(2, 3))

    def test_numbers(self):
        self.assertEqual(float(mica.transform(jnp.float32(3), alpha=2)), 6)

    def test_are_no_outputs(self):
        x = jnp.zeros(3)
        with self.assertRaisesRegex(mica.Invalid, "y is written, and is a JAX array, and these are immutable"):
            mica.transform(x, out=jnp.zeros(3))
        with self.assertRaisesRegex(mica.Invalid, "p is written"):
            mica.optim(x, x)
        mine = np.ones(3)
        self.assertIs(mica.transform(x, out=mine), mine)
        self.assertEqual(mine.tolist(), [0, 0, 0])

    def test_several_results_and_what_jax_does_with_them(self):
        x = jax.random.normal(jax.random.key(0), (3, 8))
        y, mean, rstd = mica.norm(x, mean="f64:3", rstd="f64:3")
        expected = (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(jnp.sin(mean) + 0, jnp.sin(x.mean(1)), rtol=1e-6)
        again = mica.norm(x, mean="f64:3", rstd="f64:3")
        np.testing.assert_array_equal(again.y, y)

    def test_plans(self):
        x, w = jnp.ones((1, 3, 8, 8), jnp.float32), jnp.ones((4, 3, 3, 3), jnp.float32)
        plan = mica.plan("conv", x, w)
        self.assertEqual(float(plan.run(x, w)[0, 0, 0, 0]), 27)
        with self.assertRaisesRegex(mica.Invalid, "give them"):
            plan.prepare(x, w)
        run = plan.prepare(x, w, out=np.empty((1, 4, 6, 6), np.float32))
        self.assertEqual(run()[0, 0, 0, 0], 27)

    def test_tracers_have_no_memory(self):
        with self.assertRaises((TypeError, mica.Invalid)):
            jax.jit(lambda x: mica.softmax(x))(jnp.zeros((2, 2)))


def normal(seed, *shape, dtype=jnp.float64):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float64).astype(dtype)


BITS = {"bf16": jnp.bfloat16, "e4m3": jnp.float8_e4m3fn, "e5m2": jnp.float8_e5m2}


class EveryOperation(unittest.TestCase):
    """Lines of the case files, whatever family there is, and will be: the bits that mica's own function gives."""

    def calls(self, name):
        table = mica._tables.table_of(name)
        found = 0
        for line in judge.case_lines(name, 60):
            problem = judge.Problem(line)
            if any(t.dtype not in (*judge.NUMPY, "-") for _, d, t in problem.args if d) or "=f8" in line:
                continue
            if sum(t.count for _, d, t in problem.args if d) > 20000:
                continue
            dtypes = {mica._tables.python_name(n): t.dtype for n, _, t in problem.args}
            inputs = {mica._tables.python_name(n): np.ascontiguousarray(a) for n, a in problem.inputs().items()}
            fields, described = judge.fields_of(table, line, inputs)
            # XLA's arrays are dense; so are the results that a line may say to be otherwise.
            described = {n: ":".join(t.split(":")[:2]) for n, t in described.items()}
            ours = {n: mica.view(a.copy(), dtypes[n]) if dtypes[n] in BITS else a.copy() for n, a in inputs.items()}
            theirs = {n: jnp.asarray(a.view(BITS[dtypes[n]]) if dtypes[n] in BITS else a) for n, a in inputs.items()}
            yield line, ours, theirs, {**fields, **described}
            found += 1
            if found == 2:
                return

    def test_gives_the_same_bits(self):
        for name in mica.operations:
            tried = 0
            for line, ours, theirs, fields in self.calls(name):
                with self.subTest(line):
                    expected = getattr(mica, name)(**ours, **fields)
                    found = jax.jit(lambda arrays: getattr(J, name)(**arrays, **fields))(theirs)
                    expected, found = (r if isinstance(r, tuple) else (r,) for r in (expected, found))
                    for one, two in zip(expected, found, strict=True):
                        one, two = np.asarray(one), np.asarray(two)
                        self.assertEqual(one.shape, two.shape)
                        self.assertEqual(np.ascontiguousarray(one).tobytes(), np.ascontiguousarray(two).tobytes())
                tried += 1
            self.assertGreater(tried, 0, name)

    def test_has_a_signature_without_what_jax_decides(self):
        import inspect

        for name in mica.operations:
            parameters = inspect.signature(getattr(J, name)).parameters
            self.assertFalse({"stream", "context", "options"} & set(parameters))
            self.assertIn(name, dir(J))


def layer_norm(x, scale, bias):
    y = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return y * scale + bias


def attention(q, k, v):
    s = jnp.where(jnp.tril(jnp.ones((q.shape[-2], k.shape[-2]), bool)), q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -jnp.inf)
    return jax.nn.softmax(s, -1) @ v


def max_pool(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 1), (1, 1)))


def lstm(x, w):
    wx, wh, b = w[:60].reshape(20, 3), w[60:160].reshape(20, 5), w[160:180] + w[180:]

    def step(state, x):
        h, c = state
        i, f, g, o = jnp.split(x @ wx.T + h @ wh.T + b, 4, 1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((x.shape[1], 5), x.dtype)
    return jax.lax.scan(step, (zero, zero), x)[1]


def mha(q, k, v, wq, wk, wv, wo, bq, bo):
    """Four heads, the weights as outputs x inputs."""
    heads = [(x @ w.T + b).reshape(2, -1, 4, 2).swapaxes(1, 2) for x, w, b in ((q, wq, bq), (k, wk, 0), (v, wv, 0))]
    return attention(*heads).swapaxes(1, 2).reshape(2, -1, 8) @ wo.T + bo


LABELS = jnp.array([1, 0, 4, 2])
# By name: mica's, JAX's, arrays (all are differentiated by), and the calls that vmap over the first makes.
PAIRS = {
    "conv": (lambda x, w, b: J.conv(x, w, pad=(1, 1), epilogue=["bias"], bias=b),
             lambda x, w, b: jax.lax.conv_general_dilated(x, w, (1, 1), [(1, 1), (1, 1)]) + b[:, None, None],
             (normal(0, 2, 3, 6, 5), normal(1, 4, 3, 3, 3), normal(2, 4)), 1),
    "gemm": (lambda a, b: J.gemm(a, b), lambda a, b: a @ b, (normal(0, 4, 6), normal(1, 6, 3)), 1),
    "gemm, batched": (lambda a, b: J.gemm(a, b), lambda a, b: a @ b, (normal(0, 2, 4, 6), normal(1, 6, 3)), 1),
    "norm": (lambda x, s, b: J.norm(x, scale=s, bias=b), layer_norm, (normal(0, 4, 6), normal(1, 6), normal(2, 6)), 1),
    "softmax": (lambda x: J.softmax(x, axis=0), lambda x: jax.nn.softmax(x, 0), (normal(0, 4, 6),), 1),
    "activation": (lambda x: J.activation(x, act="gelu"), lambda x: jax.nn.gelu(x, approximate=False), (normal(0, 4, 6),), 1),
    "attention": (lambda q, k, v: J.attention(q, k, v, causal="top_left"), attention,
                  (normal(0, 2, 2, 5, 4), normal(1, 2, 2, 5, 4), normal(2, 2, 2, 5, 4)), 1),
    "mha": (lambda q, k, v, wq, wk, wv, wo, bq, bo: J.mha(q, k, v, wq=wq, wk=wk, wv=wv, wo=wo, bq=bq, bo=bo, heads=4,
                                                          causal="top_left").out, mha,
            tuple(normal(i, *shape) / 8 for i, shape in enumerate([(2, 5, 6), (2, 5, 7), (2, 5, 9), (8, 6), (8, 7), (8, 9),
                                                                   (10, 8), (8,), (10,)])), 0),
    "pool": (lambda x: J.pool(x, window=(3, 3), stride=(2, 2), pad=(1, 1)), max_pool, (normal(0, 2, 3, 7, 6),), 1),
    "cross_entropy": (lambda x: J.cross_entropy(x, LABELS)[0],
                      lambda x: -jax.nn.log_softmax(x)[jnp.arange(4), LABELS].mean(), (normal(0, 4, 6),), 0),
    "pointwise": (lambda x, y: J.pointwise(x, x1=y, expr="sin(x0)*x1"), lambda x, y: jnp.sin(x) * y,
                  (normal(0, 4, 6), normal(1, 4, 6)), 0),
    "pointwise_broadcast": (lambda x, y, z: J.pointwise(x, x1=y, x2=z, expr="sin(x0)*x1+x2*x2"),
                            lambda x, y, z: jnp.sin(x) * y + z * z, (normal(0, 3, 4, 6), normal(1, 4, 1), normal(2, 1)), 0),
    "concat": (lambda x, y: J.concat(x, x1=y, axis=1), lambda x, y: jnp.concatenate([x, y], 1), (normal(0, 4, 6), normal(1, 4, 2)), 0),
    "gather": (lambda x: J.gather(x, index=LABELS[:2], axis=1), lambda x: jnp.take(x, LABELS[:2], 1), (normal(0, 4, 6),), 0),
    "pad": (lambda x: J.pad(x, before=(1, 2), after=(0, 1)), lambda x: jnp.pad(x, ((1, 0), (2, 1))), (normal(0, 4, 6),), 0),
    "rnn": (lambda x, w: J.rnn(x, w, cell="lstm", hidden=5), lstm, (normal(0, 4, 2, 3), normal(1, 200) / 4), 0),
    "scan": (lambda x: J.scan(x, axis=1), lambda x: jnp.cumsum(x, 1), (normal(0, 4, 6),), 0),
    "scan, product": (lambda x: J.scan(x, kind="prod", axis=0), lambda x: jnp.cumprod(x, 0), (normal(0, 4, 6),), 0),
    "scan, logsumexp, reverse": (lambda x: J.scan(x, kind="logsumexp", axis=1, reverse=True),
                                 lambda x: jax.lax.cumlogsumexp(x, 1, reverse=True), (normal(0, 4, 6),), 0),
    "tile": (lambda x: J.tile(x, repeats=(2, 3)), lambda x: jnp.tile(x, (2, 3)), (normal(0, 4, 6),), 0),
}


class BesideJax(unittest.TestCase):
    def check(self, pairs, arrays):
        """pairs of functions, all in one program."""
        found = jax.jit(lambda arrays: [[f(*arrays) for f in pair] for pair in pairs])(arrays)
        for mine, theirs in found:
            for one, two in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
                np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-11)

    @staticmethod
    def gradients(function, count):
        return jax.grad(lambda *a: (function(*a) * jnp.cos(function(*a))).sum(), tuple(range(count)))

    def test_forward_and_gradients(self):
        for name, (mine, theirs, arrays, _) in PAIRS.items():
            with self.subTest(name):
                self.check([(mine, theirs), (self.gradients(mine, len(arrays)), self.gradients(theirs, len(arrays)))], arrays)

    def test_outside_of_jit(self):
        mine, theirs, arrays, _ = PAIRS["softmax"]
        np.testing.assert_allclose(mine(*arrays), theirs(*arrays), rtol=1e-9)
        one, two = self.gradients(mine, 1)(*arrays), self.gradients(theirs, 1)(*arrays)
        np.testing.assert_allclose(one[0], two[0], rtol=1e-9, atol=1e-11)

    def test_some_gradients(self):
        """Only those that are asked for are made: without x's, one pass of two."""
        mine, theirs, arrays, _ = PAIRS["conv"]

        def by_w(f):
            return jax.grad(lambda x, w, b: f(x, w, b).sum() ** 2, 1)

        self.check([(by_w(mine), by_w(theirs))], arrays)
        lines = str(jax.make_jaxpr(by_w(mine))(*arrays))
        self.assertIn("pass=wgrad", lines)
        self.assertNotIn("pass=dgrad", lines)

    def calls(self, function, *arrays):
        """Custom calls in the program, and whether it has a loop."""
        text = str(jax.make_jaxpr(function)(*arrays))
        return text.count("= ffi_call["), "scan[" in text or "while[" in text

    def test_vmap(self):
        for name, (mine, theirs, arrays, at_once) in PAIRS.items():
            first = jnp.stack([arrays[0], 2 * arrays[0], arrays[0] - 1])
            axes = (0,) + (None,) * (len(arrays) - 1)
            both = mine, theirs
            with self.subTest(f"{name}: the first, and twice"):
                self.check([[jax.vmap(f, axes) for f in both]], (first, *arrays[1:]))
                twice = jnp.stack([first, first + 1])
                self.check([[jax.vmap(jax.vmap(f, axes), axes) for f in both]], (twice, *arrays[1:]))
                count, loop = self.calls(jax.vmap(mine, axes), first, *arrays[1:])
                self.assertEqual((count, loop), (1, not at_once))
            with self.subTest(f"{name}: all, along the last; gradients of each"):
                every = [jnp.stack([a, 2 * a, a - 1], -1) for a in arrays]
                self.check([[jax.vmap(f, -1, -1) for f in both],
                            [jax.vmap(self.gradients(f, len(arrays)), -1) for f in both]], every)

    def test_a_gradient_of_a_vmap(self):
        mine, theirs, arrays, _ = PAIRS["norm"]
        every = jnp.stack([arrays[0], arrays[0] + 1])

        def of_sum(f):
            return jax.grad(lambda x, s, b: (jax.vmap(f, (0, None, None))(x, s, b) ** 3).sum(), (0, 1, 2))

        self.check([(of_sum(mine), of_sum(theirs))], (every, *arrays[1:]))

    def test_types(self):
        for dtype, tolerance in ((jnp.float32, 1e-5), (jnp.bfloat16, 2e-2), (jnp.float16, 4e-3)):
            x, w = normal(0, 1, 2, 5, 5, dtype=dtype), normal(1, 3, 2, 3, 3, dtype=dtype)
            found = jax.jit(J.conv)(x, w)
            self.assertEqual(found.dtype, dtype)
            expected = jax.lax.conv_general_dilated(x.astype(jnp.float64), w.astype(jnp.float64), (1, 1), "VALID")
            np.testing.assert_allclose(found.astype(jnp.float64), expected, rtol=tolerance, atol=4 * tolerance)

    def test_a_checkpoint_and_a_scan(self):
        mine, theirs, arrays, _ = PAIRS["activation"]

        def deep(f):
            return self.gradients(lambda x: jax.lax.scan(lambda c, _: (jax.checkpoint(f)(c), None), x, None, length=3)[0], 1)

        self.check([(deep(mine), deep(theirs))], arrays)


class EveryGradient(unittest.TestCase):
    """Of every operation there is, and will be, by each of its inputs: right, or refused."""

    def test_agrees_or_is_refused(self):
        for name in FORMULAS:
            agreed, formula = set(), FORMULAS[name]
            if name in judge.STRAIGHT_THROUGH:
                continue
            for problem in judge.smooth_problems(name, 8):
                if problem.input in agreed:
                    continue
                arrays = {n: jnp.asarray(a) for n, a in problem.inputs.items()}
                described = {n: ":".join(t.split(":")[:2]) for n, t in problem.described.items()}

                def call(x, problem=problem, arrays=arrays, described=described):
                    found = getattr(J, name)(**{**arrays, **problem.fields, **described, problem.input: x})
                    found = found._asdict() if isinstance(found, tuple) else {None: found}
                    return [y for n, y in found.items() if n is None or n in formula.results]

                with self.subTest(problem.line, input=problem.input):
                    x = arrays[problem.input]
                    if problem.input not in formula.inputs:
                        with self.assertRaisesRegex(NotImplementedError, f"mica::{name}: no gradient"):
                            jax.vjp(call, x)
                        continue
                    try:
                        found, back = jax.vjp(call, x)
                        if not all(np.isfinite(y).all() for y in found):
                            continue
                        toward = [np.cos(np.arange(y.size)).reshape(y.shape) for y in found]
                        gradient, = back([jnp.asarray(t) for t in toward])
                    except (NotImplementedError, mica.Error):
                        continue  # said, not left out
                    step = np.sin(1 + np.arange(x.size)).reshape(x.shape)
                    plus, minus = (call(jnp.asarray(np.asarray(x) + e * step)) for e in (1e-6, -1e-6))
                    slope = sum((t * (np.asarray(p) - np.asarray(m))).sum() for t, p, m in zip(toward, plus, minus)) / 2e-6
                    np.testing.assert_allclose((np.asarray(gradient) * step).sum(), slope, rtol=1e-4, atol=1e-5)
                    agreed.add(problem.input)
            with self.subTest(name):
                self.assertEqual(set(formula.inputs) - agreed, set(), "no problem of the case files has shown their gradient")


class InPlace(unittest.TestCase):
    def test_donated_memory_is_written(self):
        p, g = normal(0, 64), normal(1, 64)
        expected = np.asarray(p) - 0.5 * np.asarray(g)
        step = jax.jit(lambda p, g: J.optim(p, g, rule="sgd", lr=0.5), donate_argnums=0)
        where = p.unsafe_buffer_pointer()
        found = step(p, g)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        self.assertEqual(found.unsafe_buffer_pointer(), where)
        self.assertTrue(p.is_deleted())

    def test_without_donation_the_argument_stays(self):
        p, g = normal(0, 64), normal(1, 64)
        before = np.array(p)
        found = jax.jit(lambda p, g: J.optim(p, g, rule="sgd", lr=0.5))(p, g)
        np.testing.assert_array_equal(p, before)
        np.testing.assert_allclose(found, before - 0.5 * np.asarray(g), rtol=1e-12)

    def test_scalars_may_be_traced(self):
        """One program for all steps of Adam, beside the same by mica's own function."""
        p, m, v = normal(0, 8), jnp.zeros(8), jnp.zeros(8)
        ours = [np.array(a) for a in (p, m, v)]
        traces = []

        @jax.jit
        def step(p, m, v, lr, number):
            traces.append(1)
            return J.optim(p, jnp.cos(p), m=m, v=v, rule="adam", lr=lr, step=number)

        for number in range(1, 5):
            mica.optim(ours[0], np.cos(ours[0]), m=ours[1], v=ours[2], rule="adam", lr=0.5 / number, step=number)
            p, m, v = step(p, m, v, jnp.float64(0.5 / number), jnp.float64(number))
        self.assertEqual(len(traces), 1)
        for one, two in zip((p, m, v), ours):
            np.testing.assert_allclose(one, two, rtol=1e-12)


class Refusals(unittest.TestCase):
    def test_come_with_the_rule_while_tracing(self):
        x = normal(0, 2, 3, 6, 5)
        for call in (lambda x: J.conv(x, normal(1, 4, 2, 3, 3)), jax.jit(lambda x: J.conv(x, normal(1, 4, 2, 3, 3)))):
            with self.assertRaisesRegex(mica.Invalid, "channels"):
                call(x)
        with self.assertRaisesRegex(mica.Invalid, "known are fwd"):
            J.softmax(x, pass_="sideways")
        with self.assertRaisesRegex(TypeError, "did you mean pad"):
            J.conv(x, x, padd=(1, 1))
        with self.assertRaisesRegex(mica.Invalid, "elements of type uint16"):
            J.softmax(jnp.zeros(3, jnp.uint16))
        with self.assertRaisesRegex(TypeError, "no argument 'out'"):
            J.softmax(x, out=x)
        with self.assertRaisesRegex(mica.Invalid, "only descriptions"):
            J.softmax("f32:2x3")

    def test_sums_of_columns(self):
        """im2col's second pass is linear, too: its gradient is the columns."""
        columns, weights = normal(0, 1, 8, 9), normal(1, 1, 2, 4, 4)
        fold = lambda c: J.im2col(dy=c, dx="f64:1x2x4x4", pass_="bwd", kernel=(2, 2))
        found = jax.grad(lambda c: (fold(c) * weights).sum())(columns)
        np.testing.assert_array_equal(found, J.im2col(weights, kernel=(2, 2)))

    def test_of_gradients(self):
        x = normal(0, 4, 6)
        with self.assertRaisesRegex(NotImplementedError, "the gradient of a gradient"):
            jax.grad(lambda x: (jax.grad(lambda x: J.softmax(x, axis=1)[0, 0])(x) ** 2).sum())(x)
        with self.assertRaisesRegex(NotImplementedError, "has no gradient"):
            jax.grad(lambda x: J.transform(x).sum())(x)
        with self.assertRaisesRegex(NotImplementedError, "epilogue"):
            jax.grad(lambda x: J.gemm(x, x.T, epilogue=["relu"]).sum())(x)
        with self.assertRaisesRegex(NotImplementedError, "no gradient comes through mean; it does through y"):
            jax.grad(lambda x: J.norm(x, mean="f64:4").mean.sum())(x)
        with self.assertRaisesRegex(NotImplementedError, "no gradient comes through mean"):
            jax.grad(lambda x: sum(r.sum() for r in J.norm(x, mean="f64:4")))(x)
        y, gradient = jax.value_and_grad(lambda x: sum(map(jnp.sum, (J.norm(x).T @ x, jax.lax.stop_gradient(
            J.norm(x, mean="f64:4").mean)))))(x)
        self.assertTrue(jnp.isfinite(gradient).all())
        with self.assertRaisesRegex(NotImplementedError, "no gradient for running_mean; of its inputs bias, residual, scale, x have one"):
            jax.grad(lambda m: J.norm(x, kind="batch", mode="infer", running_mean=m, running_var=m * 0 + 1).sum())(x[0])

    def test_at_run_time_are_exceptions_of_jax(self):
        """What only the run can see: the program goes on after it."""
        from mica.jax import _ffi

        def call(line):
            return jax.ffi.ffi_call("mica", jax.ShapeDtypeStruct((3,), jnp.float32))(
                jnp.zeros(3, jnp.float32), line=line, places=np.array([0, 1], np.int32))

        with self.assertRaisesRegex(Exception, "INVALID_ARGUMENT: MICA_INVALID: .*sofmax"):
            call("sofmax x=f32:3").block_until_ready()
        with self.assertRaisesRegex(Exception, "INVALID_ARGUMENT: mica: the call is of another version"):
            jax.ffi.ffi_call("mica", jax.ShapeDtypeStruct((3,), jnp.float32))(jnp.zeros(3, jnp.float32)).block_until_ready()
        with self.assertRaisesRegex(Exception, "other operands than it says"):
            jax.ffi.ffi_call("mica", jax.ShapeDtypeStruct((3,), jnp.float32))(
                jnp.zeros(3, jnp.float32), line="softmax x=f32:3", places=np.array([0], np.int32)).block_until_ready()
        np.testing.assert_allclose(call("softmax x=f32:3"), 1 / 3, rtol=1e-6)
        self.assertEqual(_ffi._TARGET, "mica")


class Documentation(unittest.TestCase):
    def test_program(self):
        block, = (b for b in re.findall(r"^```python\n(.*?)^```", (judge.ROOT / "docs/python.md").read_text(), re.M | re.S)
                  if "mica.jax" in b)
        p = normal(0, 8)
        names = {"x": normal(0, 2, 3, 6, 5), "w": normal(1, 4, 3, 3, 3), "b": normal(2, 4), "labels": jnp.array([1, 0]),
                 "p": p, "g": p, "m": p, "v": p * p, "lr": 0.1, "step": 3}
        exec(compile(block, "docs/python.md", "exec"), names)
        self.assertEqual(names["p"].shape, (8,))


class Threads(unittest.TestCase):
    def test_share_programs_and_plans(self):
        step = jax.jit(lambda x: J.softmax(J.gemm(x, x), axis=1))
        x = normal(0, 33, 33)
        expected, wrong = np.asarray(step(x)), []

        def work(number):
            for i in range(100):
                if not np.array_equal(step(x), expected):
                    wrong.append(i)
                if i % 50 == 0:
                    n = 2 + number * 100 + i
                    if abs(float(J.softmax(jnp.ones(n), axis=0).sum()) - 1) > 1e-9:
                        wrong.append(i)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main()
