/* SPDX-License-Identifier: Apache-2.0
 * The family `reduce`: one table, of which everything follows. */
#ifndef MICA_OPS_REDUCE_REDUCE_OP_H
#define MICA_OPS_REDUCE_REDUCE_OP_H

#include "mica/reduce.h"
#include "ops/reduce/reduce.h"

/* Of what type results are: elements as x's own, sums of integers in s64; truths; or numbers that
 * are integers whatever x is. FLOATS: there is no such thing of integers. */
enum { REDUCE_ELEMENTS, REDUCE_SUMS, REDUCE_FLOATS, REDUCE_TRUTHS, REDUCE_COUNTS };

/* X(KIND, spelling, how values are put together, in front, behind, result) */
#define REDUCE_KINDS(X)                                                                            \
    X(SUM, "sum", SUM, AS_IT_IS, PLAIN, SUMS)                                                      \
    X(MEAN, "mean", SUM, AS_IT_IS, MEAN, FLOATS)                                                   \
    X(PROD, "prod", PRODUCT, AS_IT_IS, PLAIN, SUMS)                                                \
    X(MAX, "max", MAX, AS_IT_IS, PLAIN, ELEMENTS)                                                  \
    X(MIN, "min", MAX, OPPOSITE, BACK, ELEMENTS)                                                   \
    X(AMAX, "amax", MAX, ABS, PLAIN, ELEMENTS)                                                     \
    X(NORM1, "norm1", SUM, ABS, PLAIN, SUMS)                                                       \
    X(NORM2, "norm2", SQUARES, AS_IT_IS, ROOT, FLOATS)                                             \
    X(ANY, "any", MAX, NONZERO, PLAIN, TRUTHS)                                                     \
    X(ALL, "all", MAX, IS_ZERO, NOT, TRUTHS)                                                       \
    X(COUNT, "count", SUM, NONZERO, PLAIN, COUNTS)                                                 \
    X(LOGSUMEXP, "logsumexp", EXP, AS_IT_IS, LOG, FLOATS)                                          \
    X(VAR, "var", MOMENTS, AS_IT_IS, VARIANCE, FLOATS)                                             \
    X(STD, "std", MOMENTS, AS_IT_IS, DEVIATION, FLOATS)                                            \
    X(ARGMAX, "argmax", ARG, AS_IT_IS, PLAIN, COUNTS)                                              \
    X(ARGMIN, "argmin", ARG, OPPOSITE, PLAIN, COUNTS)                                              \
    X(NORM, "norm", SUM, ABS, PLAIN, FLOATS)

typedef struct mica_reduce_row {
    int by, front, behind, result;
} mica_reduce_row;
extern const mica_reduce_row mica_reduce_rows[];
static inline const mica_reduce_row *mica_reduce_row_of(const mica_reduce_desc *d)
{
    /* The largest of truths is whether any is true, of none too: -infinity is not the least of
     * them. */
    const bool truths = !*d->map && d->x.dtype == MICA_BOOL && d->y.dtype == MICA_BOOL;
    return &mica_reduce_rows[truths && d->kind == MICA_REDUCE_KIND_MAX ? MICA_REDUCE_KIND_ANY
                                                                       : d->kind];
}

unsigned mica_reduce_axes(const mica_reduce_desc *d);
/* Whether elements are integers; those of a map are reals. */
static inline bool mica_reduce_of_integers(const mica_reduce_desc *d)
{
    return !*d->map && mica_dtype_is_integer(d->x.dtype);
}
/* x, y, and for positions the strides of a logical index, or further inputs of a map. */
void mica_reduce_operands(const void *desc, mica_reduce_set *set);
/* What a run computes in: f64 or f32, or s64 for integers. */
mica_dtype mica_reduce_real(const void *desc);
void mica_reduce_reference(const void *desc, const mica_view *args, const double *scalars);

/* Elements of a slice. */
int64_t mica_reduce_length(const mica_reduce_desc *d);
void mica_reduce_bwd_reference(const mica_reduce_desc *d, const mica_view *args);

extern const mica_op mica_op_reduce;
extern const mica_reduce mica_reduce_family;
extern const mica_engine mica_reduce_cpu, mica_reduce_cuda;
extern const mica_engine mica_reduce_compose, mica_reduce_compose_cuda;
/* Of the engines that have the forward pass alone. */
mica_status mica_reduce_accepts(const void *desc, const mica_device_info *device, mica_why *why);

#endif
