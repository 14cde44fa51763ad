/* SPDX-License-Identifier: Apache-2.0
 * What the files of this family share. */
#ifndef MICA_OPS_CONV_CONV_H
#define MICA_OPS_CONV_CONV_H

#include "ops/conv/geometry.h"

extern const mica_op mica_op_conv;
extern const mica_engine mica_conv_onednn, mica_conv_cpu, mica_conv_cuda, mica_conv_sm80,
    mica_conv_sm80_f32, mica_conv_sm90, mica_conv_slab, mica_conv_slab_stream, mica_conv_volume,
    mica_conv_cuda_depthwise, mica_conv_stem, mica_conv_sm90_stem, mica_conv_grouped,
    mica_conv_depthwise_mma, mica_conv_cudnn, mica_conv_gemm, mica_conv_col2im, mica_conv_by_group,
    mica_conv_turned, mica_conv_disjoint, mica_conv_winograd, mica_conv_fft_cpu, mica_conv_fft_cuda,
    mica_conv_channels_last, mica_conv_cuda_planar, mica_conv_cpu_passes, mica_conv_cuda_passes,
    mica_conv_sections, mica_conv_padded;

/* Columns of a result past which `onednn` leaves forward passes to `sections`. */
enum { MICA_CONV_LONG_ROW = 1 << 15 };

/* What a plain epilogue cannot do: aux, amax, scale_y, an 8-bit y of floating sums. */
bool conv_needs_quantised_epilogue(const mica_conv_desc *d);
/* Sums by channel of y and of its squares: batch statistics. */
bool conv_has_batch_stats(const mica_conv_desc *d);
/* The refusal of engines that leave the former, or both, to the engines of passes. */
mica_status conv_refuse_quantised_epilogue(const mica_conv_desc *d, mica_why *why);
mica_status conv_refuse_full_epilogue(const mica_conv_desc *d, mica_why *why);
/* And of those that leave x, w or y without elements to others. */
mica_status conv_refuse_empty(const mica_conv_desc *d, mica_why *why);

void mica_conv_reference(const void *desc, const mica_view *args, const double *scalars);
/* The CPU engine's loops: any sound description, no workspace. Engines that are faster but take
 * fewer run-time scalars hand the rest to it. */
mica_status mica_conv_direct(const mica_conv_desc *d, const mica_run *run, double alpha,
                             double beta);
/* Applies the epilogue's steps from `first` on to y, which is f32 and holds the others' result. */
void mica_conv_epilogue_pass(const mica_conv_desc *d, const mica_run *run, int first);

#endif
