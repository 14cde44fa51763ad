/* SPDX-License-Identifier: Apache-2.0
 * Statuses, reasons and the per-thread error text. */
#include "base/why.h"
#include "base/format.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char error_text[4096];

const char *mica_error(void)
{
    return error_text;
}

const char *mica_version(void)
{
#define MICA_STRING_(x) #x
#define MICA_STRING(x)  MICA_STRING_(x)
    return MICA_STRING(MICA_VERSION_MAJOR) "." MICA_STRING(MICA_VERSION_MINOR) "." MICA_STRING(
        MICA_VERSION_PATCH);
}

const char *mica_status_name(mica_status status)
{
    static const char *const names[] = {
#define MICA_X(name, text) "MICA_" #name,
        MICA_STATUSES(MICA_X)
#undef MICA_X
    };
    return (unsigned)status < MICA_STATUS_COUNT ? names[status] : "MICA_UNKNOWN";
}

static void write_reason(mica_why *why, const char *format, va_list list)
{
    mica_format_list(why->text, sizeof why->text, format, list);
}

mica_status mica_refuse(mica_why *why, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    write_reason(why, format, list);
    va_end(list);
    return MICA_UNSUPPORTED;
}

mica_status mica_invalid(mica_why *why, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    write_reason(why, format, list);
    va_end(list);
    return MICA_INVALID;
}

mica_status mica_fail(mica_status status, const char *format, ...)
{
    /* The arguments may point into the old text: compose beside it. */
    char text[sizeof error_text];
    va_list list;
    va_start(list, format);
    mica_format_list(text, sizeof text, format, list);
    va_end(list);
    snprintf(error_text, sizeof error_text, "%s", text);
    return status;
}

mica_status mica_fail_memory(size_t bytes)
{
    if (bytes >> 30)
        return mica_fail(MICA_OUT_OF_MEMORY, "out of host memory: %.4g GiB were asked for",
                         (double)bytes / 0x1p30);
    return mica_fail(MICA_OUT_OF_MEMORY, "out of host memory: %zu byte%s asked for", bytes,
                     bytes == 1 ? " was" : "s were");
}
