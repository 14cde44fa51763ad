/* SPDX-License-Identifier: Apache-2.0
 * Losses: rows of a table, and the expressions that a descriptor makes of one. */
#ifndef MICA_OPS_LOSS_LOSS_H
#define MICA_OPS_LOSS_LOSS_H

#include "mica/loss.h"
#include "mica/pointwise.h"
#include "ops/op.h"

/* What chooses a row's second text. */
enum { LOSS_NEVER, LOSS_LOG_TARGET, LOSS_RATES, LOSS_POS_WEIGHT, LOSS_NO_BETA, LOSS_SWAP };
/* Whether elements have weights, and a mean is over the sum of them. */
enum { LOSS_NO, LOSS_YES, LOSS_DIVISOR };
/* Whether the target is classes. */
enum { LOSS_NO_LABELS, LOSS_ONE_LABEL, LOSS_LABEL_LIST };
/* Where test data lies. */
enum { LOSS_REAL, LOSS_UNIT, LOSS_POSITIVE, LOSS_SIGN, LOSS_CLASSES };

typedef struct mica_loss_row {
    const char *name;
    int flag;
    const char *sums;                                 /* NULL: it has no rows */
    const char *value, *flagged, *full, *gradient[3]; /* of x, target, other; "": derived */
    int domain[3];                                    /* of x, target, other */
    int weighted;
    const char *doc;
    int labels;
} mica_loss_row;
extern const mica_loss_row mica_loss_rows[];

static inline const mica_loss_row *mica_loss_row_of(const mica_loss_desc *d)
{
    return &mica_loss_rows[d->kind];
}

/* Whether losses are those of rows. */
static inline bool mica_loss_of_a_row(const mica_loss_desc *d)
{
    return mica_loss_row_of(d)->sums || mica_loss_row_of(d)->labels;
}

enum { LOSS_TEXT = MICA_POINTWISE_EXPR, LOSS_SUMS = 3, LOSS_DY = 5 };

/* The numbers of a descriptor put into a row's texts; weighted, and times `scale` if that is not 1.
 */
typedef struct mica_loss_texts {
    char value[LOSS_TEXT];          /* of an element, or of a row's sums */
    char sum[LOSS_SUMS][LOSS_TEXT]; /* of rows: those that the value has */
    char gradient[3][LOSS_TEXT];    /* of elements, of x, target and other; "": derived */
    int sums;
} mica_loss_texts;
void mica_loss_make_texts(const mica_loss_desc *d, double scale, mica_loss_texts *t);
/* Of labels: what a pair contributes to the loss, and its slope. */
void mica_loss_make_pair(const mica_loss_desc *d, char value[LOSS_TEXT], char slope[LOSS_TEXT]);
/* Whether a text has input k. */
bool mica_loss_has(const char *text, int k);

/* Whether a mean is over the sum of the weights. */
bool mica_loss_is_over_weights(const mica_loss_desc *d);
/* What a mean is over otherwise: elements or rows; and 1 over it, or 1. */
int64_t mica_loss_count(const mica_loss_desc *d);
double mica_loss_scale(const mica_loss_desc *d);
/* With the dimensions of `dims`: aligned at the last one, what repeats has stride 0. */
mica_tensor mica_loss_expanded(const mica_tensor *t, const mica_tensor *dims);
/* What stands for each row, with the dimensions of x. */
mica_tensor mica_loss_of_rows(const mica_tensor *t, const mica_tensor *x);
/* x without the last dimension. */
mica_tensor mica_loss_rows_of(const mica_loss_desc *d);
/* Type of what stands between: f32 or f64. */
mica_dtype mica_loss_real(const mica_loss_desc *d);

void mica_loss_reference(const void *desc, const mica_view *args, const double *scalars);
extern const mica_op mica_op_loss;
extern const mica_engine mica_loss_compose, mica_loss_compose_cuda;

#endif
