#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# F.local_response_norm (PyTorch 2.15.0, CPU) of f16 or bf16 takes sequences, N x C x L, and refuses images and volumes:
# of 4 and 5 dimensions it averages with avg_pool3d, which has no f16 or bf16 on a CPU, of 3 with avg_pool2d, which has.
# The window reaches over channels alone, so that x.flatten(2) is the same task, and it works; in f32 it has the same
# numbers. Under autocast images work too, with a result of f32.
# Of sequences in f16 the squares are f16, and infinite from 256 on: among its like 256 becomes 0, in f32 56.
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
import torch.nn.functional as F

assert torch.__version__.split("+")[0] == "2.15.0", torch.__version__


def refusal(function, *arguments):
    try:
        function(*arguments)
    except NotImplementedError as error:
        return str(error)
    return "taken"


good = True
for dtype in torch.float32, torch.float16, torch.bfloat16:
    found = [refusal(F.local_response_norm, torch.ones(2, 4, *rest, dtype=dtype), 3) for rest in ((6,), (2, 3), (1, 2, 3))]
    pools = [refusal(pool, torch.ones(1, 1, *rest, dtype=dtype), 2)
             for pool, rest in ((F.avg_pool1d, (4,)), (F.avg_pool2d, (4, 4)), (F.avg_pool3d, (4, 4, 4)))]
    print(f"{dtype}: local_response_norm of 3, 4, 5 dimensions {found}; avg_pool1d, 2d, 3d {pools}")
    good &= [v == "taken" for v in found] == [True] + 2 * [dtype == torch.float32]
    good &= [v == "taken" for v in pools] == [True, True, dtype == torch.float32] and found[1] == found[2] == pools[2]
x = torch.randn(2, 4, 2, 3)
good &= torch.allclose(F.local_response_norm(x, 3), F.local_response_norm(x.flatten(2), 3).view(x.shape))
with torch.autocast("cpu", torch.bfloat16):
    good &= F.local_response_norm(x.bfloat16(), 3).dtype == torch.float32
for value, zero in ((255, False), (256, True), (300, True)):
    x = torch.full((1, 4, 2), value, dtype=torch.float16)
    half, single = (F.local_response_norm(v, 2)[0, 2, 0].item() for v in (x, x.float()))
    print(f"of {value}: f16 {half}, f32 {single}")
    good &= (half == 0) == zero and 53 < single < 57 and (zero or abs(half / single - 1) < 0.01)
sys.exit(not good)
PYTHON
