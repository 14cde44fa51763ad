#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Recurrent nets as PyTorch 2.15.0 and ONNX Runtime have them, for tests/unit/test_rnn.c:

    pip install torch==2.15.0 onnx==1.23.2 onnxruntime==1.32.0
    tests/judges/rnn.py > tests/judges/rnn.h

nn.RNN, nn.LSTM and nn.GRU in f64, on whole and on packed sequences, with their gradients. A GRU that resets before its
product is ONNX Runtime's with linear_before_reset=0; its gradient is autograd's of the same formula, whose values must
be ONNX Runtime's. An LSTM whose cell is clipped is autograd's of the formula which without the clip is nn.LSTM's; nets
whose gates are clipped are the formula, whose values must be ONNX Runtime's, and have no gradients. Dropout multiplies the formula's y by a mask
which is Philox4x32-10 of NumPy's integers, by the rule of include/mica/random.h; without an input's weights they are
those that hand it on to each gate. An LSTM with peepholes is the formula whose values must be ONNX Runtime's, of one
layer; its gradient, that of peepholes too, is autograd's of the formula. Operands are made by a rule that the test knows, so results alone are written."""
import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper

for module, version in ((torch, "2.15.0"), (onnx, "1.23.2"), (onnxruntime, "1.32.0")):
    if module.__version__.split("+")[0] != version:
        raise SystemExit(f"{module.__name__} is {module.__version__}, the numbers are those of {version}")

STEPS, BATCH, INPUTS = 4, 3, 3
LENGTHS = [2, 4, 1]
GATES = {"tanh": 1, "relu": 1, "lstm": 4, "gru": 3}
# cell, reset_before, hidden, layers, both directions, bias, states to begin with, lengths
ROWS = [("tanh", 0, 4, 1, 0, "two", 0, 0), ("relu", 0, 2, 2, 1, "two", 1, 1), ("tanh", 0, 2, 2, 1, "none", 1, 1),
        ("lstm", 0, 3, 1, 0, "two", 0, 0), ("lstm", 0, 2, 2, 1, "two", 1, 1), ("lstm", 0, 2, 3, 0, "one", 1, 0),
        ("lstm", 0, 2, 1, 1, "none", 0, 1), ("gru", 0, 3, 1, 0, "two", 0, 0), ("gru", 0, 2, 2, 1, "two", 1, 1),
        ("gru", 0, 2, 1, 1, "one", 1, 0), ("gru", 1, 3, 1, 0, "two", 1, 0), ("gru", 1, 2, 1, 1, "two", 1, 1),
        ("gru", 1, 2, 1, 1, "one", 0, 0)]
# The same, a projection, and what is clipped.
MORE = [("lstm", 0, 3, 1, 0, "two", 1, 0, 2, ""), ("lstm", 0, 2, 2, 1, "two", 1, 1, 1, ""),
        ("lstm", 0, 3, 1, 1, "none", 0, 1, 2, ""), ("lstm", 0, 3, 2, 0, "one", 1, 0, 0, "cells"),
        ("lstm", 0, 2, 1, 1, "two", 1, 1, 1, "cells"), ("lstm", 0, 3, 1, 1, "two", 1, 1, 0, "gates"),
        ("gru", 0, 3, 1, 1, "two", 1, 1, 0, "gates"), ("gru", 1, 3, 1, 0, "two", 1, 1, 0, "gates"),
        ("tanh", 0, 4, 1, 1, "two", 1, 0, 0, "gates"), ("relu", 0, 4, 1, 0, "two", 1, 1, 0, "gates")]
# Dropout, and inputs that are skipped.
DROPPED = [("lstm", 0, 2, 2, 1, "two", 1, 1, 0, "", 0.25, 0), ("gru", 0, 2, 3, 0, "one", 1, 0, 0, "", 0.5, 0),
           ("lstm", 0, 3, 2, 0, "two", 0, 1, 2, "", 0.375, 0), ("tanh", 0, 2, 2, 1, "two", 1, 0, 0, "", 0.75, 0),
           ("lstm", 0, 3, 1, 1, "two", 1, 1, 0, "", 0, 1), ("gru", 0, 3, 1, 0, "two", 1, 0, 0, "", 0, 1),
           ("relu", 0, 3, 2, 0, "none", 1, 1, 0, "", 0.5, 1)]
# Peepholes; one layer without clip, lengths and projection by ONNX Runtime too.
PEEPING = [("lstm", 0, 3, 1, 0, "two", 0, 0, 0, ""), ("lstm", 0, 2, 2, 1, "two", 1, 1, 0, ""),
           ("lstm", 0, 2, 1, 1, "one", 1, 1, 0, ""), ("lstm", 0, 3, 1, 1, "two", 1, 1, 0, "gates"),
           ("lstm", 0, 3, 2, 0, "none", 1, 0, 0, "cells"), ("lstm", 0, 2, 2, 1, "two", 1, 1, 1, "")]
SEED, OFFSET = 0x123456789abc, 7  # of the test
CLIP = {"cells": (-0.375, 0.25), "gates": (-0.625, 0.625)}
X, W, HX, CX, DY, DHY, DCY, P = range(1, 9)  # salts


def made(salt, *shape):
    """As made() of the test."""
    i = np.arange(int(np.prod(shape)), dtype=np.int64)
    return torch.from_numpy((((i + 3) * 7919 * (2 * salt + 1) // 5) % 1024 / 512.0 - 1).reshape(shape))


def mask(layer, rate, *shape):
    """What dropout multiplies y behind a layer by: words of Philox4x32-10 by the element's index."""
    count, result = int(np.prod(shape)), []
    for i in range(layer * count, (layer + 1) * count):
        word, key = [i // 4 % 2**32, i // 4 >> 32, 0, OFFSET], [SEED % 2**32, SEED >> 32]
        for _ in range(10):
            a, b = word[0] * 0xD2511F53, word[2] * 0xCD9E8D57
            word = [b >> 32 ^ word[1] ^ key[0], b % 2**32, a >> 32 ^ word[3] ^ key[1], a % 2**32]
            key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
        result.append(0 if word[i % 4] < int(rate * 2**32) else 1 / (1 - rate))
    return torch.tensor(result, dtype=torch.float64).view(shape)


def parts(cell, hidden, layers, sides, bias, flat, projection=0, skip=0):
    """Of every layer and direction W, R, b, r, and the projection."""
    rows, out, result, at = GATES[cell] * hidden, projection or hidden, [], 0
    for layer in range(layers):
        for _ in range(sides):
            width = sides * out if layer else INPUTS
            if skip and not layer:
                w = torch.eye(hidden, dtype=flat.dtype).repeat(GATES[cell], 1)
            else:
                w = flat[at:at + rows * width].view(rows, width)
                at += rows * width
            r = flat[at:at + rows * out].view(rows, out)
            at += rows * out
            last = flat[at:at + projection * hidden].view(projection, hidden)
            at += projection * hidden
            zeros = torch.zeros(rows, dtype=flat.dtype)
            result.append([w, r, zeros, zeros] + [last] * bool(projection))
    for own in result:
        for k in range({"two": 2, "one": 1, "none": 0}[bias]):
            own[2 + k] = flat[at:at + rows]
            at += rows
    assert at == flat.numel()
    return result


def count(cell, hidden, layers, sides, bias, projection=0, skip=0):
    rows, out = GATES[cell] * hidden, projection or hidden
    matrices = sides * rows * ((0 if skip else INPUTS) + out) + (layers - 1) * sides * rows * (sides * out + out)
    each = {"two": 2, "one": 1, "none": 0}[bias] * rows + projection * hidden
    return matrices + layers * sides * each


def by_torch(cell, hidden, layers, sides, bias, x, flat, hx, cx, lengths, projection=0, skip=0):
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(cell, torch.nn.RNN)
    more = {"nonlinearity": cell} if cell in ("tanh", "relu") else {}
    if projection:
        more["proj_size"] = projection
    net = kind(INPUTS, hidden, layers, bidirectional=sides == 2, dtype=torch.float64, **more)
    names = [name for name, _ in net.named_parameters()]
    given = [t for own in parts(cell, hidden, layers, sides, bias, flat, projection, skip) for t in own]
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False) if lengths else x
    state = (hx, cx) if cell == "lstm" else hx
    y, last = torch.func.functional_call(net, dict(zip(names, given)), (packed, state))
    if lengths:
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=STEPS)
    return (y, *last) if cell == "lstm" else (y, last)


def step(cell, reset, hidden, own, x, h, c, clip, peepholes=None):
    """h and c behind a step, by the formulas of include/mica/rnn.h."""
    w, r, b, br = own[:4]
    gate = (lambda v: v.clamp(*CLIP["gates"])) if clip == "gates" else lambda v: v
    a, s = w @ x + b, r @ h + br
    if cell in ("tanh", "relu"):
        return getattr(torch, cell)(gate(a + s)), c
    if cell == "gru":
        first, z = (torch.sigmoid(gate(v)) for v in (a + s)[:2 * hidden].split(hidden))
        late = r[2 * hidden:] @ (first * h) + br[2 * hidden:] if reset else first * s[2 * hidden:]
        now = torch.tanh(gate(a[2 * hidden:] + late))
        return (1 - z) * now + z * h, c
    i, f, g, o = (a + s).split(hidden)
    pi, po, pf = torch.zeros(3, hidden, dtype=x.dtype) if peepholes is None else peepholes
    c = torch.sigmoid(gate(f + pf * c)) * c + torch.sigmoid(gate(i + pi * c)) * torch.tanh(gate(g))
    if clip == "cells":
        c = c.clamp(*CLIP["cells"])
    h = torch.sigmoid(gate(o + po * c)) * torch.tanh(c)
    return (own[4] @ h if len(own) > 4 else h), c


def by_steps(cell, reset, hidden, layers, sides, bias, x, flat, hx, cx, lengths, projection, clip, dropout=0, skip=0,
             peepholes=None):
    hs, cs, out = [], [], projection or hidden
    nets = parts(cell, hidden, layers, sides, bias, flat, projection, skip)
    for layer in range(layers):
        ys = []
        for side in range(sides):
            own, columns = nets[layer * sides + side], []
            for n in range(BATCH):
                length = lengths[n] if lengths else STEPS
                h, c = hx[layer * sides + side, n], cx[layer * sides + side, n]
                rows = [torch.zeros(out, dtype=x.dtype)] * STEPS
                for t in reversed(range(length)) if side else range(length):
                    h, c = step(cell, reset, hidden, own, x[t, n], h, c, clip,
                                None if peepholes is None else peepholes[layer * sides + side])
                    rows[t] = h
                columns.append(torch.stack(rows))
                hs.append(h)
                cs.append(c)
            ys.append(torch.stack(columns, 1))
        x = torch.cat(ys, 2)
        if dropout and layer + 1 < layers:
            x = x * mask(layer, dropout, *x.shape)
    hy, cy = (torch.stack(s).view(layers * sides, BATCH, -1) for s in (hs, cs))
    return (x, hy, cy) if cell == "lstm" else (x, hy)


def check_gates(cell, reset, hidden, sides, bias, x, flat, hx, cx, lengths, results, clip=True, peepholes=None):
    """Clipped gates, peepholes, by ONNX Runtime, in f32; its orders are i o f c and z r h."""
    order = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}.get(cell, (0,))

    def sorted_rows(m):
        split = m.split(hidden)
        return torch.cat([split[k] for k in order]).detach().numpy().astype(np.float32)
    own = parts(cell, hidden, 1, sides, bias, flat)
    feeds = {"X": x.detach().numpy().astype(np.float32), "W": np.stack([sorted_rows(p[0]) for p in own]),
             "R": np.stack([sorted_rows(p[1]) for p in own]),
             "B": np.stack([np.concatenate([sorted_rows(p[2]), sorted_rows(p[3])]) for p in own]),
             "S": np.array(lengths or [STEPS] * BATCH, dtype=np.int32), "H": hx.detach().numpy().astype(np.float32)}
    if cell == "lstm":
        feeds["C"] = cx.detach().numpy().astype(np.float32)
    if peepholes is not None:
        feeds["P"] = peepholes.detach().reshape(sides, 3 * hidden).numpy().astype(np.float32)
    more = {"linear_before_reset": int(not reset)} if cell == "gru" else {}
    if clip:
        more["clip"] = CLIP["gates"][1]
    if cell == "relu":
        more["activations"] = ["Relu"] * sides
    kind = {"lstm": "LSTM", "gru": "GRU"}.get(cell, "RNN")
    names = ["Y", "Y_h", "Y_c"][:len(results)]
    node = helper.make_node(kind, list(feeds), names, hidden_size=hidden,
                            direction="bidirectional" if sides == 2 else "forward", **more)
    got = list(run_onnx(node, feeds, names))
    got[0] = np.moveaxis(got[0], 1, 2).reshape(STEPS, BATCH, sides * hidden)
    for a, b in zip(got, results):
        assert np.abs(a - b.detach().numpy()).max() < 1e-6, (cell, reset)


def run_onnx(node, feeds, names):
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT32 if name == "S" else TensorProto.FLOAT, v.shape)
              for name, v in feeds.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    model = helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 14)],
                              ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)


def check_before(hidden, sides, bias, x, flat, hx, lengths, y, hy):
    """The same by ONNX Runtime, which has it in f32 and whose gates are z r h."""
    def order(m):
        return torch.cat([m[hidden:2 * hidden], m[:hidden], m[2 * hidden:]]).detach().numpy().astype(np.float32)
    own = parts("gru", hidden, 1, sides, bias, flat)
    feeds = {"X": x.detach().numpy().astype(np.float32), "W": np.stack([order(p[0]) for p in own]),
             "R": np.stack([order(p[1]) for p in own]),
             "B": np.stack([np.concatenate([order(p[2]), order(p[3])]) for p in own]),
             "H": hx.detach().numpy().astype(np.float32), "S": np.array(lengths or [STEPS] * BATCH, dtype=np.int32)}
    node = helper.make_node("GRU", ["X", "W", "R", "B", "S", "H"], ["Y", "Y_h"], hidden_size=hidden,
                            direction="bidirectional" if sides == 2 else "forward", linear_before_reset=0)
    got, last = run_onnx(node, feeds, ("Y", "Y_h"))
    got = np.moveaxis(got, 1, 2).reshape(STEPS, BATCH, sides * hidden)
    assert np.abs(got - y.detach().numpy()).max() < 1e-6 and np.abs(last - hy.detach().numpy()).max() < 1e-6


def written(t):
    return "{" + ", ".join(f"{v:.17g}" for v in t.detach().flatten().tolist()) + "}" if t is not None else "{0}"


def main():
    print("/* SPDX-License-Identifier: Apache-2.0")
    print(f" * Written by tests/judges/rnn.py with PyTorch {torch.__version__.split('+')[0]}, ONNX Runtime"
          f" {onnxruntime.__version__}: fields, whether there")
    print(" * are lengths; y, hy, cy, dx, dhx, dcx, dw, gradient of peepholes. */\n/* clang-format off */")
    rows = [row + (0, "") for row in ROWS] + MORE
    for row in [row + (0, 0, 0) for row in rows] + [row + (0,) for row in DROPPED] + [row + (0, 0, 1) for row in PEEPING]:
        cell, reset, hidden, layers, both, bias, begins, cut, projection, clip, dropout, skip, peeps = row
        sides, lstm, out = 1 + both, cell == "lstm", projection or hidden
        n = count(cell, hidden, layers, sides, bias, projection, skip)
        x, flat = made(X, STEPS, BATCH, INPUTS), made(W, n)
        hx, cx = (made(salt, layers * sides, BATCH, units) if begins else
                  torch.zeros(layers * sides, BATCH, units, dtype=torch.float64) for salt, units in ((HX, out), (CX, hidden)))
        peepholes = made(P, layers * sides, 3, hidden) if peeps else None
        operands = [x, flat, hx] + [cx] * lstm + [peepholes] * peeps
        for t in operands:
            t.requires_grad_()
        lengths = LENGTHS if cut else None
        net = (hidden, layers, sides, bias, x, flat, hx, cx, lengths, projection)
        results = by_steps(cell, reset, *net, clip, dropout, skip, peepholes)
        if clip == "gates":
            check_gates(cell, reset, hidden, sides, bias, x, flat, hx, cx, lengths, results, True, peepholes)
        elif peeps:
            assert all((a - b).abs().max() > 0.01 for a, b in zip(results, by_steps(cell, reset, *net, clip)))
            if layers == 1:
                check_gates(cell, reset, hidden, sides, bias, x, flat, hx, cx, lengths, results, False, peepholes)
        elif reset:
            check_before(hidden, sides, bias, x, flat, hx, lengths, *results)
        else:
            known, plain = by_torch(cell, *net, skip), by_steps(cell, reset, *net, "", 0, skip)
            assert all(torch.allclose(a, b, rtol=0, atol=1e-14) for a, b in zip(plain, known))
            assert not (clip or dropout) or any((a - b).abs().max() > 0.01 for a, b in zip(plain, results))
            results = results if clip or dropout else known
        sum((r * made(salt, *r.shape)).sum() for r, salt in zip(results, (DY, DHY, DCY))).backward()
        fields = (f"cell={cell} hidden={hidden} layers={layers} bidirectional={both} bias={bias} "
                  f"reset_before={reset}")
        if projection:
            fields += f" projection={projection}"
        if dropout:
            fields += f" dropout={dropout}"
        if skip:
            fields += " skip_input=1"
        if peeps:
            fields += " peepholes=f64"
        if clip:
            fields += " clip={} clip_low={} clip_high={}".format(clip, *CLIP[clip])
        grads = [x.grad, hx.grad, cx.grad if lstm else None, flat.grad] + [peepholes.grad if peeps else None]
        grads = [None] * len(grads) if clip == "gates" else grads
        numbers = list(results) + [None] * (not lstm) + grads
        print(f'{{"{fields}", {begins}, {cut}, {n},')
        print(",\n".join("    " + written(t) for t in numbers) + "},")


main()
