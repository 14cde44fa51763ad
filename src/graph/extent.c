/* SPDX-License-Identifier: Apache-2.0
 * Extents with names: their declarations, and lines in which sums and products of them stand in
 * braces. A graph that has names is kept as it would be with their highest values, and remembers
 * the text of what they are in. */
#include "graph/graph.h"
#include "base/memory.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const int64_t highest = INT64_C(1) << 48; /* elements of a tensor */

/* ---- declarations ---- */

static int find_extent(const mica_graph *g, const char *name, size_t length)
{
    int i = g->extent_count - 1;
    while (i >= 0 &&
           (strlen(g->extents[i].name) != length || strncmp(g->extents[i].name, name, length) != 0))
        i--;
    return i;
}

static mica_status check_buckets(const char *name, int64_t low, int64_t high,
                                 const int64_t *buckets, int count)
{
    if (count < 0 || count > GRAPH_BUCKETS || (count && !buckets))
        return mica_fail(MICA_INVALID, "%s: %d buckets, 0 to %d are legal", name, count,
                         GRAPH_BUCKETS);
    for (int i = 0; i < count; i++) {
        if (buckets[i] < low || buckets[i] > high)
            return mica_fail(MICA_INVALID, "%s: a bucket ends at %lld, its range is %lld to %lld",
                             name, (long long)buckets[i], (long long)low, (long long)high);
        if (i && buckets[i] <= buckets[i - 1])
            return mica_fail(MICA_INVALID,
                             "%s: a bucket ends at %lld behind one at %lld; they "
                             "ascend",
                             name, (long long)buckets[i], (long long)buckets[i - 1]);
    }
    if (count == GRAPH_BUCKETS && buckets[count - 1] < high)
        return mica_fail(MICA_INVALID, "%s: %d buckets and one that ends at %lld, %d are legal",
                         name, count, (long long)high, GRAPH_BUCKETS);
    return MICA_OK;
}

mica_status mica_graph_extent(mica_graph *g, const char *name, int64_t low, int64_t high,
                              const int64_t *buckets, int count)
{
    if (!g) return mica_fail(MICA_INVALID, "graph is NULL");
    MICA_TRY(graph_check_name(name));
    if (find_extent(g, name, strlen(name)) >= 0)
        return mica_fail(MICA_INVALID, "the extent %s is declared twice", name);
    if (low < 1 || high < low || high > highest)
        return mica_fail(MICA_INVALID,
                         "the extent %s is %lld to %lld; a range begins at 1 or above, ends at "
                         "2^48 or below, and not before it begins",
                         name, (long long)low, (long long)high);
    if (g->extent_count == MICA_GRAPH_EXTENTS)
        return mica_fail(MICA_UNSUPPORTED, "the extent %s: a graph has at most %d", name,
                         MICA_GRAPH_EXTENTS);
    MICA_TRY(check_buckets(name, low, high, buckets, count));
    MICA_TRY(graph_room(&g->extents, g->extent_count, &g->extent_room, sizeof *g->extents));
    graph_extent *e = &g->extents[g->extent_count];
    *e = (graph_extent){.name = mica_copy_text(name), .low = low, .high = high};
    const size_t bytes = ((size_t)count + 1) * sizeof *e->buckets;
    if (count) e->buckets = mica_alloc(bytes);
    if (!e->name || (count && !e->buckets)) {
        mica_release(e->name);
        mica_release(e->buckets);
        return mica_fail_memory(bytes);
    }
    for (int i = 0; i < count; i++) e->buckets[e->bucket_count++] = buckets[i];
    if (count && buckets[count - 1] < high) e->buckets[e->bucket_count++] = high;
    g->extent_count++;
    return MICA_OK;
}

void graph_extents_truncate(mica_graph *g, int count)
{
    while (g->extent_count > count) {
        graph_extent *e = &g->extents[--g->extent_count];
        mica_release(e->name);
        mica_release(e->buckets);
    }
}

mica_status mica_graph_extent_at(const mica_graph *g, int index, mica_graph_extent_info *info)
{
    if (!g || !info) return mica_fail(MICA_INVALID, "graph or info is NULL");
    if (index < 0 || index >= g->extent_count)
        return mica_fail(MICA_INVALID, "extent %d: the graph has %d", index, g->extent_count);
    const graph_extent *e = &g->extents[index];
    *info = (mica_graph_extent_info){e->name, e->low, e->high, e->buckets, e->bucket_count};
    return MICA_OK;
}

mica_status graph_check_extents(const mica_graph *g, const int64_t *values)
{
    for (int i = 0; i < g->extent_count; i++) {
        const graph_extent *e = &g->extents[i];
        if (values[i] < e->low || values[i] > e->high)
            return mica_fail(MICA_INVALID, "the extent %s is %lld, its range is %lld to %lld",
                             e->name, (long long)values[i], (long long)e->low, (long long)e->high);
    }
    return MICA_OK;
}

void graph_extents_text(const mica_graph *g, const int64_t *values, mica_text *text)
{
    for (int i = 0; i < g->extent_count; i++)
        mica_text_add(text, "%s%s=%lld", i ? ", " : "", g->extents[i].name, (long long)values[i]);
}

mica_status mica_graph_fix(const mica_graph *g, const int64_t *values, mica_graph **fixed)
{
    if (!fixed) return mica_fail(MICA_INVALID, "fixed is NULL");
    *fixed = NULL;
    if (!g || (g->extent_count && !values))
        return mica_fail(MICA_INVALID, "graph or values is NULL");
    MICA_TRY(graph_check_extents(g, values));
    const int64_t none = 0;
    return graph_at_extents(g, values ? values : &none, fixed);
}

/* ---- sums and products ---- */

typedef struct formula {
    const mica_graph *g;
    const int64_t *values; /* NULL: the highest */
    const char *at;
} formula;

static mica_status factor(formula *f, int64_t *value)
{
    const char *begin = f->at;
    if (isdigit((unsigned char)*begin)) {
        char *end;
        errno = 0;
        *value = strtoll(begin, &end, 10);
        if (errno) return mica_fail(MICA_INVALID, "\"%.30s\" does not fit 63 bits", begin);
        f->at = end;
        return MICA_OK;
    }
    while (isalnum((unsigned char)*f->at) || *f->at == '_' || *f->at == '.') f->at++;
    const size_t length = (size_t)(f->at - begin);
    if (!length)
        return mica_fail(MICA_INVALID, "\"%.30s\": the name of an extent, or a number, is expected",
                         begin);
    const int i = find_extent(f->g, begin, length);
    if (i < 0) f->at = begin;
    if (i < 0)
        return mica_fail(MICA_INVALID,
                         "%.*s is no extent that a line above declares: extent NAME = LOW..HIGH",
                         length < 60 ? (int)length : 60, begin);
    *value = f->values ? f->values[i] : f->g->extents[i].high;
    return MICA_OK;
}

static mica_status product(formula *f, int64_t *value)
{
    int64_t next;
    MICA_TRY(factor(f, value));
    while (*f->at == '*') {
        f->at++;
        MICA_TRY(factor(f, &next));
        if (__builtin_mul_overflow(*value, next, value))
            return mica_fail(MICA_INVALID, "a product does not fit 63 bits");
    }
    return MICA_OK;
}

/* "{2*N+1}": *f->at is behind it. */
static mica_status sum(formula *f, int64_t *value)
{
    const char *begin = f->at++;
    int64_t next;
    MICA_TRY(product(f, value));
    while (*f->at == '+' || *f->at == '-') {
        const bool less = *f->at++ == '-';
        MICA_TRY(product(f, &next));
        if (__builtin_add_overflow(*value, less ? -next : next, value))
            return mica_fail(MICA_INVALID, "a sum does not fit 63 bits");
    }
    if (*f->at != '}')
        return mica_fail(MICA_INVALID, "\"%.30s\": '*', '+', '-' or '}' is expected", f->at);
    f->at++;
    if (*value < 0)
        return mica_fail(MICA_INVALID, "%.*s is %lld, it may not be negative",
                         (int)(f->at - begin) < 60 ? (int)(f->at - begin) : 60, begin,
                         (long long)*value);
    return MICA_OK;
}

enum { DIGITS = 20 };

mica_status graph_fill_line(const mica_graph *g, const int64_t *values, const char *line,
                            char **filled, int **columns, size_t *at)
{
    size_t braces = 0, length = 0;
    for (const char *p = line; *p; p++) braces += *p == '{';
    const size_t room = strlen(line) + braces * DIGITS + 1;
    char *text = mica_alloc(room);
    int *from = columns ? mica_alloc(room * sizeof *from) : NULL;
    formula f = {g, values, line};
    mica_status status = text && (from || !columns) ? MICA_OK : mica_fail_memory(room);
    while (status == MICA_OK && *f.at) {
        const size_t before = length;
        const char *begin = f.at;
        int64_t value;
        if (*begin != '{') {
            text[length++] = *f.at++;
        } else if ((status = sum(&f, &value)) == MICA_OK) {
            mica_text digits = {text + length, room - length, 0};
            mica_text_add(&digits, "%lld", (long long)value);
            length += digits.length;
        }
        for (size_t i = before; from && i < length; i++) from[i] = (int)(begin - line);
    }
    if (status == MICA_OK) {
        text[length] = 0;
        if (from) from[length] = (int)(f.at - line);
        *filled = text;
        if (columns) *columns = from;
        return MICA_OK;
    }
    *at = (size_t)(f.at - line);
    mica_release(text);
    mica_release(from);
    return status;
}

/* ---- extents of tensors that are given ---- */

/* The next dimension of a tensor's text, behind ':' or 'x'; its end. */
static const char *dimension(const char *at)
{
    if (*at == '{') return at + strcspn(at, "}") + 1;
    return at + strcspn(at, "x:");
}

/* Dimensions that are a name and nothing else say what it is. */
static mica_status solve(const mica_graph *g, const graph_tensor *t, const mica_tensor *given,
                         int64_t *values, const char **whose)
{
    const char *at = strchr(t->open, ':');
    for (int d = 0; at && d < given->rank && (*at == 'x' || d == 0); d++) {
        const char *begin = at + 1;
        at = dimension(begin);
        const int i = *begin == '{' ? find_extent(g, begin + 1, (size_t)(at - begin - 2)) : -1;
        if (i < 0) continue;
        if (whose[i] && values[i] != given->dims[d])
            return mica_fail(MICA_INVALID,
                             "the extent %s is %lld by %s and %lld by dimension %d of %s; they "
                             "must agree",
                             g->extents[i].name, (long long)values[i], whose[i],
                             (long long)given->dims[d], d, t->name);
        values[i] = given->dims[d];
        whose[i] = t->name;
    }
    return MICA_OK;
}

static mica_status compare(const graph_tensor *t, const mica_tensor *want, const mica_tensor *given)
{
    if (given->rank != want->rank)
        return mica_fail(MICA_INVALID, "%s has rank %d, of the graph %d; they must agree", t->name,
                         given->rank, want->rank);
    for (int d = 0; d < want->rank; d++)
        if (given->dims[d] != want->dims[d])
            return mica_fail(MICA_INVALID,
                             "dimension %d of %s is %lld, of the graph with these extents %lld; "
                             "they must agree",
                             d, t->name, (long long)given->dims[d], (long long)want->dims[d]);
    return MICA_OK;
}

static bool is_given(const graph_tensor *t)
{
    return t->kind == MICA_GRAPH_INPUT || t->kind == MICA_GRAPH_INOUT;
}

mica_status mica_graph_extents(const mica_graph *g, const mica_tensor *tensors, int64_t *values)
{
    const char *whose[MICA_GRAPH_EXTENTS] = {NULL};
    int64_t found[MICA_GRAPH_EXTENTS] = {0};
    if (!g || !tensors || !values)
        return mica_fail(MICA_INVALID, "graph, tensors or values is NULL");
    for (int i = 0, n = 0; i < g->tensor_count; i++) {
        const graph_tensor *t = &g->tensors[i];
        const bool real = is_given(t) || t->kind == MICA_GRAPH_OUTPUT;
        if (is_given(t) && t->open) MICA_TRY(solve(g, t, &tensors[n], found, whose));
        n += real;
    }
    for (int i = 0; i < g->extent_count; i++)
        if (!whose[i])
            return mica_fail(MICA_INVALID, "no dimension of an input is the extent %s alone",
                             g->extents[i].name);
    MICA_TRY(graph_check_extents(g, found));
    for (int i = 0, n = 0; i < g->tensor_count; i++) {
        const graph_tensor *t = &g->tensors[i];
        mica_tensor want = t->given;
        char *filled;
        size_t at;
        if (is_given(t) && t->open) {
            MICA_TRY(graph_fill_line(g, found, t->open, &filled, NULL, &at));
            const mica_status status = mica_tensor_from_text(filled, &want);
            mica_release(filled);
            MICA_TRY(status);
        }
        if (is_given(t)) MICA_TRY(compare(t, &want, &tensors[n]));
        n += is_given(t) || t->kind == MICA_GRAPH_OUTPUT;
    }
    for (int i = 0; i < g->extent_count; i++) values[i] = found[i];
    return MICA_OK;
}
