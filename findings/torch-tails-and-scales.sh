#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Three places where PyTorch 2.15.0 gives another number on a CPU than its formula has, though the formula's is
# well within the type:
#  1. The gradient of hardsigmoid in f64 is the f32 number next to 1/6, off by 5e-9, half of f64's digits: a check of
#     gradients in f64 by finite differences sees it. hardswish's gradient has all digits.
#  2. torch.special.ndtr(-9) in f64 is 0, and so is gelu(-9): 1 + erf has lost the tail, which erfc keeps (1.1e-19).
#     torch.special.log_ndtr(-9) is right, so exp(log_ndtr(x)) is not ndtr(x).
#  3. Norms square before they scale: vector_norm of (3e30, 4e30) in f32 is inf, of (3e-30, 4e-30) 0, cdist likewise,
#     and F.normalize makes a vector of zeros of the first, where (0.6, 0.8) is meant. torch.hypot gives 5e30.
#
# Package of PyPI: torch 2.15.0, without NVIDIA's libraries (tools/python/cpu-torch), 0.6 GB to fetch; TORCH_PYTHON
# names a Python that has this version already.
# Seen: 0x1.5555560000000p-3 of 0x1.5555555555555p-3; ndtr 0, gelu -0, exp(log_ndtr) 1.1286e-19; norms inf and 0,
# normalized 0 0, cdist inf, hypot 5e+30.
set -eu
tools=$(cd "$(dirname "$0")/../tools" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python=${TORCH_PYTHON:-}
if [ -z "$python" ]; then
    python3 -m venv place
    python=$work/place/bin/python
    "$python" -m pip -q install --no-compile --no-deps --disable-pip-version-check torch==2.15.0
    "$python" -m pip -q install --no-compile --disable-pip-version-check typing_extensions==4.16.0 sympy==1.14.0 \
        networkx==3.6.1 jinja2==3.1.6 fsspec==2026.9.0 filelock==4.3.1
    "$tools/python/cpu-torch" "$python"
fi
cat >values.py <<'PYTHON'
import warnings

warnings.filterwarnings("ignore")  # that there is no NumPy
import torch
import torch.nn.functional as F

assert torch.__version__.split("+")[0] == "2.15.0", torch.__version__
f64 = torch.float64


def slope(function, at):
    x = torch.tensor([at], dtype=f64, requires_grad=True)
    function(x).backward()
    return x.grad.item()


ndtr, log_ndtr = (f(torch.tensor(-9.0, dtype=f64)) for f in (torch.special.ndtr, torch.special.log_ndtr))
gelu = F.gelu(torch.tensor(-9.0, dtype=f64)).item()
large, small = torch.tensor([3e30, 4e30]), torch.tensor([3e-30, 4e-30])
norms = [torch.linalg.vector_norm(v).item() for v in (large, small)]
unit = F.normalize(large, dim=0).tolist()
distance = torch.cdist(torch.zeros(1, 2), large[None]).item()
hypot = torch.hypot(large[0], large[1]).item()
print(f"1. slope of hardsigmoid {slope(F.hardsigmoid, 0.5).hex()}, 1/6 is {(1 / 6).hex()}")
print(f"2. ndtr {ndtr.item():g}, gelu {gelu:g}, exp(log_ndtr) {log_ndtr.exp().item():.5g}")
print(f"3. norms {norms[0]:g} and {norms[1]:g}, normalized {unit}, cdist {distance:g}, hypot {hypot:.5g}")
assert slope(F.hardsigmoid, 0.5) == float(torch.tensor(1 / 6, dtype=torch.float32)) != 1 / 6
assert slope(F.hardswish, 0.5) == 0.5 / 3 + 0.5
assert ndtr == 0 and gelu == 0 and abs(log_ndtr.exp().item() / 1.1285884059538408e-19 - 1) < 1e-12
assert norms == [float("inf"), 0] and unit == [0, 0] and distance == float("inf") and abs(hypot / 5e30 - 1) < 1e-6
PYTHON
"$python" values.py
