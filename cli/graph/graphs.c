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

static void add(cli_graphs *graphs, const char *path, mica_graph_mode mode, const char *without)
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
    const char *shown = mode ? cli_graph_modes[mode] : NULL;
    g.line = cli_format("graph file=%s%s%s%s%s", path, shown ? " mode=" : "", shown ? shown : "",
                        without ? " without=" : "", without ? without : "");
    g.without = without ? cli_format("%s", without) : NULL;
    graphs->items = cli_grow(graphs->items, (size_t)(graphs->count + 1) * sizeof *graphs->items);
    graphs->items[graphs->count++] = g;
}

/* ---- arguments ---- */

/* What stands behind "graph": fields up to one that is none of ours. */
typedef struct fields {
    char *file, *without;
    mica_graph_mode mode;
} fields;

static bool take_field(cli_graphs *graphs, fields *f, const char *word)
{
    if (!strncmp(word, "file=", 5) && !f->file) {
        f->file = cli_format("%s", word + 5);
    } else if (!strncmp(word, "without=", 8) && !f->without) {
        f->without = cli_format("%s", word + 8);
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
        add(graphs, f->file, f->mode, f->without);
    else
        cli_say("graph: file=PATH is needed");
    if (!f->file) graphs->errors++;
    free(f->file);
    free(f->without);
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
            cli_say("graph: \"%s\": known are file, mode and without", word);
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
            add(graphs, arg, MICA_GRAPH_FUSED, NULL);
        } else {
            o->args[kept++] = arg;
        }
    }
    o->arg_count = kept;
}

void cli_graphs_free(cli_graphs *graphs)
{
    for (int i = 0; i < graphs->count; i++) {
        free(graphs->items[i].line);
        free(graphs->items[i].without);
        mica_graph_destroy(graphs->items[i].graph);
    }
    free(graphs->items);
}

mica_graph_options cli_graph_options(const cli_graph *graph, mica_graph_mode mode,
                                     const mica_options *nodes)
{
    return (mica_graph_options){.mode = mode, .without = graph->without, .nodes = nodes};
}
