/* SPDX-License-Identifier: Apache-2.0
 * Modes and paddings as kernels know them: the numbers of mica/grid_sample.h. */
#ifndef MICA_OPS_GRID_SAMPLE_MODES_H
#define MICA_OPS_GRID_SAMPLE_MODES_H

enum { SAMPLE_BILINEAR, SAMPLE_NEAREST, SAMPLE_BICUBIC };
enum { SAMPLE_ZEROS, SAMPLE_BORDER, SAMPLE_REFLECTION };

#endif
