#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# GridSample of ONNX Runtime 1.32.0 (CPU, f32) at coordinates that are finite and far outside the image:
#   padding "border", mode "linear", from pixel 2^24 on: the border pixel weighs 2 or 0. Of an image of ones four wide,
#     coordinate 2^23 gives 2 and 2^24 gives 0; of one 1024 wide, 32768 gives 0. "nearest" and "cubic" give 1, and so
#     does onnx 1.23.2's ReferenceEvaluator for all three.
#   from pixel 2^63 on: what -1, the left border, gives, in each mode, to the right as to the left, and with padding
#     "zeros" too, which is for what lies outside.
# The first fits weights taken as differences from floor(x) and floor(x) + 1 in f32, where x + 1 is x or x + 2, without x
# being brought to the border before, as PyTorch does. Grids made by a division by a small depth have such numbers.
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
good = True


def sample(x, coordinates, mode, padding, reference=False):
    grid = np.stack([np.asarray(coordinates, np.float32), np.zeros(len(coordinates), np.float32)], -1)[None, None]
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], mode=mode, padding_mode=padding)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * 4) for n in ("x", "grid", "y")]
    model = helper.make_model(helper.make_graph([node], "sample", ends[:2], ends[2:]),
                              opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    if reference:
        return ReferenceEvaluator(model).run(None, {"x": x, "grid": grid})[0].ravel().tolist()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x, "grid": grid})[0].ravel().tolist()


for width, near, linear in ((4, 2.0**22, [1, 2, 0, 0]), (1024, 2.0**14, [1, 0, 0, 0])):
    ones, far = np.ones((1, 1, 4, width), np.float32), [near, near * 2, near * 4, 1e8]
    for mode in "linear", "nearest", "cubic":
        found, reference = sample(ones, far, mode, "border"), sample(ones, far, mode, "border", True)
        print(f"ones, {width} wide, border, {mode}, at {far}: {found}, reference {reference}")
        good &= np.allclose(found, linear if mode == "linear" else 1) and np.allclose(reference, 1)
x = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
for mode, outside, right in (("linear", 0, 10), ("nearest", 0, 12), ("cubic", 0, 10)):
    for padding in "zeros", "border":
        found = sample(x, [1e6, 1e10, -1, 1e20, -1e20, 1e38], mode, padding)
        print(f"1 to 16, {padding}, {mode}, at 1e6, 1e10, -1, 1e20, -1e20, 1e38: {found}")
        good &= abs(found[0] - (outside if padding == "zeros" else right)) < 1e-5 and found[0] != found[2]
        good &= padding == "border" or found[1] == 0
        good &= found[3] == found[4] == found[5] and abs(found[3] - found[2]) < 1e-5 and found[3] > 3
sys.exit(not good)
PYTHON
