#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""random and dropout before judges that nobody here wrote: XLA's Philox, SciPy's tests and distributions, NumPy's
packbits. By hand, with the package of a build:

    pip install jax==0.10.2 scipy==1.17.1 numpy==2.4.6
    PYTHONPATH=build/python MICA_LIBRARY=build/libmica.so tests/judges/random_numbers.py

Seeds are fixed, so that it passes always or never. Prints a line for each judgement; fails if one is against us."""
import sys

import jax
import numpy as np
import scipy
from scipy import stats

import mica

PINNED = {"jax": (jax.__version__, "0.10.2"), "scipy": (scipy.__version__, "1.17.1"), "numpy": (np.__version__, "2.4.6")}
for name, (found, wanted) in PINNED.items():
    if found != wanted:
        raise SystemExit(f"{name} is {found}, the judge is {wanted}")

RARE = 1e-4  # of a right generator, less than once in so many
failed = 0


def judge(what, good, figure):
    global failed
    failed += not good
    print(f"{'ok ' if good else 'BAD'} {what}: {figure}")


def draw(y, seed, offset=0, **fields):
    return mica.random(np.array([seed, offset], np.int64), y=y, **fields)


# ---- bits: XLA's key {k0, k1} and counter c are key {k0, k1} and counter {c mod 2^32, c / 2^32, k0, k1}; with k0 = 0
# that is seed 2^32 k1, offset k1, index 4 c

def xla(k1, counter, count):
    state = jax.numpy.array([0, k1, counter % 2**32, counter >> 32], jax.numpy.uint32)
    algorithm = jax.lax.RandomAlgorithm.RNG_PHILOX
    return np.asarray(jax.lax.rng_bit_generator(state, (count,), jax.numpy.uint32, algorithm)[1])


for k1, counter in (0, 0), (1, 0), (0x299f31d0, 0x85a308d3), (0x7fffffff, 2**32 - 3), (12345, 2**40 + 17):
    want = xla(k1, counter, 4096)
    for dtype in "u32", "u8", "s8", "s32", "s64":
        size = {"u32": np.uint32, "u8": np.uint8, "s8": np.int8, "s32": np.int32, "s64": np.int64}[dtype]
        count = 4096 * 4 // size().itemsize
        got = draw(f"{dtype}:{count}", k1 << 32, k1, kind="bits", first=counter * 16 // size().itemsize)
        judge(f"XLA's bits as {dtype}, key {k1}, counter {counter}", np.array_equal(got, want.view(size)), f"{count} elements")

# ---- values: the same words by NumPy and SciPy; words to (0, 1] in the type, the rest in long doubles

COUNT = 1 << 20
LONG, PI = np.longdouble, np.arctan2(np.longdouble(0), np.longdouble(-1))
w32 = draw(f"u32:{COUNT}", 99, kind="bits")
w64 = draw(f"s64:{COUNT}", 99, kind="bits").view(np.uint64)
open32 = ((w32 >> np.uint32(1)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-31)
open64 = ((w64 >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def box_muller(u, turns):
    r, t = np.sqrt(-2 * np.log(u[::2].astype(LONG))), 2 * PI * turns[1::2]
    return np.stack((r * np.cos(t), r * np.sin(t)), 1).ravel()


def near(what, got, want, unit, units):
    """In units of the last place of values of about 1 and more."""
    most = np.max(np.abs(got - want) / np.maximum(np.abs(want), 1)) / unit
    judge(what, most <= units, f"off by {most:.2f} units at most, {units} allowed")


for dtype, unit, u, turns in (("f32", 2.0**-24, open32, w32.astype(LONG) / 2**32),
                              ("f64", 2.0**-53, open64, w64.astype(LONG) / 2.0**64)):
    near(f"normal {dtype} and NumPy", draw(f"{dtype}:{COUNT}", 99, kind="normal"), box_muller(u, turns), unit, 8)
    near(f"exponential {dtype} and NumPy", draw(f"{dtype}:{COUNT}", 99, kind="exponential"), -np.log(u.astype(LONG)), unit, 8)
# Above the mean u counts from the upper end.
u = open64[:65536]
for low, high in (-2, 2), (-12, -8), (0.5, 3), (8, 12):
    got, law = draw("f64:65536", 99, kind="truncated_normal", low=low, high=high), stats.norm
    near_end, far_end = (-high, -low) if low > 0 else (low, high)
    want = law.ppf(law.cdf(near_end) + (law.cdf(far_end) - law.cdf(near_end)) * u)
    near(f"truncated normal {low} to {high} and SciPy", -got if low > 0 else got, want, 2.0**-53, 64)

# ---- distributions

CONTINUOUS = {
    "uniform": (dict(), stats.uniform()),
    "uniform -3 to 5": (dict(kind="uniform", low=-3.0, high=5.0), stats.uniform(-3, 8)),
    "normal": (dict(), stats.norm()),
    "normal 1, 2": (dict(kind="normal", mean=1.0, std=2.0), stats.norm(1, 2)),
    "exponential": (dict(rate=2.0), stats.expon(scale=0.5)),
    "truncated_normal": (dict(), stats.truncnorm(-2, 2)),
    "truncated_normal 9 to 30": (dict(kind="truncated_normal", low=9.0, high=30.0), stats.truncnorm(9, 30)),
}
for name, (fields, law) in CONTINUOUS.items():
    for dtype in "f32", "f64":
        v = np.asarray(draw(f"{dtype}:400000", 7, 1, **({"kind": name} | fields)), np.float64)
        p = stats.kstest(v, law.cdf).pvalue
        judge(f"{name} {dtype}, Kolmogorov and Smirnov", p > RARE, f"p = {p:.3g}")
        mean = (v.mean() - law.mean()) / (law.std() / v.size**0.5)
        judge(f"{name} {dtype}, mean", abs(mean) < 3.9, f"{mean:.2f} standard errors")
        for lag in 1, 2, 3, 4, 8:
            p = stats.pearsonr(v[:-lag], v[lag:]).pvalue
            judge(f"{name} {dtype}, neighbours {lag} apart", p > RARE, f"p = {p:.3g}")


def even(what, counts):
    p = stats.chisquare(counts).pvalue
    judge(f"{what}, chi squared", p > RARE, f"p = {p:.3g}")


for bits, lane in (8, "u8"), (8, "s8"):
    even(f"bits {lane}", np.bincount(draw(f"{lane}:1000000", 3, kind="bits").view(np.uint8), minlength=256))
even("integers -3 to 6", np.bincount(draw("s32:700000", 4, kind="integers", from_=-3, to=7) + 3))
wide = draw("s64:300000", 5, kind="integers", from_=-3 * 2**61, to=3 * 2**61)
even("integers of three quarters of s64", np.histogram(wide.astype(float), 24, (-3 * 2.0**61, 3 * 2.0**61))[0])
for p in 0.1, 0.5, 0.9:
    ones = int(draw("bool:1000000", 6, kind="bernoulli", p=p).sum())
    judge(f"bernoulli {p}", stats.binomtest(ones, 1000000, p).pvalue > RARE, f"{ones} of 1000000")
for n in 3, 5:
    orders = {}
    for seed in range(12000):
        order = tuple(draw(f"s32:{n}", seed, 8, kind="permutation"))
        orders[order] = orders.get(order, 0) + 1
    factorial = 6 if n == 3 else 120
    even(f"all {factorial} orders of {n}", list(orders.values()) + [0] * (factorial - len(orders)))
for n in 257, 1000, 4096, 5000:
    table = np.zeros((16, 16), int)
    fixed = []
    for seed in range(400):
        order = draw(f"s32:{n}", seed, 8, kind="permutation")
        if seed == 0:
            judge(f"permutation of {n}", np.array_equal(np.sort(order), np.arange(n)), "each once")
        fixed.append(int((order == np.arange(n)).sum()))
        spot = np.arange(seed % 16, n, 16)
        np.add.at(table, (spot * 16 // n, order[spot] * 16 // n), 1)
    p = stats.chi2_contingency(table).pvalue
    judge(f"places in orders of {n}, contingency", p > RARE, f"p = {p:.3g}")
    p = stats.poisson.sf(sum(fixed) - 1, 400), stats.poisson.cdf(sum(fixed), 400)
    judge(f"fixed points in orders of {n}, Poisson", min(p) > RARE, f"{sum(fixed)} of about 400")

# ---- dropout

x = np.linspace(-4, 4, 37 * 1001, dtype=np.float32).reshape(37, 1001)
rng = np.array([11, 12], np.int64)
for p in 0.1, 0.5:
    y, mask, bits = mica.dropout(x, rng=rng, p=p, mask="bool", bits="u8")
    judge(f"dropout {p}, NumPy's packbits", np.array_equal(bits, np.packbits(mask, axis=-1, bitorder="little")), bits.shape)
    judge(f"dropout {p}, values", np.array_equal(y, np.where(mask, x * np.float32(1 / (1 - p)), np.float32(0))), y.shape)
    kept = int(mask.sum())
    judge(f"dropout {p}, share", stats.binomtest(kept, mask.size, 1 - p).pvalue > RARE, f"{kept} of {mask.size} kept")

print("against us:", failed)
sys.exit(failed != 0)
