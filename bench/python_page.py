#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""python_page [--check]: writes tables of docs/python.md, between the lines that begin with <!-- and name them, from what
bench/models.py, bench/python.py and python/tests/peers/opinfo.py left in files. --check: fails where the page says
otherwise."""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "python.md"
RESULTS = ROOT / "bench" / "results" / "h200"


def apart(one, two):
    """The largest distance, as a part of the loss at the start: it falls by orders of magnitude."""
    return max(abs(a - b) for a, b in zip(one, two)) / two[0]


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def steps():
    """Times of training steps."""
    text = ["| model | batch | step | original, ms | replaced, ms | ratio | least and most of the rounds |", "|---|---|---|---|---|---|---|"]
    for r in lines_of(RESULTS / "models.jsonl"):
        if "ratio" in r:
            text.append(f"| {r['model']} | {r['batch']} | {r['mode']} | {r['theirs_ms']:.1f} | {r['ours_ms']:.1f} | {r['ratio']:.2f} "
                        f"| {r['least']:.2f}, {r['most']:.2f} |")
    return text


def curves():
    text = ["| model | replaced, left | loss, first and last step | original, bf16, from f32 | replaced, bf16, from f32 |",
            "|---|---|---|---|---|"]
    rows = [r for r in lines_of(RESULTS / "models.jsonl") if r.get("mode") == "curves"]
    for name in dict.fromkeys(r["model"] for r in rows):
        found = {(r["engine"], r["dtype"]): r for r in rows if r["model"] == name}
        exact, theirs, ours = (found[k] for k in (("peer/torch", "f32"), ("peer/torch", "bf16"), ("mica.torch", "bf16")))
        text.append(f"| {name} | {ours['replaced']}, {len(ours['left'])} | {ours['loss'][0]:.3f}, {ours['loss'][-1]:.3f} "
                    f"| {apart(theirs['loss'], exact['loss']):.1e} | {apart(ours['loss'], exact['loss']):.1e} |")
    return text


def samples():
    text = ["| device | PyTorch | samples | agreed | stated | refused with a rule | unexplained |", "|---|---|---|---|---|---|---|"]
    for file in sorted((ROOT / "python" / "tests" / "peers").glob("opinfo-*.json")):
        r = json.loads(file.read_text())
        text.append(f"| {r['device']} | {r['torch'].split('+')[0]} | " + " | ".join(
            f"{r[k]:,}" for k in ("samples", "agreed", "stated", "refused", "unexplained")) + " |")
    return text


def calls():
    found = json.loads((RESULTS / "python_calls.json").read_text())
    text = ["| call | empty batch | one image |", "|---|---|---|"]
    for name in dict.fromkeys(n.rsplit(", batch", 1)[0] for n in found):
        text.append(f"| {name} | " + " | ".join(f"{found[f'{name}, batch {n}, us']:.1f}" for n in (0, 1)) + " |")
    return text


def calls_cpu():
    """Of one process without PyTorch, and one with it."""
    found = [json.loads((ROOT / "bench/results/epyc-2core" / f"python_calls{n}.json").read_text()) for n in ("", "_torch")]
    text = ["| call | NumPy | PyTorch there |", "|---|---|---|"]
    for name in found[1]:
        if name.endswith(", us"):
            text.append(f"| {name[:-4]} | " + " | ".join(f"{f[name]:.1f}" if name in f else "" for f in found) + " |")
    return text


TABLES = {"calls_cpu": calls_cpu, "steps": steps, "curves": curves, "samples": samples, "calls": calls}


def main():
    old = PAGE.read_text()

    def filled(found):
        return f"{found[1]}\n" + "\n".join(TABLES[found[2]]()) + "\n<!-- end -->"

    new, count = re.subn(r"(<!-- (\w+): by bench/python_page.py -->)\n.*?<!-- end -->", filled, old, flags=re.S)
    if "--check" in sys.argv[1:]:
        sys.exit(f"{PAGE}: not as bench/python_page.py writes it" if new != old or not count else 0)
    PAGE.write_text(new)
    print(f"{count} tables")


if __name__ == "__main__":
    main()
