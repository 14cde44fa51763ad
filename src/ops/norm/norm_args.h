/* SPDX-License-Identifier: Apache-2.0
 * Loop nests and arguments of the norm kernels; host and device share this file. */
#ifndef MICA_OPS_NORM_NORM_ARGS_H
#define MICA_OPS_NORM_NORM_ARGS_H

#include "kernels/layout.h"

#define NORM_ARG_COUNT 15 /* by the enumerators of include/mica/norm.h */

/* A loop nest that all arguments share: a stride of 0 repeats the argument's element. */
typedef struct norm_space {
    long long count;
    int rank;
    int fits_int; /* count and all offsets are below 2^31 */
    long long dims[MICA_LAYOUT_RANK];
    long long strides[NORM_ARG_COUNT][MICA_LAYOUT_RANK];
} norm_space;

/* The tensor as [kept] x [reduced]: one result per index of kept, a sum over reduced. */
typedef struct norm_split {
    norm_space kept, reduced;
} norm_split;

typedef struct norm_args {
    void *args[NORM_ARG_COUNT];
    norm_split split;
    void *partial; /* [parts][2][kept.count] sums of stage PARTIAL, for MERGE */
    void *known;   /* [2][kept.count] of MERGE for APPLY: mean, rstd; bwd: means of g, g xhat */
    long long parts, piece; /* the reduced space in pieces of so many elements */
    int whole;              /* all pointers are aligned for vectors */
    double eps, momentum, act_a, act_b, beta;
    double unbiased; /* running_var takes so much of the variance */
} norm_args;

#endif
