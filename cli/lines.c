/* SPDX-License-Identifier: Apache-2.0
 * Problem lines: reading and expansion. */
#define _GNU_SOURCE
#include "lines.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const space = " \t\r\n";
enum { MAX_FIELDS = 64, MAX_EXPANSIONS = 100000 };

/* ---- lists of strings ---- */

typedef struct strings {
    char **items;
    size_t count;
} strings;

static void push(strings *s, char *text)
{
    s->items = cli_grow(s->items, (s->count + 1) * sizeof *s->items);
    s->items[s->count++] = text;
}

static void release(strings *s)
{
    for (size_t i = 0; i < s->count; i++) free(s->items[i]);
    free(s->items);
    *s = (strings){0};
}

/* ---- expansion ---- */

/* Length up to the first of `stop` outside braces, or to the end; -1 if braces do not match. */
static ptrdiff_t part_length(const char *s, const char *end, char stop)
{
    int depth = 0;
    const char *p = s;
    for (; p < end; p++) {
        if (*p == stop && depth == 0) break;
        depth += *p == '{' ? 1 : *p == '}' ? -1 : 0;
        if (depth < 0) return -1;
    }
    return depth ? -1 : p - s;
}

/* Expands the first pair of braces, then the rest by recursion. Braces are known to match. */
static void expand_braces(const char *s, strings *out)
{
    const char *open = strchr(s, '{');
    if (!open) {
        push(out, cli_format("%s", s));
        return;
    }
    int depth = 1;
    const char *close = open + 1;
    for (; depth; close++) depth += *close == '{' ? 1 : *close == '}' ? -1 : 0;
    close--;
    for (const char *p = open + 1;; p++) {
        ptrdiff_t n = part_length(p, close, ',');
        char *one = cli_format("%.*s%.*s%s", (int)(open - s), s, (int)n, p, close + 1);
        expand_braces(one, out);
        free(one);
        p += n;
        if (p == close || out->count > MAX_EXPANSIONS) return;
    }
}

static bool is_list_field(const char *op, const char *name, size_t length)
{
    mica_field_info f;
    for (int i = 0; mica_op_field(op, i, &f) == MICA_OK; i++)
        if (strlen(f.name) == length && !strncmp(f.name, name, length))
            return !strcmp(f.type, "list");
    return false;
}

/* All spellings of one token of a line: "pad=0x0,1x1" gives two. */
static bool alternatives(const char *op, const char *token, strings *out)
{
    const char *equals = strchr(token, '='), *end = token + strlen(token);
    if (!equals) {
        push(out, cli_format("%s", token));
        return true;
    }
    bool list = is_list_field(op, token, (size_t)(equals - token));
    for (const char *p = equals + 1;; p++) {
        ptrdiff_t n = part_length(p, end, list ? '|' : ',');
        if (n < 0) return false;
        if (n == 0 && list) { /* an empty list is the field left out */
            push(out, cli_format("%s", ""));
        } else {
            char *one = cli_format("%.*s%.*s", (int)(equals + 1 - token), token, (int)n, p);
            expand_braces(one, out);
            free(one);
        }
        p += n;
        if (p == end) return true;
    }
}

/* What a comment says of its line. */
typedef struct remark {
    bool weak;
    const char *one; /* or NULL */
} remark;

static void append(cli_lines *lines, char *text, const char *where, remark r)
{
    if (lines->count == lines->capacity) {
        lines->capacity = lines->capacity ? 2 * lines->capacity : 64;
        lines->items = cli_grow(lines->items, lines->capacity * sizeof *lines->items);
    }
    lines->items[lines->count++] =
        (cli_line){text, cli_format("%s", where), r.weak,
                   r.one ? cli_format("%.*s", (int)strcspn(r.one, "\r\n"), r.one) : NULL};
}

/* Every combination, the last field varying fastest. */
static void multiply(cli_lines *lines, const strings *fields, size_t n, const char *where, remark r)
{
    size_t at[MAX_FIELDS] = {0};
    for (;;) {
        char *text = cli_format("%s", fields[0].items[at[0]]);
        for (size_t i = 1; i < n; i++) {
            const char *field = fields[i].items[at[i]];
            char *longer = cli_format("%s%s%s", text, *field ? " " : "", field);
            free(text);
            text = longer;
        }
        append(lines, text, where, r);
        size_t i = n;
        while (i > 0 && ++at[i - 1] == fields[i - 1].count) at[--i] = 0;
        if (i == 0) return;
    }
}

/* "mica,v1,<ts>,run,cuda:0,<engine>,<hit>,<ms>,<problem>": the problem comes last, because it may
 * contain commas. */
static const char *skip_log_prefix(const char *line)
{
    if (strncmp(line, "mica,v1,", 8) != 0) return line;
    const char *p = line;
    for (int i = 0; i < 8 && p; i++) {
        p = strchr(p, ',');
        if (p) p++;
    }
    return p ? p : line;
}

/* A '#' begins a comment where a word could begin. */
static remark cut_comment(char *line)
{
    static const char excuse[] = "# mistrusted: ", repeats[] = "# repeats: ";
    remark r = {0};
    for (char *p = line; (p = strchr(p, '#')); p++)
        if (p == line || strchr(space, p[-1])) {
            r.weak = !strncmp(p, excuse, sizeof excuse - 1);
            if (!strncmp(p, repeats, sizeof repeats - 1)) r.one = p + sizeof repeats - 1;
            *p = 0;
            return r;
        }
    return r;
}

static bool expand_fields(cli_lines *lines, char *text, const char *where, remark r, char *error,
                          size_t size, strings *fields)
{
    size_t n = 0, total = 1;
    char *rest = text, *token, *op = NULL;
    while ((token = strsep(&rest, space))) {
        if (!*token) continue;
        if (!op) op = token;
        if (n == MAX_FIELDS) {
            snprintf(error, size, "more than %d fields", MAX_FIELDS);
            return false;
        }
        if (!alternatives(op, token, &fields[n])) {
            snprintf(error, size, "%.60s: braces do not match", token);
            return false;
        }
        total *= fields[n++].count;
        if (r.one && total > 1) {
            snprintf(error, size, "a line that repeats another one must be a single problem");
            return false;
        }
        if (total > MAX_EXPANSIONS) {
            snprintf(error, size, "the line stands for more than %d problems", MAX_EXPANSIONS);
            return false;
        }
    }
    if (n) multiply(lines, fields, n, where, r);
    return true;
}

bool cli_lines_expand(cli_lines *lines, const char *line, const char *where, char *error,
                      size_t size)
{
    strings fields[MAX_FIELDS] = {0};
    char *text = cli_format("%s", line + strspn(line, space));
    remark r = cut_comment(text);
    char *problem = cli_format("%s", skip_log_prefix(text));
    bool ok = expand_fields(lines, problem, where, r, error, size, fields);
    for (size_t i = 0; i < MAX_FIELDS; i++) release(&fields[i]);
    free(problem);
    free(text);
    return ok;
}

/* ---- files and arguments ---- */

void cli_line_error(cli_lines *lines, const char *where, const char *text)
{
    lines->errors++;
    if (*where)
        fprintf(stderr, "%s: %s\n", where, text);
    else
        cli_say("%s", text);
}

static void expand_or_report(cli_lines *lines, const char *line, const char *where)
{
    char error[160];
    if (!cli_lines_expand(lines, line, where, error, sizeof error))
        cli_line_error(lines, where, error);
}

static void read_stream(cli_lines *lines, FILE *f, const char *name)
{
    char *line = NULL;
    size_t capacity = 0;
    for (int number = 1; getline(&line, &capacity, f) >= 0; number++) {
        char *where = cli_format("%s:%d", name, number);
        expand_or_report(lines, line, where);
        free(where);
    }
    if (ferror(f)) cli_line_error(lines, name, strerror(errno));
    free(line);
}

/* Files are told from problem lines by being there and by not being directories. */
static bool read_file(cli_lines *lines, const char *path)
{
    struct stat st;
    if (!strcmp(path, "-")) {
        read_stream(lines, stdin, "stdin");
        return true;
    }
    errno = 0;
    bool there = stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
    FILE *f = there ? fopen(path, "r") : NULL;
    if (!f) {
        /* No operation has such a name: a file was meant. */
        if (!strpbrk(path, "./") || strpbrk(path, space)) return false;
        cli_line_error(lines, path, errno ? strerror(errno) : "it is a directory");
        return true;
    }
    read_stream(lines, f, path);
    fclose(f);
    return true;
}

static bool begins_line(const char *arg)
{
    const char *name;
    if (!strncmp(arg, "mica,v1,", 8)) return true;
    size_t length = strcspn(arg, space);
    for (int i = 0; (name = mica_op_name(i)); i++)
        if (strlen(name) == length && !strncmp(name, arg, length)) return true;
    return false;
}

void cli_lines_read(cli_lines *lines, char *const *args, int count)
{
    *lines = (cli_lines){0};
    char *line = NULL;
    for (int i = 0; i < count; i++) {
        bool begins = begins_line(args[i]);
        if (!begins && !strchr(args[i], '=') && read_file(lines, args[i])) continue;
        if (begins && line) {
            expand_or_report(lines, line, "");
            free(line);
            line = NULL;
        }
        char *longer = cli_format("%s%s%s", line ? line : "", line ? " " : "", args[i]);
        free(line);
        line = longer;
    }
    if (line) expand_or_report(lines, line, "");
    free(line);
}

void cli_lines_free(cli_lines *lines)
{
    for (size_t i = 0; i < lines->count; i++) {
        free(lines->items[i].text);
        free(lines->items[i].where);
        free(lines->items[i].one);
    }
    free(lines->items);
}

mica_problem *cli_line_problem(cli_lines *lines, const cli_line *line)
{
    mica_problem *problem;
    if (mica_problem_from_text(line->text, &problem) == MICA_OK) return problem;
    cli_line_error(lines, line->where, mica_error());
    return NULL;
}
