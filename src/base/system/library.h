/* SPDX-License-Identifier: Apache-2.0
 * Libraries of others, opened while the program runs: none of them is linked. */
#ifndef MICA_BASE_SYSTEM_LIBRARY_H
#define MICA_BASE_SYSTEM_LIBRARY_H

#include "base/text.h"

#include <stdbool.h>

/* Opens `value` (an absolute path, from the variable `variable`) or, if it is NULL, the first of
 * the names that the loader finds; appends to `looked` where and why not. NULL if none. */
void *mica_library_open(const char *variable, const char *value, const char *const *names,
                        mica_text *looked);
/* From now on nothing that the library makes when a function of it is first called is destroyed at
 * exit; false: it could not be told so. */
bool mica_library_keep_statics(void *library);
/* Where the loader found the library that `symbol` is in. */
void mica_library_path(const void *symbol, char *path, size_t size);

#endif
