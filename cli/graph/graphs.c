/* SPDX-License-Identifier: Apache-2.0
 * Graphs on the command line. */
#define _GNU_SOURCE
#include "graph/graphs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *const cli_graph_modes[] = {"fused", "unfused", "separate", NULL};

/* ---- files ---- */

static char *read_file(const char *path)
{
    FILE *f = !strcmp(path, "-") ? stdin : fopen(path, "r");
    size_t length = 0, room = 0;
    char *text = NULL;
    if (!f) {
        cli_say("%s: %s", path, strerror(errno));
        return NULL;
    }
    do {
        if (room - length < 4096) text = cli_grow(text, room += 65536);
        length += fread(text + length, 1, room - length - 1, f);
    } while (!feof(f) && !ferror(f));
    text[length] = 0;
    const bool failed = ferror(f) || strlen(text) != length;
    if (failed) cli_say("%s: %s", path, ferror(f) ? strerror(errno) : "it holds a byte of 0");
    if (f != stdin) fclose(f);
    if (!failed) return text;
    free(text);
    return NULL;
}

/* ---- extents ---- */

/* "N=37,M=4": the others keep what they are. */
static bool read_extents(const char *path, const char *list, cli_graph *g)
{
    while (*list) {
        mica_graph_extent_info e;
        const size_t length = strcspn(list, "=");
        char *end = NULL;
        int i = 0;
        while (mica_graph_extent_at(g->open, i, &e) == MICA_OK &&
               (strlen(e.name) != length || strncmp(e.name, list, length) != 0))
            i++;
        const bool known = mica_graph_extent_at(g->open, i, &e) == MICA_OK;
        errno = 0;
        if (known && list[length]) g->extents[i] = strtoll(list + length + 1, &end, 10);
        if (!end || end == list + length + 1 || (*end && *end != ',') || errno) {
            cli_say(known ? "%s: extent=%s: NAME=NUMBER,... is expected"
                          : "%s: extent=%s: the graph has no extent of that name",
                    path, list);
            return false;
        }
        list = end + (*end == ',');
    }
    return true;
}

/* Makes of a graph what it is at its extents, and the line that says so. */
static bool fix(cli_graph *g)
{
    const char *shown = g->mode ? cli_graph_modes[g->mode] : NULL;
    mica_graph_extent_info e;
    g->line =
        cli_format("graph file=%s%s%s%s%s", g->path, shown ? " mode=" : "", shown ? shown : "",
                   g->without ? " without=" : "", g->without ? g->without : "");
    if (!g->open) return true;
    for (int i = 0; mica_graph_extent_at(g->open, i, &e) == MICA_OK; i++) {
        char *longer = cli_format("%s%s%s=%lld", g->line, i ? "," : " extent=", e.name,
                                  (long long)g->extents[i]);
        free(g->line);
        g->line = longer;
    }
    if (mica_graph_fix(g->open, g->extents, &g->graph) == MICA_OK) return true;
    cli_say("%s: %s", g->path, mica_error());
    return false;
}

static void forget(cli_graph *g)
{
    free(g->line);
    free(g->path);
    free(g->without);
    mica_graph_destroy(g->graph);
    mica_graph_destroy(g->open);
}

/* Into the list, at the highest extents but for those that are chosen. */
static void add_graph(cli_graphs *graphs, cli_graph *g, const char *extents)
{
    mica_graph_extent_info e;
    bool good = true;
    if (mica_graph_extent_at(g->graph, 0, &e) == MICA_OK) {
        g->open = g->graph;
        g->graph = NULL;
        for (int i = 0; mica_graph_extent_at(g->open, i, &e) == MICA_OK; i++)
            g->extents[i] = e.high;
        g->chosen = extents != NULL;
        good = !extents || read_extents(g->path, extents, g);
    } else if (extents) {
        cli_say("%s: extent=%s: the graph has no extents", g->path, extents);
        good = false;
    }
    if (!good || !fix(g)) {
        graphs->errors++;
        forget(g);
        return;
    }
    graphs->items = cli_grow(graphs->items, (size_t)(graphs->count + 1) * sizeof *graphs->items);
    graphs->items[graphs->count++] = *g;
}

static void add(cli_graphs *graphs, const char *path, mica_graph_mode mode, const char *without,
                const char *extents)
{
    cli_graph g = {.mode = mode};
    char *text = read_file(path);
    if (text && mica_graph_from_text(text, &g.graph) != MICA_OK)
        cli_say("%s: %s", path, mica_error());
    free(text);
    if (!g.graph) {
        graphs->errors++;
        return;
    }
    g.path = cli_format("%s", path);
    g.without = without ? cli_format("%s", without) : NULL;
    add_graph(graphs, &g, extents);
}

/* The same graph at other extents: NULL the lowest. */
static void add_at(cli_graphs *graphs, const cli_graph *from, uint64_t *random)
{
    const int length = mica_graph_text(from->open, NULL, 0);
    char *text = cli_alloc((size_t)length + 1);
    cli_graph g = {.mode = from->mode, .path = cli_format("%s", from->path)};
    mica_graph_extent_info e;
    mica_graph_text(from->open, text, (size_t)length + 1);
    if (mica_graph_from_text(text, &g.open) != MICA_OK) cli_say("%s: %s", g.path, mica_error());
    free(text);
    g.without = from->without ? cli_format("%s", from->without) : NULL;
    for (int i = 0; mica_graph_extent_at(g.open, i, &e) == MICA_OK; i++) {
        g.extents[i] = e.low;
        if (!random) continue;
        *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        g.extents[i] += (int64_t)((*random >> 16) % (uint64_t)(e.high - e.low + 1));
    }
    if (!g.open || !fix(&g)) {
        graphs->errors++;
        forget(&g);
        return;
    }
    graphs->items = cli_grow(graphs->items, (size_t)(graphs->count + 1) * sizeof *graphs->items);
    graphs->items[graphs->count++] = g;
}

void cli_graphs_spread(cli_graphs *graphs, uint64_t seed)
{
    enum { BETWEEN = 3 };
    const int count = graphs->count;
    for (int i = 0; i < count; i++) {
        const cli_graph g = graphs->items[i]; /* the list moves */
        uint64_t random = seed;
        if (!g.open || g.chosen) continue;
        for (int k = 0; k < 1 + BETWEEN; k++) add_at(graphs, &g, k ? &random : NULL);
    }
}

mica_status cli_graph_plan(mica_context *context, const cli_graph *g,
                           const mica_graph_options *options, mica_graph_plan **plan)
{
    const mica_graph_dynamic_options o = {.plans = options};
    mica_graph_dynamic *dynamic;
    if (!g->open) return mica_graph_plan_create(context, g->graph, options, plan);
    *plan = NULL;
    mica_status status = mica_graph_dynamic_create(context, g->open, &o, &dynamic);
    if (status == MICA_OK) status = mica_graph_dynamic_plan(dynamic, g->extents, plan);
    mica_graph_dynamic_destroy(dynamic); /* the plan lives on */
    return status;
}

/* ---- arguments ---- */

/* What stands behind "graph": fields up to one that is none of ours. */
typedef struct fields {
    char *file, *without, *extents;
    mica_graph_mode mode;
} fields;

static bool take_field(cli_graphs *graphs, fields *f, const char *word)
{
    if (!strncmp(word, "file=", 5) && !f->file) {
        f->file = cli_format("%s", word + 5);
    } else if (!strncmp(word, "without=", 8) && !f->without) {
        f->without = cli_format("%s", word + 8);
    } else if (!strncmp(word, "extent=", 7) && !f->extents) {
        f->extents = cli_format("%s", word + 7);
    } else if (!strncmp(word, "mode=", 5)) {
        int m = 0;
        while (cli_graph_modes[m] && strcmp(cli_graph_modes[m], word + 5) != 0) m++;
        if (!cli_graph_modes[m]) {
            cli_say("%s: known are fused, unfused, separate", word);
            graphs->errors++;
            m = 0;
        }
        f->mode = (mica_graph_mode)m;
    } else {
        return false;
    }
    return true;
}

static void finish(cli_graphs *graphs, fields *f)
{
    if (f->file)
        add(graphs, f->file, f->mode, f->without, f->extents);
    else
        cli_say("graph: file=PATH is needed");
    if (!f->file) graphs->errors++;
    free(f->file);
    free(f->without);
    free(f->extents);
    *f = (fields){0};
}

/* One argument that holds the whole line. */
static void take_line(cli_graphs *graphs, const char *line)
{
    fields f = {0};
    char *copy = cli_format("%s", line), *rest = copy, *word;
    strsep(&rest, " ");
    while ((word = strsep(&rest, " ")))
        if (*word && !take_field(graphs, &f, word)) {
            cli_say("graph: \"%s\": known are file, mode, without and extent", word);
            graphs->errors++;
        }
    finish(graphs, &f);
    free(copy);
}

static bool ends_in(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n > m && !strcmp(text + n - m, end);
}

void cli_graphs_take(cli_graphs *graphs, cli_options *o)
{
    int kept = 0;
    *graphs = (cli_graphs){0};
    for (int i = 0; i < o->arg_count; i++) {
        char *arg = o->args[i];
        if (!strcmp(arg, "graph")) {
            fields f = {0};
            while (i + 1 < o->arg_count && take_field(graphs, &f, o->args[i + 1])) i++;
            finish(graphs, &f);
        } else if (!strncmp(arg, "graph ", 6)) {
            take_line(graphs, arg);
        } else if (ends_in(arg, ".graph") && !strchr(arg, '=')) {
            const char *next = i + 1 < o->arg_count ? o->args[i + 1] : "";
            const bool extents = !strncmp(next, "extent=", 7);
            add(graphs, arg, MICA_GRAPH_FUSED, NULL, extents ? next + 7 : NULL);
            i += extents;
        } else {
            o->args[kept++] = arg;
        }
    }
    o->arg_count = kept;
}

void cli_graphs_free(cli_graphs *graphs)
{
    for (int i = 0; i < graphs->count; i++) forget(&graphs->items[i]);
    free(graphs->items);
}

mica_graph_options cli_graph_options(const cli_graph *graph, mica_graph_mode mode,
                                     const mica_options *nodes)
{
    return (mica_graph_options){.mode = mode, .without = graph->without, .nodes = nodes};
}
