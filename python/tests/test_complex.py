# SPDX-License-Identifier: Apache-2.0
"""The expressions of docs/complex.md, each row of its table, against NumPy's complex numbers: parts as strided views, in
both precisions; the gradient of a product."""

import os
import re
import unittest

import numpy as np

import mica

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/complex.md")
NUMPY = {
    "real": np.real, "imag": np.imag, "conj": np.conj, "neg": np.negative, "abs": np.abs, "angle": np.angle,
    "abs2": lambda z: z.real**2 + z.imag**2, "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "reciprocal": lambda z: 1 / z, "square": np.square, "sgn": lambda z: np.where(z == 0, 0, z / np.where(z == 0, 1, np.abs(z))),
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "sinh": np.sinh, "cosh": np.cosh,
    "polar": lambda z: z.real * np.exp(1j * z.imag), "eq": lambda z, w: z == w, "isfinite": np.isfinite,
}
POLES = {"log", "reciprocal"}  # not at 0


def rows():
    with open(PAGE) as page:
        return dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|$", page.read(), re.M))


def numbers(kind, rng, count=501, zeros=True):
    """Both parts of either sign and from small to large; zeros, and equal parts."""
    z = (rng.standard_normal(count) + 1j * rng.standard_normal(count)) * 2.0**rng.integers(-6, 3, count)
    z[:6] = [1, -1, 1j, -1j, 0 if zeros else 2, 3 + 3j]
    return z.astype(kind)


def evaluate(expr, *given):
    parts = [part for z in given for part in (z.real, z.imag)]
    used = [p for i, p in enumerate(parts) if f"x{i}" in expr]
    first = min(i for i in range(len(parts)) if f"x{i}" in expr)
    if len(used) < len(parts):  # real and imag alone
        return mica.pointwise(used[0], expr=expr.replace(f"x{first}", "x0"))
    if ";" not in expr:
        return mica.pointwise(*parts, expr=expr)
    y = np.empty(given[0].shape, given[0].dtype)
    mica.pointwise(*parts, expr=expr, out=[y.real, y.imag])
    return y


class Complex(unittest.TestCase):
    def test_page_and_test_have_the_same_rows(self):
        self.assertEqual(set(rows()), set(NUMPY))

    def test_values(self):
        for kind in (np.complex64, np.complex128):
            rng = np.random.default_rng(7)
            for name, expr in rows().items():
                two = "x2" in expr
                given = [numbers(kind, rng, zeros=name not in POLES)] + ([numbers(kind, rng, zeros=False)] if two else [])
                if name == "eq":
                    given[1][::3] = given[0][::3]
                wide = [z.astype(np.complex128 if kind == np.complex64 else np.clongdouble) for z in given]
                found, want = evaluate(expr, *given), NUMPY[name](*wide)
                self.assertEqual(np.iscomplexobj(found), np.iscomplexobj(want) or name in ("polar", "sgn"), name)
                if want.dtype == bool:
                    np.testing.assert_array_equal(found, want, name)
                    continue
                off = np.abs(found - want) / np.maximum(np.abs(want), np.finfo(kind).tiny)
                if name == "log":  # to a roundoff of |z|, which is 1 here and there
                    off = np.abs(found - want) / np.maximum(np.abs(want), 1)
                self.assertLess(off.max(), 12 * np.finfo(kind).eps, name)

    def test_large_and_small(self):
        """Where squares overflow or vanish, quotients and absolute values do not."""
        z, w = np.array([3e30 + 4e30j, 3e-30 - 4e-30j], np.complex64), np.array([1e30 - 1e30j, 2e-30 + 1e-31j], np.complex64)
        table = rows()
        for name, given in (("abs", [z]), ("div", [z, w]), ("sqrt", [z]), ("reciprocal", [w])):
            want = NUMPY[name](*[g.astype(np.complex128) for g in given])
            np.testing.assert_allclose(evaluate(table[name], *given), want, 1e-6, err_msg=name)

    def test_gradient_of_a_product(self):
        rng = np.random.default_rng(11)
        z, w, g = (numbers(np.complex128, rng) for _ in range(3))
        found = mica.pointwise(z.real, z.imag, w.real, w.imag, expr=rows()["mul"], pass_="bwd", dy0=g.real, dy1=g.imag)
        np.testing.assert_allclose(found[0] + 1j * found[1], g * np.conj(w), 1e-13)
        np.testing.assert_allclose(found[2] + 1j * found[3], g * np.conj(z), 1e-13)


if __name__ == "__main__":
    unittest.main()
