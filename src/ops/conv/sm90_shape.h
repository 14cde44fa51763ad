/* SPDX-License-Identifier: Apache-2.0
 * What the Hopper engines ask of a convolution: which of them the copy engine can walk over, and as
 * which maps. */
#ifndef MICA_OPS_CONV_SM90_SHAPE_H
#define MICA_OPS_CONV_SM90_SHAPE_H

#include "ops/conv/conv.h"
#include "ops/conv/conv_sm90_args.h"

enum { MICA_CONV_BLOCK = 64 }; /* channels, or pixels in wgrad, of a stage: 128 bytes */

typedef struct mica_conv_sm90_shape {
    mica_conv_geometry g;
    mica_conv_roles roles;
    int axes;
    mica_dtype in, out; /* types of both inputs, of the result */
    int image, other;   /* arguments: the image that taps walk over; the other input */
    bool filter_mn;     /* the channels written lie side by side in the filter */
    int class_count;
    mica_conv_class classes[MICA_CONV_CLASSES]; /* heaviest first; first_tile is not set */
    int step[3], tap_step[3];
} mica_conv_sm90_shape;

/* UNSUPPORTED with the value and the rule where the copy engine cannot. */
mica_status mica_conv_sm90_shape_make(const mica_conv_desc *d, mica_conv_sm90_shape *s,
                                      mica_why *why);
/* `pixels` of one class as a tap sees them, by 64 channels. */
void mica_conv_sm90_image_map(const mica_conv_sm90_shape *s, int class_index, int pixels,
                              mica_tensor_map_spec *map);
/* wgrad: the pixels of b in order. */
void mica_conv_sm90_grad_map(const mica_conv_sm90_shape *s, int pixels, mica_tensor_map_spec *map);
/* One tap of `cols` columns by 64 terms; 64 by 64 if filter_mn. */
void mica_conv_sm90_filter_map(const mica_conv_sm90_shape *s, const mica_conv_desc *d, int cols,
                               mica_tensor_map_spec *map);

#endif
