/* SPDX-License-Identifier: Apache-2.0
 * Plans of graphs as text:
 *
 *     mica_graph_plan VERSION
 *     device cuda=1 arch=90 units=132 model=NVIDIA H200
 *     mode fused
 *     choice ENGINE|CONFIG|NODES        for each node below, in their order
 *     graph
 *     statements (text.c)
 *
 * and of graphs with extents:
 *
 *     mica_graph_dynamic VERSION
 *     device and mode as above
 *     bucket 64 8                       the largest extents of one, in order of declaration
 *     rewrite NAME NODE                 those that were taken, in their order
 *     choice ENGINE|CONFIG|NODES        of each step
 *     graph
 *     statements, with their extents
 */
#include "graph/dynamic.h"
#include "graph/rewrite.h"
#include "base/format.h"
#include "base/memory.h"
#include "cpu/floating.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const modes[] = {"fused", "unfused", "separate"};

void graph_device_text(const mica_device_info *d, mica_text *text)
{
    mica_text_add(text, "cuda=%d arch=%d units=%d model=%s", d->cuda, d->arch, d->units, d->model);
}

static void choices_text(const mica_graph_plan *p, mica_text *text)
{
    mica_graph_step s;
    for (int i = 0; mica_graph_plan_step(p, i, &s) == MICA_OK; i++)
        mica_text_add(text, "choice %s|%s|%s\n", mica_plan_engine(s.plan), mica_plan_config(s.plan),
                      s.nodes);
}

int mica_graph_plan_text(const mica_graph_plan *p, char *buffer, size_t size)
{
    mica_text text = {buffer, size, 0};
    mica_graph_mode mode;
    mica_device_info device;
    if (size) *buffer = 0;
    if (!p) return 0;
    const mica_graph *g = graph_plan_lowered(p, &mode, &device);
    mica_text_add(&text, "mica_graph_plan %s\ndevice ", mica_version());
    graph_device_text(&device, &text);
    mica_text_add(&text, "\nmode %s\n", modes[mode]);
    choices_text(p, &text);
    mica_text_add(&text, "graph\n");
    graph_text_lowered(g, &text);
    return (int)text.length;
}

static void bucket_text(const mica_graph *g, const mica_graph_plan *p, const int64_t *ends,
                        mica_text *text)
{
    int count;
    const graph_attempt *attempts = graph_plan_attempts(p, &count);
    mica_text_add(text, "bucket");
    for (int i = 0; i < g->extent_count; i++) mica_text_add(text, " %lld", (long long)ends[i]);
    mica_text_add(text, "\n");
    for (int i = 0; i < count; i++)
        if (!attempts[i].reason)
            mica_text_add(text, "rewrite %s %d\n", attempts[i].rewrite, attempts[i].node);
    choices_text(p, text);
}

int mica_graph_dynamic_text(mica_graph_dynamic *d, char *buffer, size_t size)
{
    mica_text text = {buffer, size, 0};
    mica_graph_mode mode;
    mica_device_info device;
    mica_graph_plan *p;
    int64_t ends[MICA_GRAPH_EXTENTS];
    if (size) *buffer = 0;
    if (!d) return 0;
    const mica_graph *g = graph_dynamic_graph(d, &mode, &device);
    mica_text_add(&text, "mica_graph_dynamic %s\ndevice ", mica_version());
    graph_device_text(&device, &text);
    mica_text_add(&text, "\nmode %s\n", modes[mode]);
    for (int i = 0; (p = graph_dynamic_bucket(d, i, ends)); i++) {
        bucket_text(g, p, ends, &text);
        mica_graph_plan_destroy(p);
    }
    mica_text_add(&text, "graph\n");
    graph_text_whole(g, &text);
    return (int)text.length;
}

/* ---- reading ---- */

typedef struct saved {
    const char *at;
    int line;
    graph_choice *choices;
    int count, room;
    graph_attempt *attempts; /* of a bucket: rewrites that it took */
    int attempt_count, attempt_room;
    mica_graph_options options;
} saved;

/* What stands behind `word` on the next line, copied. INVALID if it is another. */
static mica_status value_of(saved *s, const char *word, char **value)
{
    const size_t length = strcspn(s->at, "\n"), n = strlen(word);
    s->line++;
    if (strncmp(s->at, word, n) != 0 || (length > n && s->at[n] != ' '))
        return mica_fail(MICA_INVALID, "line %d: \"%.*s\": a saved plan has \"%s\" here", s->line,
                         length < 40 ? (int)length : 40, s->at, word);
    const size_t skip = length > n ? n + 1 : n;
    *value = mica_alloc(length - skip + 1);
    if (!*value) return mica_fail_memory(length + 1);
    memcpy(*value, s->at + skip, length - skip);
    (*value)[length - skip] = 0;
    s->at += length + (s->at[length] == '\n');
    return MICA_OK;
}

/* The line must say `wanted`. */
static mica_status expect(saved *s, const char *word, const char *wanted, const char *rule)
{
    char *value;
    MICA_TRY(value_of(s, word, &value));
    mica_status status = MICA_OK;
    if (strcmp(value, wanted) != 0)
        status = mica_fail(MICA_UNSUPPORTED, "line %d: %s %.120s, this is %s: %s", s->line, word,
                           value, wanted, rule);
    mica_release(value);
    return status;
}

static mica_status read_mode(saved *s)
{
    char *value;
    int i = 0;
    MICA_TRY(value_of(s, "mode", &value));
    while (i < 3 && strcmp(value, modes[i]) != 0) i++;
    mica_status status = MICA_OK;
    if (i == 3)
        status =
            mica_fail(MICA_INVALID, "line %d: mode %.60s: known are fused, unfused and separate",
                      s->line, value);
    s->options.mode = (mica_graph_mode)i;
    mica_release(value);
    return status;
}

static mica_status read_choice(saved *s)
{
    char *value;
    MICA_TRY(value_of(s, "choice", &value));
    char *config = strchr(value, '|'), *nodes = config ? strchr(config + 1, '|') : NULL;
    mica_status status = graph_room(&s->choices, s->count, &s->room, sizeof *s->choices);
    if (status != MICA_OK || !nodes || nodes[1 + strspn(nodes + 1, "0123456789 ")]) {
        if (status == MICA_OK)
            status = mica_fail(MICA_INVALID, "line %d: \"%.60s\": ENGINE|CONFIG|NODES is expected",
                               s->line, value);
        mica_release(value);
        return status;
    }
    *config++ = 0;
    *nodes++ = 0;
    s->choices[s->count++] = (graph_choice){value, config, nodes, value};
    return MICA_OK;
}

static mica_status read_first(saved *s, const char *word, const mica_device_info *device)
{
    char text[256];
    mica_text own = {text, sizeof text, 0};
    graph_device_text(device, &own);
    MICA_TRY(expect(s, word, mica_version(), "plans are of one version"));
    MICA_TRY(expect(s, "device", text, "plans are for one device"));
    return read_mode(s);
}

static mica_status read_head(saved *s, const mica_device_info *device)
{
    MICA_TRY(read_first(s, "mica_graph_plan", device));
    while (!strncmp(s->at, "choice", 6)) MICA_TRY(read_choice(s));
    return expect(s, "graph", "", "nothing is expected behind graph");
}

/* What stands behind "graph" on that line. */
static mica_status read_graph(const char *at, int line, mica_graph **g)
{
    const mica_status status = mica_graph_from_text(at, g);
    if (status == MICA_OK) return MICA_OK;
    char why[1024];
    mica_format(why, sizeof why, "%s", mica_error());
    return mica_fail(status, "behind line %d, the graph: %s", line, why);
}

static void forget(saved *s)
{
    for (int i = 0; i < s->count; i++) mica_release(s->choices[i].memory);
    for (int i = 0; i < s->attempt_count; i++)
        mica_release((void *)(uintptr_t)s->attempts[i].rewrite);
    s->count = s->attempt_count = 0;
}

static mica_status build(saved *s, mica_context *c, const char *text, mica_graph_plan **plan)
{
    mica_device_info device;
    mica_graph *g;
    s->at = text;
    MICA_TRY(mica_context_info(c, &device));
    MICA_TRY(read_head(s, &device));
    mica_status status;
    MICA_TRY(read_graph(s->at, s->line, &g));
    if (g->node_count != s->count)
        status = mica_fail(MICA_INVALID, "line %d: the graph has %d nodes, %d have a choice",
                           s->line, g->node_count, s->count);
    else
        status = graph_plan_make(c, g, &s->options, s->choices, plan);
    mica_graph_destroy(g);
    return status;
}

mica_status mica_graph_plan_from_text(mica_context *c, const char *text, mica_graph_plan **plan)
{
    saved s = {.line = 0};
    if (!plan) return mica_fail(MICA_INVALID, "plan is NULL");
    *plan = NULL;
    if (!c || !text) return mica_fail(MICA_INVALID, "context or text is NULL");
    const mica_status status = build(&s, c, text, plan);
    forget(&s);
    mica_release(s.choices);
    return status;
}

/* ---- reading what has extents ---- */

/* "64 8" */
static mica_status read_ends(saved *s, const mica_graph *g, int64_t *ends)
{
    char *value;
    MICA_TRY(value_of(s, "bucket", &value));
    const char *at = value;
    mica_status status = MICA_OK;
    for (int i = 0; status == MICA_OK && i < g->extent_count; i++) {
        char *end;
        errno = 0;
        ends[i] = strtoll(at, &end, 10);
        if (end == at || errno) status = MICA_INVALID;
        at = end;
    }
    if (status != MICA_OK || *at)
        status = mica_fail(MICA_INVALID, "line %d: \"%.60s\": %d extents are expected", s->line,
                           value, g->extent_count);
    mica_release(value);
    return status == MICA_OK ? graph_check_extents(g, ends) : status;
}

static mica_status read_rewrite(saved *s)
{
    char *value, *end;
    MICA_TRY(graph_room(&s->attempts, s->attempt_count, &s->attempt_room, sizeof *s->attempts));
    MICA_TRY(value_of(s, "rewrite", &value));
    char *space = strchr(value, ' ');
    const long node = space ? strtol(space + 1, &end, 10) : -1;
    if (!space || end == space + 1 || *end || node < 0 || node > INT32_MAX) {
        const mica_status status =
            mica_fail(MICA_INVALID, "line %d: \"%.60s\": NAME NODE is expected", s->line, value);
        mica_release(value);
        return status;
    }
    *space = 0;
    s->attempts[s->attempt_count++] = (graph_attempt){value, (int)node, NULL};
    return MICA_OK;
}

static mica_status read_bucket(saved *s, mica_graph_dynamic *d, const mica_graph *g)
{
    int64_t ends[MICA_GRAPH_EXTENTS];
    MICA_TRY(read_ends(s, g, ends));
    const int line = s->line;
    while (!strncmp(s->at, "rewrite", 7)) MICA_TRY(read_rewrite(s));
    while (!strncmp(s->at, "choice", 6)) MICA_TRY(read_choice(s));
    const graph_decisions decisions = {.attempts = s->attempts,
                                       .attempt_count = s->attempt_count,
                                       .choices = s->choices,
                                       .choice_count = s->count};
    const mica_status status = graph_dynamic_restore(d, ends, &decisions);
    forget(s);
    if (status != MICA_NOT_FOUND) return status;
    return mica_fail(MICA_UNSUPPORTED,
                     "line %d: what was chosen for this bucket does not hold here", line);
}

static mica_status build_dynamic(saved *s, mica_context *c, const char *text,
                                 const mica_graph_dynamic_options *given,
                                 mica_graph_dynamic **dynamic)
{
    static const char *const end = "\ngraph\n";
    mica_device_info device;
    mica_graph_dynamic_options o = {0};
    mica_graph *g;
    const char *behind = strstr(text, end);
    int line = 1;
    s->at = text;
    MICA_TRY(mica_context_info(c, &device));
    MICA_TRY(read_first(s, "mica_graph_dynamic", &device));
    if (!behind) return mica_fail(MICA_INVALID, "no line is \"graph\"");
    behind += strlen(end);
    for (const char *p = text; p < behind - 1; p++) line += *p == '\n';
    if (given) memcpy(&o, given, given->size && given->size < sizeof o ? given->size : sizeof o);
    mica_graph_options plans = s->options;
    if (o.plans) MICA_TRY(graph_options_read(o.plans, &plans));
    plans.size = sizeof plans;
    plans.mode = s->options.mode;
    o.plans = &plans;
    MICA_TRY(read_graph(behind, line, &g));
    mica_status status = graph_dynamic_begin(c, g, &o, dynamic);
    while (status == MICA_OK && !strncmp(s->at, "bucket", 6)) status = read_bucket(s, *dynamic, g);
    mica_graph_destroy(g);
    return status == MICA_OK ? expect(s, "graph", "", "nothing is expected behind graph") : status;
}

mica_status mica_graph_dynamic_from_text(mica_context *c, const char *text,
                                         const mica_graph_dynamic_options *options,
                                         mica_graph_dynamic **dynamic)
{
    saved s = {.line = 0};
    mica_floating state MICA_FLOATING_SCOPE = mica_floating_begin(false);
    if (!dynamic) return mica_fail(MICA_INVALID, "dynamic is NULL");
    *dynamic = NULL;
    if (!c || !text) return mica_fail(MICA_INVALID, "context or text is NULL");
    const mica_status status = build_dynamic(&s, c, text, options, dynamic);
    forget(&s);
    mica_release(s.choices);
    mica_release(s.attempts);
    if (status == MICA_OK) return MICA_OK;
    mica_graph_dynamic_destroy(*dynamic);
    *dynamic = NULL;
    return status;
}
