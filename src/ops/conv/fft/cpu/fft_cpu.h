/* SPDX-License-Identifier: Apache-2.0
 * What the files of the CPU engine "fft" share. A vector's lanes are signals of their own:
 * channels, images, or stretches of one image; point i of a tile stands for point i of all of them.
 */
#ifndef MICA_OPS_CONV_FFT_CPU_FFT_CPU_H
#define MICA_OPS_CONV_FFT_CPU_FFT_CPU_H

#include "ops/conv/fft/fft.h"
#include "ops/conv/cpu/conv_cpu.h"

enum { CONV_FFT_MOST_LANES = 16, CONV_FFT_POINT = 128 /* bytes: two vectors */ };

/* The signals of one tile. */
typedef struct conv_fft_lanes {
    int count; /* those from there on do not exist */
    bool exists[CONV_FFT_MOST_LANES];
    bool neighbours; /* lanes are neighbours in memory, and tiles start at the same place */
    int64_t offset[CONV_FFT_MOST_LANES], residual[CONV_FFT_MOST_LANES];
    int64_t channel[CONV_FFT_MOST_LANES];
    int64_t start[CONV_FFT_MOST_LANES][2]; /* position of point 0 */
} conv_fft_lanes;

/* Where values of spectra stand in planes: value i at + i * pitch, a number per lane; its
 * imaginary part `im` further. turned: -i times the value, which is (im, -re). */
typedef struct conv_fft_plane {
    void *data;
    int64_t at, pitch, im;
    bool turned;
} conv_fft_plane;

/* The loops, in f32 or f64. Points are [row][half + 1]; a tile's numbers are pairs of neighbouring
 * columns, its spectrum is in the order that a transform leaves. */
typedef struct conv_fft_loops {
    int lanes;
    void (*roots)(int points, void *table);
    /* Positions to before start + take; 0 outside of the tensor. */
    void (*load)(const conv_fft_division *d, const conv_fft_tensor *t, mica_dtype type,
                 const void *data, const conv_fft_lanes *lanes, const int64_t *take, void *points);
    void (*forward)(const conv_fft_division *d, const void *roots, void *points);
    void (*inverse)(const conv_fft_division *d, const void *roots, void *points);
    /* y, or what is added to it, is x times the conjugate of f. */
    void (*multiply)(const conv_fft_division *d, const void *x, const void *f, bool add, void *y);
    void (*add)(const conv_fft_division *d, const void *x, void *y);
    /* Lane l is the sum of lanes l, l + every, ... */
    void (*fold)(const conv_fft_division *d, int every, void *points);
    void (*store)(const conv_fft_division *d, const conv_fft_problem *p, const mica_conv_job *job,
                  const conv_fft_lanes *lanes, const int64_t *take, const void *points);
    void (*to_plane)(const conv_fft_division *d, const void *points, const conv_fft_plane *plane,
                     int count);
    void (*from_plane)(const conv_fft_division *d, const conv_fft_plane *plane, int count,
                       void *points);
} conv_fft_loops;

extern const conv_fft_loops conv_fft_loops_f32, conv_fft_loops_f64;

/* ---- the two ways through (fft_cpu_depthwise.c, fft_cpu_dense.c) ---- */

/* Depthwise: lanes are `wide` groups by `items`, each of them tiles_each rows (columns) of tiles
 * of one image. */
typedef struct conv_fft_split {
    int wide, deep, major; /* deep: items of a vector; major: the axis that is divided */
    int64_t stretches, tiles_each, group_blocks, item_blocks;
    int64_t shares; /* wgrad: sums of their own */
    int64_t reach;  /* image tiles that are kept, less one */
} conv_fft_split;

typedef struct conv_fft_cpu {
    conv_fft_problem p;
    conv_fft_division d;
    conv_fft_split split;
    const conv_fft_loops *loops;
    const void *roots;
    mica_plan *child;
    int64_t workers;
    size_t scratch_each, scratch_at, filter_at, image_at, result_at, child_at;
} conv_fft_cpu;

mica_status conv_fft_depthwise_build(mica_plan *plan, conv_fft_cpu *s);
void conv_fft_depthwise_run(const conv_fft_cpu *s, const mica_run *r, const mica_conv_job *job);
mica_status conv_fft_dense_build(mica_plan *plan, conv_fft_cpu *s);
mica_status conv_fft_dense_run(const conv_fft_cpu *s, const mica_run *r, const mica_conv_job *job);

static inline size_t conv_fft_tile_bytes(const conv_fft_division *d)
{
    return (size_t)d->bins * CONV_FFT_POINT;
}

#endif
