/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of CTC receive; host and device share this file. */
#ifndef MICA_OPS_CTC_LOSS_CTC_LOSS_ARGS_H
#define MICA_OPS_CTC_LOSS_CTC_LOSS_ARGS_H

typedef struct mica_ctc_loss_args {
    const void *x, *labels, *label_lengths, *dloss;
    const void *input_lengths; /* or NULL */
    const void *lse;           /* of each step and sequence, packed */
    const long long *starts; /* first label of each sequence, where labels are in a row; or NULL */
    void *dx, *loss;         /* loss: of each sequence, or NULL */
    double *losses;          /* for the operation that adds them up, or NULL */
    long long steps, batch, classes, label_count, most, pairs, blank;
    long long x_by[3], dx_by[3];
    long long labels_by[2]; /* of sequences, of labels; of labels in a row only the second */
    long long label_length_by, input_length_by, loss_by, dloss_by;
    void *states;   /* of a walk, of even or odd steps, of all pairs: two numbers each */
    void *table;    /* bwd: of a walk, of steps, of all pairs */
    void *outcomes; /* bwd: of each sequence (ctc_loss.cuh) */
    long long
        *links; /* bwd: of each label the next that is the same, or -1; whether it is the first */
    int rows;   /* bwd: steps of a block */
    int mean, zero; /* reduction=mean; zero_infinity */
    int whole;      /* bit 0: x is aligned for vectors, bit 1: dx */
} mica_ctc_loss_args;

#endif
