/* SPDX-License-Identifier: Apache-2.0
 * Inner loops of pooling on the CPU. `wide` chooses double and 64-bit indices over float and 32-bit
 * ones; all buffers of a call are of that kind. */
#ifndef MICA_OPS_POOL_CPU_POOL_LANES_H
#define MICA_OPS_POOL_CPU_POOL_LANES_H

#include <stdbool.h>
#include <stdint.h>

enum { MICA_POOL_PARTS = 16 };

/* outer x inner results; a result's inner neighbours are adjacent, its outer ones `to` apart. */
typedef struct mica_pool_lanes {
    int64_t outer, inner, to;
    int64_t from_outer, from_inner;   /* strides of the source */
    int64_t index_outer, index_inner; /* what an index grows by */
} mica_pool_lanes;

/* best = maximum(best, source), with the index of the first winner if index is not NULL (-1: none
 * yet). NaN wins. */
void mica_pool_take_max(bool wide, const mica_pool_lanes *lanes, void *best, void *index,
                        const void *source, int64_t first_index);
void mica_pool_take_sum(bool wide, const mica_pool_lanes *lanes, void *sum, const void *source);

/* n values by one number; rows of n by the numbers of their columns times factor, 1 if these are 0
 */
void mica_pool_divide(bool wide, void *values, int64_t n, double by);
void mica_pool_divide_rows(bool wide, void *values, int64_t rows, int64_t n, const double *by,
                           double factor);

/* One run into MICA_POOL_PARTS partial results, element i into part i mod MICA_POOL_PARTS. */
void mica_pool_run_max(bool wide, void *best, void *index, const void *source, int64_t stride,
                       int64_t n, int64_t first_index);
void mica_pool_run_sum(bool wide, void *sum, const void *source, int64_t stride, int64_t n);

/* The sum of each of `outer` runs of `inner` elements, as parts and in pairs. */
void mica_pool_run_sums(bool wide, const mica_pool_lanes *lanes, void *sums, const void *source);

/* Backward: windows of one row of y into one row of dx. Window o has taps at from[o], from[o] +
 * step,
 * ... below to[o]. Without hits the gradient goes to every tap, else to the tap at hits. Either the
 * channels are adjacent or the windows. */
typedef struct mica_pool_spread {
    int64_t windows, channels, step;
    int64_t dx_stride, dy_stride;    /* between channels, or between elements of the row */
    const int32_t *from, *to, *hits; /* hits: laid out as dy */
} mica_pool_spread;
void mica_pool_spread_channels(bool wide, const mica_pool_spread *s, void *dx, const void *dy);
void mica_pool_spread_windows(bool wide, const mica_pool_spread *s, void *dx, const void *dy);

/* Indices as columns counted from the one whose index is `first`; -1 outside of [0, columns). With
 * s32 indices `first` fits 32 bits. */
void mica_pool_find_hits_s64(const int64_t *indices, int64_t stride, int64_t n, int64_t first,
                             int32_t columns, int32_t *hits);
void mica_pool_find_hits_s32(const int32_t *indices, int64_t stride, int64_t n, int64_t first,
                             int32_t columns, int32_t *hits);

/* Found indices (of 64 bits if wide) as s32 or s64, to_step apart. */
void mica_pool_put_indices_s64(bool wide, const void *found, int64_t n, int64_t *to,
                               int64_t to_step);
void mica_pool_put_indices_s32(bool wide, const void *found, int64_t n, int32_t *to,
                               int64_t to_step);

#endif
