/* SPDX-License-Identifier: Apache-2.0
 * Tiles of tensors that are transformed; host and device share this file, so no types but C's own.
 *
 * Along an axis everything is a dense line of positions: element e of an image with stride s, or of
 * a filter with dilation s, lies at position e * spacing, zeros between. */
#ifndef MICA_OPS_CONV_FFT_FFT_ARGS_H
#define MICA_OPS_CONV_FFT_FFT_ARGS_H

#include "kernels/epilogue_args.h"

enum { CONV_FFT_MOST_ROWS = 64 };

/* Strides in elements. Of a filter, batch counts the channels of the result and channel those of
 * the image. */
typedef struct conv_fft_tensor {
    long long base, batch, group, channel;
    long long s[2], size[2], spacing[2];
} conv_fft_tensor;

/* ---- what the kernels receive ----
 *
 * Signals are numbered by three digits, the first of which is the fastest, and by the place of
 * their tile: row, column. A block takes `signals` neighbours of the first digit. */

/* Tiles of a tensor: position of point 0 is first + place * step, and `take` positions count. */
typedef struct conv_fft_side {
    void *data;
    conv_fft_tensor t;
    long long digit[3], limit[3]; /* strides in elements; signals and places past limits are 0 */
    int first[2], step[2], take[2], places[2];
    int lane_fast; /* neighbouring signals are neighbours in memory, rather than columns */
} conv_fft_side;

/* Spectra: strides in numbers. turned: where -i times the value goes besides; 0: nowhere. */
typedef struct conv_fft_spectra {
    void *data;
    long long digit[3], place, bin, im, turned;
} conv_fft_spectra;

typedef struct conv_fft_args {
    conv_fft_side side, image; /* image: of a result that is formed from tiles at once */
    conv_fft_spectra points;
    conv_fft_spectra filter; /* place: from part to part */
    long long count[3];
    unsigned lane_blocks, blocks[2]; /* of the first digit; the others' counts */
    int places[2];
    int log_rows, log_half, log_signals;
    int parts[2];    /* of the filter; in sums of shares, 1 and their number */
    long long share; /* from share to share */
    double scale, alpha, beta;
    mica_epilogue_args epilogue;
    long long residual[3], channel[3], residual_s[2];
} conv_fft_args;

/* Depthwise gradients of filters: sums over rows (images and their tiles) of spectra. */
typedef struct conv_fft_sums_args {
    const void *image, *gradient;
    void *sums;           /* [share][part][group][bin] */
    long long rows, each; /* rows of a share */
    long long group, row; /* strides in numbers */
    long long part;       /* rows by which the next row of parts is further */
    unsigned groups, shares;
    int parts[2], bins, add; /* add: to what is there */
} conv_fft_sums_args;

#endif
