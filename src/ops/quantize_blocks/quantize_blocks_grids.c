/* SPDX-License-Identifier: Apache-2.0
 * Grids of GGUF's IQ formats. */
#include "ops/quantize_blocks/quantize_blocks_grids.h"

#define GRID const
#include "ops/quantize_blocks/quantize_blocks_grids_body.h"
