/* SPDX-License-Identifier: Apache-2.0
 * Appending text. */
#include "base/text.h"
#include "base/format.h"

#include <stdarg.h>
#include <stdio.h>

void mica_text_add(mica_text *text, const char *format, ...)
{
    size_t left = text->length < text->size ? text->size - text->length : 0;
    va_list list;
    va_start(list, format);
    int n = mica_format_list(left ? text->data + text->length : NULL, left, format, list);
    va_end(list);
    if (n > 0) text->length += (size_t)n;
}
