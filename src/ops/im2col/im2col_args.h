/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of im2col receive; host and device share this file. */
#ifndef MICA_OPS_IM2COL_ARGS_H
#define MICA_OPS_IM2COL_ARGS_H

#define MICA_IM2COL_AXES 3

/* Of an axis: elements of the image, windows, taps; step: the image's stride. Of the taps that read
 * an element the next one is `apart` further, of the window `back` before. */
typedef struct mica_im2col_axis {
    long long in, out, taps, stride, pad, dilation, step;
    long long apart, back;
} mica_im2col_axis;

/* The image's axes that are not there have size 1 and come first. */
typedef struct mica_im2col_args {
    const void *from;
    void *to;
    mica_im2col_axis axis[MICA_IM2COL_AXES];
    long long n, c, taps, windows;          /* products of the axes' */
    long long image_n, image_c;             /* strides */
    long long matrix_n, matrix_k, matrix_l; /* of batch, pair of channel and tap, window */
    long long parts, each; /* of taps, or of channels: so many parts of so many each */
    long long count;       /* threads */
    int whole;             /* the matrix is aligned for one access of a vector */
} mica_im2col_args;

/* Windows [first, end) of an axis in which tap k reads an element from `low` on, before `high`. */
typedef struct mica_im2col_range {
    long long first, end;
} mica_im2col_range;

static inline mica_im2col_range mica_im2col_windows(const mica_im2col_axis *a, long long k,
                                                    long long low, long long high)
{
    const long long shift = k * a->dilation - a->pad; /* what window 0 reads */
    const long long before = low - shift, after = high - shift;
    mica_im2col_range r;
    r.first = before > 0 ? (before - 1) / a->stride + 1 : 0;
    r.end = after > 0 ? (after - 1) / a->stride + 1 : 0;
    if (r.end > a->out) r.end = a->out;
    if (r.first > r.end) r.first = r.end;
    return r;
}

#endif
