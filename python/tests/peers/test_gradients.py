# SPDX-License-Identifier: Apache-2.0
"""Gradients in PyTorch of every operation there is, and will be: problems of its case files in f64, differentiated by each
of their inputs alone. Either gradcheck agrees or the call is refused: no gradient is None, zero or left out in silence."""

import collections
import os
import pathlib
import sys
import unittest
from unittest import mock

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))  # judge

import judge
import torch
from torch.autograd import gradcheck

import mica
import mica.torch as M
from mica._formulas import FORMULAS
from mica.torch._formulas import Arrays
from mica.torch._library import call


DEVICE = os.environ.get("MICA_TEST_DEVICE", "cpu")


class Call:
    """A problem as a function of one of its inputs. What the gradient needs beside is asked for."""

    def __init__(self, problem):
        self.problem, self.given = problem, {n: torch.from_numpy(a).to(DEVICE) for n, a in problem.inputs.items()}
        wanted = {}
        if problem.op in FORMULAS:
            wanted = FORMULAS[problem.op].wants(Arrays, {**self.given, **problem.fields})
        self.described = {**{n: t for n, t in wanted.items() if n not in self.given}, **problem.described}
        self.names = [n for n, _ in M.operators[problem.op].results({**self.given, **problem.fields}, self.described)]

    def __call__(self, value):
        found = call(self.problem.op, {**self.given, **self.problem.fields, self.problem.input: value}, self.described)
        return dict(zip(self.names, found, strict=True))

    def variable(self):
        return self.given[self.problem.input].clone().requires_grad_()


class EveryInput(unittest.TestCase):
    def differentiate(self, one, formula):
        """Whether gradcheck agrees; None: there is nothing to differentiate here."""
        x = one.variable()
        results = one(x)
        for n, r in results.items():
            self.assertEqual(r.requires_grad, n in formula.results and r.is_floating_point(), n)
        carriers = [n for n, r in results.items() if r.requires_grad]
        if not all(results[n].isfinite().all() for n in carriers):
            return None
        return gradcheck(lambda x: tuple(one(x)[n] for n in carriers), (x,), fast_mode=True, atol=1e-5, rtol=1e-4)

    def test_agrees_or_is_refused(self):
        for name in M.operators:
            agreed, formula = collections.Counter(), FORMULAS.get(name)
            if name in judge.STRAIGHT_THROUGH:
                continue
            for problem in judge.smooth_problems(name, 8):
                with self.subTest(problem.line, input=problem.input):
                    one = Call(problem)
                    if formula is None:
                        with self.assertRaisesRegex(NotImplementedError, f"mica::{name} has no gradient"):
                            one(one.variable())
                    elif problem.input not in formula.inputs:
                        with self.assertRaisesRegex(NotImplementedError, f"mica::{name}: no gradient"):
                            one(one.variable())
                    else:
                        try:
                            agreed[problem.input] += self.differentiate(one, formula) is True
                        except (NotImplementedError, mica.Error):
                            pass  # said, not left out
            with self.subTest(name):
                missing = [n for n in (formula.inputs if formula else ()) if not agreed[n]]
                self.assertEqual(missing, [], "no problem of the case files has shown their gradient")

    def test_the_dispatcher_says_the_same(self):
        def outcome(one):
            try:
                x = one.variable()
                results = one(x)
                carriers = [r for r in results.values() if r.requires_grad]
                return [r.requires_grad for r in results.values()], torch.autograd.grad([r.sum() for r in carriers], x)[0]
            except (NotImplementedError, mica.Error) as error:
                return str(error)

        for name in M.operators:
            for problem in judge.smooth_problems(name, 1):
                with self.subTest(problem.line, input=problem.input):
                    one = Call(problem)
                    direct = outcome(one)
                    with mock.patch("mica.torch._library.plain", lambda values: False):
                        dispatched = outcome(one)
                    if isinstance(direct, str):
                        self.assertEqual(direct, dispatched)
                    else:
                        self.assertEqual(direct[0], dispatched[0])
                        torch.testing.assert_close(direct[1], dispatched[1], rtol=0, atol=0, equal_nan=True)

    def test_a_result_without_gradient_says_so(self):
        x = torch.randn(4, 6, requires_grad=True)
        y, mean, rstd = torch.ops.mica.norm(x, described=["mean=f32:4", "rstd=f32:4"])
        self.assertTrue(y.requires_grad)
        for statistic in (mean, rstd):
            with self.assertRaisesRegex(RuntimeError, "does not require grad"):
                statistic.sum().backward()

    def test_an_input_without_gradient_says_so(self):
        q = torch.randn(1, 2, 4, 6)
        cos, sin = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3)
        with self.assertRaisesRegex(NotImplementedError, "mica::rope: no gradient for cos; of its inputs k, q have one: detach cos"):
            M.rope(q, positions=torch.zeros(1, 4, dtype=torch.int64), cos=cos, sin=sin)
        M.rope(q, positions=torch.zeros(1, 4, dtype=torch.int64), cos=cos.detach(), sin=sin)
        with self.assertRaisesRegex(NotImplementedError, "mica::norm: no gradient for running_mean"):
            M.batch_norm(torch.randn(3, 4), torch.zeros(4, requires_grad=True), torch.ones(4))


if __name__ == "__main__":
    unittest.main()
