#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The LRN of ONNX's ReferenceEvaluator (onnx 1.23.2) normalises as many channels as the batch has elements: of one image
# only the first channel, whatever the size, and the others are divided by a power of the bias alone. With as many images
# as channels, as ONNX's own node tests of LRN have (5 x 5 x 5 x 5), it is right, and with more images it raises
# IndexError. ONNX Runtime 1.32.0 has the formula's numbers for each. Who judges an LRN by this evaluator takes the
# right result for a wrong one.
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
from onnx.backend.test.case.node import collect_testcases
from onnx.reference import ReferenceEvaluator

assert (onnx.__version__, onnxruntime.__version__) == ("1.23.2", "1.32.0")
SIZE, ALPHA, BETA, BIAS = 3, 1.0, 0.5, 1.0
ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * 4) for n in "xy"]
node = helper.make_node("LRN", ["x"], ["y"], size=SIZE, alpha=ALPHA, beta=BETA, bias=BIAS)
graph = helper.make_graph([node], "lrn", ends[:1], ends[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
onnx.checker.check_model(model, full_check=True)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
np.seterr(all="ignore")  # of what other node tests divide while they are collected
cases = [c.data_sets[0][0][0].shape for c in collect_testcases("LRN")]
print("images x channels of ONNX's node tests:", cases)
text = lambda y: " ".join(f"{v:.4f}" for v in y[0].ravel())
good = set(cases) == {(5, 5, 5, 5)}
for images, channels in ((1, 4), (2, 4), (4, 4), (5, 4)):
    x = np.tile(np.arange(1, channels + 1, dtype=np.float32).reshape(1, -1, 1, 1), (images, 1, 1, 1))
    squares = np.pad(x * x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    right = x / (BIAS + ALPHA / SIZE * (squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:])) ** BETA
    runtime = session.run(None, {"x": x})[0]
    good &= np.allclose(runtime, right)
    try:
        found = ReferenceEvaluator(model).run(None, {"x": x})[0]
        good &= images <= channels and np.allclose(found[:, :images], right[:, :images])
        good &= np.array_equal(found[:, images:], x[:, images:])
        found = text(found)
    except IndexError as error:
        good &= images > channels
        found = f"IndexError: {error}"
    print(f"{images} x {channels}: reference {found}, ONNX Runtime {text(runtime)}")
sys.exit(not good)
PYTHON
