/* SPDX-License-Identifier: Apache-2.0
 * From a descriptor to the one plain convolution that every engine's loops know (conv_args.h). */
#ifndef MICA_OPS_CONV_GEOMETRY_H
#define MICA_OPS_CONV_GEOMETRY_H

#include "mica/conv.h"
#include "ops/conv/conv_args.h"
#include "ops/access/access.h"
#include "ops/epilogue/epilogue.h"

/* Parts of `each` that n make, the last perhaps smaller. */
static inline int64_t conv_ceil_div(int64_t n, int64_t each)
{
    return (n + each - 1) / each;
}

/* The steps from pixel to pixel of so many images of a size. */
static inline int64_t conv_pixel_steps(int64_t image_step, int64_t images, const long long steps[3],
                                       const long long size[3])
{
    int64_t all = mica_access_step(image_step, images);
    for (int i = 0; i < 3; i++) all |= mica_access_step(steps[i], size[i]);
    return all;
}

/* Which of the three sums; and which argument is a, b, f; which is written; which are read: the
 * image that taps walk over (dgrad: b), and the filter (wgrad: b). */
typedef struct mica_conv_roles {
    int kind;
    bool dgrad, wgrad;
    int a, b, f, out, image, other; /* MICA_CONV_X, ... */
} mica_conv_roles;

mica_conv_roles mica_conv_roles_of(const mica_conv_desc *d);
/* The tensor of X, W or Y. */
const mica_tensor *mica_conv_tensor(const mica_conv_desc *d, int arg);
/* Whether the result has no elements. */
bool mica_conv_is_empty(const mica_conv_desc *d);
/* d is checked. */
void mica_conv_geometry_make(const mica_conv_desc *d, mica_conv_geometry *g);
/* Whether every position along an axis, with padding and taps, fits 32 bits. */
bool mica_conv_positions_fit_s32(const mica_conv_geometry *g);
/* One tap, which sees each pixel: a product. */
bool mica_conv_is_pointwise(const mica_conv_geometry *g);
/* Products in the sum behind one result. */
int64_t mica_conv_terms(const mica_conv_desc *d);
/* Terms along an axis of the sum that has the most of them there: taps that meet a pixel, or, of a
 * tap's gradient, pairs of pixels. The reach of taps and pixels fits 62 bits. */
int64_t mica_conv_most_met(const mica_conv_geometry *g, int kind, int axis);
/* Whether no tap meets a pixel although there are both: all sums are empty, results structural
 * zeros. */
bool mica_conv_misses(const mica_conv_geometry *g);
/* Size of a plain convolution's output along one axis; false on overflow or where the filter
 * is larger than the padded image. */
bool mica_conv_out_size(const mica_conv_desc *d, int axis, int64_t in, int64_t tap, int64_t *out);
/* Size of the image whose last position is the last that `out` positions touch. */
bool mica_conv_in_size(const mica_conv_desc *d, int axis, int64_t out, int64_t tap, int64_t extra,
                       int64_t *in);
mica_epilogue mica_conv_epilogue(const mica_conv_desc *d);
/* What kernels need of it beside the pointers. */
void mica_conv_epilogue_args(const mica_conv_desc *d, mica_epilogue_args *a);

#endif
