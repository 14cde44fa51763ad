#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Resize of ONNX Runtime 1.32.0 (CPU) with coordinate_transformation_mode "tf_crop_and_resize", which cuts out the region
# of interest and brings it to a size: a dimension that keeps its size is not cut, in each mode and with
# antialias too. The middle of a 4 x 4 image brought to 2 x 2 or 6 x 6 is the middle; brought to 4 x 3 it has all four
# rows, to 3 x 4 all four columns, and to 4 x 4 it is the image. A scale that leaves the size, as 1.1 does of 4, copies
# in any mode of coordinates, "half_pixel" among them. onnx 1.23.2's ReferenceEvaluator crops and resizes each time. So a
# network that cuts and enlarges works for each size of image but the one that it enlarges to.
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
x = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
MIDDLE = np.array([0, 0, 1 / 3, 1 / 3, 1, 1, 2 / 3, 2 / 3], np.float32)  # rows and columns 1 to 2 of 0 to 3


def resize(size=None, scale=None, transform="tf_crop_and_resize", **options):
    region = MIDDLE if transform == "tf_crop_and_resize" else None
    feed = {"x": x, "roi": region, "scales": scale and np.array([1, 1, scale, scale], np.float32),
            "sizes": size and np.array([1, 1, *size], np.int64)}
    feed = {n: v for n, v in feed.items() if v is not None}
    node = helper.make_node("Resize", [n if n in feed else "" for n in ("x", "roi", "scales", "sizes")], ["y"],
                            coordinate_transformation_mode=transform, **options)
    ends = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in feed.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)
    model = helper.make_model(helper.make_graph([node], "resize", ends, [result]),
                              opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feed)[0][0, 0], ReferenceEvaluator(model).run(None, feed)[0][0, 0]


good = True
for options in ({"mode": "nearest"}, {"mode": "linear"}, {"mode": "cubic"}, {"mode": "linear", "antialias": 1}):
    for size in (2, 2), (6, 6), (4, 3), (3, 4), (4, 4):
        found, reference = resize(size, **options)
        first, last = ([0 if n == 4 else 1 for n in size], [3 if n == 4 else 2 for n in size])  # pixels at the corners
        print(f"{options}, the middle to {size[0]} x {size[1]}: corners {found[0, 0]:.4g} {found[-1, -1]:.4g}, "
              f"reference {reference[0, 0]:.4g} {reference[-1, -1]:.4g}")
        good &= np.allclose([reference[0, 0], reference[-1, -1]], [6, 11])
        good &= np.allclose([found[0, 0], found[-1, -1]], [x[0, 0, first[0], first[1]], x[0, 0, last[0], last[1]]], atol=1e-5)
        good &= np.array_equal(found, x[0, 0]) if size == (4, 4) else 4 in size or np.allclose(found, reference, atol=1e-5)
for mode in "linear", "cubic":
    for scale in 1.1, 1.3:
        found, reference = resize(scale=scale, transform="half_pixel", mode=mode)
        print(f"{mode} by {scale}: first row {found[0].tolist()}, reference {reference[0].tolist()}")
        good &= np.array_equal(found, x[0, 0]) if scale == 1.1 else np.allclose(found, reference, atol=1e-5)
        good &= not np.allclose(reference[:4, :4], x[0, 0], atol=0.1)
sys.exit(not good)
PYTHON
