/* SPDX-License-Identifier: Apache-2.0
 * Reasons: every refusal carries the value and the rule. */
#ifndef MICA_BASE_WHY_H
#define MICA_BASE_WHY_H

#include "mica/types.h"

/* Text of a refusal while engines are being asked. */
typedef struct mica_why {
    char text[512];
} mica_why;

/* Writes the reason and returns MICA_UNSUPPORTED: sound, but not for this engine. */
mica_status mica_refuse(mica_why *why, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Writes the reason and returns MICA_INVALID: the description contradicts itself. */
mica_status mica_invalid(mica_why *why, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Sets the calling thread's mica_error() text and returns status. */
mica_status mica_fail(mica_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* mica_fail(MICA_OUT_OF_MEMORY, ...) for an allocation of that size. */
mica_status mica_fail_memory(size_t bytes);

/* Returns from the calling function when expr is not MICA_OK. */
#define MICA_TRY(expr)                                                                             \
    do {                                                                                           \
        mica_status try_status_ = (expr);                                                          \
        if (try_status_ != MICA_OK) return try_status_;                                            \
    } while (0)

#endif
