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

static double predict(const mica_engine *engine, const mica_op *op, const void *desc,
                      const mica_device_info *device, const mica_config *config, uint64_t packed)
{
    if (packed && engine->packing && engine->packing->predict)
        return engine->packing->predict(desc, device, config, packed);
    if (engine->predict) return engine->predict(desc, device, config);
    /* An engine that says nothing counts as one that reaches a tenth of the roofline; the reference
     * must never win against it. */
    double reached = engine->reached > 0 ? engine->reached : engine->reference ? 1e-3 : 0.1;
    double start_ms = engine->start_ms > 0 ? engine->start_ms : engine->reference ? 1e-3 : 1e-4;
    return start_ms + mica_roofline_ms(op, desc, device) / reached;
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

double mica_engine_predict(const mica_engine *engine, const mica_op *op, const void *desc,
                           const mica_device_info *device)
{
    mica_config configs[MICA_MAX_CONFIGS] = {0};
    int count = engine->configs ? engine->configs(desc, device, configs) : 1;
    double best = 0;
    for (int i = 0; i < count; i++) {
        double ms = predict(engine, op, desc, device, &configs[i], 0);
        if (i == 0 || ms < best) best = ms;
    }
    return best;
}

double mica_op_predict(const mica_op *op, const void *desc, const mica_device_info *device,
                       bool cuda)
{
    double best = 0;
    for (int i = 0; op->engines[i]; i++) {
        const mica_engine *e = op->engines[i];
        mica_why why = {""};
        if (e->cuda != cuda || mica_engine_needs_name(e) || e->reference || e->nondeterministic)
            continue;
        if (mica_engine_accepts(e, desc, device, &why) != MICA_OK) continue;
        double ms = mica_engine_predict(e, op, desc, device);
        if (best == 0 || ms < best) best = ms;
    }
    return best;
}

int mica_config_keep(mica_config *list, double *ms, int count, int most, const mica_config *config,
                     double cost)
{
    int at = count;
    while (at > 0 && ms[at - 1] > cost) at--;
    if (at == most) return count;
    if (count < most) count++;
    for (int i = count - 1; i > at; i--) {
        ms[i] = ms[i - 1];
        list[i] = list[i - 1];
    }
    ms[at] = cost;
    list[at] = *config;
    return count;
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
                              predict(e, op, desc, &c->device, &configs[i], o->packed)};
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
