/* SPDX-License-Identifier: Apache-2.0
 * What the engines of im2col share. */
#ifndef MICA_OPS_IM2COL_IM2COL_H
#define MICA_OPS_IM2COL_IM2COL_H

#include "mica/im2col.h"
#include "ops/op.h"
#include "ops/im2col/im2col_args.h"

static inline bool mica_im2col_is_forward(const mica_im2col_desc *d)
{
    return d->pass == MICA_IM2COL_FWD;
}
static inline const mica_tensor *mica_im2col_image(const mica_im2col_desc *d)
{
    return mica_im2col_is_forward(d) ? &d->x : &d->dx;
}
static inline const mica_tensor *mica_im2col_matrix(const mica_im2col_desc *d)
{
    return mica_im2col_is_forward(d) ? &d->y : &d->dy;
}
/* Sizes and strides of both tensors; without pointers and parts. */
mica_im2col_args mica_im2col_sizes(const mica_im2col_desc *d, const mica_tensor *image,
                                   const mica_tensor *matrix);
/* Copies have no error. */
void mica_im2col_contract(const void *desc, const mica_config *config, mica_contract *contract);

extern const mica_engine mica_im2col_cpu, mica_im2col_cuda;

#endif
