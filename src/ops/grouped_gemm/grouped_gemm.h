/* SPDX-License-Identifier: Apache-2.0
 * A grouped gemm as its engines see it: the gemm of one group, where each group's data lies, and
 * what the vector of groups says. */
#ifndef MICA_OPS_GROUPED_GEMM_GROUPED_GEMM_H
#define MICA_OPS_GROUPED_GEMM_GROUPED_GEMM_H

#include "mica/grouped_gemm.h"
#include "ops/gemm/gemm_shape.h"
#include "ops/grouped_gemm/grouped_gemm_args.h"

/* The tensors that a group has of its own are the arguments of gemm, by the same numbers. */
enum { GROUPED_TENSORS = MICA_GEMM_RESIDUAL + 1 };
_Static_assert((int)MICA_GROUPED_GEMM_RESIDUAL == (int)MICA_GEMM_RESIDUAL, "the same numbers");
_Static_assert((int)MICA_GROUPED_GEMM_GROUPS == GROUPED_TENSORS, "groups come last");

typedef enum grouped_form {
    GROUPED_ROWS,  /* groups are runs of rows */
    GROUPED_ROOMS, /* each group has a matrix, of which some rows count */
    GROUPED_TERMS  /* groups are runs of terms */
} grouped_form;

typedef struct grouped {
    grouped_form form;
    mica_gemm_desc item;            /* with all rows, and all terms */
    mica_tensor groups;             /* absent: all rows of all groups */
    int64_t count, limit;           /* groups; most rows or terms */
    double expected;                /* rows or terms of a usual group */
    int64_t group[GROUPED_TENSORS]; /* elements from group to group */
    int64_t start[GROUPED_TENSORS]; /* elements from row to row, or term to term, of what
                                       the groups are runs of */
} grouped;

grouped_form grouped_form_of(const mica_grouped_gemm_desc *desc);
/* desc is sound. */
void grouped_make(const mica_grouped_gemm_desc *desc, grouped *g);
/* Where group `index` begins and how much it has, when the one before it ended at *end; moves *end
 * on. groups: the values, or NULL. */
typedef struct grouped_span {
    int64_t from, count;
} grouped_span;
grouped_span grouped_next(const grouped *g, const void *groups, int64_t index, int64_t *end);
/* Elements from a tensor's first one to group `index`, which begins at `from`. */
static inline int64_t grouped_offset(const grouped *g, int tensor, int64_t index, int64_t from)
{
    return g->group[tensor] * index + g->start[tensor] * from;
}

/* Pointers of a run to what group `index`, which begins at `from`, has of each tensor. */
void grouped_bind(const grouped *g, void *const *args, int64_t index, int64_t from,
                  void *group_args[GROUPED_TENSORS]);

void grouped_reference(const void *desc, const mica_view *args, const double *scalars);
extern const mica_engine grouped_bf16, grouped_cpu, grouped_sm90, grouped_cuda;
extern const mica_op mica_op_grouped_gemm;

#endif
