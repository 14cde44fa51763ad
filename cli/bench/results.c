/* SPDX-License-Identifier: Apache-2.0
 * Result files of `mica bench`: reading, and comparing two of them. */
#include "bench/bench.h"
#include "json.h"
#include "bench/stats.h"
#include "bench/table.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void bench_add(bench_results *r, bench_result result)
{
    r->items = cli_grow(r->items, (r->count + 1) * sizeof result);
    r->items[r->count++] = result;
}

void bench_results_free(bench_results *r)
{
    for (size_t i = 0; i < r->count; i++) {
        bench_result *b = &r->items[i];
        free(b->set);
        free(b->line);
        free(b->engine);
        free(b->device);
        free(b->disturbed);
        free(b->config);
        free(b->samples);
    }
    free(r->items);
}

/* ---- reading ---- */

static char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return cli_format("%s", s ? s : "");
}

static double number_of(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static bench_result result_of(const json_t *o)
{
    bench_result r = {.set = text_of(o, "set"),
                      .line = text_of(o, "line"),
                      .engine = text_of(o, "engine"),
                      .device = text_of(o, "device"),
                      .ms = number_of(o, "ms"),
                      .p10 = number_of(o, "p10"),
                      .p90 = number_of(o, "p90"),
                      .tflops = number_of(o, "tflops"),
                      .gbps = number_of(o, "gbps"),
                      .roofline = number_of(o, "roofline")};
    const json_t *samples = json_object_get(o, "samples");
    if (json_is_string(json_object_get(o, "disturbed"))) r.disturbed = text_of(o, "disturbed");
    r.n = json_is_array(samples) ? json_array_size(samples) : 0;
    if (r.n) r.samples = cli_alloc(r.n * sizeof *r.samples);
    for (size_t i = 0; i < r.n; i++) r.samples[i] = json_number_value(json_array_get(samples, i));
    return r;
}

bool bench_read(bench_results *results, const char *path)
{
    FILE *f = fopen(path, "r");
    if (!f) {
        cli_say("%s: %s", path, strerror(errno));
        return false;
    }
    bool ok = true;
    json_error_t error;
    while (ok) {
        int c = fgetc(f);
        if (c == EOF) break;
        if (c == '\n') continue;
        ungetc(c, f);
        json_t *o = json_loadf(f, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &error);
        bench_result r = result_of(o);
        ok = o && *r.line && *r.engine && r.ms > 0;
        if (ok) {
            bench_add(results, r);
        } else {
            cli_say("%s: result %zu: %s", path, results->count + 1,
                    o ? "line, engine and ms are needed" : error.text);
            bench_results one = {cli_alloc(sizeof r), 1};
            one.items[0] = r;
            bench_results_free(&one);
        }
        json_decref(o);
    }
    fclose(f);
    return ok;
}

/* ---- comparing ---- */

static const bench_result *find(const bench_results *r, const bench_result *like)
{
    /* The last one counts, as for tuning records. */
    for (size_t i = r->count; i-- > 0;)
        if (!strcmp(r->items[i].line, like->line) && !strcmp(r->items[i].engine, like->engine))
            return &r->items[i];
    return NULL;
}

/* A change counts if it is above 3 %, neither chance nor spread explains it, and nothing else ran
 * beside either measurement. */
static const char *verdict(const bench_result *old, const bench_result *now, double *p)
{
    bool apart;
    *p = NAN;
    if (old->samples && now->samples) {
        *p = cli_mann_whitney(old->samples, old->n, now->samples, now->n);
        apart = *p < 0.01;
    } else {
        apart = now->p90 < old->p10 || now->p10 > old->p90;
    }
    double ratio = now->ms / old->ms;
    if (old->disturbed || now->disturbed) return "disturbed";
    if (!apart || fabs(ratio - 1) <= 0.03) return "same";
    return ratio < 1 ? "faster" : "slower";
}

int bench_compare(const char *old_path, const char *new_path)
{
    bench_results old = {0}, now = {0};
    cli_table t;
    int code = CLI_USAGE;
    double log_sum = 0;
    long pairs = 0, slower = 0, faster = 0, disturbed = 0, unmatched = 0;
    cli_table_begin(&t, ">old ms|>new ms|>new/old|verdict|>p|engine|line");
    if (bench_read(&old, old_path) && bench_read(&now, new_path)) {
        code = CLI_OK;
        for (size_t i = 0; i < now.count; i++) {
            const bench_result *n = &now.items[i], *o = find(&old, n);
            if (!o) {
                unmatched++;
                continue;
            }
            double p;
            const char *word = verdict(o, n, &p);
            slower += !strcmp(word, "slower");
            faster += !strcmp(word, "faster");
            disturbed += !strcmp(word, "disturbed");
            log_sum += log(n->ms / o->ms);
            pairs++;
            cli_cell(&t, "%.5f", o->ms);
            cli_cell(&t, "%.5f", n->ms);
            cli_cell(&t, "%.3f", n->ms / o->ms);
            cli_cell(&t, "%s", word);
            cli_cell(&t, isnan(p) ? "-" : "%.2g", p);
            cli_cell(&t, "%s", n->engine);
            cli_cell(&t, "%s", n->line);
        }
        cli_table_print(&t, stdout);
        printf("%ld pairs: %ld faster, %ld slower, %ld the same; geometric mean of new/old %.3f",
               pairs, faster, slower, pairs - faster - slower - disturbed,
               pairs ? exp(log_sum / (double)pairs) : NAN);
        if (disturbed) printf("; %ld were measured beside other programs", disturbed);
        printf(unmatched ? "; %ld new results have no old one\n" : "\n", unmatched);
        if (slower) code = CLI_MISMATCH;
        if (!pairs) code = CLI_USAGE;
    }
    cli_table_end(&t);
    bench_results_free(&old);
    bench_results_free(&now);
    return code;
}
