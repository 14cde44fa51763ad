/* SPDX-License-Identifier: Apache-2.0
 * The expression in front of the family `reduce`: its operands, its type and its program. */
#ifndef MICA_OPS_REDUCE_MAP_H
#define MICA_OPS_REDUCE_MAP_H

#include "ops/pointwise/expression.h"
#include "ops/reduce/reduce_op.h"

enum { REDUCE_MAP_RESULT = MICA_EXPR_X }; /* the operand of a block that receives the values */

static inline bool mica_reduce_is_mapped(const mica_reduce_desc *d)
{
    return *d->map;
}
/* Input k of the expression: its argument, and it as x has the dimensions. */
static inline int mica_reduce_map_arg(int k)
{
    return k ? MICA_REDUCE_X1 + k - 1 : MICA_REDUCE_X;
}
const mica_tensor *mica_reduce_map_input(const mica_reduce_desc *d, int k);
mica_tensor mica_reduce_map_expanded(const mica_reduce_desc *d, int k);
/* Type of the values: f32 or f64. */
mica_dtype mica_reduce_map_real(const mica_reduce_desc *d);
/* Of the inputs, where y does not say. */
mica_dtype mica_reduce_map_type(const mica_reduce_desc *d);
mica_status mica_reduce_map_check(const mica_reduce_desc *d, mica_why *why);
/* Sound ones only. Operand k is input k, that behind them the values. */
void mica_reduce_map_program(const mica_reduce_desc *d, mica_expr_program *program);
/* How many terms the expression has. */
int mica_reduce_map_terms(const mica_reduce_desc *d);
/* Largest magnitude of a term for small integers. */
double mica_reduce_map_bound(const mica_reduce_desc *d);

/* On the CPU: as mica_reduce.map, of a walk whose program that is. */
bool mica_reduce_map_chunk(const mica_reduce_tile *t, int64_t from, int64_t n, void *values);

#endif
