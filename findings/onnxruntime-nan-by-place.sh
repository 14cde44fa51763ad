#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# In ONNX Runtime 1.32.0 (CPU, x86-64, f32) it hangs on where a NaN stands whether it is seen. Of 0 to 31 with one NaN
#   ReduceMax, ReduceMin    NaN if it is the first element, else a number; and not always the largest: with NaN second it
#                           was 30 though 31 stands there (other widths of vectors may pass over others)
#   MaxPool, GlobalMaxPool  NaN if it is the last of the window, else 31
#   Hardmax                 a row without a 1 if it is the first
#   Max                     NaN, wherever it is
#   Unique                  of [nan, 1, 3, 2] NaN alone, counted four times; of [1, 3, nan, 2] 1, 3 and 2, and the inverse
#                           indices say that NaN was 1
# onnx 1.23.2's ReferenceEvaluator has NaN for all of these maxima but MaxPool, a 1 for Hardmax and four elements for Unique.
# So a check of a network's outputs for NaN finds it or not by where in an image it arose.
#
# PYTHON: one that has these packages; without it they are fetched.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" -q install onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
    PYTHON=$work/venv/bin/python
fi
"$PYTHON" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

assert (onnx.__version__, onnxruntime.__version__) == ("1.23.2", "1.32.0")
np.seterr(all="ignore")
onnxruntime.set_default_logger_severity(4)

def run(op, *x, outputs="y", **attributes):
    x = [np.asarray(v, np.float32) for v in x]
    ends = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, v.shape) for i, v in enumerate(x)]
    types = [TensorProto.INT64 if n != "y" else TensorProto.FLOAT for n in outputs]
    results = [helper.make_tensor_value_info(n, t, None) for n, t in zip(outputs, types)]
    node = helper.make_node(op, [e.name for e in ends], list(outputs), **attributes)
    model = helper.make_model(helper.make_graph([node], "nan", ends, results),
                              opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feed = {e.name: v for e, v in zip(ends, x)}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    both = session.run(None, feed), ReferenceEvaluator(model).run(None, feed)
    return [[np.asarray(v).ravel().tolist() for v in r] if len(outputs) > 1 else np.ravel(r[0]).tolist() for r in both]


def holds_nan(v):
    return bool(np.isnan(v).any())


good = True
for place in 0, 1, 7, 16, 30, 31:
    row = np.arange(32.0)
    row[place] = np.nan
    image = row.reshape(1, 1, 4, 8)
    found = {op: run(op, row, keepdims=0) for op in ("ReduceMax", "ReduceMin")}
    found |= {"MaxPool": run("MaxPool", image, kernel_shape=[4, 8]), "GlobalMaxPool": run("GlobalMaxPool", image),
              "Max": run("Max", row, np.zeros(32)), "Hardmax": [[sum(v)] for v in run("Hardmax", row[None])]}
    text = ", ".join(f"{op} {'NaN' if holds_nan(v[0]) else f'{max(v[0]):g}'}" for op, v in found.items())
    print(f"NaN at {place} of 32: {text} (Hardmax: its sum)")
    nan = {op: holds_nan(v[0]) for op, v in found.items()}
    good &= nan["ReduceMax"] == nan["ReduceMin"] == (place == 0) and nan["MaxPool"] == nan["GlobalMaxPool"] == (place == 31)
    good &= nan["Max"] and all(holds_nan(v[1]) for op, v in found.items() if op not in ("Hardmax", "MaxPool"))
    good &= found["Hardmax"] == [[0 if place == 0 else 1], [1]]
for x, values, inverse, counts in (([np.nan, 1, 3, 2], [np.nan], [0, 0, 0, 0], [4]),
                                   ([1, 3, np.nan, 2], [1, 3, 2], [0, 1, 0, 2], [2, 1, 1])):
    runtime, reference = run("Unique", x, outputs="yijc", sorted=0)
    print(f"Unique of {x}: {runtime[0]}, inverse {runtime[2]}, counts {runtime[3]}; reference {reference[0]}")
    good &= np.array_equal(runtime[0], values, equal_nan=True) and runtime[2:] == [inverse, counts] and len(reference[0]) == 4
sys.exit(not good)
PYTHON
