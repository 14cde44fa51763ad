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


def main():
    print("/* SPDX-License-Identifier: Apache-2.0")
    print(" * Written by tests/judges/expressions.py with NumPy and PyTorch: a line, and of each argument its number,")
    print(" * how many elements it has, and their bits. */")
    all_gradients()


if __name__ == "__main__":
    main()
