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

void report_escaped(FILE *f, const char *text)
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
    "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
    "<meta name=\"color-scheme\" content=\"light dark\"><title>mica demo</title><style>\n"
    ":root{--ink:#1c2330;--soft:#5d6a7e;--line:#d9dfe8;--paper:#fff;--page:#f4f6f9;--blue:#2563c9;"
    "--amber:#b96a00;--green:#2e8555;--red:#c33;--box:#eef3fc}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6eaf2;--soft:#9dabc1;--line:#333c4b;"
    "--paper:#1b212c;--page:#12161d;--blue:#6ea3ff;--amber:#f0ad4e;--green:#5fc28c;--red:#ff7b7b;"
    "--box:#232c3c}}\n"
    "*{box-sizing:border-box}body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);"
    "background:var(--page);margin:0 auto;max-width:1040px;padding:24px}\n"
    "h1{font-size:26px;line-height:1.2;margin:0}h2{font-size:17px;margin:0 0 8px}p{margin:4px 0}\n"
    "section{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:18px "
    "20px;margin:16px 0}\n"
    ".facts{display:flex;flex-wrap:wrap;gap:12px 28px}.facts b{display:block;font-size:26px;"
    "line-height:1.3}.soft,.facts span{color:var(--soft)}\n"
    "svg{display:block;width:100%;height:auto}svg text{fill:var(--ink);font:13px "
    "system-ui,sans-serif}svg .soft{fill:var(--soft)}svg .name{font-weight:600}\n"
    ".pair{display:flex;flex-wrap:wrap;gap:16px 24px}.pair>div{flex:1 1 300px;min-width:0}"
    ".pair h3{font-size:14px;margin:0}.net{max-width:620px;margin:0 auto}\n"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:0}dt{color:"
    "var(--soft)}dd{margin:0;min-width:0;overflow-wrap:anywhere}\n"
    "code{font:12.5px ui-monospace,monospace;overflow-wrap:anywhere}\n"
    ".leg{white-space:nowrap;margin-right:14px}.leg i{display:inline-block;width:11px;height:11px;"
    "border-radius:2px;margin-right:6px}"
    ".forward{background:var(--blue)}.backward{background:var(--amber)}.update{background:"
    "var(--green)}\n"
    ".bar{display:grid;grid-template-columns:190px 1fr 270px;gap:0 10px;align-items:center;"
    "font-size:13px;line-height:22px}.bar>:first-child{text-align:right}.bar i{display:block;"
    "height:14px;border-radius:3px;min-width:1px}.bar .soft{white-space:nowrap}\n"
    "table{border-collapse:collapse;width:100%;font-size:13px}td,th{padding:3px 8px;text-align:"
    "left;border-bottom:1px solid var(--line);vertical-align:top}td.n,th.n{text-align:right;"
    "white-space:nowrap;font-variant-numeric:tabular-nums}\n"
    ".matrix{max-width:560px;table-layout:fixed}.matrix td,.matrix th{text-align:center;padding:"
    "4px 2px;border:1px solid var(--paper)}.wrong{color:var(--red);font-weight:600}\n"
    ".digits{display:grid;grid-template-columns:repeat(auto-fill,minmax(84px,1fr));gap:10px}"
    ".digits figure{margin:0;text-align:center;font-size:13px}\n"
    "@media(max-width:640px){body{padding:12px}section{padding:14px 12px}h1{font-size:22px}"
    ".bar{grid-template-columns:1fr auto;margin-bottom:6px}.bar>:first-child{text-align:left}"
    ".bar>:nth-child(2){grid-row:2;grid-column:1/3}.eng{display:none}"
    ".digits{grid-template-columns:repeat(auto-fill,minmax(58px,1fr));gap:8px}.digits figure{"
    "font-size:12px}"
    ".plans tr{display:grid;grid-template-columns:1fr auto auto;padding:5px 0;border-bottom:1px "
    "solid var(--line)}.plans tr:first-child{display:none}.plans td{border:0;padding:1px 4px}"
    ".plans td:last-child{grid-column:1/4}dl{grid-template-columns:1fr}dd{margin-bottom:4px}}\n"
    "</style></head><body>\n";

static void write_facts(FILE *f, const report *r)
{
    fprintf(f, "<h1>mica learned to read digits</h1><p class=\"soft\">");
    report_escaped(f, r->device.model);
    fprintf(f, " (%s), mica %s</p>\n<section class=\"facts\">", r->device.name, mica_version());
    fprintf(f, "<div><b>%.2f %%</b><span>of %d held-out digits read correctly</span></div>",
            100 * r->accuracy[r->epochs - 1], r->network->held_out);
    fprintf(f, "<div><b>%.1f s</b><span>training, %s</span></div>", r->seconds,
            cli_count(r->epochs, "epoch"));
    fprintf(f, "<div><b>%.0f ms</b><span>to make all plans</span></div>", 1e3 * r->setup_seconds);
    fprintf(f, "<div><b>%lld</b><span>parameters</span></div></section>\n",
            (long long)r->network->parameters);
}

/* ---- how to repeat it ---- */

static void fact(FILE *f, const char *name, const char *value)
{
    fprintf(f, "<dt>%s</dt><dd>", name);
    report_escaped(f, value);
    fprintf(f, "</dd>\n");
}

/* Versions of what the library found; rows of what it did not find begin with no digit. */
static void write_found(FILE *f, const report *r)
{
    static const struct {
        const char *key, *name;
        bool cuda;
    } shown[] = {{"onednn", "oneDNN", false},
                 {"nvrtc version", "NVRTC", true},
                 {"cuda driver version", "CUDA driver", true}};
    const char *key, *value;
    for (int i = 0; mica_info(i, &key, &value) == MICA_OK; i++)
        for (size_t n = 0; n < sizeof shown / sizeof *shown; n++)
            if (!strcmp(key, shown[n].key) && (r->device.cuda || !shown[n].cuda) && *value >= '0' &&
                *value <= '9')
                fact(f, shown[n].name, value);
}

static void write_repeating(FILE *f, const report *r)
{
    char text[64];
    fprintf(f, "<section><h2>How to repeat it</h2><p><code>");
    report_escaped(f, r->command);
    fprintf(f, "</code></p><dl>\n");
    snprintf(text, sizeof text, "%llu", (unsigned long long)r->seed);
    fact(f, "seed", text);
    snprintf(text, sizeof text, "%d", r->device.units);
    fact(f, r->device.cuda ? "multiprocessors" : "threads", text);
    snprintf(text, sizeof text, "%d digits, %d held out, batches of %d", r->data->count,
             r->data->held_out, r->network->batch);
    fact(f, "data", text);
    fact(f, "mica", mica_version());
    write_found(f, r);
#ifdef __clang__
    fact(f, "compiler", __VERSION__);
#else
    fact(f, "compiler", "gcc " __VERSION__);
#endif
    fprintf(f, "</dl></section>\n");
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
                    "<rect x=\"%d\" y=\"%d\" width=\"1\" height=\"1\" fill=\"var(--ink)\" "
                    "opacity=\"%.3g\"/>",
                    k % DIGIT_SIDE, k / DIGIT_SIDE, level / 16.0);
    }
    fprintf(f, "</svg><span%s>%d", best == label ? "" : " class=\"wrong\"", best);
    if (best != label) fprintf(f, " for %d", label);
    fprintf(f, "</span><br><span class=\"soft\">%.1f %%</span></figure>\n", 100 * (double)p[best]);
}

static void write_predictions(FILE *f, const report *r)
{
    enum { SHOWN = 40 };
    int shown = 0, first = r->data->count - r->data->held_out;
    fprintf(f,
            "<section><h2>Held-out digits</h2><p class=\"soft\">The mistakes first, then others: "
            "below each what was read, for what it is, and how sure the network was.</p><div "
            "class=\"digits\">\n");
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < r->data->held_out && shown < SHOWN; i++) {
            int best = report_best(r->probabilities + (size_t)i * DIGIT_CLASSES);
            if ((best == r->data->labels[first + i]) != (pass == 1)) continue;
            write_digit(f, r, i);
            shown++;
        }
    fprintf(f, "</div></section>\n");
}

/* Mistakes are few: their tint begins where it can be seen. */
static void write_count(FILE *f, int count, int sum, bool right)
{
    double part = sum ? (double)count / sum : 0;
    if (!count)
        fprintf(f, "<td></td>");
    else if (right)
        fprintf(f, "<td style=\"background:rgba(64,124,220,%.2f)\">%d</td>", 0.08 + 0.42 * part,
                count);
    else
        fprintf(f, "<td class=\"wrong\" style=\"background:rgba(214,64,64,%.2f)\">%d</td>",
                fmin(0.16 + part, 0.5), count);
}

static void write_confusion(FILE *f, const report *r)
{
    int counts[DIGIT_CLASSES][DIGIT_CLASSES] = {{0}}, first = r->data->count - r->data->held_out;
    for (int i = 0; i < r->data->held_out; i++)
        counts[r->data->labels[first + i]]
              [report_best(r->probabilities + (size_t)i * DIGIT_CLASSES)]++;
    fprintf(
        f, "<section><h2>Confusions</h2><p class=\"soft\">Rows: what a digit is; columns: what was "
           "read. The stronger the tint, the larger the part of its row.</p><table "
           "class=\"matrix\"><tr>"
           "<th></th>");
    for (int c = 0; c < DIGIT_CLASSES; c++) fprintf(f, "<th>%d</th>", c);
    fprintf(f, "</tr>\n");
    for (int a = 0; a < DIGIT_CLASSES; a++) {
        int sum = 0;
        for (int b = 0; b < DIGIT_CLASSES; b++) sum += counts[a][b];
        fprintf(f, "<tr><th>%d</th>", a);
        for (int b = 0; b < DIGIT_CLASSES; b++) write_count(f, counts[a][b], sum, a == b);
        fprintf(f, "</tr>\n");
    }
    fprintf(f, "</table></section>\n");
}

static void write_plans(FILE *f, const report *r)
{
    fprintf(f, "<section><h2>The plans</h2><p class=\"soft\">Each line can be replayed: <code>mica "
               "explain \"...\"</code>, <code>mica bench \"...\"</code>, <code>mica check "
               "\"...\"</code>.</p><table class=\"plans\"><tr><th>step</th><th>engine</th><th "
               "class=\"n\">us</th><th>problem</th></tr>\n");
    const net *n = r->network;
    for (int i = 0; i < n->count[NET_TRAIN]; i++) {
        const net_step *s = &n->steps[NET_TRAIN][i];
        fprintf(f, "<tr><td>%s</td><td>%s</td><td class=\"n\">%.1f</td><td><code>", s->name,
                mica_plan_engine(s->plan), 1e3 * s->ms);
        report_escaped(f, s->line);
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
    report_network(f, r);
    report_learning(f, r);
    report_times(f, r);
    write_predictions(f, r);
    write_confusion(f, r);
    write_plans(f, r);
    write_repeating(f, r);
    fprintf(f,
            "<p class=\"soft\">Data: Optical Recognition of Handwritten Digits, E. Alpaydin and C. "
            "Kaynak, UCI Machine Learning Repository, CC BY 4.0.</p></body></html>\n");
    bool bad = ferror(f) != 0;
    bad |= fclose(f) != 0;
    if (bad) cli_say("%s: writing failed: %s", path, strerror(errno));
    return !bad;
}
