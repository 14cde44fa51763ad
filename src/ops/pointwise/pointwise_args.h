/* SPDX-License-Identifier: Apache-2.0
 * What the pointwise kernel receives; host and device share this file. */
#ifndef MICA_OPS_POINTWISE_ARGS_H
#define MICA_OPS_POINTWISE_ARGS_H

#include "kernels/layout.h"

#define MICA_POINTWISE_OPERANDS MICA_LAYOUT_TENSORS
#define MICA_POINTWISE_NUMBERS  16

/* In the type that the run computes in. */
typedef union mica_pointwise_numbers {
    float f32[MICA_POINTWISE_NUMBERS];
    double f64[MICA_POINTWISE_NUMBERS];
} mica_pointwise_numbers;

typedef struct mica_pointwise_args {
    void *at[MICA_POINTWISE_OPERANDS]; /* the operands' first elements */
    mica_layout layout;                /* of the places, counted in vectors */
    long long elements;                /* of the only row, where that ends in a part of a vector */
    int whole;                         /* all pointers are aligned for one access of a vector */
    int scaled;                        /* alpha is not 1 or beta not 0 */
    double alpha, beta;
    mica_pointwise_numbers numbers;
} mica_pointwise_args;

#endif
