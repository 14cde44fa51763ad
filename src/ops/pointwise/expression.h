/* SPDX-License-Identifier: Apache-2.0
 * Expressions of element functions: read from text, typed, differentiated, and put in an order with
 * few buffers. Equal terms are one node, so that a term is computed once however often it stands.
 *
 *   expressions   A;B                                    several results
 *   operators     || && | ^ & == != < <= > >= << >> + - * / %   as in C, and unary - ! ~
 *   operands      x0 .. x7, s0 .. s3, i0 .. i7, numbers, pi, e, inf, nan, function(argument,...)
 *
 * Types: bool, u8, s8, u32, s32, s64 of tensors and casts, and reals, which are computed in f32 or
 * f64. A whole number without point or exponent takes the type of what it meets; past 32 bits it is
 * an s64. In programs reals hold bool to u32; an s64 has 64 bits, which in the memory of operands
 * and buffers stand in place of those of a double. */
#ifndef MICA_OPS_POINTWISE_EXPRESSION_H
#define MICA_OPS_POINTWISE_EXPRESSION_H

#include "base/why.h"
#include "ops/pointwise/functions.h"
#include "ops/pointwise/pointwise_args.h"

enum {
    MICA_EXPR_X = 8,
    MICA_EXPR_Y = 4,
    MICA_EXPR_DY = MICA_EXPR_X,                   /* inputs: the gradients of results */
    MICA_EXPR_INDEX = MICA_EXPR_DY + MICA_EXPR_Y, /* and the places of an element */
    MICA_EXPR_INDICES = MICA_MAX_RANK,
    MICA_EXPR_INPUTS = MICA_EXPR_INDEX + MICA_EXPR_INDICES,
    MICA_EXPR_SCALARS = 4,
    MICA_EXPR_NODES = 192,
    MICA_EXPR_DEPTH = 40,
    MICA_EXPR_BYTES = 1024 /* of a buffer */
};

typedef enum mica_expr_kind {
    MICA_EXPR_CALL,
    MICA_EXPR_INPUT,  /* index: which */
    MICA_EXPR_SCALAR, /* index: which */
    MICA_EXPR_NUMBER
} mica_expr_kind;

typedef struct mica_expr_node {
    mica_expr_kind kind;
    mica_dtype type; /* of the value: MICA_F64 is a real */
    int index;       /* the function, input or scalar */
    int arg[MICA_FUNCTION_ARGS];
    bool of_s64;   /* a function's row of s64 (mica_function_s64) */
    double value;  /* of a number */
    int64_t whole; /* the same, of an s64 */
} mica_expr_node;

/* The type of a whole number that takes any. */
#define MICA_EXPR_WHOLE ((mica_dtype)MICA_DTYPE_COUNT)

typedef struct mica_expr {
    mica_expr_node nodes[MICA_EXPR_NODES]; /* arguments come before what they are arguments of */
    int count;
    mica_dtype inputs[MICA_EXPR_INPUTS]; /* types of tensors; MICA_NONE: not given */
    int rank;                            /* index functions: of so many dimensions, */
    int64_t extent;                      /* of so many elements at most */
    int results[MICA_EXPR_X];            /* nodes */
    int result_count;
} mica_expr;

/* Reads `text`; e->inputs, rank and extent are set. INVALID with the column and what was expected.
 */
mica_status mica_expr_parse(mica_expr *e, const char *text, mica_why *why);
/* The same of a field of another name than expr. */
mica_status mica_expr_parse_field(mica_expr *e, const char *field, const char *text, mica_why *why);
/* A result becomes what a tensor of that type holds, where it or the tensor is of s64. */
mica_status mica_expr_store(mica_expr *e, int result, mica_dtype type, mica_why *why);
/* Replaces the results by the gradients of the inputs of `wanted` (bit k: input k), in their order.
 */
mica_status mica_expr_derive(mica_expr *e, unsigned wanted, mica_why *why);
/* Inputs and scalars that the results depend on: bit k. */
unsigned mica_expr_inputs(const mica_expr *e);
/* Integers of 32 bits and more, and bits, need the arithmetic to be f64. */
bool mica_expr_is_wide(const mica_expr *e);
/* The largest magnitude of any term for small integers; infinite if some are no integers. */
double mica_expr_bound(const mica_expr *e);
/* Small integers give results that are exact in f32, and so are sums of so many. */
bool mica_expr_is_exact(const mica_expr *e, double terms);
/* Name of a node's type for people. */
const char *mica_expr_type_name(mica_dtype type);

/* ---- values ---- */

typedef union mica_expr_cell {
    double real;
    int64_t whole; /* of s64 */
} mica_expr_cell;

/* Whether a call takes argument i as an s64. */
bool mica_expr_takes_s64(const mica_expr_node *call, int i);
/* Of a call, in double. */
mica_expr_cell mica_expr_value(const mica_expr_node *call,
                               const mica_expr_cell v[MICA_FUNCTION_ARGS]);

/* ---- programs ---- */

/* Slots: operands of the block first, then buffers. */
typedef struct mica_expr_step {
    int16_t function; /* -1: a copy */
    int16_t out, in[MICA_FUNCTION_ARGS];
    bool of_s64;
} mica_expr_step;

typedef struct mica_expr_program {
    mica_expr expr;
    bool f64;
    int operand[MICA_EXPR_INPUTS]; /* of an input; -1: not read */
    int result_operand[MICA_EXPR_X];
    mica_expr_step steps[MICA_EXPR_NODES + 2 * MICA_EXPR_X];
    int step_count;
    /* Buffers that numbers and scalars fill: nodes of slots from MICA_POINTWISE_OPERANDS on. */
    int16_t fixed[MICA_EXPR_NODES];
    int fixed_count, buffers;
} mica_expr_program;

/* From p->expr, f64 and the operands. */
void mica_expr_compile(mica_expr_program *p);
/* The blocks, truth and prologue of a pointwise operation whose prepared state is a program. */
void mica_expr_block_f32(const void *program, int variant, void *const *v, const void *numbers,
                         int64_t n);
void mica_expr_block_f64(const void *program, int variant, void *const *v, const void *numbers,
                         int64_t n);
void mica_expr_truth(const void *program, const double *numbers, double *v, double *mag);
void mica_expr_prologue(const void *program, mica_text *prologue);

#endif
