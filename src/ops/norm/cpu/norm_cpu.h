/* SPDX-License-Identifier: Apache-2.0
 * How the CPU engine walks a split: along which side runs of neighbours lie, and in which pieces
 * the sums are formed. All of it follows from the problem alone, never from the number of threads.
 */
#ifndef MICA_OPS_NORM_CPU_NORM_CPU_H
#define MICA_OPS_NORM_CPU_NORM_CPU_H

#include "ops/norm/norm.h"

enum {
    NORM_COLUMNS = 512,       /* results that are formed side by side where neighbours are kept */
    NORM_PARTS = 16,          /* at most so many partial sums, on the stack */
    NORM_PART_SIZE = 1 << 15, /* at least so many elements in each */
    NORM_ROW = 1024,          /* rows up to this are short, */
    NORM_NARROW_ROW = 8192,   /* and of bf16 up to this */
    NORM_ONCE_PARTS = 32,     /* at most, */
    NORM_ONCE_ROWS = 64,      /* of at least so many rows */
    NORM_ONCE_ROW = 8192,     /* of at most so many elements: dx and sums by column in one pass */
    NORM_FLUSH = 64           /* additions before a partial sum moves to double */
};

/* A split, walked in runs of `cols` at indices of `rows`. Neighbours in memory are either reduced
 * (rows are kept indices, a block is one result) or, if `side_by_side`, kept (rows are reduced
 * indices, a block is up to NORM_COLUMNS results). Side by side, a result may have several columns:
 * the `together` channels of a group, which are neighbours in NHWC, or the same channel in `fold`
 * rows that lie behind each other, where one row alone would be short. */
typedef struct norm_plane {
    norm_space rows, cols;
    norm_space sets; /* together > 1: the index space of mean and rstd */
    int64_t together, fold;
    bool side_by_side;
    bool along_cols[NORM_ARG_COUNT]; /* the argument varies */
    int64_t block, blocks_per_run, blocks;
    int64_t reduced, part_size;
    int parts;
} norm_plane;

typedef struct norm_cpu_state {
    const mica_norm_desc *d;
    norm_plane sets, channels;
    double set_size;
    double bytes;
    bool past_cache;      /* results do not fit the caches: they are stored past them */
    bool plain_rows;      /* forward over rows of neighbours, short or of bf16 */
    bool channels_first;  /* dscale or dbias by a walk of their own */
    bool behind;          /* the residual is added behind the affine step */
    bool dresidual_first; /* written along with the sums; dx then comes from it */
    int once_parts;       /* engine cpu_once: so many parts of the rows; else 0 */
    size_t once_sums; /* booked: of each part, by column, two sums in double and two of `real` */
} norm_cpu_state;

void norm_cpu_run_f32(const norm_cpu_state *s, void *const *args, void *workspace, double beta);
void norm_cpu_run_f64(const norm_cpu_state *s, void *const *args, void *workspace, double beta);

#endif
