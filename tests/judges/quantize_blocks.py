#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What gguf.quants and bitsandbytes make of blocks, for tests/unit/test_quantize_blocks.c, as
tests/judges/quantize_blocks.h: digests of whole sets of blocks, at random and of adversarial bytes, and
the numbers of the first blocks.

    pip install gguf==0.19.0 numpy==2.4.6 torch==2.15.0 bitsandbytes==0.50.2
    tests/judges/quantize_blocks.py > tests/judges/quantize_blocks.h

The data is that of the test: bytes and numbers of splitmix64 (Steele, Lea, Flood 2014), made in whole
numbers. A digest is FNV-1a of the results' f32 bits, 0x7fc00000 for each NaN; of bytes made, those, with
00 7e for an f16 that is NaN. Without torch and bitsandbytes (--no-bitsandbytes) nf4 and fp4 keep the rows
that the header has."""
import sys

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

BLOCKS, SETS = 96, 3
READ = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4 IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S".split()
MADE = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 TQ1_0 TQ2_0".split()
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "TQ1_0": (52,), "TQ2_0": (64,)}


def splitmix(seed, n):
    with np.errstate(over="ignore"):
        z = (np.uint64(seed) + (np.arange(n, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def fnv(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def bytes_of(seed, size):
    """Random; blocks of all ones, of zeros, of one byte; the rest as they come, NaN and infinite scales among them."""
    data = (splitmix(seed, BLOCKS * size) >> np.uint64(56)).astype(np.uint8).reshape(BLOCKS, size)
    data[0], data[1], data[2], data[3] = 255, 0, 0x7C, 0x80
    return data


def numbers_of(seed, size, kind):
    """0: many sizes; 1: halves of small whole numbers, with ties; 2: with infinities, NaN, and the ends of f32."""
    bits = splitmix(seed, BLOCKS * size)
    whole = ((bits >> np.uint64(32)) % np.uint64(4001)).astype(np.int64) - 2000
    x = whole.astype(np.float32)
    if kind == 0:
        x = np.ldexp(x, (bits % np.uint64(24)).astype(np.int32) - 20).astype(np.float32)
    if kind == 1:
        x = (whole % 33 - 16).astype(np.float32) / np.float32(2)
    x = x.reshape(BLOCKS, size)
    x[x == 0] = 0
    x[0] = 0
    if kind == 2:
        pick = (bits % np.uint64(1000)).astype(np.int64).reshape(BLOCKS, size)
        special = {0: np.inf, 1: -np.inf, 2: np.nan, 3: 3e38, 4: -3e38}
        for at, value in special.items():
            x[pick == at] = value
        x[5] *= np.float32(2.0**-149)
        x[6] *= np.float32(2.0**-126)
        x[7] *= np.float32(2.0**110)
    return x


def canonical(v):
    bits = np.ascontiguousarray(v, dtype=np.float32).view(np.uint32).copy()
    bits[np.isnan(v)] = 0x7FC00000
    return bits


def canonical_bytes(name, y):
    y = y.copy()
    for at in HALVES.get(name, (0,)):
        half = np.ascontiguousarray(y[:, at:at + 2]).view(np.uint16)[:, 0]
        y[((half & 0x7C00) == 0x7C00) & ((half & 0x3FF) != 0), at:at + 2] = [0, 0x7E]
    return y


def row(kind, name, digests, first):
    numbers = ", ".join(f"0x{v:016x}" for v in digests)
    print(f"    {{MICA_BLOCK_FORMAT_{name}, {kind}, {{{numbers}}}, {{{', '.join(str(v) for v in first)}}}}},")


def read_gguf(name):
    kind = getattr(gguf.GGMLQuantizationType, name)
    digests = []
    for seed in range(SETS):
        with np.errstate(all="ignore"):
            v = dequantize(bytes_of(seed, gguf.GGML_QUANT_SIZES[kind][1]), kind)
        bits = canonical(v)
        digests.append(fnv(bits.astype("<u4").tobytes()))
        if seed == 0:
            first = [f"0x{b:08x}" for b in bits[8, :4]]
    row(0, name, digests, first)


def made_gguf(name):
    kind = getattr(gguf.GGMLQuantizationType, name)
    digests = []
    for seed in range(SETS):
        with np.errstate(all="ignore"):
            y = quantize(numbers_of(seed, gguf.GGML_QUANT_SIZES[kind][0], seed), kind)
        y = canonical_bytes(name, y)
        digests.append(fnv(y.tobytes()))
        if seed == 0:
            first = [f"0x{b:02x}" for b in y[8, :4]]
    row(1, name, digests, first)


def read_bitsandbytes(name):
    import bitsandbytes.functional as functional
    import torch
    table = functional.get_4bit_type(name.lower(), device="cpu")
    digests = []
    for seed in range(SETS):
        data, scale = bytes_of(seed, 32), np.abs(numbers_of(seed + 50, 1, 0))[:, 0]
        scale[3], scale[4], scale[5] = np.inf, np.nan, 1e-42
        state = functional.QuantState(absmax=torch.tensor(scale), shape=torch.Size([BLOCKS, 64]), code=table, blocksize=64,
                                      quant_type=name.lower(), dtype=torch.float32)
        v = functional.dequantize_4bit(torch.tensor(data.reshape(-1, 1)), state).numpy()
        bits = canonical(v)
        digests.append(fnv(bits.astype("<u4").tobytes()))
        if seed == 0:
            first = [f"0x{b:08x}" for b in bits[8, :4]]
    row(0, name, digests, first)


print("/* SPDX-License-Identifier: Apache-2.0")
print(f" * Written by tests/judges/quantize_blocks.py: gguf {__import__('importlib.metadata').metadata.version('gguf')}, "
      f"numpy {np.__version__}, bitsandbytes 0.50.2. */")
print("/* clang-format off */")
for name in READ:
    read_gguf(name)
for name in MADE:
    made_gguf(name)
if "--no-bitsandbytes" not in sys.argv:
    for name in ("NF4", "FP4"):
        read_bitsandbytes(name)
