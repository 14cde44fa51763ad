/* SPDX-License-Identifier: Apache-2.0
 * Fenced and poisoned memory of arguments. */
#define _GNU_SOURCE
#include "check/buffers.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Room behind the last element for the odd alignments; the far fence lies behind it. */
enum { SHIFT_ROOM = 256 };

/* ---- memory ---- */

unsigned char *cli_map(int64_t bytes)
{
    void *p = mmap(NULL, (size_t)bytes + 1, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void cli_unmap(void *memory, int64_t bytes)
{
    if (memory) munmap(memory, (size_t)bytes + 1);
}

/* ---- windows ---- */

/* A tensor whose elements fill an eighth of its memory is looked at as a whole, and so is one that
 * is not large. */
enum { SPARSE = 8, LARGE = 1 << 26, BLOCK = 1 << 16 };

static int by_place(const void *a, const void *b)
{
    int64_t x = ((const cli_window *)a)->from, y = ((const cli_window *)b)->from;
    return x < y ? -1 : x > y;
}

/* Sorts and joins windows that touch. */
static void join(cli_buffer *b)
{
    int64_t n = 0;
    qsort(b->windows, (size_t)b->window_count, sizeof *b->windows, by_place);
    for (int64_t i = 0; i < b->window_count; i++) {
        cli_window w = b->windows[i];
        if (n && w.from <= b->windows[n - 1].to) {
            if (w.to > b->windows[n - 1].to) b->windows[n - 1].to = w.to;
        } else {
            b->windows[n++] = w;
        }
    }
    b->window_count = n;
}

static void add_window(cli_buffer *b, int64_t from, int64_t to)
{
    if (from < 0) from = 0;
    if (to > b->bytes) to = b->bytes;
    if (from >= to) return;
    if ((b->window_count & (b->window_count - 1)) == 0)
        b->windows = cli_grow(b->windows, (size_t)(2 * b->window_count + 1) * sizeof *b->windows);
    b->windows[b->window_count++] = (cli_window){from, to};
}

/* Around the elements in [from, to) of the span, and where wrong arithmetic would put them. */
static void add_windows(cli_buffer *b, int64_t from, int64_t to)
{
    const int64_t size = mica_dtype_bits(b->tensor.dtype) / 8;
    const int64_t apart[] = {0, (int64_t)1 << 31, (int64_t)1 << 32, size << 31, size << 32};
    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++)
        for (int sign = -1; sign <= 1; sign += 2)
            add_window(b, from + sign * apart[i],
                       to + sign * apart[i] + 2 * CLI_FENCE + SHIFT_ROOM);
}

/* The elements of dimensions `inner` lie within `block` bytes; those of the others are visited. */
static void add_blocks(cli_buffer *b, const bool *inner, int64_t lowest, int64_t block)
{
    const mica_tensor *t = &b->tensor;
    const int64_t size = mica_dtype_bits(t->dtype) / 8;
    int64_t at[MICA_MAX_RANK] = {0}, offset = lowest;
    for (;;) {
        add_windows(b, offset, offset + block);
        int d = t->rank - 1;
        for (; d >= 0; d--) {
            if (inner[d]) continue;
            offset += t->strides[d] * size;
            if (++at[d] < t->dims[d]) break;
            offset -= t->dims[d] * t->strides[d] * size;
            at[d] = 0;
        }
        if (d < 0) return;
    }
}

static void choose_windows(cli_buffer *b)
{
    const mica_tensor *t = &b->tensor;
    const int64_t size = mica_dtype_bits(t->dtype) / 8;
    bool inner[MICA_MAX_RANK] = {false};
    int64_t block = size, lowest = -b->first;
    if (b->span < LARGE || size == 0 || mica_tensor_count(t) > b->span / size / SPARSE) {
        add_window(b, 0, b->bytes);
        return;
    }
    for (int d = 0; d < t->rank; d++) {
        int64_t reach = (t->dims[d] - 1) * t->strides[d] * size;
        inner[d] = llabs(reach) < BLOCK;
        if (!inner[d]) continue;
        block += llabs(reach);
        if (reach < 0) lowest += reach;
    }
    add_blocks(b, inner, lowest, block);
    join(b);
}

/* ---- life ---- */

mica_status cli_buffer_init(cli_buffer *b, mica_context *context, const mica_tensor *tensor,
                            int64_t bytes, mica_dir dir)
{
    *b = (cli_buffer){.dir = dir, .low = CLI_FENCE};
    if (tensor) b->tensor = *tensor;
    b->span = tensor ? mica_tensor_span(tensor, &b->first) : bytes;
    b->bytes = b->span + 2 * CLI_FENCE + SHIFT_ROOM;
    choose_windows(b);
    b->before = cli_map(b->bytes);
    b->after = cli_map(b->bytes);
    if (!b->before || !b->after) return MICA_OUT_OF_MEMORY;
    if (b->window_count == 1 && b->bytes > LARGE) {
        madvise(b->before, (size_t)b->bytes, MADV_HUGEPAGE);
        madvise(b->after, (size_t)b->bytes, MADV_HUGEPAGE);
    }
    mica_status status = mica_malloc(context, b->bytes, &b->memory);
    mica_device_info device;
    /* A CPU's memory comes in huge pages, and few elements far apart would touch all of them. */
    if (status == MICA_OK && b->window_count > 1 &&
        mica_context_info(context, &device) == MICA_OK && !device.cuda)
        madvise(b->memory, (size_t)b->bytes, MADV_NOHUGEPAGE);
    return status;
}

void cli_buffer_free(cli_buffer *b, mica_context *context)
{
    if (b->memory) mica_free(context, b->memory);
    cli_unmap(b->content, b->span);
    cli_unmap(b->before, b->bytes);
    cli_unmap(b->after, b->bytes);
    free(b->windows);
    *b = (cli_buffer){0};
}

mica_status cli_buffer_content(cli_buffer *b, const double *values)
{
    if (!values) {
        cli_unmap(b->content, b->span);
        b->content = NULL;
        return MICA_OK;
    }
    if (!b->content) b->content = cli_map(b->span);
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

void cli_buffer_copy(const cli_buffer *b, unsigned char *to, const unsigned char *from)
{
    for (int64_t i = 0; i < b->window_count; i++) {
        int64_t low = b->windows[i].from - b->low, high = b->windows[i].to - b->low;
        if (low < 0) low = 0;
        if (high > b->span) high = b->span;
        if (low < high) memcpy(to + low, from + low, (size_t)(high - low));
    }
}

/* ---- before and after ---- */

mica_status cli_buffer_prepare(cli_buffer *b, mica_context *context, int poison, int64_t shift)
{
    mica_status status = MICA_OK;
    b->low = CLI_FENCE + shift;
    for (int64_t i = 0; i < b->window_count; i++)
        memset(b->before + b->windows[i].from, poison,
               (size_t)(b->windows[i].to - b->windows[i].from));
    if (b->content) copy_all(b, b->before + b->low, b->content);
    for (int64_t i = 0; i < b->window_count && status == MICA_OK; i++) {
        cli_window w = b->windows[i];
        status = mica_upload(context, (char *)b->memory + w.from, b->before + w.from, w.to - w.from,
                             NULL);
    }
    return status;
}

mica_status cli_buffer_fetch(cli_buffer *b, mica_context *context)
{
    mica_status status = MICA_OK;
    for (int64_t i = 0; i < b->window_count && status == MICA_OK; i++) {
        cli_window w = b->windows[i];
        status = mica_download(context, b->after + w.from, (char *)b->memory + w.from,
                               w.to - w.from, NULL);
    }
    return status;
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

/* Whether the two agree from byte `from` to `to` of the images, in the windows. */
static bool same(const cli_buffer *buffer, const unsigned char *a, const unsigned char *b,
                 int64_t from, int64_t to, int64_t *where)
{
    for (int64_t i = 0; i < buffer->window_count; i++) {
        cli_window w = buffer->windows[i];
        if (w.from < from) w.from = from;
        if (w.to > to) w.to = to;
        if (w.from >= w.to || !memcmp(a + w.from, b + w.from, (size_t)(w.to - w.from))) continue;
        for (*where = w.from; a[*where] == b[*where];) ++*where;
        return false;
    }
    return true;
}

/* Whether `to` is `from` with the elements of `elements`; all three are copies of the span. */
static bool is_with_elements(const cli_buffer *b, const unsigned char *from,
                             const unsigned char *elements, const unsigned char *to, int64_t *where)
{
    unsigned char *expected = cli_map(b->span);
    if (!expected) return false;
    cli_buffer_copy(b, expected, from);
    cli_copy_elements(&b->tensor, b->first, expected, elements);
    bool ok = same(b, expected - b->low, to - b->low, b->low, b->low + b->span, where);
    cli_unmap(expected, b->span);
    return ok;
}

bool cli_buffer_repeats(const cli_buffer *b, const unsigned char *kept)
{
    int64_t where;
    const unsigned char *after = b->after + b->low;
    if (is_dense(&b->tensor, b->span)) return !memcmp(kept, after, (size_t)b->span);
    return is_with_elements(b, kept, after, kept, &where);
}

bool cli_buffer_intact(const cli_buffer *b, const char *name, char *text, size_t size)
{
    int64_t where = b->low, end = b->low + b->span;
    if (!same(b, b->before, b->after, 0, b->low, &where)) {
        snprintf(text, size, "%s: byte %lld before its memory was written", name,
                 (long long)(where - b->low));
        return false;
    }
    if (!same(b, b->before, b->after, end, b->bytes, &where)) {
        snprintf(text, size, "%s: byte %lld behind its memory was written", name,
                 (long long)(where - end));
        return false;
    }
    if (b->dir == MICA_IN && !same(b, b->before, b->after, b->low, end, &where)) {
        snprintf(text, size, "%s is an input, and byte %lld of it was changed", name,
                 (long long)(where - b->low));
        return false;
    }
    if (b->dir == MICA_IN || b->tensor.dtype == MICA_NONE || is_dense(&b->tensor, b->span))
        return true;
    const unsigned char *before = b->before + b->low, *after = b->after + b->low;
    if (is_with_elements(b, before, after, after, &where)) return true;
    snprintf(text, size, "%s: byte %lld, a gap between its elements, was written", name,
             (long long)(where - b->low));
    return false;
}
