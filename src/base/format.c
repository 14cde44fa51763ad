/* SPDX-License-Identifier: Apache-2.0
 * Formatting piece by piece: a number's decimal point is put right in its own piece. */
#define _GNU_SOURCE
#include "base/format.h"

#include <locale.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct out {
    char *data;
    size_t size, length; /* length of the whole text, even where it was cut */
} out;

static void put(out *o, const char *text, size_t n)
{
    if (o->length < o->size) {
        size_t left = o->size - o->length - 1, fits = n < left ? n : left;
        memcpy(o->data + o->length, text, fits);
        o->data[o->length + fits] = 0;
    }
    o->length += n;
}

/* One directive with its stars replaced by numbers. */
enum { LONGEST_SPEC = 64 };
typedef struct spec {
    char text[LONGEST_SPEC];
    int length;
    char size; /* 0, 'H' hh, 'h', 'l', 'L' ll, 'z', 'j', 't', 'D' long double */
    char kind;
} spec;

static void add(spec *s, char c)
{
    if (s->length < LONGEST_SPEC - 2) s->text[s->length++] = c;
    s->text[s->length] = 0;
}

/* A width below 0 is a flag and a width; a precision below 0 is none. */
static void add_star(spec *s, int value)
{
    bool precision = s->length && s->text[s->length - 1] == '.';
    if (precision && value < 0) {
        s->text[--s->length] = 0;
        return;
    }
    char digits[16];
    int n = snprintf(digits, sizeof digits, "%d", value);
    for (int i = 0; i < n; i++) add(s, digits[i]);
}

static const char *read_size(const char *f, spec *s)
{
    for (; *f && strchr("hlzjtL", *f); f++) {
        add(s, *f);
        bool again = s->size == *f && (*f == 'h' || *f == 'l');
        s->size = again ? (*f == 'h' ? 'H' : 'L') : *f == 'L' ? 'D' : *f;
    }
    return f;
}

static intmax_t take_signed(char size, va_list *list)
{
    switch (size) {
    case 'l':
        return va_arg(*list, long);
    case 'L':
        return va_arg(*list, long long);
    case 'z':
    case 't':
        return va_arg(*list, ptrdiff_t);
    case 'j':
        return va_arg(*list, intmax_t);
    default:
        return va_arg(*list, int);
    }
}

/* The piece of anything that is no number with a point. */
static void put_plain(out *o, const spec *s, va_list *list)
{
    size_t left = o->length < o->size ? o->size - o->length : 0;
    char *at = left ? o->data + o->length : NULL;
    int n = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (s->kind == 's')
        n = snprintf(at, left, s->text, va_arg(*list, const char *));
    else if (s->kind == 'p')
        n = snprintf(at, left, s->text, va_arg(*list, void *));
    else if (s->size == 0 || s->size == 'h' || s->size == 'H' || s->kind == 'c')
        n = snprintf(at, left, s->text, va_arg(*list, int));
    else /* all of these sizes have 64 bits where mica runs */
        n = snprintf(at, left, s->text, take_signed(s->size, list));
#pragma GCC diagnostic pop
    if (n > 0) o->length += (size_t)n;
}

/* Whatever stands in a number and is none of its characters is the locale's decimal point. */
static void put_number(out *o, const char *text)
{
    static const char known[] = "0123456789+-eEinfINFaAxXpPbBcCdD ";
    while (*text) {
        size_t n = strspn(text, known);
        put(o, text, n);
        text += n;
        n = strcspn(text, known);
        if (n) put(o, ".", 1);
        text += n;
    }
}

static void put_float(out *o, const spec *s, va_list *list)
{
    char text[512]; /* %f of the largest double has 309 digits and a point */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (s->size == 'D')
        snprintf(text, sizeof text, s->text, va_arg(*list, long double));
    else
        snprintf(text, sizeof text, s->text, va_arg(*list, double));
#pragma GCC diagnostic pop
    put_number(o, text);
}

static const char *put_directive(out *o, const char *f, va_list *list)
{
    spec s = {.text = "%", .length = 1};
    for (; *f && strchr("-+ #0123456789.*", *f); f++) {
        if (*f == '*')
            add_star(&s, va_arg(*list, int));
        else
            add(&s, *f);
    }
    f = read_size(f, &s);
    if (!*f) return f;
    s.kind = *f;
    add(&s, *f);
    if (s.kind == '%')
        put(o, "%", 1);
    else if (strchr("eEfFgGaA", s.kind))
        put_float(o, &s, list);
    else
        put_plain(o, &s, list);
    return f + 1;
}

int mica_format_list(char *buffer, size_t size, const char *format, va_list list)
{
    out o = {buffer, size, 0};
    va_list copy;
    va_copy(copy, list);
    if (size) *buffer = 0;
    for (const char *f = format; *f;) {
        size_t n = strcspn(f, "%");
        put(&o, f, n);
        f += n;
        if (*f) f = put_directive(&o, f + 1, &copy);
    }
    va_end(copy);
    return (int)o.length;
}

int mica_format(char *buffer, size_t size, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int n = mica_format_list(buffer, size, format, list);
    va_end(list);
    return n;
}

static locale_t plain;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_plain(void)
{
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

double mica_read_double(const char *text, char **end)
{
    pthread_once(&once, make_plain);
    return strtod_l(text, end, plain);
}
