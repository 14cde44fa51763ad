#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# NumPy 2.4.6 with the types of ml_dtypes 0.6.0: the mean of 1000 ones in bfloat16 is 0.2559, in float8_e4m3fn 0.0156 and
# in float8_e5m2 0.0078, in float16 1. Of float16 NumPy's mean and variance add in f32; of the others they add in the
# type itself, one by one, and stand still where 1 is half a unit of the sum: at 256, 16 and 8. The standard deviation of
# ones is 0.5, 0.125 and 0.094. dtype=np.float32 mends it; np.dot adds in f32 by itself. Sorts do not know the types'
# NaN: [1, nan, 3, 2] becomes [1, nan, 2, 3], np.unique does the same, and nansum is NaN, while max and argmax take NaN
# as they do in float16.
#
# PYTHON: one that has these packages; without it they are fetched.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" -q install numpy==2.4.6 ml_dtypes==0.6.0
    PYTHON=$work/venv/bin/python
fi
"$PYTHON" - <<'PYTHON'
import sys
import warnings

import ml_dtypes
import numpy as np

assert (np.__version__, ml_dtypes.__version__) == ("2.4.6", "0.6.0")
warnings.simplefilter("ignore")  # of NaN
text = lambda v: str(np.asarray(v, np.float64).tolist())
good = True
for dtype, stop in ((np.float16, 1000), (ml_dtypes.bfloat16, 256), (ml_dtypes.float8_e4m3fn, 16), (ml_dtypes.float8_e5m2, 8)):
    ones, few = np.ones(1000, dtype), np.array([1, np.nan, 3, 2], dtype)
    found = {"mean": ones.mean(), "mean in f32": ones.mean(dtype=np.float32), "std": ones.std(), "sum": ones.sum(),
             "cumsum": np.cumsum(ones)[-1], "dot": np.dot(ones, ones), "sort": np.sort(few), "unique": np.unique(few),
             "nansum": np.nansum(few), "max": few.max(), "argmax": few.argmax()}
    print(f"{np.dtype(dtype).name}:", ", ".join(f"{n} {text(v)}" for n, v in found.items()))
    good &= found["mean in f32"] == 1 and found["argmax"] == 1 and bool(np.isnan(found["max"]))
    good &= all(float(found[n]) == stop for n in ("sum", "cumsum"))
    if dtype == np.float16:
        good &= found["mean"] == 1 and found["std"] == 0 and found["nansum"] == 6
        good &= text(found["sort"]) == text(found["unique"]) == "[1.0, 2.0, 3.0, nan]"
    else:
        good &= float(found["mean"]) == float(np.asarray(stop / 1000, dtype)) and found["std"] > 0.08
        good &= float(found["dot"]) == 1000 or dtype != ml_dtypes.bfloat16
        good &= bool(np.isnan(found["nansum"])) and text(found["sort"]) == text(found["unique"]) == "[1.0, nan, 2.0, 3.0]"
sys.exit(not good)
PYTHON
