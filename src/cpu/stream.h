/* SPDX-License-Identifier: Apache-2.0
 * Stores that go past the caches: for results that do not fit them. A usual store first reads the
 * line it writes, a third of a copy's traffic. */
#ifndef MICA_CPU_STREAM_H
#define MICA_CPU_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether a run that moves so many bytes leaves nothing of its results in the cache. */
bool mica_stream_pays(double bytes, int64_t cache_bytes);
/* memcpy with such stores where the CPU has them. */
void mica_stream_copy(void *to, const void *from, size_t bytes);
/* After a thread's last of them, before other threads may read. */
void mica_stream_end(void);

#endif
