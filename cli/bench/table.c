/* SPDX-License-Identifier: Apache-2.0
 * Aligned columns and colours. */
#define _GNU_SOURCE
#include "bench/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *cli_style(FILE *stream, const char *style)
{
    static const struct {
        const char *name, *code;
    } styles[] = {{"red", "\033[31m"}, {"green", "\033[32m"}, {"yellow", "\033[33m"},
                  {"bold", "\033[1m"}, {"dim", "\033[2m"},    {"off", "\033[0m"}};
    const char *off = getenv("NO_COLOR");
    if ((off && *off) || !isatty(fileno(stream))) return "";
    for (size_t i = 0; i < sizeof styles / sizeof *styles; i++)
        if (!strcmp(styles[i].name, style)) return styles[i].code;
    return "";
}

static void add(cli_table *t, char *text)
{
    if (t->cells == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 64;
        t->text = cli_grow(t->text, t->capacity * sizeof *t->text);
    }
    t->text[t->cells++] = text;
}

void cli_table_begin(cli_table *t, const char *headers)
{
    *t = (cli_table){0};
    for (const char *s = headers;; s++) {
        size_t length = strcspn(s, "|");
        bool right = *s == '>';
        t->right[t->columns++] = right;
        add(t, cli_format("%.*s", (int)length - right, s + right));
        s += length;
        if (!*s) return;
    }
}

void cli_cell(cli_table *t, const char *format, ...)
{
    char *text;
    va_list args;
    va_start(args, format);
    int length = vasprintf(&text, format, args);
    va_end(args);
    add(t, length < 0 ? cli_format("?") : text);
}

void cli_table_print(const cli_table *t, FILE *out)
{
    size_t columns = (size_t)t->columns;
    int width[16] = {0};
    for (size_t i = 0; i < t->cells; i++) {
        int w = (int)strlen(t->text[i]);
        if (w > width[i % columns]) width[i % columns] = w;
    }
    for (size_t i = 0; i < t->cells; i++) {
        size_t c = i % columns;
        bool last = c + 1 == columns;
        if (i == 0) fputs(cli_style(out, "bold"), out);
        if (t->right[c])
            fprintf(out, "%*s", width[c], t->text[i]);
        else
            fprintf(out, "%-*s", last ? 0 : width[c], t->text[i]);
        if (last && i < columns) fputs(cli_style(out, "off"), out);
        fputs(last ? "\n" : "  ", out);
    }
}

void cli_table_csv(const cli_table *t, FILE *out)
{
    for (size_t i = 0; i < t->cells; i++) {
        const char *s = t->text[i];
        bool quote = strpbrk(s, ",\"\n") != NULL;
        if (quote) fputc('"', out);
        for (; *s; s++) {
            if (*s == '"') fputc('"', out);
            fputc(*s, out);
        }
        if (quote) fputc('"', out);
        fputc((i + 1) % (size_t)t->columns ? ',' : '\n', out);
    }
}

void cli_table_end(cli_table *t)
{
    for (size_t i = 0; i < t->cells; i++) free(t->text[i]);
    free(t->text);
}
