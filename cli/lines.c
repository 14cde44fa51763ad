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

static bool is_field_of(const char *op, const char *name, size_t length, const char *type)
{
    mica_field_info f;
    for (int i = 0; mica_op_field(op, i, &f) == MICA_OK; i++)
        if (strlen(f.name) == length && !strncmp(f.name, name, length))
            return !strcmp(f.type, type);
    return false;
}

/* All spellings of one token of a line: "pad=0x0,1x1" gives two. A text may have commas of its own:
 * braces alone give alternatives there. */
static bool alternatives(const char *op, const char *token, strings *out)
{
    const char *equals = strchr(token, '='), *end = token + strlen(token);
    if (!equals) {
        push(out, cli_format("%s", token));
        return true;
    }
    bool list = is_field_of(op, token, (size_t)(equals - token), "list");
    if (is_field_of(op, token, (size_t)(equals - token), "text")) {
        if (part_length(token, end, 0) < 0) return false;
        expand_braces(token, out);
        return true;
    }
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

/* What all expansions of a line have in common. */
typedef struct shared {
    const char *where;
    bool weak;
    const char *one; /* of "# repeats: one", up to the end of the line; or NULL */
    uint64_t packed;
    char *engine;
} shared;

static void append(cli_lines *lines, char *text, const shared *s)
{
    if (lines->count == lines->capacity) {
        lines->capacity = lines->capacity ? 2 * lines->capacity : 64;
        lines->items = cli_grow(lines->items, lines->capacity * sizeof *lines->items);
    }
    char *one = s->one ? cli_format("%.*s", (int)strcspn(s->one, "\r\n"), s->one) : NULL;
    char *engine = s->engine ? cli_format("%s", s->engine) : NULL;
    lines->items[lines->count++] =
        (cli_line){text, cli_format("%s", s->where), s->weak, one, s->packed, engine};
}

/* Every combination, the last field varying fastest. */
static void multiply(cli_lines *lines, const strings *fields, size_t n, const shared *s)
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
        append(lines, text, s);
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
static void cut_comment(char *line, shared *s)
{
    static const char excuse[] = "# mistrusted: ", repeats[] = "# repeats: ";
    for (char *p = line; (p = strchr(p, '#')); p++)
        if (p == line || strchr(space, p[-1])) {
            s->weak = !strncmp(p, excuse, sizeof excuse - 1);
            if (!strncmp(p, repeats, sizeof repeats - 1)) s->one = p + sizeof repeats - 1;
            *p = 0;
            return;
        }
}

/* Whether `name`, up to `length`, stands in a list divided by commas. */
static bool listed(const char *list, const char *name, size_t length)
{
    for (const char *s = list; *s;) {
        size_t n = strcspn(s, ",");
        if (n == length && !strncmp(s, name, n)) return true;
        s += n + (s[n] == ',');
    }
    return false;
}

static bool read_packed(const char *op, const char *list, uint64_t *packed, char *error,
                        size_t size)
{
    mica_arg_info info;
    for (const char *s = list; *s;) {
        size_t n = strcspn(s, ",");
        int i = 0;
        while (mica_op_arg(op, i, 0, &info) == MICA_OK && !listed(info.name, s, n)) i++;
        if (mica_op_arg(op, i, 0, &info) != MICA_OK) {
            snprintf(error, size, "packed=%.60s: %.20s has no argument %.*s", list, op, (int)n, s);
            return false;
        }
        *packed |= UINT64_C(1) << i;
        s += n + (s[n] == ',');
    }
    return true;
}

/* An operation that is unknown itself is reported later. */
static bool read_engine(const char *op, const char *name, shared *s, char *error, size_t size)
{
    const char *engine;
    int i = 0;
    while ((engine = mica_op_engine(op, i)) && strcmp(engine, name) != 0) i++;
    if (engine || i == 0) {
        s->engine = cli_format("%s", name);
        return true;
    }
    char *text = cli_engine_unknown(op, name);
    snprintf(error, size, "%s", text);
    free(text);
    return false;
}

/* Cuts off what stands behind " ; ". */
static bool read_options(char *line, shared *s, char *error, size_t size)
{
    char *options = strstr(line, " ; "), *token, op[64];
    if (!options) return true;
    *options = 0;
    snprintf(op, sizeof op, "%.*s", (int)strcspn(line, space), line);
    for (char *rest = options + 3; (token = strsep(&rest, space));) {
        if (!*token) continue;
        if (!strncmp(token, "engine=", 7) && !s->engine) {
            if (!read_engine(op, token + 7, s, error, size)) return false;
            continue;
        }
        if (strncmp(token, "packed=", 7) != 0) {
            snprintf(error, size, "option %.60s: known are packed and, once, engine", token);
            return false;
        }
        if (!read_packed(op, token + 7, &s->packed, error, size)) return false;
    }
    return true;
}

static bool expand_fields(cli_lines *lines, char *text, const shared *s, char *error, size_t size,
                          strings *fields)
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
        if (s->one && total > 1) {
            snprintf(error, size, "a line that repeats another one must be a single problem");
            return false;
        }
        if (total > MAX_EXPANSIONS) {
            snprintf(error, size, "the line stands for more than %d problems", MAX_EXPANSIONS);
            return false;
        }
    }
    if (n) multiply(lines, fields, n, s);
    return true;
}

bool cli_lines_expand(cli_lines *lines, const char *line, const char *where, char *error,
                      size_t size)
{
    strings fields[MAX_FIELDS] = {0};
    char *text = cli_format("%s", line + strspn(line, space));
    shared s = {.where = where};
    cut_comment(text, &s);
    char *problem = cli_format("%s", skip_log_prefix(text));
    bool ok = read_options(problem, &s, error, size) &&
              expand_fields(lines, problem, &s, error, size, fields);
    for (size_t i = 0; i < MAX_FIELDS; i++) release(&fields[i]);
    free(s.engine);
    free(problem);
    free(text);
    return ok;
}

/* ---- files and arguments ---- */

static void say_where(const char *where, const char *text)
{
    if (*where)
        fprintf(stderr, "%s: %s\n", where, text);
    else
        cli_say("%s", text);
}

void cli_line_say(const cli_line *line, const char *text)
{
    say_where(line->where, text);
}

void cli_line_error(cli_lines *lines, const char *where, const char *text)
{
    lines->errors++;
    say_where(where, text);
}

static void expand_or_report(cli_lines *lines, const char *line, const char *where)
{
    char error[1024];
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

void cli_lines_shuffle(cli_lines *lines, uint64_t seed)
{
    for (size_t i = lines->count; i > 1; i--) {
        /* Knuth's 64-bit linear congruential generator; its upper bits are the good ones */
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t other = (size_t)(seed >> 33) % i;
        cli_line swap = lines->items[i - 1];
        lines->items[i - 1] = lines->items[other];
        lines->items[other] = swap;
    }
}

void cli_lines_free(cli_lines *lines)
{
    for (size_t i = 0; i < lines->count; i++) {
        free(lines->items[i].text);
        free(lines->items[i].where);
        free(lines->items[i].one);
        free(lines->items[i].engine);
    }
    free(lines->items);
}

char *cli_line_set(const cli_line *line)
{
    if (!*line->where) return cli_format("line");
    const char *slash = strrchr(line->where, '/'), *name = slash ? slash + 1 : line->where;
    return cli_format("%.*s", (int)strcspn(name, ".:"), name);
}

mica_problem *cli_line_problem(cli_lines *lines, const cli_line *line)
{
    mica_problem *problem;
    if (mica_problem_from_text(line->text, &problem) == MICA_OK) return problem;
    cli_line_error(lines, line->where, mica_error());
    return NULL;
}

uint64_t cli_line_packed(const cli_line *line, const mica_problem *problem, const char *also)
{
    uint64_t packed = line->packed;
    mica_arg_info info;
    for (int i = 0; also && mica_problem_arg(problem, i, &info) == MICA_OK; i++)
        if (info.dir == MICA_IN &&
            (!strcmp(also, "all") || listed(also, info.name, strlen(info.name))))
            packed |= UINT64_C(1) << i;
    return packed;
}

char *cli_line_text(const mica_problem *problem, uint64_t packed)
{
    char *text = cli_problem_text(problem);
    mica_arg_info info;
    for (int i = 0, n = 0; mica_problem_arg(problem, i, &info) == MICA_OK; i++) {
        if (!(packed >> i & 1)) continue;
        char *longer = cli_format("%s%s%s", text, n++ ? "," : " ; packed=", info.name);
        free(text);
        text = longer;
    }
    return text;
}
