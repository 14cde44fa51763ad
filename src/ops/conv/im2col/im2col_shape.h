/* SPDX-License-Identifier: Apache-2.0
 * What the Hopper engines ask of a convolution: which of them TMA can walk over, and as
 * which maps. */
#ifndef MICA_OPS_CONV_IM2COL_IM2COL_SHAPE_H
#define MICA_OPS_CONV_IM2COL_IM2COL_SHAPE_H

#include "ops/conv/conv.h"
#include "ops/conv/im2col/im2col_args.h"

enum { MICA_CONV_BLOCK = 64 }; /* channels, or pixels in wgrad, of a stage: 128 bytes */

typedef struct mica_conv_sm90_shape {
    mica_conv_geometry g;
    mica_conv_roles roles;
    int axes;
    mica_dtype in, out; /* types of both inputs, of the result */
    bool filter_mn;     /* the channels written lie side by side in the filter */
    bool residual;      /* one is given */
    bool residual_wide; /* it is of 16 bits, 8 channels side by side at multiples of 16 bytes */
    bool stats;         /* sums by channel are asked for */
    bool planes;        /* wgrad of a 1x1 filter, whose images lie channel after channel */
    int class_count;
    mica_conv_class classes[MICA_CONV_CLASSES]; /* heaviest first; first_tile is not set */
    int step[3], tap_step[3];
} mica_conv_sm90_shape;

/* Forward and dgrad: channels of a group that are read and written, and size and strides of the
 * image written (wgrad: of b). */
static inline int64_t mica_conv_sm90_terms(const mica_conv_sm90_shape *s)
{
    return s->roles.dgrad ? s->g.k : s->g.c;
}
static inline int64_t mica_conv_sm90_columns(const mica_conv_sm90_shape *s)
{
    return s->roles.dgrad ? s->g.c : s->g.k;
}
static inline const long long *mica_conv_sm90_size(const mica_conv_sm90_shape *s)
{
    return s->roles.dgrad ? s->g.in : s->g.out;
}
static inline const mica_conv_strides *mica_conv_sm90_strides(const mica_conv_sm90_shape *s)
{
    return s->roles.dgrad ? &s->g.a : &s->g.b;
}
/* Taps of a plane. */
static inline int mica_conv_sm90_taps(const mica_conv_sm90_shape *s)
{
    return (int)(s->g.tap[1] * s->g.tap[2]);
}

/* What an engine takes beside the rest. MERGED: images that a 1x1 filter sees pixel by pixel become
 * one row of pixels where they lie in memory that way. GROUPS: more than one. PLANES: those images
 * in wgrad, each channel's pixels side by side, which are the terms of the sum; of each image one
 * row of pixels. */
enum { MICA_CONV_SM90_MERGED = 1, MICA_CONV_SM90_GROUPS = 2, MICA_CONV_SM90_PLANES = 4 };
/* UNSUPPORTED with the value and the rule where TMA cannot. */
mica_status mica_conv_sm90_shape_make(const mica_conv_desc *d, int takes, mica_conv_sm90_shape *s,
                                      mica_why *why);
/* Whether TMA can read and write a tensor that lies in memory as channels last. */
mica_status mica_conv_sm90_image_ok(const mica_tensor *t, const char *name, mica_why *why);
/* For engines that store the image they write as they read the other: that type, and such a map. */
mica_status mica_conv_sm90_result_ok(const mica_conv_sm90_shape *s, const mica_conv_desc *d,
                                     mica_why *why);
/* Milliseconds more for a residual that the engines of slabs and volumes read element by element;
 * the box of one, if they can have it by that, costs what memory does. */
double mica_conv_sm90_residual_ms(const mica_conv_sm90_shape *s, const mica_device_info *device);
/* `pixels` of one class as a tap sees them, by 64 channels. */
void mica_conv_sm90_image_map(const mica_conv_sm90_shape *s, int class_index, int pixels,
                              mica_tensor_map_spec *map);
/* Blocks of 64 pixels in wgrad: of planes each image's last one may have fewer. */
int64_t mica_conv_sm90_pixel_blocks(const mica_conv_sm90_shape *s);
/* wgrad: the pixels of b in order. */
void mica_conv_sm90_grad_map(const mica_conv_sm90_shape *s, int pixels, mica_tensor_map_spec *map);
/* Windows of width x height pixels, of one plane in three dimensions, by so many channels of a
 * (else b): 64, or 32; of the image that taps walk over, those that neighbouring results read. */
void mica_conv_sm90_window_map(const mica_conv_sm90_shape *s, bool of_a, int channels, int width,
                               int height, mica_tensor_map_spec *map);
/* The residual's windows as `result`'s; none (rank 0) where TMA cannot bring them. */
void mica_conv_sm90_residual_map(const mica_conv_sm90_shape *s, const mica_conv_desc *d,
                                 const mica_tensor_map_spec *result, mica_tensor_map_spec *map);
/* One tap of `cols` columns by so many terms; as many of both if filter_mn. */
void mica_conv_sm90_filter_map(const mica_conv_sm90_shape *s, const mica_conv_desc *d, int channels,
                               int cols, mica_tensor_map_spec *map);
/* Where wgrad's sums go: what a kernel that stores them is told when planned, compiled and run. */
mica_conv_sm90_filter mica_conv_sm90_filter_of(const mica_conv_geometry *g);
void mica_conv_sm90_filter_prologue(const mica_conv_sm90_shape *s, mica_text *p);
void mica_conv_sm90_filter_bind(const mica_plan *plan, const mica_run *run, int out,
                                mica_conv_sm90_filter *f);

/* wgrad's partial sums: parts x channels of b x columns (tap, channels of a: a multiple of 64, or a
 * group's), f32. */
typedef struct mica_conv_sm90_reduce {
    mica_kernel *kernel;
    mica_grid grid;
    mica_conv_sm90_reduce_args args;
    size_t partial; /* their place in the workspace */
} mica_conv_sm90_reduce;
/* columns, and from a tap's to the next one's; stream: which parts exist; NULL: all. */
mica_status mica_conv_sm90_reduce_build(mica_plan *plan, const mica_conv_sm90_shape *s, int parts,
                                        int columns, int pitch, const mica_conv_stream *stream,
                                        mica_conv_sm90_reduce *reduce);
mica_status mica_conv_sm90_reduce_run(const mica_plan *plan, const mica_conv_sm90_reduce *reduce,
                                      int out, const mica_run *run);

#endif
