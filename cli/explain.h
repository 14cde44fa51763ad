/* SPDX-License-Identifier: Apache-2.0
 * `mica explain`: what its files share. */
#ifndef MICA_CLI_EXPLAIN_H
#define MICA_CLI_EXPLAIN_H

#include "lines.h"

#include <jansson.h>

typedef struct explain {
    cli_options options;
    const char *engine, *config, *packed, *plot;
    mica_options plan; /* how the line at hand is planned */
    int64_t workspace; /* limit as in mica_options */
    bool measure, source, nondeterministic, prompt;
    mica_context *context;
    mica_device_info device;
    cli_lines lines;
    FILE *json;
    int graphs; /* how many there were among the arguments */
    int code;
} explain;

/* "in", "out", "inout" */
const char *explain_direction(mica_dir dir);
/* The config that an engine's row shows: the plan's where it is the choice. */
const char *explain_config(const mica_verdict *v, const mica_plan *plan);
/* Verdict `index` under the options; false past the last. */
bool explain_verdict(const explain *e, const mica_problem *problem, int index, mica_verdict *v);
/* Median time in milliseconds of that config; negative where it was not asked for or cannot be
 * measured. */
double explain_measured(const explain *e, const mica_problem *problem, const mica_verdict *v,
                        const mica_plan *plan);
/* Everything that the text says, as one object; plan NULL: there is none, and mica_error() says
 * why. */
json_t *explain_object(const explain *e, const mica_problem *problem, const mica_plan *plan);

#endif
