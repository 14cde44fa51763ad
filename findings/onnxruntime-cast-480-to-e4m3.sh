#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Cast to FLOAT8E4M3FN with saturate=0 in ONNX Runtime 1.32.0 (CPU), from FLOAT and FLOAT16, has a hole: up to 464, which is
# half way to the 480 that the type does not have, numbers become 448, the largest; between 464 and 480 NaN; from 480 to
# below 496 they are 448 again; from 496 on NaN. So 470 is NaN and 490 is finite. ONNX's table of Cast has NaN for what is
# too large; onnx 1.23.2's ReferenceEvaluator has it for all above 464. With saturate=1, the default, both have 448
# throughout.
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
LARGEST, NAN = 0x7E, 0x7F
x = np.concatenate([np.arange(440, 520, 0.5), [1000, 65504, np.inf]])
good = True
for source, dtype in ((TensorProto.FLOAT, np.float32), (TensorProto.FLOAT16, np.float16)):
    for saturate in 0, 1:
        node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E4M3FN, saturate=saturate)
        ends = [helper.make_tensor_value_info(n, t, [None]) for n, t in (("x", source), ("y", TensorProto.FLOAT8E4M3FN))]
        model = helper.make_model(helper.make_graph([node], "cast", ends[:1], ends[1:]),
                                  opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
        onnx.checker.check_model(model, full_check=True)
        v = x.astype(dtype)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        value = onnxruntime.OrtValue.ortvalue_from_numpy(v)
        runtime = session.run_with_ort_values(["y"], {"x": value})[0].numpy().view(np.uint8)
        reference = ReferenceEvaluator(model).run(None, {"x": v})[0].view(np.uint8)
        print(f"{dtype.__name__}, saturate={saturate}:", ", ".join(
            f"{n:g} {['448', 'NaN'][int(runtime[x == n][0] == NAN)]}" for n in (464, 464.5, 470, 479.5, 480, 490, 495.5, 496, np.inf)))
        right = np.where((x <= 464) | bool(saturate), LARGEST, NAN)
        hole = (x >= 480) & (x < 496)
        good &= np.array_equal(reference[x >= 448], right[x >= 448])
        good &= np.array_equal(runtime[x >= 448], (right if saturate else np.where(hole, LARGEST, right))[x >= 448])
sys.exit(not good)
PYTHON
