/* SPDX-License-Identifier: Apache-2.0
 * Stores that go past the caches: for results that do not fit them. A usual store first reads the
 * line it writes, a third of a copy's traffic. And loads ahead of their use: the hardware sees no
 * stream across pages of 4 KiB, nor while a core computes on what it has. */
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
/* Bytes from what a loop reads to what it asks for, in pieces of no more than that: farther, and
 * the first-level cache is full; nearer, and the memory's answer is late. */
#define MICA_AHEAD 2048
/* Asks for memory that is read soon. It may lie outside of any object: nothing is accessed. */
static inline void mica_fetch_ahead(const void *from, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)from + i, 0, 2);
}

#endif
