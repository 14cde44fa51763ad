#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quantize and dequantize before judges that nobody here wrote: PyTorch's quantised tensors and observers, ml_dtypes' narrow
floats. By hand, with the package of a build:

    pip install torch==2.15.0 ml_dtypes==0.6.0 numpy==2.4.6
    PYTHONPATH=build/python MICA_LIBRARY=build/libmica.so tests/judges/quantized.py

Seeds are fixed, so that it passes always or never. Prints a line for each judgement; fails if one is against us."""
import sys
import warnings

import ml_dtypes
import numpy as np
import torch

import mica

FLOATS = {"e4m3": (ml_dtypes.float8_e4m3fn, 448), "e5m2": (ml_dtypes.float8_e5m2, 57344), "e2m1": (ml_dtypes.float4_e2m1fn, 6)}
INTEGERS = {"s8": (torch.qint8, -128, 127), "u8": (torch.quint8, 0, 255)}
rng = np.random.default_rng(7)
wrong = 0


def says(name, ours, theirs):
    global wrong
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    same = ours.shape == theirs.shape and bool(((ours == theirs) | (np.isnan(ours) & np.isnan(theirs))).all())
    wrong += not same
    print(f"{'agree' if same else 'DIFFER'}  {name}: {ours.size} values")


def data(*shape):
    """Of many sizes, with halves among them."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, shape))
    return np.where(rng.random(shape) < 0.2, np.round(2 * x) / 2, x).astype(np.float32)


def floats(kind, codes):
    """What a result holds, as f32."""
    codes = np.asarray(codes)
    if kind == "e2m1":
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(codes.shape[0], -1).view(ml_dtypes.float4_e2m1fn)
    return codes.astype(np.float32)


def spread(scale, block, shape):
    for d, b in enumerate(block):
        scale = np.repeat(scale, b or shape[d], axis=d)
    return scale[tuple(slice(0, n) for n in shape)]


for kind, (dtype, top) in FLOATS.items():
    for block in ((0, 0), (1, 0), (0, 1), (1, 32), (8, 16)):
        x = data(32, 128)
        blocks = [-(-n // (b or n)) for n, b in zip(x.shape, block)]
        scale = np.exp(rng.standard_normal(blocks)).astype(np.float32)
        y = mica.quantize(x, y=kind, scale=scale, block=block)
        quotient = np.clip(x / spread(scale, block, x.shape), -top, top)
        says(f"{kind} block {block} as ml_dtypes rounds", floats(kind, y), quotient.astype(dtype).astype(np.float32))
        seen = mica.view(y, kind) if kind == "e2m1" else y
        says(f"{kind} block {block} back", mica.dequantize(seen, scale=scale, block=block),
             floats(kind, y) * spread(scale, block, x.shape))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for kind, (dtype, low, top) in INTEGERS.items():
        x = data(48, 64)
        scale, zero = np.exp(rng.standard_normal(48) - 2), rng.integers(low, top + 1, 48)
        scale = scale.astype(np.float32)
        theirs = torch.quantize_per_channel(torch.tensor(x), torch.tensor(scale), torch.tensor(zero), 0, dtype)
        column = zero.astype(np.int8 if kind == "s8" else np.uint8)[:, None]
        y = mica.quantize(x, y=kind, scale=scale[:, None], zero=column)
        # PyTorch multiplies by the reciprocal: only what is not near a half is one and the same
        near = np.abs(np.abs(x / scale[:, None] % 1) - 0.5) < 1e-5
        says(f"{kind} by channel as torch.quantize_per_channel", np.where(near, 0, y), np.where(near, 0, theirs.int_repr().numpy()))
        says(f"{kind} by channel back", mica.dequantize(y, scale=scale[:, None], zero=column),
             ((y.astype(np.int64) - zero[:, None]).astype(np.float32) * scale[:, None]))
        observer = torch.ao.quantization.MinMaxObserver(dtype=dtype, qscheme=torch.per_tensor_affine)
        observer(torch.tensor(x))
        y, scale, zero = mica.quantize(x, y=kind, pass_="minmax")
        expected = observer.calculate_qparams()
        says(f"{kind} scale of MinMaxObserver", scale.reshape(1), expected[0].numpy())
        says(f"{kind} zero point of MinMaxObserver", zero.reshape(1), expected[1].numpy())

for kind, (dtype, top) in FLOATS.items():
    x = data(32, 128)
    y, scale = mica.quantize(x, y=kind, pass_="amax", block=(1, 32), scale="e8m0")
    amax = torch.tensor(x).reshape(32, 4, 32).abs().amax(-1)
    theirs = torch.exp2(torch.floor(torch.log2(amax)) - int(np.log2(top))).to(torch.float8_e8m0fnu)
    says(f"{kind} scales of MX as PyTorch's float8_e8m0fnu has them", np.asarray(scale).astype(np.float32), theirs.float().numpy())
    quotient = np.clip(x / spread(theirs.float().numpy(), (1, 32), x.shape), -top, top)
    says(f"{kind} elements of MX", floats(kind, y), quotient.astype(dtype).astype(np.float32))

x, whole = data(32, 128), np.array([0.01], np.float32)
y, scale = mica.quantize(x, y="e2m1", pass_="amax", block=(1, 16), scale="e4m3", global_scale=whole)
amax = np.abs(x).reshape(32, 8, 16).max(-1)
theirs = np.minimum(amax / np.float32(6) / whole, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
says("scales of NVFP4 as ml_dtypes rounds", np.asarray(scale).astype(np.float32), theirs)
quotient = np.clip(x / spread(theirs * whole, (1, 16), x.shape), -6, 6)
says("elements of NVFP4", floats("e2m1", y), quotient.astype(ml_dtypes.float4_e2m1fn).astype(np.float32))

sys.exit(wrong != 0)
