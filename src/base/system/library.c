/* SPDX-License-Identifier: Apache-2.0
 * Libraries of others, opened while the program runs. */
#define _GNU_SOURCE
#include "base/system/library.h"
#include "base/memory.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

void *mica_library_open(const char *variable, const char *value, const char *const *names,
                        mica_text *looked)
{
    if (value && *value != '/') {
        mica_text_add(looked, "%s=%s is not an absolute path", variable, value);
        return NULL;
    }
    const char *const given[] = {value, NULL};
    for (const char *const *name = value ? given : names; *name; name++) {
        bool due = mica_fault_due(MICA_FAULT_DRIVER);
        void *handle = due ? NULL : dlopen(*name, RTLD_NOW | RTLD_LOCAL);
        if (handle) return handle;
        const char *why = due ? "injected fault" : dlerror();
        mica_text_add(looked, "%s%s", looked->length ? "; " : "", why ? why : *name);
    }
    return NULL;
}

void mica_library_path(const void *symbol, char *path, size_t size)
{
    Dl_info found;
    char *real = NULL;
    if (dladdr(symbol, &found) && found.dli_fname) real = realpath(found.dli_fname, NULL);
    snprintf(path, size, "%s", real ? real : "unknown");
    free(real);
}
