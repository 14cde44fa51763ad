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
        bool mark = *s == '>' || *s == '~';
        t->right[t->columns] = *s == '>';
        t->wrapped[t->columns++] = *s == '~';
        add(t, cli_format("%.*s", (int)length - mark, s + mark));
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

/* The widest column that may be wrapped gives way until a line fits. */
static void choose_widths(const cli_table *t, int *width)
{
    size_t columns = (size_t)t->columns;
    int total = 2 * (t->columns - 1);
    for (size_t i = 0; i < t->cells; i++) {
        int w = (int)strlen(t->text[i]);
        if (w > width[i % columns]) width[i % columns] = w;
    }
    for (int c = 0; c < t->columns; c++) total += width[c];
    while (total > CLI_LINE) {
        int widest = -1;
        for (int c = 0; c < t->columns; c++)
            if (t->wrapped[c] && (widest < 0 || width[c] > width[widest])) widest = c;
        if (widest < 0 || width[widest] <= 12) return;
        width[widest]--;
        total--;
    }
}

/* How many characters of the text, at most `most`, stand in its next line: up to a space where
 * there is one. */
static int piece(const char *text, int most)
{
    int length = (int)strlen(text), end = most;
    if (length <= most) return length;
    while (end > 0 && text[end] != ' ') end--;
    return end ? end : most;
}

/* One row, in as many lines as its longest cell takes. */
static void print_row(const cli_table *t, char *const *cells, const int *width, FILE *out)
{
    const char *rest[16];
    bool more = true;
    for (int c = 0; c < t->columns; c++) rest[c] = cells[c];
    while (more) {
        int blanks = 0; /* not yet written, for nothing follows them perhaps */
        more = false;
        for (int c = 0; c < t->columns; c++) {
            int n = t->wrapped[c] ? piece(rest[c], width[c]) : (int)strlen(rest[c]);
            if (n && t->right[c]) blanks += width[c] - n;
            if (n) fprintf(out, "%*s%.*s", blanks, "", n, rest[c]);
            blanks = n ? 0 : blanks;
            blanks += (n && t->right[c] ? 0 : width[c] - n) + 2;
            rest[c] += n;
            while (*rest[c] == ' ') rest[c]++;
            more |= *rest[c] != 0;
        }
        fputs("\n", out);
    }
}

void cli_table_print(const cli_table *t, FILE *out)
{
    int width[16] = {0};
    choose_widths(t, width);
    for (size_t i = 0; i < t->cells; i += (size_t)t->columns) {
        if (i == 0) fputs(cli_style(out, "bold"), out);
        print_row(t, t->text + i, width, out);
        if (i == 0) fputs(cli_style(out, "off"), out);
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
