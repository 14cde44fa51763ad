# SPDX-License-Identifier: Apache-2.0
"""Operators: each operation of the library is one, with a signature and help; results are the
reference's; passes, outputs, scalars and options."""

import inspect
import pydoc
import unittest

import numpy as np

import judge
import mica
from mica._library import lib, names

OPERATIONS = names(lib.mica_op_name)


def normal(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


class EveryOperation(unittest.TestCase):
    def test_is_a_function_of_the_package(self):
        self.assertGreater(len(OPERATIONS), 10)
        self.assertEqual(list(mica.operations), OPERATIONS)
        for op in OPERATIONS:
            self.assertTrue(callable(getattr(mica, op)))
            self.assertIn(op, dir(mica))
            self.assertIn(op, mica.__all__)

    def test_has_a_signature_and_help_of_all_its_fields(self):
        for op in OPERATIONS:
            function = getattr(mica, op)
            table = function._mica_table
            parameters = inspect.signature(function).parameters
            shown = pydoc.render_doc(function, renderer=pydoc.plaintext)
            self.assertTrue(table.fields)
            for field in table.fields:
                self.assertIn(field.python, parameters, op)
                self.assertIn(f"{field.python} ", shown)
                self.assertIn(field.doc, shown.replace("\n", " "))
            for name in table.scalars + ["out", "context", "stream", "options"]:
                self.assertIn(name, parameters, op)
            first = next(iter(parameters.values()))
            self.assertEqual(first.kind, inspect.Parameter.POSITIONAL_OR_KEYWORD, op)

    def test_computes_what_the_reference_does(self):
        """Lines of the case files, by plan.run: whatever family there is, and will be."""
        for op in OPERATIONS:
            lines = judge.case_lines(op, 8)
            self.assertTrue(lines, f"no plain line of {op} in tests/cases")
            tried = sum(self.compare(line) for line in lines)
            self.assertGreater(tried, 0, op)

    def compare(self, line):
        try:
            plan = mica.plan(line, context="cpu")
        except mica.Unsupported:
            return 0
        problem = judge.Problem(line)
        if sum(t.count for _, d, t in problem.args if d) > 200000 or not all(judge.holds(t) for _, d, t in problem.args if d):
            return 0
        inputs = problem.inputs(fill=0 if problem.exact() else 1)
        scalars = dict(zip(plan._table.scalars, problem.scalars(len(plan._table.scalars))))
        if scalars.get("beta"):
            return 0
        truth = problem.truth(inputs)
        given = {name: mica.view(a, t.dtype) for name, _, t in problem.args for a in [inputs.get(name)] if a is not None}
        outs = {name: judge.array(t) for name, d, t in problem.args if name in truth and name not in given}
        plan.run(**given, **{n: mica.view(a, plan.args[n].tensor.dtype) for n, a in outs.items()}, **scalars)
        phi = plan.contract["phi"]
        for name, (expected, magnitude) in truth.items():
            tensor = plan.args[name].tensor
            expected = judge.stored(tensor, expected)
            got = judge.values(tensor, outs[name] if name in outs else inputs[name])
            unit = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8, "e4m3": 2.0**-4,
                    "e5m2": 2.0**-3}.get(tensor.dtype, 0)
            allowed = 4 * phi * magnitude + 4 * unit * np.abs(expected) + 1e-37 + (0 if unit else 1)
            with np.errstate(invalid="ignore"):
                far = ~(np.abs(got - expected) <= allowed) & ~(got == expected) & ~(np.isnan(got) & np.isnan(expected))
            self.assertFalse(far.any(), f"{line}: {name} by {plan.engine}: {got[far][:3]}, expected {expected[far][:3]}")
        return 1


class Convolution(unittest.TestCase):
    def setUp(self):
        self.x, self.w, self.b = normal(2, 3, 6, 5), normal(4, 3, 3, 3, seed=1), normal(4, seed=2)

    def expected(self, pad=1):
        x = np.pad(self.x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
        return np.einsum("nchwij,kcij->nkhw", windows, self.w)

    def test_as_the_issue_has_it(self):
        y = mica.conv(self.x, self.w, pad=(1, 1), epilogue=["bias", "relu"], bias=self.b)
        self.assertIs(type(y), np.ndarray)
        np.testing.assert_allclose(y, np.maximum(self.expected() + self.b[:, None, None], 0), atol=1e-4)

    def test_gradients_are_adjoint(self):
        y = mica.conv(self.x, self.w, pad=(1, 1))
        g = normal(*y.shape, seed=3)
        dx = mica.conv(w=self.w, y=g, x="f32:2x3x6x5", pass_="dgrad", pad=(1, 1))
        dw = mica.conv(x=self.x, y=g, w="f32:4x3x3x3", pass_="wgrad", pad=(1, 1))
        self.assertEqual((dx.shape, dw.shape), (self.x.shape, self.w.shape))
        self.assertAlmostEqual(float((dx * self.x).sum()), float((g * y).sum()), delta=1e-2)
        self.assertAlmostEqual(float((dw * self.w).sum()), float((g * y).sum()), delta=1e-2)

    def test_result_in_the_memory_order_of_x(self):
        x = np.ascontiguousarray(self.x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        y = mica.conv(x, self.w, pad=(1, 1))
        self.assertEqual(y.strides[1], 4)
        np.testing.assert_allclose(y, self.expected(), atol=1e-4)

    def test_several_results_are_a_named_tuple(self):
        found = mica.conv(self.x, self.w, epilogue=["relu"], aux="f32", stat_sum="f32", stat_square="f32")
        self.assertEqual(found._fields, ("y", "aux", "stat_sum", "stat_square"))
        np.testing.assert_array_equal(found.y, np.maximum(found.aux, 0))
        np.testing.assert_allclose(found.stat_sum, found.y.sum((0, 2, 3)), rtol=1e-4)

    def test_out_by_place_by_name_and_in_order(self):
        y = np.full((2, 4, 6, 5), 7, np.float32)
        for how in ({"out": y}, {"y": y}, {"out": [y]}, {"out": {"y": y}}):
            y[:] = 7
            self.assertIs(mica.conv(self.x, self.w, pad=(1, 1), **how), y)
            np.testing.assert_allclose(y, self.expected(), atol=1e-4)
        aux = np.empty_like(y)
        found = mica.conv(self.x, self.w, pad=(1, 1), epilogue=["relu"], out=(None, None), aux=aux)
        self.assertIs(found.aux, aux)
        np.testing.assert_allclose(aux, self.expected(), atol=1e-4)

    def test_out_may_have_strides(self):
        whole = np.full((2, 8, 6, 10), 7, np.float32)
        y = whole[:, ::2, :, 1::2]
        mica.conv(self.x, self.w, pad=(1, 1), out=y)
        np.testing.assert_allclose(y, self.expected(), atol=1e-4)
        self.assertTrue((whole[:, 1::2] == 7).all() and (whole[..., ::2] == 7).all())

    def test_scalars_belong_to_the_run(self):
        y = mica.conv(self.x, self.w)
        old = y.copy()
        mica.conv(self.x, self.w, alpha=2, beta=-1, out=y)
        np.testing.assert_allclose(y, old, atol=1e-5)
        np.testing.assert_array_equal(mica.conv(self.x, self.w), old)  # and to no later one
        with self.assertRaisesRegex(mica.Invalid, "beta is not 0.*y"):
            mica.conv(self.x, self.w, beta=1)

    def test_options(self):
        ref = mica.conv(self.x, self.w, options={"engine": "ref"})
        np.testing.assert_allclose(ref, mica.conv(self.x, self.w), atol=1e-4)
        with self.assertRaisesRegex(mica.Unsupported, "another engine was asked for"):
            mica.conv(self.x, self.w, options={"engine": "nosuch"})
        with self.assertRaisesRegex(TypeError, "enginee.*engine"):
            mica.conv(self.x, self.w, options={"enginee": "ref"})


class Others(unittest.TestCase):
    def test_in_place_operations_return_what_they_changed(self):
        p, g = normal(7), normal(7, seed=1)
        expected = p - 0.5 * g
        found = mica.optim(p, g, lr=0.5)
        self.assertIs(found, p)
        np.testing.assert_allclose(p, expected, rtol=1e-6)
        m, v = np.zeros(7, np.float32), np.zeros(7, np.float32)
        found = mica.optim(p, g, m=m, v=v, rule="adam", lr=0.1, step=1)
        self.assertEqual(found._fields, ("p", "m", "v"))
        self.assertIs(found.m, m)
        with self.assertRaisesRegex(mica.Invalid, "m is needed.*read and written"):
            mica.optim(p, g, rule="adam")

    def test_routes(self):
        x, bias = normal(7, 16), normal(16)
        route = mica.moe_route(x, bias, k=3, score="sigmoid", renormalise=True, scale=2.5, counts="s32")
        scores = 1 / (1 + np.exp(-x))
        chosen = np.argsort(-(scores + bias), axis=1)[:, :3]
        np.testing.assert_array_equal(route.indices, chosen)
        weights = np.take_along_axis(scores, chosen, 1)
        np.testing.assert_allclose(route.weights, 2.5 * weights / weights.sum(1, keepdims=True), rtol=1e-5)
        np.testing.assert_array_equal(route.counts, np.bincount(chosen.ravel(), minlength=16))
        dx = mica.moe_route(x, indices=chosen.astype(np.int32), dweights=np.ones((7, 3), np.float32), k=3, pass_="bwd",
                            renormalise=True)
        np.testing.assert_allclose(dx, 0, atol=1e-6)

    def test_permutations_by_experts(self):
        chosen = np.array([[2, 0], [0, 1], [2, 1]], np.int32)
        x = normal(3, 4)
        there = mica.moe_permute(chosen, x, experts=3, align=4)
        order = np.argsort(chosen.ravel(), kind="stable")
        np.testing.assert_array_equal(there.offsets, [0, 4, 8, 12])
        rows = np.full(len(there.rows), -1)
        rows[[0, 1, 4, 5, 8, 9]] = order
        np.testing.assert_array_equal(there.rows, rows)
        np.testing.assert_array_equal(there.y, np.where(rows[:, None] < 0, 0, x[rows // 2]))
        back = mica.moe_unpermute(there.y, there.places, np.full((3, 2), 0.5, np.float32))
        np.testing.assert_allclose(back, x, rtol=1e-6)

    def test_a_mixture_of_experts_of_its_parts(self):
        tokens, width, inner, experts, k = 9, 6, 10, 4, 2
        x, router = normal(tokens, width), normal(width, experts, seed=1)
        gate, up, down = (normal(*shape, seed=i) for i, shape in enumerate(
            ((experts, width, inner), (experts, width, inner), (experts, inner, width)), 2))
        route = mica.moe_route(x @ router, k=k, renormalise=True)
        sent = mica.moe_permute(route.indices, x, experts=experts, align=8)

        def products(a, b):  # rows of no expert keep what is there
            return mica.grouped_gemm(a, b, c=np.zeros((len(a), b.shape[2]), np.float32), groups=sent.offsets[1:])

        hidden = products(sent.y, gate)
        hidden = hidden / (1 + np.exp(-hidden)) * products(sent.y, up)
        y = mica.moe_unpermute(products(hidden, down), sent.places, route.weights)

        every = np.einsum("td,edh->teh", x, gate)
        every = every / (1 + np.exp(-every)) * np.einsum("td,edh->teh", x, up)
        shares = np.zeros((tokens, experts))
        np.put_along_axis(shares, route.indices.astype(np.int64), route.weights, 1)
        np.testing.assert_allclose(y, np.einsum("teh,ehd,te->td", every, down, shares), rtol=1e-4, atol=1e-4)

    def test_results_that_are_asked_for_by_type(self):
        q = normal(1, 2, 5, 8)
        self.assertIs(type(mica.attention(q, q, q)), np.ndarray)
        out, lse = mica.attention(q, q, q, lse="f32")
        self.assertEqual(lse.shape, (1, 2, 5))
        scores = np.einsum("bhid,bhjd->bhij", q, q) / np.sqrt(8)
        np.testing.assert_allclose(lse, np.log(np.exp(scores).sum(-1)), rtol=1e-4)
        mine = np.empty_like(out)
        self.assertIs(mica.attention(q, q, q, out=mine), mine)
        again = mica.attention(q, q, q, out=(mine, lse))
        self.assertIs(again.lse, lse)

    def test_a_last_layer_and_its_loss(self):
        x, w = normal(5, 3), normal(9, 3)
        labels = np.array([0, 8, 3, 1, 8])
        logits = x @ w.T
        want = np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(5), labels])
        share = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        share[np.arange(5), labels] -= 1
        loss, dx, dw = mica.linear_cross_entropy(x, w, labels, dx="f32", dw="f32", chunk=4)
        np.testing.assert_allclose(loss[0], want, rtol=1e-5)
        np.testing.assert_allclose(dx, share @ w / 5, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(dw, share.T @ x / 5, rtol=1e-4, atol=1e-6)

    def test_numbers_and_empty_arrays(self):
        loss = mica.cross_entropy(normal(3, 4), np.array([0, 1, 2]))
        self.assertEqual(loss.shape, (1,))
        self.assertEqual(mica.softmax(np.zeros((0, 3), np.float32), axis=1).shape, (0, 3))
        one = mica.transform(np.float32(3).reshape(()), alpha=2)
        self.assertEqual((one.shape, float(one)), ((), 6))

    def test_zero_is_zero_and_not_left_out(self):
        x = np.array([[1, 3]], np.float32)
        np.testing.assert_array_equal(mica.activation(-x, act="leaky_relu", act_a=0), [[0, 0]])
        np.testing.assert_allclose(mica.activation(-x, act="leaky_relu"), -0.01 * x, rtol=1e-6)
        p, m, v = (np.ones(1, np.float32) for _ in range(3))
        mica.optim(p, np.full(1, 5, np.float32), m=m, v=v, rule="adam", beta1=0)
        self.assertEqual(m[0], 5)
        with self.assertRaisesRegex(mica.Invalid, "stride"):
            mica.conv(normal(1, 1, 4, 4), normal(1, 1, 1, 1), stride=(0, 1))

    def test_a_number_in_a_list_of_numbers_is_itself(self):
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        for axes in ([0], [1], [2], [-1], [0, 2], (np.int64(1), -1), ["1"]):
            wanted = x.sum(tuple(int(a) for a in axes))
            np.testing.assert_array_equal(mica.reduce(x, axes=axes), wanted, err_msg=str(axes))
        with self.assertRaisesRegex(mica.Invalid, "axes=8: known are 0, 1"):
            mica.reduce(x, axes=[8])

    def test_samples_by_grids(self):
        x = normal(1, 2, 4, 3)
        rows, columns = np.meshgrid(np.linspace(-1, 1, 4), np.linspace(-1, 1, 3), indexing="ij")
        grid = np.stack([columns, rows], -1)[None].astype(np.float32)
        np.testing.assert_allclose(mica.grid_sample(x, grid, align_corners=True), x, rtol=1e-5, atol=1e-6)
        same = np.array([[[1, 0, 0], [0, 1, 0]]], np.float32)
        np.testing.assert_allclose(mica.affine_grid(same, grid="f32:1x4x3x2", align_corners=True), grid, atol=1e-6)
        beside = mica.grid_sample(x, grid + 8, mode="nearest", padding="border")
        np.testing.assert_array_equal(beside, np.broadcast_to(x[:, :, -1:, -1:], x.shape))
        dy = np.ones_like(x)
        dx, dgrid = mica.grid_sample(x=x, grid=grid, dy=dy, dx="f32:1x2x4x3", dgrid="f32:1x4x3x2", align_corners=True, pass_="bwd")
        self.assertEqual((dx.shape, dgrid.shape), (x.shape, grid.shape))
        np.testing.assert_allclose(dx, dy, rtol=1e-5, atol=1e-6)

    def test_columns_and_their_sums(self):
        """Windows by NumPy, and each element as often as windows read it."""
        x = normal(2, 3, 5, 6)
        windows = np.lib.stride_tricks.sliding_window_view(x, (2, 3), (2, 3))[:, :, ::2]  # N C OH OW KH KW
        columns = windows.transpose(0, 1, 4, 5, 2, 3).reshape(2, 3 * 6, -1)
        fields = dict(kernel=(2, 3), stride=(2, 1))
        np.testing.assert_array_equal(mica.im2col(x, **fields), columns)
        sums = mica.im2col(dy=columns, dx="f32:2x3x5x6", pass_="bwd", **fields)
        times = np.outer([1, 1, 1, 1, 0], [1, 2, 3, 3, 2, 1])
        np.testing.assert_allclose(sums, x * times, rtol=1e-6)
        with self.assertRaisesRegex(mica.Invalid, "a window spans 7"):
            mica.im2col(x, kernel=(2, 7))

    def test_local_response(self):
        """Squares of three channels, and of 3 x 3 elements after means; gradients by differences."""
        x, means = normal(2, 4, 5, 6).astype(np.float64), normal(2, 4, 5, 6).astype(np.float64)
        beside = np.pad(x * x, ((0, 0), (1, 1), (0, 0), (0, 0)))
        sums = beside[:, :-2] + beside[:, 1:-1] + beside[:, 2:]
        np.testing.assert_allclose(mica.lrn(x, size=3, alpha=0.5, k=2), x * (2 + 0.5 / 3 * sums) ** -0.75, rtol=1e-12)
        fields = dict(kind="divisive", size=3, sum=True, alpha=0.25)
        beside = np.pad((x - means) ** 2, ((0, 0), (0, 0), (1, 1), (1, 1)))
        sums = sum(beside[:, :, i:i + 5, j:j + 6] for i in range(3) for j in range(3))
        y = mica.lrn(x, means, **fields)
        np.testing.assert_allclose(y, x * (1 + 0.25 * sums) ** -0.75, rtol=1e-12)
        dy = normal(2, 4, 5, 6).astype(np.float64)
        dx, dmeans = mica.lrn(x=x, means=means, dy=dy, dmeans="f64", pass_="bwd", **fields)
        for of, found in ((x, dx), (means, dmeans)):
            step = np.zeros_like(x)
            step[1, 2, 0, 3] = 1e-6
            up, down = (mica.lrn(x + s * (of is x), means + s * (of is means), **fields) for s in (step, -step))
            self.assertAlmostEqual(float(((up - down) * dy).sum() / 2e-6), float(found[1, 2, 0, 3]), places=6)

    def test_regions(self):
        x = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
        rois = np.array([[1, 0, 0, 2, 2], [0, 1, 1, 4, 3]], np.float32)
        y = mica.roi_align(x, rois, size=[1, 1], sampling=2, aligned=True)
        np.testing.assert_allclose(y[0, :, 0, 0], x[1, :, :2, :2].mean((1, 2)), rtol=1e-6)
        y, at = mica.roi_align(x, rois, size=[1, 1], mode="pool", argmax="s32")
        np.testing.assert_array_equal(y[1, :, 0, 0], x[0, :, 1:4, 1:5].max((1, 2)))
        np.testing.assert_array_equal(at[1, :, 0, 0], 3 * 5 + 4)
        apart = mica.roi_align(x, rois[:, 1:], batch=np.array([1, 0], np.int64), size=[1, 1], mode="pool")
        np.testing.assert_array_equal(apart, y)
        dx = mica.roi_align(rois=rois, dy=np.ones((2, 3, 1, 1), np.float32), dx="f32:2x3x4x5", sampling=2, aligned=True, pass_="bwd")
        np.testing.assert_allclose(dx.sum((2, 3)), 1, rtol=1e-6)

    def test_moved_taps(self):
        """Whole offsets are a convolution of what they name; a mask is a factor."""
        x, w = normal(2, 3, 6, 7), normal(4, 3, 3, 3)
        offset = np.zeros((2, 18, 4, 5), np.float32)
        plain = mica.conv(x, w)
        np.testing.assert_allclose(mica.deform_conv(x, w, offset), plain, rtol=1e-5, atol=1e-5)
        offset[:, 1::2] = 1
        moved = mica.conv(np.pad(x, ((0, 0), (0, 0), (0, 0), (0, 1)))[..., 1:], w)
        half = mica.deform_conv(x, w, offset, mask=np.full((2, 9, 4, 5), 0.5, np.float32))
        np.testing.assert_allclose(half, moved / 2, rtol=1e-5, atol=1e-5)

    def test_typical_tokens(self):
        """What transformers' TypicalLogitsWarper leaves: by distance to the entropy, up to the mass, all as near as the last."""
        x = 3 * normal(5, 400)
        p = np.exp(x.astype(np.float64))
        p /= p.sum(1, keepdims=True)
        distance = np.abs(-np.log(p) + (p * np.log(p)).sum(1, keepdims=True))
        for mass in (0.2, 0.5, 0.95):
            _, columns, logprobs = mica.sample(x, typical_p=mass, logprobs="processed", top_tokens=np.empty((5, 400), np.int64),
                                               top_logprobs=np.empty((5, 400), np.float32))
            for row in range(5):
                order = np.argsort(distance[row], kind="stable")
                last = np.searchsorted(np.cumsum(p[row][order]), mass)
                kept = np.flatnonzero(distance[row] <= distance[row][order[last]])
                best = kept[np.argsort(-x[row][kept], kind="stable")]
                n = len(kept)
                np.testing.assert_array_equal(columns[row], np.append(best, np.full(400 - n, -1)))
                np.testing.assert_allclose(logprobs[row, :n], np.log(p[row][best] / p[row][kept].sum()), atol=2e-6)
                self.assertTrue(np.all(logprobs[row, n:] == -np.inf))

    def test_largest_tokens(self):
        x = np.round(4 * normal(3, 500)) / np.float32(4)
        _, columns, logprobs = mica.sample(x, top_k=3, top_tokens=np.empty((3, 30), np.int32), top_logprobs=np.empty((3, 30), np.float32))
        order = np.argsort(-x, axis=1, kind="stable")[:, :30]
        np.testing.assert_array_equal(columns, order)
        logs = x - np.log(np.exp(x.astype(np.float64)).sum(1, keepdims=True))
        np.testing.assert_allclose(logprobs, np.take_along_axis(logs, order, 1), atol=2e-6)

    def test_speculated_tokens(self):
        """Whatever the draft model, tokens are distributed as the target's: chi-square, whose 99.9 % of 5 degrees is 20.5."""
        rows, columns = 20000, 6
        random = np.random.default_rng(1)
        p, q = random.random((3, columns)) ** 2, random.random((2, columns)) ** 2
        p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
        drafts = np.stack([random.choice(columns, rows, p=row) for row in q], 1)

        def spread(a):
            return np.broadcast_to(a.astype(np.float32), (rows, *a.shape)).copy()

        def chi(tokens, expected):
            expected = expected * len(tokens)
            return ((np.bincount(tokens, minlength=columns) - expected) ** 2 / expected).sum()

        for given in (dict(q=spread(q)), {}):
            chain = drafts if given else np.full((rows, 2), 3)
            tokens, accepted = mica.speculate(spread(p), drafts=chain, seed=5, **given)
            for i in range(3):
                reached = tokens[accepted >= i]
                self.assertLess(chi(reached[:, i], p[i]), 20.5)
                self.assertTrue(np.all(tokens[accepted < i][:, i] == -1))
                np.testing.assert_array_equal(reached[:, :i], chain[accepted >= i][:, :i])
            rate = np.minimum(p[0], q[0]).sum() if given else p[0, 3]
            self.assertLess(abs(np.mean(accepted > 0) - rate), 4 * np.sqrt(rate * (1 - rate) / rows))
        greedy = np.eye(columns)[[[2, 4, 1], [2, 5, 0]]].astype(np.float32)
        tokens, accepted = mica.speculate(greedy, drafts=np.array([[2, 3], [2, 5]]))
        np.testing.assert_array_equal(tokens, [[2, 4, -1], [2, 5, 0]])
        np.testing.assert_array_equal(accepted, [1, 2])

    def test_suppressed_boxes(self):
        boxes = np.array([[0, 0, 2, 1], [0, 0, 1, 1], [5, 5, 6, 6], [0, 0, 2, 1]], np.float32)
        scores = np.array([0.5, 0.9, 0.1, 0.4], np.float32)
        selected, count = mica.nms(boxes, scores, iou_threshold=0.4)
        np.testing.assert_array_equal(selected, [1, 2, -1, -1])
        self.assertEqual(int(count[0]), 2)
        selected, count = mica.nms(boxes, scores, classes=np.array([0, 1, 0, 0], np.int64), iou_threshold=0.4)
        np.testing.assert_array_equal(selected[: int(count[0])], [1, 0, 2])
        selected, count = mica.nms(boxes[None], np.stack([scores, -scores])[None], limit=1, iou_threshold=0.4)
        np.testing.assert_array_equal(selected, [[0, 0, 1], [0, 1, 2]])

    def test_suppression_by_numpy(self):
        """torchvision's rule: boxes by falling score, each drops those behind whose IoU with it is greater."""
        for threshold in (0.3, 0.5, 0.7):
            ends = np.abs(normal(700, 2)) * 10
            boxes = np.concatenate([ends, ends + np.abs(normal(700, 2, seed=1)) * 8 + np.float32(0.1)], 1)
            scores = np.round(normal(700, seed=2) * 20) / np.float32(20)
            x1, y1, x2, y2 = boxes.T
            areas, gone, kept = (x2 - x1) * (y2 - y1), np.zeros(700, bool), []
            for i in np.argsort(-scores, kind="stable"):
                if gone[i]:
                    continue
                kept.append(i)
                wide = np.maximum(np.minimum(x2[i], x2) - np.maximum(x1[i], x1), 0)
                common = wide * np.maximum(np.minimum(y2[i], y2) - np.maximum(y1[i], y1), 0)
                gone |= (common / (areas[i] + areas - common)).astype(np.float64) > threshold
            selected, count = mica.nms(boxes, scores, iou_threshold=threshold)
            np.testing.assert_array_equal(selected[: int(count[0])], kept)

    def test_recurrent_nets(self):
        """A gated unit by NumPy, and an LSTM whose second sequence ends earlier, backward too."""
        def sigmoid(v):
            return 1 / (1 + np.exp(-v))

        x, w, hx = normal(3, 2, 4), 0.5 * normal(3 * 5 * (4 + 5) + 2 * 15), normal(1, 2, 5)
        wx, wh = w[:60].reshape(15, 4), w[60:135].reshape(15, 5)
        h, wanted = hx[0], []
        for step in x:
            a, s = np.split(step @ wx.T + w[135:150], 3, 1), np.split(h @ wh.T + w[150:], 3, 1)
            r, z = sigmoid(a[0] + s[0]), sigmoid(a[1] + s[1])
            h = (1 - z) * np.tanh(a[2] + r * s[2]) + z * h
            wanted.append(h)
        y, hy = mica.rnn(x, w, cell="gru", hidden=5, hx=hx, hy="f32")
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(hy[0], h, rtol=1e-4, atol=1e-5)
        w = 0.5 * normal(2 * 4 * 5 * (4 + 5) + 2 * 40)
        fields = dict(cell="lstm", hidden=5, bidirectional=True)
        y, hy = mica.rnn(x, w, lengths=np.array([3, 2], np.int32), hy="f32", **fields)
        np.testing.assert_allclose(y[:2, 1:], mica.rnn(x[:2, 1:], w, **fields), rtol=1e-5, atol=1e-6)
        self.assertFalse(y[2, 1].any())
        np.testing.assert_array_equal(hy[1], y[0, :, 5:])
        with self.assertRaisesRegex(mica.Invalid, "dimension 0 of w is 7, it must be 440"):
            mica.rnn(x, w[:7], **fields)

    def test_scans(self):
        x = normal(3, 4, 5)
        np.testing.assert_allclose(mica.scan(x, axis=1), x.cumsum(1), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mica.scan(x, kind="prod", axis=-1), x.cumprod(-1), rtol=1e-5)
        np.testing.assert_array_equal(mica.scan(x, kind="min", axis=0), np.minimum.accumulate(x, 0))
        behind = np.concatenate([np.cumsum(x[:, ::-1], 1)[:, -2::-1], 0 * x[:, :1]], 1)
        np.testing.assert_allclose(mica.scan(x, axis=1, exclusive=True, reverse=True), behind, rtol=1e-5, atol=1e-6)
        bytes_ = np.array([100, 100, -3], np.int8)
        np.testing.assert_array_equal(mica.scan(bytes_, y="s8:3"), bytes_.cumsum(dtype=np.int8))
        self.assertEqual(mica.scan(bytes_).dtype, np.int64)
        flags = np.array([0, 1, 0], bool)
        np.testing.assert_array_equal(mica.scan(bytes_, flags=flags), [100, 100, 97])
        y, index = mica.scan(np.array([1, 3, 3], np.float32), kind="max", index="s64:3")
        np.testing.assert_array_equal(index, [0, 1, 2])

    def test_ctc(self):
        """Three equal steps of three classes: of 27 alignments 5 read as 1, 2, and one as 1, 1."""
        x, labels = np.zeros((3, 2, 3), np.float32), np.array([[1, 2], [1, 1]], np.int32)
        lengths, alignments = np.array([2, 2]), [5, 1]
        loss = mica.ctc_loss(x, labels=labels, label_lengths=lengths, reduction="none")
        np.testing.assert_allclose(loss, -np.log(np.array(alignments) / 27), rtol=1e-6)
        mean = mica.ctc_loss(x, labels=labels, label_lengths=lengths)
        np.testing.assert_allclose(mean, [(loss / 2).mean()], rtol=1e-6)
        dx = mica.ctc_loss(x, labels=labels, label_lengths=lengths, dloss=np.ones(2, np.float32), pass_="bwd",
                           reduction="none")
        np.testing.assert_allclose(dx.sum(2), 0, atol=1e-6)
        np.testing.assert_allclose(dx[1, 1], [1 / 3 - 1, 1 / 3, 1 / 3], atol=1e-6)  # the one alignment has a blank there

    def test_texts(self):
        x = normal(3, 4)
        np.testing.assert_array_equal(mica.pointwise(x, expr="x0+x0"), x + x)
        for wrong in ("x0 + x0", "", 3):
            with self.assertRaisesRegex(mica.Invalid, "without spaces"):
                mica.pointwise(x, expr=wrong)

    def test_integers_of_64_bits_and_places(self):
        x = np.array([2**63 - 1, -2**63, 2**53 + 1, -5])
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(mica.pointwise(x, expr="x0*3+1"), x * 3 + 1)
        np.testing.assert_array_equal(mica.pointwise(x, expr="floordiv(x0,7)"), x // 7)
        y = normal(3, 5)
        np.testing.assert_array_equal(mica.pointwise(y, expr="where(i1<=i0,x0,0)"), np.tril(y))

    def test_values_that_are_none(self):
        x, w = normal(1, 1, 4, 4), normal(1, 1, 1, 1)
        for wrong, words in [
            ({"pad": 1}, "one number for each axis"), ({"pad": (1.5, 1)}, "integer"), ({"pass_": "backwards"}, "dgrad"),
            ({"epilogue": "relu"}, "list"), ({"epilogue": ["relu", "nosuch"]}, "nosuch.*known"),
            ({"groups": "1 x=f32:2"}, "int"), ({"transposed": 2}, "True or False"), ({"act_a": "x"}, "float"),
            ({"y": "f33:1"}, "f33"), ({"y": 3.5}, "description"), ({"groups": 2**70}, "groups"),
            ({"act_a": float("nan"), "epilogue": ["clip"]}, "act_a"),
        ]:
            with self.assertRaisesRegex(mica.Invalid, words, msg=str(wrong)):
                mica.conv(x, w, **wrong)
        with self.assertRaisesRegex(TypeError, "did you mean pad"):
            mica.conv(x, w, pda=(1, 1))
        with self.assertRaisesRegex(TypeError, "did you mean pass_"):
            mica.conv(x, w, **{"pass": "fwd"})
        with self.assertRaisesRegex(TypeError, "by place"):
            mica.conv(x, w, x, x)
        with self.assertRaisesRegex(TypeError, "by place and by name"):
            mica.conv(x, w, x=x)
        with self.assertRaisesRegex(mica.Invalid, "only descriptions"):
            mica.conv("f32:1x1x4x4", "f32:1x1x1x1")
        with self.assertRaisesRegex(mica.Invalid, "w is needed"):
            mica.conv(x, "f32:1x1x1x1")
        with self.assertRaisesRegex(AttributeError, "nosuch"):
            mica.nosuch


class Plans(unittest.TestCase):
    LINE = "conv x=f32:1x3x8x8 w=f32:4x3x3x3 pad=1x1"

    def test_tell_what_they_are(self):
        plan = mica.plan(self.LINE, context="cpu")
        self.assertEqual(plan.line, self.LINE)
        self.assertIn(plan.engine, [e["engine"] for e in plan.explain().engines])
        self.assertEqual(plan.workspace, sum((s + 255) // 256 * 256 for _, s in plan.explain().workspace))
        self.assertEqual(plan.args["y"].tensor, mica.Tensor("f32", (1, 4, 8, 8)))
        self.assertEqual((plan.args["x"].dir, plan.args["y"].dir, plan.args["aux"].dir), ("in", "out", "-"))
        self.assertGreater(plan.contract["phi"], 0)
        self.assertIn(self.LINE, repr(plan))

    def test_run_on_arrays_of_their_sizes_alone(self):
        plan = mica.plan("conv", "f32:1x3x8x8", "f32:4x3x3x3", pad=(1, 1), context="cpu")
        x, w = normal(1, 3, 8, 8), normal(4, 3, 3, 3)
        y = plan.run(x, w)
        np.testing.assert_array_equal(plan.run(x=x, w=w, out=np.empty_like(y)), y)
        np.testing.assert_array_equal(y, mica.conv(x, w, pad=(1, 1)))
        for wrong in (normal(1, 3, 8, 7), normal(1, 3, 8, 8, dtype=np.float64), np.asfortranarray(x)):
            with self.assertRaisesRegex(mica.Invalid, "x .*the plan is for"):
                plan.run(wrong, w)
        with self.assertRaisesRegex(mica.Invalid, "w is needed"):
            plan.run(x)
        with self.assertRaisesRegex(TypeError, "did you mean"):
            plan.run(x, w, alhpa=1)

    def test_prepared_runs_read_and_write_the_same_arrays(self):
        x, w = normal(1, 3, 8, 8), normal(4, 3, 3, 3)
        plan = mica.plan("conv", x, w, pad=(1, 1))
        run = plan.prepare(x, w)
        y = run()
        self.assertIs(y, run.results)
        np.testing.assert_array_equal(y, plan.run(x, w))
        x *= 2
        self.assertIs(plan.run(run), y)
        np.testing.assert_array_equal(y, plan.run(x, w))
        run.set(alpha=0)
        self.assertFalse(run().any())

    def test_with_workspace(self):
        x, w = normal(2, 8, 16, 16), normal(8, 8, 3, 3)
        for e in mica.plan("conv", x, w, pad=(1, 1)).explain().engines:
            if e["status"] != "MICA_OK":
                continue
            plan = mica.plan("conv", x, w, pad=(1, 1), options={"engine": e["engine"]})
            np.testing.assert_allclose(plan.run(x, w), mica.conv(x, w, pad=(1, 1), options={"engine": "ref"}), atol=1e-3)
            if plan.workspace:
                with self.assertRaisesRegex(mica.Unsupported, "workspace"):
                    mica.plan("conv", x, w, pad=(1, 1), options={"engine": e["engine"], "workspace_limit": -1})

    def test_packed_arguments(self):
        a, b = normal(5, 64), normal(64, 48)
        plan = mica.plan("gemm", a, b, options={"packed": ["b"]})
        packed = plan.pack("b", b)
        np.testing.assert_allclose(plan.run(a, packed), a @ b, atol=1e-4)
        with self.assertRaisesRegex(mica.Invalid, "packed"):
            plan.pack("a", a)

    def test_that_are_prompt(self):
        options = {"prompt": True, "nondeterministic": True}
        plan = mica.plan("gemm a=f32:8x8 b=f32:8x8", context="cpu", options=options)  # a CPU has nothing to compile
        self.assertEqual(plan.pending, "")
        plan.wait()
        with self.assertRaisesRegex(mica.Invalid, "nondeterministic"):
            mica.plan("gemm a=f32:8x8 b=f32:8x8", context="cpu", options={"prompt": True})

    def test_explain_says_why_not(self):
        told = mica.explain(self.LINE, context="cpu")
        refused = [e for e in told.engines if e["status"] != "MICA_OK"]
        self.assertTrue(refused and all(e["reason"] for e in refused))
        for text in (repr(told), told._repr_html_()):
            for e in told.engines:
                self.assertIn(e["engine"], text)
        self.assertIn("<table>", told._repr_html_())
        self.assertNotIn("<script>", mica.explain(self.LINE, context="cpu")._repr_html_())

    def test_bad_lines(self):
        for line, words in [("", "empty"), ("nosuch x=1", "no operation"), ("convv", "did you mean conv"),
                            ("conv x=f32:1x2", "w"), ("conv x=f32:1x3x8x8 w=f32:4x3x3x3 pad=a", "pad")]:
            with self.assertRaisesRegex(mica.Invalid, words):
                mica.plan(line)
        with self.assertRaises(TypeError):
            mica.plan(3)
        with self.assertRaises(ValueError):
            mica.plan("conv x=f32:1x3x8x8\0 w=f32:4x3x3x3")


if __name__ == "__main__":
    unittest.main()
