/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of nms receive; host and device share this file. */
#ifndef MICA_OPS_NMS_ARGS_H
#define MICA_OPS_NMS_ARGS_H

typedef struct mica_nms_args {
    const void *boxes, *scores, *classes;
    void *selected, *count;
    /* Memory, of each list: */
    void *items[2];      /* n sort items, twice */
    void *sorted;        /* by position: low and high ends along both axes, areas; 5 x n reals */
    long long *ids;      /* by position: classes */
    unsigned char *gone; /* by position: 1 if it is left out or suppressed */
    unsigned long long *row; /* of a chunk: whom each of its boxes suppresses; words x boxes */
    int *kept;               /* positions of selected boxes; limit */
    int *kept_count;         /* so far, and before this chunk */
    long long box_batch, box_n, box_column, score_batch, score_class, score_n, class_batch, class_n;
    long long selected_row, selected_column;
    long long n, per_batch, lists, limit, rows;
    double iou, score; /* thresholds, rounded down to reals */
    long long tiles;   /* of items in a list */
    long long width;   /* of runs that are merged */
    long long chunk;   /* of positions */
    long long parts;   /* blocks of a list */
    int from;          /* which of items */
} mica_nms_args;

#endif
