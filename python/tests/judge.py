# SPDX-License-Identifier: Apache-2.0
"""What the tests share: inputs and the truth of a problem, both the library's own (mica_problem_fill,
mica_problem_reference), as NumPy arrays."""

import ctypes
import pathlib
import re
from collections import defaultdict, namedtuple

import numpy as np

from mica._errors import Error, check
from mica._library import abi, byref, lib
from mica._tables import python_name, table_of
from mica._tensor import Tensor, dtype_bits

ROOT = pathlib.Path(__file__).resolve().parents[2]
NUMPY = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "s8": np.int8, "u8": np.uint8, "s32": np.int32,
         "s64": np.int64, "u32": np.uint32, "bool": np.bool_, "bf16": np.uint16, "e4m3": np.uint8, "e5m2": np.uint8,
         "e8m0": np.uint8}


def holds(tensor):
    """Whether `array` can: of four bits, pairs of neighbours that share a byte."""
    if dtype_bits[tensor.dtype] >= 8:
        return True
    return tensor.shape[-1] % 2 == 0 and tensor.strides[-1] == 1 and not any(step % 2 for step in tensor.strides[:-1])


def array(tensor):
    """Zeros with the strides of a tensor, in NumPy (bits, where it has no such type; of four bits bytes, with which
    mica.view begins)."""
    if dtype_bits[tensor.dtype] < 8:
        halves = lambda sizes: tuple(n // 2 for n in sizes)
        assert holds(tensor), tensor
        tensor = Tensor("u8", tensor.shape[:-1] + halves(tensor.shape[-1:]), halves(tensor.strides[:-1]) + (1,))
    dtype = np.dtype(NUMPY[tensor.dtype])
    span, first = tensor._span()
    strides = tuple(step * dtype.itemsize for step in tensor.strides)
    return np.ndarray(tensor.shape, dtype, np.zeros(max(span, 1), np.uint8), -first, strides)


class Problem:
    def __init__(self, line):
        self.handle = ctypes.c_void_p()
        check(lib.mica_problem_from_text(line.encode(), byref(self.handle)))
        self.args, info = [], abi.mica_arg_info()
        while lib.mica_problem_arg(self.handle, len(self.args), byref(info)) == 0:
            self.args.append((info.name.decode(), info.dir, Tensor.of(info.tensor)))

    def __del__(self):
        lib.mica_problem_destroy(self.handle)

    def exact(self):
        return lib.mica_problem_exact(self.handle)

    def scalars(self, count):
        given = ctypes.cast(lib.mica_problem_scalars(self.handle), ctypes.POINTER(ctypes.c_double))
        return given[:count]

    def inputs(self, fill=0, seed=1):
        """By name: arrays of what the problem reads."""
        found = {}
        for index, (name, direction, tensor) in enumerate(self.args):
            if direction in (abi.MICA_IN, abi.MICA_INOUT):
                values = (ctypes.c_double * max(tensor.count, 1))()
                check(lib.mica_problem_fill(self.handle, index, fill, seed, values))
                found[name] = array(tensor)
                check(lib.mica_tensor_store(byref(tensor._struct()), values, found[name].ctypes.data))
        return found

    def truth(self, inputs):
        """By name: what the reference makes of it, and the sum of magnitudes of each element."""
        count = len(self.args)
        pointers, results, magnitudes, found = (ctypes.c_void_p * 64)(), (ctypes.c_void_p * 64)(), (ctypes.c_void_p * 64)(), {}
        for index, (name, direction, tensor) in enumerate(self.args):
            if name in inputs:
                pointers[index] = inputs[name].ctypes.data
            if direction in (abi.MICA_OUT, abi.MICA_INOUT):
                found[name] = np.zeros(tensor.shape), np.zeros(tensor.shape)
                results[index], magnitudes[index] = (a.ctypes.data for a in found[name])
        check(lib.mica_problem_reference(self.handle, pointers, results, magnitudes))
        assert count == len(self.args)
        return found


def values(tensor, a):
    """An array's values as doubles, whatever its type."""
    found = np.zeros(tensor.shape)
    check(lib.mica_tensor_load(byref(tensor._struct()), a.ctypes.data, found.ctypes.data))
    return found


def case_lines(op, most):
    """Plain lines of the operation's case files."""
    found = []
    for file in sorted((ROOT / "tests" / "cases").glob("*.txt")):
        for line in file.read_text().splitlines():
            line = line.strip()
            if line.split(" ")[0] == op and not set(line) & set("{}#*,") and len(line) < 300:
                found.append(line)
    step = max(1, len(found) // most)
    return found[::step][:most]


def case_problems(op, rounds=4):
    """Problem lines of the operation's case files: of a line that stands for several, one in each round."""
    found = {}
    for turn in range(rounds):
        for file in sorted((ROOT / "tests" / "cases").glob("*.txt")):
            for line in file.read_text().splitlines():
                line = line.split("#")[0].strip()
                if line.split(" ")[0] != op:
                    continue
                line = re.sub(r"\{([^{}]*)\}", lambda m: _pick(m[1], turn), line)
                line = " ".join(_pick(word, turn) if "=" not in word else word.split("=")[0] + "=" + _pick(word.split("=", 1)[1], turn)
                                for word in line.split())
                found[line.replace("|", ",")] = None
    return list(found)


def _pick(values, turn):
    values = values.split(",")
    return values[turn % len(values)]


Smooth = namedtuple("Smooth", "op line input inputs fields described")


# Gradients of steps, by agreement no derivatives. tests/unit/test_fake_quantize.c has PyTorch's.
STRAIGHT_THROUGH = {"fake_quantize"}


def smooth_problems(op, most, elements=20000):
    """Problems of the first pass to differentiate: by each of their floating-point inputs, all of which are f64 and away
    from 0, where functions have their kinks; of one sign, and of both. Of each input so many, from all of the case
    files. A hard choice is left out: it has a gradient by agreement, and is no function of which that is one; CTC of
    log-probabilities has such a one, too, and by its name the derivative."""
    table, found, random = table_of(op), defaultdict(list), np.random.default_rng(0)
    for line in case_problems(op):
        line = re.sub(r"=(f32|f16|bf16|e4m3|e5m2)\b", "=f64", line)
        scaled = any(re.search(rf"\b{s}=", line) for s in {"alpha", "beta"} & set(table.scalars))
        if scaled or re.search(r"\b(pass=(?!fwd)|hard=1|window=x)", line):  # window=x3: of the second axis
            continue
        line = re.sub(r"input=log_probs(?!.*gradient=)", "input=log_probs gradient=by_log_probs", line)
        try:
            problem = Problem(line)
            tensors = [t for *_, t in problem.args]
            if sum(t.count for t in tensors) > elements or max(t._span()[0] for t in tensors) > 2 * elements:
                continue
            if any(step < 0 for t in tensors for step in t.strides):  # which neither PyTorch nor JAX has
                continue
            if any(0 < dtype_bits.get(t.dtype, 0) < 8 for t in tensors):  # nothing smooth, and no array of all of these
                continue
            inputs = {python_name(n): a for n, a in problem.inputs().items()}
            fields, described = fields_of(table, line, inputs)
        except (Error, KeyError):  # of types of which some are not f64's
            continue
        if op == "max_unpool":  # of equal indices one stays: what the others' gradients are is an agreement, too
            places = int(np.prod(next(t for n, _, t in problem.args if n == "y").shape[2:]))
            if np.prod(inputs["indices"].shape[2:]) > places:
                continue
            if inputs["indices"].size:
                inputs["indices"] = distinct(inputs["indices"], places, random)
        smooth = [python_name(n) for n, d, t in problem.args if d == abi.MICA_IN and t.dtype == "f64" and t.count]
        for signs in ([1.0], [-1.0, 1.0]):
            drawn = {n: np.asarray(random.uniform(0.1, 0.9, a.shape) * random.choice(signs, a.shape)) if n in smooth else a
                     for n, a in inputs.items()}
            for n in smooth:
                found[n].append(Smooth(op, line, n, drawn, fields, described))
    return [problem for rows in found.values() for problem in rows[:: max(1, len(rows) // most)][: most + 1]]


def distinct(indices, count, random):
    """As many of so many places for each plane, no place twice."""
    planes = [random.permutation(count)[: int(np.prod(indices.shape[2:]))] for _ in range(int(np.prod(indices.shape[:2])))]
    return np.stack(planes).reshape(indices.shape).astype(indices.dtype)


def fields_of(table, line, inputs):
    """The fields of a line as arguments of the operation's function, and descriptions of tensors that are no inputs."""
    given, described = {}, {}
    for pair in line.split()[1:]:
        name, value = pair.split("=", 1)
        field = table.field.get(python_name(name))
        if field is None or field.python in inputs:
            continue
        if field.type == "tensor":
            described[field.python] = value
        elif field.type == "flag":
            given[field.python] = value == "1"
        elif field.type == "axes":
            given[field.python] = [int(v) for v in re.findall(r"-?\d+", value)]
        elif field.type == "list":
            given[field.python] = value.split(",")
        else:
            given[field.python] = {"int": int, "float": float, "enum": str, "text": str}[field.type](value)
    return given, described


def stored(tensor, expected):
    """Doubles as the tensor's type holds them: saturated, rounded."""
    a = array(tensor)
    expected = np.ascontiguousarray(expected)
    check(lib.mica_tensor_store(byref(tensor._struct()), expected.ctypes.data, a.ctypes.data))
    return values(tensor, a)
