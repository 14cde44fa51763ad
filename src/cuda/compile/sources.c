/* SPDX-License-Identifier: Apache-2.0
 * Embedded kernel sources, unpacked when the first of them is asked for. */
#include "cuda/compile/sources.h"
#include "base/lzma.h"
#include "base/memory.h"
#include "base/why.h"

#include <pthread.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char *sources; /* set once and kept: what is compiled and hashed points into it */

static mica_status unpack(void)
{
    char *text = mica_alloc(mica_sources_size);
    if (!text) return mica_fail_memory(mica_sources_size);
    if (!mica_lzma_unpack(mica_packed_sources, mica_packed_sources_size, text, mica_sources_size)) {
        mica_release(text);
        return mica_fail(MICA_INTERNAL, "the kernel sources in this library are damaged");
    }
    sources = text;
    return MICA_OK;
}

mica_status mica_source_text(const char *name, const char **text)
{
    *text = NULL;
    pthread_mutex_lock(&mutex);
    mica_status status = sources ? MICA_OK : unpack();
    pthread_mutex_unlock(&mutex);
    MICA_TRY(status);
    for (const char *at = sources; at < sources + mica_sources_size && !*text;) {
        const char *content = at + strlen(at) + 1;
        if (!strcmp(at, name)) *text = content;
        at = content + strlen(content) + 1;
    }
    return MICA_OK;
}
