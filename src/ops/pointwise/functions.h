/* SPDX-License-Identifier: Apache-2.0
 * The element functions: what functions.def says of each, found by name, evaluated one by one and
 * in blocks. */
#ifndef MICA_OPS_POINTWISE_FUNCTIONS_H
#define MICA_OPS_POINTWISE_FUNCTIONS_H

#include "base/text.h"

#include <stdint.h>

typedef enum mica_function_kind {
    MICA_FUNCTION_REAL,     /* reals (integers become them); a real */
    MICA_FUNCTION_SAME,     /* of one type, and so is the value; integers wrap */
    MICA_FUNCTION_QUOTIENT, /* the same; 0 where the last argument is an integer 0 */
    MICA_FUNCTION_KEEP,     /* the same, and the value is in the range of the arguments */
    MICA_FUNCTION_BITS,     /* integers of one type; the same */
    MICA_FUNCTION_TEST,     /* of one type; a bool */
    MICA_FUNCTION_CLASS,    /* reals (integers become them); a bool */
    MICA_FUNCTION_LOGIC,    /* any; a bool */
    MICA_FUNCTION_PICK,     /* any, then two of one type; that */
    MICA_FUNCTION_CAST,     /* any; the type of that name */
    MICA_FUNCTION_WHOLE,    /* any; s64 */
    MICA_FUNCTION_FORMULA,  /* what its text gives */
    MICA_FUNCTION_HIDDEN    /* integers, which reals hold, or s64; reals that hold integers */
} mica_function_kind;

/* How large and how exact the value is for small integers. */
typedef enum mica_function_exact {
    MICA_EXACT_NO,
    MICA_EXACT_KEEP,
    MICA_EXACT_SUM,
    MICA_EXACT_PRODUCT,
    MICA_EXACT_ONE
} mica_function_exact;

enum { MICA_FUNCTION_ARGS = 3 };

typedef struct mica_function {
    const char *name;
    mica_function_kind kind;
    int arity;
    mica_function_exact exact;
    double ulps, inner;
    const char *value;                          /* C and CUDA; of a formula its text */
    const char *derivative[MICA_FUNCTION_ARGS]; /* "": none is known, "0": it has none */
    const char *doc;
} mica_function;

typedef enum mica_function_id {
#define FUNCTION(name, ...) MICA_FN_##name,
#define FORMULA(name, ...)  MICA_FN_##name,
#include "ops/pointwise/functions.def"
    MICA_FUNCTIONS
} mica_function_id;

extern const mica_function mica_functions[MICA_FUNCTIONS];

/* -1: there is none of that name. */
int mica_function_find(const char *name, int length);
/* The visible function whose name is the fewest edits away. */
const char *mica_function_nearest(const char *name, int length);

/* One value in double; the same for n elements, of arrays of which `out` may be one. */
double mica_function_value(int function, double a, double b, double c);
void mica_function_f32(int function, float *out, const float *const in[MICA_FUNCTION_ARGS],
                       int64_t n);
void mica_function_f64(int function, double *out, const double *const in[MICA_FUNCTION_ARGS],
                       int64_t n);
/* The same of s64. What is no s64 is a double: what TEST and HIDDEN give, the first argument of
 * PICK, what WHOLE takes. Of other kinds only SAME, QUOTIENT, KEEP and BITS have values of s64. */
void mica_function_s64(int function, void *out, const void *const in[MICA_FUNCTION_ARGS],
                       int64_t n);

#endif
