/* SPDX-License-Identifier: Apache-2.0
 * Numbers to text and back as the "C" locale has them, whatever locale the program or the calling
 * thread chose: texts, records and reasons are the same everywhere. Nothing else in the library
 * writes or reads a number with a decimal point (tests/self/locale.py looks). */
#ifndef MICA_BASE_FORMAT_H
#define MICA_BASE_FORMAT_H

#include <stdarg.h>
#include <stddef.h>

/* As snprintf and vsnprintf, for the conversions d i u x X c s p e f g a and %. */
int mica_format(char *buffer, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int mica_format_list(char *buffer, size_t size, const char *format, va_list list)
    __attribute__((format(printf, 3, 0)));
/* As strtod. */
double mica_read_double(const char *text, char **end);

#endif
