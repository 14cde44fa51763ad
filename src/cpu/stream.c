/* SPDX-License-Identifier: Apache-2.0
 * Stores past the caches: SSE2's, which every x86-64 has and combines to whole lines. */
#include "cpu/stream.h"

#include <string.h>

/* Virtual machines report the cache of the whole socket, and more. */
static const double MOST_CACHE = 1 << 25;

bool mica_stream_pays(double bytes, int64_t cache_bytes)
{
    double cache = (double)cache_bytes;
    return bytes >= 2 * (cache < MOST_CACHE ? cache : MOST_CACHE);
}

#if defined(__x86_64__)
#include <emmintrin.h>

void mica_stream_copy(void *to, const void *from, size_t bytes)
{
    char *t = to;
    const char *f = from;
    size_t head = -(uintptr_t)t % 64;
    if (bytes < head + 64) {
        memcpy(t, f, bytes);
        return;
    }
    /* short runs are many: no calls for nothing */
    if (head) memcpy(t, f, head);
    t += head, f += head, bytes -= head;
    for (; bytes >= 64; bytes -= 64, t += 64, f += 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)f),
                b = _mm_loadu_si128((const __m128i *)f + 1);
        __m128i c = _mm_loadu_si128((const __m128i *)f + 2),
                d = _mm_loadu_si128((const __m128i *)f + 3);
        _mm_stream_si128((__m128i *)t, a);
        _mm_stream_si128((__m128i *)t + 1, b);
        _mm_stream_si128((__m128i *)t + 2, c);
        _mm_stream_si128((__m128i *)t + 3, d);
    }
    if (bytes) memcpy(t, f, bytes);
}

void mica_stream_end(void)
{
    _mm_sfence();
}
#else
void mica_stream_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

void mica_stream_end(void) {}
#endif
