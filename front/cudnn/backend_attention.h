/* SPDX-License-Identifier: Apache-2.0
 * Attention found in the operations of a graph, and the line that it becomes. */
#ifndef FRONT_CUDNN_BACKEND_ATTENTION_H
#define FRONT_CUDNN_BACKEND_ATTENTION_H

#include "backend_node.h"

#define ATTENTION_MEMBERS 64
#define ATTENTION_EXEMPT  6

/* Tensors by number, -1: none. */
typedef struct attention {
    int q, k, k_swapped; /* k, or k as B x Hk x D x Sk */
    int v, v_swapped, out, stats;
    int scale, bias, fill[2];
    bool causal;
    int seq_q, seq_k;        /* lengths: B x 1 x 1 x 1 */
    bool summed_q, summed_k; /* their sums instead, from 0: B + 1 of them */
    const node *rng;
    int seed, offset; /* of dropout without a random operation */
    double keep;      /* 1: none */
    int drop_scale[2];
    int dout, dq, dk, dv;
    int sinks, dsinks;            /* 1 x H x 1 x 1 */
    int exempt[ATTENTION_EXEMPT]; /* results that are real and not written: the client's scratch */
    int members[ATTENTION_MEMBERS], member_count;
    bool failed;
} attention;

void attention_begin(attention *a);
/* Number of the operation that writes the tensor, among those that are not done; it is a member
 * then. -1: none of that type and, of a pointwise operation, mode. */
int attention_writer(lowering *l, int tensor, int type, int mode);
/* The n-th operation of that type and mode that reads the tensor; -1: none. */
int attention_reader(lowering *l, int tensor, int type, int mode, int n);
void attention_member(attention *a, int number);
/* A product of which one operand is a number in host memory: the other one, or -1. */
int attention_scaled(lowering *l, int node, int *number);
/* A product of which one operand is a mask of random numbers. */
int attention_dropped(lowering *l, attention *a, int node);
/* What a choice hides where the row is below the column, or a row or column is behind the end of
 * its sequence; -1: it does not. */
int attention_unhidden(lowering *l, attention *a, int select);
/* Scores from their last step back to Q K. */
bool attention_scores(lowering *l, attention *a, int tensor);
/* Whether what members make is read by members alone, but for the named results. */
bool attention_is_closed(lowering *l, const attention *a, const int *results, int count);
/* The line; members are done. */
cudnnStatus_t attention_put(lowering *l, attention *a);
#endif
