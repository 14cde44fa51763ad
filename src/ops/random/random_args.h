/* SPDX-License-Identifier: Apache-2.0
 * What the kernel of random and dropout receives; host and device share this file. */
#ifndef MICA_OPS_RANDOM_ARGS_H
#define MICA_OPS_RANDOM_ARGS_H

#include "kernels/layout.h"

/* What is drawn for an element. */
typedef enum mica_random_draw {
    MICA_RANDOM_DRAW_BITS,
    MICA_RANDOM_DRAW_UNIFORM,
    MICA_RANDOM_DRAW_NORMAL,
    MICA_RANDOM_DRAW_TRUNCATED,
    MICA_RANDOM_DRAW_BERNOULLI,
    MICA_RANDOM_DRAW_EXPONENTIAL,
    MICA_RANDOM_DRAW_INTEGERS,
    MICA_RANDOM_DRAW_PERMUTATION,
    MICA_RANDOM_DRAW_NONE /* dropout by a mask */
} mica_random_draw;

/* Tensors of equal dimensions. BITS is counted in bits, INDEX has no memory: its offsets are the
 * elements' indices, and being the first it makes the layout's order the logical one. */
enum {
    MICA_RANDOM_PLACE_INDEX,
    MICA_RANDOM_PLACE_OUT,
    MICA_RANDOM_PLACE_IN,  /* dropout: x or dy */
    MICA_RANDOM_PLACE_ADD, /* dropout: residual */
    MICA_RANDOM_PLACE_MASK,
    MICA_RANDOM_PLACE_BITS,
    MICA_RANDOM_PLACES
};

/* Where column, row and matrix lie in the index of dropout by rows. */
enum { RANDOM_ROW_AT = 24, RANDOM_MATRIX_AT = 44, RANDOM_INDEX_BITS = 62 };

typedef struct mica_random_numbers {
    double low, high, span;       /* uniform, bounds of truncated */
    double mean, std;             /* of normal and truncated */
    double tail, mass;            /* of truncated: probability below it, and within it */
    double scale;                 /* of exponential: 1 / rate; of what dropout keeps */
    long long first;              /* index of the first element */
    long long from, count;        /* integers: the lowest; permutation: of how many */
    unsigned long long threshold; /* words below it are 1, or dropped */
    unsigned long long range;     /* integers: how many there are */
    unsigned long long rejected;  /* integers: 2^64 mod range */
    int upper;                    /* truncated: of the upper tail, mirrored */
} mica_random_numbers;

typedef struct mica_random_args {
    void *at[MICA_RANDOM_PLACES];
    const void *rng; /* seed, offset */
    long long rng_stride;
    mica_layout layout; /* counted in vectors */
    long long columns;  /* elements of a row */
    int whole;          /* all pointers are aligned for one access of a vector */
    mica_random_numbers numbers;
} mica_random_args;

#endif
