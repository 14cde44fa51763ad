#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What torch.nn.MultiheadAttention (PyTorch 2.15.0, CPU, batch_first) gives a query whose keys are all masked, as in a
# sequence that is padding alone, hangs on what has nothing to do with it:
#   need_weights=True, the default   NaN
#   need_weights=False               0 (and the output's bias), as F.scaled_dot_product_attention gives
#   the same after .eval() under torch.no_grad()      NaN with either
# TransformerEncoderLayer, which asks for no weights, gives finite numbers while it trains, NaN in .eval() under no_grad,
# and finite ones again after torch.backends.mha.set_fastpath_enabled(False). So a network that trained without a NaN has
# them when it is evaluated. TransformerEncoder around that layer has 0 in all that is padding, which it leaves out.
#
# Package of PyPI: torch 2.15.0, without NVIDIA's libraries (tools/python/cpu-torch), 0.6 GB to fetch; PYTHON names a
# Python that has this version already.
set -eu
tools=$(cd "$(dirname "$0")/../tools" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$work/venv"
    PYTHON=$work/venv/bin/python
    "$PYTHON" -m pip -q install --no-compile --no-deps --disable-pip-version-check torch==2.15.0
    "$PYTHON" -m pip -q install --no-compile --disable-pip-version-check typing_extensions==4.16.0 sympy==1.14.0 \
        networkx==3.6.1 jinja2==3.1.6 fsspec==2026.9.0 filelock==4.3.1
    "$tools/python/cpu-torch" "$PYTHON"
fi
"$PYTHON" - <<'PYTHON'
import sys
import warnings

warnings.simplefilter("ignore")  # of numpy, where it is missing
import torch

assert torch.__version__.split("+")[0] == "2.15.0", torch.__version__
torch.manual_seed(0)
x = torch.randn(2, 3, 8)
padding = torch.tensor([[False, False, False], [True, True, True]])  # the second sequence is padding alone
attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
encoder = torch.nn.TransformerEncoder(layer, 1)
attend = lambda weights: lambda: attention(x, x, x, key_padding_mask=padding, need_weights=weights)[0]
encode = lambda module: lambda: module(x, src_key_padding_mask=padding)


def seen(module, function, train, fast=True):
    module.train(train)
    torch.backends.mha.set_fastpath_enabled(fast)
    with torch.set_grad_enabled(train):
        y = function()
    torch.backends.mha.set_fastpath_enabled(True)
    assert y[0].isfinite().all()  # the sequence that is not padding
    return "NaN" if y[1].isnan().all() else "0" if not y[1].any() else "finite" if y[1].isfinite().all() else "mixed"


rows = (("MultiheadAttention, training, need_weights", seen(attention, attend(True), True), "NaN"),
        ("MultiheadAttention, training, no weights", seen(attention, attend(False), True), "0"),
        ("MultiheadAttention, eval, need_weights", seen(attention, attend(True), False), "NaN"),
        ("MultiheadAttention, eval, no weights", seen(attention, attend(False), False), "NaN"),
        ("MultiheadAttention, eval, no weights, no fast path", seen(attention, attend(False), False, fast=False), "0"),
        ("TransformerEncoderLayer, training", seen(layer, encode(layer), True), "finite"),
        ("TransformerEncoderLayer, eval", seen(layer, encode(layer), False), "NaN"),
        ("TransformerEncoderLayer, eval, no fast path", seen(layer, encode(layer), False, fast=False), "finite"),
        ("TransformerEncoder, training", seen(encoder, encode(encoder), True), "finite"),
        ("TransformerEncoder, eval", seen(encoder, encode(encoder), False), "0"))
for name, found, _ in rows:
    print(f"{name}: {found}")
q = torch.ones(1, 1, 3, 8)
plain = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=torch.zeros(3, 3, dtype=torch.bool))
print("scaled_dot_product_attention:", plain.unique().tolist())
sys.exit(any(found != expected for _, found, expected in rows) or plain.any().item())
PYTHON
