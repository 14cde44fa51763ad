/* SPDX-License-Identifier: Apache-2.0
 * The demonstration's data. */
#include "demo/digits.h"
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = DIGIT_PIXELS + 1, MOST = 1 << 20 };

uint64_t digits_random(uint64_t seed, uint64_t index)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + (index + 1) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    size_t size = 0, got = 0;
    if (!f) {
        cli_say("%s: %s", path, strerror(errno));
        return NULL;
    }
    do {
        size = 2 * size + 65536;
        text = cli_grow(text, size);
        got += fread(text + got, 1, size - got - 1, f);
    } while (got == size - 1);
    bool bad = ferror(f) != 0;
    fclose(f);
    text[got] = 0;
    if (!bad && strlen(text) == got) return text;
    cli_say("%s: %s", path, bad ? "reading failed" : "contains a zero byte; it must be CSV text");
    free(text);
    return NULL;
}

/* One line of 65 whole numbers; returns its end, or NULL after saying what is wrong. */
static const char *read_row(const char *s, const char *path, int line, uint8_t *levels,
                            int32_t *label)
{
    for (int i = 0; i < COLUMNS; i++) {
        char *end;
        long v = *s == '\n' || *s == 0 ? -1 : strtol(s, &end, 10);
        long high = i < DIGIT_PIXELS ? 16 : DIGIT_CLASSES - 1;
        if (*s == '\n' || *s == 0 || end == s) {
            cli_say(
                "%s:%d: column %d is missing or no number; a line has 64 grey levels and a label",
                path, line, i + 1);
            return NULL;
        }
        if (v < 0 || v > high) {
            cli_say("%s:%d: column %d is %ld, 0 to %ld are legal", path, line, i + 1, v, high);
            return NULL;
        }
        if (i < DIGIT_PIXELS)
            levels[i] = (uint8_t)v;
        else
            *label = (int32_t)v;
        s = end + (*end == ',' && i < DIGIT_PIXELS);
    }
    s += strspn(s, " \t\r");
    if (*s == '\n' || *s == 0) return s + (*s == '\n');
    cli_say("%s:%d: more than %d columns", path, line, COLUMNS);
    return NULL;
}

static bool parse(digits *d, const char *text, const char *path)
{
    int capacity = 0, line = 1;
    for (const char *s = text; *s; line++) {
        if (d->count == capacity) {
            capacity = 2 * capacity + 1024;
            d->levels = cli_grow(d->levels, (size_t)capacity * DIGIT_PIXELS);
            d->labels = cli_grow(d->labels, (size_t)capacity * sizeof *d->labels);
        }
        s = read_row(s, path, line, d->levels + (size_t)d->count * DIGIT_PIXELS,
                     &d->labels[d->count]);
        if (!s) return false;
        if (++d->count > MOST) {
            cli_say("%s: more than %d lines", path, MOST);
            return false;
        }
    }
    if (d->count >= 100) return true;
    cli_say("%s: %s, at least 100 are needed", path, cli_count(d->count, "line"));
    return false;
}

static void swap_rows(digits *d, int a, int b)
{
    uint8_t row[DIGIT_PIXELS];
    uint8_t *x = d->levels + (size_t)a * DIGIT_PIXELS, *y = d->levels + (size_t)b * DIGIT_PIXELS;
    memcpy(row, x, sizeof row);
    memmove(x, y, sizeof row);
    memcpy(y, row, sizeof row);
    int32_t label = d->labels[a];
    d->labels[a] = d->labels[b];
    d->labels[b] = label;
}

static void scale(digits *d)
{
    size_t n = (size_t)d->count * DIGIT_PIXELS;
    size_t trained = (size_t)(d->count - d->held_out) * DIGIT_PIXELS;
    double sum = 0, squares = 0;
    for (size_t i = 0; i < trained; i++) {
        sum += d->levels[i];
        squares += (double)d->levels[i] * d->levels[i];
    }
    double mean = sum / (double)trained, deviation = sqrt(squares / (double)trained - mean * mean);
    d->pixels = cli_alloc(n * sizeof *d->pixels);
    for (size_t i = 0; i < n; i++)
        d->pixels[i] = (float)((d->levels[i] - mean) / (deviation + 1e-9));
}

bool digits_read(digits *d, const char *path, uint64_t seed)
{
    memset(d, 0, sizeof *d);
    char *text = path ? read_file(path) : NULL;
    bool ok = path ? text && parse(d, text, path) : parse(d, digits_csv, "built-in digits");
    free(text);
    if (!ok) {
        digits_free(d);
        return false;
    }
    for (int i = d->count - 1; i > 0; i--)
        swap_rows(d, i, (int)(digits_random(seed, (uint64_t)i) % (uint64_t)(i + 1)));
    d->held_out = d->count / 5;
    scale(d);
    return true;
}

void digits_free(digits *d)
{
    free(d->pixels);
    free(d->levels);
    free(d->labels);
    memset(d, 0, sizeof *d);
}
