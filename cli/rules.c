/* SPDX-License-Identifier: Apache-2.0
 * Options that contradict each other, or mean nothing without another one. */
#include "rules.h"

#include <stdio.h>
#include <string.h>

const cli_rule cli_rules[] = {
    {"info", "env", CLI_EXCLUDES, "json device", "the environment is shown alone; JSON has it"},
    {"list", "markdown", CLI_EXCLUDES, "json *", "it is the text of docs/ops.md, all of it"},

    {"check", "quiet", CLI_EXCLUDES, "verbose", "one wants fewer lines, the other more"},
    {"check", "config", CLI_EXCLUDES, "pick", "one names a config, the other takes the planner's"},
    {"check", "compile-only", CLI_EXCLUDES,
     "self-test fill seed against allow-refusals allow-mistrusted packed digest verbose json",
     "nothing runs, so there is nothing to compare"},
    {"check", "table", CLI_NEEDS, "compile-only", "it is a table of compiled kernels"},
    {"check", "update", CLI_NEEDS, "table", "that is what it writes"},
    {"check", "share", CLI_NEEDS, "compile-only", "it is a share of what is compiled"},
    {"check", "part", CLI_NEEDS, "seconds", "it is the order in which they are spent"},
    {"check", "update", CLI_EXCLUDES, "share seconds engine config pick",
     "whole tables are written, not those of a part"},
    {"check", "commit", CLI_NEEDS, "json", "it goes into result lines"},

    {"bench", "compare", CLI_EXCLUDES,
     "engine pick packed seconds runs hot csv plot set samples overhead first device json commit "
     "quiet",
     "it reads two files and times nothing"},
    {"bench", "first", CLI_EXCLUDES, "overhead hot pick packed seconds runs csv plot samples quiet",
     "it times one plan and run of each line, by the planner's choice or by --engine"},
    {"bench", "overhead", CLI_EXCLUDES, "hot pick packed seconds runs csv plot samples quiet",
     "it times the host, by the planner's choice or by --engine"},
    {"bench", "csv", CLI_EXCLUDES, "quiet", "one prints lines, the other does not"},
    {"bench", "samples", CLI_NEEDS, "json", "the times go into result lines"},
    {"bench", "set", CLI_NEEDS, "json csv", "it goes into result lines"},
    {"bench", "commit", CLI_NEEDS, "json", "it goes into result lines"},

    {"tune", "budget", CLI_NEEDS, "*", "it is the time of a problem line"},
    {"tune", "json", CLI_NEEDS, "*", "each problem line makes a result line"},
    {"tune", "commit", CLI_NEEDS, "json", "it goes into result lines"},

    {"explain", "no-workspace", CLI_EXCLUDES, "workspace",
     "one is a limit of 0, the other another"},
    {"explain", "config", CLI_NEEDS, "engine", "a config is one of an engine"},
    {"explain", "engine", CLI_EXCLUDES, "nondeterministic",
     "an engine that is named may vary its bits"},
    {"explain", "prompt", CLI_EXCLUDES, "engine nondeterministic packed measure",
     "any engine may stand in, and another one runs later"},

    {"cache", "all", CLI_NEEDS, "=warm =build", "it is about what is compiled"},
    {"cache", "device", CLI_NEEDS, "=warm", "kernels of all devices lie in one cache"},
    {"cache", "quiet", CLI_NEEDS, "=warm =build", "only these have progress to show"},
    {"cache", "arch", CLI_NEEDS, "=build", "others are about one device, or none"},
    {0}};

static bool is_given(const cli_given *g, const char *name, size_t length)
{
    if (*name == '*') return g->arg_count > 0;
    if (*name == '=')
        return g->arg_count > 0 && strlen(g->args[0]) == length - 1 &&
               !strncmp(g->args[0], name + 1, length - 1);
    for (int i = 0; i < g->option_count; i++)
        if (strlen(g->options[i]) == length && !strncmp(g->options[i], name, length)) return true;
    return false;
}

/* "--json", "an argument", "warm". */
static void describe(const char *name, size_t length, char *text, size_t size)
{
    if (*name == '*')
        snprintf(text, size, "an argument");
    else if (*name == '=')
        snprintf(text, size, "%.*s", (int)length - 1, name + 1);
    else
        snprintf(text, size, "--%.*s", (int)length, name);
}

static bool is_broken(const cli_rule *r, const cli_given *g, char *text, size_t size)
{
    char list[160] = "", name[64];
    if (!is_given(g, r->option, strlen(r->option))) return false;
    for (const char *s = r->others; *s; s += strcspn(s, " "), s += *s == ' ') {
        size_t length = strcspn(s, " "), used = strlen(list);
        describe(s, length, name, sizeof name);
        if (is_given(g, s, length)) {
            if (r->kind == CLI_NEEDS) return false;
            snprintf(text, size, "--%s and %s exclude each other: %s", r->option, name, r->why);
            return true;
        }
        snprintf(list + used, sizeof list - used, "%s%s", used ? " or " : "", name);
    }
    if (r->kind == CLI_EXCLUDES) return false;
    snprintf(text, size, "--%s needs %s: %s", r->option, list, r->why);
    return true;
}

bool cli_rules_broken(const char *command, const cli_given *given, char *text, size_t size)
{
    /* What is too much comes before what is missing. */
    const cli_rule_kind order[] = {CLI_EXCLUDES, CLI_NEEDS};
    for (int i = 0; i < 2; i++)
        for (const cli_rule *r = cli_rules; r->command; r++)
            if (r->kind == order[i] && !strcmp(r->command, command) &&
                is_broken(r, given, text, size))
                return true;
    return false;
}
