#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the packages that define the layouts of GPTQ, AWQ and Marlin make of words, for
tests/unit/test_packed_weights.c, as tests/judges/packed_weights.h: a row is a problem line, digests of the f16
results of three sets, and the first results of the first.

    pip download --no-deps auto-gptq==0.7.1 gptqmodel==7.7.0 autoawq==0.2.9 sglang==0.5.6 compressed-tensors==0.12.2
    (each unpacked in a folder of FOLDER)
    pip install numpy==2.4.6 torch==2.15.0
    tests/judges/packed_weights.py FOLDER > tests/judges/packed_weights.h

Importing the packages needs CUDA, so functions are taken from their files one by one, and run as they stand, on
the CPU. Numbers come from auto-gptq's module on unit vectors (zero points stored minus one), gptqmodel's
dequantize_weight (as they are, with g_idx), autoawq's dequantize_gemm, and for transposed tensors compressed-tensors'
unpack_from_int32 and _dequantize. Of Marlin the packages only pack:
words are unpacked by the permutation that the packing functions make, and must be the same again when packed, by
vLLM's functions as sglang has them and, of 4 bits without zero points, by auto-gptq's layer.

The data is that of the test, of splitmix64 (Steele, Lea, Flood 2014). Of 3 bits no zero point of gptq is stored as
7: there auto-gptq goes on to 8, where it goes back to 0 with 2, 4 and 8 bits."""
import ast
import glob
import math
import sys
import types

import numpy as np
import torch

QWEIGHT, QZEROS, SCALES, G_IDX, SETS = 1, 2, 3, 4, 3
FOLDER = sys.argv[1]


def extract(path, names, **known):
    """Functions and assignments of a file, methods by their own name, without the rest of it."""
    file, = glob.glob(FOLDER + "/*/" + path)
    space = dict(torch=torch, t=torch, np=np, numpy=np, math=math, **known)
    for node in ast.walk(ast.parse(open(file).read())):
        name = node.name if isinstance(node, ast.FunctionDef) else \
            getattr(node.targets[0], "id", None) if isinstance(node, ast.Assign) else None
        if name in names:
            if isinstance(node, ast.FunctionDef):
                node.decorator_list, node.returns = [], None
                for arg in node.args.args:
                    arg.annotation = None
            exec(compile(ast.Module([node], []), file, "exec"), space)
    return types.SimpleNamespace(**{n: space[n] for n in names})


gptq = extract("auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py", ["forward"])
gptq_v2 = extract("gptqmodel/nn_modules/qlinear/__init__.py",
                  ["_torch_shift_factor", "_torch_right_shift", "_torch_left_shift", "dequantize_weight", "_dequantize_from_codes"])
awq = extract("awq/utils/packing_utils.py", ["AWQ_ORDER", "AWQ_REVERSE_ORDER", "unpack_awq", "reverse_awq_order", "dequantize_gemm"])
packing = extract("sglang/srt/layers/quantization/utils.py", ["get_pack_factor", "pack_cols"])
GROUPS = "sglang/srt/layers/quantization/marlin_utils.py", ["get_scale_perms", "marlin_permute_scales", "marlin_zero_points"]
groups_of_vllm = extract(*GROUPS, pack_cols=packing.pack_cols)
groups_not_packed = extract(*GROUPS, pack_cols=lambda zeros, *sizes: zeros)
weights_of_vllm = extract("sglang/test/test_marlin_utils.py", ["marlin_permute_weights", "marlin_weights", "get_weight_perm"],
                          GPTQ_MARLIN_TILE=16, get_pack_factor=packing.get_pack_factor)
LAYER = "auto_gptq/nn_modules/qlinear/qlinear_marlin.py"
perms = zip(("_perm", "_scale_perm", "_scale_perm_single"), extract(LAYER, ["_get_perms"])._get_perms())
marlin = extract(LAYER, ["pack"], **dict(perms))

compressed = extract("compressed_tensors/compressors/quantized_compressors/pack_quantized.py", ["unpack_from_int32"])
_dequantize = extract("compressed_tensors/quantization/lifecycle/forward.py", ["_dequantize"])._dequantize


# ---- the data of the test ----

def splitmix(seed, n):
    with np.errstate(over="ignore"):
        z = (np.uint64(seed) + (np.arange(n, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def words(seed, rows, cols):
    return torch.from_numpy((splitmix(seed, rows * cols) >> np.uint64(32)).astype(np.uint32).view(np.int32).reshape(rows, cols))


def scales_of(seed, groups, n):
    bits = 0x2000 + splitmix(seed, groups * n) % np.uint64(0x1800)
    return torch.from_numpy(bits.astype(np.uint16).view(np.float16).reshape(groups, n))


def g_idx_of(seed, k, groups):
    return torch.from_numpy((splitmix(seed, k) % np.uint64(groups)).astype(np.int32))


def below_four(cols):
    """A row of words that clears the highest bit of each code of 3 bits."""
    v = [sum(1 << b for b in range(32) if (32 * c + b) % 3 != 2) for c in range(cols)]
    return torch.from_numpy(np.array(v, np.uint32).view(np.int32))


def fnv(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


# ---- what packages make of it ----

def shifts(bits):
    if bits != 3:
        return torch.arange(0, 32, bits, dtype=torch.int32).unsqueeze(0)
    rows = [[3 * i for i in range(11)] + [0], [0] + [3 * i + 1 for i in range(11)], [0] + [3 * i + 2 for i in range(10)] + [0]]
    return torch.tensor(rows, dtype=torch.int32).reshape(1, 3, 12)


def by_gptq(bits, group, qweight, scales, qzeros, g_idx):
    k, n = qweight.shape[0] * 32 // bits, scales.shape[1]
    layer = types.SimpleNamespace(outfeatures=n, autogptq_cuda_available=False, kernel_switch_threshold=False, bits=bits,
                                  qzeros=qzeros, scales=scales, qweight=qweight, group_size=group, bias=None, wf=shifts(bits))
    return gptq.forward(layer, torch.eye(k, dtype=torch.float16))


def by_gptq_v2(bits, group, qweight, scales, qzeros, g_idx):
    k = qweight.shape[0] * 32 // bits
    if g_idx is None:
        g_idx = torch.arange(k) // group
    layer = types.SimpleNamespace(planar=False, bits=bits, qzeros=qzeros, qweight=qweight, scales=scales, g_idx=g_idx, maxq=2**bits - 1,
                                  in_features=k, pack_factor=32 // bits, dequant_dtype=torch.int16 if bits == 8 else torch.int8,
                                  wf_unsqueeze_zero=shifts(bits).unsqueeze(0), wf_unsqueeze_neg_one=shifts(bits).unsqueeze(-1),
                                  _init_wf_unsqueeze_buffers=lambda: None)
    layer._dequantize_from_codes = types.MethodType(gptq_v2._dequantize_from_codes, layer)
    return gptq_v2.dequantize_weight(layer)


def by_awq(bits, group, qweight, scales, qzeros, g_idx):
    return awq.dequantize_gemm(qweight, qzeros, scales, bits, group)


def codes_of(bits, packed):
    mask = 2**bits - 1
    v = packed.numpy().view(np.uint32)
    return np.stack([v >> bits * i & mask for i in range(32 // bits)], -1).reshape(v.shape[0], -1).astype(np.int32)


def unpermuted(stored, permute):
    """What `permute` made `stored` of."""
    at = permute(torch.arange(stored.size)).numpy().reshape(-1)
    natural = np.zeros_like(stored).reshape(-1)
    natural[at] = stored.reshape(-1)
    return natural.reshape(stored.shape)


def check(what, a, b):
    if not torch.equal(a, b):
        sys.exit("packed again, %s differ" % what)


def zeros_of_marlin(bits, groups, n, qzeros):
    permute = groups_not_packed.marlin_zero_points
    natural = unpermuted(codes_of(bits, qzeros), lambda at: permute(at.reshape(groups, n), groups, n, bits))
    check("zero points", groups_of_vllm.marlin_zero_points(torch.from_numpy(natural), groups, n, bits), qzeros)
    return torch.from_numpy(natural)


def by_marlin(bits, group, qweight, scales, qzeros, g_idx):
    groups, n = scales.shape
    k = qweight.shape[0] * 16
    perm = weights_of_vllm.get_weight_perm(bits)
    stored = codes_of(bits, qweight)
    codes = unpermuted(stored, lambda at: weights_of_vllm.marlin_permute_weights(at.reshape(k, n), k, n, perm)).reshape(k, n)
    codes = torch.from_numpy(codes)
    check("weights", weights_of_vllm.marlin_weights(codes, k, n, bits, perm), qweight)
    natural = torch.from_numpy(unpermuted(scales.numpy(), lambda at: groups_of_vllm.marlin_permute_scales(at.reshape(groups, n), k, n, group)))
    check("scales", groups_of_vllm.marlin_permute_scales(natural, k, n, group), scales)
    zeros = zeros_of_marlin(bits, groups, n, qzeros) if qzeros is not None else torch.full((groups, n), 2**(bits - 1))
    g = torch.arange(k) // group
    w = ((codes - zeros[g]).float() * natural[g].float()).half()
    if bits == 4 and qzeros is None:
        layer = types.SimpleNamespace(infeatures=k, outfeatures=n, group_size=group, B=torch.empty_like(qweight),
                                      s=torch.empty_like(scales), bias=None)
        marlin.pack(layer, types.SimpleNamespace(weight=w.t().contiguous(), bias=None), natural.t().contiguous())
        check("auto-gptq's weights", layer.B, qweight)
        check("auto-gptq's scales", layer.s, scales)
    return w


def by_compressed_tensors(bits, group, weight_packed, weight_scale, weight_zero_point, g_idx):
    n, groups = weight_scale.shape
    k = groups * group
    w = compressed.unpack_from_int32(weight_packed, bits, torch.Size([n, k]))
    scale, zero = weight_scale.repeat_interleave(group, 1), None
    if weight_zero_point is not None:
        zero = compressed.unpack_from_int32(weight_zero_point, bits, torch.Size([n, groups]), packed_dim=0).repeat_interleave(group, 1)
    return _dequantize(w, scale, zero)


PACKAGES = dict(gptq=by_gptq, gptq_v2=by_gptq_v2, awq=by_awq, marlin=by_marlin)


def digest_row(line, sets):
    """sets: f16 results as they lie in memory."""
    data = [y.contiguous().numpy().view("<u2") for y in sets]
    digests = ", ".join("0x%016x" % fnv(d.tobytes()) for d in data)
    print('    {"%s",\n     {%s}, {%s}},' % (line, digests, ", ".join("0x%04x" % v for v in data[0].reshape(-1)[:4])))


def row_transposed(bits, k, n, group, zeros=True):
    groups, per = k // group, 32 // bits
    line = "format=gptq_v2 bits=%d group=%d qweight=s32:%dx%d:t scales=f16:%dx%d:t" % (bits, group, k // per, n, groups, n)
    line += " qzeros=s32:%dx%d:t" % (groups, n // per) if zeros else ""
    digest_row(line, [by_compressed_tensors(bits, group, words(seed + QWEIGHT, n, k // per), scales_of(seed + SCALES, n, groups),
                                            words(seed + QZEROS, n // per, groups) if zeros else None, None)
                      for seed in range(0, SETS * 10, 10)])


def row(name, bits, k, n, group, zeros=True, ordered=False):
    shape = dict(awq=(k, n // 8), marlin=(k // 16, n * bits // 2)).get(name, (k * bits // 32, n))
    groups = k // group
    line = "format=%s bits=%d group=%d qweight=s32:%dx%d scales=f16:%dx%d" % (name, bits, group, *shape, groups, n)
    if ordered:
        line = line.replace("group=%d " % group, "")
    line += " qzeros=s32:%dx%d" % (groups, n * bits // 32) if zeros else ""
    line += " g_idx=s32:%d" % k if ordered else ""
    sets = []
    for seed in range(0, SETS * 10, 10):
        qzeros = words(seed + QZEROS, groups, n * bits // 32) if zeros else None
        if name == "gptq" and bits == 3:
            qzeros &= below_four(qzeros.shape[1])
        y = PACKAGES[name](bits, group, words(seed + QWEIGHT, *shape), scales_of(seed + SCALES, groups, n), qzeros,
                           g_idx_of(seed + G_IDX, k, groups) if ordered else None)
        assert y.shape == (k, n) and y.dtype == torch.float16
        sets.append(y)
    digest_row(line, sets)


print("/* SPDX-License-Identifier: Apache-2.0\n * Written by tests/judges/packed_weights.py: auto-gptq 0.7.1, gptqmodel 7.7.0, autoawq 0.2.9,\n"
      " * sglang 0.5.6, compressed-tensors 0.12.2, numpy %s, torch %s. */\n/* clang-format off */" % (np.__version__, torch.__version__.split("+")[0]))
for bits in (2, 3, 4, 8):
    row("gptq", bits, 128, 64, 32)
for bits in (2, 3, 4, 8):
    row("gptq_v2", bits, 128, 64, 32)
    row("gptq_v2", bits, 128, 64, 32, ordered=True)
row("awq", 4, 128, 64, 32)
row("awq", 4, 96, 136, 96)
for bits in (4, 8):
    row("marlin", bits, 128, 192, 32, zeros=False)
    row("marlin", bits, 128, 192, 128, zeros=False)
    row("marlin", bits, 128, 192, 32)
    row("marlin", bits, 64, 128, 64)
for bits in (2, 4, 8):
    row_transposed(bits, 128, 64, 32)
    row_transposed(bits, 128, 64, 128, zeros=False)
