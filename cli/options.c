/* SPDX-License-Identifier: Apache-2.0
 * Options that several commands share, and the way every command parses its line. */
#define _GNU_SOURCE
#include "cli.h"
#include "rules.h"

#include <stdlib.h>
#include <string.h>

static const struct argp_option common[] = {
    {"device", 'd', "NAME", 0, "cpu, cuda:0, auto, or sm_80, sm_89, sm_90a to plan only", 90},
    {"json", 'j', "FILE", 0, "write results as JSON lines to FILE (- is standard output)", 90},
    {"commit", 'C', "ID", 0, "source revision to name in result files", 90},
    {"quiet", 'q', NULL, 0, "no progress and no tables", 90},
    {0}};

enum { COMMON = sizeof common / sizeof *common - 1 };

/* Commands that have only some of them, by their letters. */
static const struct {
    const char *command, *letters;
} some[] = {{"info", "dj"}, {"list", "j"}, {"demo", "dq"}, {"explain", "dj"}, {"cache", "dq"}};

static void choose_common(const char *command, struct argp_option *chosen)
{
    const char *letters = NULL;
    int n = 0;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        if (!strcmp(some[i].command, command)) letters = some[i].letters;
    for (int i = 0; i < COMMON; i++)
        if (!letters || strchr(letters, common[i].key)) chosen[n++] = common[i];
    chosen[n] = (struct argp_option){0};
}

static void note_given(cli_options *o, const struct argp_option *table, int key)
{
    for (; table->name; table++)
        if (table->key == key && o->given_count < CLI_MOST_GIVEN)
            o->given[o->given_count++] = table->name;
}

static error_t parse_common(int key, char *arg, struct argp_state *state)
{
    cli_options *o = state->input;
    note_given(o, common, key);
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

/* ---- the whole line ---- */

typedef struct parsing {
    const char *command, *args_doc;
    const struct argp_option *own;
    argp_parser_t parser;
    void *input;
    cli_options *options;
} parsing;

static void check_rules(const parsing *p, struct argp_state *state)
{
    char text[400];
    cli_options *o = p->options;
    const cli_given given = {o->given, o->given_count, o->args, o->arg_count};
    if (!*p->args_doc && o->arg_count)
        argp_error(state, "\"%s\": options are all that it takes", o->args[0]);
    if (cli_rules_broken(p->command, &given, text, sizeof text)) argp_error(state, "%s", text);
}

/* Stands in front of the command's own parser, and notes what that takes. */
static error_t parse_own(int key, char *arg, struct argp_state *state)
{
    parsing *p = state->input;
    state->input = p->input;
    error_t error = p->parser(key, arg, state);
    state->input = p;
    if (key == ARGP_KEY_INIT) p->options = state->child_inputs[0];
    if (error == 0) note_given(p->options, p->own, key);
    if (key == ARGP_KEY_SUCCESS) check_rules(p, state);
    return error;
}

static void print_version(FILE *out, struct argp_state *state)
{
    (void)state;
    fprintf(out, "mica %s\n", mica_version());
}

void cli_parse(int argc, char **argv, const char *command, const struct argp_option *own,
               argp_parser_t parser, const char *args_doc, const char *doc, void *input)
{
    struct argp_option chosen[COMMON + 1];
    const struct argp shared = {.options = chosen, .parser = parse_common};
    const struct argp_child children[] = {{&shared, 0, NULL, 0}, {0}};
    parsing p = {
        .command = command, .args_doc = args_doc, .own = own, .parser = parser, .input = input};
    choose_common(command, chosen);
    const struct argp argp = {.options = own,
                              .parser = parse_own,
                              .args_doc = args_doc,
                              .doc = doc,
                              .children = children};
    argp_err_exit_status = CLI_USAGE;
    argp_program_version_hook = print_version;
    char *name = cli_format("mica %s", command);
    argv[0] = name;
    argp_parse(&argp, argc, argv, 0, NULL, &p);
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
