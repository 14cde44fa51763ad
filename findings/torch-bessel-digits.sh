#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# torch.special's Bessel functions of the first and second kind and its Airy function (PyTorch 2.15.0, CPU) have in f64
# hardly more than the digits of f32 where they are used most. Their errors beside mpmath 1.3.0, where SciPy 1.17.1 has
# at most 8e-15:
#   bessel_j0   4e-7 just above 5, more than 1e-12 from 2.8 to 14.4
#   bessel_j1   5e-7 just above 5, more than 1e-12 from 2.8 to 14.5
#   bessel_y0   2e-7 just above 5, more than 1e-12 from 2.6 to 14.2
#   bessel_y1   9e-7 just above 5, more than 1e-12 from 2.8 to 15.3
#   airy_ai     3e-6 just below -2.09, more than 1e-12 from -4.5 to there
# J0 has a step of 4e-7 at 5: a difference quotient across 2e-6 has 0.14 there, and the slope is -0.33. The
# modified functions modified_bessel_i0 and i1 have 1e-15.
#
# Packages of PyPI: torch 2.15.0, without NVIDIA's libraries (tools/python/cpu-torch), 0.6 GB to fetch, scipy 1.17.1;
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
        mpmath==1.3.0 networkx==3.6.1 jinja2==3.1.6 fsspec==2026.9.0 filelock==4.3.1 numpy==2.4.6 scipy==1.17.1
    "$tools/python/cpu-torch" "$PYTHON"
fi
"$PYTHON" - <<'PYTHON'
import sys
import warnings

warnings.simplefilter("ignore")
import mpmath
import numpy as np
import scipy
import scipy.special
import torch

assert (torch.__version__.split("+")[0], scipy.__version__, mpmath.__version__) == ("2.15.0", "1.17.1", "1.3.0")
mpmath.mp.dps = 30
theirs, others = torch.special, scipy.special
rows = (("bessel_j0", others.j0, lambda x: mpmath.besselj(0, x), 0.01, 30, (2e-7, 8e-7), (4.9, 5.1)),
        ("bessel_j1", others.j1, lambda x: mpmath.besselj(1, x), 0.01, 30, (2e-7, 1e-6), (4.9, 5.1)),
        ("bessel_y0", others.y0, lambda x: mpmath.bessely(0, x), 0.01, 30, (1e-7, 5e-7), (4.9, 5.1)),
        ("bessel_y1", others.y1, lambda x: mpmath.bessely(1, x), 0.01, 30, (4e-7, 2e-6), (4.9, 5.1)),
        ("airy_ai", lambda x: others.airy(x)[0], mpmath.airyai, -10, 5, (1e-6, 6e-6), (-2.2, -2.0)),
        ("modified_bessel_i0", others.i0, lambda x: mpmath.besseli(0, x), 0.01, 30, (0, 1e-14), None),
        ("modified_bessel_i1", others.i1, lambda x: mpmath.besseli(1, x), 0.01, 30, (0, 1e-14), None))
good = True
for name, other, exact, low, high, bounds, near in rows:
    x = np.sort(np.concatenate([np.linspace(low, high, 1001), [-2.0901 if low < 0 else np.nextafter(5, 9)]]))
    right = [exact(mpmath.mpf(float(v))) for v in x]
    unit = np.array([max(1.0, float(abs(v))) if near else float(abs(v)) for v in right])
    error = lambda y: np.array([abs(float(v - r)) for v, r in zip(y, right)]) / unit
    found, beside = error(getattr(theirs, name)(torch.tensor(x)).numpy()), error(other(x))
    worst, bad = found.argmax(), x[found > 1e-12]
    print(f"{name}: at most {found.max():.2g} off, at {x[worst]:.4f}; more than 1e-12 "
          f"{f'from {bad.min():.2f} to {bad.max():.2f}' if len(bad) else 'nowhere'}; SciPy {beside.max():.1g}")
    good &= bool(bounds[0] <= found.max() < bounds[1]) and beside.max() < 1e-13
    good &= near is None or near[0] < x[worst] < near[1]
ends = torch.tensor([5 - 1e-6, 5 + 1e-6], dtype=torch.float64)
slope = (theirs.bessel_j0(ends).diff() / ends.diff()).item()
print(f"J0's slope at 5 from both sides: {slope:.4f}, -J1 is {-others.j1(5):.4f}")
good &= abs(slope + others.j1(5)) > 0.1
sys.exit(not good)
PYTHON
