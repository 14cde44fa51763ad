/* SPDX-License-Identifier: Apache-2.0
 * Plans of graphs as text:
 *
 *     mica_graph_plan VERSION
 *     device cuda=1 arch=90 units=132 model=NVIDIA H200
 *     mode fused
 *     choice ENGINE|CONFIG|NODES        for each node below, in their order
 *     graph
 *     statements (text.c)
 */
#include "graph/saved.h"
#include "base/format.h"
#include "base/memory.h"

#include <string.h>

static const char *const modes[] = {"fused", "unfused", "separate"};

static void device_text(const mica_device_info *d, mica_text *text)
{
    mica_text_add(text, "cuda=%d arch=%d units=%d model=%s", d->cuda, d->arch, d->units, d->model);
}

int mica_graph_plan_text(const mica_graph_plan *p, char *buffer, size_t size)
{
    mica_text text = {buffer, size, 0};
    mica_graph_mode mode;
    mica_device_info device;
    mica_graph_step s;
    if (size) *buffer = 0;
    if (!p) return 0;
    const mica_graph *g = graph_plan_lowered(p, &mode, &device);
    mica_text_add(&text, "mica_graph_plan %s\ndevice ", mica_version());
    device_text(&device, &text);
    mica_text_add(&text, "\nmode %s\n", modes[mode]);
    for (int i = 0; mica_graph_plan_step(p, i, &s) == MICA_OK; i++)
        mica_text_add(&text, "choice %s|%s|%s\n", mica_plan_engine(s.plan),
                      mica_plan_config(s.plan), s.nodes);
    mica_text_add(&text, "graph\n");
    graph_text_lowered(g, &text);
    return (int)text.length;
}

/* ---- reading ---- */

typedef struct saved {
    const char *at;
    int line;
    graph_choice *choices;
    int count, room;
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
    s->choices[s->count++] = (graph_choice){value, config, nodes};
    return MICA_OK;
}

static mica_status read_head(saved *s, const mica_device_info *device)
{
    char text[256];
    mica_text own = {text, sizeof text, 0};
    device_text(device, &own);
    MICA_TRY(expect(s, "mica_graph_plan", mica_version(), "plans are of one version"));
    MICA_TRY(expect(s, "device", text, "plans are for one device"));
    MICA_TRY(read_mode(s));
    while (!strncmp(s->at, "choice", 6)) MICA_TRY(read_choice(s));
    return expect(s, "graph", "", "nothing is expected behind graph");
}

static mica_status build(saved *s, mica_context *c, const char *text, mica_graph_plan **plan)
{
    mica_device_info device;
    mica_graph *g;
    s->at = text;
    MICA_TRY(mica_context_info(c, &device));
    MICA_TRY(read_head(s, &device));
    mica_status status = mica_graph_from_text(s->at, &g);
    if (status != MICA_OK) {
        char why[1024];
        mica_format(why, sizeof why, "%s", mica_error());
        return mica_fail(status, "behind line %d, the graph: %s", s->line, why);
    }
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
    for (int i = 0; i < s.count; i++) mica_release(s.choices[i].engine);
    mica_release(s.choices);
    return status;
}
