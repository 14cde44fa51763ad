#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/ops/quantize_blocks/quantize_blocks_grids_body.h: the grids of GGUF's IQ formats, facts of the format, as
gguf.quants has them. A row of 8 numbers, or of 4, is a word: two bits of each index among three numbers, or three bits
among eight, the first in the lowest.

    pip install gguf==0.19.0 numpy==2.4.6
    tests/judges/quantize_blocks_grids.py > src/ops/quantize_blocks/quantize_blocks_grids_body.h"""
import importlib.metadata

import numpy as np
from gguf import quants

FORMATS = "IQ1_S IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S".split()

print("/* SPDX-License-Identifier: Apache-2.0")
print(f" * Written by tests/judges/quantize_blocks_grids.py: grids of gguf {importlib.metadata.version('gguf')}. The includer says what")
print(" * GRID is. */\n/* clang-format off */")
for name in FORMATS:
    kind = getattr(quants, name)
    kind.init_grid()
    rows = kind.grid.reshape(kind.grid_shape)
    bits = 2 if len(kind.grid_map) == 3 else 3
    index = np.searchsorted(np.array(kind.grid_map, np.float32), rows)
    assert (np.array(kind.grid_map, np.float32)[index] == rows).all()
    words = (index.astype(np.uint64) << (np.arange(rows.shape[1], dtype=np.uint64) * np.uint64(bits))).sum(1)
    print(f"GRID unsigned short mica_{name.lower()}_grid[{len(words)}] = {{")
    for at in range(0, len(words), 16):
        print("    " + ", ".join(str(w) for w in words[at:at + 16]) + ",")
    print("};")
