/* SPDX-License-Identifier: Apache-2.0
 * Tensors with the memory that they lie in, for lists of steps that hand them on, and the steps
 * that most lists have: expressions, sums. */
#ifndef MICA_OPS_COMPOSE_HELD_H
#define MICA_OPS_COMPOSE_HELD_H

#include "mica/reduce.h"
#include "ops/compose/compose.h"

/* Without a type: there is none. */
typedef struct mica_held {
    mica_tensor t;
    mica_memory at;
} mica_held;

static inline bool mica_held_given(const mica_held *h)
{
    return mica_tensor_given(&h->t);
}
/* An argument of the run, whose tensor is t. */
static inline mica_held mica_held_arg(const mica_tensor *t, int arg)
{
    return (mica_held){*t, mica_compose_arg(arg)};
}
/* Packed. */
mica_held mica_held_temporary(mica_compose *c, mica_dtype type, int rank, const int64_t *dims);
/* The last two dimensions exchanged. */
mica_held mica_held_transposed(mica_held h);
/* `count` elements of a dimension, from `first` on. */
mica_held mica_held_part(mica_held h, int dimension, int64_t first, int64_t count);

/* Results of the expressions of `text`, divided by ';'; those of x that have no type are not there.
 */
void mica_held_expressions(mica_compose *c, const char *text, const mica_held *y, int results,
                           const mica_held *x, int count);
static inline void mica_held_expression(mica_compose *c, const char *text, mica_held y,
                                        const mica_held *x, int count)
{
    mica_held_expressions(c, text, &y, 1, x, count);
}
/* Over one dimension, or with -1 over all. */
void mica_held_reduction(mica_compose *c, mica_reduce_kind kind, int axis, mica_held x,
                         mica_held y);

#endif
