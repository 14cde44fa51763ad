/* SPDX-License-Identifier: Apache-2.0
 * `mica explain --plot FILE.svg`: a graph's launches below each other, each a box as wide as its
 * predicted time and beginning where the one before ends, with lines from the launch that writes a
 * tensor to those that read it. */
#include "graph/graphs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { LEFT = 20, TOP = 64, TIMES = 520, ROW = 28, BOX = 20, LABEL = 700 };

typedef struct box {
    double x, width, ms; /* pixels; milliseconds */
    char *line;          /* of its problem */
    mica_graph_step step;
} box;

static void put_text(FILE *f, const char *text)
{
    for (; *text; text++) switch (*text) {
        case '&':
            fputs("&amp;", f);
            break;
        case '<':
            fputs("&lt;", f);
            break;
        case '>':
            fputs("&gt;", f);
            break;
        case '"':
            fputs("&quot;", f);
            break;
        default:
            fputc(*text, f);
        }
}

static int read_boxes(const mica_graph_plan *plan, box **boxes, double *total)
{
    mica_graph_step s;
    int count = 0;
    *boxes = NULL;
    *total = 0;
    for (; mica_graph_plan_step(plan, count, &s) == MICA_OK; count++) {
        *boxes = cli_grow(*boxes, (size_t)(count + 1) * sizeof **boxes);
        box *b = &(*boxes)[count];
        const int length = mica_plan_describe(s.plan, NULL, 0);
        const double ms = mica_plan_predicted(s.plan);
        *b = (box){.ms = ms > 0 ? ms : 0, .step = s, .line = cli_alloc((size_t)length + 1)};
        mica_plan_describe(s.plan, b->line, (size_t)length + 1);
        *total += b->ms;
    }
    double at = 0;
    for (int i = 0; i < count; i++) {
        box *b = &(*boxes)[i];
        const double scale = *total > 0 ? TIMES / *total : 0;
        b->x = LEFT + at * scale;
        b->width = b->ms * scale > 2 ? b->ms * scale : 2;
        at += b->ms;
    }
    return count;
}

/* Whether a step has the tensor among its own. */
static bool uses(const mica_graph_plan *plan, int step, const mica_graph_step *s, const char *name)
{
    mica_graph_tensor_info info;
    int64_t offset;
    int arg;
    for (int b = 0; b < s->binds; b++)
        if (mica_graph_plan_bound(plan, step, b, &arg, &info, &offset) == MICA_OK &&
            !strcmp(info.name, name))
            return true;
    return false;
}

/* A tensor of the graph's own is written by the first step that has it. */
static void put_lines(FILE *f, const mica_graph_plan *plan, const box *boxes, int step)
{
    mica_graph_tensor_info info;
    int64_t offset;
    int arg;
    for (int b = 0; b < boxes[step].step.binds; b++) {
        if (mica_graph_plan_bound(plan, step, b, &arg, &info, &offset) != MICA_OK) continue;
        if (info.kind == MICA_GRAPH_INPUT || info.kind == MICA_GRAPH_CONSTANT) continue;
        int from = 0;
        while (from < step && !uses(plan, from, &boxes[from].step, info.name)) from++;
        if (from == step) continue;
        const double x = boxes[from].x + boxes[from].width / 2;
        const double to = boxes[step].x + boxes[step].width / 2;
        const int y = TOP + from * ROW + BOX, end = TOP + step * ROW;
        fprintf(f, "<path class=\"t\" d=\"M%.1f %dC%.1f %d %.1f %d %.1f %d\"><title>", x, y, x,
                y + ROW / 2, to, end - ROW / 2, to, end);
        put_text(f, info.name);
        fputs("</title></path>\n", f);
    }
}

/* A hue for each operation. */
static unsigned hue(const char *line, size_t length)
{
    unsigned h = 5;
    for (size_t i = 0; i < length; i++) h = h * 131 + (unsigned char)line[i];
    return h % 360;
}

static void put_box(FILE *f, const box *b, int row)
{
    const int y = TOP + row * ROW;
    const size_t name = strcspn(b->line, " ");
    const char *config = mica_plan_config(b->step.plan);
    fprintf(f, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"hsl(%u 55%% 70%%)\">",
            b->x, y, b->width, BOX, hue(b->line, name));
    fputs("<title>", f);
    put_text(f, b->line);
    fprintf(f, "</title></rect>\n<text x=\"%d\" y=\"%d\"><tspan class=\"o\">%.*s</tspan> ",
            LEFT + TIMES + 16, y + 14, (int)name, b->line);
    put_text(f, mica_plan_engine(b->step.plan));
    if (*config) fputc(' ', f);
    put_text(f, config);
    fprintf(f, ", %.4g ms, node%s %s</text>\n", b->ms, strchr(b->step.nodes, ' ') ? "s" : "",
            b->step.nodes);
}

static void put_plan(FILE *f, const char *title, const mica_graph_plan *plan)
{
    box *boxes;
    double total;
    const int count = read_boxes(plan, &boxes, &total), width = LEFT + TIMES + LABEL;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\">\n"
            "<style>text{font:12px sans-serif;fill:#222}.h,.o{font-weight:bold}"
            ".t{fill:none;stroke:#888;stroke-width:1}rect{stroke:#444;stroke-width:.5}"
            ".b{fill:#fff;stroke:none}</style>\n"
            "<rect class=\"b\" width=\"100%%\" height=\"100%%\"/>\n<text class=\"h\" x=\"%d\" "
            "y=\"24\">",
            width, TOP + count * ROW + 16, width, TOP + count * ROW + 16, LEFT);
    put_text(f, title);
    fprintf(f,
            "</text>\n<text x=\"%d\" y=\"44\">%d launch%s, %.4g ms predicted, workspace %zu "
            "bytes</text>\n",
            LEFT, count, count == 1 ? "" : "es", total, mica_graph_plan_workspace(plan));
    for (int i = 0; i < count; i++) put_lines(f, plan, boxes, i);
    for (int i = 0; i < count; i++) put_box(f, &boxes[i], i);
    fputs("</svg>\n", f);
    for (int i = 0; i < count; i++) free(boxes[i].line);
    free(boxes);
}

int cli_graph_plot(const char *path, const char *title, const mica_graph_plan *plan)
{
    FILE *f = fopen(path, "w");
    if (!f) {
        cli_say("%s: %s", path, strerror(errno));
        return CLI_USAGE;
    }
    put_plan(f, title, plan);
    const bool failed = ferror(f) != 0;
    if (fclose(f) != 0 || failed) {
        cli_say("%s: %s", path, strerror(errno));
        return CLI_USAGE;
    }
    return CLI_OK;
}
