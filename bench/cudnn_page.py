#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cudnn_page [--check]: writes the tables of docs/cudnn.md, between the lines that begin with <!-- and name them, from
what bench/cudnn_torch.py, cudnn_jax.py, cudnn_onnxruntime.py and cudnn_frontend.py left in bench/results/h200. --check: fails where the page says
otherwise."""

import json
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "cudnn.md"
ROWS, JAX, ONNXRUNTIME, FRONTEND = (json.loads((ROOT / "bench" / "results" / "h200" / f"cudnn_{of}.json").read_text())
                       for of in ("torch", "jax", "onnxruntime", "frontend"))


def networks():
    text = ["| network | step, original, ms | on mica, ms | ratio | losses apart, mean | of two seeds of the original |",
            "|---|---|---|---|---|---|"]
    rows = [r for r in ROWS if r["group"] == "networks"]
    for r in rows:
        text.append(f"| {r['case']} | {r['original_ms']:.1f} | {r['mica_ms']:.1f} | {r['ratio']:.2f} | {r['apart']:.4f} | {r['seeds_apart']:.4f} |")
    mean = math.exp(sum(math.log(r["ratio"]) for r in rows) / len(rows))
    return text + [f"| geometric mean | | | {mean:.2f} | | |"]


def modules():
    text = ["| modules | cases | ran | of the calls of cuDNN, ran something on mica | furthest from the original | did not run |",
            "|---|---|---|---|---|---|"]
    for group in dict.fromkeys(r["group"] for r in ROWS if r["group"] != "networks"):
        rows = [r for r in ROWS if r["group"] == group]
        ran = [r for r in rows if "distance" in r]
        worst = max(ran, key=lambda r: r["distance"], default=None)
        gone = "; ".join(f"{r['case']}: `{r['mica'][:160]}`" for r in rows if "distance" not in r) or "-"
        furthest = "{distance:.1e}, {case}".format(**worst) if worst else "-"
        text.append(f"| {group} | {len(rows)} | {len(ran)} | {rows[0]['served']:,} of {rows[0]['calls']:,} | {furthest} | {gone} |")
    return text


def jax():
    text = ["| case | calls of cuDNN, ran something on mica | loss, first and last step | last of the original | losses apart, mean "
            "| of two seeds of the original | step, original, ms | on mica, ms | ratio |", "|---|---|---|---|---|---|---|---|---|"]
    for r in JAX:
        text.append(f"| {r['case']} | {r['served']:,} of {r['calls']:,} | {r['start']:.3f}, {r['last']:.3f} | {r['original_last']:.3f} "
                    f"| {r['apart']:.4f} | {r['seeds_apart']:.4f} | {r['original_ms']:.2f} | {r['mica_ms']:.2f} | {r['ratio']:.2f} |")
    return text


def onnxruntime():
    text = ["| case | with the original | on mica | from the CPU's results, original | mica | a call, original, ms | on mica, ms | calls of "
            "cuDNN, ran something on mica |", "|---|---|---|---|---|---|---|---|"]
    for r in ONNXRUNTIME:
        told = [f"`{r[side][:120]}`" if r[side] != "ran" else "ran" for side in ("original", "mica")]
        figures = [f"{r[name]:{form}}" if r[name] is not None else "-" for name, form in (
            ("original_distance", ".1e"), ("distance", ".1e"), ("original_ms", ".3f"), ("mica_ms", ".3f"))]
        text.append(f"| {r['case']} | {' | '.join(told + figures)} | {r['served']:,} of {r['calls']:,} |")
    pairs = [r["original_ms"] / r["mica_ms"] for r in ONNXRUNTIME if r["original"] == r["mica"] == "ran"]
    mean = math.exp(sum(map(math.log, pairs)) / len(pairs))
    return text + [f"| original / mica, geometric mean of {len(pairs)} | | | | | | {mean:.2f} | |"]


def frontend():
    text = ["| file | pass with the original | of them on mica | what the others said |", "|---|---|---|---|"]
    for r in FRONTEND:
        if r["original_passed"]:
            why = "; ".join(f"{count} x `{said[:200]}`" for said, count in r["why"].items()).replace("|", "\\|") or "-"
            text.append(f"| {r['file']} | {r['original_passed']} | {r['mica_passed_of_them']} | {why} |")
    passed = [sum(r[side] for r in FRONTEND) for side in ("original_passed", "mica_passed_of_them")]
    return text + ["| all | {} | {} | |".format(*passed)]


def main():
    old = PAGE.read_text()
    new = old
    for make in networks, modules, jax, onnxruntime, frontend:
        new, count = re.subn(rf"(<!-- {make.__name__}: [^\n]*-->\n).*?(\n\n|\Z)", lambda m: m[1] + "\n".join(make()) + m[2], new, flags=re.S)
        if count != 1:
            sys.exit(f"{PAGE}: {count} places for {make.__name__}, there must be one")
    if sys.argv[1:] == ["--check"]:
        sys.exit(f"{PAGE} is not what bench/cudnn_page.py writes" if new != old else 0)
    PAGE.write_text(new)


main()
