/* SPDX-License-Identifier: Apache-2.0
 * Names of engines on the command line. */
#define _GNU_SOURCE
#include "lines.h"

#include <stdlib.h>
#include <string.h>

static bool op_has(const char *op, const char *name)
{
    const char *engine;
    for (int i = 0; (engine = mica_op_engine(op, i)); i++)
        if (!strcmp(engine, name)) return true;
    return false;
}

static bool any_has(const char *name)
{
    const char *op;
    for (int i = 0; (op = mica_op_name(i)); i++)
        if (op_has(op, name)) return true;
    return false;
}

/* Of the operation, or, where that is NULL, of all of them. */
static const char *nearest_engine(const char *op, const char *name)
{
    const char *names[512], *engine, *each = op;
    int n = 0;
    for (int i = 0; op ? i == 0 : (each = mica_op_name(i)) != NULL; i++)
        for (int k = 0; n < 512 && (engine = mica_op_engine(each, k)); k++) names[n++] = engine;
    return cli_nearest(name, names, n);
}

char *cli_engine_unknown(const char *op, const char *name)
{
    const char *engine, *nearest = nearest_engine(op, name);
    char *text = cli_format("there is no engine \"%s\"", name);
    if (!nearest) nearest = nearest_engine(NULL, name);
    if (nearest) {
        char *longer = cli_format("%s, was %s meant?", text, nearest);
        free(text);
        text = longer;
    }
    for (int i = 0; op && (engine = mica_op_engine(op, i)); i++) {
        char *longer =
            i ? cli_format("%s, %s", text, engine)
              : cli_format("%s%s of %s: %s", text, nearest ? " Engines" : "; engines", op, engine);
        free(text);
        text = longer;
    }
    return text;
}

bool cli_engines_known(const char *option, const char *list, const cli_lines *lines)
{
    const char *op = NULL;
    char first[64];
    bool known = true;
    if (!list || !strcmp(list, "all")) return true;
    if (lines->count) {
        snprintf(first, sizeof first, "%.*s", (int)strcspn(lines->items[0].text, " "),
                 lines->items[0].text);
        op = mica_op_engine(first, 0) ? first : NULL;
    }
    for (const char *s = list; *s; s += strcspn(s, ","), s += *s == ',') {
        char *name = cli_format("%.*s", (int)strcspn(s, ","), s);
        if (!any_has(name)) {
            char *text = cli_engine_unknown(op, name);
            cli_say("%s: %s", option, text);
            free(text);
            known = false;
        }
        free(name);
    }
    return known;
}

char *cli_engine_refusal(mica_context *context, const mica_problem *problem, const char *name)
{
    const char *op = mica_problem_op(problem);
    mica_device_info device;
    mica_verdict v;
    for (int i = 0; mica_problem_verdict(context, problem, i, &v) == MICA_OK; i++)
        if (!strcmp(v.engine, name)) return v.status == MICA_OK ? NULL : cli_format("%s", v.reason);
    mica_context_info(context, &device);
    if (op_has(op, name))
        return cli_format("it belongs to the other backend, this is %s", device.name);
    return cli_format("%s has no engine of that name", op);
}
