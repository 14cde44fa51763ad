/* SPDX-License-Identifier: Apache-2.0
 * The report's pictures: the network, the learning curves, the time of each step. What they show is
 * read from the plans. */
#include "demo/report.h"

#include <math.h>
#include <string.h>

/* ---- the network: its forward steps in rows that go to and fro ---- */

enum { COLUMNS = 3, BOX = 130, BOX_HEIGHT = 62, GAP = 32, ROW = 100, EDGE = 6 };

typedef struct place {
    int x, y; /* of a box */
} place;

/* Rows go left to right and back, so that each box stands beside the next. */
static place place_of(int i)
{
    int row = i / COLUMNS, column = i % COLUMNS;
    if (row % 2) column = COLUMNS - 1 - column;
    return (place){EDGE + column * (BOX + GAP), EDGE + row * ROW};
}

static void arrow(FILE *f, double x0, double y0, double x1, double y1, const char *colour)
{
    double length = hypot(x1 - x0, y1 - y0), ux = (x1 - x0) / length, uy = (y1 - y0) / length;
    fprintf(f,
            "<path d=\"M%.1f %.1fL%.1f %.1f\" stroke=\"var(--%s)\" stroke-width=\"2\"/><path "
            "d=\"M%.1f %.1fL%.1f %.1fL%.1f %.1fz\" fill=\"var(--%s)\"/>\n",
            x0, y0, x1 - 6 * ux, y1 - 6 * uy, colour, x1, y1, x1 - 8 * ux - 4 * uy,
            y1 - 8 * uy + 4 * ux, x1 - 8 * ux + 4 * uy, y1 - 8 * uy - 4 * ux, colour);
}

/* Values from box i to box i + 1 and, the other way, gradients. */
static void link_boxes(FILE *f, int i, bool backward)
{
    place a = place_of(i), b = place_of(i + 1);
    double across = backward ? 7 : 0, side = b.x > a.x ? 1 : -1;
    if (a.y == b.y) {
        double x0 = side > 0 ? a.x + BOX + 3 : a.x - 3, x1 = x0 + side * (GAP - 6);
        double y = a.y + BOX_HEIGHT / 2.0;
        arrow(f, x0, y - across, x1, y - across, "blue");
        if (backward) arrow(f, x1, y + across, x0, y + across, "amber");
    } else {
        double x = a.x + BOX / 2.0, y0 = a.y + BOX_HEIGHT + 3, y1 = b.y - 3;
        arrow(f, x - across, y0, x - across, y1, "blue");
        if (backward) arrow(f, x + across, y1, x + across, y0, "amber");
    }
}

static void box(FILE *f, place at, const char *colour, const char *name, const char *first,
                const char *second)
{
    fprintf(f,
            "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"7\" fill=\"var(--box)\" "
            "stroke=\"var(--%s)\" stroke-width=\"1.5\"/>",
            at.x, at.y, BOX, BOX_HEIGHT, colour);
    const char *const lines[] = {name, first, second};
    double y = at.y + (*first ? 18 : 27);
    for (int i = 0; i < 3; i++) {
        if (!*lines[i]) continue;
        fprintf(f, "<text class=\"%s\" x=\"%d\" y=\"%.0f\" text-anchor=\"middle\">",
                i ? "soft" : "name", at.x + BOX / 2, y);
        y += 18;
        report_escaped(f, lines[i]);
        fprintf(f, "</text>");
    }
    fprintf(f, "\n");
}

/* What a step makes of one image, "16 x 8 x 8", or the plan's first result as it is. */
static void result_shape(const net_step *s, int batch, char *text, size_t size)
{
    mica_arg_info a;
    *text = 0;
    for (int i = 0; mica_plan_arg(s->plan, i, &a) == MICA_OK; i++) {
        if (a.dir != MICA_OUT) continue;
        int from = a.tensor.rank > 1 && a.tensor.dims[0] == batch;
        size_t used = 0;
        for (int d = from; d < a.tensor.rank && used < size; d++)
            used += (size_t)snprintf(text + used, size - used, "%s%lld", d > from ? " x " : "",
                                     (long long)a.tensor.dims[d]);
        return;
    }
}

/* What a step multiplies by: its argument w (conv) or b (gemm), if it has one. */
static void weight_shape(const net_step *s, char *text, size_t size)
{
    static const char *const names[] = {"w", "b"};
    mica_arg_info a;
    *text = 0;
    for (int i = 0; mica_plan_arg(s->plan, i, &a) == MICA_OK; i++)
        for (int n = 0; n < 2; n++) {
            if (a.dir != MICA_IN || strcmp(a.name, names[n]) != 0) continue;
            size_t used = (size_t)snprintf(text, size, "by ");
            for (int d = 0; d < a.tensor.rank && used < size; d++)
                used += (size_t)snprintf(text + used, size - used, "%s%lld", d ? "x" : "",
                                         (long long)a.tensor.dims[d]);
        }
}

void report_network(FILE *f, const report *r)
{
    const net *n = r->network;
    char shape[64], weights[64];
    int boxes = 1;
    for (int i = 0; i < n->count[NET_TRAIN]; i++)
        boxes += n->steps[NET_TRAIN][i].phase == NET_FORWARD;
    int rows = (boxes + 1 + COLUMNS - 1) / COLUMNS; /* and the optimiser */
    fprintf(
        f,
        "<section><h2>The network and its optimiser</h2><p class=\"soft\"><span class=\"leg\"><i "
        "class=\"forward\"></i>values, forward</span> <span class=\"leg\"><i "
        "class=\"backward\"></i>gradients, backward</span> <span class=\"leg\"><i "
        "class=\"update\"></i>new parameters</span></p><p class=\"soft\">Sizes are those of one "
        "image; a step takes %d.</p><div class=\"net\"><svg viewBox=\"0 0 %d %d\" role=\"img\" "
        "aria-label=\"the steps of the network\" fill=\"none\">\n",
        n->batch, 2 * EDGE + COLUMNS * BOX + (COLUMNS - 1) * GAP,
        2 * EDGE + (rows - 1) * ROW + BOX_HEIGHT);
    snprintf(shape, sizeof shape, "1 x %d x %d", DIGIT_SIDE, DIGIT_SIDE);
    box(f, place_of(0), "line", "digit", "", shape);
    int at = 0;
    for (int i = 0; i < n->count[NET_TRAIN]; i++) {
        const net_step *s = &n->steps[NET_TRAIN][i];
        if (s->phase != NET_FORWARD) continue;
        result_shape(s, n->batch, shape, sizeof shape);
        weight_shape(s, weights, sizeof weights);
        link_boxes(f, at, at > 0);
        at++;
        box(f, place_of(at), "blue", s->name, weights, shape);
    }
    place last = place_of(at + 1), loss = place_of(at);
    snprintf(weights, sizeof weights, "%lld values", (long long)n->parameters);
    snprintf(shape, sizeof shape, "rate up to %g", r->peak_rate);
    box(f, last, "green", n->optimiser->name, weights, shape);
    if (last.y == loss.y) {
        double y = last.y + BOX_HEIGHT / 2.0, side = last.x > loss.x ? 1 : -1;
        double x = side > 0 ? loss.x + BOX + 3 : loss.x - 3;
        arrow(f, x, y, x + side * (GAP - 6), y, "amber");
    } else {
        arrow(f, last.x + BOX / 2.0, loss.y + BOX_HEIGHT + 3, last.x + BOX / 2.0, last.y - 3,
              "amber");
    }
    fprintf(f, "</svg></div><p class=\"soft\"><code>");
    report_escaped(f, n->optimiser->line);
    fprintf(f,
            "</code>; its learning rate rises over the first epoch to %g and falls along a cosine "
            "to 0.</p></section>\n",
            r->peak_rate);
}

/* ---- learning curves ---- */

enum { LEFT = 62, RIGHT = 434, TOP = 12, BOTTOM = 212 };

static double curve_x(const report *r, int epoch)
{
    return LEFT + (r->epochs > 1 ? (double)(RIGHT - LEFT) * epoch / (r->epochs - 1) : 0);
}

/* Values from low to high over epochs; unit: "%" counts in hundredths. */
static void write_curve(FILE *f, const report *r, const double *values, double low, double high,
                        bool percent, const char *colour)
{
    fprintf(f, "<svg viewBox=\"0 0 446 250\" role=\"img\">\n");
    for (int i = 0; i <= 4; i++) {
        double y = BOTTOM - (BOTTOM - TOP) * i / 4.0, v = low + (high - low) * i / 4;
        fprintf(f, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"var(--line)\"/>",
                LEFT, RIGHT, y, y);
        fprintf(f, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.*f%s</text>\n", LEFT - 6, y + 4,
                percent ? 1 : 2, percent ? 100 * v : v, percent ? " %" : "");
    }
    if (low > 0) /* an axis that does not begin at 0 is broken, for the eye */
        fprintf(f,
                "<path d=\"M%d %dl-5 -4l10 -4l-10 -4l5 -4\" fill=\"none\" stroke=\"var(--ink)\" "
                "stroke-width=\"1.5\"/>",
                LEFT, BOTTOM - 2);
    fprintf(f, "<polyline fill=\"none\" stroke=\"var(--%s)\" stroke-width=\"2.5\" points=\"",
            colour);
    for (int e = 0; e < r->epochs; e++) {
        double v = fmin(fmax(values[e], low), high);
        fprintf(f, "%.1f,%.1f ", curve_x(r, e), BOTTOM - (BOTTOM - TOP) * (v - low) / (high - low));
    }
    fprintf(f, "\"/>");
    double end = fmin(fmax(values[r->epochs - 1], low), high);
    fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"var(--%s)\"/>\n",
            curve_x(r, r->epochs - 1), BOTTOM - (BOTTOM - TOP) * (end - low) / (high - low),
            colour);
    int step = (r->epochs + 9) / 10;
    for (int e = 0; e < r->epochs; e += step)
        fprintf(f, "<text class=\"soft\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>",
                curve_x(r, e), BOTTOM + 18, e + 1);
    fprintf(f, "<text class=\"soft\" x=\"%d\" y=\"%d\" text-anchor=\"end\">epoch</text></svg>",
            RIGHT, BOTTOM + 36);
}

void report_learning(FILE *f, const report *r)
{
    double most = 0, least = 1;
    for (int e = 0; e < r->epochs; e++) {
        most = fmax(most, r->loss[e]);
        least = fmin(least, r->accuracy[e]);
    }
    most = ceil(most * 5 + 1e-9) / 5;
    least = fmin(0.95, floor(least * 20) / 20);
    fprintf(f, "<section><h2>Learning curves</h2><div class=\"pair\">\n<div><h3>training loss</h3>"
               "<p class=\"soft\">cross-entropy, mean over the epoch</p>");
    write_curve(f, r, r->loss, 0, most, false, "amber");
    fprintf(f, "</div>\n<div><h3>held-out accuracy</h3>");
    if (least > 0)
        fprintf(f, "<p class=\"soft\">the axis starts at %.0f %%, not at 0</p>", 100 * least);
    else
        fprintf(f, "<p class=\"soft\">after each epoch</p>");
    write_curve(f, r, r->accuracy, least, 1, true, "blue");
    fprintf(f, "</div></div></section>\n");
}

/* ---- time of each step ---- */

void report_rate(char *text, size_t size, const report *r, const net_step *s)
{
    double ridge = r->device.f32_tflops * 1e3 / r->device.copy_gbps;
    if (s->ms <= 0)
        snprintf(text, size, "-");
    else if (s->flops > ridge * s->bytes)
        snprintf(text, size, "%.3g GFLOP/s", s->flops / s->ms * 1e-6);
    else
        snprintf(text, size, "%.3g GB/s", s->bytes / s->ms * 1e-6);
}

void report_times(FILE *f, const report *r)
{
    static const char *const classes[] = {"forward", "backward", "update"};
    const net *n = r->network;
    double most = 0, sum[3] = {0, 0, 0};
    for (int i = 0; i < n->count[NET_TRAIN]; i++) {
        const net_step *s = &n->steps[NET_TRAIN][i];
        most = fmax(most, s->ms);
        sum[s->phase] += s->ms;
    }
    fprintf(
        f,
        "<section><h2>Where the time goes</h2><p class=\"soft\">One training step of %d images: "
        "%.3f ms, the median of each plan alone.</p><p class=\"soft\">",
        n->batch, sum[0] + sum[1] + sum[2]);
    for (int phase = 0; phase < 3; phase++)
        fprintf(f, "<span class=\"leg\"><i class=\"%s\"></i>%s %.3f ms</span> ", classes[phase],
                classes[phase], sum[phase]);
    fprintf(f,
            "</p><p class=\"soft\">Behind each bar its rate: arithmetic where that decides, else "
            "memory, and its share of the roofline (%.3g GFLOP/s, %.3g GB/s by the cost model); "
            "data in caches go past it.</p>\n",
            1e3 * r->device.f32_tflops, r->device.copy_gbps);
    for (int i = 0; i < n->count[NET_TRAIN]; i++) {
        const net_step *s = &n->steps[NET_TRAIN][i];
        char rate[32];
        report_rate(rate, sizeof rate, r, s);
        fprintf(f, "<div class=\"bar\" title=\"");
        report_escaped(f, s->line);
        fprintf(f,
                "\"><span>%s</span><span><i class=\"%s\" style=\"width:%.2f%%\"></i></span><span "
                "class=\"soft\">%.1f us, %s, %.0f %%<span class=\"eng\">, %s</span></span></div>\n",
                s->name, classes[s->phase], most > 0 ? 100 * s->ms / most : 0, 1e3 * s->ms, rate,
                s->ms > 0 ? 100 * s->roof_ms / s->ms : 0, mica_plan_engine(s->plan));
    }
    fprintf(f, "</section>\n");
}
