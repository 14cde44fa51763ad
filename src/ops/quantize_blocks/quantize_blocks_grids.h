/* SPDX-License-Identifier: Apache-2.0
 * Grids of GGUF's IQ formats on the host, 9 KB, which the loops and the reference share. */
#ifndef MICA_OPS_QUANTIZE_BLOCKS_GRIDS_H
#define MICA_OPS_QUANTIZE_BLOCKS_GRIDS_H

extern const unsigned short mica_iq1_s_grid[2048], mica_iq2_xxs_grid[256], mica_iq2_xs_grid[512],
    mica_iq2_s_grid[1024], mica_iq3_xxs_grid[256], mica_iq3_s_grid[512];

#endif
