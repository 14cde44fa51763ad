/* SPDX-License-Identifier: Apache-2.0
 * Fenced and poisoned memory of arguments. */
#include "buffers.h"

#include <stdlib.h>
#include <string.h>

/* Room behind the last element for the odd alignments; the far fence lies behind it. */
enum { SHIFT_ROOM = 256 };

mica_status cli_buffer_init(cli_buffer *b, mica_context *context, const mica_tensor *tensor,
                            int64_t bytes, mica_dir dir)
{
    *b = (cli_buffer){.dir = dir, .low = CLI_FENCE};
    if (tensor) b->tensor = *tensor;
    b->span = tensor ? mica_tensor_span(tensor, &b->first) : bytes;
    b->bytes = b->span + 2 * CLI_FENCE + SHIFT_ROOM;
    b->before = malloc((size_t)b->bytes);
    b->after = malloc((size_t)b->bytes);
    if (!b->before || !b->after) return MICA_OUT_OF_MEMORY;
    return mica_malloc(context, b->bytes, &b->memory);
}

void cli_buffer_free(cli_buffer *b, mica_context *context)
{
    if (b->memory) mica_free(context, b->memory);
    free(b->content);
    free(b->before);
    free(b->after);
    *b = (cli_buffer){0};
}

mica_status cli_buffer_content(cli_buffer *b, const double *values)
{
    if (!values) {
        free(b->content);
        b->content = NULL;
        return MICA_OK;
    }
    if (!b->content) b->content = calloc(1, (size_t)b->span + 1);
    if (!b->content) return MICA_OUT_OF_MEMORY;
    return mica_tensor_store(&b->tensor, values, b->content - b->first);
}

/* ---- elements ---- */

static bool is_dense(const mica_tensor *t, int64_t span)
{
    int64_t bits = mica_dtype_bits(t->dtype);
    return bits >= 8 && span == mica_tensor_count(t) * bits / 8;
}

static void copy_nibble(unsigned char *to, const unsigned char *from, int64_t i)
{
    unsigned char mask = i & 1 ? 0xf0 : 0x0f;
    to[i >> 1] = (unsigned char)((to[i >> 1] & ~mask) | (from[i >> 1] & mask));
}

static void copy_row(const mica_tensor *t, unsigned char *to, const unsigned char *from,
                     int64_t offset)
{
    int64_t bytes = mica_dtype_bits(t->dtype) / 8;
    int64_t n = t->rank ? t->dims[t->rank - 1] : 1, step = t->rank ? t->strides[t->rank - 1] : 1;
    for (int64_t i = 0; i < n; i++, offset += step) {
        if (bytes)
            memcpy(to + offset * bytes, from + offset * bytes, (size_t)bytes);
        else
            copy_nibble(to, from, offset);
    }
}

void cli_copy_elements(const mica_tensor *t, int64_t first, unsigned char *to,
                       const unsigned char *from)
{
    if (mica_tensor_count(t) == 0) return;
    int64_t at[MICA_MAX_RANK] = {0}, offset = 0;
    for (;;) {
        copy_row(t, to - first, from - first, offset);
        int d = t->rank - 2;
        for (; d >= 0; d--) {
            offset += t->strides[d];
            if (++at[d] < t->dims[d]) break;
            offset -= t->dims[d] * t->strides[d];
            at[d] = 0;
        }
        if (d < 0) return;
    }
}

static void copy_all(const cli_buffer *b, unsigned char *to, const unsigned char *from)
{
    if (is_dense(&b->tensor, b->span))
        memcpy(to, from, (size_t)b->span);
    else
        cli_copy_elements(&b->tensor, b->first, to, from);
}

/* ---- before and after ---- */

mica_status cli_buffer_prepare(cli_buffer *b, mica_context *context, int poison, int64_t shift)
{
    b->low = CLI_FENCE + shift;
    memset(b->before, poison, (size_t)b->bytes);
    if (b->content) copy_all(b, b->before + b->low, b->content);
    return mica_upload(context, b->memory, b->before, b->bytes, NULL);
}

mica_status cli_buffer_fetch(cli_buffer *b, mica_context *context)
{
    return mica_download(context, b->after, b->memory, b->bytes, NULL);
}

void cli_buffer_packed(cli_buffer *b)
{
    memcpy(b->before + b->low, b->after + b->low, (size_t)b->span);
}

void *cli_buffer_pointer(const cli_buffer *b)
{
    return (char *)b->memory + b->low - b->first;
}
void *cli_buffer_before(const cli_buffer *b)
{
    return b->before + b->low - b->first;
}
void *cli_buffer_after(const cli_buffer *b)
{
    return b->after + b->low - b->first;
}

static bool same(const unsigned char *a, const unsigned char *b, int64_t from, int64_t to,
                 int64_t *where)
{
    if (from >= to || !memcmp(a + from, b + from, (size_t)(to - from))) return true;
    for (*where = from; a[*where] == b[*where];) ++*where;
    return false;
}

bool cli_buffer_intact(const cli_buffer *b, const char *name, char *text, size_t size)
{
    int64_t where, end = b->low + b->span;
    if (!same(b->before, b->after, 0, b->low, &where)) {
        snprintf(text, size, "%s: byte %lld before its memory was written", name,
                 (long long)(where - b->low));
        return false;
    }
    if (!same(b->before, b->after, end, b->bytes, &where)) {
        snprintf(text, size, "%s: byte %lld behind its memory was written", name,
                 (long long)(where - end));
        return false;
    }
    if (b->dir == MICA_IN && !same(b->before, b->after, b->low, end, &where)) {
        snprintf(text, size, "%s is an input, and byte %lld of it was changed", name,
                 (long long)(where - b->low));
        return false;
    }
    if (b->dir == MICA_IN || b->tensor.dtype == MICA_NONE || is_dense(&b->tensor, b->span))
        return true;
    unsigned char *expected = cli_alloc((size_t)b->span);
    memcpy(expected, b->before + b->low, (size_t)b->span);
    cli_copy_elements(&b->tensor, b->first, expected, b->after + b->low);
    bool ok = same(expected, b->after + b->low, 0, b->span, &where);
    free(expected);
    if (!ok)
        snprintf(text, size, "%s: byte %lld, a gap between its elements, was written", name,
                 (long long)where);
    return ok;
}

bool cli_buffer_poisoned(const cli_buffer *b, int64_t i)
{
    const mica_tensor *t = &b->tensor;
    int64_t offset = 0, bytes = mica_dtype_bits(t->dtype) / 8;
    if (!bytes) return false; /* four set bits are an ordinary value */
    for (int d = t->rank - 1; d >= 0; d--) {
        offset += i % t->dims[d] * t->strides[d];
        i /= t->dims[d];
    }
    const unsigned char *p = (const unsigned char *)cli_buffer_after(b) + offset * bytes;
    for (int64_t k = 0; k < bytes; k++)
        if (p[k] != 0xff) return false;
    return true;
}
