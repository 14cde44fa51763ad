# SPDX-License-Identifier: Apache-2.0
"""mica's operators on JAX's arrays, on the CPU: taken as they are, results are JAX's, none is an output."""

import unittest

import jax
import jax.numpy as jnp
import numpy as np

import mica

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


if __name__ == "__main__":
    unittest.main()
