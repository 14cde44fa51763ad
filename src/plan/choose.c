/* SPDX-License-Identifier: Apache-2.0
 * Which engines and configs come into question, and in which order. */
#include "plan/context.h"

#include <stdio.h>
#include <string.h>

void mica_config_text(const mica_engine *engine, const mica_config *config, char *buffer,
                      size_t size)
{
    mica_text text = {buffer, size, 0};
    if (size) *buffer = 0;
    for (int i = 0; engine->knobs && engine->knobs[i]; i++)
        mica_text_add(&text, "%s%s=%d", i ? " " : "", engine->knobs[i], config->knob[i]);
}

/* Keeps the list sorted; equals stay in the order in which engines and configs are listed. */
static int insert(mica_candidate *list, int count, const mica_candidate *c)
{
    int at = count < MICA_MAX_CANDIDATES ? count : MICA_MAX_CANDIDATES - 1;
    if (at < count && list[at].predicted_ms <= c->predicted_ms) return count;
    for (; at > 0 && list[at - 1].predicted_ms > c->predicted_ms; at--) list[at] = list[at - 1];
    list[at] = *c;
    return count < MICA_MAX_CANDIDATES ? count + 1 : count;
}

const char *mica_engine_excluded(const mica_engine *e, const mica_context *c, const mica_options *o,
                                 bool named)
{
    if (e->cuda != (c->cuda != NULL)) return "it belongs to the other backend";
    if (o->engine && strcmp(o->engine, e->name) != 0) return "another engine was asked for";
    named |= o->engine != NULL;
    if (e->peer && !named) return "a peer, only taken when it is asked for by name";
    if (e->by_name && !named)
        return "its errors are larger than others', it is only taken when asked for by name";
    if (e->nondeterministic && !o->nondeterministic)
        return "its bits vary between runs, which the options do not allow";
    return NULL;
}

static int add_configs(const mica_context *c, const mica_op *op, const void *desc,
                       const mica_options *o, const mica_engine *e, mica_candidate *list,
                       int *count)
{
    mica_config configs[MICA_MAX_CONFIGS] = {0};
    int n = e->configs ? e->configs(desc, &c->device, configs) : 1, added = 0;
    for (int i = 0; i < n; i++) {
        char text[128];
        mica_config_text(e, &configs[i], text, sizeof text);
        if (o->config && strcmp(o->config, text) != 0) continue;
        mica_candidate one = {e, configs[i],
                              mica_config_predict(e, op, desc, &c->device, &configs[i], o->packed)};
        *count = insert(list, *count, &one);
        added++;
    }
    return added;
}

int mica_candidates(const mica_context *c, const mica_op *op, const void *desc,
                    const mica_options *o, mica_candidate *list, mica_text *refusals)
{
    int count = 0;
    for (int i = 0; op->engines[i]; i++) {
        const mica_engine *e = op->engines[i];
        mica_why why = {""};
        const char *reason = mica_engine_excluded(e, c, o, false);
        if (!reason && mica_engine_accepts(e, desc, &c->device, &why) != MICA_OK) reason = why.text;
        if (!reason && !add_configs(c, op, desc, o, e, list, &count))
            reason = "it has no config of that name";
        if (reason && refusals && e->cuda == (c->cuda != NULL))
            mica_text_add(refusals, "\n  %s: %s", e->name, reason);
    }
    return count;
}
