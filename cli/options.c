/* SPDX-License-Identifier: Apache-2.0
 * Options that several commands share, and the way every command parses its line. */
#define _GNU_SOURCE
#include "cli.h"

#include <stdlib.h>
#include <string.h>

static const struct argp_option common[] = {
    {"device", 'd', "NAME", 0, "cpu, cuda:0, auto, or sm_80, sm_89, sm_90a to plan only", 90},
    {"json", 'j', "FILE", 0, "write results as JSON lines to FILE (- is standard output)", 90},
    {"commit", 'C', "ID", 0, "source revision to name in result files", 90},
    {"quiet", 'q', NULL, 0, "no progress and no tables", 90},
    {0}};

static error_t parse_common(int key, char *arg, struct argp_state *state)
{
    cli_options *o = state->input;
    switch (key) {
    case 'd':
        o->device = arg;
        return 0;
    case 'j':
        o->json = arg;
        return 0;
    case 'C':
        o->commit = arg;
        return 0;
    case 'q':
        o->quiet = true;
        return 0;
    case ARGP_KEY_ARG:
        o->args = cli_grow(o->args, (size_t)(o->arg_count + 1) * sizeof *o->args);
        o->args[o->arg_count++] = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp cli_options_argp = {.options = common, .parser = parse_common};

static void print_version(FILE *out, struct argp_state *state)
{
    (void)state;
    fprintf(out, "mica %s\n", mica_version());
}

void cli_parse(int argc, char **argv, const char *command, const struct argp_option *own,
               argp_parser_t parser, const char *args_doc, const char *doc, void *input)
{
    const struct argp_child children[] = {{&cli_options_argp, 0, NULL, 0}, {0}};
    const struct argp argp = {
        .options = own, .parser = parser, .args_doc = args_doc, .doc = doc, .children = children};
    argp_err_exit_status = CLI_USAGE;
    argp_program_version_hook = print_version;
    char *name = cli_format("mica %s", command);
    argv[0] = name;
    argp_parse(&argp, argc, argv, 0, NULL, input);
    free(name);
    argv[0] = NULL;
}

void cli_options_free(cli_options *o)
{
    free(o->args);
}

double cli_number(struct argp_state *state, const char *option, const char *text, double low)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !(v >= low && v < 1e18))
        argp_error(state, "%s=%s: a number of at least %g is needed", option, text, low);
    return v;
}

int cli_context(const cli_options *o, mica_context **context, mica_device_info *info)
{
    const char *device = o->device ? o->device : "auto";
    mica_status status = mica_context_create(device, context);
    if (status == MICA_OK) status = mica_context_info(*context, info);
    if (status == MICA_OK) return CLI_OK;
    cli_say("device %s: %s", device, mica_error());
    return cli_exit_code(status);
}
