/* SPDX-License-Identifier: Apache-2.0
 * Convolutions as products of spectra: the parts that both backends share. */
#ifndef MICA_OPS_CONV_FFT_FFT_H
#define MICA_OPS_CONV_FFT_FFT_H

#include "ops/conv/conv.h"
#include "mica/gemm.h"
#include "ops/conv/fft/fft_args.h"

enum { KNOB_ROWS, KNOB_COLS, KNOB_CHUNKS };
extern const char *const conv_fft_knobs[];

/* All three sums are correlations of an image with something shorter,
 *
 *     fwd, dgrad   result[n, to, q] = sum over from, t of image[n, from, q - before + t] * short
 *     wgrad        result[t, to, from] = sum over n, q of image[n, from, q - before + t] * short
 *
 * the short one being the filter (in dgrad mirrored) or, in wgrad, the gradient. */
typedef struct conv_fft_problem {
    mica_conv_geometry g;
    mica_conv_roles roles;
    bool wgrad, dgrad;
    int image_arg, short_arg, result_arg; /* MICA_CONV_X, ... */
    int64_t from, to;                     /* channels of a group */
    bool depthwise;                       /* both are 1 */
    mica_dtype sums;                      /* f32, or f64 */
    conv_fft_tensor image, shorter, result;
    long long residual_n, residual_g, residual_c, residual_s[2]; /* strides */
} conv_fft_problem;

/* One axis in tiles of `points`, of which `step` results are right. A filter longer than half a
 * tile comes in parts, each of `part` taps, and result tile t adds up the products of part s with
 * image tile t + s: then step and part are equal. */
typedef struct conv_fft_axis {
    int points;
    int64_t taps, out, before;
    int64_t step, part, parts, tiles, slots;
} conv_fft_axis;

/* What a config makes of a problem. */
typedef struct conv_fft_division {
    conv_fft_axis axis[2]; /* rows, columns */
    int half, bins;        /* half the columns' points; values of half a spectrum */
    int64_t parts, slots;  /* of both axes */
    int64_t reach;         /* from a result's tile to the last image tile it needs, in slots */
    int64_t chunks, each;  /* images of a chunk */
    double scale;          /* what transforms leave to be multiplied by */
} conv_fft_division;

mica_status conv_fft_accepts(const mica_conv_desc *d, mica_why *why);
void conv_fft_make(const mica_conv_desc *d, conv_fft_problem *p);
/* The same to be run: where no tap meets a pixel, what is read of tensors is nothing at all. Their
 * spectra would have products whose terms cancel but for roundings, and sums without terms are
 * zeros. */
void conv_fft_make_run(const mica_conv_desc *d, conv_fft_problem *p);
void conv_fft_divide(const conv_fft_problem *p, const mica_config *config, conv_fft_division *d);
/* The number of values of all spectra of the image in one chunk, of the filter, of the results (of
 * the gradient). */
double conv_fft_image_values(const conv_fft_problem *p, const conv_fft_division *d);
double conv_fft_filter_values(const conv_fft_problem *p, const conv_fft_division *d);
double conv_fft_result_values(const conv_fft_problem *p, const conv_fft_division *d);
/* Operations of all transforms, and of all products. */
double conv_fft_transform_flops(const conv_fft_problem *p, const conv_fft_division *d);
double conv_fft_product_flops(const conv_fft_problem *p, const conv_fft_division *d);
/* predict: what a config costs. configs: offers tiles of up to `most_columns` in one dimension;
 * keep by cost. Returns how many there are. */
typedef double conv_fft_cost(const conv_fft_problem *p, const conv_fft_division *d,
                             const mica_device_info *device);
double conv_fft_predict(const mica_conv_desc *desc, const mica_device_info *device,
                        const mica_config *config, conv_fft_cost *cost);
int conv_fft_configs(const mica_conv_desc *desc, const mica_device_info *device, int most_columns,
                     int keep, conv_fft_cost *cost, mica_config *configs);
void conv_fft_contract(const mica_conv_desc *desc, const mica_config *config, bool matrix_units,
                       mica_contract *contract);

/* ---- dense convolutions: the products are a child plan ----
 *
 * Values are pairs q of a real and an imaginary number. With the image as the symmetric matrix
 * E = [re im; im -re] of rows p and columns q, a product with the conjugate of a spectrum, and
 * that of a gradient's, are real products:
 *
 *     result[slot, p, to] = sum over from, q of E[slot, p, q, from] * filter[q, from, to]
 *     filter[q, from, to] = sum over slot, p of E[slot, p, q, from] * gradient[slot, p, to]
 *
 * with planes of [slot, p][q, from], [q, from][to] and [slot, p][to] for each bin and group. */
void conv_fft_gemm(const conv_fft_problem *p, const conv_fft_division *d, mica_gemm_desc *gemm);

/* Elements of a plane, and rows by which part i of the filter looks further in the image. */
static inline int64_t conv_fft_image_plane(const conv_fft_problem *p, const conv_fft_division *d)
{
    return d->each * d->slots * 4 * p->from;
}
static inline int64_t conv_fft_filter_plane(const conv_fft_problem *p)
{
    return 2 * p->from * p->to;
}
static inline int64_t conv_fft_result_plane(const conv_fft_problem *p, const conv_fft_division *d)
{
    return d->each * d->slots * 2 * p->to;
}
static inline int64_t conv_fft_part_slots(const conv_fft_division *d, int64_t part)
{
    return part / d->axis[1].parts * d->axis[1].slots + part % d->axis[1].parts;
}

#endif
