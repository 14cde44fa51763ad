/* SPDX-License-Identifier: Apache-2.0
 * The nodes of a norm, found. */
#ifndef MICA_GRAPH_REWRITES_NORM_H
#define MICA_GRAPH_REWRITES_NORM_H

#include "graph/rewrites/products.h"
#include "graph/rewrites/tree.h"

/* A mean over the last dimensions: a reduction, maybe a sum that is scaled behind it. */
typedef struct norm_mean {
    int reduce, scaled; /* nodes; scaled -1: none */
    int tensor;         /* of the mean */
    int of_sum;         /* of the reduction */
    int axes;
    double factor; /* of what the reduction gives */
} norm_mean;

/* x, or x - mean. */
typedef struct norm_value {
    operand x;
    bool centred;
    norm_mean mean;
    int node, tensor; /* that make it; -1: it is in the expression, or x itself */
} norm_value;

typedef struct norm_parts {
    norm_value value, squared;
    norm_mean variance;
    bool is_var;    /* the variance is a reduction of that kind, of x */
    int root, rstd; /* node of 1 / sqrt(variance + eps), and its tensor */
    bool is_std;    /* or of its inverse */
    double eps;
    operand scale, bias; /* tensor -1: none */
} norm_parts;

/* value * rstd [* scale] [+ bias] */
bool norm_find(const graph_rewriting *r, int node, norm_parts *p);

#endif
