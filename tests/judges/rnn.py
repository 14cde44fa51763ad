#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Recurrent nets as PyTorch 2.15.0 and ONNX Runtime have them, for tests/unit/test_rnn.c:

    pip install torch==2.15.0 onnx==1.23.2 onnxruntime==1.32.0
    tests/judges/rnn.py > tests/judges/rnn.h

nn.RNN, nn.LSTM and nn.GRU in f64, on whole and on packed sequences, with their gradients. A GRU that resets before its
product is ONNX Runtime's with linear_before_reset=0; its gradient is autograd's of the same formula, whose values must
be ONNX Runtime's. Operands are made by a rule that the test knows, so results alone are written."""
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
X, W, HX, CX, DY, DHY, DCY = range(1, 8)  # salts


def made(salt, *shape):
    """As made() of the test."""
    i = np.arange(int(np.prod(shape)), dtype=np.int64)
    return torch.from_numpy((((i + 3) * 7919 * (2 * salt + 1) // 5) % 1024 / 512.0 - 1).reshape(shape))


def parts(cell, hidden, layers, sides, bias, flat):
    """Of every layer and direction W, R, b, r."""
    rows, result, at = GATES[cell] * hidden, [], 0
    for layer in range(layers):
        for _ in range(sides):
            width = sides * hidden if layer else INPUTS
            w = flat[at:at + rows * width].view(rows, width)
            at += rows * width
            r = flat[at:at + rows * hidden].view(rows, hidden)
            at += rows * hidden
            result.append([w, r, torch.zeros(rows, dtype=flat.dtype), torch.zeros(rows, dtype=flat.dtype)])
    for own in result:
        for k in range({"two": 2, "one": 1, "none": 0}[bias]):
            own[2 + k] = flat[at:at + rows]
            at += rows
    assert at == flat.numel()
    return result


def count(cell, hidden, layers, sides, bias):
    rows = GATES[cell] * hidden
    matrices = sides * rows * (INPUTS + hidden) + (layers - 1) * sides * rows * (sides * hidden + hidden)
    return matrices + layers * sides * {"two": 2, "one": 1, "none": 0}[bias] * rows


def by_torch(cell, hidden, layers, sides, bias, x, flat, hx, cx, lengths):
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(cell, torch.nn.RNN)
    more = {"nonlinearity": cell} if cell in ("tanh", "relu") else {}
    net = kind(INPUTS, hidden, layers, bidirectional=sides == 2, dtype=torch.float64, **more)
    names = [name for name, _ in net.named_parameters()]
    given = [t for own in parts(cell, hidden, layers, sides, bias, flat) for t in own]
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False) if lengths else x
    state = (hx, cx) if cell == "lstm" else hx
    y, last = torch.func.functional_call(net, dict(zip(names, given)), (packed, state))
    if lengths:
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=STEPS)
    return (y, *last) if cell == "lstm" else (y, last)


def before(hidden, sides, bias, x, flat, hx, lengths):
    ys, hs = [], []
    for side, (w, r, b, br) in enumerate(parts("gru", hidden, 1, sides, bias, flat)):
        columns = []
        for n in range(BATCH):
            length = lengths[n] if lengths else STEPS
            h, rows = hx[side, n], [torch.zeros(hidden, dtype=x.dtype)] * STEPS
            for t in reversed(range(length)) if side else range(length):
                a = w @ x[t, n] + b
                s = a[:2 * hidden] + r[:2 * hidden] @ h + br[:2 * hidden]
                reset, z = torch.sigmoid(s[:hidden]), torch.sigmoid(s[hidden:])
                now = torch.tanh(a[2 * hidden:] + r[2 * hidden:] @ (reset * h) + br[2 * hidden:])
                h = (1 - z) * now + z * h
                rows[t] = h
            columns.append(torch.stack(rows))
            hs.append(h)
        ys.append(torch.stack(columns, 1))
    y, hy = torch.cat(ys, 2), torch.stack(hs).view(sides, BATCH, hidden)
    check_before(hidden, sides, bias, x, flat, hx, lengths, y, hy)
    return y, hy


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
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT32 if name == "S" else TensorProto.FLOAT, v.shape)
              for name, v in feeds.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("Y", "Y_h")]
    model = helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 14)],
                              ir_version=8)
    got, last = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    got = np.moveaxis(got, 1, 2).reshape(STEPS, BATCH, sides * hidden)
    assert np.abs(got - y.detach().numpy()).max() < 1e-6 and np.abs(last - hy.detach().numpy()).max() < 1e-6


def written(t):
    return "{" + ", ".join(f"{v:.17g}" for v in t.detach().flatten().tolist()) + "}" if t is not None else "{0}"


def main():
    print("/* SPDX-License-Identifier: Apache-2.0")
    print(f" * Written by tests/judges/rnn.py with PyTorch {torch.__version__.split('+')[0]}, ONNX Runtime"
          f" {onnxruntime.__version__}: fields, whether there")
    print(" * are lengths; y, hy, cy, dx, dhx, dcx, dw. */\n/* clang-format off */")
    for cell, reset, hidden, layers, both, bias, begins, cut in ROWS:
        sides, lstm = 1 + both, cell == "lstm"
        n = count(cell, hidden, layers, sides, bias)
        x, flat = made(X, STEPS, BATCH, INPUTS), made(W, n)
        hx, cx = (made(salt, layers * sides, BATCH, hidden) if begins else
                  torch.zeros(layers * sides, BATCH, hidden, dtype=torch.float64) for salt in (HX, CX))
        operands = [x, flat, hx] + [cx] * lstm
        for t in operands:
            t.requires_grad_()
        lengths = LENGTHS if cut else None
        if reset:
            results = before(hidden, sides, bias, x, flat, hx, lengths)
        else:
            results = by_torch(cell, hidden, layers, sides, bias, x, flat, hx, cx, lengths)
        sum((r * made(salt, *r.shape)).sum() for r, salt in zip(results, (DY, DHY, DCY))).backward()
        fields = (f"cell={cell} hidden={hidden} layers={layers} bidirectional={both} bias={bias} "
                  f"reset_before={reset}")
        numbers = list(results) + [None] * (not lstm) + [t.grad for t in (x, hx)] + [cx.grad if lstm else None, flat.grad]
        print(f'{{"{fields}", {begins}, {cut}, {n},')
        print(",\n".join("    " + written(t) for t in numbers) + "},")


main()
