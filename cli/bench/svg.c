/* SPDX-License-Identifier: Apache-2.0
 * Plots of bench results: a roofline (arithmetic intensity against TFLOP/s, both logarithmic) and a
 * bar per result (per cent of the roofline). One self-contained SVG file. */
#include "bench/bench.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { WIDTH = 1180, LEFT = 70, RIGHT = 1150, TOP = 60, BOTTOM = 460, ROW = 19, MAX_BARS = 400 };

/* Okabe and Ito's colours, told apart by colour-blind readers too. */
static const char *const palette[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                      "#e69f00", "#56b4e9", "#000000", "#b0a000"};
enum { COLOURS = sizeof palette / sizeof *palette };

typedef struct plot {
    FILE *f;
    const bench_results *results;
    const mica_device_info *device;
    double x0, x1, y0, y1; /* decades of the axes */
    const char *engines[64];
    int engine_count;
} plot;

static void escaped(FILE *f, const char *s, size_t most)
{
    for (size_t i = 0; s[i] && i < most; i++) {
        if (s[i] == '<')
            fputs("&lt;", f);
        else if (s[i] == '>')
            fputs("&gt;", f);
        else if (s[i] == '&')
            fputs("&amp;", f);
        else if (s[i] == '"')
            fputs("&quot;", f);
        else
            fputc(s[i], f);
    }
    if (strlen(s) > most) fputs("...", f);
}

static void label(const plot *p, double x, double y, const char *anchor, const char *text)
{
    fprintf(p->f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    escaped(p->f, text, 130);
    fputs("</text>\n", p->f);
}

static const char *colour(plot *p, const char *engine)
{
    for (int i = 0; i < p->engine_count; i++)
        if (!strcmp(p->engines[i], engine)) return palette[i % COLOURS];
    if (p->engine_count == 64) return palette[6];
    p->engines[p->engine_count] = engine;
    return palette[p->engine_count++ % COLOURS];
}

/* ---- roofline ---- */

static double px(const plot *p, double intensity)
{
    return LEFT + (log10(intensity) - p->x0) / (p->x1 - p->x0) * (RIGHT - LEFT);
}
static double py(const plot *p, double tflops)
{
    return BOTTOM - (log10(tflops) - p->y0) / (p->y1 - p->y0) * (BOTTOM - TOP);
}

static bool on_roofline(const bench_result *r)
{
    return r->flops > 0 && r->bytes > 0 && r->tflops > 0;
}

static void choose_axes(plot *p)
{
    double bandwidth = p->device->copy_gbps / 1e3; /* TB/s: TFLOP/s at one flop per byte */
    double top = fmax(p->device->bf16_tflops, p->device->f32_tflops);
    double ridge = bandwidth > 0 ? top / bandwidth : 1;
    p->x0 = -1, p->x1 = ceil(log10(fmax(ridge, 10))) + 1;
    p->y1 = ceil(log10(fmax(top, 1e-3))), p->y0 = p->y1 - 3;
    for (size_t i = 0; i < p->results->count; i++) {
        const bench_result *r = &p->results->items[i];
        if (!on_roofline(r)) continue;
        p->x0 = fmin(p->x0, floor(log10(r->flops / r->bytes)));
        p->x1 = fmax(p->x1, ceil(log10(r->flops / r->bytes)));
        p->y0 = fmin(p->y0, floor(log10(r->tflops)));
        p->y1 = fmax(p->y1, ceil(log10(r->tflops)));
    }
}

static void draw_axes(const plot *p)
{
    char text[64];
    for (double d = p->x0; d <= p->x1 + 0.5; d++) {
        double x = px(p, pow(10, d));
        fprintf(p->f, "<line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>\n", x,
                TOP, x, BOTTOM);
        snprintf(text, sizeof text, "%g", pow(10, d));
        label(p, x, BOTTOM + 18, "middle", text);
    }
    for (double d = p->y0; d <= p->y1 + 0.5; d++) {
        double y = py(p, pow(10, d));
        fprintf(p->f, "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>\n", LEFT,
                y, RIGHT, y);
        snprintf(text, sizeof text, "%g", pow(10, d));
        label(p, LEFT - 6, y + 4, "end", text);
    }
    label(p, (LEFT + RIGHT) / 2.0, BOTTOM + 36, "middle", "arithmetic intensity, flop per byte");
    label(p, LEFT, TOP - 8, "start", "TFLOP/s");
}

/* From where the memory's slope enters the plot to the ridge, then flat. */
static void draw_roof(const plot *p, const char *name, double tflops)
{
    double bandwidth = p->device->copy_gbps / 1e3;
    if (tflops <= 0 || bandwidth <= 0) return;
    double start = fmax(pow(10, p->x0), pow(10, p->y0) / bandwidth), ridge = tflops / bandwidth;
    char text[96];
    fprintf(p->f, "<polyline class=\"roof\" points=\"%.1f,%.1f %.1f,%.1f %d,%.1f\"/>\n",
            px(p, start), py(p, start * bandwidth), px(p, ridge), py(p, tflops), RIGHT,
            py(p, tflops));
    snprintf(text, sizeof text, "%s %.3g TFLOP/s", name, tflops);
    label(p, RIGHT - 4, py(p, tflops) - 5, "end", text);
}

static void draw_points(plot *p)
{
    for (size_t i = 0; i < p->results->count; i++) {
        const bench_result *r = &p->results->items[i];
        if (!on_roofline(r)) continue;
        fprintf(p->f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\" fill=\"%s\"><title>",
                px(p, r->flops / r->bytes), py(p, r->tflops), colour(p, r->engine));
        escaped(p->f, r->engine, 64);
        fprintf(p->f, ": %.5g ms, %.4g TFLOP/s, %.4g GB/s, %.1f %% of the roofline; ", r->ms,
                r->tflops, r->gbps, 100 * r->roofline);
        escaped(p->f, r->line, 400);
        fputs("</title></circle>\n", p->f);
    }
}

/* ---- bars ---- */

static double bars_top(const plot *p)
{
    return BOTTOM + 70 + 20 * ((p->engine_count + 5) / 6);
}

static void draw_legend(const plot *p)
{
    for (int i = 0; i < p->engine_count; i++) {
        double x = LEFT + 180.0 * (i % 6), y = BOTTOM + 62 + 20.0 * (i / 6);
        fprintf(p->f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x,
                y - 11, palette[i % COLOURS]);
        label(p, x + 18, y, "start", p->engines[i]);
    }
}

static size_t shown(const plot *p)
{
    return p->results->count < MAX_BARS ? p->results->count : MAX_BARS;
}

static void draw_bars(plot *p)
{
    const double from = 760, full = RIGHT - from - 40;
    double y = bars_top(p);
    for (size_t i = 0; i < shown(p); i++, y += ROW) {
        const bench_result *r = &p->results->items[i];
        double part = isfinite(r->roofline) ? fmin(fmax(r->roofline, 0), 1.1) : 0;
        char value[64];
        label(p, from - 8, y + 13, "end", r->line);
        fprintf(p->f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n",
                from, y + 2, full * part, ROW - 5, colour(p, r->engine));
        snprintf(value, sizeof value, "%.1f %% %.4g ms", 100 * r->roofline, r->ms);
        label(p, from + full * part + 5, y + 13, "start", value);
    }
}

static bool write_plot(plot *p)
{
    for (size_t i = 0; i < p->results->count; i++) colour(p, p->results->items[i].engine);
    int height = (int)bars_top(p) + ROW * (int)shown(p) + 30;
    fprintf(p->f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\">\n<style>text{font:12px sans-serif;fill:#222}.grid{stroke:#ddd}"
            ".roof{fill:none;stroke:#888;stroke-width:2}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            WIDTH, height, WIDTH, height);
    char title[256];
    snprintf(title, sizeof title, "mica bench on %s (%s)", p->device->model, p->device->name);
    label(p, LEFT, 26, "start", title);
    choose_axes(p);
    draw_axes(p);
    draw_roof(p, "16-bit", p->device->bf16_tflops);
    if (p->device->f32_tflops < p->device->bf16_tflops) draw_roof(p, "f32", p->device->f32_tflops);
    draw_points(p);
    draw_legend(p);
    draw_bars(p);
    if (p->results->count > MAX_BARS)
        label(p, LEFT, height - 10, "start", "more results than bars: see the result file");
    fputs("</svg>\n", p->f);
    return !ferror(p->f);
}

bool bench_plot(const char *path, const bench_results *results, const mica_device_info *device)
{
    plot p = {.f = fopen(path, "w"), .results = results, .device = device};
    bool ok = p.f && write_plot(&p);
    if (p.f && fclose(p.f) != 0) ok = false;
    if (!ok) cli_say("%s: writing failed: %s", path, strerror(errno));
    return ok;
}
