/* SPDX-License-Identifier: Apache-2.0
 * The demonstration's report. */
#include "demo/report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int report_best(const float *p)
{
    int best = 0;
    for (int c = 1; c < DIGIT_CLASSES; c++)
        if (p[c] > p[best]) best = c;
    return best;
}

static void escaped(FILE *f, const char *text)
{
    for (; *text; text++) {
        if (*text == '<')
            fputs("&lt;", f);
        else if (*text == '&')
            fputs("&amp;", f);
        else if (*text == '"')
            fputs("&quot;", f);
        else
            fputc(*text, f);
    }
}

static const char head[] =
    "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width\"><title>mica demo</title><style>\n"
    ":root{--ink:#1c2330;--soft:#68758a;--line:#d9dfe8;--paper:#fff;--page:#f4f6f9;--blue:#2563c9;"
    "--amber:#c97a12;--red:#c33;--pixel:#1c2330}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6eaf2;--soft:#93a0b5;--line:#333c4b;"
    "--paper:#1b212c;--page:#12161d;--blue:#6ea3ff;--amber:#f0ad4e;--red:#ff7b7b;--pixel:#e6eaf2}}"
    "\n"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);margin:0 auto;"
    "max-width:1000px;padding:24px}\n"
    "h1{font-size:26px;margin:0}h2{font-size:17px;margin:0 0 12px}p{margin:4px 0}\n"
    "section{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:18px "
    "20px;margin:16px 0}\n"
    ".facts{display:flex;flex-wrap:wrap;gap:28px}.facts b{display:block;font-size:26px}\n"
    ".soft,.facts span{color:var(--soft)}svg{width:100%;height:auto}svg text{fill:var(--ink);"
    "font:12px system-ui,sans-serif}svg .soft{fill:var(--soft)}\n"
    "table{border-collapse:collapse;width:100%;font-size:13px}td,th{padding:3px "
    "8px;text-align:left;"
    "border-bottom:1px solid var(--line)}td.n,th.n{text-align:right;font-variant-numeric:"
    "tabular-nums}code{font:12px ui-monospace,monospace;word-break:break-all}\n"
    ".digits{display:flex;flex-wrap:wrap;gap:10px}.digits "
    "figure{margin:0;width:84px;text-align:center;"
    "font-size:13px}.wrong{color:var(--red);font-weight:600}\n"
    "</style></head><body>\n";

static void write_facts(FILE *f, const report *r)
{
    fprintf(f, "<h1>mica learned to read digits</h1><p class=\"soft\">");
    escaped(f, r->device.model);
    fprintf(f, " (%s), mica %s</p>\n<section class=\"facts\">", r->device.name, mica_version());
    fprintf(f, "<div><b>%.2f %%</b><span>of %d held-out digits read correctly</span></div>",
            100 * r->accuracy[r->epochs - 1], r->network->held_out);
    fprintf(f, "<div><b>%.1f s</b><span>training, %d epochs</span></div>", r->seconds, r->epochs);
    fprintf(f, "<div><b>%.0f ms</b><span>to make all plans</span></div>", 1e3 * r->setup_seconds);
    fprintf(f, "<div><b>%lld</b><span>parameters</span></div></section>\n",
            (long long)r->network->parameters);
}

/* ---- learning curve ---- */

enum { LEFT = 60, TOP = 16, WIDTH = 840, HEIGHT = 260 };

static double curve_x(const report *r, int epoch)
{
    return LEFT + (r->epochs > 1 ? (double)WIDTH * epoch / (r->epochs - 1) : 0);
}

static void write_curve(FILE *f, const report *r, const double *values, double low, double high,
                        const char *colour)
{
    fprintf(f, "<polyline fill=\"none\" stroke=\"var(--%s)\" stroke-width=\"2.5\" points=\"",
            colour);
    for (int e = 0; e < r->epochs; e++) {
        double v = values[e] < low ? low : values[e];
        fprintf(f, "%.1f,%.1f ", curve_x(r, e), TOP + HEIGHT * (1 - (v - low) / (high - low)));
    }
    fprintf(f, "\"/>\n");
}

static void write_learning(FILE *f, const report *r)
{
    double most = 0, least = 1;
    for (int e = 0; e < r->epochs; e++) {
        most = fmax(most, r->loss[e]);
        least = fmin(least, r->accuracy[e]);
    }
    most = ceil(most * 5 + 1e-9) / 5;
    least = fmin(0.95, floor(least * 20) / 20);
    fprintf(f, "<section><h2>Learning curve</h2><svg viewBox=\"0 0 960 332\">\n");
    for (int i = 0; i <= 4; i++) {
        double y = TOP + HEIGHT * (1 - i / 4.0);
        fprintf(f, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"var(--line)\"/>",
                LEFT, LEFT + WIDTH, y, y);
        fprintf(f, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.2f</text>", LEFT - 8, y + 4,
                most * i / 4);
        fprintf(f, "<text x=\"%d\" y=\"%.1f\">%.1f %%</text>\n", LEFT + WIDTH + 8, y + 4,
                100 * (least + (1 - least) * i / 4));
    }
    write_curve(f, r, r->loss, 0, most, "amber");
    write_curve(f, r, r->accuracy, least, 1, "blue");
    int step = r->epochs <= 10 ? 1 : (r->epochs + 9) / 10;
    for (int e = 0; e < r->epochs; e += step)
        fprintf(f, "<text class=\"soft\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>",
                curve_x(r, e), TOP + HEIGHT + 20, e + 1);
    fprintf(f,
            "<text x=\"%d\" y=\"%d\" style=\"fill:var(--amber)\">training loss (left)</text><text "
            "x=\"%d\" y=\"%d\" style=\"fill:var(--blue)\">held-out accuracy (right)</text><text "
            "class=\"soft\" x=\"%d\" y=\"%d\" text-anchor=\"end\">epoch</text></svg></section>\n",
            LEFT, TOP + HEIGHT + 42, LEFT + 170, TOP + HEIGHT + 42, LEFT + WIDTH,
            TOP + HEIGHT + 42);
}

/* ---- time per op ---- */

static void write_times(FILE *f, const report *r)
{
    const net *n = r->network;
    double most = 0, total = 0;
    for (int i = 0; i < n->count[NET_TRAIN]; i++) {
        most = fmax(most, n->steps[NET_TRAIN][i].ms);
        total += n->steps[NET_TRAIN][i].ms;
    }
    fprintf(
        f,
        "<section><h2>Where the time goes</h2><p class=\"soft\">One training step of %d images: "
        "%.3f ms, the median of each plan alone.</p><svg viewBox=\"0 0 960 %d\">\n",
        n->batch, total, 22 * n->count[NET_TRAIN] + 4);
    for (int i = 0; i < n->count[NET_TRAIN]; i++) {
        const net_step *s = &n->steps[NET_TRAIN][i];
        double width = most > 0 ? 560 * s->ms / most : 0;
        fprintf(f, "<g><title>");
        escaped(f, s->line);
        fprintf(f,
                "</title><text x=\"170\" y=\"%d\" text-anchor=\"end\">%s</text><rect x=\"180\" "
                "y=\"%d\" "
                "width=\"%.1f\" height=\"15\" rx=\"3\" fill=\"var(--blue)\"/><text class=\"soft\" "
                "x=\"%.1f\" y=\"%d\">%.1f us, %s</text></g>\n",
                22 * i + 15, s->name, 22 * i + 3, fmax(width, 1), 188 + width, 22 * i + 15,
                1e3 * s->ms, mica_plan_engine(s->plan));
    }
    fprintf(f, "</svg></section>\n");
}

/* ---- predictions ---- */

static void write_digit(FILE *f, const report *r, int i)
{
    const digits *d = r->data;
    int row = d->count - d->held_out + i;
    const float *p = r->probabilities + (size_t)i * DIGIT_CLASSES;
    int best = report_best(p), label = d->labels[row];
    fprintf(f, "<figure><svg viewBox=\"0 0 8 8\" shape-rendering=\"crispEdges\">");
    for (int k = 0; k < DIGIT_PIXELS; k++) {
        int level = d->levels[(size_t)row * DIGIT_PIXELS + (size_t)k];
        if (level)
            fprintf(f,
                    "<rect x=\"%d\" y=\"%d\" width=\"1\" height=\"1\" fill=\"var(--pixel)\" "
                    "opacity=\"%.3g\"/>",
                    k % DIGIT_SIDE, k / DIGIT_SIDE, level / 16.0);
    }
    fprintf(f, "</svg><span%s>read %d", best == label ? "" : " class=\"wrong\"", best);
    if (best != label) fprintf(f, ", is %d", label);
    fprintf(f, "</span><br><span class=\"soft\">%.1f %%</span></figure>\n", 100 * (double)p[best]);
}

static void write_predictions(FILE *f, const report *r)
{
    enum { SHOWN = 40 };
    int shown = 0, first = r->data->count - r->data->held_out;
    fprintf(f,
            "<section><h2>Held-out digits</h2><p class=\"soft\">The mistakes first, then others; "
            "below each what was read and how sure the network was.</p><div class=\"digits\">\n");
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < r->data->held_out && shown < SHOWN; i++) {
            int best = report_best(r->probabilities + (size_t)i * DIGIT_CLASSES);
            if ((best == r->data->labels[first + i]) != (pass == 1)) continue;
            write_digit(f, r, i);
            shown++;
        }
    fprintf(f, "</div></section>\n");
}

static void write_confusion(FILE *f, const report *r)
{
    int counts[DIGIT_CLASSES][DIGIT_CLASSES] = {{0}}, first = r->data->count - r->data->held_out;
    for (int i = 0; i < r->data->held_out; i++)
        counts[r->data->labels[first + i]]
              [report_best(r->probabilities + (size_t)i * DIGIT_CLASSES)]++;
    fprintf(f, "<section><h2>Confusions</h2><table><tr><th>is \\ read</th>");
    for (int c = 0; c < DIGIT_CLASSES; c++) fprintf(f, "<th class=\"n\">%d</th>", c);
    fprintf(f, "</tr>\n");
    for (int a = 0; a < DIGIT_CLASSES; a++) {
        fprintf(f, "<tr><th>%d</th>", a);
        for (int b = 0; b < DIGIT_CLASSES; b++)
            if (counts[a][b])
                fprintf(f, "<td class=\"n%s\">%d</td>", a == b ? "" : " wrong", counts[a][b]);
            else
                fprintf(f, "<td class=\"n soft\">.</td>");
        fprintf(f, "</tr>\n");
    }
    fprintf(f, "</table></section>\n");
}

static void write_plans(FILE *f, const report *r)
{
    fprintf(f, "<section><h2>The plans</h2><p class=\"soft\">Each line can be replayed: <code>mica "
               "explain \"...\"</code>, <code>mica bench \"...\"</code>, <code>mica check "
               "\"...\"</code>.</p><table><tr><th>step</th><th>engine</th><th "
               "class=\"n\">us</th><th>problem</th></tr>\n");
    const net *n = r->network;
    for (int i = 0; i < n->count[NET_TRAIN]; i++) {
        const net_step *s = &n->steps[NET_TRAIN][i];
        fprintf(f, "<tr><td>%s</td><td>%s</td><td class=\"n\">%.1f</td><td><code>", s->name,
                mica_plan_engine(s->plan), 1e3 * s->ms);
        escaped(f, s->line);
        fprintf(f, "</code></td></tr>\n");
    }
    fprintf(f, "</table></section>\n");
}

bool report_write(const report *r, const char *path)
{
    FILE *f = fopen(path, "w");
    if (!f) {
        cli_say("%s: %s", path, strerror(errno));
        return false;
    }
    fputs(head, f);
    write_facts(f, r);
    write_learning(f, r);
    write_times(f, r);
    write_predictions(f, r);
    write_confusion(f, r);
    write_plans(f, r);
    fprintf(f,
            "<p class=\"soft\">Data: Optical Recognition of Handwritten Digits, E. Alpaydin and C. "
            "Kaynak, UCI Machine Learning Repository, CC BY 4.0.</p></body></html>\n");
    bool bad = ferror(f) != 0;
    bad |= fclose(f) != 0;
    if (bad) cli_say("%s: writing failed: %s", path, strerror(errno));
    return !bad;
}
