#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ONNX's GroupNormalization, opset 21 of onnx 1.23.2, is given as a function, and the function takes the variance as the
# mean of squares less the square of the mean, in f32 whatever the type of x. ONNX Runtime 1.32.0 on a CPU has that
# function's numbers: 0 to 7 normalise to -1.53 .. 1.53, the same on 10,000 to -1107 .. 1107 and on 100,000 to NaN. Its
# LayerNormalization and InstanceNormalization of the same numbers are right, and so are those of onnx's
# ReferenceEvaluator, whose GroupNormalization has the fault as well. Numbers of f64 change nothing, the attribute
# stash_type=11, which is f64, does: then all are right.
# MeanVarianceNormalization (opset 13) is such a function too, and the evaluator's has the same fault; ONNX Runtime's is
# right there, but has not the function's 1e-9: a constant image, 0 by the function, is NaN.
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
np.seterr(all="ignore")  # of square roots below 0


def run(op, x, weights, **attributes):
    feed = {"x": x, **{n: np.full(1, v, x.dtype) for n, v in zip(("scale", "bias"), weights)}}
    if op == "LayerNormalization":
        feed = {n: np.resize(v, x.size) for n, v in feed.items()}
    ends = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in feed.items()]
    result = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(x.dtype), [None] * feed["x"].ndim)
    graph = helper.make_graph([helper.make_node(op, list(feed), ["y"], **attributes)], "norm", ends, [result])
    opset = helper.make_opsetid("", 13 if op == "MeanVarianceNormalization" else 21)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8 if opset.version == 13 else 10)
    onnx.checker.check_model(model, full_check=opset.version != 13)  # whose inference of shapes refuses the function
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(v).ravel().astype(np.float64) for v in (session.run(None, feed)[0], ReferenceEvaluator(model).run(None, feed)[0])]


text = lambda v: f"{v[0]:.5g} .. {v[-1]:.5g}"
good = True
for dtype in np.float32, np.float64:
    for shift in 0, 1e3, 1e4, 1e5:
        x = (np.arange(8) + shift).astype(dtype).reshape(1, 1, 2, 4)
        right = (np.arange(8) - 3.5) / np.sqrt(5.25 + 1e-5)
        for op, weights, options in (("GroupNormalization", (1, 0), {"num_groups": 1}), ("LayerNormalization", (1, 0), {}),
                                     ("InstanceNormalization", (1, 0), {}), ("MeanVarianceNormalization", (), {})):
            if dtype == np.float64 and op != "GroupNormalization":
                continue  # ONNX Runtime has the others in f32
            runtime, reference = run(op, x, weights, **options)
            print(f"{op} of {dtype.__name__} on {shift:g}: ONNX Runtime {text(runtime)}, reference {text(reference)}")
            by_squares = {0: lambda v: np.allclose(v, right, atol=1e-4), 1e3: lambda v: np.allclose(v, right, atol=1e-4),
                          1e4: lambda v: np.abs(v).max() > 1000, 1e5: lambda v: bool(np.isnan(v).all())}[shift]
            fits = lambda v: np.allclose(v, right, atol=5e-3)
            good &= by_squares(runtime) if op == "GroupNormalization" else fits(runtime)
            good &= fits(reference) if op[:5] in ("Layer", "Insta") else by_squares(reference)
        double = run("GroupNormalization", x, (1, 0), num_groups=1, stash_type=TensorProto.DOUBLE)
        good &= all(np.allclose(v, right, atol=1e-4) for v in double)
for value in 1.0, 0.1, 0.0:
    runtime, reference = run("MeanVarianceNormalization", np.full((1, 1, 2, 2), value, np.float32), ())
    print(f"MeanVarianceNormalization of {value} alone: ONNX Runtime {text(runtime)}, reference {text(reference)}")
    good &= bool(np.isnan(runtime).all()) and np.array_equal(reference, np.zeros(4))
sys.exit(not good)
PYTHON
