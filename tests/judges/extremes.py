#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""extremes.py FILE [--device D] [--engines I/N] [--share I/N] [--page PAGE | --compare PAGE] [--torch]: cases with their right values, by
every engine that takes them, and the page that is made of them.

FILE is tests/extremes.txt or tests/reports.txt: blocks of "key: value", divided by empty lines.

    case:    what it is about, unlike any other     report:  repository#number, where somebody met it
    line:    the problem                            within:  relative error; else that of the result's type
    in NAME: its values, "3*nan" is three of them   out NAME: the right ones, "-" whatever
    scalars: of the run, alpha=0 ...                why:     where the right values come from
    torch:   PyTorch's words for it, of x = tensors by name; --torch writes what it gives beside FILE (torch 2.15.0)
    cudnn:   what cuDNN's documentation is thought to say; the page has it until FILE's name with -cudnn.json is there,
             which extremes_cudnn.py writes of what cuDNN gives

--engines 3/10: by every engine every tenth case, the others as planned; 0/0: all as planned."""
import argparse
import ctypes
import json
import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRECISION = {"f64": 1e-14, "f32": 2e-6, "f16": 2**-10, "bf16": 2**-7}


def numbers(text):
    """Values; "3*nan" is three NaNs, "-" is None."""
    found = []
    for word in text.split():
        times, _, value = word.rpartition("*")
        found += int(times or 1) * [None if value == "-" else float(value)]
    return found


class Case:
    def __init__(self, block):
        self.inputs, self.outputs, self.scalars, self.words = {}, {}, {}, {}
        for line in block:
            key, _, value = line.partition(":")
            key, value = key.strip(), value.strip()
            if key.startswith("in "):
                self.inputs[key[3:]] = value
            elif key.startswith("out "):
                self.outputs[key[4:]] = value
            elif key == "scalars":
                self.scalars = {n: float(v) for n, v in (word.split("=") for word in value.split())}
            elif key in ("case", "line", "report", "within", "why", "torch", "cudnn"):
                assert key not in self.words, f"{key} is there twice: {line}"
                self.words[key] = value
            else:
                sys.exit(f"unknown key {key!r}: {line}")
        assert self.outputs and {"case", "line"} <= set(self.words), block
        self.name, self.line = self.words["case"], self.words["line"]
        self.op = self.line.split()[0]


def read(path):
    blocks, block = [], []
    for line in path.read_text().splitlines() + [""]:
        if line.startswith("#"):
            continue
        if line.strip():
            block.append(line)
        elif block:
            blocks.append(Case(block))
            block = []
    names = [case.name for case in blocks]
    assert len(set(names)) == len(names), [n for n in names if names.count(n) > 1]
    return blocks


# ---- running ----

def run(case, context, engine):
    """By name: the values of the results, as doubles; None: where this engine lets infinities and NaN reach is not said."""
    import judge as library
    from mica._errors import check
    from mica._library import abi, byref, lib
    from mica._plan import Plan
    from mica._tables import options_struct, table_of

    table = table_of(case.op)
    plan = Plan(table, case.line, context, options_struct(table, {"engine": engine} if engine else {}))
    contract = plan.contract
    if engine and (contract["amplify"] or contract["spreads"]) and not all(
            np.isfinite(v) for text in case.inputs.values() for v in numbers(text)):
        return None
    arrays, bound, back = {}, {}, {}
    for name, arg in plan.args.items():
        if arg.dir == "-":
            continue
        array = arrays[name] = library.array(arg.tensor)
        span, first = arg.tensor._span()
        back[name] = array.__array_interface__["data"][0] + first, first, span
        ctypes.memset(back[name][0], 255, span)  # NaN, where nothing is written
        if name in case.inputs:
            given = np.array(numbers(case.inputs[name]), np.float64)
            assert given.size == arg.tensor.count, f"{case.name}: {name} has {arg.tensor.count} elements, {given.size} values"
            check(lib.mica_tensor_store(byref(arg.tensor._struct()), given.ctypes.data, array.ctypes.data))
        elif arg.dir != "out":
            assert not arg.tensor.count, f"{case.name}: no values for {name}"
        bound[name] = array if context.name == "cpu" else context.empty(arg.tensor)
        if context.name != "cpu" and span:
            check(lib.mica_upload(context._handle, bound[name].pointer + first, back[name][0], span, None))
    if context.name == "cpu":
        import mica

        seen = ("bf16", "e4m3", "e5m2", "e8m0", "e2m1", "s4", "u4")
        bound = {name: mica.view(a, plan.args[name].tensor.dtype) if plan.args[name].tensor.dtype in seen else a
                 for name, a in bound.items()}
    plan.run(**bound, **case.scalars)
    found = {}
    for name in case.outputs:
        address, first, span = back[name]
        if context.name != "cpu" and span:
            check(lib.mica_download(context._handle, address, bound[name].pointer + first, span, None))
        found[name] = library.values(plan.args[name].tensor, arrays[name]).reshape(-1), plan.args[name].tensor
    return found


def wrong(case, found):
    """Where a result is not right; "" if all are."""
    for name, text in case.outputs.items():
        got, tensor = found[name]
        wanted = numbers(text)
        if len(wanted) != len(got):
            return f"{name} has {len(got)} elements, {len(wanted)} are expected"
        within = float(case.words.get("within", PRECISION.get(tensor.dtype, 0)))
        for i, (g, w) in enumerate(zip(got, wanted)):
            if w is None:
                continue
            same = np.isnan(g) if np.isnan(w) else g == w if np.isinf(w) else abs(g - w) <= within * abs(w)
            if not same:
                return f"{name}[{i}] is {g:.9g}, right is {w:.9g}"
    return ""


def judge(cases, device, turn, turns):
    import mica
    from mica._explain import Explanation

    context, failed, ran = mica.Context(device), 0, 0
    for i, case in enumerate(cases):
        engines = [None]
        if turns and i % turns == turn:
            engines += [e["engine"] for e in Explanation(case.line, context).engines if e["status"] == "MICA_OK"]
        for engine in engines:
            found = run(case, context, engine)
            ran += found is not None
            why = wrong(case, found) if found else ""
            if why:
                print(f"failed {case.name} by {engine or 'the planned engine'}: {why}\n  {case.line}")
                failed += 1
    print(f"{len(cases)} cases, {ran} runs on {device}: {failed} failed")
    return failed


def notices(cases):
    """Each case would notice another value, NaN, and 0 for NaN."""
    for case in cases:
        from mica._tensor import Tensor

        right = {name: (np.array([0 if v is None else v for v in numbers(text)]), Tensor("f32:1"))
                 for name, text in case.outputs.items()}
        assert not wrong(case, right), case.name
        for name, text in case.outputs.items():
            for at, value in enumerate(numbers(text)):
                for other in (np.nan, 0.0, (value or 0) * 1.5 + 1):
                    if value is None or other == value or (np.isnan(other) and np.isnan(value)):
                        continue
                    if np.isinf(value) and other == value:
                        continue
                    changed = right[name][0].copy()
                    changed[at] = other
                    assert wrong(case, {**right, name: (changed, right[name][1])}), (case.name, name, at, other)


# ---- pages ----

def shown(values):
    """At most six values, those that repeat counted."""
    text, i = [], 0
    while i < len(values):
        n = 1
        while i + n < len(values) and (values[i + n] == values[i] or (values[i] != values[i] and values[i + n] != values[i + n])):
            n += 1
        word = "any" if values[i] is None else f"{values[i]:.5g}"
        text.append(word if n == 1 else f"{n} × {word}")
        i += n
    return ", ".join(text[:6] + ["..."] * (len(text) > 6))


def cell(text):
    return text.replace("|", "\\|")


def values_of(case, which):
    many = len(which) > 1
    return "; ".join((f"{name} " if many else "") + shown(numbers(text)) for name, text in which.items())


def cudnn_text(case, cudnn):
    """What it gave, by its rules for NaN where they differ; or what it is thought to say."""
    if cudnn is None:
        return "not verified: " + case.words["cudnn"] if "cudnn" in case.words else "-"
    got = cudnn["values"].get(case.name, "none")
    if isinstance(got, str):
        return got.split(":")[0]
    if isinstance(got, list):
        return shown([float(v) for v in got])
    return "; ".join(f"{rule}: {shown([float(v) for v in values])}" for rule, values in got.items())


def cudnn_note(cudnn):
    if cudnn is None:
        return ["PyTorch gives is what torch 2.15.0 gave on a CPU (`tests/extremes-torch.json`); cuDNN's column is not verified:",
                "no run of cuDNN has been compared, and the words are those of its documentation as remembered,",
                "\"-\" where it says nothing. The headers in `include/mica` state the rules.", ""]
    version = cudnn["cudnn"]
    return ["PyTorch gives is what torch 2.15.0 gave on a CPU (`tests/extremes-torch.json`), what cuDNN gives what",
            f"{version // 10000}.{version // 100 % 100}.{version % 100} gave on an {cudnn['device']} by PyTorch's calls of it or "
            "its C interface",
            "(`tests/extremes-cudnn.json`), \"none\" where neither has such a call. The headers in `include/mica` state the",
            "rules.", ""]


def extremes_page(cases, torch, cudnn):
    text = ["# Infinities, NaN and extreme values", "",
            "Generated by `tests/judges/extremes.py tests/extremes.txt --page`; do not edit.", "",
            f"Each row is a case of `tests/extremes.txt` that CI runs by the engines of the CPU and on the emulated GPU: {len(cases)} of them. What"]
    text += cudnn_note(cudnn)
    family = None
    for case in sorted(cases, key=lambda c: (c.op, cases.index(c))):
        if case.op != family:
            family = case.op
            text += ["", f"## {family}", "", "| case | line | input | result | PyTorch | cuDNN |", "|--|--|--|--|--|--|"]
        theirs = torch.get(case.name)
        theirs = "-" if theirs is None else theirs if isinstance(theirs, str) else shown([float(v) for v in theirs])
        scalars = "".join(f" {n}={v:g}" for n, v in case.scalars.items())
        text.append("| " + " | ".join(map(cell, (case.name, f"`{case.line}{scalars}`", values_of(case, case.inputs),
                                                  values_of(case, case.outputs), theirs, cudnn_text(case, cudnn)))) + " |")
    return "\n".join(text).replace("\n\n\n", "\n\n") + "\n"


def reports_page(cases):
    text = ["# Reports of others, tried here", "",
            "Generated by `tests/judges/extremes.py tests/reports.txt --page`; do not edit.", "",
            f"{len(cases)} public reports of wrong values in other libraries, in a line each: what was met there, the problem here, the right value",
            "and where it comes from. CI runs them by the engines of the CPU and on the emulated GPU; all pass.", "",
            "| report | what was met | line | input | right | why |", "|--|--|--|--|--|--|"]
    for case in cases:
        scalars = "".join(f" {n}={v:g}" for n, v in case.scalars.items())
        text.append("| " + " | ".join(map(cell, (case.words["report"], case.name, f"`{case.line}{scalars}`",
                                                  values_of(case, case.inputs), values_of(case, case.outputs),
                                                  case.words.get("why", "")))) + " |")
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engines", default="0/1")
    parser.add_argument("--share", default="0/1", help="every N-th case, from the I-th")
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("--compare", type=pathlib.Path)
    parser.add_argument("--torch", action="store_true")
    given = parser.parse_args()
    cases = read(given.file)
    beside = given.file.with_name(given.file.stem + "-torch.json")
    if given.torch:
        write_torch(cases, beside)
        return
    reports = all("report" in case.words for case in cases)
    torch = json.loads(beside.read_text())["values"] if beside.exists() else {}
    judged = given.file.with_name(given.file.stem + "-cudnn.json")
    cudnn = json.loads(judged.read_text()) if judged.exists() else None
    page = reports_page(cases) if reports else extremes_page(cases, torch, cudnn)
    if given.page:
        given.page.write_text(page)
    sys.path.insert(0, str(ROOT / "python/tests"))
    part, parts = map(int, given.share.split("/"))
    turn, turns = map(int, given.engines.split("/"))
    notices(cases)
    failed = judge(cases[part::parts], given.device, turn, turns)
    if given.compare and given.compare.read_text() != page:
        print(f"{given.compare} is not what {given.file} makes: --page writes it")
        failed += 1
    sys.exit(1 if failed else 0)


def write_torch(cases, path):
    """What PyTorch gives, in the types of the line."""
    import torch

    types = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "s64": torch.int64,
             "s32": torch.int32, "s8": torch.int8, "u8": torch.uint8, "bool": torch.bool, "e5m2": torch.float8_e5m2,
             "e4m3": torch.float8_e4m3fn}
    values = {}
    for case in cases:
        if "torch" not in case.words:
            continue
        fields = dict(word.split("=", 1) for word in case.line.split()[1:])
        names = {"torch": torch, "F": torch.nn.functional, "inf": float("inf")}
        for name, text in case.inputs.items():
            kind, _, shape = fields.get(name, "f32").partition(":")
            shape = [int(n) for n in shape.split(":")[0].split("x")] if shape else [-1]
            made = torch.tensor(numbers(text), dtype=torch.float64).to(types[kind]).reshape(shape)
            names[name] = made
        try:
            got = eval(case.words["torch"], names)
            values[case.name] = [repr(float(v)) for v in got.to(torch.float64).reshape(-1)]
        except Exception as error:  # what PyTorch refuses is an answer, too
            values[case.name] = f"refused: {type(error).__name__}"
    path.write_text(json.dumps({"torch": torch.__version__.split("+")[0], "values": values}, indent=1) + "\n")


if __name__ == "__main__":
    main()
