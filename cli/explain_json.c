/* SPDX-License-Identifier: Apache-2.0
 * What `mica explain` says, as JSON: one object for each problem. */
#include "explain.h"
#include "json.h"

#include <stdlib.h>
#include <string.h>

static json_t *arguments(const mica_problem *problem)
{
    json_t *list = json_array();
    mica_arg_info a;
    for (int i = 0; mica_problem_arg(problem, i, &a) == MICA_OK; i++) {
        char tensor[256];
        if (a.dir == MICA_UNUSED) continue;
        mica_tensor_text(&a.tensor, tensor, sizeof tensor);
        json_array_append_new(list, json_pack("{ss ss ss sI sb}", "name", a.name, "direction",
                                              explain_direction(a.dir), "tensor", tensor, "bytes",
                                              (json_int_t)mica_tensor_span(&a.tensor, NULL),
                                              "optional", a.optional));
    }
    return list;
}

static json_t *engines(const explain *e, const mica_problem *problem, const mica_plan *plan)
{
    json_t *list = json_array();
    mica_verdict v;
    for (int i = 0; explain_verdict(e, problem, i, &v); i++) {
        bool takes = v.status == MICA_OK;
        bool chosen = plan && !strcmp(v.engine, mica_plan_engine(plan));
        double ms = explain_measured(e, problem, &v, plan);
        double predicted = chosen ? mica_plan_predicted(plan) : v.predicted_ms;
        json_t *row =
            json_pack("{ss ss sb sb sb sb sb}", "engine", v.engine, "status",
                      takes ? "ok" : "refused", "chosen", chosen, "deterministic", v.deterministic,
                      "reference", v.reference, "peer", v.peer, "by_name", v.by_name);
        if (takes) {
            json_object_set_new(row, "config", json_string(explain_config(&v, plan)));
            json_object_set_new(row, "predicted_ms", cli_json_number(predicted));
        } else {
            json_object_set_new(row, "reason", json_string(v.reason));
        }
        if (ms >= 0) json_object_set_new(row, "measured_ms", cli_json_number(ms));
        json_array_append_new(list, row);
    }
    return list;
}

static json_t *workspace(const mica_plan *plan)
{
    json_t *parts = json_array();
    const char *name;
    size_t offset, bytes;
    for (int i = 0; mica_plan_booking(plan, i, &name, &offset, &bytes) == MICA_OK; i++)
        json_array_append_new(parts, json_pack("{ss sI sI}", "name", name, "offset",
                                               (json_int_t)offset, "bytes", (json_int_t)bytes));
    return json_pack("{sI so}", "bytes", (json_int_t)mica_plan_workspace(plan), "parts", parts);
}

static json_t *packed(const mica_problem *problem, const mica_plan *plan)
{
    json_t *list = json_array();
    mica_arg_info a;
    for (int i = 0; mica_problem_arg(problem, i, &a) == MICA_OK; i++) {
        size_t bytes = mica_plan_packed_bytes(plan, i);
        if (bytes)
            json_array_append_new(list,
                                  json_pack("{ss sI}", "name", a.name, "bytes", (json_int_t)bytes));
    }
    return list;
}

static json_t *kernels(const explain *e, const mica_plan *plan)
{
    json_t *list = json_array();
    mica_kernel_info k;
    for (int i = 0; mica_plan_kernel(plan, i, &k) == MICA_OK; i++) {
        json_t *row = json_pack(
            "{ss ss si si si sI sI ss so}", "file", k.file, "entry", k.entry, "registers",
            k.registers, "spill_bytes", k.spill_bytes, "local_bytes", k.local_bytes, "shared_bytes",
            (json_int_t)k.shared_bytes, "cubin_bytes", (json_int_t)k.cubin_bytes, "origin",
            k.origin, "compile_ms", cli_json_number(k.compile_ms));
        if (e->source) json_object_set_new(row, "prologue", json_string(k.prologue));
        json_array_append_new(list, row);
    }
    return list;
}

static json_t *contract(const mica_plan *plan)
{
    mica_contract c;
    double phi;
    if (mica_plan_contract(plan, &c, &phi) != MICA_OK) return json_null();
    return json_pack("{so sb sb sI sI sI so so so sb sb sb}", "unit", cli_json_number(c.unit),
                     "truncates", c.truncates, "flushes", c.flushes, "k_inst", (json_int_t)c.k_inst,
                     "n_seq", (json_int_t)c.n_seq, "n_outer", (json_int_t)c.n_outer, "ulps",
                     cli_json_number(c.ulps), "phi", cli_json_number(phi), "amplify",
                     cli_json_number(c.amplify), "fractions", c.fractions, "spreads", c.spreads,
                     "hides_nan", c.hides_nan);
}

json_t *explain_object(const explain *e, const mica_problem *problem, const mica_plan *plan)
{
    double flops, bytes;
    /* before anything else overwrites the text */
    json_t *error = plan ? NULL : json_string(mica_error());
    char *line = cli_line_text(problem, e->plan.packed);
    mica_problem_cost(problem, &flops, &bytes);
    json_t *o = json_pack("{ss ss ss so so so so so}", "line", line, "device", e->device.name,
                          "model", e->device.model, "arguments", arguments(problem), "flops",
                          cli_json_number(flops), "bytes", cli_json_number(bytes), "roofline_ms",
                          cli_json_number(mica_problem_roofline(e->context, problem)), "engines",
                          engines(e, problem, plan));
    free(line);
    if (error) {
        json_object_set_new(o, "error", error);
        return o;
    }
    json_t *choice =
        json_pack("{ss ss so}", "engine", mica_plan_engine(plan), "config", mica_plan_config(plan),
                  "predicted_ms", cli_json_number(mica_plan_predicted(plan)));
    if (mica_plan_measured(plan) > 0)
        json_object_set_new(choice, "recorded_ms", cli_json_number(mica_plan_measured(plan)));
    if (*mica_plan_pending(plan))
        json_object_set_new(choice, "pending", json_string(mica_plan_pending(plan)));
    json_object_set_new(o, "choice", choice);
    json_object_set_new(o, "workspace", workspace(plan));
    json_object_set_new(o, "packed", packed(problem, plan));
    json_object_set_new(o, "kernels", kernels(e, plan));
    json_object_set_new(o, "contract", contract(plan));
    return o;
}
