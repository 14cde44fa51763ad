/* SPDX-License-Identifier: Apache-2.0
 * How long engines and their configs are expected to take. */
#include "ops/compose/compose.h"

double mica_config_predict(const mica_engine *engine, const mica_op *op, const void *desc,
                           const mica_device_info *device, const mica_config *config,
                           uint64_t packed)
{
    if (packed && engine->packing && engine->packing->predict)
        return engine->packing->predict(desc, device, config, packed);
    if (engine->predict) return engine->predict(desc, device, config);
    if (engine->steps) {
        mica_compose list = {0};
        engine->steps(desc, &list);
        return mica_compose_predict(&list, device);
    }
    /* An engine that says nothing counts as one that reaches a tenth of the roofline; the reference
     * must never win against it. */
    double reached = engine->reached > 0 ? engine->reached : engine->reference ? 1e-3 : 0.1;
    double start_ms = engine->start_ms > 0 ? engine->start_ms : engine->reference ? 1e-3 : 1e-4;
    return start_ms + mica_roofline_ms(op, desc, device) / reached;
}

double mica_engine_predict(const mica_engine *engine, const mica_op *op, const void *desc,
                           const mica_device_info *device)
{
    mica_config configs[MICA_MAX_CONFIGS] = {0};
    int count = engine->configs ? engine->configs(desc, device, configs) : 1;
    double best = 0;
    for (int i = 0; i < count; i++) {
        double ms = mica_config_predict(engine, op, desc, device, &configs[i], 0);
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
