#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/shares: which families count as changed when a file does, and whose turn it is. Usage: shares.py ROOT"""
import importlib.machinery
import importlib.util
import pathlib
import shutil
import sys
import tempfile

PARTS = ["src", "include", "cli/check", "tests/cases", "tests/emu", "tests/shares", "tools/layering"]
# A file, the families that a change of it must reach, and some that it must not; None: all others.
ROWS = [
    ("src/ops/softmax/softmax.c", "softmax", None),
    ("include/mica/pool.h", "pool", None),
    ("tests/cases/gemm.txt", "gemm", None),
    ("src/ops/gemm/sm90/sm90.cu", "gemm grouped_gemm", None),
    ("src/ops/compose/compose.c", "mha", "softmax pool"),
    ("src/ops/mma/mma_tile.c", "gemm conv attention", "softmax pool norm"),
    ("src/ops/reduce/cpu/tile.c", "softmax cross_entropy reduce", "gemm pool"),
    ("src/ops/index/index_copy.cu", "gather pad concat", "softmax gemm"),
    ("src/ops/index/index.h", "*", ""),  # known to the engine ref
    ("src/kernels/wgmma.cuh", "gemm conv attention", "softmax pool pad"),
    ("src/kernels/types.cuh", "*", ""),  # in front of every kernel
    ("src/base/tensor.c", "*", ""),
    ("src/plan/plan.c", "*", ""),
    ("src/ops/ops.def", "", None),  # lists of all operations
    ("include/mica/mica.h", "", None),
]
# A file, and words that tests of what it holds have in their names.
WORDS = [
    ("src/cuda/lost.c", "cuda lost"),
    ("src/ops/moe_route/cpu/moe_route_cpu.c", "moe_route"),
    ("tests/unit/test_plan_records.c", "plan_records"),
    ("tests/self/full_disk.sh", "full_disk"),
    ("docs/adding-an-op.md", "adding_an_op"),
    ("front/cudnn/conv.h", "front"),
    ("cli/check/rows.c", "cli self"),
    ("src/ops/gemm/sm90/sm90.cu", "gemm kernels_index"),
    ("src/graph/lower.c", "graph graphs"),
    ("include/mica/pool.h", "pool headers adding_an_op"),
]


def load(tree):
    loader = importlib.machinery.SourceFileLoader("shares", str(tree / "tests/shares"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("shares", loader))
    loader.exec_module(module)
    return module


def main():
    root, failures = pathlib.Path(sys.argv[1]), 0
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        for part in PARTS:
            (tree / part).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (root / part).is_dir() else shutil.copy)(root / part, tree / part)
        shares = load(tree)
        every = set(shares.families())
        if set(shares.changed()) != every or len(every) < 20:
            sys.exit(f"shares: nothing is recorded, but only these changed: {shares.changed()}")
        shares.FULL.write_text("\n".join(shares.digest_rows()))
        if shares.changed():
            sys.exit(f"shares: nothing changed, but: {shares.changed()}")
        for name, reached, spared in ROWS:
            path = tree / name
            kept = path.read_bytes()
            path.write_bytes(kept + b"\n")
            shares.digest_of_file.cache_clear()
            found, wanted = set(shares.changed()), every if reached == "*" else set(reached.split())
            unwanted = every - wanted if spared is None else set(spared.split())
            if wanted - found or unwanted & found:
                print(f"shares: {name} changes {sorted(found)}, not {sorted(wanted - found)}")
                failures += 1
            path.write_bytes(kept)
        shares.digest_of_file.cache_clear()
        for name, words in WORDS:
            if set(words.split()) - shares.words_of(name):
                print(f"shares: {name} touches {sorted(shares.words_of(name))}, expected {words}")
                failures += 1
        if shares.touched() != {"*"}:
            print("shares: without git's history not everything is touched")
            failures += 1
        failures += wrong_turns(shares, tree, every)
    sys.exit(failures > 0)


def wrong_turns(shares, tree, every):
    """Of three turns each unchanged family has one, whatever the part; one that changed has all."""
    path, failures = tree / "src/ops/softmax/softmax.c", 0
    path.write_bytes(path.read_bytes() + b"\n")
    for part in (0, 5):
        turns = [{op for _, op, *_ in shares.tests("kernels", tree / "lines", part, 6, one_in=3, turn=turn)} for turn in range(3)]
        wrong = [op for op in every if sum(op in turn for turn in turns) != (3 if op == "softmax" else 1)]
        if wrong:
            print(f"shares: part {part}: not once in three turns: {wrong}")
            failures += 1
    return failures


main()
