#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ONNX's ReferenceEvaluator (onnx 1.23.2) normalises f16 in f16: LayerNormalization of [300, -300, 0, 300] is 0 in all its
# elements, for the squares are infinite, though stash_type=1, the default, asks for f32 and RMSNormalization has it too.
# InstanceNormalization and LpNormalization give 0 as well, ReduceL2 infinity. ReduceMean of 5000 times 20 is infinite,
# and Gemm with alpha 0.01, whose result is 1600, too. ONNX Runtime 1.32.0 (CPU) has the right numbers for all of them. So
# from elements of 256 on, or rows of some thousand, this evaluator is no judge of f16.
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
from onnx import helper
from onnx.reference import ReferenceEvaluator

assert (onnx.__version__, onnxruntime.__version__) == ("1.23.2", "1.32.0")
np.seterr(all="ignore")
onnxruntime.set_default_logger_severity(4)


def run(op, *x, opset=23, **attributes):
    ends = [helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for i, v in enumerate(x)]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, None)
    node = helper.make_node(op, [e.name for e in ends], ["y"], **attributes)
    model = helper.make_model(helper.make_graph([node], "half", ends, [result]),
                              opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    feed = {e.name: v for e, v in zip(ends, x)}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.ravel(v).astype(np.float64) for v in (session.run(None, feed)[0], ReferenceEvaluator(model).run(None, feed)[0])]


half = lambda *v: np.array(v, np.float16)
v = np.array([300.0, -300, 0, 300])
x, last = v.astype(np.float16)[None], np.array([1], np.int64)
centred, none = (v - v.mean()) / v.std(), np.zeros(4)
cases = (("LayerNormalization", run("LayerNormalization", x, np.ones(4, np.float16), stash_type=1), centred, none),
         ("RMSNormalization", run("RMSNormalization", x, np.ones(4, np.float16), stash_type=1), v / np.sqrt((v * v).mean()), none),
         ("InstanceNormalization", run("InstanceNormalization", x[None], half(1), half(0)), centred, none),
         ("LpNormalization", run("LpNormalization", x), v / np.sqrt((v * v).sum()), none),
         ("ReduceL2", run("ReduceL2", x, last), np.sqrt([(v * v).sum()]), [np.inf]),
         ("ReduceMean of 5000 x 20", run("ReduceMean", np.full((1, 5000), 20, np.float16), last), [20], [np.inf]),
         ("Gemm, alpha 0.01", run("Gemm", np.full((1, 4), 200, np.float16), np.full((4, 1), 200, np.float16), alpha=0.01), [1600], [np.inf]))
good = True
for name, (runtime, reference), right, wrong in cases:
    print(f"{name}: ONNX Runtime {runtime.tolist()}, reference {reference.tolist()}")
    good &= np.allclose(runtime, right, rtol=2e-3) and np.array_equal(reference, wrong)
sys.exit(not good)
PYTHON
