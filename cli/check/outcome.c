/* SPDX-License-Identifier: Apache-2.0
 * Results of `mica check`: counted, printed, written as JSON. */
#include "check/check.h"
#include "json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static const char *const status_names[] = {"ok", "mismatch", "refused", "mistrusted", "no memory"};

check_total *check_total_of(check *c, const char *engine)
{
    for (int i = 0; i < c->engines; i++)
        if (!strcmp(c->totals[i].name, engine)) return &c->totals[i];
    int i = c->engines < CHECK_MAX_ENGINES ? c->engines++ : CHECK_MAX_ENGINES - 1;
    snprintf(c->totals[i].name, sizeof c->totals[i].name, "%s", engine);
    return &c->totals[i];
}

/* What design.md fixes; the config and the reason only where there are any. */
static void write_json(const check *c, const check_outcome *o)
{
    if (!c->json) return;
    json_t *row =
        json_pack("{ss ss ss ss so ss ss}", "line", o->line, "engine", o->engine, "fill", o->fill,
                  "status", status_names[o->status], "margin", cli_json_number(o->margin), "commit",
                  c->options.commit ? c->options.commit : "", "device", c->device.model);
    if (o->config && *o->config) json_object_set_new(row, "config", json_string(o->config));
    if (*o->text) json_object_set_new(row, "text", json_string(o->text));
    cli_json_line(c->json, row);
}

void check_record(check *c, const check_outcome *o)
{
    check_total *total = check_total_of(c, o->engine);
    total->count[o->status]++;
    if (o->margin > total->margin) total->margin = o->margin;
    bool ran = o->status != CHECK_REFUSED && o->status != CHECK_NO_MEMORY;
    c->checks += ran;
    bool allowed = (o->status == CHECK_REFUSED && c->allow_refusals) ||
                   (o->status == CHECK_MISTRUSTED && (c->allow_mistrusted || c->weak));
    bool fails = o->status != CHECK_PASSED && !allowed;
    total->excused += allowed;
    c->failed |= fails && ran;
    c->refused |= fails && !ran;
    write_json(c, o);
    if (!fails && !c->verbose) return;
    bool config = o->config && *o->config;
    cli_progress_clear(&c->progress);
    printf("%s%s%s %s%s%s %s margin %.3g%s%s\n", cli_style(stdout, fails ? "red" : "green"),
           status_names[o->status], cli_style(stdout, "off"), o->engine, config ? " " : "",
           config ? o->config : "", o->fill, o->margin, *o->text ? ": " : "", o->text);
    if (!fails) {
        printf("  %s\n", o->line);
        return;
    }
    printf("  REPRO: mica check --device %s", c->device.name);
    const bool graph = !strncmp(o->line, "graph ", 6); /* runs in all modes */
    if (strcmp(o->engine, "any") != 0 && !graph) printf(" --engine %s", o->engine);
    if (config) printf(" --config \"%s\"", o->config);
    if (c->against) printf(" --against %s", c->against);
    printf("%s%s --seed %llu \"%s\"\n", *o->fill ? " --fill " : "", o->fill,
           (unsigned long long)c->seed, o->line);
}

void check_write_digest(check *c, const check_outcome *o, const cli_digest *digest)
{
    char text[CLI_DIGESTS * 17 + 1];
    if (!c->digests || !digest->count) return;
    cli_digest_text(digest, text, sizeof text);
    char *line = cli_format("%s\t%s\t%s\t%s\t%s\n", text, o->engine,
                            o->config && *o->config ? o->config : "-", o->fill, o->line);
    cli_json_text(c->digests, line);
    free(line);
}

void check_print_wrong(const char *name, const mica_tensor *t, const cli_comparison *wrong)
{
    for (int n = 0; n < wrong->shown; n++) {
        int64_t index[MICA_MAX_RANK], i = wrong->first[n].index;
        for (int d = t->rank - 1; d >= 0; d--) {
            index[d] = i % t->dims[d];
            i /= t->dims[d];
        }
        printf("  %s[", name);
        for (int d = 0; d < t->rank; d++) printf("%s%lld", d ? "," : "", (long long)index[d]);
        printf("] got %.9g want %.9g tolerance %.3g\n", wrong->first[n].got, wrong->first[n].want,
               wrong->first[n].tolerance);
    }
}

/* A failing call is a mismatch, unless memory is all that it lacks or the device went. */
bool check_call_failed(check *c, mica_status status, check_outcome *o, char *text, size_t size)
{
    if (status == MICA_OK) return false;
    snprintf(text, size, "%s: %s", mica_status_name(status), mica_error());
    bool memory = status == MICA_OUT_OF_MEMORY || status == MICA_OUT_OF_DEVICE_MEMORY;
    if (memory) /* which this tool may have asked for: then mica_error() is not about it */
        snprintf(text, size, "%s: the problem, its truth or its workspace does not fit",
                 mica_status_name(status));
    o->status = memory ? CHECK_NO_MEMORY : CHECK_MISMATCH;
    o->margin = memory ? 0 : INFINITY;
    c->lost |= status == MICA_DEVICE_LOST;
    return true;
}

/* ---- a part of the lines ---- */

/* The run-time compiler may be a process of its own. */
static double processor_seconds(void)
{
    struct timespec own;
    struct rusage others;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
    getrusage(RUSAGE_CHILDREN, &others);
    return (double)(own.tv_sec + others.ru_utime.tv_sec) + 1e-9 * (double)own.tv_nsec +
           1e-6 * (double)others.ru_utime.tv_usec;
}

bool check_time_is_up(const check *c, size_t looked_at)
{
    return looked_at > 0 && c->seconds > 0 && processor_seconds() > c->seconds;
}

void check_say_part(const check *c, size_t looked_at)
{
    if (c->seconds > 0)
        printf("%zu of %zu problems in %.1f s of processor time (part %llu)\n", looked_at,
               c->lines.count, processor_seconds(), (unsigned long long)c->part);
}
