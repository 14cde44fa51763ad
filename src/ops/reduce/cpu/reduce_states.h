/* SPDX-License-Identifier: Apache-2.0
 * States of the family `reduce` on the CPU, and the loops that add to them. */
#ifndef MICA_OPS_REDUCE_CPU_REDUCE_STATES_H
#define MICA_OPS_REDUCE_CPU_REDUCE_STATES_H

#include "ops/reduce/reduce_op.h"

typedef union mica_reduce_numbers {
    double f64[MICA_TILE_WIDTH];
    int64_t s64[MICA_TILE_WIDTH];
    uint64_t u64[MICA_TILE_WIDTH];
} mica_reduce_numbers;

/* a: sums, products, maxima, means; b: squared deviations; index: of maxima; exp: what
 * exponentials add up to instead. count: elements so far, of maxima and moments. */
typedef struct mica_reduce_states {
    union {
        struct {
            mica_reduce_numbers a, b;
            int64_t index[MICA_TILE_WIDTH];
        };
        mica_stats_of_slices exp;
    };
    int64_t count;
} mica_reduce_states;

/* A chunk: n elements of one slice, or n rows of `width` slices, ld apart; the logical index of the
 * first and what it grows by. */
typedef struct mica_reduce_values {
    const void *x;
    int64_t ld, n, index, step;
} mica_reduce_values;

typedef void (*mica_reduce_add)(const mica_reduce_row *row, const mica_reduce_values *v,
                                int64_t width, bool one, mica_reduce_states *s);
void mica_reduce_add_f32(const mica_reduce_row *row, const mica_reduce_values *v, int64_t width,
                         bool one, mica_reduce_states *s);
void mica_reduce_add_f64(const mica_reduce_row *row, const mica_reduce_values *v, int64_t width,
                         bool one, mica_reduce_states *s);
void mica_reduce_add_s64(const mica_reduce_row *row, const mica_reduce_values *v, int64_t width,
                         bool one, mica_reduce_states *s);
/* Means and squared deviations of two sets become those of both (Chan, Golub and LeVeque 1979). */
void mica_reduce_merge_moments(mica_reduce_states *to, const mica_reduce_states *from,
                               int64_t width);

#endif
