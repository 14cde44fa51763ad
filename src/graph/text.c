/* SPDX-License-Identifier: Apache-2.0
 * The text form of graphs, read: statements, one a line. */
#include "graph/graph.h"
#include "base/format.h"
#include "base/memory.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const space = " \t\r";

const char *const graph_words[] = {[MICA_GRAPH_VIRTUAL] = "tensor",    [MICA_GRAPH_INPUT] = "input",
                                   [MICA_GRAPH_OUTPUT] = "output",     [MICA_GRAPH_INOUT] = "inout",
                                   [MICA_GRAPH_CONSTANT] = "constant", NULL};

/* A line that is being read. */
typedef struct reading {
    char *line, *at; /* a copy, without its comment; where we are */
    int number;
    char *source; /* the same with names of extents; NULL: there are none */
    int *columns; /* in it, of each character of the line */
} reading;

static mica_status fail_at(const reading *r, const char *at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static mica_status fail_at(const reading *r, const char *at, const char *format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    mica_format_list(text, sizeof text, format, list);
    va_end(list);
    const int column = r->columns ? r->columns[at - r->line] : (int)(at - r->line);
    return mica_fail(MICA_INVALID, "line %d, column %d: %s", r->number, column + 1, text);
}

/* What a call that failed has said, with the place in front. */
static mica_status failed_at(const reading *r, const char *at, mica_status status)
{
    char text[1024];
    mica_format(text, sizeof text, "%s", mica_error());
    if (status != MICA_INVALID) return status;
    return fail_at(r, at, "%s", text);
}

static void skip_space(reading *r)
{
    r->at += strspn(r->at, space);
}

/* The next word, ended by a 0; NULL at the end of the line. */
static char *next_word(reading *r)
{
    skip_space(r);
    if (!*r->at) return NULL;
    char *word = r->at;
    r->at += strcspn(r->at, space);
    if (*r->at) *r->at++ = 0;
    return word;
}

/* ---- declarations ---- */

/* "NAME =" or, where it may end there, "NAME". *equals: whether something follows. */
static mica_status read_name(reading *r, char *name, bool *equals)
{
    skip_space(r);
    size_t length = strcspn(r->at, " \t\r=");
    if (!length) return fail_at(r, r->at, "a name is expected");
    if (length >= GRAPH_NAME)
        return fail_at(r, r->at, "a name of %zu characters, at most %d are legal", length,
                       GRAPH_NAME - 1);
    memcpy(name, r->at, length);
    name[length] = 0;
    r->at += length;
    skip_space(r);
    *equals = *r->at == '=';
    if (*equals)
        r->at++;
    else if (*r->at)
        return fail_at(r, r->at, "'=' is expected behind the name %.60s", name);
    return MICA_OK;
}

static mica_status read_number(const reading *r, const char *at, char **end, double *value)
{
    *value = mica_read_double(at, end);
    if (*end == at) return fail_at(r, at, "\"%.40s\": a number is expected", at);
    return MICA_OK;
}

enum { MOST_VALUES = 1 << 24 };

static mica_status read_values(reading *r, const mica_tensor *t, double *values, int64_t count)
{
    int64_t n = 0;
    for (skip_space(r); *r->at; r->at += strspn(r->at, " \t\r,")) {
        char *end;
        if (n == count)
            return fail_at(r, r->at, "more values than the tensor has elements, %lld",
                           (long long)count);
        MICA_TRY(read_number(r, r->at, &end, &values[n++]));
        r->at = end;
    }
    if (n != count && n != 1)
        return fail_at(r, r->at, "%lld values, the tensor has %lld elements; one value is for all",
                       (long long)n, (long long)count);
    for (int64_t i = n; i < count; i++) values[i] = values[0];
    if (!mica_dtype_store(t->dtype))
        return fail_at(r, r->at, "values of %s are not read", mica_dtype_name(t->dtype));
    return MICA_OK;
}

static mica_status read_constant(mica_graph *g, reading *r, const char *start, const char *name,
                                 const mica_tensor *t)
{
    mica_tensor full = *t;
    mica_why why = {""};
    if (full.rank == 0) full.rank = 1, full.dims[0] = 1;
    mica_tensor_default_strides(&full);
    if (mica_tensor_check(&full, name, false, &why) != MICA_OK)
        return fail_at(r, r->at, "%s", why.text);
    int64_t count = mica_tensor_count(&full), first, span = mica_tensor_span(&full, &first);
    if (count > MOST_VALUES || span > MOST_VALUES * INT64_C(16))
        return fail_at(r, r->at, "%lld elements, a constant of text has at most %d",
                       (long long)count, MOST_VALUES);
    size_t bytes = (size_t)count * sizeof(double) + 8;
    double *values = mica_alloc(bytes);
    char *data = mica_alloc((size_t)span + 8);
    mica_status status = values && data ? MICA_OK : mica_fail_memory(bytes);
    if (status == MICA_OK && count) status = read_values(r, &full, values, count);
    if (status == MICA_OK && count) status = mica_tensor_store(&full, values, data - first);
    if (status == MICA_OK) {
        status = mica_graph_constant(g, name, &full, data - first);
        if (status != MICA_OK) status = failed_at(r, start, status);
    }
    mica_release(values);
    mica_release(data);
    return status;
}

static mica_status read_declaration(mica_graph *g, reading *r, mica_graph_kind kind)
{
    char name[GRAPH_NAME];
    mica_tensor t = {0};
    bool equals;
    skip_space(r);
    const char *start = r->at;
    MICA_TRY(read_name(r, name, &equals));
    const char *at = r->at;
    char *word = equals ? next_word(r) : NULL;
    if (equals && !word) return fail_at(r, at, "a tensor is expected behind '='");
    if (word) {
        mica_status status = mica_tensor_from_text(word, &t);
        if (status != MICA_OK) return failed_at(r, word, status);
    }
    if (kind == MICA_GRAPH_CONSTANT && word) return read_constant(g, r, start, name, &t);
    const char *behind = r->at + strspn(r->at, space);
    if (*behind) return fail_at(r, behind, "\"%.40s\": nothing is expected here", behind);
    if (kind == MICA_GRAPH_CONSTANT)
        return fail_at(r, start, "a constant is written constant NAME = TENSOR VALUE ...");
    mica_status status = mica_graph_tensor(g, name, kind, word ? &t : NULL);
    return status == MICA_OK ? MICA_OK : failed_at(r, start, status);
}

static mica_status read_scalar(mica_graph *g, reading *r)
{
    char name[GRAPH_NAME];
    bool equals;
    double value;
    skip_space(r);
    const char *start = r->at;
    MICA_TRY(read_name(r, name, &equals));
    char *word = equals ? next_word(r) : NULL, *end;
    if (!word) return fail_at(r, r->at, "a number is expected: scalar NAME = NUMBER");
    MICA_TRY(read_number(r, word, &end, &value));
    if (*end) return fail_at(r, end, "\"%.40s\": a number is expected", word);
    if (next_word(r)) return fail_at(r, end, "nothing is expected behind the number");
    mica_status status = mica_graph_scalar(g, name, value);
    return status == MICA_OK ? MICA_OK : failed_at(r, start, status);
}

/* "LOW..HIGH" */
static mica_status read_range(const reading *r, const char *word, int64_t *low, int64_t *high)
{
    char *end;
    errno = 0;
    *low = strtoll(word, &end, 10);
    const bool dots = end != word && !strncmp(end, "..", 2);
    const char *second = dots ? end + 2 : word;
    *high = strtoll(second, &end, 10);
    if (!dots || end == second || *end || errno)
        return fail_at(r, word, "\"%.40s\": a range is expected, LOW..HIGH", word);
    return MICA_OK;
}

/* "buckets=16,64,256" */
static mica_status read_buckets(const reading *r, const char *word, int64_t *buckets, int *count)
{
    static const char *const begin = "buckets=";
    if (strncmp(word, begin, strlen(begin)) != 0)
        return fail_at(r, word, "\"%.40s\": buckets=A,B,... or nothing is expected", word);
    for (const char *at = word + strlen(begin);; at++) {
        char *end;
        errno = 0;
        if (*count == GRAPH_BUCKETS) return fail_at(r, at, "more than %d buckets", GRAPH_BUCKETS);
        buckets[*count] = strtoll(at, &end, 10);
        if (end == at || (*end && *end != ',') || errno)
            return fail_at(r, at, "\"%.40s\": the end of a bucket is expected", at);
        ++*count;
        at = end;
        if (!*at) return MICA_OK;
    }
}

static mica_status read_extent(mica_graph *g, reading *r)
{
    char name[GRAPH_NAME];
    bool equals;
    int64_t low, high, buckets[GRAPH_BUCKETS];
    int count = 0;
    skip_space(r);
    const char *start = r->at;
    MICA_TRY(read_name(r, name, &equals));
    const char *word = equals ? next_word(r) : NULL;
    if (!word) return fail_at(r, r->at, "a range is expected: extent NAME = LOW..HIGH");
    MICA_TRY(read_range(r, word, &low, &high));
    word = next_word(r);
    if (word) MICA_TRY(read_buckets(r, word, buckets, &count));
    word = next_word(r);
    if (word) return fail_at(r, word, "\"%.40s\": nothing is expected here", word);
    const mica_status status = mica_graph_extent(g, name, low, high, buckets, count);
    return status == MICA_OK ? MICA_OK : failed_at(r, start, status);
}

/* ---- nodes ---- */

typedef struct statement {
    const mica_op *op;
    char *desc;
    bool seen[MICA_MAX_FIELDS];
    graph_node node;
    mica_graph_bind binds[MICA_MAX_ARGS + MICA_MAX_SCALARS];
    int count;
} statement;

/* "TENSOR@NAME+ELEMENT", of an argument or a scalar. */
static mica_status read_bind(reading *r, statement *s, char *word, char *value, char *sign)
{
    mica_graph_bind *b = &s->binds[s->count];
    int arg = mica_op_arg_index(s->op, word), scalar = mica_op_scalar_index(s->op, word);
    if (arg < 0 && scalar < 0)
        return fail_at(r, word, "%s has no argument %.60s; `mica list %s` shows them", s->op->name,
                       word, s->op->name);
    if (s->count == MICA_MAX_ARGS + MICA_MAX_SCALARS)
        return fail_at(r, word, "more than %d arguments", s->count);
    *b = (mica_graph_bind){.arg = word, .name = sign + 1};
    char *plus = strchr(sign + 1, '+');
    if (plus) {
        char *end;
        errno = 0;
        b->at = strtoll(plus + 1, &end, 10);
        if (end == plus + 1 || *end || errno || b->at < 0)
            return fail_at(r, plus + 1, "\"%.40s\": the number of an element is expected",
                           plus + 1);
        *plus = 0;
    }
    for (int i = 0; i < s->count; i++)
        if (!strcmp(s->binds[i].arg, word)) return fail_at(r, word, "%s stands twice", word);
    *sign = 0;
    if (*value && scalar >= 0)
        return fail_at(r, value, "%s is a scalar, of which a name alone is expected", word);
    if (*value) {
        mica_tensor t;
        mica_status status = mica_tensor_from_text(value, &t);
        if (status != MICA_OK) return failed_at(r, value, status);
        memcpy(s->desc + s->op->args[arg].tensor, &t, sizeof t);
    }
    s->count++;
    return MICA_OK;
}

static mica_status read_pair(reading *r, statement *s, char *word)
{
    mica_why why = {""};
    char *equals = strchr(word, '=');
    char *sign = equals ? strchr(equals, '@') : NULL;
    if (sign) {
        *equals = 0;
        return read_bind(r, s, word, equals + 1, sign);
    }
    if (mica_op_parse_pair(s->op, word, s->desc, s->node.scalars, s->seen, &why) != MICA_OK)
        return fail_at(r, word, "%s", why.text);
    return MICA_OK;
}

static mica_status read_pairs(mica_graph *g, reading *r, const char *start, statement *s)
{
    char *word;
    while ((word = next_word(r))) MICA_TRY(read_pair(r, s, word));
    graph_node node = s->node;
    s->node = (graph_node){0};
    node.line = r->number;
    mica_status status = graph_node_finish(g, &node, s->desc, s->binds, s->count);
    return status == MICA_OK ? MICA_OK : failed_at(r, start, status);
}

static mica_status read_node(mica_graph *g, reading *r, const char *word)
{
    _Alignas(16) char desc[MICA_MAX_DESC] = {0};
    statement s = {.desc = desc};
    s.op = mica_op_find(word);
    if (!s.op)
        return fail_at(r, word,
                       "\"%.60s\" is no operation, and not input, output, inout, tensor, "
                       "constant, scalar or extent; `mica list` shows operations",
                       word);
    MICA_TRY(graph_node_begin(s.op, &s.node));
    mica_status status = read_pairs(g, r, word, &s);
    graph_node_free(&s.node);
    return status;
}

/* ---- lines ---- */

static mica_status read_line(mica_graph *g, reading *r)
{
    char *word = next_word(r);
    if (!word) return MICA_OK;
    for (int i = 0; graph_words[i]; i++)
        if (!strcmp(word, graph_words[i])) return read_declaration(g, r, (mica_graph_kind)i);
    if (!strcmp(word, "scalar")) return read_scalar(g, r);
    if (!strcmp(word, "extent")) return read_extent(g, r);
    return read_node(g, r, word);
}

/* ---- lines with names of extents ---- */

static bool is_word(const char *at, size_t length, const char *word)
{
    return strlen(word) == length && !strncmp(at, word, length);
}

static bool declares(const char *at, size_t length)
{
    for (int i = 0; graph_words[i]; i++)
        if (is_word(at, length, graph_words[i])) return true;
    return false;
}

/* Extents stand in tensors, and in what a node's fields are; not in names. */
static mica_status check_braces(const reading *r)
{
    const char *word = r->line + strspn(r->line, space), *brace = strchr(word, '{');
    const size_t length = strcspn(word, space);
    if (is_word(word, length, "scalar") || is_word(word, length, "extent") ||
        is_word(word, length, graph_words[MICA_GRAPH_CONSTANT]))
        return fail_at(r, brace, "extents stand in tensors and in nodes, not in a %.*s",
                       (int)length, word);
    for (; brace; brace = strchr(brace + 1, '{')) {
        const char *begin = brace, *equals, *sign;
        while (begin > r->line && !strchr(space, begin[-1])) begin--;
        if (declares(word, length)) begin = word;
        equals = memchr(begin, '=', (size_t)(brace - begin));
        sign = equals ? memchr(equals, '@', (size_t)(brace - equals)) : NULL;
        if (!equals || (sign && !memchr(sign, '+', (size_t)(brace - sign))))
            return fail_at(r, brace, "a name has no extents in it");
    }
    return MICA_OK;
}

/* Puts the highest values in the place of names. */
static mica_status fill(const mica_graph *g, reading *r)
{
    char *filled;
    size_t at;
    MICA_TRY(check_braces(r));
    const mica_status status = graph_fill_line(g, NULL, r->line, &filled, &r->columns, &at);
    if (status != MICA_OK) return failed_at(r, r->line + at, status);
    r->source = r->line;
    r->line = r->at = filled;
    return MICA_OK;
}

/* Keeps the text of what a line has added. */
static mica_status keep_open(mica_graph *g, const char *source)
{
    const char *at = source + strspn(source, space);
    size_t length = strcspn(at, space);
    char **open = g->node_count ? &g->nodes[g->node_count - 1].open : NULL;
    if (declares(at, length)) {
        char name[GRAPH_NAME];
        at += length;
        at += strspn(at, space);
        length = strcspn(at, " \t\r=");
        memcpy(name, at, length);
        name[length] = 0;
        open = &g->tensors[graph_find(g, name) - 1].open;
        at = strchr(at, '=') + 1;
        at += strspn(at, space);
    }
    mica_release(*open);
    *open = mica_copy_text(at);
    if (!*open) return mica_fail_memory(strlen(at) + 1);
    for (length = strlen(*open); length && strchr(space, (*open)[length - 1]);)
        (*open)[--length] = 0;
    return MICA_OK;
}

static mica_status read_any_line(mica_graph *g, reading *r)
{
    const bool open = strchr(r->line, '{') != NULL;
    if (open) MICA_TRY(fill(g, r));
    MICA_TRY(read_line(g, r));
    return open ? keep_open(g, r->source) : MICA_OK;
}

static void reading_end(reading *r)
{
    mica_release(r->line);
    mica_release(r->source);
    mica_release(r->columns);
}

mica_status graph_read_filled(mica_graph *g, const char *line, int number)
{
    reading r = {.line = mica_copy_text(line), .number = number};
    if (!r.line) return mica_fail_memory(strlen(line) + 1);
    r.at = r.line;
    const mica_status status = read_line(g, &r);
    reading_end(&r);
    return status;
}

static void cut_comment(char *line)
{
    for (char *p = line; (p = strchr(p, '#')); p++)
        if (p == line || strchr(space, p[-1])) {
            *p = 0;
            return;
        }
}

static mica_status read_lines(mica_graph *g, const char *text)
{
    mica_status status = MICA_OK;
    for (int number = 1; status == MICA_OK && *text; number++) {
        size_t length = strcspn(text, "\n");
        reading r = {.line = mica_alloc(length + 1), .number = number};
        if (!r.line) return mica_fail_memory(length + 1);
        memcpy(r.line, text, length);
        r.at = r.line;
        cut_comment(r.line);
        status = read_any_line(g, &r);
        reading_end(&r);
        text += length + (text[length] == '\n');
    }
    return status;
}

/* Tensors that were there already and that a statement has declared meanwhile. */
static void undeclare(mica_graph *g, const graph_tensor *before, int count)
{
    for (int i = 0; i < count; i++) {
        if (g->tensors[i].data != before[i].data) graph_values_release(g->tensors[i].data);
        if (g->tensors[i].open != before[i].open) mica_release(g->tensors[i].open);
        g->tensors[i] = before[i];
    }
}

mica_status mica_graph_read(mica_graph *g, const char *text)
{
    if (!g || !text) return mica_fail(MICA_INVALID, "graph or text is NULL");
    const int tensors = g->tensor_count, nodes = g->node_count, scalars = g->scalar_count;
    const int extents = g->extent_count;
    size_t bytes = (size_t)tensors * sizeof *g->tensors;
    graph_tensor *before = mica_alloc(bytes + 1);
    if (!before) return mica_fail_memory(bytes);
    if (bytes) memcpy(before, g->tensors, bytes);
    mica_status status = read_lines(g, text);
    if (status != MICA_OK) {
        graph_truncate(g, tensors, nodes, scalars);
        graph_extents_truncate(g, extents);
        undeclare(g, before, tensors);
    }
    mica_release(before);
    return status;
}

mica_status mica_graph_from_text(const char *text, mica_graph **graph)
{
    MICA_TRY(mica_graph_create(graph));
    mica_status status = mica_graph_read(*graph, text);
    if (status == MICA_OK) return MICA_OK;
    mica_graph_destroy(*graph);
    *graph = NULL;
    return status;
}
