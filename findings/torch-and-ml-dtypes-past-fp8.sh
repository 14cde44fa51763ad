#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What is past the largest number of an 8-bit float becomes (PyTorch 2.15.0 on a CPU, beside ml_dtypes 0.6.0, which JAX uses):
#   float8_e4m3fn    448 in PyTorch, infinity too; NaN in ml_dtypes
#   float8_e5m2      infinity in both, though e4m3fn's cast saturates
#   float8_e4m3fnuz  NaN in both
#   float8_e8m0fnu   0 is 2^-127 and -1 is 1 in PyTorch, the sign is dropped; NaN in ml_dtypes
# So one network written to e4m3fn by PyTorch hides an overflow that JAX shows, and PyTorch itself hides it in one of its
# types alone.
#
# Packages of PyPI: torch 2.15.0, without NVIDIA's libraries (tools/python/cpu-torch), 0.6 GB to fetch, ml_dtypes 0.6.0;
# PYTHON names a Python that has these versions already.
set -eu
tools=$(cd "$(dirname "$0")/../tools" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$work/venv"
    PYTHON=$work/venv/bin/python
    "$PYTHON" -m pip -q install --no-compile --no-deps --disable-pip-version-check torch==2.15.0
    "$PYTHON" -m pip -q install --no-compile --disable-pip-version-check typing_extensions==4.16.0 sympy==1.14.0 \
        networkx==3.6.1 jinja2==3.1.6 fsspec==2026.9.0 filelock==4.3.1 numpy==2.4.6 ml_dtypes==0.6.0
    "$tools/python/cpu-torch" "$PYTHON"
fi
"$PYTHON" - <<'PYTHON'
import sys
import warnings

warnings.simplefilter("ignore")
import ml_dtypes
import numpy as np
import torch

assert (torch.__version__.split("+")[0], ml_dtypes.__version__) == ("2.15.0", "0.6.0")
inf, nan = np.inf, np.nan
rows = (("float8_e4m3fn", [464, 465, 1e9, inf, -inf, nan], [448, 448, 448, 448, -448, nan], [448, nan, nan, nan, nan, nan]),
        ("float8_e5m2", [61439, 61440, 1e9, inf, -inf, nan], *2 * [[57344, inf, inf, inf, -inf, nan]]),
        ("float8_e4m3fnuz", [247, 248, 1e9, inf, -inf, nan], *2 * [[240, nan, nan, nan, nan, nan]]),
        ("float8_e8m0fnu", [0, -1, 1, 3, inf, nan], [2.0**-127, 1, 1, 4, nan, nan], [nan, nan, 1, 4, nan, nan]))
good = True
for name, x, theirs, others in rows:
    for dtype in (torch.float32, torch.float64):
        seen = torch.tensor(x, dtype=dtype).to(getattr(torch, name)).float().numpy()
        good &= np.array_equal(seen, np.float32(theirs), equal_nan=True)
    beside = np.array(x, np.float32).astype(getattr(ml_dtypes, name)).astype(np.float32)
    good &= np.array_equal(beside, np.float32(others), equal_nan=True)
    print(f"{name} of {x}: PyTorch {seen.tolist()}, ml_dtypes {beside.tolist()}")
sys.exit(not good)
PYTHON
