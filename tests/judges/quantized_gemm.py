#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Products with quantised weights for tests/unit/test_quantized_gemm.c, as tests/judges/quantized_gemm.h:
weights as gguf, bitsandbytes and PyTorch read their bytes, multiplied by PyTorch in f64. A row is a problem line,
the results, and the sums of magnitudes that bound their rounding.

    pip install gguf==0.19.0 numpy==2.5.5 torch==2.15.0 bitsandbytes==0.50.2
    tests/judges/quantized_gemm.py > tests/judges/quantized_gemm.h

The data is that of the test, of splitmix64 (Steele, Lea, Flood 2014). Bit 6 of odd bytes, and of all of an
MXFP4 block's first, is 0, so that no scale is infinite or NaN."""
import bitsandbytes.functional as bnb
import gguf
import numpy as np
import torch

M, N, K, GROUP = 2, 3, 512, 64
GGUF = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4".split()
X, W, SCALES, ZEROS = 1, 2, 3, 4


def splitmix(seed, n):
    with np.errstate(over="ignore"):
        z = (np.uint64(seed) + (np.arange(n, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def bytes_of(seed, n, every):
    data = (splitmix(seed, n) >> np.uint64(56)).astype(np.uint8)
    at = np.arange(n)
    data[(at % 2 == 1) | (at % 17 == 0) | every] &= 0xBF
    return data


def numbers_of(seed, n):
    """Multiples of an eighth from -1 to 1."""
    return ((splitmix(seed, n) % np.uint64(17)).astype(np.int64) - 8).astype(np.float32) / 8


def scales_of(n):
    return 0.25 + (splitmix(SCALES, n) % np.uint64(16)).astype(np.float32) / 16


def nibbles(data, signed):
    v = np.stack([data & 15, data >> 4], -1).reshape(-1).astype(np.float32)
    return np.where(v > 7, v - 16, v) if signed else v


def codes(kind, data):
    if kind in ("s4", "u4"):
        return nibbles(data, kind == "s4")
    if kind == "e2m1":
        table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
        v = nibbles(data, False).astype(int)
        return np.where(v & 8, -table[v & 7], table[v & 7])
    kinds = dict(s8=torch.int8, u8=torch.uint8, e4m3=torch.float8_e4m3fn, e5m2=torch.float8_e5m2)
    return torch.from_numpy(data).view(kinds[kind]).float().numpy()


def row(line, w):
    x = torch.from_numpy(numbers_of(X, M * K).reshape(M, K)).double()
    w = torch.from_numpy(np.ascontiguousarray(w, np.float32).reshape(N, K)).double()
    y, most = x @ w.T, x.abs() @ w.abs().T
    print('    {"quantized_gemm %s",' % line)
    print("     {%s}," % ", ".join("%.17g" % v for v in y.flatten()))
    print("     {%s}}," % ", ".join("%.9g" % v for v in most.flatten()))


def of_codes(kind, zero):
    bits = 4 if kind in ("s4", "u4", "e2m1") else 8
    v = codes(kind, bytes_of(W, N * K * bits // 8, kind in ("e4m3", "e5m2"))).reshape(N, K // GROUP, GROUP)
    z = np.zeros(N * K // GROUP, np.float32)
    if zero == "f32":
        z = numbers_of(ZEROS, z.size)
    elif zero:
        z = codes(zero, bytes_of(ZEROS, z.size * bits // 8, False))
    w = (torch.from_numpy(v) - torch.from_numpy(z).view(N, -1, 1)) * torch.from_numpy(scales_of(z.size)).view(N, -1, 1)
    row("x=f32:%dx%d w=%s:%dx%d group=%d%s" % (M, K, kind, N, K, GROUP, " zeros=" + zero if zero else ""), w.numpy())


def of_gguf(name):
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    length = K // elements * size
    data = bytes_of(W, N * length, False).reshape(N, length)
    row("format=%s x=f32:%dx%d w=u8:%dx%d" % (name.lower(), M, K, N, length),
        gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name]))


def of_bitsandbytes(name):
    data = torch.from_numpy(bytes_of(W, N * K // 2, False)).view(-1, 1)
    state = bnb.QuantState(absmax=torch.from_numpy(scales_of(N * K // GROUP)), shape=torch.Size([N, K]), blocksize=GROUP,
                           code=bnb.get_4bit_type(name, device="cpu"), quant_type=name, dtype=torch.float32)
    w = bnb.dequantize_4bit(data, state)
    row("format=%s x=f32:%dx%d w=u8:%dx%d" % (name, M, K, N, K // 2), w.numpy())


def main():
    print("/* SPDX-License-Identifier: Apache-2.0\n * Written by tests/judges/quantized_gemm.py: gguf 0.19.0,\n * numpy %s, "
          "torch %s, bitsandbytes 0.50.2. */\n/* clang-format off */" % (np.__version__, torch.__version__.split("+")[0]))
    for kind in ("s4", "u4", "s8", "u8", "e4m3", "e5m2", "e2m1"):
        of_codes(kind, "")
    for kind in ("s4", "u4", "s8", "u8"):
        of_codes(kind, kind)
    of_codes("u4", "f32")
    for name in GGUF:
        of_gguf(name)
    for name in ("nf4", "fp4"):
        of_bitsandbytes(name)


main()
