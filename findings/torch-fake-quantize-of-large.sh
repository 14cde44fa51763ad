#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# torch.fake_quantize_per_channel_affine (PyTorch 2.15.0, CPU, x86-64) gives the lowest code for infinity and for numbers
# that are 2^63 scales or more, fake_quantize_per_tensor_affine the highest one, as it is for the numbers below: with a
# scale of 1, a zero point of 3 and codes of -128 to 127 the first has -131 and the second 124. A zero point of f32, and x
# in f64, f16 and bf16, change nothing; -infinity and NaN have -131 in both, and all these have gradients of 0 in both.
# torch.quantize_per_channel has the highest code. That it begins at 2^63 looks like a conversion to a 64-bit integer
# before the bounds: this CPU's has the least integer for what does not fit, so has x.to(torch.int64). That is inferred
# from the results, and machines that convert otherwise may have others.
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

warnings.simplefilter("ignore")  # of numpy, where it is missing, and of quantize_per_channel's age
import torch

assert torch.__version__.split("+")[0] == "2.15.0", torch.__version__
inf, top, one, zero = torch.inf, torch.tensor(2.0**63), torch.ones(1), torch.tensor([3], dtype=torch.int32)
x = torch.stack([torch.tensor(100.0), torch.tensor(200.0), torch.nextafter(top, one[0]), top, torch.tensor(1e30),
                 torch.tensor(inf), torch.tensor(-inf), torch.tensor(torch.nan)])
tensor = lambda v: torch.fake_quantize_per_tensor_affine(v, 1.0, 3, -128, 127)
channel = lambda v: torch.fake_quantize_per_channel_affine(v[None], one, zero, 0, -128, 127)[0]
channel_f32 = lambda v: torch.fake_quantize_per_channel_affine(v[None], one, zero.float(), 0, -128, 127)[0]


def seen(function, dtype=torch.float32):
    v = x[[0, 1, 5, 6, 7]] if dtype == torch.float16 else x  # the others are infinite in it
    v = v.to(dtype).requires_grad_()
    y = function(v)
    return y.tolist(), torch.autograd.grad(y.sum(), v)[0].tolist()


codes = torch.quantize_per_channel(x[None, :7], one.double(), zero.long(), 0, torch.qint8).int_repr()[0].tolist()
print("x                   ", x.tolist())
print("per tensor          ", seen(tensor))
print("per channel         ", seen(channel))
print("per channel, f16    ", seen(channel, torch.float16))
print("quantize_per_channel", codes, "and to(int64)", x[3:7].to(torch.int64).tolist())
low, high, slopes = -131.0, 124.0, [1.0] + 7 * [0.0]
good = seen(tensor) == ([100.0] + 5 * [high] + 2 * [low], slopes)
for function in channel, channel_f32:
    good &= seen(function) == ([100.0] + 2 * [high] + 5 * [low], slopes)
    good &= seen(function, torch.float64) == seen(function)
    good &= seen(function, torch.float16) == ([100.0, high] + 3 * [low], slopes[:5])
    # 2^63 is the next number in bf16 too
    good &= torch.equal(function(torch.tensor([2.0**62, 2.0**63, inf]).bfloat16()).float(), torch.tensor([high, low, low]))
good &= codes == [103] + 5 * [127] + [-128] and x[3:7].to(torch.int64).tolist() == 4 * [-(2**63)]
sys.exit(not good)
PYTHON
