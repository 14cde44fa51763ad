/* SPDX-License-Identifier: Apache-2.0
 * What the engines of deform_conv share. */
#ifndef MICA_OPS_DEFORM_CONV_DEFORM_CONV_H
#define MICA_OPS_DEFORM_CONV_DEFORM_CONV_H

#include "mica/deform_conv.h"
#include "ops/deform_conv/deform_conv_args.h"
#include "ops/op.h"

/* Sizes and strides, of all images. */
void mica_deform_conv_args_make(const mica_deform_conv_desc *d, mica_deform_conv_args *a);
void mica_deform_conv_reference(const void *desc, const mica_view *args, const double *scalars);

/* Columns on the CPU, of a row of pixels of one tap, image and offset group; by what places are
 * formed in. */
void mica_deform_conv_columns_f32(const mica_deform_conv_args *a, mica_dtype type, int64_t row);
void mica_deform_conv_columns_f64(const mica_deform_conv_args *a, mica_dtype type, int64_t row);

extern const mica_op mica_op_deform_conv;
extern const mica_engine mica_deform_conv_cpu, mica_deform_conv_cuda;

#endif
