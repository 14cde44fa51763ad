#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# gguf's quants (0.19.0) store a block's scale as f16 and do not look whether it fits: one finite weight that makes it
# overflow turns the other elements of its block into NaN, since they have the code 0 and 0 times infinity is NaN. That
# begins at 65520 in TQ2_0 and TQ1_0, of blocks of 256, at 524160 in Q4_0, at 8.3 million in Q8_0; NumPy's warning of an
# overflow in a cast is all that is said. Written with the same arithmetic, mica's quantize_blocks makes the same bytes.
#
# PYTHON: one that has this gguf; without it the package is fetched.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" -q install gguf==0.19.0 numpy==2.4.6
    PYTHON=$work/venv/bin/python
fi
"$PYTHON" - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

assert importlib.metadata.version("gguf") == "0.19.0"
np.seterr(all="ignore")
good = True
for name, block, most in (("Q8_0", 32, 127 * 65504.0), ("Q4_0", 32, 8 * 65504.0), ("TQ2_0", 256, 65504.0)):
    for value, nan in ((most, 0), (most * 1.001, block - 1)):
        x = np.ones((1, 256), np.float32)
        x[0, 5] = value
        kind = GGMLQuantizationType[name]
        y = dequantize(quantize(x, kind), kind)[0, :block]
        print(f"{name}: 1 and one {value:.0f}: of {block} elements {np.isnan(y).sum()} NaN, {np.isinf(y).sum()} infinite")
        good &= bool(np.isfinite(x).all()) and np.isnan(y).sum() == nan
sys.exit(not good)
PYTHON
