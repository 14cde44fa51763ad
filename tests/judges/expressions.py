#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What NumPy 2.x and PyTorch 2.x make of expressions, for tests/unit/test_expression_judges.c:

    tests/judges/expressions.py | clang-format-14 --assume-filename=tests/judges/x.h > tests/judges/expressions.h

Each expression is written a second time, in their words. Values are such that every sum is exact in any order, so
that results are compared bit by bit."""
import numpy as np
import torch

if np.lib.NumpyVersion(np.__version__) < "2.0.0" or not torch.__version__.startswith("2."):
    raise SystemExit(f"NumPy is {np.__version__} and PyTorch {torch.__version__}, the values are those of 2.x")

X, Y, DY, DX = 0, 8, 12, 16
NAMES = {np.dtype("float64"): "f64", np.dtype("float32"): "f32", np.dtype("float16"): "f16", np.dtype("int8"): "s8",
         np.dtype("uint8"): "u8", np.dtype("int32"): "s32", np.dtype("int64"): "s64", np.dtype("uint32"): "u32",
         np.dtype("bool"): "bool"}
rng = np.random.default_rng(41)


def small(*shape, type=np.float32):
    """Quarters of small integers, none of them 0."""
    v = rng.integers(1, 9, shape) * rng.choice([-1, 1], shape)
    return (v / 4).astype(type)


def described(name, array):
    return f"{name}={NAMES[array.dtype]}:{'x'.join(map(str, array.shape)) or 1}"


def emit(words, arrays):
    """arrays: by number of the argument; each element as the bits of its type."""
    line = " ".join(["pointwise"] + words)
    rows = []
    for number, array in arrays.items():
        raw = np.ascontiguousarray(array).reshape(-1)
        raw = raw.view(f"u{raw.dtype.itemsize}") if raw.dtype != bool else raw.astype(np.uint8)
        rows.append(f"{{{number}, {raw.size}, (const uint64_t[]){{{', '.join(f'{int(v):#x}' for v in raw)}}}}}")
    print(f'{{"{line}", {{{", ".join(rows)}}}}},')


# ---- gradients of what was broadcast: PyTorch's autograd ----


def gradients(expr, function, *xs):
    tensors = [torch.tensor(x, requires_grad=True) for x in xs]
    results = function(*tensors)
    results = results if isinstance(results, tuple) else (results,)
    dys = [small(*r.shape, type=r.detach().numpy().dtype) for r in results]
    torch.autograd.backward(results, [torch.tensor(dy) for dy in dys])
    arrays = {X + k: x for k, x in enumerate(xs)} | {DY + k: dy for k, dy in enumerate(dys)}
    arrays |= {DX + k: t.grad.numpy() for k, t in enumerate(tensors)}
    emit(["pass=bwd", f"expr={expr}", *(described(f"x{k}", x) for k, x in enumerate(xs))], arrays)


def all_gradients():
    f64 = np.float64
    gradients("x0*x1+x2", lambda a, b, c: a * b + c, small(5, 7), small(7), small(5, 1))
    gradients("x0*x1+x2", lambda a, b, c: a * b + c, small(5, 7, type=f64), small(7, type=f64), small(1, type=f64))
    gradients("x0*x1", lambda a, b: a * b, small(3, 1, 4), small(1, 5, 1))
    gradients("x0*x1;x0-2*x1", lambda a, b: (a * b, a - 2 * b), small(2, 1, 3, 1), small(4, 1, 6))
    gradients("relu(x0)*x1+max(x0,x1)", lambda a, b: torch.relu(a) * b + torch.maximum(a, b), small(17, 3),
              small(1, 3))
    gradients("where(x0>x1,x0*x0,3*x1)", lambda a, b: torch.where(a > b, a * a, 3 * b), small(1, 9), small(7, 1))
    gradients("x0*x1", lambda a, b: a * b, small(1), small(70))
    gradients("x0*x1", lambda a, b: a * b, small(2, 1, 2, 1, 2, 1, 2, 1), small(3, 1, 2, 1, 2, 1, 2))


# ---- s64: NumPy's int64 ----

EDGES = [0, 1, -1, 7, -8, 2**31, -2**31 - 1, 2**53 + 1, -2**53 - 1, 2**62 + 3, 2**63 - 1, -2**63, 1234567890123456789]


def values(expr, function, *xs, type=None):
    """type: of y, where it is not what the expression gives."""
    with np.errstate(all="ignore"):
        results = function(*xs)
    results = results if isinstance(results, tuple) else (results,)
    words = [f"expr={expr}", *(described(f"x{k}", x) for k, x in enumerate(xs))]
    words += [described(f"y{k}", r) for k, r in enumerate(results) if type or not xs]
    results = [np.asarray(r, type) for r in results]
    emit(words, {X + k: x for k, x in enumerate(xs)} | {Y + k: r for k, r in enumerate(results)})


def all_s64():
    pairs = rng.permutation([(a, b) for a in EDGES for b in EDGES])[:27]
    pairs = np.concatenate([pairs, [(-2**63, -1), (2**63 - 1, 1), (2**63 - 1, 2**63 - 1), (-2**63, 0), (7, 0)]])
    a, b = (pairs[:, k].astype(np.int64) for k in range(2))
    few = np.array([0, 1, -1, 5, 31, 32, 62, 63, 64, 65, -2**63], np.int64)
    values("x0+x1;x0-x1;x0*x1", lambda a, b: (a + b, a - b, a * b), a, b)
    values("-x0;abs(x0);square(x0);sign(x0)", lambda a: (-a, np.abs(a), a * a, np.sign(a)), a)
    values("floordiv(x0,x1);rem(x0,x1);fmod(x0,x1)", lambda a, b: (a // b, a % b, np.fmod(a, b)), a, b)
    values("min(x0,x1);max(x0,x1);relu(x0);clamp(x0,-5,x1)", lambda a, b: (
        np.minimum(a, b), np.maximum(a, b), np.maximum(a, 0), np.where(a < -5, -5, np.minimum(a, b))), a, b)
    values("x0<x1;x0<=x1;x0==x1;x0!=x1", lambda a, b: (a < b, a <= b, a == b, a != b), a, b)
    values("x0>9007199254740992;x0>=x1;!x0;x0&&x1", lambda a, b: (
        a > 2**53, a >= b, a == 0, np.logical_and(a, b)), a, b)
    values("x0&x1;x0|x1;x0^x1;~x0", lambda a, b: (a & b, a | b, a ^ b, ~a), a, b)
    c, n = (v.reshape(-1).copy() for v in np.meshgrid(np.array(EDGES[-8:], np.int64), few))
    values("x0<<x1;x0>>x1", lambda a, b: (np.left_shift(a, b), np.right_shift(a, b)), c, n)
    values("gcd(x0,x1)", lambda a, b: np.gcd(a, b), a, b)
    values("lcm(x0,x1)", lambda a, b: np.lcm(a, b), a % 2**31, b % 2**31)
    values("popcount(x0)", lambda a: np.bitwise_count(a.view(np.uint64)).astype(np.int64), a)
    values("where(x0<x1,x0,x1)+9007199254740993", lambda a, b: np.where(a < b, a, b) + (2**53 + 1), a, b)
    values("where(x0,x1,x0-1)", lambda a, b: np.where(a != 0, b, a - 1), a, b)
    values("s8(x0);u8(x0);s32(x0);u32(x0)", lambda a: tuple(
        a.astype(t) for t in (np.int8, np.uint8, np.int32, np.uint32)), a)
    values("bool(x0)", lambda a: a.astype(bool), a)
    values("x0", lambda a: a.astype(np.float64), a, type=np.float64)
    ties = np.array([2**60 + 2**36, 2**60 + 2**36 + 1, 2**60 + 2**36 - 1, -2**60 - 2**36 - 1, 2**24 + 1], np.int64)
    values("x0", lambda a: a.astype(np.float32), ties, type=np.float32)
    values("f32(x0)*1.0", lambda a: a.astype(np.float32), ties, type=np.float32)
    values("x0/x1", lambda a, b: a / b, a, b, type=np.float64)
    values("x0*0.5+x1", lambda a, b: a * 0.5 + b, a % 2**40, small(a.size), type=np.float64)
    with np.errstate(all="ignore"):
        s32, u32, s8 = a.astype(np.int32), b.astype(np.uint32), a.astype(np.int8)
    values("x0+x1;x0*x1;x0<x1", lambda a, b: (a + b, a * b, a < b), s32, u32)
    values("x0-x1;x0|x1", lambda a, b: (a - b, a | b), s8, u32)
    values("x0-x1", lambda a, b: a - b, b, s8)
    values("x0", lambda a: a.astype(np.int64), u32, type=np.int64)


# ---- places ----


def all_places():
    i = lambda *shape: np.indices(shape, np.int64)
    values("where(i0>=i1,x0,0)", np.tril, small(5, 7))
    values("where(i1-i0>=2,x0,0)", lambda x: np.triu(x, 2), small(6, 9))
    values("i0*1000000007+i1;i2", lambda: (i(2, 5, 3)[0] * 1000000007 + i(2, 5, 3)[1], i(2, 5, 3)[2]))
    values("i0==i1", lambda: np.eye(6, dtype=bool))
    values("i7-i0", lambda: i(2, 1, 2, 1, 2, 1, 2, 3)[7] - i(2, 1, 2, 1, 2, 1, 2, 3)[0])
    values("x0+x1*i0+i1", lambda a, b: a + b * i(5, 7)[0].astype(np.float32) + i(5, 7)[1].astype(np.float32),
           small(7), small(5, 1))
    values("x0*2305843009213693952+i0", lambda a: a * 2**61 + i(13)[0], np.array(EDGES, np.int64))
    values("i0", lambda: np.arange(400, dtype=np.int64))


def main():
    print("/* SPDX-License-Identifier: Apache-2.0")
    print(" * Written by tests/judges/expressions.py with NumPy and PyTorch: a line, and of each argument its number,")
    print(" * how many elements it has, and their bits. */")
    all_gradients()
    all_s64()
    all_places()


if __name__ == "__main__":
    main()
