/* SPDX-License-Identifier: Apache-2.0
 * Making nodes: equal ones are shared, numbers are folded, types are checked. */
#ifndef MICA_OPS_POINTWISE_EXPRESSION_BUILD_H
#define MICA_OPS_POINTWISE_EXPRESSION_BUILD_H

#include "ops/pointwise/expression.h"

/* A name that stands for a node, in derivatives. */
typedef struct mica_expr_name {
    const char *name;
    int node;
    bool used;
} mica_expr_name;

typedef struct mica_expr_reader {
    mica_expr *e;
    const char *text, *at;
    const char *field; /* whose text it is */
    mica_why *why;
    mica_status status; /* of what failed */
    int depth;
    mica_expr_name *names; /* ended by a NULL; or NULL */
} mica_expr_reader;

/* INVALID, at the column that is being read. */
mica_status mica_expr_fail(mica_expr_reader *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
mica_status mica_expr_read(mica_expr_reader *r, int *node);

/* Nodes; -1 with r->status where one is refused. */
int mica_expr_input(mica_expr_reader *r, int k);
int mica_expr_scalar(mica_expr_reader *r, int k);
int mica_expr_number(mica_expr_reader *r, double value, mica_dtype type);
/* Of any type within 32 bits, else of s64. */
int mica_expr_whole(mica_expr_reader *r, int64_t value);
int mica_expr_call(mica_expr_reader *r, int function, const int *args);

#endif
