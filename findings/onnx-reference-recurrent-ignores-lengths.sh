#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# RNN, GRU and LSTM of ONNX's ReferenceEvaluator (onnx 1.23.2) take sequence_lens and leave it unread: with lengths 3 and
# 2 the second sequence is run over all three steps, and its last state is that of the third, which is padding. So it is
# forwards, backwards and both ways. LSTM's clip and input_forget change nothing either. ONNX Runtime 1.32.0 gives the
# second sequence the state that it has when run alone over its two steps. No error says so: who judges recurrent nets by
# this evaluator takes the right result of a padded batch for a wrong one.
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
STEPS, BATCH, INPUTS, HIDDEN = 3, 2, 2, 4
random = np.random.default_rng(0)


def last_state(op, direction, x, lengths=None, **attributes):
    """Y_h of ONNX Runtime and of the evaluator: directions x sequences x hidden."""
    gates, directions = {"RNN": 1, "GRU": 3, "LSTM": 4}[op], 1 + (direction == "bidirectional")
    weights = np.random.default_rng(1)
    feed = {"x": x, "w": weights.standard_normal((directions, gates * HIDDEN, INPUTS), dtype=np.float32),
            "r": weights.standard_normal((directions, gates * HIDDEN, HIDDEN), dtype=np.float32)}
    names = ["x", "w", "r"]
    if lengths:
        feed["lengths"], names = np.array(lengths, np.int32), ["x", "w", "r", "", "lengths"]
    ends = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in feed.items()]
    result = helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [None] * 3)
    node = helper.make_node(op, names, ["", "h"], hidden_size=HIDDEN, direction=direction, **attributes)
    model = helper.make_model(helper.make_graph([node], "net", ends, [result]),
                              opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feed)[0], ReferenceEvaluator(model).run(None, feed)[0]


x = random.standard_normal((STEPS, BATCH, INPUTS), dtype=np.float32)
same = lambda a, b: np.allclose(a, b, atol=1e-5)
good = True
for op in "RNN", "GRU", "LSTM":
    for direction in "forward", "reverse", "bidirectional":
        runtime, reference = last_state(op, direction, x, [3, 2])
        alone, _ = last_state(op, direction, x[:2, 1:])
        whole, whole_reference = last_state(op, direction, x)
        far = np.abs(reference[:, 1] - alone[:, 0]).max()
        print(f"{op}, {direction}: the second sequence's last state beside that of its two steps alone: ONNX Runtime "
              f"{np.abs(runtime[:, 1] - alone[:, 0]).max():.1g}, reference {far:.2g} off")
        good &= same(runtime[:, 1], alone[:, 0]) and same(whole, whole_reference) and far > 0.01
        good &= np.array_equal(reference, whole_reference)
plain, plain_reference = last_state("LSTM", "forward", x)
for attributes in {"clip": 0.1}, {"input_forget": 1}:
    runtime, reference = last_state("LSTM", "forward", x, **attributes)
    print(f"LSTM, {attributes}: ONNX Runtime {np.abs(runtime - plain).max():.2g}, reference "
          f"{np.abs(reference - plain_reference).max():.2g} from without it")
    good &= np.array_equal(reference, plain_reference) and not same(runtime, plain)
sys.exit(not good)
PYTHON
