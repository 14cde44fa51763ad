/* SPDX-License-Identifier: Apache-2.0
 * A text that is appended to piece by piece, into a buffer that may be too small (as snprintf). */
#ifndef MICA_BASE_TEXT_H
#define MICA_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

typedef struct mica_text {
    char *data;    /* may be NULL with size 0: only the length is counted */
    size_t size;   /* of the buffer; what is written always ends in 0 */
    size_t length; /* of the whole text, even where it was cut */
} mica_text;

void mica_text_add(mica_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
