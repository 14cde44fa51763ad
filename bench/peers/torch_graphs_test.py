#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_graphs_test.py LIBRARY: PyTorch's equivalents of the graphs in tests/cases and bench/cases compute what mica does,
fused, unfused and node by node, and a graph in which one thing is another is noticed."""
import glob
import os
import sys

from torch_graphs import judge
from torch_peer import Mica

ROOT = os.path.join(os.path.dirname(__file__), "../..")
# In a file what becomes what, of which PyTorch is not told.
CHANGES = [
    ("tests/cases/graphs/rope.graph", "expr=x0*x1-x2*x3 x0=f32:2x3x7x8", "expr=x0*x1+x2*x3 x0=f32:2x3x7x8"),
    ("tests/cases/graphs/rope.graph", "pointwise expr=-x0 x0=f32:2x3x7x8:336x112x16x1@x+8", "pointwise expr=x0 x0=f32:2x3x7x8:336x112x16x1@x+8"),
    ("tests/cases/graphs/gated.graph", "act=gelu gated", "act=gelu_tanh gated"),
    ("tests/cases/graphs/attention_causal.graph", "i0>=i1", "i0>i1"),
    ("tests/cases/graphs/attention_causal.graph", "s0=0.1", "s0=0.101"),
    ("tests/cases/graphs/attention_grad.graph", "expr=x0*s0 x0=@t2 y0=@ds s0=0.1", "expr=x0*s0 x0=@t2 y0=@ds s0=0.101"),
    ("tests/cases/graphs/attention_grouped.graph", "p=0.25", "p=0.3"),
    ("tests/cases/graphs/attention_grad_grouped.graph", "dy=@dp0 dx=@dp rng=@rng p=0.25", "dy=@dp0 dx=@dp rng=@rng p=0.3"),
    ("tests/cases/graphs/attention_grad_dbias.graph", "x0*0.1 x0=@dl", "x0*0.11 x0=@dl"),
    ("tests/cases/graphs/attention_grad_bf16.graph", "a=@pt b=@do", "a=@pt b=@o"),
    ("tests/cases/graphs/norm_rms_bf16.graph", "kind=mean", "kind=var"),
    ("tests/cases/graphs/norm_layer_train.graph", "x0+1e-3", "x0+2e-3"),
    ("bench/cases/graphs-cpu/mbconv.graph", "act=silu x=@s1", "act=gelu x=@s1"),
    ("bench/cases/graphs-cpu/resnet_bottleneck.graph", "x0=@c3 x1=@x", "x0=@c3 x1=@c3"),
    ("bench/cases/graphs-cpu/fpn_head.graph", "mode=nearest nearest=floor coordinates=asymmetric", "mode=linear"),
    ("bench/cases/graphs-cpu/lstm_cell.graph", "@g+256", "@g+257"),
    ("bench/cases/graphs-cpu/llama_block.graph", "x0=@qrot x1=@sin", "x0=@qrot x1=@cos"),
    ("bench/cases/graphs-cpu/dit_block.graph", "x0*(1+x1)+x2 x0=@n2", "x0*(1.001+x1)+x2 x0=@n2"),
]


# Terms that underflow lose what is no part of the result, on both sides: mica check knows how much.
LEFT_OUT = {"underflow.graph"}


def main():
    mica, failed = Mica(sys.argv[1], "cpu"), 0
    for path in sorted(glob.glob(f"{ROOT}/tests/cases/graphs/*.graph") + glob.glob(f"{ROOT}/bench/cases/graphs-cpu/*.graph")):
        if os.path.basename(path) in LEFT_OUT:
            continue
        off, why = judge(mica, path, "cpu", 1)
        if why:
            print(f"{os.path.relpath(path, ROOT)}: {off:.3g} of what is allowed: {why}")
            failed += 1
    for name, old, new in CHANGES:
        with open(f"{ROOT}/{name}") as file:
            text = file.read()
        if text.count(old) == 0:
            print(f"{name} has no {old}")
            failed += 1
            continue
        off, why = judge(mica, f"{ROOT}/{name}", "cpu", 1, text.replace(old, new))
        if not why:
            print(f"{name}: {new} in the place of {old} is not noticed: {off:.3g} of what is allowed")
            failed += 1
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
