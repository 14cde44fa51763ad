#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Resizing and its gradients as PyTorch 2.15.0 and onnx 1.23.2 have them, for tests/unit/test_resize.c:

    pip install torch==2.15.0 onnx==1.23.2
    tests/judges/resize.py > tests/judges/resize.h

F.interpolate and autograd in f64; what PyTorch has no name for is ReferenceEvaluator's Resize, whose opset 19 has all of
it. Element i of x is ((37 i + 11) mod 64 - 31) / 8; of bytes (37 i + 11) mod 251. Gradients are those of the sum of y
times the same numbers."""
import itertools

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

for module, version in (torch, "2.15.0"), (onnx, "1.23.2"):
    if module.__version__.split("+")[0] != version:
        raise SystemExit(f"{module.__name__} is {module.__version__}, the numbers are those of {version}")


def numbers(shape, kind="f64"):
    n = int(np.prod(shape))
    values = 37 * np.arange(n) + 11
    return (values % 251).astype(np.uint8).reshape(shape) if kind == "u8" else ((values % 64 - 31) / 8).reshape(shape)


def text(shape):
    return "x".join(map(str, shape))


def show(line, values, tolerance="1e-13"):
    values = np.asarray(values, dtype=np.float64).reshape(-1)
    print(f'{{"{line}", {tolerance}, {len(values)}, {{{", ".join(repr(float(v)) for v in values)}}}}},')


def pytorch(fields, shape, size=None, scale=None, **options):
    """fields: the line's, of the same."""
    x = torch.tensor(numbers(shape), requires_grad=True)
    y = F.interpolate(x, size=size, scale_factor=scale, **options)
    sizes = (f"y=f64:{text(y.shape)}" if scale is None else
             " ".join(f"scale_{name}={s!r}" for name, s in zip("dhw"[-len(scale):], scale)))
    show(f"resize {fields} x=f64:{text(shape)} {sizes}", y.detach().numpy())
    (y * torch.tensor(numbers(y.shape))).sum().backward()
    show(f"resize pass=bwd {fields} x=f64:{text(shape)} {sizes}", x.grad.numpy())


def reference(fields, shape, size=None, scale=None, roi=None, **attributes):
    node = helper.make_node("Resize", ["x", "roi", "scales", "sizes"], ["y"], **attributes)
    feeds = {"x": numbers(shape), "roi": np.asarray(roi or [], np.float64)}
    feeds["scales"] = np.asarray([1, 1, *scale] if scale else [], np.float32)
    feeds["sizes"] = np.asarray([*shape[:2], *size] if size else [], np.int64)
    kinds = {"x": TensorProto.DOUBLE, "roi": TensorProto.DOUBLE, "scales": TensorProto.FLOAT, "sizes": TensorProto.INT64}
    given = [name if len(feeds[name]) else "" for name in ("x", "roi", "scales", "sizes")]
    del node.input[:]
    node.input.extend(given)
    graph = helper.make_graph([node], "resize", [helper.make_tensor_value_info(n, kinds[n], feeds[n].shape) for n in given if n],
                              [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    y = ReferenceEvaluator(model).run(None, {n: feeds[n] for n in given if n})[0]
    sizes = (f"y=f64:{text(y.shape)}" if scale is None else
             " ".join(f"scale_{name}={float(s)!r}" for name, s in zip("dhw"[-len(scale):], np.float32(scale))))
    show(f"resize {fields} x=f64:{text(shape)} {sizes}", y, "1e-5")  # its weights are f32


PLAIN, TORCH_NEAREST = (1, 2, 3, 4), "mode=nearest coordinates=asymmetric nearest=floor"
for size in ((5, 7), (2, 3), (3, 8), (6, 2)):
    pytorch(TORCH_NEAREST, PLAIN, size, mode="nearest")
    pytorch("mode=nearest nearest=round_prefer_ceil", PLAIN, size, mode="nearest-exact")
    pytorch("mode=area", PLAIN, size, mode="area")
    for mode, corners in itertools.product(("linear", "cubic"), (False, True)):
        pytorch(f"mode={mode}{' coordinates=align_corners' if corners else ''}", PLAIN, size,
                mode="bi" + mode, align_corners=corners)
    for mode in ("linear", "cubic"):
        pytorch(f"mode={mode} antialias=1", PLAIN, size, mode="bi" + mode, antialias=True)
pytorch("mode=linear antialias=1", (1, 1, 13, 3), (4, 2), mode="bilinear", antialias=True)
pytorch("mode=cubic antialias=1", (1, 1, 13, 3), (4, 2), mode="bicubic", antialias=True)
pytorch("mode=linear", (1, 2, 7), (11,), mode="linear")
pytorch("mode=linear", (1, 1, 2, 3, 4), (3, 5, 2), mode="trilinear")
pytorch(TORCH_NEAREST, (1, 1, 2, 3, 4), (3, 5, 2), mode="nearest")
pytorch("mode=area", (1, 1, 2, 3, 4), (3, 2, 2), mode="area")
for scale in ((1.5, 2.25), (0.75, 0.6)):
    pytorch("mode=linear", (1, 1, 4, 5), scale=scale, mode="bilinear", recompute_scale_factor=False)
    pytorch("mode=cubic", (1, 1, 4, 5), scale=scale, mode="bicubic", recompute_scale_factor=False)
    pytorch("mode=linear antialias=1", (1, 1, 4, 5), scale=scale, mode="bilinear", antialias=True,
            recompute_scale_factor=False)

for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
    for coordinates in ("half_pixel", "asymmetric", "align_corners"):
        reference(f"mode=nearest nearest={rounding} coordinates={coordinates}", (1, 1, 1, 4), (1, 7), mode="nearest",
                  nearest_mode=rounding, coordinate_transformation_mode=coordinates)
for mode in ("linear", "cubic"):
    for coordinates in ("pytorch_half_pixel", "asymmetric"):
        reference(f"mode={mode} coordinates={coordinates}", (1, 1, 1, 4), (1, 7), mode=mode,
                  coordinate_transformation_mode=coordinates)
    reference(f"mode={mode} coordinates=half_pixel_symmetric", (1, 1, 1, 5), scale=(1, 0.75), mode=mode,
              coordinate_transformation_mode="half_pixel_symmetric")
    reference(f"mode={mode} border=edge cubic=-0.75 antialias=1".replace("cubic=-0.75 ", "cubic=-0.75 " * (mode == "cubic")),
              (1, 1, 9, 4), (4, 3), mode=mode, antialias=1)
    reference(f"mode={mode} coordinates=tf_crop_and_resize from_h=0.4 from_w=0.6 to_h=0.7 to_w=1.3 extrapolation=10",
              PLAIN, (3, 3), roi=[0, 0, 0.4, 0.6, 1, 1, 0.7, 1.3], mode=mode, extrapolation_value=10.0,
              coordinate_transformation_mode="tf_crop_and_resize")
reference("mode=cubic border=exclude cubic=-0.5", (1, 1, 4, 4), (7, 3), mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1)
