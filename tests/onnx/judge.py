#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""judge.py [--device D] [--share I/N] [--engines I/N] [--op NAME] [--page FILE | --compare FILE]: ONNX's node tests as judge.

Every test of one node that the onnx package has, in problem lines (rules.py), through every engine of the device that takes
them; results must be those that onnx says, within its tolerances and of its types and sizes. What cannot be said in lines is
counted with a reason. Fails if a result differs, if an operator has neither a rule nor a reason, if a rule refuses all of
its tests.

--share 3/20: every twentieth test, from the third. --engines 3/20: of those only every twentieth by all engines, the others by
the planner's choice; 0/0: none. --page writes docs/onnx.md, --compare says whether FILE is what would be written. `make test-onnx`
runs all of it on the CPU."""
import argparse
import collections
import ctypes
import pathlib
import re
import sys
import types
import warnings

import numpy as np

import mica
from mica._arrays import View, _own
from mica._explain import Explanation
from mica._library import abi, byref, lib
from mica._errors import check
from mica._plan import Plan
from mica._tables import options_struct, table_of
from mica._tensor import Tensor

import rules
import rules_boxes  # noqa: F401 its rules are in rules.RULES then
from rules import Missing

ONNX = "1.23.2"
FOREIGN = {ours: theirs for theirs, ours in (rules.TYPES | rules.HALF_BYTES).items()}


def dtype_of(kind):
    try:
        return np.dtype(FOREIGN[kind])
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, FOREIGN[kind]))


def packed(array):
    """Elements of four bits as bytes, the first of two in the low half."""
    codes = np.ravel(array).view(np.uint8) & 15
    codes = np.append(codes, np.zeros(codes.size % 2, np.uint8))
    return codes[0::2] | codes[1::2] << 4


def unpacked(memory, tensor):
    codes = np.stack([memory & 15, memory >> 4], -1).reshape(-1)[: tensor.count]
    if tensor.dtype == "s4":
        codes = (codes ^ 8) - np.uint8(8)
    return codes.view(dtype_of(tensor.dtype)).reshape(tensor.shape)


def tensor_of(array):
    array = np.asarray(array)
    kind = rules.type_of(array, rules.HALF_BYTES)
    if array.ndim == 0:
        array = array.reshape(1)
    if kind in rules.HALF_BYTES.values():
        return Tensor(kind, array.shape), packed(array)
    return Tensor(kind, array.shape, tuple(step // array.itemsize for step in array.strides)), array


def empty(tensor):
    dtype = dtype_of(tensor.dtype)
    span, first = tensor._span()
    memory = np.full(max(span, 1), 255, np.uint8)
    if tensor.dtype in rules.HALF_BYTES.values():
        return memory
    return np.ndarray(tensor.shape, dtype, memory, -first, tuple(step * dtype.itemsize for step in tensor.strides))


def span_of(array, tensor):
    """Address and length of the memory that the array's elements lie in."""
    size, first = tensor._span()
    return array.__array_interface__["data"][0] + first, size


class Engines:
    """Runs lines on a device. engine: by which engine where it takes the line; None: the planner's choice."""

    def __init__(self, device):
        self.context = mica.Context(device)
        self.engine = None
        self.taken = {}  # line -> engines that take it
        self.met = {}    # engines met by the rules run since it was emptied, in order
        self.lines = collections.Counter()
        self.together = False  # an engine ran whose results are formed together
        self.plans = {}

    def plan(self, table, line):
        if line not in self.taken:
            verdicts = Explanation(line, self.context).engines
            self.taken[line] = [v["engine"] for v in verdicts if v["status"] == "MICA_OK"]
        engine = self.engine if self.engine in self.taken[line] else None
        self.met.update(dict.fromkeys(self.taken[line]))
        if (line, engine) not in self.plans:
            self.plans[line, engine] = Plan(table, line, self.context, options_struct(table, {"engine": engine} if engine else {}))
        plan = self.plans[line, engine]
        self.lines[plan.op, plan.engine] += 1
        self.together |= plan.contract["amplify"] != 0
        return plan

    def run(self, op, results=None, **given):
        table = table_of(op)
        scalars = {name: given.pop(name) for name in list(given) if name in table.scalars}
        arrays, fields = {}, {}
        for name, value in given.items():
            if isinstance(value, np.ndarray) or isinstance(value, np.generic):
                fields[name], arrays[name] = tensor_of(value)
            else:
                fields[name] = value
        plan = self.plan(table, table.line(fields))
        bound, written, back = {}, {}, {}
        for name, arg in plan.args.items():
            if arg.dir == "-":
                continue
            if arg.dir == "in":
                array = arrays.get(name)
                if array is None:
                    assert not arg.tensor.count, f"{op}: no {name}"
                    continue
            else:
                array = written[name] = empty(arg.tensor)
                if name in arrays:
                    array[...] = arrays[name]
            bound[name], back[name] = self.device_array(array, arg.tensor)
        plan.run(**bound, **scalars)
        for name, array in written.items():
            self.fetch(back[name], array, plan.args[name].tensor)
            if plan.args[name].tensor.dtype in rules.HALF_BYTES.values():
                written[name] = unpacked(array, plan.args[name].tensor)
        if results:
            return [written[name] for name in results]
        first, = [written[a.name] for a in plan._outputs]
        return first

    def device_array(self, array, tensor):
        if self.context.name == "cpu":
            if tensor.dtype in rules.HALF_BYTES.values():
                return View(array.ctypes.data, tensor, "cpu", "", array, _own), None
            return array, None
        there = self.context.empty(tensor)
        address, size = span_of(array, tensor)
        if size:
            check(lib.mica_upload(self.context._handle, there.pointer + tensor._span()[1], address, size, None))
        return there, there

    def fetch(self, there, array, tensor):
        address, size = span_of(array, tensor)
        if there is not None and size:
            check(lib.mica_download(self.context._handle, address, there.pointer + tensor._span()[1], size, None))


class Node:
    """A node with its inputs and what is expected; node(name, default) is an attribute."""

    def __init__(self, case, engines):
        import onnx

        proto, = case.model.graph.node
        self.op, self.outputs = proto.op_type, list(proto.output)
        self.domain = proto.domain
        self.attributes = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}
        given, expected = case.data_sets[0]
        values = [self.value(x) for x in given]
        self.expected = [self.value(x) for x in expected]
        names, at = [i.name for i in case.model.graph.input], {}
        constants = {t.name: onnx.numpy_helper.to_array(t) for t in case.model.graph.initializer}
        at.update(constants)
        at.update(zip(names, values))
        self.inputs = [at.get(name) if name else None for name in proto.input]
        self.run, self.engines = engines.run, engines

    @staticmethod
    def value(x):
        import onnx

        if isinstance(x, onnx.TensorProto):
            return onnx.numpy_helper.to_array(x)
        return np.asarray(x) if isinstance(x, (np.generic, int, float)) else x

    def __call__(self, name, default=None):
        return self.attributes.get(name, default)

    def convert(self, x, kind):
        """The same values in another type, contiguous."""
        x = np.asarray(x)
        y = self.run("transform", x=x, y=rules.described(kind, x.shape))
        return y.reshape(x.shape)


def differs(found, expected, rtol, atol, together):
    """Why a result is not what onnx says; "" if it is. As onnx's own runner compares; together: an engine took part that
    forms results together and says so (its contract's amplify), so that each has rounding errors of the largest of them."""
    if found.dtype != expected.dtype:
        return f"of type {found.dtype}, expected {expected.dtype}"
    if found.shape != expected.shape:
        return f"of size {found.shape}, expected {expected.shape}"
    if expected.dtype.kind in "bui":
        wrong = found != expected
        return f"{np.argwhere(wrong)[0].tolist()}: {found[wrong].flat[0]}, expected {expected[wrong].flat[0]}" if wrong.any() else ""
    if expected.dtype.name == "bfloat16":
        rtol = max(rtol, 2**-6)  # onnx's runner does so
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    if together:
        atol = max(atol, 2**-20 * np.abs(expected[np.isfinite(expected)]).max(initial=0))
    right = np.isclose(found, expected, rtol=rtol, atol=atol, equal_nan=True)
    if right.all():
        return ""
    at = tuple(np.argwhere(~right)[0])
    return f"{list(map(int, at))}: {found[at]}, expected {expected[at]}; {(~right).sum()} of {right.size}"


def judge(case, engines, pick):
    """(state, reason): run it by every engine of every rule."""
    node = Node(case, engines)
    if node.op in rules.MISSING:
        return "missing", rules.MISSING[node.op]
    if node.op not in rules.RULES:
        return "failed", "neither a rule nor a reason"
    refused, ran = [], 0
    for rule in rules.RULES[node.op]:
        engines.engine, engines.met = None, {}
        try:
            if not all(x is None or isinstance(x, np.ndarray) for x in node.inputs + node.expected):
                raise Missing("sequences and optionals")
            for engine in run_by_all(rule, node, engines, pick):
                why = compare(engine, node, case)
                if why:
                    return "failed", f"{rule.__name__}, {engines.engine or 'as planned'}: {why}"
                ran += 1
        except Missing as why:
            refused.append(str(why))
        except mica.Unsupported as why:
            refused.append(short(str(why)))
        except Exception as error:
            return "failed", f"{rule.__name__}: {type(error).__name__}: {error}"
    return ("passed", "") if ran else ("missing", refused[0])


def run_by_all(rule, node, engines, pick):
    engines.engine, engines.together = None, False
    yield rule(node)
    for engine in [] if pick else list(engines.met):
        engines.engine, engines.together = engine, False
        yield rule(node)


def compare(found, node, case):
    expected = node.expected
    if len(found) != len(expected):
        return f"{len(found)} results, expected {len(expected)}"
    for i, (a, b) in enumerate(zip(found, expected)):
        if a is None:
            continue
        if b.shape == () and a.size == 1:
            a = a.reshape(())
        why = differs(a, b, case.rtol, case.atol, node.engines.together)
        if why:
            return f"result {i}{why if why.startswith('[') else ' ' + why}"
    return ""


def notices(engines):
    """A judge that would notice nothing proves nothing: results that are wrong in each way, and a rule that is."""
    right = np.array([1, np.nan, np.inf, 0], np.float32)
    for wrong in (right + np.float32(0.01), right[:3], right.astype(np.float64), np.nan_to_num(right),
                  np.array([1, np.nan, np.inf, 3e-7], np.float32), np.array([1, np.inf, np.inf, 0], np.float32)):
        assert differs(wrong, right, 1e-3, 1e-7, False), wrong
    assert not differs(right * np.float32(1.0005), right, 1e-3, 1e-7, False)
    assert differs(np.array([1, 2]), np.array([1, 3]), 1e-3, 1e-7, False)
    x = np.array([-1, 2], np.float32)
    found, = rules.RULES["Abs"][0](types.SimpleNamespace(inputs=[x], expected=[abs(x)], run=engines.run))
    assert not differs(found, abs(x), 1e-3, 1e-7, False) and differs(found, x, 1e-3, 1e-7, False)


def short(text):
    """A refusal without the numbers of the case."""
    return re.sub(r"\s+", " ", text.split("\n")[0])[:160]


def cases():
    import onnx

    if onnx.__version__ != ONNX:
        sys.exit(f"judge: onnx is {onnx.__version__}, the tests are those of {ONNX}: tools/setup onnx")
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [case for case in collect_testcases(None) if len(case.model.graph.node) == 1]
    return sorted(found, key=lambda case: case.name)


def page(rows):
    """docs/onnx.md: rows of operator -> states."""
    total = collections.Counter()
    for states in rows.values():
        total.update(states["count"])
    text = [
        "# ONNX's node tests as judge", "",
        "Generated by `tests/onnx/judge.py --page`; do not edit.", "",
        f"The onnx package {ONNX} has {sum(total.values())} tests of a single node, with results that nobody here made. A rule for each",
        "operator (`tests/onnx/rules.py`) says it in problem lines, from attributes to fields; every engine of the CPU that takes a",
        "line runs it, and results must be onnx's within its own tolerances (relative 1e-3, absolute 1e-7). `make test-onnx` runs all of",
        "them; of each commit's CI a share, and of those some on the emulated GPU.", "",
        f"{total['passed'] + total['failed']} run, {total['passed']} pass, {total['failed']} fail; {total['missing']} cannot be said in lines.", "",
        "| operator | tests | run | passed | missing | why |", "|--|--|--|--|--|--|",
    ]
    for op, states in sorted(rows.items()):
        count = states["count"]
        run = count["passed"] + count["failed"]
        why = "; ".join(f"{reason} ({n})" if run or len(states["why"]) > 1 else reason
                        for reason, n in sorted(states["why"].items(), key=lambda item: (-item[1], item[0])))
        text.append(f"| {op} | {run + count['missing']} | {run} | {count['passed']} | {count['missing']} | {why.replace('|', '/')} |")
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--op")
    parser.add_argument("--engines", default="0/1")
    parser.add_argument("--list", action="store_true", help="print the state of each test")
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("--compare", type=pathlib.Path)
    given = parser.parse_args()
    part, parts = map(int, given.share.split("/"))
    turn, turns = map(int, given.engines.split("/"))
    engines = Engines(given.device)
    notices(engines)
    rows, failed = {}, 0
    for i, case in enumerate(cases()):
        op = case.model.graph.node[0].op_type
        if i % parts != part or (given.op and given.op != op):
            continue
        state, why = judge(case, engines, not turns or i // parts % turns != turn)
        row = rows.setdefault(op, {"count": collections.Counter(), "why": collections.Counter()})
        row["count"][state] += 1
        if state == "missing":
            row["why"][why] += 1
        if state == "failed" or given.list:
            print(f"{state} {case.name} ({op}): {why}", flush=True)
        failed += state == "failed"
    for op, row in rows.items():
        if parts == 1 and op in rules.RULES and not row["count"]["passed"] and not row["count"]["failed"]:
            print(f"failed {op}: its rule takes none of its tests: {dict(row['why'])}")
            failed += 1
    total = sum((row["count"] for row in rows.values()), collections.Counter())
    by = collections.Counter()
    for (op, engine), n in engines.lines.items():
        by[f"{op}/{engine}"] += n
    print("runs:", ", ".join(f"{name} {n}" for name, n in sorted(by.items())))
    print(f"onnx {ONNX} on {given.device}: {total['passed']} passed, {total['failed']} failed, {total['missing']} missing")
    if given.page:
        given.page.write_text(page(rows))
    if given.compare and given.compare.read_text() != page(rows):
        print(f"{given.compare} is not what tests/onnx/judge.py --page writes")
        failed += 1
    if not total["passed"]:
        sys.exit("judge: no test ran")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
